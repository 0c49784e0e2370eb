//! Another handle for an object, and another descriptor of a client's file.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nvabi::layout::nvos55;
use nvabi::{bytes, escape};
use rmclient::{Client, Handle, checked};

use crate::Error;

/// Duplicates of what a client has.
pub trait ClientDuplicates {
    /// Another handle, below `parent`, for an object of `source_client` (this client or one whose handle is known).
    ///
    /// # Errors
    /// [`rmclient::Error::Refused`] with the driver's status.
    fn duplicate(
        &self,
        parent: Handle,
        source_client: Handle,
        source: Handle,
    ) -> Result<Handle, Error>;

    /// A duplicate of the control file that the client lives on: the same open file, by which another process may use it.
    ///
    /// # Errors
    /// The system's.
    fn duplicate_file(&self) -> io::Result<OwnedFd>;
}

impl ClientDuplicates for Client {
    fn duplicate(
        &self,
        parent: Handle,
        source_client: Handle,
        source: Handle,
    ) -> Result<Handle, Error> {
        let escape = escape::NV_ESC_RM_DUP_OBJECT;
        let handle = self.new_handle();
        let mut arg = [0u8; 28];
        bytes::put_u32(&mut arg, nvos55::H_CLIENT, self.root().0);
        bytes::put_u32(&mut arg, nvos55::H_PARENT, parent.0);
        bytes::put_u32(&mut arg, nvos55::H_OBJECT, handle.0);
        bytes::put_u32(&mut arg, nvos55::H_CLIENT_SRC, source_client.0);
        bytes::put_u32(&mut arg, nvos55::H_OBJECT_SRC, source.0);
        self.ctl()
            .call(escape.name, escape.cmd(self.release()), &mut arg, &mut [])?;
        checked(escape.name, &arg, nvos55::STATUS)?;
        Ok(Handle(
            bytes::u32_at(&arg, nvos55::H_OBJECT).unwrap_or(handle.0),
        ))
    }

    fn duplicate_file(&self) -> io::Result<OwnedFd> {
        self.ctl().as_fd().try_clone_to_owned()
    }
}
