//! The broker against real system calls: processes under the real filter, served by the real workers, in front of a driver
//! behind the trait that records what reaches it. No card and no engine is needed; root is.
//!
//! The tenants are this program started anew, hence a `main` instead of libtest's, with its words (`runner`).

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

mod agent;
mod bounds;
mod card_wide;
mod closed;
mod cpu_time;
mod doorbells;
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
mod runner;
mod share;
mod signals;
mod still_charged;
mod strict;
mod tenant;

use std::process::ExitCode;

use runner::Test;

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(launch::ROLE) {
        // The supervisor may end first, which is none of the tenant's concern.
        let _closed = agent::main(&role);
        return ExitCode::SUCCESS;
    }
    if std::env::args().any(|argument| argument == "--serve") {
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
        doorbells::TESTS,
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
    runner::run(tests)
}
