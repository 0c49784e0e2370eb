//! What a container's libraries are for, as far as it decides which calls it may make: the words of `NVIDIA_DRIVER_CAPABILITIES`.
//!
//! Compute and utility are every container's: libcuda and NVML ask the same things, and which rows are whose is no bound worth having. What
//! video and graphics need more has a row as every other call has, with the capability that admits it (gVisor's nvproxy draws the same line).

/// Capabilities that a container has beside compute and utility.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// 3D, 2D and inline-to-memory (OpenGL, Vulkan, OptiX), without a display.
    pub graphics: bool,
    /// The video engines: NVDEC, NVENC, NVJPG, OFA.
    pub video: bool,
}

impl Capabilities {
    /// Both.
    pub const ALL: Self = Self {
        graphics: true,
        video: true,
    };
}

/// What a container must have for a class or a control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Needs {
    /// Nothing: it belongs to compute or utility.
    Nothing,
    /// [`Capabilities::graphics`]
    Graphics,
    /// [`Capabilities::video`]
    Video,
    /// One of both.
    GraphicsOrVideo,
}

impl Needs {
    /// Whether a container with these may have it.
    #[must_use]
    pub const fn met_by(self, has: Capabilities) -> bool {
        match self {
            Self::Nothing => true,
            Self::Graphics => has.graphics,
            Self::Video => has.video,
            Self::GraphicsOrVideo => has.graphics || has.video,
        }
    }
}
