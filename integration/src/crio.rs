//! A private CRI-O, by Go's own client from its module proxy: own storage, state, socket, network and configuration.
//!
//! Images come into its storage by podman, which has the same one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::command::{LIMIT, capture};
use crate::control_groups::are_version_2_alone;
use crate::crictl::{self, PodServer};
use crate::daemon::Daemon;
use crate::engines::Engines;
use crate::go::{Effort, GoProgram};
use crate::image::Image;
use crate::node::Node;
use crate::packages::version;
use crate::podman::{self, Podman, Release};
use crate::pods::PodsSetup;

const PROGRAM: GoProgram = GoProgram {
    name: "crio",
    packages: &["github.com/cri-o/cri-o/cmd/crio"],
    // Without cgo there is neither libseccomp nor gpgme: profiles are written and judged by the OCI runtime, and no image has a signature.
    tags: "containers_image_openpgp,exclude_graphdriver_btrfs,exclude_graphdriver_devicemapper",
    module: include_str!("../crio/go.mod"),
    sums: include_str!("../crio/go.sum"),
    source: "",
    effort: Effort::USUAL,
};

/// Its helper for namespaces.
const PINNS: &str = include_str!("../crio/pinns");

/// The handler that leads to `cgpu-runtime`.
pub const HANDLER: &str = "cgpu";

/// The handler that leads to runc, and the one of pods that name none.
pub const PLAIN: &str = "runc";

/// Builds CRI-O once. An error is a reason to skip aloud.
///
/// # Errors
/// As [`GoProgram::fetch`].
pub fn program() -> Result<PathBuf> {
    PROGRAM.fetch()
}

/// Its major and minor version.
///
/// # Errors
/// As [`program`], or it does not start.
pub fn release() -> Result<(u32, u32)> {
    version(&program()?)
}

/// A running CRI-O of one node. Declare it after its node.
#[derive(Debug)]
pub struct Crio {
    daemon: Daemon,
    folder: PathBuf,
    config: PathBuf,
    /// The control group of all pods.
    group: String,
    setup: PodsSetup,
    /// Who puts images into its storage.
    images: Podman,
}

impl Crio {
    /// Starts it on the node, with an image beside its sandboxes' own, and waits until it answers.
    ///
    /// # Errors
    /// A file cannot be written, an image is refused, or it does not start.
    pub fn start(
        node: &Node,
        engines: &Engines,
        release: &Release,
        setup: PodsSetup,
        image: &Image,
    ) -> Result<Self> {
        let folder = node.root().join("crio");
        for part in ["", "exits", "attach", "hooks", "none"] {
            fs::create_dir_all(folder.join(part))
                .with_context(|| format!("creating {}", folder.display()))?;
        }
        let pinns = folder.join("pinns");
        fs::write(&pinns, PINNS)?;
        fs::set_permissions(&pinns, fs::Permissions::from_mode(0o755))?;
        fs::write(
            folder.join("policy.json"),
            r#"{"default": [{"type": "insecureAcceptAnything"}]}"#,
        )?;
        fs::write(
            folder.join("registries.conf"),
            "unqualified-search-registries = []\n",
        )?;
        let runc = engines.runc()?;
        let images = Podman::start(
            node,
            release,
            podman::Frontend::Plain,
            &runc,
            podman::Cgroups::Host,
        )?;
        for image in [&setup.pause, image] {
            images.load(image)?;
        }
        let wrapper = podman::wrapper(node, &folder)?;
        let programs = [(HANDLER, wrapper), (PLAIN, runc)].map(|(name, program)| {
            // CRI-O says limits of huge pages wherever a kubelet does, and runc cannot set them without the controller.
            if has_huge_pages() {
                return Ok(program);
            }
            without_huge_pages(&program, &folder.join(format!("{name}-without-huge-pages")))
        });
        let [wrapper, runc] = programs;
        fs::write(
            folder.join("crio.conf"),
            configuration(&folder, &images, release, [&wrapper?, &runc?], &setup),
        )?;
        let daemon = daemon(&folder, &node.config(), &setup)?;
        Ok(Self {
            daemon,
            folder,
            config: node.config(),
            group: node.namespace().to_owned(),
            setup,
            images,
        })
    }

    /// Where its OCI runtime keeps the state of containers, a folder each.
    pub fn runtime_state(&self) -> PathBuf {
        self.folder.join("runtime")
    }
}

impl PodServer for Crio {
    fn socket(&self) -> PathBuf {
        self.folder.join("crio.sock")
    }

    fn beside(&self, program: &Path) -> Result<Command> {
        self.setup.network.command(program)
    }

    fn pid(&self) -> Option<u32> {
        self.daemon.pid()
    }

    fn kill(&mut self) -> Result<()> {
        self.daemon.kill()
    }

    fn restart(&mut self) -> Result<()> {
        self.daemon = daemon(&self.folder, &self.config, &self.setup)?;
        Ok(())
    }

    fn supervise(&mut self) -> Result<bool> {
        let ended = !self.daemon.runs()?;
        if ended {
            self.restart()?;
        }
        Ok(ended)
    }

    fn import(&self, image: &Image) -> Result<()> {
        self.images.load(image)
    }

    fn folder(&self) -> &Path {
        &self.folder
    }

    fn stop(&mut self) -> Result<Vec<String>> {
        self.daemon.stop(Duration::from_secs(60))?;
        // conmon's groups are left to the kubelet, which removes a pod's group with all below it. One in which a process still lives
        // stays, and is the node's to report.
        for hierarchy in fs::read_dir("/sys/fs/cgroup")?.flatten() {
            let pods = fs::read_dir(hierarchy.path().join(&self.group));
            for group in pods.into_iter().flatten().flatten() {
                if group
                    .file_name()
                    .as_encoded_bytes()
                    .starts_with(b"crio-conmon-")
                {
                    drop(fs::remove_dir(group.path()));
                }
            }
        }
        Ok(Vec::new())
    }
}

/// Whether control groups limit huge pages here.
fn has_huge_pages() -> bool {
    are_version_2_alone() || Path::new("/sys/fs/cgroup/hugetlb").is_dir()
}

/// The same runtime for specs without limits of huge pages, which this machine lacks.
fn without_huge_pages(program: &Path, script: &Path) -> Result<PathBuf> {
    let text = format!(
        r#"#!/bin/sh
former=
for argument; do
    if [ "$former" = --bundle ]; then
        sed -i -z 's/,[[:space:]]*"hugepageLimits":[[:space:]]*\[[^]]*\]//' "$argument/config.json"
    fi
    former=$argument
done
exec '{}' "$@"
"#,
        program.display()
    );
    fs::write(script, text)?;
    fs::set_permissions(script, fs::Permissions::from_mode(0o755))?;
    Ok(script.to_owned())
}

fn daemon(folder: &Path, config: &Path, setup: &PodsSetup) -> Result<Daemon> {
    let mut command = setup.network.command(&program()?)?;
    command
        .arg("--config")
        .arg(folder.join("crio.conf"))
        // Drop-ins of the machine's own are not read.
        .arg("--config-dir")
        .arg(folder.join("none"))
        .env("CGPU_CONFIG", config)
        .env("CONTAINERS_REGISTRIES_CONF", folder.join("registries.conf"))
        .env("TMPDIR", folder);
    let mut daemon = Daemon::start("crio", &command, &folder.join("log"))?;
    let socket = folder.join("crio.sock");
    let crictl = crictl::program()?;
    let at = folder.join("crictl.yaml");
    fs::write(&at, "")?;
    daemon.wait_ready(Duration::from_secs(60), || {
        if !socket.exists() {
            return Ok(false);
        }
        let mut ask = Command::new(&crictl);
        ask.arg("--runtime-endpoint")
            .arg(format!("unix://{}", socket.display()))
            .arg("--config")
            .arg(&at)
            .arg("version");
        Ok(capture(&mut ask, LIMIT)?.succeeded())
    })?;
    Ok(daemon)
}

/// Everything that would reach outside the folder is named or switched off.
fn configuration(
    folder: &Path,
    images: &Podman,
    release: &Release,
    [wrapper, runc]: [&Path; 2],
    setup: &PodsSetup,
) -> String {
    let at = folder.display();
    let conmon = release.conmon().display();
    let handlers: String = [
        (HANDLER, "runtime", wrapper),
        (PLAIN, "runtime-of-runc", runc),
    ]
    .map(|(name, state, program)| {
        format!(
            r#"[crio.runtime.runtimes.{name}]
runtime_path = "{}"
runtime_type = "oci"
runtime_root = "{at}/{state}"
monitor_path = "{conmon}"
monitor_cgroup = "pod"
"#,
            program.display()
        )
    })
    .concat();
    let (data, run) = images.storage();
    format!(
        r#"[crio]
root = "{data}"
runroot = "{run}"
storage_driver = "vfs"
log_dir = "{at}/logs"
version_file = "{at}/version"
clean_shutdown_file = "{at}/clean"
internal_repair = false
[crio.api]
listen = "{at}/crio.sock"
[crio.runtime]
cgroup_manager = "cgroupfs"
apparmor_profile = ""
container_exits_dir = "{at}/exits"
container_attach_socket_dir = "{at}/attach"
namespaces_dir = "{at}/namespaces"
pinns_path = "{at}/pinns"
hooks_dir = ["{at}/hooks"]
cdi_spec_dirs = ["{cdi}"]
irqbalance_config_file = ""
enable_criu_support = false
disable_hostport_mapping = true
default_runtime = "{PLAIN}"
{handlers}[crio.image]
pause_image = "{pause}"
signature_policy = "{at}/policy.json"
signature_policy_dir = "{at}/policies"
[crio.network]
network_dir = "{networks}"
plugin_dirs = ["{plugins}"]
"#,
        data = data.display(),
        run = run.display(),
        pause = setup.pause.name,
        networks = setup.networks().display(),
        cdi = setup.cdi().display(),
        plugins = setup.plugins().display(),
    )
}
