//! nerdctl, by Go's own client from its module proxy.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::command::{LIMIT, Outcome, capture};
use crate::containerd::Containerd;
use crate::go::{Effort, GoProgram};
use crate::image::Image;

const PROGRAM: GoProgram = GoProgram {
    name: "nerdctl",
    packages: &["github.com/containerd/nerdctl/v2/cmd/nerdctl"],
    tags: "",
    module: include_str!("../nerdctl/go.mod"),
    sums: include_str!("../nerdctl/go.sum"),
    source: "",
    effort: Effort::USUAL,
};

/// nerdctl on a node's containerd.
#[derive(Debug)]
pub struct Nerdctl {
    program: PathBuf,
    socket: PathBuf,
    namespace: String,
    folder: PathBuf,
    path: std::ffi::OsString,
}

/// Builds nerdctl once. An error is a reason to skip aloud.
pub fn program() -> Result<PathBuf> {
    PROGRAM.fetch()
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
        capture(&mut self.command(args), LIMIT)
    }

    /// A `nerdctl` command, not yet run.
    pub fn command(&self, args: &[&str]) -> Command {
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
        command
    }

    /// Loads an image built by this harness.
    pub fn load(&self, image: &Image) -> Result<()> {
        self.nerdctl(&["load", "-i", &image.tar.to_string_lossy()])?
            .success()?;
        Ok(())
    }
}
