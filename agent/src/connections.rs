//! The connections that are served at a time, and which of them ends for the next one.
//!
//! ```text
//!   Asking ──its head is complete──▶ Answering ──the answer is made──▶ Answered ──it is taken──▶ closed
//! ```
//!
//! Whoever reaches the port may open as many as it likes, and must not keep a scrape out: beyond [`MOST`] the oldest one goes that has not
//! asked yet, then the oldest that has had its answer for a moment and not taken it. Nobody goes who waits for the agent, which takes 2 seconds
//! at most (`view::source::STALE`): the next one waits for that.

use std::cell::Cell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::rt::{Read, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioTimer;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, spawn_local, yield_now};
use tokio::time::{Instant, sleep, timeout};

/// So many connections are served at a time.
const MOST: usize = 32;
/// For the head of a request.
const HEAD: Duration = Duration::from_secs(5);
/// For taking the answer. Prometheus waits no longer, unless it is set to.
const TAKE: Duration = Duration::from_secs(10);
/// As long as this, nobody goes for the next one who is taking it. Who takes none has a place no longer than this where others want it.
const MOMENT: Duration = Duration::from_millis(200);
/// A connection's whole life.
const LIFE: Duration = Duration::from_secs(30);
/// The head of a request.
const HEAD_BYTES: usize = 16 << 10;
/// Turns of the runtime in which a new connection's head is read, where it has come already: one in which its task begins to wait for the
/// socket, and one after the socket was looked at.
const TURNS: usize = 2;

/// What a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The client, for its request.
    Asking,
    /// The agent.
    Answering,
    /// The client, to take the answer since then.
    Answered(Instant),
}

#[derive(Debug)]
struct Progress {
    phase: Cell<Phase>,
    answered: Notify,
}

#[derive(Debug)]
struct Connection {
    progress: Rc<Progress>,
    task: AbortHandle,
}

/// Tells that there may be room, however a connection's task ends.
struct Ended(Rc<Notify>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// The connections of a listener, the oldest one first.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    open: VecDeque<Connection>,
    /// One has ended.
    changed: Rc<Notify>,
}

impl Connections {
    /// Serves one request of a connection, and returns when that has begun. Within a [`LocalSet`](tokio::task::LocalSet).
    pub(crate) async fn serve<A, F>(&mut self, io: impl Read + Write + Unpin + 'static, answer: A)
    where
        A: Fn(Request<Incoming>) -> F + 'static,
        F: Future<Output = Response<Full<Bytes>>> + 'static,
    {
        self.await_place().await;
        let progress = Rc::new(Progress {
            phase: Cell::new(Phase::Asking),
            answered: Notify::new(),
        });
        let (own, ended) = (Rc::clone(&progress), Ended(Rc::clone(&self.changed)));
        let task = spawn_local(async move {
            let _ended = ended;
            let late = async {
                own.answered.notified().await;
                sleep(TAKE).await;
            };
            tokio::select! {
                served = connection(io, answer, &own) => {
                    if let Err(error) = served {
                        tracing::debug!(%error, "a connection ended");
                    }
                }
                () = late => tracing::debug!("a connection is ended that does not take its answer"),
                () = sleep(LIFE) => tracing::debug!("a connection is ended for its age"),
            }
        });
        self.open.push_back(Connection {
            progress,
            task: task.abort_handle(),
        });
    }

    async fn await_place(&mut self) {
        loop {
            self.open.retain(|one| !one.task.is_finished());
            if self.open.len() < MOST {
                return;
            }
            for _ in 0..TURNS {
                yield_now().await;
            }
            self.open.retain(|one| !one.task.is_finished());
            if self.open.len() < MOST {
                return;
            }
            if let Some(one) = self.ends_first().and_then(|at| self.open.remove(at)) {
                one.task.abort();
                return;
            }
            // Another one may have had its answer for long enough then.
            drop(timeout(MOMENT, self.changed.notified()).await);
        }
    }

    /// Which one ends for the next, if any does.
    fn ends_first(&self) -> Option<usize> {
        let oldest = |may_end: fn(Phase) -> bool| {
            let mut open = self.open.iter();
            open.position(|one| may_end(one.progress.phase.get()))
        };
        let asks_not = oldest(|phase| phase == Phase::Asking);
        asks_not.or_else(|| {
            oldest(|phase| matches!(phase, Phase::Answered(since) if since.elapsed() >= MOMENT))
        })
    }
}

/// A connection has one request. One that stays open for more has a place for nothing.
async fn connection<A, F>(
    io: impl Read + Write + Unpin + 'static,
    answer: A,
    progress: &Progress,
) -> Result<(), hyper::Error>
where
    A: Fn(Request<Incoming>) -> F + 'static,
    F: Future<Output = Response<Full<Bytes>>> + 'static,
{
    let service = service_fn(|request: Request<Incoming>| {
        progress.phase.set(Phase::Answering);
        let made = answer(request);
        async move {
            let response = made.await;
            progress.phase.set(Phase::Answered(Instant::now()));
            progress.answered.notify_one();
            Ok::<_, Infallible>(response)
        }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(io, service)
        .await
}

#[cfg(test)]
mod tests {
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::task::LocalSet;

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    /// More than a connection holds that nobody reads from.
    const BODY: &[u8] = &[b'x'; 4096];

    /// Answers come once it is open.
    #[derive(Default)]
    struct Fixture {
        connections: Connections,
        gate: Rc<Gate>,
    }

    #[derive(Default)]
    struct Gate {
        is_open: Cell<bool>,
        opens: Notify,
    }

    impl Gate {
        async fn passed(&self) {
            while !self.is_open.get() {
                self.opens.notified().await;
            }
        }

        fn open(&self) {
            self.is_open.set(true);
            self.opens.notify_waiters();
        }
    }

    impl Fixture {
        async fn connect(&mut self, head: &[u8]) -> DuplexStream {
            let (mut client, server) = duplex(64);
            client.write_all(head).await.unwrap();
            let gate = Rc::clone(&self.gate);
            let answer = move |_| {
                let gate = Rc::clone(&gate);
                async move {
                    gate.passed().await;
                    Response::new(Full::new(Bytes::from_static(BODY)))
                }
            };
            self.connections.serve(TokioIo::new(server), answer).await;
            client
        }

        async fn several(&mut self, count: usize, head: &[u8]) -> Vec<DuplexStream> {
            let mut clients = Vec::new();
            for _ in 0..count {
                clients.push(self.connect(head).await);
            }
            clients
        }
    }

    /// All that comes until the other side closes.
    async fn read(client: &mut DuplexStream) -> String {
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        text
    }

    async fn is_answered(client: &mut DuplexStream) -> bool {
        let text = read(client).await;
        text.starts_with("HTTP/1.1 200") && text.len() > BODY.len()
    }

    /// In a time that passes where nothing else happens.
    fn with_fixture(test: impl AsyncFnOnce(Fixture)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let tasks = LocalSet::new();
        runtime.block_on(tasks.run_until(test(Fixture::default())));
    }

    #[test]
    fn who_has_sent_no_request_goes_first_and_the_oldest_of_them() {
        with_fixture(async |mut fixture: Fixture| {
            let mut first = fixture.connect(b"").await;
            let mut asks = fixture.connect(REQUEST).await;
            let mut half = fixture.connect(b"GET / HTTP/1.1\r\nHo").await;
            let mut others = fixture.several(MOST - 3, b"").await;
            let mut later = fixture.several(2, REQUEST).await;
            assert_eq!(read(&mut first).await, "");
            assert_eq!(read(&mut half).await, "");
            let floods = fixture.several(10 * MOST, b"").await;
            assert_eq!(read(&mut others[0]).await, "");
            fixture.gate.open();
            assert!(is_answered(&mut asks).await);
            for one in &mut later {
                assert!(is_answered(one).await);
            }
            drop(floods);
        });
    }

    #[test]
    fn who_does_not_take_its_answer_goes_where_all_have_sent_theirs() {
        with_fixture(async |mut fixture: Fixture| {
            fixture.gate.open();
            let mut idle = fixture.several(MOST, REQUEST).await;
            let mut next = fixture.connect(REQUEST).await;
            assert!(is_answered(&mut next).await);
            let states = [
                is_answered(&mut idle[0]).await,
                is_answered(&mut idle[1]).await,
            ];
            assert_eq!(states, [false, true]);
        });
    }

    #[test]
    fn nobody_goes_who_waits_for_the_agent_and_the_next_one_waits_too() {
        with_fixture(async |mut fixture: Fixture| {
            let mut waiting = fixture.several(MOST, REQUEST).await;
            let gate = Rc::clone(&fixture.gate);
            let opens = async {
                for _ in 0..100 {
                    yield_now().await;
                }
                gate.open();
                for client in &mut waiting {
                    assert!(is_answered(client).await);
                }
            };
            let next = async { is_answered(&mut fixture.connect(REQUEST).await).await };
            let (is_served, ()) = tokio::join!(next, opens);
            assert!(is_served);
        });
    }

    #[test]
    fn an_answer_that_nobody_takes_is_given_up() {
        with_fixture(async |mut fixture: Fixture| {
            fixture.gate.open();
            let mut idle = fixture.connect(REQUEST).await;
            sleep(TAKE + Duration::from_secs(1)).await;
            let rest = timeout(Duration::from_secs(1), read(&mut idle));
            assert!(rest.await.unwrap().len() < BODY.len());
        });
    }

    #[test]
    fn a_connection_has_one_answer() {
        with_fixture(async |mut fixture: Fixture| {
            fixture.gate.open();
            let mut client = fixture.connect(&[REQUEST, REQUEST].concat()).await;
            let text = read(&mut client).await;
            assert_eq!(text.matches("HTTP/1.1 200").count(), 1);
            assert!(text.contains("connection: close"), "{text}");
        });
    }
}
