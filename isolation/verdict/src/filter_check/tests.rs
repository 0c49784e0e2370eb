use bpf::{ALLOW, Call, KILL_PROCESS, LOG, NOTIFY, TRACE, instruction as insn, ret, run};
use nvabi::Release;
use proptest::prelude::*;

use super::*;
use crate::filter::{Coverage, MMAP, deny_io_uring, ioctl_rules, program};

const ERRNO: u32 = bpf::errno(1);

fn ioctl(command: u64) -> Call {
    Call {
        nr: 16,
        arch: Arch::X86_64.audit(),
        args: [0, command, 0, 0, 0, 0],
    }
}

fn specs() -> impl Iterator<Item = FilterSpec> {
    Arch::ALL
        .into_iter()
        .flat_map(|arch| Release::ALL.map(|release| (arch, release)))
        .flat_map(|(arch, release)| {
            [Coverage::Production, Coverage::Simulated].map(|coverage| FilterSpec {
                release,
                coverage,
                arch,
            })
        })
}

fn closed(spec: &FilterSpec, filters: &[Vec<Instruction>]) -> Result<Closed, Hole> {
    check(filters, &demands(spec, IoUring::Open))
}

#[test]
fn our_own_filter_has_no_hole() {
    for spec in specs() {
        let notifying = Ok(Closed { notifies: true });
        assert_eq!(closed(&spec, &[program(&spec)]), notifying, "{spec:?}");
        let mut program = program(&spec);
        deny_io_uring(&mut program, spec.arch);
        assert_eq!(
            check(&[program], &demands(&spec, IoUring::Closed)),
            notifying
        );
    }
}

#[test]
fn io_uring_is_looked_at_where_it_must_be_closed() {
    let spec = specs().next().unwrap();
    let hole = check(&[program(&spec)], &demands(&spec, IoUring::Closed));
    assert_eq!(hole, Err(Hole::Open { name: "io_uring" }));
}

#[test]
fn no_filter_is_a_hole_and_the_strictest_of_several_holds() {
    let spec = specs().next().unwrap();
    assert_eq!(closed(&spec, &[]), Err(Hole::NoFilter));
    let ours = program(&spec);
    let plain = vec![ret(ALLOW)];
    closed(&spec, std::slice::from_ref(&plain)).unwrap_err();
    let notifies = |notifies| Ok(Closed { notifies });
    assert_eq!(
        closed(&spec, &[plain.clone(), ours.clone()]),
        notifies(true)
    );
    assert_eq!(closed(&spec, &[ours.clone(), plain]), notifies(true));
    // Denied altogether: nobody has to answer.
    assert_eq!(closed(&spec, &[ours, vec![ret(ERRNO)]]), notifies(false));
    for open in [LOG, TRACE] {
        closed(&spec, &[vec![ret(open)]]).unwrap_err();
    }
    for shut in [ERRNO, KILL_PROCESS, 0, 0x0003_0000, 0x1234_0000] {
        assert_eq!(
            closed(&spec, &[vec![ret(shut)]]),
            notifies(false),
            "{shut:#x}"
        );
    }
}

/// Whatever single instruction is made to let calls through, the hole is seen.
#[test]
fn every_answer_of_our_filter_is_needed() {
    for spec in specs() {
        let program = program(&spec);
        for at in 0..program.len() {
            if program[at].code != 0x06 || program[at].k == ALLOW {
                continue;
            }
            let mut holed = program.clone();
            holed[at].k = ALLOW;
            let hole = closed(&spec, &[holed]).unwrap_err();
            assert!(
                matches!(hole, Hole::Open { .. }),
                "{spec:?} at {at}: {hole}"
            );
        }
    }
}

#[test]
fn a_hole_is_named() {
    let spec = FilterSpec {
        release: Release::R570,
        coverage: Coverage::Production,
        arch: Arch::X86_64,
    };
    let mut program = program(&spec);
    let rule = *ioctl_rules(&spec)
        .iter()
        .find(|rule| rule.name == "NV_ESC_RM_ALLOC")
        .unwrap();
    let at = program
        .iter()
        .position(|insn| insn.code == 0x15 && insn.k == rule.when.value)
        .unwrap();
    program[at + 1] = ret(ALLOW);
    let hole = closed(&spec, &[program]).unwrap_err();
    assert_eq!(hole.to_string(), "it lets NV_ESC_RM_ALLOC through");
}

/// One value of a command that is let through beside thousands that are not.
#[test]
fn a_single_open_value_is_found() {
    let spec = specs().next().unwrap();
    let rules = program(&spec);
    for command in [0xc020_462a_u32, 0x0020_aa2a, 0xffe0_ff2a] {
        // Behind the look at the table of system calls, which comes first in ours.
        let (table, calls) = rules.split_at(6);
        let mut program = table.to_vec();
        program.extend([
            insn(0x20, 0, 0, 0),
            insn(0x15, 0, 3, 16),
            insn(0x20, 0, 0, 24),
            insn(0x15, 0, 1, command),
            ret(ALLOW),
            insn(0x20, 0, 0, 0),
        ]);
        program.extend(calls);
        let is_ours = ioctl_rules(&spec)
            .iter()
            .any(|rule| command & rule.when.mask == rule.when.value);
        assert_eq!(closed(&spec, &[program]).is_err(), is_ours, "{command:#x}");
    }
}

#[test]
fn bounds_of_offsets_are_exact() {
    let spec = specs().next().unwrap();
    // As libseccomp compares 64 bits: the upper half first.
    let at_least = |bytes: u32, fixed_come: bool| {
        vec![
            insn(0x20, 0, 0, 4),
            insn(0x15, 1, 0, 0xc000_003e),
            ret(KILL_PROCESS),
            insn(0x20, 0, 0, 0),
            insn(0x15, 1, 0, MMAP_NR),
            ret(ERRNO),
            insn(0x20, 0, 0, 40),
            insn(0x45, 0, 1, if fixed_come { 0x10_0010 } else { 0 }),
            ret(NOTIFY),
            insn(0x20, 0, 0, 60),
            insn(0x25, 2, 0, 0),
            insn(0x20, 0, 0, 56),
            insn(0x35, 0, 1, bytes),
            ret(NOTIFY),
            ret(ALLOW),
        ]
    };
    let least = u32::try_from(MMAP.least_offset_bytes).unwrap();
    closed(&spec, &[at_least(least, true)]).unwrap();
    closed(&spec, &[at_least(least - 1, true)]).unwrap();
    closed(&spec, &[at_least(least + 1, true)]).unwrap_err();
    closed(&spec, &[at_least(0x1000, true)]).unwrap_err();
    closed(&spec, &[at_least(least, false)]).unwrap_err();
    closed(&spec, &[at_least(0, false)]).unwrap();
}

const MMAP_NR: u32 = 9;

#[test]
fn what_cannot_be_followed_is_refused() {
    let spec = specs().next().unwrap();
    // An instruction of no filter, a jump past the end, a load of half a word.
    for program in [
        vec![insn(0x28, 0, 0, 0), ret(ERRNO)],
        vec![insn(0x05, 0, 0, 7)],
        vec![insn(0x20, 0, 0, 2), ret(ERRNO)],
        vec![],
    ] {
        assert_eq!(closed(&spec, &[program]), Err(Hole::TooComplex));
    }
    // A sum that nobody can follow: either way is possible.
    let sum = |yes| {
        vec![
            insn(0x20, 0, 0, 24),
            insn(0x04, 0, 0, 1),
            insn(0x15, 0, 1, 7),
            ret(yes),
            ret(ERRNO),
        ]
    };
    closed(&spec, &[sum(ALLOW)]).unwrap_err();
    closed(&spec, &[sum(NOTIFY)]).unwrap();
}

/// Values in which small programs tell calls apart.
const SMALL: [u32; 6] = [0, 1, 2, 3, 0x8000_0001, u32::MAX];

fn small_programs() -> impl Strategy<Value = Vec<Instruction>> {
    let word = prop_oneof![Just(24_u32), Just(28)];
    let number = prop::sample::select(&SMALL[..]);
    let step = prop_oneof![
        word.prop_map(|offset| insn(0x20, 0, 0, offset)),
        number.clone().prop_map(|k| insn(0x54, 0, 0, k)),
        number.clone().prop_map(|k| insn(0x04, 0, 0, k)),
        number.clone().prop_map(|k| insn(0x44, 0, 0, k)),
        Just(insn(0x02, 0, 0, 1)),
        Just(insn(0x60, 0, 0, 1)),
        Just(insn(0x07, 0, 0, 0)),
        Just(insn(0x87, 0, 0, 0)),
        Just(insn(0x5c, 0, 0, 0)),
        prop::sample::select(vec![ALLOW, ERRNO, NOTIFY]).prop_map(ret),
        (
            prop::sample::select(vec![0x15_u16, 0x25, 0x35, 0x45, 0x1d, 0x3d]),
            0..4_u8,
            0..4_u8,
            number
        )
            .prop_map(|(code, jt, jf, k)| insn(code, jt, jf, k)),
    ];
    prop::collection::vec(step, 1..14).prop_map(|mut program| {
        // Every jump ends within.
        program.extend([ret(ERRNO), ret(ALLOW), ret(NOTIFY), ret(ERRNO)]);
        program
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// What is said to be closed lets no call through.
    #[test]
    fn a_filter_without_a_hole_lets_nothing_through(
        programs in prop::collection::vec(small_programs(), 1..3),
        mask in prop::sample::select(&SMALL[..]),
        value in prop::sample::select(&SMALL[..]),
    ) {
        let demand = Demand {
            name: "small",
            calls: native_call(Arch::X86_64, Syscall::Ioctl).unwrap().with(arg_low(1), Word::masked(mask, value)),
        };
        let reply = check(&programs, &[demand]);
        let mut let_through = false;
        let mut notified = false;
        for low in SMALL {
            let low = low & !mask | value & mask;
            for high in SMALL {
                let call = ioctl(u64::from(low) | u64::from(high) << 32);
                let answers: Vec<u32> = programs.iter().map(|program| run(program, call).unwrap()).collect();
                let strictest = answers.iter().map(|answer| answer.cast_signed()).min().unwrap();
                let_through |= strictest == ALLOW.cast_signed();
                notified |= strictest == NOTIFY.cast_signed();
            }
        }
        match reply {
            Ok(Closed { notifies }) => {
                prop_assert!(!let_through);
                prop_assert!(notifies || !notified);
            }
            Err(hole) => {
                let is_open = matches!(hole, Hole::Open { name: "small" });
                prop_assert!(is_open, "{hole}");
            }
        }
    }

    /// Comparisons alone are followed exactly: a hole is a call that is let through.
    #[test]
    fn a_hole_is_real_where_only_single_values_are_compared(
        values in prop::collection::vec((0..8_u32, prop::bool::ANY), 0..10),
        mask in 0..8_u32,
        value in 0..8_u32,
    ) {
        let mut program = vec![insn(0x20, 0, 0, 28), insn(0x15, 1, 0, 0), ret(ERRNO), insn(0x20, 0, 0, 24)];
        for (value, opens) in &values {
            program.push(insn(0x15, 0, 1, *value));
            program.push(ret(if *opens { ALLOW } else { ERRNO }));
        }
        program.push(ret(ERRNO));
        let demand = Demand {
            name: "small",
            calls: native_call(Arch::X86_64, Syscall::Ioctl).unwrap().with(arg_low(1), Word::masked(mask, value)),
        };
        let open = (0..8_u32).filter(|low| low & mask == value & mask).any(|low| {
            run(&program, ioctl(low.into())) == Some(ALLOW)
        });
        prop_assert_eq!(check(&[program], &[demand]).is_err(), open);
    }
}
