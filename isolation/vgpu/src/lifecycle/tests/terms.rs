//! Compute terms, and what is let through.

use std::fs;

use cards::{FrontendKind, GpuUuid, grant};
use serde_json::{Value, json};

use super::super::list;
use super::*;
use crate::state::ContainerDir;

#[test]
fn shares_are_reserved_once_and_free_again_when_their_container_goes() {
    let host = TestHost::new();
    let create_with = |config: &Config, id: &str, terms: Value| {
        let mut annotations = json!({"cgpu.io/memory": "1Gi"});
        for (name, value) in terms.as_object().unwrap() {
            annotations[format!("cgpu.io/{name}")] = value.clone();
        }
        create(
            config,
            &key(id),
            &host.bundle(id, annotations),
            FrontendKind::Shim,
        )
    };
    let share = |percent: u32| json!({"compute": percent.to_string()});
    let rules = |config: &Config, index: u32| {
        let uuid = GpuUuid::new(format!("GPU-{index}")).unwrap();
        cards::rules::of(&config.state_dir, &uuid).unwrap()
    };
    let config = host.config.clone();
    let held: Vec<_> = [("c1", 60), ("c2", 60), ("c3", 40)]
        .map(|(id, percent)| create_with(&config, id, share(percent)).unwrap().unwrap())
        .into_iter()
        .collect();
    let minors: Vec<u32> = held.iter().map(|vgpu| vgpu.grant.cards[0].minor).collect();
    assert_eq!(minors, [0, 1, 0]);
    assert_eq!(rules(&config, 0), Some(config.compute.rules(2)));
    let error = host_config::chain(&create_with(&config, "c4", share(41)).unwrap_err());
    for part in [
        "1 GiB on one card, 41 % of its time does not fit",
        "card 0 (GPU-0) 22 GiB of 24 GiB, but its compute time does not fit",
        "card 1 (GPU-1) 23 GiB of 24 GiB, but its compute time does not fit: policy fixed needs 41 %",
        "40 % left",
    ] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
    // Wrong terms, mixes and priorities are refused before anything is made.
    for (terms, part) in [
        (
            json!({"policy": "fixed", "compute": "10", "weight": "3"}),
            "weight 3 has no effect",
        ),
        (
            json!({"policy": "fair-share", "compute": "10"}),
            "percentage 10 has no effect",
        ),
        (
            json!({"policy": "native"}),
            "a native container cannot share",
        ),
        (json!({"priority": "high"}), "high priority cannot share"),
        (json!({}), "a container with policy preemptive"),
    ] {
        let error = host_config::chain(&create_with(&config, "c4", terms).unwrap_err());
        assert!(error.contains(part), "{error} lacks {part}");
    }
    assert!(!ContainerDir::of(&config.state_dir, &key("c4")).exists());
    // What shares the rest is beside the others.
    let shares = create_with(&config, "c4", json!({"weight": "2"}));
    assert_eq!(shares.unwrap().unwrap().grant.cards[0].minor, 1);
    for id in ["c1", "c3"] {
        release(&config, &key(id)).unwrap();
    }
    // The card is empty: what the configuration says now holds there.
    let mut config = config;
    config.compute.policy = grant::ComputePolicy::Soft;
    create_with(&config, "c5", json!({"compute": "90", "cards": "0,"})).unwrap();
    assert_eq!(rules(&config, 0), Some(config.compute.rules(2)));
    assert_ne!(rules(&config, 1), rules(&config, 0));
    for id in ["c2", "c4", "c5"] {
        release(&config, &key(id)).unwrap();
    }
    host.assert_clean(&"released");
}

#[test]
fn what_is_let_through_is_written_into_grant_and_spec() {
    let mut host = TestHost::new();
    host.config.isolation.allow = host_config::config::Allow::of(&[cards::Weakness::CapSysAdmin]);
    let bundle = host.bundle(
        "c1",
        json!({"cgpu.io/memory": "4Gi", "cgpu.io/managed": "deny", "cgpu.io/share-group": "g"}),
    );
    with_capabilities(&bundle, json!(["CAP_SYS_ADMIN"]));
    let vgpu = create(&host.config, &key("c1"), &bundle, FrontendKind::Shim)
        .unwrap()
        .unwrap();
    let isolation = &list(&host.config).unwrap()[0].grant.isolation;
    assert_eq!(isolation, &vgpu.grant.isolation);
    assert_eq!(isolation.summary(), "off (cap-sys-admin)");
    assert_eq!(isolation.managed, cards::ManagedMemory::Deny);
    assert_eq!(
        isolation.share_group,
        Some(format!("{}/g", key("c1").namespace()))
    );
    let spec: Value =
        serde_json::from_slice(&fs::read(bundle.join("config.json")).unwrap()).unwrap();
    assert_eq!(
        spec["annotations"]["cgpu.io/isolation"],
        "off (cap-sys-admin)"
    );
    drop(vgpu);
    release(&host.config, &key("c1")).unwrap();
    host.assert_clean(&"released");
}

#[test]
fn an_exec_is_judged_as_its_container_is() {
    let mut host = TestHost::new();
    let vgpu = host.create("c1", "4Gi").unwrap().unwrap();
    let privileged = json!({"args": ["sh"], "capabilities": {"effective": ["CAP_SYS_ADMIN"]}});
    let mut process = privileged.clone();
    let error = edit_exec(&host.config, &key("c1"), &mut process).unwrap_err();
    assert!(
        error.to_string().contains("process.capabilities.effective"),
        "{error}"
    );
    assert_eq!(process, privileged);
    let weakened = |host: &TestHost| list(&host.config).unwrap()[0].grant.isolation.summary();
    assert_eq!(weakened(&host), "on");
    // Another container's exec is none of ours.
    edit_exec(&host.config, &key("c2"), &mut process).unwrap();
    assert_eq!(process, privileged);
    host.config.isolation.allow = host_config::config::Allow::of(&[cards::Weakness::CapSysAdmin]);
    for _again in 0..2 {
        edit_exec(&host.config, &key("c1"), &mut process).unwrap();
        assert_eq!(weakened(&host), "off (cap-sys-admin)");
    }
    drop(vgpu);
    release(&host.config, &key("c1")).unwrap();
}

/// As one that was started when nothing refused it.
#[test]
fn an_exec_has_cap_perfmon_again_where_its_container_has_it() {
    let mut host = TestHost::new();
    let bundle = host.bundle("c1", json!({"cgpu.io/memory": "4Gi"}));
    with_capabilities(&bundle, json!(["CAP_PERFMON"]));
    let allow = std::mem::replace(
        &mut host.config.isolation.allow,
        host_config::config::Allow::of(&[cards::Weakness::CapPerfmon]),
    );
    let vgpu = create(&host.config, &key("c1"), &bundle, FrontendKind::Shim).unwrap();
    host.config.isolation.allow = allow;
    let other = host.create("c2", "4Gi").unwrap().unwrap();
    let exec = |id: &str, names: &[&str]| {
        let mut process = json!({"args": ["sh"], "capabilities": {"effective": names}});
        edit_exec(&host.config, &key(id), &mut process)
    };
    exec("c1", &["CAP_PERFMON"]).unwrap();
    exec("c1", &["CAP_PERFMON", "CAP_BPF"]).unwrap_err();
    exec("c2", &["CAP_PERFMON"]).unwrap_err();
    drop((vgpu, other));
    for id in ["c1", "c2"] {
        release(&host.config, &key(id)).unwrap();
    }
}

#[test]
fn an_update_has_the_container_s_own_rules_of_devices() {
    let host = TestHost::new();
    let bundle = host.bundle("c1", json!({"cgpu.io/memory": "4Gi"}));
    let config = bundle.join("config.json");
    let mut spec: Value = serde_json::from_slice(&spec_bytes(&bundle)).unwrap();
    let rules = json!([{"allow": false, "access": "rwm"}]);
    spec["linux"]["resources"] = json!({"devices": rules});
    fs::write(&config, spec.to_string()).unwrap();
    let vgpu = create(&host.config, &key("c1"), &bundle, FrontendKind::Shim).unwrap();
    let updated = |resources: &Value| {
        let mut resources = resources.clone();
        let running = container(&host.config, &key("c1")).reopen().unwrap();
        running.edit_update(&mut resources);
        resources
    };
    let of_an_engine = json!({"devices": [{"allow": true}], "cpu": {"shares": 2}});
    assert_eq!(
        updated(&of_an_engine),
        json!({"devices": rules, "cpu": {"shares": 2}})
    );
    let without = json!({"cpu": {"shares": 2}});
    assert_eq!(updated(&without), without);
    // The next container's of this bundle.
    let mut other: Value = serde_json::from_slice(&spec_bytes(&bundle)).unwrap();
    other["annotations"][host_config::terms::APPLIED_KEY] = json!("moby/c2");
    let ours = fs::read(&config).unwrap();
    for spec in [other.to_string(), "{".to_owned()] {
        fs::write(&config, spec).unwrap();
        assert_eq!(updated(&of_an_engine), without);
    }
    fs::write(&config, ours).unwrap();
    drop(vgpu);
    release(&host.config, &key("c1")).unwrap();
}
