//! Brokers that begin and take over, in front of a driver that executes nothing.

mod pace;

use std::fs;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Mutex;

use cards::{ComputeTerms, GpuUuid};
use control::EventKind;
use driver::{
    Binding, Call, Caller, CardIdentity, Driver, Executed, FileId, FileKind, FileRef,
    ImplicitBytes, Ticket,
};
use journal::Journal;
use journal::state::{Numbering, State};
use ledger::Ledger;
use nvabi::Release;
use nvabi::capability::Capabilities;
use plan::{CardRules, Policy};

use super::*;
use crate::share::{Broker, Card, Context};
use crate::terms::Sources;

const UUID: &str = "GPU-0";

struct Nobody;

impl Driver for Nobody {
    fn version(&self) -> &str {
        "570.195.03"
    }

    fn cards(&self) -> &[CardIdentity] {
        &[]
    }

    fn implicit(&self) -> ImplicitBytes {
        ImplicitBytes::default()
    }

    fn classify(&self, _fd: BorrowedFd<'_>) -> Option<FileKind> {
        None
    }

    fn execute(
        &self,
        _file: FileRef<'_>,
        _caller: Caller,
        _ticket: Ticket,
        _call: &mut Call,
    ) -> Result<Executed, driver::Error> {
        unreachable!("there are no files")
    }

    fn binding(&self) -> Binding {
        Binding::None
    }

    fn closed(&self, _file: FileId) -> Result<(), driver::Error> {
        Ok(())
    }
}

#[derive(Default)]
struct Reports(Arc<Mutex<Vec<String>>>);

impl Broker for Reports {
    fn lend(&self, _file: FileId, _call: &mut dyn FnMut(FileRef<'_>)) {}

    fn report(&self, _kind: EventKind, text: String) {
        self.0.lock().unwrap().push(text);
    }
}

/// A state folder, in which one container has brokers.
struct Host {
    folder: tempfile::TempDir,
    reports: Arc<Mutex<Vec<String>>>,
}

impl Host {
    fn new() -> Self {
        let host = Self {
            folder: tempfile::tempdir().unwrap(),
            reports: Arc::default(),
        };
        fs::create_dir_all(host.rules().parent().unwrap()).unwrap();
        host
    }

    fn rules(&self) -> PathBuf {
        let card = self.folder.path().join("cards").join(UUID);
        card.join(cards::rules::FILE_NAME)
    }

    fn write_rules(&self, policy: Policy) {
        let rules = CardRules {
            policy,
            ..CardRules::default()
        };
        fs::write(self.rules(), serde_json::to_string(&rules).unwrap()).unwrap();
    }

    fn broker(&self, requests: ComputeTerms) -> Arc<Share> {
        let state_dir = Some(self.folder.path().to_owned());
        let fresh = || State::new(Ledger::new(&[(CardSlot(0), 1 << 30)]), Numbering::default());
        let journal = Journal::open(Journal::memfd().unwrap(), fresh).unwrap();
        let context = Context {
            name: "n/c".to_owned(),
            cards: vec![Card {
                uuid: UUID.to_owned(),
                minor: 0,
            }],
            release: Release::R570,
            capabilities: Capabilities::default(),
            driver: Arc::new(Nobody),
            journal: Arc::new(journal),
            broker: Box::new(Reports(Arc::clone(&self.reports))),
            copies: Arc::default(),
        };
        let cards = vec![GpuUuid::new(UUID).unwrap()];
        Arc::new(Share::new(
            Sources::new(state_dir, requests, cards),
            context,
        ))
    }

    fn reported(&self) -> usize {
        let reports = self.reports.lock().unwrap();
        reports
            .iter()
            .filter(|text| text.contains("cannot be read"))
            .count()
    }
}

fn percent(percent: u32) -> ComputeTerms {
    ComputeTerms {
        percent: Some(percent),
        ..ComputeTerms::default()
    }
}

fn is_held(share: &Share) -> bool {
    share.lock().mailbox.is_some()
}

#[test]
fn a_strict_share_of_which_nothing_is_known_any_more_is_held_meanwhile() {
    let host = Host::new();
    let strict = ComputeTerms {
        mode: ComputeMode::Strict,
        ..percent(30)
    };
    let share = host.broker(strict);
    let error = share.start(Beginning::TakenOver).unwrap_err();
    assert!(
        matches!(error, Error::NotStrict(NotStrict::Forgotten { .. })),
        "{error}"
    );
    assert!(is_held(&share));
    share.stop();
}

#[test]
fn nobody_begins_under_rules_that_cannot_be_read() {
    let host = Host::new();
    fs::write(host.rules(), "{").unwrap();
    let share = host.broker(ComputeTerms::default());
    let error = share.start(Beginning::First).unwrap_err();
    assert!(matches!(error, Error::Terms(_)), "{error}");
    assert!(!is_held(&share));
}

#[test]
fn a_successor_goes_on_with_what_is_known_until_it_can_read_the_rules() {
    let host = Host::new();
    host.write_rules(Policy::FairShare);
    let first = host.broker(ComputeTerms::default());
    first.start(Beginning::First).unwrap();
    let fair = first.terms(0);
    assert_eq!(fair.policy, Policy::FairShare);
    // Its record says so from the governor's first step on.
    while first.status()[0].is_none() {
        std::thread::yield_now();
    }
    // A broker waits for its governor for a moment only, and then ends with it.
    assert!(first.hand_over_within(std::time::Duration::from_secs(60)));
    fs::write(host.rules(), "{").unwrap();
    let next = host.broker(ComputeTerms::default());
    drop(first);
    next.start(Beginning::TakenOver).unwrap();
    assert_eq!((next.terms(0), is_held(&next)), (fair, true));
    for _ in 0..3 {
        next.sources.followed().failed_long_ago();
        assert!(next.sources.are_due());
        next.reconcile();
    }
    assert_eq!((next.terms(0), host.reported()), (fair, 1));
    host.write_rules(Policy::Weighted);
    next.reconcile();
    assert_eq!(next.terms(0).policy, Policy::Weighted);
    assert!(!next.sources.are_due());
    next.stop();
}

#[test]
fn a_successor_without_a_record_holds_what_the_grant_asks_for() {
    let host = Host::new();
    fs::write(host.rules(), "{").unwrap();
    let share = host.broker(percent(30));
    share.start(Beginning::TakenOver).unwrap();
    assert_eq!(share.terms(0).percent, Some(30));
    assert!(is_held(&share));
    share.stop();
}

/// What is reserved for the container, as a command writes it that is killed before it has told the broker.
fn reserve(host: &Host, compute: &ComputeTerms) {
    reserve_each(host, &[("c", compute)]);
}

fn reserve_each(host: &Host, containers: &[(&str, &ComputeTerms)]) {
    reserve_on(host, UUID, containers);
}

fn reserve_on(host: &Host, uuid: &str, containers: &[(&str, &ComputeTerms)]) {
    let file = cards::reservations::file_of(host.folder.path(), &GpuUuid::new(uuid).unwrap());
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let entries = containers.iter().map(|(id, compute)| {
        serde_json::json!({
            "key": {"namespace": "n", "id": id},
            "quota_bytes": 1,
            "compute": compute,
            "created_at_unix_ms": 0,
        })
    });
    let entries: Vec<_> = entries.collect();
    let reservations = serde_json::json!({"version": 1, "uuid": uuid, "grants": entries});
    let written = file.with_extension("new");
    fs::write(&written, reservations.to_string()).unwrap();
    fs::rename(written, file).unwrap();
}

fn fixed(percent: u32) -> [NewTerms; 1] {
    let terms = plan::Terms {
        policy: Policy::Fixed,
        percent: Some(percent),
        ..plan::Terms::NATIVE
    };
    [NewTerms {
        uuid: UUID.to_owned(),
        terms,
    }]
}

#[test]
fn a_share_follows_its_reservation_though_no_request_came() {
    let host = Host::new();
    host.write_rules(Policy::Native);
    reserve(&host, &percent(30));
    let share = host.broker(percent(30));
    share.start(Beginning::First).unwrap();
    reserve(&host, &percent(40));
    share.set(&fixed(40)).unwrap();
    assert_eq!(share.terms(0).percent, Some(40));
    // The next command is killed between the reservation and the broker.
    reserve(&host, &percent(10));
    share.reconcile();
    assert_eq!(share.terms(0).percent, Some(10));
    let reports = || host.reports.lock().unwrap().clone();
    let changes = [
        format!("card {UUID}: fixed, 30 % -> fixed, 40 %"),
        format!("card {UUID}: fixed, 40 % -> fixed, 10 %"),
    ];
    assert!(
        changes.iter().all(|text| reports().contains(text)),
        "{:?}",
        reports()
    );
    // Where the reservation cannot be read any more, it stays at what was read last, not at what was told last.
    fs::write(host.rules(), "{").unwrap();
    share.read_terms().unwrap_err();
    assert_eq!(share.terms(0).percent, Some(10));
    share.stop();
}

#[test]
fn a_share_that_is_reserved_when_nothing_was_yet_gets_a_governor() {
    let host = Host::new();
    host.write_rules(Policy::Native);
    reserve(&host, &ComputeTerms::default());
    let share = host.broker(ComputeTerms::default());
    share.start(Beginning::First).unwrap();
    assert!(!is_held(&share));
    reserve(&host, &percent(10));
    share.reconcile();
    assert_eq!((share.terms(0).percent, is_held(&share)), (Some(10), true));
    reserve(&host, &ComputeTerms::default());
    share.reconcile();
    assert!(!is_held(&share));
}

#[test]
fn a_native_container_is_held_beside_one_that_has_terms_and_only_there() {
    let host = Host::new();
    host.write_rules(Policy::Native);
    let (native, soft) = (
        ComputeTerms::default(),
        ComputeTerms {
            policy: Some(Policy::Soft),
            ..percent(30)
        },
    );
    let beside = |neighbour| reserve_each(&host, &[("c", &native), ("d", neighbour)]);
    beside(&native);
    let share = host.broker(native.clone());
    share.start(Beginning::First).unwrap();
    assert!(!is_held(&share) && !share.is_governed(CardSlot(0)));
    beside(&soft);
    share.reconcile();
    assert!(is_held(&share) && share.is_governed(CardSlot(0)));
    assert_eq!(share.terms(0), plan::Terms::NATIVE);
    beside(&native);
    share.reconcile();
    assert!(!is_held(&share) && !share.is_governed(CardSlot(0)));
}
