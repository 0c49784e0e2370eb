//! A driver that is a tree of files, its host and its containers; and a kernel that is a list of devices.
//!
//! Nothing here is NVIDIA's. Libraries are made by the C compiler; without one tests skip aloud.
#![expect(
    clippy::unwrap_used,
    reason = "a fixture that cannot be made fails its test"
)]
#![cfg_attr(
    not(test),
    expect(
        clippy::indexing_slicing,
        reason = "a fixture that cannot be made fails its test"
    )
)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use cards::{Card, GpuUuid};
use host_config::Config;
use host_config::config::{CdiFolders, DriverConfig};

use crate::linker_cache::{self, Entry, HEAD_BYTES, MAGIC, NATIVE};
use crate::uvm_module::UvmModule;

/// The version of the driver that is installed.
pub const VERSION: &str = "570.195.03";

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
pub enum Layout {
    /// In a folder of their own; the names that programs ask for are links over `/etc/alternatives`.
    Debian,
    /// In `/usr/lib64`, with plain links beside them.
    RedHat,
    /// In a folder that only the linker's cache knows.
    CacheOnly,
}

impl Layout {
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Self::Debian => "/usr/lib/x86_64-linux-gnu/nvidia/current",
            Self::RedHat => "/usr/lib64",
            Self::CacheOnly => "/opt/nvidia/lib",
        }
    }
}

/// A host with a driver below a root of its own.
#[derive(Debug)]
pub struct FakeHost {
    dir: tempfile::TempDir,
    /// Its configuration.
    pub config: Config,
    /// Its cards.
    pub cards: Vec<Card>,
}

impl FakeHost {
    /// `None`: said why.
    #[must_use]
    pub fn new(layout: Layout) -> Option<Self> {
        if cfg!(not(target_arch = "x86_64")) {
            println!("SKIP: the played driver is for x86-64");
            return None;
        }
        let host = Self::empty();
        host.install(layout, VERSION)?;
        Some(host)
    }

    /// Without any driver.
    pub(crate) fn empty() -> Self {
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

    /// The folder of all that is fake, which goes with it.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Below what the driver is installed.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.config.driver.root.canonicalize().unwrap()
    }

    /// A path of the driver's root, on this host.
    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.root().join(path.trim_start_matches('/'))
    }

    pub(crate) fn install(&self, layout: Layout, version: &str) -> Option<()> {
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
        let cache = linker_cache::with(&empty_linker_cache(), &entries).unwrap();
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
}

/// Another link in the place of what is there.
pub(crate) fn link(target: &str, at: &Path) {
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    drop(fs::remove_file(at));
    symlink(target, at).unwrap();
}

/// A linker cache with these libraries of an image.
#[must_use]
pub fn linker_cache_with(names: &[&str]) -> Vec<u8> {
    let entries: Vec<Entry> = names
        .iter()
        .map(|name| Entry {
            name: (*name).to_owned(),
            path: format!("/image/{name}"),
            flags: NATIVE,
        })
        .collect();
    linker_cache::with(&empty_linker_cache(), &entries).unwrap()
}

/// Where the linker of an image finds libraries, in its cache's order.
#[must_use]
pub fn linker_cache_paths(rootfs: &Path) -> Vec<String> {
    let bytes = fs::read(rootfs.join("etc/ld.so.cache")).unwrap();
    let entries = linker_cache::entries(&bytes).unwrap();
    entries.into_iter().map(|entry| entry.path).collect()
}

/// A cache without entries, as `ldconfig` writes it.
pub(crate) fn empty_linker_cache() -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.resize(HEAD_BYTES, 0);
    bytes[28] = 2;
    bytes
}

const WITHOUT: &str = "Character devices:\n  1 mem\n195 nvidia\n\nBlock devices:\n  7 loop\n";

/// A kernel without the module, and a modprobe of this script, which finds the list of devices in `$devices`.
#[must_use]
pub fn kernel_with(dir: &Path, script: &str) -> UvmModule {
    let devices = dir.join("proc-devices");
    fs::write(&devices, WITHOUT).unwrap();
    let modprobe = dir.join("modprobe");
    let text = format!("#!/bin/sh\ndevices='{}'\n{script}\n", devices.display());
    // Written by another process: what a process that a neighbouring test forks has open for writing cannot be started.
    let written = Command::new("sh")
        .args(["-c", "printf %s \"$1\" > \"$2\" && chmod 755 \"$2\"", "sh"])
        .arg(text)
        .arg(&modprobe)
        .status();
    assert!(written.unwrap().success());
    UvmModule::fake(&devices, &modprobe)
}

/// What a kernel does that gets the module.
pub const LOADS: &str =
    "printf 'Character devices:\\n195 nvidia\\n511 nvidia-uvm\\n' > \"$devices\"";
