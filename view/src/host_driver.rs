//! Which driver is behind this host's cards.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use cards::{Inventory, SimulatedInventory};
use host_config::Config;
use host_config::config::DriverKind;
use nvabi::DriverVersion;
use nvabi::proc_files::{VERSION_PATH, driver_version};
use serde::{Deserialize, Serialize};

/// How long the simulator may take to answer a command.
pub const ANSWER: Duration = Duration::from_secs(2);

/// The driver behind the cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostDriver {
    /// The kernel's.
    Kernel,
    /// `cgpu-sim`.
    Sim,
    /// Neither.
    None,
}

impl HostDriver {
    /// The driver that containers of this host would get.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let simulated = SimulatedInventory::path(&config.state_dir).exists();
        match config.driver.kind {
            DriverKind::Kernel => Self::Kernel,
            DriverKind::Sim => Self::Sim,
            DriverKind::Auto if Path::new(VERSION_PATH).exists() => Self::Kernel,
            DriverKind::Auto if simulated => Self::Sim,
            DriverKind::Auto => Self::None,
        }
    }

    /// Whether `cgpu-sim` answers in time. A process that has been stopped takes connections and answers nothing.
    ///
    /// # Errors
    /// Why not, as text.
    pub fn simulator_answers(config: &Config, patience: Duration) -> Result<(), String> {
        let socket = SimulatedInventory::socket_path(&config.state_dir);
        Self::ask_simulator(config, patience).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => format!(
                "{}: nothing within {} s",
                socket.display(),
                patience.as_secs_f32()
            ),
            _ => format!("{}: {error}", socket.display()),
        })
    }

    /// Asks the simulator for a sign of life.
    ///
    /// # Errors
    /// The system's, which tells those who may not ask it from those whom it does not answer.
    pub fn ask_simulator(config: &Config, patience: Duration) -> io::Result<()> {
        let socket = SimulatedInventory::socket_path(&config.state_dir);
        let connection = sys::fd_passing::connect_seqpacket_within(&socket, patience)?;
        // No request: the simulator says that it does not understand, and that is an answer.
        sys::fd_passing::send(connection.as_fd(), &[0xff], &[])?;
        match sys::fd_passing::receive(connection.as_fd(), &mut [0; 4096])? {
            (0, _) => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Why the driver behind this host's cards answers nobody in time, as far as that can be asked; `None`: it answers, or there is
    /// none.
    #[must_use]
    pub fn trouble(self, config: &Config, patience: Duration) -> Option<String> {
        match self {
            Self::Sim => Self::simulator_answers(config, patience).err(),
            // NVML has answered when the cards are known.
            Self::Kernel | Self::None => None,
        }
    }

    /// The cards behind it, asked anew; `None` without a driver.
    ///
    /// # Errors
    /// A driver that is configured or loaded and cannot say its cards.
    pub fn inventory(self, config: &Config) -> anyhow::Result<Option<Inventory>> {
        match self {
            Self::None => Ok(None),
            Self::Sim => Ok(Some(Inventory::simulated(&config.state_dir)?)),
            Self::Kernel => {
                let version = kernel_version()?;
                let requested = Inventory::ask_driver(&config.state_dir, &version.to_string())?;
                Ok(Some(requested))
            }
        }
    }
}

/// The version of the kernel's driver.
///
/// # Errors
/// It is not loaded, or says something else than a version.
pub fn kernel_version() -> anyhow::Result<DriverVersion> {
    use anyhow::Context;
    let text =
        std::fs::read_to_string(VERSION_PATH).with_context(|| format!("read {VERSION_PATH}"))?;
    driver_version(&text)
        .and_then(|version| version.parse().ok())
        .with_context(|| format!("{VERSION_PATH} has no version such as 570.195.03"))
}
