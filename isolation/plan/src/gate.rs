//! When a container's channels are enabled, as a function of the time.

/// One contiguous part of every window. It may reach over the window's end into the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Segment {
    /// From the window's start; less than the window.
    pub offset_ns: u64,
    /// More than 0, less than the window.
    pub length_ns: u64,
}

/// When a container's channels are enabled. Windows start at the multiples of [`crate::Layout::window_ns`] of the clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GateSchedule {
    /// Always.
    Open,
    /// Not before another layout says so: a container that the cyclic schedule does not count yet. Never for longer than until the epoch
    /// of its [`crate::ShareRecord::next`], which its broker sets as soon as it sees itself present.
    Closed,
    /// In these segments of every window, disjoint, not adjacent, sorted, at least one. Almost always one: a segment is
    /// divided only where those that keep their places have left no contiguous room.
    Cyclic(Vec<Segment>),
}

/// What happens to a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EdgeKind {
    /// A segment ends.
    Close,
    /// A segment begins.
    Open,
}

/// A change of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edge {
    /// When.
    pub at_ns: u64,
    /// What.
    pub kind: EdgeKind,
}

impl GateSchedule {
    /// Whether it ever changes within a layout.
    #[must_use]
    pub fn is_gated(&self) -> bool {
        !matches!(self, Self::Open)
    }

    /// Whether it is open at this time.
    #[must_use]
    pub fn is_open(&self, window_ns: u64, at_ns: u64) -> bool {
        match self {
            Self::Open => true,
            Self::Closed => false,
            Self::Cyclic(_) => self.segment_at(window_ns, at_ns).is_some(),
        }
    }

    /// The segment that is open at this time, as the times at which it began and will end.
    #[must_use]
    pub fn segment_at(&self, window_ns: u64, at_ns: u64) -> Option<(u64, u64)> {
        let window_ns = window_ns.max(1);
        self.segments().iter().find_map(|segment| {
            let into = (at_ns % window_ns + window_ns - segment.offset_ns % window_ns) % window_ns;
            (into < segment.length_ns).then(|| {
                (
                    at_ns.saturating_sub(into),
                    at_ns.saturating_add(segment.length_ns - into),
                )
            })
        })
    }

    /// The next change after this time, never at it. `None` where there is none.
    #[must_use]
    pub fn next_edge(&self, window_ns: u64, after_ns: u64) -> Option<Edge> {
        let window_ns = window_ns.max(1);
        let phase = after_ns % window_ns;
        self.segments()
            .iter()
            .flat_map(|segment| {
                [
                    (segment.offset_ns, EdgeKind::Open),
                    (segment.offset_ns + segment.length_ns, EdgeKind::Close),
                ]
            })
            .map(|(at, kind)| {
                let ahead = (at % window_ns + window_ns - phase) % window_ns;
                let ahead = if ahead == 0 { window_ns } else { ahead };
                Edge {
                    at_ns: after_ns.saturating_add(ahead),
                    kind,
                }
            })
            .min_by_key(|edge| (edge.at_ns, edge.kind))
    }

    /// How much of every window it is open.
    #[must_use]
    pub fn open_ns(&self, window_ns: u64) -> u64 {
        match self {
            Self::Open => window_ns,
            Self::Closed => 0,
            Self::Cyclic(segments) => segments.iter().map(|segment| segment.length_ns).sum(),
        }
    }

    /// How long it is open between two times.
    #[must_use]
    pub fn open_between_ns(&self, window_ns: u64, from_ns: u64, to_ns: u64) -> u64 {
        let window_ns = window_ns.max(1);
        let until = |at_ns: u64| {
            let phase = at_ns % window_ns;
            let begun: u64 = self
                .segments()
                .iter()
                .map(|segment| {
                    let end = segment.offset_ns + segment.length_ns;
                    // What reaches over the window's end is at the beginning of this one.
                    let wrapped = end.saturating_sub(window_ns).min(phase);
                    wrapped + phase.clamp(segment.offset_ns, end) - segment.offset_ns
                })
                .sum();
            (at_ns / window_ns).saturating_mul(self.open_ns(window_ns)) + begun
        };
        match self {
            Self::Open => to_ns.saturating_sub(from_ns),
            Self::Closed => 0,
            Self::Cyclic(_) => until(to_ns).saturating_sub(until(from_ns)),
        }
    }

    /// Its segments; none where it does not follow the cyclic schedule.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        match self {
            Self::Open | Self::Closed => &[],
            Self::Cyclic(segments) => segments,
        }
    }
}
