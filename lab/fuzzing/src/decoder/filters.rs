//! The filters: their rules, their program, and the verdicts that must not be reached past them.

use arch::Arch;
use std::sync::OnceLock;

use arbitrary::Unstructured;
use nvabi::Release;
use nvabi::errno::EINVAL;
use nvabi::escape::{self, key};
use verdict::filter::{self, Action, Coverage, FilterSpec, IoctlRule};
use verdict::managed::{self, Mapping};
use verdict::policy::Managed;
use verdict::{Effect, Op, Refusal, Verdict};

use super::Call;

const SYS_MMAP: u32 = 9;
const SYS_IOCTL: u32 = 16;
const SYS_SECCOMP: u32 = 317;
const X32_BIT: u32 = 0x4000_0000;

impl Call {
    /// Rules and program agree, and the rules close what no tenant may call.
    pub(super) fn check_rules(&self) {
        for filter in filters()
            .iter()
            .filter(|it| it.spec.release == self.release)
        {
            let mut matching = filter
                .rules
                .iter()
                .filter(|rule| self.cmd & rule.when.mask == rule.when.value);
            let expected = matching
                .next()
                .map_or(bpf::ALLOW, |rule| match rule.action {
                    Action::Notify => bpf::NOTIFY,
                    Action::Errno(errno) => bpf::errno(errno),
                });
            assert!(matching.next().is_none(), "two rules on {:#x}", self.cmd);
            assert_eq!(
                self.ends(filter),
                expected,
                "{:?} {:#x}",
                filter.spec,
                self.cmd
            );
            for closed in [
                escape::NV_ESC_IOCTL_XFER_CMD,
                escape::NV_ESC_RM_ALLOC_OBJECT,
                escape::NV_ESC_RM_ACCESS_REGISTRY,
            ] {
                if closed.key(self.release) == Some(key(self.cmd)) {
                    let ends = self.ends(filter);
                    assert!(ends != bpf::ALLOW && ends != bpf::NOTIFY, "{}", closed.name);
                }
            }
        }
    }

    /// What a filter makes of this command.
    fn ends(&self, filter: &Filter) -> u32 {
        let command = u64::from(self.cmd) | (u64::from(self.high) << 32);
        let args = [3, command, 0x1000, 0, 0, 0];
        let entry = bpf::Call {
            nr: SYS_IOCTL,
            arch: Arch::X86_64.audit(),
            args,
        };
        let ends = bpf::run(&filter.program, entry).expect("a program");
        for foreign in [
            bpf::Call {
                arch: 0x4000_0003,
                nr: 54,
                ..entry
            },
            bpf::Call {
                nr: X32_BIT | 514,
                ..entry
            },
        ] {
            assert_ne!(
                bpf::run(&filter.program, foreign),
                Some(bpf::ALLOW),
                "{foreign:?}"
            );
        }
        ends
    }

    /// A call that is refused, charged or rewritten never reaches the driver past the broker.
    pub(super) fn check_coverage(&self, op: &Op, verdict: &Verdict) {
        let by_type = matches!(op, Op::CardInfo { .. });
        let is_native = (self.cmd >> 8) & 0xff == u32::from(escape::NV_IOCTL_MAGIC);
        for filter in filters()
            .iter()
            .filter(|it| it.spec.release == self.release)
        {
            let must_come = match (filter.spec.coverage, verdict) {
                // Compared with its type byte: it gives nothing away but card numbers.
                _ if by_type && !is_native => false,
                (Coverage::Simulated, _) => true,
                (Coverage::Production, Verdict::Refuse(_)) => !by_type,
                (Coverage::Production, Verdict::Execute(effect)) => match effect {
                    Effect::None => false,
                    Effect::Client
                    | Effect::MapDma { .. }
                    | Effect::UnmapDma { .. }
                    | Effect::CpuMapping { .. }
                    | Effect::Range { .. }
                    | Effect::RangeGroup(_)
                    | Effect::Pages(_)
                    | Effect::Object { .. }
                    | Effect::Memory(_)
                    | Effect::Free { .. }
                    | Effect::Dup { .. }
                    | Effect::MapExternal { .. }
                    | Effect::Unmap { .. }
                    | Effect::RegisterCard { .. }
                    | Effect::Register { .. }
                    | Effect::Unregister(_)
                    | Effect::FreeRange { .. }
                    | Effect::ChannelClients { .. }
                    | Effect::Export(_)
                    | Effect::Import(_)
                    | Effect::ExportInfo { .. }
                    | Effect::Managed { .. }
                    | Effect::Schedule(_)
                    | Effect::OsEvent { .. }
                    | Effect::Pool { .. }
                    | Effect::Answered { .. }
                    | Effect::NamesCards { .. }
                    | Effect::View(_) => true,
                },
            };
            if must_come {
                assert_eq!(
                    self.ends(filter),
                    bpf::NOTIFY,
                    "{} ({:#x}) under {:?}: {verdict:?}",
                    op.name(),
                    self.cmd,
                    filter.spec
                );
            }
        }
    }

    /// `mmap` and `seccomp`, with the bytes that an unknown command leaves over.
    pub(super) fn check_other_calls(&self, input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
        let nr = *input.choose(&[SYS_MMAP, SYS_SECCOMP, 0, 57])?;
        let mut args = input.arbitrary::<[u64; 6]>()?;
        if input.ratio(1, 2)? {
            args[3] &= 0xff;
            args[0] &= 3;
            args[1] &= 0x1f;
        }
        for filter in filters()
            .iter()
            .filter(|it| it.spec.release == self.release)
        {
            let entry = bpf::Call {
                nr,
                arch: Arch::X86_64.audit(),
                args,
            };
            let ends = bpf::run(&filter.program, entry).expect("a program");
            let is_shared_file = args[3] & 0x21 == 1;
            let makes_listener = args[0] & 0xffff_ffff == 1 && args[1] & 8 != 0;
            if nr == SYS_MMAP && is_shared_file {
                self.check_managed(args);
            }
            match nr {
                SYS_MMAP if is_shared_file && (args[5] > 0 || args[3] & 0x10_0010 != 0) => {
                    assert_eq!(ends, bpf::NOTIFY);
                }
                SYS_SECCOMP if makes_listener => assert_eq!(ends, bpf::errno(filter::EBUSY)),
                _ => assert_eq!(ends, bpf::ALLOW, "{entry:?}"),
            }
        }
        Ok(())
    }

    fn check_managed(&self, args: [u64; 6]) {
        let mapping = Mapping {
            length: args[1],
            flags: args[3],
            offset: args[5],
            page_bytes: 4096,
        };
        match managed::map(mapping, self.policy.managed, |_, _| false) {
            Verdict::Execute(Effect::Managed { base, length }) => {
                assert_eq!(self.policy.managed, Managed::Charge);
                assert!(
                    base == mapping.offset && length >= mapping.length,
                    "{mapping:?}"
                );
                assert!(base.checked_add(length).is_some(), "{mapping:?}");
            }
            Verdict::Execute(effect) => assert_eq!(effect, Effect::None),
            Verdict::Refuse(refusal) => assert_eq!(refusal, Refusal::Errno(EINVAL)),
        }
    }
}

struct Filter {
    spec: FilterSpec,
    rules: Vec<IoctlRule>,
    program: Vec<bpf::Instruction>,
}

/// The filters of every release, made once.
fn filters() -> &'static [Filter] {
    static FILTERS: OnceLock<Vec<Filter>> = OnceLock::new();
    FILTERS.get_or_init(|| {
        Release::ALL
            .into_iter()
            .flat_map(|release| {
                [Coverage::Production, Coverage::Simulated].map(|coverage| FilterSpec {
                    release,
                    coverage,
                    arch: Arch::X86_64,
                })
            })
            .map(|spec| Filter {
                spec,
                rules: filter::ioctl_rules(&spec),
                program: filter::program(&spec),
            })
            .collect()
    })
}
