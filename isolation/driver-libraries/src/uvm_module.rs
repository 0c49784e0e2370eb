//! nvidia-uvm.ko, without which CUDA does not start. Nothing loads the module with the card's driver: programs have it loaded by
//! NVIDIA's setuid `nvidia-modprobe`, which no container has. So cgpu loads it before a container gets its device nodes.
//!
//! NVIDIA's own container tools do the same: libnvidia-container runs the kernel's modprobe (`nvidia-modprobe-utils.c`, `modprobe_helper`), and
//! `nvidia-ctk system create-device-nodes` runs `/sbin/modprobe` (`internal/system/nvmodules`). `nvidia-modprobe` is not run: for
//! root, it does nothing else but that. Whether the module is there is judged by the kernel's list alone, whatever a program reports.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use host_config::{Config, chain, trusted};
use nvabi::proc_files::{DEVICES_PATH, UVM_NAME, character_major};
use sys::pidfd::PidFd;

/// Where modprobe is looked for. `$PATH` has no say, and neither has `kernel.modprobe`, which a privileged container can write.
const MODPROBE_PATHS: [&str; 3] = [
    "/sbin/modprobe",
    "/usr/sbin/modprobe",
    "/run/current-system/sw/bin/modprobe",
];

/// A module is loaded in a second or two; an engine waits for minutes.
const PATIENCE_MS: u16 = 10_000;

/// A killed process ends at once, unless it is inside the kernel.
const KILL_MS: u16 = 500;

/// What modprobe writes is a line or two.
const MESSAGE_MAX_BYTES: u64 = 400;

/// Why a container cannot have the module.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel's list of devices cannot be read.
    #[error("cannot read {}", path.display())]
    Devices {
        /// The list.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The kernel module that CUDA needs.
    #[error(
        "a container with a GPU needs the kernel module nvidia-uvm, which is not loaded: run `modprobe nvidia-uvm` on the host, then start the container again"
    )]
    NotLoaded {
        /// Why cgpu could not load it.
        #[source]
        source: NotLoaded,
    },
}

/// Why the module could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotLoaded {
    /// No modprobe.
    #[error("modprobe is not found, looked for: {searched}")]
    NoModprobe {
        /// Where it was looked for.
        searched: String,
    },
    /// One that others can change.
    #[error("{}", chain(.0))]
    Untrusted(Box<trusted::Error>),
    /// It cannot be run.
    #[error("cannot run {}", path.display())]
    Run {
        /// The program.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// It has not ended.
    #[error("{} has not ended within {patience_ms} ms, and was killed", path.display())]
    Late {
        /// The program.
        path: PathBuf,
        /// How long it was waited for.
        patience_ms: u16,
    },
    /// It ended, and the kernel does not have the module.
    #[error("{} ended with {status}: {reply}", path.display())]
    Absent {
        /// The program.
        path: PathBuf,
        /// How it ended.
        status: String,
        /// What it wrote, cut.
        reply: String,
    },
}

/// How the module is, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It is loaded.
    Loaded {
        /// Its major number.
        major: u32,
    },
    /// The next container with a GPU loads it.
    Loadable {
        /// By this program.
        modprobe: PathBuf,
    },
    /// It is not loaded, and cannot be: why.
    Missing(String),
}

/// Looks at the module; nothing is loaded.
///
/// # Errors
/// The kernel's list of devices cannot be read.
pub fn standing(config: &Config) -> Result<Standing, Error> {
    let module = UvmModule::of(config);
    Ok(match module.major()? {
        Some(major) => Standing::Loaded { major },
        None => match module.modprobe() {
            Ok(modprobe) => Standing::Loadable { modprobe },
            Err(why) => Standing::Missing(chain(&why)),
        },
    })
}

/// The module on one host.
#[derive(Debug, Clone)]
pub struct UvmModule {
    /// `/proc/devices`
    devices: PathBuf,
    /// In this order.
    modprobes: Vec<PathBuf>,
    /// `driver.root`: modules of a driver container are below it.
    root: PathBuf,
    patience_ms: u16,
}

impl UvmModule {
    /// As the configuration has it.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        Self {
            devices: PathBuf::from(DEVICES_PATH),
            modprobes: MODPROBE_PATHS.map(PathBuf::from).to_vec(),
            root: config.driver.root.clone(),
            patience_ms: PATIENCE_MS,
        }
    }

    /// A played kernel's: its list of devices, and its modprobe.
    #[cfg(any(test, feature = "fake"))]
    #[must_use]
    pub fn fake(devices: &Path, modprobe: &Path) -> Self {
        Self {
            devices: devices.to_owned(),
            modprobes: vec![modprobe.to_owned()],
            root: PathBuf::from("/"),
            patience_ms: 2_000,
        }
    }

    /// Its major number, after loading it where that is needed.
    ///
    /// # Errors
    /// It is not loaded, and cannot be.
    pub fn loaded(&self) -> Result<u32, Error> {
        if let Some(major) = self.major()? {
            return Ok(major);
        }
        let modprobe = self.modprobe();
        let ended =
            modprobe.and_then(|modprobe| self.run(&modprobe).map(|ended| (modprobe, ended)));
        // Another program may have loaded it meanwhile: the list is what counts.
        match (self.major()?, ended) {
            (Some(major), _) => {
                tracing::info!(major, "nvidia-uvm was loaded");
                Ok(major)
            }
            (None, Err(source)) => Err(Error::NotLoaded { source }),
            (None, Ok((path, (status, reply)))) => Err(Error::NotLoaded {
                source: NotLoaded::Absent {
                    path,
                    status,
                    reply,
                },
            }),
        }
    }

    fn major(&self) -> Result<Option<u32>, Error> {
        let text = std::fs::read_to_string(&self.devices).map_err(|source| Error::Devices {
            path: self.devices.clone(),
            source,
        })?;
        Ok(character_major(&text, UVM_NAME))
    }

    fn modprobe(&self) -> Result<PathBuf, NotLoaded> {
        let Some(path) = self.modprobes.iter().find(|path| path.is_file()) else {
            let searched: Vec<_> = self
                .modprobes
                .iter()
                .map(|path| path.to_string_lossy())
                .collect();
            return Err(NotLoaded::NoModprobe {
                searched: searched.join(", "),
            });
        };
        trusted::program("modprobe", path)
            .map_err(|error| NotLoaded::Untrusted(Box::new(error)))?;
        Ok(path.clone())
    }

    /// How it ended, and what it wrote. Nothing of the frontend's environment is passed on: an engine has set that.
    fn run(&self, modprobe: &Path) -> Result<(String, String), NotLoaded> {
        let failed = |source| NotLoaded::Run {
            path: modprobe.to_owned(),
            source,
        };
        // A file of its own: a process that modprobe leaves behind would keep a pipe open.
        let reply = File::from(sys::shared::memfd(c"modprobe", 0).map_err(failed)?);
        let mut command = Command::new(modprobe);
        if self.root != Path::new("/") {
            command.arg("--dirname").arg(&self.root);
        }
        let mut child = sys::open_files::restore_before_exec(&mut command)
            .arg(UVM_NAME)
            .env_clear()
            .env("PATH", "/sbin:/usr/sbin:/bin:/usr/bin")
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(OwnedFd::from(reply.try_clone().map_err(failed)?))
            .spawn()
            .map_err(failed)?;
        let process = PidFd::open(child.id().cast_signed()).map_err(failed)?;
        if !process.wait_exit(self.patience_ms).map_err(failed)? {
            child.kill().map_err(failed)?;
            // Inside the kernel it can go on for as long as it likes; nobody waits for it then.
            if process.wait_exit(KILL_MS).map_err(failed)? {
                child.wait().map_err(failed)?;
            }
            return Err(NotLoaded::Late {
                path: modprobe.to_owned(),
                patience_ms: self.patience_ms,
            });
        }
        let status = child.wait().map_err(failed)?;
        Ok((status.to_string(), one_line(reply)))
    }
}

/// What was written to a file, on one line.
fn one_line(mut reply: File) -> String {
    let mut bytes = Vec::new();
    let read = reply
        .rewind()
        .and_then(|()| reply.take(MESSAGE_MAX_BYTES).read_to_end(&mut bytes));
    match read {
        Ok(0) => "it reports nothing".to_owned(),
        Ok(_) => String::from_utf8_lossy(&bytes)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" "),
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::fake::{LOADS, kernel_with};

    #[test]
    fn a_module_that_is_not_loaded_is_loaded_once() {
        let dir = tempfile::tempdir().unwrap();
        let calls = dir.path().join("calls");
        let script = format!("echo \"$@\" >> '{}'; {LOADS}", calls.display());
        let module = kernel_with(dir.path(), &script);
        assert_eq!(module.loaded().unwrap(), 511);
        assert_eq!(module.loaded().unwrap(), 511);
        assert_eq!(fs::read_to_string(calls).unwrap(), "nvidia-uvm\n");
    }

    #[test]
    fn modules_of_a_driver_container_are_looked_for_below_its_root() {
        let dir = tempfile::tempdir().unwrap();
        let calls = dir.path().join("calls");
        let script = format!("echo \"$@\" >> '{}'; {LOADS}", calls.display());
        let mut module = kernel_with(dir.path(), &script);
        module.root = PathBuf::from("/run/nvidia/driver");
        assert_eq!(module.loaded().unwrap(), 511);
        assert_eq!(
            fs::read_to_string(calls).unwrap(),
            "--dirname /run/nvidia/driver nvidia-uvm\n"
        );
    }

    #[test]
    fn a_program_s_word_does_not_count_but_the_kernel_s_list() {
        let dir = tempfile::tempdir().unwrap();
        let module = kernel_with(dir.path(), &format!("{LOADS}; exit 1"));
        assert_eq!(module.loaded().unwrap(), 511);
        let module = kernel_with(dir.path(), "exit 0");
        let error = chain(&module.loaded().unwrap_err());
        assert!(error.contains("exit status: 0"), "{error}");
    }

    #[test]
    fn a_refusal_has_the_program_s_reason_and_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let script = "echo 'modprobe: FATAL: Module nvidia-uvm not found' >&2; exit 1";
        let module = kernel_with(dir.path(), script);
        let error = chain(&module.loaded().unwrap_err());
        for part in [
            "run `modprobe nvidia-uvm` on the host",
            "FATAL: Module nvidia-uvm not found",
            "exit status: 1",
        ] {
            assert!(error.contains(part), "{part:?}: {error}");
        }
    }

    #[test]
    fn a_modprobe_that_does_not_end_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let mut module = kernel_with(dir.path(), "exec sleep 60");
        module.patience_ms = 200;
        let began = Instant::now();
        let error = module.loaded().unwrap_err();
        assert!(
            matches!(
                &error,
                Error::NotLoaded {
                    source: NotLoaded::Late { .. }
                }
            ),
            "{error:?}"
        );
        assert!(began.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn nothing_of_the_environment_and_nobody_else_s_program_is_run() {
        let dir = tempfile::tempdir().unwrap();
        let seen = dir.path().join("environment");
        let module = kernel_with(dir.path(), &format!("env > '{}'; {LOADS}", seen.display()));
        module.loaded().unwrap();
        let seen = fs::read_to_string(seen).unwrap();
        let names = seen.lines().filter_map(|line| line.split_once('='));
        let names: Vec<&str> = names
            .map(|(name, _)| name)
            // What a shell sets by itself.
            .filter(|name| !["PWD", "SHLVL", "_", "OLDPWD"].contains(name))
            .collect();
        assert_eq!(names, ["PATH"]);

        let module = kernel_with(dir.path(), LOADS);
        fs::set_permissions(&module.modprobes[0], fs::Permissions::from_mode(0o777)).unwrap();
        let error = module.loaded().unwrap_err();
        assert!(
            matches!(
                &error,
                Error::NotLoaded {
                    source: NotLoaded::Untrusted(_)
                }
            ),
            "{error:?}"
        );
        let absent = UvmModule::fake(&module.devices, Path::new("/nonexistent/modprobe"));
        let error = chain(&absent.loaded().unwrap_err());
        assert!(error.contains("/nonexistent/modprobe"), "{error}");
    }
}
