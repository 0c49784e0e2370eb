use serde_json::{Value, json};

use super::super::text;
use super::*;
use fit::cards::{Given, offers};

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn pod(spec: Value, status: Value) -> Pod {
    let mut spec = spec;
    if spec["containers"].is_null() {
        spec["containers"] = json!([]);
    }
    if spec["runtimeClassName"].is_null() {
        spec["runtimeClassName"] = json!("cgpu");
    }
    object(
        json!({"metadata": {"name": "p", "namespace": "team", "uid": "u1"}, "spec": spec, "status": status}),
    )
}

fn claim_spec(memory: &str) -> Value {
    json!({"devices": {"requests": [{"name": "vgpu", "exactly": {
        "deviceClassName": "vgpu.cgpu.io", "capacity": {"requests": {"memory": memory}},
    }}]}})
}

fn slice(node: &str, memory: &str) -> Value {
    json!({
        "metadata": {"name": node},
        "spec": {"driver": "gpu.cgpu.io", "nodeName": node, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}, "devices": [{
            "name": format!("gpu-{node}"), "allowMultipleAllocations": true,
            "attributes": {"uuid": {"string": format!("GPU-{node}")}, "index": {"int": 0}},
            "capacity": {"memory": {"value": memory}},
        }]},
    })
}

/// Nodes n1 to n<count>, n1 with 4 GiB, all others with 2.
fn facts(pod: Pod, claims: Vec<ClaimFound>, count: usize) -> Facts {
    let names: Vec<String> = (1..=count).map(|number| format!("n{number:04}")).collect();
    let slices = names.iter().enumerate();
    let slices =
        slices.map(|(index, name)| object(slice(name, if index == 0 { "4Gi" } else { "2Gi" })));
    let class = object(json!({
        "metadata": {"name": "vgpu.cgpu.io"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == \"gpu.cgpu.io\""}}]},
    }));
    let nodes = names.iter().map(|name| {
        let node = NodeFacts {
            name: name.clone(),
            ..NodeFacts::default()
        };
        (name.clone(), node)
    });
    Facts {
        pod,
        claims,
        classes: BTreeMap::from([("vgpu.cgpu.io".to_owned(), class)]),
        nodes: nodes.collect(),
        offers: offers(slices.collect(), &Given::default()),
        happened: Vec::new(),
    }
}

fn pending(memory: &str) -> ClaimFound {
    ClaimFound {
        name: "gpu".to_owned(),
        claim_name: Some("c".to_owned()),
        claim: Some(object(
            json!({"metadata": {"name": "c", "namespace": "team"}, "spec": claim_spec(memory)}),
        )),
        ..ClaimFound::default()
    }
}

#[test]
fn each_node_has_its_verdict_and_many_are_counted() {
    let waits = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no\u{1b}[31m way"}]});
    let explained = facts(pod(json!({}), waits.clone()), vec![pending("4Gi")], 1000).judge(2);
    assert_eq!(
        (explained.nodes_that_fit, explained.nodes_left_out),
        (1, 998)
    );
    assert_eq!(
        explained.reasons_left_out,
        BTreeMap::from([("never so much memory".to_owned(), 998)])
    );
    let shown = text(&explained);
    assert!(
        shown.contains(
            "Pod team/p: Pending, not placed\nThe scheduler: Unschedulable: no [31m way\n"
        ),
        "{shown}"
    );
    assert!(
        shown.contains("Node n0001: fits\n  card 0 (GPU-n0001): serves vgpu\n"),
        "{shown}"
    );
    assert!(shown.contains("Node n0002: does not fit\n  card 0 (GPU-n0002): memory: 4 GiB needed, the card has 2 GiB in all\n"), "{shown}");
    assert!(
        shown.contains("and 998 more nodes:\n  998: never so much memory\n"),
        "{shown}"
    );
    assert!(shown.lines().count() < 12, "{shown}");
    // The pod's own terms come first.
    let chosen = json!({"nodeSelector": {"disk": "ssd"}});
    let explained = facts(pod(chosen, waits), vec![pending("1Gi")], 2).judge(0);
    assert_eq!(explained.nodes_that_fit, 0);
    assert_eq!(explained.nodes[0].reasons, ["nodeSelector disk=ssd"]);
}

#[test]
fn what_is_missing_is_named() {
    let of = |claim: ClaimFound| {
        let explained = facts(pod(json!({}), json!({"phase": "Pending"})), vec![claim], 1).judge(0);
        assert_eq!(explained.nodes_that_fit, 0);
        text(&explained)
    };
    let template = |name: &str| ClaimFound {
        name: "gpu".to_owned(),
        template: Some(name.to_owned()),
        ..ClaimFound::default()
    };
    let shown = of(template("cgpu-m8-c0-x1"));
    assert!(shown.contains("the controller of classic pods"), "{shown}");
    let shown = of(template("mine"));
    assert!(
        shown.contains("there is no ResourceClaimTemplate mine\n"),
        "{shown}"
    );
    let shown = of(ClaimFound {
        claim_name: Some("c".to_owned()),
        ..template("mine")
    });
    assert!(shown.contains("there is no ResourceClaim c\n"), "{shown}");
    let mut claim = pending("1Gi");
    let spec = json!({"devices": {"requests": [{"name": "vgpu", "exactly": {"deviceClassName": "other"}}]}});
    claim.claim.as_mut().unwrap().spec = object(spec);
    let shown = of(claim);
    assert!(
        shown.contains("request vgpu: there is no DeviceClass other\n"),
        "{shown}"
    );
    // A template that is there is judged as the claim that it will be.
    let ready = ClaimFound {
        has_template: true,
        template_spec: Some(object(claim_spec("1Gi"))),
        ..template("mine")
    };
    let explained = facts(pod(json!({}), json!({})), vec![ready], 1).judge(0);
    assert_eq!(explained.nodes_that_fit, 1);
    assert!(text(&explained).contains("the claim is not made yet"));
    // Nobody has translated it.
    let classic = json!({"containers": [{"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": "8"}}}]});
    let shown = text(&facts(pod(classic, json!({})), Vec::new(), 1).judge(0));
    assert!(
        shown.contains("container c: aliyun.com/gpu-mem was not translated"),
        "{shown}"
    );
    let shown = text(&facts(pod(json!({}), json!({})), Vec::new(), 1).judge(0));
    assert!(shown.contains("it needs no card"), "{shown}");
    let gated = json!({"schedulingGates": [{"name": "quota"}]});
    let shown = text(&facts(pod(gated, json!({})), vec![pending("1Gi")], 1).judge(0));
    assert!(shown.contains("scheduling gate quota"), "{shown}");
}

#[test]
fn an_allocated_claim_binds_its_pods_to_its_node() {
    let mut claim = pending("1Gi");
    claim.claim.as_mut().unwrap().status = Some(object(json!({
        "allocation": {
            "devices": {"results": [{"request": "vgpu", "driver": "gpu.cgpu.io", "pool": "n0002", "device": "gpu-n0002", "shareID": "s",
                "consumedCapacity": {"memory": "1Gi", "cores": "30"}}]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n0002"]}]}]},
        },
        "reservedFor": [{"resource": "pods", "name": "other", "uid": "u2"}],
        "devices": [{"driver": "gpu.cgpu.io", "pool": "n0002", "device": "gpu-n0002", "shareID": "s", "conditions": [
            {"type": "Ready", "status": "True", "reason": "Prepared", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}],
    })));
    let explained = facts(pod(json!({}), json!({"phase": "Pending"})), vec![claim], 2).judge(0);
    let shown = text(&explained);
    assert!(
        shown.contains("the claim is reserved for other: the pod can only come to the same node"),
        "{shown}"
    );
    assert!(
        shown.contains("vgpu: memory 1 GiB, compute 30 % of GPU-n0002 on node n0002, prepared"),
        "{shown}"
    );
    assert!(
        shown.contains("Node n0001: does not fit\n  claim gpu is allocated on n0002\n"),
        "{shown}"
    );
    assert!(shown.contains("Node n0002: fits\n"), "{shown}");
}

#[test]
fn a_pod_with_cards_that_names_no_handler_is_warned() {
    let warned = |mut pod: Pod, claims: Vec<ClaimFound>| {
        pod.spec.as_mut().unwrap().runtime_class_name = None;
        let explained = facts(pod, claims, 1).judge(0);
        let shown = text(&explained);
        assert_eq!(
            shown.contains("runtimeClassName is not set"),
            !explained.warnings.is_empty()
        );
        (explained.warnings.len(), explained.nodes_that_fit)
    };
    let waits = || pod(json!({}), json!({"phase": "Pending"}));
    assert_eq!(warned(waits(), vec![pending("1Gi")]), (1, 1));
    // Without a claim, or with another driver's, there is nothing to see.
    assert_eq!(warned(waits(), Vec::new()).0, 0);
    let mut foreign = pending("1Gi");
    foreign.claim.as_mut().unwrap().spec = object(
        json!({"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic"}}]}}),
    );
    let class = object(json!({
        "metadata": {"name": "nic"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == \"nic.example.com\""}}]},
    }));
    let mut with_nic = facts(waits(), vec![foreign], 1);
    with_nic.pod.spec.as_mut().unwrap().runtime_class_name = None;
    with_nic.classes.insert("nic".to_owned(), class);
    assert!(with_nic.judge(0).warnings.is_empty());
}

#[test]
fn a_constraint_that_no_card_meets_is_named() {
    let mut claim = pending("1Gi");
    let mut spec = claim_spec("1Gi");
    spec["devices"]["constraints"] = json!([{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]);
    claim.claim.as_mut().unwrap().spec = object(spec);
    let shown = text(&facts(pod(json!({}), json!({"phase": "Pending"})), vec![claim], 1).judge(0));
    assert!(
        shown.contains("not all of them together: the claims have matchAttribute: resource.kubernetes.io/pcieRoot"),
        "{shown}"
    );
}
