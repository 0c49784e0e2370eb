//! What holds whatever is done to an engine.

use std::collections::BTreeMap;

use proptest::prelude::*;
use runlist::{
    ChannelId, Costs, Enable, Finished, GroupId, Interleave, Kind, Mode, Outcome, Runlist, Stay,
    Work,
};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

#[derive(Debug, Clone, Copy)]
enum Op {
    Group,
    Channel(usize),
    Submit(usize, Work),
    Slice(usize, u64),
    ChannelGate(usize, Enable),
    Scheduled(usize, Enable),
    Level(usize, Interleave),
    Stop(usize, Mode),
    Preempt(usize),
    Signal(usize),
    RemoveChannel(usize),
    RemoveGroup(usize),
}

fn work() -> impl Strategy<Value = Work> {
    let kind = prop_oneof![
        20 => Just(Kind::Plain),
        1 => Just(Kind::Persistent),
        1 => Just(Kind::Fault),
        1 => Just(Kind::CoResident { set: 1 }),
    ];
    (kind, 0..5 * MS, 0..400 * US, 0_u32..6).prop_map(|(kind, duration_ns, block_ns, kernels)| {
        Work::kernel(duration_ns)
            .blocks(block_ns)
            .times(kernels)
            .kind(kind)
    })
}

fn enable() -> impl Strategy<Value = Enable> {
    prop_oneof![
        2 => Just(Enable::On),
        1 => Just(Enable::OffNow),
        1 => Just(Enable::OffAfterSlice),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let which = 0_usize..16;
    prop_oneof![
        2 => Just(Op::Group),
        3 => which.clone().prop_map(Op::Channel),
        30 => (which.clone(), work()).prop_map(|(which, work)| Op::Submit(which, work)),
        3 => (which.clone(), 1..3 * MS).prop_map(|(which, slice)| Op::Slice(which, slice)),
        8 => (which.clone(), enable()).prop_map(|(which, enable)| Op::ChannelGate(which, enable)),
        3 => (which.clone(), enable()).prop_map(|(which, enable)| Op::Scheduled(which, enable)),
        2 => (which.clone(), prop_oneof![Just(Interleave::Low), Just(Interleave::Medium), Just(Interleave::High)])
            .prop_map(|(which, level)| Op::Level(which, level)),
        2 => (which.clone(), prop_oneof![Just(Mode::Cilp), Just(Mode::Cta), Just(Mode::Wfi)])
            .prop_map(|(which, mode)| Op::Stop(which, mode)),
        2 => which.clone().prop_map(Op::Preempt),
        2 => which.clone().prop_map(Op::Signal),
        1 => which.clone().prop_map(Op::RemoveChannel),
        1 => which.prop_map(Op::RemoveGroup),
    ]
}

fn costs() -> impl Strategy<Value = Costs> {
    prop_oneof![Just(Costs::default()), Just(Costs::free())]
}

/// An engine with everything that was done to it.
struct Watched {
    runlist: Runlist,
    groups: Vec<GroupId>,
    channels: Vec<(ChannelId, GroupId)>,
    submitted: u64,
    finished: Vec<Finished>,
    stays: Vec<Stay>,
    /// Channels that must be off the engine from then on.
    closed: BTreeMap<ChannelId, u64>,
    off_runlist: BTreeMap<GroupId, u64>,
}

impl Watched {
    fn new(costs: Costs) -> Self {
        let mut runlist = Runlist::new(costs);
        runlist.keep_log(usize::MAX);
        let groups: Vec<GroupId> = (0..3).map(|_| runlist.add_group()).collect();
        let channels = groups
            .iter()
            .map(|group| (runlist.add_channel(*group).expect("it is there"), *group))
            .collect();
        Self {
            runlist,
            groups,
            channels,
            submitted: 0,
            finished: Vec::new(),
            stays: Vec::new(),
            closed: BTreeMap::new(),
            off_runlist: BTreeMap::new(),
        }
    }

    fn apply(&mut self, op: Op) {
        let now = self.runlist.now_ns();
        let runlist = &mut self.runlist;
        let group = |which: usize| self.groups.get(which % self.groups.len().max(1)).copied();
        let channel = |which: usize| {
            self.channels
                .get(which % self.channels.len().max(1))
                .copied()
        };
        match op {
            Op::Group if self.groups.len() < 8 => {
                let group = runlist.add_group();
                self.groups.push(group);
                if let Ok(channel) = runlist.add_channel(group) {
                    self.channels.push((channel, group));
                }
            }
            Op::Group => {}
            Op::Channel(which) => {
                if let Some(group) = group(which)
                    && let Ok(channel) = runlist.add_channel(group)
                {
                    self.channels.push((channel, group));
                }
            }
            Op::Submit(which, work) => {
                if let Some((channel, _)) = channel(which)
                    && runlist
                        .submit(now, channel, work.tag(self.submitted))
                        .is_ok()
                {
                    self.submitted += 1;
                }
            }
            Op::Slice(which, slice_ns) => {
                if let Some(group) = group(which) {
                    runlist
                        .set_timeslice(now, group, slice_ns)
                        .expect("it is there");
                }
            }
            Op::ChannelGate(which, enable) => {
                let Some((channel, _)) = channel(which) else {
                    return;
                };
                let settled = runlist
                    .set_enabled(now, channel, enable)
                    .expect("it is there");
                self.closed.remove(&channel);
                if enable == Enable::OffNow
                    && let Some(at) = settled
                {
                    self.closed.insert(channel, at);
                }
            }
            Op::Scheduled(which, enable) => {
                let Some(group) = group(which) else { return };
                let settled = runlist.set_group_enabled(now, group, enable);
                self.off_runlist.remove(&group);
                if enable == Enable::OffNow
                    && let Ok(Some(at)) = settled
                {
                    self.off_runlist.insert(group, at);
                }
            }
            Op::Level(which, level) => {
                if let Some(group) = group(which) {
                    runlist
                        .set_interleave(now, group, level)
                        .expect("it is there");
                }
            }
            Op::Stop(which, mode) => {
                if let Some(group) = group(which) {
                    runlist.set_mode(now, group, mode).expect("it is there");
                }
            }
            Op::Preempt(which) => {
                if let Some(group) = group(which) {
                    runlist.preempt(now, group).expect("it is there");
                }
            }
            Op::Signal(which) => {
                if let Some((channel, _)) = channel(which) {
                    runlist.signal(now, channel).ok();
                }
            }
            Op::RemoveChannel(which) => {
                if let Some((gone, _)) = channel(which) {
                    runlist.remove_channel(now, gone).expect("it is there");
                    self.channels.retain(|(channel, _)| *channel != gone);
                    self.closed.remove(&gone);
                }
            }
            Op::RemoveGroup(which) => {
                if let Some(gone) = group(which) {
                    runlist.remove_group(now, gone).expect("it is there");
                    self.groups.retain(|group| *group != gone);
                    self.channels.retain(|(_, group)| *group != gone);
                    self.off_runlist.remove(&gone);
                }
            }
        }
    }

    /// Lets time pass, event by event, with a look at every one.
    fn watch(&mut self, until_ns: u64) -> Result<(), TestCaseError> {
        let mut events = 0_u64;
        while let Some(at_ns) = self.runlist.next_event().filter(|at_ns| *at_ns <= until_ns) {
            self.runlist.advance(at_ns);
            self.check()?;
            events += 1;
            prop_assert!(events < 1_000_000, "no progress at {at_ns}");
        }
        self.runlist.advance(until_ns);
        self.check()
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        let now = self.runlist.now_ns();
        let time = self.runlist.time();
        prop_assert_eq!(time.total_ns(), now, "{:?}", time);
        self.finished.extend(self.runlist.take_finished());
        self.stays.extend(self.runlist.take_log().0);
        if let Some(channel) = self.runlist.resident_channel()
            && let Some(at) = self.closed.get(&channel)
        {
            prop_assert!(
                now < *at,
                "{:?} runs at {} behind a gate that was closed at {}",
                channel,
                now,
                at
            );
        }
        if let Some((group, _)) = self.runlist.resident()
            && let Some(at) = self.off_runlist.get(&group)
        {
            prop_assert!(
                now < *at,
                "{:?} runs at {} although off the runlist at {}",
                group,
                now,
                at
            );
        }
        Ok(())
    }

    fn add_up(&self) -> Result<(), TestCaseError> {
        let mut by_group: BTreeMap<GroupId, u64> = BTreeMap::new();
        let mut last = 0;
        for stay in &self.stays {
            prop_assert!(
                last <= stay.start_ns && stay.start_ns <= stay.end_ns,
                "{:?} after {}",
                stay,
                last
            );
            last = stay.end_ns;
            *by_group.entry(stay.group).or_default() += stay.end_ns - stay.start_ns;
        }
        if let Some((group, since_ns)) = self.runlist.resident() {
            *by_group.entry(group).or_default() += self.runlist.now_ns() - since_ns;
        }
        prop_assert_eq!(
            by_group.values().sum::<u64>(),
            self.runlist.time().resident_ns
        );
        for group in &self.groups {
            let used = self.runlist.used_ns(*group).expect("it is there");
            prop_assert_eq!(used, by_group.get(group).copied().unwrap_or(0));
        }
        let mut queued = 0;
        for (channel, _) in &self.channels {
            queued +=
                u64::try_from(self.runlist.queued(*channel).expect("it is there")).unwrap_or(0);
        }
        let ended = u64::try_from(self.finished.len()).unwrap_or(0);
        prop_assert_eq!(
            self.submitted,
            ended + queued,
            "entries are neither lost nor made up"
        );
        prop_assert!(
            self.finished
                .windows(2)
                .all(|two| two[0].at_ns <= two[1].at_ns)
        );
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn time_adds_up_and_closed_gates_hold(
        costs in costs(),
        script in prop::collection::vec((op(), 0..4 * MS), 1..120),
    ) {
        let mut watched = Watched::new(costs);
        for (op, wait_ns) in script {
            watched.apply(op);
            watched.check()?;
            let until = watched.runlist.now_ns() + wait_ns;
            watched.watch(until)?;
        }
        watched.add_up()?;
    }

    /// A real-time user looks whenever it likes, a virtual one at every event.
    #[test]
    fn it_does_not_matter_how_often_one_looks(
        costs in costs(),
        script in prop::collection::vec((op(), 0..4 * MS), 1..80),
    ) {
        let (mut often, mut seldom) = (Watched::new(costs), Watched::new(costs));
        for (op, wait_ns) in script {
            let until = often.runlist.now_ns() + wait_ns;
            often.apply(op);
            seldom.apply(op);
            often.watch(until)?;
            seldom.runlist.advance(until);
        }
        seldom.check()?;
        prop_assert_eq!(often.finished, seldom.finished);
        prop_assert_eq!(often.stays, seldom.stays);
        prop_assert_eq!(often.runlist.time(), seldom.runlist.time());
    }

    #[test]
    fn always_busy_groups_get_what_their_slices_report(
        slices in prop::collection::vec(200 * US..10 * MS, 2..8),
        kernels in prop::collection::vec(50 * US..30 * MS, 8),
    ) {
        let mut runlist = Runlist::new(Costs::default());
        let lanes: Vec<(GroupId, ChannelId)> = slices
            .iter()
            .map(|slice_ns| {
                let group = runlist.add_group();
                runlist.set_timeslice(0, group, *slice_ns).expect("it is there");
                (group, runlist.add_channel(group).expect("it is there"))
            })
            .collect();
        for ((_, channel), kernel_ns) in lanes.iter().zip(&kernels) {
            for _ in 0..64 {
                runlist.submit(0, *channel, Work::kernel(*kernel_ns).tag(*kernel_ns)).expect("there is room");
            }
        }
        while runlist.now_ns() < 4 * S {
            let at_ns = runlist.next_event().expect("all are busy");
            runlist.advance(at_ns);
            while let Some(finished) = runlist.pop_finished() {
                let again = Work::kernel(finished.tag).tag(finished.tag);
                runlist.submit(at_ns, finished.channel, again).expect("there is room");
            }
        }
        let round_ns: u64 = slices.iter().sum();
        for ((group, _), slice_ns) in lanes.iter().zip(&slices) {
            let used = runlist.used_ns(*group).expect("it is there");
            let all = runlist.time().resident_ns;
            let expected = u64::try_from(u128::from(all) * u128::from(*slice_ns) / u128::from(round_ns)).unwrap_or(0);
            // A turn more or less.
            prop_assert!(used.abs_diff(expected) <= 2 * slice_ns, "{} of {}, expected {}", used, all, expected);
        }
    }

    /// One server, one kind of work, fixed arrivals: nothing waits for another, or the queue grows by what is too much each time.
    #[test]
    fn periodic_work_has_the_latency_of_the_closed_form(
        service_ns in 100 * US..10 * MS,
        interval_ns in 100 * US..10 * MS,
    ) {
        let mut runlist = Runlist::new(Costs::free());
        let group = runlist.add_group();
        let channel = runlist.add_channel(group).expect("it is there");
        for arrival in 0..100 {
            runlist.submit(arrival * interval_ns, channel, Work::kernel(service_ns)).expect("there is room");
        }
        runlist.advance(100 * S);
        let behind_ns = service_ns.saturating_sub(interval_ns);
        for (finished, before) in runlist.take_finished().iter().zip(0..) {
            prop_assert_eq!(finished.outcome, Outcome::Done);
            prop_assert_eq!(finished.at_ns - finished.submitted_ns, service_ns + before * behind_ns);
        }
    }
}
