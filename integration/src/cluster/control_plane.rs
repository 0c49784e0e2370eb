//! etcd and Kubernetes' servers, on the loopback device of a network of their own; they end with the test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use super::identity::Identities;
use super::kubectl::Kubectl;
use super::programs::KubernetesPrograms;
use crate::command::succeed;
use crate::daemon::Daemon;
use crate::node::Node;
use crate::packages::ensure_installed;
use crate::pods::PrivateNetwork;
use crate::skip;

/// A busy machine starts the API server in this time at last.
const START: Duration = Duration::from_secs(120);
/// Keys of service accounts' tokens.
const PRIVATE: &str = "service-accounts.key";
const PUBLIC: &str = "service-accounts.pub";
/// Ports are the usual ones: nothing else is in the network.
const ADDRESS: &str = "https://127.0.0.1:6443";
const ETCD: &str = "http://127.0.0.1:2379";
const END: Duration = Duration::from_secs(60);

/// Those that act on what tests look at. Left out is what needs kubelets: node-lifecycle would call every posted node lost.
const CONTROLLERS: &str = "daemonset-controller,deployment-controller,device-taint-eviction-controller,disruption-controller,\
    garbage-collector-controller,job-controller,namespace-controller,replicaset-controller,resourceclaim-controller,resourcequota-controller,\
    root-ca-certificate-publisher-controller,serviceaccount-controller,serviceaccount-token-controller,statefulset-controller,\
    validatingadmissionpolicy-status-controller";

/// Runs a test on a control plane of its own, and looks for what it leaves on the machine; without Kubernetes' programs it skips aloud.
///
/// # Errors
/// Those of `body`, or something does not start, does not end, or is left.
pub fn on_control_plane(
    test: &str,
    extent: Extent,
    body: impl FnOnce(&ControlPlane) -> Result<()>,
) -> Result<()> {
    let programs = match KubernetesPrograms::for_tests() {
        Ok(programs) => programs,
        Err(reason) => skip!(test, "{reason}"),
    };
    let node = Node::bare()?;
    let plane = ControlPlane::start(&node, &programs, extent)?;
    body(&plane)?;
    plane.finish()?;
    node.finish()
}

/// How much of a control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// etcd and the API server: admission, access, nothing that acts.
    Server,
    /// The scheduler and the controllers too.
    Whole,
}

/// A running one. Fields end in this order.
#[derive(Debug)]
pub struct ControlPlane {
    actors: Vec<Daemon>,
    server: Daemon,
    etcd: Daemon,
    programs: KubernetesPrograms,
    folder: PathBuf,
    identities: Identities,
    network: Arc<PrivateNetwork>,
    is_finished: bool,
}

impl ControlPlane {
    /// Starts it below the node's folder and waits until it serves.
    ///
    /// # Errors
    /// One of the programs does not start: the error has the end of its log.
    pub fn start(node: &Node, programs: &KubernetesPrograms, extent: Extent) -> Result<Self> {
        ensure_installed(&[("openssl", "openssl")])?;
        let folder = node.root().join("control-plane");
        fs::create_dir_all(&folder)?;
        let network = Arc::new(PrivateNetwork::start(node)?);
        let identities = Identities::make(&folder, ADDRESS)?;
        make_keys(&folder)?;
        let etcd = start_etcd(programs, &folder, &network)?;
        let server = start_server(programs, &folder, &network, &identities)?;
        let mut plane = Self {
            actors: Vec::new(),
            server,
            etcd,
            programs: programs.clone(),
            folder,
            identities,
            network,
            is_finished: false,
        };
        let kubectl = plane.kubectl();
        plane.server.wait_ready(START, || {
            Ok(kubectl.run(&["get", "--raw", "/readyz"])?.succeeded())
        })?;
        match extent {
            Extent::Server => kubectl
                .run(&["create", "serviceaccount", "default"])?
                .success()
                .map(drop)?,
            Extent::Whole => plane.start_actors()?,
        }
        Ok(plane)
    }

    /// `kubectl` of somebody who may do everything.
    pub fn kubectl(&self) -> Kubectl {
        self.with_config(self.identities.path("admin"))
    }

    /// `kubectl` of an account of cgpu's in the cluster, with a token that is bound to this node, or to none.
    ///
    /// # Errors
    /// The server gives no token; the file cannot be written.
    pub fn kubectl_of(&self, account: &str, node: Option<&str>) -> Result<Kubectl> {
        let mut args = vec!["create", "token", account, "--namespace=cgpu-system"];
        let bound = node.map(|node| format!("--bound-object-name={node}"));
        if let Some(bound) = &bound {
            args.extend(["--bound-object-kind=Node", bound]);
        }
        let token = self.kubectl().run(&args)?.success()?.stdout;
        let name = format!("{account}-{}", node.unwrap_or("unbound"));
        Ok(self.with_config(self.identities.file(&name, token.trim())?))
    }

    fn with_config(&self, config: PathBuf) -> Kubectl {
        Kubectl {
            program: self.programs.program("kubectl"),
            network: Arc::clone(&self.network),
            config,
            folder: self.folder.clone(),
        }
    }

    /// The API server's address.
    pub fn address(&self) -> &'static str {
        ADDRESS
    }

    /// A program of Kubernetes.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.programs.program(name)
    }

    /// The file of somebody that is known from the start.
    pub(super) fn config(&self, name: &str) -> PathBuf {
        self.identities.path(name)
    }

    /// Where its programs' files are.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The network that all of it is in: a client inside a test enters it first ([`PrivateNetwork::enter`]).
    pub fn network(&self) -> &Arc<PrivateNetwork> {
        &self.network
    }

    /// The certificate that it serves with, which is its own authority.
    pub fn certificate(&self) -> PathBuf {
        self.folder.join("certificates/apiserver.crt")
    }

    /// SIGKILL to the API server, as a crash would be; what it has stored stays.
    ///
    /// # Errors
    /// It cannot be killed.
    pub fn kill_server(&mut self) -> Result<()> {
        self.server.kill()
    }

    /// Starts the API server again after [`ControlPlane::kill_server`], on the same port.
    ///
    /// # Errors
    /// It does not start.
    pub fn restart_server(&mut self) -> Result<()> {
        self.server = start_server(
            &self.programs,
            &self.folder,
            &self.network,
            &self.identities,
        )?;
        let kubectl = self.kubectl();
        self.server.wait_ready(START, || {
            Ok(kubectl.run(&["get", "--raw", "/readyz"])?.succeeded())
        })
    }

    /// Ends all of it.
    ///
    /// # Errors
    /// One does not end.
    pub fn finish(mut self) -> Result<()> {
        self.is_finished = true;
        for actor in &mut self.actors {
            actor.stop(END)?;
        }
        self.server.stop(END)?;
        self.etcd.stop(END)?;
        Ok(())
    }

    fn start_actors(&mut self) -> Result<()> {
        let scheduler = self.actor("kube-scheduler", "scheduler", 10259)?;
        self.start_actor("kube-scheduler", &scheduler)?;
        let mut controllers = self.actor("kube-controller-manager", "controllers", 10257)?;
        let key = self.folder.join(PRIVATE);
        controllers
            .arg("--use-service-account-credentials")
            .arg(format!("--controllers={CONTROLLERS}"))
            .arg(format!(
                "--cert-dir={}",
                self.folder.join("controllers").display()
            ))
            .arg(format!(
                "--service-account-private-key-file={}",
                key.display()
            ))
            .arg(format!("--root-ca-file={}", self.certificate().display()));
        self.start_actor("kube-controller-manager", &controllers)?;
        // Pods are refused before their namespace has its service account.
        let kubectl = self.kubectl();
        let manager = self.actors.last_mut().context("it has started")?;
        manager.wait_ready(START, || {
            Ok(kubectl
                .run(&["get", "serviceaccount", "default"])?
                .succeeded())
        })
    }

    fn start_actor(&mut self, name: &str, command: &Command) -> Result<()> {
        let log = self.folder.join(format!("{name}.log"));
        self.actors.push(Daemon::start(name, command, &log)?);
        Ok(())
    }

    /// What the scheduler and the controllers have in common.
    fn actor(&self, program: &str, identity: &str, port: u16) -> Result<Command> {
        let config = self.identities.path(identity);
        let mut command = self.network.command(&self.programs.program(program))?;
        for kind in [
            "kubeconfig",
            "authentication-kubeconfig",
            "authorization-kubeconfig",
        ] {
            command.arg(format!("--{kind}={}", config.display()));
        }
        command
            .arg("--bind-address=127.0.0.1")
            .arg(format!("--secure-port={port}"))
            .arg("--leader-elect=false")
            // Nobody asks them; what they would check callers by is not in this cluster.
            .arg("--authentication-skip-lookup");
        Ok(command)
    }
}

impl Drop for ControlPlane {
    /// Without [`ControlPlane::finish`] before it, this is a failed test: it prints the ends of the logs.
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        for (name, daemon) in [("etcd", &self.etcd), ("kube-apiserver", &self.server)] {
            eprintln!("--- end of {name}'s log\n{}", daemon.tail());
        }
        for actor in &self.actors {
            eprintln!("--- end of an actor's log\n{}", actor.tail());
        }
    }
}

/// What tokens of service accounts are signed with, and the part of it that they are checked by.
fn make_keys(folder: &Path) -> Result<()> {
    let (private, public) = (folder.join(PRIVATE), folder.join(PUBLIC));
    let mut make = Command::new("openssl");
    make.args(["genpkey", "-algorithm", "EC"])
        .args(["-pkeyopt", "ec_paramgen_curve:P-256", "-out"])
        .arg(private.as_os_str());
    succeed(&mut make)?;
    let mut publish = Command::new("openssl");
    publish
        .args(["pkey", "-pubout", "-in"])
        .arg(private)
        .arg("-out")
        .arg(public);
    succeed(&mut publish)?;
    Ok(())
}

fn start_etcd(
    programs: &KubernetesPrograms,
    folder: &Path,
    network: &PrivateNetwork,
) -> Result<Daemon> {
    let (clients, peers) = (ETCD, "http://127.0.0.1:2380");
    let mut command = network.command(&programs.etcd())?;
    command
        .arg(format!("--data-dir={}", folder.join("etcd").display()))
        // What it stores ends with the test.
        .arg("--unsafe-no-fsync")
        .arg(format!("--listen-client-urls={clients}"))
        .arg(format!("--advertise-client-urls={clients}"))
        .arg(format!("--listen-peer-urls={peers}"))
        .arg(format!("--initial-advertise-peer-urls={peers}"))
        .arg(format!("--initial-cluster=default={peers}"));
    let mut etcd = Daemon::start("etcd", &command, &folder.join("etcd.log"))?;
    let log = folder.join("etcd.log");
    etcd.wait_ready(START, || {
        Ok(fs::read_to_string(&log)?.contains("ready to serve client requests"))
    })?;
    Ok(etcd)
}

fn start_server(
    programs: &KubernetesPrograms,
    folder: &Path,
    network: &PrivateNetwork,
    identities: &Identities,
) -> Result<Daemon> {
    let (private, public) = (folder.join(PRIVATE), folder.join(PUBLIC));
    let mut command = network.command(&programs.program("kube-apiserver"))?;
    command
        .arg(format!("--etcd-servers={ETCD}"))
        .arg("--bind-address=127.0.0.1")
        // As every installer of clusters has it: agents are privileged.
        .arg("--allow-privileged=true")
        .arg("--advertise-address=127.0.0.1")
        // An address of the loopback device is no endpoint.
        .arg("--endpoint-reconciler-type=none")
        .arg("--secure-port=6443")
        .arg(format!(
            "--cert-dir={}",
            folder.join("certificates").display()
        ))
        .arg("--service-account-issuer=https://kubernetes.default.svc")
        .arg(format!("--service-account-key-file={}", public.display()))
        .arg(format!(
            "--service-account-signing-key-file={}",
            private.display()
        ))
        .arg("--service-cluster-ip-range=10.0.0.0/24")
        .arg(format!(
            "--token-auth-file={}",
            identities.table().display()
        ))
        // Names of nodes are in no DNS.
        .arg("--kubelet-preferred-address-types=InternalIP")
        .arg("--authorization-mode=Node,RBAC")
        .arg("--enable-admission-plugins=NodeRestriction");
    Daemon::start(
        "kube-apiserver",
        &command,
        &folder.join("kube-apiserver.log"),
    )
}
