//! Processes that end, by the hundred: what that costs the broker is bounded, and it sleeps when they are gone.

use crate::Test;
use crate::fake::GRANULE;
use crate::fixture::until;
use crate::kept::Kept;
use crate::tenant::Tenant;

pub(crate) const TESTS: &[Test] = &[(
    "exits::the_broker_sleeps_after_many_exits",
    sleeps_after_many,
)];

/// More than one turn of the broker takes events.
const PROCESSES: usize = 96;
/// Of CPU, over all rounds after the exits: a second and a half would be the cost of one core that is never given back.
const MOST_TICKS: u64 = 40;

/// CPU time of a process, its own and the kernel's for it, in ticks of 10 ms.
fn cpu_ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let mut fields = fields.split(' ').skip(11);
    let mut next = || fields.next().unwrap().parse::<u64>().unwrap();
    next() + next()
}

fn resident_kib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.unwrap().split_whitespace().nth(1);
    kib.unwrap().parse().unwrap()
}

fn sleeps_after_many() {
    let kept = Kept::new(GRANULE * 4);
    let (tenant, _process) = kept.tenant();
    let fd = tenant.open(&kept.node("nvidiactl"));
    let _client = tenant.client(fd);
    let processes: Vec<(Tenant, i32)> = (0..PROCESSES).map(|_| tenant.process(&[fd])).collect();
    for (process, _) in &processes {
        let _known_by_its_call = process.client(fd);
    }
    let broker = kept.broker_pid().unwrap();
    let (ticks, kib) = (cpu_ticks(broker), resident_kib(broker));
    let pids: Vec<i32> = processes.iter().map(|(_, pid)| *pid).collect();
    drop(processes);
    let lives = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| !stat.contains(") Z "))
    };
    until("all have ended", || !pids.iter().any(lives));
    // Every status is behind what the broker's own thread had to do before.
    let mut last = cpu_ticks(broker);
    until("the broker sleeps", || {
        assert!(
            cpu_ticks(broker) - ticks < MOST_TICKS,
            "{} ticks and {} KiB after {PROCESSES} exits",
            cpu_ticks(broker) - ticks,
            resident_kib(broker) - kib
        );
        std::thread::sleep(std::time::Duration::from_millis(500));
        let now = cpu_ticks(broker);
        now - std::mem::replace(&mut last, now) <= 1
    });
    let grown = resident_kib(broker).saturating_sub(kib);
    assert!(grown < 4096, "{grown} KiB after {PROCESSES} exits");
}
