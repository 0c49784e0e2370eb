//! One card: who has what of it.

use crate::Dashboard;
use crate::panel::{Kind, Panel, query, row, stat};
use crate::variable::Variable;

const CARDS: &str = r#"{instance=~"$instance", uuid=~"$card"}"#;
/// What a container is called: its place in a pod, or its engine's name for it.
const CONTAINER: &str = "{{pod}} {{container}} {{name}}";

pub(crate) fn dashboard() -> Dashboard {
    Dashboard {
        uid: "cgpu-card",
        title: "cgpu / GPU",
        description: "One GPU, or several: who has what of its memory and time, and how it is.",
        variables: vec![Variable::INSTANCE, Variable::CARD],
        panels: [figures(), memory(), time(), hardware()]
            .into_iter()
            .flatten()
            .collect(),
    }
}

fn lines(
    (title, description): (&'static str, &'static str),
    unit: &'static str,
    legend: &'static str,
    expression: String,
) -> Panel {
    Panel {
        title,
        description,
        kind: Kind::Lines,
        unit,
        queries: vec![query(legend, expression)],
    }
}

fn figures() -> Vec<Panel> {
    vec![
        row("At a glance"),
        stat(
            "Containers",
            "Containers that have a part of the GPU.",
            ("none", None),
            format!("sum(cgpu_card_containers{CARDS})"),
        ),
        stat(
            "Memory",
            "All memory that can be granted.",
            ("bytes", None),
            format!("sum(cgpu_card_memory_bytes{CARDS})"),
        ),
        stat(
            "Memory granted",
            "What is granted to containers, used or not.",
            ("bytes", None),
            format!("sum(cgpu_card_granted_bytes{CARDS})"),
        ),
        stat(
            "Memory used",
            "What containers use. Contexts count; the driver's own memory does not.",
            ("bytes", None),
            format!("sum(cgpu_memory_used_bytes{CARDS}) or vector(0)"),
        ),
        stat(
            "Time reserved",
            "Part of the GPU's time that is reserved for containers, used or not.",
            ("percentunit", None),
            format!("avg(cgpu_card_compute_reserved_ratio{CARDS})"),
        ),
        stat(
            "Time left",
            "Part of the GPU's time that can still be reserved.",
            ("percentunit", None),
            format!("avg(cgpu_card_compute_left_ratio{CARDS})"),
        ),
        Panel {
            title: "Health",
            description: "Whether new containers are placed on the GPU. The table below has the reason why not.",
            kind: Kind::States(["healthy", "unhealthy"]),
            unit: "none",
            queries: vec![query(
                "{{instance}} GPU {{minor}}",
                format!("max by (instance, uuid, minor) (cgpu_card_healthy{CARDS})"),
            )],
        },
        Panel {
            title: "Model and driver",
            description: "What the GPU is, and why nothing is placed on it where that is so.",
            kind: Kind::Table,
            unit: "none",
            queries: vec![query(
                "Healthy (bool_yes_no)",
                format!(
                    "max by (instance, uuid, minor, reason) (cgpu_card_healthy{CARDS}) * on (instance, uuid) group_left (model, driver_version, pci, mode) max by (instance, uuid, model, driver_version, pci, mode) (cgpu_card_info{CARDS})"
                ),
            )],
        },
    ]
}

fn memory() -> Vec<Panel> {
    let of_container = |metric: &str| query(CONTAINER, format!("{metric}{CARDS}"));
    vec![
        row("Memory"),
        Panel {
            title: "Memory used by container",
            description: "What each container uses of the GPU's memory, on top of each other.",
            kind: Kind::Stack,
            unit: "bytes",
            queries: vec![of_container("cgpu_memory_used_bytes")],
        },
        Panel {
            title: "Quotas by container",
            description: "What each container may use, on top of each other. Granted memory is nobody else's, used or not.",
            kind: Kind::Stack,
            unit: "bytes",
            queries: vec![of_container("cgpu_memory_quota_bytes")],
        },
    ]
}

fn time() -> Vec<Panel> {
    let of_container = |metric: &str| format!("{metric}{CARDS}");
    let stack = |title, description, metric| Panel {
        title,
        description,
        kind: Kind::Stack,
        unit: "percentunit",
        queries: vec![query(CONTAINER, of_container(metric))],
    };
    vec![
        row("Time"),
        stack(
            "Time used by container",
            "Part of the GPU's time that each container had in the last second or so, on top of each other.",
            "cgpu_compute_used_ratio",
        ),
        stack(
            "Time that containers are entitled to",
            "Part of the GPU's time that each container is entitled to among those that are there now.",
            "cgpu_compute_entitled_ratio",
        ),
        lines(
            (
                "Throttled",
                "Part of the time in which a container had work and had to wait, since its share was used up.",
            ),
            "percentunit",
            CONTAINER,
            format!("rate(cgpu_compute_throttled_seconds_total{CARDS}[$__rate_interval])"),
        ),
        lines(
            (
                "Shares that could not be enforced",
                "How often a container's share could not be held. See the alert CgpuShareNotHeld.",
            ),
            "none",
            CONTAINER,
            format!("increase(cgpu_compute_alarms_total{CARDS}[$__rate_interval])"),
        ),
    ]
}

/// What NVML reports, which simulated cards do not have.
fn hardware() -> Vec<Panel> {
    let of_card = |metric: &str| format!("{metric}{CARDS}");
    let name = "{{instance}} GPU {{minor}}";
    let mut memory = lines(
        (
            "Memory in use, by whatever program",
            "What the driver counts on the whole GPU, and what containers with a quota use of it. Contexts of the driver's own are in the difference.",
        ),
        "bytes",
        "driver: {{instance}} GPU {{minor}}",
        of_card("cgpu_card_memory_used_bytes"),
    );
    memory.queries.push(query(
        "containers: {{instance}} {{uuid}}",
        format!("sum by (instance, uuid) (cgpu_memory_used_bytes{CARDS})"),
    ));
    let mut utilization = lines(
        (
            "Utilization",
            "Part of the time in which a kernel ran, and in which memory was read or written. One small kernel makes it 100 %.",
        ),
        "percentunit",
        "kernels: {{instance}} GPU {{minor}}",
        of_card("cgpu_card_utilization_ratio"),
    );
    utilization.queries.push(query(
        "memory: {{instance}} GPU {{minor}}",
        of_card("cgpu_card_memory_utilization_ratio"),
    ));
    vec![
        row("Hardware (real GPUs alone)"),
        memory,
        utilization,
        lines(
            ("Temperature", "Temperature of the GPU."),
            "celsius",
            name,
            of_card("cgpu_card_temperature_celsius"),
        ),
        lines(
            ("Power", "Power that the GPU draws."),
            "watt",
            name,
            of_card("cgpu_card_power_watts"),
        ),
        lines(
            (
                "Clocks",
                "Clock of the multiprocessors and of the memory. They fall when the GPU is idle, hot, or short of power.",
            ),
            "hertz",
            "{{clock}}: {{instance}} GPU {{minor}}",
            of_card("cgpu_card_clock_hertz"),
        ),
    ]
}
