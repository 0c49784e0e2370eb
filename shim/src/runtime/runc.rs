//! Calls of the runc program. Each call logs JSON into a file of its own, so that an error's text is its own too.

use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::caller::Caller;
use super::reaper::Reaper;
use crate::error::{Error, Result, file};
use crate::task::{ContainerId, ExecId, Pid, RuncOptions};

/// Where containerd's own shim keeps runc's state; one place, so that both find each other's containers.
const DEFAULT_ROOT: &str = "/run/containerd/runc";

/// How runc is called for one container. It is saved in the bundle, for the `delete` command of a later process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runc {
    binary: PathBuf,
    root: PathBuf,
    systemd_cgroup: bool,
    no_pivot_root: bool,
    no_new_keyring: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    criu: Option<PathBuf>,
}

/// The three standard streams of a call.
pub(super) struct Streams {
    /// Standard input.
    pub(super) stdin: Stdio,
    /// Standard output.
    pub(super) stdout: Stdio,
    /// Standard error.
    pub(super) stderr: Stdio,
}

impl Streams {
    /// Nothing in, nothing out.
    #[must_use]
    pub(super) fn null() -> Self {
        Self {
            stdin: Stdio::null(),
            stdout: Stdio::null(),
            stderr: Stdio::null(),
        }
    }
}

/// The saved form's name in the bundle.
const SAVED: &str = "cgpu-runc.json";

/// What a later process needs to know of a container's calls of runc.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// How runc is called.
    #[serde(flatten)]
    pub runc: Runc,
    /// By which shim; `None` where no one can tell.
    #[serde(default)]
    pub caller: Option<Caller>,
}

impl Runc {
    /// Takes the options; `cgroups_path` is the spec's, whose form tells that systemd is meant.
    #[must_use]
    pub fn new(namespace: &str, options: &RuncOptions, cgroups_path: Option<&str>) -> Self {
        let root = options
            .root
            .as_deref()
            .unwrap_or_else(|| Path::new(DEFAULT_ROOT));
        let binary = options
            .binary_name
            .as_deref()
            .filter(|name| !name.is_empty())
            .unwrap_or("runc");
        Self {
            binary: binary.into(),
            root: root.join(namespace),
            systemd_cgroup: options.systemd_cgroup || cgroups_path.is_some_and(is_systemd_path),
            no_pivot_root: options.no_pivot_root,
            no_new_keyring: options.no_new_keyring,
            criu: options.criu_path.clone(),
        }
    }

    /// Saves how runc is called, and that this process calls it. Before the first call.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, bundle: &Path) -> Result<()> {
        let path = bundle.join(SAVED);
        let saved = Saved {
            runc: self.clone(),
            caller: Caller::this()?,
        };
        let text = serde_json::to_vec(&saved).map_err(|source| Error::Json {
            path: path.clone(),
            source,
        })?;
        fs::write(&path, text).map_err(file("write", path))
    }

    /// Reads what [`Self::save`] wrote; the defaults if the shim was killed before it wrote.
    ///
    /// # Errors
    /// The file is there and cannot be read or is not ours.
    pub fn saved(bundle: &Path, namespace: &str) -> Result<Saved> {
        let path = bundle.join(SAVED);
        match fs::read(&path) {
            Ok(text) => {
                serde_json::from_slice(&text).map_err(|source| Error::Json { path, source })
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Saved {
                runc: Self::new(namespace, &RuncOptions::default(), None),
                caller: None,
            }),
            Err(error) => Err(file("read", path)(error)),
        }
    }

    /// runc's own directory for `id`: there while runc knows the container.
    #[must_use]
    pub fn state_dir(&self, id: &ContainerId) -> PathBuf {
        self.root.join(id.as_str())
    }

    /// Where runc keeps its state of this namespace's containers.
    #[must_use]
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The program.
    #[must_use]
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Whether `--no-pivot` was asked for.
    #[must_use]
    pub(super) fn no_pivot_root(&self) -> bool {
        self.no_pivot_root
    }

    /// The arguments before the verb.
    fn command(&self, log: &Path) -> Command {
        let mut command = Command::new(&self.binary);
        // An engine that is a unit of systemd's hands its socket down. `runc start` would listen in its place, and wait until the
        // container's program says that it is ready, which it never does. containerd's own shim leaves the socket out as well.
        command.env_remove("NOTIFY_SOCKET");
        command
            .arg("--root")
            .arg(&self.root)
            .arg("--log")
            .arg(log)
            .args(["--log-format", "json"]);
        if self.systemd_cgroup {
            command.arg("--systemd-cgroup");
        }
        if let Some(criu) = &self.criu {
            command.arg("--criu").arg(criu);
        }
        command
    }

    /// `runc delete --force`, waited for by the caller's own means: for the `delete` command, which has no reaper.
    #[must_use]
    pub fn delete_by_force(&self, id: &ContainerId, bundle: &Path) -> Command {
        let mut command = self.command(&bundle.join("log.json"));
        command.args(["delete", "--force", id.as_str()]);
        command
    }
}

/// systemd's form is `slice:prefix:name`; a cgroupfs path has slashes and no such colons.
pub(super) fn is_systemd_path(path: &str) -> bool {
    let mut parts = path.split(':');
    let slice = parts.next().unwrap_or_default();
    parts.clone().count() == 2
        && parts.all(|part| !part.is_empty() && !part.contains('/'))
        && !slice.contains('/')
}

/// runc on one container, with the reaper that waits for it.
#[derive(Clone)]
pub(super) struct Calls {
    runc: Runc,
    reaper: Reaper,
    id: ContainerId,
    bundle: PathBuf,
}

static NEXT_LOG: AtomicU64 = AtomicU64::new(0);

impl Calls {
    /// Binds runc to a container.
    #[must_use]
    pub(super) fn new(runc: Runc, reaper: Reaper, id: ContainerId, bundle: PathBuf) -> Self {
        Self {
            runc,
            reaper,
            id,
            bundle,
        }
    }

    /// Who waits for runc's end, and for others'.
    #[must_use]
    pub(super) fn reaper(&self) -> &Reaper {
        &self.reaper
    }

    /// How runc is called.
    #[must_use]
    pub(super) fn runc(&self) -> &Runc {
        &self.runc
    }

    /// The container.
    pub(super) fn id(&self) -> &ContainerId {
        &self.id
    }

    /// Its bundle.
    pub(super) fn bundle(&self) -> &Path {
        &self.bundle
    }

    /// `runc create`; returns init, which waits to be started.
    ///
    /// # Errors
    /// runc's own words, or the pid file is not what it must be.
    pub(super) async fn create(
        &self,
        streams: Streams,
        console_socket: Option<&Path>,
    ) -> Result<Pid> {
        let pid_file = self.bundle.join("init.pid");
        let mut arguments = vec![
            "create".into(),
            "--bundle".into(),
            self.bundle.clone().into_os_string(),
        ];
        arguments.extend(["--pid-file".into(), pid_file.clone().into_os_string()]);
        if let Some(socket) = console_socket {
            arguments.extend(["--console-socket".into(), socket.as_os_str().to_owned()]);
        }
        if self.runc.no_pivot_root {
            arguments.push("--no-pivot".into());
        }
        if self.runc.no_new_keyring {
            arguments.push("--no-new-keyring".into());
        }
        arguments.push(self.id.as_str().into());
        self.call("create", &arguments, streams).await?;
        read_pid(&pid_file)
    }

    /// `runc exec --detach`; returns the process.
    ///
    /// # Errors
    /// runc's own words, or the pid file is not what it must be.
    pub(super) async fn exec(
        &self,
        exec: &ExecId,
        process_json: &[u8],
        streams: Streams,
        console_socket: Option<&Path>,
    ) -> Result<Pid> {
        let pid_file = self.bundle.join(format!("exec-{exec}.pid"));
        let process_file = self.bundle.join(format!("exec-{exec}.json"));
        let mut options = fs::OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options
            .write(true)
            .create(true)
            .truncate(true)
            .open(&process_file)
            .and_then(|mut opened| opened.write_all(process_json))
            .map_err(file("write", &process_file))?;
        let mut arguments = vec![
            "exec".into(),
            "--process".into(),
            process_file.clone().into_os_string(),
        ];
        arguments.extend([
            "--detach".into(),
            "--pid-file".into(),
            pid_file.clone().into_os_string(),
        ]);
        if let Some(socket) = console_socket {
            arguments.extend(["--console-socket".into(), socket.as_os_str().to_owned()]);
        }
        arguments.push(self.id.as_str().into());
        let pid = match self.call("exec", &arguments, streams).await {
            Ok(()) => read_pid(&pid_file),
            Err(error) => Err(error),
        };
        for left in [&process_file, &pid_file] {
            forget(left);
        }
        pid
    }

    /// `runc VERB ARGUMENTS ID` without streams.
    ///
    /// # Errors
    /// runc's own words.
    pub(super) async fn simple(&self, verb: &'static str, arguments: &[&str]) -> Result<()> {
        let mut all: Vec<std::ffi::OsString> = vec![verb.into()];
        all.extend(arguments.iter().map(Into::into));
        self.call(verb, &all, Streams::null()).await
    }

    /// `runc update --resources -`.
    ///
    /// # Errors
    /// runc's own words.
    pub(super) async fn update(&self, resources_json: &[u8]) -> Result<()> {
        let (reader, mut writer) = std::io::pipe().map_err(crate::error::system("make a pipe"))?;
        // A pipe takes 64 KiB without a reader; more than that is no set of limits.
        const MOST_BYTES: usize = 60 * 1024;
        if resources_json.len() > MOST_BYTES {
            let value = format!("{} bytes", resources_json.len());
            return Err(Error::Invalid {
                key: "resources",
                value,
                allowed: "at most 60 KiB of JSON",
            });
        }
        writer
            .write_all(resources_json)
            .map_err(crate::error::system("write to a pipe"))?;
        drop(writer);
        let streams = Streams {
            stdin: OwnedFd::from(reader).into(),
            ..Streams::null()
        };
        let arguments = [
            "update".into(),
            "--resources".into(),
            "-".into(),
            self.id.as_str().into(),
        ];
        self.call("update", &arguments, streams).await
    }

    /// `runc ps`: the container's processes.
    ///
    /// # Errors
    /// runc's own words, or its answer is no list of numbers.
    pub(super) async fn ps(&self) -> Result<Vec<Pid>> {
        let out = self.bundle.join(format!(
            "ps-{}.json",
            NEXT_LOG.fetch_add(1, Ordering::Relaxed)
        ));
        let opened = fs::File::create(&out).map_err(file("create", &out))?;
        let streams = Streams {
            stdout: opened.into(),
            ..Streams::null()
        };
        let arguments = [
            "ps".into(),
            "--format".into(),
            "json".into(),
            self.id.as_str().into(),
        ];
        let called = self.call("ps", &arguments, streams).await;
        let text = fs::read(&out);
        forget(&out);
        called?;
        let text = text.map_err(file("read", &out))?;
        let raw: Option<Vec<u32>> =
            serde_json::from_slice(&text).map_err(|source| Error::Json { path: out, source })?;
        Ok(raw
            .unwrap_or_default()
            .into_iter()
            .filter_map(Pid::new)
            .collect())
    }

    /// Calls runc with these arguments, the verb first, and waits for its end.
    ///
    /// # Errors
    /// runc's own words.
    pub(super) async fn call(
        &self,
        verb: &'static str,
        arguments: &[std::ffi::OsString],
        streams: Streams,
    ) -> Result<()> {
        let log = self.bundle.join(format!(
            "log-{}.json",
            NEXT_LOG.fetch_add(1, Ordering::Relaxed)
        ));
        let mut command = self.runc.command(&log);
        command
            .args(arguments)
            .stdin(streams.stdin)
            .stdout(streams.stdout)
            .stderr(streams.stderr);
        let spawned = self.reaper.spawn(&mut command);
        // The child's ends of the streams are closed here, or their readers would never see the end.
        drop(command);
        let (_child, exit) = spawned.map_err(file("execute", &self.runc.binary))?;
        let exit = exit.await.map_err(|_gone| Error::Lost("runc"))?;
        let outcome = if exit.status == 0 {
            Ok(())
        } else {
            let message = fs::read_to_string(&log)
                .ok()
                .as_deref()
                .and_then(last_error);
            let message = message.unwrap_or_else(|| {
                format!("{} ended with {}", self.runc.binary.display(), exit.status)
            });
            Err(Error::Runc { verb, message })
        };
        forget(&log);
        outcome
    }
}

/// Removes a file whose absence is the aim.
fn forget(path: &Path) {
    if let Err(error) = sys::absent_is_fine(fs::remove_file(path)) {
        tracing::warn!(path = %path.display(), %error, "cannot remove");
    }
}

/// What runc has written into a pid file.
///
/// # Errors
/// It is not there, or no process number.
pub(super) fn read_pid(path: &Path) -> Result<Pid> {
    let text = fs::read_to_string(path).map_err(file("read", path))?;
    let pid = text.trim().parse().ok().and_then(Pid::new);
    pid.ok_or(Error::Invalid {
        key: "pid file",
        value: text,
        allowed: "a positive number",
    })
}

/// The last message of level error in a log of JSON lines.
fn last_error(log: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Line {
        level: String,
        msg: String,
    }
    let lines = log
        .lines()
        .rev()
        .filter_map(|line| serde_json::from_str::<Line>(line).ok());
    lines
        .into_iter()
        .find(|line| line.level == "error" || line.level == "fatal")
        .map(|line| line.msg)
}

#[cfg(test)]
mod tests;
