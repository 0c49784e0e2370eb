//! What the driver and the kernel report as text below `/proc`.

use crate::DriverVersion;

/// The driver's version, a file of nvidia.ko (kernel-open/nvidia/nv-procfs.c).
pub const VERSION_PATH: &str = "/proc/driver/nvidia/version";

/// The parameters of nvidia.ko, one `Name: value` a line (kernel-open/nvidia/nv-procfs.c, `nv_procfs_read_params`).
pub const PARAMS_PATH: &str = "/proc/driver/nvidia/params";

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

/// The majors of the driver's character devices in [`DEVICES_PATH`], of all its modules: those whose names begin with `nvidia`.
pub fn driver_majors(text: &str) -> impl Iterator<Item = u32> {
    let characters = text.split("Block devices:").next().unwrap_or_default();
    characters
        .lines()
        .filter_map(|line| line.trim().split_once(' '))
        .filter(|(_, name)| name.trim_start().starts_with("nvidia"))
        .filter_map(|(major, _)| major.parse().ok())
}

/// Owner and permissions of the nodes `nvidiactl` and `nvidia<N>`, by the module's parameters NVreg_DeviceFileUID, NVreg_DeviceFileGID and
/// NVreg_DeviceFileMode (kernel-open/nvidia/nv-reg.h). The default is what the driver has without them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceFiles {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits.
    pub mode: u32,
}

impl Default for DeviceFiles {
    fn default() -> Self {
        Self {
            uid: 0,
            gid: 0,
            mode: 0o666,
        }
    }
}

impl DeviceFiles {
    /// As [`PARAMS_PATH`] has them; what is absent or no number is the default. With ModifyDeviceFiles off nobody compares nodes with the
    /// parameters, and all are the default.
    #[must_use]
    pub fn of_params(text: &str) -> Self {
        let number = |name| {
            let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
            let (_, value) = pairs.find(|(key, _)| key.trim() == name)?;
            value.trim().parse::<u32>().ok()
        };
        let usual = Self::default();
        if number("ModifyDeviceFiles") == Some(0) {
            return usual;
        }
        Self {
            uid: number("DeviceFileUID").unwrap_or(usual.uid),
            gid: number("DeviceFileGID").unwrap_or(usual.gid),
            mode: number("DeviceFileMode").unwrap_or(usual.mode) & 0o777,
        }
    }
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
    fn device_files_are_as_the_module_s_parameters_report() {
        let usual = DeviceFiles::default();
        let text = "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 7\nDeviceFileGID: 44\nDeviceFileMode: 432\nRegistryDwords: \"DeviceFileMode: 1\"\n";
        let set = DeviceFiles {
            uid: 7,
            gid: 44,
            mode: 0o660,
        };
        assert_eq!(DeviceFiles::of_params(text), set);
        let off = text.replace("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0");
        assert_eq!(DeviceFiles::of_params(&off), usual);
        for text in ["", "DeviceFileMode: all\nDeviceFileUID: -1\n", "\n:\n"] {
            assert_eq!(DeviceFiles::of_params(text), usual, "{text:?}");
        }
        assert_eq!(
            DeviceFiles::of_params("DeviceFileMode: 33206").mode,
            0o666,
            "a file's type is no permission"
        );
    }

    #[test]
    fn a_block_device_is_no_character_device() {
        let text = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n\nBlock devices:\n  7 loop\n";
        assert_eq!(character_major(text, UVM_NAME), Some(511));
        assert_eq!(character_major(text, "loop"), None);
        assert_eq!(character_major(text, "nvidia-uvm-tools"), None);
        let text = "Character devices:\n  1 mem\n 10 my-nvidia\n195 nvidia\n195 nvidiactl\n235 nvidia-caps\n511 nvidia-uvm\n\nBlock devices:\n  7 nvidia-disk\n";
        assert!(driver_majors(text).eq([195, 195, 235, 511]));
        assert_eq!(driver_majors("").count(), 0);
    }
}
