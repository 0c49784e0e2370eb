//! Programs built by Go's own client from its module proxy.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cache;
use crate::command::{capture, find, progress};

/// A program, its release, and the hash of every module of its build, so that no checksum database is asked.
#[derive(Debug, Clone, Copy)]
pub struct GoProgram {
    /// What it is called.
    pub name: &'static str,
    /// The package that it is built from.
    pub package: &'static str,
    /// The text of `go.mod`, which names the release.
    pub module: &'static str,
    /// The text of `go.sum`.
    pub sums: &'static str,
}

impl GoProgram {
    /// Builds it once. An error is a reason to skip aloud: no Go, or no module proxy.
    ///
    /// # Errors
    /// There is no Go toolchain, or it cannot build the program.
    pub fn fetch(&self) -> Result<PathBuf> {
        let folder = cache::folder().join(self.name);
        let _lock = cache::lock(self.name)?;
        cache::once(&folder, self.module, |at| {
            let go = find("go")
                .with_context(|| format!("no Go toolchain to build {} with", self.name))?;
            progress(&format!(
                "building {} (go build, a minute or two)",
                self.name
            ));
            fs::write(at.join("go.mod"), self.module)?;
            fs::write(at.join("go.sum"), self.sums)?;
            capture(
                Command::new(go)
                    .args(["build", "-o", self.name])
                    .arg(self.package)
                    .env("CGO_ENABLED", "0")
                    .env("GOFLAGS", "-mod=mod -buildvcs=false")
                    .env("GOTOOLCHAIN", "local")
                    .current_dir(at),
                Duration::from_secs(900),
            )?
            .success()?;
            Ok(())
        })?;
        Ok(folder.join(self.name))
    }
}
