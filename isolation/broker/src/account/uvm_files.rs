//! What nvidia-uvm keeps of the host's memory with each file that is initialised.

use journal::Journal;
use ledger::Operation;
use nvabi::uvm;
use verdict::Op;

use super::{Account, Denied, JudgedCall};

impl Account {
    /// Before a file is initialised, by a call that the kernel executes: what the driver keeps with it is charged until it is closed, and nobody
    /// else keeps it. Nothing for other calls.
    ///
    /// # Errors
    /// The ledger's refusal, answered as the driver does where it has no memory.
    pub(crate) fn open_uvm_file(
        &self,
        journal: &Journal,
        call: &JudgedCall<'_>,
    ) -> Result<(), Denied> {
        if *call.op != Op::Uvm(&uvm::UVM_INITIALIZE) {
            return Ok(());
        }
        let uvm_file = ledger::FileId(call.origin.file.0);
        let opened = journal.change().ledger(Operation::OpenUvmFile { uvm_file });
        opened
            .map(drop)
            .map_err(|refusal| self.denied_by_ledger(call, refusal))
    }
}
