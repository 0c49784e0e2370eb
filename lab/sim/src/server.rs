//! The socket and the files of a simulator.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cards::inventory::{self, SimulatedInventory};
use cards::store::DiskStore;
use cards::{Card, GpuUuid};

use crate::Error;
use crate::connection::serve;
use crate::machine::Machine;
use crate::profile::Profile;

/// Stack of a connection's thread; its buffers are on the heap.
const STACK_BYTES: usize = 256 << 10;
/// `/dev` nodes are open to all; the broker is what guards them.
const NODE_MODE: u32 = 0o666;
/// Folders of the root.
const DIR_MODE: u32 = 0o755;

/// A simulator that listens. Dropping it removes its files.
#[derive(Debug)]
pub struct Server {
    machine: Arc<Machine>,
    listener: OwnedFd,
    /// Removed with the server.
    _files: Files,
}

/// What is below the root, and goes with the simulator.
#[derive(Debug)]
struct Files {
    root: PathBuf,
    nodes: Vec<PathBuf>,
    /// Held while the simulator lives.
    lock: File,
}

impl Server {
    /// Makes the files of a simulator below `<state_dir>/sim` and listens.
    ///
    /// # Errors
    /// A folder that another simulator holds, or a failed file operation.
    pub fn bind(profile: Profile, state_dir: &Path) -> Result<Self, Error> {
        let root = &state_dir.join("sim");
        let machine = Machine::new(profile);
        let files = Files::make(root, &machine)?;
        let inventory = SimulatedInventory {
            version: inventory::VERSION,
            driver_version: machine.driver_version().to_owned(),
            cards: inventory_cards(&machine).map_err(|source| Error::Inventory {
                path: state_dir.to_owned(),
                source,
            })?,
        };
        inventory
            .write(&DiskStore, state_dir)
            .map_err(|source| Error::Inventory {
                path: state_dir.to_owned(),
                source,
            })?;
        let socket = files.socket();
        let listener = sys::fd_passing::listen_seqpacket(&socket)
            .and_then(|listener| {
                // Only the broker, which is root's, may speak to it.
                fs::set_permissions(&socket, Permissions::from_mode(0o600))?;
                Ok(listener)
            })
            .map_err(|source| Error::File {
                step: "listen at",
                path: socket,
                source,
            })?;
        Ok(Self {
            machine,
            listener,
            _files: files,
        })
    }

    /// The machine behind the socket.
    #[must_use]
    pub fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }

    /// Serves connections in threads of their own, until the process ends.
    ///
    /// # Errors
    /// The first thread cannot be made.
    pub fn start(&self) -> Result<(), Error> {
        let listener = self.listener.try_clone().map_err(|source| Error::Process {
            step: "duplicate the listener",
            source,
        })?;
        let machine = self.machine.clone();
        thread("accept", move || accept_all(&machine, listener.as_fd())).map_err(|source| {
            Error::Process {
                step: "start the accepting thread",
                source,
            }
        })
    }
}

impl Files {
    fn make(root: &Path, machine: &Machine) -> Result<Self, Error> {
        let failed = |step: &'static str, path: &Path| {
            let path = path.to_owned();
            move |source| Error::File { step, path, source }
        };
        let dev = root.join("dev");
        fs::create_dir_all(root).map_err(failed("create", root))?;
        let lock_path = root.join("lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(failed("open", &lock_path))?;
        if !sys::lock::try_exclusive(&lock).map_err(failed("lock", &lock_path))? {
            return Err(Error::Busy {
                path: root.to_owned(),
            });
        }
        let names = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]
            .into_iter()
            .map(str::to_owned)
            .chain(
                machine
                    .cards()
                    .iter()
                    .map(|card| format!("nvidia{}", card.index)),
            );
        let files = Self {
            root: root.to_owned(),
            nodes: names.map(|name| dev.join(name)).collect(),
            lock,
        };
        // What a killed predecessor left. Its nodes go too: a container that still has one must not reach new cards.
        files.remove().map_err(failed("clear", root))?;
        fs::create_dir(&dev).map_err(failed("create", &dev))?;
        for dir in [root, &dev] {
            fs::set_permissions(dir, Permissions::from_mode(DIR_MODE))
                .map_err(failed("set the mode of", dir))?;
        }
        for node in &files.nodes {
            File::create_new(node)
                .and_then(|file| file.set_permissions(Permissions::from_mode(NODE_MODE)))
                .map_err(failed("create", node))?;
        }
        Ok(files)
    }

    fn socket(&self) -> PathBuf {
        self.root.join("sim.sock")
    }

    /// Removes all but the root and its lock.
    fn remove(&self) -> io::Result<()> {
        for file in [self.socket(), self.root.join("cards.json")] {
            match fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _removed => {}
            }
        }
        match fs::remove_dir_all(self.root.join("dev")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _removed => Ok(()),
        }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!(root = %self.root.display(), %error, "files were left behind");
        }
        // The lock's file goes while it is held; a successor that waits for it makes a new one.
        for result in [
            fs::remove_file(self.root.join("lock")),
            fs::remove_dir(&self.root),
        ] {
            if let Err(error) = result {
                tracing::debug!(root = %self.root.display(), %error, "kept");
            }
        }
        tracing::debug!(lock = ?self.lock, "released");
    }
}

fn inventory_cards(machine: &Machine) -> Result<Vec<Card>, cards::Error> {
    machine
        .cards()
        .iter()
        .map(|card| {
            Ok(Card {
                uuid: GpuUuid::new(card.uuid())?,
                name: card.profile.name.clone(),
                memory_bytes: card.profile.memory_bytes,
                minor: card.index,
                index: card.index,
                pci: format!("00000000:{:02X}:00.0", card.pci_bus()),
                modes: card.profile.modes,
            })
        })
        .collect()
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK_BYTES)
        .spawn(body)
        .map(drop)
}

fn accept_all(machine: &Arc<Machine>, listener: BorrowedFd<'_>) {
    loop {
        match sys::fd_passing::accept(listener) {
            Ok(connection) => {
                let machine = machine.clone();
                let started = thread("connection", move || {
                    match serve(&machine, connection.as_fd()) {
                        Ok(()) => {}
                        Err(error) => tracing::warn!(%error, "connection ended"),
                    }
                });
                if let Err(error) = started {
                    tracing::error!(%error, "no thread for a connection");
                }
            }
            Err(error) if error.raw_os_error().is_some_and(transient) => {
                tracing::warn!(%error, "a connection was not accepted");
                // Out of descriptors: they come back as connections end, not as this loop turns.
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            Err(error) => {
                tracing::error!(%error, "no more connections are accepted");
                return;
            }
        }
    }
}

fn transient(errno: i32) -> bool {
    use nix::errno::Errno;
    matches!(
        Errno::from_raw(errno),
        Errno::EINTR
            | Errno::ECONNABORTED
            | Errno::EMFILE
            | Errno::ENFILE
            | Errno::ENOBUFS
            | Errno::ENOMEM
    )
}
