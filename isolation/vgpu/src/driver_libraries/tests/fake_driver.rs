//! The played driver, its host and its containers.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use cards::grant::{self, Frontend};
use cards::{
    Backend, Card, CardGrant, ComputeTerms, ContainerKey, DriverSpec, FrontendKind, GpuUuid, Grant,
    Isolation,
};
use serde_json::{Value, json};

use crate::Config;
use crate::config::{CdiFolders, DriverConfig};
use crate::driver_libraries::linker_cache::{self, Entry, NATIVE};
use crate::driver_libraries::{Context, DriverLibraries, prepare};

pub(crate) const VERSION: &str = "570.195.03";
pub(super) const OTHER_VERSION: &str = "570.86.15";

/// Name without the version, and the name that it gives itself.
const LIBRARIES: [(&str, &str); 8] = [
    ("libcuda.so", "libcuda.so.1"),
    ("libnvidia-ml.so", "libnvidia-ml.so.1"),
    (
        "libnvidia-ptxjitcompiler.so",
        "libnvidia-ptxjitcompiler.so.1",
    ),
    ("libnvidia-nvvm.so", "libnvidia-nvvm.so.4"),
    ("libnvidia-encode.so", "libnvidia-encode.so.1"),
    ("libnvidia-glcore.so", "libnvidia-glcore.so.570.195.03"),
    ("libGLX_nvidia.so", "libGLX_nvidia.so.0"),
    ("libnvidia-ngx.so", "libnvidia-ngx.so.1"),
];

/// Libraries by their plain names, made once. Every one has a function `cgpu_fake`, which returns 570.
fn compiled() -> Option<&'static Path> {
    static COMPILED: OnceLock<Option<tempfile::TempDir>> = OnceLock::new();
    let made = COMPILED.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("fake.c");
        fs::write(&source, "int cgpu_fake(void) { return 570; }\n").unwrap();
        for (name, soname) in LIBRARIES {
            let made = Command::new("cc")
                .args(["-shared", "-fPIC", "-nostdlib", "-o"])
                .arg(dir.path().join(name))
                .arg(format!("-Wl,-soname,{soname}"))
                .arg(&source)
                .output();
            match made {
                Ok(output) if output.status.success() => {}
                other => {
                    println!("SKIP: no C compiler that makes libraries: {other:?}");
                    return None;
                }
            }
        }
        Some(dir)
    });
    made.as_ref().map(tempfile::TempDir::path)
}

/// Where a distribution puts the libraries, below the driver's root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// In a folder of their own; the names that programs ask for are links over `/etc/alternatives`.
    Debian,
    /// In `/usr/lib64`, with plain links beside them.
    RedHat,
    /// In a folder that only the linker's cache knows.
    CacheOnly,
}

impl Layout {
    pub(super) fn folder(self) -> &'static str {
        match self {
            Self::Debian => "/usr/lib/x86_64-linux-gnu/nvidia/current",
            Self::RedHat => "/usr/lib64",
            Self::CacheOnly => "/opt/nvidia/lib",
        }
    }
}

/// A host with a driver below a root of its own.
pub(crate) struct FakeHost {
    dir: tempfile::TempDir,
    pub(crate) config: Config,
    pub(crate) cards: Vec<Card>,
}

impl FakeHost {
    /// `None`: said why.
    pub(crate) fn new(layout: Layout) -> Option<Self> {
        if cfg!(not(target_arch = "x86_64")) {
            println!("SKIP: the played driver is for x86-64");
            return None;
        }
        let host = Self::empty();
        host.install(layout, VERSION)?;
        Some(host)
    }

    /// Without any driver.
    pub(super) fn empty() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("driver");
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::create_dir_all(dir.path().join("cdi")).unwrap();
        let config = Config {
            state_dir: dir.path().join("state"),
            driver: DriverConfig {
                root,
                cdi: CdiFolders::Folders(vec![dir.path().join("cdi")]),
                ..DriverConfig::default()
            },
            ..Config::default()
        };
        let cards = (0..2)
            .map(|index| Card {
                uuid: GpuUuid::new(format!("GPU-{index}")).unwrap(),
                name: "Fake".to_owned(),
                memory_bytes: 24 << 30,
                minor: index,
                index,
                pci: format!("00000000:0{index}:00.0"),
                modes: cards::Modes::default(),
            })
            .collect();
        Self { dir, config, cards }
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.config.driver.root.canonicalize().unwrap()
    }

    /// A path of the driver's root, on this host.
    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.root().join(path.trim_start_matches('/'))
    }

    pub(super) fn install(&self, layout: Layout, version: &str) -> Option<()> {
        let compiled = compiled()?;
        let folder = self.at(layout.folder());
        fs::create_dir_all(&folder).unwrap();
        let mut cached = Vec::new();
        for (name, soname) in LIBRARIES {
            let file = format!("{name}.{version}");
            fs::copy(compiled.join(name), folder.join(&file)).unwrap();
            fs::set_permissions(folder.join(&file), fs::Permissions::from_mode(0o644)).unwrap();
            let soname = soname.replace(VERSION, version);
            let linked = match layout {
                Layout::RedHat | Layout::CacheOnly => folder.join(&soname),
                Layout::Debian => {
                    let alternative = self.at(&format!("/etc/alternatives/glx--{soname}"));
                    fs::create_dir_all(alternative.parent().unwrap()).unwrap();
                    link(&format!("{}/{file}", layout.folder()), &alternative);
                    let at = self.at(&format!("/usr/lib/x86_64-linux-gnu/{soname}"));
                    link(&format!("/etc/alternatives/glx--{soname}"), &at);
                    cached.push(soname);
                    continue;
                }
            };
            if soname != file {
                link(&file, &linked);
            }
            cached.push(soname);
        }
        let shown = match layout {
            Layout::Debian => "/usr/lib/x86_64-linux-gnu",
            Layout::RedHat | Layout::CacheOnly => layout.folder(),
        };
        let entries: Vec<Entry> = cached
            .into_iter()
            .map(|name| Entry {
                path: format!("{shown}/{name}"),
                name,
                flags: NATIVE,
            })
            .collect();
        let cache = linker_cache::with(&linker_cache::tests::empty(), &entries).unwrap();
        fs::write(self.at("/etc/ld.so.cache"), cache).unwrap();
        for (path, text) in [
            ("/usr/bin/nvidia-smi", "#!/bin/sh\necho fake\n"),
            ("/usr/share/vulkan/icd.d/nvidia_icd.json", "{}"),
        ] {
            fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
            fs::write(self.at(path), text).unwrap();
        }
        Some(())
    }

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

    /// A bundle whose root has these files, empty.
    pub(super) fn bundle(&self, files: &[&str]) -> PathBuf {
        let bundle = tempfile::tempdir_in(self.path()).unwrap().keep();
        fs::create_dir_all(bundle.join("rootfs/etc")).unwrap();
        for file in files {
            let path = bundle.join("rootfs").join(file.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
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
        .map_err(|error| crate::chain::chain(&error))
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

/// Another link in the place of what is there.
pub(super) fn link(target: &str, at: &Path) {
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    drop(fs::remove_file(at));
    symlink(target, at).unwrap();
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
