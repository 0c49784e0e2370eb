//! Every way to a card's memory, and what becomes of it. Numbers are those of the research notes' section 2: 1 to 20 its table, then what
//! outlives a free (R), what the driver takes by itself (I), and memory that moves by itself (M).
//!
//! `main.rs` makes each call on every release and holds the verdict against this table; docs/internals/paths.md shows it.

/// What becomes of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    /// The quota pays, by the size that the call declares and the driver corrects.
    Charged,
    /// The quota pays a calibrated sum for each object, and their number is limited.
    FlatRate,
    /// A reference on memory that is paid for already: it stays charged until the last one is gone.
    Referenced,
    /// Refused as the driver would refuse it.
    Refused,
    /// It takes no card memory.
    NoCardMemory,
    /// No call of a tenant comes here: the host or the container's edits close it.
    ClosedOutside,
}

impl Outcome {
    /// As docs/internals/paths.md names it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Charged => "charged",
            Self::FlatRate => "charged, flat",
            Self::Referenced => "reference-counted",
            Self::Refused => "refused",
            Self::NoCardMemory => "no card memory",
            Self::ClosedOutside => "closed outside",
        }
    }
}

/// One path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Path {
    /// Number.
    pub(crate) id: &'static str,
    /// What it is.
    pub(crate) name: &'static str,
    /// The call that takes it.
    pub(crate) call: &'static str,
    /// What becomes of it.
    pub(crate) outcome: Outcome,
    /// Why that is enough.
    pub(crate) because: &'static str,
}

const fn path(
    id: &'static str,
    name: &'static str,
    call: &'static str,
    outcome: Outcome,
    because: &'static str,
) -> Path {
    Path {
        id,
        name,
        call,
        outcome,
        because,
    }
}

/// Every path.
#[rustfmt::skip] // a row stays together
pub(crate) const ALL: &[Path] = &[
    path("1", "device memory", "RM_ALLOC class 0x40", Outcome::Charged,
        "the size in the parameters, rounded up as the driver may; the size written back replaces it"),
    path("2", "device memory, deprecated call", "VID_HEAP_CONTROL function 2", Outcome::Charged,
        "converted to the same allocation by the driver"),
    path("2a", "other heap functions", "VID_HEAP_CONTROL functions 6, 14, 19, 20, 27", Outcome::Refused,
        "no known client makes them; 27 pins pages of whoever executes it"),
    path("3", "fabric memory", "RM_ALLOC class 0xf8", Outcome::Refused,
        "memory that other machines can attach to"),
    path("4", "multicast fabric memory", "RM_ALLOC class 0xfd, controls 0xfd0101, 0xfd0102, 0xfd0104, 0xfd0105, 0xf80103", Outcome::Refused,
        "references that no account is kept of; 0xfd0104 names a file in its parameters"),
    path("5", "the whole framebuffer", "RM_ALLOC class 0xc2, ALLOC_MEMORY class 0x40", Outcome::Refused,
        "a privileged class: it must not depend on the executor's capabilities"),
    path("6", "page lists", "RM_ALLOC and ALLOC_MEMORY classes 0x81, 0x82, 0x83, 0x3f", Outcome::Refused,
        "physical addresses chosen by the caller"),
    path("7", "another handle", "RM_DUP_OBJECT", Outcome::Referenced,
        "the source's client must be the container's own"),
    path("8", "exported and imported objects", "controls 0x3d05, 0x3d06, 0x3d0b, 0x3d0c", Outcome::Referenced,
        "held by the file until it is closed; a file of another container is refused, or charged where both name one share group"),
    path("8a", "a description of exports", "control 0x3d08", Outcome::NoCardMemory,
        "read only, and of a file that could be imported from"),
    path("9", "dma-buf", "EXPORT_TO_DMABUF_FD", Outcome::Refused,
        "any process that gets the file holds the memory"),
    path("10", "external mapping", "UVM_MAP_EXTERNAL_ALLOCATION", Outcome::Referenced,
        "one reference for each card that maps it, until it is unmapped, replaced or its file closed"),
    path("10a", "external mapping of nothing", "UVM_MAP_EXTERNAL_SPARSE", Outcome::Refused,
        "page tables for a range of any length, which no sum has"),
    path("10b", "registration with nvidia-uvm", "UVM_REGISTER_CHANNEL, UVM_REGISTER_GPU_VASPACE", Outcome::Referenced,
        "a reference on the object, and on a channel's group, until it is unregistered, its card is, or the file is closed"),
    path("11", "managed memory", "mmap of /dev/nvidia-uvm", Outcome::Charged,
        "by address space, as if all of it were on the card; the other policies are deny and allow"),
    path("11a", "moving managed memory", "UVM_MIGRATE, UVM_MIGRATE_RANGE_GROUP, UVM_SET_PREFERRED_LOCATION, UVM_SET_ACCESSED_BY and the like", Outcome::NoCardMemory,
        "what moves is charged already, and on the host to the program's control group; refused where managed memory is denied"),
    path("12", "pageable memory that moves (HMM)", "page faults", Outcome::ClosedOutside,
        "nvidia-uvm loaded with uvm_disable_hmm=1; UVM_INITIALIZE is the caller's own, so its flag cannot be relied on"),
    path("13", "channel group", "RM_ALLOC class 0xa06c", Outcome::FlatRate,
        "44 MiB for a group of the compute engine until the driver has told what its contexts take (132 MiB from a container's ninth on), then that; 2 MiB for another engine's"),
    path("14", "channel", "RM_ALLOC classes 0xc06f, 0xc36f, 0xc46f, 0xc56f, 0xc86f, 0xc96f, 0xca6f", Outcome::FlatRate,
        "instance memory, RAMFC, USERD, method buffers"),
    path("15", "address space and page tables", "RM_ALLOC class 0x90f1, MAP_MEMORY_DMA", Outcome::FlatRate,
        "page tables grow with what is mapped, 8 bytes for each page: of what is mapped beyond four times the quota they have to fit into it"),
    path("16", "engine objects", "RM_ALLOC of compute, copy, security, 3D and video engines", Outcome::NoCardMemory,
        "they live in the buffers of their channel group; 3D takes the context that compute takes, video those of its engine; without the capability they are refused"),
    path("17", "graphics nodes", "/dev/dri, /dev/nvidia-modeset", Outcome::ClosedOutside,
        "never put into a container; a container that brings them along with a quota is refused"),
    path("18", "system memory", "RM_ALLOC class 0x3e, ALLOC_MEMORY classes 0x3e and 0x71, UVM_ALLOC_SEMAPHORE_POOL", Outcome::NoCardMemory,
        "host memory, counted against a limit of its own; class 0x71 pins pages that the control group counts, and 1/64 of them is charged for what the kernel keeps of each"),
    path("18a", "pinned memory by the wrong call", "RM_ALLOC class 0x71", Outcome::Refused,
        "it would pin pages of whoever executes it; ALLOC_MEMORY is handed back to the caller instead"),
    path("19", "extended memory (Grace)", "RM_ALLOC class 0x42", Outcome::Refused,
        "no account is kept of it"),
    path("20", "address space", "RM_ALLOC classes 0x70 and 0x50a0, VID_HEAP_CONTROL function 2 with VIRTUAL", Outcome::NoCardMemory,
        "addresses without memory: each is made a lazy one, and a sparse one is refused, since page tables are taken at once for others"),
    path("R1", "allocate, refer, free", "RM_FREE after 7, 8 or 10", Outcome::NoCardMemory,
        "a free drops one reference; the allocation stays charged while another stands"),
    path("R2", "memory export objects", "RM_ALLOC classes 0xe0, 0xf1, 0xf9, 0xfb", Outcome::Refused,
        "no row"),
    path("R3", "peer-to-peer with another device", "UVM_ALLOC_DEVICE_P2P", Outcome::Refused,
        "card memory mapped for a device outside the account"),
    path("R4", "third-party peer-to-peer", "RM_ALLOC class 0x503c, controls 0x503c0102, 0x503c0104, 0x503c0105", Outcome::NoCardMemory,
        "announces memory that is charged; whoever takes its pages does so through a device node that a container is not given"),
    path("R5", "semaphore surfaces and memory mappers", "RM_ALLOC classes 0xda and 0xfe", Outcome::Refused,
        "RM keeps references of its own on memory, past the caller's free, and maps it by commands that nobody looks at"),
    path("I1", "size of context buffers", "controls 0x20801218, 0x20803125", Outcome::NoCardMemory,
        "a question; the first answer about a context that is there is what the card's contexts are charged from then on, and a higher one later"),
    path("I2", "many objects without a size", "RM_ALLOC of clients, channel groups, channels, address spaces", Outcome::FlatRate,
        "counts are limited for each container"),
    path("M1", "unregistered ioctls of nvidia-uvm", "UVM numbers without a row, e.g. DISCARD 80", Outcome::Refused,
        "EINVAL where the broker sees them; the filter lets pass those that take nothing of a card"),
];
