//! What most tests and the demo are on: a node with two simulated cards, a containerd, and an image with
//! our client programs in it.

use std::sync::Arc;

use anyhow::Result;
use serde_json::Value;

use crate::command::{LIMIT, Outcome, wait_until};
use crate::containerd::{CGPU, Containerd};
use crate::crictl::{Crictl, NAMESPACE};
use crate::engines::Engines;
use crate::image::{self, Image};
use crate::node::Node;
use crate::packages::Suite;
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
        finish(self.containerd, self.node)
    }
}

/// Stops an engine and then the node below it; fails when anything is left.
pub(crate) fn finish(mut containerd: Containerd, node: Node) -> Result<()> {
    let left = containerd.stop()?;
    drop(containerd);
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

/// Pods on a node with two simulated cards. Fields end in this order.
#[derive(Debug)]
pub struct PodRig {
    /// The engine, which serves CRI.
    pub containerd: Containerd,
    /// Its client.
    pub crictl: Crictl,
    /// The node below it.
    pub node: Node,
    /// busybox.
    pub image: Image,
}

impl PodRig {
    /// Starts it on the engines of `suite`, or says why this machine cannot have it.
    ///
    /// # Errors
    /// Our own programs do not build or start, or the engine does not.
    pub fn start(suite: Suite) -> Result<Result<Self, String>> {
        Self::start_on(suite, None, Handlers::All)
    }

    /// The same in a network that others are in too, or in one of its own, with these handlers.
    ///
    /// # Errors
    /// As [`PodRig::start`].
    pub fn start_on(
        suite: Suite,
        network: Option<Arc<PrivateNetwork>>,
        handlers: Handlers,
    ) -> Result<Result<Self, String>> {
        if let Some(reason) = crate::skip::lacks_root() {
            return Ok(Err(reason.to_owned()));
        }
        let engines = match Engines::fetch(suite) {
            Ok(engines) => engines,
            Err(error) => return Ok(Err(format!("{error:#}"))),
        };
        let programs = Programs::for_tests()?;
        let node = Node::simulated(programs, &engines, TWO_CARDS)?;
        let setup = || match network {
            Some(network) => PodsSetup::on(&node, &engines, network),
            None => PodsSetup::new(&node, &engines),
        };
        let setup = || setup().map(|setup| setup.with_handlers(handlers));
        let crictl = Crictl::new(&node);
        let made = crictl.and_then(|crictl| Ok((crictl, setup()?)));
        let (crictl, setup) = match made {
            Ok(made) => made,
            Err(error) => {
                node.finish()?;
                return Ok(Err(format!("{error:#}")));
            }
        };
        let (pause, image) = (setup.pause.clone(), image::busybox(Some(programs))?);
        let containerd = Containerd::start_for_pods(&node, &engines, setup)?;
        for image in [&pause, &image] {
            containerd.import_into(NAMESPACE, image)?;
        }
        // CRI hears of imported images by events.
        wait_until("the images", LIMIT, || {
            let reply = crictl.crictl(&containerd, &["images", "-o", "json"])?;
            let reply = reply.success()?.stdout;
            Ok([&pause, &image]
                .iter()
                .all(|image| reply.contains(&image.name)))
        })?;
        Ok(Ok(Self {
            containerd,
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
        self.crictl.remove_all(&self.containerd)?;
        finish(self.containerd, self.node)
    }
}
