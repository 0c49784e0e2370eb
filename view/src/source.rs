//! One kind of figures, collected by a thread of its own: who asks for them waits for no broker, driver or disk.
//!
//! ```text
//!   asleep ──request──▶ collects every PERIOD ──no request for AWAKE──▶ asleep
//! ```
//!
//! A collection that hangs makes its own figures old, and none of another source. Who has changed what is collected calls
//! [`Source::renew`]: figures from before are served no more.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use sys::sync::{lock, wait, wait_for};
use tokio::sync::watch;

/// From the beginning of a collection to that of the next.
const PERIOD: Duration = Duration::from_secs(1);
/// Figures that are older are not served.
pub const STALE: Duration = Duration::from_secs(2);
/// A source collects for so long after the last request. Prometheus asks every 15 or 30 seconds.
const AWAKE: Duration = Duration::from_secs(60);

/// One collection.
#[derive(Debug)]
pub struct Snapshot<T> {
    /// When it began.
    pub at: Instant,
    /// How long it took.
    pub took: Duration,
    /// Its number, from 1.
    pub number: u64,
    /// The figures, or why there are none.
    pub figures: Result<T, String>,
}

impl<T> Snapshot<T> {
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < STALE
    }
}

/// The figures of one kind.
#[derive(Debug)]
pub struct Source<T> {
    requested: Arc<Requested>,
    snapshots: watch::Receiver<Option<Arc<Snapshot<T>>>>,
}

#[derive(Debug, Default)]
struct Requested {
    times: Mutex<Times>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Times {
    /// Of the last request.
    requested: Option<Instant>,
    /// Of the collection that is under way.
    begun: Option<Instant>,
    /// Figures of collections that began before are of no use.
    renewed: Option<Instant>,
}

impl Times {
    fn is_renewed_since(&self, at: Instant) -> bool {
        self.renewed.is_some_and(|renewed| renewed > at)
    }
}

impl Requested {
    /// How long it is worth to wait for figures, and from when on they must be.
    fn now(&self) -> (Duration, Option<Instant>) {
        let mut times = lock(&self.times);
        times.requested = Some(Instant::now());
        self.changed.notify_one();
        // What it finds would be old.
        let hangs = |begun: Instant| STALE.saturating_sub(begun.elapsed());
        (times.begun.map_or(STALE, hangs), times.renewed)
    }

    fn renew(&self) {
        lock(&self.times).renewed = Some(Instant::now());
        self.changed.notify_one();
    }

    fn begins(&self, begun: Option<Instant>) {
        lock(&self.times).begun = begun;
    }

    /// Sleeps until somebody has asked lately.
    fn wait(&self) {
        let mut times = lock(&self.times);
        while times
            .requested
            .is_none_or(|requested| requested.elapsed() >= AWAKE)
        {
            times = wait(&self.changed, times);
        }
    }

    /// Sleeps for the rest of the period after a collection that began at this moment, unless what it found is of no use any more.
    fn pause(&self, at: Instant) {
        let mut times = lock(&self.times);
        loop {
            let left = PERIOD.saturating_sub(at.elapsed());
            if left.is_zero() || times.is_renewed_since(at) {
                return;
            }
            times = wait_for(&self.changed, times, left);
        }
    }
}

impl<T: Send + Sync + 'static> Source<T> {
    /// Starts the thread, which collects when it is asked to. It ends with the process.
    ///
    /// # Errors
    /// The system has no thread.
    pub fn start(
        name: &'static str,
        mut collect: impl FnMut() -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let requested = Arc::<Requested>::default();
        let awaited = Arc::clone(&requested);
        let (publish, snapshots) = watch::channel(None);
        let collecting = move || {
            for number in 1.. {
                awaited.wait();
                let at = Instant::now();
                awaited.begins(Some(at));
                let figures = collect().map_err(|error| format!("{error:#}"));
                let took = at.elapsed();
                awaited.begins(None);
                match &figures {
                    Ok(_) => tracing::debug!(source = name, ?took, "collected"),
                    Err(why) => tracing::debug!(source = name, ?took, why, "nothing collected"),
                }
                let snapshot = Snapshot {
                    at,
                    took,
                    number,
                    figures,
                };
                if publish.send(Some(Arc::new(snapshot))).is_err() {
                    return;
                }
                awaited.pause(at);
            }
        };
        std::thread::Builder::new()
            .name(name.to_owned())
            .stack_size(512 << 10)
            .spawn(collecting)
            .context("start a thread")?;
        Ok(Self {
            requested,
            snapshots,
        })
    }

    /// What was collected until now is of no use any more: whoever asks from now on gets what is collected from now on.
    pub fn renew(&self) {
        self.requested.renew();
    }

    /// The last figures, or those of the collection that this request begins; `None`: none in time.
    pub async fn get(&self) -> Option<Arc<Snapshot<T>>> {
        let (patience, from) = self.requested.now();
        let mut snapshots = self.snapshots.clone();
        let fresh = |snapshot: &Option<Arc<Snapshot<T>>>| {
            snapshot.as_ref().is_some_and(|snapshot| {
                snapshot.is_fresh() && from.is_none_or(|from| snapshot.at >= from)
            })
        };
        let waited = tokio::time::timeout(patience, snapshots.wait_for(fresh)).await;
        waited.ok()?.ok()?.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn figures_are_collected_when_somebody_asks_and_then_by_the_second() {
        let count = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&count);
        let source =
            Source::start("test", move || Ok(counted.fetch_add(1, Ordering::Relaxed))).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(count.load(Ordering::Relaxed), 0, "nobody asked");
        let began = Instant::now();
        for _ in 0..100 {
            source.get().await.unwrap();
        }
        let seconds = began.elapsed().as_secs();
        let collected = count.load(Ordering::Relaxed);
        assert!(collected <= seconds + 2, "{collected} in {seconds} s");
        // Nobody asks again.
        let mut snapshots = source.snapshots.clone();
        let second = snapshots.wait_for(|snapshot| {
            snapshot
                .as_ref()
                .is_some_and(|snapshot| snapshot.number > collected)
        });
        tokio::time::timeout(AWAKE / 2, second)
            .await
            .unwrap()
            .unwrap();
    }

    #[tokio::test(flavor = "current_thread")]
    async fn who_asks_after_a_change_gets_what_was_collected_after_it() {
        let value = Arc::new(AtomicU64::new(0));
        let read = Arc::clone(&value);
        let source = Source::start("test", move || Ok(read.load(Ordering::Relaxed))).unwrap();
        for changed in 1..50 {
            assert_eq!(source.get().await.unwrap().figures, Ok(changed - 1));
            value.store(changed, Ordering::Relaxed);
            source.renew();
        }
        // No period was waited for: 50 of them are 50 s.
        assert!(source.get().await.unwrap().took < PERIOD);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_collection_that_hangs_is_not_waited_for_beyond_its_time() {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let source = Source::<()>::start("test", move || Ok(held.recv()?)).unwrap();
        assert!(source.get().await.is_none());
        let began = Instant::now();
        assert!(source.get().await.is_none());
        assert!(began.elapsed() < STALE / 2, "it is known to hang");
        drop(hold);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn why_there_are_no_figures_is_reported() {
        let source = Source::<()>::start("test", || anyhow::bail!("no folder")).unwrap();
        let snapshot = source.get().await.unwrap();
        assert_eq!(snapshot.figures, Err("no folder".to_owned()));
    }
}
