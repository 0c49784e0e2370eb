//! Virtual time for governors: a driver whose calls take time and fail on demand, cards on which only the gates count, and a log of
//! when each channel could run.

use std::collections::{BTreeMap, BTreeSet};

use compute::{
    Action, Answer, Channel, Confirmed, Engine, Environment, Event, Fail, Found, GateStatus,
    Governor, Group, Knob, KnobError, Objects, Setup, Spent, Status, Table, Used, try_knobs,
};
use experiments::{MemoryCard, MemoryTable};
use plan::{CardRules, Policy, Priority, Terms};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const S: u64 = 1_000 * MS;

/// xorshift: the same seed gives the same run.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound.max(1)
    }
}

/// How a driver answers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    /// Status with which each kind of call is refused, by its name.
    pub(crate) refused: BTreeMap<&'static str, u32>,
    /// How long each call takes, instead of 120 to 200 us.
    pub(crate) takes_ns: Option<u64>,
    /// How many in a thousand calls are lost, half of them after they had their effect.
    pub(crate) lost_permille: u64,
    /// How many in a thousand are slow: up to 5 ms more.
    pub(crate) stalls_permille: u64,
    /// How much longer than its call a close takes to have its effect.
    pub(crate) close_lag_ns: u64,
}

pub(crate) fn name(knob: &Knob) -> &'static str {
    match knob {
        Knob::Open { .. } => "open",
        Knob::Close { .. } => "close",
        Knob::SetTimeslice { .. } => "set",
        Knob::GetTimeslice { .. } => "get",
        Knob::Schedule { .. } => "schedule",
        Knob::Interleave { .. } => "interleave",
        Knob::Preempt { .. } => "preempt",
    }
}

pub(crate) fn terms(
    policy: Policy,
    percent: Option<u32>,
    weight: u32,
    priority: Priority,
) -> Terms {
    Terms {
        policy,
        percent,
        weight,
        priority,
    }
}

pub(crate) fn fixed(percent: u32) -> Terms {
    terms(Policy::Fixed, Some(percent), 1, Priority::Normal)
}

/// What of a channel the card knows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Line {
    disabled: bool,
    off_runlist: bool,
    /// When it could run: from, to.
    pub(crate) open: Vec<(u64, u64)>,
    since: Option<u64>,
}

impl Line {
    fn turn(&mut self, at_ns: u64) {
        let runs = !self.disabled && !self.off_runlist;
        match (runs, self.since) {
            (true, None) => self.since = Some(at_ns),
            (false, Some(since)) => {
                self.open.push((since, at_ns.max(since)));
                self.since = None;
            }
            _ => {}
        }
    }

    pub(crate) fn runs(&self) -> bool {
        self.since.is_some()
    }

    pub(crate) fn spans(&self, until_ns: u64) -> Vec<(u64, u64)> {
        let mut spans = self.open.clone();
        spans.extend(self.since.map(|since| (since, until_ns)));
        spans
    }
}

/// One container, with or without a broker.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub(crate) key: String,
    pub(crate) terms: Terms,
    pub(crate) join_ns: u64,
    pub(crate) objects: Vec<Objects>,
    pub(crate) governor: Option<Governor>,
    tables: Vec<MemoryTable>,
    /// What it waits for.
    wake_ns: u64,
    call: Option<(u64, Knob)>,
    /// When each of the calls that the knob makes ends, by the RM client whose channels it is about.
    ends: Vec<(u32, u64)>,
    spent: Option<Spent>,
    /// The driver's half of the call has been done.
    news: Vec<Event>,
    pub(crate) busy: Option<bool>,
    pub(crate) metered: bool,
    pub(crate) slices: BTreeMap<(usize, u32), u64>,
    pub(crate) levels: BTreeMap<(usize, u32), u32>,
    pub(crate) calls: Vec<(u64, Knob)>,
    pub(crate) done: bool,
    pub(crate) fail: Fail,
    /// What it does to its own broker.
    pub(crate) tricks: Tricks,
}

/// What a container can do to the calls of its own gate.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tricks {
    /// Its own objects refuse, by the names of the calls: others' do not.
    pub(crate) refused: BTreeMap<&'static str, u32>,
    /// These of its groups and channels alone; all of them where none is named.
    pub(crate) odd: BTreeSet<u32>,
    /// How long each of its knobs waits for what it has under way itself, beside the driver's own time.
    pub(crate) waits_ns: u64,
    /// Whether its broker can make a group of its own to ask.
    pub(crate) own_group: OwnGroup,
    /// Calls of its own have ended that may have set running what was closed.
    pub(crate) disturbed: bool,
}

/// Whether a broker can ask the driver on a group of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum OwnGroup {
    /// None can be made.
    #[default]
    Impossible,
    /// Not now.
    UsedUp,
    /// It answers as the driver does.
    Requested,
}

#[derive(Debug)]
pub(crate) struct Fixture {
    pub(crate) now_ns: u64,
    pub(crate) random: Random,
    pub(crate) faults: Faults,
    pub(crate) rules: Vec<CardRules>,
    pub(crate) cards: Vec<MemoryCard>,
    pub(crate) tenants: Vec<Tenant>,
    pub(crate) lines: BTreeMap<(String, usize, Channel), Line>,
    /// Handles that the driver does not know though they are listed.
    pub(crate) gone: BTreeSet<u32>,
    /// What admission granted, where a test says so.
    pub(crate) admitted: BTreeMap<String, Terms>,
    /// A call of some container holds the driver's locks until then: all others wait.
    pub(crate) locked_until_ns: u64,
    /// How often a driver was asked on a broker's own group.
    pub(crate) questions: u32,
    handles: u32,
}

struct World<'s> {
    now_ns: u64,
    key: &'s str,
    terms: Terms,
    rules: &'s [CardRules],
    objects: &'s [Objects],
    tables: &'s mut [MemoryTable],
    lines: &'s BTreeMap<(String, usize, Channel), Line>,
    busy: Option<bool>,
    metered: bool,
    admitted: &'s BTreeMap<String, Terms>,
    faults: &'s Faults,
    tricks: &'s mut Tricks,
    questions: &'s mut u32,
}

impl Environment for World<'_> {
    fn now_ns(&self) -> u64 {
        self.now_ns
    }
    fn generation(&self, card: usize) -> u64 {
        self.objects[card].generation
    }
    fn objects(&self, card: usize) -> Objects {
        self.objects[card].clone()
    }
    fn terms(&self, _card: usize) -> Terms {
        self.terms
    }
    fn rules(&self, card: usize) -> CardRules {
        self.rules[card].clone()
    }
    fn table(&mut self, card: usize) -> &mut dyn Table {
        &mut self.tables[card]
    }
    fn used(&self, card: usize) -> Option<Used> {
        // The work never ends, and nobody else is there: what could run has run.
        self.metered.then(|| Used {
            used_ns: self
                .lines
                .iter()
                .filter(|((key, on, _), _)| key == self.key && *on == card)
                .flat_map(|(_, line)| line.spans(self.now_ns))
                .map(|(from, to)| to.min(self.now_ns).saturating_sub(from))
                .sum(),
            at_ns: self.now_ns,
        })
    }
    fn admitted(&self, _card: usize, key: &str) -> Option<Terms> {
        self.admitted.get(key).copied()
    }
    fn busy(&self, _card: usize) -> Option<bool> {
        self.busy
    }
    fn disturbed(&mut self, _card: usize) -> bool {
        std::mem::take(&mut self.tricks.disturbed)
    }
    fn confirm(&mut self, _card: usize) -> Confirmed {
        *self.questions += 1;
        match self.tricks.own_group {
            OwnGroup::Impossible => Confirmed::Impossible,
            OwnGroup::UsedUp => Confirmed::Failed,
            OwnGroup::Requested => Confirmed::Found(found(self.faults)),
        }
    }
}

/// What the driver lets be held of a group that nobody else has.
fn found(faults: &Faults) -> Found {
    let channel = Channel {
        client: 9,
        handle: 9,
    };
    let group = Group {
        client: 9,
        handle: 8,
        engine: Engine::Graphics,
        channels: vec![channel],
    };
    let mut pull = |knob: &Knob| match faults.refused.get(name(knob)) {
        Some(status) => Err(KnobError::Status(*status)),
        None => Ok(None),
    };
    try_knobs(&group, &mut pull).expect("a driver that answers")
}

impl Fixture {
    pub(crate) fn new(seed: u64, cards: usize) -> Self {
        Self {
            now_ns: 10 * S,
            random: Random::new(seed),
            faults: Faults::default(),
            rules: vec![CardRules::default(); cards],
            cards: vec![MemoryCard::default(); cards]
                .into_iter()
                .map(|_| MemoryCard::default())
                .collect(),
            tenants: Vec::new(),
            lines: BTreeMap::new(),
            gone: BTreeSet::new(),
            admitted: BTreeMap::new(),
            locked_until_ns: 0,
            questions: 0,
            handles: 100,
        }
    }

    /// A container that joins now, with a group of one channel on each of these cards.
    pub(crate) fn join(&mut self, key: &str, terms: Terms, groups: u32) -> usize {
        self.join_on(key, terms, groups, self.cards.len())
    }

    /// One that has the first so many cards.
    pub(crate) fn join_on(&mut self, key: &str, terms: Terms, groups: u32, cards: usize) -> usize {
        self.tenants.push(Tenant {
            key: format!("ns/{key}"),
            terms,
            join_ns: self.now_ns,
            objects: vec![Objects::default(); cards],
            governor: None,
            tables: Vec::new(),
            wake_ns: u64::MAX,
            call: None,
            ends: Vec::new(),
            spent: None,
            news: Vec::new(),
            busy: None,
            metered: false,
            slices: BTreeMap::new(),
            levels: BTreeMap::new(),
            calls: Vec::new(),
            done: false,
            fail: Fail::Open,
            tricks: Tricks::default(),
        });
        let at = self.tenants.len() - 1;
        self.start(at);
        for card in 0..cards {
            for _ in 0..groups {
                self.add_group(at, card, 1);
            }
        }
        at
    }

    /// Starts a broker.
    pub(crate) fn start(&mut self, at: usize) {
        let tenant = &mut self.tenants[at];
        tenant.tables = self
            .cards
            .iter()
            .take(tenant.objects.len())
            .map(|card| card.join(&tenant.key).expect("a free share record"))
            .collect();
        tenant.governor = Some(Governor::new(Setup {
            key: tenant.key.clone(),
            cards: tenant.objects.len(),
            join_ns: tenant.join_ns,
            fail: tenant.fail,
            process: None,
        }));
        tenant.done = false;
        self.tell(at, Event::Started);
    }

    /// kill -9: a call that is under way may still have its effect.
    pub(crate) fn kill(&mut self, at: usize) {
        let had = self.tenants[at].call.take();
        if let Some((_, knob)) = had
            && self.random.below(2) == 0
        {
            self.effect(at, &knob);
        }
        let tenant = &mut self.tenants[at];
        tenant.governor = None;
        tenant.tables.clear();
        tenant.news.clear();
        tenant.wake_ns = u64::MAX;
    }

    pub(crate) fn tell(&mut self, at: usize, event: Event) {
        let now_ns = self.now_ns;
        let tenant = &mut self.tenants[at];
        tenant.news.push(event);
        if tenant.call.is_none() {
            tenant.wake_ns = now_ns;
        }
    }

    pub(crate) fn add_group(&mut self, at: usize, card: usize, channels: u32) -> u32 {
        self.add_group_of(at, card, channels, 1)
    }

    /// Of this RM client: each process that has a context has one.
    pub(crate) fn add_group_of(
        &mut self,
        at: usize,
        card: usize,
        channels: u32,
        client: u32,
    ) -> u32 {
        self.handles += 1;
        let group = self.handles;
        let channels: Vec<Channel> = (0..channels)
            .map(|_| {
                self.handles += 1;
                Channel {
                    client,
                    handle: self.handles,
                }
            })
            .collect();
        let now_ns = self.now_ns;
        let tenant = &mut self.tenants[at];
        for channel in &channels {
            let line = self
                .lines
                .entry((tenant.key.clone(), card, *channel))
                .or_default();
            line.turn(now_ns);
        }
        tenant.objects[card].generation += 1;
        tenant.objects[card].groups.push(Group {
            client,
            handle: group,
            engine: Engine::Graphics,
            channels,
        });
        self.tell(at, Event::ObjectsChanged);
        group
    }

    /// A channel that was made without a group.
    pub(crate) fn add_alone(&mut self, at: usize, card: usize) -> u32 {
        self.add_group(at, card, 1);
        let groups = &mut self.tenants[at].objects[card].groups;
        let group = groups.last_mut().expect("the new one");
        group.handle = group.channels[0].handle;
        group.handle
    }

    /// The container itself sets channels running, whatever the gate is.
    pub(crate) fn enable(&mut self, at: usize, card: usize, channels: &[Channel]) {
        let (now_ns, key) = (self.now_ns, self.tenants[at].key.clone());
        for channel in channels {
            if let Some(line) = self.lines.get_mut(&(key.clone(), card, *channel)) {
                line.disabled = false;
                line.turn(now_ns);
            }
        }
    }

    /// The driver has a channel no more; the broker lists it still.
    pub(crate) fn end(&mut self, at: usize, card: usize, channel: Channel) {
        let (now_ns, key) = (self.now_ns, self.tenants[at].key.clone());
        self.gone.insert(channel.handle);
        if let Some(line) = self.lines.get_mut(&(key, card, channel)) {
            line.disabled = true;
            line.turn(now_ns);
        }
    }

    pub(crate) fn remove_groups(&mut self, at: usize, card: usize) {
        self.remove_groups_from(at, card, 0);
    }

    /// All but the first so many.
    pub(crate) fn remove_groups_from(&mut self, at: usize, card: usize, kept: usize) {
        let now_ns = self.now_ns;
        let tenant = &mut self.tenants[at];
        for group in tenant.objects[card].groups.split_off(kept) {
            for channel in group.channels {
                let key = (tenant.key.clone(), card, channel);
                if let Some(line) = self.lines.get_mut(&key) {
                    line.disabled = true;
                    line.turn(now_ns);
                }
            }
        }
        tenant.objects[card].generation += 1;
        self.tell(at, Event::ObjectsChanged);
    }

    pub(crate) fn set_terms(&mut self, at: usize, terms: Terms) {
        self.tenants[at].terms = terms;
        self.tell(at, Event::TermsChanged);
    }

    pub(crate) fn run_ms(&mut self, ms: u64) {
        self.run_until(self.now_ns + ms * MS);
    }

    /// Runs everybody until then.
    pub(crate) fn run_until(&mut self, until_ns: u64) {
        let mut steps = 0_u64;
        loop {
            let next = self
                .tenants
                .iter()
                .enumerate()
                .filter(|(_, tenant)| tenant.governor.is_some())
                .map(|(at, tenant)| match &tenant.call {
                    Some((ends_ns, _)) => (*ends_ns, at),
                    None => (tenant.wake_ns, at),
                })
                .min();
            let Some((at_ns, at)) = next.filter(|(at_ns, _)| *at_ns <= until_ns) else {
                break;
            };
            steps += 1;
            assert!(
                steps < 5_000_000,
                "governors are spinning at {}",
                self.now_ns
            );
            self.now_ns = self.now_ns.max(at_ns);
            self.step(at);
        }
        self.now_ns = self.now_ns.max(until_ns);
    }

    fn step(&mut self, at: usize) {
        let event = match self.tenants[at].call.take() {
            Some((_, knob)) => Event::Answered(Answer {
                result: self.answer(at, &knob),
                spent: self.tenants[at].spent,
                beside_own: false,
            }),
            None if self.tenants[at].news.is_empty() => Event::Woke,
            None => self.tenants[at].news.remove(0),
        };
        let tenant = &mut self.tenants[at];
        let mut world = World {
            now_ns: self.now_ns,
            key: &tenant.key,
            terms: tenant.terms,
            rules: &self.rules,
            objects: &tenant.objects,
            tables: &mut tenant.tables,
            lines: &self.lines,
            busy: tenant.busy,
            metered: tenant.metered,
            admitted: &self.admitted,
            faults: &self.faults,
            tricks: &mut tenant.tricks,
            questions: &mut self.questions,
        };
        let action = tenant
            .governor
            .as_mut()
            .expect("a broker")
            .next(event, &mut world);
        match action {
            Action::SleepUntil { at_ns } => {
                assert!(
                    at_ns > self.now_ns,
                    "a sleep until {at_ns} at {}",
                    self.now_ns
                );
                // Timers are late, and now and then early.
                let late_ns = self.random.below(80_000);
                tenant.wake_ns = if tenant.news.is_empty() {
                    at_ns
                        .saturating_add(late_ns)
                        .saturating_sub(self.random.below(2_000))
                } else {
                    self.now_ns
                };
            }
            Action::Pull(knob) => {
                self.pull(at, knob);
            }
            Action::Done => {
                tenant.done = true;
                tenant.governor = None;
                tenant.tables.clear();
                tenant.wake_ns = u64::MAX;
            }
        }
    }

    /// A knob makes one call after the other: one for each client whose channels it is about.
    fn pull(&mut self, at: usize, knob: Knob) {
        // The driver's part comes last: what the knob waited for itself is none of its doing.
        let mut at_ns = self.now_ns + self.tenants[at].tricks.waits_ns;
        let mut spent = Spent::default();
        let mut ends = Vec::new();
        for client in clients(&knob) {
            let locked_ns = self.locked_until_ns.saturating_sub(at_ns);
            let took_ns = locked_ns + self.takes_ns();
            at_ns += took_ns;
            spent.add(took_ns);
            ends.push((client, at_ns));
        }
        let tenant = &mut self.tenants[at];
        tenant.calls.push((self.now_ns, knob.clone()));
        tenant.ends = ends;
        tenant.spent = Some(spent);
        tenant.call = Some((at_ns, knob));
    }

    fn takes_ns(&mut self) -> u64 {
        if let Some(takes_ns) = self.faults.takes_ns {
            return takes_ns;
        }
        let mut takes_ns = 120_000 + self.random.below(80_000);
        if self.random.below(1_000) < self.faults.stalls_permille {
            takes_ns += self.random.below(5 * MS);
        }
        takes_ns
    }

    fn answer(&mut self, at: usize, knob: &Knob) -> Result<Option<u64>, KnobError> {
        if let Some(status) = self.faults.refused.get(name(knob)) {
            return Err(KnobError::Status(*status));
        }
        let tricks = &self.tenants[at].tricks;
        let odd = tricks.odd.is_empty() || named(knob).iter().any(|it| tricks.odd.contains(it));
        if let Some(status) = tricks.refused.get(name(knob)).copied().filter(|_| odd) {
            if let Some(rest) = of_other_clients(knob, &tricks.odd) {
                self.effect(at, &rest);
            }
            return Err(KnobError::Status(status));
        }
        if self.random.below(1_000) < self.faults.lost_permille {
            if self.random.below(2) == 0 {
                self.effect(at, knob);
            }
            return Err(KnobError::Lost("by the test".to_owned()));
        }
        let channels = match knob {
            Knob::Open { channels, .. } | Knob::Close { channels, .. } => channels.as_slice(),
            _ => &[],
        };
        assert!(
            channels.len() <= 64,
            "{} channels in a call",
            channels.len()
        );
        let known = |channel: &Channel| {
            let tenant = &self.tenants[at];
            !self.gone.contains(&channel.handle)
                && tenant
                    .objects
                    .iter()
                    .flat_map(|objects| &objects.groups)
                    .any(|group| group.channels.contains(channel))
        };
        if !channels.iter().all(known) {
            return Err(KnobError::Gone);
        }
        self.effect(at, knob);
        match knob {
            Knob::GetTimeslice { .. } => Ok(Some(1_024)),
            _ => Ok(None),
        }
    }

    fn effect(&mut self, at: usize, knob: &Knob) {
        let (now_ns, lag_ns) = (self.now_ns, self.faults.close_lag_ns);
        let tenant = &mut self.tenants[at];
        let ends = std::mem::take(&mut tenant.ends);
        let ended_ns = |channel: &Channel| {
            let mut ends = ends.iter();
            let of_client = ends.find(|(client, _)| *client == channel.client);
            of_client.map_or(now_ns, |(_, at_ns)| (*at_ns).min(now_ns))
        };
        let mut turn = |card: usize, channel: Channel, change: &dyn Fn(&mut Line), at_ns: u64| {
            if let Some(line) = self.lines.get_mut(&(tenant.key.clone(), card, channel)) {
                change(line);
                line.turn(at_ns);
            }
        };
        match knob {
            Knob::Open { card, channels } => channels.iter().for_each(|channel| {
                let at_ns = ended_ns(channel);
                turn(*card, *channel, &|line| line.disabled = false, at_ns);
            }),
            Knob::Close { card, channels, .. } => channels.iter().for_each(|channel| {
                turn(
                    *card,
                    *channel,
                    &|line| line.disabled = true,
                    ended_ns(channel) + lag_ns,
                );
            }),
            Knob::Schedule {
                card, group, on, ..
            } => {
                let channels: Vec<Channel> = tenant.objects[*card]
                    .groups
                    .iter()
                    .filter(|known| known.handle == *group)
                    .flat_map(|known| known.channels.clone())
                    .collect();
                for channel in channels {
                    turn(*card, channel, &|line| line.off_runlist = !on, now_ns);
                }
            }
            Knob::SetTimeslice {
                card,
                group,
                slice_us,
                ..
            } => {
                tenant.slices.insert((*card, *group), *slice_us);
            }
            Knob::Interleave {
                card, group, level, ..
            } => {
                tenant.levels.insert((*card, *group), *level);
            }
            Knob::GetTimeslice { .. } | Knob::Preempt { .. } => {}
        }
    }

    /// How much of this time any channel of the container could run, in ns.
    pub(crate) fn open_ns(&self, at: usize, card: usize, from_ns: u64, to_ns: u64) -> u64 {
        union(&self.spans(at, card), from_ns, to_ns)
    }

    /// As parts of a thousand.
    pub(crate) fn permille(&self, at: usize, card: usize, from_ns: u64, to_ns: u64) -> u64 {
        self.open_ns(at, card, from_ns, to_ns) * 1_000 / (to_ns - from_ns)
    }

    pub(crate) fn spans(&self, at: usize, card: usize) -> Vec<(u64, u64)> {
        let key = &self.tenants[at].key;
        let mut spans: Vec<(u64, u64)> = self
            .lines
            .iter()
            .filter(|((owner, on, _), _)| owner == key && *on == card)
            .flat_map(|(_, line)| line.spans(self.now_ns))
            .collect();
        spans.sort_unstable();
        spans
    }

    /// What a container gets of a card whose time is divided evenly among all that can run, in ns.
    pub(crate) fn got_ns(&self, at: usize, card: usize, from_ns: u64, to_ns: u64) -> u64 {
        let spans: Vec<Vec<(u64, u64)>> = (0..self.tenants.len())
            .map(|tenant| self.spans(tenant, card))
            .collect();
        let inside = |ns: &u64| (from_ns..=to_ns).contains(ns);
        let edges = spans.iter().flatten().flat_map(|(from, to)| [*from, *to]);
        let mut edges: Vec<u64> = edges.filter(inside).chain([from_ns, to_ns]).collect();
        edges.sort_unstable();
        edges.dedup();
        let runs = |tenant: usize, from: u64, to: u64| {
            let mut spans = spans[tenant].iter();
            spans.any(|(begin, end)| *begin <= from && to <= *end)
        };
        edges
            .windows(2)
            .filter(|edge| runs(at, edge[0], edge[1]))
            .map(|edge| {
                let count = (0..spans.len()).filter(|tenant| runs(*tenant, edge[0], edge[1]));
                (edge[1] - edge[0]) / u64::try_from(count.count()).expect("a few")
            })
            .sum()
    }

    /// The longest time in which two containers could run at once.
    pub(crate) fn longest_overlap_ns(
        &self,
        one: usize,
        other: usize,
        card: usize,
        from_ns: u64,
    ) -> u64 {
        let others = self.spans(other, card);
        self.spans(one, card)
            .iter()
            .flat_map(|(from, to)| {
                others.iter().map(move |(other_from, other_to)| {
                    (*to)
                        .min(*other_to)
                        .saturating_sub((*from).max(*other_from).max(from_ns))
                })
            })
            .max()
            .unwrap_or(0)
    }

    /// The longest time for which a channel that exists at the end could not run.
    pub(crate) fn longest_closed_ns(&self, at: usize, card: usize, from_ns: u64) -> u64 {
        let key = &self.tenants[at].key;
        let mut longest = 0;
        for channel in self.tenants[at].objects[card]
            .groups
            .iter()
            .flat_map(|group| &group.channels)
        {
            let line = &self.lines[&(key.clone(), card, *channel)];
            let mut last = from_ns;
            for (from, to) in line.spans(self.now_ns) {
                longest = longest.max(from.saturating_sub(last));
                last = last.max(to);
            }
            longest = longest.max(self.now_ns.saturating_sub(last));
        }
        longest
    }

    pub(crate) fn status(&self, at: usize, card: usize) -> Status {
        self.tenants[at]
            .governor
            .as_ref()
            .and_then(|governor| governor.status(card))
            .expect("a broker and a card")
    }

    pub(crate) fn gate(&self, at: usize, card: usize) -> GateStatus {
        let governor = self.tenants[at].governor.as_ref();
        governor.expect("a broker").gate(card)
    }

    /// Calls of the gate since then.
    pub(crate) fn gate_calls(&self, at: usize, from_ns: u64) -> usize {
        self.tenants[at]
            .calls
            .iter()
            .filter(|(at_ns, knob)| {
                *at_ns >= from_ns && matches!(name(knob), "open" | "close" | "schedule")
            })
            .count()
    }
}

/// The clients that a knob makes a call for, each.
fn clients(knob: &Knob) -> BTreeSet<u32> {
    match knob {
        Knob::Open { channels, .. } | Knob::Close { channels, .. } => {
            channels.iter().map(|channel| channel.client).collect()
        }
        Knob::SetTimeslice { client, .. }
        | Knob::GetTimeslice { client, .. }
        | Knob::Schedule { client, .. }
        | Knob::Interleave { client, .. }
        | Knob::Preempt { client, .. } => BTreeSet::from([*client]),
    }
}

/// What a knob does though these channels refuse: it makes a call for each client.
fn of_other_clients(knob: &Knob, odd: &BTreeSet<u32>) -> Option<Knob> {
    let mut rest = knob.clone();
    let (Knob::Open { channels, .. } | Knob::Close { channels, .. }) = &mut rest else {
        return None;
    };
    let refuses = |channel: &Channel| odd.is_empty() || odd.contains(&channel.handle);
    let refused = channels.iter().filter(|channel| refuses(channel));
    let clients: BTreeSet<u32> = refused.map(|channel| channel.client).collect();
    channels.retain(|channel| !clients.contains(&channel.client));
    Some(rest)
}

/// The groups and channels that a knob is about.
fn named(knob: &Knob) -> Vec<u32> {
    match knob {
        Knob::Open { channels, .. } | Knob::Close { channels, .. } => {
            channels.iter().map(|channel| channel.handle).collect()
        }
        Knob::SetTimeslice { group, .. }
        | Knob::GetTimeslice { group, .. }
        | Knob::Schedule { group, .. }
        | Knob::Interleave { group, .. }
        | Knob::Preempt { group, .. } => vec![*group],
    }
}

fn union(sorted: &[(u64, u64)], from_ns: u64, to_ns: u64) -> u64 {
    let (mut sum, mut reached) = (0, from_ns);
    for (from, to) in sorted {
        let (from, to) = ((*from).max(reached), (*to).min(to_ns));
        if to > from {
            sum += to - from;
            reached = to;
        }
    }
    sum
}
