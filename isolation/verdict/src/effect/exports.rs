//! Objects that go into a file and come out of it.

use crate::blocks::Descriptor;

/// Objects put into a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// Client of the objects.
    pub client: u32,
    /// Their device; 0: they belong to the client itself.
    pub device: u32,
    /// Where the number of the control file stands that will hold them.
    pub file: Descriptor,
    /// Whether the file may hold exports already: the call for one object fails then.
    pub onto: Onto,
    /// Slot of the first object in the file.
    pub first: u16,
    /// The objects, slot by slot; 0 empties a slot.
    pub objects: Vec<u32>,
}

/// What an export finds in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Onto {
    /// The file must hold none.
    Fresh,
    /// A file that holds none gets this many slots; what is in the slots named is replaced.
    Slots {
        /// Slots of a fresh file.
        capacity: u16,
    },
}

/// Objects taken out of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Import {
    /// Client that gets the new handles.
    pub client: u32,
    /// Their parent.
    pub parent: u32,
    /// Where the number of the file stands that holds the exports.
    pub file: Descriptor,
    /// Slot of the first object in the file.
    pub first: u16,
    /// How many slots.
    pub count: u16,
    /// Offset in the parameters of the first new handle, four bytes each: 0 on entry lets the driver choose; read after success.
    pub handles_at: usize,
    /// Offset in the parameters of the first object's type, one byte each, out: 0 says that the slot was empty.
    pub types_at: Option<usize>,
}
