//! What is behind each path.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use host_config::Config;
use hyper::body::Bytes;
use sys::sync::lock;
use view::host_driver::HostDriver;
use view::inventories::Inventories;
use view::metrics::text::{Dialect, TextForm, render};
use view::metrics::{CardMetrics, Containers, Exporter, Figures, Metrics};
use view::source::{STALE, Snapshot, Source};
use view::version::Build;

use crate::driver::Counts;
use crate::figures::Library;
use crate::history::{self, Counted};
use crate::options::{Listen, Settings};
use crate::page;

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
    /// Of the driver of a cluster's node.
    counts: Option<Arc<Counts>>,
    dialects: Vec<Dialect>,
    node: String,
    /// Whether the agent listens on an address that only this host reaches.
    is_loopback: bool,
    /// The last text of each form.
    last: Mutex<Vec<Page>>,
}

/// How a moment is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Metrics(TextForm),
    Html,
}

/// A text and what it was made from.
#[derive(Debug)]
struct Page {
    /// The numbers of the snapshots.
    of: [Option<u64>; 3],
    form: Form,
    text: Bytes,
}

/// The last collections; absent is what does not come in time.
struct Moment {
    containers: Option<Arc<Snapshot<Containers>>>,
    cards: Option<Arc<Snapshot<Vec<CardMetrics>>>>,
    figures: Option<Arc<Snapshot<BTreeMap<String, Figures>>>>,
}

impl Moment {
    /// The numbers of the collections.
    fn of(&self) -> [Option<u64>; 3] {
        [
            number(self.containers.as_deref()),
            number(self.cards.as_deref()),
            number(self.figures.as_deref()),
        ]
    }

    /// What is not known, and why.
    fn missing(&self) -> page::Missing {
        let all = [
            ("containers", why(self.containers.as_deref())),
            ("GPUs", why(self.cards.as_deref())),
            ("the GPUs' hardware", why(self.figures.as_deref())),
        ];
        let missing = all.into_iter().filter_map(|(what, why)| Some((what, why?)));
        missing.collect()
    }
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
    pub(crate) fn new(
        config: Config,
        settings: &Settings,
        history_dir: &Path,
        build: Build,
        counts: Option<Arc<Counts>>,
    ) -> anyhow::Result<Self> {
        let counted_events = history::start(&config.state_dir, history_dir)?;
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
            counts,
            dialects: settings.dialects.clone(),
            node: view::metrics::node_name(),
            is_loopback: matches!(&settings.listen, Listen::Tcp(address) if address.ip().to_canonical().is_loopback()),
            last: Mutex::default(),
        })
    }

    /// `/metrics`: what is not known in time is absent and counted.
    pub(crate) async fn metrics(&self, form: TextForm) -> anyhow::Result<Bytes> {
        let moment = self.moment().await;
        self.once(&moment, Form::Metrics(form), || {
            for (is_known, errors) in [
                (
                    is_known(moment.containers.as_deref()),
                    &self.errors.containers,
                ),
                (is_known(moment.cards.as_deref()), &self.errors.cards),
                (is_known(moment.figures.as_deref()), &self.errors.nvml),
            ] {
                errors.fetch_add(u64::from(!is_known), Ordering::Relaxed);
            }
            render(&self.known(&moment), form, &self.dialects)
        })
    }

    /// `/`: the same figures for people.
    pub(crate) async fn html(&self) -> anyhow::Result<Bytes> {
        let moment = self.moment().await;
        self.once(&moment, Form::Html, || {
            Ok(page::render(&self.known(&moment), &moment.missing()))
        })
    }

    /// Whether a request that names this host came to the agent by one of its own names. On the loopback address it has no other: a page
    /// of a stranger's, whose name was made to stand for that address, does not get to read.
    pub(crate) fn is_meant(&self, host: Option<&str>) -> bool {
        !self.is_loopback || host.is_none_or(is_loopback_name)
    }

    async fn moment(&self) -> Moment {
        let (containers, cards, figures) =
            tokio::join!(self.containers.get(), self.cards.get(), self.figures.get());
        Moment {
            containers,
            cards,
            figures,
        }
    }

    /// The text of a moment. It is made once: whoever asks again before the next collection gets the same.
    fn once(
        &self,
        moment: &Moment,
        form: Form,
        make: impl FnOnce() -> anyhow::Result<String>,
    ) -> anyhow::Result<Bytes> {
        let of = moment.of();
        let mut last = lock(&self.last);
        let made = last.iter().find(|page| page.form == form && page.of == of);
        if let Some(page) = made
            && of.iter().all(Option::is_some)
        {
            return Ok(page.text.clone());
        }
        let text = Bytes::from(make()?);
        last.retain(|page| page.form != form);
        last.push(Page {
            of,
            form,
            text: text.clone(),
        });
        Ok(text)
    }

    /// What is known at a moment.
    fn known(&self, moment: &Moment) -> Metrics {
        let took = [
            ("containers", took(moment.containers.as_deref())),
            ("cards", took(moment.cards.as_deref())),
            ("nvml", took(moment.figures.as_deref())),
        ];
        let took = took
            .into_iter()
            .filter_map(|(source, took)| Some((source, took?)));
        let containers = known(moment.containers.as_deref());
        let mut cards = known(moment.cards.as_deref()).cloned().unwrap_or_default();
        let figures = known(moment.figures.as_deref());
        for card in &mut cards {
            let of_card = figures.and_then(|figures| figures.get(&card.uuid));
            card.figures = of_card.cloned().unwrap_or_default();
        }
        Metrics {
            exporter: Exporter {
                version: self.build.version.to_owned(),
                commit: self.build.commit.to_owned(),
                node: self.node.clone(),
                errors: self.errors.all(),
                took: took.collect(),
                starts_refused: self.counted.starts_refused(),
                events: self.counted.events(),
                claims_prepared: containers.and_then(|found| found.claims_prepared),
                claims: self.counts.as_ref().map(|counts| counts.now()),
            },
            containers: containers
                .map(|all| all.containers.clone())
                .unwrap_or_default(),
            cards,
        }
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

fn known<T>(snapshot: Option<&Snapshot<T>>) -> Option<&T> {
    snapshot.and_then(|snapshot| snapshot.figures.as_ref().ok())
}

fn is_known<T>(snapshot: Option<&Snapshot<T>>) -> bool {
    known(snapshot).is_some()
}

/// Why nothing is known; `None`: it is.
fn why<T>(snapshot: Option<&Snapshot<T>>) -> Option<String> {
    match snapshot {
        Some(snapshot) => snapshot.figures.as_ref().err().cloned(),
        None => Some(format!("no answer within {} s", STALE.as_secs())),
    }
}

/// `localhost`, or an address of the loopback network, with or without a port.
fn is_loopback_name(host: &str) -> bool {
    let by_address = |text: &str| {
        let text = text.trim_start_matches('[').trim_end_matches(']');
        text.parse::<IpAddr>()
            .is_ok_and(|ip| ip.to_canonical().is_loopback())
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    name.eq_ignore_ascii_case("localhost") || by_address(name) || by_address(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_somebody_made_stand_for_this_host_is_no_name_of_it() {
        for name in [
            "localhost",
            "LOCALHOST:9402",
            "127.0.0.1",
            "127.0.0.1:9402",
            "[::1]:9402",
            "[::1]",
            "[::ffff:127.0.0.1]:9402",
        ] {
            assert!(is_loopback_name(name), "{name}");
        }
        for name in [
            "",
            "evil.example",
            "evil.example:9402",
            "127.0.0.1.evil.example",
            "localhost.evil.example:1",
            "10.0.0.1:9402",
            "[2001:db8::1]:9402",
        ] {
            assert!(!is_loopback_name(name), "{name}");
        }
    }
}
