use super::*;
use crate::{Link, Segment};
use nvabi::bytes::{put_u32, put_u64};
use nvabi::capability::Capabilities;
use nvabi::layout::{nvos02, nvos33};
use nvabi::uvm;
use verdict::{Op, Policy, Surface, Verdict, blocks};

/// What a tenant leaves where the driver would follow a pointer.
const TENANT: u64 = 0x7fff_dead_b000;

/// Controls with pointers in their parameters, from the headers: (command, offsets). Kept apart from `nvabi`'s rows on purpose.
const CONTROLS_WITH_POINTERS: &[(u32, &[usize])] = &[
    (0x101, &[8, 16, 24]),
    (0x127, &[160, 168]),
    (0x130, &[]),
    (0x202, &[16]),
    (0x602, &[]),
    (0x41_0110, &[8]),
    (0x73_0120, &[]),
    (0x73_136a, &[]),
    (0x80_0201, &[8]),
    (0x80_1102, &[8]),
    (0x80_1104, &[8]),
    (0x80_1301, &[8]),
    (0x80_1401, &[]),
    (0x80_1701, &[8]),
    (0x80_1705, &[]),
    (0x80_170d, &[8, 16]),
    (0x80_180f, &[]),
    (0x80_1b01, &[8]),
    (0x80_1c01, &[]),
    (0x2080_0101, &[8]),
    (0x2080_0122, &[]),
    (0x2080_0123, &[8]),
    (0x2080_0124, &[]),
    (0x2080_016e, &[]),
    (0x2080_01e8, &[]),
    (0x2080_0610, &[]),
    (0x2080_0802, &[8]),
    (0x2080_0803, &[]),
    (0x2080_0806, &[]),
    (0x2080_110b, &[16]),
    (0x2080_1201, &[8]),
    (0x2080_1301, &[8]),
    (0x2080_1336, &[]),
    (0x2080_1802, &[8]),
    (0x2080_2204, &[]),
    (0x2080_2402, &[]),
    (0x2080_2a01, &[]),
    (0x402c_0102, &[]),
    (0x402c_0105, &[]),
    (0x83de_0315, &[]),
    (0x83de_0316, &[]),
    (0x83de_0326, &[]),
    (0x83de_0327, &[]),
    (0xa0bc_0101, &[]),
    (0xb06f_010c, &[]),
    (0xb06f_010d, &[]),
];

/// The segments of a call as the broker copies them from a tenant whose memory is `params` wherever a pointer leads.
fn copied(op: &Op, arg: Vec<u8>, params: &[u8], release: Release) -> Option<Vec<Segment>> {
    let mut segments = vec![Segment {
        address: TENANT,
        link: None,
        bytes: arg,
    }];
    let segment = |block: blocks::Block, source: &[u8]| {
        let mut bytes = source.to_vec();
        bytes.resize(block.bytes, 0);
        Segment {
            address: block.address,
            link: Some(Link {
                segment: block.segment,
                pointer_at: u32::try_from(block.pointer_at).unwrap(),
            }),
            bytes,
        }
    };
    if let Some(block) = blocks::params(op, &segments[0].bytes, release).ok()? {
        let params = segment(block, params);
        let nested = blocks::nested(op, &segments[0].bytes, &params.bytes, release).ok()?;
        segments.push(params);
        segments.extend(nested.into_iter().map(|block| segment(block, &[])));
    }
    let views: Vec<&[u8]> = segments
        .iter()
        .map(|segment| segment.bytes.as_slice())
        .collect();
    let policy = Policy {
        capabilities: Capabilities::ALL,
        ..Policy::default()
    };
    let verdict = verdict::decide_under(op, &views, release, &policy);
    matches!(verdict, Verdict::Execute(_)).then_some(segments)
}

/// Takes the pointers of an admitted call and says where the tenant's address is still found, in aligned words.
fn left(kind: FileKind, cmd: u32, segments: Vec<Segment>, release: Release) -> Vec<(usize, usize)> {
    let mut call = Call {
        cmd,
        segments: segments.clone(),
        fds: Vec::new(),
    };
    let taken = take(kind, &mut call, release).unwrap();
    let mut left = Vec::new();
    for (index, segment) in call.segments.iter().enumerate() {
        for at in (0..segment.bytes.len()).step_by(8) {
            if u64_at(&segment.bytes, at) == Some(TENANT) {
                left.push((index, at));
            }
        }
    }
    taken.put_back(kind, &mut call, release);
    assert_eq!(call.segments, segments, "all is as it was");
    left
}

fn escape_call(row: &escape::Escape, release: Release, fill: &[(usize, u32)]) -> (Op, Vec<u8>) {
    let op = verdict::op(Surface::Ctl, row.cmd(release), release).unwrap();
    let mut arg = vec![0; row.size.of(release) as usize];
    for (at, value) in fill {
        put_u32(&mut arg, *at, *value);
    }
    (op, arg)
}

#[test]
fn no_control_that_is_admitted_keeps_a_tenants_pointer() {
    let mut admitted = 0;
    for release in Release::ALL {
        for (cmd, offsets) in CONTROLS_WITH_POINTERS {
            let Some(row) = control::row(*cmd, release) else {
                continue;
            };
            assert!(
                !offsets.is_empty(),
                "{} is admitted although its pointers are not known",
                row.name
            );
            for (count, pointers) in [(0, TENANT), (3, TENANT), (3, 0)] {
                let fill = [(nvos54::CMD, *cmd), (nvos54::PARAMS_SIZE, row.params_bytes)];
                let (op, mut arg) = escape_call(&escape::NV_ESC_RM_CONTROL, release, &fill);
                put_u64(&mut arg, nvos54::P_PARAMS, TENANT);
                let mut params = vec![0; row.params_bytes as usize];
                put_u32(&mut params, 0, count);
                for at in *offsets {
                    put_u64(&mut params, *at, pointers);
                }
                // Without a list the verdict on DISABLE_CHANNELS wants its pointer NULL, and says so.
                let Some(segments) = copied(&op, arg, &params, release) else {
                    continue;
                };
                admitted += 1;
                let left = left(
                    FileKind::Ctl,
                    escape::NV_ESC_RM_CONTROL.cmd(release),
                    segments,
                    release,
                );
                assert_eq!(left, [], "{} with {count} entries", row.name);
            }
        }
    }
    assert!(admitted > 60, "{admitted}: the test has lost its calls");
}

#[test]
fn no_allocation_that_is_admitted_keeps_a_tenants_pointer() {
    /// (class, offset of a pointer in its parameters), from the headers.
    const IN_PARAMS: &[(u32, usize)] = &[
        (0x00, 112),
        (0x01, 112),
        (0x41, 112),
        (0x3e, 96),
        (0x40, 96),
        (0x50a0, 96),
        (0x71, 16),
    ];
    for release in Release::ALL {
        for class in class::ALL.iter().filter(|class| class.since <= release) {
            for row in [escape::NV_ESC_RM_ALLOC, escape::NV_ESC_RM_ALLOC_LONG] {
                let (op, mut arg) = escape_call(&row, release, &[(nvos21::H_CLASS, class.number)]);
                put_u64(&mut arg, nvos21::P_PARAMS, TENANT);
                if row == escape::NV_ESC_RM_ALLOC_LONG && class.params.of(release) != 0 {
                    put_u64(&mut arg, nvos64::P_RIGHTS, TENANT);
                }
                let mut params = vec![0; class.params.of(release) as usize];
                for (number, at) in IN_PARAMS {
                    if *number == class.number {
                        put_u64(&mut params, *at, TENANT);
                    }
                }
                let Some(segments) = copied(&op, arg, &params, release) else {
                    continue;
                };
                let left = left(FileKind::Ctl, row.cmd(release), segments, release);
                assert_eq!(left, [], "{} by {}", class.name, row.name);
            }
        }
    }
}

#[test]
fn no_other_call_that_is_admitted_keeps_a_tenants_pointer() {
    type Row = (escape::Escape, &'static [(usize, u32)], &'static [usize]);
    let flat: &[Row] = &[
        (
            escape::NV_ESC_RM_ALLOC_MEMORY,
            &[(nvos02::H_CLASS, 0x3e)],
            &[24],
        ),
        (escape::NV_ESC_RM_MAP_MEMORY, &[], &[32]),
        (
            escape::NV_ESC_RM_VID_HEAP_CONTROL,
            &[(nvos32::FUNCTION, nvos32::FUNCTION_ALLOC_SIZE)],
            &[120],
        ),
    ];
    for release in Release::ALL {
        for (row, fill, pointers) in flat {
            let (op, mut arg) = escape_call(row, release, fill);
            for at in *pointers {
                put_u64(&mut arg, *at, TENANT);
            }
            let segments =
                copied(&op, arg, &[], release).unwrap_or_else(|| panic!("{} is refused", row.name));
            let left = left(FileKind::Ctl, row.cmd(release), segments, release);
            assert_eq!(left, [], "{}", row.name);
        }
        // UVM's addresses are of the VA space's own, which the file is bound to; none is followed in the caller.
        for row in uvm::ALL.iter().filter(|row| row.size.of(release) != 0) {
            let segments = vec![Segment {
                address: TENANT,
                link: None,
                bytes: vec![0xff; row.size.of(release) as usize],
            }];
            assert_eq!(fields(FileKind::Uvm, row.cmd, &segments, release), []);
        }
    }
}

#[test]
fn the_caller_s_own_pages_are_pinned_by_nobody_else() {
    for release in Release::ALL {
        for row in [escape::NV_ESC_RM_ALLOC, escape::NV_ESC_RM_ALLOC_LONG] {
            let (op, mut arg) = escape_call(&row, release, &[(nvos21::H_CLASS, 0x71)]);
            put_u64(&mut arg, nvos21::P_PARAMS, TENANT);
            assert_eq!(copied(&op, arg, &[], release), None, "{}", row.name);
        }
        let fill = [(nvos32::FUNCTION, 27)];
        let (op, arg) = escape_call(&escape::NV_ESC_RM_VID_HEAP_CONTROL, release, &fill);
        assert_eq!(copied(&op, arg, &[], release), None, "ALLOC_OS_DESCRIPTOR");
    }
}

#[test]
fn the_driver_never_gets_a_shorter_block_than_it_takes_it_for() {
    let release = Release::R570;
    let mut arg = vec![0; 32];
    put_u32(&mut arg, nvos21::H_CLASS, 0x2081);
    // A window that ended at the end of the tenant's memory.
    let params = Segment {
        address: TENANT,
        link: Some(Link {
            segment: 0,
            pointer_at: 16,
        }),
        bytes: vec![7; 20],
    };
    let mut call = Call {
        cmd: escape::NV_ESC_RM_ALLOC.cmd(release),
        segments: vec![
            Segment {
                address: TENANT,
                link: None,
                bytes: arg,
            },
            params,
        ],
        fds: Vec::new(),
    };
    let taken = take(FileKind::Ctl, &mut call, release).unwrap();
    assert_eq!(call.segments[1].bytes.len(), PARAMS_WINDOW as usize);
    assert!(call.segments[1].bytes[20..].iter().all(|byte| *byte == 0));
    taken.put_back(FileKind::Ctl, &mut call, release);
    assert_eq!(call.segments[1].bytes, [7; 20]);
}

#[test]
fn a_list_that_is_shorter_than_its_count_is_not_executed() {
    let release = Release::R570;
    let fill = [(nvos54::CMD, 0x80_0201), (nvos54::PARAMS_SIZE, 16)];
    let (op, mut arg) = escape_call(&escape::NV_ESC_RM_CONTROL, release, &fill);
    put_u64(&mut arg, nvos54::P_PARAMS, TENANT);
    let mut params = vec![0; 16];
    put_u32(&mut params, 0, 3);
    put_u64(&mut params, 8, TENANT);
    let segments = copied(&op, arg, &params, release).unwrap();
    let try_with = |segments: Vec<Segment>| {
        let mut call = Call {
            cmd: escape::NV_ESC_RM_CONTROL.cmd(release),
            segments,
            fds: Vec::new(),
        };
        take(FileKind::Ctl, &mut call, release).map(|_| ())
    };
    try_with(segments.clone()).unwrap();
    let mut more_entries = segments.clone();
    put_u32(&mut more_entries[1].bytes, 0, 4);
    try_with(more_entries).unwrap_err();
    let mut longer_parameters = segments;
    put_u32(&mut longer_parameters[0].bytes, nvos54::PARAMS_SIZE, 24);
    try_with(longer_parameters).unwrap_err();
}

#[test]
fn what_the_driver_answers_stands() {
    let release = Release::R570;
    let mut arg = vec![0; 56];
    put_u64(&mut arg, nvos33::P_LINEAR, TENANT);
    let segment = Segment {
        address: TENANT,
        link: None,
        bytes: arg,
    };
    let mut call = Call {
        cmd: escape::NV_ESC_RM_MAP_MEMORY.cmd(release),
        segments: vec![segment],
        fds: Vec::new(),
    };
    let taken = take(FileKind::Ctl, &mut call, release).unwrap();
    put_u64(&mut call.segments[0].bytes, nvos33::P_LINEAR, 0x1234_0000);
    taken.put_back(FileKind::Ctl, &mut call, release);
    assert_eq!(
        u64_at(&call.segments[0].bytes, nvos33::P_LINEAR),
        Some(0x1234_0000)
    );
}
