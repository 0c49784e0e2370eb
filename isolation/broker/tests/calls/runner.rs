//! Runs the tests of an executable that has a `main` of its own, because it is started anew as something else, with libtest's words:
//! `[--list] [--test-threads=N] [PART OF A NAME]…`.
//!
//! Tests at a time run in processes of their own, not in threads: one changes the limits of its process, one counts its threads.

use std::panic::catch_unwind;
use std::process::{Child, Command, ExitCode};
use std::time::Instant;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

/// A test's name, and what it does.
pub(crate) type Test = (&'static str, fn());

/// Which tests a process started by another one runs: `I/N`, every `N`th from the `I`th on.
const PART: &str = "--part=";

/// Runs them all, or those whose name contains one of the program's arguments.
pub(crate) fn run(mut tests: Vec<Test>) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| arguments.iter().find_map(|one| one.strip_prefix(name));
    let names: Vec<&String> = arguments
        .iter()
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    tests.retain(|(test, _)| names.is_empty() || names.iter().any(|part| test.contains(*part)));
    if arguments.iter().any(|argument| argument == "--list") {
        for (name, _) in &tests {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    if let Some(part) = option(PART) {
        // Whoever ends a run that takes too long ends the process that it has started.
        set_pdeathsig(Signal::SIGKILL).unwrap();
        let (number, parts) = part.split_once('/').unwrap();
        let (number, parts): (usize, usize) = (number.parse().unwrap(), parts.parse().unwrap());
        return here(tests.into_iter().skip(number).step_by(parts));
    }
    if let Err(reason) = can_run() {
        println!("SKIP: {reason}");
        return ExitCode::SUCCESS;
    }
    let at_once = option("--test-threads=").map_or(1, |number| number.parse().unwrap());
    match at_once.min(tests.len()) {
        0 | 1 => here(tests.into_iter()),
        parts => in_parts(parts, &arguments),
    }
}

/// An error: why none of them can run on this machine.
fn can_run() -> Result<(), String> {
    sys::seccomp::supported().map_err(|error| format!("no user notification: {error}"))?;
    if !nix::unistd::geteuid().is_root() {
        return Err("not root".to_owned());
    }
    match std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope") {
        Ok(scope) if scope.trim() == "3" => Err("ptrace is off on this host".to_owned()),
        _ => Ok(()),
    }
}

/// Each part prints its own result: whoever counts adds them up.
fn in_parts(parts: usize, arguments: &[String]) -> ExitCode {
    let start = |number: usize| -> Child {
        Command::new(std::env::current_exe().unwrap())
            .arg(format!("{PART}{number}/{parts}"))
            .args(arguments)
            .spawn()
            .unwrap()
    };
    let children: Vec<Child> = (0..parts).map(start).collect();
    let mut have_failed = false;
    for mut child in children {
        have_failed |= !child.wait().unwrap().success();
    }
    ExitCode::from(u8::from(have_failed))
}

fn here(tests: impl Iterator<Item = Test>) -> ExitCode {
    let (mut passed, mut failed) = (0, 0);
    for (name, test) in tests {
        let start = Instant::now();
        let result = if catch_unwind(test).is_ok() {
            passed += 1;
            "ok"
        } else {
            failed += 1;
            "FAILED"
        };
        let took = start.elapsed().as_millis();
        println!("test {name} ... {result} ({took} ms)");
    }
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {result}. {passed} passed; {failed} failed; 0 ignored");
    ExitCode::from(u8::from(failed > 0))
}
