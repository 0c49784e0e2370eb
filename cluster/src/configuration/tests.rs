use proptest::prelude::*;
use serde_json::json;

use super::*;

fn with(keys: Value) -> Value {
    let mut whole = json!({"apiVersion": "cgpu.io/v1", "kind": "VGpuConfig"});
    let fields = whole.as_object_mut().unwrap();
    fields.extend(keys.as_object().unwrap().clone());
    whole
}

fn read(class: Value, claim: Value) -> Result<Terms, String> {
    let (class, claim) = (with(class), with(claim));
    let both = [(Author::Class, &class), (Author::Claim, &claim)];
    terms(both).map_err(|error| error.to_string())
}

#[test]
fn the_claim_s_word_comes_after_its_class_s() {
    let class = json!({"policy": "soft", "weight": 5, "allow": ["weight", "priority", "managed", "shareGroup"]});
    let claim = json!({"weight": 10, "priority": "high", "managed": "deny", "shareGroup": "team"});
    let expected = Terms {
        policy: Some(ComputePolicy::Soft),
        weight: Some(10),
        priority: Some(Priority::High),
        managed: Some(ManagedMemory::Deny),
        share_group: Some("team".to_owned()),
    };
    assert_eq!(read(class, claim), Ok(expected));
    assert_eq!(terms([]).unwrap(), Terms::default());
}

#[test]
fn a_claim_sets_what_its_class_allows() {
    for (allow, key, is_allowed) in [
        (json!({}), json!({"managed": "deny"}), true),
        (json!({}), json!({"shareGroup": "a"}), true),
        (json!({}), json!({"priority": "high"}), false),
        (json!({}), json!({"weight": 1000}), false),
        (json!({}), json!({"policy": "soft"}), false),
        (
            json!({"allow": ["priority"]}),
            json!({"priority": "high"}),
            true,
        ),
        (
            json!({"allow": ["priority"]}),
            json!({"managed": "deny"}),
            false,
        ),
        (json!({"allow": []}), json!({"shareGroup": "a"}), false),
        (json!({"policy": "soft"}), json!({"policy": "soft"}), true),
        (
            json!({"policy": "soft"}),
            json!({"policy": "native"}),
            false,
        ),
    ] {
        let terms = read(allow.clone(), key.clone());
        assert_eq!(terms.is_ok(), is_allowed, "{allow} {key}: {terms:?}");
    }
    let error = read(json!({"allow": ["weight"]}), json!({"priority": "high"})).unwrap_err();
    assert!(
        error.contains("sets priority") && error.contains("allows its claims weight"),
        "{error}"
    );
    let error = read(json!({}), json!({"allow": ["priority"]})).unwrap_err();
    assert!(
        error.contains("unknown key \"allow\""),
        "a claim allows itself nothing: {error}"
    );
}

#[test]
fn a_claim_tightens_how_managed_memory_is_held_and_never_loosens_it() {
    for (class, claim, is_allowed) in [
        ("charge", "deny", true),
        ("charge", "charge", true),
        ("charge", "allow", false),
        ("deny", "charge", false),
    ] {
        let terms = read(json!({"managed": class}), json!({"managed": claim}));
        assert_eq!(terms.is_ok(), is_allowed, "{class} {claim}: {terms:?}");
    }
}

#[test]
fn amounts_are_the_scheduler_s() {
    for key in ["memory", "cores", "Memory", "gpuMem", "percent"] {
        for class in [true, false] {
            let amount = json!({key: "200Gi"});
            let (of_class, of_claim) = if class {
                (amount, json!({}))
            } else {
                (json!({}), amount)
            };
            let error = read(of_class, of_claim).unwrap_err();
            assert!(error.contains(&format!("sets {key}")), "{error}");
            assert!(
                error.contains("amounts are the scheduler's")
                    && error.contains("capacity.requests"),
                "{error}"
            );
        }
    }
}

#[test]
fn what_is_wrong_is_named() {
    for (claim, parts) in [
        (
            json!({"wieght": 3}),
            &[
                "unknown key \"wieght\"",
                "managed, policy, priority, shareGroup, weight",
            ][..],
        ),
        (json!({"weight": 0}), &["weight = \"0\"", "1 to 1000"]),
        (json!({"weight": [1]}), &["weight = \"[1]\""]),
        (
            json!({"priority": "urgent"}),
            &["priority = \"urgent\"", "high, normal, low"],
        ),
        (json!({"policy": true}), &["policy = \"true\"", "4 or soft"]),
        (json!({"shareGroup": "A b"}), &["shareGroup = \"A b\""]),
        (
            json!({"kind": "GpuConfig"}),
            &["kind = \"GpuConfig\"", "VGpuConfig"],
        ),
        (
            json!({"apiVersion": "cgpu.io/v2"}),
            &["apiVersion = \"cgpu.io/v2\"", "cgpu.io/v1"],
        ),
    ] {
        let class = json!({"allow": ["policy", "weight", "priority", "shareGroup"]});
        let error = read(class, claim).unwrap_err();
        assert!(error.starts_with("the claim's configuration"), "{error}");
        for part in parts {
            assert!(error.contains(part), "{part} is not in {error}");
        }
    }
    let error = read(json!({"allow": ["memory"]}), json!({})).unwrap_err();
    assert!(
        error.contains("allow = ") && error.contains("a list of managed"),
        "{error}"
    );
    for odd in [json!(null), json!([]), json!("x"), json!({})] {
        terms([(Author::Claim, &odd)]).unwrap_err();
    }
}

#[test]
fn a_configuration_has_a_largest_size_and_errors_are_short() {
    let large = with(json!({"shareGroup": "a".repeat(SIZE_MAX_BYTES)}));
    let error = terms([(Author::Claim, &large)]).unwrap_err();
    assert!(matches!(error, Error::Size { .. }), "{error}");
    let key = with(json!({"x".repeat(9000): 1}));
    assert!(
        terms([(Author::Claim, &key)])
            .unwrap_err()
            .to_string()
            .len()
            < 400
    );
    let value = with(json!({"managed": "x".repeat(9000)}));
    assert!(
        terms([(Author::Claim, &value)])
            .unwrap_err()
            .to_string()
            .len()
            < 400
    );
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        prop::sample::select(vec!["soft", "high", "deny", "team-a", "allow", "weight"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 6, |inner| {
        let key = prop_oneof![
            prop::sample::select(vec![
                "policy",
                "weight",
                "priority",
                "managed",
                "shareGroup",
                "allow",
                "memory",
                "kind"
            ])
            .prop_map(str::to_owned),
            ".{0,8}",
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..5)
                .prop_map(|map| map.into_iter().collect::<Value>()),
        ]
    })
}

proptest! {
    /// Whatever a tenant writes, without its class's word it changes neither policy, weight nor priority.
    #[test]
    fn a_claim_alone_changes_nobody_s_time(parameters in any_json()) {
        if let Some(fields) = parameters.as_object() {
            let claim = with(Value::Object(fields.clone()));
            let class = with(json!({"policy": "fixed"}));
            if let Ok(terms) = terms([(Author::Class, &class), (Author::Claim, &claim)]) {
                prop_assert_eq!(terms.policy, Some(ComputePolicy::Fixed));
                prop_assert_eq!((terms.weight, terms.priority), (None, None));
            }
        }
        drop(terms([(Author::Claim, &parameters)]));
    }
}
