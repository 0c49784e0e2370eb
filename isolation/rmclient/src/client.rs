//! A root client on `nvidiactl`, and the calls that every object shares.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nvabi::layout::{api_version, nvos00, nvos21, nvos54, nvos64};
use nvabi::{DriverVersion, Release, bytes, class, control, escape};
use sys::ioctl::Block;

use crate::file::DriverFile;
use crate::{Error, Form, Nodes, Status};

/// Names an object of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u32);

/// The first handle that this client gives to its objects: away from the driver's own client handles (0xc1d0_0000).
const FIRST_HANDLE: u32 = 0x0c60_0001;

/// An open `nvidiactl` with a root client. Dropping it frees everything that was allocated through it.
#[derive(Debug)]
pub struct Client {
    ctl: DriverFile,
    nodes: Nodes,
    version: DriverVersion,
    release: Release,
    root: Handle,
    next_handle: AtomicU32,
    repeats: Arc<AtomicU64>,
}

impl Client {
    /// Opens `nvidiactl`, asks the driver's version and allocates a root client.
    ///
    /// # Errors
    /// [`Error::Open`] without a driver, [`Error::Unsupported`] for a driver whose layouts are not known, otherwise the
    /// step that failed.
    pub fn connect(nodes: &Nodes) -> Result<Self, Error> {
        let repeats = Arc::new(AtomicU64::new(0));
        let ctl = DriverFile::open(nodes.ctl(), &repeats)?;
        let version = query_version(&ctl)?;
        let release = Release::of(version)?;
        let mut client = Self {
            ctl,
            nodes: nodes.clone(),
            version,
            release,
            root: Handle(0),
            next_handle: AtomicU32::new(FIRST_HANDLE),
            repeats,
        };
        client.root = client.allocate_root()?;
        Ok(client)
    }

    /// The driver's version, as the driver itself says it.
    #[must_use]
    pub fn version(&self) -> DriverVersion {
        self.version
    }

    /// The layouts in use.
    #[must_use]
    pub fn release(&self) -> Release {
        self.release
    }

    /// The root client's handle.
    #[must_use]
    pub fn root(&self) -> Handle {
        self.root
    }

    /// How many calls a signal interrupted, and that were made again.
    #[must_use]
    pub fn repeats(&self) -> u64 {
        self.repeats.load(Ordering::Relaxed)
    }

    /// A control call on an object. `nested` are the blocks that pointers in `params` name; their `parent` is 1.
    ///
    /// # Errors
    /// [`Error::Refused`] with the driver's status; [`Error::NoControl`] when this release does not have it.
    pub fn control(
        &self,
        object: Handle,
        cmd: u32,
        params: &mut [u8],
        nested: Vec<Block<'_>>,
    ) -> Result<(), Error> {
        let call = control::row(cmd, self.release).map_or("NV_ESC_RM_CONTROL", |row| row.name);
        let mut arg = [0u8; 32];
        bytes::put_u32(&mut arg, nvos54::H_CLIENT, self.root.0);
        bytes::put_u32(&mut arg, nvos54::H_OBJECT, object.0);
        bytes::put_u32(&mut arg, nvos54::CMD, cmd);
        bytes::put_u32(&mut arg, nvos54::PARAMS_SIZE, length_of(params));
        let mut blocks = vec![Block {
            parent: 0,
            pointer_at: nvos54::P_PARAMS,
            bytes: params,
        }];
        blocks.extend(nested);
        let escape = escape::NV_ESC_RM_CONTROL;
        self.ctl
            .call(call, escape.cmd(self.release), &mut arg, &mut blocks)?;
        checked(call, &arg, nvos54::STATUS)
    }

    /// A zeroed parameter block for a control, as long as this release wants it.
    ///
    /// # Errors
    /// [`Error::NoControl`].
    pub fn params(&self, cmd: u32) -> Result<Vec<u8>, Error> {
        match control::row(cmd, self.release) {
            Some(row) => Ok(vec![0; usize::try_from(row.params_bytes).unwrap_or(0)]),
            None => Err(Error::NoControl {
                version: self.version,
                cmd,
            }),
        }
    }

    /// Allocates an object of any class below `parent` and returns its handle; `params` gets what the driver writes back.
    ///
    /// # Errors
    /// [`Error::Refused`] with the driver's status.
    pub fn allocate(
        &self,
        form: Form,
        parent: Handle,
        class: u32,
        params: &mut [u8],
    ) -> Result<Handle, Error> {
        let handle = self.new_handle();
        self.allocate_as(form, parent, handle, class, params)?;
        Ok(handle)
    }

    fn allocate_as(
        &self,
        form: Form,
        parent: Handle,
        handle: Handle,
        class: u32,
        params: &mut [u8],
    ) -> Result<Handle, Error> {
        let call = class::row_of(class, self.release).map_or("NV_ESC_RM_ALLOC", |row| row.name);
        let (escape, status_at, size_at) = match form {
            Form::Short => (escape::NV_ESC_RM_ALLOC, nvos21::STATUS, nvos21::PARAMS_SIZE),
            Form::Long => (
                escape::NV_ESC_RM_ALLOC_LONG,
                nvos64::STATUS,
                nvos64::PARAMS_SIZE,
            ),
        };
        let mut arg = vec![0u8; usize::try_from(escape.size.of(self.release)).unwrap_or(0)];
        bytes::put_u32(&mut arg, nvos21::H_ROOT, self.root.0);
        bytes::put_u32(&mut arg, nvos21::H_PARENT, parent.0);
        bytes::put_u32(&mut arg, nvos21::H_NEW, handle.0);
        bytes::put_u32(&mut arg, nvos21::H_CLASS, class);
        bytes::put_u32(&mut arg, size_at, length_of(params));
        let mut blocks = [Block {
            parent: 0,
            pointer_at: nvos21::P_PARAMS,
            bytes: params,
        }];
        self.ctl
            .call(call, escape.cmd(self.release), &mut arg, &mut blocks)?;
        checked(call, &arg, status_at)?;
        Ok(Handle(
            bytes::u32_at(&arg, nvos21::H_NEW).unwrap_or(handle.0),
        ))
    }

    fn allocate_root(&self) -> Result<Handle, Error> {
        let none = Handle(0);
        let root = self.allocate_as(Form::Short, none, none, class::NV01_ROOT_CLIENT, &mut [])?;
        if root == none {
            return Err(Error::Malformed {
                call: "NV01_ROOT_CLIENT",
                what: "no handle",
            });
        }
        Ok(root)
    }

    /// Frees an object with everything below it.
    ///
    /// # Errors
    /// [`Error::Refused`] with the driver's status.
    pub fn free(&self, parent: Handle, object: Handle) -> Result<(), Error> {
        let escape = escape::NV_ESC_RM_FREE;
        let mut arg = [0u8; 16];
        bytes::put_u32(&mut arg, nvos00::H_ROOT, self.root.0);
        bytes::put_u32(&mut arg, nvos00::H_PARENT, parent.0);
        bytes::put_u32(&mut arg, nvos00::H_OLD, object.0);
        self.ctl
            .call(escape.name, escape.cmd(self.release), &mut arg, &mut [])?;
        checked(escape.name, &arg, nvos00::STATUS)
    }

    /// The control file that the client lives on.
    #[must_use]
    pub fn ctl(&self) -> &DriverFile {
        &self.ctl
    }

    /// Where the driver's nodes are.
    #[must_use]
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Opens a node whose interrupted calls count with this client's.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open(&self, path: std::path::PathBuf) -> Result<DriverFile, Error> {
        DriverFile::open(path, &self.repeats)
    }

    /// A handle that no object of this client has.
    #[must_use]
    pub fn new_handle(&self) -> Handle {
        Handle(self.next_handle.fetch_add(1, Ordering::Relaxed))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.root != Handle(0) {
            // Closing the file frees the client too; this only makes the moment certain.
            drop(self.free(self.root, self.root));
        }
    }
}

/// The status at an offset of a finished call.
///
/// # Errors
/// [`Error::Refused`] for any status but `NV_OK`; [`Error::Malformed`] where there is none.
pub fn checked(call: &'static str, arg: &[u8], status_at: usize) -> Result<(), Error> {
    match bytes::u32_at(arg, status_at).map(Status) {
        Some(Status::OK) => Ok(()),
        Some(status) => Err(Error::Refused { call, status }),
        None => Err(Error::Malformed {
            call,
            what: "no status",
        }),
    }
}

fn length_of(params: &[u8]) -> u32 {
    u32::try_from(params.len()).unwrap_or(u32::MAX)
}

/// `NV_RM_API_VERSION_CMD_QUERY`
const QUERY: u32 = b'2' as u32;

fn query_version(ctl: &DriverFile) -> Result<DriverVersion, Error> {
    let escape = escape::NV_ESC_CHECK_VERSION_STR;
    let mut arg = [0u8; 72];
    bytes::put_u32(&mut arg, api_version::CMD, QUERY);
    // The struct is the same in every release, so the release need not be known yet.
    ctl.call(escape.name, escape.cmd(Release::R570), &mut arg, &mut [])?;
    let text = String::from_utf8_lossy(bytes::text_at(&arg, api_version::VERSION, 64));
    text.parse().map_err(|_malformed| Error::Version {
        text: text.into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_the_error_names_the_node() {
        let empty = tempfile::tempdir().unwrap();
        let error = Client::connect(&Nodes::in_dir(empty.path())).unwrap_err();
        assert!(error.is_absent());
        assert!(error.to_string().contains("nvidiactl"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_driver_refuses_the_first_call() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("nvidiactl"), "").unwrap();
        let error = Client::connect(&Nodes::in_dir(dir.path())).unwrap_err();
        assert!(matches!(
            error,
            Error::Ioctl {
                call: "NV_ESC_CHECK_VERSION_STR",
                ..
            }
        ));
    }
}
