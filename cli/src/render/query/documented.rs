//! Fields of `nvidia-smi --query-gpu` that a slice does not have, so that scripts that ask for more than they need go on: each is
//! `[N/A]`. The names are those that `nvidia-smi --help-query-gpu` and `--help-query-compute-apps` list (drivers 535 to 590).

/// Of GPUs: a unit as headings have it, and fields in this unit.
pub(super) const GPU: [(&str, &str); 6] = [
    (
        "",
        "serial gpu_serial gpu_name vbios_version hostname compute_mode compute_cap pstate addressing_mode gpu_recovery_action \
         pci.domain pci.bus pci.device pci.device_id pci.sub_device_id pci.baseClass pci.subClass \
         pcie.link.gen.current pcie.link.gen.gpucurrent pcie.link.gen.max pcie.link.gen.gpumax pcie.link.gen.hostmax \
         pcie.link.width.current pcie.link.width.max \
         display_mode display_attached display_active persistence_mode accounting.mode accounting.buffer_size \
         driver_model.current driver_model.pending gom.current gom.pending \
         inforom.img inforom.image inforom.oem inforom.ecc inforom.pwr inforom.power inforom.checksum_validation \
         encoder.stats.sessionCount encoder.stats.averageFps encoder.stats.averageLatency \
         dramEncryption.mode.current dramEncryption.mode.pending ecc.mode.current ecc.mode.pending \
         retired_pages.single_bit_ecc.count retired_pages.sbe retired_pages.double_bit.count retired_pages.dbe retired_pages.pending \
         remapped_rows.correctable remapped_rows.uncorrectable remapped_rows.pending remapped_rows.failure \
         remapped_rows.histogram.max remapped_rows.histogram.high remapped_rows.histogram.partial remapped_rows.histogram.low \
         remapped_rows.histogram.none \
         temperature.gpu temperature.gpu.tlimit temperature.memory power.management edpp_multiplier \
         mig.mode.current mig.mode.pending gsp.mode.current gsp.mode.default c2c.mode \
         fabric.state fabric.status fabric.cliqueId fabric.clusterUuid \
         platform.chassis_serial_number platform.slot_number platform.tray_index platform.host_id platform.peer_type \
         platform.module_id platform.gpu_fabric_guid",
    ),
    (
        "MiB",
        "memory.reserved protected_memory.total protected_memory.used protected_memory.free",
    ),
    (
        "%",
        "utilization.memory utilization.encoder utilization.decoder utilization.jpeg utilization.ofa fan.speed",
    ),
    (
        "W",
        "power.draw power.draw.average power.draw.instant power.limit enforced.power.limit power.default_limit power.min_limit \
         power.max_limit module.power.draw.average module.power.draw.instant module.power.limit module.enforced.power.limit \
         module.power.default_limit module.power.min_limit module.power.max_limit",
    ),
    (
        "MHz",
        "clocks.current.graphics clocks.gr clocks.current.sm clocks.sm clocks.current.memory clocks.mem clocks.current.video \
         clocks.video clocks.applications.graphics clocks.applications.gr clocks.applications.memory clocks.applications.mem \
         clocks.default_applications.graphics clocks.default_applications.gr clocks.default_applications.memory \
         clocks.default_applications.mem clocks.max.graphics clocks.max.gr clocks.max.sm clocks.max.memory clocks.max.mem",
    ),
    (
        "us",
        "clocks_event_reasons_counters.sw_power_cap clocks_event_reasons_counters.sync_boost \
         clocks_event_reasons_counters.sw_thermal_slowdown clocks_event_reasons_counters.hw_thermal_slowdown \
         clocks_event_reasons_counters.hw_power_brake_slowdown",
    ),
];

/// Names made of one word of each group, with dots between them.
pub(super) const GPU_COMBINED: [&[&str]; 3] = [
    &[
        "clocks_event_reasons clocks_throttle_reasons",
        "supported active gpu_idle applications_clocks_setting sw_power_cap hw_slowdown hw_thermal_slowdown \
         hw_power_brake_slowdown sw_thermal_slowdown sync_boost",
    ],
    &[
        "ecc.errors.corrected ecc.errors.uncorrected",
        "volatile aggregate",
        "device_memory dram register_file l1_cache l2_cache texture_memory cbu sram total",
    ],
    &[
        "ecc.errors.uncorrected.volatile.sram ecc.errors.uncorrected.aggregate.sram",
        "parity secded thresholdExceeded l2 sm mcu pcie other",
    ],
];

/// Of processes; none has a unit.
pub(super) const APPS: &str = "gpu_serial";

/// The unit of a documented field of a GPU, empty where it has none; `None`: there is no such field.
pub(super) fn unit_of(name: &str) -> Option<&'static str> {
    let mut alone = GPU.into_iter();
    let alone = alone.find(|(_, names)| names.split_whitespace().any(|it| it == name));
    let mut combined = GPU_COMBINED.into_iter();
    let mut is_combined = || combined.any(|groups| is_of(name, groups));
    alone
        .map(|(unit, _)| unit)
        .or_else(|| is_combined().then_some(""))
}

/// Whether a name is a word of each group.
fn is_of(name: &str, groups: &[&str]) -> bool {
    let Some((first, rest)) = groups.split_first() else {
        return name.is_empty();
    };
    first.split_whitespace().any(|word| {
        let behind = name.strip_prefix(word);
        behind.is_some_and(|behind| match rest {
            [] => behind.is_empty(),
            rest => behind
                .strip_prefix('.')
                .is_some_and(|behind| is_of(behind, rest)),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_documented_field_has_its_unit_and_another_name_is_none() {
        for (name, unit) in [
            ("compute_cap", Some("")),
            ("utilization.memory", Some("%")),
            ("temperature.gpu", Some("")),
            ("power.draw", Some("W")),
            ("clocks.sm", Some("MHz")),
            ("clocks_throttle_reasons.active", Some("")),
            ("ecc.errors.corrected.volatile.total", Some("")),
            ("ecc.errors.corrected.volatile", None),
            ("ecc.errors.corrected.volatile.total.x", None),
            ("clocks", None),
            ("", None),
        ] {
            assert_eq!(unit_of(name), unit, "{name}");
        }
    }
}
