//! Which container a governor is for, and what its grant says of it.

/// What becomes of a share that the knobs cannot hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fail {
    /// The container goes on with less isolation.
    #[default]
    Open,
    /// The gate stays closed, as far as [`crate::CLOSED_MAX_NS`] allows.
    Closed,
}

/// Which container a governor is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// `<namespace>/<container>`, the name of its records.
    pub key: String,
    /// How many cards it has. More than one: a gang, whose segments are at the same time on all of them.
    pub cards: usize,
    /// When it joined, on the clock of [`crate::Environment::now_ns`]; a broker that follows another gives the first one's.
    pub join_ns: u64,
    /// See [`Fail`].
    pub fail: Fail,
    /// First process of the container and its start time (field 22 of `/proc/<pid>/stat`), for whoever has to open its gates.
    pub process: Option<(i32, u64)>,
}
