//! A hostile tenant → program `cgpu-tenant`: one attack a subcommand, each against whatever is between a container
//! and the card.
//!
//! ```text
//! cgpu-tenant ATTACK --quota BYTES --out DIR [--client HANDLE --memory HANDLE]
//!     attack ──▶ DIR/report.json, holding what it got ──▶ waits for DIR/go ──▶ end
//! ```
//!
//! A tenant tells what it was answered; whether that was right is judged outside, by the card's own account, while the
//! tenant still holds what it got. So this crate must not know brokers, ledgers or quotas beyond the number that it tries
//! to exceed, and it judges nothing.
//!
//! It is an attacker, and calls the kernel as no wrapper lets it: `kernel` is the only module with unsafe code.

pub mod attacks;
mod busy;
mod capabilities;
mod child;
mod kernel;
mod neighbour;
mod pace;
mod seat;
mod tally;

pub use attacks::{ATTACKS, NOT_ALONE};

use std::any::Any;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// One attack.
#[derive(Clone, Copy)]
pub struct Attack {
    /// The subcommand.
    pub name: &'static str,
    /// What it does; what it got stays with the stage.
    pub run: fn(&mut Fixture) -> Result<Value>,
}

/// What an attack is given, and where it leaves what it holds.
#[derive(Debug)]
pub struct Fixture {
    /// The slice that the attack tries to exceed, bytes.
    pub quota_bytes: u64,
    /// Handles of another container's client and memory, where the attack is told them.
    pub foreign: Option<(u32, u32)>,
    /// Where reports go; also in other containers of the attacker.
    pub out: PathBuf,
    held: Vec<Box<dyn Any + Send>>,
    children: Vec<Pid>,
}

impl Fixture {
    /// Keeps something until the attack has been judged.
    pub fn keep(&mut self, thing: impl Any + Send) {
        self.held.push(Box::new(thing));
    }

    /// Keeps a child until then; it is killed after.
    pub fn keep_child(&mut self, child: Pid) {
        self.children.push(child);
    }
}

/// Runs the program with its arguments.
///
/// # Errors
/// Bad arguments, or an attack that could not be tried.
pub fn run(arguments: impl Iterator<Item = String>) -> Result<ExitCode> {
    let mut arguments = arguments;
    let name = arguments.next().context("no attack is named")?;
    let mut fixture = Fixture {
        quota_bytes: 0,
        foreign: None,
        out: PathBuf::new(),
        held: Vec::new(),
        children: Vec::new(),
    };
    let (mut client, mut memory) = (None, None);
    while let Some(option) = arguments.next() {
        let value = arguments
            .next()
            .with_context(|| format!("{option} needs a value"))?;
        let number = || {
            value
                .parse::<u64>()
                .with_context(|| format!("{option} {value}: not a number"))
        };
        match option.as_str() {
            "--quota" => fixture.quota_bytes = number()?,
            "--out" => fixture.out = PathBuf::from(&value),
            "--client" => client = Some(u32::try_from(number()?)?),
            "--memory" => memory = Some(u32::try_from(number()?)?),
            other => bail!("{other}: one of --quota, --out, --client, --memory"),
        }
    }
    fixture.foreign = client.zip(memory);
    if let Some(code) = child::disguised(&name, &fixture)? {
        return Ok(code);
    }
    match name.as_str() {
        "neighbour" => return neighbour::run(&fixture),
        "busy" => return busy::run(&fixture),
        "busy-other" => return busy::answer(),
        _ => {}
    }
    let attack = ATTACKS
        .iter()
        .find(|attack| attack.name == name)
        .with_context(|| format!("{name}: no such attack"))?;
    let facts = (attack.run)(&mut fixture);
    let document = match &facts {
        Ok(facts) => json!({"attack": name, "identity": identity(), "facts": facts}),
        Err(error) => {
            json!({"attack": name, "identity": identity(), "error": format!("{error:#}")})
        }
    };
    tell(&fixture.out, "report.json", &document)?;
    wait_for(&fixture.out.join("go"));
    for child in fixture.children.drain(..) {
        // It may have ended by itself.
        let _gone = kill(child, Signal::SIGKILL);
    }
    Ok(if facts.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Who the kernel says that we are.
fn identity() -> Value {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next().map(str::to_owned))
    };
    json!({"uid": field("Uid:"), "capabilities": field("CapEff:"), "no_new_privs": field("NoNewPrivs:")})
}

/// Puts a document in place as a whole.
fn tell(out: &Path, name: &str, document: &Value) -> Result<()> {
    let (new, path) = (out.join(format!("{name}.new")), out.join(name));
    std::fs::write(&new, document.to_string())
        .and_then(|()| std::fs::rename(&new, &path))
        .with_context(|| format!("write {}", path.display()))
}

/// The end is announced by a file, as a container's process has no other way that every engine gives it.
fn wait_for(file: &Path) {
    while !file.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
}
