//! Children: the same program under other names and other circumstances.

use std::ffi::CString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::capabilities;
use crate::pace::PATIENCE;
use crate::seat::Seat;
use crate::tally::Tally;
use crate::{Fixture, kernel};

/// How a further copy of the program is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guise {
    /// Without any environment.
    EmptyEnvironment,
    /// With libraries named that a preloading limiter would have to survive.
    PreloadNamed,
    /// As a renamed copy of the file.
    Renamed,
    /// From memory, without any file.
    Memory,
    /// In a session of its own, as a daemon whose parent has gone.
    Daemon,
    /// From a shell.
    Shell,
    /// As another user, where that is allowed.
    OtherUser,
}

/// The guises.
pub(crate) const GUISES: [Guise; 7] = [
    Guise::EmptyEnvironment,
    Guise::PreloadNamed,
    Guise::Renamed,
    Guise::Memory,
    Guise::Daemon,
    Guise::Shell,
    Guise::OtherUser,
];

/// The subcommands that only this program itself uses.
///
/// # Errors
/// The system's.
pub(crate) fn disguised(name: &str, fixture: &Fixture) -> Result<Option<ExitCode>> {
    match name {
        "grab" => grab(fixture).map(Some),
        capabilities::ASKING => capabilities::asking(fixture).map(|()| Some(ExitCode::SUCCESS)),
        // What a process turns into that calls exec in the middle of a call.
        "nothing" => Ok(Some(ExitCode::SUCCESS)),
        _ => Ok(None),
    }
}

/// Takes what it can get, tells it in a file of its own, and holds it until it is killed.
fn grab(fixture: &Fixture) -> Result<ExitCode> {
    let mut tally = Tally::default();
    let (mut kept, mut problem) = (None, None);
    match Seat::take() {
        Ok(mut seat) => {
            tally.grab(fixture.quota_bytes / 3, |bytes| seat.memory(bytes));
            kept = Some(seat);
        }
        Err(error) => problem = Some(format!("{error:#}")),
    }
    let document =
        json!({"tally": tally.json(), "problem": problem, "identity": crate::identity()});
    // The name is the one that others see: a file of `/proc` names the process in the namespace of its mount.
    let pid = std::fs::read_link("/proc/self").context("read /proc/self")?;
    crate::tell(
        &fixture.out,
        &format!("grab-{}.json", pid.display()),
        &document,
    )?;
    if problem.is_none() {
        // Until SIGKILL.
        crate::wait_for(Path::new("/nonexistent/never"));
    }
    drop(kept);
    Ok(ExitCode::SUCCESS)
}

/// Starts a copy that grabs, and waits for what it tells.
///
/// # Errors
/// A copy that could not be started.
pub(crate) fn start(fixture: &mut Fixture, guise: Guise) -> Result<Value> {
    let before = reports(fixture)?;
    let own = std::env::current_exe().context("find this program")?;
    let quota = fixture.quota_bytes.to_string();
    let out = fixture.out.display().to_string();
    let arguments = ["grab", "--quota", &quota, "--out", &out];
    let mut command = Command::new(&own);
    command.args(arguments).stdin(Stdio::null());
    match guise {
        Guise::EmptyEnvironment => {
            command.env_clear();
        }
        Guise::PreloadNamed => {
            command
                .env("LD_PRELOAD", "/usr/lib/libvgpu.so")
                .env("LD_AUDIT", "/x.so")
                .env("CUDA_DEVICE_MEMORY_LIMIT", "100g");
        }
        Guise::Renamed => {
            let copy = fixture.out.join("python3");
            std::fs::copy(&own, &copy).context("copy this program")?;
            command = Command::new(&copy);
            command.args(arguments).arg0("init").stdin(Stdio::null());
        }
        Guise::Memory => {
            let image = std::fs::read(&own).context("read this program")?;
            let file = memfd_create(c"", MFdFlags::empty()).context("make a memory file")?;
            nix::unistd::write(&file, &[]).context("write to it")?;
            let mut file = std::fs::File::from(file);
            std::io::Write::write_all(&mut file, &image).context("fill it")?;
            let words: Vec<CString> = std::iter::once("[kworker/0:1]")
                .chain(arguments)
                .filter_map(|word| CString::new(word).ok())
                .collect();
            let child = kernel::fork(move || {
                let none: [CString; 0] = [];
                match nix::unistd::fexecve(&file, &words, &none) {
                    Ok(never) => match never {},
                    Err(_failed) => 1,
                }
            })?;
            fixture.keep_child(child);
            return wait_for_report(fixture, &before);
        }
        Guise::Daemon => {
            let (own, arguments) = (own.clone(), arguments.map(str::to_owned));
            let middle = kernel::fork(move || {
                let _new = nix::unistd::setsid();
                let started = Command::new(&own)
                    .args(arguments)
                    .stdin(Stdio::null())
                    .spawn();
                i32::from(started.is_err())
            })?;
            nix::sys::wait::waitpid(middle, None)?;
            return wait_for_report(fixture, &before);
        }
        Guise::Shell => {
            let line = format!(
                "cd /; unset PATH; {} {}",
                own.display(),
                arguments.join(" ")
            );
            command = Command::new("/bin/sh");
            command
                .args(["-c", &line])
                .stdin(Stdio::null())
                .process_group(0);
        }
        Guise::OtherUser => {
            command.uid(65534).gid(65534);
        }
    }
    match command.spawn() {
        Ok(child) => {
            fixture.keep_child(Pid::from_raw(child.id().cast_signed()));
            wait_for_report(fixture, &before)
        }
        Err(error) => Ok(json!({"not_started": error.to_string()})),
    }
}

fn reports(fixture: &Fixture) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&fixture.out).context("list the reports")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with("grab-") && name.ends_with(".json") {
            names.push(name);
        }
    }
    Ok(names)
}

/// Waits for a report that was not there before, and notes its process for the end.
fn wait_for_report(fixture: &mut Fixture, before: &[String]) -> Result<Value> {
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        if let Some(name) = reports(fixture)?
            .into_iter()
            .find(|name| !before.contains(name))
        {
            let text = std::fs::read_to_string(fixture.out.join(&name)).context("read a report")?;
            let pid = name
                .trim_start_matches("grab-")
                .trim_end_matches(".json")
                .parse();
            if let Ok(pid) = pid {
                fixture.keep_child(Pid::from_raw(pid));
            }
            return serde_json::from_str(&text).context("a report is JSON");
        }
        anyhow::ensure!(
            std::time::Instant::now() < until,
            "a copy of this program reports nothing"
        );
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// In a forked child: end with the parent.
pub(crate) fn end_with_parent() {
    // It cannot fail for a signal that exists.
    let _set = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
}

/// In a forked child: do nothing until killed.
pub(crate) fn hold() -> i32 {
    loop {
        nix::unistd::pause();
    }
}
