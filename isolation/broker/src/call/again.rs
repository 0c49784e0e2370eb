//! A call of compat mode that a former broker had begun.
//!
//! The former broker's own thread made it, if it was made: nobody remembers the answer, and it is made again. What comes of that does not
//! say what had come of the first time. A handle that the caller has chosen may be refused because the first time has made it; so a call
//! that fails may have been made all the same, and what it had reserved stays charged. An object that is not there to be freed has been
//! freed. Where the driver would choose the handle, the second time would make a second object: such a call is not made again.

use driver::{Attempt, Binding, Segment};
use nvabi::Release;
use nvabi::bytes::{put_u32, u32_at};
use nvabi::status::{NV_ERR_OBJECT_NOT_FOUND, NV_OK};
use verdict::Effect;

use super::admit::Request;
use super::execute::ExecutedCall;

/// Whether the call may have been made before, and nobody knows what came of it.
pub(super) fn is_made_again(attempt: Attempt, binding: Binding) -> bool {
    attempt == Attempt::Again && binding == Binding::Caller
}

/// Whether the driver chooses the handle of what the call makes.
pub(super) fn has_no_handle(request: &Request<'_>, before: &[Segment]) -> bool {
    request.judged(before, None).new_handle() == Some(0)
}

impl ExecutedCall<'_> {
    /// Judges what came of a call that was made again.
    pub(super) fn judge_repetition(&mut self, release: Release) {
        let status_at = self.request.op.status_at(release);
        if let (Effect::Free { .. }, Some(at), Some(first)) = (
            &self.request.effect,
            status_at,
            self.result.after.first_mut(),
        ) && self.result.ret >= 0
            && u32_at(&first.bytes, at) == Some(NV_ERR_OBJECT_NOT_FOUND)
        {
            put_u32(&mut first.bytes, at, NV_OK);
        }
        if !self.has_succeeded(release) {
            let call = self.request.op.name();
            tracing::warn!(%call, "a former broker may have made this call: what it takes stays charged");
            self.is_in_doubt = true;
        }
    }
}
