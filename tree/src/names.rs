//! What containers' folders are called.
//!
//! A tenant chooses the names of containers and pods, so that these are folders by what they are known to consist of: `cards::Name` and
//! `cards::ContainerKey` have letters, digits and `_.-` alone. The one `/` in what `cgpu ps` shows becomes a `:`, which none of them has.

use view::called::shortest;
use view::ps::PsVgpu;

use crate::node::CardFile;

/// The longest name of a file (`NAME_MAX`), bytes.
const LONGEST: usize = 255;

/// A name for each container, as `cgpu ps` shows it with `:` for `/`. `serials`: the number of each, for one whose own is too long.
pub(crate) fn folders(vgpus: &[PsVgpu], serials: &[u32]) -> Vec<String> {
    let shown = shortest(vgpus).into_iter();
    let all = shown.zip(vgpus).zip(serials);
    all.map(|((shown, vgpu), serial)| {
        let by_id = || format!("{}:{}", vgpu.namespace, vgpu.container);
        // No other one begins like this.
        let by_number = || format!(":{serial}");
        let fits = |name: &String| name.len() <= LONGEST;
        let is_file = |name: &str| name.parse::<CardFile>().is_ok();
        let name = Some(shown.replace('/', ":"));
        let name = name.filter(|name| fits(name) && !is_file(name));
        let name = name.or_else(|| Some(by_id()).filter(fits));
        name.unwrap_or_else(by_number)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use cards::{ContainerKey, Name};
    use proptest::prelude::*;
    use view::ps::PsPod;

    use super::*;
    use crate::hierarchy::fixture::vgpu;

    fn of(vgpus: &[PsVgpu]) -> Vec<String> {
        let serials: Vec<u32> = (1..).take(vgpus.len()).collect();
        folders(vgpus, &serials)
    }

    #[test]
    fn a_folder_is_called_as_the_container_is_shown() {
        let digest = "e95e304dafa2".to_owned() + &"0".repeat(52);
        let named = PsVgpu {
            name: Some("web".to_owned()),
            ..vgpu("moby", &digest, &[])
        };
        let in_pod = PsVgpu {
            pod: Some(PsPod {
                namespace: "team-a".to_owned(),
                name: "train-0".to_owned(),
                container: "app".to_owned(),
            }),
            ..vgpu("k8s.io", "c1", &[])
        };
        let nameless = vgpu("moby", &digest.replace('9', "8"), &[]);
        assert_eq!(
            of(&[named, in_pod, nameless]),
            ["web", "train-0:app", "moby:e85e304dafa2"]
        );
    }

    #[test]
    fn no_container_takes_the_place_of_a_card_s_rule() {
        let all = ["max_inst", "policy", "prio_ratio", "memsize"].map(|name| PsVgpu {
            name: Some(name.to_owned()),
            ..vgpu("moby", &format!("id-of-{name}"), &[])
        });
        let ids = ["max_inst", "policy", "prio_ratio"].map(|name| format!("moby:id-of-{name}"));
        assert_eq!(of(&all), [ids.as_slice(), &["memsize".to_owned()]].concat());
    }

    #[test]
    fn a_name_that_is_too_long_is_the_id_and_an_id_that_is_too_long_a_number() {
        let long = PsVgpu {
            pod: Some(PsPod {
                namespace: "a".to_owned(),
                name: "p".repeat(253),
                container: "app".to_owned(),
            }),
            ..vgpu("k8s.io", "c1", &[])
        };
        let longest = vgpu(&"n".repeat(128), &"i".repeat(128), &[]);
        assert_eq!(of(&[long, longest]), ["k8s.io:c1", ":2"]);
    }

    /// Texts that engines' names and ids may be, short so that they meet.
    fn text() -> impl Strategy<Value = String> {
        "[a-c.:/_-]{1,3}|[ab]{64}|[a-b]{250}"
    }

    fn container() -> impl Strategy<Value = Option<PsVgpu>> {
        let pod = proptest::option::of((text(), text(), text()));
        let name = proptest::option::of(text());
        (text(), text(), name, pod).prop_map(|(namespace, id, name, pod)| {
            ContainerKey::new(&namespace, &id).ok()?;
            let plain = |text: &str| Name::new(text).map(|name| name.to_string());
            let pod = pod.and_then(|(namespace, name, container)| {
                Some(PsPod {
                    namespace: plain(&namespace)?,
                    name: plain(&name)?,
                    container: plain(&container)?,
                })
            });
            Some(PsVgpu {
                name: name.as_deref().and_then(plain),
                pod,
                ..vgpu(&namespace, &id, &[])
            })
        })
    }

    proptest! {
        #[test]
        fn names_are_file_names_and_each_is_one_container_s(all in proptest::collection::vec(container(), 0..12)) {
            let mut keys = HashSet::new();
            let all: Vec<PsVgpu> = all
                .into_iter()
                .flatten()
                .filter(|one| keys.insert((one.namespace.clone(), one.container.clone())))
                .collect();
            let names = of(&all);
            for name in &names {
                prop_assert!((1..=255).contains(&name.len()) && name != "." && name != "..");
                prop_assert!(name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/'));
            }
            let each: HashSet<&String> = names.iter().collect();
            prop_assert_eq!(each.len(), names.len(), "{:?}", names);
            // What looks like a container's namespace and id is that container.
            for one in &all {
                let by_id = format!("{}:{}", one.namespace, one.container);
                for (other, name) in all.iter().zip(&names) {
                    prop_assert!(*name != by_id || other == one, "{}", name);
                }
            }
        }
    }
}
