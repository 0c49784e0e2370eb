//! Whose memory it is that nvidia-uvm takes of the host for a call: pages that UVM_MIGRATE and UVM_UNREGISTER_GPU bring there, and semaphore
//! pools.
//!
//! It is charged to the control group of the process that the file was initialised in, as long as a second file keeps that process's memory
//! (UVM_MM_INITIALIZE); to the host's, where the process has ended or is another program since, and not more then than is charged of its card
//! ([`crate::initialised`]). Where none does it is charged to nobody; where the file was initialised for several processes, to whoever executes the
//! call: the vGPU's own processes, whose group such pages fill until the kernel ends the broker (`uvm_va_space_mm_or_current_retain`,
//! uvm_va_space_mm.c). UVM_INITIALIZE is the caller's own call, which the kernel reads a second time, so what the file really is is asked of the
//! driver each time, by a UVM_MM_INITIALIZE of the broker's own: NV_ERR_INVALID_STATE where a second file is there already (uvm.c,
//! `uvm_api_mm_initialize`), which NVIDIA's library has at once. What had none is given one here for a moment, and takes no more work after that.
//! One question at a time: another one would meet the first one's file. Without a second file the driver registers no address space of a card
//! either; one for several processes does without, so that this is asked there too: no card can have pages of such a file.

use driver::Binding;
use nvabi::status::{self, NV_ERR_INVALID_STATE};
use nvabi::uvm;
use verdict::{Effect, Op, Pages, Registered};

use super::NotifiedCall;
use crate::account::{Denied, JudgedCall, Why};
use crate::files::OpenFile;
use crate::second_file;

impl NotifiedCall<'_> {
    /// Whether the host's pages that a call takes are charged to a process of the container's.
    ///
    /// # Errors
    /// [`Why::ChargedElsewhere`], answered as the driver answers where a process is gone.
    pub(super) fn check_mm(&self, call: &JudgedCall<'_>, file: &OpenFile) -> Result<(), Denied> {
        let driver = &self.container.driver;
        let takes_pages = matches!(
            call.effect,
            Effect::Pages(Pages::Moved)
                | Effect::Pool { .. }
                | Effect::Register {
                    what: Registered::Space,
                    ..
                }
        ) || *call.op == Op::Uvm(&uvm::UVM_UNREGISTER_GPU);
        if !takes_pages || driver.binding() == Binding::None {
            return Ok(());
        }
        let found = match second_file::answer(driver, file) {
            Ok(Some(NV_ERR_INVALID_STATE)) => return Ok(()),
            Ok(Some(status)) => format!("UVM_MM_INITIALIZE gives {status:#x}"),
            Ok(None) => "the driver does not answer UVM_MM_INITIALIZE".to_owned(),
            Err(error) => error.to_string(),
        };
        let status = status::NV_ERR_PAGE_TABLE_NOT_AVAIL;
        Err(Denied {
            refusal: call.op.refuse(status, driver.release),
            why: Why::ChargedElsewhere(found),
        })
    }
}
