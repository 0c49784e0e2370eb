//! etcd and Kubernetes' servers, on ports of their own of the loopback device; they end with the test.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::identity::Identities;
use super::kubectl::Kubectl;
use super::programs::KubernetesPrograms;
use crate::command::succeed;
use crate::daemon::Daemon;
use crate::node::Node;
use crate::packages::ensure_installed;

/// A busy machine starts the API server in this time at last.
const START: Duration = Duration::from_secs(120);
/// Keys of service accounts' tokens.
const PRIVATE: &str = "service-accounts.key";
const PUBLIC: &str = "service-accounts.pub";
const END: Duration = Duration::from_secs(60);

/// Those that act on what tests look at. Left out is what needs kubelets: node-lifecycle would call every posted node lost.
const CONTROLLERS: &str = "daemonset-controller,deployment-controller,device-taint-eviction-controller,disruption-controller,\
    garbage-collector-controller,job-controller,namespace-controller,replicaset-controller,resourceclaim-controller,resourcequota-controller,\
    root-ca-certificate-publisher-controller,serviceaccount-controller,serviceaccount-token-controller,statefulset-controller,\
    validatingadmissionpolicy-status-controller";

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
    ports: Ports,
    is_finished: bool,
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    etcd: u16,
    peers: u16,
    server: u16,
    scheduler: u16,
    controllers: u16,
}

impl Ports {
    /// Free ones: all are bound at once, so that no two are the same.
    fn find() -> Result<Self> {
        let listeners = (0..5)
            .map(|_| TcpListener::bind(("127.0.0.1", 0)))
            .collect::<Result<Vec<_>, _>>()
            .context("free ports")?;
        let mut ports = listeners
            .iter()
            .map(|listener| Ok(listener.local_addr()?.port()));
        let mut next = || -> Result<u16> { ports.next().context("five ports")? };
        Ok(Self {
            etcd: next()?,
            peers: next()?,
            server: next()?,
            scheduler: next()?,
            controllers: next()?,
        })
    }
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
        let ports = Ports::find()?;
        let address = format!("https://127.0.0.1:{}", ports.server);
        let identities = Identities::make(&folder, &address)?;
        make_keys(&folder)?;
        let etcd = start_etcd(programs, &folder, ports)?;
        let server = start_server(programs, &folder, ports, &identities)?;
        let mut plane = Self {
            actors: Vec::new(),
            server,
            etcd,
            programs: programs.clone(),
            folder,
            identities,
            ports,
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

    /// `kubectl` of whoever has this token; `name` is for its file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn kubectl_with(&self, name: &str, token: &str) -> Result<Kubectl> {
        Ok(self.with_config(self.identities.file(name, token)?))
    }

    fn with_config(&self, config: PathBuf) -> Kubectl {
        Kubectl {
            program: self.programs.program("kubectl"),
            config,
            folder: self.folder.clone(),
        }
    }

    /// The API server's address.
    pub fn address(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.server)
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
        self.server = start_server(&self.programs, &self.folder, self.ports, &self.identities)?;
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
        let scheduler = self.actor("kube-scheduler", "scheduler", self.ports.scheduler);
        self.start_actor("kube-scheduler", &scheduler)?;
        let mut controllers = self.actor(
            "kube-controller-manager",
            "controllers",
            self.ports.controllers,
        );
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
    fn actor(&self, program: &str, identity: &str, port: u16) -> Command {
        let config = self.identities.path(identity);
        let mut command = Command::new(self.programs.program(program));
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
            .arg("--leader-elect=false");
        command
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

fn start_etcd(programs: &KubernetesPrograms, folder: &Path, ports: Ports) -> Result<Daemon> {
    let clients = format!("http://127.0.0.1:{}", ports.etcd);
    let peers = format!("http://127.0.0.1:{}", ports.peers);
    let mut command = Command::new(programs.etcd());
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
    etcd.wait_ready(START, || {
        Ok(std::net::TcpStream::connect(("127.0.0.1", ports.etcd)).is_ok())
    })?;
    Ok(etcd)
}

fn start_server(
    programs: &KubernetesPrograms,
    folder: &Path,
    ports: Ports,
    identities: &Identities,
) -> Result<Daemon> {
    let (private, public) = (folder.join(PRIVATE), folder.join(PUBLIC));
    let mut command = Command::new(programs.program("kube-apiserver"));
    command
        .arg(format!("--etcd-servers=http://127.0.0.1:{}", ports.etcd))
        .arg("--bind-address=127.0.0.1")
        // As every installer of clusters has it: agents are privileged.
        .arg("--allow-privileged=true")
        .arg("--advertise-address=127.0.0.1")
        // An address of the loopback device is no endpoint.
        .arg("--endpoint-reconciler-type=none")
        .arg(format!("--secure-port={}", ports.server))
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
        .arg("--authorization-mode=Node,RBAC")
        .arg("--enable-admission-plugins=NodeRestriction");
    Daemon::start(
        "kube-apiserver",
        &command,
        &folder.join("kube-apiserver.log"),
    )
}
