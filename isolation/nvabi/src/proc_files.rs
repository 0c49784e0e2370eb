//! What the driver and the kernel report as text below `/proc`.

use crate::DriverVersion;

/// The driver's version, a file of nvidia.ko (kernel-open/nvidia/nv-procfs.c).
pub const VERSION_PATH: &str = "/proc/driver/nvidia/version";

/// The majors of all device drivers that are loaded.
pub const DEVICES_PATH: &str = "/proc/devices";

/// The name under which nvidia-uvm.ko takes a major that the kernel chooses (kernel-open/nvidia-uvm/uvm.c, `uvm_init`).
pub const UVM_NAME: &str = "nvidia-uvm";

/// The version in [`VERSION_PATH`]: the first word of the line `NVRM version:` that reads as one. The words before it differ between the
/// open and the closed module.
#[must_use]
pub fn driver_version(text: &str) -> Option<&str> {
    let line = text
        .lines()
        .find(|line| line.starts_with("NVRM version:"))?;
    line.split_whitespace()
        .find(|word| word.contains('.') && word.parse::<DriverVersion>().is_ok())
}

/// The major of a character device in [`DEVICES_PATH`]; `None`: no loaded driver has that name.
#[must_use]
pub fn character_major(text: &str, name: &str) -> Option<u32> {
    let characters = text.split("Block devices:").next()?;
    characters
        .lines()
        .filter_map(|line| line.trim().split_once(' '))
        .find(|(_, other)| other.trim() == name)?
        .0
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_modules_report_their_version() {
        for (text, version) in [
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.195.03  Sat Sep 20 00:00:00 UTC 2025\nGCC version:  gcc version 12.2.0\n",
                "570.195.03",
            ),
            (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (builder)\n",
                "580.65.06",
            ),
        ] {
            assert_eq!(driver_version(text), Some(version));
        }
        assert_eq!(driver_version("GCC version:  gcc version 12.2.0\n"), None);
        assert_eq!(driver_version(""), None);
    }

    #[test]
    fn a_block_device_is_no_character_device() {
        let text = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n\nBlock devices:\n  7 loop\n";
        assert_eq!(character_major(text, UVM_NAME), Some(511));
        assert_eq!(character_major(text, "loop"), None);
        assert_eq!(character_major(text, "nvidia-uvm-tools"), None);
    }
}
