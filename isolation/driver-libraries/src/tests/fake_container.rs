//! Containers of the fake host, and what they get.

use std::fs;
use std::path::{Path, PathBuf};

use cards::grant::{self, Frontend};
use cards::{
    Backend, CardGrant, ComputeTerms, ContainerKey, DriverSpec, FrontendKind, GpuUuid, Grant,
    Isolation,
};
use serde_json::{Value, json};

use crate::fake::{FakeHost, VERSION};
use crate::{Context, DriverLibraries, prepare};

pub(super) const OTHER_VERSION: &str = "570.86.15";

impl FakeHost {
    pub(super) fn grant(&self, minors: &[u32]) -> Grant {
        Grant {
            version: grant::VERSION,
            key: ContainerKey::new("default", "c1").unwrap(),
            driver: DriverSpec::Kernel,
            driver_version: VERSION.to_owned(),
            layouts: None,
            cards: minors
                .iter()
                .map(|minor| CardGrant {
                    uuid: GpuUuid::new(format!("GPU-{minor}")).unwrap(),
                    minor: *minor,
                    quota_bytes: 1 << 30,
                })
                .collect(),
            compute: ComputeTerms::default(),
            claims: Vec::new(),
            backend: Backend::Broker,
            backend_reason: String::new(),
            isolation: Isolation::default(),
            frontend: Frontend {
                kind: FrontendKind::Shim,
                pid: 1,
            },
            bundle: None,
            created_at_unix_ms: 0,
        }
    }

    /// A bundle whose root has these files: those of 32-bit programs say so, and the others are empty.
    pub(super) fn bundle(&self, files: &[&str]) -> PathBuf {
        let bundle = tempfile::tempdir_in(self.path()).unwrap().keep();
        fs::create_dir_all(bundle.join("rootfs/etc")).unwrap();
        for file in files {
            let path = bundle.join("rootfs").join(file.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let mut head = Vec::new();
            if file.contains("i386") {
                head = b"\x7fELF\x01\x01\x01".to_vec();
                head.resize(18, 0);
                head.extend([3, 0]);
            }
            fs::write(path, head).unwrap();
        }
        bundle
    }

    pub(super) fn prepare(
        &self,
        grant: &Grant,
        capabilities: &str,
        bundle: &Path,
    ) -> Result<DriverLibraries, String> {
        let spec = spec(capabilities);
        prepare(&Context {
            config: &self.config,
            grant,
            cards: &self.cards,
            spec: &spec,
            bundle,
        })
        .map_err(|error| host_config::chain(&error))
    }

    /// In a Debian-like image, on card 0.
    pub(super) fn prepared(&self, capabilities: &str) -> Result<DriverLibraries, String> {
        let bundle = self.bundle(&["/usr/lib/x86_64-linux-gnu/libc.so.6"]);
        self.prepare(&self.grant(&[0]), capabilities, &bundle)
    }
}

pub(super) fn spec(capabilities: &str) -> Value {
    let variable = format!("NVIDIA_DRIVER_CAPABILITIES={capabilities}");
    json!({"root": {"path": "rootfs"}, "process": {"args": ["x"], "env": [variable, "A=b"]}, "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}})
}

/// Targets in the container, in order.
pub(super) fn targets(driver_libraries: &DriverLibraries) -> Vec<String> {
    let mut targets: Vec<String> = driver_libraries
        .mounts
        .iter()
        .map(|mount| mount.target.display().to_string())
        .collect();
    targets.sort();
    targets
}

/// What is mounted at a place.
pub(super) fn source<'a>(driver_libraries: &'a DriverLibraries, target: &str) -> Option<&'a Path> {
    let mount = driver_libraries
        .mounts
        .iter()
        .find(|mount| mount.target == Path::new(target))?;
    Some(&mount.source)
}

/// Every word is in the text.
#[track_caller]
pub(super) fn assert_reports(error: &str, words: &[&str]) {
    for word in words {
        assert!(error.contains(word), "{error:?} lacks {word:?}");
    }
}
