//! What the executor's hop costs: `cargo bench -p cgpu-executor --bench hop [-- --json]`.
//!
//! One call is an ioctl on a duplicate of `/dev/null`, which answers ENOTTY, with the struct of a control and its 460 bytes of
//! parameters, or with that of a memory allocation. *In process* is what compat mode's driver does, *executor* what strict
//! mode's does for the same call. A notified call costs the notification on top (`broker`'s bench `notify`). Beside the
//! scheduler's own choice of CPUs (*free*) all is measured on one CPU (*pinned*).

#![expect(clippy::unwrap_used, reason = "a measurement fails by it")]

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

use driver::executor::{ExecutorDriver, spawn};
use driver::issue::issue;
use driver::kernel::Facts;
use driver::nodes::Nodes;
use driver::{
    Call, Caller, Driver, FileId, FileKind, FileRef, ImplicitBytes, Link, Segment, Ticket, pointers,
};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use nvabi::Release;
use nvabi::bytes::put_u32;
use nvabi::layout::{nvos21, nvos54};

/// Of each kind. `cargo test` makes few, without a figure that means anything.
fn calls() -> usize {
    let is_bench = std::env::args().any(|flag| flag == "--bench");
    if is_bench { 40_000 } else { 100 }
}

const R: Release = Release::R570;

fn call(cmd: u32, fill: &[(usize, u32)], params_bytes: usize) -> Call {
    let mut arg = vec![0; usize::try_from((cmd >> 16) & 0x3fff).unwrap()];
    for (at, value) in fill {
        put_u32(&mut arg, *at, *value);
    }
    let params = Segment {
        address: 0x7000,
        link: Some(Link {
            segment: 0,
            pointer_at: 16,
        }),
        bytes: vec![0; params_bytes],
    };
    let first = Segment {
        address: 0x1000,
        link: None,
        bytes: arg,
    };
    Call {
        cmd,
        segments: vec![first, params],
        fds: Vec::new(),
    }
}

fn main() {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIP: not root");
        return;
    }
    let json = std::env::args().any(|flag| flag == "--json");
    let all = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let mut one = CpuSet::new();
    let first = (0..CpuSet::count()).find(|cpu| all.is_set(*cpu).unwrap());
    one.set(first.unwrap()).unwrap();
    let mut rows = Vec::new();
    for (placement, cpus) in [("free", all), ("pinned", one)] {
        sched_setaffinity(Pid::from_raw(0), &cpus).unwrap();
        measure(placement, &mut rows);
    }
    if json {
        println!("{}", serde_json::to_string(&rows).unwrap());
        return;
    }
    println!("{:44} {:>8} {:>8}", "", "median", "p99");
    for row in &rows {
        println!(
            "{:44} {:8.2} {:8.2} {}",
            row.name, row.median, row.p99, row.unit
        );
    }
}

/// A row of the result. Microseconds.
#[derive(serde::Serialize)]
struct Row {
    name: String,
    unit: &'static str,
    median: f64,
    p99: f64,
    n: usize,
}

fn measure(placement: &str, rows: &mut Vec<Row>) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("executor.sock");
    let program = Path::new(env!("CARGO_BIN_EXE_cgpu-executor"));
    let mut started = spawn(program, &socket, None).unwrap();
    let facts = Facts {
        version: "570.195.03".to_owned(),
        release: R,
        nodes: Nodes::of_kernel(),
        implicit: ImplicitBytes::default(),
    };
    let driver = ExecutorDriver::connect(&socket, facts).unwrap();
    let null = File::open("/dev/null").unwrap();
    let file = FileRef {
        id: FileId(1),
        kind: FileKind::Ctl,
        fd: null.as_fd(),
    };
    let caller = Caller { tgid: 1, tid: 1 };
    let control = [(nvos54::CMD, 0x2080_1303), (nvos54::PARAMS_SIZE, 460)];
    for (what, mut call) in [
        ("control", call(0xc020_462a, &control, 460)),
        (
            "allocation",
            call(0xc020_462b, &[(nvos21::H_CLASS, 0x40)], 128),
        ),
    ] {
        let in_process = |call: &mut Call, _number| {
            let taken = pointers::take(file.kind, call, R).unwrap();
            let done = issue(file.fd, call.cmd, &mut call.segments, &[]);
            taken.put_back(file.kind, call, R);
            done.ret
        };
        rows.push(timed(
            format!("{what}, in process, {placement}"),
            &mut call,
            in_process,
        ));
        let remembered = |call: &mut Call, number| {
            let ticket = Ticket {
                call_slot: 0,
                call: number,
            };
            driver.execute(file, caller, ticket, call).unwrap().ret
        };
        let rises = u64::try_from(rows.len() * calls() * 2).unwrap();
        rows.push(timed(
            format!("{what}, executor, {placement}"),
            &mut call,
            |call, number| remembered(call, number + rises),
        ));
    }
    drop(driver);
    drop(started.lifeline);
    started.child.wait().unwrap();
}

fn timed(name: String, call: &mut Call, make: impl Fn(&mut Call, u64) -> i32) -> Row {
    const ENOTTY: i32 = 25;
    let mut times: Vec<u128> = (0..calls() + calls() / 10)
        .map(|number| {
            let start = Instant::now();
            let ret = make(call, u64::try_from(number).unwrap() + 1);
            let time = start.elapsed().as_nanos();
            assert_eq!(ret, -ENOTTY);
            time
        })
        .skip(calls() / 10)
        .collect();
    times.sort_unstable();
    let micros = |share: usize| {
        let nanos = times[(times.len() - 1) * share / 100];
        f64::from(u32::try_from(nanos).unwrap()) / 1000.0
    };
    Row {
        name,
        unit: "µs",
        median: micros(50),
        p99: micros(99),
        n: times.len(),
    }
}
