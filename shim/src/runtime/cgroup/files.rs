//! The forms that the kernel's control group files have.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// Numbers by name; what is not among them is 0.
#[derive(Debug, Default)]
pub(super) struct Counts(HashMap<String, u64>);

impl Counts {
    pub(super) fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }
}

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
pub(super) fn pairs(path: &Path) -> Option<Counts> {
    let text = fs::read_to_string(path).ok()?;
    Some(counts(text.lines(), ' '))
}

/// Names and numbers with a separator between.
pub(super) fn counts<'a>(pairs: impl Iterator<Item = &'a str>, separator: char) -> Counts {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once(separator)?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    Counts(pairs.filter_map(pair).collect())
}

/// `MAJOR:MINOR`.
pub(super) fn device(text: &str) -> Option<(u64, u64)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// `rdma.current` and `rdma.max` of a group, equal in both versions: an entry of a device, its handles and its objects each.
pub(super) fn rdma<T>(dir: &Path, entry: fn(String, u32, u32) -> T) -> Option<[Vec<T>; 2]> {
    let read = |name: &str| {
        let text = fs::read_to_string(dir.join(name)).ok()?;
        let line = |line: &str| {
            rdma_line(line).map(|(device, handles, objects)| entry(device, handles, objects))
        };
        Some(text.lines().filter_map(line).collect())
    };
    Some([read("rdma.current")?, read("rdma.max")?])
}

/// `mlx4_0 hca_handle=2 hca_object=max`; no limit is the greatest number.
fn rdma_line(line: &str) -> Option<(String, u32, u32)> {
    let mut arguments = line.split_whitespace();
    let device = arguments.next()?.to_owned();
    let (mut handles, mut objects) = (0, 0);
    for (key, value) in arguments.filter_map(|argument| argument.split_once('=')) {
        let value = match value {
            "max" => u32::MAX,
            number => number.parse().unwrap_or(0),
        };
        match key {
            "hca_handle" => handles = value,
            "hca_object" => objects = value,
            _ => {}
        }
    }
    Some((device, handles, objects))
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
        assert_eq!(read, ("mlx4_0".to_owned(), 2, u32::MAX));
        assert_eq!(rdma_line(""), None);
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(rdma(dir.path(), |device, _, _| device), None);
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
