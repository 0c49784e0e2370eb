//! The driver's status codes by name.

use std::fmt;

/// An `NV_STATUS` code (`nvstatuscodes.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Status(pub u32);

impl Status {
    /// `NV_OK`
    pub const OK: Self = Self(nvabi::status::NV_OK);
    /// `NV_ERR_NO_MEMORY`
    pub const NO_MEMORY: Self = Self(nvabi::status::NV_ERR_NO_MEMORY);

    /// `NV_ERR_GPU_IS_LOST`
    pub const GPU_IS_LOST: Self = Self(nvabi::status::NV_ERR_GPU_IS_LOST);
    /// `NV_ERR_RC_ERROR`: a fault has ended the channel.
    pub const RC_ERROR: Self = Self(0x60);

    /// The driver's name; `None` for a code that its headers of 580.105.08 do not have, or that no call here can meet.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        NAMES
            .iter()
            .find(|(code, _)| *code == self.0)
            .map(|(_, name)| *name)
    }

    /// The code of a name that [`Status::name`] gives.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let found = NAMES.iter().find(|(_, known)| *known == name);
        found.map(|(code, _)| Self(*code))
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({:#x})", self.0),
            None => write!(f, "status {:#x}", self.0),
        }
    }
}

const NAMES: &[(u32, &str)] = &[
    (0x00, "NV_OK"),
    (0x02, "NV_ERR_BUFFER_TOO_SMALL"),
    (0x03, "NV_ERR_BUSY_RETRY"),
    (0x05, "NV_ERR_CARD_NOT_PRESENT"),
    (0x0f, "NV_ERR_GPU_IS_LOST"),
    (0x10, "NV_ERR_GPU_IN_FULLCHIP_RESET"),
    (0x12, "NV_ERR_GPU_UUID_NOT_FOUND"),
    (0x16, "NV_ERR_ILLEGAL_ACTION"),
    (0x17, "NV_ERR_IN_USE"),
    (0x19, "NV_ERR_INSERT_DUPLICATE_NAME"),
    (0x1a, "NV_ERR_INSUFFICIENT_RESOURCES"),
    (0x1b, "NV_ERR_INSUFFICIENT_PERMISSIONS"),
    (0x1d, "NV_ERR_INVALID_ACCESS_TYPE"),
    (0x1e, "NV_ERR_INVALID_ADDRESS"),
    (0x1f, "NV_ERR_INVALID_ARGUMENT"),
    (0x20, "NV_ERR_INVALID_BASE"),
    (0x21, "NV_ERR_INVALID_CHANNEL"),
    (0x22, "NV_ERR_INVALID_CLASS"),
    (0x23, "NV_ERR_INVALID_CLIENT"),
    (0x24, "NV_ERR_INVALID_COMMAND"),
    (0x25, "NV_ERR_INVALID_DATA"),
    (0x26, "NV_ERR_INVALID_DEVICE"),
    (0x29, "NV_ERR_INVALID_FLAGS"),
    (0x2a, "NV_ERR_INVALID_FUNCTION"),
    (0x2c, "NV_ERR_INVALID_INDEX"),
    (0x2e, "NV_ERR_INVALID_LIMIT"),
    (0x31, "NV_ERR_INVALID_OBJECT"),
    (0x33, "NV_ERR_INVALID_OBJECT_HANDLE"),
    (0x34, "NV_ERR_INVALID_OBJECT_NEW"),
    (0x35, "NV_ERR_INVALID_OBJECT_OLD"),
    (0x36, "NV_ERR_INVALID_OBJECT_PARENT"),
    (0x37, "NV_ERR_INVALID_OFFSET"),
    (0x38, "NV_ERR_INVALID_OPERATION"),
    (0x39, "NV_ERR_INVALID_OWNER"),
    (0x3a, "NV_ERR_INVALID_PARAM_STRUCT"),
    (0x3b, "NV_ERR_INVALID_PARAMETER"),
    (0x3d, "NV_ERR_INVALID_POINTER"),
    (0x3f, "NV_ERR_INVALID_REQUEST"),
    (0x40, "NV_ERR_INVALID_STATE"),
    (0x51, "NV_ERR_NO_MEMORY"),
    (0x54, "NV_ERR_NOT_COMPATIBLE"),
    (0x55, "NV_ERR_NOT_READY"),
    (0x56, "NV_ERR_NOT_SUPPORTED"),
    (0x57, "NV_ERR_OBJECT_NOT_FOUND"),
    (0x58, "NV_ERR_OBJECT_TYPE_MISMATCH"),
    (0x59, "NV_ERR_OPERATING_SYSTEM"),
    (0x5b, "NV_ERR_OUT_OF_RANGE"),
    (0x5e, "NV_ERR_PID_NOT_FOUND"),
    (0x60, "NV_ERR_RC_ERROR"),
    (0x62, "NV_ERR_RESET_REQUIRED"),
    (0x63, "NV_ERR_STATE_IN_USE"),
    (0x64, "NV_ERR_SIGNAL_PENDING"),
    (0x65, "NV_ERR_TIMEOUT"),
    (0x66, "NV_ERR_TIMEOUT_RETRY"),
    (0x68, "NV_ERR_UVM_ADDRESS_IN_USE"),
    (0x6e, "NV_ERR_RESOURCE_LOST"),
    (0xffff, "NV_ERR_GENERIC"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_ascend_and_agree_with_the_abi_crate() {
        assert!(NAMES.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(Status::NO_MEMORY.to_string(), "NV_ERR_NO_MEMORY (0x51)");
        assert_eq!(
            Status(nvabi::status::NV_ERR_INVALID_CLIENT).name(),
            Some("NV_ERR_INVALID_CLIENT")
        );
        assert_eq!(Status(0x1234).to_string(), "status 0x1234");
    }
}
