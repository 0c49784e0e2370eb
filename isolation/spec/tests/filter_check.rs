//! The filter as it is in a container: real runc, real libseccomp, a probe that makes the calls.
//!
//! Skips aloud without root, runc or a C compiler.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use cards::grant::{self, Frontend};
use cards::{
    CardGrant, ComputeTerms, ContainerKey, DriverSpec, FrontendKind, GpuUuid, Grant, IoUring,
    Isolation,
};
use host_config::config::OtherCards;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvabi::Release;
use serde_json::{Value, json};
use spec::edit::{Additions, OtherWays, Plan, SeccompRules, apply, closed_to_driver};
use spec::request::Toolkit;
use sys::seccomp::Listener;
use sys::traced::Traced;
use verdict::filter::{Coverage, FilterSpec};
use verdict::filter_check::{self, Closed, Hole};

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

const FILTER: FilterSpec = FilterSpec {
    release: Release::R570,
    coverage: Coverage::Simulated,
    arch: arch::Arch::NATIVE,
};

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
        self.bundle_held(id, seccomp, args, privileges, &Isolation::default())
    }

    fn bundle_held(
        &self,
        id: &str,
        seccomp: Option<Value>,
        args: &[&str],
        privileges: Privileges,
        isolation: &Isolation,
    ) -> PathBuf {
        let (bundle, mut spec) = self.unedited(id, seccomp, args, privileges);
        let grant = Grant {
            version: grant::VERSION,
            key: ContainerKey::new("test", id).unwrap(),
            driver: DriverSpec::Sim {
                socket: "/nonexistent".into(),
            },
            driver_version: "570.195.03".to_owned(),
            layouts: None,
            cards: vec![CardGrant {
                uuid: GpuUuid::new("GPU-0").unwrap(),
                minor: 0,
                quota_bytes: 1 << 30,
            }],
            compute: ComputeTerms::default(),
            claims: Vec::new(),
            backend: cards::Backend::Broker,
            backend_reason: String::new(),
            isolation: isolation.clone(),
            frontend: Frontend {
                kind: FrontendKind::Runtime,
                pid: 0,
            },
            bundle: None,
            created_at_unix_ms: 0,
        };
        let seccomp = SeccompRules::of(&FILTER);
        let listener = bundle.join("notify.sock");
        apply(
            &mut spec,
            &Plan {
                grant: &grant,
                mounts: &[],
                additions: &Additions::default(),
                nodes: &spec::nodes::of(&grant, None, nvabi::proc_files::DeviceFiles::default()),
                uvm_major: None,
                listener: &listener,
                seccomp: &seccomp,
                other_cards: OtherCards::Refuse,
            },
        )
        .unwrap();
        fs::write(bundle.join("config.json"), spec.to_string()).unwrap();
        let socket = UnixListener::bind(listener).unwrap();
        // Ends with the test program; it waits for listeners until then.
        std::thread::spawn(move || play_broker(&socket));
        bundle
    }

    /// A bundle that has no spec yet, and the spec.
    fn unedited(
        &self,
        id: &str,
        seccomp: Option<Value>,
        args: &[&str],
        privileges: Privileges,
    ) -> (PathBuf, Value) {
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
        (bundle, spec)
    }

    /// A container that asks for nothing and shares the host's network.
    fn plain_bundle(
        &self,
        id: &str,
        seccomp: Option<Value>,
        args: &[&str],
        privileges: Privileges,
    ) -> PathBuf {
        let (bundle, spec) = self.unedited(id, seccomp, args, privileges);
        let closed = closed_to_driver(&spec, Some(id), || OtherWays {
            majors: Vec::new(),
            toolkit: Toolkit {
                reads_variable: true,
                reads_mounts: false,
            },
        })
        .unwrap()
        .unwrap();
        fs::write(bundle.join("config.json"), closed.to_string()).unwrap();
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

impl Host {
    /// What is found of the filter of a container that waits to be started, after a last change to its spec.
    fn judged(
        &self,
        id: &str,
        seccomp: Option<Value>,
        privileges: Privileges,
        change: impl FnOnce(&mut Value),
    ) -> Result<Closed, Hole> {
        let bundle = self.bundle(id, seccomp, &["w"], privileges);
        let path = bundle.join("config.json");
        let mut spec: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut spec);
        fs::write(&path, spec.to_string()).unwrap();
        let pid_file = bundle.join("pid");
        // Without pipes: the container would hold them.
        let created = Command::new("runc")
            .arg("--root")
            .arg(self.dir.path().join("runc"))
            .arg("create")
            .arg("--bundle")
            .arg(&bundle)
            .arg("--pid-file")
            .arg(&pid_file)
            .arg(id)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(created.success(), "{id}");
        let pid = fs::read_to_string(&pid_file).unwrap().parse().unwrap();
        let programs = {
            let traced = Traced::seize(pid).unwrap();
            traced.stop(Duration::from_secs(20)).unwrap();
            traced.filters().unwrap()
        };
        let started = self.runc(&["start", id]);
        assert!(started.status.success(), "goes on afterwards: {started:?}");
        self.runc(&["delete", "--force", id]);
        filter_check::check(
            &programs,
            &filter_check::demands(&FILTER, filter_check::IoUring::Open),
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
        "m:1:0x1000",
        "m:1:0xf000",
        "m:0x11:0",
        "m:0x100001:0",
        "m:1:0x10000",
        "m:3:0x100000000",
        "m:0x11:0x700000000000",
        "c:0xc020462a",
        "x:0xc020462a",
        "c:0x5401",
        "x:0x5401",
        "C:1:16",
        "C:0x22:0",
        "o",
        "g",
    ];
    NOTIFIED
        .into_iter()
        .chain(CLOSED)
        .chain(FOREIGN)
        .chain(others)
        .collect()
}

fn assert_closed(answers: &BTreeMap<String, String>, closed: i32, context: &str) {
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
    for call in ["m:1:0", "m:2:0x100000000"] {
        fails(call, libc::EBADF);
    }
    for call in [
        "m:1:0x1000",
        "m:1:0xf000",
        "m:0x11:0",
        "m:0x100001:0",
        "m:1:0x10000",
        "m:3:0x100000000",
        "m:0x11:0x700000000000",
    ] {
        fails(call, OTHER_ERRNO);
    }
    // Foreign tables end their caller, whatever the call; x32 looks like no call at all to a kernel without its table.
    for call in ["c:0xc020462a", "c:0x5401", "C:1:16", "C:0x22:0", "o", "g"] {
        assert_eq!(answers[call], SIGSYS, "{context}: {call} in {answers:?}");
    }
    for call in ["x:0xc020462a", "x:0x5401"] {
        assert!(
            answers[call] == SIGSYS || answers[call] == format!("-{}", libc::ENOSYS),
            "{context}: {call} in {answers:?}"
        );
    }
}

const SIGSYS: &str = "signal-31";

const ALL_ARCHITECTURES: [&str; 3] = ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"];

/// Profiles under which ordinary programs run, and what our own refusals answer under each.
fn profiles(list: &Value) -> Vec<(&'static str, Option<Value>, i32)> {
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut profile = list.clone();
        change(&mut profile);
        Some(profile)
    };
    let by_default = |action: &str| {
        Some(json!({
            "defaultAction": action,
            "architectures": ALL_ARCHITECTURES,
            "syscalls": [{"names": ["reboot"], "action": "SCMP_ACT_ERRNO"}],
        }))
    };
    let denying = |action: &'static str| {
        changed(&move |profile| {
            profile["defaultAction"] = json!(action);
            profile.as_object_mut().unwrap().remove("defaultErrnoRet");
        })
    };
    vec![
        ("none, as privileged", None, libc::ENOTTY),
        ("allow list", Some(list.clone()), libc::ENOTTY),
        (
            // As docker's and containerd's are, their conditional rules among them.
            "engine's default",
            changed(&|profile| {
                let rules = profile["syscalls"].as_array_mut().unwrap();
                let conditional = |name: &str, index: u32, value: u64| json!({"names": [name], "action": "SCMP_ACT_ALLOW", "args": [{"index": index, "value": value, "op": "SCMP_CMP_EQ"}]});
                rules.extend([
                    conditional("personality", 0, 0),
                    conditional("personality", 0, 0xffff_ffff),
                    json!({"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 0x7e02_0000, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]}),
                    json!({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}),
                ]);
            }),
            libc::ENOTTY,
        ),
        ("allow", by_default("SCMP_ACT_ALLOW"), libc::ENOTTY),
        ("log", by_default("SCMP_ACT_LOG"), libc::ENOTTY),
        // runc skips rules that equal the default: our refusals must not vanish with them.
        (
            "our own errno by default",
            changed(&|profile| profile["defaultErrnoRet"] = json!(25)),
            libc::EINVAL,
        ),
        (
            "kill the process",
            denying("SCMP_ACT_KILL_PROCESS"),
            libc::ENOTTY,
        ),
        ("kill the thread", denying("SCMP_ACT_KILL"), libc::ENOTTY),
        ("trap", denying("SCMP_ACT_TRAP"), libc::ENOTTY),
        (
            "logged allowances",
            changed(&|profile| profile["syscalls"][0]["action"] = json!("SCMP_ACT_LOG")),
            libc::ENOTTY,
        ),
        (
            "no architectures",
            changed(&|profile| {
                profile.as_object_mut().unwrap().remove("architectures");
            }),
            libc::ENOTTY,
        ),
        (
            "native architecture",
            changed(&|profile| profile["architectures"] = json!(["SCMP_ARCH_X86_64"])),
            libc::ENOTTY,
        ),
        (
            "foreign architectures",
            changed(&|profile| {
                profile["architectures"] = json!(["SCMP_ARCH_X86", "SCMP_ARCH_X32"]);
            }),
            libc::ENOTTY,
        ),
    ]
}

#[test]
fn the_broker_sees_the_driver_s_calls_under_every_kind_of_profile() {
    let Some(host) = Host::find() else { return };
    let Some(list) = allow_list(1) else {
        println!("SKIP: no table of system calls");
        return;
    };
    let calls = every_call();
    for (at, (name, profile, closed)) in profiles(&list).into_iter().enumerate() {
        for privileges in [Privileges::Any, Privileges::NoNew] {
            let id = format!("p{at}-{privileges:?}").to_lowercase();
            let answers = host.run(&id, profile.clone(), &calls, privileges);
            assert_closed(&answers, closed, &format!("{name}, {privileges:?}"));
        }
    }
}

/// Of a plain container: what fails, and what is as it was, of this machine's table and of the foreign ones.
const CLOSED_TO_PLAIN: [&str; 12] = [
    "i:0xc020462a",
    "i:0xc030462b",
    "i:0xc020462b",
    "i:0xffffffffc020462a",
    "i:0x0020462a",
    "i:0xc030002b",
    "i:0xc040aa57",
    "i:33",
    "i:0x30000001",
    "i:0xc01046d3",
    "c:0xc020462a",
    "c:33",
];
const OPEN_TO_PLAIN: [&str; 7] = [
    "i:0x5401",
    "i:0x400454d4",
    "i:0x4020744f",
    "i:0xc021462a",
    "c:0x5401",
    "c:0x400454d4",
    "m:1:0x1000",
];

/// With the errno that a refusal has, or that the profile's own answer to foreign tables is not looked at.
fn assert_closed_to_plain(
    answers: &BTreeMap<String, String>,
    closed: i32,
    has_foreign_tables: bool,
    context: &str,
) {
    let looked_at = |call: &&&str| has_foreign_tables || !call.starts_with('c');
    for call in CLOSED_TO_PLAIN.iter().filter(looked_at) {
        let expected = (-closed).to_string();
        assert_eq!(answers[*call], expected, "{context}: {call} in {answers:?}");
    }
    for call in OPEN_TO_PLAIN.iter().filter(looked_at) {
        let expected = (-libc::EBADF).to_string();
        assert_eq!(answers[*call], expected, "{context}: {call} in {answers:?}");
    }
    // A kernel without x32's table knows no such call.
    let x32 = &answers["x:0xc020462a"];
    assert_ne!(*x32, (-libc::EBADF).to_string(), "{context}: {answers:?}");
    // It may still supervise processes of its own.
    assert_eq!(answers["n"], "0", "{context}");
}

fn calls_of_plain() -> Vec<&'static str> {
    CLOSED_TO_PLAIN
        .into_iter()
        .chain(OPEN_TO_PLAIN)
        .chain(["x:0xc020462a", "n"])
        .collect()
}

#[test]
fn the_driver_s_calls_fail_in_a_plain_container_under_every_kind_of_profile() {
    let Some(host) = Host::find() else { return };
    let Some(list) = allow_list(1) else {
        println!("SKIP: no table of system calls");
        return;
    };
    let calls = calls_of_plain();
    for (at, (name, profile, closed)) in profiles(&list).into_iter().enumerate() {
        // What a profile says of foreign tables stays: some have none, and one has no other.
        let tables = profile.as_ref().map(|profile| &profile["architectures"]);
        let has_foreign = tables.is_none_or(|tables| *tables == json!(ALL_ARCHITECTURES));
        for privileges in [Privileges::Any, Privileges::NoNew] {
            let id = format!("q{at}-{privileges:?}").to_lowercase();
            let bundle = host.plain_bundle(&id, profile.clone(), &calls, privileges);
            let ran = host.runc(&["run", "--bundle", bundle.to_str().unwrap(), &id]);
            let context = format!("{name}, {privileges:?}");
            assert_closed_to_plain(&answers(&ran), closed, has_foreign, &context);
        }
    }
}

#[test]
fn the_driver_s_calls_fail_in_an_exec_of_a_plain_container() {
    let Some(host) = Host::find() else { return };
    for (at, profile) in [None, allow_list(1)].into_iter().enumerate() {
        for privileges in [Privileges::Any, Privileges::NoNew] {
            let id = format!("qx{at}-{privileges:?}").to_lowercase();
            let bundle = host.plain_bundle(&id, profile.clone(), &["w"], privileges);
            // Without pipes: the container would hold them.
            let started = Command::new("runc")
                .arg("--root")
                .arg(host.dir.path().join("runc"))
                .args(["run", "--detach", "--bundle"])
                .arg(&bundle)
                .arg(&id)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .unwrap();
            assert!(started.success(), "{id}");
            let words = [&["exec", &id, "/probe"], calls_of_plain().as_slice()].concat();
            let ran = host.runc(&words);
            host.runc(&["delete", "--force", &id]);
            assert_closed_to_plain(&answers(&ran), libc::ENOTTY, true, &id);
        }
    }
}

const NOTIFIES: Result<Closed, Hole> = Ok(Closed { notifies: true });

#[test]
fn the_filter_in_force_is_found_to_hold_under_every_kind_of_profile() {
    let Some(host) = Host::find() else { return };
    let Some(list) = allow_list(1) else {
        println!("SKIP: no table of system calls");
        return;
    };
    for (at, (name, profile, _)) in profiles(&list).into_iter().enumerate() {
        for privileges in [Privileges::Any, Privileges::NoNew] {
            let id = format!("h{at}-{privileges:?}").to_lowercase();
            let found = host.judged(&id, profile.clone(), privileges, |_| {});
            assert_eq!(found, NOTIFIES, "{name}, {privileges:?}");
        }
    }
    // Conditions of a profile's own.
    for (at, (op, value, value_two)) in [
        ("SCMP_CMP_EQ", 0x5401_u64, 0),
        ("SCMP_CMP_MASKED_EQ", 0xffff_ffff, 0x5401),
        ("SCMP_CMP_LE", 0x18, 0),
        ("SCMP_CMP_GT", 0xffff_ffff_ffff_0000, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let mut profile = list.clone();
        let deny = json!({"names": ["ioctl"], "action": "SCMP_ACT_ERRNO", "errnoRet": 13, "args": [{"index": 1, "value": value, "valueTwo": value_two, "op": op}]});
        profile["syscalls"].as_array_mut().unwrap().push(deny);
        let found = host.judged(&format!("hc{at}"), Some(profile), Privileges::Any, |_| {});
        assert_eq!(found, NOTIFIES, "{op}");
    }
    // A profile's own denial is stricter than the broker.
    let mut denying = list;
    let names = denying["syscalls"][0]["names"].as_array_mut().unwrap();
    names.retain(|name| name != "ioctl");
    let found = host.judged("hd", Some(denying), Privileges::Any, |_| {});
    assert_eq!(found, NOTIFIES, "mmap is the broker's still");
}

/// The default profiles of docker 20.10, 26 and 28, as they came to runc.
#[test]
fn the_filter_in_force_holds_under_docker_s_own_profiles() {
    let Some(host) = Host::find() else { return };
    for name in ["docker-20.10", "docker-26.1", "docker-28.5"] {
        let path = format!("{}/tests/specs/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let spec: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let profile = spec["linux"]["seccomp"].clone();
        assert!(profile["syscalls"].as_array().unwrap().len() > 5, "{name}");
        for privileges in [Privileges::Any, Privileges::NoNew] {
            let id = format!("{name}-{privileges:?}").to_lowercase();
            let found = host.judged(&id, Some(profile.clone()), privileges, |_| {});
            assert_eq!(found, NOTIFIES, "{id}");
        }
    }
}

/// What a runtime could make of our profile: each is let through without a word by runc and libseccomp.
#[test]
fn a_filter_that_does_not_hold_is_found_out() {
    let Some(host) = Host::find() else { return };
    let Some(list) = allow_list(1) else {
        println!("SKIP: no table of system calls");
        return;
    };
    let found = host.judged("f0", None, Privileges::Any, |spec| {
        spec["linux"].as_object_mut().unwrap().remove("seccomp");
    });
    assert_eq!(found, Err(Hole::NoFilter), "dropped");
    // An unconditional allowance swallows every rule of ours, before and after them.
    for (at, name) in ["ioctl", "mmap", "seccomp"].into_iter().enumerate() {
        for first in [true, false] {
            let id = format!("fu{at}-{first}");
            let found = host.judged(&id, Some(list.clone()), Privileges::NoNew, |spec| {
                let rules = spec["linux"]["seccomp"]["syscalls"].as_array_mut().unwrap();
                let allow = json!({"names": [name], "action": "SCMP_ACT_ALLOW"});
                rules.insert(if first { 0 } else { rules.len() }, allow);
            });
            let Err(Hole::Open { name: open }) = found else {
                panic!("{name}, first: {first}: {found:?}");
            };
            assert!(name == "ioctl" || open.starts_with(name), "{open}");
        }
    }
    let found = host.judged("fa", Some(list.clone()), Privileges::Any, |spec| {
        let profile = spec["linux"]["seccomp"].as_object_mut().unwrap();
        profile.insert("architectures".to_owned(), json!(ALL_ARCHITECTURES));
    });
    assert!(
        matches!(found, Err(Hole::Open { .. })),
        "foreign tables: {found:?}"
    );
    // One rule that is not there, of the many.
    let found = host.judged("fr", Some(list), Privileges::Any, |spec| {
        let rules = spec["linux"]["seccomp"]["syscalls"].as_array_mut().unwrap();
        let last = rules
            .iter()
            .rposition(|rule| rule["action"] == "SCMP_ACT_NOTIFY" && rule["names"][0] == "ioctl")
            .unwrap();
        rules.remove(last);
    });
    assert!(
        matches!(found, Err(Hole::Open { .. })),
        "a rule less: {found:?}"
    );
}

#[test]
fn every_operator_of_a_profile_s_conditions_holds_or_is_refused() {
    let Some(host) = Host::find() else { return };
    let Some(list) = allow_list(1) else {
        println!("SKIP: no table of system calls");
        return;
    };
    // Denials beside an unconditional allowance: TCGETS and what the operator says of it.
    for (at, (op, value, value_two)) in [
        ("SCMP_CMP_EQ", 0x5401_u64, 0),
        ("SCMP_CMP_MASKED_EQ", 0xffff_ffff, 0x5401),
        ("SCMP_CMP_LE", 0x18, 0),
        ("SCMP_CMP_LT", 0x19, 0),
        ("SCMP_CMP_GE", 0xffff_ffff_ffff_0000, 0),
        ("SCMP_CMP_GT", 0xffff_ffff_ffff_0000, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let mut profile = list.clone();
        let deny = json!({"names": ["ioctl"], "action": "SCMP_ACT_ERRNO", "errnoRet": 13, "args": [{"index": 1, "value": value, "valueTwo": value_two, "op": op}]});
        profile["syscalls"].as_array_mut().unwrap().push(deny);
        let denied = |command: u64| match op {
            "SCMP_CMP_EQ" => command == value,
            "SCMP_CMP_MASKED_EQ" => command & value == value_two,
            "SCMP_CMP_LE" => command <= value,
            "SCMP_CMP_LT" => command < value,
            "SCMP_CMP_GE" => command >= value,
            _ => command > value,
        };
        let calls = every_call();
        let answers = host.run(&format!("op{at}"), Some(profile), &calls, Privileges::Any);
        for call in NOTIFIED.iter().chain(&FOREIGN) {
            let text = call.trim_start_matches("i:");
            let command = match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
                None => text.parse().unwrap(),
            };
            let allowed = if NOTIFIED.contains(call) {
                ANSWER
            } else {
                -i64::from(libc::EBADF)
            };
            let expected = if denied(command) { -13 } else { allowed };
            assert_eq!(answers[*call], expected.to_string(), "{op}: {call}");
        }
    }
}

#[test]
fn io_uring_answers_as_the_grant_reports() {
    let Some(host) = Host::find() else { return };
    let Some(list) = allow_list(1) else {
        println!("SKIP: no table of system calls");
        return;
    };
    for (at, profile) in [None, Some(list)].into_iter().enumerate() {
        for (io_uring, expected) in [
            (IoUring::Allow, libc::EFAULT),
            (IoUring::Deny, libc::ENOSYS),
        ] {
            let id = format!("u{at}-{io_uring:?}").to_lowercase();
            let isolation = Isolation {
                io_uring,
                ..Isolation::default()
            };
            let bundle =
                host.bundle_held(&id, profile.clone(), &["u"], Privileges::Any, &isolation);
            let reply = answers(&host.runc(&["run", "--bundle", bundle.to_str().unwrap(), &id]));
            // A machine that has turned it off by sysctl says so before it looks at the arguments.
            let ends = [format!("-{expected}"), format!("-{}", libc::EPERM)];
            let accepted = match io_uring {
                IoUring::Allow => &ends[..],
                IoUring::Deny => &ends[..1],
            };
            assert!(accepted.contains(&reply["u"]), "{io_uring:?}: {reply:?}");
        }
    }
}

#[test]
fn what_a_profile_reports_of_single_ioctls_holds() {
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
    assert_closed(&answers(&answered), libc::ENOTTY, "exec");
}
