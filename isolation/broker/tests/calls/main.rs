//! The broker against real system calls: processes under the real filter, served by the real workers, in front of a driver
//! behind the trait that records what reaches it. No card and no engine is needed; root is.
//!
//! The tenants are this program started anew, hence a `main` instead of libtest's. `calls [--list] [PART OF A NAME]…`

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

mod agent;
mod bounds;
mod card_wide;
mod closed;
mod cpu_time;
mod doubt;
mod events;
mod exits;
mod exports;
mod fake;
mod fake_server;
mod faults;
mod files;
mod fixture;
mod health;
mod host;
mod in_doubt;
mod kept;
mod launch;
mod layouts;
mod loss;
mod managed;
mod mapped;
mod memory;
mod named;
mod neighbours;
mod pages;
mod provoked;
mod quota;
mod registered;
mod replace;
mod rm;
mod share;
mod signals;
mod still_charged;
mod strict;
mod tenant;

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::Instant;

type Test = (&'static str, fn());

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(launch::ROLE) {
        // The supervisor may end first, which is none of the tenant's concern.
        let _closed = agent::main(&role);
        return ExitCode::SUCCESS;
    }
    let needed: Vec<String> = std::env::args().skip(1).collect();
    if needed.iter().any(|argument| argument == "--serve") {
        // In the place of a broker: one that hangs at its start, until its supervisor ends.
        let _ended = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        return ExitCode::SUCCESS;
    }
    let tests: Vec<Test> = [
        quota::TESTS,
        card_wide::TESTS,
        closed::TESTS,
        doubt::TESTS,
        layouts::TESTS,
        pages::TESTS,
        named::TESTS,
        files::TESTS,
        memory::TESTS,
        loss::TESTS,
        managed::TESTS,
        still_charged::TESTS,
        mapped::TESTS,
        registered::TESTS,
        exits::TESTS,
        events::TESTS,
        exports::TESTS,
        health::TESTS,
        faults::TESTS,
        bounds::TESTS,
        host::TESTS,
        signals::TESTS,
        replace::TESTS,
        in_doubt::TESTS,
        share::TESTS,
        provoked::TESTS,
        cpu_time::TESTS,
        strict::TESTS,
        neighbours::TESTS,
    ]
    .concat();
    let is_needed = |name: &str| {
        let mut parts = needed
            .iter()
            .filter(|part| !part.starts_with('-'))
            .peekable();
        parts.peek().is_none() || parts.any(|part| name.contains(part.as_str()))
    };
    if needed.iter().any(|flag| flag == "--list") {
        for (name, _) in &tests {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    if let Err(reason) = fixture::can_run() {
        println!("SKIP: {reason}");
        return ExitCode::SUCCESS;
    }
    let (mut passed, mut failed) = (0, 0);
    for (name, test) in tests.into_iter().filter(|(name, _)| is_needed(name)) {
        let start = Instant::now();
        let result = if catch_unwind(test).is_ok() {
            passed += 1;
            "ok"
        } else {
            failed += 1;
            "FAILED"
        };
        println!(
            "test {name} ... {result} ({} ms)",
            start.elapsed().as_millis()
        );
    }
    let result = if failed == 0 { "ok" } else { "FAILED" };
    // As libtest says it, for whoever counts.
    println!("test result: {result}. {passed} passed; {failed} failed; 0 ignored");
    ExitCode::from(u8::from(failed > 0))
}
