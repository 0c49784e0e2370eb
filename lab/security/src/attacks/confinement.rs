//! Other environments: filters, namespaces, roots and programs of the tenant's own.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sched::CloneFlags;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use serde_json::{Value, json};
use syscalls::probe::{Guard, PAGE_BYTES, Pages};

use crate::child::{self, GUISES};
use crate::kernel::OwnVerdict;
use crate::pace::PATIENCE;
use crate::seat::{ALLOC, Interrupted, New, Seat, allocated, new_handle};
use crate::tally::{PIECE_BYTES, Tally};
use crate::{Fixture, kernel};

/// A listener of the tenant's own would answer its calls past everybody else's.
pub(super) fn own_listener(fixture: &mut Fixture) -> Result<Value> {
    const NEW_LISTENER: u64 = 1 << 3;
    const TSYNC: u64 = 1;
    const TSYNC_ESRCH: u64 = 1 << 4;
    const WAIT_KILLABLE: u64 = 1 << 5;
    let mut answers = serde_json::Map::new();
    for (name, flags) in [
        ("listener", NEW_LISTENER),
        ("for all threads", NEW_LISTENER | TSYNC | TSYNC_ESRCH),
        ("killable", NEW_LISTENER | WAIT_KILLABLE),
        ("dirty", 1 << 33 | NEW_LISTENER),
    ] {
        let answer = match kernel::own_filter(OwnVerdict::Notify, flags) {
            Ok(_listener) => "installed".to_owned(),
            Err(errno) => format!("{errno:?}"),
        };
        answers.insert(name.to_owned(), answer.into());
    }
    let mut seat = Seat::take()?;
    let mut tally = Tally::default();
    tally.grab(fixture.quota_bytes, |bytes| seat.memory(bytes));
    fixture.keep(seat);
    Ok(json!({"answers": answers, "tally": tally.json()}))
}

/// Runs in a forked child and brings back what it counts; the child holds what it got.
fn in_child(
    fixture: &mut Fixture,
    body: impl FnOnce(&mut Tally) -> Result<()>,
) -> Result<(Tally, Option<String>)> {
    let counters = kernel::shared_counters()?;
    let [over, bytes, done, refused, ..] = counters;
    let path = fixture.out.join(format!("child-{}.txt", new_handle()));
    let reported = path.clone();
    let problem_file = std::fs::File::create(&path).context("make a file for a child")?;
    let child = kernel::fork(move || {
        child::end_with_parent();
        let mut tally = Tally::default();
        if let Err(error) = body(&mut tally) {
            // By the open file: the path may be out of reach by now.
            let written =
                std::io::Write::write_all(&mut &problem_file, format!("{error:#}").as_bytes());
            drop(written);
        }
        bytes.store(tally.bytes, Ordering::SeqCst);
        done.store(tally.done, Ordering::SeqCst);
        refused.store(tally.others.values().sum(), Ordering::SeqCst);
        over.store(1, Ordering::SeqCst);
        child::hold()
    })?;
    fixture.keep_child(child);
    let until = Instant::now() + PATIENCE;
    while over.load(Ordering::SeqCst) == 0 {
        anyhow::ensure!(Instant::now() < until, "a child did not come to its end");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut tally = Tally {
        bytes: bytes.load(Ordering::SeqCst),
        done: done.load(Ordering::SeqCst),
        ..Tally::default()
    };
    let refused = refused.load(Ordering::SeqCst);
    if refused > 0 {
        tally.others.insert("in the child".to_owned(), refused);
    }
    let problem = std::fs::read_to_string(reported).unwrap_or_default();
    Ok((tally, (!problem.is_empty()).then_some(problem)))
}

/// What a forked child holds until it is killed.
fn keep_for_ever(seat: Seat) {
    Box::leak(Box::new(seat));
}

/// Filters of the tenant's own, without a listener.
pub(super) fn own_filter(fixture: &mut Fixture) -> Result<Value> {
    let quota = fixture.quota_bytes;
    let mut seat = Seat::take()?;
    let mut all = Tally::default();
    let mut rows = Vec::new();
    for verdict in [OwnVerdict::Notify, OwnVerdict::Fail] {
        let (tally, problem) = in_child(fixture, |tally| {
            kernel::own_filter(verdict, 0)?;
            tally.grab(quota, |bytes| seat.memory(bytes));
            Ok(())
        })?;
        rows.push(
            json!({"under": format!("{verdict:?}"), "tally": tally.json(), "problem": problem}),
        );
        all.add(&tally);
    }
    all.grab(quota, |bytes| seat.memory(bytes));
    fixture.keep(seat);
    Ok(json!({"children": rows, "tally": all.json()}))
}

fn become_root_of_a_user_namespace(with: CloneFlags) -> Result<()> {
    let (uid, gid) = (nix::unistd::getuid(), nix::unistd::getgid());
    nix::sched::unshare(CloneFlags::CLONE_NEWUSER | with).context("unshare")?;
    std::fs::write("/proc/self/setgroups", "deny").context("write setgroups")?;
    std::fs::write("/proc/self/uid_map", format!("0 {uid} 1")).context("write uid_map")?;
    std::fs::write("/proc/self/gid_map", format!("0 {gid} 1")).context("write gid_map")?;
    Ok(())
}

/// Root, with all capabilities, of a user namespace of the tenant's own: with a seat from outside, and one from inside.
pub(super) fn user_namespace(fixture: &mut Fixture) -> Result<Value> {
    let quota = fixture.quota_bytes;
    let mut outside = Seat::take()?;
    let (mut tally, problem) = in_child(fixture, |tally| {
        become_root_of_a_user_namespace(CloneFlags::CLONE_NEWNS)?;
        tally.grab(quota / 4, |bytes| outside.memory(bytes));
        let mut seat = Seat::take()?;
        tally.grab(quota, |bytes| seat.memory(bytes));
        keep_for_ever(seat);
        Ok(())
    })?;
    tally.grab(quota, |bytes| outside.memory(bytes));
    fixture.keep(outside);
    Ok(json!({"problem": problem, "tally": tally.json()}))
}

/// What a container engine inside the container would set up.
pub(super) fn nested_namespaces(fixture: &mut Fixture) -> Result<Value> {
    use nix::mount::{MsFlags, mount};
    let quota = fixture.quota_bytes;
    let inner = kernel::shared_counters()?;
    let (tally, problem) = in_child(fixture, |tally| {
        let [over, bytes, done, ..] = inner;
        become_root_of_a_user_namespace(
            CloneFlags::CLONE_NEWNS
                | CloneFlags::CLONE_NEWPID
                | CloneFlags::CLONE_NEWNET
                | CloneFlags::CLONE_NEWIPC
                | CloneFlags::CLONE_NEWUTS
                | CloneFlags::CLONE_NEWCGROUP,
        )?;
        kernel::fork(|| {
            child::end_with_parent();
            let none: Option<&str> = None;
            // Some kernels refuse some of it to the unprivileged; the calls matter, not the mounts.
            let _private = mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none);
            let _proc = mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), none);
            let _tmp = mount(Some("tmpfs"), "/tmp", Some("tmpfs"), MsFlags::empty(), none);
            let mut tally = Tally::default();
            if let Ok(mut seat) = Seat::take() {
                tally.grab(quota, |bytes| seat.memory(bytes));
                keep_for_ever(seat);
            }
            bytes.store(tally.bytes, Ordering::SeqCst);
            done.store(tally.done, Ordering::SeqCst);
            over.store(1, Ordering::SeqCst);
            child::hold()
        })?;
        let until = Instant::now() + PATIENCE;
        while over.load(Ordering::SeqCst) == 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        tally.bytes = bytes.load(Ordering::SeqCst);
        tally.done = done.load(Ordering::SeqCst);
        Ok(())
    })?;
    Ok(json!({"problem": problem, "tally": tally.json()}))
}

/// Another root directory, where no node of the driver is, with the driver open from before.
pub(super) fn changed_root(fixture: &mut Fixture) -> Result<Value> {
    let quota = fixture.quota_bytes;
    let mut seat = Seat::take()?;
    let root = fixture.out.join("jail");
    std::fs::create_dir_all(&root).context("make a root")?;
    let (mut tally, problem) = in_child(fixture, |tally| {
        if nix::unistd::chroot(&root) == Err(Errno::EPERM) {
            become_root_of_a_user_namespace(CloneFlags::empty())?;
            nix::unistd::chroot(&root).context("chroot")?;
        }
        nix::unistd::chdir("/").context("chdir")?;
        anyhow::ensure!(!std::fs::exists("/dev")?, "this is the old root");
        tally.grab(quota, |bytes| seat.memory(bytes));
        Ok(())
    })?;
    tally.grab(quota, |bytes| seat.memory(bytes));
    fixture.keep(seat);
    Ok(json!({"problem": problem, "tally": tally.json()}))
}

/// The same program in every guise, all of them holding what they got at the same time.
pub(super) fn disguises(fixture: &mut Fixture) -> Result<Value> {
    let mut rows = Vec::new();
    let mut bytes = 0;
    for guise in GUISES {
        let reported = child::start(fixture, guise)?;
        bytes += reported["tally"]["held_bytes"].as_u64().unwrap_or(0);
        rows.push(json!({"guise": format!("{guise:?}"), "reported": reported}));
    }
    let tally = Tally {
        bytes,
        ..Tally::default()
    };
    Ok(json!({"guises": rows, "tally": tally.json()}))
}

/// A program that runs as its owner: the file stands ready in the report folder.
pub(super) fn setuid_exec(fixture: &mut Fixture) -> Result<Value> {
    let program = fixture.out.join("setuid");
    let mut child = Command::new(&program)
        .args([
            "grab",
            "--quota",
            &fixture.quota_bytes.to_string(),
            "--out",
            &fixture.out.display().to_string(),
        ])
        .process_group(0)
        .stdin(Stdio::null())
        .spawn()
        .with_context(|| format!("start {}", program.display()))?;
    fixture.keep_child(Pid::from_raw(child.id().cast_signed()));
    let until = Instant::now() + PATIENCE;
    loop {
        let found = std::fs::read_dir(&fixture.out)?.flatten().find(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with("grab-") && name.ends_with(".json")
        });
        if let Some(entry) = found {
            let reported: Value = serde_json::from_str(&std::fs::read_to_string(entry.path())?)?;
            let tally = reported["tally"].clone();
            return Ok(json!({"reported": reported, "tally": tally}));
        }
        anyhow::ensure!(Instant::now() < until, "the program tells nothing");
        anyhow::ensure!(child.try_wait()?.is_none(), "the program has ended");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Parameters on a page whose faults the tenant itself has to serve, and does not: whoever reads them could wait for ever.
pub(super) fn userfault_pages(fixture: &mut Fixture) -> Result<Value> {
    const USERFAULTFD: i64 = 323;
    const USER_MODE_ONLY: u64 = 1;
    const API: u64 = 0xc018_aa3f;
    const REGISTER: u64 = 0xc020_aa00;
    let mut seat = Seat::take()?;
    let mut way = "all faults";
    let file = kernel::call(USERFAULTFD, [0; 6]).or_else(|_errno| {
        way = "faults of user mode";
        kernel::call(USERFAULTFD, [USER_MODE_ONLY, 0, 0, 0, 0, 0])
    });
    let file = match file {
        Ok(number) => kernel::owned(number).context("a descriptor")?,
        Err(errno) => {
            return Ok(
                json!({"unavailable": format!("userfaultfd: {errno}"), "tally": Tally::default().json()}),
            );
        }
    };
    let number = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&file))?;
    let scratch = Pages::new(1, Guard::Closed)?;
    scratch.write(0, &0xaau64.to_le_bytes()).context("place")?;
    kernel::call(libc::SYS_ioctl, [number, API, scratch.address(), 0, 0, 0])?;
    let missing = Pages::new(4, Guard::Closed)?;
    let mut register = Vec::new();
    for word in [missing.address(), 4 * PAGE_BYTES as u64, 1, 0] {
        register.extend(word.to_le_bytes());
    }
    scratch.write(0, &register).context("place")?;
    kernel::call(
        libc::SYS_ioctl,
        [number, REGISTER, scratch.address(), 0, 0, 0],
    )?;
    // In children, so that a call that never ends can be given up.
    let address = missing.address();
    let mut ends = std::collections::BTreeMap::<String, u64>::new();
    let counters = kernel::shared_counters()?;
    let children: Vec<Pid> = (0..80)
        .map(|_child| {
            let seat = &mut seat;
            kernel::fork(move || {
                let new = New {
                    client: seat.client,
                    parent: seat.device,
                    handle: new_handle(),
                    class: nvabi::class::NV01_MEMORY_LOCAL_USER,
                };
                let mut argument = seat.allocation(new, &[]);
                nvabi::bytes::put_u64(&mut argument, nvabi::layout::nvos21::P_PARAMS, address);
                let number = seat.number;
                let answer = seat.spell(number, u64::from(ALLOC), &argument, Interrupted::Again);
                let [answered, ..] = counters;
                answered.fetch_add(1, Ordering::SeqCst);
                i32::from(allocated(answer, nvabi::layout::nvos64::STATUS).is_done())
            })
        })
        .collect::<std::io::Result<_>>()?;
    let [answered, ..] = counters;
    let until = Instant::now() + PATIENCE;
    while answered.load(Ordering::SeqCst) < 80 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    let in_time = answered.load(Ordering::SeqCst);
    for child in &children {
        // Most have ended.
        let _gone = nix::sys::signal::kill(*child, nix::sys::signal::Signal::SIGKILL);
        *ends
            .entry(format!("{:?}", waitpid(*child, None)?).replace(&child.to_string(), ""))
            .or_default() += 1;
    }
    let mut tally = Tally::default();
    tally.count(seat.memory(PIECE_BYTES), PIECE_BYTES);
    fixture.keep((seat, missing, file));
    Ok(json!({"way": way, "answered_of_80": in_time, "ends": ends, "tally": tally.json()}))
}
