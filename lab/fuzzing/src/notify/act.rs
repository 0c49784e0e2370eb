//! The structs of the calls that lead somewhere.

use nvabi::bytes::{put, put_u32, put_u64};
use nvabi::layout::{memory_params, nvos00, nvos02, nvos21, nvos32, nvos54, nvos55, nvos64};
use nvabi::{Release, escape, uvm};

/// The driver that is played.
pub(super) const RELEASE: Release = Release::R570;

/// A pointer in the struct, and what it names.
#[derive(Debug, Clone)]
pub(super) struct Pointed {
    /// Which block holds it: 0 the struct, 1 the parameters.
    pub(super) parent: usize,
    /// Where in it.
    pub(super) at: usize,
    pub(super) bytes: Vec<u8>,
}

/// A call as a tenant makes it.
#[derive(Debug, Clone)]
pub(super) struct Act {
    pub(super) cmd: u32,
    pub(super) argument: Vec<u8>,
    pub(super) pointed: Vec<Pointed>,
    /// Where the handle of what it makes stands: block and offset.
    pub(super) makes: Option<(usize, usize)>,
    /// Where its status is in the struct.
    pub(super) status_at: usize,
}

fn words(bytes: usize, fields: &[(usize, u32)]) -> Vec<u8> {
    let mut block = vec![0; bytes];
    for (at, value) in fields {
        put_u32(&mut block, *at, *value);
    }
    block
}

fn size(row: &escape::Escape) -> usize {
    usize::try_from(row.size.of(RELEASE)).expect("a small struct")
}

pub(super) fn alloc(
    long: bool,
    [client, parent, handle, class]: [u32; 4],
    params: Option<Vec<u8>>,
) -> Act {
    let (row, status_at) = if long {
        (&escape::NV_ESC_RM_ALLOC_LONG, nvos64::STATUS)
    } else {
        (&escape::NV_ESC_RM_ALLOC, nvos21::STATUS)
    };
    let fields = [
        (nvos21::H_ROOT, client),
        (nvos21::H_PARENT, parent),
        (nvos21::H_NEW, handle),
        (nvos21::H_CLASS, class),
    ];
    let pointed = params.map(|bytes| Pointed {
        parent: 0,
        at: nvos21::P_PARAMS,
        bytes,
    });
    Act {
        cmd: row.cmd(RELEASE),
        argument: words(size(row), &fields),
        pointed: pointed.into_iter().collect(),
        makes: Some((0, nvos21::H_NEW)),
        status_at,
    }
}

pub(super) fn memory(size_bytes: u64, flags: u32, attr: u32) -> Vec<u8> {
    let mut params = vec![0; 128];
    put_u32(&mut params, memory_params::FLAGS, flags);
    put_u32(&mut params, memory_params::ATTR, attr);
    put_u64(&mut params, memory_params::SIZE, size_bytes);
    params
}

pub(super) fn free(client: u32, parent: u32, handle: u32) -> Act {
    let row = &escape::NV_ESC_RM_FREE;
    let fields = [
        (nvos00::H_ROOT, client),
        (nvos00::H_PARENT, parent),
        (nvos00::H_OLD, handle),
    ];
    Act {
        cmd: row.cmd(RELEASE),
        argument: words(size(row), &fields),
        pointed: Vec::new(),
        makes: None,
        status_at: nvos00::STATUS,
    }
}

pub(super) fn duplicate([client, parent, handle, source_client, source]: [u32; 5]) -> Act {
    let row = &escape::NV_ESC_RM_DUP_OBJECT;
    let fields = [
        (nvos55::H_CLIENT, client),
        (nvos55::H_PARENT, parent),
        (nvos55::H_OBJECT, handle),
        (nvos55::H_CLIENT_SRC, source_client),
        (nvos55::H_OBJECT_SRC, source),
    ];
    Act {
        cmd: row.cmd(RELEASE),
        argument: words(size(row), &fields),
        pointed: Vec::new(),
        makes: Some((0, nvos55::H_OBJECT)),
        status_at: nvos55::STATUS,
    }
}

pub(super) fn heap(client: u32, parent: u32, handle: u32, size_bytes: u64, flags: u32) -> Act {
    let row = &escape::NV_ESC_RM_VID_HEAP_CONTROL;
    let fields = [
        (nvos32::H_ROOT, client),
        (nvos32::H_PARENT, parent),
        (nvos32::FUNCTION, nvos32::FUNCTION_ALLOC_SIZE),
        (nvos32::ALLOC_H_MEMORY, handle),
        (nvos32::ALLOC_FLAGS, flags),
    ];
    let mut argument = words(size(row), &fields);
    put_u64(&mut argument, nvos32::ALLOC_SIZE, size_bytes);
    Act {
        cmd: row.cmd(RELEASE),
        argument,
        pointed: Vec::new(),
        makes: Some((0, nvos32::ALLOC_H_MEMORY)),
        status_at: nvos32::STATUS,
    }
}

/// System memory by the old call.
pub(super) fn system_memory(client: u32, parent: u32, handle: u32, class: u32, bytes: u64) -> Act {
    let row = &escape::NV_ESC_RM_ALLOC_MEMORY;
    let fields = [
        (nvos02::H_ROOT, client),
        (nvos02::H_PARENT, parent),
        (nvos02::H_NEW, handle),
        (nvos02::H_CLASS, class),
        (nvos02::FD, u32::MAX),
    ];
    let mut argument = words(size(row), &fields);
    put_u64(&mut argument, nvos02::LIMIT, bytes.wrapping_sub(1));
    Act {
        cmd: row.cmd(RELEASE),
        argument,
        pointed: Vec::new(),
        makes: Some((0, nvos02::H_NEW)),
        status_at: nvos02::STATUS,
    }
}

pub(super) fn control(client: u32, object: u32, cmd: u32, params: Vec<u8>) -> Act {
    let row = &escape::NV_ESC_RM_CONTROL;
    let bytes = u32::try_from(params.len()).expect("small parameters");
    let fields = [
        (nvos54::H_CLIENT, client),
        (nvos54::H_OBJECT, object),
        (nvos54::CMD, cmd),
        (nvos54::PARAMS_SIZE, bytes),
    ];
    Act {
        cmd: row.cmd(RELEASE),
        argument: words(size(row), &fields),
        pointed: vec![Pointed {
            parent: 0,
            at: nvos54::P_PARAMS,
            bytes: params,
        }],
        makes: None,
        status_at: nvos54::STATUS,
    }
}

/// A UVM call whose struct begins with a range.
pub(super) fn uvm_range(row: &uvm::Uvm, base: u64, length: u64) -> Act {
    let bytes = usize::try_from(row.size.of(RELEASE)).expect("a small struct");
    let mut argument = vec![0; bytes];
    put_u64(&mut argument, uvm::map_external::BASE, base);
    if bytes >= 24 {
        put_u64(&mut argument, uvm::map_external::LENGTH, length);
    }
    Act {
        cmd: row.cmd,
        argument,
        pointed: Vec::new(),
        makes: None,
        status_at: usize::try_from(row.status.of(RELEASE)).expect("a small struct"),
    }
}

pub(super) fn map_external(
    base: u64,
    length: u64,
    [client, memory]: [u32; 2],
    cards: &[[u8; 16]],
) -> Act {
    use uvm::map_external::{COUNT, H_CLIENT, H_MEMORY, PER_GPU, PER_GPU_BYTES};
    let at = |offset: nvabi::PerRelease| usize::try_from(offset.of(RELEASE)).expect("small");
    let mut act = uvm_range(&uvm::UVM_MAP_EXTERNAL_ALLOCATION, base, length);
    for (slot, card) in cards.iter().enumerate() {
        put(&mut act.argument, PER_GPU + slot * PER_GPU_BYTES, card);
    }
    put_u64(
        &mut act.argument,
        at(COUNT),
        u64::try_from(cards.len()).expect("few"),
    );
    put_u32(&mut act.argument, at(H_CLIENT), client);
    put_u32(&mut act.argument, at(H_MEMORY), memory);
    act
}

pub(super) fn unmap_external(base: u64, length: u64, card: [u8; 16]) -> Act {
    let mut act = uvm_range(&uvm::UVM_UNMAP_EXTERNAL, base, length);
    put(&mut act.argument, uvm::UNMAP_EXTERNAL_UUID, &card);
    act
}
