//! The engines by the clock. What is compared is the card's own account: a loaded machine delays the news, not the card.

use std::sync::mpsc;

use super::*;

/// One channel's news: tag, and when.
#[derive(Debug)]
struct News(mpsc::Sender<(u64, u64)>);

impl Sink for News {
    fn ended(&self, tag: u64, at_ns: u64) {
        let _nobody_listens_any_more = self.0.send((tag, at_ns)).is_err();
    }
}

struct Tenant {
    session: Arc<str>,
    group: GroupKey,
    channel: ChannelKey,
    _sink: Arc<News>,
    news: mpsc::Receiver<(u64, u64)>,
}

impl Tenant {
    fn new(engine: &Engine, session: &str) -> Self {
        let session: Arc<str> = session.into();
        let group = engine.add_group(&session, Kind::Compute);
        let (sender, news) = mpsc::channel();
        let sink = Arc::new(News(sender));
        let weak: Weak<dyn Sink> = Arc::downgrade(&sink) as Weak<dyn Sink>;
        let channel = engine.add_channel(group, weak);
        engine.schedule_group(group, true);
        Self {
            session,
            group,
            channel,
            _sink: sink,
            news,
        }
    }

    fn submit(&self, engine: &Engine, kernels: u64, duration_ns: u64) {
        for tag in 0..kernels {
            assert!(engine.submit(self.channel, Work::kernel(duration_ns).tag(tag)));
        }
    }

    /// Returns when the kernel has begun.
    fn run_for_an_hour(&self, engine: &Engine) {
        self.submit(engine, 1, 3_600_000 * MS);
        while self.used_ns(engine) == 0 {
            std::thread::yield_now();
        }
    }

    /// When each of so many ended.
    fn ends(&self, count: usize) -> Vec<u64> {
        (0..count)
            .map(|_| {
                self.news
                    .recv_timeout(Duration::from_secs(30))
                    .expect("news")
                    .1
            })
            .collect()
    }

    fn used_ns(&self, engine: &Engine) -> u64 {
        engine
            .times()
            .sessions
            .get(&self.session)
            .copied()
            .unwrap_or(0)
    }
}

const MS: u64 = 1_000_000;

fn engine() -> Engine {
    Engine::new("card".to_owned(), Costs::default())
}

#[test]
fn kernels_follow_each_other_by_the_card_s_time_however_late_their_ends_are_reported() {
    let engine = engine();
    let tenant = Tenant::new(&engine, "a/b");
    // All are there before the first begins, however slow this thread is.
    engine.schedule_group(tenant.group, false);
    tenant.submit(&engine, 50, MS);
    engine.schedule_group(tenant.group, true);
    let ends = tenant.ends(50);
    let gap_ns = Costs::default().gap_ns;
    assert!(
        ends.windows(2).all(|two| two[1] - two[0] == MS + gap_ns),
        "{ends:?}"
    );
    assert!(tenant.used_ns(&engine) >= 50 * MS);
}

#[test]
fn an_idle_card_wakes_nobody() {
    let engine = engine();
    let tenant = Tenant::new(&engine, "a/b");
    assert_eq!(engine.wake_ups(), 0);
    tenant.submit(&engine, 3, MS);
    tenant.ends(3);
    let at_rest = || matches!(locked(&engine.0.state).thread, thread::Thread::Sleeps(None));
    while !at_rest() {
        std::thread::yield_now();
    }
    let before = engine.wake_ups();
    // Longer than any slice, round or poll that there is.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(engine.wake_ups(), before);
}

#[test]
fn two_share_by_their_slices_and_what_switches_cost_is_nobody_s() {
    let engine = engine();
    let (one, three) = (
        Tenant::new(&engine, "a/one"),
        Tenant::new(&engine, "a/three"),
    );
    engine.set_timeslice(three.group, 3 * 1024 * 1000);
    let before = engine.times();
    let both = [one.channel, three.channel];
    engine.gate(&both, Enable::OffNow);
    one.submit(&engine, 100, 2 * MS);
    three.submit(&engine, 100, 2 * MS);
    // At one moment.
    engine.gate(&both, Enable::On);
    // Until the faster one is done both always have work.
    let last = three.ends(100).last().copied();
    let beside = one.ends(100);
    let beside = beside.iter().filter(|end| Some(**end) <= last).count();
    assert!((30..=37).contains(&beside), "{beside} beside 100");
    let after = engine.times();
    assert!(after.switching_ns > before.switching_ns);
}

#[test]
fn nothing_ends_behind_a_closed_gate_and_the_queue_is_kept() {
    let engine = engine();
    let (gated, other) = (
        Tenant::new(&engine, "a/gated"),
        Tenant::new(&engine, "a/other"),
    );
    gated.submit(&engine, 40, MS);
    other.submit(&engine, 200, MS);
    let first = gated.ends(5);
    let settles = engine.gate(&[gated.channel], Enable::OffNow);
    assert!(engine.settle(settles, &[gated.channel], Duration::from_secs(6)));
    let closed_ns = engine.times().at_ns;
    let used_ns = gated.used_ns(&engine);
    // The other goes on meanwhile.
    other.ends(60);
    assert_eq!(gated.used_ns(&engine), used_ns);
    let opened_ns = engine.times().at_ns;
    engine.gate(&[gated.channel], Enable::On);
    let rest = gated.ends(40 - first.len());
    assert!(
        rest.iter()
            .all(|end| *end <= closed_ns || *end >= opened_ns),
        "{rest:?} in {closed_ns}..{opened_ns}"
    );
}

#[test]
fn a_channel_that_goes_loses_its_work_and_who_waits_for_it_is_reported() {
    let engine = engine();
    let tenant = Tenant::new(&engine, "a/b");
    engine.set_mode(tenant.group, Mode::Wfi);
    tenant.run_for_an_hour(&engine);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let settles = engine.gate(&[tenant.channel], Enable::OffNow);
            engine.settle(settles, &[tenant.channel], Duration::from_secs(30))
        });
        // Whether the waiter has come to waiting or not, it is told.
        engine.remove_channel(tenant.channel);
        assert!(waits.join().unwrap());
    });
    assert!(!engine.submit(tenant.channel, Work::kernel(MS)));
    let next = Tenant::new(&engine, "a/next");
    next.submit(&engine, 1, MS);
    next.ends(1);
    tenant.news.try_recv().unwrap_err();
    engine.forget("a/b");
    assert!(!engine.times().sessions.contains_key("a/b"));
}

#[test]
fn a_call_that_waits_for_a_kernel_without_a_stop_gives_up() {
    let engine = engine();
    let tenant = Tenant::new(&engine, "a/b");
    engine.set_mode(tenant.group, Mode::Wfi);
    tenant.run_for_an_hour(&engine);
    let settles = engine.preempt(tenant.group);
    assert!(!engine.settle(settles, &[tenant.channel], Duration::from_millis(5)));
}

#[test]
fn a_lost_card_stands_still_and_goes_on_where_it_stood() {
    let engine = engine();
    let tenant = Tenant::new(&engine, "a/b");
    tenant.submit(&engine, 20, MS);
    tenant.ends(2);
    engine.set_lost(true);
    // What had ended before is told, and then no more.
    let used_ns = tenant.used_ns(&engine);
    std::thread::sleep(Duration::from_millis(20));
    assert!(tenant.used_ns(&engine) - used_ns <= Costs::default().save_ns);
    engine.set_lost(false);
    tenant.ends(18);
}
