use plan::share_record::{
    CHANNELS_MAX, CLIENTS_MAX, Next, RecoveryChannel, RecoveryClient, SIZE_BYTES,
};
use plan::{
    CardRules, Claim, EnforcementLevel, Gang, GateState, Recovery, RequestedTerms, ShareRecord,
    ShareRecordError, Terms, layout,
};
use proptest::prelude::*;

use crate::any::{fixed, requests};

fn claims() -> impl Strategy<Value = Claim> {
    let terms = requests().prop_filter_map("terms", |requests: RequestedTerms| {
        requests.resolve(&CardRules::default()).ok()
    });
    (
        terms,
        0..=4096_u32,
        proptest::option::of((any::<u64>(), 2..=u32::MAX)),
        proptest::option::of(0..1_000_000_u32),
    )
        .prop_map(|(terms, groups, gang, place_ppm)| Claim {
            terms,
            groups,
            gang: gang.map(|(id, size)| Gang { id, size }),
            place_ppm,
        })
}

fn recoveries() -> impl Strategy<Value = Recovery> {
    let client =
        any::<(u32, u32, u32, u64, u32)>().prop_map(|(client, subdevice, pid, start_time, fd)| {
            RecoveryClient {
                client,
                subdevice,
                pid,
                start_time,
                fd,
            }
        });
    let channel =
        any::<(u32, u32)>().prop_map(|(client, handle)| RecoveryChannel { client, handle });
    (
        any::<(u32, u64)>(),
        proptest::collection::vec(client, 0..=CLIENTS_MAX),
        proptest::collection::vec(channel, 0..=CHANNELS_MAX),
    )
        .prop_map(
            |((init_pid, init_start_time), clients, channels)| Recovery {
                init_pid,
                init_start_time,
                clients,
                channels,
            },
        )
}

fn records() -> impl Strategy<Value = ShareRecord> {
    (
        "[a-z0-9.-]{1,255}",
        any::<(u64, u32, u64, u64)>(),
        (
            proptest::option::of(claims()),
            proptest::option::of((any::<u64>(), claims())),
        ),
        proptest::sample::select(vec![GateState::Open, GateState::Closed, GateState::Unknown]),
        any::<(u64, Option<u64>, Option<u64>, u64, u64, i64)>(),
        proptest::option::of(proptest::sample::select(EnforcementLevel::ALL.to_vec())),
        recoveries(),
    )
        .prop_map(
            |(
                key,
                (generation, pid, start_time, join_ns),
                (now, next),
                gate,
                rest,
                enforcement_level,
                recovery,
            )| {
                let (gate_since_ns, busy_until_ns, used_ns, latency_ns, used_at_ns, bias_ns) = rest;
                ShareRecord {
                    key,
                    generation,
                    pid,
                    start_time,
                    join_ns,
                    now,
                    next: next.map(|(at_ns, claim)| Next { at_ns, claim }),
                    gate,
                    gate_since_ns,
                    busy_until_ns,
                    used_ns,
                    enforcement_level,
                    latency_ns,
                    recovery,
                    used_at_ns,
                    bias_ns,
                }
            },
        )
}

/// Bytes with the checksum that makes them look whole.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum =
        bytes[..SIZE_BYTES - 16]
            .chunks_exact(8)
            .fold(0xcbf2_9ce4_8422_2325_u64, |sum, word| {
                (sum ^ u64::from_le_bytes(word.try_into().expect("eight")))
                    .wrapping_mul(0x0100_0000_01b3)
            });
    bytes[SIZE_BYTES - 16..SIZE_BYTES - 8].copy_from_slice(&sum.to_le_bytes());
    let seq = bytes[16..24].to_vec();
    bytes[SIZE_BYTES - 8..].copy_from_slice(&seq);
    bytes
}

fn small() -> ShareRecord {
    let mut record = ShareRecord::new("default.web", 4711, 99, 5);
    let claim = Claim {
        terms: fixed(30),
        groups: 2,
        gang: None,
        place_ppm: None,
    };
    record
        .announce(0, 1000, claim)
        .expect("nothing was announced");
    record
}

#[test]
fn what_is_no_record_reports_so() {
    let good = small().encode(8).unwrap().to_vec();
    assert_eq!(ShareRecord::decode(&good).unwrap(), (small(), 8));
    assert_eq!(
        ShareRecord::decode(&good[..100]),
        Err(ShareRecordError::Size { bytes: 100 })
    );
    assert_eq!(
        ShareRecord::decode(&[]),
        Err(ShareRecordError::Size { bytes: 0 })
    );
    assert_eq!(
        ShareRecord::decode(&[0; SIZE_BYTES]),
        Err(ShareRecordError::Foreign)
    );
    let mut newer = good.clone();
    newer[8] = 2;
    assert_eq!(
        ShareRecord::decode(&newer),
        Err(ShareRecordError::Version { found: 2 })
    );
    assert_eq!(
        ShareRecord::decode(&newer).unwrap_err().to_string(),
        "a share record of version 2; this cgpu knows version 1"
    );
    // A writer that was caught at work: an odd seq.
    assert_eq!(
        ShareRecord::decode(&small().encode(9).unwrap()[..]),
        Err(ShareRecordError::Torn)
    );
    // Half of one state and half of the next.
    let mut other = small();
    other.used_ns = Some(5);
    let mut torn = other.encode(10).unwrap().to_vec();
    torn[2048..].copy_from_slice(&good[2048..]);
    assert_eq!(ShareRecord::decode(&torn), Err(ShareRecordError::Torn));
}

#[test]
fn what_does_not_fit_is_not_published() {
    let mut record = small();
    record.recovery.channels = vec![RecoveryChannel::default(); CHANNELS_MAX + 1];
    assert_eq!(
        record.encode(2).unwrap_err().to_string(),
        "a share record with channels = 257"
    );
    record.recovery.channels.pop();
    record.recovery.clients = vec![RecoveryClient::default(); CLIENTS_MAX];
    record.key = "k".repeat(255);
    assert_eq!(
        ShareRecord::decode(&record.encode(2).unwrap()[..])
            .unwrap()
            .0,
        record
    );
    record.key.push('k');
    assert!(matches!(
        record.encode(2),
        Err(ShareRecordError::Field {
            field: "key length",
            value: 256
        })
    ));
    record.key.clear();
    assert_eq!(record.encode(2), Err(ShareRecordError::Name));
    let mut record = small();
    record.now = Some(Claim {
        terms: Terms {
            percent: None,
            ..fixed(1)
        },
        groups: 1,
        gang: None,
        place_ppm: None,
    });
    assert!(matches!(record.encode(2), Err(ShareRecordError::Terms(_))));
}

proptest! {
    #[test]
    fn a_record_comes_back_as_it_was(record in records(), seq in any::<u64>()) {
        let seq = seq & !1;
        let bytes = record.encode(seq).unwrap();
        prop_assert_eq!(ShareRecord::decode(&bytes[..]).unwrap(), (record, seq));
    }

    #[test]
    fn one_flipped_bit_is_noticed(record in records(), at in 0..SIZE_BYTES, bit in 0..8_u32) {
        let mut bytes = record.encode(2).unwrap();
        bytes[at] ^= 1 << bit;
        prop_assert!(ShareRecord::decode(&bytes[..]).is_err());
    }

    #[test]
    fn forged_records_are_errors_or_records_that_a_layout_can_live_with(
        record in records(),
        forged in proptest::collection::vec((24..600_usize, any::<u8>()), 1..12),
    ) {
        let mut bytes = record.encode(2).unwrap().to_vec();
        for (at, byte) in forged {
            bytes[at] = byte;
        }
        if let Ok((record, _)) = ShareRecord::decode(&sealed(bytes)) {
            prop_assert!(record.encode(4).is_ok());
            let rules = CardRules::default();
            let tenants = plan::epochs::tenants(&[record, small()], u64::MAX);
            let layout = layout(&rules, &rules.costs, &tenants);
            // The neighbour is still there.
            prop_assert!(layout.share("default.web").unwrap().entitlement_ppm > 0);
        }
    }

    #[test]
    fn any_bytes_are_no_reason_to_fail(bytes in proptest::collection::vec(any::<u8>(), SIZE_BYTES)) {
        prop_assert!(ShareRecord::decode(&bytes).is_err());
        let mut bytes = bytes;
        bytes[..16].copy_from_slice(b"cgpuslot\x01\0\0\0\0\0\0\0");
        bytes[16] &= !1;
        let _record = ShareRecord::decode(&sealed(bytes));
    }
}
