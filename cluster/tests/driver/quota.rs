//! GPU memory of a namespace, with Kubernetes' own servers: what fits starts, what does not waits, and a burst passes no maximum.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::{Access, TemplatesPace, run_templates};
use integration::cluster::{
    Card, ControlPlane, Extent, Kubectl, add_node, apply, on_control_plane, post_slice, remove,
    template,
};
use integration::command::{LIMIT, wait_until};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

const TEAM: &str = "--namespace=team";
const MIB: u64 = 1 << 20;

struct Cluster {
    kubectl: Kubectl,
}

impl Cluster {
    fn annotate(&self, annotation: &str) -> Result<()> {
        let annotate = ["annotate", "--overwrite", "namespace", "team", annotation];
        self.kubectl.run(&annotate)?.success()?;
        Ok(())
    }

    fn account(&self, key: &str) -> Result<String> {
        let namespace = self.kubectl.get(&["namespace", "team"])?;
        let value = namespace["metadata"]["annotations"][key].as_str();
        Ok(value.unwrap_or("nothing").to_owned())
    }

    fn wait_claimed(&self, claimed: &str) -> Result<()> {
        wait_until(&format!("{claimed} to be claimed"), LIMIT, || {
            Ok(self.account("cgpu.io/memory-claimed")? == claimed)
        })
    }

    fn classic(&self, name: &str, limits: &Value) -> Result<()> {
        self.kubectl.create(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "team"},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]},
        }))
    }

    fn wait_placed(&self, name: &str) -> Result<()> {
        let is_placed = |pod: &Value| pod["spec"]["nodeName"].is_string();
        let what = format!("{name} to be placed");
        self.kubectl.wait(&what, &["pod", name, TEAM], is_placed)?;
        Ok(())
    }

    /// Waits for an event of a pod that has these words.
    fn wait_reason(&self, name: &str, words: &str) -> Result<String> {
        let mut last = String::new();
        wait_until(&format!("an event of {name} with {words:?}"), LIMIT, || {
            let selector = format!("--field-selector=involvedObject.name={name}");
            let events = self.kubectl.get(&["events", TEAM, &selector])?;
            let messages = events["items"].as_array().context("events")?.iter();
            let mut messages = messages.filter_map(|event| event["message"].as_str());
            if let Some(found) = messages.find(|message| message.contains(words)) {
                found.clone_into(&mut last);
            }
            Ok(!last.is_empty())
        })?;
        Ok(last)
    }

    /// How many claims there are, and MiB that are allocated of cards.
    fn allocated(&self) -> Result<(usize, u64)> {
        let claims = self.kubectl.get(&["resourceclaims", TEAM])?;
        let claims = claims["items"].as_array().context("claims")?;
        let results = claims.iter().flat_map(|claim| {
            let results = claim["status"]["allocation"]["devices"]["results"].as_array();
            results.into_iter().flatten()
        });
        let bytes = results.map(|result| {
            let memory = result["consumedCapacity"]["memory"].as_str();
            memory.and_then(dra::quantity::whole).unwrap_or(u64::MAX)
        });
        Ok((claims.len(), bytes.sum::<u64>() / MIB))
    }

    fn clear(&self) -> Result<()> {
        remove(&self.kubectl, &["pod", "--all", TEAM])?;
        remove(&self.kubectl, &["resourceclaim", "--all", TEAM])?;
        self.wait_claimed("0")
    }
}

/// A claim that is deleted under its pod would count for nothing: its protection is not the tenant's. Later deletions go through as they always did.
fn unprotected(cluster: &Cluster) -> Result<()> {
    let claims = cluster.kubectl.get(&["resourceclaims", TEAM])?;
    let claims = claims["items"].as_array().context("claims")?;
    let held = claims
        .iter()
        .find(|claim| claim["status"]["allocation"].is_object());
    let name = held.and_then(|claim| claim["metadata"]["name"].as_str());
    let name = name.context("an allocated claim")?;
    let patch = r#"{"metadata":{"finalizers":null}}"#;
    let claim = ["patch", "--as=tenant", "resourceclaim", name, TEAM];
    let strip = [&claim[..], &["--type=merge", "--patch", patch]].concat();
    let refused = cluster.kubectl.run(&strip)?.failure()?;
    ensure!(refused.contains("has GPUs"), "{refused}");
    Ok(())
}

/// Pods from a template: one too many waits, and starts when something is freed.
fn waiting(cluster: &Cluster) -> Result<()> {
    let gib = json!({"aliyun.com/gpu-mem": 8});
    for name in ["p0", "p1"] {
        cluster.classic(name, &gib)?;
        cluster.wait_placed(name)?;
    }
    cluster.wait_claimed("16Gi")?;
    cluster.classic("p2", &gib)?;
    unprotected(cluster)?;
    let why = cluster.wait_reason("p2", "cgpu.io/max-memory: 20Gi")?;
    ensure!(
        why.contains("asks for 8192Mi") && why.contains("16Gi"),
        "{why}"
    );
    let waited = Instant::now();
    std::thread::sleep(Duration::from_secs(8));
    ensure!(cluster.allocated()? == (2, 16 << 10), "it waits");
    remove(&cluster.kubectl, &["pod", "p0", TEAM])?;
    let (waited, freed) = (waited.elapsed(), Instant::now());
    cluster.wait_placed("p2")?;
    println!("waited {waited:?}, placed {:?} after", freed.elapsed());
    cluster.clear()
}

/// Whole cards, also by the scheduler's own claims.
fn whole_cards(cluster: &Cluster) -> Result<()> {
    cluster.classic("whole", &json!({"aliyun.com/gpu": 1}))?;
    let why = cluster.wait_reason("whole", "asks for 24576Mi")?;
    println!("whole card: {why}");
    cluster.annotate("cgpu.io/max-memory=30Gi")?;
    let began = Instant::now();
    cluster.wait_placed("whole")?;
    println!("a whole card, placed after {:?}", began.elapsed());
    cluster.wait_claimed("24Gi")?;
    cluster.clear()?;
    cluster.annotate("cgpu.io/max-memory=20Gi")
}

/// A claim's pod.
fn pod_of_claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "team"},
        "spec": {
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}],
        },
    })
}

fn claim(name: &str, requests: &Value) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"devices": {"requests": requests}},
    })
}

/// What a claim is given counts, whatever it asked for: no class of another name, no amount and no kind of card leads past the maximum.
fn given(cluster: &Cluster) -> Result<()> {
    let kubectl = &cluster.kubectl;
    kubectl.create(&json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "all.example.com"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.cgpu.io'"}}]},
    }))?;
    kubectl.create(&json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "nic.example.com"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == 'nic.example.com'"}}]},
    }))?;
    let memory = |memory: &str| json!({"requests": {"memory": memory}});
    let of_card = |name: &str, class: &str, uuid: &str, memory: Value| {
        let selector = format!("device.attributes['gpu.cgpu.io'].uuid == '{uuid}'");
        let exactly = json!({"deviceClassName": class, "capacity": memory, "selectors": [{"cel": {"expression": selector}}]});
        json!({"name": name, "exactly": exactly})
    };
    for (name, requests, words) in [
        (
            "mixed",
            json!([
                of_card("small", "vgpu.cgpu.io", "GPU-n1-0", memory("1Mi")),
                of_card("rest", "all.example.com", "GPU-n1-1", memory("16Gi")),
            ]),
            "would have 16385Mi of GPU memory, and has a grant of 1Mi",
        ),
        (
            "whole-for-little",
            json!([of_card("a", "card.cgpu.io", "GPU-n2-0", memory("1Mi"))]),
            "would have 24576Mi of GPU memory, and has a grant of 1Mi",
        ),
        (
            "stranger",
            json!([of_card("a", "all.example.com", "GPU-n1-0", memory("1Mi"))]),
            "has no grant yet",
        ),
    ] {
        kubectl.create(&claim(name, &requests))?;
        kubectl.create(&pod_of_claim(name))?;
        println!("{name}: {}", cluster.wait_reason(name, words)?);
        remove(kubectl, &["pod", name, TEAM])?;
        remove(kubectl, &["resourceclaim", name, TEAM])?;
    }
    // An amount near the end of 64 bits would make the card's account negative, in a namespace without a maximum too.
    let requests = json!([of_card("a", "all.example.com", "GPU-n1-0", memory("8Ei"))]);
    let (mut claim_of_all, mut pod) = (claim("endless", &requests), pod_of_claim("endless"));
    for object in [&mut claim_of_all, &mut pod] {
        object["metadata"]["namespace"] = json!("default");
        kubectl.create(object)?;
    }
    wait_until("an event of endless", LIMIT, || {
        let events = kubectl.get(&["events", "--field-selector=involvedObject.name=endless"])?;
        let events = events["items"].as_array().context("events")?.iter();
        let mut messages = events.filter_map(|event| event["message"].as_str());
        Ok(messages.any(|message| message.contains("request a: the amounts are none of a card")))
    })?;
    remove(kubectl, &["pod", "endless"])?;
    remove(kubectl, &["resourceclaim", "endless"])?;
    // Another driver's device beside ours is no matter of GPU memory.
    kubectl.create(&json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "n1-nic"},
        "spec": {
            "driver": "nic.example.com", "nodeName": "n1", "devices": [{"name": "nic0"}],
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        },
    }))?;
    let requests = json!([
        of_card("gpu", "vgpu.cgpu.io", "GPU-n1-0", memory("8Gi")),
        {"name": "nic", "exactly": {"deviceClassName": "nic.example.com"}},
    ]);
    kubectl.create(&claim("with-nic", &requests))?;
    kubectl.create(&pod_of_claim("with-nic"))?;
    cluster.wait_placed("with-nic")?;
    cluster.wait_claimed("8Gi")?;
    cluster.clear()
}

/// Fifty claims of 2 GiB at once, each with a pod that waits for it; ten fit.
fn burst(cluster: &Cluster) -> Result<()> {
    let list = |items: Vec<Value>| json!({"apiVersion": "v1", "kind": "List", "items": items});
    let pods = (0..50).map(|index| pod_of_claim(&format!("b{index}")));
    cluster.kubectl.create(&list(pods.collect()))?;
    let numbered = |index: usize| {
        let exactly =
            json!({"deviceClassName": "vgpu.cgpu.io", "capacity": {"requests": {"memory": "2Gi"}}});
        let requests = json!([{"name": "vgpu", "exactly": exactly}]);
        claim(&format!("b{index}"), &requests)
    };
    let began = Instant::now();
    std::thread::scope(|scope| {
        for part in 0..5 {
            let items = (part * 10..part * 10 + 10).map(numbered).collect();
            let kubectl = &cluster.kubectl;
            // What is refused is no error here.
            scope.spawn(move || kubectl.send("create", &[], &list(items)).is_ok());
        }
    });
    let made = began.elapsed();
    let most = 20 << 10;
    let mut last = (0, 0);
    wait_until("as many as fit to be allocated", LIMIT, || {
        last = cluster.allocated()?;
        ensure!(last.1 <= most, "{last:?}: above the maximum");
        Ok(last.1 == most)
    })
    .with_context(|| format!("at last {last:?}"))?;
    let until = Instant::now() + Duration::from_secs(8);
    while Instant::now() < until {
        last = cluster.allocated()?;
        ensure!(last.1 == most, "{last:?}: not the maximum");
    }
    println!(
        "of 50 claims in {made:?} {} were made, and 10 allocated; claimed: {}",
        last.0,
        cluster.account("cgpu.io/memory-claimed")?
    );
    // One goes: one of those that slipped by is next, or nobody is left.
    if last.0 > 10 {
        let claims = cluster.kubectl.get(&["resourceclaims", TEAM])?;
        let claims = claims["items"].as_array().context("claims")?;
        let held = |claim: &&Value| claim["status"]["allocation"].is_object();
        let name = claims.iter().find(held).context("an allocated one")?;
        let name = name["metadata"]["name"].as_str().context("a name")?;
        remove(&cluster.kubectl, &["pod", name, TEAM])?;
        remove(&cluster.kubectl, &["resourceclaim", name, TEAM])?;
        let began = Instant::now();
        wait_until("the next one", LIMIT, || {
            last = cluster.allocated()?;
            ensure!(last.1 <= most, "{last:?}: above the maximum");
            Ok(last.1 == most)
        })?;
        println!("the next one after {:?}", began.elapsed());
    }
    cluster.clear()
}

#[test]
fn a_namespace_has_no_more_gpu_memory_than_its_maximum() -> Result<()> {
    on_control_plane(
        "a_namespace_has_no_more_gpu_memory_than_its_maximum",
        Extent::Whole,
        bounded,
    )
}

fn bounded(plane: &ControlPlane) -> Result<()> {
    plane.network().enter()?;
    let kubectl = plane.kubectl();
    apply(&kubectl)?;
    add_node(&kubectl, "n1")?;
    let cards = [0, 1, 2, 3].map(|index| Card::new(index, "n1", 24));
    post_slice(&kubectl, "n1", &cards)?;
    add_node(&kubectl, "n2")?;
    let mut whole = Card::new(0, "n2", 24);
    whole.is_shared = false;
    post_slice(&kubectl, "n2", &[whole])?;
    kubectl.run(&["create", "namespace", "team"])?.success()?;
    kubectl.create(&template("cgpu-m8-c0-x1", "team")?)?;
    let own = plane.kubectl_of("cgpu-templates", None)?;
    let access = Access {
        kubeconfig: Some(own.config().to_owned()),
        server: None,
    };
    let runtime = Runtime::new()?;
    let pace = TemplatesPace::default();
    let serve = || runtime.spawn(run_templates(access.clone(), pace, std::future::pending()));
    let controller = serve();
    let cluster = Cluster { kubectl };
    cluster.annotate("cgpu.io/max-memory=20Gi")?;
    cluster.wait_claimed("0")?;
    ensure!(cluster.account("cgpu.io/card-memory")? == "24Gi", "a card");
    // Who edits a namespace's objects does not edit the namespace.
    for part in ["view", "edit", "admin"] {
        // Role `admin` is made of them, where the controller runs that does so.
        let role = format!("--clusterrole=system:aggregate-to-{part}");
        let bind = ["create", "rolebinding", part, TEAM, &role, "--user=tenant"];
        cluster.kubectl.run(&bind)?.success()?;
    }
    let raise = [
        "annotate",
        "--as=tenant",
        "--overwrite",
        "namespace",
        "team",
        "cgpu.io/max-memory-",
    ];
    let refused = cluster.kubectl.run(&raise)?.failure()?;
    ensure!(refused.contains("forbidden"), "{refused}");
    waiting(&cluster)?;
    whole_cards(&cluster)?;
    burst(&cluster)?;
    given(&cluster)?;
    // Nobody counts: nothing new is allocated, and what is there stays. The next controller goes on.
    controller.abort();
    cluster.classic("late", &json!({"aliyun.com/gpu-mem": 8}))?;
    cluster.wait_reason("late", "has no grant yet")?;
    let next = serve();
    cluster.wait_placed("late")?;
    cluster.clear()?;
    cluster.annotate("cgpu.io/max-memory-")?;
    wait_until("nothing of the account to be left", LIMIT, || {
        let keys = ["memory-claimed", "memory-granted", "card-memory"];
        let left = keys.map(|key| cluster.account(&format!("cgpu.io/{key}")));
        let left: Vec<String> = left.into_iter().collect::<Result<_>>()?;
        Ok(left == ["nothing"; 3])
    })?;
    next.abort();
    runtime.shutdown_timeout(Duration::from_secs(5));
    Ok(())
}
