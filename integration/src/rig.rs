//! What most tests and the demo are on: a node with two simulated cards, a containerd, and an image with
//! our client programs in it.

use std::ffi::OsString;
use std::sync::Arc;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::command::{LIMIT, Outcome, wait_until};
use crate::containerd::{CGPU, Containerd};
use crate::crictl::{Crictl, NAMESPACE, PodServer};
use crate::crio::{self, Crio};
use crate::engines::Engines;
use crate::image::{self, Image};
use crate::node::Node;
use crate::oci::OciRuntime;
use crate::packages::Suite;
use crate::podman::{self, Cgroups, Frontend, Podman};
use crate::pods::{Handlers, PodsSetup, PrivateNetwork};
use crate::programs::Programs;

/// Two cards of 24 GiB.
pub const TWO_CARDS: &str = include_str!("../profiles/two-cards.toml");

/// The node and its containerd. Fields end in this order.
#[derive(Debug)]
pub struct Rig {
    /// The engine.
    pub containerd: Containerd,
    /// The node below it.
    pub node: Node,
    /// busybox with `cgpu` and `cgpu-burn` in `/usr/bin`.
    pub image: Image,
}

impl Rig {
    /// Starts both and imports the image.
    pub fn start(programs: &Programs, engines: &Engines) -> Result<Self> {
        Self::with_profile(programs, engines, TWO_CARDS)
    }

    /// The same with other cards.
    pub fn with_profile(programs: &Programs, engines: &Engines, profile: &str) -> Result<Self> {
        let image = image::busybox(Some(programs))?;
        let node = Node::simulated(programs, engines, profile)?;
        let containerd = Containerd::start(&node, engines)?;
        containerd.import(&image)?;
        Ok(Self {
            containerd,
            node,
            image,
        })
    }

    /// Starts a container that only waits, under our shim, with these annotations.
    pub fn hold(&self, id: &str, annotations: &[&str]) -> Result<Outcome> {
        self.detached(id, annotations, &["sleep", "100000"])
    }

    /// Starts a container under our shim with these annotations.
    pub fn detached(&self, id: &str, annotations: &[&str], program: &[&str]) -> Result<Outcome> {
        let options = options(annotations);
        self.containerd
            .run_detached(&self.image, id, &options, program)
    }

    /// Runs a container to its end under our shim with these annotations.
    pub fn once(&self, id: &str, annotations: &[&str], program: &[&str]) -> Result<Outcome> {
        let options = options(annotations);
        self.containerd.run_once(&self.image, id, &options, program)
    }

    /// `cgpu smi --json` inside a container.
    pub fn smi(&self, id: &str) -> Result<Value> {
        self.containerd
            .exec(id, &["cgpu", "smi", "--json"])?
            .success()?
            .json()
    }

    /// Stops the engine and then the node; fails when anything is left.
    pub fn finish(self) -> Result<()> {
        finish(Box::new(self.containerd), self.node)
    }
}

/// podman on a node with two simulated cards. Fields end in this order.
#[derive(Debug)]
pub struct PodmanRig {
    /// It has no daemon.
    pub podman: Podman,
    /// The node below it.
    pub node: Node,
    /// busybox with `cgpu` and `cgpu-burn` in `/usr/bin`.
    pub image: Image,
}

/// What makes one podman different from another.
#[derive(Debug, Clone, Copy)]
pub struct PodmanKind {
    /// Whose podman.
    pub release: Suite,
    /// How a container comes to its vGPU.
    pub frontend: Frontend,
    /// What makes containers.
    pub runtime: OciRuntime,
    /// What it sees of control groups.
    pub cgroups: Cgroups,
}

impl PodmanKind {
    /// Debian 12's, with its runc.
    #[must_use]
    pub fn of(frontend: Frontend) -> Self {
        Self {
            release: Suite::Host,
            frontend,
            runtime: OciRuntime::HostRunc,
            cgroups: Cgroups::Host,
        }
    }
}

impl PodmanRig {
    /// Configures it and loads the image, or says why this machine cannot have it.
    ///
    /// # Errors
    /// Our own programs do not build or start, or podman refuses the image.
    pub fn start(kind: &PodmanKind) -> Result<Result<Self, String>> {
        if let Some(reason) = crate::skip::lacks_root() {
            return Ok(Err(reason.to_owned()));
        }
        let fetched = || -> Result<_> {
            let engines = Engines::fetch_with(Suite::Host, kind.runtime)?;
            Ok((engines, podman::Release::fetch(kind.release)?))
        };
        let (engines, release) = match fetched() {
            Ok(fetched) => fetched,
            Err(error) => return Ok(Err(format!("{error:#}"))),
        };
        let programs = Programs::for_tests()?;
        let image = image::busybox(Some(programs))?;
        let node = Node::simulated(programs, &engines, TWO_CARDS)?;
        let (runtime, cgroups) = (engines.runc()?, kind.cgroups);
        let podman = Podman::start(&node, &release, kind.frontend, &runtime, cgroups)?;
        podman.load(&image)?;
        Ok(Ok(Self {
            podman,
            node,
            image,
        }))
    }

    /// Removes all containers and ends the node; fails when anything is left.
    ///
    /// # Errors
    /// A container cannot be removed, or something is left.
    pub fn finish(mut self) -> Result<()> {
        self.podman.stop()?;
        drop(self.podman);
        self.node.finish()
    }
}

/// Stops an engine and then the node below it; fails when anything is left.
pub(crate) fn finish(mut engine: Box<dyn PodServer>, node: Node) -> Result<()> {
    let left = engine.stop()?;
    drop(engine);
    node.finish()?;
    anyhow::ensure!(
        left.is_empty(),
        "containers that were not removed: {}",
        left.join(" ")
    );
    Ok(())
}

fn options<'a>(annotations: &[&'a str]) -> Vec<&'a str> {
    let mut options = vec!["--runtime", CGPU];
    for annotation in annotations {
        options.extend(["--annotation", annotation]);
    }
    options
}

/// A rig on the engines of `suite`, or why this machine cannot have one.
pub fn start(suite: Suite) -> Result<Result<Rig, String>> {
    start_with(suite, TWO_CARDS)
}

/// The same with other cards.
pub fn start_with(suite: Suite, profile: &str) -> Result<Result<Rig, String>> {
    if let Some(reason) = crate::skip::lacks_root() {
        return Ok(Err(reason.to_owned()));
    }
    let engines = match Engines::fetch(suite) {
        Ok(engines) => engines,
        Err(error) => return Ok(Err(format!("{error:#}"))),
    };
    // From here on a failure is a failure: our own programs must build and start.
    let programs = Programs::for_tests()?;
    Ok(Ok(Rig::with_profile(programs, &engines, profile)?))
}

/// What serves the pods of a [`PodRig`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodEngine {
    /// containerd with these handlers.
    Containerd(Handlers),
    /// CRI-O, whose handler of ours is the wrapper.
    Crio,
}

/// Pods on a node with two simulated cards. Fields end in this order.
#[derive(Debug)]
pub struct PodRig {
    /// The engine, which serves CRI.
    pub engine: Box<dyn PodServer>,
    /// Its client.
    pub crictl: Crictl,
    /// The node below it.
    pub node: Node,
    /// busybox.
    pub image: Image,
    /// `PATH` of what is beside the engine.
    pub search_path: OsString,
}

impl PodRig {
    /// Starts it on the containerd of `suite`, or says why this machine cannot have it.
    ///
    /// # Errors
    /// Our own programs do not build or start, or the engine does not.
    pub fn start(suite: Suite) -> Result<Result<Self, String>> {
        Self::start_by(suite, OciRuntime::HostRunc)
    }

    /// The same with containers made by this OCI runtime.
    ///
    /// # Errors
    /// As [`PodRig::start`].
    pub fn start_by(suite: Suite, oci: OciRuntime) -> Result<Result<Self, String>> {
        let engine = PodEngine::Containerd(Handlers::All);
        Self::start_on((suite, oci), None, engine)
    }

    /// The same with this engine, in a network that others are in too or in one of its own.
    ///
    /// # Errors
    /// As [`PodRig::start`].
    pub fn start_on(
        (suite, oci): (Suite, OciRuntime),
        network: Option<Arc<PrivateNetwork>>,
        engine: PodEngine,
    ) -> Result<Result<Self, String>> {
        if let Some(reason) = crate::skip::lacks_root() {
            return Ok(Err(reason.to_owned()));
        }
        let release = || match engine {
            PodEngine::Containerd(_) => Ok(None),
            PodEngine::Crio => {
                crio::program()?;
                podman::Release::fetch(suite).map(Some)
            }
        };
        let fetched = Engines::fetch_with(suite, oci).and_then(|engines| Ok((engines, release()?)));
        let (engines, release) = match fetched {
            Ok(fetched) => fetched,
            Err(error) => return Ok(Err(format!("{error:#}"))),
        };
        let programs = Programs::for_tests()?;
        let node = Node::simulated(programs, &engines, TWO_CARDS)?;
        let setup = || match network {
            Some(network) => PodsSetup::on(&node, &engines, network),
            None => PodsSetup::new(&node, &engines),
        };
        let crictl = Crictl::new(&node);
        let made = crictl.and_then(|crictl| Ok((crictl, setup()?)));
        let (mut crictl, setup) = match made {
            Ok(made) => made,
            Err(error) => {
                node.finish()?;
                return Ok(Err(format!("{error:#}")));
            }
        };
        let (pause, image) = (setup.pause.clone(), image::busybox(Some(programs))?);
        let server: Box<dyn PodServer> = match (engine, &release) {
            (PodEngine::Containerd(handlers), _) => {
                let setup = setup.with_handlers(handlers);
                let containerd = Containerd::start_for_pods(&node, &engines, setup)?;
                for image in [&pause, &image] {
                    containerd.import_into(NAMESPACE, image)?;
                }
                Box::new(containerd)
            }
            (PodEngine::Crio, Some(release)) => {
                crictl = crictl.with_cgroupfs();
                Box::new(Crio::start(&node, &engines, release, setup, &image)?)
            }
            (PodEngine::Crio, None) => bail!("CRI-O without a release of podman"),
        };
        // CRI hears of imported images by events.
        wait_until("the images", LIMIT, || {
            let reply = crictl.crictl(server.as_ref(), &["images", "-o", "json"])?;
            let reply = reply.success()?.stdout;
            Ok([&pause, &image]
                .iter()
                .all(|image| reply.contains(&image.name)))
        })?;
        Ok(Ok(Self {
            search_path: node.search_path(&engines)?,
            engine: server,
            crictl,
            node,
            image,
        }))
    }

    /// Removes all pods, stops the engine and then the node; fails when anything is left.
    ///
    /// # Errors
    /// A pod cannot be removed, or something is left.
    pub fn finish(self) -> Result<()> {
        self.crictl.remove_all(self.engine.as_ref())?;
        finish(self.engine, self.node)
    }
}
