//! What a containerd needs to serve pods: a network of its own, the CNI plugins, and the runtime handlers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, setns};
use serde_json::json;

use crate::claims;
use crate::command::{find, succeed};
use crate::control_groups::Driver;
use crate::daemon::Daemon;
use crate::engines::Engines;
use crate::image::{self, Image};
use crate::node::Node;
use crate::packages::{Suite, unpacked};

/// Handler for our shim in the recommended form: runc's type, our shim's path.
pub const BY_PATH: &str = "cgpu";
/// Handler for our shim as a runtime type of its own.
pub const BY_TYPE: &str = "cgpucustom";
/// Handler for containerd's own shim with our OCI wrapper below.
pub const BY_WRAPPER: &str = "cgpuoci";

/// Which runtime handlers an engine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handlers {
    /// runc's, and ours in every form.
    All,
    /// runc's alone: an engine that has never heard of cgpu.
    RuncAlone,
}

/// A network namespace, held by a process that only waits.
#[derive(Debug)]
pub struct PrivateNetwork {
    holder: Daemon,
}

impl PrivateNetwork {
    /// Makes one with its loopback device up.
    pub fn start(node: &Node) -> Result<Self> {
        let unshare = find("unshare").context("no unshare in PATH")?;
        let mut command = Command::new(unshare);
        command.args(["--net", "sleep", "1000000"]);
        let mut holder = Daemon::start("unshare", &command, &node.root().join("network.log"))?;
        let own = fs::read_link("/proc/self/ns/net")?;
        let link = format!("/proc/{}/ns/net", holder.pid().context("it has started")?);
        holder.wait_ready(Duration::from_secs(10), || {
            Ok(fs::read_link(&link).is_ok_and(|its| its != own))
        })?;
        let network = Self { holder };
        let mut up = network.command(&image::busybox_program()?)?;
        succeed(up.args(["ip", "link", "set", "lo", "up"]))?;
        Ok(network)
    }

    /// Takes this thread, and threads and processes that it starts from now on, into the network: for clients inside a test.
    ///
    /// # Errors
    /// Those of `setns`, or the network was given up.
    pub fn enter(&self) -> Result<()> {
        let pid = self.holder.pid().context("the network was given up")?;
        let namespace = fs::File::open(format!("/proc/{pid}/ns/net"))?;
        setns(namespace, CloneFlags::CLONE_NEWNET).context("entering a network namespace")
    }

    /// `program` inside the network.
    pub fn command(&self, program: &Path) -> Result<Command> {
        let nsenter = find("nsenter").context("no nsenter in PATH")?;
        let pid = self.holder.pid().context("the network was given up")?;
        let mut command = Command::new(nsenter);
        command
            .arg(format!("--net=/proc/{pid}/ns/net"))
            .arg("--")
            .arg(program);
        Ok(command)
    }
}

/// How a containerd serves pods.
#[derive(Debug)]
pub struct PodsSetup {
    /// Where it and its pods live.
    pub network: Arc<PrivateNetwork>,
    /// What sandboxes run.
    pub pause: Image,
    plugins: PathBuf,
    networks: PathBuf,
    cdi: PathBuf,
    shim: PathBuf,
    wrapper: PathBuf,
    runc: PathBuf,
    handlers: Handlers,
}

impl PodsSetup {
    /// Writes what is on the node and fetches the plugins. An error is a reason to skip aloud.
    pub fn new(node: &Node, engines: &Engines) -> Result<Self> {
        Self::on(node, engines, Arc::new(PrivateNetwork::start(node)?))
    }

    /// The same in a network that others are in too.
    pub fn on(node: &Node, engines: &Engines, network: Arc<PrivateNetwork>) -> Result<Self> {
        let plugins = unpacked(Suite::Host, "engines/cni", &["containernetworking-plugins"])?;
        let networks = node.root().join("cni");
        fs::create_dir_all(&networks)?;
        // Nodes of one network have addresses of their own.
        let number = node.namespace().rsplit('.').next().unwrap_or_default();
        let number = number.parse::<u32>().unwrap_or_default() % 256;
        let conflist = json!({
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [{
                "type": "ptp",
                "ipam": {
                    "type": "host-local",
                    "subnet": format!("10.222.{number}.0/24"),
                    "dataDir": node.root().join("addresses"),
                },
            }],
        });
        fs::write(
            networks.join("pods.conflist"),
            serde_json::to_vec_pretty(&conflist)?,
        )?;
        let ours = |program: &str| -> Result<PathBuf> {
            Ok(PathBuf::from(node.command(program)?.get_program()))
        };
        Ok(Self {
            network,
            pause: image::pause()?,
            plugins: plugins.join("usr/lib/cni"),
            networks,
            cdi: claims::cdi_folder(node),
            shim: ours("containerd-shim-cgpu-v2")?,
            wrapper: ours("cgpu-runtime")?,
            runc: engines.runc()?,
            handlers: Handlers::All,
        })
    }

    /// The same with these handlers.
    #[must_use]
    pub fn with_handlers(self, handlers: Handlers) -> Self {
        Self { handlers, ..self }
    }

    /// The folder of the CNI plugins.
    pub fn plugins(&self) -> &Path {
        &self.plugins
    }

    /// The folder with the description of the pods' network.
    pub fn networks(&self) -> &Path {
        &self.networks
    }

    /// The folder of CDI specs.
    pub fn cdi(&self) -> &Path {
        &self.cdi
    }

    /// The part of containerd's configuration that is about pods. A table of runtimes takes the place of the default one, which
    /// has `runc`, and without that CRI does not load (1.6).
    pub fn configuration(&self, (major, minor): (u32, u32)) -> String {
        // Our shim by its type has no such option: the form of a group's name tells it.
        let by_systemd = Driver::of_this_machine() == Driver::Systemd;
        let (runtime, sandbox) = if major >= 2 {
            (
                "io.containerd.cri.v1.runtime",
                format!(
                    "[plugins.'io.containerd.cri.v1.images'.pinned_images]\n  sandbox = \"{}\"\n",
                    self.pause.name
                ),
            )
        } else {
            ("io.containerd.grpc.v1.cri", String::new())
        };
        let ours = match self.handlers {
            Handlers::All => self.ours(runtime, by_systemd),
            Handlers::RuncAlone => String::new(),
        };
        // 2.4 does not read bin_dir any more, 2.0 does not know the other.
        let plugins = if (major, minor) >= (2, 4) {
            format!("bin_dirs = [\"{}\"]", self.plugins.display())
        } else {
            format!("bin_dir = \"{}\"", self.plugins.display())
        };
        let sandbox_key = if major >= 2 {
            String::new()
        } else {
            format!("sandbox_image = \"{}\"", self.pause.name)
        };
        // On by default from 2.0 on.
        let cdi = if major >= 2 {
            format!("cdi_spec_dirs = [\"{}\"]", self.cdi.display())
        } else {
            String::new()
        };
        format!(
            r#"{sandbox}[plugins.'{runtime}']
  {sandbox_key}
  {cdi}
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = true
[plugins.'{runtime}'.cni]
  {plugins}
  conf_dir = "{networks}"
[plugins.'{runtime}'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'{runtime}'.containerd.runtimes.runc.options]
  SystemdCgroup = {by_systemd}
{ours}"#,
            networks = self.networks.display(),
        )
    }

    /// Our handlers in every form.
    fn ours(&self, runtime: &str, by_systemd: bool) -> String {
        let annotations = r#"pod_annotations = ["cgpu.io/*"]
  container_annotations = ["cgpu.io/*"]"#;
        format!(
            r#"[plugins.'{runtime}'.containerd.runtimes.{BY_PATH}]
  runtime_type = "io.containerd.runc.v2"
  runtime_path = "{shim}"
  {annotations}
[plugins.'{runtime}'.containerd.runtimes.{BY_PATH}.options]
  BinaryName = "{runc}"
  SystemdCgroup = {by_systemd}
[plugins.'{runtime}'.containerd.runtimes.{BY_TYPE}]
  runtime_type = "io.containerd.cgpu.v2"
  {annotations}
[plugins.'{runtime}'.containerd.runtimes.{BY_WRAPPER}]
  runtime_type = "io.containerd.runc.v2"
  {annotations}
[plugins.'{runtime}'.containerd.runtimes.{BY_WRAPPER}.options]
  BinaryName = "{wrapper}"
  SystemdCgroup = {by_systemd}
"#,
            shim = self.shim.display(),
            wrapper = self.wrapper.display(),
            runc = self.runc.display(),
        )
    }
}
