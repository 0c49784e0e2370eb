//! Calls of `/dev/nvidia-uvm`.

use nvabi::bytes::{array_at, u32_at, u64_at};
use nvabi::uvm::{self, Id};
use nvabi::{Release, status};

use super::{Effect, Switch, word};
use crate::Refusal;
use crate::effect::{Pages, Registered, Unregistered};
use crate::policy::Managed;
use nvabi::errno::EFAULT;

pub(super) fn call(
    row: &uvm::Uvm,
    arg: &[u8],
    release: Release,
    managed: Managed,
) -> Result<Effect, Refusal> {
    let base = || u64_at(arg, uvm::map_external::BASE).ok_or(Refusal::Errno(EFAULT));
    let length = || u64_at(arg, uvm::map_external::LENGTH).ok_or(Refusal::Errno(EFAULT));
    let refused = |status| Refusal::Status {
        status,
        at: row.status.of(release) as usize,
    };
    match row.id {
        Id::CreateExternalRange => Ok(Effect::Range {
            base: base()?,
            length: length()?,
            card: None,
        }),
        Id::MapExternalAllocation => Ok(Effect::MapExternal {
            base: base()?,
            length: length()?,
            client: word(arg, uvm::map_external::H_CLIENT.of(release) as usize)?,
            memory: word(arg, uvm::map_external::H_MEMORY.of(release) as usize)?,
            cards: mapped_cards(arg, release)
                .ok_or_else(|| refused(status::NV_ERR_INVALID_ARGUMENT))?,
        }),
        Id::Free => Ok(Effect::FreeRange { base: base()? }),
        Id::UnmapExternal => {
            let card = array_at(arg, uvm::UNMAP_EXTERNAL_UUID).ok_or(Refusal::Errno(EFAULT))?;
            Ok(Effect::Unmap {
                base: base()?,
                length: length()?,
                card,
            })
        }
        // A range of its own, freed by UVM_FREE: no memory, but one more entry in the driver's tree, and a page table.
        Id::MapDynamicParallelismRegion => Ok(Effect::Range {
            base: base()?,
            length: length()?,
            card: Some(array_at(arg, uvm::MAP_REGION_UUID).ok_or(Refusal::Errno(EFAULT))?),
        }),
        Id::AllocSemaphorePool => Ok(Effect::Pool {
            base: base()?,
            length: length()?,
        }),
        // A context has one, whether there is managed memory or not.
        Id::CreateRangeGroup => Ok(Effect::RangeGroup(Switch::On)),
        Id::DestroyRangeGroup => Ok(Effect::RangeGroup(Switch::Off)),
        Id::RegisterGpu => Ok(Effect::RegisterCard {
            card: array_at(arg, uvm::REGISTERED_UUID).ok_or(Refusal::Errno(EFAULT))?,
            client: word(arg, uvm::REGISTERED_CARD_CLIENT)?,
        }),
        Id::RegisterGpuVaspace => register(arg, Registered::Space),
        Id::RegisterChannel => register(arg, Registered::Channel),
        Id::UnregisterChannel => Ok(Effect::Unregister(Unregistered::Channel {
            client: word(arg, uvm::UNREGISTERED_CLIENT.of(release) as usize)?,
            channel: word(arg, uvm::UNREGISTERED_CHANNEL.of(release) as usize)?,
        })),
        Id::UnregisterGpuVaspace | Id::UnregisterGpu => {
            let card = array_at(arg, uvm::REGISTERED_UUID).ok_or(Refusal::Errno(EFAULT))?;
            Ok(Effect::Unregister(Unregistered::Card { card }))
        }
        // All of it is charged when it is mapped, or none is: where its pages lie makes no difference to the account of a card.
        Id::Migrate
        | Id::MigrateRangeGroup
        | Id::SetRangeGroup
        | Id::SetPreferredLocation
        | Id::UnsetPreferredLocation
        | Id::EnableReadDuplication
        | Id::DisableReadDuplication
        | Id::SetAccessedBy
        | Id::UnsetAccessedBy => match managed {
            Managed::Charge | Managed::Allow => pages(row.id, arg),
            Managed::Deny => Err(refused(status::NV_ERR_NOT_SUPPORTED)),
        },
        // Maps card memory to another device, takes page tables of a card for a range of any length (`uvm_map_external_sparse_on_gpu`),
        // or acts on every tenant of the card: not accounted, so not allowed.
        Id::AllocDeviceP2p | Id::MapExternalSparse | Id::ClearAllAccessCounters => {
            Err(refused(status::NV_ERR_NOT_SUPPORTED))
        }
        // Such a file is bound to no process: the host's pages that a call on it takes are charged to whoever executes it.
        Id::Initialize if is_for_several(arg) => Err(refused(status::NV_ERR_NOT_SUPPORTED)),
        Id::Initialize
        | Id::MmInitialize
        | Id::EnablePeerAccess
        | Id::DisablePeerAccess
        | Id::PageableMemAccess
        | Id::PageableMemAccessOnGpu
        | Id::ValidateVaRange => Ok(Effect::None),
    }
}

fn is_for_several(arg: &[u8]) -> bool {
    let flags = u32_at(arg, uvm::INITIALIZE_FLAGS);
    flags.is_none_or(|flags| flags & uvm::INIT_FLAG_MULTI_PROCESS != 0)
}

/// What a call on managed pages does with them.
fn pages(id: Id, arg: &[u8]) -> Result<Effect, Refusal> {
    if matches!(id, Id::Migrate | Id::MigrateRangeGroup) {
        return Ok(Effect::Pages(Pages::Moved));
    }
    let is_group = id == Id::SetRangeGroup;
    let base_at = if is_group {
        uvm::SET_RANGE_GROUP_BASE
    } else {
        0
    };
    let word = |at| u64_at(arg, at).ok_or(Refusal::Errno(EFAULT));
    let (base, length) = (word(base_at)?, word(base_at + 8)?);
    Ok(Effect::Pages(Pages::Advised { base, length }))
}

fn register(arg: &[u8], what: Registered) -> Result<Effect, Refusal> {
    Ok(Effect::Register {
        card: array_at(arg, uvm::REGISTERED_UUID).ok_or(Refusal::Errno(EFAULT))?,
        client: word(arg, uvm::REGISTERED_CLIENT)?,
        object: word(arg, uvm::REGISTERED_OBJECT)?,
        what,
    })
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
