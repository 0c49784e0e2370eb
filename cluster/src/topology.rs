//! Where a card is in the machine, by the kernel's own files.

use std::fs;
use std::path::Path;

/// Where the kernel has them.
pub(crate) const SYSFS: &str = "/sys";

/// The longest of its files that is read.
const FILE_BYTES_MAX: usize = 64;

/// A card's place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The PCIe root complex, for example `pci0000:00`.
    pub(crate) pcie_root: Option<String>,
    /// The node of the host's memory that is next to it.
    pub(crate) numa_node: Option<u32>,
}

/// The kernel's name of a PCI address: NVML's has a domain of eight digits and capitals. `None`: it is no PCI address.
pub(crate) fn bus_id(pci: &str) -> Option<String> {
    let (domain, rest) = pci.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let is_hex = |text: &str, digits: std::ops::RangeInclusive<usize>| {
        digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    if !is_hex(domain, 4..=8)
        || !is_hex(bus, 2..=2)
        || !is_hex(device, 2..=2)
        || !is_hex(function, 1..=1)
    {
        return None;
    }
    let domain = u32::from_str_radix(domain, 16).ok()?;
    Some(format!("{domain:04x}:{bus}:{device}.{function}").to_ascii_lowercase())
}

/// The place of the card with this address; what the kernel does not say is absent, as it is for a simulated card.
pub(crate) fn place(sysfs: &Path, bus_id: &str) -> Place {
    let device = sysfs.join("bus/pci/devices").join(bus_id);
    // A link to the device below its bridges: …/devices/pci0000:00/0000:00:01.0/0000:01:00.0
    let pcie_root = fs::canonicalize(&device).ok().and_then(|path| {
        let mut parts = path.iter().filter_map(|part| part.to_str());
        let root = parts.find(|part| is_root(part))?;
        Some(root.to_owned())
    });
    // -1: the firmware does not say.
    let numa_node = fs::read_to_string(device.join("numa_node"))
        .ok()
        .filter(|text| text.len() <= FILE_BYTES_MAX)
        .and_then(|text| text.trim().parse().ok());
    Place {
        pcie_root,
        numa_node,
    }
}

fn is_root(part: &str) -> bool {
    let Some((domain, bus)) = part
        .strip_prefix("pci")
        .and_then(|rest| rest.split_once(':'))
    else {
        return false;
    };
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (4..=8).contains(&domain.len()) && bus.len() == 2 && is_hex(domain) && is_hex(bus)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn an_address_gets_the_kernel_s_spelling() {
        for (nvml, kernel) in [
            ("00000000:01:00.0", Some("0000:01:00.0")),
            ("0000:9B:00.0", Some("0000:9b:00.0")),
            ("00010000:01:00.0", Some("10000:01:00.0")),
            ("", None),
            ("00000000:01:00", None),
            ("00000000:../..:00.0", None),
            ("x:01:00.0", None),
        ] {
            assert_eq!(bus_id(nvml).as_deref(), kernel, "{nvml}");
        }
    }

    #[test]
    fn root_and_memory_node_are_read_from_the_kernel_s_files() {
        let sysfs = tempfile::tempdir().unwrap();
        let devices = sysfs.path().join("bus/pci/devices");
        fs::create_dir_all(&devices).unwrap();
        let device = |root: &str, address: &str, node: &str| {
            let folder = sysfs
                .path()
                .join("devices")
                .join(root)
                .join("0000:00:01.0")
                .join(address);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("numa_node"), node).unwrap();
            symlink(&folder, devices.join(address)).unwrap();
            place(sysfs.path(), address)
        };
        let near = device("pci0000:00", "0000:01:00.0", "1\n");
        assert_eq!(
            near,
            Place {
                pcie_root: Some("pci0000:00".into()),
                numa_node: Some(1)
            }
        );
        let silent = device("pci0001:80", "0001:81:00.0", "-1\n");
        assert_eq!(
            silent,
            Place {
                pcie_root: Some("pci0001:80".into()),
                numa_node: None
            }
        );
        assert_eq!(place(sysfs.path(), "0000:07:00.0"), Place::default());
    }
}
