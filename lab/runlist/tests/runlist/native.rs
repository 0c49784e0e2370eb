//! The stock scheduler as the project's earlier model had it: the numbers that this one must agree with (half a point of the card, or
//! 5 % of a latency).

use runlist::world::{
    Client, ClientId, Fault, Gang, Kernel, Load, Request, Setup, Source, Stream, World, percentile,
};
use runlist::{Interleave, Mode};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

/// In hundredths of a percent of the run.
fn share(world: &World, client: ClientId, card: usize) -> u64 {
    let used_ns = world.client_used_between(client, card, 0, world.now_ns());
    u64::try_from(u128::from(used_ns) * 10_000 / u128::from(world.now_ns())).unwrap_or(u64::MAX)
}

fn shares(world: &mut World, clients: &[ClientId], until_ns: u64) -> Vec<u64> {
    assert_eq!(world.run(until_ns), None);
    let time = world.runlist(0).time();
    assert_eq!(time.total_ns(), until_ns, "{time:?}");
    clients
        .iter()
        .map(|client| share(world, *client, 0))
        .collect()
}

#[track_caller]
fn near(what: &str, got: u64, expected: u64, tolerance: u64) {
    assert!(
        got.abs_diff(expected) <= tolerance,
        "{what}: {got}, expected {expected} +- {tolerance}"
    );
}

fn busy(count: usize, kernel_ns: u64, slice_ns: u64) -> (World, Vec<ClientId>) {
    let mut world = World::new(Setup::new(1, 1));
    let clients = (0..count)
        .map(|_| world.add_client(Client::busy(0, kernel_ns).slice(slice_ns)))
        .collect();
    (world, clients)
}

#[test]
fn e1_the_default_slice_loses_nine_percent_whatever_the_kernels() {
    for count in [2, 4, 10] {
        for (kernel_ns, loss) in [(50 * US, 880), (2 * MS, 890), (20 * MS, 890)] {
            let (mut world, clients) = busy(count, kernel_ns, 1_024 * US);
            let shares = shares(&mut world, &clients, 10 * S);
            near(
                &format!("loss of {count} with kernels of {kernel_ns} ns"),
                10_000 - shares.iter().sum::<u64>(),
                loss,
                20,
            );
        }
    }
}

#[test]
fn e1_longer_slices_lose_less() {
    for (slice_ns, loss) in [
        (200 * US, 3_300),
        (500 * US, 1_650),
        (1_024 * US, 890),
        (2 * MS, 460),
        (5 * MS, 170),
        (10 * MS, 80),
    ] {
        let (mut world, clients) = busy(2, 20 * MS, slice_ns);
        let shares = shares(&mut world, &clients, 10 * S);
        near(
            &format!("loss with slices of {slice_ns} ns"),
            10_000 - shares.iter().sum::<u64>(),
            loss,
            50,
        );
        near("the two are equal", shares[0], shares[1], 10);
    }
}

#[test]
fn e1_weights_follow_the_slices() {
    for base_ns in [500 * US, 1_000 * US, 2_000 * US] {
        for kernel_ns in [50 * US, 2 * MS, 20 * MS] {
            let mut world = World::new(Setup::new(1, 1));
            let clients: Vec<ClientId> = [1, 2, 5]
                .map(|weight| world.add_client(Client::busy(0, kernel_ns).slice(weight * base_ns)))
                .into();
            assert_eq!(world.run(20 * S), None);
            let used: Vec<u64> = clients
                .iter()
                .map(|client| world.client_used_between(*client, 0, 0, world.now_ns()))
                .collect();
            let sum: u64 = used.iter().sum();
            for (used, weight) in used.iter().zip([1, 2, 5]) {
                let expected = sum / 8 * weight;
                // 0.21 % of the share
                assert!(
                    used.abs_diff(expected) <= expected / 1_000 * 21 / 10,
                    "{used} for weight {weight} of {sum} at {base_ns}, kernels of {kernel_ns}"
                );
            }
        }
    }
}

#[test]
fn e1_kernels_that_run_to_their_end_take_what_they_need() {
    let mut world = World::new(Setup::new(1, 1));
    let long = world.add_client(Client::busy(0, 20 * MS).mode(Mode::Wfi));
    let short = world.add_client(Client::busy(0, MS).mode(Mode::Wfi));
    let shares = shares(&mut world, &[long, short], 20 * S);
    near("the long ones", shares[0], 9_000, 60);
    near("the short ones", shares[1], 900, 60);
}

#[test]
fn e8_equal_tenants_under_the_stock_scheduler() {
    for (slice_ns, sum) in [(1_024 * US, 9_110), (2 * MS, 9_520)] {
        for count in [4, 10] {
            let (mut world, clients) = busy(count, 20 * MS, slice_ns);
            let shares = shares(&mut world, &clients, 20 * S);
            near(
                &format!("{count} with {slice_ns} ns"),
                shares.iter().sum(),
                sum,
                50,
            );
        }
    }
}

/// The online program of E3: 50 requests a second of 40 kernels of 100 us.
const ONLINE: Load = Load::Poisson {
    interval_ns: 20 * MS,
    request: Request {
        kernels: 40,
        kernel: Kernel::of(100 * US),
    },
};

struct E3 {
    p50_ns: u64,
    p99_ns: u64,
    offline: u64,
    busy: u64,
}

fn e3(
    offline: usize,
    online_slice_ns: u64,
    offline_slice_ns: u64,
    level: Interleave,
    mode: Mode,
) -> E3 {
    let mut world = World::new(Setup::new(3, 1));
    let online = world.add_client(Client::new(0, ONLINE).slice(online_slice_ns));
    let others: Vec<ClientId> = (0..offline)
        .map(|_| world.add_client(Client::busy(0, 20 * MS).slice(offline_slice_ns).mode(mode)))
        .collect();
    if level != Interleave::Low {
        let agent = world.add_agent();
        let group = world.groups(online)[0].group;
        world.call(
            agent,
            0,
            runlist::world::Control::Interleave { group, level },
        );
        assert!(world.run(S).is_some());
    }
    assert_eq!(world.run(60 * S), None);
    let latencies = world.take_latencies(online);
    let offline = others.iter().map(|client| share(&world, *client, 0)).sum();
    E3 {
        p50_ns: percentile(&latencies, 500_000),
        p99_ns: percentile(&latencies, 990_000),
        offline,
        busy: offline + share(&world, online, 0),
    }
}

#[test]
fn e3_an_online_program_alone_and_beside_others() {
    let alone = e3(0, 1_024 * US, 1_024 * US, Interleave::Low, Mode::Cilp);
    near("p50 alone", alone.p50_ns, 4_060 * US, 20 * US);
    near("p99 alone", alone.p99_ns, 9_500 * US, 700 * US);
    let times = |other: &E3| other.p99_ns * 100 / alone.p99_ns;

    let native = e3(1, 1_024 * US, 1_024 * US, Interleave::Low, Mode::Cilp);
    near("native beside one", times(&native), 350, 40);
    let native = e3(1, 2 * MS, 2 * MS, Interleave::Low, Mode::Cilp);
    near("native beside one with 2 ms", times(&native), 320, 40);

    for (others, expected) in [(1, 102), (4, 106), (10, 117)] {
        let short = e3(others, S, 200 * US, Interleave::Low, Mode::Cilp);
        near(
            &format!("short slices, {others} offline"),
            times(&short),
            expected,
            5,
        );
        if others > 1 {
            near("lost with short slices", 10_000 - short.busy, 2_650, 60);
        }
    }
    for others in [4, 10] {
        let high = e3(others, S, MS, Interleave::High, Mode::Cilp);
        near(
            &format!("interleaved, {others} offline"),
            times(&high),
            106,
            5,
        );
        near("lost when interleaved", 10_000 - high.busy, 730, 50);
    }
    let whole = e3(1, S, 200 * US, Interleave::Low, Mode::Wfi);
    near(
        "p99 beside kernels that run to their end",
        times(&whole),
        270,
        30,
    );
    near(
        "p50 beside kernels that run to their end",
        whole.p50_ns * 100 / alone.p50_ns,
        350,
        30,
    );
    assert!(whole.offline > 7_000);
}

#[test]
fn e3_beside_four_under_the_stock_scheduler_the_queue_only_grows() {
    let first = |seconds: u64| {
        let mut world = World::new(Setup::new(3, 1));
        let online = world.add_client(Client::new(0, ONLINE));
        for _ in 0..4 {
            world.add_client(Client::busy(0, 20 * MS));
        }
        assert_eq!(world.run(seconds * S), None);
        percentile(&world.take_latencies(online), 990_000)
    };
    assert!(first(40) > first(10) * 2);
}

/// A program that is frozen for 70 of every 100 ms, in hundredths of a percent of the card.
fn e6(depth: u32, kernel_ns: u64) -> u64 {
    let mut world = World::new(Setup::new(6, 1));
    let client = world.add_client(Client::deep_queue(0, kernel_ns, depth));
    for window in 0..100 {
        world.inject(window * 100 * MS + 30 * MS, Fault::Freeze(client));
        world.inject((window + 1) * 100 * MS, Fault::Thaw(client));
    }
    assert_eq!(world.run(10 * S), None);
    share(&world, client, 0)
}

#[test]
fn e6_freezing_a_program_stops_only_what_it_has_not_queued() {
    near("with 0.8 ms queued", e6(8, 100 * US), 3_050, 50);
    let deep = e6(1_000, 100 * US);
    assert!(deep >= 9_850, "{deep} with 100 ms queued");
}

/// Progress of a gang of 8 steps of 4 ms with 0.5 ms of communication, in hundredths of a percent of the run, beside one busy competitor
/// on each card whose turns begin within `spread_ns`.
fn e4(seed: u64, ranks: usize, spread_ns: u64) -> u64 {
    let mut world = World::new(Setup::new(seed, ranks));
    let mut chance = Stream::new(seed, Source::Harness(0));
    let mut starts: Vec<(u64, usize)> = (0..ranks)
        .map(|card| (chance.below(spread_ns), card))
        .collect();
    starts.sort_unstable();
    for (at_ns, card) in starts {
        assert_eq!(world.run(at_ns), None);
        world.add_client(Client::busy(card, 2 * MS).slice(2 * MS));
    }
    assert_eq!(world.run(10 * MS), None);
    let gang = world.add_gang(Gang {
        cards: (0..ranks).collect(),
        compute: Kernel::of(4 * MS),
        reduce_ns: 500 * US,
        barrier_ns: 0,
        mode: Mode::Cilp,
        slice_ns: Some(2 * MS),
    });
    assert_eq!(world.run(10 * S), None);
    world.done(gang).requests * 4_500 * US * 10_000 / (10 * S)
}

#[test]
fn e4_a_gang_gets_on_only_where_its_turns_meet() {
    for ranks in [2, 4, 8] {
        near("all turns begin together", e4(1, ranks, 1), 4_760, 60);
    }
    let mean = |ranks| (0..8).map(|seed| e4(seed, ranks, 2 * MS)).sum::<u64>() / 8;
    let (two, four, eight) = (mean(2), mean(4), mean(8));
    assert!(
        two < 4_700 && four < two - 300 && eight < four - 300,
        "{two} {four} {eight}"
    );
}
