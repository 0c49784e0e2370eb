//! What a container's configuration lets a verdict choose between. Everything else here is the same for all.

use nvabi::capability::Capabilities;

/// Memory of `/dev/nvidia-uvm` that moves between the host and the card by itself (`cudaMallocManaged`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Managed {
    /// None can be made, and none moved: `mmap` gets `EINVAL`.
    #[default]
    Deny,
    /// Charged by its length in address space, as if all of it was on the card.
    Charge,
    /// Not charged: the driver evicts it when another allocation needs the room.
    Allow,
}

/// Share policies (RM_SHARE, SET_INHERITED_SHARE_POLICY) that open objects to every client of the same user, or to one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SameUser {
    /// Refused: other containers may run as the same user.
    #[default]
    Refuse,
    /// Executed as a policy for the same process, which whoever executes must put in its place: see [`crate::narrow`].
    Narrow,
}

/// The driver's own page of figures (class RM_USER_SHARED_DATA), which tells every reader of the whole card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CardFigures {
    /// No object of it is made, as on a virtual GPU (`gpushareddataConstruct_IMPL`, gpu_user_shared_data.c), and no list has the class.
    #[default]
    Refuse,
    /// It is mapped as the driver maps it.
    Show,
}

/// Memory that a program registers (class NV01_MEMORY_SYSTEM_OS_DESCRIPTOR, `cudaHostRegister`): its own pages, so the caller makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RegisteredMemory {
    /// No object of it is made.
    #[default]
    Refuse,
    /// The call is handed back to the caller, and the kernel reads it a second time.
    Allow,
}

/// One container's choices. The default is what a broker that implements none of them must take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policy {
    /// Managed memory.
    pub managed: Managed,
    /// Share policies by user, and for one client.
    pub same_user: SameUser,
    /// The page of figures.
    pub card_figures: CardFigures,
    /// Memory that is registered.
    pub registered_memory: RegisteredMemory,
    /// What it may do beside compute and utility.
    pub capabilities: Capabilities,
}
