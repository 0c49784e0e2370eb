//! The driver's structs, as a program fills them.

use nvabi::bytes::{put_u32, put_u64, u32_at, u64_at};
use nvabi::layout::{channel_params, memory_params, nvos00, nvos21, nvos54, nvos55};
use nvabi::status;

pub(crate) const ALLOC: u32 = 0xc020_462b;
pub(crate) const FREE: u32 = 0xc010_4629;
pub(crate) const CONTROL: u32 = 0xc020_462a;

pub(crate) const DUP: u32 = 0xc01c_4634;

pub(crate) const ROOT: u32 = 0x41;
pub(crate) const DEVICE: u32 = 0x80;
pub(crate) const VIDMEM: u32 = 0x40;

/// A new object (NVOS21).
pub(crate) fn alloc(client: u32, parent: u32, handle: u32, class: u32, params: u64) -> Vec<u8> {
    let mut arg = vec![0; 32];
    put_u32(&mut arg, nvos21::H_ROOT, client);
    put_u32(&mut arg, nvos21::H_PARENT, parent);
    put_u32(&mut arg, nvos21::H_NEW, handle);
    put_u32(&mut arg, nvos21::H_CLASS, class);
    put_u64(&mut arg, nvos21::P_PARAMS, params);
    arg
}

/// A free (NVOS00).
pub(crate) fn free(client: u32, parent: u32, handle: u32) -> Vec<u8> {
    let mut arg = vec![0; 16];
    put_u32(&mut arg, nvos00::H_ROOT, client);
    put_u32(&mut arg, nvos00::H_PARENT, parent);
    put_u32(&mut arg, nvos00::H_OLD, handle);
    arg
}

/// Another handle for an object (NVOS55).
pub(crate) fn dup(client: u32, parent: u32, handle: u32, source: (u32, u32)) -> Vec<u8> {
    let mut arg = vec![0; 28];
    put_u32(&mut arg, nvos55::H_CLIENT, client);
    put_u32(&mut arg, nvos55::H_PARENT, parent);
    put_u32(&mut arg, nvos55::H_OBJECT, handle);
    put_u32(&mut arg, nvos55::H_CLIENT_SRC, source.0);
    put_u32(&mut arg, nvos55::H_OBJECT_SRC, source.1);
    arg
}

/// A control (NVOS54).
pub(crate) fn control(
    client: u32,
    object: u32,
    cmd: u32,
    params: u64,
    params_bytes: u32,
) -> Vec<u8> {
    let mut arg = vec![0; 32];
    put_u32(&mut arg, nvos54::H_CLIENT, client);
    put_u32(&mut arg, nvos54::H_OBJECT, object);
    put_u32(&mut arg, nvos54::CMD, cmd);
    put_u64(&mut arg, nvos54::P_PARAMS, params);
    put_u32(&mut arg, nvos54::PARAMS_SIZE, params_bytes);
    arg
}

/// The parameters of a memory class.
pub(crate) fn memory_params(size: u64) -> Vec<u8> {
    let mut params = vec![0; 128];
    put_u64(&mut params, memory_params::SIZE, size);
    params
}

/// Those of memory of the host's for one channel's USERD (`NVOS32_ATTR_LOCATION_PCI`).
pub(crate) fn userd_params() -> Vec<u8> {
    let mut params = memory_params(channel_params::USERD_BYTES);
    put_u32(&mut params, memory_params::ATTR, 1 << 25);
    params
}

/// The size in a memory class's parameters, bytes.
pub(crate) fn size(params: &[u8]) -> u64 {
    u64_at(params, memory_params::SIZE).unwrap()
}

/// The status of a struct above.
pub(crate) fn status(arg: &[u8]) -> u32 {
    let at = match arg.len() {
        16 => nvos00::STATUS,
        28 => nvos55::STATUS,
        _ => nvos21::STATUS,
    };
    u32_at(arg, at).unwrap()
}

/// The handle of a new object.
pub(crate) fn new_handle(arg: &[u8]) -> u32 {
    u32_at(arg, nvos21::H_NEW).unwrap()
}

pub(crate) const OK: u32 = status::NV_OK;
pub(crate) const NO_MEMORY: u32 = status::NV_ERR_NO_MEMORY;
