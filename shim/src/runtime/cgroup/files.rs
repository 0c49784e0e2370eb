//! The forms that the kernel's control group files have.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use super::{Rdma, RdmaDevice};

/// One number; what is absent or `max` is `None`.
pub(super) fn limited(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// One number, 0 when absent, or `max`, which is the greatest.
pub(super) fn number(path: &Path) -> u64 {
    match fs::read_to_string(path).as_deref().map(str::trim) {
        Ok("max") => u64::MAX,
        Ok(text) => text.parse().unwrap_or(0),
        Err(_) => 0,
    }
}

/// Lines of a name and a number; `None` when the file is absent.
pub(super) fn pairs(path: &Path) -> Option<HashMap<String, u64>> {
    let text = fs::read_to_string(path).ok()?;
    let pair = |line: &str| {
        line.split_once(' ')
            .and_then(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?)))
    };
    Some(text.lines().filter_map(pair).collect())
}

/// `MAJOR:MINOR`.
pub(super) fn device(text: &str) -> Option<(u64, u64)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// `rdma.current` and `rdma.max` of a group, equal in both versions.
pub(super) fn rdma(dir: &Path) -> Option<Rdma> {
    let read = |name: &str| {
        let text = fs::read_to_string(dir.join(name)).ok()?;
        Some(text.lines().filter_map(rdma_line).collect())
    };
    Some(Rdma {
        current: read("rdma.current")?,
        limit: read("rdma.max")?,
    })
}

/// `mlx4_0 hca_handle=2 hca_object=max`.
fn rdma_line(line: &str) -> Option<RdmaDevice> {
    let mut arguments = line.split_whitespace();
    let mut read = RdmaDevice {
        device: arguments.next()?.to_owned(),
        ..RdmaDevice::default()
    };
    for (key, value) in arguments.filter_map(|argument| argument.split_once('=')) {
        let value = match value {
            "max" => u32::MAX,
            number => number.parse().unwrap_or(0),
        };
        match key {
            "hca_handle" => read.handles = value,
            "hca_object" => read.objects = value,
            _ => {}
        }
    }
    Some(read)
}

/// The sizes of huge pages as control group files spell them (`2MB`, `1GB`), from the names in
/// `/sys/kernel/mm/hugepages` (`hugepages-2048kB`).
pub(super) fn hugepage_sizes(hugepages: &Path) -> Vec<String> {
    let entries = fs::read_dir(hugepages).into_iter().flatten().flatten();
    let kib = |entry: fs::DirEntry| -> Option<u64> {
        let name = entry.file_name().into_string().ok()?;
        let size = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
        size.parse().ok()
    };
    let mut sizes: Vec<u64> = entries.filter_map(kib).collect();
    sizes.sort_unstable();
    let spelled = |kib: u64| match kib {
        0..1_024 => format!("{kib}KB"),
        1_024..1_048_576 => format!("{}MB", kib >> 10),
        _ => format!("{}GB", kib >> 20),
    };
    sizes.into_iter().map(spelled).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rdma_lines_have_devices_with_limits_or_none() {
        let read = rdma_line("mlx4_0 hca_handle=2 hca_object=max").unwrap();
        assert_eq!(
            (read.device.as_str(), read.handles, read.objects),
            ("mlx4_0", 2, u32::MAX)
        );
        assert_eq!(rdma_line(""), None);
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(rdma(dir.path()), None);
    }

    #[test]
    fn hugepage_sizes_are_spelled_as_the_kernel_does_in_control_groups() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["hugepages-1048576kB", "hugepages-2048kB", "hugepages-64kB"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        assert_eq!(hugepage_sizes(dir.path()), ["64KB", "2MB", "1GB"]);
    }
}
