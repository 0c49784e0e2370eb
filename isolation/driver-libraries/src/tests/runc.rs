//! A dynamically linked program in a real container: real runc, the image's own linker, no `LD_LIBRARY_PATH`.
//!
//! The image is made of this host's linker and C library. Skips aloud without root, runc or a C compiler.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use host_config::config::OtherCards;
use serde_json::json;
use spec::edit::{self, Plan, SeccompRules};

use crate::fake::{FakeHost, Layout, VERSION};
use crate::{Context, prepare};

/// Asks for libraries by name, calls into them, and tells what it sees.
const PROGRAM: &str = r#"
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <errno.h>
#include <sys/stat.h>
int main(int count, char **names) {
    void *first = 0;
    for (int at = 1; at < count; at++) {
        void *library = dlopen(names[at], RTLD_NOW);
        if (!library) { printf("%s: %s\n", names[at], dlerror()); continue; }
        int (*call)(void) = (int (*)(void))dlsym(library, "cgpu_fake");
        printf("%s: %d\n", names[at], call ? call() : -1);
        if (strncmp(names[at], "libcuda", 7) == 0) {
            if (first) printf("%s: %s\n", names[at], first == library ? "loaded once" : "loaded twice");
            first = library;
        }
    }
    struct stat node;
    printf("nvidia0 %d nvidia1 %d\n", stat("/dev/nvidia0", &node) == 0, stat("/dev/nvidia1", &node) == 0);
    printf("write %s\n", open("/usr/lib/x86_64-linux-gnu/libcuda.so.1", O_WRONLY) < 0 ? strerror(errno) : "allowed");
    return 0;
}
"#;

struct Machine {
    host: FakeHost,
    program: PathBuf,
}

impl Machine {
    fn find() -> Option<Self> {
        let skip = |reason: &str| {
            println!("SKIP: {reason}");
            None
        };
        if !nix::unistd::geteuid().is_root() {
            return skip("not root");
        }
        if Command::new("runc").arg("--version").output().is_err() {
            return skip("no runc");
        }
        if !Path::new(LINKER).exists() || !Path::new(LIBC).exists() {
            return skip("this host's C library is not where Debian has it");
        }
        let host = FakeHost::new(Layout::Debian)?;
        let program = host.path().join("program");
        let source = host.path().join("program.c");
        fs::write(&source, PROGRAM).unwrap();
        let output = Command::new("cc")
            .arg("-o")
            .arg(&program)
            .arg(&source)
            .arg("-ldl")
            .output()
            .unwrap();
        if !output.status.success() {
            return skip(&format!(
                "the program does not compile: {}",
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        Some(Self { host, program })
    }

    /// An image with a linker and a C library of Debian's, in a folder of this name.
    fn bundle(&self, folder: &str) -> PathBuf {
        let bundle = self.host.bundle(&[]);
        let rootfs = bundle.join("rootfs");
        let place = |from: &Path, to: &str| {
            let at = rootfs.join(to.trim_start_matches('/'));
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            fs::copy(from, at).unwrap();
        };
        place(Path::new(LINKER), LINKER);
        place(Path::new(LIBC), &format!("{folder}/libc.so.6"));
        place(&self.program, "/program");
        bundle
    }

    /// What the program says in its container.
    fn run(&self, id: &str, bundle: &Path, names: &[&str]) -> String {
        let words = [&["/program"], names].concat();
        let mut spec = json!({
            "ociVersion": "1.0.2",
            "process": {"args": words, "cwd": "/", "user": {"uid": 0, "gid": 0}, "env": ["NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics"]},
            "root": {"path": "rootfs", "readonly": true},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            ],
            "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}]},
        });
        let mut grant = self.host.grant(&[0]);
        // No broker plays here; what a container of one sees of the files is the same.
        grant.backend = cards::Backend::DriverLimit;
        let driver_libraries = prepare(&Context {
            config: &self.host.config,
            grant: &grant,
            cards: &self.host.cards,
            spec: &spec,
            bundle,
        })
        .unwrap();
        let plan = Plan {
            grant: &grant,
            mounts: &driver_libraries.mounts,
            additions: &driver_libraries.additions,
            nodes: &spec::nodes::of(&grant, Some(511), nvabi::proc_files::DeviceFiles::default()),
            uvm_major: Some(511),
            listener: Path::new("/nonexistent"),
            seccomp: &SeccompRules::none(),
            other_cards: OtherCards::Refuse,
        };
        let before = spec.clone();
        edit::apply(&mut spec, &plan).unwrap();
        driver_libraries.tell_linker(&before, bundle);
        fs::write(bundle.join("config.json"), spec.to_string()).unwrap();
        let output = Command::new("runc")
            .arg("--root")
            .arg(self.host.path().join("runc"))
            .args(["run", "--bundle"])
            .arg(bundle)
            .arg(id)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

const LINKER: &str = "/lib64/ld-linux-x86-64.so.2";
const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";

const REQUESTED: [&str; 6] = [
    "libcuda.so.1",
    "libcuda.so",
    "libcuda.so.570.195.03",
    "libnvidia-ml.so.1",
    "libnvidia-glcore.so.570.195.03",
    "libnvidia-encode.so.1",
];

fn assert_found(reply: &str) {
    assert!(VERSION == "570.195.03");
    for line in [
        "libcuda.so.1: 570",
        "libcuda.so: 570",
        "libcuda.so: loaded once",
        "libcuda.so.570.195.03: 570",
        "libcuda.so.570.195.03: loaded once",
        "libnvidia-ml.so.1: 570",
        "libnvidia-glcore.so.570.195.03: 570",
        // Only the granted card has a node.
        "nvidia0 1 nvidia1 0",
        "write Read-only file system",
    ] {
        assert!(reply.lines().any(|one| one == line), "{line:?} in {reply}");
    }
    // Nobody asked for video.
    assert!(
        reply.contains("libnvidia-encode.so.1: libnvidia-encode.so.1: cannot open"),
        "{reply}"
    );
}

#[test]
fn a_program_finds_the_driver_s_libraries_by_their_names_alone() {
    let Some(machine) = Machine::find() else {
        return;
    };
    let bundle = machine.bundle("/usr/lib/x86_64-linux-gnu");
    assert_found(&machine.run("plain", &bundle, &REQUESTED));
    // A second start of the same container, as `docker restart` makes it: what the first left there is no obstacle.
    assert_found(&machine.run("again", &bundle, &REQUESTED));
}

#[test]
fn a_program_of_an_image_with_a_linker_cache_finds_them_too() {
    let Some(machine) = Machine::find() else {
        return;
    };
    let ldconfig = Path::new("/sbin/ldconfig");
    if !ldconfig.exists() {
        println!("SKIP: no ldconfig");
        return;
    }
    let bundle = machine.bundle("/usr/lib/x86_64-linux-gnu");
    let rootfs = bundle.join("rootfs");
    // The image has a library of another driver, and knows it by its cache.
    let compat = rootfs.join("usr/local/cuda/compat");
    fs::create_dir_all(&compat).unwrap();
    fs::copy(LIBC, compat.join("libcuda.so.1")).unwrap();
    fs::write(
        rootfs.join("etc/ld.so.conf"),
        "/usr/lib/x86_64-linux-gnu\n/usr/local/cuda/compat\n",
    )
    .unwrap();
    let made = Command::new(ldconfig)
        .arg("-r")
        .arg(&rootfs)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    assert_found(&machine.run("cached", &bundle, &REQUESTED));

    let listed = Command::new(ldconfig)
        .arg("-r")
        .arg(&rootfs)
        .arg("-p")
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(
        listed.contains("libcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1"),
        "{listed}"
    );
    // The image's own tools go on working on it.
    let mode = fs::metadata(rootfs.join("etc/ld.so.cache"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o644);
}

#[test]
fn an_image_that_links_its_folders_elsewhere_changes_nothing_outside_itself() {
    let Some(machine) = Machine::find() else {
        return;
    };
    let bundle = machine.bundle("/usr/lib/x86_64-linux-gnu");
    let outside = machine.host.path().join("outside");
    fs::create_dir(&outside).unwrap();
    // The linker's folder leads out of the image: inside it, to a folder of that name.
    let folder = bundle.join("rootfs/usr/lib/x86_64-linux-gnu");
    let moved = bundle
        .join("rootfs")
        .join(outside.strip_prefix("/").unwrap());
    fs::create_dir_all(moved.parent().unwrap()).unwrap();
    fs::rename(&folder, &moved).unwrap();
    crate::fake::link(outside.to_str().unwrap(), &folder);
    assert_found(&machine.run("linked", &bundle, &REQUESTED));
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}
