//! The rows of the table of containers: which, and in which order.

use strum::IntoStaticStr;
use view::names::short_id;
use view::ps::{PsCard, PsVgpu, State as VgpuState};
use view::top::Top;

/// A slice: a container with several cards has a row for each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row<'a> {
    pub(crate) vgpu: &'a PsVgpu,
    pub(crate) slice: &'a PsCard,
}

/// Which slice it is, from one document to the next.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RowKey {
    pub(crate) namespace: String,
    pub(crate) container: String,
    pub(crate) uuid: String,
}

/// By what the rows are sorted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Sort {
    /// By name, A first.
    #[default]
    Name,
    /// By memory in use, the most first.
    Memory,
    /// By what it had of the card's time, the most first.
    Compute,
    /// By refused allocations, the most first.
    Refused,
    /// By card, 0 first.
    Card,
}

impl Sort {
    /// What `s` changes to.
    #[must_use]
    pub fn next(self) -> Self {
        match self {
            Self::Name => Self::Memory,
            Self::Memory => Self::Compute,
            Self::Compute => Self::Refused,
            Self::Refused => Self::Card,
            Self::Card => Self::Name,
        }
    }

    /// As the heading says it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl Row<'_> {
    pub(crate) fn key(&self) -> RowKey {
        RowKey {
            namespace: self.vgpu.namespace.clone(),
            container: self.vgpu.container.clone(),
            uuid: self.slice.uuid.clone(),
        }
    }

    /// How the container is called.
    pub(crate) fn name(&self) -> String {
        name_of(self.vgpu)
    }

    /// Whether its state or its health asks for attention.
    pub(crate) fn is_ill(&self) -> bool {
        let is_well = self.vgpu.health.as_deref().is_none_or(|text| text == "ok");
        self.vgpu.state != VgpuState::Running || !is_well
    }

    fn matches(&self, filter: &str) -> bool {
        let vgpu = self.vgpu;
        let filter = filter.to_lowercase();
        let pod_namespace = vgpu.pod.as_ref().map_or("", |pod| &pod.namespace);
        [
            &self.name(),
            &vgpu.namespace,
            &vgpu.container,
            pod_namespace,
            vgpu.state.text(),
        ]
        .iter()
        .any(|text| text.to_lowercase().contains(&filter))
    }

    fn place(&self, sort: Sort) -> u64 {
        let most_first = |value: Option<u64>| u64::MAX - value.unwrap_or(0);
        match sort {
            Sort::Name => 0,
            Sort::Memory => most_first(self.slice.used_bytes),
            Sort::Compute => most_first(self.slice.share.used_ppm),
            Sort::Refused => most_first(self.slice.refused),
            Sort::Card => self.slice.minor.into(),
        }
    }
}

/// What is shown of a document, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choice<'a> {
    pub(crate) sort: Sort,
    pub(crate) is_reversed: bool,
    /// Part of a name, id, namespace or state; all rows match an empty one.
    pub(crate) filter: &'a str,
    /// The only card, by its place in the list.
    pub(crate) card: Option<usize>,
}

/// The rows of a document.
pub(crate) fn rows<'a>(top: &'a Top, choice: &Choice<'_>) -> Vec<Row<'a>> {
    let only = choice
        .card
        .map(|at| top.cards.get(at).map(|card| &card.uuid));
    let mut rows: Vec<Row<'a>> = top
        .vgpus
        .iter()
        .flat_map(|vgpu| vgpu.cards.iter().map(move |slice| Row { vgpu, slice }))
        .filter(|row| only.is_none_or(|uuid| uuid == Some(&row.slice.uuid)))
        .filter(|row| choice.filter.is_empty() || row.matches(choice.filter))
        .collect();
    rows.sort_by_cached_key(|row| (row.place(choice.sort), row.name(), row.key()));
    if choice.is_reversed {
        rows.reverse();
    }
    rows
}

/// `pod/container`, else the engine's name, else namespace and id.
fn name_of(vgpu: &PsVgpu) -> String {
    match (&vgpu.pod, &vgpu.name) {
        (Some(pod), _) => format!("{}/{}", pod.name, pod.container),
        (None, Some(name)) => name.clone(),
        (None, None) => format!("{}/{}", vgpu.namespace, short_id(&vgpu.container)),
    }
}
