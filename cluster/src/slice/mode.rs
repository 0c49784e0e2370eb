//! A node's mode, by its label `ack.node.gpu.schedule`.

/// The label.
pub(crate) const LABEL: &str = "ack.node.gpu.schedule";

/// How a node's cards are offered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// In parts. `cgpu`, `core_mem`, another value or none.
    #[default]
    Held,
    /// In parts too, under another name: `share`. How they are held is the node's file's.
    Shared,
    /// As wholes: `default`, `topology`.
    Whole,
}

impl Mode {
    /// For people.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Held => "in parts",
            Self::Shared => "in parts of mode shared",
            Self::Whole => "as wholes",
        }
    }

    /// As a device says it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Shared => "shared",
            Self::Whole => "whole",
        }
    }

    /// The mode of a name.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        let all = [Self::Held, Self::Shared, Self::Whole];
        all.into_iter().find(|mode| mode.name() == name)
    }

    /// What a label's value means.
    pub(crate) fn of_label(value: Option<&str>) -> Self {
        match value {
            Some("share") => Self::Shared,
            Some("default" | "topology") => Self::Whole,
            _ => Self::Held,
        }
    }
}

/// A mode, and whether another one is to follow once the node is free of claims.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Switch {
    /// What is offered.
    pub(crate) mode: Mode,
    /// Nothing new is placed.
    pub(crate) draining: bool,
}

impl Switch {
    /// What follows from a label. Claims that are there were given by the former mode: it stays until the last is gone, and no new one comes.
    pub(crate) fn next(self, labelled: Mode, claims: usize) -> Self {
        if labelled == self.mode || claims == 0 {
            Self {
                mode: labelled,
                draining: false,
            }
        } else {
            Self {
                mode: self.mode,
                draining: true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_changes_when_the_last_claim_is_gone() {
        let held = Switch::default();
        let whole = Mode::of_label(Some("topology"));
        let draining = held.next(whole, 2);
        assert_eq!((draining.mode, draining.draining), (Mode::Held, true));
        assert_eq!(
            draining.next(Mode::Held, 2),
            held,
            "the label was taken back"
        );
        let changed = draining.next(whole, 0);
        assert_eq!((changed.mode, changed.draining), (Mode::Whole, false));
        assert_eq!(Mode::of_label(Some("cgpu")), Mode::Held);
        assert_eq!(Mode::of_label(Some("mps")), Mode::Held);
        assert_eq!(Mode::of_label(Some("share")), Mode::Shared);
    }
}
