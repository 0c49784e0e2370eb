//! Chaos: hostile tenants of every kind in ten containers, and trouble for the processes that hold them, all at once.
//!
//! ```text
//! attackers  an attack after the other, drawn at random     ─┐
//! neighbours allocate, read their pattern, and report        │  a node with two simulated cards
//! trouble    kill -9 of our processes, a full state folder,  │  and a private containerd
//!            edits of the configuration                      │
//! watch      the cards' own account against every quota     ─┘
//! ```
//!
//! Nothing may be above its quota at any sample, a neighbour has no error and goes on, and at the end the ledgers equal the
//! cards' account and what the processes' own tables say of managed memory; then everything is removed and nothing is left.
//!
//! `cargo xtask long chaos` runs it for an hour. `CGPU_CHAOS_SECONDS` says how long it goes on, 45 s without it; `CGPU_CHAOS_AT_ONCE`
//! how many of the ten attack at a time. `CGPU_CHAOS_SEED` repeats the draws of a run, as far as two cores repeat anything.

mod trouble;
mod watch;
mod world;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use integration::packages::Suite;
use integration::{rig, skip};
use world::World;

/// A form of it for every change; an hour of it is for `cargo xtask long chaos`.
const SECONDS: u64 = 45;
/// What two cores can serve: a neighbour that does not get a processor proves nothing of its broker.
const AT_ONCE: u64 = 3;

fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn nothing_is_above_a_quota_and_nothing_is_left_after_chaos() -> Result<()> {
    let seconds = given("CGPU_CHAOS_SECONDS").unwrap_or(SECONDS);
    let rig = match rig::start(Suite::Host)? {
        Ok(rig) => rig,
        Err(reason) => skip!(
            "nothing_is_above_a_quota_and_nothing_is_left_after_chaos",
            "{reason}"
        ),
    };
    let drawn = u64::from(std::process::id()) << 20 | u64::from(rig.containerd.pid().unwrap_or(1));
    let seed = given("CGPU_CHAOS_SEED").unwrap_or(drawn);
    let lasts = Duration::from_secs(seconds);
    println!("chaos for {} s, seed {seed}", lasts.as_secs());
    let world = World::new(rig, seed, given("CGPU_CHAOS_AT_ONCE").unwrap_or(AT_ONCE))?;
    let until = Instant::now() + lasts;
    let ended = std::thread::scope(|scope| -> Result<()> {
        // Daemons and `ctr` end with the thread that started them: this one outlives them all.
        let watching = scope.spawn(|| watch::watch(&world));
        let troubles = scope.spawn(|| trouble::make(&world, until));
        let attacking: Vec<_> = world
            .attackers()
            .enumerate()
            .map(|(place, guest)| {
                let world = &world;
                scope.spawn(move || world.attack_until(guest, place, until))
            })
            .collect();
        let mut failed = Vec::new();
        for thread in attacking {
            failed.extend(joined(thread));
        }
        failed.extend(joined(troubles));
        // The attackers hold what they can get while the account is taken.
        failed.extend(world.account_is_right_while_held().err());
        world.stop();
        failed.extend(joined(watching));
        // The cause is not always the first that is heard of.
        for error in failed.iter().skip(1) {
            eprintln!("another failure: {error:#}");
        }
        match failed.into_iter().next() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    });
    let summary = world.summary();
    println!("{summary}");
    ended?;
    ensure!(
        summary.is_worth_something(lasts),
        "too little has happened: {summary}"
    );
    if let Some(file) = std::env::var_os("CGPU_CHAOS_SUMMARY") {
        std::fs::write(file, summary.to_string())?;
    }
    world.end()
}

fn joined(thread: std::thread::ScopedJoinHandle<'_, Result<()>>) -> Option<anyhow::Error> {
    match thread.join() {
        Ok(done) => done.err(),
        Err(_) => Some(anyhow::anyhow!("a thread of the run panicked")),
    }
}
