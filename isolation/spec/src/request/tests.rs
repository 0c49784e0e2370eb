//! The two dialects, alone and together.

use std::path::Path;

use cards::grant::Priority;
use cards::placement::{Candidate, MIB, Policy, Refusal, Share, Slice};
use cards::{Card, CardKind, CardRules, GpuUuid, ReservedTime};
use serde_json::json;

use host_config::config::{Authority, KubernetesConfig};

use super::*;

fn read(annotations: &[(&str, &str)], environment: &[&str]) -> Result<Option<Request>, String> {
    read_with(&Config::default(), annotations, environment)
}

fn read_with(
    config: &Config,
    annotations: &[(&str, &str)],
    environment: &[&str],
) -> Result<Option<Request>, String> {
    let annotations: serde_json::Map<String, Value> = annotations
        .iter()
        .map(|(key, value)| ((*key).to_owned(), json!(value)))
        .collect();
    let spec = json!({
        "ociVersion": "1.0.2",
        "annotations": annotations,
        "process": {"env": environment},
        "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]},
    });
    Request::from_spec(config, Whose::default(), &spec).map_err(|error| host_config::chain(&error))
}

/// A container without terms for compute time.
fn place(candidates: &[Candidate], request: &RequestedCards) -> Result<Vec<Slice>, Refusal> {
    cards::placement::place(candidates, request, &ComputeTerms::default())
}

fn candidate(index: u32, memory_mib: u64) -> Candidate {
    let card = Card {
        uuid: GpuUuid::new(format!("GPU-{index}")).unwrap(),
        name: "card".to_owned(),
        memory_bytes: memory_mib * MIB,
        minor: index,
        index,
        pci: String::new(),
        modes: cards::Modes::default(),
    };
    Candidate {
        free_bytes: card.memory_bytes,
        card,
        reserved: ReservedTime::nothing(CardRules::default(), CardKind::Simulated),
        unhealthy: None,
        overcommitted: None,
    }
}

fn quota_mib(request: &Request, memory_mib: u64) -> u64 {
    let slices: Vec<Slice> = place(
        &[candidate(0, memory_mib), candidate(1, memory_mib)],
        &request.request,
    )
    .unwrap();
    slices[0].quota_bytes / MIB
}

#[test]
fn a_container_that_reports_nothing_of_ours_asks_for_nothing() {
    for environment in [
        &["PATH=/bin"][..],
        &["NVIDIA_VISIBLE_DEVICES=all"],
        &["NVIDIA_VISIBLE_DEVICES=0,1", "ALIYUN_COM_GPU_MEM_DEV=24"],
        &["ALIYUN_COM_GPU_HIGH_PRIO=perhaps", "CGPU_DISABLE=perhaps"],
    ] {
        assert_eq!(
            read(&[("some.org/memory", "4Gi")], environment),
            Ok(None),
            "{environment:?}"
        );
    }
    assert_eq!(
        Request::from_spec(&Config::default(), Whose::default(), &json!({})).unwrap(),
        None
    );
    assert_eq!(
        Request::from_spec(
            &Config::default(),
            Whose::default(),
            &json!({"process": null, "annotations": null})
        )
        .unwrap(),
        None
    );
}

#[test]
fn the_vendor_s_printed_samples_hold() {
    for (physical_mib, device, container, visible_mib) in [
        (15079, 14, 3, 3231),
        (16130, 15, 3, 3226),
        (16130, 15, 2, 2150),
        (16130, 15, 4, 4301),
        (16160, 15, 4, 4309),
        (23028, 22, 8, 8373),
    ] {
        let environment = [
            format!("ALIYUN_COM_GPU_MEM_CONTAINER={container}"),
            format!("ALIYUN_COM_GPU_MEM_DEV={device}"),
        ];
        let environment: Vec<&str> = environment.iter().map(String::as_str).collect();
        let request = read(&[], &environment).unwrap().unwrap();
        assert_eq!(
            quota_mib(&request, physical_mib),
            visible_mib,
            "{physical_mib} {device} {container}"
        );
        // The row with CGPU_DISABLE: the whole card, that is, no vGPU.
        let disabled: Vec<&str> = environment
            .iter()
            .copied()
            .chain(["CGPU_DISABLE=true"])
            .collect();
        assert_eq!(read(&[], &disabled), Ok(None));
    }
}

#[test]
fn annotations_ask_in_full() {
    let request = read(
        &[
            ("cgpu.io/memory", "8Gi"),
            ("cgpu.io/cards", "2"),
            ("cgpu.io/compute", "30%"),
            ("cgpu.io/weight", "7"),
            ("cgpu.io/policy", "4"),
            ("cgpu.io/priority", "high"),
            ("cgpu.io/placement", "spread"),
        ],
        &[],
    )
    .unwrap()
    .unwrap();
    assert_eq!(
        request.request,
        RequestedCards {
            amount: Amount::TotalBytes(8 << 30),
            cards: Choice::Count(2),
            among: None,
            policy: Policy::Spread
        }
    );
    assert_eq!(
        request.compute,
        ComputeTerms {
            policy: Some(ComputePolicy::Soft),
            percent: Some(30),
            weight: Some(7),
            priority: Priority::High,
            ..ComputeTerms::default()
        }
    );
    assert_eq!(quota_mib(&request, 24 << 10), 4 << 10);
}

#[test]
fn low_priority_and_the_host_s_mode_come_with_the_terms() {
    let config = strict("[compute]\nmode = \"strict\"\nfail = \"closed\"");
    let requested = [("cgpu.io/memory", "1Gi"), ("cgpu.io/priority", "low")];
    let compute = read_with(&config, &requested, &[])
        .unwrap()
        .unwrap()
        .compute;
    assert_eq!(
        compute,
        ComputeTerms {
            priority: Priority::Low,
            mode: cards::ComputeMode::Strict,
            fail: cards::OnShareLost::Closed,
            ..ComputeTerms::default()
        }
    );
}

#[test]
fn cards_are_a_number_or_a_list() {
    let cards = |value| {
        read(&[("cgpu.io/memory", "4Gi"), ("cgpu.io/cards", value)], &[])
            .map(|request| request.unwrap().request.cards)
    };
    assert_eq!(cards("3"), Ok(Choice::Count(3)));
    assert_eq!(cards("1,"), Ok(Choice::Named(vec![CardName::Index(1)])));
    assert_eq!(
        cards("0, 1"),
        Ok(Choice::Named(vec![CardName::Index(0), CardName::Index(1)]))
    );
    assert_eq!(
        cards("GPU-0"),
        Ok(Choice::Named(vec![CardName::Uuid(
            GpuUuid::new("GPU-0").unwrap()
        )]))
    );
    for value in [
        "0",
        "-1",
        "+1",
        "",
        ",",
        "two",
        "1.5",
        "99999999999",
        "GPU-0,x/y",
    ] {
        let error = cards(value).unwrap_err();
        assert!(
            error.contains("cgpu.io/cards") && error.contains("at least 1"),
            "{value:?}: {error}"
        );
    }
}

#[test]
fn bad_values_name_key_value_and_what_is_allowed() {
    for (key, value, allowed) in [
        ("cgpu.io/memory", "0Gi", "at least 1Mi"),
        ("cgpu.io/memory", "-1Gi", "a number with a unit"),
        ("cgpu.io/memory", "4096", "Mi Gi Ti"),
        ("cgpu.io/compute", "0", "1 to 100"),
        ("cgpu.io/compute", "101", "1 to 100"),
        ("cgpu.io/weight", "0", "1 to 1000"),
        ("cgpu.io/policy", "6", "0 or fair-share"),
        (
            "cgpu.io/policy",
            "fixed",
            "policy fixed needs cgpu.io/compute",
        ),
        ("cgpu.io/compute", "half", "1 to 100"),
        ("cgpu.io/compute", "12.5%", "1 to 100"),
        ("cgpu.io/compute", "-1", "1 to 100"),
        ("cgpu.io/weight", "1001", "1 to 1000"),
        ("cgpu.io/weight", "many", "1 to 1000"),
        ("cgpu.io/policy", "greedy", "5 or native"),
        ("cgpu.io/priority", "highest", "high, normal, low"),
        ("cgpu.io/placement", "random", "binpack, spread"),
    ] {
        let error = read(&[(key, value)], &[]).unwrap_err();
        for part in [key, value, allowed] {
            assert!(error.contains(part), "{key}={value}: {error}");
        }
    }
    let error = read(&[("cgpu.io/memory", "4Gi"), ("cgpu.io/memroy", "4Gi")], &[]).unwrap_err();
    assert!(
        error.contains("cgpu.io/memroy") && error.contains("cgpu.io/memory, cgpu.io/cards"),
        "{error}"
    );
    let error = read(&[("cgpu.io/cards", "2")], &[]).unwrap_err();
    assert!(error.contains("cgpu.io/memory"), "{error}");
}

#[test]
fn bad_environment_is_refused_where_it_asks() {
    for (environment, parts) in [
        (
            &["ALIYUN_COM_GPU_MEM_CONTAINER=4"][..],
            &[
                "ALIYUN_COM_GPU_MEM_DEV is missing",
                "CONTAINER = \"4\"",
                "for example 24",
            ][..],
        ),
        (
            &["ALIYUN_COM_GPU_MEM_CONTAINER=4", "ALIYUN_COM_GPU_MEM_DEV="],
            &["ALIYUN_COM_GPU_MEM_DEV is missing", "for example 24"],
        ),
        (
            &[
                "ALIYUN_COM_GPU_MEM_CONTAINER=0",
                "ALIYUN_COM_GPU_MEM_DEV=24",
            ],
            &["ALIYUN_COM_GPU_MEM_CONTAINER", "\"0\""],
        ),
        (
            &[
                "ALIYUN_COM_GPU_MEM_CONTAINER=4Gi",
                "ALIYUN_COM_GPU_MEM_DEV=24",
            ],
            &["4Gi"],
        ),
        (
            &[
                "ALIYUN_COM_GPU_MEM_CONTAINER=25",
                "ALIYUN_COM_GPU_MEM_DEV=24",
            ],
            &["at most", "24"],
        ),
        (
            &["ALIYUN_COM_GPU_MEM_CONTAINER=4", "ALIYUN_COM_GPU_MEM_DEV=0"],
            &["ALIYUN_COM_GPU_MEM_DEV"],
        ),
        (
            &[
                "ALIYUN_COM_GPU_MEM_CONTAINER=4",
                "ALIYUN_COM_GPU_MEM_CONTAINER=8",
                "ALIYUN_COM_GPU_MEM_DEV=24",
            ],
            &["4 and 8", "one value"],
        ),
        (
            &[
                "ALIYUN_COM_GPU_MEM_CONTAINER=4",
                "ALIYUN_COM_GPU_MEM_DEV=24",
                "CGPU_DISABLE=perhaps",
            ],
            &["CGPU_DISABLE", "perhaps"],
        ),
        (
            &[
                "ALIYUN_COM_GPU_MEM_CONTAINER=4",
                "ALIYUN_COM_GPU_MEM_DEV=24",
                "NVIDIA_VISIBLE_DEVICES=no-gpu-has-4GiB-to-run",
            ],
            &["no-gpu-has-4GiB-to-run"],
        ),
        (
            &[
                "ALIYUN_COM_GPU_MEM_CONTAINER=4",
                "ALIYUN_COM_GPU_MEM_DEV=24",
                "ALIYUN_COM_GPU_MEM_IDX=-1",
            ],
            &["ALIYUN_COM_GPU_MEM_IDX=-1"],
        ),
        (
            &[
                "ALIYUN_COM_GPU_MEM_CONTAINER=4",
                "ALIYUN_COM_GPU_MEM_DEV=24",
                "NVIDIA_VISIBLE_DEVICES=none",
            ],
            &["NVIDIA_VISIBLE_DEVICES=none"],
        ),
        (
            &[
                "ALIYUN_COM_GPU_MEM_CONTAINER=4",
                "ALIYUN_COM_GPU_MEM_DEV=24",
                "ALIYUN_COM_GPU_VISIBLE_DEVICES=2",
                "NVIDIA_VISIBLE_DEVICES=0,1,2",
            ],
            &["mixed mode"],
        ),
    ] {
        let error = read(&[], environment).unwrap_err();
        for part in parts {
            assert!(error.contains(part), "{environment:?}: {error}");
        }
    }
}

#[test]
fn the_environment_names_cards_in_all_three_ways() {
    let base = [
        "ALIYUN_COM_GPU_MEM_CONTAINER=4",
        "ALIYUN_COM_GPU_MEM_DEV=24",
    ];
    for (extra, cards) in [
        (&[][..], Choice::Count(1)),
        (&["NVIDIA_VISIBLE_DEVICES=all"], Choice::Count(1)),
        (&["NVIDIA_VISIBLE_DEVICES=void"], Choice::Count(1)),
        (
            &["NVIDIA_VISIBLE_DEVICES=1"],
            Choice::Named(vec![CardName::Index(1)]),
        ),
        (
            &["NVIDIA_VISIBLE_DEVICES=GPU-1"],
            Choice::Named(vec![CardName::Uuid(GpuUuid::new("GPU-1").unwrap())]),
        ),
        (
            &["ALIYUN_COM_GPU_MEM_IDX=1"],
            Choice::Named(vec![CardName::Index(1)]),
        ),
        (
            &[
                "ALIYUN_COM_GPU_VISIBLE_DEVICES=0,1",
                "NVIDIA_VISIBLE_DEVICES=all",
            ],
            Choice::Named(vec![CardName::Index(0), CardName::Index(1)]),
        ),
    ] {
        let environment: Vec<&str> = base.iter().chain(extra).copied().collect();
        assert_eq!(
            read(&[], &environment).unwrap().unwrap().request.cards,
            cards,
            "{extra:?}"
        );
    }
}

#[test]
fn a_weight_above_one_switches_to_weights_and_high_priority_is_read() {
    let base = [
        "ALIYUN_COM_GPU_MEM_CONTAINER=4",
        "ALIYUN_COM_GPU_MEM_DEV=24",
        "ALIYUN_COM_GPU_SCHD_WEIGHT=5",
        "ALIYUN_COM_GPU_HIGH_PRIO=1",
    ];
    let compute = read(&[], &base).unwrap().unwrap().compute;
    assert_eq!(
        compute,
        ComputeTerms {
            policy: Some(ComputePolicy::Weighted),
            percent: None,
            weight: Some(5),
            priority: Priority::High,
            ..ComputeTerms::default()
        }
    );
}

#[test]
fn a_weight_of_one_in_the_environment_follows_the_card() {
    let base = [
        "ALIYUN_COM_GPU_MEM_CONTAINER=4",
        "ALIYUN_COM_GPU_MEM_DEV=24",
        "ALIYUN_COM_GPU_SCHD_WEIGHT=1",
        "ALIYUN_COM_GPU_HIGH_PRIO=false",
    ];
    let compute = read(&[], &base).unwrap().unwrap().compute;
    assert_eq!(compute, ComputeTerms::default());
    for (variable, parts) in [
        ("ALIYUN_COM_GPU_SCHD_WEIGHT=0", ["SCHD_WEIGHT", "1 to 1000"]),
        ("ALIYUN_COM_GPU_SCHD_WEIGHT=1001", ["1001", "1 to 1000"]),
        ("ALIYUN_COM_GPU_SCHD_WEIGHT=x", ["\"x\"", "1 to 1000"]),
        ("ALIYUN_COM_GPU_HIGH_PRIO=2", ["HIGH_PRIO", "true or 1"]),
    ] {
        let environment = [base[0], base[1], variable];
        let error = read(&[], &environment).unwrap_err();
        for part in parts {
            assert!(error.contains(part), "{variable}: {error}");
        }
    }
}

#[test]
fn the_environment_narrows_what_annotations_ask_and_never_widens_it() {
    let requested = |environment: &[&str]| {
        read(
            &[("cgpu.io/memory", "8Gi"), ("cgpu.io/weight", "3")],
            environment,
        )
    };
    // Less memory, a list of cards to choose from, a lower weight: taken.
    let request = requested(&[
        "ALIYUN_COM_GPU_MEM_CONTAINER=4",
        "ALIYUN_COM_GPU_MEM_DEV=24",
        "NVIDIA_VISIBLE_DEVICES=1",
        "ALIYUN_COM_GPU_SCHD_WEIGHT=2",
    ])
    .unwrap()
    .unwrap();
    assert_eq!(quota_mib(&request, 24 << 10), 4 << 10);
    assert_eq!(
        place(
            &[candidate(0, 24 << 10), candidate(1, 24 << 10)],
            &request.request
        )
        .unwrap()[0]
            .card
            .index,
        1
    );
    assert_eq!(request.compute.weight, Some(2));
    // Preferences that would widen: no effect.
    let request = requested(&[
        "ALIYUN_COM_GPU_SCHD_WEIGHT=9",
        "ALIYUN_COM_GPU_HIGH_PRIO=1",
        "NVIDIA_VISIBLE_DEVICES=all",
    ])
    .unwrap()
    .unwrap();
    assert_eq!(
        (
            request.compute.weight,
            request.compute.priority,
            request.request.among
        ),
        (Some(3), Priority::Normal, None)
    );
    // More memory: the request is refused where the card's size is known.
    let request = requested(&[
        "ALIYUN_COM_GPU_MEM_CONTAINER=16",
        "ALIYUN_COM_GPU_MEM_DEV=24",
    ])
    .unwrap()
    .unwrap();
    assert_eq!(
        request.request.amount,
        Amount::AtMost {
            total_bytes: 8 << 30,
            share: Share {
                container: 16,
                device: 24
            }
        }
    );
    let refusal = place(&[candidate(0, 24 << 10)], &request.request)
        .unwrap_err()
        .to_string();
    assert!(refusal.contains("contradict"), "{refusal}");
    // The same amount in cGPU's rounding (4/23 of a 24 564 MiB card is 4 272 MiB): no contradiction, the annotation holds.
    let request = read(
        &[("cgpu.io/memory", "4Gi")],
        &[
            "ALIYUN_COM_GPU_MEM_CONTAINER=4",
            "ALIYUN_COM_GPU_MEM_DEV=23",
        ],
    )
    .unwrap()
    .unwrap();
    assert_eq!(quota_mib(&request, 24_564), 4096);
}

#[test]
fn contradictions_are_refused() {
    let error = read(&[("cgpu.io/memory", "8Gi")], &["CGPU_DISABLE=1"]).unwrap_err();
    assert!(
        error.contains("CGPU_DISABLE = true")
            && error.contains("cgpu.io/")
            && error.contains("leave out"),
        "{error}"
    );
    let error = read(
        &[("cgpu.io/memory", "8Gi"), ("cgpu.io/cards", "0,1")],
        &["NVIDIA_VISIBLE_DEVICES=1"],
    )
    .unwrap_err();
    assert!(error.contains("card 0"), "{error}");
    let error = read(
        &[("cgpu.io/memory", "8Gi")],
        &["NVIDIA_VISIBLE_DEVICES=none"],
    )
    .unwrap_err();
    assert!(
        error.contains("NVIDIA_VISIBLE_DEVICES=none") && error.contains("name cards, all or void"),
        "{error}"
    );
}

#[test]
fn the_administrator_can_deny_the_environment_a_report() {
    let strict = Config::from_text(
        Path::new("t"),
        "[request]\nenvironment = \"tighten_only\"\ncgpu_disable = \"refuse\"",
    )
    .unwrap();
    let environment = [
        "ALIYUN_COM_GPU_MEM_CONTAINER=4",
        "ALIYUN_COM_GPU_MEM_DEV=24",
    ];
    assert_eq!(read_with(&strict, &[], &environment), Ok(None));
    read_with(&strict, &[("cgpu.io/cards", "1")], &environment).unwrap_err();
    let refusing =
        Config::from_text(Path::new("t"), "[request]\ncgpu_disable = \"refuse\"").unwrap();
    let disabled = [
        "ALIYUN_COM_GPU_MEM_CONTAINER=4",
        "ALIYUN_COM_GPU_MEM_DEV=24",
        "CGPU_DISABLE=1",
    ];
    assert!(
        read_with(&refusing, &[], &disabled)
            .unwrap_err()
            .contains("CGPU_DISABLE")
    );
}

#[test]
fn specs_of_the_wrong_shape_are_errors() {
    for spec in [
        json!([]),
        json!("x"),
        json!({"annotations": []}),
        json!({"annotations": {"cgpu.io/memory": 4}}),
        json!({"process": 1}),
        json!({"process": {"env": {}}}),
        json!({"process": {"env": [1]}}),
    ] {
        assert!(
            Request::from_spec(&Config::default(), Whose::default(), &spec).is_err(),
            "{spec}"
        );
    }
}

#[test]
fn options_of_the_command_line_use_the_same_grammar() {
    let request = Request::from_terms(
        &Config::default(),
        [("cgpu.io/memory", "4Gi"), ("cgpu.io/cards", "2")],
    )
    .unwrap();
    assert_eq!(
        (request.request.amount, request.request.cards),
        (Amount::TotalBytes(4 << 30), Choice::Count(2))
    );
    assert!(matches!(
        Request::from_terms(&Config::default(), []),
        Err(Error::Terms(terms::Error::NoMemoryTerm))
    ));
}

fn strict(text: &str) -> Config {
    Config::from_text(Path::new("cgpu.toml"), text).unwrap()
}

#[test]
fn isolation_follows_the_configuration_and_annotations_only_tighten_it() {
    use cards::{IoUring, ManagedMemory, Mode, OnViolation};
    let memory = ("cgpu.io/memory", "4Gi");
    let config = strict("[isolation]\nmode = \"compat\"\nio_uring = \"deny\"\nmanaged = \"allow\"");
    let isolation = |config: &Config, annotations: &[(&str, &str)]| {
        read_with(config, annotations, &[]).map(|request| request.unwrap().isolation)
    };
    let configured = isolation(&config, &[memory]).unwrap();
    assert_eq!(
        configured,
        Isolation {
            mode: Mode::Compat,
            managed: ManagedMemory::Allow,
            io_uring: IoUring::Deny,
            ..Isolation::default()
        }
    );
    for (configured, requested, outcome) in [
        ("allow", "allow", Some(ManagedMemory::Allow)),
        ("allow", "charge", Some(ManagedMemory::Charge)),
        ("allow", "deny", Some(ManagedMemory::Deny)),
        ("charge", "allow", None),
        ("charge", "deny", Some(ManagedMemory::Deny)),
        ("deny", "charge", None),
        ("deny", "deny", Some(ManagedMemory::Deny)),
    ] {
        let config = strict(&format!("[isolation]\nmanaged = \"{configured}\""));
        match (
            isolation(&config, &[memory, ("cgpu.io/managed", requested)]),
            outcome,
        ) {
            (Ok(isolation), Some(managed)) => assert_eq!(isolation.managed, managed),
            (Err(error), None) => {
                for part in [
                    "cgpu.io/managed",
                    requested,
                    "[isolation] managed",
                    configured,
                ] {
                    assert!(error.contains(part), "{error:?} lacks {part:?}");
                }
                assert!(
                    !error.contains(&format!("allowed are {requested}")),
                    "{error:?}"
                );
            }
            other => panic!("{configured} {requested}: {other:?}"),
        }
    }
    let kill = strict("[isolation]\non_violation = \"kill\"");
    let requested = [memory, ("cgpu.io/on-violation", "log")];
    let error = isolation(&kill, &requested).unwrap_err();
    assert!(error.contains("on_violation = \"kill\""), "{error}");
    let requested = [memory, ("cgpu.io/on-violation", "kill")];
    assert_eq!(
        isolation(&Config::default(), &requested)
            .unwrap()
            .on_violation,
        OnViolation::Kill
    );
    // The environment has no say, and neither has an annotation that is cgpu's own to write.
    let environment = [
        "ALIYUN_COM_GPU_MEM_CONTAINER=1",
        "ALIYUN_COM_GPU_MEM_DEV=4",
        "CGPU_MANAGED=allow",
    ];
    let requested = read_with(&kill, &[], &environment).unwrap().unwrap();
    assert_eq!(requested.isolation.on_violation, OnViolation::Kill);
    for (key, value, part) in [
        ("cgpu.io/managed", "maybe", "charge, deny, allow"),
        ("cgpu.io/on-violation", "warn", "log, kill"),
        (
            "cgpu.io/isolation",
            "on",
            "unknown annotation cgpu.io/isolation",
        ),
        ("cgpu.io/mode", "compat", "unknown annotation cgpu.io/mode"),
    ] {
        let error = isolation(&Config::default(), &[memory, (key, value)]).unwrap_err();
        assert!(error.contains(part) && error.contains(key), "{error:?}");
    }
}

#[test]
fn a_share_group_is_of_one_namespace_and_comes_from_annotations_alone() {
    let key = |namespace: &str| ContainerKey::new(namespace, "c1").unwrap();
    let requested = |annotations: &[(&str, &str)], environment: &[&str]| {
        let memory = ("cgpu.io/memory", "4Gi");
        let all = [&[memory], annotations].concat();
        read(&all, environment).map(Option::unwrap)
    };
    let group = requested(&[("cgpu.io/share-group", "train-1")], &[]).unwrap();
    assert_eq!(
        group.isolation_for(&key("moby")).share_group.as_deref(),
        Some("moby/train-1")
    );
    // Pods of all tenants are in one namespace of the engine.
    for of_pod in [
        &[("io.kubernetes.cri.sandbox-namespace", "team-a")][..],
        &[
            ("io.kubernetes.cri-o.SandboxID", "5a4d"),
            ("io.kubernetes.pod.namespace", "team-a"),
        ],
    ] {
        let pod = requested(
            &[&[("cgpu.io/share-group", "train-1")], of_pod].concat(),
            &[],
        )
        .unwrap();
        assert_eq!(
            pod.isolation_for(&key("k8s.io")).share_group.as_deref(),
            Some("k8s.io/team-a/train-1")
        );
    }
    let none = requested(
        &[],
        &["CGPU_SHARE_GROUP=train-1", "cgpu.io/share-group=train-1"],
    )
    .unwrap();
    assert_eq!(none.isolation_for(&key("moby")).share_group, None);
    let longest = "a".repeat(63);
    requested(&[("cgpu.io/share-group", &longest)], &[]).unwrap();
    for name in [
        "",
        "-a",
        "a-",
        "A",
        "a_b",
        "a/b",
        "a.b",
        "ü",
        &"a".repeat(64),
    ] {
        let error = requested(&[("cgpu.io/share-group", name)], &[]).unwrap_err();
        for part in ["cgpu.io/share-group", name, "1 to 63"] {
            assert!(error.contains(part), "{error:?} lacks {part:?}");
        }
    }
}

#[test]
fn a_quota_beside_what_leads_out_of_it_is_refused_and_nothing_else_is() {
    let privileged = |annotations: Value| {
        json!({
            "annotations": annotations,
            "process": {"env": [], "capabilities": {"bounding": ["CAP_SYS_ADMIN"]}},
            "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]},
        })
    };
    let asks = privileged(json!({"cgpu.io/memory": "4Gi"}));
    let error = Request::from_spec(&Config::default(), Whose::default(), &asks)
        .unwrap_err()
        .to_string();
    assert!(error.contains("CAP_SYS_ADMIN"), "{error}");
    let allows = strict("[isolation]\nallow = [\"cap-sys-admin\"]");
    let request = Request::from_spec(&allows, Whose::default(), &asks)
        .unwrap()
        .unwrap();
    assert_eq!(request.isolation.summary(), "off (cap-sys-admin)");
    // Without a request there is no quota to lead out of.
    for none in [
        privileged(json!({})),
        privileged(json!({"io.kubernetes.cri.container-type": "sandbox"})),
    ] {
        assert_eq!(
            Request::from_spec(&Config::default(), Whose::default(), &none).unwrap(),
            None
        );
    }
}

#[test]
fn policy_native_without_memory_asks_to_share_and_nothing_else_does() {
    let native = |terms: &[(&str, &str)]| {
        Request::from_terms(&Config::default(), terms.iter().copied())
            .map(|request| request.request.amount)
    };
    for policy in ["native", "5"] {
        assert_eq!(
            native(&[("cgpu.io/policy", policy)]).unwrap(),
            Amount::Unmeasured
        );
    }
    assert_eq!(
        native(&[("cgpu.io/policy", "native"), ("cgpu.io/memory", "1Gi")]).unwrap(),
        Amount::TotalBytes(1 << 30)
    );
    for other in [
        ("cgpu.io/policy", "soft"),
        ("cgpu.io/cards", "1"),
        ("cgpu.io/weight", "2"),
    ] {
        assert!(
            matches!(
                native(&[other]),
                Err(Error::Terms(terms::Error::NoMemoryTerm))
            ),
            "{other:?}"
        );
    }
}

#[test]
fn the_environment_narrows_a_request_to_share_to_a_quota() {
    for rule in [EnvironmentRule::Request, EnvironmentRule::TightenOnly] {
        let mut config = Config::default();
        config.request.environment = rule;
        let spec = serde_json::json!({
            "annotations": {"cgpu.io/policy": "native"},
            "process": {"env": ["ALIYUN_COM_GPU_MEM_CONTAINER=1", "ALIYUN_COM_GPU_MEM_DEV=4"]},
            "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]},
        });
        let request = Request::from_spec(&config, Whose::default(), &spec)
            .unwrap()
            .unwrap();
        assert!(
            matches!(request.request.amount, Amount::Share(_)),
            "{rule:?}"
        );
    }
}

#[test]
fn a_part_of_each_card_is_a_request_that_the_environment_narrows() {
    let requested = |environment: &[&str]| read(&[("cgpu.io/memory", "25%")], environment);
    let own = requested(&[]).unwrap().unwrap();
    // Of cards of any size.
    assert_eq!(quota_mib(&own, 24 << 10), 6 << 10);
    assert_eq!(quota_mib(&own, 80 << 10), 20 << 10);
    let candidates = [candidate(0, 24 << 10), candidate(1, 80 << 10)];
    let both = read(&[("cgpu.io/memory", "25%"), ("cgpu.io/cards", "2")], &[]);
    let slices = place(&candidates, &both.unwrap().unwrap().request).unwrap();
    let is_fourth = |slice: &Slice| slice.quota_bytes * 4 == slice.card.memory_bytes;
    assert!(slices.iter().all(is_fourth), "{slices:?}");
    let less = requested(&[
        "ALIYUN_COM_GPU_MEM_CONTAINER=4",
        "ALIYUN_COM_GPU_MEM_DEV=24",
    ]);
    assert_eq!(quota_mib(&less.unwrap().unwrap(), 24 << 10), 4 << 10);
    let same = requested(&[
        "ALIYUN_COM_GPU_MEM_CONTAINER=6",
        "ALIYUN_COM_GPU_MEM_DEV=24",
    ]);
    assert_eq!(quota_mib(&same.unwrap().unwrap(), 24 << 10), 6 << 10);
    let more = requested(&[
        "ALIYUN_COM_GPU_MEM_CONTAINER=7",
        "ALIYUN_COM_GPU_MEM_DEV=24",
    ])
    .unwrap_err();
    for part in [
        "ALIYUN_COM_GPU_MEM_CONTAINER = 7 of 24",
        "cgpu.io/memory = 25%",
        "only ask for less",
    ] {
        assert!(more.contains(part), "{more}");
    }
}

/// A container of a pod, as containerd's CRI says it.
fn in_pod<'a>(container: &'a str, of_pod: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut annotations = vec![
        ("io.kubernetes.cri.container-type", "container"),
        ("io.kubernetes.cri.sandbox-id", "5a4d"),
        ("io.kubernetes.cri.container-name", container),
    ];
    annotations.extend(of_pod);
    annotations
}

const OF_4_GIB: Amount = Amount::TotalBytes(4 << 30);

#[test]
fn a_pod_s_own_amount_is_every_container_s_to_ask_for_and_reports_whose_it_is() {
    for container in ["app", "sidecar"] {
        let annotations = in_pod(container, &[("cgpu.io/memory", "4Gi")]);
        let request = read(&annotations, &[]).unwrap().unwrap();
        assert_eq!(request.request.amount, OF_4_GIB);
        let place = PodPlace {
            sandbox: "5a4d".to_owned(),
            container: container.to_owned(),
            amount: AmountOf::Pod,
        };
        assert_eq!(request.pod, Some(place));
    }
    assert_eq!(
        read(&[("cgpu.io/memory", "4Gi")], &[])
            .unwrap()
            .unwrap()
            .pod,
        None
    );
}

#[test]
fn named_terms_are_their_container_s_alone_and_win_over_the_pod_s() {
    let of_pod = [
        ("cgpu.io/memory.app", "4Gi"),
        ("cgpu.io/memory.loader", "2Gi"),
        ("cgpu.io/priority", "low"),
        ("cgpu.io/priority.loader", "high"),
    ];
    let requested = |container| read(&in_pod(container, &of_pod), &[]).unwrap();
    let app = requested("app").unwrap();
    assert_eq!(app.request.amount, OF_4_GIB);
    assert_eq!(app.compute.priority, Priority::Low);
    assert_eq!(app.pod.unwrap().amount, AmountOf::Container);
    let loader = requested("loader").unwrap();
    assert_eq!(loader.request.amount, Amount::TotalBytes(2 << 30));
    assert_eq!(loader.compute.priority, Priority::High);
    assert_eq!(requested("sidecar"), None, "not named");
    // A name that begins alike is another.
    assert_eq!(requested("app2"), None);
}

#[test]
fn a_pod_s_defaults_ask_for_nothing_by_themselves() {
    let of_pod = [("cgpu.io/policy", "weighted"), ("cgpu.io/weight", "7")];
    assert_eq!(read(&in_pod("sidecar", &of_pod), &[]).unwrap(), None);
    let plugin = [
        "ALIYUN_COM_GPU_MEM_CONTAINER=4",
        "ALIYUN_COM_GPU_MEM_DEV=24",
    ];
    let app = read(&in_pod("app", &of_pod), &plugin).unwrap().unwrap();
    assert_eq!(app.compute.weight, Some(7));
    assert_eq!(app.pod.unwrap().amount, AmountOf::Container);
    let mut config = Config::default();
    config.request.environment = EnvironmentRule::TightenOnly;
    let ignored = read_with(&config, &in_pod("app", &of_pod), &plugin);
    assert_eq!(ignored, Ok(None), "environment may not ask here");
    // What names the container wants something, and says too little.
    let named = read(&in_pod("app", &[("cgpu.io/weight.app", "7")]), &[]);
    assert!(named.unwrap_err().contains("cgpu.io/memory"));
}

#[test]
fn what_the_cluster_reads_of_a_pod_is_no_term_on_its_node() {
    let nodes = ("cgpu.io/nodes", "binpack");
    assert_eq!(read(&in_pod("app", &[nodes]), &[]), Ok(None));
    let of_pod = [nodes, ("cgpu.io/memory", "4Gi")];
    let app = read(&in_pod("app", &of_pod), &[]).unwrap().unwrap();
    assert_eq!(app.request.amount, OF_4_GIB);
    // Nobody reads it of a container that is in no pod.
    let alone = read(&[nodes], &[]).unwrap_err();
    assert!(
        alone.contains("unknown annotation cgpu.io/nodes"),
        "{alone}"
    );
}

#[test]
fn what_is_unclear_in_a_pod_is_refused() {
    let refused = |of_pod: &[(&str, &str)]| read(&in_pod("app", of_pod), &[]).unwrap_err();
    for named in ["cgpu.io/memory.app", "cgpu.io/memory.sidecar"] {
        let reply = refused(&[("cgpu.io/memory", "4Gi"), (named, "2Gi")]);
        assert!(
            reply.contains("cgpu.io/memory") && reply.contains("name all"),
            "{reply}"
        );
    }
    for key in [
        "cgpu.io/memori.app",
        "cgpu.io/memory.",
        "cgpu.io/memory.App",
        "cgpu.io/memory.a.b",
        "cgpu.io/.app",
        "cgpu.io/applied.app",
    ] {
        let reply = refused(&[(key, "4Gi")]);
        assert!(
            reply.contains(key) && reply.contains("KEY.CONTAINER"),
            "{reply}"
        );
    }
    // Outside of a pod nobody has a name.
    let reply = read(&[("cgpu.io/memory.app", "4Gi")], &[]).unwrap_err();
    assert!(
        reply.contains("unknown annotation cgpu.io/memory.app"),
        "{reply}"
    );
    // Another container's bad value is its own affair.
    let of_pod = [
        ("cgpu.io/memory.app", "4Gi"),
        ("cgpu.io/memory.sidecar", "lots"),
    ];
    assert_eq!(
        read(&in_pod("app", &of_pod), &[])
            .unwrap()
            .unwrap()
            .request
            .amount,
        OF_4_GIB
    );
}

#[test]
fn host_memory_is_limited_as_the_container_is_unless_it_is_configured() {
    let spec = json!({
        "ociVersion": "1.0.2",
        "annotations": {"cgpu.io/memory": "4Gi"},
        "process": {"env": []},
        "linux": {
            "namespaces": [{"type": "pid"}, {"type": "mount"}],
            "resources": {"memory": {"limit": 1_u64 << 30}},
        },
    });
    let limit = |text: &str| {
        let request = Request::from_spec(&strict(text), Whose::default(), &spec)
            .unwrap()
            .unwrap();
        request.isolation.host_memory_bytes
    };
    assert_eq!(limit(""), Some(1 << 30));
    assert_eq!(limit("[isolation]\nhost_memory = \"2Gi\""), Some(2 << 30));
}

/// The spec of a container in a pod, in a control group.
fn spec_in_pod(of_pod: &[(&str, &str)], environment: &[&str], group: &str) -> Value {
    let annotations: serde_json::Map<String, Value> = in_pod("app", of_pod)
        .into_iter()
        .map(|(key, value)| (key.to_owned(), json!(value)))
        .collect();
    json!({
        "ociVersion": "1.0.2",
        "annotations": annotations,
        "process": {"env": environment},
        "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}], "cgroupsPath": group},
    })
}

#[test]
fn in_a_cluster_s_pod_neither_dialect_asks() {
    let classic = [
        "ALIYUN_COM_GPU_MEM_CONTAINER=4",
        "ALIYUN_COM_GPU_MEM_DEV=24",
    ];
    let authority = |authority| Config {
        kubernetes: KubernetesConfig { authority },
        ..Config::default()
    };
    let of_kubelet = [
        "/kubepods/burstable/pod1/c1",
        "kubepods-burstable-pod1.slice:cri-containerd:c1",
        "/outer/kubepods.slice/pod1/c1",
        "kubepods-besteffort-pod1.slice:docker:c1",
    ];
    type Asking<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str], &'a str);
    let by_variable = "ALIYUN_COM_GPU_MEM_CONTAINER = \"4\"";
    let asking: [Asking<'_>; 5] = [
        (
            &[("cgpu.io/memory", "200Gi")],
            &[],
            "cgpu.io/memory = \"200Gi\"",
        ),
        (
            &[("cgpu.io/memory.app", "1Gi")],
            &[],
            "cgpu.io/memory = \"1Gi\"",
        ),
        (
            &[("cgpu.io/policy.app", "native")],
            &[],
            "cgpu.io/policy = \"native\"",
        ),
        (&[("cgpu.io/weight", "2")], &classic, by_variable),
        (&[], &classic, by_variable),
    ];
    for (annotations, environment, key) in asking {
        for group in of_kubelet {
            let spec = spec_in_pod(annotations, environment, group);
            let config = authority(Authority::Auto);
            let refused = Request::from_spec(&config, Whose::default(), &spec).unwrap_err();
            let text = refused.to_string();
            assert!(matches!(refused, Error::PodAuthor { .. }), "{text}");
            for part in [key, "kubelet", "authority = \"annotations\""] {
                assert!(text.contains(part), "{text}");
            }
            let config = authority(Authority::Annotations);
            let request = Request::from_spec(&config, Whose::default(), &spec).unwrap();
            assert!(request.is_some());
            // Docker below cri-dockerd annotates nothing, and passes on what a pod's author writes into its environment.
            let mut bare = spec_in_pod(&[], environment, group);
            bare["annotations"] = json!({});
            for counts in [Authority::Auto, Authority::Claims] {
                let read = Request::from_spec(&authority(counts), Whose::default(), &bare);
                if environment.is_empty() {
                    assert!(read.unwrap().is_none());
                } else {
                    let text = read.unwrap_err().to_string();
                    assert!(text.contains(key), "{text}");
                }
            }
        }
        // A pod of an engine's client, where there is no kubelet.
        let spec = spec_in_pod(annotations, environment, "/pods/c1");
        let request =
            |authority_of| Request::from_spec(&authority(authority_of), Whose::default(), &spec);
        request(Authority::Claims).unwrap_err();
        if kubernetes::kubelet().is_none() {
            assert!(request(Authority::Auto).unwrap().is_some());
        }
    }
    // A pod that asks for nothing is not refused, and neither is a container of no pod.
    let silent = spec_in_pod(&[("cgpu.io/policy", "soft")], &[], of_kubelet[0]);
    let config = authority(Authority::Claims);
    assert!(
        Request::from_spec(&config, Whose::default(), &silent)
            .unwrap()
            .is_none()
    );
    let alone = read_with(&config, &[("cgpu.io/memory", "4Gi")], &[]);
    assert!(alone.unwrap().is_some());
}
