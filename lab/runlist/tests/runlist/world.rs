//! The node around the engines: calls and their locks, agents, programs, what can be seen, and what goes wrong.

use runlist::world::{
    AgentId, Answer, Api, CallError, Class, Client, ClientId, Control, FECS_PERIOD_NS, Fault,
    GPUMON_BUCKET_NS, Gang, Gpus, Kernel, Load, Notice, Request, RpcCosts, Setup, Switch, Timers,
    Wait, World, percentile,
};
use runlist::{Costs, Enable, Mode, Stay};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

fn channels(world: &World, client: ClientId, enable: Enable) -> Control {
    Control::Channels {
        channels: world
            .groups(client)
            .iter()
            .map(|lane| lane.channel)
            .collect(),
        enable,
    }
}

/// Makes the call and waits for its answer: how long it took, and what it was.
fn pull(
    world: &mut World,
    agent: AgentId,
    card: usize,
    control: Control,
) -> (u64, Result<Answer, CallError>) {
    let requested = world.now_ns();
    let call = world.call(agent, card, control);
    match world.run(u64::MAX) {
        Some(Notice::Answered {
            call: answered,
            result,
            ..
        }) if answered == call => (world.now_ns() - requested, result),
        other => panic!("{other:?} instead of an answer to {call:?}"),
    }
}

fn sleep(world: &mut World, agent: AgentId, until_ns: u64) {
    let requested = world.wake_at(agent, until_ns);
    match world.run(u64::MAX) {
        Some(Notice::Woke { wake, .. }) if wake == requested => {}
        other => panic!("{other:?} instead of a wake-up"),
    }
}

fn exact(seed: u64, cards: usize) -> Setup {
    Setup {
        timers: Timers::exact(),
        ..Setup::new(seed, cards)
    }
}

/// Calls that take 160 us, always.
fn even(cards: usize) -> Setup {
    Setup {
        rpc: RpcCosts {
            base_ns: 160 * US,
            jitter_ns: 0,
            ..RpcCosts::default()
        },
        ..exact(1, cards)
    }
}

#[test]
fn a_call_takes_what_the_firmware_takes_and_a_close_the_save_on_top() {
    let mut world = World::new(exact(1, 1));
    let client = world.add_client(Client::busy(0, 20 * MS));
    let agent = world.add_agent();
    let (mut opens, mut closes) = (Vec::new(), Vec::new());
    for _ in 0..1_000 {
        let close = channels(&world, client, Enable::OffNow);
        closes.push(pull(&mut world, agent, 0, close).0);
        let open = channels(&world, client, Enable::On);
        opens.push(pull(&mut world, agent, 0, open).0);
        let later = world.now_ns() + MS;
        sleep(&mut world, agent, later);
    }
    let mean = |all: &[u64]| all.iter().sum::<u64>() / 1_000;
    assert!(mean(&opens).abs_diff(160 * US) < 4 * US, "{}", mean(&opens));
    assert!(
        mean(&closes).abs_diff(220 * US) < 5 * US,
        "{}",
        mean(&closes)
    );
    opens.sort_unstable();
    assert!(opens[0] >= 120 * US);
    assert!(
        percentile(&opens, 990_000).abs_diff(120 * US + 184 * US) < 40 * US,
        "ln(100) * 40 us above the base"
    );
}

#[test]
fn calls_to_different_cards_wait_for_each_other_only_for_locks_that_they_share() {
    for (control, both_us) in [
        (Control::Resident, 160),
        (
            Control::Channels {
                channels: vec![],
                enable: Enable::On,
            },
            320,
        ),
    ] {
        let mut world = World::new(even(2));
        let agent = world.add_agent();
        world.call(agent, 0, control.clone());
        world.call(agent, 1, control);
        assert!(world.run(S).is_some());
        assert!(world.run(S).is_some());
        assert_eq!(world.now_ns(), both_us * US);
    }
}

#[test]
fn calls_to_one_card_are_served_one_after_the_other() {
    let mut world = World::new(even(1));
    let agent = world.add_agent();
    let class = Class {
        api: Api::Read,
        gpus: Gpus::None,
    };
    let call = Control::Other {
        class,
        service_ns: MS,
    };
    world.call(agent, 0, call.clone());
    world.call(agent, 0, call);
    assert!(world.run(S).is_some());
    assert_eq!(world.now_ns(), MS);
    assert!(world.run(S).is_some());
    assert_eq!(world.now_ns(), 2 * MS);
    assert_eq!(world.firmware_busy_ns(0), 2 * MS);
}

#[test]
fn a_neighbours_context_creation_holds_up_a_gate() {
    let mut world = World::new(even(1));
    world.add_client(Client::new(
        0,
        Load::Calls {
            control: Control::CONTEXT,
            gap_ns: 10 * MS,
        },
    ));
    let agent = world.add_agent();
    let client = world.add_client(Client::busy(0, MS));
    let close = channels(&world, client, Enable::OffNow);
    let (took, result) = pull(&mut world, agent, 0, close);
    assert_eq!(
        (took, result),
        (150 * MS + 160 * US + 60 * US, Ok(Answer::Done))
    );
}

#[test]
fn knobs_reach_the_engine() {
    let mut world = World::new(even(1));
    let one = world.add_client(Client::busy(0, 20 * MS));
    let other = world.add_client(Client::busy(0, 20 * MS));
    let agent = world.add_agent();
    let group = world.groups(one)[0].group;
    let set = Control::SetTimeslice {
        group,
        slice_ns: 3 * MS,
    };
    assert_eq!(pull(&mut world, agent, 0, set).1, Ok(Answer::Done));
    let get = Control::GetTimeslice { group };
    assert_eq!(pull(&mut world, agent, 0, get).1, Ok(Answer::Slice(3 * MS)));
    let zero = Control::SetTimeslice { group, slice_ns: 0 };
    assert_eq!(pull(&mut world, agent, 0, zero).1, Err(CallError::Refused));
    assert_eq!(world.run(S), None);
    let used =
        |world: &World, client, from| world.client_used_between(client, 0, from, world.now_ns());
    let ratio = used(&world, one, 0) * 100 / used(&world, other, 0);
    assert!((285..300).contains(&ratio), "{ratio}");

    let off = Control::Schedule {
        group,
        enable: Enable::OffNow,
    };
    assert_eq!(pull(&mut world, agent, 0, off).1, Ok(Answer::Done));
    let from = world.now_ns();
    assert_eq!(world.run(2 * S), None);
    assert_eq!(used(&world, one, from), 0);
    let resident = pull(&mut world, agent, 0, Control::Resident).1;
    assert_eq!(
        resident,
        Ok(Answer::Resident(Some(world.groups(other)[0].group)))
    );

    world.stop(one);
    assert_eq!(
        pull(&mut world, agent, 0, Control::GetTimeslice { group }).1,
        Err(CallError::Gone)
    );
    let many = Control::Channels {
        channels: vec![world.groups(other)[0].channel; 65],
        enable: Enable::On,
    };
    assert_eq!(pull(&mut world, agent, 0, many).1, Err(CallError::Refused));
    assert_eq!(world.done(one).dropped, 64);
}

/// A cap by a gate that opens and closes by the clock.
fn cap(kernel_ns: u64, mode: Mode, percent: u64, window_ns: u64) -> u64 {
    let mut world = World::new(Setup::new(5, 1));
    let client = world.add_client(Client::busy(0, kernel_ns).mode(mode));
    let agent = world.add_agent();
    for window in 1..=20 * S / window_ns {
        let begin = window * window_ns;
        let close = channels(&world, client, Enable::OffNow);
        sleep(
            &mut world,
            agent,
            begin + window_ns * percent / 100 - window_ns,
        );
        assert_eq!(pull(&mut world, agent, 0, close).1, Ok(Answer::Done));
        sleep(&mut world, agent, begin);
        let open = channels(&world, client, Enable::On);
        assert_eq!(pull(&mut world, agent, 0, open).1, Ok(Answer::Done));
    }
    world.client_used_between(client, 0, 0, world.now_ns()) * 100_000 / world.now_ns()
}

#[test]
fn e2_a_gate_caps_what_can_be_stopped() {
    for window_ms in [50, 100, 200] {
        for percent in [50, 25, 10] {
            let got = cap(2 * MS, Mode::Cilp, percent, window_ms * MS);
            let expected = percent * 1_000;
            assert!(
                got.abs_diff(expected) * 1_000 <= expected * 12,
                "{got} for {percent} % of {window_ms} ms"
            );
        }
    }
    for (percent, expected) in [(5, 20_000), (50, 60_000)] {
        let got = cap(20 * MS, Mode::Wfi, percent, 100 * MS);
        assert!(
            got.abs_diff(expected) <= 500,
            "{got} with kernels that run to their end, expected {expected}"
        );
    }
}

#[test]
fn a_group_that_does_not_leave_lets_the_call_time_out_with_its_gate_closed() {
    let mut world = World::new(even(1));
    let client = world.add_client(Client::new(0, Load::Persistent).mode(Mode::Wfi));
    let agent = world.add_agent();
    let close = channels(&world, client, Enable::OffNow);
    let (took, result) = pull(&mut world, agent, 0, close);
    assert_eq!((took, result), (S + 160 * US, Err(CallError::NotSaved)));
    let group = world.groups(client)[0].group;
    let preempt = Control::Preempt {
        group,
        wait: Wait::No,
    };
    assert_eq!(
        pull(&mut world, agent, 0, preempt),
        (160 * US, Ok(Answer::Done))
    );
}

#[test]
fn a_hang_delays_what_the_firmware_has_and_fails_what_waits_too_long() {
    let mut world = World::new(even(1));
    let agent = world.add_agent();
    world.inject(
        100 * US,
        Fault::HangFirmware {
            card: 0,
            for_ns: 50 * MS,
        },
    );
    assert_eq!(
        pull(&mut world, agent, 0, Control::Resident),
        (50 * MS + 160 * US, Ok(Answer::Resident(None)))
    );
    world.inject(
        S,
        Fault::HangFirmware {
            card: 0,
            for_ns: u64::MAX,
        },
    );
    assert_eq!(world.run(2 * S), None);
    assert_eq!(
        pull(&mut world, agent, 0, Control::Resident),
        (6 * S, Err(CallError::NoAnswer))
    );
    assert_eq!(CallError::NoAnswer.status(), 0x65);
}

#[test]
fn a_lost_call_holds_its_locks_until_the_driver_gives_up() {
    let mut world = World::new(even(2));
    let client = world.add_client(Client::busy(1, MS));
    let agent = world.add_agent();
    world.inject(0, Fault::LoseCalls { card: 0, calls: 1 });
    assert_eq!(world.run(0), None);
    world.call(
        agent,
        0,
        Control::Channels {
            channels: vec![],
            enable: Enable::On,
        },
    );
    let close = channels(&world, client, Enable::OffNow);
    world.call(agent, 1, close);
    assert!(matches!(
        world.run(10 * S),
        Some(Notice::Answered {
            result: Err(CallError::NoAnswer),
            ..
        })
    ));
    assert_eq!(world.now_ns(), 6 * S);
    assert!(matches!(
        world.run(10 * S),
        Some(Notice::Answered {
            result: Ok(Answer::Done),
            ..
        })
    ));
    assert_eq!(world.now_ns(), 6 * S + 220 * US);
}

#[test]
fn held_locks_are_a_slow_call_for_the_others() {
    let mut world = World::new(even(1));
    let agent = world.add_agent();
    let class = Control::CONTEXT.class();
    world.inject(
        0,
        Fault::HoldLocks {
            card: 0,
            class,
            for_ns: 70 * MS,
        },
    );
    assert_eq!(world.run(MS), None);
    assert_eq!(
        pull(&mut world, agent, 0, Control::Resident).0,
        69 * MS + 160 * US
    );
}

#[test]
fn a_lost_card_takes_its_programs_and_fails_every_call() {
    let mut world = World::new(even(2));
    let gone = world.add_client(Client::busy(0, MS));
    let stays = world.add_client(Client::busy(1, MS));
    let gang = world.add_gang(Gang {
        cards: vec![0, 1],
        compute: Kernel::of(MS),
        reduce_ns: MS,
        barrier_ns: 0,
        mode: Mode::Cilp,
        slice_ns: None,
    });
    let agent = world.add_agent();
    world.inject(S, Fault::RemoveCard(0));
    assert_eq!(world.run(2 * S), None);
    assert!(world.client_used_between(gone, 0, 0, S) > 400 * MS);
    assert_eq!(world.client_used_between(gone, 0, S, 2 * S), 0);
    assert_eq!(world.client_used_between(gang, 1, S + MS, 2 * S), 0);
    assert!(world.client_used_between(stays, 1, S, 2 * S) > 998 * MS);
    assert_eq!(
        pull(&mut world, agent, 0, Control::Resident),
        (0, Err(CallError::Lost))
    );
    let late = world.add_client(Client::busy(0, MS));
    assert_eq!(world.run(3 * S), None);
    assert_eq!(world.done(late).kernels, 0);
}

#[test]
fn a_killed_agent_hears_nothing_and_its_call_is_carried_out() {
    let mut world = World::new(even(1));
    let client = world.add_client(Client::busy(0, MS));
    let agent = world.add_agent();
    let close = channels(&world, client, Enable::OffNow);
    world.call(agent, 0, close);
    world.wake_at(agent, 10 * MS);
    world.inject(50 * US, Fault::KillAgent(agent));
    assert_eq!(world.run(S), None);
    assert!(world.client_used_between(client, 0, 0, S) < 200 * US);
}

#[test]
fn a_stalled_agent_hears_later_and_a_clock_that_jumps_wakes_sleepers() {
    let mut world = World::new(even(1));
    let agent = world.add_agent();
    let stall = Fault::StallAgent {
        agent,
        for_ns: 30 * MS,
    };
    world.inject(5 * MS, stall);
    sleep(&mut world, agent, 10 * MS);
    assert_eq!(world.now_ns(), 35 * MS);
    world.inject(40 * MS, Fault::JumpClock { by_ns: S });
    let soon = world.wake_at(agent, 500 * MS);
    let late = world.wake_at(agent, 2 * S);
    let never = world.wake_at(agent, 100 * MS);
    world.cancel_wake(agent, never);
    assert_eq!(
        world.run(u64::MAX),
        Some(Notice::Woke { agent, wake: soon })
    );
    assert_eq!(
        (world.now_ns(), world.agent_now_ns()),
        (40 * MS, S + 40 * MS)
    );
    assert_eq!(
        world.run(u64::MAX),
        Some(Notice::Woke { agent, wake: late })
    );
    assert_eq!((world.now_ns(), world.agent_now_ns()), (S, 2 * S));
    assert_eq!(world.run(3 * S), None);
}

#[test]
fn timers_are_late_as_they_were_measured() {
    let mut world = World::new(Setup::new(9, 1));
    let agent = world.add_agent();
    let mut late: Vec<u64> = (1..=20_000_u64)
        .map(|tick| {
            sleep(&mut world, agent, tick * 20 * MS);
            world.now_ns() - tick * 20 * MS
        })
        .collect();
    late.sort_unstable();
    let at = |ppm| percentile(&late, ppm);
    // |N(0, 60 us)|: the median is 0.674 sigma, the 99th percentile 2.576.
    assert!(at(500_000).abs_diff(40_470) < 1_500, "{}", at(500_000));
    assert!(at(990_000).abs_diff(155_000) < 8_000, "{}", at(990_000));
    assert!(at(1_000_000) > MS);
}

#[test]
fn a_frozen_program_runs_on_what_it_has_queued() {
    let mut world = World::new(even(1));
    let deep = world.add_client(Client::deep_queue(0, MS, 1024));
    world.inject(10 * MS, Fault::Freeze(deep));
    assert_eq!(world.run(2 * S), None);
    let group = world.groups(deep)[0].group;
    let used = world.used_between(0, group, 10 * MS, 2 * S);
    assert!((1_023 * MS..1_027 * MS).contains(&used), "{used}");
    world.thaw(deep);
    assert_eq!(world.run(3 * S), None);
    assert!(world.used_between(0, group, 2 * S, 3 * S) > 999 * MS);
}

#[test]
fn a_program_that_faults_is_gone_and_its_neighbour_is_not() {
    let mut world = World::new(even(1));
    let bad = world.add_client(Client::busy(0, MS));
    let good = world.add_client(Client::busy(0, MS));
    world.inject(100 * MS, Fault::Crash(bad));
    assert_eq!(world.run(S), None);
    assert_eq!(world.done(bad).faults, 1);
    assert!(!world.is_busy(bad));
    assert!(world.client_used_between(good, 0, 300 * MS, S) > 699 * MS);
}

#[test]
fn a_flood_of_groups_takes_as_many_turns_and_a_long_slice_the_card() {
    let mut world = World::new(even(1));
    let one = world.add_client(Client::busy(0, MS));
    let flood = world.add_client(Client::busy(0, MS).groups(9));
    assert_eq!(world.run(10 * S), None);
    let used = |client| world.client_used_between(client, 0, 0, 10 * S);
    assert!((870..930).contains(&(used(flood) * 100 / used(one))));

    let mut world = World::new(even(1));
    let one = world.add_client(Client::busy(0, MS));
    let greedy = world.add_client(Client::busy(0, MS).slice(8 * S));
    assert_eq!(world.run(16 * S), None);
    assert!(world.client_used_between(greedy, 0, 0, 16 * S) > 15 * S);
    assert!(world.client_used_between(one, 0, 0, 16 * S) > 0);
}

#[test]
fn bursts_and_periods_are_on_time() {
    let mut world = World::new(even(1));
    let bursty = world.add_client(Client::new(
        0,
        Load::Bursts {
            on_ns: 300 * MS,
            off_ns: 700 * MS,
            first_ns: 100 * MS,
            depth: 4,
            kernel: Kernel::of(MS),
        },
    ));
    assert_eq!(world.run(10 * S), None);
    let used = world.client_used_between(bursty, 0, 0, 10 * S);
    assert!(
        used.abs_diff(3 * S + 10 * 4 * MS) < 20 * MS,
        "what is queued at a burst's end is done: {used}"
    );

    let mut world = World::new(even(1));
    let request = Request {
        kernels: 3,
        kernel: Kernel::of(MS).varying(300),
    };
    let periodic = world.add_client(Client::new(
        0,
        Load::Periodic {
            interval_ns: 10 * MS,
            first_ns: 5 * MS,
            request,
        },
    ));
    assert_eq!(world.run(10 * S), None);
    assert_eq!(
        (world.done(periodic).requests, world.done(periodic).kernels),
        (1_000, 3_000)
    );
    let latencies = world.take_latencies(periodic);
    let mean = latencies.iter().sum::<u64>() / 1_000;
    assert!(mean.abs_diff(3 * MS) < 60 * US, "{mean}");
    assert!(world.take_latencies(periodic).is_empty());
}

#[test]
fn a_queue_that_is_full_makes_the_program_wait_and_loses_nothing() {
    let mut world = World::new(Setup {
        cards: vec![Costs {
            queue_entries: 8,
            ..Costs::default()
        }],
        ..even(1)
    });
    let request = Request {
        kernels: 1,
        kernel: Kernel::of(30 * MS),
    };
    let load = Load::Periodic {
        interval_ns: 10 * MS,
        first_ns: 0,
        request,
    };
    let client = world.add_client(Client::new(0, load));
    assert_eq!(world.run(3 * S), None);
    let lane = world.groups(client)[0];
    assert_eq!(world.runlist(0).queued(lane.channel), Ok(8));
    let latencies = world.take_latencies(client);
    assert_eq!(latencies.len(), 99);
    assert!(
        latencies[98].abs_diff(99 * 20 * MS) < 60 * MS,
        "the host's queue counts: {}",
        latencies[98]
    );
}

#[test]
fn records_are_handed_out_by_the_period_and_agree_with_the_stays() {
    let mut world = World::new(even(1));
    let clients = [
        world.add_client(Client::busy(0, MS)),
        world.add_client(Client::busy(0, 3 * MS)),
    ];
    let mut records = Vec::new();
    for step in 1..=100_u64 {
        assert_eq!(world.run(step * 17 * MS), None);
        let tick = world.now_ns() / FECS_PERIOD_NS * FECS_PERIOD_NS;
        let handed = world.take_fecs(0);
        assert_eq!(handed.lost, 0);
        assert!(handed.records.iter().all(|record| record.at_ns <= tick));
        records.extend(handed.records);
    }
    let tick = world.now_ns() / FECS_PERIOD_NS * FECS_PERIOD_NS;
    for client in clients {
        let group = world.groups(client)[0].group;
        let mut used = 0;
        let mut since = None;
        for record in records.iter().filter(|record| record.group == group) {
            match (record.what, since.take()) {
                (Switch::Start, None) => since = Some(record.at_ns),
                (Switch::End, Some(start)) => used += record.at_ns - start,
                other => panic!("{other:?} at {}", record.at_ns),
            }
        }
        used += since.map_or(0, |start| tick - start);
        assert_eq!(used, world.used_between(0, group, 0, tick));
        assert_eq!(world.metered_used_ns(0, group), used);
    }
    assert!(records.windows(2).all(|two| two[0].at_ns <= two[1].at_ns));
}

#[test]
fn a_small_buffer_loses_records_and_counts_them() {
    let mut world = World::new(Setup {
        fecs_records: 10,
        ..even(1)
    });
    for _ in 0..2 {
        world.add_client(Client::busy(0, MS));
    }
    assert_eq!(world.run(330 * MS + 1), None);
    let handed = world.take_fecs(0);
    assert_eq!(handed.records.len(), 100);
    assert!(handed.lost > 400, "{}", handed.lost);
}

#[test]
fn samples_cover_the_last_ten_seconds_at_most() {
    let mut world = World::new(even(1));
    let client = world.add_client(Client::busy(0, MS));
    assert_eq!(world.run(15 * S), None);
    let buckets = world.gpumon(0);
    assert_eq!(buckets.len(), 72);
    let group = world.groups(client)[0].group;
    assert!(
        buckets
            .iter()
            .all(|bucket| bucket.used_ns[&group] == GPUMON_BUCKET_NS),
        "it was always busy"
    );
    assert!(buckets[71].start_ns + GPUMON_BUCKET_NS <= 15 * S);
}

/// Something of everything.
fn eventful(seed: u64, slice_ns: u64) -> (World, Vec<ClientId>) {
    let mut setup = Setup::new(seed, 2);
    setup.rpc.stall_ppm = 10_000;
    setup.rpc.lost_ppm = 1_000;
    let mut world = World::new(setup);
    let request = Request {
        kernels: 5,
        kernel: Kernel::of(MS).varying(500),
    };
    let load = Load::Poisson {
        interval_ns: 20 * MS,
        request,
    };
    let clients = vec![
        world.add_client(Client::new(0, load).slice(slice_ns)),
        world.add_client(
            Client::new(
                0,
                Load::Closed {
                    depth: 8,
                    kernel: Kernel::of(300 * US).varying(1_000).blocks(20 * US),
                    host_gap_ns: 50 * US,
                },
            )
            .mode(Mode::Cta),
        ),
        world.add_gang(Gang {
            cards: vec![1, 0],
            compute: Kernel::of(4 * MS).varying(100),
            reduce_ns: 500 * US,
            barrier_ns: 20 * US,
            mode: Mode::Cilp,
            slice_ns: Some(slice_ns),
        }),
        world.add_client(Client::busy(1, 10 * MS).mode(Mode::Wfi)),
    ];
    let agent = world.add_agent();
    for step in 1..=40_u64 {
        world.wake_at(agent, step * 50 * MS);
    }
    let mut enable = Enable::OffNow;
    while let Some(notice) = world.run(2 * S) {
        if matches!(notice, Notice::Woke { .. }) {
            let control = channels(&world, clients[1], enable);
            world.call(agent, 0, control);
            enable = if enable == Enable::On {
                Enable::OffNow
            } else {
                Enable::On
            };
        }
    }
    (world, clients)
}

#[test]
fn equal_seeds_give_equal_runs_to_the_nanosecond() {
    let log = |seed: u64| -> (Vec<Stay>, Vec<Stay>, Vec<u64>) {
        let (world, clients) = eventful(seed, 2 * MS);
        let latencies = clients
            .iter()
            .flat_map(|client| world.done(*client).latencies_ns.clone())
            .collect();
        (
            world.residency(0).stays().to_vec(),
            world.residency(1).stays().to_vec(),
            latencies,
        )
    };
    let one = log(11);
    assert!(
        one.0.len() > 500 && one.2.len() > 500,
        "{} {}",
        one.0.len(),
        one.2.len()
    );
    assert_eq!(one, log(11));
    assert_ne!(one, log(12));
}

#[test]
fn requests_come_at_the_same_times_under_every_policy() {
    let arrived = |slice_ns| {
        let (world, clients) = eventful(13, slice_ns);
        let lane = world.groups(clients[0])[0];
        world
            .runlist(0)
            .userd(lane.channel)
            .map(|userd| userd.gp_put)
    };
    assert_eq!(arrived(2 * MS), arrived(500 * US));
}

#[test]
fn time_adds_up_on_every_card() {
    let (world, _) = eventful(17, MS);
    for card in 0..2 {
        let time = world.runlist(card).time();
        assert_eq!(time.total_ns(), 2 * S, "{time:?}");
        assert!(time.resident_ns > 0 && time.overhead_ns > 0);
    }
}
