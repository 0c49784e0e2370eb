//! What a check may ask of an engine.

use std::fmt;

use anyhow::Result;

use crate::command::Outcome;
use crate::node::Node;

use super::cri::Cri;

/// The engine's client has no word for what a check asks.
#[derive(Debug)]
pub struct Lacks(pub &'static str);

impl fmt::Display for Lacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Lacks {}

/// What a container asks of cgpu.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Ask {
    /// Nothing: a plain container.
    #[default]
    Nothing,
    /// So many GiB of one card, in the way that the engine offers.
    Gib(u32),
    /// An amount that is none, and is refused.
    Wrong(&'static str),
}

impl Ask {
    /// The amount of memory as an annotation has it.
    pub fn amount(self) -> Option<String> {
        match self {
            Self::Nothing => None,
            Self::Gib(gib) => Some(format!("{gib}Gi")),
            Self::Wrong(text) => Some(text.to_owned()),
        }
    }
}

/// When the engine itself starts a container again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Restarts {
    /// Not.
    #[default]
    Never,
    /// So many times, when its program failed.
    OnFailure(u32),
    /// Whenever it ended.
    Always,
}

/// A container to be started.
#[derive(Debug, Clone, Copy, Default)]
pub struct Container<'a> {
    /// Its name, unique on the engine.
    pub name: &'a str,
    /// What it asks of cgpu.
    pub ask: Ask,
    /// Its limit of host memory.
    pub memory_bytes: Option<u64>,
    /// Who starts it again.
    pub restarts: Restarts,
    /// A command whose success means that it is well.
    pub health: Option<&'a str>,
    /// What it runs.
    pub program: &'a [&'a str],
}

impl<'a> Container<'a> {
    /// One that runs `program` and asks for nothing.
    pub fn new(name: &'a str, program: &'a [&'a str]) -> Self {
        Self {
            name,
            program,
            ..Self::default()
        }
    }

    /// One that only waits.
    pub fn waiting(name: &'a str) -> Self {
        Self::new(name, &["sleep", "100000"])
    }

    /// With so many GiB of a card.
    pub fn gib(self, gib: u32) -> Self {
        Self {
            ask: Ask::Gib(gib),
            ..self
        }
    }
}

/// What an engine says a container uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Host memory in use.
    pub memory_bytes: u64,
    /// Its limit, where the engine tells one.
    pub limit_bytes: Option<u64>,
}

/// One running engine with one frontend into cgpu. What has a body here is what some clients lack.
pub trait Engine: Sync {
    /// The engine, its version and the OCI runtime's, as they say them themselves.
    fn title(&self) -> String;

    /// The node below it.
    fn node(&self) -> &Node;

    /// Process ids of its daemons.
    fn daemons(&self) -> Vec<u32>;

    /// Runs a container to its end in the foreground and removes it.
    fn once(&self, container: &Container<'_>) -> Result<Outcome>;

    /// Starts a container that stays.
    fn start(&self, container: &Container<'_>) -> Result<()>;

    /// Runs a program in a running container.
    fn exec(&self, name: &str, program: &[&str]) -> Result<Outcome>;

    /// The same in a terminal.
    fn exec_in_terminal(&self, name: &str, program: &[&str]) -> Result<Outcome>;

    /// What its program has printed, both streams.
    fn logs(&self, name: &str) -> Result<String>;

    /// What it uses.
    fn usage(&self, name: &str) -> Result<Usage>;

    /// Waits for the end of its program: the exit code. The container is to be removed next.
    fn end_of(&self, name: &str) -> Result<i32>;

    /// Whether it runs.
    fn runs(&self, name: &str) -> Result<bool>;

    /// Removes it by force.
    fn remove(&self, name: &str) -> Result<()>;

    /// Removes every container.
    fn remove_all(&self) -> Result<()>;

    /// SIGKILL to the engine's daemon, and a new one on the same state.
    fn crash_and_restart(&mut self) -> Result<()>;

    /// Ends the engine and the node; fails when anything is left.
    fn finish(self: Box<Self>) -> Result<()>;

    /// Its processes, one line each.
    fn processes(&self, _name: &str) -> Result<String> {
        Err(Lacks("its client lists no processes").into())
    }

    /// Freezes it.
    fn pause(&self, _name: &str) -> Result<()> {
        Err(Lacks("its client has no pause").into())
    }

    /// Lets it go on.
    fn resume(&self, _name: &str) -> Result<()> {
        Err(Lacks("its client has no pause").into())
    }

    /// Sets its limit of host memory.
    fn set_memory(&self, _name: &str, _bytes: u64) -> Result<()> {
        Err(Lacks("its client has no update").into())
    }

    /// Its limit of host memory now.
    fn limit(&self, name: &str) -> Result<Option<u64>> {
        Ok(self.usage(name)?.limit_bytes)
    }

    /// Sends a signal to its first process.
    fn signal(&self, _name: &str, _signal: &str) -> Result<()> {
        Err(Lacks("its client sends no signal of one's choice").into())
    }

    /// Stops it as a user does, without waiting for its program's own end, and starts it again.
    fn restart(&self, _name: &str) -> Result<()> {
        Err(Lacks("its client has no restart").into())
    }

    /// How often the engine itself has started it again.
    fn restarted(&self, _name: &str) -> Result<u32> {
        Err(Lacks("it has no restart policy").into())
    }

    /// Waits for the first judgement of its health check: whether it is well.
    fn healthy(&self, _name: &str) -> Result<bool> {
        Err(Lacks("it has no health checks").into())
    }

    /// Waits until the engine has told that the kernel killed it for want of memory, or its end was told without.
    fn oom_killed(&self, name: &str) -> Result<bool>;

    /// Ends the engine's daemon as an upgrade does, and starts it again; containers run on.
    fn stop_and_start(&mut self) -> Result<()> {
        Err(Lacks("it has no live-restore: see the restart of the engine").into())
    }

    /// The exit codes of a program that is not there and of one that is no program, where the engine's client has agreed
    /// ones.
    fn codes_of_no_program(&self) -> Option<(i32, i32)> {
        None
    }

    /// Whether all that a program has printed arrives when it ends at once.
    fn reads_on_after_the_end(&self) -> bool {
        true
    }

    /// What serves pods.
    fn pods(&mut self) -> Result<&mut Cri> {
        Err(Lacks("it has no pods").into())
    }
}

/// Clients that end with 1 whatever the code of an exec's program was, and tell that in words.
pub(super) fn reported_code(mut reply: Outcome) -> Outcome {
    let reported = |text: &str| {
        let (_, rest) = ["exit code ", "exited with "]
            .iter()
            .find_map(|before| text.rsplit_once(before))?;
        rest.split(|c: char| !c.is_ascii_digit())
            .next()?
            .parse()
            .ok()
    };
    if !reply.succeeded() {
        // In a terminal both streams are one.
        let code = reported(&reply.stderr).or_else(|| reported(&reply.stdout));
        reply.code = code.or(reply.code);
    }
    reply
}
