//! `NV_STATUS` codes (`nvstatuscodes.h`). The ioctl itself returns 0; the code stands in the call's struct.

/// `NV_OK`
pub const NV_OK: u32 = 0x0;
/// `NV_ERR_BUSY_RETRY`
pub const NV_ERR_BUSY_RETRY: u32 = 0x03;
/// `NV_ERR_GPU_IS_LOST`
pub const NV_ERR_GPU_IS_LOST: u32 = 0x0f;
/// `NV_ERR_INSUFFICIENT_RESOURCES`: something other than memory is used up.
pub const NV_ERR_INSUFFICIENT_RESOURCES: u32 = 0x1a;
/// `NV_ERR_INSUFFICIENT_PERMISSIONS`
pub const NV_ERR_INSUFFICIENT_PERMISSIONS: u32 = 0x1b;
/// `NV_ERR_INVALID_ARGUMENT`
pub const NV_ERR_INVALID_ARGUMENT: u32 = 0x1f;
/// `NV_ERR_INVALID_CHANNEL`
pub const NV_ERR_INVALID_CHANNEL: u32 = 0x21;
/// `NV_ERR_INVALID_CLASS`
pub const NV_ERR_INVALID_CLASS: u32 = 0x22;
/// `NV_ERR_INVALID_CLIENT`
pub const NV_ERR_INVALID_CLIENT: u32 = 0x23;
/// `NV_ERR_INVALID_EVENT`
pub const NV_ERR_INVALID_EVENT: u32 = 0x28;
/// `NV_ERR_INVALID_DEVICE`
pub const NV_ERR_INVALID_DEVICE: u32 = 0x26;
/// `NV_ERR_INVALID_OBJECT`
pub const NV_ERR_INVALID_OBJECT: u32 = 0x31;
/// `NV_ERR_INVALID_OBJECT_HANDLE`
pub const NV_ERR_INVALID_OBJECT_HANDLE: u32 = 0x33;
/// `NV_ERR_INVALID_OBJECT_PARENT`
pub const NV_ERR_INVALID_OBJECT_PARENT: u32 = 0x36;
/// `NV_ERR_INVALID_PARAM_STRUCT`
pub const NV_ERR_INVALID_PARAM_STRUCT: u32 = 0x3a;
/// `NV_ERR_INVALID_STATE`
pub const NV_ERR_INVALID_STATE: u32 = 0x40;
/// `NV_ERR_INVALID_PARAMETER`
pub const NV_ERR_INVALID_PARAMETER: u32 = 0x3b;
/// `NV_ERR_OUT_OF_RANGE`
pub const NV_ERR_OUT_OF_RANGE: u32 = 0x5b;
/// `NV_ERR_STATE_IN_USE`
pub const NV_ERR_STATE_IN_USE: u32 = 0x63;
/// `NV_ERR_TIMEOUT`
pub const NV_ERR_TIMEOUT: u32 = 0x65;
/// `NV_ERR_NO_MEMORY`: what RM itself answers when the card is full, and what an allocation over quota gets.
pub const NV_ERR_NO_MEMORY: u32 = 0x51;
/// `NV_ERR_NOT_SUPPORTED`
pub const NV_ERR_NOT_SUPPORTED: u32 = 0x56;
/// `NV_ERR_OBJECT_NOT_FOUND`
pub const NV_ERR_OBJECT_NOT_FOUND: u32 = 0x57;
/// `NV_ERR_RESOURCE_LOST`: an object that went with what it depended on, and whose name is left.
pub const NV_ERR_RESOURCE_LOST: u32 = 0x6e;
/// `NV_ERR_GPU_UUID_NOT_FOUND`
pub const NV_ERR_GPU_UUID_NOT_FOUND: u32 = 0x12;
/// `NV_ERR_ILLEGAL_ACTION`
pub const NV_ERR_ILLEGAL_ACTION: u32 = 0x16;
/// `NV_ERR_IN_USE`
pub const NV_ERR_IN_USE: u32 = 0x17;
/// `NV_ERR_PAGE_TABLE_NOT_AVAIL`
pub const NV_ERR_PAGE_TABLE_NOT_AVAIL: u32 = 0x5d;
/// `NV_WARN_NOTHING_TO_DO`
pub const NV_WARN_NOTHING_TO_DO: u32 = 0x1_0006;
/// `NV_ERR_INSERT_DUPLICATE_NAME`
pub const NV_ERR_INSERT_DUPLICATE_NAME: u32 = 0x19;
/// `NV_ERR_INVALID_ADDRESS`
pub const NV_ERR_INVALID_ADDRESS: u32 = 0x1e;
/// `NV_ERR_INVALID_LIMIT`
pub const NV_ERR_INVALID_LIMIT: u32 = 0x2e;
/// `NV_ERR_INVALID_OFFSET`
pub const NV_ERR_INVALID_OFFSET: u32 = 0x37;
/// `NV_ERR_OBJECT_TYPE_MISMATCH`
pub const NV_ERR_OBJECT_TYPE_MISMATCH: u32 = 0x58;
/// `NV_ERR_UVM_ADDRESS_IN_USE`
pub const NV_ERR_UVM_ADDRESS_IN_USE: u32 = 0x68;
