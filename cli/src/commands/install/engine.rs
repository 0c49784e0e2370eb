//! The engines that cgpu is installed for: their names, where their programs are, which version they are of.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr, VariantNames};

/// An engine, or a second way into one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[derive(Display, EnumString, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub(super) enum Engine {
    /// containerd, and Kubernetes on it.
    Containerd,
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// CRI-O.
    Crio,
    /// Podman with its own runtime, through a hook.
    PodmanHook,
}

impl Engine {
    /// All of them.
    pub(super) const ALL: [Self; 5] = [
        Self::Containerd,
        Self::Docker,
        Self::Podman,
        Self::Crio,
        Self::PodmanHook,
    ];

    /// Those that are looked for when none is named.
    pub(super) const FOUND: [Self; 4] = [Self::Containerd, Self::Docker, Self::Podman, Self::Crio];

    pub(super) fn name(self) -> &'static str {
        self.into()
    }

    /// The program that reads the configuration.
    pub(super) fn program(self) -> &'static str {
        match self {
            Self::Containerd => "containerd",
            Self::Docker => "dockerd",
            Self::Podman | Self::PodmanHook => "podman",
            Self::Crio => "crio",
        }
    }

    /// Whether it is below this root. CRI-O reads hooks as well.
    pub(super) fn is_there(self, root: &Path) -> bool {
        find(root, self.program()).is_some()
            || self == Self::PodmanHook && Self::Crio.is_there(root)
    }
}

/// Major and minor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(pub(super) u32, pub(super) u32);

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.0, self.1)
    }
}

/// `NAME` or `NAME@VERSION` of `--engine`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Requested {
    pub(super) engine: Engine,
    /// Given where the program is not there to be asked.
    pub(super) version: Option<Version>,
}

fn no_version(name: &str, text: &str) -> String {
    let example = if name == "docker" { "26.1" } else { "2.1" };
    format!("{text:?} is not a version: write for example {name}@{example}")
}

impl FromStr for Requested {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, version) = match text.split_once('@') {
            Some((name, version)) => (name, Some(version)),
            None => (text, None),
        };
        let engine = name.parse().map_err(|_unknown| {
            format!(
                "no engine {name:?}; allowed are {}",
                Engine::VARIANTS.join(", ")
            )
        })?;
        let version = match version {
            None => None,
            Some(text) => {
                let mut parts = text.split('.');
                let number = |part: Option<&str>| part.and_then(|part| part.parse::<u32>().ok());
                match (number(parts.next()), parts.next()) {
                    (Some(major), None) => Some(Version(major, 0)),
                    (Some(major), minor) => match number(minor) {
                        Some(minor) => Some(Version(major, minor)),
                        None => return Err(no_version(name, text)),
                    },
                    (None, _) => return Err(no_version(name, text)),
                }
            }
        };
        Ok(Self { engine, version })
    }
}

/// Where programs are looked for below a root.
const FOLDERS: [&str; 6] = [
    "usr/local/sbin",
    "usr/local/bin",
    "usr/sbin",
    "usr/bin",
    "sbin",
    "bin",
];

/// An engine's program below a root; on this host in `PATH` as well, where nobody but root could have put it.
pub(super) fn find(root: &Path, program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").filter(|_| root == Path::new("/"));
    let path: Vec<PathBuf> = path.iter().flat_map(std::env::split_paths).collect();
    find_in(root, &path, program)
}

fn find_in(root: &Path, path: &[PathBuf], program: &str) -> Option<PathBuf> {
    let mut own = FOLDERS.iter().map(|folder| root.join(folder).join(program));
    let mut others = path
        .iter()
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(program));
    own.find(|path| path.is_file())
        .or_else(|| others.find(|path| host_config::trusted::is_trusted_program(path)))
}

/// Asks a program for its version.
pub(super) fn version_of(program: &Path) -> anyhow::Result<Version> {
    let reply = run(Command::new(program).arg("--version"))?;
    if let Some(problem) = reply.problem() {
        bail!("{} --version: {problem}", program.display());
    }
    reply
        .stdout
        .split([' ', '\n', ',', '~', '+', '-'])
        .find_map(|word| {
            let mut parts = word.trim_start_matches('v').split('.');
            Some(Version(
                parts.next()?.parse().ok()?,
                parts.next()?.parse().ok()?,
            ))
        })
        .with_context(|| {
            format!(
                "{} --version says no version: {:?}",
                program.display(),
                reply.stdout.trim()
            )
        })
}

/// What a program said.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) line: String,
    code: Option<i32>,
    pub(super) stdout: String,
    stderr: String,
}

impl Reply {
    /// Why it failed, in its own last words; `None` when it did not.
    pub(super) fn problem(&self) -> Option<String> {
        if self.code == Some(0) {
            return None;
        }
        let message = [&self.stderr, &self.stdout]
            .into_iter()
            .flat_map(|text| text.lines().rev())
            .map(str::trim)
            .find(|line| !line.is_empty() && !line.contains("--help'"));
        Some(match (message, self.code) {
            (Some(message), _) => message.to_owned(),
            (None, Some(code)) => format!("ended with {code} and said nothing"),
            (None, None) => "was ended by a signal and said nothing".to_owned(),
        })
    }

    /// All that it said.
    pub(super) fn everything(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

/// How long an engine's own check may take.
const CHECK_LIMIT: Duration = Duration::from_secs(60);

/// Runs a program to its end, or ends it after a minute.
pub(super) fn run(command: &mut Command) -> anyhow::Result<Reply> {
    let mut arguments = vec![command.get_program().to_string_lossy().into_owned()];
    arguments.extend(
        command
            .get_args()
            .map(|argument| argument.to_string_lossy().into_owned()),
    );
    let line = arguments.join(" ");
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start `{line}`"))?;
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id())?);
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || drop(ended.send(child.wait_with_output())));
    let output = match end.recv_timeout(CHECK_LIMIT) {
        Ok(output) => output.with_context(|| format!("run `{line}`"))?,
        Err(_) => {
            // Not reaped before the thread has its end, so the number is still its own.
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL)
                .with_context(|| format!("end `{line}`"))?;
            bail!("`{line}` did not end within {} s", CHECK_LIMIT.as_secs());
        }
    };
    Ok(Reply {
        line,
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_in_path_is_root_s_or_none() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("bin");
        let program = folder.join("cgpu-engine-of-nobody");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(&program, "#!/bin/sh\n").unwrap();
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(&program, 0o755);
        let found = |folder: &str| {
            let path = [PathBuf::from(folder)];
            find_in(Path::new("/nonexistent"), &path, "cgpu-engine-of-nobody")
        };
        let name = folder.display().to_string();
        assert_eq!(found(&name).as_ref(), Some(&program));
        // A folder of others, a program that others write, and wherever this one was called from.
        mode(&folder, 0o777);
        assert_eq!(found(&name), None);
        mode(&folder, 0o755);
        mode(&program, 0o775);
        assert_eq!(found(&name), None);
        assert_eq!(found("."), None);
        assert_eq!(found(""), None);
    }

    #[test]
    fn an_engine_is_named_with_or_without_its_version() {
        let requested: Requested = "containerd@1.7".parse().unwrap();
        assert_eq!(
            (requested.engine, requested.version),
            (Engine::Containerd, Some(Version(1, 7)))
        );
        assert_eq!(
            "docker@28.5.2".parse::<Requested>().unwrap().version,
            Some(Version(28, 5))
        );
        assert_eq!("podman-hook".parse::<Requested>().unwrap().version, None);
        for (text, reply) in [
            ("dokcer", "allowed are containerd, docker"),
            ("docker@new", "docker@26.1"),
            ("docker@2.x", "not a version"),
            ("", "no engine \"\""),
        ] {
            let error = text.parse::<Requested>().unwrap_err();
            assert!(error.contains(reply), "{error}");
        }
    }
}
