//! Signals that end calls before their answers arrive.
//!
//! A program, or the kernel by SA_RESTART, makes the same call again; it must be executed once. Handles are left to the driver
//! to choose: a second execution is then refused by nobody, and shows in the card's account.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::pace::Pace;
use crate::seat::{Answer, Seat};
use crate::tally::Tally;
use crate::{Fixture, kernel};

const SMALL_BYTES: u64 = 64 << 10;
/// How long each storm lasts, and at most where calls end slowly: a busy machine lets few through between two signals.
const STORM: Duration = Duration::from_millis(1200);
/// Far more than one lucky call.
const ENOUGH: u64 = 40;

/// Allocates, and frees every second piece, until time or memory ends.
fn under_storm(fixture: &Fixture, seat: &mut Seat, tally: &mut Tally) {
    let storm = Pace::new(STORM, ENOUGH);
    let most = fixture.quota_bytes / SMALL_BYTES / 2;
    let mut turn = 0u64;
    while storm.goes_on(tally.done) && tally.bytes < most * SMALL_BYTES {
        let answer = seat.memory_chosen(SMALL_BYTES);
        tally.count(answer, SMALL_BYTES);
        turn += 1;
        if let Answer::Done(handle) = answer
            && turn.is_multiple_of(2)
        {
            let freed = seat.free(handle);
            if freed.is_done() {
                tally.bytes -= SMALL_BYTES;
            } else {
                tally.count(freed, 0);
            }
        }
    }
}

fn alarms(fixture: &mut Fixture, handler: fn(i32) -> std::io::Result<()>) -> Result<Value> {
    let mut seat = Seat::take()?;
    let mut tally = Tally::default();
    handler(Signal::SIGALRM as i32).context("set the handler")?;
    syscalls::alarm::interval_timer(150).context("start the timer")?;
    under_storm(fixture, &mut seat, &mut tally);
    syscalls::alarm::interval_timer(0).context("stop the timer")?;
    let repeats = seat.repeats;
    fixture.keep(seat);
    Ok(json!({"tally": tally.json(), "repeats": repeats}))
}

/// Alarms whose handlers let the kernel repeat.
pub(super) fn restarting_signals(fixture: &mut Fixture) -> Result<Value> {
    alarms(fixture, syscalls::alarm::restarts)
}

/// Alarms that end calls with EINTR, and a loop that makes them again.
pub(super) fn interrupting_signals(fixture: &mut Fixture) -> Result<Value> {
    alarms(fixture, sys::signal::interrupts)
}

/// A profiler: SIGPROF by CPU time, and from a second thread at the worst moments.
pub(super) fn profiling_signals(fixture: &mut Fixture) -> Result<Value> {
    let profiled = sys::signal::ThreadId::current();
    let signal = Signal::SIGPROF as i32;
    syscalls::alarm::restarts(signal).context("set the handler")?;
    let mut seat = Seat::take()?;
    let mut tally = Tally::default();
    let until = Instant::now() + STORM;
    let profiler = std::thread::spawn(move || {
        let mut sent = 0u64;
        while Instant::now() < until {
            sent += u64::from(profiled.signal(signal).is_ok());
            std::thread::sleep(Duration::from_micros(120));
        }
        sent
    });
    kernel::profiling_timer(1000)?;
    under_storm(fixture, &mut seat, &mut tally);
    kernel::profiling_timer(0)?;
    let sent = profiler.join().unwrap_or(0);
    fixture.keep(seat);
    Ok(json!({"tally": tally.json(), "sent": sent}))
}
