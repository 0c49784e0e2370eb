//! The calls of runc that call criu: `checkpoint` and `restore`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::runc::{Calls, Streams};
use crate::error::{Error, Result, file};
use crate::task::{AfterCheckpoint, Checkpoint, Pid, Restore};

/// Where containerd has a folder that lives as long as the container, in the bundle.
const WORK: &str = "work";

impl Calls {
    /// `runc checkpoint`.
    ///
    /// # Errors
    /// runc's own words, and where criu's log is.
    pub(super) async fn checkpoint(&self, how: &Checkpoint) -> Result<()> {
        let work = match &how.work {
            Some(work) => Work::Given(work.clone()),
            None => Work::Ours(self.bundle().join(WORK).join("criu-work")),
        };
        work.make()?;
        let written = self
            .call(
                "checkpoint",
                &checkpoint_arguments(how, work.path(), self.id().as_str()),
                Streams::null(),
            )
            .await
            .map_err(|error| self.with_criu_log(error, work.path()));
        work.remove();
        written
    }

    /// `runc restore --detach`; returns init, which runs.
    ///
    /// # Errors
    /// runc's own words, or the pid file is not what it must be.
    pub(super) async fn restore(
        &self,
        from: &Restore,
        work: Option<&Path>,
        streams: Streams,
        console_socket: Option<&Path>,
    ) -> Result<Pid> {
        let work = match work {
            Some(work) => work.to_owned(),
            None => self.bundle().join(WORK),
        };
        std::fs::create_dir_all(&work).map_err(file("create", &work))?;
        let pid_file = self.bundle().join("init.pid");
        let mut arguments: Vec<OsString> = vec!["restore".into()];
        let mut give = |name: &str, value: &Path| arguments.extend([name.into(), value.into()]);
        give("--image-path", &from.image);
        give("--work-path", &work);
        if let Some(parent) = &from.parent {
            give("--parent-path", parent);
        }
        give("--bundle", self.bundle());
        give("--pid-file", &pid_file);
        if let Some(socket) = console_socket {
            give("--console-socket", socket);
        }
        // The restored init is to become a child of the shim, which is its sub-reaper.
        arguments.extend(["--detach".into(), "--no-subreaper".into()]);
        if self.runc().no_pivot_root() {
            arguments.push("--no-pivot".into());
        }
        arguments.push(self.id().as_str().into());
        self.call("restore", &arguments, streams).await?;
        super::runc::read_pid(&pid_file)
    }

    /// criu's own log is where runc's words end; it is kept in the bundle, since a folder of ours goes.
    fn with_criu_log(&self, error: Error, work: &Path) -> Error {
        let Error::Runc { verb, message } = error else {
            return error;
        };
        let kept = self.bundle().join("criu-dump.log");
        let message = match std::fs::copy(work.join("dump.log"), &kept) {
            Ok(_) => format!("{message} path= {}", kept.display()),
            // criu was not even started.
            Err(_) => message,
        };
        Error::Runc { verb, message }
    }
}

/// criu's working directory.
enum Work {
    /// The request's; it stays.
    Given(PathBuf),
    /// In the bundle; it goes.
    Ours(PathBuf),
}

impl Work {
    fn path(&self) -> &Path {
        match self {
            Self::Given(path) | Self::Ours(path) => path,
        }
    }

    fn make(&self) -> Result<()> {
        std::fs::create_dir_all(self.path()).map_err(file("create", self.path()))
    }

    fn remove(&self) {
        if let Self::Ours(path) = self
            && let Err(error) = std::fs::remove_dir_all(path)
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove");
        }
    }
}

fn checkpoint_arguments(how: &Checkpoint, work: &Path, id: &str) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["checkpoint".into()];
    let mut give = |name: &str, value: OsString| arguments.extend([name.into(), value]);
    give("--image-path", how.image.clone().into());
    give("--work-path", work.into());
    if let Some(parent) = &how.parent {
        give("--parent-path", parent.clone().into());
    }
    if let Some(mode) = &how.cgroups_mode {
        give("--manage-cgroups-mode", mode.into());
    }
    for namespace in &how.empty_namespaces {
        give("--empty-ns", namespace.into());
    }
    let switches = [
        (how.open_tcp, "--tcp-established"),
        (how.external_unix_sockets, "--ext-unix-sk"),
        (how.terminal, "--shell-job"),
        (how.file_locks, "--file-locks"),
        (how.then == AfterCheckpoint::Run, "--leave-running"),
    ];
    let given = switches.into_iter().filter(|(given, _)| *given);
    arguments.extend(given.map(|(_, name)| name.into()));
    arguments.push(id.into());
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(how: &Checkpoint) -> String {
        let arguments = checkpoint_arguments(how, Path::new("/w"), "c");
        let arguments = arguments.iter().map(|argument| argument.to_string_lossy());
        arguments.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn every_option_reaches_runc() {
        let plain = Checkpoint {
            image: "/i".into(),
            ..Checkpoint::default()
        };
        assert_eq!(
            arguments(&plain),
            "checkpoint --image-path /i --work-path /w --leave-running c"
        );
        let all = Checkpoint {
            image: "/i".into(),
            parent: Some("/p".into()),
            work: None,
            then: AfterCheckpoint::Exit,
            open_tcp: true,
            external_unix_sockets: true,
            terminal: true,
            file_locks: true,
            empty_namespaces: vec!["network".into(), "uts".into()],
            cgroups_mode: Some("soft".into()),
        };
        assert_eq!(
            arguments(&all),
            "checkpoint --image-path /i --work-path /w --parent-path /p --manage-cgroups-mode soft \
             --empty-ns network --empty-ns uts --tcp-established --ext-unix-sk --shell-job --file-locks c"
        );
    }
}
