use std::fs;

use proptest::prelude::*;

use super::*;
use crate::store::DiskStore;

fn record(uid: &str) -> Record {
    Record {
        version: VERSION,
        claim: ClaimName {
            namespace: "team-a".to_owned(),
            name: "gpu".to_owned(),
            uid: ClaimUid::new(uid).unwrap(),
        },
        node: "n1".to_owned(),
        pods: vec![PodOfClaim {
            uid: "p-1".to_owned(),
            name: "train".to_owned(),
        }],
        requests: BTreeMap::from([(
            "vgpu".to_owned(),
            Given {
                shares: vec![Share {
                    id: "7007bb35".to_owned(),
                    card: GpuUuid::new("GPU-0").unwrap(),
                    device: "gpu-0".to_owned(),
                    memory_bytes: 8 << 30,
                }],
                compute: ComputeTerms {
                    percent: Some(30),
                    ..ComputeTerms::default()
                },
                managed: None,
                share_group: None,
            },
        )]),
    }
}

#[test]
fn a_record_is_read_as_it_was_written_and_gone_when_removed() {
    let dir = tempfile::tempdir().unwrap();
    let claims = Claims::of(dir.path());
    assert!(claims.all().unwrap().is_empty(), "no folder, no claim");
    let lock = StateLock::take(dir.path()).unwrap();
    for uid in ["b-2", "a-1"] {
        claims.write(&lock, &DiskStore, &record(uid)).unwrap();
    }
    // What a crash leaves beside it.
    fs::write(dir.path().join("claims/a-1.json.tmp"), "{").unwrap();
    assert_eq!(claims.all().unwrap(), [record("a-1"), record("b-2")]);
    let uid = ClaimUid::new("a-1").unwrap();
    assert_eq!(claims.read(&uid).unwrap(), Some(record("a-1")));
    for _again in 0..2 {
        claims.remove(&lock, &DiskStore, &uid).unwrap();
        assert_eq!(claims.read(&uid).unwrap(), None);
    }
    assert_eq!(claims.all().unwrap(), [record("b-2")]);
}

#[test]
fn newer_broken_foreign_and_large_records_are_errors_and_stay() {
    let mut foreign = serde_json::to_value(record("other")).unwrap();
    foreign["pods"] = serde_json::json!([]);
    let newer = r#"{"version": 2, "shape": "unknown"}"#.to_owned();
    let large = " ".repeat(1 << 18) + &serde_json::to_string(&record("a-1")).unwrap();
    let cases = [
        (newer, "newer than this cgpu"),
        (r#"{"version": 1, "cla"#.to_owned(), "cannot be read"),
        (foreign.to_string(), "is of claim other"),
        (large, "larger than"),
    ];
    for (text, part) in cases {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("claims/a-1.json");
        fs::create_dir(dir.path().join("claims")).unwrap();
        fs::write(&path, &text).unwrap();
        let error = Claims::of(dir.path()).all().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    // A name that no claim has.
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("claims")).unwrap();
    fs::write(dir.path().join("claims/a b.json"), "{}").unwrap();
    Claims::of(dir.path()).all().unwrap_err();
}

#[test]
fn a_pointer_that_leaves_the_folder_is_none() {
    for text in [
        "", "/", "//", "u", "u/r", "u//s", "/r/s", "u/r/", "../r/s", "u/../s", "u/r/s\n",
        "u/r s/t", "u\0/r/s",
    ] {
        assert!(text.parse::<Pointer>().is_err(), "{text:?}");
    }
    let long = format!("{}/r/s", "u".repeat(65));
    let error = long.parse::<Pointer>().unwrap_err().to_string();
    assert!(
        error.contains("<uid of the claim>/<request>/<share>"),
        "{error}"
    );
    // One of a list of alternatives.
    let pointer: Pointer = "u-1/gpu/large/7007-bb".parse().unwrap();
    assert_eq!(
        (pointer.request.as_str(), pointer.share.as_str()),
        ("gpu/large", "7007-bb")
    );
}

proptest! {
    #[test]
    fn pointers_read_back_from_their_own_text(
        claim in "[a-z0-9-]{1,36}", request in "[a-z0-9]{1,20}(/[a-z0-9-]{1,20})?", share in "[a-z0-9-]{1,36}",
    ) {
        let pointer = Pointer { claim: ClaimUid::new(claim).unwrap(), request, share };
        prop_assert_eq!(pointer.to_string().parse::<Pointer>().unwrap(), pointer);
    }

    #[test]
    fn any_text_is_a_pointer_or_an_error(text in ".{0,300}") {
        if let Ok(pointer) = text.parse::<Pointer>() {
            prop_assert_eq!(pointer.to_string(), text);
        }
    }

    #[test]
    fn each_card_has_the_sum_of_its_shares(of in proptest::collection::vec((0_u32..3, 1_u64..100), 0..20)) {
        let shares: Vec<Share> = of
            .iter()
            .map(|(card, memory_bytes)| Share {
                id: String::new(),
                card: GpuUuid::new(format!("GPU-{card}")).unwrap(),
                device: String::new(),
                memory_bytes: *memory_bytes,
            })
            .collect();
        let parts = by_card(&shares);
        for (card, bytes) in &parts {
            let own = shares.iter().filter(|share| share.card == *card);
            prop_assert_eq!(*bytes, own.map(|share| share.memory_bytes).sum::<u64>());
        }
        let total: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
        prop_assert_eq!(total, of.iter().map(|(_, bytes)| bytes).sum::<u64>());
    }
}
