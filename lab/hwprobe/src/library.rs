//! Enough of CUDA's driver API (`libcuda.so.1`) to see whether a program of that kind runs: a context, memory of each kind, copies and
//! one kernel.
//!
//! UNSAFETY: functions are looked up by name in a library that is loaded at run time and called with the types that are written down
//! here, and in no other place. Source of names, types and constants: CUDA Driver API reference and `cuda.h` of CUDA 12.8
//! (cuda-cudart-dev). All of them exist since CUDA 10.2, and the library keeps the `_v2` names.

#![expect(
    unsafe_code,
    reason = "functions of a library that is loaded at run time have no other call; the rest of the program stays without"
)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::path::Path;

use libloading::Library;

/// `CUDA_SUCCESS`
const SUCCESS: c_int = 0;
/// `CU_MEM_ATTACH_GLOBAL`
const ATTACH_GLOBAL: c_uint = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_LOCATION_TYPE_DEVICE`, `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
const PINNED: c_int = 1;
const DEVICE: c_int = 1;
const READ_WRITE: c_int = 3;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub(crate) enum Error {
    /// The library cannot be loaded.
    Library(String),
    /// The library does not have the function.
    Lacks(&'static str),
    /// `CUresult`, with its name where the library says it.
    Result(c_int, String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(why) => write!(f, "{why}"),
            Self::Lacks(name) => write!(f, "the library has no {name}"),
            Self::Result(code, name) if name.is_empty() => write!(f, "CUresult {code}"),
            Self::Result(code, name) => write!(f, "{name} ({code})"),
        }
    }
}

impl std::error::Error for Error {}

/// A card, `CUdevice`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Device(c_int);

/// Card memory at this address, `CUdeviceptr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    address: u64,
    bytes: usize,
}

/// Memory that was made apart from its address, `CUmemGenericAllocationHandle`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle(u64);

/// A kernel, `CUfunction`, as long as the library is loaded: its module is never unloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kernel(*mut c_void);

/// `CUmemLocation`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Location {
    kind: c_int,
    id: c_int,
}

/// `CUmemAllocationProp`: 32 bytes.
#[derive(Debug)]
#[repr(C)]
struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    win32_meta_data: *mut c_void,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`: 12 bytes.
#[derive(Debug)]
#[repr(C)]
struct Access {
    location: Location,
    flags: c_int,
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<Properties>() == 32);
    assert!(offset_of!(Properties, win32_meta_data) == 16);
    assert!(size_of::<Access>() == 12);
};

/// The loaded library.
#[derive(Debug)]
pub(crate) struct Cuda(Library);

/// Calls a function of the library by its name and type.
macro_rules! call {
    ($self:ident, $name:literal ($($type:ty),*) ($($value:expr),*)) => {{
        // SAFETY: the type is the one that the API's reference gives the name, and it is called while the library is loaded.
        let function = unsafe {
            $self.0.get::<unsafe extern "C" fn($($type),*) -> c_int>(concat!($name, "\0").as_bytes())
        };
        let function = function.map_err(|_absent| Error::Lacks($name))?;
        // SAFETY: every pointer among the values is to a place of this process that lives across the call and is as long as the API
        // takes it to be.
        $self.checked(unsafe { function($($value),*) })?
    }};
}

impl Cuda {
    /// Loads a library, by path or by a name that the loader looks up.
    ///
    /// # Errors
    /// [`Error::Library`].
    pub(crate) fn load(library: &Path) -> Result<Self, Error> {
        // SAFETY: the library's own beginnings run in this process, as they do in every program that is linked with it.
        let library = unsafe { Library::new(library) };
        library
            .map(Self)
            .map_err(|error| Error::Library(error.to_string()))
    }

    fn checked(&self, result: c_int) -> Result<(), Error> {
        if result == SUCCESS {
            return Ok(());
        }
        Err(Error::Result(
            result,
            self.name_of(result).unwrap_or_default(),
        ))
    }

    /// `cuGetErrorName`: a string of the library's own.
    fn name_of(&self, result: c_int) -> Option<String> {
        type Name = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
        let mut name = std::ptr::null();
        // SAFETY: as in `call`.
        let function = unsafe { self.0.get::<Name>(b"cuGetErrorName\0") }.ok()?;
        // SAFETY: the function writes one pointer, to `name`.
        let got = unsafe { function(result, &raw mut name) };
        if got != SUCCESS || name.is_null() {
            return None;
        }
        // SAFETY: the library says a string that ends with 0 and lives as long as it does.
        let name = unsafe { CStr::from_ptr(name) };
        Some(name.to_string_lossy().into_owned())
    }

    /// `cuInit`
    ///
    /// # Errors
    /// Here and below: [`Error::Lacks`], [`Error::Result`].
    pub(crate) fn init(&self) -> Result<(), Error> {
        call!(self, "cuInit"(c_uint)(0));
        Ok(())
    }

    /// `cuDriverGetVersion`: 1000 times the major version and 10 times the minor one.
    pub(crate) fn version(&self) -> Result<i32, Error> {
        let mut version = 0;
        call!(self, "cuDriverGetVersion"(*mut c_int)(&raw mut version));
        Ok(version)
    }

    /// `cuDeviceGetCount`
    pub(crate) fn devices(&self) -> Result<i32, Error> {
        let mut count = 0;
        call!(self, "cuDeviceGetCount"(*mut c_int)(&raw mut count));
        Ok(count)
    }

    /// `cuDeviceGet`
    pub(crate) fn device(&self, ordinal: i32) -> Result<Device, Error> {
        let mut device = 0;
        call!(self, "cuDeviceGet"(*mut c_int, c_int)(&raw mut device, ordinal));
        Ok(Device(device))
    }

    /// `cuDeviceTotalMem`, bytes.
    pub(crate) fn total_bytes(&self, device: Device) -> Result<usize, Error> {
        let mut bytes = 0;
        call!(self, "cuDeviceTotalMem_v2"(*mut usize, c_int)(&raw mut bytes, device.0));
        Ok(bytes)
    }

    /// `cuDevicePrimaryCtxRetain` and `cuCtxSetCurrent`: this thread's calls are of that context from here on.
    pub(crate) fn use_primary_context(&self, device: Device) -> Result<(), Error> {
        let mut context = std::ptr::null_mut();
        call!(self, "cuDevicePrimaryCtxRetain"(*mut *mut c_void, c_int)(&raw mut context, device.0));
        call!(self, "cuCtxSetCurrent"(*mut c_void)(context));
        Ok(())
    }

    /// `cuDevicePrimaryCtxRelease`
    pub(crate) fn release_primary_context(&self, device: Device) -> Result<(), Error> {
        call!(self, "cuDevicePrimaryCtxRelease_v2"(c_int)(device.0));
        Ok(())
    }

    /// `cuMemGetInfo`: free and total bytes.
    pub(crate) fn free_and_total_bytes(&self) -> Result<(usize, usize), Error> {
        let (mut free, mut total) = (0, 0);
        call!(self, "cuMemGetInfo_v2"(*mut usize, *mut usize)(&raw mut free, &raw mut total));
        Ok((free, total))
    }

    /// `cuMemAlloc`
    pub(crate) fn allocate(&self, bytes: usize) -> Result<Memory, Error> {
        let mut address = 0;
        call!(self, "cuMemAlloc_v2"(*mut u64, usize)(&raw mut address, bytes));
        Ok(Memory { address, bytes })
    }

    /// `cuMemAllocManaged`
    pub(crate) fn allocate_managed(&self, bytes: usize) -> Result<Memory, Error> {
        let mut address = 0;
        call!(self, "cuMemAllocManaged"(*mut u64, usize, c_uint)(&raw mut address, bytes, ATTACH_GLOBAL));
        Ok(Memory { address, bytes })
    }

    /// `cuMemFree`
    pub(crate) fn free(&self, memory: Memory) -> Result<(), Error> {
        call!(self, "cuMemFree_v2"(u64)(memory.address));
        Ok(())
    }

    /// `cuMemHostAlloc` and `cuMemFreeHost`: pinned memory of the host.
    pub(crate) fn pin_and_free(&self, bytes: usize) -> Result<(), Error> {
        let mut address = std::ptr::null_mut();
        call!(self, "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint)(&raw mut address, bytes, 0));
        call!(self, "cuMemFreeHost"(*mut c_void)(address));
        Ok(())
    }

    /// `cuMemHostRegister` and `cuMemHostUnregister`: this process's own memory, pinned meanwhile.
    pub(crate) fn register_and_unregister(&self, block: &mut [u8]) -> Result<(), Error> {
        let address = block.as_mut_ptr().cast::<c_void>();
        call!(self, "cuMemHostRegister_v2"(*mut c_void, usize, c_uint)(address, block.len(), 0));
        call!(self, "cuMemHostUnregister"(*mut c_void)(address));
        Ok(())
    }

    /// `cuMemcpyHtoD`
    ///
    /// # Panics
    /// When the block is longer than the memory.
    pub(crate) fn copy_to(&self, memory: Memory, block: &[u8]) -> Result<(), Error> {
        assert!(block.len() <= memory.bytes, "a block that is too long");
        let from = block.as_ptr().cast::<c_void>();
        call!(self, "cuMemcpyHtoD_v2"(u64, *const c_void, usize)(memory.address, from, block.len()));
        Ok(())
    }

    /// `cuMemcpyDtoH`
    ///
    /// # Panics
    /// When the block is longer than the memory.
    pub(crate) fn copy_from(&self, memory: Memory, block: &mut [u8]) -> Result<(), Error> {
        assert!(block.len() <= memory.bytes, "a block that is too long");
        let to = block.as_mut_ptr().cast::<c_void>();
        call!(self, "cuMemcpyDtoH_v2"(*mut c_void, u64, usize)(to, memory.address, block.len()));
        Ok(())
    }

    /// `cuModuleLoadData` of PTX and `cuModuleGetFunction`. A kernel of the PTX takes what [`Self::launch`] gives it.
    pub(crate) fn kernel(&self, ptx: &CStr, name: &CStr) -> Result<Kernel, Error> {
        let (mut module, mut kernel) = (std::ptr::null_mut(), std::ptr::null_mut());
        call!(self, "cuModuleLoadData"(*mut *mut c_void, *const c_void)(&raw mut module, ptx.as_ptr().cast()));
        call!(self, "cuModuleGetFunction"(*mut *mut c_void, *mut c_void, *const c_char)(
            &raw mut kernel, module, name.as_ptr()
        ));
        Ok(Kernel(kernel))
    }

    /// `cuLaunchKernel` with a memory's address and a count as parameters (`.u64`, `.u32`), one thread an entry in blocks of 256, and
    /// `cuCtxSynchronize`.
    pub(crate) fn launch(&self, kernel: Kernel, memory: Memory, count: u32) -> Result<(), Error> {
        const THREADS: c_uint = 256;
        let (mut address, mut entries) = (memory.address, count);
        let mut parameters: [*mut c_void; 2] =
            [(&raw mut address).cast(), (&raw mut entries).cast()];
        type Launch<'a> = [c_uint; 3];
        let ([gx, gy, gz], [bx, by, bz]): (Launch<'_>, Launch<'_>) =
            ([count.div_ceil(THREADS), 1, 1], [THREADS, 1, 1]);
        call!(self, "cuLaunchKernel"(
            *mut c_void, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, *mut c_void, *mut *mut c_void,
            *mut *mut c_void
        )(
            kernel.0, gx, gy, gz, bx, by, bz, 0, std::ptr::null_mut(), parameters.as_mut_ptr(),
            std::ptr::null_mut()
        ));
        call!(self, "cuCtxSynchronize"()());
        Ok(())
    }

    /// `cuMemGetAllocationGranularity`: what sizes and addresses of mapped memory are multiples of, bytes.
    pub(crate) fn granularity(&self, device: Device) -> Result<usize, Error> {
        let properties = pinned_on(device);
        let mut bytes = 0;
        call!(self, "cuMemGetAllocationGranularity"(*mut usize, *const Properties, c_int)(
            &raw mut bytes, &raw const properties, 0
        ));
        Ok(bytes)
    }

    /// `cuMemCreate`
    pub(crate) fn create(&self, device: Device, bytes: usize) -> Result<Handle, Error> {
        let properties = pinned_on(device);
        let mut handle = 0;
        call!(self, "cuMemCreate"(*mut u64, usize, *const Properties, u64)(
            &raw mut handle, bytes, &raw const properties, 0
        ));
        Ok(Handle(handle))
    }

    /// `cuMemAddressReserve`
    pub(crate) fn reserve(&self, bytes: usize) -> Result<Memory, Error> {
        let mut address = 0;
        call!(self, "cuMemAddressReserve"(*mut u64, usize, usize, u64, u64)(&raw mut address, bytes, 0, 0, 0));
        Ok(Memory { address, bytes })
    }

    /// `cuMemMap` at an offset of a reservation, and `cuMemSetAccess`.
    pub(crate) fn map(
        &self,
        device: Device,
        range: Memory,
        offset: usize,
        handle: Handle,
        bytes: usize,
    ) -> Result<(), Error> {
        let at = range.address + offset as u64;
        call!(
            self,
            "cuMemMap"(u64, usize, usize, u64, u64)(at, bytes, 0, handle.0, 0)
        );
        let access = Access {
            location: on(device),
            flags: READ_WRITE,
        };
        call!(self, "cuMemSetAccess"(u64, usize, *const Access, usize)(at, bytes, &raw const access, 1));
        Ok(())
    }

    /// `cuMemUnmap`
    pub(crate) fn unmap(&self, range: Memory) -> Result<(), Error> {
        call!(self, "cuMemUnmap"(u64, usize)(range.address, range.bytes));
        Ok(())
    }

    /// `cuMemAddressFree`
    pub(crate) fn free_range(&self, range: Memory) -> Result<(), Error> {
        call!(
            self,
            "cuMemAddressFree"(u64, usize)(range.address, range.bytes)
        );
        Ok(())
    }

    /// `cuMemRelease`
    pub(crate) fn release(&self, handle: Handle) -> Result<(), Error> {
        call!(self, "cuMemRelease"(u64)(handle.0));
        Ok(())
    }
}

const fn on(device: Device) -> Location {
    Location {
        kind: DEVICE,
        id: device.0,
    }
}

const fn pinned_on(device: Device) -> Properties {
    Properties {
        kind: PINNED,
        handle_types: 0,
        location: on(device),
        win32_meta_data: std::ptr::null_mut(),
        flags: [0; 8],
    }
}
