//! NVIDIA's memory limits by control group: two functions of `libnvidia-ml.so.1` that `nvml-wrapper` 0.13 does not know.
//!
//! UNSAFETY: they are looked up by name in a library that is loaded at run time and called with structures of the layout
//! that is written down here, and in no other place.
//!
//! Source of names, layouts and meaning: NVML API Reference, `nvmlSetMemoryLimits_v1_t` and `nvmlGetMemoryLimits_v1_t`
//! (<https://docs.nvidia.com/deploy/nvml-api/>), with the `nvml.h` of CUDA 13.4 (cuda-nvml-dev 13.4.92). The structures carry
//! no version: another layout would come as another function, `…_v2`. The prose page "MPS v3 Memory Partitioning" spells the
//! types otherwise and mentions `bSetToMax` and `bIsMax` fields, which the reference and the header do not have.
//! That a limit which is not set reads as all ones (`NVML_DEVICE_MEMORY_LIMIT_MAX`) is documented by name only.
//! Nothing here has met a driver that has the functions.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::marker::PhantomData;
use std::path::Path;

pub use nvml_wrapper::error::NvmlError;
use nvml_wrapper::error::nvml_try;
use nvml_wrapper::{Device, Nvml};

/// The setter's name in the library.
pub const SET: &str = "nvmlDeviceSetMemoryLimits_v1";

/// The getter's name in the library.
pub const GET: &str = "nvmlDeviceGetMemoryLimits_v1";

/// `nvmlSetMemoryLimits_v1_t`: 24 bytes.
#[doc(alias = "nvmlSetMemoryLimits_v1_t")]
#[repr(C)]
struct SetMemoryLimitsV1 {
    /// `nameSpace`: full path of the cgroup's folder.
    name_space: *const c_char,
    /// `softLimit`, bytes.
    soft_limit: u64,
    /// `hardLimit`, bytes.
    hard_limit: u64,
}

/// `nvmlGetMemoryLimits_v1_t`: 32 bytes.
#[doc(alias = "nvmlGetMemoryLimits_v1_t")]
#[repr(C)]
struct GetMemoryLimitsV1 {
    /// `nameSpace`: full path of the cgroup's folder.
    name_space: *const c_char,
    /// `softLimit`, bytes.
    soft_limit: u64,
    /// `hardLimit`, bytes.
    hard_limit: u64,
    /// `currentUsed`, bytes.
    current_used: u64,
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<SetMemoryLimitsV1>() == 24);
    assert!(offset_of!(SetMemoryLimitsV1, soft_limit) == 8);
    assert!(offset_of!(SetMemoryLimitsV1, hard_limit) == 16);
    assert!(size_of::<GetMemoryLimitsV1>() == 32);
    assert!(offset_of!(GetMemoryLimitsV1, soft_limit) == 8);
    assert!(offset_of!(GetMemoryLimitsV1, hard_limit) == 16);
    assert!(offset_of!(GetMemoryLimitsV1, current_used) == 24);
};

/// `nvmlDevice_t` is a pointer to what the library alone knows; `nvmlReturn_t` is an enum of C.
type SetFunction = unsafe extern "C" fn(*mut c_void, *const SetMemoryLimitsV1) -> c_uint;
type GetFunction = unsafe extern "C" fn(*mut c_void, *mut GetMemoryLimitsV1) -> c_uint;

/// A card's limits for one cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Guaranteed.
    pub soft_bytes: u64,
    /// The most.
    pub hard_bytes: u64,
    /// Held now, by the driver's own count.
    pub used_bytes: u64,
}

/// The loaded and initialised library.
#[derive(Debug)]
pub struct Library(Nvml);

impl Library {
    /// Loads and initialises the library: the file that is named, else what the linker finds for `libnvidia-ml.so.1`.
    ///
    /// # Errors
    /// The linker's, or NVML's own.
    pub fn open(path: Option<&Path>) -> Result<Self, NvmlError> {
        let mut builder = Nvml::builder();
        if let Some(path) = path {
            builder.lib_path(path.as_os_str());
        }
        Ok(Self(builder.init()?))
    }

    /// What `nvml-wrapper` knows of the library.
    #[must_use]
    pub fn nvml(&self) -> &Nvml {
        &self.0
    }

    /// Finds the two functions.
    ///
    /// # Errors
    /// The name of the first that the library lacks: the driver is older than R615.
    pub fn memory_limits(&self) -> Result<MemoryLimitFunctions<'_>, &'static str> {
        let library = &self.0.lib().__library;
        // SAFETY: a library that has this name has it from NVIDIA's header, whose declaration `SetFunction` repeats; the copy of
        // the pointer cannot outlive the library, which the result borrows.
        let set = *unsafe { library.get::<SetFunction>(SET.as_bytes()) }.map_err(|_absent| SET)?;
        // SAFETY: as above, of `GetFunction`.
        let get = *unsafe { library.get::<GetFunction>(GET.as_bytes()) }.map_err(|_absent| GET)?;
        Ok(MemoryLimitFunctions {
            set,
            get,
            _library: PhantomData,
        })
    }
}

/// The two functions, as long as the library is loaded.
#[derive(Debug)]
pub struct MemoryLimitFunctions<'library> {
    set: SetFunction,
    get: GetFunction,
    _library: PhantomData<&'library Nvml>,
}

impl MemoryLimitFunctions<'_> {
    /// Sets a cgroup's limits on one card. Root only.
    ///
    /// # Errors
    /// NVML's own.
    pub fn set(
        &self,
        card: &Device<'_>,
        cgroup: &CStr,
        soft_bytes: u64,
        hard_bytes: u64,
    ) -> Result<(), NvmlError> {
        let limits = SetMemoryLimitsV1 {
            name_space: cgroup.as_ptr(),
            soft_limit: soft_bytes,
            hard_limit: hard_bytes,
        };
        // SAFETY: `card` borrows the library that gave the handle, so that it is one of a library that is initialised.
        let handle = unsafe { card.handle() };
        // SAFETY: `limits` and the text that it points to live until the call returns; the function reads both and keeps
        // neither (its parameter is documented as input).
        let code = unsafe { (self.set)(handle.cast(), &raw const limits) };
        nvml_try(code)
    }

    /// Reads a cgroup's limits on one card.
    ///
    /// # Errors
    /// NVML's own; `NotFound` or `NotSupported` where none is set, by backend of the driver.
    pub fn get(&self, card: &Device<'_>, cgroup: &CStr) -> Result<MemoryLimits, NvmlError> {
        let mut limits = GetMemoryLimitsV1 {
            name_space: cgroup.as_ptr(),
            soft_limit: 0,
            hard_limit: 0,
            current_used: 0,
        };
        // SAFETY: as in `set`.
        let handle = unsafe { card.handle() };
        // SAFETY: `limits` is writable and lives until the call returns, as does the text; the function fills in the three
        // numbers.
        let code = unsafe { (self.get)(handle.cast(), &raw mut limits) };
        nvml_try(code)?;
        Ok(MemoryLimits {
            soft_bytes: limits.soft_limit,
            hard_bytes: limits.hard_limit,
            used_bytes: limits.current_used,
        })
    }
}
