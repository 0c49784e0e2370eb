//! Strict mode without a card, and without a mock in its way: `cgpu-executor` makes real ioctls, which a filter on it brings to
//! a supervisor that plays the kernel's driver: it reads the executor's memory and descriptors as the kernel would, and
//! answers by the simulated cards. In front stand the broker's own workers and tenants under the real filter.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "the broker's tests use more of the tenant's side than these"
)]

#[path = "../../../broker/tests/calls/agent.rs"]
mod agent;
mod alone;
mod behind;
mod contexts;
mod fixture;
mod generations;
mod kernel;
#[path = "../../../broker/tests/calls/launch.rs"]
mod launch;
mod native;
mod numbers;
mod placed;
mod policies;
mod program;
mod programs;
#[path = "../../../broker/tests/calls/rm.rs"]
mod rm;
#[path = "../../../broker/tests/calls/runner.rs"]
mod runner;
mod share;
mod sums;
#[path = "../../../broker/tests/calls/tenant.rs"]
mod tenant;
mod views;

use std::process::ExitCode;
use std::time::Instant;

use runner::Test;

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(launch::ROLE) {
        let result = match role.as_str() {
            kernel::UNDER_A_FAKE_DRIVER => kernel::become_executor(),
            fixture::CLIENT => fixture::client(),
            programs::PLAYER => programs::player(),
            generations::WORKER => generations::worker(),
            _ => agent::main(&role),
        };
        // The supervisor may end first, which is none of the tenant's concern.
        return ExitCode::from(u8::from(result.is_err() && role == fixture::CLIENT));
    }
    let tests: Vec<Test> = [
        alone::TESTS,
        behind::TESTS,
        contexts::TESTS,
        generations::TESTS,
        native::TESTS,
        numbers::TESTS,
        placed::TESTS,
        policies::TESTS,
        programs::TESTS,
        share::TESTS,
        sums::TESTS,
        views::TESTS,
    ]
    .concat();
    runner::run(tests)
}

/// Waits for what happens in another thread or process.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + std::time::Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
