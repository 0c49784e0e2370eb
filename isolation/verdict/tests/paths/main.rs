//! Makes the call of every path on every release, and holds the verdict and docs/internals/paths.md against the table.

mod table;

use nvabi::bytes::{put, put_u32, put_u64};
use nvabi::capability::Capabilities;
use nvabi::class::Kind;
use nvabi::layout::{
    channel_params, export_object, export_objects, import_object, import_objects, memory_params,
    nvos02, nvos21, nvos32, nvos54,
};
use nvabi::{Release, class, control, escape, uvm};
use verdict::managed::{self, Mapping};
use verdict::policy::{Managed, Policy};
use verdict::{Effect, Op, Surface, Verdict};

use self::table::Outcome;

const CHARGE: Policy = Policy {
    managed: Managed::Charge,
    same_user: verdict::policy::SameUser::Refuse,
    card_figures: verdict::policy::CardFigures::Show,
    registered_memory: verdict::policy::RegisteredMemory::Allow,
    capabilities: Capabilities::ALL,
};

/// The verdict that the broker would come to, from the command on.
fn verdict_of(surface: Surface, cmd: u32, arg: &[u8], params: &[u8], release: Release) -> Verdict {
    let op = match verdict::op(surface, cmd, release) {
        Ok(op) => op,
        Err(refusal) => return Verdict::Refuse(refusal),
    };
    assert_eq!(op.struct_bytes(release), arg.len(), "{}", op.name());
    match verdict::blocks::params(&op, arg, release) {
        Err(refusal) => Verdict::Refuse(refusal),
        Ok(None) => verdict::decide_under(&op, &[arg], release, &CHARGE),
        Ok(Some(block)) => {
            let mut params = params.to_vec();
            params.resize(block.bytes, 0);
            verdict::decide_under(&op, &[arg, &params], release, &CHARGE)
        }
    }
}

fn alloc(number: u32, params: &[u8], release: Release) -> Verdict {
    let mut arg = vec![0; 48];
    put_u32(&mut arg, nvos21::H_ROOT, 0xc1d0_0001);
    put_u32(&mut arg, nvos21::H_CLASS, number);
    put_u64(&mut arg, nvos21::P_PARAMS, 0x1000);
    let cmd = escape::NV_ESC_RM_ALLOC_LONG.cmd(release);
    verdict_of(Surface::Ctl, cmd, &arg, params, release)
}

fn alloc_memory(number: u32, release: Release) -> Verdict {
    let mut arg = vec![0; 56];
    put_u32(&mut arg, nvos02::H_CLASS, number);
    let cmd = escape::NV_ESC_RM_ALLOC_MEMORY.cmd(release);
    verdict_of(Surface::Card, cmd, &arg, &[], release)
}

fn heap(function: u32, flags: u32, release: Release) -> Verdict {
    let mut arg = vec![0; 184];
    put_u32(&mut arg, nvos32::FUNCTION, function);
    put_u32(&mut arg, nvos32::ALLOC_FLAGS, flags);
    put_u64(&mut arg, nvos32::ALLOC_SIZE, 1 << 20);
    let cmd = escape::NV_ESC_RM_VID_HEAP_CONTROL.cmd(release);
    verdict_of(Surface::Ctl, cmd, &arg, &[], release)
}

fn ctl(cmd: u32, params: &[u8], release: Release) -> Verdict {
    let mut arg = vec![0; 32];
    put_u32(&mut arg, nvos54::CMD, cmd);
    put_u64(&mut arg, nvos54::P_PARAMS, 0x1000);
    let size = control::row(cmd, release).map_or(16, |row| row.params_bytes);
    put_u32(&mut arg, nvos54::PARAMS_SIZE, size);
    verdict_of(
        Surface::Ctl,
        escape::NV_ESC_RM_CONTROL.cmd(release),
        &arg,
        params,
        release,
    )
}

fn simple(row: &escape::Escape, release: Release) -> Verdict {
    let arg = vec![0; row.size.of(release) as usize];
    verdict_of(Surface::Ctl, row.cmd(release), &arg, &[], release)
}

fn uvm_call(row: &uvm::Uvm, release: Release) -> Verdict {
    let arg = vec![0; row.size.of(release) as usize];
    verdict_of(Surface::Uvm, row.cmd, &arg, &[], release)
}

/// Of an allocation: memory of a size, a channel with memory for its USERD.
fn block(number: u32) -> Vec<u8> {
    let mut params = vec![0; 368];
    if class::of(number).is_some_and(|row| row.kind == Kind::Channel) {
        put_u32(&mut params, channel_params::H_USERD_MEMORY, 0xcaf0_0001);
    } else {
        put_u64(&mut params, memory_params::SIZE, 1 << 20);
    }
    params
}

/// The calls of a path; `None`: a tenant has none.
fn calls(id: &str, release: Release) -> Option<Vec<Verdict>> {
    let each = |numbers: &[u32]| -> Vec<Verdict> {
        numbers
            .iter()
            .map(|number| alloc(*number, &block(*number), release))
            .collect()
    };
    let kind = |kinds: &[Kind]| -> Vec<u32> {
        class::ALL
            .iter()
            .filter(|class| {
                class::row_of(class.number, release).is_some() && kinds.contains(&class.kind)
            })
            .map(|class| class.number)
            .collect()
    };
    Some(match id {
        "1" => each(&[0x40]),
        "2" => vec![heap(2, 0, release)],
        "2a" => [6, 14, 19, 20, 27, 99]
            .map(|function| heap(function, 0, release))
            .to_vec(),
        "3" => each(&[0xf8]),
        "4" => {
            let mut calls = each(&[0xfd]);
            calls.extend(
                [0xfd_0101, 0xfd_0102, 0xfd_0104, 0xfd_0105, 0xf8_0103]
                    .map(|cmd| ctl(cmd, &[], release)),
            );
            calls
        }
        "5" => {
            let mut calls = each(&[0xc2]);
            calls.push(alloc_memory(0x40, release));
            calls
        }
        "6" => {
            let mut calls = each(&[0x81, 0x82, 0x83, 0x3f]);
            calls.extend([0x81, 0x82, 0x83, 0x3f].map(|number| alloc_memory(number, release)));
            calls
        }
        "7" => vec![simple(&escape::NV_ESC_RM_DUP_OBJECT, release)],
        "8" => {
            let mut one = vec![0; 24];
            put_u32(&mut one, export_object::TYPE, export_object::TYPE_RM);
            let mut back = vec![0; 20];
            put_u32(&mut back, import_object::TYPE, export_object::TYPE_RM);
            let (mut many, mut many_back) = (vec![0; 2128], vec![0; 652]);
            put(&mut many, export_objects::COUNT, &[2, 0]);
            put(&mut many_back, import_objects::COUNT, &[2, 0]);
            vec![
                ctl(0x3d05, &one, release),
                ctl(0x3d06, &back, release),
                ctl(0x3d0b, &many, release),
                ctl(0x3d0c, &many_back, release),
            ]
        }
        "8a" => vec![ctl(0x3d08, &[], release)],
        "9" => vec![simple(&escape::NV_ESC_EXPORT_TO_DMABUF_FD, release)],
        "10" => vec![uvm_call(&uvm::UVM_MAP_EXTERNAL_ALLOCATION, release)],
        "10b" => vec![
            uvm_call(&uvm::UVM_REGISTER_CHANNEL, release),
            uvm_call(&uvm::UVM_REGISTER_GPU_VASPACE, release),
        ],
        "10a" => vec![uvm_call(&uvm::UVM_MAP_EXTERNAL_SPARSE, release)],
        "11" => vec![managed::map(
            Mapping {
                length: 1 << 20,
                flags: 1,
                offset: 0x7f00_0000_0000,
                page_bytes: 4096,
            },
            Managed::Charge,
            |_, _| false,
        )],
        "11a" => [
            uvm::UVM_MIGRATE,
            uvm::UVM_MIGRATE_RANGE_GROUP,
            uvm::UVM_CREATE_RANGE_GROUP,
            uvm::UVM_SET_RANGE_GROUP,
            uvm::UVM_SET_PREFERRED_LOCATION,
            uvm::UVM_UNSET_PREFERRED_LOCATION,
            uvm::UVM_ENABLE_READ_DUPLICATION,
            uvm::UVM_SET_ACCESSED_BY,
        ]
        .map(|row| uvm_call(&row, release))
        .to_vec(),
        "13" => each(&[0xa06c]),
        "14" => each(&kind(&[Kind::Channel])),
        "15" => each(&[0x90f1]),
        "16" => each(&kind(&[
            Kind::Graphics,
            Kind::Copy,
            Kind::Video,
            Kind::OtherEngine,
        ])),
        "18" => {
            let mut calls = each(&[0x3e]);
            calls.extend([0x3e, 0x71].map(|number| alloc_memory(number, release)));
            calls.push(uvm_call(&uvm::UVM_ALLOC_SEMAPHORE_POOL, release));
            calls
        }
        "18a" => each(&[0x71]),
        "19" => each(&[0x42]),
        "20" => {
            let mut calls = each(&[0x70, 0x50a0]);
            calls.push(heap(2, memory_params::FLAG_VIRTUAL, release));
            calls
        }
        "R1" => vec![simple(&escape::NV_ESC_RM_FREE, release)],
        "R2" => each(&[0xe0, 0xf1, 0xf9, 0xfb]),
        "R3" => vec![uvm_call_or_absent(&uvm::UVM_ALLOC_DEVICE_P2P, release)],
        "R4" => {
            let mut calls = each(&[0x503c]);
            calls.extend([0x503c_0102, 0x503c_0104, 0x503c_0105].map(|cmd| ctl(cmd, &[], release)));
            calls
        }
        "R5" => each(&[0xda, 0xfe]),
        "I1" => vec![
            ctl(0x2080_1218, &[], release),
            ctl(0x2080_3125, &[], release),
        ],
        "I2" => each(&kind(&[Kind::ChannelGroup, Kind::Channel, Kind::VaSpace])),
        "M1" => [71, 80, 76, 0x3000_0003]
            .map(|cmd| match verdict::op(Surface::Uvm, cmd, release) {
                Ok(op) => panic!("{} has a row", op.name()),
                Err(refusal) => Verdict::Refuse(refusal),
            })
            .to_vec(),
        "12" | "17" => return None,
        unknown => panic!("path {unknown} has no calls here"),
    })
}

fn uvm_call_or_absent(row: &uvm::Uvm, release: Release) -> Verdict {
    match verdict::op(Surface::Uvm, row.cmd, release) {
        Ok(_) => uvm_call(row, release),
        Err(refusal) => Verdict::Refuse(refusal),
    }
}

fn outcome(verdict: &Verdict) -> Outcome {
    match verdict {
        Verdict::Refuse(_) => Outcome::Refused,
        Verdict::Execute(effect) => match effect {
            Effect::Memory(memory) if memory.whose != verdict::Whose::Card => Outcome::NoCardMemory,
            Effect::Memory(_) | Effect::Managed { .. } => Outcome::Charged,
            Effect::Object { class, .. } => match class.kind {
                Kind::ChannelGroup | Kind::Channel | Kind::VaSpace => Outcome::FlatRate,
                Kind::Vidmem | Kind::Fabric => panic!("{} has a size", class.name),
                _ => Outcome::NoCardMemory,
            },
            Effect::Dup { .. }
            | Effect::MapExternal { .. }
            | Effect::Register { .. }
            | Effect::Export(_)
            | Effect::Import(_) => Outcome::Referenced,
            Effect::None
            | Effect::Client
            | Effect::MapDma { .. }
            | Effect::UnmapDma { .. }
            | Effect::CpuMapping { .. }
            | Effect::Free { .. }
            | Effect::Range { .. }
            | Effect::RangeGroup(_)
            | Effect::Pages(_)
            | Effect::Unmap { .. }
            | Effect::Unregister(_)
            | Effect::FreeRange { .. }
            | Effect::ChannelClients { .. }
            | Effect::Schedule(_)
            | Effect::OsEvent { .. }
            | Effect::Pool { .. }
            | Effect::Answered { .. }
            | Effect::RegisterCard { .. }
            | Effect::NamesCards { .. }
            | Effect::ExportInfo { .. }
            | Effect::View(_) => Outcome::NoCardMemory,
        },
    }
}

#[test]
fn every_path_has_the_verdict_that_the_table_reports() {
    for path in table::ALL {
        for release in Release::ALL {
            match calls(path.id, release) {
                None => assert_eq!(path.outcome, Outcome::ClosedOutside, "{}", path.id),
                Some(verdicts) => {
                    assert!(!verdicts.is_empty(), "{release:?} {}", path.id);
                    for verdict in verdicts {
                        assert_eq!(
                            outcome(&verdict),
                            path.outcome,
                            "{release:?} path {} ({}): {verdict:?}",
                            path.id,
                            path.name
                        );
                    }
                }
            }
        }
    }
}

/// A class of memory without a row above would be a path that nobody thought of.
#[test]
fn no_admitted_class_of_memory_is_missing() {
    for class in class::ALL {
        let verdict = alloc(class.number, &block(class.number), class.since);
        match class.kind {
            Kind::Vidmem => assert_eq!(outcome(&verdict), Outcome::Charged, "{}", class.name),
            Kind::Fabric | Kind::OsDescriptor => {
                assert_eq!(outcome(&verdict), Outcome::Refused, "{}", class.name);
            }
            _ => assert!(
                !matches!(
                    outcome(&verdict),
                    Outcome::Charged | Outcome::Refused | Outcome::Referenced
                ),
                "{}: {verdict:?}",
                class.name
            ),
        }
    }
}

#[test]
fn the_document_shows_the_table() {
    let document = include_str!("../../../../docs/internals/paths.md");
    let rows: Vec<String> = table::ALL
        .iter()
        .map(|path| {
            format!(
                "| {} | {} | {} | {} | {} |",
                path.id,
                path.name,
                path.call,
                path.outcome.name(),
                path.because
            )
        })
        .collect();
    let missing: Vec<&String> = rows
        .iter()
        .filter(|row| !document.lines().any(|line| line == row.as_str()))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/internals/paths.md lacks:\n{missing:#?}"
    );
    let shown = document
        .lines()
        .skip_while(|line| !line.starts_with("| # |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .count();
    assert_eq!(
        shown,
        rows.len(),
        "docs/internals/paths.md has rows of its own"
    );
}

#[test]
fn the_unsigned_number_of_a_file_is_not_taken_for_one() {
    let release = Release::R595;
    let mut params = vec![0; 24];
    put_u32(&mut params, export_object::TYPE, export_object::TYPE_RM);
    put_u32(&mut params, export_object::FD, u32::MAX);
    assert!(matches!(
        ctl(0x3d05, &params, release),
        Verdict::Refuse(verdict::Refusal::Status { status: 0x3b, .. })
    ));
    let op = Op::Escape(&escape::NV_ESC_RM_CONTROL);
    let mut arg = vec![0; 32];
    for (cmd, at) in [
        (0x3d05, 16),
        (0x3d06, 0),
        (0x3d08, 0),
        (0x3d0b, 0),
        (0x3d0c, 0),
    ] {
        put_u32(&mut arg, nvos54::CMD, cmd);
        let place = verdict::blocks::descriptor(&op, &[&arg]).unwrap();
        assert_eq!((place.segment, place.at), (1, at), "{cmd:#x}");
    }
}
