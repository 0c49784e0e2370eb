//! The chart: what Helm makes of it, and what the real API server says of that.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use integration::cache::repository;
use integration::cluster::{
    CHART_NAMESPACE, Chart, ControlPlane, Extent, chart_hash, kept_rendering, on_control_plane,
};
use integration::programs::Programs;
use integration::skip;
use serde_json::{Value, json};

fn objects(text: &str) -> Result<Vec<Value>> {
    Ok(serde_saphyr::from_multiple(text)?)
}

fn find<'a>(objects: &'a [Value], kind: &str) -> Result<&'a Value> {
    let mut objects = objects.iter();
    let found = objects.find(|object| object["kind"] == kind);
    found.with_context(|| format!("no {kind}"))
}

#[test]
fn helm_renders_the_chart_as_it_is_kept() -> Result<()> {
    let chart = match Chart::with_built() {
        Ok(chart) => chart,
        Err(reason) => skip!("helm_renders_the_chart_as_it_is_kept", "{reason}"),
    };
    chart.lint()?.success()?;
    let rendered = chart.render(&[])?.success()?.stdout;
    let kept = format!("# {}\n{rendered}", chart_hash()?);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(kept_rendering(), &kept)?;
    }
    assert_eq!(fs::read_to_string(kept_rendering())?, kept);

    // What values change.
    let off = "classic.enabled=false,quota.enabled=false,priorityQuota.create=false,\
        agent.metricsPort=0,agent.nodeLabels=false";
    let without = chart.render(&["--set", off])?;
    let without = objects(&without.success()?.stdout)?;
    for absent in ["MutatingAdmissionPolicy", "Deployment", "ResourceQuota"] {
        find(&without, absent).unwrap_err();
    }
    let names = without
        .iter()
        .filter_map(|object| object["metadata"]["name"].as_str());
    ensure!(
        !names.clone().any(|name| {
            let absent = [
                "cgpu-classic",
                "cgpu-agent-labels",
                "cgpu-nodes",
                "cgpu-quota",
            ];
            absent.iter().any(|absent| name.starts_with(absent))
        }),
        "{names:?}"
    );
    let agent = &find(&without, "DaemonSet")?["spec"]["template"]["spec"]["containers"][0];
    let arguments = agent["args"].to_string();
    ensure!(arguments.contains("--listen=unix:"), "{arguments}");
    let digest = format!("image.digest=sha256:{}", "0".repeat(64));
    let pinned = objects(&chart.render(&["--set", &digest])?.success()?.stdout)?;
    let image = &find(&pinned, "DaemonSet")?["spec"]["template"]["spec"]["containers"][0]["image"];
    ensure!(
        image
            .as_str()
            .is_some_and(|image| image.starts_with("cgpu-node@sha256:0")),
        "{image}"
    );
    // A scheduler that can only count gets no classes and no translation, and the agent may ask whose a pod is.
    let plugin = chart.render(&["--set", "agent.devicePlugin=aliyun.com/gpu-mem"])?;
    let plugin = objects(&plugin.success()?.stdout)?;
    for absent in ["DeviceClass", "MutatingAdmissionPolicy", "Deployment"] {
        find(&plugin, absent).unwrap_err();
    }
    let agent = &find(&plugin, "DaemonSet")?["spec"];
    ensure!(
        agent["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0,
        "{agent}"
    );
    let arguments = agent["template"]["spec"]["containers"][0]["args"].to_string();
    ensure!(
        arguments.contains("--device-plugin=aliyun.com/gpu-mem"),
        "{arguments}"
    );
    let roles: Vec<&Value> = plugin
        .iter()
        .filter(|object| object["kind"] == "ClusterRole")
        .map(|role| &role["metadata"]["name"])
        .collect();
    ensure!(
        roles == ["cgpu-agent", "cgpu-agent-device-plugin"],
        "{roles:?}"
    );
    limiting(&chart)?;
    placed(&chart)?;
    preempting(&chart)?;
    installing(&chart)?;
    with_nvml(&chart)?;
    // Accounts and policy are of the namespace that it is installed in.
    let elsewhere = chart.render(&["--namespace", "gpus"])?.success()?.stdout;
    ensure!(
        elsewhere.contains("system:serviceaccount:gpus:cgpu-agent"),
        "the policy's account"
    );
    ensure!(
        !elsewhere.contains(CHART_NAMESPACE),
        "a namespace that is another one"
    );
    Ok(())
}

/// A namespace's maximum holds whatever its pods name: without the policies the annotation would be taken and mean nothing.
fn limiting(chart: &Chart) -> Result<()> {
    for values in ["classic.enabled=false", "classic.enabled=false,quota=null"] {
        let rendered = objects(&chart.render(&["--set", values])?.success()?.stdout)?;
        let has = |kind: &str, name: &str| {
            let mut rendered = rendered.iter();
            let found = rendered.any(|it| it["kind"] == kind && it["metadata"]["name"] == name);
            ensure!(found, "{values}: no {kind} {name}");
            Ok(())
        };
        for policy in ["", "-allocations", "-namespaces"].map(|of| format!("cgpu-quota{of}")) {
            has("ValidatingAdmissionPolicy", &policy)?;
            has("ValidatingAdmissionPolicyBinding", &policy)?;
        }
        for kind in ["Deployment", "ServiceAccount", "ClusterRoleBinding"] {
            has(kind, "cgpu-templates")?;
        }
    }
    Ok(())
}

/// Of the host's libraries the agent has NVML alone, where its loader looks, whatever the architecture.
fn with_nvml(chart: &Chart) -> Result<()> {
    let there = "/usr/lib64/libnvidia-ml.so.1";
    let values = format!("agent.nvml={there},image.architecture=arm64");
    let rendered = chart.render(&["--set", &values])?;
    let rendered = objects(&rendered.success()?.stdout)?;
    let pod = &find(&rendered, "DaemonSet")?["spec"]["template"]["spec"];
    let named = |list: &Value| -> Result<Value> {
        let found = list.as_array().into_iter().flatten();
        let mut found = found.filter(|one| one["name"] == "nvml");
        found.next().cloned().context("nvml")
    };
    let volume = named(&pod["volumes"])?;
    ensure!(
        volume["hostPath"]["path"] == there && volume["hostPath"]["type"] == "File",
        "{volume}"
    );
    let mount = named(&pod["containers"][0]["volumeMounts"])?;
    ensure!(
        mount["mountPath"] == "/usr/lib/libnvidia-ml.so.1" && mount["readOnly"] == true,
        "{mount}"
    );
    Ok(())
}

/// Pods come to no node that the image's programs do not run on, whatever else the values select.
fn placed(chart: &Chart) -> Result<()> {
    let selectors = |values: &str| -> Result<Vec<Value>> {
        let evicting = "controller.evictForPriority=true";
        let rendered = chart.render(&["--set", evicting, "--set-string", values])?;
        let all = objects(&rendered.success()?.stdout)?;
        let pods = all.iter().map(|object| &object["spec"]["template"]["spec"]);
        let pods = pods.filter(|pod| pod["containers"].is_array());
        Ok(pods.map(|pod| pod["nodeSelector"].clone()).collect())
    };
    let expected = json!({"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"});
    ensure!(selectors("runtimeClass.handler=cgpu")? == vec![expected; 3]);
    let other = "image.architecture=arm64,agent.nodeSelector.gpu=yes";
    let arm64 = json!({"kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64"});
    let mut agent = arm64.clone();
    agent["gpu"] = json!("yes");
    ensure!(selectors(other)? == [agent, arm64.clone(), arm64]);
    let any = "image.architecture=,agent.nodeSelector.kubernetes\\.io/os=windows";
    let linux = json!({"kubernetes.io/os": "linux"});
    let own = json!({"kubernetes.io/os": "windows"});
    ensure!(selectors(any)? == [own, linux.clone(), linux]);
    Ok(())
}

/// Nothing that evicts is there, with its rights, before an administrator has it.
fn preempting(chart: &Chart) -> Result<()> {
    let without = chart.render(&[])?.success()?.stdout;
    let evicting = chart.render(&["--set", "controller.evictForPriority=true"])?;
    let evicting = evicting.success()?.stdout;
    for part in ["--evict-for-priority", "name: cgpu-preemption"] {
        ensure!(evicting.contains(part), "{part}");
        ensure!(!without.contains(part), "{part}");
    }
    let may_evict = |text: &str| -> Result<bool> {
        let rules = objects(text)?
            .into_iter()
            .map(|object| object["rules"].to_string());
        Ok(rules
            .into_iter()
            .any(|rules| rules.contains("pods/eviction")))
    };
    ensure!(may_evict(&evicting)? && !may_evict(&without)?, "rights");
    let deployments = objects(&evicting)?;
    let deployment = deployments.iter().find(|object| {
        object["kind"] == "Deployment" && object["metadata"]["name"] == "cgpu-preemption"
    });
    let deployment = deployment.context("its deployment")?;
    ensure!(
        deployment["spec"]["strategy"]["type"] == "Recreate",
        "{deployment}"
    );
    let values = "controller.evictForPriority=true,agent.devicePlugin=aliyun.com/gpu-mem";
    let plugin = chart.render(&["--set", values])?.success()?.stdout;
    ensure!(!plugin.contains("eviction"), "a cluster without claims");
    Ok(())
}

/// The pod of the agent, with the mode of the installation.
fn pod_of(chart: &Chart, mode: &str) -> Result<Value> {
    let value = format!("install.mode={mode}");
    let rendered = objects(&chart.render(&["--set", &value])?.success()?.stdout)?;
    Ok(find(&rendered, "DaemonSet")?["spec"]["template"]["spec"].clone())
}

/// Only an installation has the host's root, in its init container alone, and an agent without driver behind a removal.
fn installing(chart: &Chart) -> Result<()> {
    let none = pod_of(chart, "none")?;
    ensure!(none["initContainers"].is_null(), "{none}");
    let root = |pod: &Value| {
        let volumes = pod["volumes"].as_array().into_iter().flatten();
        volumes
            .filter(|volume| volume["hostPath"]["path"] == "/")
            .count()
    };
    ensure!(root(&none) == 0, "{none}");
    for (mode, program) in [("install", "cgpu-agent"), ("uninstall", "cgpu")] {
        let pod = pod_of(chart, mode)?;
        ensure!(root(&pod) == 1, "{pod}");
        let init = &pod["initContainers"][0];
        ensure!(
            init["args"][0] == mode && init["args"][1] == "--host=/host",
            "{init}"
        );
        ensure!(init["securityContext"]["privileged"] == false, "{init}");
        ensure!(
            init["args"].to_string().contains("--restart=signal"),
            "{init}"
        );
        let agent = &pod["containers"][0];
        ensure!(agent["command"][0] == program, "{agent}");
        ensure!(
            !agent["volumeMounts"].to_string().contains("/host"),
            "{agent}"
        );
    }
    Ok(())
}

#[test]
fn values_that_cannot_be_are_refused_by_their_keys() -> Result<()> {
    let chart = match Chart::with_built() {
        Ok(chart) => chart,
        Err(reason) => skip!(
            "values_that_cannot_be_are_refused_by_their_keys",
            "{reason}"
        ),
    };
    for (value, key) in [
        ("agent.kubeletDir=var/lib/kubelet", "kubeletDir"),
        ("agent.kubeletDir=/var/lib/kubelet/", "kubeletDir"),
        ("agent.metricsPort=70000", "metricsPort"),
        ("agent.metricPort=1", "metricPort"),
        ("image.digest=latest", "digest"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("runtimeClass.handler=Cgpu", "handler"),
        ("classic.enabled=perhaps", "enabled"),
        ("quota.enabled=perhaps", "enabled"),
        ("priorityQuota.create=perhaps", "create"),
        ("controller.evictForPriority=sometimes", "evictForPriority"),
        ("controller.evict=true", "evict"),
        ("install.mode=on", "mode"),
        ("install.programs=opt/cgpu", "programs"),
        ("install.programs=/opt/../cgpu", "programs"),
        ("install.engine=docker", "engine"),
        ("install.restart=yes", "restart"),
        ("agent.nvml=/usr/lib64", "nvml"),
    ] {
        let refused = chart.render(&["--set", value])?;
        ensure!(
            refused.code != Some(0) && refused.stderr.contains(key),
            "{value}: {refused:?}"
        );
    }
    // Claims need a later cluster than the device plugin does.
    let old = chart.render(&["--kube-version", "1.35.0"])?;
    ensure!(
        old.code != Some(0)
            && old.stderr.contains("1.36.0")
            && old.stderr.contains("agent.devicePlugin"),
        "{old:?}"
    );
    let plugin = ["--set", "agent.devicePlugin=aliyun.com/gpu-mem"];
    for (version, is_taken) in [("1.30.0", true), ("v1.33.4-eks-1", true), ("1.29.9", false)] {
        let old = chart.render(&[&["--kube-version", version], &plugin[..]].concat())?;
        ensure!((old.code == Some(0)) == is_taken, "{version}: {old:?}");
    }
    // A signal is for containerd: a node would be changed, and its engine not restarted.
    let crio = |restart: &str| {
        let values = format!("install.mode=install,install.engine=crio,install.restart={restart}");
        chart.render(&["--set", &values])
    };
    let refused = crio("signal")?;
    ensure!(
        refused.code != Some(0) && refused.stderr.contains("install.restart"),
        "{refused:?}"
    );
    for restart in ["", "systemd"] {
        let rendered = crio(restart)?.success()?.stdout;
        ensure!(rendered.contains("- --restart=systemd"), "{restart}");
    }
    Ok(())
}

#[test]
fn the_kept_rendering_is_of_this_chart() -> Result<()> {
    let kept = fs::read_to_string(kept_rendering())?;
    let hash = format!("# {}", chart_hash()?);
    assert_eq!(
        kept.lines().next(),
        Some(hash.as_str()),
        "cluster/chart has changed: render it anew with UPDATE_SNAPSHOTS=1 cargo test -p cgpu-integration --test cluster chart"
    );
    let objects = objects(&kept)?;
    let agent = &find(&objects, "DaemonSet")?["spec"]["template"]["spec"];
    let container = &agent["containers"][0];
    // Every mount has its volume, and every volume is of a folder that is the host's.
    let volumes = agent["volumes"].as_array().context("volumes")?;
    for mount in container["volumeMounts"].as_array().context("mounts")? {
        let volume = volumes
            .iter()
            .find(|volume| volume["name"] == mount["name"]);
        let volume = volume.with_context(|| format!("no volume of {mount}"))?;
        assert_eq!(volume["hostPath"]["path"], mount["mountPath"], "{mount}");
    }
    assert_eq!(
        volumes.len(),
        container["volumeMounts"].as_array().map_or(0, Vec::len)
    );
    // A cluster that limits a class of the pods starts none without a quota of it.
    let quota = &find(&objects, "ResourceQuota")?["spec"]["scopeSelector"]["matchExpressions"];
    let classes = quota[0]["values"].as_array().context("classes")?;
    for object in &objects {
        let class = &object["spec"]["template"]["spec"]["priorityClassName"];
        ensure!(class.is_null() || classes.contains(class), "{class}");
    }
    Ok(())
}

/// The program knows every option that the chart gives it.
#[test]
fn the_agent_knows_the_chart_s_options() -> Result<()> {
    let kept = objects(&fs::read_to_string(kept_rendering())?)?;
    let container = |kind| {
        let object = find(&kept, kind)?;
        Ok::<_, anyhow::Error>(object["spec"]["template"]["spec"]["containers"][0].clone())
    };
    let program = Programs::for_tests()?.program("cgpu-agent")?;
    let help_of = |program: &std::path::Path, args: &[&str]| -> Result<String> {
        let help = Command::new(program).args(args).output()?;
        Ok(String::from_utf8(help.stdout)?)
    };
    let help = help_of(&program, &["--help"])?;
    for kind in ["DaemonSet", "Deployment"] {
        for argument in container(kind)?["args"].as_array().context("arguments")? {
            let argument = argument.as_str().context("a text")?;
            let option = argument.split('=').next().unwrap_or(argument);
            ensure!(help.contains(option), "{option} is not in:\n{help}");
        }
    }
    let Ok(chart) = Chart::with_built() else {
        return Ok(());
    };
    let cgpu = Programs::for_tests()?.program("cgpu")?;
    for mode in ["install", "uninstall"] {
        let help = help_of(&cgpu, &[mode, "--help"])?;
        let pod = pod_of(&chart, mode)?;
        let args = pod["initContainers"][0]["args"].as_array().cloned();
        for argument in args.context("arguments")?.iter().skip(1) {
            let argument = argument.as_str().context("a text")?;
            let option = argument.split('=').next().unwrap_or(argument);
            ensure!(help.contains(option), "{option} is not in:\n{help}");
        }
    }
    Ok(())
}

#[test]
fn the_server_takes_every_object_of_the_chart() -> Result<()> {
    on_control_plane(
        "the_server_takes_every_object_of_the_chart",
        Extent::Server,
        takes_every_object,
    )
}

fn takes_every_object(plane: &ControlPlane) -> Result<()> {
    let kubectl = plane.kubectl();
    kubectl
        .run(&["create", "namespace", CHART_NAMESPACE])?
        .success()?;
    let kept = kept_rendering();
    let file = kept.to_string_lossy();
    let dry = [
        "apply",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        &file,
    ];
    let dry = kubectl.run(&dry)?.success()?.stdout;
    let count = objects(&fs::read_to_string(&kept)?)?.len();
    assert_eq!(dry.lines().count(), count, "{dry}");
    // Examples that are no part of it; the namespace is the default one.
    let example = repository().join("examples/kubernetes/autoscale.yaml");
    let example = example.to_string_lossy();
    let dry = kubectl.run(&[
        "create",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        &example,
    ])?;
    let dry = dry.success()?.stdout;
    assert_eq!(dry.lines().count(), 3, "{dry}");
    // For good, and again.
    kubectl
        .run(&["apply", "--validate=strict", "-f", &file])?
        .success()?;
    let again = kubectl
        .run(&["apply", "--validate=strict", "-f", &file])?
        .success()?
        .stdout;
    // The server's defaults make some of them "configured"; none is another one.
    ensure!(!again.contains("created"), "{again}");
    Ok(())
}

#[test]
fn helm_installs_the_chart_and_takes_all_of_it_away() -> Result<()> {
    let test = "helm_installs_the_chart_and_takes_all_of_it_away";
    let chart = match Chart::with_built() {
        Ok(chart) => chart,
        Err(reason) => skip!(test, "{reason}"),
    };
    on_control_plane(test, Extent::Server, |plane| installed(plane, &chart))
}

fn installed(plane: &ControlPlane, chart: &Chart) -> Result<()> {
    let kubectl = plane.kubectl();
    let installed = objects(&fs::read_to_string(kept_rendering())?)?;
    let there = || -> Result<usize> {
        let mut count = 0;
        for object in &installed {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (kind, name) = (text(&object["kind"]), text(&object["metadata"]["name"]));
            let found = kubectl.run(&["get", &kind, &name, "--namespace", CHART_NAMESPACE])?;
            ensure!(
                found.succeeded() || found.stderr.contains("NotFound"),
                "{found:?}"
            );
            count += usize::from(found.succeeded());
        }
        Ok(count)
    };
    let install = ["install", "cgpu", "CHART", "--create-namespace"];
    chart.on(plane, &install)?.success()?;
    assert_eq!(there()?, installed.len());
    // With other values, over the former.
    let upgrade = ["upgrade", "cgpu", "CHART", "--set", "classic.enabled=false"];
    chart.on(plane, &upgrade)?.success()?;
    ensure!(
        there()? < installed.len(),
        "the classic policies are still there"
    );
    // With what brings programs to nodes, and what takes them away.
    for mode in ["install", "uninstall"] {
        let value = format!("install.mode={mode}");
        let upgrade = ["upgrade", "cgpu", "CHART", "--set", &value];
        chart.on(plane, &upgrade)?.success()?;
        let set = kubectl.get(&["daemonset", "cgpu-agent", "--namespace", CHART_NAMESPACE])?;
        let init = &set["spec"]["template"]["spec"]["initContainers"][0];
        assert_eq!(init["name"], mode);
    }
    chart.on(plane, &["uninstall", "cgpu"])?.success()?;
    assert_eq!(there()?, 0);
    Ok(())
}
