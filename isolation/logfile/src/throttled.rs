//! Each place in the code that logs has a bucket of its own: one that a tenant makes loud keeps no other from being heard.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use sys::sync::lock;
use tracing::callsite::Identifier;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use crate::Log;
use crate::bucket::Bucket;

/// A place may log so often at once.
pub const BURST_BY_PLACE: u32 = 16;
/// Then once in this time.
pub const PERIOD_BY_PLACE: Duration = Duration::from_secs(10);
/// An event with a field of this name comes from a throttle that tells more reasons apart than places, and counts itself.
pub const OWN_THROTTLE: &str = "suppressed";

/// The buckets.
#[derive(Debug)]
pub(crate) struct Throttled {
    log: Log,
    /// As many as there are places in the program.
    places: Mutex<HashMap<Identifier, Place>>,
}

#[derive(Debug)]
struct Place {
    bucket: Bucket,
    left_out: u64,
}

impl Throttled {
    pub(crate) fn new(log: Log) -> Self {
        Self {
            log,
            places: Mutex::default(),
        }
    }

    /// Whether an event of this place is to be logged, and how many of its like were not logged before it.
    fn admit(&self, place: &'static Metadata<'static>) -> Option<u64> {
        let mut places = lock(&self.places);
        let place = places.entry(place.callsite()).or_insert_with(|| Place {
            bucket: Bucket::new(BURST_BY_PLACE, PERIOD_BY_PLACE),
            left_out: 0,
        });
        if place.bucket.take(Instant::now()) {
            return Some(std::mem::take(&mut place.left_out));
        }
        place.left_out = place.left_out.saturating_add(1);
        None
    }
}

impl<S: Subscriber> Layer<S> for Throttled {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        let place = event.metadata();
        if place.fields().field(OWN_THROTTLE).is_some() {
            return true;
        }
        match self.admit(place) {
            None => false,
            Some(0) => true,
            Some(left_out) => {
                self.log
                    .remark(&format!("{left_out} lines like the next one were left out"));
                true
            }
        }
    }
}
