//! All hosts at a glance.

use crate::Dashboard;
use crate::panel::{Kind, Panel, query, row, stat};
use crate::variable::Variable;

const HOSTS: &str = r#"{instance=~"$instance"}"#;

pub(crate) fn dashboard() -> Dashboard {
    Dashboard {
        uid: "cgpu-cluster",
        title: "cgpu / Cluster",
        description: "All GPUs that containers share, host by host: what is granted, what is used, what is wrong.",
        variables: vec![Variable::INSTANCE],
        panels: [figures(), memory(), time(), trouble(), lists()]
            .into_iter()
            .flatten()
            .collect(),
    }
}

fn figures() -> Vec<Panel> {
    let count = |metric: &str| format!("count({metric}{HOSTS}) or vector(0)");
    vec![
        row("At a glance"),
        stat(
            "Hosts",
            "Hosts whose agent is scraped.",
            ("none", None),
            count("cgpu_build_info"),
        ),
        stat(
            "GPUs",
            "GPUs of these hosts.",
            ("none", None),
            count("cgpu_card_info"),
        ),
        stat(
            "Containers",
            "Containers that have a part of a GPU.",
            ("none", None),
            count("cgpu_container_info"),
        ),
        stat(
            "Memory granted",
            "GPU memory that is granted to containers, used or not, as a part of all that can be granted.",
            ("percentunit", None),
            format!("sum(cgpu_card_granted_bytes{HOSTS}) / sum(cgpu_card_memory_bytes{HOSTS})"),
        ),
        stat(
            "Unhealthy GPUs",
            "GPUs on which no new containers are placed. See the alert CgpuCardUnhealthy.",
            ("none", Some(1)),
            format!("count(cgpu_card_healthy{HOSTS} == 0) or vector(0)"),
        ),
        stat(
            "Brokers down",
            "Containers whose broker does not answer: their GPU calls wait or fail. See the alert CgpuBrokerDown.",
            ("none", Some(1)),
            format!("count(cgpu_broker_up{HOSTS} == 0) or vector(0)"),
        ),
    ]
}

fn memory() -> Vec<Panel> {
    vec![
        row("Memory"),
        Panel {
            title: "GPU memory",
            description: "All memory that can be granted, what is granted to containers, and what they use of it.",
            kind: Kind::Lines,
            unit: "bytes",
            queries: vec![
                query("total", format!("sum(cgpu_card_memory_bytes{HOSTS})")),
                query("granted", format!("sum(cgpu_card_granted_bytes{HOSTS})")),
                query(
                    "used",
                    format!("sum(cgpu_memory_used_bytes{HOSTS}) or vector(0)"),
                ),
            ],
        },
        Panel {
            title: "Memory granted by GPU",
            description: "Part of each GPU's memory that is granted to containers.",
            kind: Kind::Bars,
            unit: "percentunit",
            queries: vec![query(
                "{{instance}} GPU {{minor}}",
                format!("cgpu_card_granted_bytes{HOSTS} / cgpu_card_memory_bytes{HOSTS}"),
            )],
        },
    ]
}

fn time() -> Vec<Panel> {
    vec![
        row("Time and containers"),
        Panel {
            title: "Time of GPUs that containers use",
            description: "Part of each GPU's time in which it ran kernels of containers.",
            kind: Kind::Lines,
            unit: "percentunit",
            queries: vec![query(
                "{{instance}} {{uuid}}",
                format!("sum by (instance, uuid) (cgpu_compute_used_ratio{HOSTS})"),
            )],
        },
        Panel {
            title: "Containers by host",
            description: "Containers that have a part of a GPU.",
            kind: Kind::Stack,
            unit: "none",
            queries: vec![query(
                "{{instance}}",
                format!("count by (instance) (cgpu_container_info{HOSTS})"),
            )],
        },
    ]
}

fn trouble() -> Vec<Panel> {
    vec![
        row("Trouble"),
        Panel {
            title: "Starts refused",
            description: "Containers that did not start for want of their vGPU: the request was wrong, the GPUs were full, or the host lacked something.",
            kind: Kind::Stack,
            unit: "none",
            queries: vec![query(
                "{{instance}} {{reason}}",
                format!("increase(cgpu_starts_refused_total{HOSTS}[$__rate_interval])"),
            )],
        },
        Panel {
            title: "Incidents",
            description: "Xid errors, lost GPUs, hung calls, violations, refused allocations and brokers that are gone, also of containers that have ended.",
            kind: Kind::Stack,
            unit: "none",
            queries: vec![query(
                "{{kind}}",
                format!("sum by (kind) (increase(cgpu_events_total{HOSTS}[$__rate_interval]))"),
            )],
        },
        Panel {
            title: "Figures that are missing",
            description: "Answers that did not come in time or could not be read, by who was asked. Their figures are absent from all panels.",
            kind: Kind::Stack,
            unit: "none",
            queries: vec![query(
                "{{instance}} {{source}}",
                format!("increase(cgpu_scrape_errors_total{HOSTS}[$__rate_interval])"),
            )],
        },
        Panel {
            title: "Driver calls",
            description: "Calls of containers that brokers decided, by what became of them. Kernel launches make none.",
            kind: Kind::Stack,
            unit: "ops",
            queries: vec![query(
                "{{verdict}}",
                format!("sum by (verdict) (rate(cgpu_calls_total{HOSTS}[$__rate_interval]))"),
            )],
        },
        Panel {
            title: "Health of GPUs",
            description: "Whether new containers are placed on a GPU.",
            kind: Kind::States(["healthy", "unhealthy"]),
            unit: "none",
            queries: vec![query(
                "{{instance}} GPU {{minor}}",
                format!("max by (instance, uuid, minor) (cgpu_card_healthy{HOSTS})"),
            )],
        },
    ]
}

fn lists() -> Vec<Panel> {
    let by = "instance, uuid, minor";
    let of_card = |metric: &str| format!("max by ({by}) ({metric}{HOSTS})");
    let of_container = "instance, namespace, pod, container, name";
    let top = |metric: &str| {
        format!(
            "sum by ({of_container}) ({metric}{HOSTS}) and topk(20, sum by ({of_container}) (cgpu_memory_used_bytes{HOSTS}))"
        )
    };
    vec![
        row("Lists"),
        Panel {
            title: "GPUs",
            description: "Each GPU, with what is granted and reserved of it.",
            kind: Kind::Table,
            unit: "none",
            queries: vec![
                query("Containers", of_card("cgpu_card_containers")),
                query("Memory (bytes)", of_card("cgpu_card_memory_bytes")),
                query("Granted (bytes)", of_card("cgpu_card_granted_bytes")),
                query(
                    "Time reserved (percentunit)",
                    of_card("cgpu_card_compute_reserved_ratio"),
                ),
            ],
        },
        Panel {
            title: "Containers that use most memory",
            description: "The twenty containers that use most GPU memory, on all their GPUs together.",
            kind: Kind::Table,
            unit: "none",
            queries: vec![
                query("Used (bytes)", top("cgpu_memory_used_bytes")),
                query("Quota (bytes)", top("cgpu_memory_quota_bytes")),
                query("Peak (bytes)", top("cgpu_memory_peak_bytes")),
                query("Refused", top("cgpu_allocations_refused_total")),
            ],
        },
    ]
}
