//! A malformed call gets the answer that the driver would give: one row a call, the same on every release.
//!
//! The statuses are those of arch/nvalloc/unix/src/escape.c (sizes), rmapi/control.c (parameter sizes), rmapi/alloc_free.c and
//! os.c (exports) of open-gpu-kernel-modules; unknown classes and controls are answered as nvproxy answers them.

use nvabi::bytes::{put, put_u32, put_u64};
use nvabi::errno::EINVAL;
use nvabi::layout::{
    debugger_params, device_params, event_params, export_object, export_objects, import_objects,
    nvos02, nvos21, nvos32, nvos54, nvos57, nvos64, share_policy, va_space_params,
};
use nvabi::{Release, control, escape, uvm};
use verdict::{Effect, Op, Refusal, Surface, Verdict, policy};

const OWN: u32 = 0xc1d0_0001;
const FOREIGN: u32 = 0xc1d0_0002;

/// What the broker answers to a call with these blocks.
fn answer(op: &Op, arg: &[u8], params: &[u8], release: Release) -> Verdict {
    match verdict::blocks::params(op, arg, release) {
        Err(refusal) => Verdict::Refuse(refusal),
        Ok(block) => {
            let mut params = params.to_vec();
            params.resize(block.map_or(0, |block| block.bytes), 0);
            match verdict::blocks::nested(op, arg, &params, release) {
                Err(refusal) => Verdict::Refuse(refusal),
                Ok(_) if block.is_none() => verdict::decide(op, &[arg], release),
                Ok(_) => verdict::decide(op, &[arg, &params], release),
            }
        }
    }
}

fn status(verdict: &Verdict) -> Option<u32> {
    match verdict {
        Verdict::Execute(_) => None,
        Verdict::Refuse(Refusal::Status { status, .. }) => Some(*status),
        Verdict::Refuse(Refusal::Errno(errno)) => panic!("errno {errno}"),
    }
}

const CONTROL: Op = Op::Escape(&escape::NV_ESC_RM_CONTROL);
const ALLOC: Op = Op::Escape(&escape::NV_ESC_RM_ALLOC);
const ALLOC_LONG: Op = Op::Escape(&escape::NV_ESC_RM_ALLOC_LONG);

fn control_call(cmd: u32, size: u32, flags: u32, address: u64) -> Vec<u8> {
    let mut arg = vec![0; 32];
    put_u32(&mut arg, nvos54::H_CLIENT, OWN);
    put_u32(&mut arg, nvos54::CMD, cmd);
    put_u32(&mut arg, nvos54::FLAGS, flags);
    put_u64(&mut arg, nvos54::P_PARAMS, address);
    put_u32(&mut arg, nvos54::PARAMS_SIZE, size);
    arg
}

#[test]
fn numbers_and_sizes() {
    for release in Release::ALL {
        // (file, command): EINVAL from the kernel module itself.
        for (surface, cmd) in [
            (Surface::Ctl, 0xc021_462a_u32),
            (Surface::Ctl, 0xc01f_462a),
            (Surface::Ctl, 0xc028_462b),
            (Surface::Ctl, 0xc000_4629),
            (Surface::Ctl, 0x0000_0029),
            (Surface::Ctl, 0xc010_46d3),
            (Surface::Ctl, 0xc048_464d),
            (Surface::Ctl, 0xc014_4628),
            (Surface::Ctl, 0xc000_46c8),
            (Surface::Ctl, 0xc049_46c8),
            (Surface::Ctl, 0xffff_ffff),
            (Surface::Card, 0xc003_46d4),
            (Surface::Uvm, 0),
            (Surface::Uvm, 0xc018_4622),
            (Surface::Uvm, 0x3000_0000),
            (Surface::Uvm, 0xffff_ffff),
            (Surface::UvmTools, 56),
        ] {
            assert_eq!(
                verdict::op(surface, cmd, release),
                Err(Refusal::Errno(EINVAL)),
                "{release:?} {surface:?} {cmd:#x}"
            );
        }
    }
}

#[test]
fn controls() {
    for release in Release::ALL {
        let right = control::row(0x2080_1303, release).unwrap().params_bytes;
        let rows: &[(u32, u32, u32, u64, Option<u32>)] = &[
            (0x2080_1303, right, 0, 0x1000, None),
            // Sizes must be exact.
            (0x2080_1303, right - 1, 0, 0x1000, Some(0x1f)),
            (0x2080_1303, right + 1, 0, 0x1000, Some(0x1f)),
            (0x2080_1303, 0, 0, 0x1000, Some(0x1f)),
            (0x2080_1303, u32::MAX, 0, 0x1000, Some(0x1f)),
            (0x2080_1303, right, 0, 0, Some(0x1f)),
            // Raised IRQL, lock bypass, serialised parameters.
            (0x2080_1303, right, 1, 0x1000, Some(0x56)),
            (0x2080_1303, right, 2, 0x1000, Some(0x56)),
            (0x2080_1303, right, 4, 0x1000, Some(0x56)),
            (0x2080_1303, right, 0x8000_0004, 0x1000, Some(0x56)),
            // Unknown, internal, privileged, with pointers that are not carried, of the GSP's legacy space.
            (0xdead_beef, 4, 0, 0x1000, Some(0x56)),
            (0, 0, 0, 0, Some(0x56)),
            (0x2080_0194, 8, 0, 0x1000, Some(0x1b)),
            (0x80_170f, 16, 0, 0x1000, Some(0x56)),
            (0x80_1102, 16, 0, 0x1000, Some(0x56)),
            (0x2080_8001, 4, 0, 0x1000, Some(0x56)),
        ];
        for (cmd, size, flags, address, expected) in rows {
            let verdict = answer(
                &CONTROL,
                &control_call(*cmd, *size, *flags, *address),
                &[],
                release,
            );
            assert_eq!(
                status(&verdict),
                *expected,
                "{release:?} {cmd:#x} size {size} flags {flags:#x} at {address:#x}"
            );
        }
    }
}

/// The driver would give the channels of each process of a client's choice a page of numbers for themselves.
#[test]
fn a_client_names_no_process_of_its_own() {
    for release in Release::ALL {
        let call = control_call(control::NV0000_CTRL_CMD_SET_SUB_PROCESS_ID, 104, 0, 0x1000);
        let verdict = answer(&CONTROL, &call, &[], release);
        assert_eq!(status(&verdict), Some(0x56), "{release:?}");
    }
}

#[test]
fn allocations() {
    for release in Release::ALL {
        for (op, bytes, at) in [
            (&ALLOC, 32, nvos21::STATUS),
            (&ALLOC_LONG, 48, nvos64::STATUS),
        ] {
            for (number, expected) in [
                (0xc2_u32, 0x22_u32),
                (0x82, 0x22),
                (0x42, 0x22),
                (0xdead, 0x22),
                (u32::MAX, 0x22),
                (0xf8, 0x56),
                (0xfd, 0x56),
                // Pins pages of whoever executes it.
                (0x71, 0x56),
            ] {
                let mut arg = vec![0; bytes];
                put_u32(&mut arg, nvos21::H_CLASS, number);
                put_u64(&mut arg, nvos21::P_PARAMS, 0x1000);
                assert_eq!(
                    answer(op, &arg, &[], release),
                    Verdict::Refuse(Refusal::Status {
                        status: expected,
                        at
                    }),
                    "{release:?} {number:#x}"
                );
            }
        }
        let mut arg = vec![0; 48];
        put_u32(&mut arg, nvos21::H_CLASS, 0x40);
        put_u64(&mut arg, nvos21::P_PARAMS, 0x1000);
        put_u32(&mut arg, nvos64::FLAGS, 1);
        assert_eq!(status(&answer(&ALLOC_LONG, &arg, &[], release)), Some(0x56));
    }
}

/// Statuses as `translateAllocFlagsToVASpaceFlags` gives them to flags that do not go together (vaspace_api.c).
#[test]
fn an_address_space_is_a_new_one_or_the_devices_and_harms_no_neighbour() {
    // Bits of `NV_VASPACE_ALLOCATION_FLAGS_*`.
    let admitted = [0, 1, 2, 3, 4, 6, 11, 12];
    for release in Release::ALL {
        let verdict = |index: u32, flags: u32| {
            let mut arg = vec![0; 32];
            put_u32(&mut arg, nvos21::H_CLASS, 0x90f1);
            put_u64(&mut arg, nvos21::P_PARAMS, 0x1000);
            let mut params = vec![0; 64];
            put_u32(&mut params, va_space_params::INDEX, index);
            put_u32(&mut params, va_space_params::FLAGS, flags);
            status(&answer(&ALLOC, &arg, &params, release))
        };
        for (index, expected) in [
            (0, None),
            // The place in memory that the CPU sees, the one of all, the card's for other cards.
            (1, Some(0x1f)),
            (2, Some(0x1f)),
            (3, None),
            (4, Some(0x1f)),
            (5, Some(0x1f)),
            (u32::MAX, Some(0x1f)),
        ] {
            assert_eq!(verdict(index, 0), expected, "{release:?} index {index}");
        }
        for bit in 0..32 {
            let expected = (!admitted.contains(&bit)).then_some(0x1f);
            assert_eq!(verdict(0, 1 << bit), expected, "{release:?} bit {bit}");
            assert_eq!(verdict(0, 1 << bit | 0x48), expected, "{release:?} {bit}");
        }
        // cuCtxCreate's.
        assert_eq!(verdict(0, 0x48), None, "{release:?}");
    }
}

#[test]
fn parameters_that_name_another_client() {
    for release in Release::ALL {
        for (number, at) in [
            (0x80_u32, device_params::H_CLIENT_SHARE),
            (0x80, device_params::H_TARGET_CLIENT),
            (0x79, event_params::H_PARENT_CLIENT),
            (0x83de, debugger_params::H_APP_CLIENT),
        ] {
            let mut arg = vec![0; 32];
            put_u32(&mut arg, nvos21::H_ROOT, OWN);
            put_u32(&mut arg, nvos21::H_CLASS, number);
            put_u64(&mut arg, nvos21::P_PARAMS, 0x1000);
            for (client, expected) in [(0, None), (OWN, None), (FOREIGN, Some(0x23))] {
                let mut params = vec![0; 64];
                put_u32(&mut params, at, client);
                assert_eq!(
                    status(&answer(&ALLOC, &arg, &params, release)),
                    expected,
                    "{release:?} class {number:#x} client {client:#x}"
                );
            }
        }
    }
}

#[test]
fn heap_functions_and_memory_classes() {
    for release in Release::ALL {
        let op = Op::Escape(&escape::NV_ESC_RM_VID_HEAP_CONTROL);
        for function in [0, 1, 4, 6, 14, 15, 16, 18, 19, 20, 27, u32::MAX] {
            let mut arg = vec![0; 184];
            put_u32(&mut arg, nvos32::FUNCTION, function);
            assert_eq!(
                status(&answer(&op, &arg, &[], release)),
                Some(0x56),
                "{function}"
            );
        }
        let op = Op::Escape(&escape::NV_ESC_RM_ALLOC_MEMORY);
        for (number, expected) in [
            (0x3e, None),
            // As a policy that names nothing has it.
            (0x71, Some(0x56)),
            (0x40, Some(0x22)),
            (0x3f, Some(0x22)),
            (0x83, Some(0x22)),
        ] {
            let mut arg = vec![0; 56];
            put_u32(&mut arg, nvos02::H_CLASS, number);
            assert_eq!(
                status(&answer(&op, &arg, &[], release)),
                expected,
                "{number:#x}"
            );
        }
    }
}

#[test]
fn share_policies_open_nothing_to_other_tenants() {
    use share_policy::{ACTION_REQUIRE, ACTION_REVOKE, ALL, CLIENT, NONE, OS_SECURITY_TOKEN, PID};
    const COMPOSE: u8 = 4;
    let narrowing = policy::Policy {
        same_user: policy::SameUser::Narrow,
        ..policy::Policy::default()
    };
    let target = Effect::ChannelClients {
        clients: vec![FOREIGN],
    };
    type Expected = Result<Effect, u32>;
    // (type, action, default, narrowing): an effect, or a status.
    let rows: &[(u16, u8, Expected, Expected)] = &[
        (NONE, 0, Ok(Effect::None), Ok(Effect::None)),
        (PID, 0, Ok(Effect::None), Ok(Effect::None)),
        (CLIENT, 0, Err(0x56), Ok(target.clone())),
        (CLIENT, COMPOSE, Err(0x56), Ok(target)),
        (CLIENT, ACTION_REVOKE, Err(0x1b), Err(0x1b)),
        (CLIENT, ACTION_REQUIRE, Err(0x1b), Err(0x1b)),
        (CLIENT, COMPOSE | ACTION_REQUIRE, Err(0x1b), Err(0x1b)),
        (ALL, 0, Err(0x1b), Err(0x1b)),
        (ALL, COMPOSE, Err(0x1b), Err(0x1b)),
        (5, 0, Err(0x1b), Err(0x1b)),
        (6, 0, Err(0x1b), Err(0x1b)),
        (7, 0, Err(0x1b), Err(0x1b)),
        (0xffff, 0, Err(0x1b), Err(0x1b)),
        (OS_SECURITY_TOKEN, 0, Err(0x56), Ok(Effect::None)),
        (OS_SECURITY_TOKEN, COMPOSE, Err(0x56), Ok(Effect::None)),
        (ALL, ACTION_REVOKE, Ok(Effect::None), Ok(Effect::None)),
        (ALL, ACTION_REQUIRE, Ok(Effect::None), Ok(Effect::None)),
    ];
    for release in Release::ALL {
        for (kind, action, refusing, narrowed) in rows {
            let mut block = vec![0; 12];
            put_u32(&mut block, share_policy::TARGET, FOREIGN);
            put(&mut block, share_policy::TYPE, &kind.to_le_bytes());
            put(&mut block, share_policy::ACTION, &[*action]);
            let mut share = vec![0; 24];
            put(&mut share, nvos57::POLICY, &block);
            let inherited = control_call(0xd04, 12, 0, 0x1000);
            let escape = Op::Escape(&escape::NV_ESC_RM_SHARE);
            let calls: [(&Op, Vec<&[u8]>); 2] = [
                (&escape, vec![&share]),
                (&CONTROL, vec![&inherited, &block]),
            ];
            for (op, segments) in calls {
                for (choice, expected) in
                    [(policy::Policy::default(), refusing), (narrowing, narrowed)]
                {
                    let got = match verdict::decide_under(op, &segments, release, &choice) {
                        Verdict::Execute(effect) => Ok(effect),
                        Verdict::Refuse(Refusal::Status { status, .. }) => Err(status),
                        Verdict::Refuse(Refusal::Errno(errno)) => panic!("errno {errno}"),
                    };
                    assert_eq!(
                        &got, expected,
                        "{release:?} type {kind} action {action} {choice:?}"
                    );
                }
                // What is admitted as a policy by user or for a client is executed as one by process, and the caller gets its own bytes back.
                let narrowed = verdict::narrow(op, &segments);
                let is_wider = [OS_SECURITY_TOKEN, CLIENT].contains(kind) && action & 3 == 0;
                assert_eq!(narrowed.is_some(), is_wider);
                if let Some(place) = narrowed {
                    let mut copy = segments[usize::from(place.segment)].to_vec();
                    let before = place.apply(&mut copy).unwrap();
                    assert_eq!(copy[place.at], 4);
                    let mut answered = copy.clone();
                    before.apply(&mut copy);
                    assert_eq!(copy, segments[usize::from(place.segment)]);
                    // What the driver writes there is its answer.
                    answered[place.at] = 9;
                    before.apply(&mut answered);
                    assert_eq!(answered[place.at], 9);
                }
            }
        }
    }
}

#[test]
fn a_device_without_a_share_gets_its_own_address_space() {
    let mut arg = vec![0; 32];
    put_u32(&mut arg, nvos21::H_ROOT, OWN);
    put_u32(&mut arg, nvos21::H_CLASS, 0x80);
    let mut params = vec![0; 56];
    let place = verdict::own_space(&ALLOC, &[&arg, &params]).unwrap();
    place.apply(&mut params).unwrap();
    assert_eq!(
        nvabi::bytes::u32_at(&params, device_params::H_CLIENT_SHARE),
        Some(OWN)
    );
    assert!(verdict::own_space(&ALLOC, &[&arg, &params]).is_none());
    assert!(place.apply(&mut [0; 6]).is_none());
}

#[test]
fn exports_and_imports() {
    let one = |kind: u32, flags: u32, fd: u32| {
        let mut params = vec![0; 24];
        put_u32(&mut params, export_object::TYPE, kind);
        put_u32(&mut params, export_object::H_OBJECT, 0xcafe);
        put_u32(&mut params, export_object::H_DEVICE, 0xd);
        put_u32(&mut params, export_object::FD, fd);
        put_u32(&mut params, export_object::FLAGS, flags);
        params
    };
    let many = |size: usize, count_at: usize, index_at: usize, count: u16, index: u16, fd: u32| {
        let mut params = vec![0; size];
        put_u32(&mut params, 0, fd);
        put(&mut params, count_at, &count.to_le_bytes());
        put(&mut params, index_at, &index.to_le_bytes());
        params
    };
    let export = |count, index, fd| {
        many(
            2128,
            export_objects::COUNT,
            export_objects::INDEX,
            count,
            index,
            fd,
        )
    };
    let of_places = |most: u16| {
        let mut params = export(1, 0, 7);
        put(
            &mut params,
            export_objects::MAX_OBJECTS,
            &most.to_le_bytes(),
        );
        params
    };
    let import = |count, index, fd| {
        many(
            652,
            import_objects::COUNT,
            import_objects::INDEX,
            count,
            index,
            fd,
        )
    };
    let rows: Vec<(u32, Vec<u8>, Option<u32>)> = vec![
        (0x3d05, one(1, 0, 7), None),
        (0x3d05, one(0, 0, 7), Some(0x3b)),
        (0x3d05, one(1, 1, 7), Some(0x3b)),
        (0x3d05, one(1, 0, u32::MAX), Some(0x3b)),
        (0x3d06, vec![0; 20], Some(0x3b)),
        (0x3d08, vec![0xff; 80], Some(0x3b)),
        (0x3d08, vec![0; 80], None),
        (0x3d0b, export(512, 0, 7), None),
        (0x3d0b, export(513, 0, 7), Some(0x3b)),
        (0x3d0b, of_places(512), None),
        (0x3d0b, of_places(513), Some(0x3b)),
        (0x3d0b, of_places(u16::MAX), Some(0x3b)),
        (0x3d0b, export(2, 0xffff, 7), Some(0x5b)),
        (0x3d0b, export(2, 0, u32::MAX), Some(0x3b)),
        (0x3d0c, import(128, 0, 7), None),
        (0x3d0c, import(129, 0, 7), Some(0x3b)),
        (0x3d0c, import(2, 0xffff, 7), Some(0x5b)),
        (0x3d0c, import(2, 0, u32::MAX), Some(0x3b)),
    ];
    for release in Release::ALL {
        for (cmd, params, expected) in &rows {
            let size = control::row(*cmd, release).unwrap().params_bytes;
            let call = control_call(*cmd, size, 0, 0x1000);
            let verdict = answer(&CONTROL, &call, params, release);
            assert_eq!(
                status(&verdict),
                *expected,
                "{release:?} {cmd:#x} {verdict:?}"
            );
        }
        let call = control_call(0x3d05, 24, 0, 0x1000);
        let Verdict::Execute(Effect::Export(export)) =
            answer(&CONTROL, &call, &one(1, 0, 7), release)
        else {
            panic!("no export")
        };
        assert_eq!((export.client, export.device, export.first), (OWN, 0xd, 0));
        assert_eq!(export.objects, [0xcafe]);
        assert_eq!(export.onto, verdict::effect::Onto::Fresh);
        assert_eq!((export.file.segment, export.file.at), (1, 16));
    }
}

#[test]
fn uvm_calls() {
    for release in Release::ALL {
        let op = Op::Uvm(&uvm::UVM_MAP_EXTERNAL_ALLOCATION);
        let count_at = uvm::map_external::COUNT.of(release) as usize;
        let mut arg = vec![0; op.struct_bytes(release)];
        put_u64(&mut arg, count_at, u64::MAX);
        assert_eq!(status(&verdict::decide(&op, &[&arg], release)), Some(0x1f));
        let most = u64::try_from((count_at - uvm::map_external::PER_GPU) / 36).unwrap();
        put_u64(&mut arg, count_at, most + 1);
        assert_eq!(status(&verdict::decide(&op, &[&arg], release)), Some(0x1f));
        put_u64(&mut arg, count_at, most);
        assert_eq!(status(&verdict::decide(&op, &[&arg], release)), None);
        for row in [
            uvm::UVM_MIGRATE,
            uvm::UVM_SET_PREFERRED_LOCATION,
            uvm::UVM_MIGRATE_RANGE_GROUP,
        ] {
            let op = verdict::op(Surface::Uvm, row.cmd, release).unwrap();
            let arg = vec![0; op.struct_bytes(release)];
            assert_eq!(
                status(&verdict::decide(&op, &[&arg], release)),
                Some(0x56),
                "{}",
                row.name
            );
        }
    }
}
