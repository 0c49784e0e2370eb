//! The filter as it is in a container: real runc, real libseccomp, a probe that makes the calls.
//!
//! Skips aloud without root, runc or a C compiler. The probe's i386 and x32 calls are judged only where this kernel has
//! those tables at all.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use cards::grant::{self, Door};
use cards::{CardGrant, ComputeTerms, ContainerKey, DoorKind, DriverSpec, GpuUuid, Grant};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvabi::Release;
use serde_json::{Value, json};
use sys::seccomp::Listener;
use verdict::filter::{Coverage, FilterSpec};
use vgpu::edit::{Plan, SeccompRules, apply};

/// What the played broker answers to an ioctl.
const ANSWER: i64 = 4242;
/// ... and to any other call.
const OTHER_ERRNO: i32 = libc::ENOMSG;

const NOTIFIED: [&str; 12] = [
    "i:0xc020462a",
    "i:0xc030462b",
    "i:0xc020462b",
    "i:0xffffffffc020462a",
    "i:0x1234c030462b",
    "i:0x0020462a",
    "i:0xc020542a",
    "i:0xc030002b",
    "i:33",
    "i:34",
    "i:0x30000001",
    "i:0xdeadbeef00000021",
];
const CLOSED: [&str; 3] = ["i:0xc01046d3", "i:0xc010aad3", "i:0x1c01046d3"];
const FOREIGN: [&str; 5] = [
    "i:0x5401",
    "i:0x541b",
    "i:0x802c542a",
    "i:0x30000777",
    "i:0xc021462a",
];

/// One machine-wide resource at a time: cgroups and pids of runc are shared, and a container is short.
struct Host {
    dir: tempfile::TempDir,
    probe: PathBuf,
}

impl Host {
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
        if cfg!(not(target_arch = "x86_64")) {
            return skip("the probe is for x86-64");
        }
        let dir = tempfile::tempdir().unwrap();
        let probe = dir.path().join("probe");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/probe.c");
        match Command::new("cc")
            .args(["-static", "-O1", "-o"])
            .arg(&probe)
            .arg(source)
            .output()
        {
            Ok(output) if output.status.success() => Some(Self { dir, probe }),
            Ok(output) => skip(&format!(
                "the probe does not compile: {}",
                String::from_utf8_lossy(&output.stderr)
            )),
            Err(_) => skip("no C compiler"),
        }
    }

    fn bundle(
        &self,
        id: &str,
        seccomp: Option<Value>,
        args: &[&str],
        privileges: Privileges,
    ) -> PathBuf {
        let bundle = self.dir.path().join(id);
        fs::create_dir_all(bundle.join("rootfs")).unwrap();
        fs::copy(&self.probe, bundle.join("rootfs/probe")).unwrap();
        let words = [&["/probe"], args].concat();
        let capabilities = json!(["CAP_SYS_ADMIN", "CAP_KILL"]);
        let mut spec = json!({
            "ociVersion": "1.0.2",
            "process": {
                "args": words,
                "cwd": "/",
                "user": {"uid": 0, "gid": 0},
                "noNewPrivileges": privileges == Privileges::NoNew,
                "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
            },
            "root": {"path": "rootfs"},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            ],
            "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}]},
        });
        if let Some(seccomp) = seccomp {
            spec["linux"]["seccomp"] = seccomp;
        }
        let grant = Grant {
            version: grant::VERSION,
            key: ContainerKey::new("test", id).unwrap(),
            driver: DriverSpec::Sim {
                socket: "/nonexistent".into(),
            },
            driver_version: "570.195.03".to_owned(),
            cards: vec![CardGrant {
                uuid: GpuUuid::new("GPU-0").unwrap(),
                minor: 0,
                quota_bytes: 1 << 30,
            }],
            compute: ComputeTerms::default(),
            isolation: cards::Isolation::default(),
            door: Door {
                kind: DoorKind::Runtime,
                pid: 0,
            },
            bundle: None,
            created_at_unix_ms: 0,
        };
        let seccomp = SeccompRules::of(&FilterSpec {
            release: Release::R570,
            coverage: Coverage::Simulated,
        });
        let listener = bundle.join("notify.sock");
        apply(
            &mut spec,
            &Plan {
                grant: &grant,
                mounts: &[],
                uvm_major: None,
                listener: &listener,
                seccomp: &seccomp,
            },
        )
        .unwrap();
        fs::write(bundle.join("config.json"), spec.to_string()).unwrap();
        let socket = UnixListener::bind(listener).unwrap();
        // Ends with the test program; it waits for listeners until then.
        std::thread::spawn(move || play_broker(&socket));
        bundle
    }

    fn runc(&self, args: &[&str]) -> Output {
        Command::new("runc")
            .arg("--root")
            .arg(self.dir.path().join("runc"))
            .args(args)
            .output()
            .unwrap()
    }

    fn run(
        &self,
        id: &str,
        seccomp: Option<Value>,
        calls: &[&str],
        privileges: Privileges,
    ) -> BTreeMap<String, String> {
        let bundle = self.bundle(id, seccomp, calls, privileges);
        answers(&self.runc(&["run", "--bundle", bundle.to_str().unwrap(), id]))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Privileges {
    Any,
    NoNew,
}

fn answers(output: &Output) -> BTreeMap<String, String> {
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(call, answer)| (call.to_owned(), answer.to_owned()))
        .collect()
}

/// Takes listeners and answers every notification: ioctls with [`ANSWER`], everything else with [`OTHER_ERRNO`].
fn play_broker(socket: &UnixListener) {
    for connection in socket.incoming() {
        let connection = connection.unwrap();
        let mut bytes = [0; 65536];
        let (_, mut fds) = sys::fd_passing::receive(connection.as_fd(), &mut bytes).unwrap();
        let listener = Listener::from(fds.remove(0));
        drop(connection);
        std::thread::spawn(move || {
            loop {
                let mut polled = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
                poll(&mut polled, PollTimeout::NONE).unwrap();
                if polled[0].revents().unwrap().contains(PollFlags::POLLHUP) {
                    return;
                }
                let Ok(call) = listener.receive() else {
                    continue;
                };
                // Native and x32 share an architecture; 54 is i386's.
                let answered = if [16, 0x4000_0000 | 514, 54].contains(&call.nr) {
                    listener.answer(call.id, ANSWER)
                } else {
                    listener.fail(call.id, OTHER_ERRNO)
                };
                drop(answered);
            }
        });
    }
}

/// All calls of this machine's table, allowed by one unconditional rule: the shape of docker's default profile.
fn allow_list(default_errno: u32) -> Option<Value> {
    let header = [
        "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
        "/usr/include/asm/unistd_64.h",
    ];
    let text = header
        .iter()
        .find_map(|path| fs::read_to_string(path).ok())?;
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| {
            line.strip_prefix("#define __NR_")?
                .split_whitespace()
                .next()
        })
        .collect();
    Some(json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": default_errno,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "syscalls": [{"names": names, "action": "SCMP_ACT_ALLOW"}],
    }))
}

fn every_call() -> Vec<&'static str> {
    let others = [
        "s:1:8",
        "s:0xffff000000000001:0xff00000000000009",
        "s:1:0",
        "n",
        "m:1:0",
        "m:2:0x100000000",
        "m:1:0xf000",
        "m:1:0x10000",
        "m:3:0x100000000",
        "m:0x11:0x700000000000",
        "c:0xc020462a",
        "x:0xc020462a",
        "c:0x5401",
        "x:0x5401",
    ];
    NOTIFIED
        .into_iter()
        .chain(CLOSED)
        .chain(FOREIGN)
        .chain(others)
        .collect()
}

fn assert_effective(answers: &BTreeMap<String, String>, closed: i32, context: &str) {
    let expect = |call: &str, value: i64| {
        assert_eq!(
            answers[call],
            value.to_string(),
            "{context}: {call} in {answers:?}"
        )
    };
    let fails = |call: &str, errno: i32| expect(call, -i64::from(errno));
    for call in NOTIFIED {
        expect(call, ANSWER);
    }
    for call in CLOSED {
        fails(call, closed);
    }
    for call in FOREIGN {
        fails(call, libc::EBADF);
    }
    fails("s:1:8", libc::EBUSY);
    fails("s:0xffff000000000001:0xff00000000000009", libc::EBUSY);
    fails("s:1:0", libc::EFAULT);
    expect("n", 0);
    for call in ["m:1:0", "m:2:0x100000000", "m:1:0xf000"] {
        fails(call, libc::EBADF);
    }
    for call in ["m:1:0x10000", "m:3:0x100000000", "m:0x11:0x700000000000"] {
        fails(call, OTHER_ERRNO);
    }
    // Foreign tables: the broker gets the driver's calls and nothing else. Kernels without the table kill or refuse.
    for (call, foreign) in [("c:0xc020462a", "c:0x5401"), ("x:0xc020462a", "x:0x5401")] {
        assert!(
            answers[call] == ANSWER.to_string() || answers[call].starts_with("signal-"),
            "{context}: {call} in {answers:?}"
        );
        let ends = [format!("-{}", libc::EBADF), format!("-{}", libc::ENOSYS)];
        assert!(
            ends.contains(&answers[foreign]) || answers[foreign].starts_with("signal-"),
            "{context}: {foreign} in {answers:?}"
        );
    }
}

#[test]
fn the_broker_sees_the_driver_s_calls_under_every_kind_of_profile() {
    let Some(host) = Host::find() else { return };
    let Some(list) = allow_list(1) else {
        println!("SKIP: no table of system calls");
        return;
    };
    let calls = every_call();
    let answers = host.run("none", None, &calls, Privileges::Any);
    assert_effective(&answers, libc::ENOTTY, "no profile");
    let answers = host.run("list", Some(list.clone()), &calls, Privileges::Any);
    assert_effective(&answers, libc::ENOTTY, "allow list");
    let answers = host.run("list-nnp", Some(list), &calls, Privileges::NoNew);
    assert_effective(&answers, libc::ENOTTY, "allow list, no new privileges");
    let allow = json!({"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"], "syscalls": [{"names": ["reboot"], "action": "SCMP_ACT_ERRNO"}]});
    let answers = host.run("allow", Some(allow), &calls, Privileges::Any);
    assert_effective(&answers, libc::ENOTTY, "allow by default");
    // runc skips rules that equal the default: our refusals must not vanish with them.
    let answers = host.run("enotty", allow_list(25), &calls, Privileges::Any);
    assert_effective(&answers, libc::EINVAL, "default errno is ours");
}

#[test]
fn what_a_profile_says_of_single_ioctls_holds() {
    let Some(host) = Host::find() else { return };
    let Some(mut list) = allow_list(1) else {
        println!("SKIP: no table of system calls");
        return;
    };
    let equal = |value: u64| json!([{"index": 1, "value": value, "op": "SCMP_CMP_EQ"}]);
    // Denied by value beside an unconditional allowance.
    let mut denying = list.clone();
    let deny = json!({"names": ["ioctl"], "action": "SCMP_ACT_ERRNO", "errnoRet": 13, "args": equal(0x5401)});
    denying["syscalls"].as_array_mut().unwrap().push(deny);
    let answers = host.run("deny", Some(denying), &every_call(), Privileges::Any);
    assert_eq!(answers["i:0x5401"], "-13");
    assert_eq!(answers["i:0xc020462a"], "4242");
    assert_eq!(answers["i:0x541b"], "-9");
    // Allowed by value only: others are denied, one of the driver's values is the broker's.
    let names = list["syscalls"][0]["names"].as_array_mut().unwrap();
    names.retain(|name| name != "ioctl");
    for value in [0x5401, 0xc020_462a] {
        let allow = json!({"names": ["ioctl"], "action": "SCMP_ACT_ALLOW", "args": equal(value)});
        list["syscalls"].as_array_mut().unwrap().push(allow);
    }
    let answers = host.run("some", Some(list), &every_call(), Privileges::Any);
    assert_eq!(answers["i:0x5401"], "-9");
    assert_eq!(answers["i:0x541b"], "-1");
    for call in NOTIFIED {
        assert_eq!(answers[call], "4242", "{call}");
    }
}

#[test]
fn an_exec_is_under_the_same_filter() {
    let Some(host) = Host::find() else { return };
    let bundle = host.bundle("exec", None, &["w"], Privileges::Any);
    // Without pipes: the container would hold them.
    let started = Command::new("runc")
        .arg("--root")
        .arg(host.dir.path().join("runc"))
        .args(["run", "--detach", "--bundle"])
        .arg(&bundle)
        .arg("exec")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    let answered = host.runc(&[&["exec", "exec", "/probe"], every_call().as_slice()].concat());
    host.runc(&["delete", "--force", "exec"]);
    assert!(started.success(), "{started:?}");
    assert_effective(&answers(&answered), libc::ENOTTY, "exec");
}
