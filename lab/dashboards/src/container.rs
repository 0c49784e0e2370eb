//! One container, and its neighbours.

use crate::Dashboard;
use crate::panel::{Kind, Panel, query, row};
use crate::variable::Variable;

const CHOSEN: &str =
    r#"{instance=~"$instance", namespace=~"$namespace", pod=~"$pod", name=~"$name"}"#;
/// What a container is called: its place in a pod, or its engine's name for it.
const NAME: &str = "{{pod}} {{container}} {{name}}";

pub(crate) fn dashboard() -> Dashboard {
    Dashboard {
        uid: "cgpu-container",
        title: "cgpu / Container",
        description: "One container, or several: quota and use, share of time, what was refused, what went wrong, and who else is on the GPU.",
        variables: vec![
            Variable::INSTANCE,
            Variable::NAMESPACE,
            Variable::POD,
            Variable::NAME,
        ],
        panels: [figures(), memory(), time(), neighbours(), trouble(), cost()]
            .into_iter()
            .flatten()
            .collect(),
    }
}

fn lines(
    (title, description): (&'static str, &'static str),
    unit: &'static str,
    queries: &[(&'static str, String)],
) -> Panel {
    let queries = queries.iter();
    Panel {
        title,
        description,
        kind: Kind::Lines,
        unit,
        queries: queries
            .map(|(legend, expression)| query(legend, expression))
            .collect(),
    }
}

fn of(metric: &str) -> String {
    format!("{metric}{CHOSEN}")
}

fn rate(counter: &str) -> String {
    format!("rate({counter}{CHOSEN}[$__rate_interval])")
}

fn increase(counter: &str) -> String {
    format!("increase({counter}{CHOSEN}[$__rate_interval])")
}

/// What all others have of the cards on which the chosen containers are.
fn others(metric: &str) -> String {
    let all = format!(r#"sum by (instance, uuid) ({metric}{{instance=~"$instance"}})"#);
    format!("{all} - on (instance, uuid) group_right () {metric}{CHOSEN}")
}

fn figures() -> Vec<Panel> {
    let stat = |(title, description), (unit, bad_from), expression| Panel {
        title,
        description,
        kind: Kind::Stat(bad_from),
        unit,
        queries: vec![query("", expression)],
    };
    let sum = |metric: &str| format!("sum({})", of(metric));
    vec![
        row("At a glance"),
        stat(
            ("Quota", "GPU memory that the containers may use."),
            ("bytes", None),
            sum("cgpu_memory_quota_bytes"),
        ),
        stat(
            ("Used", "GPU memory that they use."),
            ("bytes", None),
            sum("cgpu_memory_used_bytes"),
        ),
        stat(
            ("Peak", "Most GPU memory that they have used."),
            ("bytes", None),
            sum("cgpu_memory_peak_bytes"),
        ),
        stat(
            (
                "Allocations refused",
                "Allocations that exceeded the quota since the containers began. Programs report that memory is exhausted.",
            ),
            ("none", Some(1)),
            sum("cgpu_allocations_refused_total"),
        ),
        stat(
            (
                "Xid errors",
                "Errors that the driver reported of the containers since they began.",
            ),
            ("none", Some(1)),
            format!(
                "sum(cgpu_incidents_total{})",
                CHOSEN.replace('}', r#", kind="xid"}"#)
            ),
        ),
        stat(
            (
                "Throttled",
                "Part of the last minutes in which the containers had work and had to wait, since their share was used up.",
            ),
            ("percentunit", None),
            format!("avg(rate(cgpu_compute_throttled_seconds_total{CHOSEN}[5m]))"),
        ),
    ]
}

fn memory() -> Vec<Panel> {
    vec![
        row("Memory"),
        lines(
            (
                "Quota, use and peak",
                "What the container may use, uses, and has used at most. At the quota the next allocation is refused.",
            ),
            "bytes",
            &[
                (
                    "quota: {{pod}} {{container}} {{name}}",
                    of("cgpu_memory_quota_bytes"),
                ),
                (
                    "used: {{pod}} {{container}} {{name}}",
                    of("cgpu_memory_used_bytes"),
                ),
                (
                    "peak: {{pod}} {{container}} {{name}}",
                    of("cgpu_memory_peak_bytes"),
                ),
            ],
        ),
        lines(
            (
                "Allocations refused",
                "Allocations that exceeded the quota, in each step of the graph.",
            ),
            "none",
            &[(NAME, increase("cgpu_allocations_refused_total"))],
        ),
    ]
}

fn time() -> Vec<Panel> {
    vec![
        row("Time"),
        lines(
            (
                "Share: entitled and had",
                "Part of a GPU's time that the container is entitled to, and what it had. Less than entitled with work to do is worth a look.",
            ),
            "percentunit",
            &[
                (
                    "entitled: {{pod}} {{container}} {{name}}",
                    of("cgpu_compute_entitled_ratio"),
                ),
                (
                    "had: {{pod}} {{container}} {{name}}",
                    of("cgpu_compute_used_ratio"),
                ),
            ],
        ),
        lines(
            (
                "Throttled",
                "Part of the time in which the container had work and had to wait, since its share was used up: why it is slow.",
            ),
            "percentunit",
            &[(NAME, rate("cgpu_compute_throttled_seconds_total"))],
        ),
    ]
}

fn neighbours() -> Vec<Panel> {
    vec![
        row("Neighbours"),
        lines(
            (
                "Memory of others on the same GPU",
                "What all other containers on the GPU use together. It cannot take anything from the container's quota.",
            ),
            "bytes",
            &[(
                "beside {{pod}} {{container}} {{name}}",
                others("cgpu_memory_used_bytes"),
            )],
        ),
        lines(
            (
                "Time of others on the same GPU",
                "What all other containers on the GPU had of its time together. Copies, caches and bandwidth are not divided: a busy neighbour can cost speed.",
            ),
            "percentunit",
            &[(
                "beside {{pod}} {{container}} {{name}}",
                others("cgpu_compute_used_ratio"),
            )],
        ),
    ]
}

fn trouble() -> Vec<Panel> {
    vec![
        row("Trouble"),
        Panel {
            title: "Broker",
            description: "Whether the container's broker answers. While it does not, GPU calls wait or fail.",
            kind: Kind::States(["up", "down"]),
            unit: "none",
            queries: vec![query(NAME, of("cgpu_broker_up"))],
        },
        lines(
            (
                "Xid errors, lost GPUs, hung calls",
                "What the driver reported of the container, in each step of the graph.",
            ),
            "none",
            &[(
                "{{kind}}: {{pod}} {{container}} {{name}}",
                increase("cgpu_incidents_total"),
            )],
        ),
        lines(
            (
                "Violations and replaced brokers",
                "Violation: the driver counted more memory than cgpu. A replaced broker loses no call.",
            ),
            "none",
            &[
                (
                    "violations: {{pod}} {{container}} {{name}}",
                    increase("cgpu_violations_total"),
                ),
                (
                    "replaced: {{pod}} {{container}} {{name}}",
                    increase("cgpu_broker_restarts_total"),
                ),
                (
                    "hung calls now: {{pod}} {{container}} {{name}}",
                    of("cgpu_hung_calls"),
                ),
            ],
        ),
    ]
}

fn cost() -> Vec<Panel> {
    let quantile = |part: &str| {
        let buckets = format!(
            "sum by (le) (rate(cgpu_call_duration_seconds_bucket{CHOSEN}[$__rate_interval]))"
        );
        format!("histogram_quantile({part}, {buckets})")
    };
    vec![
        row("Cost of isolation"),
        lines(
            (
                "Driver calls",
                "Calls that the broker decided, by what became of them. Kernel launches make none.",
            ),
            "ops",
            &[(
                "{{verdict}}",
                format!("sum by (verdict) ({})", rate("cgpu_calls_total")),
            )],
        ),
        lines(
            (
                "Duration of a driver call",
                "From the arrival of a call at the broker to its answer, the driver's own time included: half of all calls, and 99 of 100, are faster.",
            ),
            "s",
            &[("half", quantile("0.5")), ("99 of 100", quantile("0.99"))],
        ),
        lines(
            (
                "CPU time of cgpu's own processes",
                "Part of one processor that the container's supervisor, broker and executor use.",
            ),
            "percentunit",
            &[(NAME, rate("cgpu_process_cpu_seconds_total"))],
        ),
        lines(
            (
                "Host memory of cgpu's own processes",
                "Memory of the host that the container's supervisor, broker and executor use.",
            ),
            "bytes",
            &[(NAME, of("cgpu_process_memory_bytes"))],
        ),
    ]
}
