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
    /// The text of `main.go`, for a program of this repository; empty for one that the module's release has.
    pub source: &'static str,
    /// What the linker is given, and what the build may cost.
    pub effort: Effort,
}

/// How programs are built.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// `-ldflags`.
    pub linker: &'static str,
    /// How long one program may take.
    pub limit: Duration,
    /// Added to the niceness of the build, so that others go before one that takes half an hour.
    pub niceness: u8,
}

impl Effort {
    /// Some minutes, and nothing for the linker.
    pub const USUAL: Self = Self {
        linker: "",
        limit: Duration::from_secs(900),
        niceness: 0,
    };
}

impl GoProgram {
    /// What the cache's copy is made from: see [`cache::once`].
    fn stamp(&self) -> String {
        let linked = match self.effort.linker {
            "" => self.module.to_owned(),
            linker => format!("{}\n// {linker}\n", self.module),
        };
        linked + self.source
    }

    fn folder(&self) -> PathBuf {
        cache::folder().join(self.name)
    }

    /// The folder with the programs, where they are built already.
    pub fn built(&self) -> Option<PathBuf> {
        let folder = self.folder();
        cache::is_made(&folder, &self.stamp()).then_some(folder)
    }

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
        let folder = self.folder();
        cache::once(self.name, &folder, &self.stamp(), |at| {
            let go = find("go")
                .with_context(|| format!("no Go toolchain to build {} with", self.name))?;
            fs::write(at.join("go.mod"), self.module)?;
            fs::write(at.join("go.sum"), self.sums)?;
            if !self.source.is_empty() {
                fs::write(at.join("main.go"), self.source)?;
            }
            for package in self.packages {
                progress(&format!("building {package} (go build)"));
                let mut command = Command::new("nice");
                command
                    .args(["-n", &self.effort.niceness.to_string()])
                    .arg(&go)
                    .args(["build", "-trimpath", "-o", "./", "-tags", self.tags])
                    .args(["-ldflags", self.effort.linker])
                    .arg(package)
                    .env("CGO_ENABLED", "0")
                    .env("GOFLAGS", "-mod=mod -buildvcs=false")
                    .env("GOTOOLCHAIN", "local")
                    .current_dir(at);
                capture(&mut command, self.effort.limit)?.success()?;
            }
            Ok(())
        })?;
        Ok(folder)
    }
}
