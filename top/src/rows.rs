//! The rows of the table of containers: which, and in which order.

use std::rc::Rc;

use strum::IntoStaticStr;
use view::called::{natural, shortest};
use view::ps::{PsCard, PsVgpu};
use view::top::Top;

/// A slice: a container with several cards has a row for each.
#[derive(Debug, Clone)]
pub(crate) struct Row<'a> {
    /// How the container is called beside the others.
    pub(crate) name: Rc<str>,
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

    fn matches(&self, filter: &str) -> bool {
        let vgpu = self.vgpu;
        let filter = filter.to_lowercase();
        let pod_namespace = vgpu.pod.as_ref().map_or("", |pod| &pod.namespace);
        [
            &*self.name,
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
    /// The only card, by its number.
    pub(crate) card: Option<u32>,
}

/// The rows of a document.
pub(crate) fn rows<'a>(top: &'a Top, choice: &Choice<'_>) -> Vec<Row<'a>> {
    let mut rows: Vec<Row<'a>> = top
        .vgpus
        .iter()
        .zip(shortest(&top.vgpus))
        .flat_map(|(vgpu, name)| {
            let name: Rc<str> = name.into();
            vgpu.cards.iter().map(move |slice| Row {
                name: Rc::clone(&name),
                vgpu,
                slice,
            })
        })
        .filter(|row| choice.card.is_none_or(|number| number == row.slice.minor))
        .filter(|row| choice.filter.is_empty() || row.matches(choice.filter))
        .collect();
    rows.sort_by(|one, other| {
        let place = one.place(choice.sort).cmp(&other.place(choice.sort));
        let name = || natural(&one.name, &other.name);
        place
            .then_with(name)
            .then_with(|| one.key().cmp(&other.key()))
    });
    if choice.is_reversed {
        rows.reverse();
    }
    rows
}
