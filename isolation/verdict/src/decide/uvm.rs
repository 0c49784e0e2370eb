//! Calls of `/dev/nvidia-uvm`.

use nvabi::bytes::{array_at, u64_at};
use nvabi::{Release, status, uvm};

use super::{Effect, word};
use crate::policy::Managed;
use crate::{EFAULT, Refusal};

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
        // A range of its own, freed by UVM_FREE: no memory, but one more entry in the driver's tree.
        uvm::UVM_MAP_DYNAMIC_PARALLELISM_REGION => Ok(Effect::Range {
            base: base()?,
            length: length()?,
        }),
        uvm::UVM_ALLOC_SEMAPHORE_POOL => Ok(Effect::Pool {
            base: base()?,
            length: length()?,
        }),
        // All of it is charged when it is mapped, or none is: where its pages lie makes no difference to the account.
        uvm::UVM_MIGRATE
        | uvm::UVM_MIGRATE_RANGE_GROUP
        | uvm::UVM_CREATE_RANGE_GROUP
        | uvm::UVM_DESTROY_RANGE_GROUP
        | uvm::UVM_SET_RANGE_GROUP
        | uvm::UVM_SET_PREFERRED_LOCATION
        | uvm::UVM_UNSET_PREFERRED_LOCATION
        | uvm::UVM_ENABLE_READ_DUPLICATION
        | uvm::UVM_DISABLE_READ_DUPLICATION
        | uvm::UVM_SET_ACCESSED_BY
        | uvm::UVM_UNSET_ACCESSED_BY => match managed {
            Managed::Charge | Managed::Allow => Ok(Effect::None),
            Managed::Deny => Err(refused(status::NV_ERR_NOT_SUPPORTED)),
        },
        // Maps card memory to another device: not accounted, so not allowed.
        uvm::UVM_ALLOC_DEVICE_P2P => Err(refused(status::NV_ERR_NOT_SUPPORTED)),
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
