//! A GPU side that refuses, fails or is slow, and tells what was asked of it.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use shim::runtime::{Ended, Gpu, GpuError, GpuFault, GpuResult, Prepared, Rejected, Running};
use shim::task::{ContainerId, Pid};
use tokio::sync::Notify;

use crate::harness::runc_state;

/// What the verification says.
#[derive(Default, Clone, Copy)]
pub(crate) enum Verifies {
    #[default]
    Fine,
    Fails,
}

#[derive(Default)]
pub(crate) struct Fake {
    pub(crate) refuses: Option<GpuFault>,
    /// `create` waits until somebody sends.
    pub(crate) gate: Option<Mutex<std::sync::mpsc::Receiver<()>>>,
    pub(crate) entered: Notify,
    pub(crate) created: AtomicUsize,
    pub(crate) shares: Arc<Shares>,
}

/// What all shares do, and what became of them.
#[derive(Default)]
pub(crate) struct Shares {
    pub(crate) verifies: Verifies,
    /// Calls around runc's create and delete, in order.
    pub(crate) reported: Mutex<Vec<&'static str>>,
    pub(crate) releases_that_fail: AtomicUsize,
    pub(crate) released: AtomicUsize,
}

/// One container's share, in whatever state; the number of references to `shares` tells how many are held.
struct FakeShare {
    id: ContainerId,
    shares: Arc<Shares>,
}

impl Gpu for Fake {
    fn create(&self, _: &str, id: &ContainerId, _: &Path) -> GpuResult<Option<Box<dyn Prepared>>> {
        if let Some(fault) = self.refuses {
            let text = "no card has 9000 MiB free".to_owned();
            return Err(GpuError { fault, text });
        }
        if let (Some(gate), "slow") = (&self.gate, id.as_str()) {
            self.entered.notify_one();
            gate.lock().expect("the gate").recv().expect("go");
        }
        self.created.fetch_add(1, Ordering::SeqCst);
        Ok(Some(Box::new(FakeShare {
            id: id.clone(),
            shares: Arc::clone(&self.shares),
        })))
    }
}

impl Prepared for FakeShare {
    fn ready(&mut self) -> GpuResult<()> {
        Ok(())
    }

    fn verify_filter(self: Box<Self>, init: Pid) -> Result<Arc<dyn Running>, Rejected> {
        let stat = fs::read_to_string(format!("/proc/{init}/stat")).expect("init lives");
        self.tell("verify_filter");
        assert!(!stat.contains(") Z"), "{stat}");
        match self.shares.verifies {
            Verifies::Fine => Ok(Arc::<FakeShare>::from(self)),
            Verifies::Fails => Err((
                GpuError {
                    fault: GpuFault::Precondition,
                    text: "the driver's memory limit is not set".to_owned(),
                },
                self,
            )),
        }
    }

    fn ended(self: Box<Self>) -> Box<dyn Ended> {
        self
    }
}

impl Running for FakeShare {
    fn edit_exec(&self, _: &mut serde_json::Value) -> GpuResult<()> {
        Ok(())
    }

    fn edit_update(&self, resources: &mut serde_json::Value) {
        spec::edit::apply_to_update(resources, None);
    }

    fn teardown(&self) -> GpuResult<()> {
        self.torn_down()
    }

    fn ended(self: Arc<Self>) -> Box<dyn Ended> {
        Box::new(Arc::into_inner(self).expect("no call is under way"))
    }
}

impl Ended for FakeShare {
    fn teardown(&self) -> GpuResult<()> {
        self.torn_down()
    }

    fn release(&mut self) -> GpuResult<()> {
        let fails = |left: usize| left.checked_sub(1);
        let failed =
            self.shares
                .releases_that_fail
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails);
        self.shares.released.fetch_add(1, Ordering::SeqCst);
        match failed {
            Ok(_) => Err(GpuError {
                fault: GpuFault::Precondition,
                text: "cannot write the reservations of card 0".to_owned(),
            }),
            Err(_) => Ok(()),
        }
    }
}

impl FakeShare {
    fn tell(&self, what: &'static str) {
        self.shares
            .reported
            .lock()
            .expect("what was told")
            .push(what);
    }

    fn torn_down(&self) -> GpuResult<()> {
        // While runc still knows the container.
        let known = runc_state(self.id.as_str()).exists();
        self.tell(if known {
            "teardown"
        } else {
            "teardown without runc"
        });
        Ok(())
    }
}
