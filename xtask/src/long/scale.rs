//! `cargo xtask long scale`: Kubernetes' own scheduler and the policies with many nodes and pods, as far as two processors carry them.
//!
//! Nodes are objects with slices of eight cards. Pods are classic ones, so that each goes through the translating policy, gets a claim by
//! Kubernetes' controller, and is placed by its scheduler, all with their servers' own limits of calls a second.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use integration::cache::repository;
use integration::cluster::{
    Card, ControlPlane, Extent, Kubectl, KubernetesPrograms, apply, slice, template,
};
use integration::command::{capture, progress};
use integration::node::Node;
use integration::skip;
use serde_json::{Value, json};

use crate::machine;

const CARDS: usize = 8;
const CARD_GIB: u64 = 80;
/// Of each pod: eight of its shape fill a card's memory to four fifths, and its time.
const POD_GIB: u64 = 8;
const POD_PERCENT: u64 = 12;
const TEMPLATE: &str = "cgpu-m8-c12-x1";

/// Objects of one file of `kubectl create`.
const BATCH: usize = 500;

/// Without another pod placed for so long, the rest is given up.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(clap::Args)]
pub(super) struct Options {
    /// Nodes and pods of each curve, as in `100x500`; may be given again.
    #[arg(long, default_values = ["10x200", "100x500", "300x1000", "1000x2000"])]
    curve: Vec<String>,
}

/// What was measured with so many nodes and pods.
struct Row {
    nodes: usize,
    pods: usize,
    placed: usize,
    seconds: f64,
    latencies: Vec<f64>,
    slice_bytes: usize,
    /// Of the API server, from the first pod to the last.
    calls: f64,
    processor_seconds: f64,
    resident_bytes: f64,
}

pub(super) fn run(options: &Options) -> Result<ExitCode> {
    if let Some(reason) = skip::lacks_root() {
        bail!("the cluster {reason}: it is in namespaces of its own");
    }
    let programs = KubernetesPrograms::build().context("building Kubernetes")?;
    let began = Instant::now();
    let mut rows = Vec::new();
    for curve in &options.curve {
        let (nodes, pods) = curve
            .split_once('x')
            .with_context(|| format!("--curve {curve}: nodes, x, pods, as in 100x500"))?;
        let row = measure(&programs, nodes.parse()?, pods.parse()?)?;
        progress(&line(&row));
        rows.push(row);
    }
    let page = repository().join("docs/reports/scale.md");
    fs::write(&page, document(&rows, began.elapsed()))?;
    println!("wrote {}", page.display());
    Ok(ExitCode::SUCCESS)
}

fn measure(programs: &KubernetesPrograms, nodes: usize, pods: usize) -> Result<Row> {
    progress(&format!("{nodes} nodes, {pods} pods"));
    let node = Node::bare()?;
    let plane = ControlPlane::start(&node, programs, Extent::Whole)?;
    let kubectl = plane.kubectl();
    apply(&kubectl)?;
    post_nodes(&kubectl, &node, nodes)?;
    kubectl.create(&template(TEMPLATE, "default")?)?;
    let slice_bytes = slice("node-0000", &cards("node-0000")).to_string().len();
    let before = Server::look(&kubectl)?;
    let seen = Seen::watch(&kubectl)?;
    let began = Instant::now();
    let all: Vec<Value> = (0..pods).map(pod).collect();
    create_all(&kubectl, &node, "pods", &all)?;
    let (placed, seconds) = seen.wait(pods, began);
    let after = Server::look(&kubectl)?;
    let latencies = seen.latencies();
    drop(seen);
    plane.finish()?;
    node.finish()?;
    Ok(Row {
        nodes,
        pods,
        placed,
        seconds,
        latencies,
        slice_bytes,
        calls: after.calls - before.calls,
        processor_seconds: after.processor_seconds - before.processor_seconds,
        resident_bytes: after.resident_bytes,
    })
}

fn cards(node: &str) -> Vec<Card> {
    (0..CARDS)
        .map(|index| Card::new(index, node, CARD_GIB))
        .collect()
}

/// Nodes are posted with their status, as a kubelet does.
fn post_nodes(kubectl: &Kubectl, node: &Node, count: usize) -> Result<()> {
    let names: Vec<String> = (0..count).map(|one| format!("node-{one:04}")).collect();
    let capacity = json!({"cpu": "64", "memory": "512Gi", "pods": "110"});
    let objects: Vec<Value> = names
        .iter()
        .map(|name| {
            json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
                "status": {
                    "allocatable": capacity, "capacity": capacity,
                    "conditions": [{"type": "Ready", "status": "True", "reason": "Posted", "message": "a node without a kubelet"}],
                },
            })
        })
        .collect();
    create_all(kubectl, node, "nodes", &objects)?;
    let taint = "node.kubernetes.io/not-ready:NoSchedule-";
    let mut untaint = kubectl.command(&["taint", "nodes", "--all", taint])?;
    capture(&mut untaint, Duration::from_secs(900))?.success()?;
    let slices: Vec<Value> = names.iter().map(|name| slice(name, &cards(name))).collect();
    create_all(kubectl, node, "slices", &slices)
}

fn pod(number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("pod-{number:05}")},
        "spec": {"containers": [{"name": "app", "image": "registry.example.com/app", "resources": {"limits": {
            "aliyun.com/gpu-mem": POD_GIB, "aliyun.com/gpu-core.percentage": POD_PERCENT,
        }}}]},
    })
}

fn create_all(kubectl: &Kubectl, node: &Node, what: &str, objects: &[Value]) -> Result<()> {
    for (number, batch) in objects.chunks(BATCH).enumerate() {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": batch});
        let path = node.root().join(format!("{what}-{number}.json"));
        fs::write(&path, list.to_string())?;
        let path = path.to_string_lossy();
        let mut create = kubectl.command(&["create", "--validate=false", "-f", &path])?;
        let created = capture(&mut create, Duration::from_secs(900))?.success()?;
        ensure!(
            created.stdout.lines().count() == batch.len(),
            "{what}: {}",
            created.stderr
        );
    }
    Ok(())
}

/// When a pod was first seen, and when with a node.
type Moments = BTreeMap<String, (Instant, Option<Instant>)>;

/// Pods as a watch shows them.
struct Seen {
    moments: Arc<Mutex<Moments>>,
    watch: std::process::Child,
}

impl Seen {
    fn watch(kubectl: &Kubectl) -> Result<Self> {
        let shape = "jsonpath={.metadata.name} {.spec.nodeName}{\"\\n\"}";
        let mut command = kubectl.command(&["get", "pods", "--watch", "-o", shape])?;
        let mut watch = command
            .stdout(Stdio::piped())
            .spawn()
            .context("watching pods")?;
        let output = watch.stdout.take().context("a pipe")?;
        let moments: Arc<Mutex<Moments>> = Arc::default();
        let written = Arc::clone(&moments);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let now = Instant::now();
                let (name, node) = line.split_once(' ').unwrap_or((&line, ""));
                let mut moments = written.lock().unwrap_or_else(PoisonError::into_inner);
                let moment = moments.entry(name.to_owned()).or_insert((now, None));
                if !node.is_empty() && moment.1.is_none() {
                    moment.1 = Some(now);
                }
            }
        });
        Ok(Self { moments, watch })
    }

    fn moments(&self) -> Moments {
        let moments = self.moments.lock();
        moments.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many have a node, and how long the last of them took.
    fn wait(&self, pods: usize, began: Instant) -> (usize, f64) {
        loop {
            let moments = self.moments();
            let placed: Vec<Instant> = moments.values().filter_map(|(_, placed)| *placed).collect();
            let last = placed.iter().max().copied().unwrap_or(began);
            if placed.len() >= pods || last.elapsed() > PATIENCE {
                return (placed.len(), last.duration_since(began).as_secs_f64());
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    /// From the first sight of each placed pod to its node, seconds, sorted.
    fn latencies(&self) -> Vec<f64> {
        let moments = self.moments();
        let mut all: Vec<f64> = moments
            .values()
            .filter_map(|(seen, placed)| Some(placed.as_ref()?.duration_since(*seen).as_secs_f64()))
            .collect();
        all.sort_by(f64::total_cmp);
        all
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        drop(self.watch.kill());
        drop(self.watch.wait());
    }
}

/// The API server's own figures.
struct Server {
    calls: f64,
    processor_seconds: f64,
    resident_bytes: f64,
}

impl Server {
    fn look(kubectl: &Kubectl) -> Result<Self> {
        let text = kubectl
            .run(&["get", "--raw", "/metrics"])?
            .success()?
            .stdout;
        let sum = |metric: &str| -> f64 {
            let of_metric = text.lines().filter(|line| {
                let rest = line.strip_prefix(metric);
                rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
            });
            of_metric
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum()
        };
        Ok(Self {
            calls: sum("apiserver_request_total"),
            processor_seconds: sum("process_cpu_seconds_total"),
            resident_bytes: sum("process_resident_memory_bytes"),
        })
    }
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index of a short list"
    )]
    let at = (part * last as f64).ceil() as usize;
    sorted.get(at.min(last)).copied().unwrap_or(f64::NAN)
}

fn line(row: &Row) -> String {
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    let (placed, pods) = (row.placed as f64, row.pods as f64);
    format!(
        "| {} | {} | {} | {:.1} | {:.1} | {:.1} | {:.1} | {:.0} | {:.0} | {:.0} |",
        row.nodes,
        row.pods,
        row.placed,
        placed / row.seconds.max(0.001),
        quantile(&row.latencies, 0.5),
        quantile(&row.latencies, 0.99),
        row.calls / pods,
        row.processor_seconds * 1000.0 / pods,
        row.resident_bytes / (1024.0 * 1024.0),
        row.slice_bytes,
    )
}

fn document(rows: &[Row], took: Duration) -> String {
    let mut table = String::new();
    for row in rows {
        let _never = writeln!(table, "{}", line(row));
    }
    format!(
        "# Scale\n\nWritten by `cargo xtask long scale`; {} s in all, {}.\n\n\
         Kubernetes 1.36.3, its etcd, API server, scheduler and controllers beside each other on these processors, with their own limits of calls a second (the\n\
         controllers' 20, the scheduler's 50). Nodes are objects with a slice of {CARDS} cards each. Pods are classic ones of {POD_GIB} GiB and {POD_PERCENT} % of a card: each is\n\
         translated by the policy, gets a claim by Kubernetes' controller, and is placed by its scheduler. No kubelet runs. A pod's time is from its first sight to its node, by a\n\
         watch: pods are created faster than they are placed, so that it is the length of the queue. Calls and processor time are the API server's, of everything that is\n\
         asked meanwhile.\n\n\
         | nodes | pods | placed | pods/s | s, median | s, p99 | calls a pod | API server's ms a pod | its MiB | bytes of a slice |\n\
         |---|---|---|---|---|---|---|---|---|---|\n{table}",
        took.as_secs(),
        machine::describe(),
    )
}
