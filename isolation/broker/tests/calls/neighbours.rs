//! Brokers of one card: when others come, go and change what they count as, and what of a neighbour's slot is believed.

use std::path::Path;
use std::time::{Duration, Instant};

use compute::{FileTable, Table};
use plan::{CardRules, Claim, Idle, Policy, ShareRecord, Terms, epochs};
use serde_json::{Value, json};

use crate::Test;
use crate::fake::UUID;
use crate::fixture::until;
use crate::kept::Kept;
use crate::share::{compute_of, computing_behind, terms};

pub(crate) const TESTS: &[Test] = &[
    (
        "neighbours::who_joins_leaves_or_changes_counts_when_it_said",
        counted,
    ),
    (
        "neighbours::admission_stands_before_what_a_slot_says",
        admitted,
    ),
];

/// A layout is reckoned before it holds, by what a call to the driver takes: on a busy machine, this.
const EARLY_NS: u64 = 20_000_000;

/// Another broker of the card, as its slot shows it.
struct Neighbour {
    table: FileTable,
    record: ShareRecord,
}

impl Neighbour {
    fn take(kept: &Kept) -> Self {
        let slots = kept.share_record();
        let table = FileTable::take(slots.parent().unwrap(), "tests/other").unwrap();
        let record = ShareRecord::new("tests/other", std::process::id(), 1, now_ns());
        Self { table, record }
    }

    /// Says what it counts as; from when on. What it said before holds first, as a broker would wait for it: others take their
    /// share [`EARLY_NS`] before that at most, and so may a test that watches them.
    fn announce(&mut self, rules: &CardRules, terms: Terms) -> u64 {
        if let Some(next) = self.record.next {
            until("what was said before holds", || now_ns() >= next.at_ns);
        }
        let claim = Claim {
            terms,
            groups: 1,
            gang: None,
            place_ppm: None,
        };
        let now_ns = now_ns();
        self.table.refresh().unwrap();
        let mut records = self.table.peers().to_vec();
        records.push(self.record.clone());
        let at_ns = epochs::at_ns(rules, &records, "tests/other", &claim, now_ns);
        self.record.announce(now_ns, at_ns, claim).unwrap();
        self.table.publish(&self.record).unwrap();
        at_ns
    }
}

fn now_ns() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    u64::try_from(Duration::from(now).as_nanos()).unwrap()
}

/// Waits for an entitlement; since when it is there, at the latest.
fn wait_for(kept: &Kept, entitlement_ppm: u64) -> u64 {
    until("it has another share", || {
        compute_of(kept)["entitlement_ppm"] == entitlement_ppm
    });
    now_ns()
}

fn requests(policy: &str, percent: Option<u32>) -> Value {
    json!({"policy": policy, "percent": percent, "weight": null, "priority": "normal"})
}

fn write_json(path: &Path, value: &impl serde::Serialize) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, serde_json::to_vec(value).unwrap()).unwrap();
}

fn counted() {
    let rules = CardRules {
        idle: Idle::Waste,
        ..CardRules::default()
    };
    let kept = Kept::sharing(&requests("weighted", None), |state_dir| {
        let card = state_dir.join("cards").join(UUID);
        write_json(&card.join("rules.json"), &rules);
    });
    let kept = kept.unwrap_or_else(|(reply, log)| panic!("{reply}: {log}"));
    let (_tenant, _process) = computing_behind(&kept);
    wait_for(&kept, 1_000_000);
    let weighted = |weight| Terms {
        weight,
        ..terms(Policy::Weighted, None)
    };
    let mut other = Neighbour::take(&kept);
    let at_ns = other.announce(&rules, weighted(1));
    let window_ns = 62_500_000;
    assert!(at_ns <= now_ns() + 3 * window_ns, "two windows ahead");
    let seen_ns = wait_for(&kept, 500_000);
    assert!(seen_ns + EARLY_NS >= at_ns, "not before it was said");
    let at_ns = other.announce(&rules, weighted(3));
    assert!(at_ns <= now_ns() + 2 * window_ns, "one window ahead");
    let seen_ns = wait_for(&kept, 250_000);
    assert!(seen_ns + EARLY_NS >= at_ns, "not before it was said");
    let began = Instant::now();
    other.table.withdraw().unwrap();
    wait_for(&kept, 1_000_000);
    println!("  alone again after {} ms", began.elapsed().as_millis());
    // One that is killed leaves its slot without an owner.
    let mut other = Neighbour::take(&kept);
    other.announce(&rules, weighted(1));
    wait_for(&kept, 500_000);
    drop(other);
    wait_for(&kept, 1_000_000);
}

fn admitted() {
    let entry = |id: &str, percent: u32| {
        json!({
            "key": {"namespace": "tests", "id": id},
            "quota_bytes": 1,
            "compute": requests("fixed", Some(percent)),
            "created_at_unix_ms": 1,
        })
    };
    let write = |state_dir: &Path, others: u32| {
        let file = state_dir.join("cards").join(UUID).join("reservations.json");
        let entries = [entry("kept", 30), entry("other", others)];
        write_json(
            &file.with_extension("new"),
            &json!({"version": 1, "uuid": UUID, "grants": entries}),
        );
        std::fs::rename(file.with_extension("new"), &file).unwrap();
    };
    let kept = Kept::sharing(&requests("fixed", Some(30)), |state_dir| {
        write(state_dir, 20)
    });
    let kept = kept.unwrap_or_else(|(reply, log)| panic!("{reply}: {log}"));
    let (_tenant, _process) = computing_behind(&kept);
    wait_for(&kept, 300_000);
    let rules = CardRules::default();
    let fixed = |percent| terms(Policy::Fixed, Some(percent));
    // What it says is more than there is, so everyone would have less; what it was granted is not.
    let mut other = Neighbour::take(&kept);
    let at_ns = other.announce(&rules, fixed(90));
    until("it counts", || compute_of(&kept)["tenants"] == 2);
    assert!(now_ns() + EARLY_NS >= at_ns);
    assert_eq!(compute_of(&kept)["entitlement_ppm"], 300_000);
    // Granted more than there is, which no admission does: then it shows.
    write(kept.state_dir(), 90);
    until("it is believed", || {
        compute_of(&kept)["entitlement_ppm"].as_u64() < Some(300_000)
    });
}
