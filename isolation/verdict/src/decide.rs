//! From a decoded call to what becomes of it.

use nvabi::bytes::{array_at, u32_at, u64_at};
use nvabi::class::{self, Class, Kind};
use nvabi::control as ctl;
use nvabi::layout::{device_params, memory_params, nvos00, nvos02, nvos21, nvos32, nvos54, nvos55};
use nvabi::{Release, escape, status, uvm};

use crate::{EFAULT, EINVAL, Op, Refusal};

/// What becomes of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The driver executes it on the broker's copy; the effect is booked when it succeeds.
    Execute(Effect),
    /// It is answered so, and no driver hears of it.
    Refuse(Refusal),
}

/// What a successful call changes in the account, or how its answer is rewritten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// A new client; its handle is an output of the call.
    Client,
    /// A new object without card memory of a declared size.
    Object {
        /// Its class.
        class: &'static Class,
        /// Client.
        client: u32,
        /// Parent's handle.
        parent: u32,
        /// For a device: RM's device instance.
        device_instance: Option<u32>,
    },
    /// A new piece of card memory.
    Memory(Memory),
    /// Frees an object, its children and dependants.
    Free {
        /// Client.
        client: u32,
        /// The object; the client's own handle frees the client.
        object: u32,
    },
    /// Another handle for an object.
    Dup {
        /// Client of the new handle.
        client: u32,
        /// Parent of the new handle.
        parent: u32,
        /// Client of the source: must be the container's own.
        source_client: u32,
        /// The source.
        source_object: u32,
    },
    /// UVM has a range for external mappings.
    Range {
        /// First GPU address.
        base: u64,
        /// Bytes.
        length: u64,
    },
    /// UVM takes a reference on a physical allocation for each card.
    MapExternal {
        /// First GPU address of the range.
        base: u64,
        /// Bytes.
        length: u64,
        /// Client of the allocation.
        client: u32,
        /// The allocation.
        memory: u32,
        /// The cards that map it, by UUID.
        cards: Vec<[u8; 16]>,
    },
    /// UVM gives up what one card has mapped there.
    Unmap {
        /// First GPU address.
        base: u64,
        /// Bytes.
        length: u64,
        /// The card, by UUID.
        card: [u8; 16],
    },
    /// UVM frees the range that begins there, with all mappings in it.
    FreeRange {
        /// First GPU address.
        base: u64,
    },
    /// Stops channels: every client named must be the container's own.
    ChannelClients {
        /// The clients.
        clients: Vec<u32>,
    },
    /// The answer is rewritten.
    View(View),
}

/// An allocation of card memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Client.
    pub client: u32,
    /// Parent: a device or a subdevice.
    pub parent: u32,
    /// Class booked for the object.
    pub class: u32,
    /// The most that the driver may round the request up to, bytes.
    pub reserve_bytes: u64,
    /// Segment and offset of the size that the driver writes back, bytes.
    pub size_at: (u8, usize),
    /// Segment and offset of the new object's handle.
    pub handle_at: (u8, usize),
}

/// An answer to rewrite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// A list of FB facts in this segment, beginning at this offset, with this many entries.
    FbInfo {
        /// Client and object that the question is about.
        object: (u32, u32),
        /// Segment.
        segment: u8,
        /// Offset of the first entry.
        at: usize,
        /// Entries.
        entries: u32,
    },
    /// FB_GET_FB_REGION_INFO.
    FbRegions {
        /// Client and object that the question is about.
        object: (u32, u32),
    },
    /// NVOS32 INFO.
    HeapInfo {
        /// Client and object that the question is about.
        object: (u32, u32),
    },
    /// CARD_INFO.
    Cards,
    /// A list of GPU ids at the start of the parameters.
    GpuIds,
    /// GPU_GET_PIDS.
    NoPids,
    /// GPU_GET_PID_INFO.
    NoPidInfo,
    /// Perfmon samples.
    NoSamples,
}

/// Decides one call. `segments` are the struct, the parameters and their nested blocks, as [`crate::blocks`] named them.
#[must_use]
pub fn decide(op: &Op, segments: &[&[u8]], release: Release) -> Verdict {
    match try_decide(op, segments, release) {
        Ok(effect) => Verdict::Execute(effect),
        Err(refusal) => Verdict::Refuse(refusal),
    }
}

fn try_decide(op: &Op, segments: &[&[u8]], release: Release) -> Result<Effect, Refusal> {
    let arg = segments.first().copied().unwrap_or_default();
    let params = segments.get(1).copied();
    match op {
        Op::CardInfo { .. } => Ok(Effect::View(View::Cards)),
        Op::AttachGpus { .. } => Ok(Effect::None),
        Op::Uvm(row) => uvm_call(row, arg, release),
        Op::Escape(row) => match **row {
            escape::NV_ESC_RM_ALLOC | escape::NV_ESC_RM_ALLOC_LONG => {
                alloc(op, arg, params, release)
            }
            escape::NV_ESC_RM_CONTROL => control(op, arg, params, release),
            escape::NV_ESC_RM_FREE => Ok(Effect::Free {
                client: word(arg, nvos00::H_ROOT)?,
                object: word(arg, nvos00::H_OLD)?,
            }),
            escape::NV_ESC_RM_DUP_OBJECT => Ok(Effect::Dup {
                client: word(arg, nvos55::H_CLIENT)?,
                parent: word(arg, nvos55::H_PARENT)?,
                source_client: word(arg, nvos55::H_CLIENT_SRC)?,
                source_object: word(arg, nvos55::H_OBJECT_SRC)?,
            }),
            escape::NV_ESC_RM_VID_HEAP_CONTROL => heap(op, arg, release),
            escape::NV_ESC_RM_ALLOC_MEMORY => alloc_memory(op, arg, release),
            escape::NV_ESC_RM_MAP_MEMORY
            | escape::NV_ESC_RM_UNMAP_MEMORY
            | escape::NV_ESC_RM_MAP_MEMORY_DMA
            | escape::NV_ESC_RM_UNMAP_MEMORY_DMA
            | escape::NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO
            | escape::NV_ESC_RM_SHARE
            | escape::NV_ESC_REGISTER_FD
            | escape::NV_ESC_ALLOC_OS_EVENT
            | escape::NV_ESC_FREE_OS_EVENT
            | escape::NV_ESC_CHECK_VERSION_STR
            | escape::NV_ESC_SYS_PARAMS
            | escape::NV_ESC_WAIT_OPEN_COMPLETE => Ok(Effect::None),
            // Memory exported as a dma-buf leaves the account; channel lists hold pointers that are not carried.
            _ => Err(op.refuse(status::NV_ERR_NOT_SUPPORTED, release)),
        },
    }
}

fn alloc(op: &Op, arg: &[u8], params: Option<&[u8]>, release: Release) -> Result<Effect, Refusal> {
    let class = class::row_of(word(arg, nvos21::H_CLASS)?, release)
        .ok_or_else(|| op.refuse(status::NV_ERR_INVALID_CLASS, release))?;
    let (client, parent) = (word(arg, nvos21::H_ROOT)?, word(arg, nvos21::H_PARENT)?);
    let object = |device_instance| Effect::Object {
        class,
        client,
        parent,
        device_instance,
    };
    match class.kind {
        Kind::Root => Ok(Effect::Client),
        // OS_DESCRIPTOR pins pages of whoever makes the call (os_desc_mem.c), and here that is not the tenant: only
        // ALLOC_MEMORY, which stays with the caller, may make it.
        Kind::Fabric | Kind::OsDescriptor => Err(op.refuse(status::NV_ERR_NOT_SUPPORTED, release)),
        Kind::Device => {
            let instance = params
                .and_then(|params| u32_at(params, device_params::DEVICE_ID))
                .unwrap_or(0);
            Ok(object(Some(instance)))
        }
        Kind::Vidmem => {
            let params =
                params.ok_or_else(|| op.refuse(status::NV_ERR_INVALID_ARGUMENT, release))?;
            let size = u64_at(params, memory_params::SIZE).ok_or(Refusal::Errno(EFAULT))?;
            Ok(Effect::Memory(Memory {
                client,
                parent,
                class: class.number,
                reserve_bytes: rounded(size, word(params, memory_params::ATTR)?),
                size_at: (1, memory_params::SIZE),
                handle_at: (0, nvos21::H_NEW),
            }))
        }
        Kind::Subdevice
        | Kind::Sysmem
        | Kind::Virtual
        | Kind::VaSpace
        | Kind::ChannelGroup
        | Kind::Channel
        | Kind::ContextShare
        | Kind::Engine
        | Kind::Usermode
        | Kind::Event
        | Kind::Plain => Ok(object(None)),
    }
}

/// The most that RM rounds a request up to (mem_mgr/video_mem.c): PMA's granularity of 64 KiB, or huge pages of 2 MiB.
fn rounded(bytes: u64, attr: u32) -> u64 {
    const SMALL: u64 = 64 << 10;
    const HUGE: u64 = 2 << 20;
    let huge = bytes >= HUGE
        || attr & memory_params::ATTR_PAGE_SIZE_MASK == memory_params::ATTR_PAGE_SIZE_HUGE;
    bytes
        .max(1)
        .checked_next_multiple_of(if huge { HUGE } else { SMALL })
        .unwrap_or(u64::MAX)
}

fn heap(op: &Op, arg: &[u8], release: Release) -> Result<Effect, Refusal> {
    /// `attr` bits 26:25: 1 is system memory behind PCI
    const LOCATION_MASK: u32 = 3 << 25;
    const LOCATION_PCI: u32 = 1 << 25;
    let (client, parent) = (word(arg, nvos32::H_ROOT)?, word(arg, nvos32::H_PARENT)?);
    match word(arg, nvos32::FUNCTION)? {
        nvos32::FUNCTION_ALLOC_SIZE => {
            let attr = word(arg, nvos32::ALLOC_ATTR)?;
            let number = if word(arg, nvos32::ALLOC_FLAGS)? & memory_params::FLAG_VIRTUAL != 0 {
                Some(class::NV01_MEMORY_VIRTUAL)
            } else if attr & LOCATION_MASK == LOCATION_PCI {
                Some(class::NV01_MEMORY_SYSTEM)
            } else {
                None
            };
            if let Some(number) = number {
                let class = class::row_of(number, release).ok_or(Refusal::Errno(EINVAL))?;
                return Ok(Effect::Object {
                    class,
                    client,
                    parent,
                    device_instance: None,
                });
            }
            let size = u64_at(arg, nvos32::ALLOC_SIZE).ok_or(Refusal::Errno(EFAULT))?;
            Ok(Effect::Memory(Memory {
                client,
                parent,
                class: class::NV01_MEMORY_LOCAL_USER,
                reserve_bytes: rounded(size, attr),
                size_at: (0, nvos32::ALLOC_SIZE),
                handle_at: (0, nvos32::ALLOC_H_MEMORY),
            }))
        }
        nvos32::FUNCTION_FREE => Ok(Effect::Free {
            client,
            object: word(arg, nvos32::FREE_H_MEMORY)?,
        }),
        nvos32::FUNCTION_INFO => Ok(Effect::View(View::HeapInfo {
            object: (client, parent),
        })),
        _ => Err(op.refuse(status::NV_ERR_NOT_SUPPORTED, release)),
    }
}

/// Only classes that cannot name framebuffer pass: 0x40 here is "all of it" for a privileged caller.
fn alloc_memory(op: &Op, arg: &[u8], release: Release) -> Result<Effect, Refusal> {
    let class = class::row_of(word(arg, nvos02::H_CLASS)?, release)
        .filter(|class| matches!(class.kind, Kind::Sysmem | Kind::OsDescriptor))
        .ok_or_else(|| op.refuse(status::NV_ERR_INVALID_CLASS, release))?;
    let (client, parent) = (word(arg, nvos02::H_ROOT)?, word(arg, nvos02::H_PARENT)?);
    Ok(Effect::Object {
        class,
        client,
        parent,
        device_instance: None,
    })
}

fn control(
    op: &Op,
    arg: &[u8],
    params: Option<&[u8]>,
    release: Release,
) -> Result<Effect, Refusal> {
    let object = (word(arg, nvos54::H_CLIENT)?, word(arg, nvos54::H_OBJECT)?);
    let refused = || op.refuse(status::NV_ERR_NOT_SUPPORTED, release);
    let list_entries = || {
        params
            .and_then(|params| u32_at(params, 0))
            .ok_or(Refusal::Errno(EFAULT))
    };
    match word(arg, nvos54::CMD)? {
        ctl::NV2080_CTRL_CMD_FB_GET_INFO_V2 => Ok(Effect::View(View::FbInfo {
            object,
            segment: 1,
            at: 4,
            entries: list_entries()?,
        })),
        ctl::NV2080_CTRL_CMD_FB_GET_INFO => Ok(Effect::View(View::FbInfo {
            object,
            segment: 2,
            at: 0,
            entries: list_entries()?,
        })),
        ctl::NV2080_CTRL_CMD_FB_GET_FB_REGION_INFO => Ok(Effect::View(View::FbRegions { object })),
        ctl::NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS | ctl::NV0000_CTRL_CMD_GPU_GET_PROBED_IDS => {
            Ok(Effect::View(View::GpuIds))
        }
        ctl::NV2080_CTRL_CMD_GPU_GET_PIDS => Ok(Effect::View(View::NoPids)),
        ctl::NV2080_CTRL_CMD_GPU_GET_PID_INFO => Ok(Effect::View(View::NoPidInfo)),
        ctl::NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2 => {
            Ok(Effect::View(View::NoSamples))
        }
        ctl::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS => {
            disabled_clients(params.unwrap_or_default()).ok_or_else(refused)
        }
        // An exported object lives on in a file that any container could be handed.
        ctl::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD
        | ctl::NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD
        | ctl::NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO
        | ctl::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD
        | ctl::NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD => Err(refused()),
        _ => Ok(Effect::None),
    }
}

/// `NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS`: up to 64 clients; the event pointer must be NULL from user space.
fn disabled_clients(params: &[u8]) -> Option<Effect> {
    const COUNT: usize = 4;
    const EVENT: usize = 16;
    const CLIENTS: usize = 24;
    let count = u32_at(params, COUNT).filter(|count| *count <= 64)? as usize;
    if u64_at(params, EVENT)? != 0 {
        return None;
    }
    let clients: Option<Vec<u32>> = (0..count)
        .map(|slot| u32_at(params, CLIENTS + slot * 4))
        .collect();
    clients.map(|clients| Effect::ChannelClients { clients })
}

fn uvm_call(row: &uvm::Uvm, arg: &[u8], release: Release) -> Result<Effect, Refusal> {
    let base = || u64_at(arg, uvm::map_external::BASE).ok_or(Refusal::Errno(EFAULT));
    let length = || u64_at(arg, uvm::map_external::LENGTH).ok_or(Refusal::Errno(EFAULT));
    let refused = |status| Refusal::Status {
        status,
        at: row.status.of(release) as usize,
    };
    match *row {
        uvm::UVM_CREATE_EXTERNAL_RANGE => Ok(Effect::Range {
            base: base()?,
            length: length()?,
        }),
        uvm::UVM_MAP_EXTERNAL_ALLOCATION => Ok(Effect::MapExternal {
            base: base()?,
            length: length()?,
            client: word(arg, uvm::map_external::H_CLIENT.of(release) as usize)?,
            memory: word(arg, uvm::map_external::H_MEMORY.of(release) as usize)?,
            cards: mapped_cards(arg, release)
                .ok_or_else(|| refused(status::NV_ERR_INVALID_ARGUMENT))?,
        }),
        uvm::UVM_FREE => Ok(Effect::FreeRange { base: base()? }),
        uvm::UVM_UNMAP_EXTERNAL => {
            let card = array_at(arg, uvm::UNMAP_EXTERNAL_UUID).ok_or(Refusal::Errno(EFAULT))?;
            Ok(Effect::Unmap {
                base: base()?,
                length: length()?,
                card,
            })
        }
        // Moves managed pages to a card, or maps card memory to another device: not accounted, so not allowed.
        uvm::UVM_MIGRATE | uvm::UVM_ALLOC_DEVICE_P2P => Err(refused(status::NV_ERR_NOT_SUPPORTED)),
        _ => Ok(Effect::None),
    }
}

/// The UUIDs of `perGpuAttributes`; `None` when the count is beyond the array.
fn mapped_cards(arg: &[u8], release: Release) -> Option<Vec<[u8; 16]>> {
    use uvm::map_external::{COUNT, PER_GPU, PER_GPU_BYTES};
    let count_at = COUNT.of(release) as usize;
    let most = (count_at - PER_GPU) / PER_GPU_BYTES;
    let count = usize::try_from(u64_at(arg, count_at)?)
        .ok()
        .filter(|count| *count <= most)?;
    (0..count)
        .map(|slot| array_at(arg, PER_GPU + slot * PER_GPU_BYTES))
        .collect()
}

fn word(block: &[u8], at: usize) -> Result<u32, Refusal> {
    u32_at(block, at).ok_or(Refusal::Errno(EFAULT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvabi::bytes::{put_u32, put_u64};
    use nvabi::layout::nvos64;
    use proptest::prelude::*;

    const R: Release = Release::R570;
    const ALLOC: Op = Op::Escape(&escape::NV_ESC_RM_ALLOC);
    const ALLOC_LONG: Op = Op::Escape(&escape::NV_ESC_RM_ALLOC_LONG);

    fn alloc_struct(class: u32) -> Vec<u8> {
        let mut arg = vec![0; 48];
        put_u32(&mut arg, nvos21::H_ROOT, 1);
        put_u32(&mut arg, nvos21::H_PARENT, 2);
        put_u32(&mut arg, nvos21::H_CLASS, class);
        arg
    }

    fn memory_block(size: u64) -> Vec<u8> {
        let mut params = vec![0; 128];
        put_u64(&mut params, memory_params::SIZE, size);
        params
    }

    #[test]
    fn card_memory_is_reserved_rounded_up() {
        for (asked, reserved) in [
            (0, 64 << 10),
            (1, 64 << 10),
            (64 << 10, 64 << 10),
            ((64 << 10) + 1, 128 << 10),
            (2 << 20, 2 << 20),
            ((2 << 20) + 1, 4 << 20),
            (u64::MAX, u64::MAX),
        ] {
            let verdict = decide(&ALLOC_LONG, &[&alloc_struct(0x40), &memory_block(asked)], R);
            let Verdict::Execute(Effect::Memory(memory)) = verdict else {
                panic!("{verdict:?}")
            };
            assert_eq!(memory.reserve_bytes, reserved, "{asked}");
        }
    }

    #[test]
    fn card_memory_without_parameters_is_refused() {
        let refusal = Refusal::Status {
            status: status::NV_ERR_INVALID_ARGUMENT,
            at: nvos64::STATUS,
        };
        assert_eq!(
            decide(&ALLOC_LONG, &[&alloc_struct(0x40)], R),
            Verdict::Refuse(refusal)
        );
    }

    #[test]
    fn privileged_and_unknown_classes_are_refused() {
        for class in [0xc2, 0x82, 0x83, 0x3f, 0x42, 0xffff] {
            let refusal = Refusal::Status {
                status: status::NV_ERR_INVALID_CLASS,
                at: nvos21::STATUS,
            };
            assert_eq!(
                decide(&ALLOC, &[&alloc_struct(class)], R),
                Verdict::Refuse(refusal),
                "{class:#x}"
            );
        }
        for fabric in [0xf8, 0xfd] {
            let verdict = decide(&ALLOC, &[&alloc_struct(fabric)], R);
            assert!(
                matches!(
                    verdict,
                    Verdict::Refuse(Refusal::Status { status: 0x56, .. })
                ),
                "{fabric:#x}"
            );
        }
    }

    #[test]
    fn whole_framebuffer_by_alloc_memory_is_refused() {
        let op = Op::Escape(&escape::NV_ESC_RM_ALLOC_MEMORY);
        let mut arg = vec![0; 56];
        for (class, allowed) in [(0x40, false), (0x82, false), (0x3e, true), (0x71, true)] {
            put_u32(&mut arg, nvos02::H_CLASS, class);
            assert_eq!(
                matches!(decide(&op, &[&arg], R), Verdict::Execute(_)),
                allowed,
                "{class:#x}"
            );
        }
    }

    #[test]
    fn the_deprecated_heap_call_is_charged_like_any_other() {
        let op = Op::Escape(&escape::NV_ESC_RM_VID_HEAP_CONTROL);
        let mut arg = vec![0; 184];
        put_u32(&mut arg, nvos32::FUNCTION, nvos32::FUNCTION_ALLOC_SIZE);
        put_u64(&mut arg, nvos32::ALLOC_SIZE, 1 << 20);
        assert!(
            matches!(decide(&op, &[&arg], R), Verdict::Execute(Effect::Memory(memory)) if memory.reserve_bytes == 1 << 20)
        );
        put_u32(&mut arg, nvos32::ALLOC_FLAGS, memory_params::FLAG_VIRTUAL);
        assert!(matches!(
            decide(&op, &[&arg], R),
            Verdict::Execute(Effect::Object { .. })
        ));
        for function in [6, 14, 19, 20, 27, 99] {
            put_u32(&mut arg, nvos32::FUNCTION, function);
            assert!(
                matches!(
                    decide(&op, &[&arg], R),
                    Verdict::Refuse(Refusal::Status { status: 0x56, .. })
                ),
                "{function}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            cmd: u32,
            surface in prop_oneof![Just(crate::Surface::Ctl), Just(crate::Surface::Card), Just(crate::Surface::Uvm)],
            arg in prop::collection::vec(any::<u8>(), 0..300),
            params in prop::collection::vec(any::<u8>(), 0..300),
            row in 0..escape::ALL.len(),
            exact: bool,
        ) {
            for release in Release::ALL {
                let cmd = if exact { escape::ALL[row].cmd(release) } else { cmd };
                if let Ok(op) = crate::op(surface, cmd, release) {
                    let _block = crate::blocks::params(&op, &arg, release);
                    let _nested = crate::blocks::nested(&op, &arg, &params, release);
                    let _verdict = decide(&op, &[&arg, &params], release);
                }
            }
        }
    }
}
