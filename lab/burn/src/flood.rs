//! Calls that are refused, as many as there can be: what a tenant does to burn its neighbours' processors.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use rmclient::{Client, Nodes, Status};
use serde_json::json;

use super::Outcome;
use super::calls::NO_SUCH_CONTROL;
use crate::JSON_VERSION;

/// Makes refused calls from several threads for a while, and counts them.
///
/// # Errors
/// A call that was not refused as it must be.
pub fn run(nodes: &Nodes, threads: usize, duration: Duration) -> anyhow::Result<Outcome> {
    let client = Client::connect(nodes)?;
    let calls = AtomicU64::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let flooding: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| flood(&client, start + duration, &calls)))
            .collect();
        flooding.into_iter().try_for_each(|thread| {
            let ended = thread.join();
            ended.unwrap_or_else(|_| anyhow::bail!("a thread has panicked"))
        })
    })?;
    let calls = calls.into_inner();
    let millis = u64::try_from(start.elapsed().as_millis()).context("the time passed")?;
    let per_second = calls.saturating_mul(1000) / millis.max(1);
    Ok(Outcome {
        text: format!("{calls} refused calls in {millis} ms: {per_second} a second"),
        json: json!({
            "version": JSON_VERSION,
            "load": "flood",
            "threads": threads,
            "calls": calls,
            "per_second": per_second,
        }),
        code: 0,
    })
}

fn flood(client: &Client, end: Instant, calls: &AtomicU64) -> anyhow::Result<()> {
    while Instant::now() < end {
        let answer = client.control(client.root(), NO_SUCH_CONTROL, &mut [0; 8], Vec::new());
        match answer.map_err(|error| error.status()) {
            Err(Some(Status(nvabi::status::NV_ERR_NOT_SUPPORTED))) => {
                calls.fetch_add(1, Ordering::Relaxed);
            }
            other => anyhow::bail!("control {NO_SUCH_CONTROL:#x} answered {other:?}"),
        }
    }
    Ok(())
}
