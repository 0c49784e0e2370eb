//! How much CPU time a vGPU's own processes may spend on their container: `cpu-time.json` in the container's folder.
//!
//! A frontend writes it when the container starts and whenever its resources change; the broker follows it and has calls wait before the
//! kernel's quota of these processes is used up: at its end the kernel stops the governor with all the others.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::store::{self, Store};

/// The version that this cgpu writes, and the newest that it reads.
pub const VERSION: u32 = 1;

/// The name of the file in the container's folder.
pub const FILE_NAME: &str = "cpu-time.json";

/// A path has 4 KiB at most.
const SIZE_MAX_BYTES: u64 = 16 << 10;

const WHAT: &str = "CPU time of a container";

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTime {
    /// [`VERSION`].
    pub version: u32,
    /// The container's quota, millionths of one core; absent: it has none.
    pub quota_ppm: Option<u64>,
    /// Where the kernel counts what the vGPU's own processes have used; absent: nowhere.
    pub usage: Option<UsageFile>,
}

/// A file of the kernel's that says what a control group has used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "format", content = "path", rename_all = "snake_case")]
pub enum UsageFile {
    /// `cpuacct.usage` of version 1: one number, nanoseconds.
    Nanoseconds(PathBuf),
    /// `cpu.stat` of version 2: a line `usage_usec <microseconds>`.
    CpuStat(PathBuf),
}

impl UsageFile {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Nanoseconds(path) | Self::CpuStat(path) => path,
        }
    }

    /// Nanoseconds, as the file's text says. `None` for a text of another format.
    #[must_use]
    pub fn nanoseconds(&self, text: &str) -> Option<u64> {
        match self {
            Self::Nanoseconds(_) => text.trim().parse().ok(),
            Self::CpuStat(_) => {
                let usec = text
                    .lines()
                    .find_map(|line| line.strip_prefix("usage_usec "))?;
                usec.trim().parse::<u64>().ok()?.checked_mul(1000)
            }
        }
    }
}

impl CpuTime {
    /// Reads the file of a container; `None` before its container was started, and where nothing is limited.
    ///
    /// # Errors
    /// A file that cannot be read, or of another format or version.
    pub fn read(container_dir: &Path) -> Result<Option<Self>, Error> {
        let path = container_dir.join(FILE_NAME);
        let read = store::read_capped(WHAT, &path, SIZE_MAX_BYTES);
        let Some(bytes) = Error::absent_is_none(read)? else {
            return Ok(None);
        };
        store::parse_versioned(WHAT, &path, &bytes, VERSION).map(Some)
    }

    /// Replaces the file of a container.
    ///
    /// # Errors
    /// A failed file operation; the former file stands.
    pub fn write(&self, store: &dyn Store, container_dir: &Path) -> Result<(), Error> {
        store::write_json(store, WHAT, &container_dir.join(FILE_NAME), self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::DiskStore;

    #[test]
    fn what_is_written_is_read_and_an_absent_file_is_no_limit() {
        let folder = tempfile::tempdir().unwrap();
        assert!(CpuTime::read(folder.path()).unwrap().is_none());
        let reply = CpuTime {
            version: VERSION,
            quota_ppm: Some(200_000),
            usage: Some(UsageFile::CpuStat("/sys/fs/cgroup/x/cpu.stat".into())),
        };
        reply.write(&DiskStore, folder.path()).unwrap();
        assert_eq!(CpuTime::read(folder.path()).unwrap(), Some(reply));
        let path = folder.path().join(FILE_NAME);
        for text in ["{", r#"{"version": 2}"#] {
            std::fs::write(&path, text).unwrap();
            assert!(CpuTime::read(folder.path()).is_err(), "{text}");
        }
    }

    #[test]
    fn both_formats_of_usage_are_nanoseconds() {
        let v1 = UsageFile::Nanoseconds(PathBuf::new());
        assert_eq!(v1.nanoseconds("12345\n"), Some(12_345));
        assert_eq!(v1.nanoseconds("usage_usec 5\n"), None);
        let v2 = UsageFile::CpuStat(PathBuf::new());
        let text = "usage_usec 5\nuser_usec 3\n";
        assert_eq!(v2.nanoseconds(text), Some(5_000));
        assert_eq!(v2.nanoseconds("user_usec 3\n"), None);
    }
}
