//! A card that has less memory than was reserved of it.

use super::*;
use crate::placement::{Amount, CardName, Choice, Policy, RequestedCards, place};

#[test]
fn a_card_with_less_memory_than_is_reserved_is_in_no_other_cards_way() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cards/GPU-0/reservations.json");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let entry =
        r#"{"key": {"namespace": "a", "id": "b"}, "quota_bytes": 101, "created_at_unix_ms": 0}"#;
    let text = format!(r#"{{"version": 1, "uuid": "GPU-0", "grants": [{entry}]}}"#);
    fs::write(&path, text).unwrap();
    let lock = StateLock::take(dir.path()).unwrap();
    let store = DiskStore;
    let reservations = Reservations::open(&lock, dir.path(), &store);
    let candidates = || {
        let defaults = defaults(ComputePolicy::Native);
        reservations.candidates(&cards(), &defaults).unwrap()
    };
    let requested = |cards: Choice| RequestedCards {
        amount: Amount::Unmeasured,
        cards,
        among: None,
        policy: Policy::Binpack,
    };
    let try_place = |cards| place(&candidates(), &requested(cards), &ComputeTerms::default());
    let placed = try_place(Choice::Count(1)).unwrap();
    assert_eq!(placed[0].card.uuid, uuid(1));
    let named = Choice::Named(vec![CardName::Uuid(uuid(0))]);
    for (refusal, begin) in [
        (try_place(named).unwrap_err(), "card GPU-0 has"),
        (try_place(Choice::Count(2)).unwrap_err(), "a share"),
    ] {
        let text = refusal.to_string();
        for part in [
            begin,
            "has 100 bytes, and 101 bytes are reserved",
            "cgpu set",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    // Its own container can be made smaller, and then there is space again.
    let key = ContainerKey::new("a", "b").unwrap();
    reservations.resize(&key, &cards()[0], 60, None).unwrap();
    assert_eq!(candidates()[0].free_bytes, 40);
    assert_eq!(candidates()[0].overcommitted, None);
}
