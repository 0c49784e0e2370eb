//! Linux's errnos that the driver answers with, and with which a call is answered in its place.

/// A process that is not there.
pub const ESRCH: i32 = 3;
/// No answer.
pub const EIO: i32 = 5;
/// A descriptor that is not open.
pub const EBADF: i32 = 9;
/// No memory, or no room for another mapping.
pub const ENOMEM: i32 = 12;
/// An address at which the caller has no memory, or a struct that is too short.
pub const EFAULT: i32 = 14;
/// A device that is not there.
pub const ENODEV: i32 = 19;
/// What `nvidia.ko` answers to a number or size that it does not know.
pub const EINVAL: i32 = 22;
/// No descriptor is left.
pub const EMFILE: i32 = 24;
/// What a file answers to an ioctl that is not its own.
pub const ENOTTY: i32 = 25;
/// A call that the kernel does not have.
pub const ENOSYS: i32 = 38;
