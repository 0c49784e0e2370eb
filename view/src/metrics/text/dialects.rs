//! The same figures by the names of other exporters, for dashboards that were made for those.
//!
//! Names, labels and units are theirs, also where Prometheus' conventions have others:
//! - `ack`: the exporter of Alibaba Cloud's GPU sharing (port 9445), as `arena top` reads it;
//! - `dcgm`: NVIDIA's dcgm-exporter (`etc/default-counters.csv`), and the `DCGM_CUSTOM_…` of Alibaba Cloud's GPU monitoring 2.0;
//! - `hami`: Project HAMi's scheduler and monitor (`cmd/scheduler/metrics.go`, `cmd/vGPUmonitor/metrics.go`).

use std::str::FromStr;

use crate::metrics::text::family::{Family, Labels};
use crate::metrics::text::table::{Metric, Samples, families};
use crate::metrics::{CardMetrics, ContainerMetrics, Metrics, SliceMetrics};

/// Whose names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Ours.
    Cgpu,
    /// Alibaba Cloud's.
    Ack,
    /// NVIDIA's.
    Dcgm,
    /// HAMi's.
    Hami,
}

impl FromStr for Dialect {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "cgpu" => Ok(Self::Cgpu),
            "ack" => Ok(Self::Ack),
            "dcgm" => Ok(Self::Dcgm),
            "hami" => Ok(Self::Hami),
            _ => Err("expected cgpu, ack, dcgm or hami".to_owned()),
        }
    }
}

impl Dialect {
    /// The families of a dialect that is not ours.
    pub(super) fn families(
        self,
        metrics: &Metrics,
        containers: &[&ContainerMetrics],
    ) -> Vec<Family> {
        let node = metrics.exporter.node.as_str();
        let slices: Vec<Slice> = containers
            .iter()
            .flat_map(|container| slices_of(container, &metrics.cards))
            .collect();
        match self {
            Self::Cgpu => Vec::new(),
            Self::Ack => ack(metrics, &slices, node),
            Self::Dcgm => dcgm(metrics, &slices, node),
            Self::Hami => hami(metrics, &slices, node),
        }
    }
}

/// A slice with its container and its card.
struct Slice {
    slice: SliceMetrics,
    card: CardMetrics,
    /// Its place among the container's slices.
    place: usize,
    namespace: String,
    pod: String,
    container: String,
}

impl Slice {
    fn is_whole_card(&self) -> bool {
        self.slice.quota_bytes >= Some(self.card.memory_bytes)
    }
}

/// Those on cards that are there.
fn slices_of(of: &ContainerMetrics, cards: &[CardMetrics]) -> Vec<Slice> {
    let (namespace, pod, container) = match &of.pod {
        Some(pod) => (
            pod.namespace.as_str(),
            pod.name.as_str(),
            pod.container.as_str(),
        ),
        None => (of.namespace.as_str(), "", of.name.as_str()),
    };
    let slices = of.slices.iter().enumerate();
    let joined = slices.filter_map(|(place, slice)| {
        let card = cards.iter().find(|card| card.uuid == slice.row.uuid)?;
        Some(Slice {
            slice: slice.clone(),
            card: card.clone(),
            place,
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            container: container.to_owned(),
        })
    });
    joined.collect()
}

fn labels<const N: usize>(labels: [(&'static str, &str); N]) -> Labels {
    labels
        .map(|(name, value)| (name, value.to_owned()))
        .to_vec()
}

/// A gauge.
macro_rules! gauge {
    ($name:literal, $help:literal, $value:expr) => {
        Metric {
            name: $name,
            help: $help,
            samples: Samples::Gauge($value),
        }
    };
}

const MIB: u64 = 1 << 20;

/// Parts of a million as whole percent.
fn percent(ppm: Option<u64>) -> Option<u64> {
    ppm.map(|ppm| (ppm + 5_000) / 10_000)
}

const ACK_SLICE: &[Metric<Slice>] = &[
    gauge!(
        "nvidia_gpu_duty_cycle",
        "Percent of a GPU's time that is used",
        |of| percent(of.slice.row.share.used_ppm)
    ),
    gauge!(
        "nvidia_gpu_memory_total_bytes",
        "Memory of a GPU that is given",
        |of| of.slice.quota_bytes
    ),
    gauge!(
        "nvidia_gpu_memory_used_bytes",
        "Memory of a GPU that is used",
        |of| of.slice.row.used_bytes
    ),
];
/// Of cards that nobody shares.
const ACK_FREE_CARD: &[Metric<CardMetrics>] = &[
    gauge!(
        "nvidia_gpu_duty_cycle",
        "Percent of a GPU's time that is used",
        |of| of.figures.utilization_percent.map(u64::from)
    ),
    gauge!(
        "nvidia_gpu_memory_total_bytes",
        "Memory of a GPU that is given",
        |of| Some(of.memory_bytes)
    ),
    gauge!(
        "nvidia_gpu_memory_used_bytes",
        "Memory of a GPU that is used",
        |of| of.figures.memory_used_bytes
    ),
];
const ACK_CARD: &[Metric<CardMetrics>] = &[
    gauge!(
        "nvidia_gpu_power_usage_milliwatts",
        "Power that a GPU draws",
        |of| of.figures.power_milliwatts.map(u64::from)
    ),
    gauge!(
        "nvidia_gpu_temperature_celsius",
        "Temperature of a GPU",
        |of| of.figures.temperature_celsius.map(u64::from)
    ),
];
const ACK_NODE: &[Metric<usize>] = &[gauge!(
    "nvidia_gpu_num_devices",
    "GPUs of the node",
    |count| u64::try_from(*count).ok()
)];

fn ack(metrics: &Metrics, slices: &[Slice], node: &str) -> Vec<Family> {
    let of = |card: &CardMetrics, mode: &str, [namespace, pod, container]: [&str; 3]| {
        labels([
            ("allocate_mode", mode),
            ("container_name", container),
            ("minor_number", &card.minor.to_string()),
            ("name", &card.model),
            ("namespace_name", namespace),
            ("node_name", node),
            ("pod_name", pod),
            ("uuid", &card.uuid),
        ])
    };
    let shared = slices.iter().map(|slice| {
        let mode = if slice.is_whole_card() {
            "exclusive"
        } else {
            "share"
        };
        let names = [&*slice.namespace, &*slice.pod, &*slice.container];
        (of(&slice.card, mode, names), slice)
    });
    let shared: Vec<_> = shared.collect();
    let cards = metrics.cards.iter();
    let cards: Vec<_> = cards
        .map(|card| (of(card, "exclusive", [""; 3]), card))
        .collect();
    let mut free = cards.clone();
    free.retain(|(_, card)| slices.iter().all(|slice| slice.card.uuid != card.uuid));
    let count = metrics.cards.len();
    let mut all = families(ACK_SLICE, &shared);
    for (family, more) in all.iter_mut().zip(families(ACK_FREE_CARD, &free)) {
        family.join(more);
    }
    all.extend(families(ACK_CARD, &cards));
    all.extend(families(
        ACK_NODE,
        &[(labels([("node_name", node)]), &count)],
    ));
    all
}

const DCGM_CARD: &[Metric<CardMetrics>] = &[
    gauge!(
        "DCGM_FI_DEV_SM_CLOCK",
        "SM clock frequency (in MHz)",
        |of| { of.figures.sm_clock_mhz.map(u64::from) }
    ),
    gauge!(
        "DCGM_FI_DEV_MEM_CLOCK",
        "Memory clock frequency (in MHz)",
        |of| { of.figures.memory_clock_mhz.map(u64::from) }
    ),
    gauge!("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C)", |of| {
        of.figures.temperature_celsius.map(u64::from)
    }),
    Metric {
        name: "DCGM_FI_DEV_POWER_USAGE",
        help: "Power draw (in W)",
        samples: Samples::Ratio(|of| {
            of.figures
                .power_milliwatts
                .map(|power| f64::from(power) / 1e3)
        }),
    },
    gauge!("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %)", |of| {
        of.figures.utilization_percent.map(u64::from)
    }),
    gauge!(
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "Memory utilization (in %)",
        |of| { of.figures.memory_utilization_percent.map(u64::from) }
    ),
    gauge!(
        "DCGM_FI_DEV_FB_FREE",
        "Frame buffer memory free (in MB)",
        |of| { of.figures.memory_free_bytes.map(|bytes| bytes / MIB) }
    ),
    gauge!(
        "DCGM_FI_DEV_FB_USED",
        "Frame buffer memory used (in MB)",
        |of| { of.figures.memory_used_bytes.map(|bytes| bytes / MIB) }
    ),
    gauge!(
        "DCGM_CUSTOM_DEV_FB_TOTAL",
        "Frame buffer memory (in MB)",
        |of| { Some(of.memory_bytes / MIB) }
    ),
    gauge!(
        "DCGM_CUSTOM_DEV_FB_ALLOCATED",
        "Frame buffer memory given to containers (in MB)",
        |of| { Some(of.granted_bytes / MIB) }
    ),
    gauge!(
        "DCGM_CUSTOM_ALLOCATE_MODE",
        "0: none, 1: exclusive, 2: shared",
        |of| {
            Some(match of.containers {
                0 => 0,
                1 if of.granted_bytes >= of.memory_bytes => 1,
                _ => 2,
            })
        }
    ),
];
const DCGM_SLICE: &[Metric<Slice>] = &[
    gauge!(
        "DCGM_CUSTOM_PROCESS_SM_UTIL",
        "The container's use of the GPU's time (in %)",
        |of| { percent(of.slice.row.share.used_ppm) }
    ),
    gauge!(
        "DCGM_CUSTOM_PROCESS_MEM_USED",
        "Memory that the container uses (in MB)",
        |of| { of.slice.row.used_bytes.map(|bytes| bytes / MIB) }
    ),
    gauge!(
        "DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED",
        "Memory given to the container (in MB)",
        |of| { of.slice.quota_bytes.map(|bytes| bytes / MIB) }
    ),
    Metric {
        name: "DCGM_CUSTOM_CONTAINER_CP_ALLOCATED",
        help: "Part of the GPU's time given to the container (0 to 1)",
        samples: Samples::Ratio(|of| {
            let percent = u32::try_from(of.slice.row.share.percent?).ok()?;
            Some(f64::from(percent) / 100.0)
        }),
    },
];

fn dcgm(metrics: &Metrics, slices: &[Slice], node: &str) -> Vec<Family> {
    let of = |card: &CardMetrics| {
        labels([
            ("gpu", &card.index.to_string()),
            ("UUID", &card.uuid),
            ("pci_bus_id", &card.pci),
            ("device", &format!("nvidia{}", card.minor)),
            ("modelName", &card.model),
            ("Hostname", node),
        ])
    };
    let cards: Vec<_> = metrics.cards.iter().map(|card| (of(card), card)).collect();
    let shared = slices.iter().map(|slice| {
        let names = labels([
            ("container", &slice.container),
            ("namespace", &slice.namespace),
            ("pod", &slice.pod),
        ]);
        ([of(&slice.card), names].concat(), slice)
    });
    let shared: Vec<_> = shared.collect();
    let mut all = families(DCGM_CARD, &cards);
    all.extend(families(DCGM_SLICE, &shared));
    all
}

const HAMI_CARD: &[Metric<CardMetrics>] = &[
    gauge!("hami_gpu_memory_limit_bytes", "Memory of a device", |of| {
        Some(of.memory_bytes)
    }),
    gauge!(
        "hami_gpu_memory_allocated_bytes",
        "Memory of a device given to containers",
        |of| { Some(of.granted_bytes) }
    ),
    gauge!(
        "hami_gpu_shared_count",
        "Containers that share a device",
        |of| Some(of.containers)
    ),
    gauge!(
        "hami_host_gpu_memory_used_bytes",
        "Memory of a device in use",
        |of| { of.figures.memory_used_bytes }
    ),
    gauge!(
        "hami_host_gpu_utilization_ratio",
        "Use of a device's time (0 to 100)",
        |of| { of.figures.utilization_percent.map(u64::from) }
    ),
];
const HAMI_SLICE: &[Metric<Slice>] = &[
    gauge!(
        "hami_vgpu_memory_limit_bytes",
        "Memory given to a container",
        |of| { of.slice.quota_bytes }
    ),
    gauge!(
        "hami_vgpu_memory_used_bytes",
        "Memory that a container uses",
        |of| { of.slice.row.used_bytes }
    ),
    gauge!(
        "hami_container_device_utilization_ratio",
        "A container's use of a device's time (0 to 100)",
        |of| { percent(of.slice.row.share.used_ppm) }
    ),
];

fn hami(metrics: &Metrics, slices: &[Slice], node: &str) -> Vec<Family> {
    let cards = metrics.cards.iter().map(|card| {
        let names = labels([
            ("node", node),
            ("device_uuid", &card.uuid),
            ("device_index", &card.index.to_string()),
            ("device_type", &card.model),
        ]);
        (names, card)
    });
    let shared = slices.iter().map(|slice| {
        let names = labels([
            ("namespace", &slice.namespace),
            ("pod", &slice.pod),
            ("container", &slice.container),
            ("vdevice_index", &slice.place.to_string()),
            ("device_uuid", &slice.card.uuid),
        ]);
        (names, slice)
    });
    let mut all = families(HAMI_CARD, &cards.collect::<Vec<_>>());
    all.extend(families(HAMI_SLICE, &shared.collect::<Vec<_>>()));
    all
}
