//! The plugin on Kubernetes' own servers: what it says of pods is what the scheduler does with them.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use integration::cluster::{
    Card, ControlPlane, Extent, Kubectl, add_node, apply, on_control_plane, post_slice, remove,
    slice, template, wait_event, wait_placed,
};
use integration::command::{LIMIT, Outcome, capture, wait_until};
use serde_json::{Value, json};

const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-cgpu");

/// A control plane with the policies.
struct Cluster<'a> {
    plane: &'a ControlPlane,
    kubectl: Kubectl,
}

impl<'a> Cluster<'a> {
    fn new(plane: &'a ControlPlane) -> Result<Self> {
        let kubectl = plane.kubectl();
        apply(&kubectl)?;
        Ok(Self { plane, kubectl })
    }

    fn plugin_of(&self, kubectl: &Kubectl, args: &[&str]) -> Result<Outcome> {
        let mut command = self.plane.network().command(Path::new(PLUGIN))?;
        command
            .args(args)
            .env("KUBECONFIG", kubectl.config())
            .env_remove("KUBERNETES_SERVICE_HOST");
        capture(&mut command, LIMIT)
    }

    fn plugin(&self, args: &[&str]) -> Result<String> {
        Ok(self.plugin_of(&self.kubectl, args)?.success()?.stdout)
    }

    fn explained(&self, pod: &str) -> Result<Value> {
        let document = self.plugin(&["explain", pod, "-o", "json"])?;
        Ok(serde_json::from_str(&document)?)
    }

    /// A pod with a claim of its own.
    fn pod(&self, name: &str, requests: &Value, spec: &Value) -> Result<()> {
        self.kubectl.create(&json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": {"devices": {"requests": requests}},
        }))?;
        let mut spec = spec.clone();
        spec["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": name}]);
        let claims = json!([{"name": "gpu"}]);
        spec["containers"] = json!([{"name": "c", "image": "i", "resources": {"claims": claims}}]);
        self.kubectl.create(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec,
        }))
    }

    /// Waits for the scheduler's answer: the node, or that there is none.
    fn scheduled(&self, name: &str) -> Result<Option<String>> {
        let pod = self.kubectl.wait("the scheduler", &["pod", name], |pod| {
            let conditions = pod["status"]["conditions"].as_array();
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|condition| {
                condition["type"] == "PodScheduled"
                    && (condition["status"] == "True" || condition["reason"] == "Unschedulable")
            })
        })?;
        Ok(pod["spec"]["nodeName"].as_str().map(str::to_owned))
    }
}

fn request(memory: &str, cores: u64) -> Value {
    json!({"name": "vgpu", "exactly": {
        "deviceClassName": "vgpu.cgpu.io",
        "capacity": {"requests": {"memory": memory, "cores": cores.to_string()}},
    }})
}

/// The nodes on which an explanation says that the pod fits, and the devices that it would be given there.
fn fitting(explained: &Value) -> Vec<(String, BTreeSet<String>)> {
    let nodes = explained["nodes"].as_array().into_iter().flatten();
    let fitting = nodes.filter(|node| node["verdict"] == "fits");
    fitting
        .map(|node| {
            let cards = node["cards"].as_array().into_iter().flatten();
            let serving =
                cards.filter(|card| card["serves"].as_array().is_some_and(|all| !all.is_empty()));
            let devices = serving.filter_map(|card| card["device"].as_str().map(str::to_owned));
            (
                node["name"].as_str().unwrap_or_default().to_owned(),
                devices.collect(),
            )
        })
        .collect()
}

/// Pods of every kind, one after the other, each explained while a gate keeps it from the scheduler, and then let go.
#[test]
fn where_a_pod_fits_the_scheduler_places_it_and_nowhere_else() -> Result<()> {
    on_control_plane(
        "where_a_pod_fits_the_scheduler_places_it_and_nowhere_else",
        Extent::Whole,
        placed_as_explained,
    )
}

fn placed_as_explained(plane: &ControlPlane) -> Result<()> {
    let cluster = Cluster::new(plane)?;
    let kubectl = &cluster.kubectl;
    for (node, sizes) in [
        ("n1", vec![24, 24]),
        ("n2", vec![10]),
        ("n3", vec![16]),
        ("n4", vec![80]),
    ] {
        add_node(kubectl, node)?;
        let cards = sizes.iter().enumerate();
        let mut cards: Vec<Card> = cards
            .map(|(index, size)| Card::new(index, node, *size))
            .collect();
        if node == "n3" {
            cards[0].taints =
                vec![json!({"key": "gpu.cgpu.io/xid", "value": "xid-79", "effect": "NoSchedule"})];
        }
        post_slice(kubectl, node, &cards)?;
    }
    kubectl
        .run(&["label", "node", "n2", "disk=ssd"])?
        .success()?;
    kubectl.run(&["cordon", "n4"])?.success()?;
    let exactly = |fields: Value| {
        let mut request = json!({"name": "vgpu", "exactly": {"deviceClassName": "vgpu.cgpu.io"}});
        for (key, value) in fields.as_object().into_iter().flatten() {
            request["exactly"][key] = value.clone();
        }
        json!([request])
    };
    let memory = |amount: &str| json!({"requests": {"memory": amount}});
    let chosen = |expression: &str| json!([{"cel": {"expression": expression}}]);
    let second = |mut request: Value| {
        request["name"] = json!("second");
        request
    };
    let xid = json!([{"key": "gpu.cgpu.io/xid", "operator": "Exists"}]);
    let product = "device.attributes[\"gpu.cgpu.io\"].productName == \"NVIDIA H100\"";
    let large = "device.capacity[\"gpu.cgpu.io\"].memory.compareTo(quantity(\"24Gi\")) >= 0";
    let plain = json!({});
    // Among nodes that fit the scheduler chooses by chance: what follows is to fit wherever the others are.
    let on_first = json!({"nodeSelector": {"kubernetes.io/hostname": "n1"}});
    let cases = [
        ("part", json!([request("8Gi", 30)]), &on_first, true),
        ("never", json!([request("90Gi", 0)]), &plain, false),
        ("cordoned", json!([request("30Gi", 0)]), &plain, false),
        ("second-card", json!([request("20Gi", 0)]), &plain, true),
        ("compute", json!([request("1Gi", 80)]), &plain, true),
        (
            "ssd",
            json!([request("6Gi", 0)]),
            &json!({"nodeSelector": {"disk": "ssd"}}),
            true,
        ),
        (
            "ssd-full",
            json!([request("6Gi", 0)]),
            &json!({"nodeSelector": {"disk": "ssd"}}),
            false,
        ),
        (
            "two-cards",
            exactly(json!({"count": 2, "capacity": memory("2Gi")})),
            &plain,
            true,
        ),
        (
            "three-cards",
            exactly(json!({"count": 3, "capacity": memory("1Mi")})),
            &plain,
            false,
        ),
        (
            "two-requests",
            json!([request("3Gi", 0), second(request("5Gi", 0))]),
            &plain,
            true,
        ),
        ("odd-bytes", json!([request("1572865", 0)]), &plain, true),
        ("tainted", json!([request("16Gi", 0)]), &plain, false),
        (
            "tolerant",
            exactly(json!({"capacity": memory("16Gi"), "tolerations": xid})),
            &plain,
            true,
        ),
        ("whole", exactly(json!({})), &plain, false),
        (
            "other-product",
            exactly(json!({"selectors": chosen(product)})),
            &plain,
            false,
        ),
        (
            "large-card",
            exactly(json!({"capacity": memory("1Gi"), "selectors": chosen(large)})),
            &plain,
            true,
        ),
        (
            "every-card",
            exactly(json!({"allocationMode": "All", "capacity": memory("1Mi")})),
            &plain,
            true,
        ),
        (
            "alternatives",
            json!([{"name": "vgpu", "firstAvailable": [
                {"name": "most", "deviceClassName": "vgpu.cgpu.io", "capacity": memory("70Gi")},
                {"name": "least", "deviceClassName": "vgpu.cgpu.io", "capacity": memory("64Mi")},
            ]}]),
            &plain,
            true,
        ),
    ];
    for (name, requests, spec, is_placed) in cases {
        let mut spec = spec.clone();
        spec["schedulingGates"] = json!([{"name": "test.cgpu.io/gate"}]);
        cluster.pod(name, &requests, &spec)?;
        let explained = cluster.explained(name)?;
        let gate = explained["hurdles"][0].as_str().context("a gate")?;
        ensure!(gate.contains("test.cgpu.io/gate"), "{gate}");
        let fits = fitting(&explained);
        let free = r#"[{"op": "remove", "path": "/spec/schedulingGates"}]"#;
        kubectl
            .run(&["patch", "pod", name, "--type=json", "-p", free])?
            .success()?;
        let Some(node) = cluster.scheduled(name)? else {
            ensure!(
                fits.is_empty() && !is_placed,
                "{name}: the scheduler has no node: {explained:#}"
            );
            continue;
        };
        let expected = fits.iter().find(|(fitting, _)| *fitting == node);
        let (_, devices) =
            expected.with_context(|| format!("{name} came to {node}: {explained:#}"))?;
        let claim = kubectl.get(&["resourceclaim", name])?;
        let results = claim["status"]["allocation"]["devices"]["results"].as_array();
        let given: BTreeSet<String> = results
            .context("results")?
            .iter()
            .filter_map(|result| result["device"].as_str().map(str::to_owned))
            .collect();
        assert_eq!(&given, devices, "{name} on {node}");
        // Of a placed pod it says which card.
        let explained = cluster.plugin(&["explain", name])?;
        ensure!(
            is_placed && explained.contains(&format!("on node {node}")),
            "{explained}"
        );
        ensure!(explained.contains(&format!("GPU-{node}-")), "{explained}");
    }
    Ok(())
}

#[test]
fn a_full_cluster_is_shown_and_a_freed_card_is_taken() -> Result<()> {
    on_control_plane(
        "a_full_cluster_is_shown_and_a_freed_card_is_taken",
        Extent::Whole,
        shown,
    )
}

fn shown(plane: &ControlPlane) -> Result<()> {
    let cluster = Cluster::new(plane)?;
    let kubectl = &cluster.kubectl;
    let nothing = cluster.plugin(&["inspect"])?;
    ensure!(nothing.contains("No node publishes a card"), "{nothing}");
    add_node(kubectl, "n1")?;
    add_node(kubectl, "plain")?;
    post_slice(
        kubectl,
        "n1",
        &[0, 1].map(|index| Card::new(index, "n1", 24)),
    )?;
    for name in ["a", "b"] {
        cluster.pod(name, &json!([request("20Gi", 50)]), &json!({}))?;
        wait_placed(kubectl, name, 1)?;
    }
    cluster.pod("waits", &json!([request("8Gi", 60)]), &json!({}))?;
    assert_eq!(cluster.scheduled("waits")?, None);
    wait_event(kubectl, "waits", "FailedScheduling")?;
    let explained = cluster.plugin(&["explain", "waits"])?;
    for part in [
        "Pod default/waits: Pending, not placed",
        "The scheduler: Unschedulable: 0/2 nodes are available",
        "vgpu: 1 card, class vgpu.cgpu.io: compute 60 %, memory 8 GiB",
        "card 0 (GPU-n1-0): memory: 8 GiB needed, 4 GiB of 24 GiB left",
        "card 1 (GPU-n1-1): compute: 60 % needed, 50 % of 100 % left",
        "Warning FailedScheduling",
    ] {
        ensure!(explained.contains(part), "{part} is not in:\n{explained}");
    }
    let shown = cluster.plugin(&["inspect", "-d"])?;
    for part in ["20/24", "40/48 (83 %)", "50 %", "1/25", "default/a"] {
        ensure!(shown.contains(part), "{part} is not in:\n{shown}");
    }
    let document: Value = serde_json::from_str(&cluster.plugin(&["inspect", "-o", "json"])?)?;
    assert_eq!(document["cluster"]["memory_given_bytes"], 40_u64 << 30);
    assert_eq!(
        document["nodes"][0]["cards"][0]["shares"][0]["pods"],
        json!(["a"])
    );

    // As `kubectl` finds it, by both names.
    let folder = tempfile::tempdir()?;
    for name in ["kubectl-cgpu", "kubectl-inspect-cgpu"] {
        std::os::unix::fs::symlink(PLUGIN, folder.path().join(name))?;
    }
    for args in [&["cgpu", "inspect", "n1"][..], &["inspect", "cgpu", "n1"]] {
        let mut command = kubectl.command(args)?;
        let shown = capture(command.env("PATH", folder.path()), LIMIT)?
            .success()?
            .stdout;
        ensure!(shown.contains("20/24"), "{shown}");
    }

    // A pod whose template nobody has made.
    kubectl.create(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "classic"},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"aliyun.com/gpu-mem": 2}}}]},
    }))?;
    wait_event(kubectl, "classic", "FailedResourceClaimCreation")?;
    let explained = cluster.plugin(&["explain", "classic"])?;
    ensure!(
        explained.contains("no ResourceClaimTemplate cgpu-m2-c0-x1 yet: the controller"),
        "{explained}"
    );
    kubectl.create(&template("cgpu-m2-c0-x1", "default")?)?;
    wait_placed(kubectl, "classic", 1)?;
    let explained = cluster.plugin(&["explain", "classic"])?;
    ensure!(
        explained.contains("memory 2 GiB, compute 1 % of GPU-n1-0 on node n1"),
        "{explained}"
    );

    // The card is freed: the pod fits, and comes to it.
    remove(kubectl, &["pod", "b"])?;
    remove(kubectl, &["resourceclaim", "b"])?;
    wait_placed(kubectl, "waits", 1)?;
    let explained = cluster.plugin(&["explain", "waits"])?;
    ensure!(
        explained.contains("compute 60 % of GPU-n1-1 on node n1"),
        "{explained}"
    );
    Ok(())
}

#[test]
fn errors_name_what_is_missing_and_a_viewer_may_read_all_of_it() -> Result<()> {
    on_control_plane(
        "errors_name_what_is_missing_and_a_viewer_may_read_all_of_it",
        Extent::Server,
        errors,
    )
}

fn errors(plane: &ControlPlane) -> Result<()> {
    let cluster = Cluster::new(plane)?;
    let kubectl = &cluster.kubectl;
    // A thousand nodes: pages, and a bounded answer.
    let slices = (0..1000).map(|number| {
        let node = format!("n{number:04}");
        slice(&node, &[0, 1].map(|index| Card::new(index, &node, 24)))
    });
    let slices: Vec<Value> = slices.collect();
    let all = json!({"apiVersion": "v1", "kind": "List", "items": slices});
    kubectl.create(&all)?;
    for account in ["viewer", "nobody"] {
        kubectl
            .run(&["create", "serviceaccount", account, "-n", "cgpu-system"])?
            .success()?;
    }
    kubectl
        .run(&[
            "create",
            "clusterrolebinding",
            "viewers",
            "--clusterrole=cgpu-viewer",
            "--serviceaccount=cgpu-system:viewer",
        ])?
        .success()?;
    let viewer = cluster.plane.kubectl_of("viewer", None)?;
    let nobody = cluster.plane.kubectl_of("nobody", None)?;
    let refused = cluster.plugin_of(&nobody, &["inspect"])?;
    assert_eq!(refused.code, Some(3), "{refused:?}");
    for part in ["cannot list resource \"resourceslices\"", "cgpu-viewer"] {
        ensure!(refused.stderr.contains(part), "{refused:?}");
    }
    let mut read = None;
    wait_until("the role to be bound", LIMIT, || {
        let reply = cluster.plugin_of(&viewer, &["inspect"])?;
        let is_read = reply.succeeded();
        read = Some(reply);
        Ok(is_read)
    })?;
    let read = read.context("a reply")?;
    ensure!(
        read.stdout.contains("and 900 more nodes"),
        "{}",
        read.stdout
    );
    ensure!(read.stdout.contains("2000 cards"), "{}", read.stdout);
    assert_eq!(
        read.stdout
            .lines()
            .filter(|line| line.starts_with("n0"))
            .count(),
        300
    );
    eprintln!("1000 nodes: {:?}", read.took);

    cluster.pod("p", &json!([request("30Gi", 0)]), &json!({}))?;
    let explained = cluster.plugin_of(&viewer, &["explain", "p"])?.success()?;
    eprintln!("explained: {:?}", explained.took);
    ensure!(
        explained.stdout.contains("and 980 more nodes:"),
        "{}",
        explained.stdout
    );
    ensure!(
        explained.stdout.contains("never so much memory"),
        "{}",
        explained.stdout
    );

    for (args, code, part) in [
        (
            &["explain", "none"][..],
            4,
            "there is no pod none in namespace default",
        ),
        (&["explain", "../nodes/n1"], 4, "there is no pod"),
        (&["explain", "p", "-n", "team"], 4, "in namespace team"),
        (&["explain", "p", "-n", "../x"], 4, "there is no namespace"),
        (&["inspect", "n9999"], 4, "there is no node n9999"),
        (&["inspect", "a,spec.driver=x"], 4, "there is no node"),
        (&["inspect", "--context", "none"], 1, "no cluster"),
        (
            &["inspect", "--kubeconfig", "/nonexistent"],
            1,
            "no cluster",
        ),
        (&["inspect", "-o", "yaml"], 2, "json"),
        (&["explain"], 2, "POD"),
    ] {
        let reply = cluster.plugin_of(&viewer, args)?;
        assert_eq!(reply.code, Some(code), "{args:?}: {reply:?}");
        ensure!(reply.stderr.contains(part), "{args:?}: {reply:?}");
    }
    // Nobody listens there.
    let config = std::fs::read_to_string(viewer.config())?.replace("6443", "6444");
    let gone = tempfile::NamedTempFile::new()?;
    std::fs::write(gone.path(), config)?;
    let gone = gone.path().to_string_lossy();
    let reply = cluster
        .plugin(&["inspect", "--kubeconfig", &gone])
        .err()
        .context("an error")?;
    ensure!(
        format!("{reply:#}").contains("the cluster does not answer"),
        "{reply:#}"
    );
    Ok(())
}
