//! `cgpu-agent`: the one program of a node that serves what is known of its cards and containers, to Prometheus and as a page.
//!
//! ```text
//!   Prometheus ──GET──▶ server ──▶ pages ──▶ Source ◀── a thread that asks brokers and reads the state folder
//! ```
//!
//! On a node of a Kubernetes cluster it is the DRA driver too (`cluster`, cargo feature `kubernetes`).
//!
//! No container depends on the agent: it only asks and reads. What a metric means is `view::metrics`' business.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod connections;
#[cfg(feature = "kubernetes")]
mod driver;
#[cfg(feature = "nvml")]
mod figures;
mod history;
mod listener;
mod options;
mod page;
mod pages;
mod server;
mod single;

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Context;
use host_config::Config;
use tokio::signal::unix::{SignalKind, signal};
use view::service;
use view::version::Build;

use self::driver::{Counts, Driver};
use self::listener::Listener;
use self::options::Settings;
use self::pages::Pages;

#[cfg(not(feature = "kubernetes"))]
mod driver {
    //! Stands in where the cluster's driver is not built in.

    use std::path::Path;
    use std::sync::Arc;

    use anyhow::bail;
    use host_config::Config;
    use view::metrics::ClaimCounts;

    use crate::options::ClusterOptions;

    const ABSENT: &str = "this cgpu-agent is built without the feature `kubernetes`";

    #[derive(Debug)]
    pub(crate) enum Driver {}

    impl Driver {
        pub(crate) fn counts(&self) -> Arc<Counts> {
            match *self {}
        }
    }

    #[derive(Debug)]
    pub(crate) enum Counts {}

    impl Counts {
        pub(crate) fn now(&self) -> ClaimCounts {
            match *self {}
        }
    }

    pub(crate) fn of(
        options: &ClusterOptions,
        _runtime_dir: &Path,
        _config: &Config,
    ) -> anyhow::Result<Option<Driver>> {
        if options.kubernetes {
            bail!("{ABSENT}: --kubernetes is not possible");
        }
        Ok(None)
    }

    pub(crate) async fn run_templates(_options: &ClusterOptions) -> anyhow::Result<()> {
        bail!("{ABSENT}: --classic-templates is not possible")
    }

    pub(crate) async fn run_preemption(_options: &ClusterOptions) -> anyhow::Result<()> {
        bail!("{ABSENT}: --evict-for-priority is not possible")
    }

    pub(crate) async fn run(_driver: Option<Driver>) -> anyhow::Result<()> {
        std::future::pending().await
    }
}

#[cfg(not(feature = "nvml"))]
mod figures {
    //! Stands in where NVML is not built in.

    use std::collections::BTreeMap;

    use view::metrics::Figures;

    #[derive(Debug, Default)]
    pub(crate) struct Library {}

    impl Library {
        #[expect(clippy::unnecessary_wraps, reason = "NVML's own may fail")]
        pub(crate) fn figures(&mut self) -> anyhow::Result<BTreeMap<String, Figures>> {
            Ok(BTreeMap::new())
        }
    }
}

pub use self::options::{ClusterOptions, Listen, Options};

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// A configuration that cannot be read; another agent, or a program that has the port; no thread.
pub fn run(options: &Options, build: Build) -> anyhow::Result<()> {
    service::log();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the event loop")?;
    if options.cluster.classic_templates {
        return runtime.block_on(until_ended(driver::run_templates(&options.cluster)));
    }
    if options.cluster.evict_for_priority {
        return runtime.block_on(until_ended(driver::run_preemption(&options.cluster)));
    }
    let config = Config::load()?;
    let settings = Settings::of(options, &config.metrics)?;
    let driver = driver::of(&options.cluster, &options.runtime_dir, &config)?;
    let counts = driver.as_ref().map(Driver::counts);
    // During a rolling update the former agent has it for some seconds more.
    let is_updated = options.cluster.pod_uid.is_some();
    let lock = (!is_updated).then(|| single::take(&options.runtime_dir));
    let lock = lock.transpose()?;
    let metrics = async {
        let _lock = match lock {
            Some(lock) => lock,
            None => single::wait(&options.runtime_dir).await?,
        };
        serve(&settings, &options.history_dir, config, build, counts).await
    };
    runtime.block_on(until_ended(async {
        tokio::select! {
            served = metrics => served,
            served = driver::run(driver) => served,
        }
    }))
}

/// Does it until SIGTERM or SIGINT.
async fn until_ended(serve: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let mut terminated = signal(SignalKind::terminate()).context("await SIGTERM")?;
    let mut interrupted = signal(SignalKind::interrupt()).context("await SIGINT")?;
    let served = tokio::select! {
        served = serve => served,
        _ = terminated.recv() => Ok(()),
        _ = interrupted.recv() => Ok(()),
    };
    service::stopping();
    tracing::info!("ended");
    served
}

async fn serve(
    settings: &Settings,
    history_dir: &Path,
    config: Config,
    build: Build,
    counts: Option<Arc<Counts>>,
) -> anyhow::Result<()> {
    let listener = Listener::bind(&settings.listen).await?;
    let pages = Rc::new(Pages::new(config, settings, history_dir, build, counts)?);
    tracing::info!(address = listener.address(), "serving");
    service::ready();
    tokio::select! {
        () = server::serve(&listener, pages) => {}
        () = service::watchdog() => {}
    }
    Ok(())
}
