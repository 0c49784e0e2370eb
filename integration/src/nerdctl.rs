//! nerdctl, by Go's own client from its module proxy.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cache;
use crate::command::{LIMIT, Outcome, capture, find, progress};
use crate::containerd::Containerd;
use crate::image::Image;

/// Names the release and pins every module of its build by hash, so that no checksum database is asked.
const MODULE: &str = include_str!("../nerdctl/go.mod");
const SUMS: &str = include_str!("../nerdctl/go.sum");

/// nerdctl on a node's containerd.
#[derive(Debug)]
pub struct Nerdctl {
    program: PathBuf,
    socket: PathBuf,
    namespace: String,
    folder: PathBuf,
    path: std::ffi::OsString,
}

/// Builds nerdctl once. An error is a reason to skip aloud: no Go, or no module proxy.
pub fn program() -> Result<PathBuf> {
    let folder = cache::folder().join("nerdctl");
    let _lock = cache::lock("nerdctl")?;
    cache::once(&folder, MODULE, |at| {
        let go = find("go").context("no Go toolchain to build nerdctl with")?;
        progress("building nerdctl (go build, a minute or two)");
        fs::write(at.join("go.mod"), MODULE)?;
        fs::write(at.join("go.sum"), SUMS)?;
        capture(
            Command::new(go)
                .args(["build", "-o", "nerdctl"])
                .arg("github.com/containerd/nerdctl/v2/cmd/nerdctl")
                .env("CGO_ENABLED", "0")
                .env("GOFLAGS", "-mod=mod -buildvcs=false")
                .env("GOTOOLCHAIN", "local")
                .current_dir(at),
            Duration::from_secs(900),
        )?
        .success()?;
        Ok(())
    })?;
    Ok(folder.join("nerdctl"))
}

impl Nerdctl {
    /// nerdctl for the containers of `containerd`, in the node's namespace.
    pub fn new(node: &crate::node::Node, containerd: &Containerd) -> Result<Self> {
        let folder = node.root().join("nerdctl");
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("nerdctl.toml"), "")?;
        Ok(Self {
            program: program()?,
            socket: containerd.socket(),
            namespace: containerd.namespace().to_owned(),
            path: containerd.search_path().to_owned(),
            folder,
        })
    }

    /// Runs `nerdctl` to its end.
    pub fn nerdctl(&self, args: &[&str]) -> Result<Outcome> {
        let mut command = Command::new(&self.program);
        command
            .arg("--address")
            .arg(&self.socket)
            .args(["--namespace", &self.namespace])
            .arg("--data-root")
            .arg(self.folder.join("data"))
            .arg("--cni-netconfpath")
            .arg(self.folder.join("cni"))
            .args(["--cgroup-manager", "cgroupfs"])
            .args(args)
            .env("PATH", &self.path)
            // The machine's own file must not reach the test.
            .env("NERDCTL_TOML", self.folder.join("nerdctl.toml"));
        capture(&mut command, LIMIT)
    }

    /// Loads an image built by this harness.
    pub fn load(&self, image: &Image) -> Result<()> {
        self.nerdctl(&["load", "-i", &image.tar.to_string_lossy()])?
            .success()?;
        Ok(())
    }
}
