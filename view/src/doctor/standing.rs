//! How what is installed and running stands: programs, cards, containers, engines.

use std::collections::BTreeSet;
use std::path::PathBuf;

use cards::Mode;

use super::{Check, Facts, Level, Unhealthy, UsedAgain};
use crate::host_driver::HostDriver;
use crate::ps::State;

/// One of cgpu's own programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Its file's name.
    pub name: &'static str,
    /// Where it should be.
    pub path: PathBuf,
    /// How it stands.
    pub standing: Standing,
}

/// How a program stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It is there, and root's alone.
    Fine,
    /// There is no such file.
    Absent,
    /// Others than root can change it, or it cannot be run; why.
    Untrusted(String),
}

/// A container that holds a vGPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// As it is shown.
    pub name: String,
    /// As `cgpu ps` shows it, or why it cannot be read.
    pub state: Result<State, String>,
}

/// An engine that is installed here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    /// `containerd`, `docker`, `podman` or `crio`.
    pub name: &'static str,
    /// Which of our programs its configuration names, or why that cannot be read.
    pub names: Result<Vec<Named>, String>,
    /// The command that makes it read its configuration again, where the running daemon is older than that.
    pub unread: Option<String>,
}

/// A program that an engine's configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The configuration's file.
    pub file: String,
    /// The program.
    pub program: PathBuf,
    /// How it stands.
    pub standing: Standing,
}

/// What only one kind of container, or one engine, needs is no reason that nothing starts.
pub(super) fn programs(facts: &Facts) -> Vec<Check> {
    const NAME: &str = "programs";
    let mut checks = Vec::new();
    let mut fine = Vec::new();
    for program in &facts.programs {
        let path = program.path.display();
        match &program.standing {
            Standing::Fine => fine.push(program.name),
            Standing::Untrusted(why) => checks.push(Check::broken(
                NAME,
                why.clone(),
                format!(
                    "anyone who can change it can take over every container: install it again, then `chown root: {path}` and `chmod 0755 {path}`"
                ),
            )),
            Standing::Absent => {
                let (level, lost) = lost_without(program.name, facts);
                checks.push(Check {
                    level,
                    ..Check::hint(
                        NAME,
                        format!("{path} does not exist: {lost}"),
                        format!("install {} beside cgpu", program.name),
                    )
                });
            }
        }
    }
    if !fine.is_empty() {
        checks.push(Check::ok(NAME, fine.join(", ")));
    }
    checks
}

/// What does not work where a program is not there.
fn lost_without(program: &str, facts: &Facts) -> (Level, &'static str) {
    let is_strict = facts.driver == HostDriver::Kernel && facts.isolation.mode == Mode::Strict;
    match program {
        "cgpu-executor" if is_strict => (
            Level::Missing,
            "no container of a real card starts in mode strict",
        ),
        "cgpu-executor" => (Level::Hint, "mode strict on a real card needs it"),
        "cgpu-limits" => (Level::Hint, "the backend driver-limit needs it"),
        "cgpu-top" => (Level::Hint, "the full screen of `cgpu top` needs it"),
        "cgpu-hook" => (
            Level::Hint,
            "podman's hook (`cgpu install --engine podman-hook`) needs it",
        ),
        "cgpu-runtime" => (
            Level::Broken,
            "no GPU container of docker before 24, podman or CRI-O starts",
        ),
        _ => (
            Level::Broken,
            "no GPU container of containerd or docker 24 and later starts",
        ),
    }
}

/// What is known against the cards. As long as one is well, containers are placed on it.
pub(super) fn cards(
    name: &'static str,
    count: usize,
    unhealthy: &Result<Vec<Unhealthy>, String>,
) -> Check {
    match unhealthy {
        Ok(none) if none.is_empty() => Check::ok(name, format!("{count} cards")),
        Ok(unhealthy) => {
            let reported: Vec<String> = unhealthy
                .iter()
                .map(|card| format!("{}: {}", card.uuid, card.reason))
                .collect();
            let remedy = remedy(unhealthy);
            let found = format!(
                "{} of {count} unhealthy: {}",
                unhealthy.len(),
                reported.join("; ")
            );
            if unhealthy.len() < count {
                Check::broken(name, found, remedy)
            } else {
                Check::missing(name, found, remedy)
            }
        }
        Err(why) => Check::missing(
            name,
            why,
            "no container is placed on a card whose health.json cannot be read: `cgpu doctor --repair --card CARD` removes the file",
        ),
    }
}

/// What makes unhealthy cards be used for new containers again.
fn remedy(unhealthy: &[Unhealthy]) -> String {
    const BEFORE: &str = "restart its containers, reset or replace the card, then run";
    const CLEARED: &str = "`cgpu doctor --repair --card CARD` to use it for new containers again";
    const FOUND: &str =
        "`cgpu cards`: one that is lost is used for new containers again when NVML answers for it";
    let any = |how: UsedAgain| unhealthy.iter().any(|card| card.used_again == how);
    match (any(UsedAgain::WhenCleared), any(UsedAgain::WhenFound)) {
        (_, false) => format!("{BEFORE} {CLEARED}"),
        (false, true) => format!("{BEFORE} {FOUND}"),
        (true, true) => format!("{BEFORE} {CLEARED}, and {FOUND}"),
    }
}

/// How cards are set. As long as one that is well can be shared, containers are placed on it.
pub(super) fn unshareable(facts: &Facts) -> Option<Check> {
    const NAME: &str = "card modes";
    const REMEDY: &str =
        "do what it says there for each card that containers are to share; the others can stay";
    if facts.unshareable.is_empty() {
        return None;
    }
    let reported: Vec<String> = facts
        .unshareable
        .iter()
        .map(|(uuid, why)| format!("{uuid} {why}"))
        .collect();
    let found = format!("nothing is placed on {}", reported.join("; "));
    let unhealthy = facts.unhealthy.as_deref().unwrap_or_default();
    let unshareable = facts.unshareable.iter().map(|(uuid, _)| uuid.as_str());
    let of_either = unshareable.chain(unhealthy.iter().map(|card| card.uuid.as_str()));
    let without: BTreeSet<&str> = of_either.collect();
    Some(if facts.cards == Ok(without.len()) {
        Check::missing(NAME, found, REMEDY)
    } else {
        Check::hint(NAME, found, REMEDY)
    })
}

/// What goes on in the containers that hold a vGPU.
pub(super) fn containers(facts: &Facts) -> Vec<Check> {
    of(&facts.containers, reach(facts))
}

/// Who does not make the calls of containers whose driver is unreachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// An executor of a real driver's.
    Executor,
    /// The simulator, which does not answer.
    NoSimulator,
    /// The one before the simulator that answers now.
    FormerSimulator,
}

fn reach(facts: &Facts) -> Reach {
    match (facts.driver, &facts.simulator) {
        (HostDriver::Sim, Ok(())) => Reach::FormerSimulator,
        (HostDriver::Sim, Err(_)) => Reach::NoSimulator,
        (HostDriver::Kernel | HostDriver::None, _) => Reach::Executor,
    }
}

impl Reach {
    /// What is wrong, and what to do.
    fn texts(self) -> [&'static str; 2] {
        match self {
            Self::Executor => [
                "the executor or simulator behind them does not answer",
                "restart these containers, whose executors are gone; simulated cards: start cgpu-sim again. `cgpu events CONTAINER` says since when",
            ],
            Self::NoSimulator => [
                "the simulator behind them does not answer",
                "start cgpu-sim again, and then their programs. `cgpu events CONTAINER` says since when",
            ],
            Self::FormerSimulator => [
                "the simulator was started again since they opened their cards",
                "restart these containers, or end the programs in them that have the cards open: cgpu-sim serves those that open them anew. `cgpu events CONTAINER` says since when",
            ],
        }
    }
}

fn of(containers: &Result<Vec<Container>, String>, reach: Reach) -> Vec<Check> {
    const STALE: &str = "stale grants";
    const UNREAD: &str = "a grant or reservations that cannot be read are never overwritten: move it away once nothing runs";
    let containers = match containers {
        Ok(containers) => containers,
        Err(why) => {
            return vec![Check::missing(STALE, why, UNREAD)];
        }
    };
    let named = |state: State| {
        let of: Vec<&str> = containers
            .iter()
            .filter(|container| container.state == Ok(state))
            .map(|container| container.name.as_str())
            .collect();
        (!of.is_empty()).then(|| of.join(", "))
    };
    let mut checks = vec![match named(State::Stale) {
        None => Check::ok(STALE, "none"),
        Some(stale) => Check::hint(
            STALE,
            stale,
            "`cgpu doctor --repair` releases them now, else the next start of a GPU container does",
        ),
    }];
    let unread = containers.iter().filter_map(|container| {
        let why = container.state.as_ref().err()?;
        Some(format!("{}: {why}", container.name))
    });
    let unread: Vec<String> = unread.collect();
    if !unread.is_empty() {
        checks.push(Check::broken("grants", unread.join("; "), UNREAD));
    }
    if let Some(gone) = named(State::BrokerGone) {
        checks.push(Check::broken(
            "brokers",
            format!(
                "gone: {gone}: all GPU calls of these containers fail, and nothing starts another broker"
            ),
            "restart these containers; `cgpu events CONTAINER` says what happened",
        ));
    }
    if let Some(unreachable) = named(State::DriverUnreachable) {
        let [what, remedy] = reach.texts();
        checks.push(Check::broken(
            "brokers",
            format!("{what}: {unreachable}: their GPU calls fail with EIO"),
            remedy,
        ));
    }
    if let Some(silent) = named(State::Silent) {
        checks.push(Check::hint(
            "brokers",
            format!("no answer in time: {silent}"),
            "look again: on a busy host it comes later; a broker that hangs is replaced within some seconds",
        ));
    }
    checks
}

/// Which engines know of cgpu.
pub(super) fn engines(facts: &Facts) -> Vec<Check> {
    facts.engines.iter().map(engine).collect()
}

fn engine(engine: &Engine) -> Check {
    let name = engine.name;
    let named = match &engine.names {
        Ok(named) => named,
        Err(why) => {
            return Check::hint(
                name,
                format!("its configuration cannot be read: {why}"),
                "correct the file",
            );
        }
    };
    if named.is_empty() {
        return Check::hint(
            name,
            "cgpu's runtime is not registered",
            format!("`cgpu install --engine {name}`"),
        );
    }
    let broken: Vec<String> = named
        .iter()
        .filter_map(|named| match &named.standing {
            Standing::Fine => None,
            Standing::Absent => Some(format!(
                "{} names {}, which does not exist",
                named.file,
                named.program.display()
            )),
            Standing::Untrusted(why) => Some(format!("{} names a program: {why}", named.file)),
        })
        .collect();
    if !broken.is_empty() {
        return Check::broken(
            name,
            broken.join("; "),
            format!(
                "put the program there (root's, mode 0755), or `cgpu install --engine {name}` from where the programs are"
            ),
        );
    }
    if let Some(command) = &engine.unread {
        return Check::hint(
            name,
            "its configuration has changed since it was started",
            format!("`{command}`, if that was not done"),
        );
    }
    let mut files: Vec<&str> = named.iter().map(|named| named.file.as_str()).collect();
    files.dedup();
    Check::ok(
        name,
        format!("cgpu's runtime is registered ({})", files.join(", ")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(check: &Check, level: Level, parts: &[&str]) {
        assert_eq!(check.level, level, "{check:?}");
        let text = format!(
            "{} {}",
            check.found,
            check.remedy.clone().unwrap_or_default()
        );
        for part in parts {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_lost_card_is_broken_and_the_last_one_stops_all_starts() {
        let lost = |uuid: &str| Unhealthy {
            uuid: uuid.to_owned(),
            reason: "the card was lost".to_owned(),
            used_again: UsedAgain::WhenCleared,
        };
        one(&cards("cards", 2, &Ok(Vec::new())), Level::Ok, &["2 cards"]);
        let parts = [
            "1 of 2",
            "GPU-1: the card was lost",
            "cgpu doctor --repair --card",
        ];
        one(
            &cards("cards", 2, &Ok(vec![lost("GPU-1")])),
            Level::Broken,
            &parts,
        );
        let both = Ok(vec![lost("GPU-1"), lost("GPU-2")]);
        one(&cards("cards", 2, &both), Level::Missing, &["2 of 2"]);
        one(
            &cards("cards", 2, &Err("torn".into())),
            Level::Missing,
            &["torn"],
        );
    }

    #[test]
    fn each_state_of_a_container_has_its_check_and_its_remedy() {
        for (state, name, level, part) in [
            (State::Running, "stale grants", Level::Ok, "none"),
            (State::Stale, "stale grants", Level::Hint, "--repair"),
            (
                State::BrokerGone,
                "brokers",
                Level::Broken,
                "restart these containers",
            ),
            (
                State::DriverUnreachable,
                "brokers",
                Level::Broken,
                "start cgpu-sim again",
            ),
            (State::Silent, "brokers", Level::Hint, "look again"),
        ] {
            let container = Container {
                name: "default/c1".to_owned(),
                state: Ok(state),
            };
            let checks = of(&Ok(vec![container]), Reach::NoSimulator);
            let check = checks.iter().rfind(|check| check.name == name).unwrap();
            one(check, level, &[part]);
            if level != Level::Ok {
                one(check, level, &["default/c1"]);
            }
        }
    }

    #[test]
    fn a_simulator_that_answers_is_not_to_be_started_again() {
        let container = Container {
            name: "default/c1".to_owned(),
            state: Ok(State::DriverUnreachable),
        };
        let checks = of(&Ok(vec![container]), Reach::FormerSimulator);
        let check = checks
            .iter()
            .rfind(|check| check.name == "brokers")
            .unwrap();
        one(
            check,
            Level::Broken,
            &["restart these containers", "was started again"],
        );
        let remedy = check.remedy.as_deref().unwrap_or_default();
        assert!(!remedy.contains("start cgpu-sim"), "{remedy}");
    }

    #[test]
    fn an_engine_is_installed_or_reports_what_it_lacks() {
        let mut docker = Engine {
            name: "docker",
            names: Ok(Vec::new()),
            unread: None,
        };
        one(
            &engine(&docker),
            Level::Hint,
            &["not registered", "cgpu install --engine docker"],
        );
        let named = |standing| {
            Ok(vec![Named {
                file: "/etc/docker/daemon.json".to_owned(),
                program: "/usr/bin/cgpu-runtime".into(),
                standing,
            }])
        };
        docker.names = named(Standing::Absent);
        let parts = ["daemon.json", "/usr/bin/cgpu-runtime, which does not exist"];
        one(&engine(&docker), Level::Broken, &parts);
        docker.names = named(Standing::Untrusted("mode 777".to_owned()));
        one(&engine(&docker), Level::Broken, &["mode 777"]);
        docker.names = named(Standing::Fine);
        one(&engine(&docker), Level::Ok, &["runtime is registered"]);
        docker.unread = Some("systemctl reload docker".to_owned());
        one(
            &engine(&docker),
            Level::Hint,
            &["changed since", "systemctl reload docker"],
        );
        docker.names = Err("a comma".to_owned());
        one(&engine(&docker), Level::Hint, &["a comma"]);
    }
}
