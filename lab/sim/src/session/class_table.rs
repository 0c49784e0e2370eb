//! What RM asks of an allocation before the class itself is asked: its row in the table of classes (rmapi/resource_list.h), which has been the same since 535.

use nvabi::class::{Class, Kind, Plain};

use super::objects::Resource;

/// What an object may be below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parents {
    Any,
    Client,
    Device,
    DeviceOrSubdevice,
    Subdevice,
    ChannelGroup,
    DeviceOrChannelGroup,
    Channel,
}

/// `NV_MEMORY_MULTICAST_FABRIC`
const NV_MEMORY_MULTICAST_FABRIC: u32 = 0xfd;

const fn parents(class: &Class) -> Parents {
    match class.kind {
        // Below nothing; the call has no parent.
        Kind::Root => Parents::Any,
        Kind::Event => Parents::Any,
        Kind::Device => Parents::Client,
        Kind::Subdevice
        | Kind::Sysmem
        | Kind::OsDescriptor
        | Kind::Virtual
        | Kind::ChannelGroup => Parents::Device,
        Kind::Vidmem | Kind::VaSpace => Parents::DeviceOrSubdevice,
        Kind::Channel => Parents::DeviceOrChannelGroup,
        Kind::ContextShare => Parents::ChannelGroup,
        Kind::Graphics | Kind::Copy | Kind::Video | Kind::OtherEngine => Parents::Channel,
        Kind::Usermode => Parents::Subdevice,
        Kind::Fabric if class.number == NV_MEMORY_MULTICAST_FABRIC => Parents::Client,
        Kind::Fabric => Parents::Subdevice,
        Kind::Plain(plain) => match plain {
            Plain::ContextDma => Parents::Any,
            Plain::Debugger => Parents::Device,
            Plain::PeerToPeer | Plain::Mps | Plain::Confidential => Parents::Client,
            Plain::SharedData
            | Plain::BinaryApi
            | Plain::Diagnostics
            | Plain::ThirdParty
            | Plain::ZbcClear
            | Plain::SubdeviceMaster
            | Plain::EncoderSession => Parents::Subdevice,
        },
    }
}

/// Whether an object of a class may be below another.
pub(super) const fn may_be_below(class: &Class, parent: &Resource) -> bool {
    match parents(class) {
        Parents::Any => true,
        Parents::Client => matches!(parent, Resource::Client),
        Parents::Device => matches!(parent, Resource::Device(_)),
        Parents::DeviceOrSubdevice => {
            matches!(parent, Resource::Device(_) | Resource::Subdevice(_))
        }
        Parents::Subdevice => matches!(parent, Resource::Subdevice(_)),
        Parents::ChannelGroup => matches!(parent, Resource::ChannelGroup(..)),
        Parents::DeviceOrChannelGroup => {
            matches!(parent, Resource::Device(_) | Resource::ChannelGroup(..))
        }
        Parents::Channel => matches!(parent, Resource::Channel(_)),
    }
}

/// Whether its parent is of no account.
pub(super) const fn may_be_below_anything(class: &Class) -> bool {
    matches!(parents(class), Parents::Any)
}

/// Whether there can be only one below a parent.
pub(super) fn is_single(class: &Class) -> bool {
    /// `NVB8FA_VIDEO_OFA` and its like; that of GB100 is not one of them.
    const OFA: [u32; 7] = [0xb8fa, 0xc6fa, 0xc7fa, 0xc9fa, 0xcefa, 0xcffa, 0xd1fa];
    matches!(
        class.kind,
        Kind::Plain(Plain::Diagnostics | Plain::ThirdParty | Plain::Mps)
    ) || OFA.contains(&class.number)
}

/// Whether RM takes no call without parameters (`RS_REQUIRED`).
pub(super) const fn needs_params(class: &Class) -> bool {
    match class.kind {
        Kind::Root
        | Kind::Device
        | Kind::Subdevice
        | Kind::Graphics
        | Kind::Copy
        | Kind::Video
        | Kind::OtherEngine
        | Kind::Usermode => false,
        Kind::Vidmem
        | Kind::Sysmem
        | Kind::OsDescriptor
        | Kind::Virtual
        | Kind::VaSpace
        | Kind::ChannelGroup
        | Kind::Channel
        | Kind::ContextShare
        | Kind::Event
        | Kind::Fabric => true,
        Kind::Plain(plain) => match plain {
            Plain::ContextDma
            | Plain::PeerToPeer
            | Plain::Debugger
            | Plain::SharedData
            | Plain::EncoderSession => true,
            Plain::BinaryApi
            | Plain::Diagnostics
            | Plain::ThirdParty
            | Plain::Mps
            | Plain::ZbcClear
            | Plain::SubdeviceMaster
            | Plain::Confidential => false,
        },
    }
}
