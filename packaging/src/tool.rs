//! The system's tools, with an environment that cannot show in what they write.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// A tool in the C locale and UTC, with the packages' time.
pub(crate) fn command(program: &str, epoch: u64) -> Command {
    let mut command = Command::new(program);
    command
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .env("SOURCE_DATE_EPOCH", epoch.to_string())
        .stdin(Stdio::null());
    command
}

/// Seconds since 1970 as RFC 3339 has them.
pub(crate) fn time(epoch: u64) -> Result<String> {
    let time = run(command("date", epoch)
        .args(["--utc", "+%Y-%m-%dT%H:%M:%SZ", "--date"])
        .arg(format!("@{epoch}")))?;
    Ok(time.trim().to_owned())
}

/// Runs a tool to its end; returns what it printed.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let name = Path::new(command.get_program()).display().to_string();
    let done = command
        .output()
        .with_context(|| format!("start {name}; is it installed?"))?;
    if !done.status.success() {
        bail!(
            "{name} ended with {}:\n{}{}",
            done.status,
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Whether a program is in `PATH`.
pub(crate) fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
