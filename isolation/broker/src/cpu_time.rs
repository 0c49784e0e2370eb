//! CPU time that a tenant has this vGPU's own processes spend: its calls wait when its container's quota is used up.
//!
//! ```text
//! worker, reaper ──wait──▶ bucket ◀──what the control group has used── supervisor, broker with its governor, executor
//!                            └─ filled at the container's quota - RESERVE
//! ```
//!
//! The group has the container's quota, at the end of which the kernel stops every thread for the rest of a period: the governor, whose
//! gate then closes late, in its neighbours' time; and a call with the driver's locks in its hands, for which the whole node waits. So
//! it is not to come to that: whoever works for the tenant waits here, *before* it takes the next call, when it holds no lock.
//! The governor, the heartbeat and the control socket never wait.
//!
//! Everything that the group uses is counted, whoever has used it: by this, a call that has begun is counted as well, and so is the
//! executor. What was had too much is waited for afterwards. Calls under way are never stopped: at once a tenant may use more,
//! over any longer time it may not.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cards::CpuTime;
use cards::cpu_time::UsageFile;
use control::CpuTimeStatus;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};
use sys::clock::now_ns;
use sys::sync;

/// What calls leave of the container's quota, millionths of a core; of a small one a quarter. The governor of a container with one channel
/// takes 10,000 in a debug build, the heartbeat and the looks of every second 2,000.
pub const RESERVE_PPM: u64 = 50_000;

/// What calls have of a quota, millionths of a core.
#[must_use]
pub fn allowed_ppm(quota_ppm: u64) -> u64 {
    quota_ppm.saturating_sub(RESERVE_PPM.min(quota_ppm / 4))
}

/// What is saved up at most: as much as comes in this time, which is the kernel's own period.
pub const BURST: Duration = Duration::from_millis(100);
/// Once nothing is left, work goes on with what comes in this time: to wait for every single call would cost as much as the call.
pub const RESUME: Duration = Duration::from_millis(20);
/// The kernel is asked no more often. Its answer costs some microseconds, with version 2 some tens.
const SAMPLE: Duration = Duration::from_millis(2);
/// Between two looks whether what is waited for is still wanted.
const LOOK: Duration = Duration::from_millis(100);
/// `cpuacct.usage` is one number; `cpu.stat` has its first line first.
const TEXT_BYTES: usize = 512;

const PPM: i128 = 1_000_000;

/// CPU time that is left, in nanoseconds × 1,000,000: exact, whatever the rate is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bucket {
    rate_ppm: u64,
    /// Below zero: what was had too much.
    left: i128,
    /// Nothing was left, and there is not enough yet to go on.
    is_empty: bool,
    seen_ns: u64,
    used_ns: u64,
}

impl Bucket {
    /// A full one. What was used before does not count.
    fn full(rate_ppm: u64, now_ns: u64, used_ns: u64) -> Self {
        let bucket = Self {
            rate_ppm,
            left: 0,
            is_empty: false,
            seen_ns: now_ns,
            used_ns,
        };
        Self {
            left: bucket.in_time(BURST),
            ..bucket
        }
    }

    /// Another rate; what is left, or owed, stays.
    fn with_rate(self, rate_ppm: u64) -> Self {
        let bucket = Self { rate_ppm, ..self };
        Self {
            left: bucket.left.min(bucket.in_time(BURST)),
            ..bucket
        }
    }

    /// What comes in a time.
    fn in_time(&self, time: Duration) -> i128 {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        i128::from(self.rate_ppm).saturating_mul(i128::from(ns))
    }

    /// By now so much was used in all. A clock or a count that goes backwards is one that does not move.
    fn see(&mut self, now_ns: u64, used_ns: u64) {
        let filled = self.in_time(Duration::from_nanos(now_ns.saturating_sub(self.seen_ns)));
        let used = i128::from(used_ns.saturating_sub(self.used_ns)).saturating_mul(PPM);
        let left = self.left.saturating_add(filled).saturating_sub(used);
        self.left = left.min(self.in_time(BURST));
        self.is_empty = self.left <= 0 || self.is_empty && self.left < self.in_time(RESUME);
        (self.seen_ns, self.used_ns) = (now_ns.max(self.seen_ns), used_ns);
    }

    /// How long it takes to have enough to go on, if nothing is used meanwhile; `None`: work may begin.
    fn wait(&self) -> Option<Duration> {
        if !self.is_empty {
            return None;
        }
        let lacking = self
            .in_time(RESUME)
            .saturating_sub(self.left)
            .unsigned_abs();
        let ns = lacking.div_ceil(u128::from(self.rate_ppm.max(1)));
        Some(Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)))
    }
}

/// Who says what was used.
#[derive(Debug)]
enum Usage {
    Group(UsageFile, File),
    /// Where no group is counted: this process alone.
    Process,
}

impl Usage {
    fn of(file: Option<&UsageFile>) -> Self {
        let Some(file) = file else {
            return Self::Process;
        };
        match File::open(file.path()) {
            Ok(open) => Self::Group(file.clone(), open),
            Err(error) => {
                let path = file.path().display();
                tracing::warn!(%path, %error, "the broker's own CPU time is counted, and not its group's");
                Self::Process
            }
        }
    }

    /// Nanoseconds. `None`: it cannot be had any more.
    fn read(&self) -> Option<u64> {
        match self {
            Self::Group(file, open) => {
                let mut text = [0; TEXT_BYTES];
                let count = open.read_at(&mut text, 0).ok()?;
                file.nanoseconds(std::str::from_utf8(text.get(..count)?).ok()?)
            }
            Self::Process => {
                let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).ok()?;
                u64::try_from(Duration::from(time).as_nanos()).ok()
            }
        }
    }
}

/// A container with a quota.
#[derive(Debug)]
struct Limit {
    bucket: Bucket,
    usage: Usage,
    sampled: Instant,
}

impl Limit {
    fn new(rate_ppm: u64, usage: Usage) -> Self {
        let used_ns = usage.read().unwrap_or_default();
        let sampled = Instant::now();
        Self {
            bucket: Bucket::full(rate_ppm, now_ns(), used_ns),
            usage,
            sampled,
        }
    }

    fn wait(&mut self) -> Option<Duration> {
        if self.sampled.elapsed() >= SAMPLE {
            self.sampled = Instant::now();
            match self.usage.read() {
                Some(used_ns) => self.bucket.see(now_ns(), used_ns),
                // Not without a limit: the process's own clock always answers.
                None => *self = Self::new(self.bucket.rate_ppm, Usage::Process),
            }
        }
        self.bucket.wait()
    }
}

/// The allowance of one container. The default has no limit.
#[derive(Debug, Default)]
pub struct Allowance {
    /// The container's folder.
    dir: Option<PathBuf>,
    is_limited: AtomicBool,
    inner: Mutex<Inner>,
    waited_us: AtomicU64,
}

#[derive(Debug, Default)]
struct Inner {
    reply: Option<CpuTime>,
    limit: Option<Limit>,
}

impl Allowance {
    /// The one that is written in a container's folder, from the first [`Allowance::follow`] on.
    #[must_use]
    pub fn of(dir: PathBuf) -> Self {
        Self {
            dir: Some(dir),
            ..Self::default()
        }
    }

    /// Takes over what the folder says now. Called every second; what cannot be read changes nothing.
    pub fn follow(&self) {
        let Some(dir) = &self.dir else {
            return;
        };
        match CpuTime::read(dir) {
            Ok(reply) => self.set(reply),
            Err(error) => tracing::warn!(%error, "the container's CPU quota is what it was"),
        }
    }

    fn set(&self, reply: Option<CpuTime>) {
        let mut inner = sync::lock(&self.inner);
        if inner.reply == reply {
            return;
        }
        let rate_ppm = reply
            .as_ref()
            .and_then(|reply| Some(allowed_ppm(reply.quota_ppm?)));
        let usage = reply.as_ref().and_then(|reply| reply.usage.as_ref());
        let is_counted_as_before =
            inner.reply.as_ref().and_then(|reply| reply.usage.as_ref()) == usage;
        inner.limit = match (inner.limit.take(), rate_ppm) {
            (_, None) => None,
            (Some(limit), Some(rate_ppm)) if is_counted_as_before => Some(Limit {
                bucket: limit.bucket.with_rate(rate_ppm),
                ..limit
            }),
            (_, Some(rate_ppm)) => Some(Limit::new(rate_ppm, Usage::of(usage))),
        };
        self.is_limited
            .store(inner.limit.is_some(), Ordering::SeqCst);
        inner.reply = reply;
    }

    /// Waits until something is left, but no longer than this, and not once it is of no use any more. A signal has it look.
    pub(crate) fn wait(&self, longest: Duration, is_needed: impl Fn() -> bool) {
        if !self.is_limited.load(Ordering::Relaxed) {
            return;
        }
        let begun = Instant::now();
        let mut has_waited = false;
        while is_needed() {
            let wait = sync::lock(&self.inner).limit.as_mut().and_then(Limit::wait);
            let left = longest.saturating_sub(begun.elapsed());
            let Some(wait) = wait.filter(|_| !left.is_zero()) else {
                break;
            };
            let wait = wait.clamp(SAMPLE, LOOK).min(left);
            has_waited = true;
            // Interrupted: it is asked again whether it is wanted.
            let _slept = clock_nanosleep(
                ClockId::CLOCK_MONOTONIC,
                ClockNanosleepFlags::empty(),
                &TimeSpec::from_duration(wait),
            );
        }
        if !has_waited {
            return;
        }
        let waited = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.waited_us.fetch_add(waited, Ordering::Relaxed);
    }

    /// What is to be said; `None`: there is no limit.
    #[must_use]
    pub fn status(&self) -> Option<CpuTimeStatus> {
        Some(CpuTimeStatus {
            allowed_ppm: sync::lock(&self.inner).limit.as_ref()?.bucket.rate_ppm,
            waited_ms: self.waited_us.load(Ordering::Relaxed) / 1000,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// What was used by when, of those that work whenever they may, each time for so long on so many cores, and else wait.
    /// The number is that of the last time at which the bucket was full.
    fn worked(rate_ppm: u64, steps: &[(u64, u64)]) -> (Bucket, Vec<(u64, u64)>, usize) {
        let (mut now_ns, mut used_ns) = (7, 1_000);
        let mut bucket = Bucket::full(rate_ppm, now_ns, used_ns);
        let mut seen = vec![(now_ns, used_ns)];
        let mut last_full = 0;
        for (ns, cores) in steps {
            while let Some(wait) = bucket.wait() {
                now_ns += u64::try_from(wait.as_nanos()).unwrap();
                bucket.see(now_ns, used_ns);
                seen.push((now_ns, used_ns));
            }
            (now_ns, used_ns) = (now_ns + ns, used_ns + ns * cores);
            bucket.see(now_ns, used_ns);
            if bucket.left == bucket.in_time(BURST) {
                last_full = seen.len();
            }
            seen.push((now_ns, used_ns));
        }
        (bucket, seen, last_full)
    }

    const STEP: u64 = 5 * MS;
    const CORES: u64 = 8;

    proptest! {
        #[test]
        fn never_more_than_rate_and_burst_and_what_was_under_way(
            rate_ppm in 60_000..4_000_000_u64,
            steps in vec((1..STEP, 0..=CORES), 1..48),
        ) {
            let (_, seen, _) = worked(rate_ppm, &steps);
            let burst = rate_ppm * 100 * MS / 1_000_000;
            for (at, (from_ns, from)) in seen.iter().enumerate() {
                for (to_ns, to) in &seen[at..] {
                    let filled = u128::from(to_ns - from_ns) * u128::from(rate_ppm) / 1_000_000;
                    let most = filled + u128::from(burst + STEP * CORES + 1);
                    prop_assert!(u128::from(to - from) <= most);
                }
            }
        }

        #[test]
        fn who_has_had_less_than_the_rate_never_waits(
            rate_ppm in 60_000..4_000_000_u64,
            steps in vec((1..STEP, 0..=CORES), 1..48),
        ) {
            let (bucket, seen, last_full) = worked(rate_ppm, &steps);
            let ((from_ns, from), (to_ns, to)) = (seen[last_full], seen[seen.len() - 1]);
            // A full bucket, but for what work goes on with.
            let filled = u128::from(to_ns - from_ns + 80 * MS) * u128::from(rate_ppm);
            if bucket.wait().is_some() {
                prop_assert!(u128::from(to - from) * 1_000_000 >= filled, "{bucket:?}");
            }
            // And what is owed is forgiven once it was waited for.
            let mut bucket = bucket;
            if let Some(wait) = bucket.wait() {
                let before = wait - Duration::from_nanos(1);
                let mut early = bucket;
                early.see(to_ns + u64::try_from(before.as_nanos()).unwrap(), to);
                prop_assert!(early.wait().is_some());
                bucket.see(to_ns + u64::try_from(wait.as_nanos()).unwrap(), to);
                prop_assert_eq!(bucket.wait(), None);
            }
        }

        #[test]
        fn other_rates_forgive_nothing_and_clocks_may_stand(
            rates in vec(60_000..4_000_000_u64, 2..8),
            steps in vec((0..STEP, 0..STEP), 8),
        ) {
            let mut bucket = Bucket::full(rates[0], 0, 0);
            for (rate_ppm, (ns, used)) in rates.iter().zip(&steps) {
                bucket.see(bucket.seen_ns + ns, bucket.used_ns + used);
                let then = bucket;
                bucket.see(bucket.seen_ns, bucket.used_ns);
                bucket.see(bucket.seen_ns.saturating_sub(*ns), bucket.used_ns);
                prop_assert_eq!(bucket, then);
                bucket = bucket.with_rate(*rate_ppm);
                let most = bucket.in_time(BURST);
                prop_assert!(bucket.left <= most);
                prop_assert!(bucket.left == then.left || bucket.left == most && then.left > most);
            }
        }
    }

    fn reply(quota_ppm: Option<u64>, usage: Option<UsageFile>) -> CpuTime {
        CpuTime {
            version: cards::cpu_time::VERSION,
            quota_ppm,
            usage,
        }
    }

    #[test]
    fn the_folder_reports_what_is_left_and_an_update_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let count = folder.path().join("cpuacct.usage");
        let use_up = |ns: u64| std::fs::write(&count, format!("{ns}\n")).unwrap();
        use_up(5);
        let write = |quota_ppm| {
            let reply = reply(quota_ppm, Some(UsageFile::Nanoseconds(count.clone())));
            reply
                .write(&cards::store::DiskStore, folder.path())
                .unwrap();
        };
        let allowance = Allowance::of(folder.path().to_owned());
        let next = || {
            let mut inner = sync::lock(&allowance.inner);
            let limit = inner.limit.as_mut()?;
            limit.sampled = limit.sampled.checked_sub(SAMPLE).unwrap();
            limit.wait()
        };
        allowance.follow();
        assert_eq!(allowance.status(), None, "no file, no limit");
        write(Some(300_000));
        allowance.follow();
        let status = allowance.status().unwrap();
        assert_eq!((status.allowed_ppm, status.waited_ms), (250_000, 0));
        assert_eq!(next(), None);
        // Ten seconds of a core, of which a fortieth is there: 25 ms.
        use_up(10_000_000_000);
        assert!(next().unwrap() > Duration::from_secs(39));
        // What is owed is owed at another rate as well.
        write(Some(1_050_000));
        allowance.follow();
        let wait = next().unwrap();
        assert!((9..=10).contains(&wait.as_secs()), "{wait:?}");
        std::fs::write(folder.path().join("cpu-time.json"), "{").unwrap();
        allowance.follow();
        assert!(next().is_some(), "a broken file lets nobody off");
        write(None);
        allowance.follow();
        assert_eq!((next(), allowance.status()), (None, None));
    }

    #[test]
    fn without_a_group_the_process_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let allowance = Allowance::default();
        let count = folder.path().join("cpu.stat");
        std::fs::write(&count, "usage_usec 5\n").unwrap();
        allowance.set(Some(reply(
            Some(100_000),
            Some(UsageFile::CpuStat(count.clone())),
        )));
        std::fs::write(&count, "something else\n").unwrap();
        let mut inner = sync::lock(&allowance.inner);
        let limit = inner.limit.as_mut().unwrap();
        limit.sampled = limit.sampled.checked_sub(SAMPLE).unwrap();
        assert_eq!(limit.wait(), None);
        assert!(matches!(limit.usage, Usage::Process));
        assert!(matches!(Usage::of(None), Usage::Process));
        let absent = UsageFile::CpuStat(folder.path().join("absent"));
        assert!(matches!(Usage::of(Some(&absent)), Usage::Process));
    }

    #[test]
    fn who_waits_goes_when_it_is_not_needed_any_more() {
        let folder = tempfile::tempdir().unwrap();
        let count = folder.path().join("cpuacct.usage");
        std::fs::write(&count, "0").unwrap();
        let allowance = Arc::new(Allowance::default());
        let usage = Some(UsageFile::Nanoseconds(count.clone()));
        allowance.set(Some(reply(Some(100_000), usage)));
        std::fs::write(&count, u64::MAX.to_string()).unwrap();
        std::thread::sleep(SAMPLE);
        // For the longest that it says, and no longer.
        allowance.wait(Duration::from_millis(2), || true);
        assert!(allowance.status().unwrap().waited_ms >= 2);
        let is_needed = Arc::new(AtomicBool::new(true));
        let waiting = std::thread::spawn({
            let (allowance, is_needed) = (Arc::clone(&allowance), Arc::clone(&is_needed));
            move || allowance.wait(Duration::MAX, || is_needed.load(Ordering::SeqCst))
        });
        is_needed.store(false, Ordering::SeqCst);
        waiting.join().unwrap();
    }
}
