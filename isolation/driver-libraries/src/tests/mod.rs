//! A driver that is played by a tree of files: small libraries with the names of the driver's, and images of every kind.
//!
//! Nothing here is NVIDIA's. Libraries are made by the C compiler; without one the tests skip aloud.

mod cdi;
mod discovery;
mod fake_container;
mod images;
mod runc;

use crate::libraries::procfs_name;

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
