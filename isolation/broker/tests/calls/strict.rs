//! Shares that must be held (`mode = "strict"`): a container starts where its card's knobs are known to hold its terms, and what is not
//! known is found out before it starts.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use nvabi::{class, control, status};
use serde_json::{Value, json};

use crate::Test;
use crate::fake::{Fake, UUID};
use crate::fixture::until;
use crate::kept::Kept;
use crate::share::{computing_behind, native};

pub(crate) const TESTS: &[Test] = &[
    ("strict::what_is_known_decides", known),
    (
        "strict::the_first_container_of_a_card_finds_out_what_it_holds",
        first,
    ),
    ("strict::what_another_version_held_is_found_out_anew", stale),
    ("strict::knobs_that_are_refused_are_no_gate", refused),
    ("strict::what_cannot_be_found_out_is_not_held", unknown),
    ("strict::an_odd_status_says_nothing_of_the_card", passing),
    (
        "strict::a_driver_that_does_not_answer_holds_nothing",
        silent,
    ),
    ("strict::starts_find_out_one_after_the_other", in_turn),
    ("strict::a_successor_asks_nothing", succeeded),
];

const VERSION: &str = "570.195.03";
const DISABLE: u32 = control::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS;
const SCHEDULE: u32 = control::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE;
const RM_CONTROL: u32 = 0x2a;

fn requests() -> Value {
    json!({"policy": "fixed", "percent": 30, "weight": null, "priority": "normal", "mode": "strict"})
}

fn card_of(state_dir: &Path) -> PathBuf {
    let card = state_dir.join("cards").join(UUID);
    fs::create_dir_all(&card).unwrap();
    card
}

fn write(state_dir: &Path, enforcement_level: &str, version: &str) {
    let record = json!({"version": 1, "driver_version": version, "enforcement_level": enforcement_level, "reason": "it is slow"});
    fs::write(
        card_of(state_dir).join("enforcement.json"),
        record.to_string(),
    )
    .unwrap();
}

fn found(kept: &Kept) -> Value {
    let text = fs::read(card_of(kept.state_dir()).join("enforcement.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn started(prepare: impl FnOnce(&Path, &Fake)) -> Kept {
    Kept::sharing_with(&requests(), prepare)
        .unwrap_or_else(|(reply, log)| panic!("it must start: {reply}: {log}"))
}

/// The log of a broker that must not start.
fn not_started(prepare: impl FnOnce(&Path, &Fake)) -> String {
    let Err((reply, log)) = Kept::sharing_with(&requests(), prepare) else {
        panic!("it must not start");
    };
    assert_eq!(reply, "");
    log
}

fn known() {
    let log = not_started(|state_dir, _| write(state_dir, "slices", VERSION));
    assert!(
        log.contains("needs enforcement level 2")
            && log.contains("has enforcement level 1: it is slow"),
        "{log}"
    );
    let kept = started(|state_dir, _| write(state_dir, "gate", VERSION));
    assert!(kept.fake.controls(DISABLE).is_empty(), "nothing is asked");
    // Nothing is promised to one without terms.
    let mut native = native();
    native["mode"] = json!("strict");
    let kept = Kept::sharing(&native, |_| {}).unwrap_or_else(|(_, log)| panic!("{log}"));
    assert!(kept.fake.seen().is_empty());
}

fn first() {
    let kept = started(|_, _| {});
    let found = found(&kept);
    assert_eq!(found["enforcement_level"], "gate");
    assert_eq!(found["driver_version"], VERSION);
    assert_eq!(found["reason"], Value::Null);
    let fake = &kept.fake;
    assert_eq!(fake.controls(DISABLE).len(), 2, "closed, and opened again");
    assert_eq!((fake.client_count(), fake.held_bytes()), (0, 0));
    assert_eq!(kept.used_bytes(), 0);
    // And the container that comes then is held as any other.
    let (tenant, _process) = computing_behind(&kept);
    until("its gate turns", || fake.controls(DISABLE).len() > 6);
    drop(tenant);
}

fn stale() {
    let kept = started(|state_dir, _| write(state_dir, "slices", "535.261.03"));
    assert_eq!(
        (
            &found(&kept)["enforcement_level"],
            &found(&kept)["driver_version"]
        ),
        (&json!("gate"), &json!(VERSION))
    );
    let log = not_started(|state_dir, fake| {
        write(state_dir, "gate", "535.261.03");
        refuse(fake, &[DISABLE, SCHEDULE], status::NV_ERR_NOT_SUPPORTED);
    });
    assert!(log.contains("has enforcement level 1"), "{log}");
    // What is no record is none.
    let kept = started(|state_dir, _| {
        fs::write(
            card_of(state_dir).join("enforcement.json"),
            "{\"version\": 1, \"enforcement_level\"",
        )
        .unwrap();
    });
    assert_eq!(found(&kept)["enforcement_level"], "gate");
}

fn refuse(fake: &Fake, what: &[u32], status: u32) {
    let mut refused = fake.refused.lock().unwrap();
    refused.extend(what.iter().map(|what| (*what, status)));
}

fn refused() {
    // The weaker gate is one.
    let kept = started(|_, fake| refuse(fake, &[DISABLE], status::NV_ERR_NOT_SUPPORTED));
    assert_eq!(found(&kept)["enforcement_level"], "schedule");
    assert!(
        found(&kept)["reason"]
            .as_str()
            .unwrap()
            .contains("FIFO_DISABLE_CHANNELS")
    );
    assert_eq!(kept.fake.client_count(), 0);
    let log = not_started(|_, fake| {
        refuse(fake, &[DISABLE, SCHEDULE], status::NV_ERR_NOT_SUPPORTED);
    });
    assert!(
        log.contains("needs enforcement level 2")
            && log.contains(
                "has enforcement level 1: the driver refused GPFIFO_SCHEDULE with status 0x56"
            ),
        "{log}"
    );
}

fn passing() {
    // NV_ERR_GENERIC and a status that nobody knows: neither says that there is no such gate.
    for odd in [0xffff, 0x5b] {
        let log = not_started(|_, fake| refuse(fake, &[DISABLE, SCHEDULE], odd));
        assert!(log.contains("could not be found out"), "{log}");
    }
}

fn unknown() {
    for (what, reply) in [
        (
            class::KEPLER_CHANNEL_GROUP_A,
            "KEPLER_CHANNEL_GROUP_A was refused with status 0x51",
        ),
        (class::NV01_ROOT_CLIENT, "was refused with status 0x51"),
    ] {
        let mut folder = PathBuf::new();
        let log = not_started(|state_dir, fake| {
            state_dir.clone_into(&mut folder);
            refuse(fake, &[what], status::NV_ERR_NO_MEMORY);
        });
        assert!(
            log.contains("[compute] mode = \"strict\": policy fixed needs enforcement level 2")
                && log.contains("could not be found out")
                && log.contains(reply),
            "{log}"
        );
    }
    // A card without its node.
    let log = not_started(|state_dir, _| {
        fs::remove_file(state_dir.join("sim/dev/nvidia0")).unwrap();
    });
    assert!(log.contains("opening") && log.contains("nvidia0"), "{log}");
}

fn silent() {
    let log = not_started(|_, fake| fake.hold_back(RM_CONTROL, None));
    assert!(
        log.contains("could not be found out: the driver has not answered within 1500 ms"),
        "{log}"
    );
}

fn in_turn() {
    let lock = |state_dir: &Path| {
        let file = File::create(card_of(state_dir).join("enforcement.lock")).unwrap();
        assert!(sys::lock::try_exclusive(&file).unwrap());
        file
    };
    // One that finds out for ever.
    let mut held = None;
    let log = not_started(|state_dir, _| held = Some(lock(state_dir)));
    assert!(log.contains("another start has been trying them"), "{log}");
    drop(held.take());
    // One that ends: what it has found is taken.
    let kept = started(|state_dir, _| {
        let other = lock(state_dir);
        let state_dir = state_dir.to_owned();
        std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(200));
            write(&state_dir, "gate", VERSION);
            drop(other);
        });
    });
    assert!(kept.fake.controls(DISABLE).is_empty());
    assert_eq!(found(&kept)["reason"], "it is slow");
}

fn succeeded() {
    let kept = started(|_, _| {});
    let requested = || kept.fake.controls(DISABLE).len();
    let before = requested();
    fs::remove_file(card_of(kept.state_dir()).join("enforcement.json")).unwrap();
    let pid = kept.broker_pid().unwrap();
    kept.signal(pid, nix::sys::signal::Signal::SIGKILL);
    until("another broker serves", || {
        kept.broker_pid().is_some_and(|other| other != pid)
            && kept.status()["broker"]["replaced"] == 1
    });
    assert_eq!(requested(), before);
    // The container's own channels are turned by it, and say nothing of the card: the next start asks.
    let (_tenant, _process) = computing_behind(&kept);
    until("the gate turns", || requested() > before + 8);
    assert!(!card_of(kept.state_dir()).join("enforcement.json").exists());
}
