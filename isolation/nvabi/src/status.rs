//! `NV_STATUS` codes (`nvstatuscodes.h`). The ioctl itself returns 0; the code is in the call's struct.

use crate::numbers;

numbers! {
    /// Those that are compared with the headers: what is decided by, or answered.
    COMPARED "":
    NV_OK = 0x00;
    NV_ERR_GPU_IS_LOST = 0x0f;
    NV_ERR_GPU_UUID_NOT_FOUND = 0x12;
    NV_ERR_ILLEGAL_ACTION = 0x16;
    NV_ERR_INSERT_DUPLICATE_NAME = 0x19;
    /// Something other than memory is used up.
    NV_ERR_INSUFFICIENT_RESOURCES = 0x1a;
    NV_ERR_INSUFFICIENT_PERMISSIONS = 0x1b;
    NV_ERR_INVALID_ADDRESS = 0x1e;
    NV_ERR_INVALID_ARGUMENT = 0x1f;
    NV_ERR_INVALID_CLASS = 0x22;
    NV_ERR_INVALID_CLIENT = 0x23;
    NV_ERR_INVALID_DEVICE = 0x26;
    NV_ERR_INVALID_LIMIT = 0x2e;
    NV_ERR_INVALID_OBJECT_HANDLE = 0x33;
    NV_ERR_INVALID_OBJECT_PARENT = 0x36;
    NV_ERR_INVALID_OFFSET = 0x37;
    NV_ERR_INVALID_PARAM_STRUCT = 0x3a;
    NV_ERR_INVALID_PARAMETER = 0x3b;
    NV_ERR_INVALID_STATE = 0x40;
    /// What RM itself answers when the card is full, and what an allocation over quota gets.
    NV_ERR_NO_MEMORY = 0x51;
    NV_ERR_NOT_SUPPORTED = 0x56;
    NV_ERR_OBJECT_NOT_FOUND = 0x57;
    NV_ERR_OBJECT_TYPE_MISMATCH = 0x58;
    NV_ERR_OUT_OF_RANGE = 0x5b;
    NV_ERR_UVM_ADDRESS_IN_USE = 0x68;
    /// An object that went with what it depended on, and whose name is left.
    NV_ERR_RESOURCE_LOST = 0x6e;
}

numbers! {
    /// The others that a call can meet.
    OTHERS "":
    NV_ERR_BUFFER_TOO_SMALL = 0x02;
    NV_ERR_BUSY_RETRY = 0x03;
    NV_ERR_CARD_NOT_PRESENT = 0x05;
    NV_ERR_GPU_IN_FULLCHIP_RESET = 0x10;
    NV_ERR_IN_USE = 0x17;
    NV_ERR_INVALID_ACCESS_TYPE = 0x1d;
    NV_ERR_INVALID_BASE = 0x20;
    NV_ERR_INVALID_CHANNEL = 0x21;
    NV_ERR_INVALID_COMMAND = 0x24;
    NV_ERR_INVALID_DATA = 0x25;
    NV_ERR_INVALID_EVENT = 0x28;
    NV_ERR_INVALID_FLAGS = 0x29;
    NV_ERR_INVALID_FUNCTION = 0x2a;
    NV_ERR_INVALID_INDEX = 0x2c;
    NV_ERR_INVALID_OBJECT = 0x31;
    NV_ERR_INVALID_OBJECT_NEW = 0x34;
    NV_ERR_INVALID_OBJECT_OLD = 0x35;
    NV_ERR_INVALID_OPERATION = 0x38;
    NV_ERR_INVALID_OWNER = 0x39;
    NV_ERR_INVALID_POINTER = 0x3d;
    NV_ERR_INVALID_REQUEST = 0x3f;
    NV_ERR_NOT_COMPATIBLE = 0x54;
    NV_ERR_NOT_READY = 0x55;
    NV_ERR_OPERATING_SYSTEM = 0x59;
    NV_ERR_PAGE_TABLE_NOT_AVAIL = 0x5d;
    NV_ERR_PID_NOT_FOUND = 0x5e;
    NV_ERR_RC_ERROR = 0x60;
    NV_ERR_RESET_REQUIRED = 0x62;
    NV_ERR_STATE_IN_USE = 0x63;
    NV_ERR_SIGNAL_PENDING = 0x64;
    NV_ERR_TIMEOUT = 0x65;
    NV_ERR_TIMEOUT_RETRY = 0x66;
    NV_ERR_GENERIC = 0xffff;
    NV_WARN_NOTHING_TO_DO = 0x1_0006;
}

/// Every code with its name.
pub fn all() -> impl Iterator<Item = &'static (&'static str, u32)> {
    COMPARED.iter().chain(OTHERS)
}
