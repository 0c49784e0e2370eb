//! The pool's generation: the scheduler takes the slices of the newest, and none before it has all of them.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::ResourceSlice;

use super::Offer;

/// What of this driver's slices is in the API.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Published {
    generation: i64,
    /// The names of each slice's devices, by the slice's name.
    parts: Vec<(String, BTreeSet<String>)>,
}

impl Published {
    pub(crate) fn of(slices: &[ResourceSlice]) -> Self {
        let mut parts: Vec<(String, BTreeSet<String>)> = slices
            .iter()
            .map(|slice| {
                let name = slice.metadata.name.clone().unwrap_or_default();
                let devices = slice.spec.devices.iter().flatten();
                (name, devices.map(|device| device.name.clone()).collect())
            })
            .collect();
        parts.sort();
        let generations = slices.iter().map(|slice| slice.spec.pool.generation);
        Self {
            generation: generations.max().unwrap_or(0),
            parts,
        }
    }
}

/// The generation of an offer: the published one where each slice has the same devices, in whatever order and however they are, else the next.
pub(crate) fn generation(published: &Published, offer: &Offer) -> i64 {
    let devices = published.parts.iter().map(|(_, devices)| devices.clone());
    let offered = offer.parts().map(|part| {
        let names = part.iter().map(|device| device.name.clone());
        names.collect::<BTreeSet<String>>()
    });
    if published.generation > 0 && devices.eq(offered) {
        published.generation
    } else {
        published.generation.saturating_add(1).max(1)
    }
}
