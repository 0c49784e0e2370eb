//! Programs built by Go's own client from its module proxy.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cache;
use crate::command::{capture, find, progress};

/// Programs of one module, its release, and the hash of every module of the build, so that no checksum database is asked.
#[derive(Debug, Clone, Copy)]
pub struct GoProgram {
    /// What it is called; the one program, if there is but one.
    pub name: &'static str,
    /// The packages that it is built from. Each gives a program with the last part of its name.
    pub packages: &'static [&'static str],
    /// What is left out of the build or put into it, with commas between.
    pub tags: &'static str,
    /// The text of `go.mod`, which names the release.
    pub module: &'static str,
    /// The text of `go.sum`.
    pub sums: &'static str,
}

impl GoProgram {
    /// Builds the one program, once. An error is a reason to skip aloud.
    ///
    /// # Errors
    /// As [`GoProgram::fetch_all`].
    pub fn fetch(&self) -> Result<PathBuf> {
        Ok(self.fetch_all()?.join(self.name))
    }

    /// Builds all of it once: the folder with the programs. An error is a reason to skip aloud: no Go, or no module proxy.
    ///
    /// # Errors
    /// There is no Go toolchain, or it cannot build the programs.
    pub fn fetch_all(&self) -> Result<PathBuf> {
        let folder = cache::folder().join(self.name);
        let _lock = cache::lock(self.name)?;
        cache::once(&folder, self.module, |at| {
            let go = find("go")
                .with_context(|| format!("no Go toolchain to build {} with", self.name))?;
            progress(&format!("building {} (go build, some minutes)", self.name));
            fs::write(at.join("go.mod"), self.module)?;
            fs::write(at.join("go.sum"), self.sums)?;
            capture(
                Command::new(go)
                    .args(["build", "-trimpath", "-o", "./", "-tags", self.tags])
                    .args(self.packages)
                    .env("CGO_ENABLED", "0")
                    .env("GOFLAGS", "-mod=mod -buildvcs=false")
                    .env("GOTOOLCHAIN", "local")
                    .current_dir(at),
                Duration::from_secs(900),
            )?
            .success()?;
            Ok(())
        })?;
        Ok(folder)
    }
}
