//! The driver's words in the ledger's, and the ledger's refusals in the driver's.

use driver::Segment;
use ledger::{CardSlot, ObjectHandle, ObjectKind};
use nvabi::bytes::{array_at, u32_at};
use nvabi::class::{Class, Kind, NV01_MEMORY_VIRTUAL, Plain};
use nvabi::layout::{channel_params, memory_params, nvos32, virtual_params};
use nvabi::{escape, status};
use verdict::{Effect, Op};

use journal::state::ChangesAccount;

/// Whether a success changes the account.
#[must_use]
pub fn changes_account(effect: &Effect) -> ChangesAccount {
    match effect {
        Effect::None
        | Effect::Pages(_)
        | Effect::MapDma { .. }
        | Effect::UnmapDma { .. }
        | Effect::CpuMapping { .. }
        | Effect::View(_)
        | Effect::ChannelClients { .. }
        | Effect::Schedule(_)
        | Effect::NamesCards { .. }
        | Effect::Answered { .. }
        | Effect::ExportInfo { .. } => ChangesAccount::No,
        Effect::Client
        | Effect::RangeGroup(_)
        | Effect::OsEvent { .. }
        | Effect::Pool { .. }
        | Effect::Object { .. }
        | Effect::Memory(_)
        | Effect::Free { .. }
        | Effect::Dup { .. }
        | Effect::Export(_)
        | Effect::Import(_)
        | Effect::Managed { .. }
        | Effect::Range { .. }
        | Effect::MapExternal { .. }
        | Effect::Unmap { .. }
        | Effect::RegisterCard { .. }
        | Effect::Register { .. }
        | Effect::Unregister(_)
        | Effect::FreeRange { .. } => ChangesAccount::Yes,
    }
}

pub(super) fn status_of(refusal: &ledger::Refusal) -> u32 {
    match refusal {
        ledger::Refusal::OverQuota { .. } | ledger::Refusal::NoShare { .. } => {
            status::NV_ERR_NO_MEMORY
        }
        ledger::Refusal::TooMany { .. } => status::NV_ERR_INSUFFICIENT_RESOURCES,
        ledger::Refusal::ForeignClient { .. } => status::NV_ERR_INVALID_CLIENT,
        ledger::Refusal::UnknownObject { .. } | ledger::Refusal::UnknownExport { .. } => {
            status::NV_ERR_INVALID_OBJECT_HANDLE
        }
    }
}

pub(super) fn card_slot(index: usize) -> Option<CardSlot> {
    u8::try_from(index).ok().map(CardSlot)
}

pub(super) fn object_kind(kind: Kind) -> ObjectKind {
    match kind {
        Kind::Root => ObjectKind::Client,
        Kind::Device => ObjectKind::Device,
        Kind::Subdevice => ObjectKind::Subdevice,
        Kind::Vidmem | Kind::Sysmem | Kind::OsDescriptor | Kind::Virtual => ObjectKind::Memory,
        Kind::VaSpace => ObjectKind::VaSpace,
        Kind::ChannelGroup => ObjectKind::ChannelGroup,
        Kind::Channel => ObjectKind::Channel,
        Kind::ContextShare => ObjectKind::ContextShare,
        Kind::Plain(Plain::ThirdParty) => ObjectKind::PeerSession,
        Kind::Plain(Plain::SharedData) => ObjectKind::SharedData,
        Kind::Plain(Plain::Debugger) => ObjectKind::Debugger,
        Kind::Event => ObjectKind::Event,
        Kind::Graphics
        | Kind::Copy
        | Kind::Video
        | Kind::OtherEngine
        | Kind::Usermode
        | Kind::Fabric
        | Kind::Plain(_) => ObjectKind::Other,
    }
}

/// What takes an object with it beside its parent: a context share, a channel and virtual memory go with their VA space.
pub(super) fn dependencies(op: &Op, class: &Class, segments: &[Segment]) -> Vec<ObjectHandle> {
    let is_heap = op.escape() == Some(escape::Id::VidHeapControl);
    let (segment, at) = match class.kind {
        Kind::ContextShare => (1, 0),
        Kind::ChannelGroup => (1, 8),
        Kind::Channel => (1, channel_params::H_VA_SPACE),
        Kind::Virtual if is_heap => (0, nvos32::H_VA_SPACE),
        Kind::Virtual if class.number == NV01_MEMORY_VIRTUAL => (1, virtual_params::H_VA_SPACE),
        Kind::Virtual => (1, memory_params::H_VA_SPACE),
        Kind::Root
        | Kind::Device
        | Kind::Subdevice
        | Kind::Vidmem
        | Kind::Sysmem
        | Kind::OsDescriptor
        | Kind::VaSpace
        | Kind::Graphics
        | Kind::Copy
        | Kind::Video
        | Kind::OtherEngine
        | Kind::Usermode
        | Kind::Event
        | Kind::Fabric
        | Kind::Plain(_) => return Vec::new(),
    };
    let handle = segments
        .get(segment)
        .and_then(|block| u32_at(&block.bytes, at))
        .filter(|handle| *handle != 0);
    handle.map(ObjectHandle).into_iter().collect()
}

/// The 16 bytes of `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`; `None` for a name of another form.
#[must_use]
pub fn uuid_bytes(uuid: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = uuid
        .strip_prefix("GPU-")?
        .bytes()
        .filter(|byte| *byte != b'-')
        .collect();
    let nibble = |byte: u8| {
        char::from(byte)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    let bytes: Option<Vec<u8>> = digits
        .chunks(2)
        .map(|pair| match pair {
            [high, low] => Some((nibble(*high)? << 4) | nibble(*low)?),
            _ => None,
        })
        .collect();
    array_at(&bytes?, 0).filter(|_| digits.len() == 32)
}
