//! What containers are called beside each other.

use std::collections::{HashMap, HashSet};

use crate::names::{short_among, short_id};
use crate::ps::PsVgpu;

/// A name for each, in words that `cgpu set` and the others take: the shortest that is no other one's.
///
/// Whoever makes a container chooses its names. One that reads like the `namespace/id` of another container is not used.
#[must_use]
pub fn shortest(vgpus: &[PsVgpu]) -> Vec<String> {
    let short = |vgpu: &PsVgpu| match (&vgpu.pod, &vgpu.name) {
        (Some(pod), _) => format!("{}/{}", pod.name, pod.container),
        (None, Some(name)) => name.clone(),
        (None, None) => vgpu.container.clone(),
    };
    let longer = |vgpu: &PsVgpu| match &vgpu.pod {
        Some(pod) => format!("{}/{}/{}", pod.namespace, pod.name, pod.container),
        None => short(vgpu),
    };
    let mut count: HashMap<String, usize> = HashMap::new();
    for vgpu in vgpus {
        let mut all = vec![short(vgpu), longer(vgpu), vgpu.container.clone()];
        all.sort();
        all.dedup();
        for text in all {
            *count.entry(text).or_default() += 1;
        }
    }
    let keys: HashSet<String> = vgpus
        .iter()
        .flat_map(|vgpu| {
            let id = &vgpu.container;
            [id.as_str(), short_id(id)].map(|id| format!("{}/{id}", vgpu.namespace))
        })
        .collect();
    let is_its_own = |text: &String| count.get(text) == Some(&1) && !keys.contains(text);
    let has_name = |vgpu: &&PsVgpu| vgpu.pod.is_some() || vgpu.name.is_some();
    let name = |vgpu: &PsVgpu| {
        let named = Some(vgpu).filter(has_name)?;
        Some(short(named))
            .filter(is_its_own)
            .or_else(|| Some(longer(named)).filter(is_its_own))
    };
    let id = |vgpu: &PsVgpu| {
        let ids = vgpus.iter().map(|other| other.container.as_str());
        let id = short_among(&vgpu.container, ids);
        format!("{}/{id}", vgpu.namespace)
    };
    let all = vgpus.iter();
    all.map(|vgpu| name(vgpu).unwrap_or_else(|| id(vgpu)))
        .collect()
}
