//! Streams: FIFOs, files and logging programs, floods and readers that stop.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::time::Duration;

use containerd_shim_protos::api;
use containerd_shim_protos::shim::oci::Options;
use containerd_shim_protos::shim_async::TaskClient;
use ttrpc::Code;

use crate::engine::*;
use crate::harness::{NAMESPACE, need_runc};
use crate::refusal::code;

async fn close_stdin(task: &TaskClient, id: &str, exec: &str) {
    let request = api::CloseIORequest {
        id: id.into(),
        exec_id: exec.into(),
        stdin: true,
        ..Default::default()
    };
    drop(task.close_io(limit(), &request).await.expect("close"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_log_file_gets_both_streams_of_init_and_of_execs() {
    need_runc!();
    let engine = Engine::new().await;
    let id = "file";
    let log = engine.path("logs/of a/log");
    let uri = format!("file://{}", log.display()).replace(' ', "%20");
    drop(engine.bundle(id, "echo out; echo err >&2; exec sleep 1000", false));
    let (task, socket) = engine.start_shim(id).await;
    let both = Io {
        stderr: uri.clone(),
        ..Io::out(&uri)
    };
    let created = engine.try_create(&task, id, both, runc_options(&Options::default()));
    created.await.expect("create");
    start(&task, id, "").await.expect("start");
    // Errors go where output goes if they have no place of their own.
    let script = "seq 1 3000; echo err >&2";
    assert_eq!(run_exec(&task, id, "e", script, Io::out(&uri)).await, 0);
    let terminal = Io::terminal(&uri);
    assert_eq!(run_exec(&task, id, "t", "tty", terminal).await, 0);
    let plain = log.display().to_string();
    assert_eq!(
        run_exec(&task, id, "p", "echo plain", Io::out(&plain)).await,
        0
    );
    assert_eq!(
        run_exec(&task, id, "n", "echo x", Io::out("/dev/null")).await,
        0
    );
    let text = fs::read_to_string(&log).expect("the log");
    for line in ["out", "3000", "/dev/pts/0\r", "plain"] {
        assert!(
            text.split('\n').any(|there| there == line),
            "{line}: {text}"
        );
    }
    assert_eq!(text.matches("err\n").count(), 2);
    end(&task, id, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_terminal_has_the_size_that_was_given_before_its_process_started() {
    need_runc!();
    let engine = Engine::new().await;
    let id = "sized";
    let (task, socket) = engine.running(id).await;
    // The terminal gets it beside the process's first instructions.
    let script =
        "for i in $(seq 500); do [ \"$(stty size)\" = \"43 117\" ] && exit 5; sleep 0.01; done";
    add_exec(&task, id, "t", script, Io::terminal(""))
        .await
        .expect("exec");
    let resize = api::ResizePtyRequest {
        id: id.into(),
        exec_id: "t".into(),
        width: 117,
        height: 43,
        ..Default::default()
    };
    drop(task.resize_pty(limit(), &resize).await.expect("resize"));
    start(&task, id, "t").await.expect("start of the exec");
    assert_eq!(wait(&task, id, "t").await, 5);
    assert_eq!(delete(&task, id, "t").await.expect("delete"), 5);
    end(&task, id, &socket).await;
}

/// A logging program that keeps what it gets beside itself, and says how it was called.
fn logger(engine: &Engine, name: &str, ready: &str, end: &str) -> (String, std::path::PathBuf) {
    let folder = engine.path(name);
    fs::create_dir(&folder).expect("a folder");
    let at = folder.display();
    let script = format!(
        "echo \"$$\" > {at}/pid\n{ready}\nexec 5>&-\n\
         echo \"$CONTAINER_NAMESPACE $CONTAINER_ID $*\" > {at}/called\n\
         cat <&4 > {at}/err & cat <&3 > {at}/out; wait; echo done > {at}/done\n{end}"
    );
    (engine.script(&format!("{name}.sh"), &script), folder)
}

fn alive(folder: &std::path::Path) -> bool {
    let pid = fs::read_to_string(folder.join("pid")).expect("a process");
    std::path::Path::new("/proc").join(pid.trim()).exists()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_logging_program_has_all_output_and_has_ended_when_delete_answers() {
    need_runc!();
    let engine = Engine::new().await;
    let id = "logged";
    let (program, folder) = logger(&engine, "init", "", "");
    let uri = format!("binary://{program}?--to=x%20y&flag");
    drop(engine.bundle(id, "seq 1 20000; echo bad >&2; exit 3", false));
    let (task, socket) = engine.start_shim(id).await;
    let both = Io {
        stderr: uri.clone(),
        ..Io::out(&uri)
    };
    let created = engine.try_create(&task, id, both, runc_options(&Options::default()));
    created.await.expect("create");
    start(&task, id, "").await.expect("start");
    assert_eq!(wait(&task, id, "").await, 3);
    assert_eq!(delete(&task, id, "").await.expect("delete"), 3);
    let read = |name| fs::read_to_string(folder.join(name)).expect(name);
    assert!(read("out").ends_with("\n20000\n") && read("out").starts_with("1\n"));
    assert_eq!(
        (read("err").as_str(), read("done").as_str()),
        ("bad\n", "done\n")
    );
    let called = format!("{} logged --to x y flag\n", *NAMESPACE);
    assert_eq!(read("called"), called);
    assert!(!alive(&folder));
    shutdown(&task, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_exec_has_a_logging_program_of_its_own_with_or_without_a_terminal() {
    need_runc!();
    let engine = Engine::new().await;
    let id = "exec-logged";
    let (task, socket) = engine.running(id).await;
    for (exec, terminal, text) in [("pipes", false, "hello\n"), ("pty", true, "hello\r\n")] {
        // The second protocol: a byte says that it is ready.
        let (program, folder) = logger(&engine, exec, "echo >&5", "");
        let io = Io {
            terminal,
            ..Io::out(&format!("binary-v2://{program}"))
        };
        assert_eq!(run_exec(&task, id, exec, "echo hello", io).await, 0);
        let read = |name| fs::read_to_string(folder.join(name)).expect(name);
        assert_eq!(read("out"), text);
        assert_eq!(read("called"), format!("{} {exec} \n", *NAMESPACE));
        assert!(!alive(&folder));
    }
    // Faults are told before anything runs.
    let (dumb, folder) = logger(&engine, "dumb", "exit 1", "");
    for (uri, argument) in [
        (format!("binary-v2://{dumb}"), "dumb.sh"),
        ("binary:///absent/logger".to_owned(), "/absent/logger"),
        ("binary://relative".to_owned(), "binary://relative"),
        ("http://x/y".to_owned(), "http://x/y"),
    ] {
        add_exec(&task, id, "bad", "true", Io::out(&uri))
            .await
            .expect("exec");
        let (_, text) = code(start(&task, id, "bad").await);
        assert!(text.contains(argument), "{text}");
        assert_eq!(delete(&task, id, "bad").await.expect("delete"), 0);
    }
    until("the one that was not ready has ended", || !alive(&folder)).await;
    end(&task, id, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_logging_program_that_does_not_end_is_ended() {
    need_runc!();
    let engine = Engine::new().await;
    let id = "stubborn";
    let (program, folder) = logger(&engine, "stubborn-logger", "", "exec sleep 1000");
    drop(engine.bundle(id, "echo said", false));
    let (task, socket) = engine.start_shim(id).await;
    let uri = format!("binary://{program}");
    engine
        .create(&task, id, &uri, false, Options::default())
        .await;
    start(&task, id, "").await.expect("start");
    assert_eq!(wait(&task, id, "").await, 0);
    assert_eq!(delete(&task, id, "").await.expect("delete"), 0);
    assert!(!alive(&folder));
    assert_eq!(
        fs::read_to_string(folder.join("out")).expect("the log"),
        "said\n"
    );
    shutdown(&task, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn terminals_beside_each_other_lose_nothing_under_load() {
    need_runc!();
    const LINES: usize = 1_000_000;
    let engine = Engine::new().await;
    let id = "tty-load";
    let (task, socket) = engine.running(id).await;
    let runs = ["a", "b"].map(|exec| {
        let path = engine.make_fifo(exec);
        let out = path.display().to_string();
        let reader = std::thread::spawn(move || {
            let mut fifo = File::open(path).expect("the FIFO");
            let (mut bytes, mut tail) = (0, Vec::new());
            let mut chunk = vec![0; 64 * 1024];
            loop {
                let count = fifo.read(&mut chunk).expect("output");
                if count == 0 {
                    return (bytes, String::from_utf8(tail).expect("text"));
                }
                bytes += count;
                tail.extend_from_slice(&chunk[..count]);
                tail.drain(..tail.len().saturating_sub(100));
            }
        });
        let task = task.clone();
        let run = tokio::spawn(async move {
            let script = format!("exec seq 1 {LINES}");
            run_exec(&task, "tty-load", exec, &script, Io::terminal(&out)).await
        });
        (run, reader)
    });
    for (run, reader) in runs {
        assert_eq!(run.await.expect("the exec"), 0);
        let (bytes, tail) = reader.join().expect("the reader");
        assert!(tail.ends_with("999999\r\n1000000\r\n"), "{tail:?}");
        let digits: usize = (1..=7)
            .map(|digits| 9 * 10_usize.pow(digits - 1) * digits as usize)
            .sum();
        // Of seven digits there is one number; each line has two bytes more.
        assert_eq!(bytes, digits - 9_000_000 * 7 + 7 + 2 * LINES);
    }
    end(&task, id, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_terminal_that_nobody_reads_holds_up_nobody() {
    need_runc!();
    let engine = Engine::new().await;
    let id = "unread";
    drop(engine.bundle(id, "seq 1 200000; exit 9", true));
    let (task, socket) = engine.start_shim(id).await;
    engine.create(&task, id, "", true, Options::default()).await;
    start(&task, id, "").await.expect("start");
    assert_eq!(wait(&task, id, "").await, 9);
    assert_eq!(delete(&task, id, "").await.expect("delete"), 9);
    shutdown(&task, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn output_is_whole_for_a_reader_that_comes_back_after_the_end() {
    need_runc!();
    // What FIFO, pipe and shim hold between them, so that the process can end though nobody reads.
    const BYTES: usize = 120_000;
    let mut engine = Engine::new().await;
    let id = "late-reader";
    let (task, socket) = engine.running(id).await;
    let path = engine.make_fifo("late.out");
    let out = path.display().to_string();
    let script = format!("head -c {BYTES} /dev/zero; exit 2");
    let opened = tokio::task::spawn_blocking(move || File::open(path).expect("the FIFO"));
    add_exec(&task, id, "e", &script, Io::out(&out))
        .await
        .expect("exec");
    start(&task, id, "e").await.expect("start of the exec");
    let mut fifo = opened.await.expect("no panic");
    // The end is told though nobody reads.
    assert_eq!(engine.next_exit().await.exit_status, 2);
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        fifo.read_to_end(&mut all).expect("output");
        all.len()
    });
    assert_eq!(delete(&task, id, "e").await.expect("delete"), 2);
    assert_eq!(reader.join().expect("the reader"), BYTES);
    end(&task, id, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_reader_that_goes_away_ends_no_container_and_one_that_comes_back_reads_on() {
    need_runc!();
    let engine = Engine::new().await;
    let id = "closed";
    let path = engine.make_fifo("closed.out");
    drop(engine.bundle(
        id,
        "echo first; read x; echo second; exec sleep 1000",
        false,
    ));
    let stdin = engine.make_fifo("closed.in");
    let (task, socket) = engine.start_shim(id).await;
    let first = {
        let path = path.clone();
        // One line, and the reader is gone.
        std::thread::spawn(move || {
            let mut line = [0; 6];
            let mut fifo = File::open(path).expect("the FIFO");
            fifo.read_exact(&mut line).expect("a line");
            line
        })
    };
    let io = Io {
        stdin: stdin.display().to_string(),
        ..Io::out(&path.display().to_string())
    };
    let created = engine.try_create(&task, id, io, runc_options(&Options::default()));
    created.await.expect("create");
    start(&task, id, "").await.expect("start");
    assert_eq!(&first.join().expect("the reader"), b"first\n");
    fs::write(&stdin, "go\n").expect("input");
    let mut line = [0; 7];
    let mut fifo = File::open(&path).expect("the FIFO");
    fifo.read_exact(&mut line).expect("a line");
    assert_eq!(&line, b"second\n");
    drop(fifo);
    end(&task, id, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_flood_of_input_arrives_whole_and_stops_where_nobody_reads() {
    need_runc!();
    const BYTES: usize = 48 << 20;
    let engine = Engine::new().await;
    let id = "flood";
    let (task, socket) = engine.running(id).await;
    let flood = |name: &str| {
        let stdin = engine.make_fifo(name);
        let path = stdin.display().to_string();
        let writer = std::thread::spawn(move || {
            let mut fifo = OpenOptions::new()
                .write(true)
                .open(stdin)
                .expect("the FIFO");
            let chunk = vec![b'x'; 1 << 20];
            (0..BYTES >> 20).try_for_each(|_| fifo.write_all(&chunk))
        });
        (path, writer)
    };
    let (stdin, writer) = flood("flood.in");
    let (out, reader) = engine.fifo("flood.out");
    let io = Io {
        stdin,
        ..Io::out(&out)
    };
    add_exec(&task, id, "reads", "wc -c", io)
        .await
        .expect("exec");
    start(&task, id, "reads").await.expect("start of the exec");
    // One that reads nothing, and ends: the writer hears of it.
    let (stdin, unread) = flood("unread.in");
    let io = Io {
        stdin,
        ..Io::default()
    };
    add_exec(&task, id, "deaf", "exec sleep 1000", io)
        .await
        .expect("exec");
    start(&task, id, "deaf").await.expect("start of the exec");

    let shim = shim_pid(&task, id).await;
    let written = tokio::task::spawn_blocking(move || writer.join().expect("the writer"));
    written
        .await
        .expect("no panic")
        .expect("all input is taken");
    // Another is served meanwhile, and what is not read stays in the pipes.
    assert_eq!(
        run_exec(&task, id, "other", "exit 5", Io::default()).await,
        5
    );
    let private = private_kib(shim);
    assert!(private < 16 * 1024, "{private} KiB");
    close_stdin(&task, id, "reads").await;
    assert_eq!(wait(&task, id, "reads").await, 0);
    assert_eq!(delete(&task, id, "reads").await.expect("delete"), 0);
    assert_eq!(reader.join().expect("the reader").trim(), BYTES.to_string());

    drop(signal(&task, id, "deaf", 9).await.expect("kill"));
    assert_eq!(wait(&task, id, "deaf").await, 137);
    assert_eq!(delete(&task, id, "deaf").await.expect("delete"), 137);
    let broken = tokio::task::spawn_blocking(move || unread.join().expect("the writer"));
    let broken = tokio::time::timeout(Duration::from_secs(60), broken).await;
    broken
        .expect("the writer is not left waiting")
        .expect("no panic")
        .expect_err("nobody reads any more");
    end(&task, id, &socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn names_that_are_no_streams_are_refused_with_their_key() {
    need_runc!();
    let engine = Engine::new().await;
    let id = "names-of-streams";
    drop(engine.bundle(id, "true", false));
    let (task, socket) = engine.start_shim(id).await;
    let file = engine.path("file");
    fs::write(&file, "").expect("a file");
    let of = |stdin: &str, stdout: &str, stderr: &str| Io {
        stdin: stdin.into(),
        stdout: stdout.into(),
        stderr: stderr.into(),
        terminal: false,
    };
    let path = file.display().to_string();
    for (io, arguments) in [
        (of("", "relative", ""), ["stdout", "relative"]),
        (of("", "", "npipe:///x"), ["stderr", "npipe:///x"]),
        (of("file:///x", "", ""), ["stdin", "file://"]),
        (of(&path, "", ""), ["FIFO", &path]),
        (of("", "/absent/fifo", ""), ["/absent/fifo", "No such file"]),
        (
            of("", "", "binary:///bin/cat"),
            ["stderr", "standard output"],
        ),
    ] {
        let created = engine.try_create(&task, id, io, runc_options(&Options::default()));
        let (refused, text) = code(created.await);
        assert!(matches!(refused, Code::INVALID_ARGUMENT | Code::UNKNOWN));
        for argument in arguments {
            assert!(text.contains(argument), "{text}");
        }
    }
    shutdown(&task, &socket).await;
}

/// Memory that is the process's own, in KiB. Pages of its program are not counted: they are private as long as nobody else runs it.
pub(crate) fn private_kib(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the memory");
    let own = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:"));
    let kib = own.and_then(|own| own.split_whitespace().next()?.parse().ok());
    kib.expect("a number")
}
