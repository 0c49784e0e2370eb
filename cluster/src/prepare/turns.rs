//! Who may ask the driver: one claim at a time, in a thread. A driver that hangs has one thread so, however often the kubelet tries again.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sys::sync::lock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::monitor::HANGS;

/// How long a claim waits for its turn where the driver answers the others, but slowly. The kubelet gives a call 45 s, and the API server has 15 s
/// of them.
const QUEUE: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct Turns {
    one: Arc<Semaphore>,
    /// Since when the present question is open; `None`: there is none.
    began: Mutex<Option<Instant>>,
    /// How long a question may be open before the others do not wait for its answer.
    patience: Duration,
    queue: Duration,
}

impl Default for Turns {
    fn default() -> Self {
        Self::new(HANGS, QUEUE)
    }
}

impl Turns {
    pub(super) fn new(patience: Duration, queue: Duration) -> Self {
        Self {
            one: Arc::new(Semaphore::new(1)),
            began: Mutex::default(),
            patience,
            queue,
        }
    }

    /// Waits until the driver has answered all former questions.
    ///
    /// # Errors
    /// It does not answer the present one, or has too many of them.
    pub(super) async fn take(self: &Arc<Self>) -> Result<Turn, String> {
        let end = Instant::now() + self.queue;
        // It keeps its place among those that wait.
        let mut turn = pin!(Arc::clone(&self.one).acquire_owned());
        let permit = loop {
            let until = self.hangs_at().min(end);
            match timeout_at(until, turn.as_mut()).await {
                // Never closed.
                Ok(permit) => break permit.map_err(|closed| closed.to_string())?,
                Err(_late) if until == end => {
                    return Err(format!(
                        "the driver is slow: questions for other claims have taken {} s",
                        self.queue.as_secs()
                    ));
                }
                Err(_late) if self.hangs_at() <= until => {
                    return Err(format!(
                        "the driver does not answer: a question for another claim is open for {} s",
                        self.patience.as_secs()
                    ));
                }
                // Another question is open by now.
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

/// A question to the driver, until this is dropped.
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

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn the_patience_is_with_the_question_that_is_open() {
        let turns = Arc::new(Turns::new(SHORT, LONG));
        let first = turns.take().await.unwrap();
        *lock(&turns.began) = None;
        let later = || {
            let turns = Arc::clone(&turns);
            tokio::spawn(async move { turns.take().await })
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
        let turns = Arc::new(Turns::new(LONG, LONG * 2));
        let open = turns.take().await.unwrap();
        *lock(&turns.began) = Instant::now().checked_sub(LONG);
        let why = turns.take().await.unwrap_err();
        assert!(why.contains("does not answer"), "{why}");
        drop(open);
        turns.take().await.unwrap();
    }

    #[tokio::test]
    async fn a_slow_driver_is_waited_for_no_longer_than_the_kubelet_does() {
        let turns = Arc::new(Turns::new(LONG, Duration::ZERO));
        let _open = turns.take().await.unwrap();
        let why = turns.take().await.unwrap_err();
        assert!(why.contains("is slow"), "{why}");
        let ours = Turns::default();
        assert!(ours.queue + crate::api::ANSWER + HANGS <= Duration::from_secs(45));
    }
}
