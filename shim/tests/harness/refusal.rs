//! How a refusal is read.

use ttrpc::Code;

/// The code and text of what must be a refusal.
pub(crate) fn code<T: std::fmt::Debug>(result: ttrpc::Result<T>) -> (Code, String) {
    match result {
        Err(ttrpc::Error::RpcStatus(status)) => (status.code(), status.message),
        other => panic!("not a status: {other:?}"),
    }
}
