//! What a program asks of the driver, call by call, and where it is answered otherwise in a slice.
//!
//! A recording is made by tracing: a process sees its calls executed by the kernel or by a broker as it does without being watched, and
//! the recorder sees each answer. A listener of our own could not do both: where it lets the kernel execute a call, it never hears the
//! answer, and where it executes the call itself, the driver sees another process.

mod bytes;
mod call;
mod difference;
mod tracer;

pub(crate) use bytes::Bytes;
pub(crate) use call::{Answer, Call, What};
pub(crate) use difference::{differences, other_answers, unknown};
pub(crate) use tracer::{become_held, record};

#[cfg(test)]
mod tests;
