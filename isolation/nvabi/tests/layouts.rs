//! Every offset and size in the tables, against the committed layouts of each release.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;

use nvabi::call::{Descriptor, Production};
use nvabi::headers::{CLASS_STRUCTS, escape_structs, fields};
use nvabi::{Release, class, control, escape, lists, uvm};

type Layouts = HashMap<String, (u32, Vec<(String, u32, u32)>)>;

fn layouts() -> Vec<(Release, Layouts)> {
    Release::ALL
        .into_iter()
        .map(|release| {
            let path = format!(
                "{}/data/structs-{}.json",
                env!("CARGO_MANIFEST_DIR"),
                release.headers()
            );
            let text =
                std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
            (release, serde_json::from_str(&text).unwrap())
        })
        .collect()
}

#[test]
fn offsets_match_the_headers() {
    for (release, layouts) in layouts() {
        for (name, field, offset) in fields().filter(|(_, field, _)| !field.starts_with("data.")) {
            let (_, members) = layouts
                .get(*name)
                .unwrap_or_else(|| panic!("{release:?} has no {name}"));
            let member = members
                .iter()
                .find(|(member, ..)| member == field || member == &format!("{field}[8]"));
            let (_, at, _) =
                member.unwrap_or_else(|| panic!("{release:?} {name} has no {field}: {members:?}"));
            assert_eq!(offset.of(release), *at, "{release:?} {name}.{field}");
        }
    }
}

#[test]
fn struct_sizes_match_the_headers() {
    for (release, layouts) in layouts() {
        for (name, size) in escape_structs() {
            let real = layouts.get(name).map_or(0, |(bytes, _)| *bytes);
            assert_eq!(size.of(release), real, "{release:?} {name}");
        }
    }
}

/// What the row of an escape says of fields is in its struct: the status where a field has that name, pointers where fields of
/// eight bytes are, descriptors where one has that name.
#[test]
fn the_columns_of_an_escape_match_the_headers() {
    // The files of the other releases have the fields of `FIELDS` alone.
    let full = |layouts: &Layouts| !layouts["NVOS30_PARAMETERS"].1.is_empty();
    let layouts: Vec<_> = layouts().into_iter().filter(|(_, it)| full(it)).collect();
    assert_eq!(layouts.len(), 5);
    for (release, layouts) in layouts {
        for row in escape::ALL.iter().filter(|row| row.key(release).is_some()) {
            let Some(name) = row.layout else {
                assert_eq!(row.production, Production::Forbidden, "{}", row.name);
                continue;
            };
            let (_, members) = layouts.get(name).unwrap();
            let is = |member: &str, field: &str| {
                member
                    .rsplit('.')
                    .next()
                    .unwrap()
                    .eq_ignore_ascii_case(field)
            };
            let place = |field: &str| {
                let found = members.iter().find(|(member, ..)| is(member, field));
                found.map(|(_, at, _)| *at)
            };
            if row.production != Production::Forbidden {
                let status = row.status.map(|at| at.of(release));
                assert_eq!(status, place("status"), "{release:?} {}", row.name);
            }
            for at in row.pointers {
                let here =
                    |(_, of, bytes): &&(String, u32, u32)| *of as usize == *at && *bytes == 8;
                assert!(
                    members.iter().any(|member| here(&member)),
                    "{release:?} {} {at}",
                    row.name
                );
            }
            if let Some(at) = row.descriptor.map(Descriptor::at) {
                let fd = place("fd").or_else(|| place("ctl_fd")).unwrap();
                assert_eq!(at, fd as usize, "{release:?} {}", row.name);
            }
        }
    }
}

#[test]
fn uvm_sizes_and_status_offsets_match_the_headers() {
    for (release, layouts) in layouts() {
        for row in uvm::ALL {
            let layout = layouts.get(&format!("{}_PARAMS", row.name));
            assert_eq!(
                row.size.of(release),
                layout.map_or(0, |(bytes, _)| *bytes),
                "{release:?} {}",
                row.name
            );
            if let Some((_, members)) = layout {
                let status = members
                    .iter()
                    .find(|(member, ..)| member == "rmStatus")
                    .map(|(_, at, _)| *at);
                assert_eq!(
                    Some(row.status.of(release)),
                    status,
                    "{release:?} {}.rmStatus",
                    row.name
                );
            }
        }
    }
}

#[test]
fn class_parameters_match_the_headers() {
    for (release, layouts) in layouts() {
        for (number, name) in CLASS_STRUCTS {
            let Some(class) = class::row_of(*number, release) else {
                assert!(release < class::of(*number).unwrap().since, "{name}");
                continue;
            };
            let (bytes, _) = layouts[*name];
            assert_eq!(
                class.params.of(release),
                bytes,
                "{release:?} {} ({name})",
                class.name
            );
        }
    }
}

/// Classes of one kind take the same struct, of whatever card they are: each has the size of the one that is compared above.
#[test]
fn classes_of_a_kind_have_its_parameters() {
    use class::Kind;
    // The kind, the end of the name, and the struct.
    let structs = [
        (Kind::Graphics, "", "NV_GR_ALLOCATION_PARAMETERS"),
        (Kind::Copy, "", "NVB0B5_ALLOCATION_PARAMETERS"),
        (Kind::Channel, "", "NV_CHANNEL_ALLOC_PARAMS"),
        (Kind::Video, "_DECODER", "NV_BSP_ALLOCATION_PARAMETERS"),
        (Kind::Video, "_ENCODER", "NV_MSENC_ALLOCATION_PARAMETERS"),
        (Kind::Video, "_NVJPG", "NV_NVJPG_ALLOCATION_PARAMETERS"),
        (Kind::Video, "_OFA", "NV_OFA_ALLOCATION_PARAMETERS"),
    ];
    let mut checked = 0;
    for (release, layouts) in layouts() {
        for class in class::ALL.iter().filter(|class| class.since <= release) {
            let is_of = |(kind, end, _): &&(Kind, &str, &str)| {
                *kind == class.kind && class.name.ends_with(end)
            };
            let Some((.., name)) = structs.iter().find(is_of) else {
                assert_ne!(class.kind, Kind::Video, "{}", class.name);
                continue;
            };
            let (bytes, _) = layouts[*name];
            assert_eq!(
                class.params.of(release),
                bytes,
                "{release:?} {}",
                class.name
            );
            checked += 1;
        }
    }
    assert!(checked > 500, "{checked}");
}

#[test]
fn control_sizes_match_the_exported_table() {
    let mut checked = 0;
    for exported in lists::exported(lists::EXPORTED) {
        for release in Release::ALL {
            let Some(row) = control::known(exported.cmd, release) else {
                continue;
            };
            let size = exported.size.of(release);
            // The converter answers what RM itself does not export any more.
            if size.is_none()
                && [
                    control::NV2080_CTRL_CMD_FB_GET_INFO,
                    control::NV2080_CTRL_CMD_BUS_GET_INFO,
                ]
                .contains(&exported.cmd)
            {
                continue;
            }
            assert_eq!(
                Some(row.params_bytes.to_string().as_str()),
                size,
                "{release:?} {}",
                row.name
            );
            checked += 1;
        }
    }
    assert!(checked > 1000, "only {checked} controls were compared");
}

/// A right that the driver asks for is what its refusal names: NICE (`U:2`) and administrators' are permissions.
#[test]
fn what_is_not_a_tenants_is_refused_by_its_right() {
    let refused = |spec: &'static control::Spec| match spec.decision {
        control::Decision::NotATenants(status) => Some((spec.name, status)),
        _ => None,
    };
    let mut checked = 0;
    for exported in lists::exported(lists::EXPORTED) {
        let Some((name, status)) = control::spec(exported.cmd).and_then(refused) else {
            continue;
        };
        let mut rights = Release::ALL
            .into_iter()
            .filter_map(|release| exported.right.of(release));
        let needs_right = rights.any(|right| ["A", "U:2"].contains(&right));
        let needed = if needs_right {
            nvabi::status::NV_ERR_INSUFFICIENT_PERMISSIONS
        } else {
            nvabi::status::NV_ERR_NOT_SUPPORTED
        };
        assert_eq!(status, needed, "{name}: {:?}", exported.right);
        checked += 1;
    }
    let all = control::ALL.iter().filter_map(refused).count();
    assert_eq!((checked, all), (all, 22));
}
