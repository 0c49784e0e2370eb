//! The node, its containers, and what each attacker does in its own.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::ops::Deref;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use integration::command::{capture, wait_until};
use integration::programs::{Profile, Programs};
use integration::rig::Rig;
use integration::tenant::{self, INSIDE, PROGRAM, Tenant};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde_json::Value;

const ATTACKERS: u64 = 10;
const NEIGHBOURS: u64 = 2;
const MIB: u64 = 1 << 20;
const QUOTA_BYTES: u64 = 512 * MIB;
const NEIGHBOUR_BYTES: u64 = 2048 * MIB;
/// An attack that has not reported by then is left to itself: brokers are being killed under it.
const ATTACK_LIMIT: Duration = Duration::from_secs(20);
/// As long as an attack may take that nothing disturbs: the longest makes thousands of calls, beside eleven other containers.
const UNDISTURBED: Duration = Duration::from_secs(300);
/// How long a container may take to be there again once nothing is in its way.
const RESTART: Duration = Duration::from_secs(60);
/// How long accounts may differ by what has just ended.
const SETTLE: Duration = Duration::from_secs(40);

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Numbers drawn one after the other from a seed.
pub(crate) struct Draws(Xoshiro256PlusPlus);

impl Draws {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end
    }

    pub(crate) fn one<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let length = u64::try_from(of.len()).ok().filter(|length| *length > 0)?;
        of.get(usize::try_from(self.below(length)).ok()?)
    }
}

/// One container.
#[derive(Debug)]
pub(crate) struct Guest {
    tenant: Tenant,
    pub(crate) quota_bytes: u64,
    pub(crate) is_attacker: bool,
}

/// The node and everything on it.
pub(crate) struct World {
    pub(crate) rig: Rig,
    folder: tempfile::TempDir,
    guests: Vec<Guest>,
    seed: u64,
    stopped: AtomicBool,
    counts: Mutex<BTreeMap<String, u64>>,
    /// How many more attackers may go on at this moment.
    turns: Mutex<u64>,
    turn_is_over: Condvar,
    /// What the watch has found to be wrong.
    pub(crate) wrong: Mutex<Vec<String>>,
}

impl World {
    /// Starts all containers; so many of the attackers go on at a time.
    pub(crate) fn new(rig: Rig, seed: u64, at_once: u64) -> Result<Self> {
        let program = Programs::build_static("cgpu-security", "cgpu-tenant", Profile::Dev)?;
        let folder = tempfile::Builder::new().prefix("cgpu-chaos").tempdir()?;
        let mut guests = Vec::new();
        for number in 0..ATTACKERS + NEIGHBOURS {
            let is_attacker = number < ATTACKERS;
            let id = if is_attacker {
                format!("attacker-{number}")
            } else {
                format!("neighbour-{number}")
            };
            let user = if number % 2 == 0 {
                tenant::UNPRIVILEGED
            } else {
                tenant::ROOT
            };
            guests.push(Guest {
                tenant: Tenant::make(folder.path(), &program, &id, user)?,
                quota_bytes: if is_attacker {
                    QUOTA_BYTES
                } else {
                    NEIGHBOUR_BYTES
                },
                is_attacker,
            });
        }
        let world = Self {
            rig,
            folder,
            guests,
            seed,
            stopped: AtomicBool::new(false),
            counts: Mutex::default(),
            turns: Mutex::new(at_once.max(1)),
            turn_is_over: Condvar::new(),
            wrong: Mutex::default(),
        };
        for guest in &world.guests {
            world.start(guest)?;
        }
        for guest in world.neighbours() {
            wait_until("a neighbour's first rounds", RESTART, || {
                Ok(guest.rounds().is_some_and(|rounds| rounds > 2))
            })?;
        }
        Ok(world)
    }

    pub(crate) fn attackers(&self) -> impl Iterator<Item = &Guest> {
        self.guests.iter().filter(|guest| guest.is_attacker)
    }

    pub(crate) fn neighbours(&self) -> impl Iterator<Item = &Guest> {
        self.guests.iter().filter(|guest| !guest.is_attacker)
    }

    pub(crate) fn guests(&self) -> &[Guest] {
        &self.guests
    }

    /// Draws of one thread of the run.
    pub(crate) fn draws(&self, thread: u64) -> Draws {
        Draws::new(self.seed.wrapping_add(thread))
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    pub(crate) fn count(&self, what: &str) {
        *locked(&self.counts).entry(what.to_owned()).or_default() += 1;
    }

    pub(crate) fn is_wrong(&self, what: String) {
        let mut wrong = locked(&self.wrong);
        if wrong.len() < 20 {
            wrong.push(what);
        }
    }

    /// The folder that cgpu has for a container.
    pub(crate) fn vgpu(&self, guest: &Guest) -> PathBuf {
        let state = self.rig.node.state_dir();
        let namespace = self.rig.containerd.namespace();
        state.join("vgpus").join(namespace).join(&guest.id)
    }

    fn start(&self, guest: &Guest) -> Result<()> {
        let memory = format!("cgpu.io/memory={}Mi", guest.quota_bytes / MIB);
        let mut options = vec!["--annotation", memory.as_str()];
        if guest.is_attacker && guest.user == tenant::ROOT {
            options.push("--allow-new-privs");
        }
        let program: &[&str] = if guest.is_attacker {
            &["sleep", "100000"]
        } else {
            &[PROGRAM, "neighbour", "--quota", "0", "--out", INSIDE]
        };
        guest.tenant.start(&self.rig, &options, program)?;
        Ok(())
    }

    /// Removes what is left of a container and makes it again, as often as trouble is in the way.
    fn restart(&self, guest: &Guest) -> Result<()> {
        self.count("containers made again");
        let until = Instant::now() + RESTART;
        loop {
            let removed = self.rig.containerd.remove(&guest.id);
            let gone = removed.is_ok() || !self.rig.containerd.containers()?.contains(&guest.id);
            let made = if gone {
                self.start(guest)
            } else {
                removed.context("removing it")
            };
            match made {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > until => {
                    return Err(error.context(format!("making {} again", guest.id)));
                }
                Err(error) => {
                    self.count("starts refused in trouble");
                    if format!("{error:#}").contains("file exists") {
                        self.clean_up_for_the_engine(guest)?;
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// containerd gives up a `delete` after 5 s, keeps the bundle, and refuses another container of that name until it is itself started
    /// again and calls `delete` once more (`cleanupAfterDeadShim`; its own shim's bundles fare no better). That is done here at once: it
    /// must succeed, and a `delete` that failed by itself is wrong.
    fn clean_up_for_the_engine(&self, guest: &Guest) -> Result<()> {
        let engine = &self.rig.containerd;
        let about = format!("id={}", guest.id);
        for line in engine.log().lines() {
            let is_failure =
                line.contains("failed to delete") || line.contains("failed to clean up");
            let is_given_up = line.contains("deadline exceeded") || line.contains("signal: killed");
            if is_failure && line.contains(&about) && !is_given_up {
                self.is_wrong(format!("{}: {line}", guest.id));
            }
        }
        let bundle = engine.bundle(&guest.id);
        let mut delete = self.rig.node.command("containerd-shim-cgpu-v2")?;
        delete
            .env("PATH", engine.search_path())
            .args(["-namespace", engine.namespace(), "-id", &guest.id])
            .arg("-address")
            .arg(engine.socket())
            .arg("-bundle")
            .arg(&bundle)
            .arg("delete")
            .current_dir(&bundle);
        capture(&mut delete, RESTART)?.success()?;
        fs::remove_dir_all(&bundle)?;
        self.count("deletes that containerd gave up after 5 s");
        Ok(())
    }

    /// One attack after the other; a container that was lost to trouble is made again.
    pub(crate) fn attack_until(&self, guest: &Guest, place: usize, until: Instant) -> Result<()> {
        let mut draws = self.draws(1000 + u64::try_from(place)?);
        let attacks: Vec<&str> = security::ATTACKS
            .iter()
            .map(|attack| attack.name)
            .filter(|name| !security::NOT_ALONE.contains(name))
            .collect();
        let mut failures = 0;
        while Instant::now() < until {
            let attack = draws.one(&attacks).context("no attack")?;
            let hold = Duration::from_millis(draws.below(400));
            let tried = {
                let _turn = HostTurn::taken(self);
                self.attack(guest, attack, hold)?
            };
            match tried {
                Tried::Done => {
                    failures = 0;
                    self.count(&format!("attack {attack}"));
                }
                // Trouble in the middle of it; twice in a row may be a container without a GPU.
                Tried::Failed => {
                    failures += 1;
                    self.count("attacks cut short");
                }
                Tried::NoContainer => failures = 2,
            }
            if failures >= 2 && Instant::now() < until {
                self.restart(guest)?;
                failures = 0;
            }
        }
        Ok(())
    }

    fn attack(&self, guest: &Guest, attack: &str, hold: Duration) -> Result<Tried> {
        guest.clear()?;
        let mut child = self.exec(guest, attack)?;
        let reported = guest.until_report(&mut child, ATTACK_LIMIT)?;
        if reported.is_some() {
            std::thread::sleep(hold);
        }
        fs::write(guest.out.join("go"), "")?;
        let until = Instant::now() + ATTACK_LIMIT;
        while child.try_wait()?.is_none() {
            if Instant::now() > until {
                child.kill()?;
                child.wait()?;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(match reported {
            Some(document) if document["error"].is_null() => Tried::Done,
            Some(_) => Tried::Failed,
            None => {
                let log = guest.log();
                let is_gone = [
                    "not found",
                    "not running",
                    "no running task",
                    "ttrpc: closed",
                ]
                .iter()
                .any(|text| log.contains(text));
                if is_gone {
                    Tried::NoContainer
                } else {
                    Tried::Failed
                }
            }
        })
    }

    fn exec(&self, guest: &Guest, attack: &str) -> Result<Child> {
        let neighbour = self.neighbours().next().and_then(Guest::neighbour_report);
        let foreign = |key: &str| {
            let number = neighbour.as_ref().and_then(|reply| reply[key].as_u64());
            number.unwrap_or_default()
        };
        let foreign = (foreign("client"), foreign("memory"));
        let arguments = tenant::attack_arguments(attack, guest.quota_bytes, INSIDE, foreign);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        guest.tenant.exec(&self.rig, &arguments)
    }

    /// Every attacker takes what it can and holds it: ledgers, the cards' account and the processes' own tables agree.
    pub(crate) fn account_is_right_while_held(&self) -> Result<()> {
        const HOLDING: [&str; 6] = [
            "reference_then_free",
            "register_then_free",
            "map_then_free",
            "managed_memory",
            "channel_groups",
            "heap_and_old_calls",
        ];
        let mut children = Vec::new();
        for (guest, attack) in self.attackers().zip(HOLDING.iter().cycle()) {
            let mut tries = 0;
            let child = loop {
                guest.clear()?;
                let mut child = self.exec(guest, attack)?;
                let reported = guest.until_report(&mut child, UNDISTURBED)?;
                match reported {
                    Some(document) if document["error"].is_null() => break child,
                    reported => {
                        fs::write(guest.out.join("go"), "")?;
                        child.wait()?;
                        tries += 1;
                        ensure!(
                            tries < 3,
                            "{} cannot use its GPU after the trouble: {reported:?} {}",
                            guest.id,
                            guest.log()
                        );
                        self.restart(guest)?;
                    }
                }
            };
            children.push(child);
        }
        let mut seen = String::new();
        wait_until("ledgers and cards to agree", SETTLE, || {
            seen.clear();
            for guest in &self.guests {
                let (ledger, card, mapped) = self.three_accounts(guest)?;
                // A neighbour is never still: it allocates and frees 4 MiB all the time.
                let tolerance = if guest.is_attacker { 0 } else { 8 * MIB };
                if ledger.abs_diff(card + mapped) > tolerance {
                    seen.push_str(&format!(
                        "{}: ledger {ledger}, card {card}, managed {mapped}; ",
                        guest.id
                    ));
                }
            }
            Ok(seen.is_empty())
        })
        .with_context(|| format!("accounts differ: {seen}"))?;
        self.count("accounts compared while held");
        for guest in self.attackers() {
            fs::write(guest.out.join("go"), "")?;
        }
        for mut child in children {
            child.wait()?;
        }
        for guest in self.attackers() {
            wait_until("what was held to come back", SETTLE, || {
                Ok(self.three_accounts(guest)? == (0, 0, 0))
            })
            .with_context(|| format!("{}: {:?}", guest.id, self.three_accounts(guest)))?;
        }
        Ok(())
    }

    /// Bytes by the broker's ledger, by the cards' own account, and of `nvidia-uvm` in the processes' own tables.
    fn three_accounts(&self, guest: &Guest) -> Result<(u64, u64, u64)> {
        let status = self.status(guest)?;
        let cards = status["cards"].as_array();
        let ledger = cards
            .into_iter()
            .flatten()
            .filter_map(|card| card["used_bytes"].as_u64())
            .sum();
        let session = format!("{}/{}", self.rig.containerd.namespace(), guest.id);
        let account = self.rig.node.sim_account()?;
        let card = crate::watch::held_by(&account)
            .filter(|(name, _)| *name == session)
            .map(|(_, bytes)| bytes)
            .sum();
        Ok((ledger, card, self.managed_bytes(guest)?))
    }

    fn managed_bytes(&self, guest: &Guest) -> Result<u64> {
        let listed = self
            .rig
            .containerd
            .ctr(&["tasks", "ps", &guest.id])?
            .success()?;
        let processes = listed
            .stdout
            .lines()
            .filter_map(|line| line.split_whitespace().next()?.parse::<i32>().ok());
        let mut bytes = 0;
        for pid in processes {
            // It may have ended since.
            let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
            for line in maps.lines().filter(|line| line.contains("cgpu-sim-uvm")) {
                let range = line
                    .split(' ')
                    .next()
                    .and_then(|range| range.split_once('-'));
                let (from, to) = range.with_context(|| format!("no range in {line}"))?;
                bytes += u64::from_str_radix(to, 16)? - u64::from_str_radix(from, 16)?;
            }
        }
        Ok(bytes)
    }

    /// The broker's status; it may be on its way to be replaced.
    pub(crate) fn status(&self, guest: &Guest) -> Result<Value> {
        let socket = self.vgpu(guest).join("control.sock");
        let mut stream = UnixStream::connect(&socket)
            .with_context(|| format!("connecting to {}", socket.display()))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.write_all(b"{\"op\":\"status\"}\n")?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("not JSON: {line:?}"))
    }

    pub(crate) fn summary(&self) -> Summary {
        Summary {
            seed: self.seed,
            counts: locked(&self.counts).clone(),
            wrong: locked(&self.wrong).clone(),
        }
    }

    /// Removes everything; fails when anything is left, or when something was wrong.
    pub(crate) fn end(self) -> Result<()> {
        let wrong = locked(&self.wrong).clone();
        for guest in self.neighbours() {
            fs::write(guest.out.join("go"), "")?;
        }
        for guest in &self.guests {
            self.rig.containerd.remove(&guest.id)?;
        }
        self.rig.finish()?;
        self.folder.close()?;
        if !wrong.is_empty() {
            bail!("{}", wrong.join("\n"));
        }
        Ok(())
    }
}

/// An attacker's turn, until it is dropped.
struct HostTurn<'a>(&'a World);

impl<'a> HostTurn<'a> {
    fn taken(world: &'a World) -> Self {
        let none_left = |turns: &mut u64| *turns == 0;
        let waited = world
            .turn_is_over
            .wait_while(locked(&world.turns), none_left);
        *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
        Self(world)
    }
}

impl Drop for HostTurn<'_> {
    fn drop(&mut self) {
        *locked(&self.0.turns) += 1;
        self.0.turn_is_over.notify_one();
    }
}

enum Tried {
    Done,
    Failed,
    NoContainer,
}

impl Deref for Guest {
    type Target = Tenant;

    fn deref(&self) -> &Tenant {
        &self.tenant
    }
}

impl Guest {
    fn until_report(&self, child: &mut Child, patience: Duration) -> Result<Option<Value>> {
        let report = || self.tenant.report("report.json");
        let until = Instant::now() + patience;
        loop {
            if let Some(document) = report() {
                return Ok(Some(document));
            }
            if child.try_wait()?.is_some() || Instant::now() > until {
                return Ok(report());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What a neighbour last said.
    pub(crate) fn neighbour_report(&self) -> Option<Value> {
        self.tenant.report("neighbour.json")
    }

    pub(crate) fn rounds(&self) -> Option<u64> {
        self.neighbour_report()?["rounds"].as_u64()
    }
}

/// What has happened, for people and for `docs/`.
pub(crate) struct Summary {
    seed: u64,
    counts: BTreeMap<String, u64>,
    wrong: Vec<String>,
}

impl Summary {
    fn sum_of(&self, prefix: &str) -> u64 {
        let of_prefix = self
            .counts
            .iter()
            .filter(|(what, _)| what.starts_with(prefix));
        of_prefix.map(|(_, count)| count).sum()
    }

    /// Whether the run has tried what it is for: a machine that stood still proves nothing.
    pub(crate) fn is_worth_something(&self, lasted: Duration) -> bool {
        let seconds = lasted.as_secs();
        self.sum_of("attack ") >= seconds / 6
            && self.sum_of("killed ") >= seconds / 12
            && self.sum_of("samples") >= seconds / 3
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}", self.seed)?;
        writeln!(f, "{} attacks in all", self.sum_of("attack "))?;
        for (what, count) in &self.counts {
            writeln!(f, "  {count:7} {what}")?;
        }
        for wrong in &self.wrong {
            writeln!(f, "WRONG: {wrong}")?;
        }
        Ok(())
    }
}
