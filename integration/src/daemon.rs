//! A program that runs beside the test and is ended with it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::command::{line, wait_until};

/// A started program. Ended by [`Daemon::stop`], or when dropped.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    child: Option<Child>,
    log: PathBuf,
}

impl Daemon {
    /// Starts `command` with both streams in `log`. It dies with this process, even when that is killed.
    pub fn start(name: &str, command: &Command, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("creating {}", log.display()))?;
        // setpriv gives the parent-death signal without unsafe code here, then becomes the program.
        let mut wrapped = Command::new("setpriv");
        wrapped
            .args(["--pdeathsig", "KILL", "--"])
            .arg(command.get_program())
            .args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => wrapped.env(key, value),
                None => wrapped.env_remove(key),
            };
        }
        if let Some(at) = command.get_current_dir() {
            wrapped.current_dir(at);
        }
        let child = wrapped
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("starting `{}`", line(command)))?;
        Ok(Self {
            name: name.to_owned(),
            child: Some(child),
            log: log.to_path_buf(),
        })
    }

    /// The process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Whether it runs; it may have ended by itself.
    ///
    /// # Errors
    /// The system's.
    pub fn runs(&mut self) -> Result<bool> {
        match &mut self.child {
            None => Ok(false),
            Some(child) => Ok(child.try_wait()?.is_none()),
        }
    }

    /// What it has printed so far.
    pub fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The last lines of it, without containerd's long list of plugins.
    pub fn tail(&self) -> String {
        tail(&self.output())
    }

    /// Waits until `ready` says yes; fails at once when the program ends before.
    pub fn wait_ready(
        &mut self,
        limit: Duration,
        mut ready: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let name = self.name.clone();
        let log = self.log.clone();
        let child = self.child.as_mut().context("already stopped")?;
        let waited = wait_until(&format!("{name} to be ready"), limit, || {
            if let Some(status) = child.try_wait()? {
                bail!("{name} ended with {status} before it was ready");
            }
            ready()
        });
        waited.with_context(|| {
            let text = fs::read_to_string(&log).unwrap_or_default();
            format!("{name} says:\n{}", tail(&text))
        })
    }

    /// SIGTERM, then SIGKILL when it has not ended within `limit`.
    pub fn stop(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let Some(mut child) = self.child.take() else {
            return Ok(None);
        };
        let pid = Pid::from_raw(i32::try_from(child.id())?);
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        kill(pid, Signal::SIGTERM).with_context(|| format!("ending {}", self.name))?;
        let (ended, end) = mpsc::channel();
        std::thread::spawn(move || drop(ended.send(child.wait())));
        match end.recv_timeout(limit) {
            Ok(status) => Ok(Some(status?)),
            Err(_) => {
                kill(pid, Signal::SIGKILL).with_context(|| format!("killing {}", self.name))?;
                let status = end.recv()??;
                bail!(
                    "{} did not end on SIGTERM within {} s ({status})",
                    self.name,
                    limit.as_secs()
                );
            }
        }
    }

    /// SIGKILL, as a crash would be.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Err(error) = self.stop(Duration::from_secs(10)) {
            eprintln!("{error:#}");
        }
    }
}

fn tail(text: &str) -> String {
    const LINES: usize = 30;
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.contains("loading plugin"))
        .collect();
    lines
        .get(lines.len().saturating_sub(LINES)..)
        .unwrap_or_default()
        .join("\n")
}
