//! A client of cgpu's own on the driver: root client, device and subdevice, and controls of them. The executor's sums are asked through
//! one, and a card's knobs are tried through one.
//!
//! Whoever has a client says how its calls are executed ([`Execute`]). It goes with its control file.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

use nvabi::bytes::{put, put_u32, text_at, u32_at};
use nvabi::escape::{self, Escape};
use nvabi::layout::{
    attached_ids, device_params, export_objects, id_info, nvos00, nvos21, nvos54, uuid_of_id,
};
use nvabi::{Release, class, control, status};

use crate::{Call, Caller, Driver, Error, FileRef, Ticket};

mod file;

pub use file::OwnFile;

/// Why a call of cgpu's own has no result.
#[derive(Debug, thiserror::Error)]
pub enum OwnCallError {
    /// A node of the driver could not be opened.
    #[error("opening {path}")]
    Node {
        /// Which.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A file that is something else than its name says.
    #[error("{path} is not the driver's")]
    NotTheDrivers {
        /// Which.
        path: PathBuf,
    },
    /// A call did not reach the driver.
    #[error("{call} did not reach the driver")]
    Lost {
        /// Which.
        call: &'static str,
        /// Why.
        #[source]
        source: Box<Error>,
    },
    /// A call failed.
    #[error("{call} failed with errno {errno}")]
    Failed {
        /// Which.
        call: &'static str,
        /// The errno.
        errno: i32,
    },
    /// The driver refused a call.
    #[error("{call} was refused with status {status:#x}")]
    Refused {
        /// Which.
        call: &'static str,
        /// `NV_STATUS`
        status: u32,
    },
    /// A call whose parameters have no known size with this driver.
    #[error("this driver version does not support {call}")]
    Unknown {
        /// Which.
        call: &'static str,
    },
    /// An answer that is none.
    #[error("{call} was answered with {what}")]
    Malformed {
        /// Which.
        call: &'static str,
        /// What was wrong.
        what: &'static str,
    },
}

/// How calls are executed.
pub trait Execute {
    /// Why a call has no result.
    type Error: From<OwnCallError>;

    /// Executes a call, which has this name; what the ioctl returns.
    ///
    /// # Errors
    /// The call did not reach the driver.
    fn execute(
        &mut self,
        name: &'static str,
        file: FileRef<'_>,
        call: &mut Call,
    ) -> Result<i32, Self::Error>;
}

/// Calls that are made as this process's own, whoever carries them to the driver.
pub struct AsThisProcess<'a>(
    /// Who carries them.
    pub &'a dyn Driver,
);

impl Execute for AsThisProcess<'_> {
    type Error = OwnCallError;

    fn execute(
        &mut self,
        name: &'static str,
        file: FileRef<'_>,
        call: &mut Call,
    ) -> Result<i32, OwnCallError> {
        let own = std::process::id().cast_signed();
        let caller = Caller {
            tgid: own,
            tid: own,
        };
        let done = self.0.execute(file, caller, Ticket::UNREMEMBERED, call);
        let lost = |source| OwnCallError::Lost {
            call: name,
            source: Box::new(source),
        };
        Ok(done.map_err(lost)?.ret)
    }
}

/// A client.
#[derive(Debug)]
pub struct OwnClient<E> {
    /// How its calls are executed.
    pub execute: E,
    release: Release,
    ctl: OwnFile,
    /// The root client's handle; 0 before there is one.
    root: u32,
}

/// The struct of a call and the block behind it, as answered.
type Blocks = (Vec<u8>, Vec<u8>);

impl<E: Execute> OwnClient<E> {
    /// A client on a control file. The driver does not know it before [`Self::begin`].
    pub fn new(execute: E, release: Release, ctl: OwnFile) -> Self {
        Self {
            execute,
            release,
            ctl,
            root: 0,
        }
    }

    /// Its handle; 0: the driver does not know it.
    pub fn root(&self) -> u32 {
        self.root
    }

    /// Makes the root client.
    ///
    /// # Errors
    /// The call failed, or was refused.
    pub fn begin(&mut self) -> Result<(), E::Error> {
        self.root = self.allocate((0, 0), class::NV01_ROOT_CLIENT, Vec::new())?;
        Ok(())
    }

    /// Binds a card's file to the control file, as every client does; whoever makes the calls has the card's node open from then on.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn register(&mut self, node: &OwnFile) -> Result<(), E::Error> {
        let slot = self.ctl.slot((0, 0))?;
        let escape = &escape::NV_ESC_REGISTER_FD;
        let mut call = Call {
            fds: vec![slot],
            ..Call::own(escape.cmd(self.release), self.block_of(escape), None)
        };
        call_on(&mut self.execute, node, "NV_ESC_REGISTER_FD", &mut call)
    }

    /// The driver's numbers of the cards that are initialised.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn initialised(&mut self) -> Result<Vec<u32>, E::Error> {
        let cmd = control::NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS;
        let table = self.control(self.root, cmd, |_zeroed| ())?;
        Ok((attached_ids::IDS..)
            .step_by(4)
            .take(attached_ids::MOST)
            .filter_map(|at| u32_at(&table, at))
            .take_while(|id| *id != attached_ids::NONE)
            .collect())
    }

    /// The UUID of a card; `None`: the driver refuses it, of a card that is lost, perhaps.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn uuid_of(&mut self, gpu_id: u32) -> Result<Option<String>, E::Error> {
        let cmd = control::NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID;
        let (name, (arg, params)) = self.answered(self.root, cmd, |params| {
            put_u32(params, uuid_of_id::GPU_ID, gpu_id);
        })?;
        match accepted(name, &arg, nvos54::STATUS) {
            Ok(()) => Ok(Some(uuid_in(&params))),
            Err(OwnCallError::Refused { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Device and subdevice instance of a card.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn instances_of(&mut self, gpu_id: u32) -> Result<(u32, u32), E::Error> {
        let cmd = control::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2;
        let info = self.control(self.root, cmd, |params| {
            put_u32(params, id_info::GPU_ID, gpu_id);
        })?;
        let instance = |at| {
            u32_at(&info, at).ok_or(OwnCallError::Malformed {
                call: "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2",
                what: "no instance",
            })
        };
        Ok((
            instance(id_info::DEVICE_INSTANCE)?,
            instance(id_info::SUBDEVICE_INSTANCE)?,
        ))
    }

    /// Makes a device and its subdevice, by these handles, of the card with these instances.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn allocate_device(
        &mut self,
        (device, subdevice): (u32, u32),
        (device_instance, subdevice_instance): (u32, u32),
    ) -> Result<(), E::Error> {
        let root = self.root;
        let mut params = self.parameters_of(class::NV01_DEVICE_0)?;
        put_u32(&mut params, device_params::DEVICE_ID, device_instance);
        put_u32(&mut params, device_params::H_CLIENT_SHARE, root);
        put_u32(
            &mut params,
            device_params::VA_MODE,
            device_params::VA_MODE_MULTIPLE,
        );
        self.allocate((root, device), class::NV01_DEVICE_0, params)?;
        let params = subdevice_instance.to_le_bytes().to_vec();
        self.allocate((device, subdevice), class::NV20_SUBDEVICE_0, params)?;
        Ok(())
    }

    /// Makes an object of this parent and handle; its handle.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn allocate(
        &mut self,
        (parent, handle): (u32, u32),
        class: u32,
        params: Vec<u8>,
    ) -> Result<u32, E::Error> {
        let row = class::row_of(class, self.release);
        let name = row.map_or("NV_ESC_RM_ALLOC", |row| row.name);
        let escape = &escape::NV_ESC_RM_ALLOC;
        let mut arg = self.block_of(escape);
        put_u32(&mut arg, nvos21::H_ROOT, self.root);
        put_u32(&mut arg, nvos21::H_PARENT, parent);
        put_u32(&mut arg, nvos21::H_NEW, handle);
        put_u32(&mut arg, nvos21::H_CLASS, class);
        let length = u32::try_from(params.len()).unwrap_or(u32::MAX);
        put_u32(&mut arg, nvos21::PARAMS_SIZE, length);
        let block = (!params.is_empty()).then_some((nvos21::P_PARAMS, params));
        let (arg, _) = self.call(name, escape, arg, block)?;
        accepted(name, &arg, nvos21::STATUS)?;
        Ok(u32_at(&arg, nvos21::H_NEW).unwrap_or(handle))
    }

    /// Frees an object.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn free(&mut self, parent: u32, object: u32) -> Result<(), E::Error> {
        const NAME: &str = "NV_ESC_RM_FREE";
        let escape = &escape::NV_ESC_RM_FREE;
        let mut arg = self.block_of(escape);
        put_u32(&mut arg, nvos00::H_ROOT, self.root);
        put_u32(&mut arg, nvos00::H_PARENT, parent);
        put_u32(&mut arg, nvos00::H_OLD, object);
        let (arg, _) = self.call(NAME, escape, arg, None)?;
        Ok(accepted(NAME, &arg, nvos00::STATUS)?)
    }

    /// A control whose parameters `fill` completes; the parameters as answered.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn control(
        &mut self,
        object: u32,
        cmd: u32,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Vec<u8>, E::Error> {
        let (name, (arg, params)) = self.answered(object, cmd, fill)?;
        accepted(name, &arg, nvos54::STATUS)?;
        Ok(params)
    }

    /// Takes back what the client's own control file has exported at an index, by whichever client: the driver frees what is in a place
    /// when nothing is put there (`cliresCtrlCmdOsUnixExportObjectsToFd_IMPL`, os.c; the same from 535 to 595).
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn take_back_export(&mut self, index: u32) -> Result<(), E::Error> {
        let row = control::row(
            control::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD,
            self.release,
        );
        let row = row.ok_or(OwnCallError::Unknown { call: "a control" })?;
        let mut params = vec![0; row.params_bytes as usize];
        put(&mut params, export_objects::COUNT, &1_u16.to_le_bytes());
        let index = u16::try_from(index).unwrap_or(u16::MAX).to_le_bytes();
        put(&mut params, export_objects::INDEX, &index);
        let mut call = Call {
            fds: vec![self.ctl.slot((1, export_objects::FD))?],
            ..Call::control(self.release, [self.root; 2], row.cmd, params)
        };
        call_on(&mut self.execute, &self.ctl, row.name, &mut call)?;
        let (arg, _params) = call.into_blocks();
        Ok(accepted(row.name, &arg, nvos54::STATUS)?)
    }

    /// Zeroed parameters of an object that is to be made.
    ///
    /// # Errors
    /// [`OwnCallError::Unknown`].
    pub fn parameters_of(&self, class: u32) -> Result<Vec<u8>, OwnCallError> {
        let row = class::row_of(class, self.release);
        let row = row.ok_or(OwnCallError::Unknown { call: "a class" })?;
        Ok(vec![0; row.params.of(self.release) as usize])
    }

    /// A control's name, and its answer, which may be a refusal.
    fn answered(
        &mut self,
        object: u32,
        cmd: u32,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(&'static str, Blocks), E::Error> {
        let row = control::row(cmd, self.release);
        let row = row.ok_or(OwnCallError::Unknown { call: "a control" })?;
        let mut params = vec![0; row.params_bytes as usize];
        fill(&mut params);
        let mut call = Call::control(self.release, [self.root, object], cmd, params);
        call_on(&mut self.execute, &self.ctl, row.name, &mut call)?;
        Ok((row.name, call.into_blocks()))
    }

    fn call(
        &mut self,
        name: &'static str,
        escape: &Escape,
        arg: Vec<u8>,
        block: Option<(usize, Vec<u8>)>,
    ) -> Result<Blocks, E::Error> {
        let mut call = Call::own(escape.cmd(self.release), arg, block);
        call_on(&mut self.execute, &self.ctl, name, &mut call)?;
        Ok(call.into_blocks())
    }

    fn block_of(&self, escape: &Escape) -> Vec<u8> {
        vec![0; escape.size.of(self.release) as usize]
    }
}

fn call_on<E: Execute>(
    execute: &mut E,
    file: &OwnFile,
    name: &'static str,
    call: &mut Call,
) -> Result<(), E::Error> {
    let file = FileRef {
        id: file.id,
        kind: file.kind,
        fd: file.fd.as_fd(),
    };
    match execute.execute(name, file, call)? {
        0.. => Ok(()),
        ret => Err(OwnCallError::Failed {
            call: name,
            errno: ret.saturating_neg(),
        }
        .into()),
    }
}

/// Whether the status at an offset of an answer is success.
///
/// # Errors
/// It is a refusal, or not there.
pub fn accepted(call: &'static str, answer: &[u8], status_at: usize) -> Result<(), OwnCallError> {
    match u32_at(answer, status_at) {
        Some(status::NV_OK) => Ok(()),
        Some(status) => Err(OwnCallError::Refused { call, status }),
        None => Err(OwnCallError::Malformed {
            call,
            what: "no status",
        }),
    }
}

/// `GPU-…`.
fn uuid_in(params: &[u8]) -> String {
    let text = text_at(params, uuid_of_id::UUID, uuid_of_id::UUID_BYTES);
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_ends_at_its_zero() {
        let mut params = vec![0; 268];
        put(&mut params, 8, b"GPU-1\0GPU-2");
        assert_eq!(uuid_in(&params), "GPU-1");
        assert_eq!(uuid_in(&[]), "");
    }
}
