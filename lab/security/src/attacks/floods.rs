//! Too much of everything.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::resource::{Resource, getrlimit};
use nvabi::bytes;
use nvabi::class::RM_USER_SHARED_DATA;
use serde_json::{Value, json};

use crate::pace::Pace;
use crate::seat::{Answer, Calls, Seat, new_handle, open};
use crate::tally::Tally;
use crate::{Fixture, child, kernel};

const SMALL_BYTES: u64 = 64 << 10;

/// Far more threads in calls than anybody has workers: all begin at once, and each makes a call at least.
pub(super) fn thread_flood(fixture: &mut Fixture) -> Result<Value> {
    const THREADS: usize = 300;
    const FLOOD: Duration = Duration::from_millis(800);
    let seat = Seat::take()?;
    let (number, client, device) = (seat.number, seat.client, seat.device);
    let gate = Arc::new(Barrier::new(THREADS));
    let (done, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let threads: Vec<_> = (0..THREADS)
        .map(|_thread| {
            let (done, failed) = (Arc::clone(&done), Arc::clone(&failed));
            let gate = Arc::clone(&gate);
            std::thread::Builder::new()
                .stack_size(128 << 10)
                .spawn(move || -> Result<()> {
                    let calls = Calls::on(number);
                    gate.wait();
                    let mut calls = calls?;
                    let pace = Pace::new(FLOOD, 1);
                    for _call in (0..).take_while(|made| pace.goes_on(*made)) {
                        let handle = new_handle();
                        let made = calls.memory_as(client, device, handle, SMALL_BYTES);
                        let counter = if made.is_done() { &done } else { &failed };
                        counter.fetch_add(1, Ordering::Relaxed);
                        if made.is_done() && !calls.free_as(client, device, handle).is_done() {
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    Ok(())
                })
        })
        .collect::<std::io::Result<_>>()?;
    let started = threads.len();
    for thread in threads {
        if let Ok(ended) = thread.join() {
            ended?;
        }
    }
    fixture.keep(seat);
    Ok(json!({
        "threads": started, "done": done.load(Ordering::Relaxed), "failed": failed.load(Ordering::Relaxed),
        "tally": Tally::default().json(),
    }))
}

/// A hundred calls at once that the driver does not end for a while.
pub(super) fn blocked_calls(fixture: &mut Fixture) -> Result<Value> {
    const CALLS: usize = 100;
    let seat = Seat::take()?;
    let (number, client, device) = (seat.number, seat.client, seat.device);
    crate::tell(&fixture.out, "seated", &json!({}))?;
    crate::wait_for(&fixture.out.join("hangs"));
    let threads: Vec<_> = (0..CALLS)
        .map(|_thread| {
            std::thread::Builder::new()
                .stack_size(128 << 10)
                .spawn(move || -> Result<bool> {
                    let mut calls = Calls::on(number)?;
                    let made = calls.memory_as(client, device, new_handle(), SMALL_BYTES);
                    Ok(made.is_done())
                })
        })
        .collect::<std::io::Result<_>>()?;
    let mut tally = Tally::default();
    for thread in threads {
        if let Ok(made) = thread.join() {
            let answer = if made? {
                Answer::Done(0)
            } else {
                Answer::Status(0)
            };
            tally.count(answer, SMALL_BYTES);
        }
    }
    fixture.keep(seat);
    Ok(json!({"tally": tally.json()}))
}

/// A thousand open files of the driver, by three processes, and each of them used.
pub(super) fn file_flood(fixture: &mut Fixture) -> Result<Value> {
    let counters = kernel::shared_counters()?;
    let [ready, files, refused, ..] = counters;
    let (soft, _hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    for _process in 0..3 {
        let process = kernel::fork(move || {
            child::end_with_parent();
            let mut held = Vec::new();
            while let Ok(file) = open("nvidiactl") {
                held.push(file);
                if held.len() >= 330 {
                    break;
                }
            }
            for file in &held {
                let number = std::os::fd::AsRawFd::as_raw_fd(file);
                let Ok(mut calls) = Calls::on(number) else {
                    break;
                };
                let new = crate::seat::New {
                    client: 0,
                    parent: 0,
                    handle: 0,
                    class: nvabi::class::NV01_ROOT_CLIENT,
                };
                let counter = if calls.object(new, &[]).is_done() {
                    files
                } else {
                    refused
                };
                counter.fetch_add(1, Ordering::SeqCst);
            }
            ready.fetch_add(1, Ordering::SeqCst);
            child::hold()
        })?;
        fixture.keep_child(process);
    }
    let until = Instant::now() + Duration::from_secs(40);
    while ready.load(Ordering::SeqCst) < 3 {
        anyhow::ensure!(Instant::now() < until, "the files are not all used");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(json!({
        "limit": soft, "used": files.load(Ordering::SeqCst), "refused": refused.load(Ordering::SeqCst),
        "tally": Tally::default().json(),
    }))
}

/// Clients without end on one file.
pub(super) fn client_flood(fixture: &mut Fixture) -> Result<Value> {
    let mut seat = Seat::take()?;
    let mut tally = Tally::default();
    for _client in 0..5000 {
        tally.count(seat.client_on(), 0);
    }
    fixture.keep(seat);
    Ok(json!({"clients": tally.json(), "tally": Tally::default().json()}))
}

/// Pages of a card's figures, each with figures that are to be polled: the driver may walk all objects of the host when one is made or freed.
pub(super) fn figures_flood(fixture: &mut Fixture) -> Result<Value> {
    let mut seat = Seat::take()?;
    let mut params = [0; 8];
    bytes::put_u64(&mut params, 0, 1);
    let mut tally = Tally::default();
    for _page in 0..200 {
        tally.count(seat.make(seat.subdevice, RM_USER_SHARED_DATA, &params), 0);
    }
    fixture.keep(seat);
    Ok(json!({"figures": tally.json(), "tally": Tally::default().json()}))
}

/// Calls that are refused, as fast as four threads can make them.
pub(super) fn refused_flood(fixture: &mut Fixture) -> Result<Value> {
    let seat = Seat::take()?;
    let (number, target) = (seat.number, seat.own(seat.subdevice));
    let began = Instant::now();
    let pace = Pace::new(Duration::from_millis(1000), 20);
    let threads: Vec<_> = (0..4)
        .map(|_thread| {
            std::thread::spawn(move || -> Result<u64> {
                let mut calls = Calls::on(number)?;
                let mut refused = 0;
                while pace.goes_on(refused) {
                    let answer = calls.control(target, 0x2080_fffe, 0, &[0; 8]);
                    refused += u64::from(matches!(answer, Answer::Status(_)));
                }
                Ok(refused)
            })
        })
        .collect();
    let mut refused = 0;
    for thread in threads {
        if let Ok(count) = thread.join() {
            refused += count?;
        }
    }
    fixture.keep(seat);
    let millis = u64::try_from(began.elapsed().as_millis())
        .unwrap_or(1)
        .max(1);
    Ok(
        json!({"refused": refused, "per_second": refused * 1000 / millis, "tally": Tally::default().json()}),
    )
}
