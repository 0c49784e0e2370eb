//! What nvidia-uvm registers, and registers no longer.

/// What UVM registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Registered {
    /// An address space.
    Space,
    /// A channel.
    Channel,
}

/// What UVM registers no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unregistered {
    /// A channel. The driver finds it by these two alone, whatever card the call names (`find_user_channel`, uvm_user_channel.c).
    Channel {
        /// Client.
        client: u32,
        /// The channel.
        channel: u32,
    },
    /// A card's address space, with every channel in it (`destroy_gpu_va_space`, uvm_va_space.c); or the card, with both.
    Card {
        /// By UUID.
        card: [u8; 16],
    },
}
