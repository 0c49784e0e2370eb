use super::*;

fn arguments(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn parsed(line: &str) -> Result<Invocation, ParseError> {
    parse(&arguments(line), Spelling::Go)
}

fn by_crun(line: &str) -> Result<Invocation, ParseError> {
    parse(&arguments(line), Spelling::C)
}

fn create(id: &str, bundle: Option<&str>) -> Subcommand {
    Subcommand::Create {
        id: id.to_owned(),
        bundle: bundle.map(PathBuf::from),
        step: Step::Create,
        pid_file: None,
        preserved_fds: 0,
    }
}

fn run(id: &str, bundle: Option<&str>) -> Subcommand {
    Subcommand::Create {
        id: id.to_owned(),
        bundle: bundle.map(PathBuf::from),
        step: Step::CreateAndStart,
        pid_file: None,
        preserved_fds: 0,
    }
}

/// `process`: the file, and how many words are before the container's name.
fn exec(id: &str, process: Option<(&str, usize)>) -> Subcommand {
    Subcommand::Exec {
        id: id.to_owned(),
        process: process.map(|(file, options_end)| FileOption {
            file: PathBuf::from(file),
            name: "--process".to_owned(),
            options_end,
        }),
        capabilities: Vec::new(),
        detached: None,
        preserved_fds: 0,
    }
}

fn with_pid_file(mut create: Subcommand, file: &str) -> Subcommand {
    if let Subcommand::Create { pid_file, .. } = &mut create {
        *pid_file = Some(file.into());
    }
    create
}

fn detached(mut exec: Subcommand, file: Option<&str>, options_end: usize) -> Subcommand {
    if let Subcommand::Exec { detached, .. } = &mut exec {
        *detached = Some(Detached {
            pid_file: file.map(PathBuf::from),
            options_end,
        });
    }
    exec
}

fn delete(id: &str) -> Subcommand {
    Subcommand::Delete {
        which: Deleted::One(id.to_owned()),
    }
}

#[test]
fn what_engines_send_is_understood() {
    // docker 20.10 through containerd-shim-runc-v2.
    let line = "--root /var/run/docker/runtime-runc/moby --log /b/log.json --log-format json create --bundle /b --pid-file /b/init.pid --console-socket /tmp/pty.sock abc";
    let invocation = parsed(line).unwrap();
    assert_eq!(
        invocation.root,
        Some("/var/run/docker/runtime-runc/moby".into())
    );
    assert_eq!(invocation.global_arguments, 6);
    let logging = logging(&arguments(line));
    assert_eq!(
        (logging.log, logging.log_format.as_deref()),
        (Some("/b/log.json".into()), Some("json"))
    );
    assert_eq!(
        invocation.subcommand,
        with_pid_file(create("abc", Some("/b")), "/b/init.pid")
    );
    // conmon.
    assert_eq!(
        parsed("--root=/run/runc --systemd-cgroup create --bundle=/b -no-pivot --pid-file /p abc")
            .unwrap()
            .subcommand,
        with_pid_file(create("abc", Some("/b")), "/p")
    );
    assert_eq!(
        parsed("--log l exec --process /tmp/p.json --detach --pid-file /p abc")
            .unwrap()
            .subcommand,
        detached(exec("abc", Some(("/tmp/p.json", 8))), Some("/p"), 8)
    );
    assert_eq!(
        parsed("exec -t -e A=b -u 0:0 abc sh -p 1")
            .unwrap()
            .subcommand,
        exec("abc", None)
    );
    assert_eq!(
        parsed("delete --force abc").unwrap().subcommand,
        delete("abc")
    );
    assert_eq!(parsed("run abc").unwrap().subcommand, run("abc", None));
    assert_eq!(
        parsed("run -d -b . abc").unwrap().subcommand,
        run("abc", Some("."))
    );
    assert_eq!(
        parsed("run --detach=false abc").unwrap().subcommand,
        run("abc", None)
    );
    assert_eq!(
        parsed("create -- -abc").unwrap().subcommand,
        create("-abc", None)
    );
}

/// However it is spelled, and not where the words are the program's in the container.
#[test]
fn a_detached_exec_is_seen_by_its_options_alone() {
    for (line, parse, file, options_end) in [
        (
            "exec --detach --pid-file /p abc sh",
            parsed as fn(&str) -> _,
            Some("/p"),
            4,
        ),
        (
            "exec --detach=true --pid-file=/p abc sh",
            parsed,
            Some("/p"),
            3,
        ),
        ("exec -detach -pid-file /p abc sh", parsed, Some("/p"), 4),
        ("exec -d abc daemon --pid-file /run/d.pid", parsed, None, 2),
        ("exec -dt --pid-file /p abc sh", by_crun, Some("/p"), 4),
        ("exec --det --pid-f=/p abc sh", by_crun, Some("/p"), 3),
    ] {
        let found = parse(line).unwrap().subcommand;
        let expected = detached(exec("abc", None), file, options_end);
        assert_eq!(found, expected, "{line}");
    }
    for line in [
        "exec abc daemon -d --pid-file /run/d.pid",
        "exec --detach=false --pid-file /p abc sh",
    ] {
        assert_eq!(
            parsed(line).unwrap().subcommand,
            exec("abc", None),
            "{line}"
        );
    }
    let Subcommand::Exec {
        detached: Some(detached),
        ..
    } = parsed("--root /r exec -d abc sh").unwrap().subcommand
    else {
        panic!("not detached");
    };
    let line = detached.with_pid_file(&arguments("--root /r exec -d abc sh"), Path::new("/f"));
    assert_eq!(line, arguments("--root /r exec -d --pid-file /f abc sh"));
}

#[test]
fn a_start_names_its_container() {
    let start = parsed("--root /r start abc").unwrap().subcommand;
    let id = "abc".to_owned();
    assert_eq!(start, Subcommand::Start { id });
}

#[test]
fn everything_else_is_runc_s() {
    for line in [
        "",
        "--version",
        "state abc",
        "kill --all abc 9",
        "events --stats abc",
        "features",
        "create --help",
        "delete",
        "delete --unknown abc",
        "restore --help",
        "checkpoint --help",
        "start --help",
    ] {
        assert_eq!(
            parsed(line).unwrap().subcommand,
            Subcommand::Other,
            "{line}"
        );
    }
}

#[test]
fn a_value_is_never_taken_for_the_container() {
    assert!(matches!(
        parsed("create --future value abc"),
        Err(ParseError::UnknownOption { .. })
    ));
    assert!(matches!(
        parsed("--future value create abc"),
        Err(ParseError::UnknownOption { .. })
    ));
    assert_eq!(
        parsed("create --future=value abc").unwrap().subcommand,
        create("abc", None)
    );
    assert!(matches!(
        parsed("create --bundle"),
        Err(ParseError::NoValue { .. })
    ));
    assert!(matches!(
        parsed("create --bundle /b"),
        Err(ParseError::NoContainer { .. })
    ));
}

/// By trying, with runc 1.1.5 and crun 1.21: runc judges, and starts, what is named there, and crun refuses it.
#[test]
fn options_behind_the_container_are_runc_s_as_well() {
    for line in [
        "create abc --bundle /b",
        "create abc -b=/b",
        "create -b /a abc --bundle /b",
        "create abc --bundle /b -- --bundle /c",
    ] {
        let found = parsed(line).unwrap().subcommand;
        assert_eq!(found, create("abc", Some("/b")), "{line}");
    }
    assert_eq!(
        parsed("run abc -b /b -d").unwrap().subcommand,
        run("abc", Some("/b"))
    );
    assert_eq!(
        parsed("restore abc --bundle /b").unwrap().subcommand,
        Subcommand::Restore {
            bundle: Some("/b".into())
        }
    );
    assert_eq!(
        parsed("delete abc --force").unwrap().subcommand,
        delete("abc")
    );
    assert!(matches!(
        parsed("create abc --future value"),
        Err(ParseError::UnknownOption { .. })
    ));
    assert_eq!(
        by_crun("create abc --bundle /b").unwrap().subcommand,
        create("abc", None)
    );
    // What follows there is the command's.
    let Subcommand::Exec { preserved_fds, .. } =
        parsed("exec abc sh --preserve-fds 3").unwrap().subcommand
    else {
        panic!("not exec");
    };
    assert_eq!(preserved_fds, 0);
}

#[test]
fn an_update_names_its_container_wherever_its_options_are() {
    for line in [
        "update abc --cpu-quota 5000",
        "update --cpu-quota 5000 abc",
        "update --cpu-quota=5000 abc",
        "update --memory-swap -1 abc",
        "update -r - abc",
        "update --future 3 abc",
    ] {
        let found = parsed(line).unwrap().subcommand;
        assert_eq!(found.container(), Some("abc"), "{line}");
        assert!(matches!(found, Subcommand::Update { .. }), "{line}");
    }
    for line in ["update --help", "update", "update --cpu-quota 5000"] {
        assert_eq!(
            parsed(line).unwrap().subcommand,
            Subcommand::Other,
            "{line}"
        );
    }
}

#[test]
fn the_resources_of_an_update_are_replaced_where_their_option_may_be() {
    let replaced = |line: &str, invocation: Invocation| {
        let Subcommand::Update { resources, .. } = invocation.subcommand else {
            panic!("{line}");
        };
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let words = resources.unwrap().replaced(&words, "/new".into());
        to_text(&words).join(" ")
    };
    for (line, expected) in [
        (
            "--root /r update -r - abc",
            "--root /r update -r - -r /new abc",
        ),
        (
            "update --resources=/f abc",
            "update --resources=/f --resources /new abc",
        ),
    ] {
        assert_eq!(replaced(line, parsed(line).unwrap()), expected);
        assert_eq!(replaced(line, by_crun(line).unwrap()), expected);
    }
    let behind = "update abc --resources /f";
    assert_eq!(
        replaced(behind, parsed(behind).unwrap()),
        "update abc --resources /f --resources /new"
    );
}

#[test]
fn crun_s_spellings_are_understood() {
    // podman and conmon with crun and systemd.
    let invocation = by_crun("--root=/run/crun --cgroup-manager systemd --systemd-cgroup --log-f=json create -b/b --pid-file=/p abc").unwrap();
    assert_eq!(invocation.root, Some("/run/crun".into()));
    assert_eq!(
        invocation.subcommand,
        with_pid_file(create("abc", Some("/b")), "/p")
    );
    for line in [
        "run -db /b abc",
        "run -d --bun /b abc",
        "run --detach --bundle=/b abc",
        "run -d -b/b -- abc",
    ] {
        assert_eq!(
            by_crun(line).unwrap().subcommand,
            run("abc", Some("/b")),
            "{line}"
        );
    }
    // What follows -t in its word is -t's own value.
    let Subcommand::Exec {
        process: Some(process),
        ..
    } = by_crun("exec -tp -u0:0 -p/p.json abc").unwrap().subcommand
    else {
        panic!("no exec");
    };
    assert_eq!((process.file, process.options_end), ("/p.json".into(), 4));
}

#[test]
fn a_argument_is_read_as_its_own_parser_reads_it() {
    // runc: --cap X; crun: -c ap, and the container X.
    let line = "exec -cap X abc";
    assert_eq!(
        parsed(line).unwrap().subcommand,
        Subcommand::Exec {
            id: "abc".to_owned(),
            process: None,
            capabilities: vec!["X".to_owned()],
            detached: None,
            preserved_fds: 0,
        }
    );
    assert_eq!(
        by_crun(line).unwrap().subcommand,
        Subcommand::Exec {
            id: "X".to_owned(),
            process: None,
            capabilities: vec!["ap".to_owned()],
            detached: None,
            preserved_fds: 0,
        }
    );
    assert!(matches!(
        by_crun("create -no-pivot abc"),
        Err(ParseError::UnknownOption { .. })
    ));
    assert!(matches!(
        parsed("create --bun /b abc"),
        Err(ParseError::UnknownOption { .. })
    ));
    // --no-pivot, --no-new-keyring, --no-subreaper
    assert!(matches!(
        by_crun("create --no abc"),
        Err(ParseError::UnknownOption { .. })
    ));
    assert_eq!(Spelling::of(Path::new("/usr/bin/crun-wasm")), Spelling::C);
    assert_eq!(Spelling::of(Path::new("/usr/crun/runc")), Spelling::Go);
}

#[test]
fn descriptors_that_are_preserved_are_counted() {
    let Subcommand::Create { preserved_fds, .. } =
        parsed("create --preserve-fds 2 --preserve-fds=3 abc")
            .unwrap()
            .subcommand
    else {
        panic!("not create");
    };
    assert_eq!(preserved_fds, 3);
    for value in ["-1", "x", "65537", ""] {
        assert!(matches!(
            parsed(&format!("exec --preserve-fds={value} abc")),
            Err(ParseError::NotFds { .. })
        ));
    }
}

#[test]
fn a_spec_of_another_name_and_a_pattern_are_seen() {
    assert!(matches!(
        by_crun("create -f other.json abc"),
        Err(ParseError::OtherConfig { .. })
    ));
    assert_eq!(
        by_crun("create --config=config.json abc")
            .unwrap()
            .subcommand,
        create("abc", None)
    );
    assert_eq!(
        by_crun("delete -fr ^a").unwrap().subcommand,
        Subcommand::Delete {
            which: Deleted::ByPattern
        }
    );
    assert_eq!(
        parsed("restore --image-path /i -b /b abc")
            .unwrap()
            .subcommand,
        Subcommand::Restore {
            bundle: Some("/b".into())
        }
    );
    assert_eq!(
        parsed("checkpoint --image-path /i --leave-running abc")
            .unwrap()
            .subcommand,
        Subcommand::Checkpoint {
            id: "abc".to_owned()
        }
    );
}

#[test]
fn the_file_of_an_exec_is_replaced_however_its_option_is_spelt() {
    let replaced = |line: &str, parse: fn(&str) -> Result<Invocation, ParseError>| {
        let Subcommand::Exec {
            process: Some(process),
            ..
        } = parse(line).unwrap().subcommand
        else {
            panic!("{line}");
        };
        let words = process.replaced(&arguments(line), "/m".into());
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        let line = words.join(" ");
        // The runtime takes the last one.
        let Subcommand::Exec {
            process: Some(now), ..
        } = parse(&line).unwrap().subcommand
        else {
            panic!("{line}");
        };
        assert_eq!(now.file, PathBuf::from("/m"), "{line}");
        line
    };
    for (before, after) in [
        (
            "exec --process /tmp/p c1",
            "exec --process /tmp/p --process /m c1",
        ),
        ("exec -p=/tmp/p c1", "exec -p=/tmp/p -p /m c1"),
        (
            "--root /tmp/p exec --env X=/tmp/p -d --process=/tmp/p -- c1",
            "--root /tmp/p exec --env X=/tmp/p -d --process=/tmp/p --process /m -- c1",
        ),
    ] {
        assert_eq!(replaced(before, parsed), after);
    }
    assert_eq!(
        replaced("exec -dp/tmp/p c1", by_crun),
        "exec -dp/tmp/p -p /m c1"
    );
}
