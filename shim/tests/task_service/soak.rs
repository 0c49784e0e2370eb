//! Execs without end: nothing grows.

use std::fs;

use crate::engine::*;
use crate::harness::need_runc;
use crate::streams::private_kib;

/// What a shim holds.
#[derive(Debug)]
struct Held {
    private_kib: u64,
    rss_kib: u64,
    descriptors: usize,
    threads: usize,
    children: usize,
    in_bundle: usize,
}

impl Held {
    fn by(shim: u32, bundle: &std::path::Path) -> Self {
        let entries = |path: String| fs::read_dir(path).expect("a folder").count();
        let status = fs::read_to_string(format!("/proc/{shim}/status")).expect("the status");
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let rss = rss.and_then(|rss| rss.split_whitespace().next()?.parse().ok());
        let children = fs::read_to_string(format!("/proc/{shim}/task/{shim}/children"));
        Self {
            private_kib: private_kib(shim),
            rss_kib: rss.expect("a number"),
            descriptors: entries(format!("/proc/{shim}/fd")),
            threads: entries(format!("/proc/{shim}/task")),
            children: children.expect("children").split_whitespace().count(),
            in_bundle: fs::read_dir(bundle).expect("the bundle").count(),
        }
    }
}

/// Runs execs of every kind of stream, several at a time, and compares what the shim holds before and after.
async fn soak(id: &'static str, execs: usize, may_grow_kib: u64) {
    const LANES: usize = 4;
    let engine = Engine::new().await;
    let (task, socket) = engine.running(id).await;
    let shim = shim_pid(&task, id).await;
    let log = format!("file://{}", engine.path("log").display());
    let run = async |from: usize, to: usize| {
        let lanes = (0..LANES).map(|lane| {
            let (task, log) = (task.clone(), log.clone());
            tokio::spawn(async move {
                for number in (from..to).filter(|number| number % LANES == lane) {
                    let io = match number % 3 {
                        0 => Io::default(),
                        1 => Io::out(&log),
                        _ => Io::terminal(""),
                    };
                    let exec = format!("e{number}");
                    assert_eq!(run_exec(&task, id, &exec, "echo x; exit 1", io).await, 1);
                }
            })
        });
        for lane in lanes.collect::<Vec<_>>() {
            lane.await.expect("all execs of a lane");
        }
    };
    let held = || Held::by(shim, &engine.path(id));
    let settled = |what| {
        let held = &held;
        // Threads that have nothing to do end after a second.
        until(what, move || {
            let held = held();
            held.threads == 1 && held.children == 1
        })
    };
    run(0, 20).await;
    settled("idle after 20 execs").await;
    let twenty = held();
    println!(
        "after 20 execs:  {} KiB resident, {twenty:?}",
        twenty.rss_kib
    );
    assert!(twenty.private_kib <= 5 * 1024, "{twenty:?}");
    run(20, 100).await;
    settled("idle after warming up").await;
    let before = held();
    println!("after 100 execs: {before:?}");
    run(100, 100 + execs).await;
    settled("idle at the end").await;
    let after = held();
    println!("after {} execs: {after:?}", 100 + execs);
    assert_eq!(
        (after.descriptors, after.in_bundle),
        (before.descriptors, before.in_bundle)
    );
    let grown = after.private_kib.saturating_sub(before.private_kib);
    assert!(grown <= may_grow_kib, "{grown} KiB: {before:?} {after:?}");
    end(&task, id, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn execs_leave_nothing_in_the_shim() {
    need_runc!();
    soak("soak", 200, 512).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "takes a quarter of an hour: cargo test -p cgpu-shim --release --test task_service soak -- --ignored --nocapture"]
async fn ten_thousand_execs_leave_nothing_in_the_shim() {
    need_runc!();
    soak("long-soak", 10_000, 512).await;
}
