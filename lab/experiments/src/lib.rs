//! Compute shares in virtual time: the real governor and plan on the simulated scheduler, measured against published targets.
//!
//! ```text
//! experiment ──Scene──▶ stage ──▶ runlist::World (cards, driver, programs, time)
//!      ▲                  └─────▶ agents: one compute::Governor per container, its records in memory
//!      └───────Record────┘
//! ```
//!
//! The same scene and seed give the same record to the bit; no clock is read. It must not know brokers' I/O, files or sockets.

#![forbid(unsafe_code)]

mod adversaries;
mod agents;
mod attacks;
mod bursts;
mod caps;
mod changes;
mod chaos;
mod equals;
mod gangs;
pub mod harness;
pub mod measure;
mod memory;
mod online;
pub mod plot;
pub mod report;
mod run;
pub mod scenario;
pub mod terms;
mod throttles;

pub use attacks::{ATTACKS, Attack};
pub use memory::{MemoryCard, MemoryTable};
pub use run::{Experiment, run};

impl Experiment {
    /// All of them, in the order of the report.
    #[must_use]
    pub fn all() -> &'static [Self] {
        const ALL: &[Experiment] = &[
            Experiment {
                name: "E1",
                run: equals::by_slices,
            },
            Experiment {
                name: "E2",
                run: caps::one_by_one,
            },
            Experiment {
                name: "E2b",
                run: caps::full_schedule,
            },
            Experiment {
                name: "E3",
                run: online::natively,
            },
            Experiment {
                name: "E4",
                run: gangs::experiment,
            },
            Experiment {
                name: "E5",
                run: bursts::experiment,
            },
            Experiment {
                name: "E6",
                run: throttles::experiment,
            },
            Experiment {
                name: "E7",
                run: online::by_priority,
            },
            Experiment {
                name: "E8",
                run: equals::on_the_schedule,
            },
            Experiment {
                name: "live",
                run: changes::experiment,
            },
            Experiment {
                name: "adversaries",
                run: adversaries::experiment,
            },
            Experiment {
                name: "attacks",
                run: attacks::experiment,
            },
            Experiment {
                name: "chaos",
                run: chaos::experiment,
            },
        ];
        ALL
    }
}
