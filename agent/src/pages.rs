//! What is behind each path.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use host_config::Config;
use hyper::body::Bytes;
use sys::sync::lock;
use view::host_driver::HostDriver;
use view::metrics::text::{Dialect, TextForm, render};
use view::metrics::{CardMetrics, Containers, Exporter, Figures, Metrics};
use view::version::Build;

use crate::figures::Library;
use crate::history::{self, Counted};
use crate::inventory::Inventories;
use crate::options::Options;
use crate::source::{STALE, Snapshot, Source};

/// How long a simulator may take to answer: less than [`STALE`], so that a silent one costs no figures of its cards' grants.
const SIMULATOR: Duration = Duration::from_millis(500);

/// All pages of this host.
#[derive(Debug)]
pub(crate) struct Pages {
    build: Build,
    containers: Source<Containers>,
    cards: Source<Vec<CardMetrics>>,
    /// By UUID.
    figures: Source<BTreeMap<String, Figures>>,
    errors: Arc<Errors>,
    counted: Counted,
    dialects: Vec<Dialect>,
    node: String,
    last: Mutex<Option<Page>>,
}

/// A text and what it was made from.
#[derive(Debug)]
struct Page {
    /// The numbers of the snapshots.
    of: [Option<u64>; 3],
    form: TextForm,
    text: Bytes,
}

/// Answers that did not come, since the agent began.
#[derive(Debug, Default)]
struct Errors {
    /// Brokers that did not answer in time.
    broker: AtomicU64,
    /// Containers whose state could not be read.
    state: AtomicU64,
    /// Scrapes without containers.
    containers: AtomicU64,
    /// Scrapes without cards.
    cards: AtomicU64,
    /// Scrapes without NVML's figures of cards.
    nvml: AtomicU64,
}

impl Errors {
    fn all(&self) -> Vec<(&'static str, u64)> {
        let all = [
            ("broker", &self.broker),
            ("state", &self.state),
            ("containers", &self.containers),
            ("cards", &self.cards),
            ("nvml", &self.nvml),
        ];
        all.map(|(source, count)| (source, count.load(Ordering::Relaxed)))
            .to_vec()
    }
}

impl Pages {
    /// Starts what collects.
    ///
    /// # Errors
    /// The system has no thread.
    pub(crate) fn new(config: Config, options: &Options, build: Build) -> anyhow::Result<Self> {
        let counted_events = history::start(&config.state_dir, &options.history_dir)?;
        let errors = Arc::<Errors>::default();
        let counted = Arc::clone(&errors);
        let of_containers = config.clone();
        let containers = Source::start("containers", move || {
            let found = view::metrics::containers(&of_containers)?;
            counted.broker.fetch_add(found.silent, Ordering::Relaxed);
            counted.state.fetch_add(found.unread, Ordering::Relaxed);
            Ok(found)
        })?;
        let of_figures = config.clone();
        let mut library = Library::default();
        let figures = Source::start("nvml", move || match HostDriver::of(&of_figures) {
            HostDriver::Kernel => library.figures(),
            HostDriver::Sim | HostDriver::None => Ok(BTreeMap::new()),
        })?;
        let mut inventories = Inventories::default();
        let cards = Source::start("cards", move || {
            let driver = HostDriver::of(&config);
            let inventory = inventories.of(driver, &config)?;
            let cards = view::cards::collect_of(&config, driver, inventory, SIMULATOR)?;
            Ok(view::metrics::of_cards(cards))
        })?;
        Ok(Self {
            build,
            containers,
            cards,
            figures,
            errors,
            counted: counted_events,
            dialects: options.dialects.clone(),
            node: view::metrics::node_name(),
            last: Mutex::default(),
        })
    }

    /// `/metrics`: what is not known in time is absent and counted.
    pub(crate) async fn metrics(&self, form: TextForm) -> anyhow::Result<Bytes> {
        let (containers, cards, figures) =
            tokio::join!(self.containers.get(), self.cards.get(), self.figures.get());
        let of = [
            number(containers.as_deref()),
            number(cards.as_deref()),
            number(figures.as_deref()),
        ];
        let mut last = lock(&self.last);
        let is_whole = of.iter().all(Option::is_some);
        if let Some(page) = &*last
            && is_whole
            && (page.of, page.form) == (of, form)
        {
            return Ok(page.text.clone());
        }
        let took = [
            ("containers", took(containers.as_deref())),
            ("cards", took(cards.as_deref())),
            ("nvml", took(figures.as_deref())),
        ];
        let took = took
            .into_iter()
            .filter_map(|(source, took)| Some((source, took?)));
        let took = took.collect();
        let containers = known(containers.as_deref(), &self.errors.containers);
        let cards = known(cards.as_deref(), &self.errors.cards);
        let mut cards = cards.cloned().unwrap_or_default();
        let figures = known(figures.as_deref(), &self.errors.nvml);
        for card in &mut cards {
            let of_card = figures.and_then(|figures| figures.get(&card.uuid));
            card.figures = of_card.cloned().unwrap_or_default();
        }
        let metrics = Metrics {
            exporter: Exporter {
                version: self.build.version.to_owned(),
                commit: self.build.commit.to_owned(),
                node: self.node.clone(),
                errors: self.errors.all(),
                took,
                starts_refused: self.counted.starts_refused(),
                events: self.counted.events(),
            },
            containers: containers
                .map(|all| all.containers.clone())
                .unwrap_or_default(),
            cards,
        };
        let text = Bytes::from(render(&metrics, form, &self.dialects)?);
        *last = Some(Page {
            of,
            form,
            text: text.clone(),
        });
        Ok(text)
    }

    /// `/readyz`: why not.
    pub(crate) async fn ready(&self) -> Result<(), String> {
        match self.containers.get().await {
            Some(snapshot) => snapshot.figures.as_ref().map(drop).map_err(Clone::clone),
            None => Err(format!(
                "the state folder is not read within {} s",
                STALE.as_secs()
            )),
        }
    }
}

/// The number of a collection that succeeded.
fn number<T>(snapshot: Option<&Snapshot<T>>) -> Option<u64> {
    snapshot
        .filter(|snapshot| snapshot.figures.is_ok())
        .map(|snapshot| snapshot.number)
}

fn took<T>(snapshot: Option<&Snapshot<T>>) -> Option<Duration> {
    snapshot.map(|snapshot| snapshot.took)
}

fn known<'a, T>(snapshot: Option<&'a Snapshot<T>>, errors: &AtomicU64) -> Option<&'a T> {
    let figures = snapshot.and_then(|snapshot| snapshot.figures.as_ref().ok());
    if figures.is_none() {
        errors.fetch_add(1, Ordering::Relaxed);
    }
    figures
}
