//! A vGPU that another process has made: taken up by the container's name alone.

use std::path::Path;

use cards::FrontendKind;
use serde_json::Value;

use super::prepared::Prepared;
use super::running::{Held, Running};
use crate::{Container, Error, bundle};

impl Container {
    /// The vGPU that another process has made, verified and left to this one. `None`: the container has none.
    #[must_use]
    pub fn reopen(&self) -> Option<Running> {
        self.held_by_others().map(Running)
    }

    fn held_by_others(&self) -> Option<Held> {
        Some(Held {
            container: self.clone(),
            which: Some(self.dir().which()?),
            frontend: None,
        })
    }

    /// [`Container::reopen`], but not for a vGPU that another kind of frontend has made: a runtime wrapper below a shim must leave
    /// the shim's alone. Whose an unreadable grant is nobody knows: it is anybody's to release.
    #[must_use]
    pub fn reopen_as(&self, frontend: FrontendKind) -> Option<Running> {
        match self.grant() {
            Ok(grant) if grant.frontend.kind != frontend => None,
            Ok(_) | Err(_) => self.reopen(),
        }
    }

    /// The vGPU of a container that another process has made, and whose filter is not verified yet. `None`: the container has none.
    #[must_use]
    pub fn reopen_prepared(&self) -> Option<Prepared> {
        self.held_by_others().map(Prepared::reopened)
    }

    /// [`Running::edit_exec`] on what an engine's file for its runtime has; `None`: the container has no vGPU, and the file, which may be a
    /// pipe, is the runtime's to read. It stays as it is: a container may be able to write to its folder, as engines make it in `/tmp`, and the
    /// runtime must read what was judged.
    ///
    /// # Errors
    /// A file that cannot be read, or is no JSON object; as [`Running::edit_exec`].
    pub fn exec_of_file(&self, file: &Path) -> Result<Option<Value>, Error> {
        let Some(running) = self.reopen() else {
            return Ok(None);
        };
        let mut process = bundle::read_process(file)?;
        running.edit_exec(&mut process)?;
        Ok(Some(process))
    }
}
