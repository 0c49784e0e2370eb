//! Calls that do not come back from the driver.
//!
//! Every thread writes in the shared state when its call goes to the driver. A call that has been there for too long is reported once, in
//! whichever broker's life, and its end as well. Nothing else comes of it: other calls have threads of their own.

use std::time::Duration;

use journal::counters::Counter;
use journal::shared_state::AtDriver;

use crate::container::Container;
use crate::health::hung::Known;
use control::EventKind;

pub(super) fn look(container: &Container, limit: Duration) {
    let health = &container.health;
    let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    let now_ms = journal::shared_state::now_ms();
    let hanging: Vec<AtDriver> = container
        .shared_state
        .at_driver()
        .into_iter()
        .filter(|call| now_ms.saturating_sub(call.since_ms) >= limit_ms)
        .collect();
    let mut known = health.hung.lock();
    let over: Vec<u32> = known
        .iter()
        .filter(|(call_slot, known)| {
            let is_same =
                |call: &AtDriver| call.call_slot == **call_slot && call.since_ms == known.since_ms;
            !hanging.iter().any(is_same)
        })
        .map(|(call_slot, _)| *call_slot)
        .collect();
    let mut reported = Vec::new();
    for call_slot in over {
        if let Some(Known { since_ms, what }) = known.remove(&call_slot) {
            reported.push((EventKind::HungCallOver, over_text(&what, since_ms)));
        }
    }
    for call in hanging {
        if known.contains_key(&call.call_slot) {
            continue;
        }
        let what = name_of(container, call.call_slot);
        if !call.is_reported {
            container.counters.count(Counter::HungCall);
            container
                .shared_state
                .set_reported(call.call_slot, call.since_ms);
            let ms = now_ms.saturating_sub(call.since_ms);
            let text = format!("{what} has not come back from the driver for {ms} ms");
            reported.push((EventKind::HungCall, text));
        }
        let since_ms = call.since_ms;
        known.insert(call.call_slot, Known { since_ms, what });
    }
    drop(known);
    for (kind, text) in reported {
        health.tell(container, kind, text);
    }
}

/// A call of which somebody was told, maybe a former broker, has come back.
pub(super) fn is_back(container: &Container, call_slot: u32, since_ms: u64) {
    let health = &container.health;
    let known = {
        let mut known = health.hung.lock();
        known.remove(&call_slot)
    };
    let what = known.map_or_else(|| name_of(container, call_slot), |known| known.what);
    let text = over_text(&what, since_ms);
    health.tell(container, EventKind::HungCallOver, text);
}

fn over_text(what: &str, since_ms: u64) -> String {
    let ms = journal::shared_state::now_ms().saturating_sub(since_ms);
    format!("{what} has come back from the driver after {ms} ms")
}

fn name_of(container: &Container, call_slot: u32) -> String {
    let change = container.journal.change();
    match change.open_in(call_slot) {
        Some(open) => {
            let begun = &open.begun;
            let op = verdict::op(
                crate::files::surface(begun.kind),
                begun.cmd,
                container.release,
            );
            let name = op.map_or_else(
                |_unknown| format!("ioctl {:#x}", begun.cmd),
                |op| op.name().to_owned(),
            );
            format!("{name} of process {}", begun.caller.tgid)
        }
        None => "a call".to_owned(),
    }
}
