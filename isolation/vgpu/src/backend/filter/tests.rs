//! A container whose runtime loads the filter at its start, as crun does with `no_new_privs`: `late.c` plays it. Skips aloud
//! without root or a C compiler.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};

use cards::grant::{self, Frontend};
use cards::{CardGrant, ComputeTerms, ContainerKey, DriverSpec, FrontendKind, GpuUuid, Isolation};
use serde_json::json;

use super::*;

/// Which filter the played runtime loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loads {
    Ours,
    OneThatAllowsEverything,
    None,
}

fn a_grant() -> Grant {
    Grant {
        version: grant::VERSION,
        key: ContainerKey::new("test", "c1").unwrap(),
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
        isolation: Isolation {
            io_uring: IoUring::Allow,
            ..Isolation::default()
        },
        frontend: Frontend {
            kind: FrontendKind::Runtime,
            pid: 0,
        },
        bundle: None,
        created_at_unix_ms: 0,
    }
}

impl Loads {
    /// As `struct sock_filter` is in memory.
    fn program(self) -> Vec<u8> {
        let program = match self {
            Self::Ours => verdict::filter::program(&host::filter_of(&a_grant()).unwrap()),
            Self::OneThatAllowsEverything => vec![bpf::ret(bpf::ALLOW)],
            Self::None => Vec::new(),
        };
        let bytes = |insn: &Instruction| {
            let [low, high] = insn.code.to_ne_bytes();
            let [a, b, c, d] = insn.k.to_ne_bytes();
            [low, high, insn.jt, insn.jf, a, b, c, d]
        };
        program.iter().flat_map(bytes).collect()
    }
}

struct Fixture {
    folder: tempfile::TempDir,
    child: Child,
    reply: BufReader<std::process::ChildStdout>,
}

impl Fixture {
    /// `None`, said aloud, where nobody may trace.
    fn new(loads: Loads) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: not root");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let control = UnixListener::bind(folder.path().join("control.sock")).unwrap();
        let status = Status {
            listeners: 1,
            ..Status::default()
        };
        // Ends with the test program.
        std::thread::spawn(move || {
            for connection in control.incoming() {
                let mut connection = connection.unwrap();
                // Who asks waits a moment on a busy machine, and asks again.
                let requested = BufReader::new(&connection).read_line(&mut String::new());
                if requested.is_ok() {
                    let _given_up = writeln!(connection, "{}", json!(status));
                }
            }
        });
        let (late, program) = (folder.path().join("late"), folder.path().join("program"));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/backend/filter/late.c");
        let mut compiler = Command::new("cc");
        match compiler.args([source, "-o"]).arg(&late).output() {
            Ok(compiled) => assert!(compiled.status.success(), "{compiled:?}"),
            Err(_absent) => {
                println!("SKIP: no C compiler");
                return None;
            }
        }
        std::fs::write(&program, loads.program()).unwrap();
        let mut child = Command::new(late)
            .arg(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut reply = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.ends_with("created\n") {
            assert_ne!(reply.read_line(&mut line).unwrap(), 0, "{line}");
        }
        Some(Self {
            folder,
            child,
            reply,
        })
    }

    fn init(&self) -> i32 {
        self.child.id().cast_signed()
    }

    fn dir(&self) -> ContainerDir {
        ContainerDir::at(self.folder.path())
    }

    /// Arms it and follows its start; says what came of that, and what the container said.
    fn started(mut self, started: Started) -> (Result<(), Error>, String) {
        let (dir, grant) = (self.dir(), a_grant());
        hold(&dir, &grant, self.init()).unwrap();
        assert!(is_loaded_at_start(&dir));
        let watch = watch_start(&dir, &grant, self.init()).unwrap().unwrap();
        if started == Started::Yes {
            drop(self.child.stdin.take());
        }
        let found = watch.finish(started);
        let mut reply = String::new();
        self.reply.read_to_string(&mut reply).unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!(status.success(), reply.contains("it runs"), "{status}");
        assert_eq!(
            is_loaded_at_start(&dir),
            found.is_err() || started == Started::No
        );
        (found, reply)
    }
}

#[test]
fn a_filter_that_is_loaded_at_the_start_is_looked_at_before_the_program_runs() {
    let Some(fixture) = Fixture::new(Loads::Ours) else {
        return;
    };
    let (found, reply) = fixture.started(Started::Yes);
    found.unwrap();
    assert!(reply.contains("it runs"), "{reply}");
}

#[test]
fn a_program_whose_filter_does_not_hold_never_runs() {
    for loads in [Loads::OneThatAllowsEverything, Loads::None] {
        let Some(fixture) = Fixture::new(loads) else {
            return;
        };
        let (found, reply) = fixture.started(Started::Yes);
        assert!(
            matches!(found, Err(Error::FilterOpen { .. })),
            "{loads:?}: {found:?}"
        );
        assert!(!reply.contains("it runs"), "{loads:?}: {reply}");
    }
}

#[test]
fn a_container_whose_start_has_failed_is_not_left_to_start_unseen() {
    let Some(fixture) = Fixture::new(Loads::Ours) else {
        return;
    };
    let (found, reply) = fixture.started(Started::No);
    found.unwrap();
    assert!(!reply.contains("it runs"), "{reply}");
}

#[test]
fn without_no_new_privs_a_filter_is_there_before_the_start_or_never() {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIP: not root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let dir = ContainerDir::at(folder.path());
    let found = hold(&dir, &a_grant(), child.id().cast_signed());
    assert!(
        matches!(
            found,
            Err(Error::FilterOpen {
                hole: filter_check::Hole::NoFilter
            })
        ),
        "{found:?}"
    );
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    // Nobody has held it: nobody may start it.
    let refused = watch_start(&dir, &a_grant(), 1).unwrap_err();
    assert!(matches!(refused, Error::NotArmed), "{refused}");
}

#[test]
fn programs_are_compared_and_not_counted() {
    let ours = verdict::filter::program(&host::filter_of(&a_grant()).unwrap());
    let allow = vec![bpf::ret(bpf::ALLOW)];
    let file = written(&[ours.clone(), allow.clone()]);
    for (programs, is_held) in [
        (vec![ours.clone(), allow.clone()], true),
        // A filter of the program's own is behind them.
        (vec![ours.clone(), allow.clone(), allow.clone()], true),
        (vec![allow.clone(), ours.clone()], false),
        (vec![allow.clone(), allow.clone()], false),
        (vec![ours.clone()], false),
        (vec![[ours.clone(), allow.clone()].concat()], false),
        (Vec::new(), false),
    ] {
        assert_eq!(begin_with(&programs, &file), is_held, "{}", programs.len());
    }
    assert!(!begin_with(&[ours], &[]), "nothing is known");
}

#[test]
fn an_exec_without_the_container_s_programs_is_found_out_and_one_that_has_ended_is_not() {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIP: not root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let dir = ContainerDir::at(folder.path());
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let pid = child.id().cast_signed();
    let is_open = |found| matches!(found, Err(Error::ExecOpen { .. }));
    let opened = Process::of(&dir, pid).unwrap().unwrap();
    assert!(
        is_open(verify_exec(&dir, &a_grant(), &opened)),
        "nobody has checked"
    );
    record(&dir, Record::Checked { programs: 0 }).unwrap();
    assert!(
        is_open(verify_exec(&dir, &a_grant(), &opened)),
        "by what it lacks"
    );
    std::fs::write(dir.file(PROGRAMS), written(&[])).unwrap();
    assert!(is_open(verify_exec(&dir, &a_grant(), &opened)));
    drop(child.stdin.take());
    let process = PidFd::open(pid).unwrap();
    assert!(process.wait_exit(20_000).unwrap());
    // Not yet waited for, and then gone.
    verify_exec(&dir, &a_grant(), &opened).unwrap();
    child.wait().unwrap();
    verify_exec(&dir, &a_grant(), &opened).unwrap();
}
