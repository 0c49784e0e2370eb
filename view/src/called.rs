//! What containers are called beside each other.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::iter::Peekable;
use std::str::Chars;

use crate::names::{short_among, short_id};
use crate::ps::PsVgpu;

/// A name for each, in words that `cgpu set` and the others take: the shortest that is no other one's.
///
/// Whoever makes a container chooses its names. One that reads like the `namespace/id` of another container is not used.
#[must_use]
pub fn shortest(vgpus: &[PsVgpu]) -> Vec<String> {
    let mut count: HashMap<String, usize> = HashMap::new();
    for vgpu in vgpus {
        let mut all = forms(vgpu);
        all.push(vgpu.container.clone());
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
    let id = |vgpu: &PsVgpu| {
        let ids = vgpus.iter().map(|other| other.container.as_str());
        let id = short_among(&vgpu.container, ids);
        format!("{}/{id}", vgpu.namespace)
    };
    let name = |vgpu| forms(vgpu).into_iter().find(is_its_own);
    let all = vgpus.iter();
    all.map(|vgpu| name(vgpu).unwrap_or_else(|| id(vgpu)))
        .collect()
}

/// What people call a container, the shortest first; nothing where it has no name.
pub(crate) fn forms(vgpu: &PsVgpu) -> Vec<String> {
    match (&vgpu.pod, &vgpu.name) {
        (Some(pod), _) => {
            let in_pod = format!("{}/{}", pod.name, pod.container);
            let longer = format!("{}/{in_pod}", pod.namespace);
            vec![in_pod, longer]
        }
        (None, Some(name)) => vec![name.clone(), format!("{}/{name}", vgpu.namespace)],
        (None, None) => Vec::new(),
    }
}

/// The names that a list shows, by which its rows are ordered. They are those among all containers, also where some are left out.
#[derive(Debug, Clone, Default)]
pub struct ShownNames(HashMap<(String, String), String>);

impl ShownNames {
    /// Of these containers.
    #[must_use]
    pub fn of(vgpus: &[PsVgpu]) -> Self {
        let keys = vgpus
            .iter()
            .map(|vgpu| (vgpu.namespace.clone(), vgpu.container.clone()));
        Self(keys.zip(shortest(vgpus)).collect())
    }

    /// One's name.
    #[must_use]
    pub fn name(&self, vgpu: &PsVgpu) -> String {
        let key = (vgpu.namespace.clone(), vgpu.container.clone());
        let known = self.0.get(&key).cloned();
        known.unwrap_or_else(|| format!("{}/{}", vgpu.namespace, vgpu.container))
    }

    /// Some of them, with their names and by these.
    #[must_use]
    pub fn ordered<'a>(&self, vgpus: &'a [PsVgpu]) -> Vec<(String, &'a PsVgpu)> {
        let mut named: Vec<_> = vgpus.iter().map(|vgpu| (self.name(vgpu), vgpu)).collect();
        named.sort_by(|(one, _), (other, _)| natural(one, other));
        named
    }
}

/// As people order names: numbers in them by their value, `web-6` before `web-10`.
#[must_use]
pub fn natural(one: &str, other: &str) -> Ordering {
    let (mut ones, mut others) = (one.chars().peekable(), other.chars().peekable());
    loop {
        let order = match (ones.peek(), others.peek()) {
            (Some(a), Some(b)) if a.is_ascii_digit() && b.is_ascii_digit() => {
                let (a, b) = (number(&mut ones), number(&mut others));
                a.len().cmp(&b.len()).then(a.cmp(&b))
            }
            (Some(_), Some(_)) => ones.next().cmp(&others.next()),
            // `01` and `1` are one number.
            (None, None) => return one.cmp(other),
            (a, b) => a.is_some().cmp(&b.is_some()),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// The digits of a number without the zeros before it.
fn number(text: &mut Peekable<Chars<'_>>) -> String {
    let mut digits = String::new();
    while let Some(digit) = text.next_if(char::is_ascii_digit) {
        if !digits.is_empty() || digit != '0' {
            digits.push(digit);
        }
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_ordered_as_people_count() {
        let mut names = [
            "web-10", "web-6", "b", "web-5", "a/2", "a/10", "web-05", "web",
        ];
        names.sort_by(|one, other| natural(one, other));
        assert_eq!(
            names,
            [
                "a/2", "a/10", "b", "web", "web-05", "web-5", "web-6", "web-10"
            ]
        );
        assert_eq!(natural("a", "a"), Ordering::Equal);
    }
}
