//! Twenty containers on two cards, each taking memory to its quota and giving it back at random for half a minute.
//!
//! While all of them stand still the ledgers are compared with the simulated cards' own account, to the byte; the
//! cards' own highest mark says whether the sum ever passed their memory.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use integration::command::capture;
use integration::packages::Suite;
use integration::rig::{self, Rig};
use integration::skip;
use serde_json::Value;

const CONTAINERS: usize = 20;
/// Ten of these fill a card of 24576 MiB but for 6 MiB.
const QUOTA: &str = "cgpu.io/memory=2457Mi";
const QUOTA_BYTES: u64 = 2457 << 20;
const SECONDS: u64 = 30;
const CHECKS: usize = 3;
/// A machine on which a comparison takes long has the load once more, and once more.
const MOST_ROUNDS: usize = 3;

#[test]
fn twenty_containers_on_two_cards() -> Result<()> {
    let rig = match rig::start(Suite::Host)? {
        Ok(rig) => rig,
        Err(reason) => skip!("twenty_containers_on_two_cards", "{reason}"),
    };
    let ids: Vec<String> = (0..CONTAINERS).map(|number| format!("c{number}")).collect();
    each(&ids, |_, id| {
        rig.hold(id, &[QUOTA])?.success()?;
        Ok(())
    })?;
    let mut checks = 0;
    for _round in 0..MOST_ROUNDS {
        checks += checks_under_load(&rig, &ids)?;
        if checks >= CHECKS {
            break;
        }
    }
    assert!(
        checks >= CHECKS,
        "only {checks} comparisons while memory was held"
    );
    // The load has ended by itself: nothing is held, and the ledgers say the same.
    assert_eq!(rig.node.ledgers()?, BTreeMap::new());
    for card in account(&rig)? {
        assert_eq!(card.used_bytes, 0, "{card:?}");
        assert!(card.peak_bytes <= card.memory_bytes, "{card:?}");
        assert!(
            card.peak_bytes > card.memory_bytes / 2,
            "a load that proves something: {card:?}"
        );
    }
    each(&ids, |_, id| rig.containerd.remove(id))?;
    assert_eq!(rig.node.grants(), Vec::<String>::new());
    rig.finish()
}

/// Lets all load the cards for [`SECONDS`], and compares meanwhile. How often there was something to compare.
fn checks_under_load(rig: &Rig, ids: &[String]) -> Result<usize> {
    let began = Instant::now();
    std::thread::scope(|scope| {
        let churning = scope.spawn(|| each(ids, |number, id| churn(rig, number, id)));
        let mut checks = 0;
        while !churning.is_finished() && began.elapsed() < Duration::from_secs(SECONDS) {
            // Long enough between two checks for the tenants to move on.
            std::thread::sleep(Duration::from_secs(4));
            checks += usize::from(check_standing_still(rig, ids)?);
        }
        match churning.join() {
            Ok(done) => done?,
            Err(_) => bail!("a thread of the test panicked"),
        }
        Ok(checks)
    })
}

/// Runs `work` on all containers at once.
fn each(ids: &[String], work: impl Fn(usize, &str) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ids
            .iter()
            .enumerate()
            .map(|(number, id)| {
                let work = &work;
                scope.spawn(move || work(number, id).with_context(|| format!("container {id}")))
            })
            .collect();
        for thread in threads {
            match thread.join() {
                Ok(done) => done?,
                Err(_) => bail!("a thread of the test panicked"),
            }
        }
        Ok(())
    })
}

fn churn(rig: &Rig, number: usize, id: &str) -> Result<()> {
    let (seed, seconds) = ((number + 1) * 1000, SECONDS);
    let (seed, seconds) = (seed.to_string(), seconds.to_string());
    let mut command = rig.containerd.ctr_command(&[
        "tasks",
        "exec",
        "--exec-id",
        "churn",
        id,
        "cgpu-burn",
        "--json",
        "churn",
        "--seconds",
        &seconds,
        "--processes",
        "3",
        "--seed",
        &seed,
        "--largest",
        "1Gi",
    ])?;
    // Twenty loads share the processors, and stand still for every comparison.
    let limit = Duration::from_secs(SECONDS * 4);
    let reply = capture(&mut command, limit)?.success()?.json()?;
    let number = |key: &str| reply[key].as_u64().unwrap_or_default();
    assert!(
        number("allocations") > 0 && number("refused") > 0,
        "{id} did not reach its quota: {reply}"
    );
    assert!(number("used_peak_bytes") <= QUOTA_BYTES, "{id}: {reply}");
    assert_eq!(
        (number("over_total"), number("used_after_bytes")),
        (0, 0),
        "{id}: {reply}"
    );
    Ok(())
}

#[derive(Debug)]
struct Card {
    uuid: String,
    memory_bytes: u64,
    used_bytes: u64,
    peak_bytes: u64,
    sessions: Vec<(String, u64)>,
}

fn account(rig: &Rig) -> Result<Vec<Card>> {
    let reply = rig.node.sim_account()?;
    let number = |card: &Value, key: &str| {
        card[key]
            .as_u64()
            .with_context(|| format!("no {key} in {card}"))
    };
    reply
        .as_array()
        .with_context(|| format!("no list of cards in {reply}"))?
        .iter()
        .map(|card| {
            Ok(Card {
                uuid: card["uuid"].as_str().context("uuid")?.to_owned(),
                memory_bytes: number(card, "memory_bytes")?,
                used_bytes: number(card, "used_bytes")?,
                peak_bytes: number(card, "peak_bytes")?,
                sessions: serde_json::from_value(card["sessions"].clone())?,
            })
        })
        .collect()
}

/// Pauses every container, compares, and lets them go on. Whether there was something to compare.
fn check_standing_still(rig: &Rig, ids: &[String]) -> Result<bool> {
    each(ids, |_, id| rig.containerd.pause(id))?;
    let compared = compare(rig);
    each(ids, |_, id| {
        rig.containerd.ctr(&["tasks", "resume", id])?.success()?;
        Ok(())
    })?;
    compared
}

fn compare(rig: &Rig) -> Result<bool> {
    // A call that was under way when its caller was frozen is finished by the broker: a moment later both stand still.
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let ledgers = rig.node.ledgers()?;
        let cards = account(rig)?;
        for card in &cards {
            let sum: u64 = card.sessions.iter().map(|(_, held)| held).sum();
            assert!(
                card.used_bytes <= card.memory_bytes && sum == card.used_bytes,
                "{card:?}"
            );
        }
        let held: BTreeMap<(String, String), u64> = cards
            .iter()
            .flat_map(|card| {
                card.sessions
                    .iter()
                    .map(|(session, held)| ((session.clone(), card.uuid.clone()), *held))
            })
            .filter(|(_, held)| *held > 0)
            .collect();
        if held == ledgers {
            return Ok(!held.is_empty());
        }
        if Instant::now() > until {
            bail!(
                "the ledgers differ from the cards' own account:\nledgers  {ledgers:?}\naccount  {held:?}"
            );
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
