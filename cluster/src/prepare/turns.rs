//! Who may ask the driver, and who may change records and files: one claim at a time each, in a thread. A driver that hangs, and a lock of the host's
//! that is not given back, have one thread each so, however often the kubelet tries again.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sys::sync::lock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// How long a claim waits for its turns where others have theirs, but slowly. The kubelet gives a call 45 s, and the API server has 15 s of them.
const QUEUE: Duration = Duration::from_secs(20);

/// Until when a claim waits for its turns.
pub(super) fn end() -> Instant {
    Instant::now() + QUEUE
}

#[derive(Debug)]
pub(super) struct Turns {
    one: Arc<Semaphore>,
    /// Since when somebody has the present turn; `None`: nobody has.
    began: Mutex<Option<Instant>>,
    /// How long a turn may take before the others do not wait for its end.
    patience: Duration,
    texts: Texts,
}

/// Why there is no turn, but for the seconds.
#[derive(Debug)]
struct Texts {
    slow: &'static str,
    hangs: &'static str,
}

impl Turns {
    /// Questions to the driver.
    pub(super) fn of_driver(patience: Duration) -> Self {
        let texts = Texts {
            slow: "the driver is slow: questions for other claims have taken",
            hangs: "the driver does not answer: a question for another claim is open for",
        };
        Self::new(patience, texts)
    }

    /// Changes of records and files, for which the host's lock is taken.
    pub(super) fn of_files(patience: Duration) -> Self {
        let texts = Texts {
            slow: "the claims' files are slow: the turns of other claims have taken",
            hangs: "the host's lock or its disk holds up the claims' files: those of another claim have taken",
        };
        Self::new(patience, texts)
    }

    fn new(patience: Duration, texts: Texts) -> Self {
        Self {
            one: Arc::new(Semaphore::new(1)),
            began: Mutex::default(),
            patience,
            texts,
        }
    }

    /// Waits until all former turns have ended, no longer than until `end`.
    ///
    /// # Errors
    /// The present one does not end, or there are too many of them.
    pub(super) async fn take(self: &Arc<Self>, end: Instant) -> Result<Turn, String> {
        // It keeps its place among those that wait.
        let mut turn = pin!(Arc::clone(&self.one).acquire_owned());
        let permit = loop {
            let until = self.hangs_at().min(end);
            match timeout_at(until, turn.as_mut()).await {
                // Never closed.
                Ok(permit) => break permit.map_err(|closed| closed.to_string())?,
                Err(_late) if until == end => {
                    return Err(format!("{} {} s", self.texts.slow, QUEUE.as_secs()));
                }
                Err(_late) if self.hangs_at() <= until => {
                    let seconds = self.patience.as_secs();
                    return Err(format!("{} {seconds} s", self.texts.hangs));
                }
                // Another one has it by now.
                Err(_late) => {}
            }
        };
        *lock(&self.began) = Some(Instant::now());
        Ok(Turn {
            turns: Arc::clone(self),
            _permit: permit,
        })
    }

    fn hangs_at(&self) -> Instant {
        lock(&self.began).unwrap_or_else(Instant::now) + self.patience
    }

    #[cfg(test)]
    pub(super) fn is_taken(&self) -> bool {
        self.one.available_permits() == 0
    }
}

/// A claim's turn, until this is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Arc<Turns>,
    /// Given back last: the next one is not judged by when this one began.
    _permit: OwnedSemaphorePermit,
}

impl Drop for Turn {
    fn drop(&mut self) {
        *lock(&self.turns.began) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::HANGS;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn the_patience_is_with_the_question_that_is_open() {
        let turns = Arc::new(Turns::of_driver(SHORT));
        let end = Instant::now() + LONG;
        let first = turns.take(end).await.unwrap();
        *lock(&turns.began) = None;
        let later = || {
            let turns = Arc::clone(&turns);
            tokio::spawn(async move { turns.take(end).await })
        };
        let (second, last) = (later(), later());
        tokio::task::yield_now().await;
        drop(first);
        let second = second.await.unwrap().unwrap();
        // As if it had begun just now, whenever somebody looks.
        *lock(&turns.began) = Some(Instant::now() + LONG);
        tokio::time::sleep(SHORT * 2).await;
        assert!(!last.is_finished(), "for the first question's time");
        drop(second);
        last.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_question_that_hangs_is_waited_for_by_nobody_who_comes_later() {
        let turns = Arc::new(Turns::of_driver(LONG));
        let end = Instant::now() + LONG * 2;
        let open = turns.take(end).await.unwrap();
        *lock(&turns.began) = Instant::now().checked_sub(LONG);
        let why = turns.take(end).await.unwrap_err();
        assert!(why.contains("does not answer"), "{why}");
        drop(open);
        turns.take(end).await.unwrap();
    }

    #[tokio::test]
    async fn a_slow_driver_is_waited_for_no_longer_than_the_kubelet_does() {
        let turns = Arc::new(Turns::of_driver(LONG));
        let _open = turns.take(end()).await.unwrap();
        let why = turns.take(Instant::now()).await.unwrap_err();
        assert!(why.contains("is slow"), "{why}");
        assert!(QUEUE + crate::api::ANSWER + HANGS <= Duration::from_secs(45));
    }
}
