//! What an experiment sets up: cards, tenants with terms and loads, what happens when, and what is recorded of it.

use plan::{CardRules, Terms};
use runlist::world::{Control, Fault};
use runlist::{Costs, Mode, Time};

use crate::measure::Curve;

/// A microsecond, in nanoseconds.
pub const US: u64 = 1_000;
/// A millisecond, in nanoseconds.
pub const MS: u64 = 1_000_000;
/// A second, in nanoseconds.
pub const S: u64 = 1_000_000_000;

/// Who decides whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steering {
    /// The card alone, as it is without cgpu: every tenant with a slice of its own choice.
    Native,
    /// Plan and governors, one per tenant.
    Governed,
}

/// What a tenant gives its cards to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Nothing: it is there and idle.
    Idle,
    /// Always `depth` kernels in the queue.
    Closed {
        /// How many.
        depth: u32,
        /// How long each of them is, alone on a card.
        kernel_ns: u64,
    },
    /// As [`Load::Closed`], for `on_ns` of every `on_ns + off_ns`.
    Bursts {
        /// How many.
        depth: u32,
        /// How long each of them is, alone on a card.
        kernel_ns: u64,
        /// Works.
        on_ns: u64,
        /// Rests.
        off_ns: u64,
    },
    /// Requests at random times, each of so many kernels in a row.
    Poisson {
        /// Mean.
        per_s: u32,
        /// Of each request.
        kernels: u32,
        /// Of each of them.
        kernel_ns: u64,
    },
    /// Steps of computing on all cards at once and then, together, of communicating: no card gets on without the others.
    Gang {
        /// Own work of each card in a step.
        step_ns: u64,
        /// Kernels that run at the same time on all cards or not at all; 0: a barrier alone.
        all_reduce_ns: u64,
        /// From the end of a step to the next one: nothing to do.
        rest_ns: u64,
    },
}

/// Ways to hold a program from outside the driver, by stopping its processor side: what it has queued runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Throttle {
    /// It runs for the first part of every period.
    Freezer {
        /// Which part.
        percent: u32,
        /// How long a period is.
        period_ns: u64,
    },
    /// It runs for a part of every period that follows the last utilisation sample.
    Utilisation {
        /// What the samples should show.
        percent: u32,
        /// How long a period is.
        period_ns: u64,
    },
}

/// What a container does with its own channel groups to weaken the gate that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trick {
    /// Its program makes all its groups and frees them, again and again.
    Churn {
        /// How long they are there.
        on_ns: u64,
        /// How long there are none.
        off_ns: u64,
    },
    /// Beside its own there are groups that never run, and that the driver does not stop.
    Decoys {
        /// How many.
        count: u32,
        /// What the driver answers to a call that has one of them in its list.
        refusal: Refusal,
        /// How often they are others.
        renewed_ns: u64,
    },
}

/// What a driver answers that does not stop a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It knows no such channel: it has ended while the broker still lists it.
    Gone,
    /// NV_ERR_INVALID_STATE, of many statuses one that says nothing of the channel's end.
    Odd,
}

/// One container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// Cards of the scene that it has, all for itself or shared.
    pub cards: Vec<usize>,
    /// What it was promised on each.
    pub terms: Terms,
    /// What it does.
    pub load: Load,
    /// How many channel groups it makes on each card; its load is spread over all of them.
    pub groups: u32,
    /// How many RM clients it has, 1 or more: its groups are of one after the other. A knob makes a call for each.
    pub clients: u32,
    /// When it comes.
    pub joins_ns: u64,
    /// When it goes, if it does.
    pub leaves_ns: Option<u64>,
    /// How its kernels can be stopped. Under [`Steering::Governed`] a broker has seen to [`Mode::Cilp`] unless `stubborn` is said.
    pub mode: Mode,
    /// Whether [`Tenant::mode`] holds under a broker too: what would be if preemption were not forced.
    pub stubborn: bool,
    /// What holds it under [`Steering::Native`], if anything does.
    pub throttle: Option<Throttle>,
    /// The slice that it takes for itself under [`Steering::Native`]; `None`: the driver's.
    pub slice_ns: Option<u64>,
    /// What it does to its own gate, if anything.
    pub trick: Option<Trick>,
}

impl Tenant {
    /// On card 0 from the start to the end, with one group.
    #[must_use]
    pub fn new(terms: Terms, load: Load) -> Self {
        Self {
            cards: vec![0],
            terms,
            load,
            groups: 1,
            clients: 1,
            joins_ns: 0,
            leaves_ns: None,
            mode: Mode::Cilp,
            stubborn: false,
            throttle: None,
            slice_ns: None,
            trick: None,
        }
    }

    /// As it is, on these cards.
    #[must_use]
    pub fn on(self, cards: &[usize]) -> Self {
        Self {
            cards: cards.to_vec(),
            ..self
        }
    }

    /// As it is, with a trick.
    #[must_use]
    pub fn with(self, trick: Trick) -> Self {
        Self {
            trick: Some(trick),
            ..self
        }
    }
}

/// How long calls to the driver take, and how late timers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delays {
    /// Part of the calls that stall, parts of a million.
    pub stalls_ppm: u32,
    /// Mean of a stall.
    pub stall_ns: u64,
}

/// What is done about a broker that has ended, so many nanoseconds after its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rescue {
    /// A peer or the frontend opens what its record says may be closed.
    Watchdog,
    /// The supervisor starts another.
    Restart,
}

/// Something that happens to a scene.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A tenant gets other terms.
    Terms {
        /// Whose.
        tenant: usize,
        /// From now on.
        terms: Terms,
    },
    /// The rules of all cards change.
    Rules(CardRules),
    /// A tenant's broker is killed; its container goes on. What the broker has asked of the driver is done before it ends.
    Kill {
        /// Whose.
        tenant: usize,
        /// What is done about it.
        then: Vec<(u64, Rescue)>,
    },
    /// Somebody sees to the container of a broker that has ended.
    Rescue {
        /// Whose.
        tenant: usize,
        /// How.
        rescue: Rescue,
    },
    /// Something goes wrong with card, driver or clock.
    Strike(Fault),
}

/// Everything that decides how a run goes: the same scene gives the same record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scenario {
    /// Of all chance in it.
    pub seed: u64,
    /// How many cards there are.
    pub cards: usize,
    /// What switching costs on them.
    pub costs: Costs,
    /// Their rules.
    pub rules: CardRules,
    /// Of driver and timers.
    pub delays: Delays,
    /// Who is there.
    pub tenants: Vec<Tenant>,
    /// A program on every card that makes this call again and again, with so much time between an answer and the next.
    pub storm: Option<(Control, u64)>,
    /// What happens, and when.
    pub changes: Vec<(u64, Change)>,
    /// When it ends.
    pub until_ns: u64,
    /// How often use is sampled.
    pub step_ns: u64,
}

impl Scenario {
    /// One card with the default rules and costs, for this long.
    #[must_use]
    pub fn new(seed: u64, until_ns: u64) -> Self {
        Self {
            seed,
            cards: 1,
            costs: Costs::default(),
            rules: CardRules::default(),
            delays: Delays {
                stalls_ppm: 0,
                stall_ns: 5 * MS,
            },
            tenants: Vec::new(),
            storm: None,
            changes: Vec::new(),
            until_ns,
            step_ns: 10 * MS,
        }
    }

    /// With one more tenant.
    #[must_use]
    pub fn with(mut self, tenant: Tenant) -> Self {
        self.tenants.push(tenant);
        self
    }
}

/// What one run left behind.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// Per tenant and each of its cards: engine time.
    pub used: Vec<Vec<Curve>>,
    /// Per tenant: how long each of its requests took from arrival to end, nanoseconds; of [`Load::Poisson`] alone.
    pub latencies_ns: Vec<Vec<u64>>,
    /// Per tenant: steps of [`Load::Gang`] that all cards have finished.
    pub steps: Vec<u64>,
    /// Per card: where its time has gone.
    pub time: Vec<Time>,
    /// When each governor's call to the driver was made, and how long it took, nanoseconds.
    pub calls: Vec<(u64, u64)>,
    /// Per tenant: the longest time between two stays on any of its cards, from its coming to its going; what a closed gate
    /// does to one that is always busy.
    pub gap_max_ns: Vec<u64>,
    /// Per tenant: the window of its first card at the end; 0 where it is not governed, or not gated.
    pub windows_ns: Vec<u64>,
}

impl Record {
    /// Share of a tenant on its first card, percent.
    #[must_use]
    pub fn share(&self, tenant: usize, from_ns: u64, until_ns: u64) -> f64 {
        self.used
            .get(tenant)
            .and_then(|cards| cards.first())
            .map_or(0.0, |curve| curve.share(from_ns, until_ns))
    }

    /// Calls of governors to the driver per second.
    #[must_use]
    pub fn calls_per_s(&self, from_ns: u64, until_ns: u64) -> f64 {
        let calls = self
            .calls
            .iter()
            .filter(|(at_ns, _)| (from_ns..until_ns).contains(at_ns));
        calls.count() as f64 / ((until_ns - from_ns) as f64 / S as f64)
    }

    /// Shares of all tenants on their first cards, percent.
    #[must_use]
    pub fn shares(&self, from_ns: u64, until_ns: u64) -> Vec<f64> {
        (0..self.used.len())
            .map(|tenant| self.share(tenant, from_ns, until_ns))
            .collect()
    }
}

/// Kernels of 5 ms as long as it is on, then none, and so on: milliseconds.
#[must_use]
pub fn bursts(on_ms: u64, off_ms: u64) -> Load {
    Load::Bursts {
        depth: 64,
        kernel_ns: 5 * MS,
        on_ns: on_ms * MS,
        off_ns: off_ms * MS,
    }
}
