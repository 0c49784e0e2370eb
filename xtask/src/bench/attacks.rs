//! What hostile tenants cost others on their node: a neighbour's allocations, container starts, `cgpu ps`, and shares of a card.
//!
//! Any program that is busy takes processor time from others. What is measured is what an attack does beyond that: each turn
//! runs once beside attackers and once beside as many plain containers that use as much CPU time as the attackers did in the
//! same turn, their vGPUs' own processes and the driver's work for their calls included, and make no call to a GPU. NVIDIA's
//! driver works in its caller's time; the simulator is a process of its own, so that what it uses beyond its use for the neighbour
//! alone is divided among the attackers. Attackers that leave next to no processor time to anybody are compared with plain
//! containers that take all they get: just below that, everybody waits far less.
//!
//! Who is ready to run waits for as long as those work who have the processors. So plain containers work for as long at a time as
//! the attackers do, by the host's count of switches, corrected from turn to turn.
//!
//! ```text
//! a turn   attackers play ─▶ work ─▶ killed, brokers at rest ─▶ plain containers burn ─▶ the same work
//!               └── CPU time of container, vGPU and driver, each ── as much ──▶┘
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use experiments::Experiment;
use experiments::report::{Effort, Target};
use integration::command::{progress, wait_until};
use integration::cpu_time::{self, Groups, Used};
use integration::programs::{Profile, Programs};
use integration::rig::Rig;
use integration::tenant::{self, INSIDE, PROGRAM, Tenant};
use security::{ATTACKS, NOT_ALONE};

use super::shim::at_once;
use super::value::Value;
use super::{Bench, pairs, quantile, sorted};

/// As many attack at once where a host full of them is measured.
const HOSTILE: usize = 10;
/// How many play the same attack beside the neighbour: one without privilege, one as root of its container.
const OF_EACH: usize = 2;
/// vGPUs of the host while `cgpu ps` is measured.
const VGPUS: usize = 50;
const QUOTA_BYTES: u64 = 512 << 20;
/// How long what takes milliseconds may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// From the first attack's start, or a rate's change, until its effect is measured.
const RAMP: Duration = Duration::from_millis(100);
/// How long cgpu-sim is watched while it works for the neighbour alone.
const ALONE: Duration = Duration::from_millis(500);
/// A broker that uses less than this part of a core over [`REST`] has done with what its tenant left.
const AT_REST: f64 = 0.05;
const REST: Duration = Duration::from_millis(40);
const LONGEST_REST: Duration = Duration::from_secs(3);
/// Of a length of work: from a single message to what the kernel lets a busy thread run at most.
const WORK_US: (f64, f64) = (1.0, 4000.0);
/// How often plain containers are looked at before the first turn beside an attack, for [`RAMP`] each.
const LOOKS: usize = 3;
/// A length of work changes by at most this factor from turn to turn.
const MOST_SHIFT: f64 = 3.0;
/// What of a core is asked for is off by at most this factor from what is to be used.
const CORRECTION: (f64, f64) = (0.8, 1.25);

/// How much is done.
struct Extent {
    turns: usize,
    /// How long the neighbour's allocations are watched, and how many there are at least.
    window: Duration,
    least: usize,
    starts: usize,
    /// Turns, and commands in each.
    listings: (usize, usize),
    effort: Effort,
}

impl Extent {
    fn new(quick: bool) -> Self {
        if quick {
            Self {
                turns: 1,
                window: Duration::from_millis(150),
                least: 5,
                starts: 2,
                listings: (1, 5),
                effort: Effort::Short,
            }
        } else {
            Self {
                turns: 7,
                window: Duration::from_millis(400),
                least: 50,
                starts: 15,
                listings: (5, 40),
                effort: Effort::Full,
            }
        }
    }
}

/// A container, and what is counted for it.
struct Member {
    tenant: Tenant,
    groups: Groups,
    /// What a plain one was last asked to use, and has used, in cores.
    former: Option<(f64, f64)>,
}

/// Everybody on the node.
struct Field<'a> {
    rig: &'a Rig,
    neighbour: Tenant,
    hostile: Vec<Member>,
    plain: Vec<Member>,
    sim: u32,
    /// Cores that cgpu-sim uses for the neighbour alone.
    sim_alone: f64,
    /// How long plain containers last worked at a time, µs, and the switches of that turn, to those beside attackers.
    pace: Option<(f64, f64)>,
    /// Attacks that were played to their end.
    rounds: usize,
    /// Those of them that could not be played, by name.
    failed: BTreeMap<String, usize>,
    _folder: tempfile::TempDir,
}

/// CPU time of one turn, in cores.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Cores {
    container: f64,
    vgpu: f64,
    driver: f64,
    plain: f64,
    sim_attacked: f64,
    sim_plain: f64,
    /// Switches of the host's processors, thousands a second.
    switches_attacked: f64,
    switches_plain: f64,
}

/// What else was counted in one watch.
#[derive(Debug, Clone, Copy)]
struct Beside {
    /// Cores that cgpu-sim has used.
    sim: f64,
    /// Switches of the host's processors a second.
    switches: f64,
}

/// What the same work gave beside attackers and beside plain containers.
struct Round<T> {
    attacked: T,
    plain: T,
    cores: Cores,
    /// Attacks that were played to their end meanwhile.
    rounds: usize,
}

/// Of all processors: who takes more leaves nothing, since the work that is measured and the simulator take the rest.
const SATURATED: f64 = 0.85;

fn processors() -> Result<f64> {
    let count = thread::available_parallelism().context("count the processors")?;
    Ok(f64::from(u32::try_from(count.get())?))
}

/// What a container is to be asked for, so that it uses `needed` cores: former askings show how far it stays behind.
fn requested(needed: f64, former: Option<(f64, f64)>) -> f64 {
    let factor = match former {
        Some((requested, used)) if used > 0.0 => requested / used,
        _ => 1.0,
    };
    needed * factor.clamp(CORRECTION.0, CORRECTION.1)
}

/// How long plain containers are to work at a time, µs, so that the processors switch as often as beside attackers that use `all` cores
/// at so many switches a second: the former turn shows how far they were off.
fn work_us(all: f64, switches: f64, former: Option<(f64, f64)>) -> f64 {
    let found = match former {
        Some((work_us, ratio)) => work_us * ratio.clamp(1.0 / MOST_SHIFT, MOST_SHIFT),
        None => all * 1e6 / switches.max(1.0),
    };
    found.clamp(WORK_US.0, WORK_US.1)
}

fn cores(used: Duration, over: Duration) -> f64 {
    used.as_secs_f64() / over.as_secs_f64().max(1e-9)
}

fn mean(values: impl Iterator<Item = f64> + Clone) -> f64 {
    values.clone().sum::<f64>() / values.count().max(1) as f64
}

/// Of all turns.
fn remark<T>(turns: &[Round<T>]) -> String {
    let of = |value: fn(&Cores) -> f64| mean(turns.iter().map(|turn| value(&turn.cores)));
    let rounds: usize = turns.iter().map(|turn| turn.rounds).sum();
    format!(
        "{rounds} rounds; cores: attackers {:.2} (containers {:.2}, vGPUs' own {:.2}, driver {:.2}), plain {:.2}; cgpu-sim {:.2} and \
         {:.2}; switches {:.1} and {:.1} thousand a second",
        of(|cores| cores.container + cores.vgpu + cores.driver),
        of(|cores| cores.container),
        of(|cores| cores.vgpu),
        of(|cores| cores.driver),
        of(|cores| cores.plain),
        of(|cores| cores.sim_attacked),
        of(|cores| cores.sim_plain),
        of(|cores| cores.switches_attacked),
        of(|cores| cores.switches_plain),
    )
}

/// Median and p99 beside attackers, to those beside plain containers: the medians turn by turn, with the interval in which their median
/// lies, since one attack's differ by a third from turn to turn; the tails of all turns together, since one turn has few of them.
fn ratios(turns: &[Round<Vec<f64>>]) -> (Value, f64) {
    let of_each = |values: fn(&Round<Vec<f64>>) -> &Vec<f64>| -> Vec<f64> {
        let median = |turn| quantile(&sorted(values(turn).clone()), 0.5);
        turns.iter().map(median).collect()
    };
    let of_all = |values: fn(&Round<Vec<f64>>) -> &Vec<f64>| -> f64 {
        quantile(
            &sorted(turns.iter().flat_map(values).copied().collect()),
            0.99,
        )
    };
    let medians = pairs(
        &of_each(|turn| &turn.attacked),
        &of_each(|turn| &turn.plain),
        |attacked, plain| attacked / plain,
    );
    (
        Value::of_turns(medians),
        of_all(|turn| &turn.attacked) / of_all(|turn| &turn.plain),
    )
}

/// Median and p99 of all turns, for people.
fn latencies(turns: &[Round<Vec<f64>>]) -> String {
    let of = |values: fn(&Round<Vec<f64>>) -> &Vec<f64>| {
        let all = sorted(turns.iter().flat_map(values).copied().collect());
        let (median, p99) = (quantile(&all, 0.5), quantile(&all, 0.99));
        let mean = mean(all.iter().copied());
        format!(
            "{mean:.0} (median {median:.0}, p99 {p99:.0}) µs of {}",
            all.len()
        )
    };
    format!(
        "beside attackers {}, plain {}",
        of(|turn| &turn.attacked),
        of(|turn| &turn.plain)
    )
}

/// Attacks that one container plays over and over.
fn playable() -> Vec<&'static str> {
    let names = ATTACKS.iter().map(|attack| attack.name);
    names
        .filter(|name| *name != "honest" && !NOT_ALONE.contains(name))
        .collect()
}

/// The same list from another place on.
fn rotated<'a>(list: &[&'a str], by: usize) -> Vec<&'a str> {
    let length = list.len().max(1);
    let all = list.iter().cycle().skip(by % length);
    all.take(list.len()).copied().collect()
}

/// The first program of a hostile container: it reads a list of attacks from a FIFO and plays them one after the other, over and over,
/// until there is a file `stop`. Each attack ends when it has reported, since what it waits for is there already.
///
/// It is the first because an attack kills all others in reach. It has no redirection of a special builtin, which ends a shell where
/// it fails, as it does where `mkdir` was killed.
fn player(user: &str, foreign: (u64, u64)) -> String {
    let arguments =
        tenant::attack_arguments("$attack", QUOTA_BYTES, &format!("{INSIDE}/work"), foreign);
    let arguments = arguments.join(" ");
    let play = if user == tenant::ROOT {
        arguments
    } else {
        format!("su user -c \"{arguments}\"")
    };
    format!(
        "cd {INSIDE}; mkfifo orders; while :; do read -r attacks < orders || continue; until [ -e stop ]; do \
         for attack in $attacks; do [ -e stop ] && break; rm -rf work; mkdir work; chmod 777 work; echo > work/go; echo > began; \
         {play}; echo \"$attack $?\" >> rounds; done; done; done"
    )
}

/// Of lines that [`player`] has written: how many attacks were played to their end, and those of them that could not be played. What
/// was killed is neither.
fn rounds(text: &str) -> (usize, Vec<&str>) {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let ended: Vec<_> = lines.filter(|(_, code)| *code != "137").collect();
    let failed = ended.iter().filter(|(_, code)| *code != "0");
    (ended.len(), failed.map(|(attack, _)| *attack).collect())
}

/// Opens the FIFO that [`player`] reads; none while it plays.
fn orders(out: &Path) -> Option<fs::File> {
    /// `O_NONBLOCK` (asm-generic/fcntl.h): without a reader the open fails instead of waiting for ever.
    const NONBLOCK: i32 = 0o4000;
    let mut options = fs::OpenOptions::new();
    let options = options.write(true).custom_flags(NONBLOCK);
    options.open(out.join("orders")).ok()
}

/// Handles of the neighbour's client and memory, once it has reported.
fn handles(neighbour: &Tenant) -> Option<(u64, u64)> {
    let report = neighbour.report("neighbour.json")?;
    Some((report["client"].as_u64()?, report["memory"].as_u64()?))
}

impl<'a> Field<'a> {
    fn start(rig: &'a Rig) -> Result<Self> {
        let program = Programs::build_static("cgpu-security", "cgpu-tenant", Profile::Release)?;
        let folder = tempfile::Builder::new().prefix("cgpu-bench").tempdir()?;
        let neighbour = Tenant::make(folder.path(), &program, "neighbour", tenant::ROOT)?;
        fs::write(neighbour.out.join("samples"), "")?;
        neighbour.start(
            rig,
            &["--annotation", "cgpu.io/memory=2Gi"],
            &[PROGRAM, "neighbour", "--quota", "0", "--out", INSIDE],
        )?;
        let mut foreign = None;
        wait_until("the neighbour's first rounds", PATIENCE, || {
            foreign = handles(&neighbour);
            Ok(foreign.is_some())
        })?;
        let foreign = foreign.context("it has reported")?;
        let mut hostile = Vec::new();
        let mut plain = Vec::new();
        for number in 0..HOSTILE {
            let user = [tenant::UNPRIVILEGED, tenant::ROOT][number % 2];
            let member = |id: &str, options: &[&str], arguments: &[&str]| -> Result<Member> {
                let tenant = Tenant::make(folder.path(), &program, id, user)?;
                tenant.start(rig, options, arguments)?;
                Ok(Member {
                    groups: Groups::of(rig, id)?,
                    tenant,
                    former: None,
                })
            };
            let memory = format!("cgpu.io/memory={}Mi", QUOTA_BYTES >> 20);
            let mut options = vec!["--annotation", memory.as_str()];
            if user == tenant::ROOT {
                options.push("--allow-new-privs");
            }
            let id = format!("hostile-{number}");
            hostile.push(member(
                &id,
                &options,
                &["sh", "-c", &player(user, foreign)],
            )?);
            let id = format!("plain-{number}");
            plain.push(member(&id, &[], &[PROGRAM, "busy", "--out", INSIDE])?);
        }
        let sim = rig.node.running("cgpu-sim");
        let sim = u32::try_from(*sim.first().context("no cgpu-sim runs")?)?;
        let (before, began) = (cpu_time::of_process(sim)?, Instant::now());
        thread::sleep(ALONE);
        let used = cpu_time::of_process(sim)?.saturating_sub(before);
        Ok(Self {
            rig,
            neighbour,
            hostile,
            plain,
            sim,
            sim_alone: cores(used, began.elapsed()),
            pace: None,
            rounds: 0,
            failed: BTreeMap::new(),
            _folder: folder,
        })
    }

    /// The same work beside the first `count` attackers, and beside as many plain containers.
    fn turn<T>(
        &mut self,
        attacks: impl Fn(usize) -> Vec<&'static str>,
        count: usize,
        mut work: impl FnMut(&Self) -> Result<T>,
    ) -> Result<Round<T>> {
        self.play(attacks, count)?;
        let (attacked, needed, beside) = self.watched(&self.hostile, count, &mut work)?;
        let rounds = self.stop(count)?;
        self.until_at_rest(count)?;

        let driver = (beside.sim - self.sim_alone).max(0.0);
        let all = driver + needed.iter().map(|both| both.0 + both.1).sum::<f64>();
        let is_saturated = all > SATURATED * processors()?;
        let driver_each = driver / f64::from(u32::try_from(count)?);
        let mut requested_of = Vec::new();
        for (member, needed) in self.plain.iter_mut().zip(&needed) {
            let requested = if is_saturated {
                processors()?
            } else {
                requested(needed.0 + needed.1 + driver_each, member.former)
            };
            member.former = Some((requested, 0.0)).filter(|_| !is_saturated);
            requested_of.push(requested);
        }
        // The first turn beside an attack has no former one to learn from.
        let looks = if self.pace.is_none() { LOOKS } else { 0 };
        for _look in 0..looks {
            let work_us = work_us(all, beside.switches, self.pace);
            self.ask(&requested_of, work_us)?;
            let mut ramp = |_: &Self| {
                thread::sleep(RAMP);
                Ok(())
            };
            let ((), _, seen) = self.watched(&self.plain, count, &mut ramp)?;
            self.pace = Some((work_us, seen.switches / beside.switches.max(1.0)));
        }
        let work_us = work_us(all, beside.switches, self.pace);
        self.ask(&requested_of, work_us)?;
        thread::sleep(RAMP);
        let (plain, used, other) = self.watched(&self.plain, count, &mut work)?;
        self.pace = Some((work_us, other.switches / beside.switches.max(1.0)));
        self.ask(&vec![0.0; count], 0.0)?;
        for (member, used) in self.plain.iter_mut().zip(&used) {
            member.former = member.former.map(|(requested, _)| (requested, used.0));
        }
        let sum = |values: &[(f64, f64)], part: fn(&(f64, f64)) -> f64| -> f64 {
            values.iter().map(part).sum()
        };
        Ok(Round {
            attacked,
            plain,
            cores: Cores {
                container: sum(&needed, |both| both.0),
                vgpu: sum(&needed, |both| both.1),
                driver,
                plain: sum(&used, |both| both.0),
                sim_attacked: beside.sim,
                sim_plain: other.sim,
                switches_attacked: beside.switches / 1000.0,
                switches_plain: other.switches / 1000.0,
            },
            rounds,
        })
    }

    /// Asks plain containers for so many cores each, in work of so many µs at a time.
    fn ask(&self, cores: &[f64], work_us: f64) -> Result<()> {
        for (member, cores) in self.plain.iter().zip(cores) {
            let text = format!("{:.0} {work_us:.0}", cores * 1000.0);
            fs::write(member.tenant.out.join("rate"), text)?;
        }
        Ok(())
    }

    /// Cores that each of the first members, and the host's, use while the work is done: container, and vGPU's own processes.
    #[expect(clippy::type_complexity, reason = "three figures of one watch")]
    fn watched<T>(
        &self,
        members: &[Member],
        count: usize,
        work: &mut impl FnMut(&Self) -> Result<T>,
    ) -> Result<(T, Vec<(f64, f64)>, Beside)> {
        let all = || -> Result<Vec<Used>> {
            let members = members.iter().take(count);
            members.map(|member| member.groups.used()).collect()
        };
        let (before, sim) = (all()?, cpu_time::of_process(self.sim)?);
        let switches = cpu_time::switches()?;
        let began = Instant::now();
        let done = work(self)?;
        let took = began.elapsed();
        let sim = cpu_time::of_process(self.sim)?.saturating_sub(sim);
        let switches = cpu_time::switches()?.saturating_sub(switches);
        let beside = Beside {
            sim: cores(sim, took),
            switches: switches as f64 / took.as_secs_f64().max(1e-9),
        };
        let used = all()?.into_iter().zip(before).map(|(after, before)| {
            let used = after.since(before);
            (cores(used.container, took), cores(used.vgpu, took))
        });
        Ok((done, used.collect(), beside))
    }

    /// Has the first members play their attacks.
    fn play(&self, attacks: impl Fn(usize) -> Vec<&'static str>, count: usize) -> Result<()> {
        for (number, member) in self.hostile.iter().take(count).enumerate() {
            for name in ["stop", "began", "rounds"] {
                remove(&member.tenant.out.join(name))?;
            }
            let mut fifo = None;
            wait_until("a container to read its orders", PATIENCE, || {
                fifo = orders(&member.tenant.out);
                Ok(fifo.is_some())
            })?;
            let list = attacks(number).join(" ");
            writeln!(fifo.context("it is open")?, "{list}").context("writing orders")?;
        }
        for member in self.hostile.iter().take(count) {
            wait_until("an attack to begin", PATIENCE, || {
                Ok(member.tenant.out.join("began").exists())
            })?;
        }
        thread::sleep(RAMP);
        Ok(())
    }

    /// Ends what they play; the rounds of all.
    fn stop(&mut self, count: usize) -> Result<usize> {
        let mut all = 0;
        for member in self.hostile.iter().take(count) {
            let out = &member.tenant.out;
            fs::write(out.join("stop"), "")?;
            wait_until("an attacker to stop", PATIENCE, || {
                member.groups.kill_others()?;
                Ok(orders(out).is_some())
            })?;
            // An attack that lasts longer than the work has no round yet.
            let text = fs::read_to_string(out.join("rounds")).unwrap_or_default();
            let (fake, failed) = rounds(&text);
            all += fake;
            self.rounds += fake;
            for attack in failed {
                *self.failed.entry(attack.to_owned()).or_default() += 1;
            }
        }
        Ok(all)
    }

    /// Until brokers have done with what was killed; a while at most.
    fn until_at_rest(&self, count: usize) -> Result<()> {
        let until = Instant::now() + LONGEST_REST;
        while Instant::now() < until {
            let rests = |_: &Self| {
                thread::sleep(REST);
                Ok(())
            };
            let ((), used, _) = self.watched(&self.hostile, count, &mut { rests })?;
            if used.iter().all(|(_, vgpu)| *vgpu < AT_REST) {
                break;
            }
        }
        Ok(())
    }

    /// How long each of the neighbour's allocations of the next while takes, µs; longer, where there are few.
    fn allocations(&self, window: Duration, least: usize) -> Result<Vec<f64>> {
        let path = self.neighbour.out.join("samples");
        let mut file = fs::File::open(&path).with_context(|| format!("{}", path.display()))?;
        file.seek(SeekFrom::End(0))?;
        let from = tenant::monotonic()?;
        thread::sleep(window);
        let (mut text, mut until) = (String::new(), None::<Duration>);
        let deadline = Instant::now() + PATIENCE;
        let found = loop {
            file.read_to_string(&mut text)?;
            let mut found = samples(&text);
            if until.is_none() && found.len() > least {
                until = Some(tenant::monotonic()?);
            }
            // Those that began before have all ended when a later one has.
            let last = found.last().copied();
            if until.is_some() && last.map(|(began, _)| began) >= until {
                break found;
            }
            if Instant::now() >= deadline {
                // What is under way counts with the time that it has taken so far.
                let now = tenant::monotonic()?;
                let began = last.map_or(from, |(began, took)| began + took);
                found.push((began, now.saturating_sub(began)));
                until = Some(now);
                break found;
            }
            thread::sleep(REST);
        };
        let until = until.unwrap_or(from);
        let within = found
            .iter()
            .filter(|(began, _)| (from..until).contains(began));
        Ok(within.map(|(_, took)| took.as_secs_f64() * 1e6).collect())
    }

    /// The neighbour has noticed nothing but the time, and attacks were played.
    fn is_sound(&self) -> Result<()> {
        let report = self.neighbour.report("neighbour.json");
        let report = report.context("no report of the neighbour")?;
        ensure!(
            report["errors"].as_array().is_some_and(Vec::is_empty),
            "the neighbour noticed: {report}"
        );
        let (fake, failed) = (self.rounds, self.failed.values().sum::<usize>());
        progress(&format!(
            "{fake} rounds of attacks, {failed} cut short: {:?}",
            self.failed
        ));
        ensure!(
            fake > 0 && failed * 10 < fake,
            "{failed} of {fake} rounds of attacks could not be played"
        );
        Ok(())
    }
}

/// Removes a file that need not be there.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// How nice this process is, and so all that it starts.
fn niceness() -> Option<i32> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    // The 19th field of the line; the name before the bracket may hold anything.
    let (_, fields) = text.rsplit_once(')')?;
    fields.split_whitespace().nth(16)?.parse().ok()
}

/// Whole lines of the neighbour's samples: when each began, and how long it took.
fn samples(text: &str) -> Vec<(Duration, Duration)> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let nanoseconds = |argument: Option<&str>| argument?.parse().ok().map(Duration::from_nanos);
    whole
        .lines()
        .filter_map(|line| {
            let mut arguments = line.split(' ');
            Some((
                nanoseconds(arguments.next())?,
                nanoseconds(arguments.next())?,
            ))
        })
        .collect()
}

impl Bench {
    /// All of it.
    pub(super) fn attacks(&mut self, quick: bool, only: &[String]) -> Result<()> {
        let extent = Extent::new(quick);
        let mut attacks = playable();
        if let Some(unknown) = only.iter().find(|name| !attacks.contains(&name.as_str())) {
            bail!("no attack {unknown:?}: {}", attacks.join(", "));
        }
        attacks.retain(|attack| only.is_empty() || only.iter().any(|name| name == attack));
        progress(&format!(
            "attacks, without {}: they need a second container, calls that hang, or a program that gains privileges",
            NOT_ALONE.join(", ")
        ));
        if let Some(nice @ 1..) = niceness() {
            progress(&format!(
                "niceness {nice}: cgpu-sim gives way to all groups of containers, so that the ratios say nothing of cgpu"
            ));
        }
        let is_whole = only.is_empty();
        for row in on_a_node(&self.rig, &extent, &attacks, is_whole)? {
            let (p99, p99_target) = row.p99;
            let p99 = (Value::timed(p99), p99_target);
            self.add_with_tail(row.name, row.unit, row.median, p99, row.remark);
        }
        if is_whole {
            self.shares(extent.effort)?;
        }
        Ok(())
    }

    /// Shares of a card under attack, in virtual time.
    fn shares(&mut self, effort: Effort) -> Result<()> {
        progress("attacks on shares, in virtual time");
        let all = Experiment::all().iter();
        let experiments: Vec<Experiment> =
            all.filter(|one| one.name == "attacks").copied().collect();
        ensure!(!experiments.is_empty(), "no experiment is named attacks");
        for findings in experiments::run(&experiments, effort, |_| {})? {
            for row in findings.rows {
                let target = match row.target {
                    Some(Target::AtMost(most)) => Some(most),
                    Some(Target::AtLeast(_)) | None => None,
                };
                let measured = Value::counted(row.measured);
                self.add(row.what, row.unit, measured, row.measured, target);
            }
        }
        Ok(())
    }
}

/// Everything that is measured beside containers, which are gone afterwards.
fn on_a_node(
    rig: &Rig,
    extent: &Extent,
    attacks: &[&'static str],
    is_whole: bool,
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut field = Field::start(rig)?;
    neighbours(&mut field, extent, attacks, &mut rows)?;
    if is_whole {
        starts(&mut field, extent, &mut rows)?;
        listings(&mut field, extent, &mut rows)?;
    }
    field.is_sound()?;
    let ids = rig.containerd.containers()?;
    for removed in at_once(&ids, |_, id| rig.containerd.remove(id)) {
        removed?;
    }
    Ok(rows)
}

struct Row {
    name: String,
    unit: &'static str,
    median: (Value, Option<f64>),
    p99: (f64, Option<f64>),
    remark: String,
}

/// A neighbour's allocation beside each attack.
fn neighbours(
    field: &mut Field<'_>,
    extent: &Extent,
    attacks: &[&'static str],
    rows: &mut Vec<Row>,
) -> Result<()> {
    for &attack in attacks {
        field.pace = None;
        let turns = (0..extent.turns)
            .map(|_turn| {
                field.turn(
                    |_| vec![attack],
                    OF_EACH,
                    |field| field.allocations(extent.window, extent.least),
                )
            })
            .collect::<Result<Vec<_>>>()
            .with_context(|| format!("a neighbour of {attack}"))?;
        let (median, p99) = ratios(&turns);
        let remark = format!("{}; {}", latencies(&turns), remark(&turns));
        progress(&format!(
            "a neighbour of {attack}: {:.2} ({:.2} to {:.2}) ×, p99 {p99:.2} ×; {remark}",
            median.value, median.low, median.high
        ));
        rows.push(Row {
            name: format!("a neighbour's allocation beside {attack}, to beside plain containers"),
            unit: "×",
            median: (median, Some(1.1)),
            p99: (p99, Some(2.0)),
            remark,
        });
    }
    Ok(())
}

/// A container's start beside attackers of all kinds.
fn starts(field: &mut Field<'_>, extent: &Extent, rows: &mut Vec<Row>) -> Result<()> {
    progress("container starts beside attackers");
    let list = playable();
    let rig = field.rig;
    let mut number = 0;
    let mut turns = Vec::new();
    for turn in 0..=extent.starts {
        let from = number;
        let one = field.turn(
            |attacker| rotated(&list, attacker * 6 + turn),
            HOSTILE,
            |_| {
                let id = format!("started-{number}");
                number += 1;
                let started = rig.hold(&id, &["cgpu.io/memory=256Mi"])?.success()?;
                Ok(started.took.as_secs_f64() * 1e3)
            },
        )?;
        for number in from..number {
            rig.containerd.remove(&format!("started-{number}"))?;
        }
        // The first warms the caches.
        if turn > 0 {
            turns.push(one);
        }
    }
    let times = |of: fn(&Round<f64>) -> f64| -> Vec<f64> { turns.iter().map(of).collect() };
    let (attacked, plain) = (times(|turn| turn.attacked), times(|turn| turn.plain));
    let ratio = pairs(&attacked, &plain, |attacked, plain| attacked / plain);
    let tail = quantile(&sorted(ratio.clone()), 0.99);
    rows.push(Row {
        name: format!("container start beside {HOSTILE} attackers, to beside plain containers"),
        unit: "×",
        median: (Value::of_turns(ratio), Some(1.3)),
        p99: (tail, None),
        remark: remark(&turns),
    });
    for (name, times) in [("attackers", attacked), ("plain containers", plain)] {
        let tail = quantile(&sorted(times.clone()), 0.99);
        rows.push(Row {
            name: format!("container start beside {HOSTILE} {name}"),
            unit: "ms",
            median: (Value::of_turns(times), None),
            p99: (tail, None),
            remark: String::new(),
        });
    }
    Ok(())
}

/// `cgpu ps` on a host full of vGPUs.
fn listings(field: &mut Field<'_>, extent: &Extent, rows: &mut Vec<Row>) -> Result<()> {
    progress("`cgpu ps` beside attackers");
    let rig = field.rig;
    // The neighbour is one, too.
    let ids: Vec<String> = (0..VGPUS - HOSTILE - 1)
        .map(|number| format!("idle-{number}"))
        .collect();
    let started = at_once(&ids, |_, id| {
        rig.hold(id, &["cgpu.io/memory=256Mi"])?.success()
    });
    for started in started {
        started?;
    }
    let list = playable();
    let (count, each) = extent.listings;
    let (mut turns, mut silent) = (Vec::new(), 0);
    for turn in 0..count {
        turns.push(field.turn(
            |attacker| rotated(&list, attacker * 6 + turn),
            HOSTILE,
            |_| {
                (0..each)
                    .map(|_| {
                        let listed = rig.node.cgpu(&["ps"])?.success()?;
                        silent += usize::from(listed.stdout.contains("silent"));
                        Ok(listed.took.as_secs_f64() * 1e3)
                    })
                    .collect::<Result<Vec<f64>>>()
            },
        )?);
    }
    let listed = rig.node.cgpu(&["ps", "--json"])?.success()?.json()?;
    let vgpus = listed["vgpus"].as_array().map_or(0, Vec::len);
    ensure!(vgpus == VGPUS, "`cgpu ps` shows {vgpus} vGPUs, not {VGPUS}");
    let of = |values: fn(&Round<Vec<f64>>) -> &Vec<f64>| {
        sorted(turns.iter().flat_map(values).copied().collect())
    };
    let (attacked, plain) = (of(|turn| &turn.attacked), of(|turn| &turn.plain));
    for (name, times, target) in [
        ("of which 10 attack", &attacked, Some(100.0)),
        ("beside 10 plain containers", &plain, None),
    ] {
        rows.push(Row {
            name: format!("`cgpu ps` with {VGPUS} containers, {name}"),
            unit: "ms",
            median: (Value::timed(quantile(times, 0.5)), target),
            p99: (quantile(times, 0.99), target),
            remark: format!(
                "{silent} of all listings with a broker that did not answer in time; {}",
                remark(&turns)
            ),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(attacked: &[f64], plain: &[f64]) -> Round<Vec<f64>> {
        Round {
            attacked: attacked.to_vec(),
            plain: plain.to_vec(),
            cores: Cores::default(),
            rounds: 0,
        }
    }

    #[test]
    fn medians_are_compared_turn_by_turn_and_tails_over_all() {
        // The machine is ten times slower in the second turn, for both.
        let turns = [
            turn(&[11.0, 11.0, 30.0], &[10.0, 10.0, 20.0]),
            turn(&[120.0, 120.0, 300.0], &[100.0, 100.0, 200.0]),
            turn(&[9.0, 9.0, 9.0], &[10.0, 10.0, 10.0]),
        ];
        let (median, p99) = ratios(&turns);
        assert!((median.value - 1.1).abs() < 1e-9, "{median:?}");
        // So few turns tell no more than that it is among them.
        assert!(median.low < 1.0 && median.high >= 1.2, "{median:?}");
        assert!((p99 - 1.5).abs() < 1e-9, "{p99}");
    }

    #[test]
    fn what_stays_behind_is_given_more_within_bounds() {
        assert!((requested(0.5, None) - 0.5).abs() < 1e-9);
        assert!((requested(0.5, Some((0.44, 0.4))) - 0.55).abs() < 1e-9);
        // A machine that was full gave less than can be made up for.
        assert!((requested(1.0, Some((1.0, 0.1))) - 1.25).abs() < 1e-9);
        assert!((requested(1.0, Some((0.1, 1.0))) - 0.8).abs() < 1e-9);
        assert!((requested(1.0, Some((0.5, 0.0))) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn work_is_as_long_as_the_attackers_and_corrected_by_the_former_turn() {
        // Half a core in pieces of 50 µs.
        assert!((work_us(0.5, 10_000.0, None) - 50.0).abs() < 1e-9);
        // Plain containers switched twice as often, then half as often, then not at all comparably.
        assert!((work_us(0.5, 10_000.0, Some((50.0, 2.0))) - 100.0).abs() < 1e-9);
        assert!((work_us(0.5, 10_000.0, Some((50.0, 0.5))) - 25.0).abs() < 1e-9);
        assert!((work_us(0.5, 10_000.0, Some((50.0, 50.0))) - 150.0).abs() < 1e-9);
        assert!((work_us(2.0, 0.0, None) - WORK_US.1).abs() < 1e-9);
    }

    #[test]
    fn cores_are_time_used_over_time_passed() {
        let half = cores(Duration::from_millis(350), Duration::from_millis(700));
        assert!((half - 0.5).abs() < 1e-9);
        let turn = |container, vgpu, driver, plain| Round {
            attacked: (),
            plain: (),
            cores: Cores {
                container,
                vgpu,
                driver,
                plain,
                ..Cores::default()
            },
            rounds: 2,
        };
        let text = remark(&[turn(0.5, 0.25, 0.1, 0.7), turn(0.7, 0.35, 0.3, 1.1)]);
        assert!(
            text.starts_with(
                "4 rounds; cores: attackers 1.10 (containers 0.60, vGPUs' own 0.30, driver 0.20), plain 0.90;"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_line_that_is_being_written_is_no_sample() {
        let read = samples("1000 20\n3000 40\n50");
        let nanoseconds = |(at, took): &(Duration, Duration)| (at.as_nanos(), took.as_nanos());
        let read: Vec<_> = read.iter().map(nanoseconds).collect();
        assert_eq!(read, [(1000, 20), (3000, 40)]);
        assert!(samples("").is_empty());
    }

    #[test]
    fn every_attack_is_fake_but_those_that_need_more_than_one_container() {
        let fake = playable();
        assert_eq!(fake.len() + NOT_ALONE.len() + 1, ATTACKS.len());
        let other = rotated(&fake, 7);
        assert_eq!(other.first(), fake.get(7));
        assert_eq!(other.len(), fake.len());
        let root = player(tenant::ROOT, (7, 9));
        let arguments =
            "/out/cgpu-tenant $attack --quota 536870912 --out /out/work --client 7 --memory 9";
        assert!(root.contains(&format!("; {arguments}; echo")), "{root}");
        let unprivileged = player(tenant::UNPRIVILEGED, (7, 9));
        let as_user = format!("su user -c \"{arguments}\"; echo");
        assert!(unprivileged.contains(&as_user), "{unprivileged}");
    }

    #[test]
    fn what_was_killed_is_no_round() {
        assert_eq!(rounds("one 0\ntwo 1\none 0\ntwo 137\n"), (3, vec!["two"]));
        assert_eq!(rounds(""), (0, vec![]));
    }
}
