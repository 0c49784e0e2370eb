//! A driver that is played by a tree of files: small libraries with the names of the driver's, and images of every kind.
//!
//! Nothing here is NVIDIA's. Libraries are made by the C compiler; without one the tests skip aloud.

mod cdi;
mod discovery;
mod fake_driver;
mod images;
mod runc;

pub(crate) use self::fake_driver::{FakeHost, Layout, VERSION};
use super::linker_cache::{self, Entry, NATIVE};
use super::procfs_name;

/// A linker cache with these libraries of an image.
pub(crate) fn linker_cache_with(names: &[&str]) -> Vec<u8> {
    let entries: Vec<Entry> = names
        .iter()
        .map(|name| Entry {
            name: (*name).to_owned(),
            path: format!("/image/{name}"),
            flags: NATIVE,
        })
        .collect();
    linker_cache::with(&linker_cache::tests::empty(), &entries).unwrap()
}

/// Where the linker of an image finds libraries, in its cache's order.
pub(crate) fn linker_cache_paths(rootfs: &std::path::Path) -> Vec<String> {
    let bytes = std::fs::read(rootfs.join("etc/ld.so.cache")).unwrap();
    let entries = linker_cache::entries(&bytes).unwrap();
    entries.into_iter().map(|entry| entry.path).collect()
}

#[test]
fn addresses_are_written_as_procfs_has_them() {
    for (nvml, procfs) in [
        ("00000000:3B:00.0", Some("0000:3b:00.0")),
        ("00010000:01:00.0", Some("10000:01:00.0")),
        ("0000:01:00.0", Some("0000:01:00.0")),
        ("", None),
        ("0:../../..", None),
        ("x:01", None),
    ] {
        assert_eq!(procfs_name(nvml).as_deref(), procfs, "{nvml:?}");
    }
}
