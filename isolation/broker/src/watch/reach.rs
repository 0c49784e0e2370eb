//! Whether the process that makes the container's calls answers: the executor of strict mode, or the simulator.
//!
//! Calls fail with EIO, and quota and grant stay as they are. The executor of a container cannot be replaced: the driver binds the
//! container's clients to it. A simulator that is started anew has none of the container's objects, and serves it once its programs
//! have closed the files that they had open.

use std::sync::atomic::Ordering;

use control::EventKind;
use driver::Binding;

use super::reported;
use crate::container::Container;

/// Takes note of how a request to the driver ended, and reports a change.
pub(super) fn take<T>(container: &Container, result: &Result<T, driver::Error>) {
    let reach = &container.health.reach;
    match result {
        Err(error) if error.is_unreachable() => {
            let why = reported(error);
            let mut reported = reach.lock();
            let before = reported.replace(why.clone());
            reach.is_lost.store(true, Ordering::SeqCst);
            drop(reported);
            if before.is_none() {
                let end = match container.driver.binding() {
                    Binding::None => "its programs are started again beside a simulator that runs",
                    Binding::Executor | Binding::Caller => "the container is started again",
                };
                let text = format!("calls fail with EIO until {end}: {why}");
                let health = &container.health;
                health.tell(container, EventKind::DriverUnreachable, text);
            }
        }
        Ok(_) if reach.is_lost.load(Ordering::Relaxed) => {
            let mut reported = reach.lock();
            let before = reported.take();
            reach.is_lost.store(false, Ordering::SeqCst);
            drop(reported);
            if let Some(why) = before {
                let text = format!("the driver answers again; before: {why}");
                let health = &container.health;
                health.tell(container, EventKind::DriverReachable, text);
            }
        }
        Ok(_) | Err(_) => {}
    }
}
