//! A made-up 610.43.02 with the facts of 595, and what is changed of them.

use nvabi::control::{
    NV2080_CTRL_CMD_FB_GET_INFO_V2, NV2080_CTRL_CMD_GPU_GET_NAME_STRING,
    NV2080_CTRL_CMD_GPU_GET_PIDS,
};
use nvabi::escape::{self, NV_ESC_RM_ALLOC_LONG};
use proptest::prelude::*;

use super::*;

const VERSION: &str = "610.43.02";

/// The facts of 595, and every control's struct plain.
fn facts() -> (BTreeMap<What, u64>, BTreeSet<String>) {
    let facts = Facts::of_release(Release::R595);
    let known = facts
        .iter()
        .map(|(what, value)| (what.clone(), value))
        .collect();
    let plain = control_structs(Release::R595)
        .into_iter()
        .map(|(_, name)| name.to_owned());
    (known, plain.collect())
}

fn file(known: BTreeMap<What, u64>, plain: BTreeSet<String>) -> Result<Known, Error> {
    let text = file_of(VERSION, &Facts::new(known), plain)?;
    Known::of_file(text.as_bytes(), VERSION.parse().unwrap())
}

fn size(name: &str) -> What {
    What::Size(name.to_owned())
}

const FB_INFO: &str = "NV2080_CTRL_FB_GET_INFO_V2_PARAMS";
const PIDS: &str = "NV2080_CTRL_GPU_GET_PIDS_PARAMS";

#[test]
fn a_version_without_a_difference_has_the_layouts_of_its_release() {
    for release in Release::ALL {
        let facts = Facts::of_release(release);
        let known = facts
            .iter()
            .map(|(what, value)| (what.clone(), value))
            .collect();
        let known = file(known, BTreeSet::new()).unwrap();
        assert_eq!(known.release().unwrap(), release);
        assert_eq!(known.summary(), format!("as {release:?}"));
    }
}

#[test]
fn a_control_of_another_size_has_it_where_its_struct_names_nothing_and_is_refused_elsewhere() {
    let (mut known, mut plain) = facts();
    known.insert(size(FB_INFO), 2052);
    known.insert(What::Text(FB_INFO.to_owned()), 1);
    known.insert(What::Text(PIDS.to_owned()), 2);
    plain.remove(PIDS);
    let release = file(known, plain).unwrap().release().unwrap();
    let bytes = |cmd| control::row(cmd, release).map(|row| row.params_bytes);
    assert_eq!(bytes(NV2080_CTRL_CMD_FB_GET_INFO_V2), Some(2052));
    assert_eq!(bytes(NV2080_CTRL_CMD_GPU_GET_PIDS), None);
    assert_eq!(
        bytes(NV2080_CTRL_CMD_GPU_GET_NAME_STRING),
        control::row(NV2080_CTRL_CMD_GPU_GET_NAME_STRING, Release::R595)
            .map(|row| row.params_bytes)
    );
    // All else is its release's.
    assert!(release >= Release::R595 && release.name() == "R595");
    for row in escape::ALL {
        assert_eq!(row.key(release), row.key(Release::R595));
    }
}

#[test]
fn a_control_that_has_another_number_is_refused() {
    let (mut known, plain) = facts();
    let name = What::Value("NV2080_CTRL_CMD_GPU_GET_PIDS".to_owned());
    known.insert(name, 0x2080_0fff);
    let known = file(known, plain).unwrap();
    let release = known.release().unwrap();
    assert_eq!(control::row(NV2080_CTRL_CMD_GPU_GET_PIDS, release), None);
    assert_eq!(
        known.summary(),
        "as R595, with 1 controls changed, 1 of them refused"
    );
    // As it comes out of a grant.
    let written = serde_json::to_string(&known).unwrap();
    let read: Known = serde_json::from_str(&written).unwrap();
    assert_eq!(read.release().unwrap(), release);
}

#[test]
fn whatever_else_differs_keeps_the_driver_refused() {
    let shared = [
        size("NVOS64_PARAMETERS"),
        size("NV_CHANNEL_ALLOC_PARAMS"),
        size("UVM_FREE_PARAMS"),
        What::Text("NVOS64_PARAMETERS".to_owned()),
        What::Offset("NVOS54_PARAMETERS".to_owned(), "status".to_owned()),
        What::Offset(PIDS.to_owned(), "pidTbl".to_owned()),
        What::Value(NV_ESC_RM_ALLOC_LONG.name.to_owned()),
        What::Value("NV_ERR_NO_MEMORY".to_owned()),
    ];
    for what in shared {
        let (mut known, plain) = facts();
        let former = known.insert(what.clone(), 4096);
        let error = file(known.clone(), plain.clone()).unwrap_err();
        let Error::NoRelease {
            release,
            count,
            first,
        } = &error
        else {
            panic!("{what}: {error}");
        };
        assert_eq!((*release, *count, first), ("R595", 1, &what));
        assert!(former.is_some(), "{what} is nothing that cgpu goes by");
    }
}

#[test]
fn a_file_of_another_version_or_form_is_refused() {
    let (known, plain) = facts();
    let text = file_of(VERSION, &Facts::new(known), plain).unwrap();
    let other = "610.43.03".parse().unwrap();
    let error = Known::of_file(text.as_bytes(), other).unwrap_err();
    assert_eq!(
        error.to_string(),
        "it is of version 610.43.02, not 610.43.03"
    );
    let version = VERSION.parse().unwrap();
    for (from, to) in [
        ("\"plain\"", "\"simple\""),
        ("\"version\"", "\"versions\""),
        (
            "\"sizeof NVOS64_PARAMETERS\": 48",
            "\"sizeof NVOS64_PARAMETERS\": -48",
        ),
        (
            "\"sizeof NVOS64_PARAMETERS\"",
            "\"size of NVOS64_PARAMETERS\"",
        ),
    ] {
        assert!(text.contains(from), "{from}");
        let changed = text.replacen(from, to, 1);
        let error = Known::of_file(changed.as_bytes(), version);
        assert!(
            matches!(error, Err(Error::Form(_) | Error::Name { .. })),
            "{to}"
        );
    }
    Known::of_file(b"{}", version).unwrap_err();
}

/// Nothing is believed: facts that are absent make a version unknown as facts that differ do.
#[test]
fn a_file_that_leaves_facts_out_makes_nothing_known() {
    let (mut known, plain) = facts();
    known.retain(|what, _| matches!(what, What::Value(_)));
    assert!(matches!(
        file(known, plain.clone()),
        Err(Error::NoRelease { .. })
    ));
    let (mut known, _) = facts();
    known.remove(&What::Text(FB_INFO.to_owned()));
    known.remove(&size(FB_INFO));
    let release = file(known, plain).unwrap().release().unwrap();
    assert_eq!(control::row(NV2080_CTRL_CMD_FB_GET_INFO_V2, release), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever facts are changed, the layouts are never others than a release's but for controls.
    #[test]
    fn no_file_changes_more_than_controls(
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0_u64..8192), 0..6),
    ) {
        let (mut known, plain) = facts();
        let names: Vec<What> = known.keys().cloned().collect();
        for (index, value) in changes {
            known.insert(index.get(&names).clone(), value);
        }
        if let Ok(accepted) = file(known.clone(), plain) {
            let base = Release::named(accepted.release().unwrap().name()).unwrap();
            let structs = control_structs(base);
            for (what, ours) in Facts::of_release(base).iter() {
                let is_a_controls = match what {
                    What::Size(name) | What::Text(name) => structs.iter().any(|(_, of)| of == name),
                    What::Value(name) => control::rows().any(|(_, of)| of == name),
                    What::Offset(..) => false,
                };
                prop_assert!(is_a_controls || known.get(what) == Some(&ours), "{what}");
            }
        }
    }
}
