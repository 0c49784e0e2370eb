//! What all tests of one program share.

use std::sync::OnceLock;

use shim::runtime::Reaper;
use tokio::runtime::Runtime;
use ttrpc::r#async::TtrpcContext;

/// One runtime and one reaper for all tests: `waitpid(-1)` takes every child of the process, and what follows from an
/// end runs where it was seen.
pub(crate) fn world() -> &'static (Runtime, Reaper) {
    static WORLD: OnceLock<(Runtime, Reaper)> = OnceLock::new();
    WORLD.get_or_init(|| {
        nix::sys::prctl::set_child_subreaper(true).expect("a sub-reaper");
        let runtime = Runtime::new().expect("a runtime");
        let reaper = Reaper::default();
        drop(runtime.spawn(reaper.clone().run()));
        (runtime, reaper)
    })
}

pub(crate) fn context() -> TtrpcContext {
    TtrpcContext::default()
}
