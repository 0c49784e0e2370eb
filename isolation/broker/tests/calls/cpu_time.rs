//! A tenant that has its broker use up the CPU time of its container: its own calls wait, and its gate turns in time.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cards::CpuTime;
use cards::cpu_time::UsageFile;
use cards::store::DiskStore;

use crate::Test;
use crate::agent::Storm;
use crate::fake::GRANULE;
use crate::fixture::until;
use crate::kept::Kept;
use crate::share::{compute_of, computing_behind, of_governor, requests};

pub(crate) const TESTS: &[Test] = &[(
    "cpu_time::a_flood_pays_with_its_own_calls_and_closes_its_gate_in_time",
    flood,
)];

/// Of one core.
const QUOTA_PPM: u64 = 200_000;
const PERIOD_US: u64 = 100_000;
/// As many processes call at once.
const CALLERS: usize = 4;
const FLOOD: Duration = Duration::from_secs(3);

/// Groups of the machine's own trees, where those are version 1's. What else the machine does counts little beside them.
struct Groups {
    /// Of supervisor and broker.
    cpu: PathBuf,
    cpuacct: PathBuf,
    /// Of this process, which plays the driver, and the tenants.
    beside: PathBuf,
}

/// The most that there is.
const SHARES: &str = "262144";

impl Groups {
    fn make() -> Result<Self, String> {
        let [cpu, cpuacct] = ["cpu", "cpuacct"].map(|tree| {
            let name = format!("cgpu-calls-{}", std::process::id());
            Path::new("/sys/fs/cgroup").join(tree).join(name)
        });
        let beside = cpu.with_extension("beside");
        for folder in [&cpu, &cpuacct, &beside] {
            fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        let made = Self {
            cpu,
            cpuacct,
            beside,
        };
        let has_all = made.cpu.join("cpu.cfs_quota_us").exists()
            && made.cpuacct.join("cpuacct.usage").exists();
        if !has_all {
            return Err("no groups of version 1 with quotas".to_owned());
        }
        for folder in [&made.cpu, &made.beside] {
            fs::write(folder.join("cpu.shares"), SHARES).unwrap();
        }
        fs::write(made.beside.join("cgroup.procs"), "0").unwrap();
        Ok(made)
    }

    fn take_in(&self, kept: &Kept) {
        for pid in [kept.supervisor_pid(), kept.broker_pid().unwrap()] {
            for folder in [&self.cpu, &self.cpuacct] {
                fs::write(folder.join("cgroup.procs"), pid.to_string()).unwrap();
            }
        }
    }

    fn used(&self) -> Duration {
        let text = fs::read_to_string(self.cpuacct.join("cpuacct.usage")).unwrap();
        Duration::from_nanos(text.trim().parse().unwrap())
    }

    fn throttled(&self) -> u64 {
        let text = fs::read_to_string(self.cpu.join("cpu.stat")).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("nr_throttled "));
        line.unwrap().parse().unwrap()
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        fs::write("/sys/fs/cgroup/cpu/cgroup.procs", "0").unwrap();
        for folder in [&self.cpu, &self.cpuacct, &self.beside] {
            until("the group is empty", || fs::remove_dir(folder).is_ok());
        }
    }
}

/// Who holds the flood to its quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// The kernel alone, which stops all threads of the group alike.
    Kernel,
    /// The broker, before the kernel does.
    Broker,
}

/// What came of a flood.
#[derive(Debug)]
struct Flooded {
    calls: u64,
    /// CPU time of the group.
    used: Duration,
    took: Duration,
    /// Periods in which the kernel has stopped the group.
    throttled: u64,
    /// What the gate was open beyond its segments, each by more than a millisecond.
    beyond: Duration,
    longest_beyond: Duration,
    open: Duration,
    /// CPU time of the governor's thread.
    governor: Duration,
    /// Segments that were missed because it ran late, as it says itself.
    late: u64,
    /// What a thread of this process slept too long meanwhile, at most: the machine's own lateness.
    machine: Duration,
}

fn governors_time(kept: &Kept) -> Duration {
    let schedstat = of_governor(kept.broker_pid().unwrap(), "schedstat");
    Duration::from_nanos(schedstat.split(' ').next().unwrap().parse().unwrap())
}

/// What a thread of this process sleeps too long during a flood, at most.
fn lateness_of_the_machine() -> Duration {
    const NAP: Duration = Duration::from_millis(5);
    let begun = Instant::now();
    let mut most = Duration::ZERO;
    while begun.elapsed() < FLOOD {
        let asleep = Instant::now();
        std::thread::sleep(NAP);
        most = most.max(asleep.elapsed() - NAP);
    }
    most
}

fn flooded(groups: &Groups, by: By) -> Flooded {
    let kept = Kept::sharing(&requests(), |_| {}).unwrap();
    let (computing, _process) = computing_behind(&kept);
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (tenant, process) = kept.tenant();
            let fd = tenant.open(&kept.node("nvidiactl"));
            let client = tenant.client(fd);
            let device = tenant.device(fd, client);
            (tenant, process, fd, client, device)
        })
        .collect();
    groups.take_in(&kept);
    // As `vgpu::own_group` has it.
    let kernels = (QUOTA_PPM * PERIOD_US / 1_000_000).to_string();
    fs::write(groups.cpu.join("cpu.cfs_quota_us"), &kernels).unwrap();
    if by == By::Broker {
        let burst = groups.cpu.join("cpu.cfs_burst_us");
        if burst.exists() {
            fs::write(burst, &kernels).unwrap();
        }
        let reply = CpuTime {
            version: cards::cpu_time::VERSION,
            quota_ppm: Some(QUOTA_PPM),
            usage: Some(UsageFile::Nanoseconds(groups.cpuacct.join("cpuacct.usage"))),
        };
        reply.write(&DiskStore, kept.dir()).unwrap();
    }
    let window = || compute_of(&kept)["window_ns"].as_u64().unwrap_or(0);
    let mut turns = 0;
    until("the gate turns", || {
        turns += kept.fake.take_turns().len();
        window() > 0 && turns > 4
    });
    until("the broker knows who holds", || {
        kept.status()["cpu_time"]["allowed_ppm"].as_u64()
            == (by == By::Broker).then_some(broker::cpu_time::allowed_ppm(QUOTA_PPM))
    });
    let (used, throttled) = (groups.used(), groups.throttled());
    let governor = governors_time(&kept);
    let late = || compute_of(&kept)["counts"]["late"].as_u64().unwrap();
    let late_then = late();
    let segment = Duration::from_nanos(window() * 3 / 10);
    kept.fake.take_turns();
    let begun = Instant::now();
    let (calls, machine) = std::thread::scope(|scope| {
        let machine = scope.spawn(lateness_of_the_machine);
        let storms: Vec<_> = callers
            .iter()
            .map(|(tenant, _process, fd, client, device)| {
                let storm = Storm {
                    fd: *fd,
                    client: *client,
                    device: *device,
                    bytes: GRANULE,
                    millis: u64::try_from(FLOOD.as_millis()).unwrap(),
                    timer_micros: 0,
                    kernel_repeats: false,
                    own_handles: true,
                };
                scope.spawn(|| tenant.storm(storm))
            })
            .collect();
        let reports = storms.into_iter().map(|storm| storm.join().unwrap());
        let calls = reports
            .map(|report| {
                assert_eq!(report.failures, []);
                report.allocated + report.freed
            })
            .sum();
        (calls, machine.join().unwrap())
    });
    let (took, turns) = (begun.elapsed(), kept.fake.take_turns());
    let mut flooded = Flooded {
        calls,
        used: groups.used() - used,
        took,
        throttled: groups.throttled() - throttled,
        beyond: Duration::ZERO,
        longest_beyond: Duration::ZERO,
        open: Duration::ZERO,
        governor: governors_time(&kept) - governor,
        late: late() - late_then,
        machine,
    };
    for pair in turns.windows(2) {
        let [(opened, true), (closed, false)] = pair else {
            continue;
        };
        let open = *closed - *opened;
        let beyond = open.saturating_sub(segment);
        flooded.open += open;
        flooded.longest_beyond = flooded.longest_beyond.max(beyond);
        if beyond > Duration::from_millis(1) {
            flooded.beyond += beyond;
        }
    }
    println!("  {by:?}: {flooded:?}, segments of {segment:?}");
    drop((computing, callers));
    flooded
}

fn flood() {
    let groups = match Groups::make() {
        Ok(groups) => groups,
        Err(reason) => return println!("SKIP: {reason}"),
    };
    let kernel = flooded(&groups, By::Kernel);
    let broker = flooded(&groups, By::Broker);
    let in_time = |ppm: u64| {
        let micros = u64::try_from(broker.took.as_micros()).unwrap();
        Duration::from_micros(ppm * micros / 1_000_000)
    };
    // What may be saved up, and calls under way.
    let most = in_time(QUOTA_PPM) + Duration::from_millis(60);
    assert!(broker.used <= most, "{:?} of {most:?}", broker.used);
    // What the reserve is for.
    let governors = broker.governor.as_micros() * 1_000_000 / broker.took.as_micros();
    let reserve_ppm = QUOTA_PPM - broker::cpu_time::allowed_ppm(QUOTA_PPM);
    assert!(governors < u128::from(reserve_ppm), "{governors} ppm");
    if kernel.throttled < 10 || kernel.late < 3 || broker.machine > Duration::from_millis(10) {
        return println!("SKIP: this machine is too busy for gates to turn in time");
    }
    assert!(
        broker.throttled * 4 < kernel.throttled,
        "{broker:?} {kernel:?}"
    );
    assert!(broker.late * 2 < kernel.late, "{broker:?} {kernel:?}");
    // All together: a period in which the kernel stops the group all the same may be as long as any of the other's.
    assert!(broker.beyond * 2 < kernel.beyond, "{broker:?} {kernel:?}");
    // Nor does it cost the tenant more than the reserve: what is allowed is had, and had for calls. Of seven tenths of the CPU time
    // (the governor has four times as much) 0.30 to 0.63 of the calls came: one costs more in many short bursts than in one a period,
    // and what else the machine does in either phase changes what one costs.
    let allowed = in_time(broker::cpu_time::allowed_ppm(QUOTA_PPM));
    assert!(broker.used * 10 > allowed * 9, "{broker:?} of {allowed:?}");
    assert!(broker.calls * 5 > kernel.calls, "{broker:?} {kernel:?}");
}
