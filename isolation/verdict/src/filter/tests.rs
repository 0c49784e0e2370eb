use bpf::{ALLOW, Instruction, KILL_PROCESS, NOTIFY};

use super::*;

fn run(program: &[Instruction], nr: u32, arch: u32, args: [u64; 6]) -> u32 {
    bpf::run(program, bpf::Call { nr, arch, args }).unwrap()
}

impl Filter {
    /// What it answers to a call of its own machine.
    fn answer(&self, call: Syscall, args: [u64; 6]) -> u32 {
        let arch = self.spec.arch;
        run(
            &self.program,
            arch.number(call).unwrap(),
            arch.audit(),
            args,
        )
    }

    fn ioctl(&self, cmd: u64) -> u32 {
        self.answer(Syscall::Ioctl, [3, cmd, 0x1000, 0, 0, 0])
    }
}

struct Filter {
    spec: FilterSpec,
    program: Vec<Instruction>,
}

const FAIL_ENOTTY: u32 = 0x0005_0019;

/// Of every machine, release and coverage.
fn filters() -> impl Iterator<Item = Filter> {
    let coverages = [Coverage::Production, Coverage::Simulated];
    Arch::ALL
        .into_iter()
        .flat_map(|arch| Release::ALL.map(|release| (arch, release)))
        .flat_map(move |(arch, release)| {
            coverages.map(|coverage| FilterSpec {
                release,
                coverage,
                arch,
            })
        })
        .map(|spec| Filter {
            spec,
            program: program(&spec),
        })
}

#[test]
fn ioctl_vectors() {
    for filter in filters() {
        let spec = filter.spec;
        for cmd in [
            0xc020_462a,
            0xc030_462b,
            0xc020_462b,
            0xc010_4629,
            0xc01c_4634,
            0xc0b8_464a,
            0xc038_4627,
            0xffff_ffff_c020_462a,
            0x1234_c030_462b,
            0x0020_462a,
            0x4030_462b,
            0xc020_542a,
            0xc030_002b,
            0xc0b8_ff4a,
            // Events, and cards by any count of ids, however they are spelt.
            0xc010_46ce,
            0x0010_54cf,
            0xc004_46d4,
            0x4100_54d4,
            0xffff_0000_0000_00d4,
            33,
            34,
            25,
            27,
            66,
            0x3000_0001,
            0xdead_beef_0000_0021,
        ] {
            assert_eq!(filter.ioctl(cmd), NOTIFY, "{spec:?} {cmd:#x}");
        }
        for cmd in [
            0xc010_46d3,
            0xc010_aad3,
            0xc014_4628,
            0xc048_464d,
            0xc020_4639,
            0x8020_aa39,
            0x1_c010_46d3,
        ] {
            assert_eq!(filter.ioctl(cmd), FAIL_ENOTTY, "{spec:?} {cmd:#x}");
        }
        for cmd in [0x3000_0002, 0x802c_542a, 0x5401, 0x541b, 0xc021_462a] {
            assert_eq!(filter.ioctl(cmd), ALLOW, "{spec:?} {cmd:#x}");
        }
    }
}

#[test]
fn what_decides_about_memory_is_notified_in_every_spelling() {
    for filter in filters() {
        let spec = filter.spec;
        for row in escape::ALL {
            let Some(key) = row.key(spec.release) else {
                continue;
            };
            let expected = match (row.production, spec.coverage) {
                (Production::Forbidden, _) => FAIL_ENOTTY,
                (Production::Notified, _) | (Production::Native, Coverage::Simulated) => NOTIFY,
                (Production::Native, Coverage::Production) => ALLOW,
            };
            for other in [
                0,
                0xff00,
                0x4600,
                0x5400,
                0xc000_0000,
                0x4000_4600,
                0x8000_0100,
            ] {
                for upper in [0, 1 << 32, u64::from(u32::MAX) << 32] {
                    let cmd = upper | u64::from(key | other);
                    assert_eq!(
                        filter.ioctl(cmd),
                        expected,
                        "{spec:?} {} {cmd:#x}",
                        row.name
                    );
                }
            }
        }
        let notified = |row: &&uvm::Uvm| row.production == Production::Notified;
        for row in uvm::ALL.iter().filter(notified) {
            let exists = row.size.of(spec.release) != 0;
            let cmd = u64::from(row.cmd);
            if exists {
                assert_eq!(filter.ioctl(cmd), NOTIFY, "{spec:?} {}", row.name);
                assert_eq!(filter.ioctl(0xabcd_0000_0000_0000 | cmd), NOTIFY);
            }
            // The driver compares all 32 bits here: with any other it is no call of UVM's.
            assert_ne!(
                filter.ioctl(cmd | 0x0001_5500),
                NOTIFY,
                "{spec:?} {}",
                row.name
            );
        }
    }
}

/// What 595 changes: the keys are exact sizes, and a release's filter lets another release's size pass to a driver that
/// answers `EINVAL` to it.
#[test]
fn what_uvm_would_pin_or_hold_up_is_refused() {
    for filter in filters() {
        for (name, cmd) in uvm::FORBIDDEN {
            let spec = filter.spec;
            assert_eq!(filter.ioctl(cmd.into()), FAIL_ENOTTY, "{spec:?} {name}");
        }
    }
}

#[test]
fn sizes_follow_the_release() {
    for (cmd, since) in [
        (0xc040_4657_u64, Release::R580),
        (0xc030_4658, Release::R550),
        (0xca30_46d9, Release::R570),
        (0xc008_46da, Release::R550),
    ] {
        for filter in filters().filter(|filter| filter.spec.coverage == Coverage::Simulated) {
            let spec = filter.spec;
            let expected = if spec.release >= since { NOTIFY } else { ALLOW };
            assert_eq!(filter.ioctl(cmd), expected, "{spec:?} {cmd:#x}");
        }
    }
}

#[test]
fn mmap_vectors() {
    const SHARED: u64 = 1;
    const PRIVATE: u64 = 2;
    const FIXED: u64 = 0x10;
    const ANONYMOUS: u64 = 0x20;
    for filter in filters() {
        let mmap = |flags, offset| filter.answer(Syscall::Mmap, [0, 4096, 3, flags, 3, offset]);
        assert_eq!(mmap(PRIVATE, 1 << 32), ALLOW);
        assert_eq!(mmap(PRIVATE | FIXED, 0x7000_0000_0000), ALLOW);
        assert_eq!(mmap(SHARED | ANONYMOUS, 1 << 20), ALLOW);
        assert_eq!(mmap(SHARED | ANONYMOUS | FIXED, 1 << 20), ALLOW);
        assert_eq!(mmap(SHARED, 0), ALLOW, "a file from its beginning");
        assert_eq!(mmap(SHARED | PRIVATE, 0), ALLOW);
        for offset in [0x1000, 0xf000, 0x10000, 1 << 32, 0x7000_0000_0000] {
            for flags in [SHARED, SHARED | PRIVATE, SHARED | FIXED] {
                assert_eq!(mmap(flags, offset), NOTIFY, "{flags:#x} {offset:#x}");
            }
        }
        assert_eq!(mmap(SHARED | FIXED, 0), NOTIFY, "address 0 of address 0");
        assert_eq!(filter.answer(Syscall::RemapFilePages, [0; 6]), 0x0005_0026);
    }
}

/// Whether the kernel can come to a shared mapping of a file at an address that equals its offset. Without a fixed address it
/// never takes one below the first page (`vm_unmapped_area`); with one it takes any that `vm.mmap_min_addr` or a capability
/// allows, 0 included.
fn can_be_managed([address, _, _, flags, _, offset]: [u64; 6]) -> bool {
    const PAGE_BYTES: u64 = 4096;
    let is_shared = matches!(flags & 0xf, 1 | 3) && flags & 0x20 == 0;
    let is_fixed = flags & 0x10_0010 != 0;
    let chosen = if is_fixed {
        address == offset
    } else {
        offset >= PAGE_BYTES
    };
    is_shared && offset.is_multiple_of(PAGE_BYTES) && chosen
}

#[test]
fn no_flag_and_no_offset_make_managed_memory_unseen() {
    let Some(filter) = filters().next() else {
        return;
    };
    let offsets: Vec<u64> = (0..64)
        .flat_map(|bit| [1 << bit, (1 << bit) - 1, u64::MAX << bit])
        .chain((0..=32).map(|page| page << 12))
        .collect();
    // Every flag that the kernel knows is below bit 26.
    let further = (6..64).map(|bit| 1u64 << bit).chain([0, u64::MAX << 6]);
    for further in further {
        for low in 0..64 {
            for offset in &offsets {
                for address in [0, *offset, 0x1000, 0x7000_0000_0000] {
                    let args = [address, 1 << 40, 3, further | low, 3, *offset];
                    if can_be_managed(args) {
                        assert_eq!(filter.answer(Syscall::Mmap, args), NOTIFY, "{args:x?}");
                    }
                }
            }
        }
    }
}

proptest::proptest! {
    #[test]
    fn no_mmap_makes_managed_memory_unseen(
        mut args: [u64; 6],
        shape in 0_u8..8,
        page in 0_u64..64,
    ) {
        for filter in filters() {
            if shape & 1 != 0 {
                args[3] = (args[3] & !0x2f) | 1;
            }
            if shape & 2 != 0 {
                args[5] = page << 12;
            }
            if shape & 4 != 0 {
                args[0] = args[5];
            }
            let answer = filter.answer(Syscall::Mmap, args);
            if can_be_managed(args) {
                proptest::prop_assert_eq!(answer, NOTIFY, "{:x?}", args);
            }
            if args[3] & 0x21 != 1 {
                proptest::prop_assert_eq!(answer, ALLOW, "{:x?}", args);
            }
        }
    }
}

#[test]
fn a_second_listener_is_refused_and_a_plain_filter_is_not() {
    for filter in filters() {
        let seccomp = |op, flags| filter.answer(Syscall::Seccomp, [op, flags, 0, 0, 0, 0]);
        assert_eq!(seccomp(1, 1 << 3), 0x0005_0010);
        assert_eq!(
            seccomp(0xffff_0000_0000_0001, 0xff00_0000_0000_0009),
            0x0005_0010
        );
        assert_eq!(seccomp(1, 0), ALLOW);
        assert_eq!(seccomp(3, 0), ALLOW);
    }
}

#[test]
fn io_uring_is_closed_on_demand_and_nothing_else_changes() {
    for filter in filters() {
        let spec = filter.spec;
        let mut closed = Filter {
            spec,
            program: filter.program.clone(),
        };
        deny_io_uring(&mut closed.program, spec.arch);
        for (name, call) in IO_URING {
            assert_eq!(filter.answer(call, [0; 6]), ALLOW, "{name}");
            assert_eq!(closed.answer(call, [0; 6]), 0x0005_0026, "{name}");
        }
        for nr in [0, 424, 428] {
            assert_eq!(run(&closed.program, nr, spec.arch.audit(), [0; 6]), ALLOW);
        }
        assert_eq!(closed.ioctl(0xc020_462a), NOTIFY, "{spec:?}");
        assert_eq!(closed.ioctl(0x5401), ALLOW, "{spec:?}");
    }
}

#[test]
fn foreign_system_call_tables_are_closed() {
    const I386: u32 = 0x4000_0003;
    const ARM: u32 = 0x4000_0028;
    for Filter { spec, program } in filters() {
        let others = Arch::ALL.into_iter().filter(|arch| *arch != spec.arch);
        for table in others.map(Arch::audit).chain([I386, ARM, 0]) {
            for nr in [16, 29, 54] {
                assert_eq!(run(&program, nr, table, [0; 6]), KILL_PROCESS, "{spec:?}");
            }
        }
    }
}

#[test]
fn numbers_of_x32_are_closed() {
    for Filter { spec, program } in filters().filter(|filter| filter.spec.arch == Arch::X86_64) {
        // x32's ioctl is 514, its native number with the bit is 16: both are closed, and so is what is above.
        for nr in [0x4000_0202, 0x4000_0010, 0x4000_0000, 0xffff_ffff] {
            let args = [3, 0xc020_462a, 0, 0, 0, 0];
            assert_eq!(run(&program, nr, spec.arch.audit(), args), KILL_PROCESS);
        }
    }
}

#[test]
fn no_two_rules_match_one_command() {
    for Filter { spec, .. } in filters() {
        let rules = ioctl_rules(&spec);
        for (at, rule) in rules.iter().enumerate() {
            for other in &rules[at + 1..] {
                let both = rule.when.mask & other.when.mask;
                assert_ne!(
                    rule.when.value & both,
                    other.when.value & both,
                    "{} and {}",
                    rule.name,
                    other.name
                );
            }
        }
    }
}

/// What `nvidia_ioctl`, `rm_ioctl` and `RmIoctl` route (nv.c, osapi.c, escape.c; 535.183.01, 550.54.14 to 580.95.05, 590.44.01 and 595.45.04),
/// by number.
const ROUTED_ESCAPES: &[u32] = &[
    0x27, 0x28, 0x29, 0x2a, 0x2b, 0x34, 0x35, 0x39, 0x41, 0x4a, 0x4d, 0x4e, 0x4f, 0x52, 0x54, 0x57,
    0x58, 0x59, 0x5e, 0x5f, 200, 201, 206, 207, 209, 210, 211, 212, 213, 214, 215, 216, 217, 218,
];

/// A call of RM's without a row passes a card's filter, in any size, and no broker hears of it.
#[test]
fn what_rm_executes_without_a_row_takes_nothing_of_a_card() {
    let harmless = [
        // Takes an event out of the caller's own file.
        0x52, // For an administrator alone.
        0x5f,
        216, // A word and a register of the card, and where its memory is as a node of the host's.
        209, 213, 215,
    ];
    let of_any_size = [escape::NV_ESC_CARD_INFO, escape::NV_ESC_ATTACH_GPUS_TO_FD];
    for nr in ROUTED_ESCAPES {
        let rows = escape::ALL.iter().map(|row| row.nr).chain(of_any_size);
        let has_row = rows.map(u32::from).any(|of_row| of_row == *nr);
        assert_ne!(has_row, harmless.contains(nr), "{nr:#x}");
    }
    for filter in filters() {
        for cmd in [0xc038_4654, 0x0038_aa54, 0xc010_4659] {
            assert_eq!(filter.ioctl(cmd), FAIL_ENOTTY, "{cmd:#x}");
        }
    }
}

/// What `uvm_ioctl` routes in a release (kernel-open/nvidia-uvm/uvm.c, the same in all its versions of 535.43.02 to 595.45.04), beside
/// `UVM_INITIALIZE` and `UVM_DEINITIALIZE`.
fn routed(release: Release) -> impl Iterator<Item = u32> {
    let of_all = [23..=31, 33..=34, 37..=47, 51..=51, 53..=53, 62..=75];
    let of_some = [
        (54..=55, Release::R535, Release::R590),
        (77..=79, Release::R565, Release::R595),
        (80..=80, Release::R580, Release::R595),
    ];
    let of_some = of_some
        .into_iter()
        .filter(move |(_, first, last)| (*first..=*last).contains(&release))
        .map(|(numbers, ..)| numbers);
    of_all.into_iter().chain(of_some).flatten()
}

/// A call without a row passes a card's filter, and no broker hears of it.
#[test]
fn what_uvm_executes_without_a_row_takes_nothing_of_a_card() {
    let harmless = [
        // Lets managed pages go that were kept where they are.
        41, // Read and write the caller's own memory, name cards, and flush the caller's events.
        62, 63, 64, 67, 77, // Frees what processes that have exited left.
        69, // Managed pages lose what is in them.
        80,
    ];
    for release in Release::ALL {
        let native = Native::of(release);
        for cmd in routed(release) {
            match uvm::row(cmd, release) {
                Some(row) => {
                    let passes = row.production == Production::Native;
                    assert_eq!(native.has(cmd), passes, "{}", row.name);
                }
                None if uvm::FORBIDDEN.iter().any(|(_, it)| *it == cmd) => {
                    assert!(!native.has(cmd), "{cmd} {release:?}");
                }
                None => assert!(harmless.contains(&cmd), "{cmd} {release:?}"),
            }
        }
        let of_rows = uvm::ALL
            .iter()
            .filter(|row| row.size.of(release) != 0 && *row != &uvm::UVM_INITIALIZE);
        for row in of_rows {
            let is_routed = routed(release).any(|cmd| cmd == row.cmd);
            assert!(is_routed, "{} {release:?}", row.name);
        }
    }
}

/// They wait for a lock of the whole module (`uvm_api_enable_peer_access`, uvm_va_space.c), which a thread that gets no CPU time would keep from
/// everybody; policies cost the kernel memory for each page.
#[test]
fn no_peer_and_no_policy_is_a_tenants_own_call() {
    for release in Release::ALL {
        let native = Native::of(release);
        for row in [
            uvm::UVM_ENABLE_PEER_ACCESS,
            uvm::UVM_DISABLE_PEER_ACCESS,
            uvm::UVM_SET_RANGE_GROUP,
            uvm::UVM_SET_PREFERRED_LOCATION,
            uvm::UVM_UNSET_PREFERRED_LOCATION,
            uvm::UVM_ENABLE_READ_DUPLICATION,
            uvm::UVM_DISABLE_READ_DUPLICATION,
            uvm::UVM_SET_ACCESSED_BY,
            uvm::UVM_UNSET_ACCESSED_BY,
        ] {
            assert!(!native.has(row.cmd), "{}", row.name);
        }
    }
}
