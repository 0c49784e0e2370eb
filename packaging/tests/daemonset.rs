//! The chart on a real kubelet whose host knows nothing of cgpu: its init container brings the programs of the image to the host and the
//! handler to the engine, a new image brings others while a pod runs, and all of it goes again.
//!
//! No service manager runs here. So the engine is restarted by `install.restart=signal`, and the test starts it again.

#[path = "common/build.rs"]
mod build;

use std::collections::BTreeSet;
use std::fs;
use std::panic::resume_unwind;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use integration::claims::cdi_folder;
use integration::cluster::{
    CHART_NAMESPACE, Chart, ControlPlane, Extent, Host, Kubectl, KubeletNode, Nth,
    on_control_plane, remove,
};
use integration::command::{LIMIT, Outcome, succeed, wait_until};
use integration::image::Image;
use integration::packages::Suite;
use integration::picture::{self, Picture, differences};
use integration::programs::{Programs, target_folder};
use integration::skip;
use packaging::{Build, Form, write};
use serde_json::{Value, json};

use self::build::{MAKERS, build, lacking};

const TEST: &str = "the_chart_installs_cgpu_on_a_node_and_takes_it_away";
const NAME: &str = "cgpu-node";
const GIB: u64 = 1 << 30;
/// `cgpu-burn` where memory is refused.
const NO_MEMORY: Option<i32> = Some(3);
/// The kubelet starts a failed init container again after 10 s, 20 s and so on.
const RETRIES: Duration = Duration::from_secs(300);
const VERSIONS: &str = "/opt/cgpu/versions/";

/// What Helm is given, beside the image.
struct Cluster<'a> {
    plane: &'a ControlPlane,
    chart: &'a Chart,
    kubectl: Kubectl,
    worker: KubeletNode,
}

impl Cluster<'_> {
    /// Waits as a node does: an engine that has ended is started again. How often that was.
    fn until(
        &mut self,
        what: &str,
        limit: Duration,
        mut probe: impl FnMut(&Kubectl) -> Result<bool>,
    ) -> Result<u32> {
        let (kubectl, engine) = (&self.kubectl, &mut self.worker.rig.engine);
        let mut starts = 0;
        wait_until(what, limit, || {
            starts += u32::from(engine.supervise()?);
            probe(kubectl)
        })?;
        Ok(starts)
    }

    fn helm(&self, verb: &str, image: &Image, mode: &str) -> Result<()> {
        let (repository, tag) = image.name.rsplit_once(':').context("a tag")?;
        let cdi = cdi_folder(&self.worker.rig.node);
        let values = [
            format!("image.repository={repository},image.tag={tag},image.pullPolicy=Never"),
            format!("install.mode={mode},classic.enabled=false,quota.enabled=false"),
            // Nobody serves `kubernetes.default` in this network.
            format!(
                "agent.hostNetwork=true,agent.arguments={{--api-server={}}}",
                self.plane.address()
            ),
            format!("agent.metricsPort=0,agent.cdiDir={}", cdi.display()),
        ]
        .join(",");
        let args = [
            verb,
            "cgpu",
            "CHART",
            "--create-namespace",
            "--set",
            &values,
        ];
        let args: Vec<&str> = args
            .into_iter()
            .filter(|arg| verb == "install" || *arg != "--create-namespace")
            .collect();
        self.chart.on(self.plane, &args)?.success()?;
        Ok(())
    }

    /// Waits until the chart's pod of this revision is there and no other. How often the engine was started again.
    fn rolled_out(&mut self, what: &str) -> Result<u32> {
        let starts = self.until(what, RETRIES, |kubectl| {
            let set = kubectl.get(&["daemonset", "cgpu-agent", "--namespace", CHART_NAMESPACE])?;
            let status = &set["status"];
            let is_one = |name: &str| status[name].as_u64() == Some(1);
            let seen = status["observedGeneration"] == set["metadata"]["generation"];
            let pods = kubectl.get(&["pods", "--namespace", CHART_NAMESPACE])?;
            let alone = pods["items"].as_array().is_some_and(|pods| pods.len() == 1);
            Ok(seen && is_one("updatedNumberScheduled") && is_one("numberReady") && alone)
        });
        starts.with_context(|| self.story())
    }

    /// What the chart's pods say.
    fn story(&self) -> String {
        let run = |args: &[&str]| {
            let all = [args, &["--namespace", CHART_NAMESPACE]].concat();
            let outcome = self.kubectl.run(&all);
            outcome.map_or_else(
                |error| format!("{error:#}"),
                |outcome| format!("{}{}", outcome.stdout, outcome.stderr),
            )
        };
        let label = "--selector=app.kubernetes.io/component=agent";
        [
            run(&["describe", "pods", label]),
            run(&["logs", label, "--all-containers", "--prefix", "--tail=40"]),
        ]
        .join("\n")
    }

    fn pod(&mut self, name: &str) -> Result<()> {
        self.kubectl.create(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "runtimeClassName": "cgpu",
                "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "six"}],
                "containers": [{
                    "name": "app", "image": self.worker.rig.image.name, "imagePullPolicy": "Never",
                    "command": ["sleep", "100000"], "resources": {"claims": [{"name": "gpu"}]},
                }],
            },
        }))?;
        let mut last = Value::Null;
        let runs = self.until(&format!("{name} to run"), LIMIT, |kubectl| {
            last = kubectl.get(&["pod", name])?;
            Ok(last["status"]["containerStatuses"][0]["state"]["running"].is_object())
        });
        runs.with_context(|| format!("at last: {last}"))?;
        Ok(())
    }

    fn exec(&self, pod: &str, program: &[&str]) -> Result<Outcome> {
        self.kubectl.run(&[&["exec", pod, "--"], program].concat())
    }

    /// The pod sees its claim, and is held to it.
    fn is_held(&self, pod: &str) -> Result<()> {
        let smi = self
            .exec(pod, &["cgpu", "smi", "--json"])?
            .success()?
            .json()?;
        let total = smi["cards"][0]["memory_total_bytes"].as_u64();
        ensure!(total == Some(6 * GIB), "{smi}");
        self.exec(pod, &["cgpu-burn", "alloc", "5Gi"])?.success()?;
        let over = self.exec(pod, &["cgpu-burn", "alloc", "7Gi"])?;
        ensure!(over.code == NO_MEMORY, "{over:?}");
        Ok(())
    }

    fn import(&mut self, image: &Image) -> Result<()> {
        self.worker.rig.engine.import(image)?;
        let rig = &self.worker.rig;
        wait_until("the image", LIMIT, || {
            let images = rig
                .crictl
                .crictl(rig.engine.as_ref(), &["images", "-o", "json"])?;
            Ok(images.success()?.stdout.contains(&image.name))
        })
    }
}

/// What `cgpu install` may change. The folder of containerd is the node's whole one: of that, its configuration.
fn host() -> Result<Picture> {
    let enters = |folder: &Path| folder != Path::new("/etc/containerd");
    let mut picture = Picture::new();
    for path in ["/etc", "/opt", "/etc/containerd/config.toml"] {
        picture::add(&mut picture, Path::new(path), &enters)?;
    }
    for path in [
        "/etc/containerd/conf.d",
        "/var/lib/cgpu/install.json",
        "/var/lib/cgpu/originals",
    ] {
        if fs::symlink_metadata(path).is_ok() {
            picture::add(&mut picture, Path::new(path), &enters)?;
        }
    }
    Ok(picture)
}

/// The version that `current` leads to.
fn current() -> Result<String> {
    let link = fs::read_link("/opt/cgpu/current")?;
    let name = link.file_name().context("a version")?;
    Ok(name.to_string_lossy().into_owned())
}

/// Programs of cgpu's that run from the copies: version and program.
fn running() -> Result<BTreeSet<(String, String)>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc")? {
        let Ok(program) = fs::read_link(entry?.path().join("exe")) else {
            continue;
        };
        let program = program.to_string_lossy();
        let Some((version, rest)) = program
            .strip_prefix(VERSIONS)
            .and_then(|rest| rest.split_once('/'))
        else {
            continue;
        };
        let name = rest.rsplit('/').next().unwrap_or(rest);
        found.insert((version.to_owned(), name.to_owned()));
    }
    Ok(found)
}

/// The image of this tree's programs, and one of which a program differs in a section that nobody reads.
fn images(folder: &Path) -> Result<[Image; 2]> {
    let programs = Programs::for_tests()?.folder();
    let others = tempfile::tempdir_in(target_folder())?;
    let others = others.path().join("programs");
    succeed(Command::new("cp").arg("-rl").arg(programs).arg(&others))?;
    let hook = others.join("cgpu-hook");
    fs::remove_file(&hook)?;
    let mut change = Command::new("objcopy");
    change
        .arg("--add-section=.cgpu.test=/etc/hostname")
        .arg(programs.join("cgpu-hook"))
        .arg(&hook);
    succeed(&mut change)?;
    let second = Build {
        programs: others,
        ..build(2)?
    };
    let made = |build: Build| -> Result<Image> {
        Ok(Image {
            name: build.image_name(NAME),
            tar: write(&build, &[Form::Image], folder)?
                .pop()
                .context("no image")?,
        })
    };
    Ok([made(build(1)?)?, made(second)?])
}

#[test]
fn the_chart_installs_cgpu_on_a_node_and_takes_it_away() -> Result<()> {
    if let Some(reason) = lacking(&[MAKERS.as_slice(), &["objcopy"]].concat()) {
        skip!(TEST, "{reason}");
    }
    let chart = match Chart::with_built() {
        Ok(chart) => chart,
        Err(reason) => skip!(TEST, "{reason}"),
    };
    on_control_plane(TEST, Extent::Whole, |plane| {
        let folder = tempfile::tempdir()?;
        let [first, second] = images(folder.path())?;
        // The host is a thread's, and goes with it.
        let done = std::thread::scope(|scope| {
            let host = scope.spawn(|| on_host(plane, &chart, [&first, &second]));
            host.join().unwrap_or_else(|panic| resume_unwind(panic))
        })?;
        if let Err(reason) = done {
            skip!(TEST, "{reason}");
        }
        Ok(())
    })
}

/// The inner error is a reason to skip aloud.
fn on_host(plane: &ControlPlane, chart: &Chart, images: [&Image; 2]) -> Result<Result<(), String>> {
    let worker = match KubeletNode::start_on(plane, Nth::First, Suite::Newer, Host::WithoutCgpu)? {
        Ok(worker) => worker,
        Err(reason) => return Ok(Err(reason)),
    };
    let kubectl = plane.kubectl();
    let mut cluster = Cluster {
        plane,
        chart,
        kubectl,
        worker,
    };
    for image in images {
        cluster.import(image)?;
    }
    let [first, second] = images;
    let before = host()?;
    installed(&mut cluster, first)?;
    upgraded(&mut cluster, second)?;
    uninstalled(&mut cluster, second, &before)?;
    let Cluster {
        worker, kubectl, ..
    } = cluster;
    chart.on(plane, &["uninstall", "cgpu"])?.success()?;
    let selector = ["pods", "--namespace", CHART_NAMESPACE];
    kubectl.wait("the chart's pods to end", &selector, |pods| {
        pods["items"].as_array().is_some_and(Vec::is_empty)
    })?;
    worker.finish()?;
    Ok(Ok(()))
}

/// The chart's pod brings cgpu to the node, whose engine is started again once, and a pod gets its claim.
fn installed(cluster: &mut Cluster<'_>, image: &Image) -> Result<()> {
    let began = Instant::now();
    cluster.helm("install", image, "install")?;
    let starts = cluster.rolled_out("the chart's pod")?;
    ensure!(starts == 1, "the engine was started again {starts} times");
    cluster.until("the node's slice", LIMIT, |kubectl| {
        let slices = kubectl.get(&["resourceslices"])?;
        Ok(slices["items"]
            .as_array()
            .is_some_and(|slices| !slices.is_empty()))
    })?;
    cluster.kubectl.create(&json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "six"},
        "spec": {"spec": {"devices": {"requests": [{"name": "vgpu", "exactly": {
            "deviceClassName": "vgpu.cgpu.io", "capacity": {"requests": {"memory": "6Gi"}},
        }}]}}},
    }))?;
    cluster.pod("first")?;
    let text = format!(
        "from `helm install` to the first pod with a claim, the image there: {:.0} s\n",
        began.elapsed().as_secs_f64()
    );
    print!("{text}");
    if let Some(path) = std::env::var_os("CGPU_NODE_SUMMARY") {
        fs::write(path, text)?;
    }
    cluster.is_held("first")?;
    let (version, running) = (current()?, running()?);
    for program in ["containerd-shim-cgpu-v2", "cgpu-broker"] {
        let expected = (version.clone(), program.to_owned());
        ensure!(
            running.contains(&expected),
            "{program} of {version} is not among {running:?}"
        );
    }
    Ok(())
}

/// Another image: who runs keeps the programs that it has, who comes gets the new ones, and the engine is left alone.
fn upgraded(cluster: &mut Cluster<'_>, image: &Image) -> Result<()> {
    let former = current()?;
    let engine = cluster.worker.rig.engine.pid();
    cluster.helm("upgrade", image, "install")?;
    let starts = cluster.rolled_out("the new image's pod")?;
    ensure!(
        (starts, cluster.worker.rig.engine.pid()) == (0, engine),
        "the engine was started again"
    );
    let newer = current()?;
    ensure!(newer != former, "{newer} is the former version");
    cluster.is_held("first")?;
    cluster.pod("second")?;
    cluster.is_held("second")?;
    let running = running()?;
    for version in [&former, &newer] {
        let expected = (version.clone(), "cgpu-broker".to_owned());
        ensure!(
            running.contains(&expected),
            "no broker of {version} is among {running:?}"
        );
    }
    Ok(())
}

/// Nothing goes while a pod runs from it; then all of it does.
fn uninstalled(cluster: &mut Cluster<'_>, image: &Image, before: &Picture) -> Result<()> {
    let installed = host()?;
    cluster.helm("upgrade", image, "uninstall")?;
    let mut reason = String::new();
    let refused = cluster.until("the refusal", LIMIT, |kubectl| {
        let pods = kubectl.get(&["pods", "--namespace", CHART_NAMESPACE])?;
        let pods = pods["items"].as_array().into_iter().flatten();
        let of_inits = pods.map(|pod| &pod["status"]["initContainerStatuses"][0]);
        let ended = of_inits
            .filter(|status| status["name"] == "uninstall")
            .flat_map(|status| [&status["state"], &status["lastState"]])
            .filter_map(|state| state["terminated"]["message"].as_str());
        reason = ended.collect::<Vec<_>>().join("\n");
        Ok(reason.contains("run from cgpu's programs"))
    });
    refused.with_context(|| format!("{reason}\n{}", cluster.story()))?;
    ensure!(
        host()? == installed,
        "something was removed under containers: {reason}"
    );
    cluster.is_held("first")?;
    remove(&cluster.kubectl, &["pod", "first", "second"])?;
    let starts = cluster.rolled_out("the removal")?;
    ensure!(starts == 1, "the engine was started again {starts} times");
    let left = differences(before, &host()?);
    ensure!(left.is_empty(), "changed: {left:?}");
    let info = cluster
        .worker
        .rig
        .crictl
        .crictl(cluster.worker.rig.engine.as_ref(), &["info"])?;
    ensure!(
        !info.success()?.stdout.contains("cgpu-v2"),
        "the engine still has the handler"
    );
    Ok(())
}
