//! How long a call of each kind takes.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::Instant;

use anyhow::Context;
use hdrhistogram::Histogram;
use rmclient::{Card, Form, Status};
use rmprogram::CardMemory;
use serde_json::{Map, Value, json};

use super::Outcome;
use crate::JSON_VERSION;

/// A control that no driver has: whoever decides answers it without the driver.
pub(super) const NO_SUCH_CONTROL: u32 = 0x2080_fffe;
/// A broker lets a container that is refused more often than this in one go wait for its refusals.
const MOST_REFUSED: u64 = 1_500;
/// `TCGETS`: neither the driver nor a filter for it knows the command.
const FOREIGN_IOCTL: u32 = 0x5401;
/// What [`sys::ioctl::raw`] wants for a command without a size, so that nothing is copied around the call.
const UNSIZED_BYTES: usize = 16 * 1024;
/// Smallest piece that the driver gives.
const PIECE_BYTES: u64 = 64 << 10;

/// Times `count` calls of each kind.
///
/// # Errors
/// A call that did not answer as its kind must.
pub fn measure(card: &Card<'_>, count: u64) -> anyhow::Result<Outcome> {
    let client = card.client();
    let mut scratch = vec![0; UNSIZED_BYTES];
    let elsewhere = File::open("/dev/null").context("open /dev/null")?;
    let kinds: [(&str, &mut dyn FnMut() -> anyhow::Result<()>); 4] = [
        ("passed", &mut || {
            let answer = sys::ioctl::raw(elsewhere.as_fd(), FOREIGN_IOCTL, &mut scratch);
            anyhow::ensure!(answer.is_err(), "/dev/null has answered TCGETS");
            Ok(())
        }),
        ("answered", &mut || {
            let answer = client.control(card.subdevice(), NO_SUCH_CONTROL, &mut [0; 8], Vec::new());
            match answer.map_err(|error| error.status()) {
                Err(Some(Status(nvabi::status::NV_ERR_NOT_SUPPORTED))) => Ok(()),
                other => anyhow::bail!("control {NO_SUCH_CONTROL:#x} answered {other:?}"),
            }
        }),
        ("executed", &mut || {
            card.name()?;
            Ok(())
        }),
        ("allocated and freed", &mut || {
            let allocation = card.allocate(Form::Short, PIECE_BYTES)?;
            card.free(allocation.handle)?;
            Ok(())
        }),
    ];
    let mut document = Map::new();
    let mut lines = Vec::new();
    for (kind, call) in kinds {
        let count = match kind {
            "answered" => count.min(MOST_REFUSED),
            _ => count,
        };
        let times = time(count, call).with_context(|| format!("time calls {kind}"))?;
        lines.push(line(kind, &times));
        document.insert(kind.replace(' ', "_"), row(&times));
    }
    Ok(Outcome {
        text: lines.join("\n"),
        json: json!({"version": JSON_VERSION, "load": "calls", "kinds": Value::Object(document)}),
        code: 0,
    })
}

/// A kind's times for people.
pub(super) fn line(kind: &str, times: &Histogram<u64>) -> String {
    let (median, p99) = (times.value_at_quantile(0.5), times.value_at_quantile(0.99));
    format!("{kind}: median {median} ns, p99 {p99} ns")
}

/// A kind's times for scripts.
pub(super) fn row(times: &Histogram<u64>) -> Value {
    json!({
        "median_ns": times.value_at_quantile(0.5), "p99_ns": times.value_at_quantile(0.99),
        "min_ns": times.min(), "max_ns": times.max(), "count": times.len(),
    })
}

/// The first calls warm caches and buffers up; they are not counted.
pub(super) const WARM_UP: u64 = 100;

/// A minute; what takes longer is counted as that.
const LONGEST_NS: u64 = 60_000_000_000;

/// For times in nanoseconds.
pub(super) fn histogram() -> anyhow::Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).context("make a histogram")
}

fn time(
    count: u64,
    call: &mut dyn FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Histogram<u64>> {
    let mut times = histogram()?;
    for _ in 0..WARM_UP.min(count) {
        call()?;
    }
    for _ in 0..count {
        let start = Instant::now();
        call()?;
        let nanoseconds = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        times.saturating_record(nanoseconds);
    }
    Ok(times)
}
