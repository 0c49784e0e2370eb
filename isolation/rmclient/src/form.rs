//! The two structs of RM_ALLOC.

/// Which struct of RM_ALLOC is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `NVOS21_PARAMETERS`, 32 bytes.
    Short,
    /// `NVOS64_PARAMETERS`, 48 bytes.
    Long,
}
