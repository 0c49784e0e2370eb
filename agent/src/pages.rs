//! What is behind each path.

use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use host_config::Config;
use hyper::body::Bytes;
use view::metrics::text::{TextForm, render};
use view::metrics::{Metrics, collect};

use crate::source::{STALE, Source};

/// All pages of this host.
#[derive(Debug)]
pub(crate) struct Pages {
    host: Source<Metrics>,
    last: Mutex<Option<Page>>,
}

/// A text and what it was made from.
#[derive(Debug)]
struct Page {
    number: u64,
    form: TextForm,
    text: Bytes,
}

impl Pages {
    /// Starts what collects.
    ///
    /// # Errors
    /// The system has no thread.
    pub(crate) fn new(config: Config) -> anyhow::Result<Self> {
        Ok(Self {
            host: Source::start("collect", move || collect(&config))?,
            last: Mutex::default(),
        })
    }

    /// `/metrics`
    pub(crate) async fn metrics(&self, form: TextForm) -> anyhow::Result<Bytes> {
        let snapshot = self.host.get().await.context("nothing is known in time")?;
        let metrics = snapshot
            .figures
            .as_ref()
            .map_err(|why| anyhow::anyhow!("{why}"))?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(page) = &*last
            && (page.number, page.form) == (snapshot.number, form)
        {
            return Ok(page.text.clone());
        }
        let text = Bytes::from(render(metrics, form)?);
        *last = Some(Page {
            number: snapshot.number,
            form,
            text: text.clone(),
        });
        Ok(text)
    }

    /// `/readyz`: why not.
    pub(crate) async fn ready(&self) -> Result<(), String> {
        match self.host.get().await {
            Some(snapshot) => snapshot.figures.as_ref().map(drop).map_err(Clone::clone),
            None => Err(format!("nothing is known within {} s", STALE.as_secs())),
        }
    }
}
