//! Plays a scene: the node in virtual time, programs as tenants, and for each governed one a broker's governor.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use runlist::world::{Client, ClientId, Fault, Gang, Kernel, Request, RpcCosts, Setup, World};
use runlist::{Mode, world};

use crate::agents::Agents;
use crate::measure::Curve;
use crate::report::Findings;
use crate::scenario::{Change, Load, Record, Scenario, Steering, Tenant, Throttle, Trick};

/// From the start of a container's broker to its program's first channel group.
const START_NS: u64 = 5_000_000;

/// Plays scenes and counts what that took.
#[derive(Debug, Default)]
pub struct Harness {
    virtual_ns: u64,
    seeds: BTreeSet<u64>,
}

impl Harness {
    /// Plays a scene from beginning to end.
    ///
    /// # Errors
    /// The scene contradicts itself, or the card's own account does.
    pub fn play(&mut self, scenario: &Scenario, steering: Steering) -> Result<Record> {
        self.virtual_ns += scenario.until_ns;
        self.seeds.insert(scenario.seed);
        Play::new(scenario, steering)?.run()
    }

    /// With what was spent on them.
    ///
    /// # Errors
    /// A number is none.
    pub fn into_findings(self, mut findings: Findings) -> Result<Findings> {
        findings.virtual_s = self.virtual_ns as f64 / crate::scenario::S as f64;
        findings.seeds = self.seeds.len() as u64;
        if let Some(row) = findings.rows.iter().find(|row| !row.measured.is_finite()) {
            bail!("{}: not a number", row.what);
        }
        Ok(findings)
    }
}

/// What happens by the scene's own clock, exactly on time.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Cue {
    /// A container's broker is there.
    Join(usize),
    /// Its program makes its channel groups.
    Start(usize),
    /// It frees them.
    Free(usize),
    /// A container's decoys are others.
    Decoys(usize),
    Leave(usize),
    Change(Change),
    /// A period of a throttle begins.
    Period {
        tenant: usize,
        /// Part of the last one that the program was let run, parts of a million.
        duty_ppm: u64,
    },
    Freeze(usize),
}

struct Play<'s> {
    scenario: &'s Scenario,
    steering: Steering,
    world: World,
    /// Per tenant: one after the other where it frees its groups and makes others.
    clients: Vec<Vec<ClientId>>,
    agents: Agents,
    /// By time and then by the order in which they were named.
    cues: BTreeMap<(u64, usize), Cue>,
    named: usize,
}

impl<'s> Play<'s> {
    fn new(scenario: &'s Scenario, steering: Steering) -> Result<Self> {
        for tenant in &scenario.tenants {
            if tenant.cards.is_empty() || tenant.cards.iter().any(|card| *card >= scenario.cards) {
                bail!("cards {:?} of {}", tenant.cards, scenario.cards);
            }
            if tenant.cards.len() > 1 && !matches!(tenant.load, Load::Gang { .. }) {
                bail!("{:?} on several cards", tenant.load);
            }
        }
        let setup = Setup {
            cards: vec![scenario.costs; scenario.cards],
            rpc: RpcCosts {
                stall_ppm: scenario.delays.stalls_ppm,
                stall_ns: scenario.delays.stall_ns,
                ..RpcCosts::default()
            },
            ..Setup::new(scenario.seed, scenario.cards)
        };
        let mut cues: Vec<(u64, Cue)> = Vec::new();
        for (index, tenant) in scenario.tenants.iter().enumerate() {
            cues.push((tenant.joins_ns, Cue::Join(index)));
            if let Some(leaves_ns) = tenant.leaves_ns {
                cues.push((leaves_ns, Cue::Leave(index)));
            }
        }
        cues.extend(
            scenario
                .changes
                .iter()
                .map(|(at_ns, change)| (*at_ns, Cue::Change(change.clone()))),
        );
        let named = cues.len();
        let cues = cues
            .into_iter()
            .enumerate()
            .map(|(place, (at_ns, cue))| ((at_ns, place), cue))
            .collect();
        Ok(Self {
            scenario,
            steering,
            world: World::new(setup),
            clients: vec![Vec::new(); scenario.tenants.len()],
            agents: Agents::new(scenario.cards, &scenario.rules, scenario.tenants.len()),
            cues,
            named,
        })
    }

    fn run(mut self) -> Result<Record> {
        if let Some((control, gap_ns)) = &self.scenario.storm {
            for card in 0..self.scenario.cards {
                self.world.add_client(Client::new(
                    card,
                    world::Load::Calls {
                        control: control.clone(),
                        gap_ns: *gap_ns,
                    },
                ));
            }
        }
        loop {
            let cue_ns = self.cues.first_key_value().map(|((at_ns, _), _)| *at_ns);
            let at_ns = cue_ns.map_or(self.scenario.until_ns, |at_ns| {
                at_ns.min(self.scenario.until_ns)
            });
            match self.world.run(at_ns) {
                Some(notice) => {
                    self.agents.hear(&mut self.world, notice)?;
                    self.follow();
                }
                None if at_ns >= self.scenario.until_ns => break,
                None => {
                    if let Some((_, cue)) = self.cues.pop_first() {
                        self.take(cue)?;
                        self.follow();
                    }
                }
            }
        }
        self.record()
    }

    /// The program that a tenant has now.
    fn client(&self, tenant: usize) -> Option<ClientId> {
        self.clients[tenant].last().copied()
    }

    fn follow(&mut self) {
        for (at_ns, change) in self.agents.follows() {
            self.name(at_ns, Cue::Change(change));
        }
    }

    fn name(&mut self, at_ns: u64, cue: Cue) {
        self.cues.insert((at_ns, self.named), cue);
        self.named += 1;
    }

    /// One period of a throttle: it runs for a while and is then frozen.
    fn period(&mut self, tenant: usize, last_ppm: u64) {
        let now_ns = self.world.now_ns();
        let (Some(throttle), Some(client)) =
            (self.scenario.tenants[tenant].throttle, self.client(tenant))
        else {
            return;
        };
        let (duty_ppm, period_ns) = match throttle {
            Throttle::Freezer { percent, period_ns } => (u64::from(percent) * 10_000, period_ns),
            Throttle::Utilisation { percent, period_ns } => {
                let card = self.scenario.tenants[tenant].cards[0];
                let used_ns: u64 = self
                    .world
                    .gpumon(card)
                    .last()
                    .map_or(0, |bucket| bucket.used_ns.values().sum());
                let seen_ppm = used_ns * 1_000_000 / world::GPUMON_BUCKET_NS;
                let needed_ppm = u64::from(percent) * 10_000;
                // A third of the way to where the sample would have been right.
                let next = last_ppm + needed_ppm / 3;
                (
                    next.saturating_sub(seen_ppm / 3).clamp(10_000, 1_000_000),
                    period_ns,
                )
            }
        };
        self.world.inject(now_ns, Fault::Thaw(client));
        self.name(
            now_ns + period_ns * duty_ppm / 1_000_000,
            Cue::Freeze(tenant),
        );
        self.name(now_ns + period_ns, Cue::Period { tenant, duty_ppm });
    }

    fn take(&mut self, cue: Cue) -> Result<()> {
        let now_ns = self.world.now_ns();
        match cue {
            Cue::Join(index) => {
                let tenant = &self.scenario.tenants[index];
                if self.steering == Steering::Governed {
                    self.agents.join(&mut self.world, index, tenant)?;
                }
                self.name(now_ns + START_NS, Cue::Start(index));
            }
            Cue::Start(index) => {
                let tenant = &self.scenario.tenants[index];
                let client = self.start(tenant);
                self.clients[index].push(client);
                match tenant.trick {
                    Some(Trick::Churn { on_ns, .. }) => {
                        self.name(now_ns + on_ns, Cue::Free(index));
                    }
                    Some(Trick::Decoys { .. }) => self.name(now_ns, Cue::Decoys(index)),
                    None => {}
                }
                if self.steering == Steering::Native && tenant.throttle.is_some() {
                    self.name(
                        now_ns,
                        Cue::Period {
                            tenant: index,
                            duty_ppm: 300_000,
                        },
                    );
                }
                if self.steering == Steering::Governed {
                    self.agents.found(&mut self.world, index, client)?;
                }
            }
            Cue::Free(index) => {
                if let Some(client) = self.client(index) {
                    self.world.stop(client);
                }
                if self.steering == Steering::Governed {
                    self.agents.freed(&mut self.world, index)?;
                }
                if let Some(Trick::Churn { off_ns, .. }) = self.scenario.tenants[index].trick {
                    self.name(now_ns + off_ns, Cue::Start(index));
                }
            }
            Cue::Decoys(index) => {
                if let Some(Trick::Decoys {
                    count,
                    refusal,
                    renewed_ns,
                }) = self.scenario.tenants[index].trick
                    && self.steering == Steering::Governed
                {
                    self.agents.decoys(&mut self.world, index, count, refusal)?;
                    self.name(now_ns + renewed_ns, Cue::Decoys(index));
                }
            }
            Cue::Leave(index) => {
                if let Some(client) = self.client(index) {
                    self.world.stop(client);
                }
                self.agents.leave(&mut self.world, index)?;
            }
            Cue::Period { tenant, duty_ppm } => self.period(tenant, duty_ppm),
            Cue::Freeze(tenant) => {
                if let Some(client) = self.client(tenant) {
                    self.world.inject(now_ns, Fault::Freeze(client));
                }
            }
            Cue::Change(change) => {
                if self.steering == Steering::Governed {
                    self.agents.change(&mut self.world, &change)?;
                }
            }
        }
        Ok(())
    }

    fn start(&mut self, tenant: &Tenant) -> ClientId {
        let governed = self.steering == Steering::Governed;
        // The broker rewrites a wish for another preemption mode and keeps a wish for another slice to itself.
        let mode = if governed && !tenant.stubborn {
            Mode::Cilp
        } else {
            tenant.mode
        };
        let slice_ns = tenant.slice_ns.filter(|_| !governed);
        let card = tenant.cards[0];
        let load = match tenant.load {
            Load::Idle => world::Load::Idle,
            Load::Closed { depth, kernel_ns } => world::Load::Closed {
                depth,
                kernel: Kernel::of(kernel_ns),
                host_gap_ns: 0,
            },
            Load::Bursts {
                depth,
                kernel_ns,
                on_ns,
                off_ns,
            } => world::Load::Bursts {
                on_ns,
                off_ns,
                first_ns: 0,
                depth,
                kernel: Kernel::of(kernel_ns),
            },
            Load::Poisson {
                per_s,
                kernels,
                kernel_ns,
            } => world::Load::Poisson {
                interval_ns: crate::scenario::S / u64::from(per_s),
                request: Request {
                    kernels,
                    kernel: Kernel::of(kernel_ns),
                },
            },
            Load::Gang {
                step_ns,
                all_reduce_ns,
                rest_ns,
            } => {
                return self.world.add_gang(Gang {
                    cards: tenant.cards.clone(),
                    compute: Kernel::of(step_ns),
                    reduce_ns: all_reduce_ns,
                    barrier_ns: rest_ns,
                    mode,
                    slice_ns,
                });
            }
        };
        self.world.add_client(Client {
            card,
            groups: tenant.groups,
            mode,
            slice_ns,
            load,
        })
    }

    fn record(mut self) -> Result<Record> {
        let scenario = self.scenario;
        let mut record = Record {
            calls: self.agents.calls(),
            windows_ns: self.agents.windows_ns(),
            ..Record::default()
        };
        for card in 0..scenario.cards {
            let time = self.world.runlist(card).time();
            if time.total_ns() != scenario.until_ns {
                bail!("card {card}: {time:?} is not {} ns", scenario.until_ns);
            }
            record.time.push(time);
        }
        for (tenant, clients) in scenario.tenants.iter().zip(&self.clients) {
            if clients.is_empty() {
                record.used.push(Vec::new());
                record.latencies_ns.push(Vec::new());
                record.steps.push(0);
                record.gap_max_ns.push(0);
                continue;
            }
            let curves = tenant.cards.iter().map(|&card| self.curve(card, clients));
            record.used.push(curves.collect());
            record.gap_max_ns.push(self.gap_max_ns(tenant, clients));
            let steps = clients.iter().map(|client| match tenant.load {
                Load::Gang { .. } => self.world.done(*client).requests,
                _ => 0,
            });
            record.steps.push(steps.sum());
            let latencies = clients
                .iter()
                .flat_map(|client| self.world.take_latencies(*client));
            record.latencies_ns.push(latencies.collect());
        }
        Ok(record)
    }

    /// What a tenant's clients have used of a card, by time.
    fn curve(&self, card: usize, clients: &[ClientId]) -> Curve {
        let step_ns = self.scenario.step_ns.max(1);
        let used_until = |until_ns| {
            let used = clients
                .iter()
                .map(|client| self.world.client_used_between(*client, card, 0, until_ns));
            used.sum()
        };
        Curve {
            step_ns,
            used_ns: (0..=self.scenario.until_ns / step_ns)
                .map(|sample| used_until(sample * step_ns))
                .collect(),
        }
    }

    /// The longest that a tenant was without any of its cards.
    fn gap_max_ns(&self, tenant: &Tenant, clients: &[ClientId]) -> u64 {
        let groups: Vec<_> = clients
            .iter()
            .flat_map(|client| self.world.groups(*client))
            .collect();
        let end_ns = tenant.leaves_ns.unwrap_or(self.scenario.until_ns);
        let gap_ns = |card: usize| {
            let stays = self.world.residency(card).stays().iter();
            let mut last_ns = tenant.joins_ns;
            let mut longest = 0;
            for stay in stays {
                if groups.iter().any(|lane| lane.group == stay.group) {
                    longest = longest.max(stay.start_ns.saturating_sub(last_ns));
                    last_ns = stay.end_ns;
                }
            }
            let running = self
                .world
                .runlist(card)
                .resident()
                .is_some_and(|(group, _)| groups.iter().any(|lane| lane.group == group));
            if running {
                longest
            } else {
                longest.max(end_ns.saturating_sub(last_ns))
            }
        };
        let gaps = tenant.cards.iter().map(|&card| gap_ns(card));
        gaps.max().unwrap_or(0)
    }
}
