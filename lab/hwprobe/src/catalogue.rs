//! Which probe answers which open question, and where it runs.
//!
//! Questions are numbered as the project's facts number them: `abi-N` (section 12 of the driver ABI's), `sim-13` (the simulated
//! driver's list), `T1`…`T14` (the compute scheduler's).

use std::process::ExitCode;

/// Where a probe runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a process on the card itself; when simulated, in one slice of the whole simulated card.
    Card,
    /// It drives `cgpu run` itself.
    Host,
}

/// One probe.
#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) name: &'static str,
    pub(crate) place: Place,
    /// Seconds that it may take.
    pub(crate) limit_s: u64,
    pub(crate) questions: &'static [&'static str],
    pub(crate) what: &'static str,
}

/// In the order in which they run: what settles most comes first, what takes long last.
pub(crate) const PROBES: &[Probe] = &[
    Probe {
        name: "host",
        place: Place::Host,
        limit_s: 20,
        questions: &[],
        what: "kernel, driver, nodes, cgroups, what `cgpu doctor` says",
    },
    Probe {
        name: "first-contact",
        place: Place::Host,
        limit_s: 150,
        questions: &["abi-1"],
        what: "every call that real programs make, with its answer, and the first that a slice answers otherwise, in both modes",
    },
    Probe {
        name: "memory",
        place: Place::Card,
        limit_s: 30,
        questions: &["abi-3", "abi-5", "sim-13"],
        what: "rounding, placement and status of allocations, FB_GET_INFO of every index, per-process sums",
    },
    Probe {
        name: "errors",
        place: Place::Card,
        limit_s: 20,
        questions: &["sim-13"],
        what: "the status of malformed calls",
    },
    Probe {
        name: "implicit",
        place: Place::Card,
        limit_s: 30,
        questions: &["abi-6", "sim-13"],
        what: "memory that address spaces, channel groups and channels take",
    },
    Probe {
        name: "files",
        place: Place::Card,
        limit_s: 20,
        questions: &["T1"],
        what: "whether another process may use a duplicate of the client's file, and not a fresh one",
    },
    Probe {
        name: "knobs",
        place: Place::Card,
        limit_s: 90,
        questions: &["abi-7", "abi-10", "abi-11", "T2", "T6", "T9"],
        what: "status and latency of the scheduling controls: the card idle, beside a storm of allocations, beside kernels",
    },
    Probe {
        name: "userd",
        place: Place::Card,
        limit_s: 20,
        questions: &["T11"],
        what: "whether a channel's own page tells how far the card has come, and what a look costs",
    },
    Probe {
        name: "foreign-channels",
        place: Place::Card,
        limit_s: 20,
        questions: &["abi-8", "T8"],
        what: "whether FIFO_DISABLE_CHANNELS takes the channels of an unrelated client",
    },
    Probe {
        name: "slice",
        place: Place::Host,
        limit_s: 60,
        questions: &["abi-2"],
        what: "totals, free memory and the quota inside `cgpu run`, in both modes",
    },
    Probe {
        name: "sums",
        place: Place::Host,
        limit_s: 120,
        questions: &["abi-5"],
        what: "what the driver counts for 96 MiB in a slice, beside what the ledger has, in both modes",
    },
    Probe {
        name: "nvidia-smi",
        place: Place::Host,
        limit_s: 40,
        questions: &["abi-2"],
        what: "the vendor's tool inside a slice (real cards only)",
    },
    Probe {
        name: "latency",
        place: Place::Host,
        limit_s: 90,
        questions: &["abi-14"],
        what: "calls and allocations, bare and in a slice, turn by turn",
    },
    Probe {
        name: "shares",
        place: Place::Host,
        limit_s: 150,
        questions: &["abi-7", "abi-9", "abi-13", "T4", "T5", "T7", "T13"],
        what: "what slices get that were promised weights, percentages and priority, and how late requests are (PyTorch's load on real cards)",
    },
    Probe {
        name: "crash",
        place: Place::Host,
        limit_s: 90,
        questions: &["abi-17", "T12"],
        what: "brokers and applications killed while the gate is mostly closed (PyTorch's load on real cards)",
    },
    Probe {
        name: "torch",
        place: Place::Host,
        limit_s: 150,
        questions: &[
            "abi-1", "abi-3", "abi-4", "abi-14", "abi-15", "abi-16", "T6", "T13",
        ],
        what: "PyTorch in slices: total, out of memory at the quota, pinned and managed memory, two tenants, start-up",
    },
];

/// Open questions that no probe answers yet, and why.
pub(crate) const UNANSWERED: &[(&str, &str)] = &[
    (
        "abi-12",
        "no broker rewrites the compute policy that a client reads: shares are kept by slices and gates",
    ),
    (
        "T3",
        "needs a kernel that writes the card's clock every 10 us: with CUDA, run one in a slice of `cgpu run --compute 10` and take the gaps",
    ),
    (
        "T10",
        "needs a client of the scheduler's event buffer, which is not written; the shares probe has what `nvidia-smi pmon` says meanwhile",
    ),
    ("T14", "no broker gives a container another doorbell page"),
];

pub(crate) fn find(name: &str) -> Option<&'static Probe> {
    PROBES.iter().find(|probe| probe.name == name)
}

#[expect(clippy::print_stdout, reason = "the command's output")]
pub(crate) fn print() -> anyhow::Result<ExitCode> {
    for probe in PROBES {
        println!(
            "{:<18} {:>4} s  {}  [{}]",
            probe.name,
            probe.limit_s,
            probe.what,
            probe.questions.join(" ")
        );
    }
    for (question, why) in UNANSWERED {
        println!("{question:<18}    –    {why}");
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_open_question_is_answered_or_reported_not_to_be() {
        let mut known: Vec<String> = PROBES
            .iter()
            .flat_map(|probe| {
                probe
                    .questions
                    .iter()
                    .map(|question| (*question).to_owned())
            })
            .chain(
                UNANSWERED
                    .iter()
                    .map(|(question, _)| (*question).to_owned()),
            )
            .collect();
        known.sort();
        known.dedup();
        let open = (1..=17)
            .map(|number| format!("abi-{number}"))
            .chain((1..=14).map(|number| format!("T{number}")))
            .chain(["sim-13".to_owned()]);
        for question in open {
            assert!(known.contains(&question), "{question}");
        }
    }

    #[test]
    fn all_probes_fit_into_the_budget_of_one_run() {
        let names: std::collections::HashSet<_> = PROBES.iter().map(|probe| probe.name).collect();
        assert_eq!(names.len(), PROBES.len());
        // Limits are for hangs; together they may exceed the budget of 480 s by a little, never one alone.
        assert!(PROBES.iter().all(|probe| probe.limit_s <= 150));
    }
}
