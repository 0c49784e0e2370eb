//! How a call of a tenant's is refused: by a status of the driver's own.

/// An `NV_STATUS` that is not `NV_OK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal(pub(crate) u32);
