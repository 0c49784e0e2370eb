//! What real programs ask the driver, as tables in `data/programs`, and a player that makes their calls one by one.
//!
//! A table says which calls a program makes and with which parameters, from public traces and lists: data/README.md has the columns and the
//! sources. Played inside a slice it shows what of the program the slice refuses. The player makes the calls alone: it maps nothing that
//! the driver has made ready for a mapping, and rings no doorbell.
//!
//! ```text
//!   Program::parse --play--> one Answer for each step; a step that fails is followed by the next one
//! ```

mod fields;
mod play;
mod table;

use std::fmt;

use nvabi::Release;
use rmclient::{Nodes, Status};

pub use table::{Action, Expected, Step, TableError};

/// Most steps of a table.
pub const MOST_STEPS: usize = 1024;

/// The tables, by name.
const TABLES: &[(&str, &str)] = &[
    ("cuInit", include_str!("../../data/programs/cuInit.tsv")),
    (
        "cuCtxCreate",
        include_str!("../../data/programs/cuCtxCreate.tsv"),
    ),
    (
        "cuMemAlloc",
        include_str!("../../data/programs/cuMemAlloc.tsv"),
    ),
    ("cuMemcpy", include_str!("../../data/programs/cuMemcpy.tsv")),
    ("cuMemMap", include_str!("../../data/programs/cuMemMap.tsv")),
    (
        "cuMemHostRegister",
        include_str!("../../data/programs/cuMemHostRegister.tsv"),
    ),
    ("ipc", include_str!("../../data/programs/ipc.tsv")),
    ("nccl", include_str!("../../data/programs/nccl.tsv")),
    ("nvml", include_str!("../../data/programs/nvml.tsv")),
];

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    name: String,
    after: Option<String>,
    steps: Vec<Step>,
}

/// What came of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// `NV_OK`, or an open file.
    Done,
    /// The driver's status, which is not `NV_OK`.
    Refused(Status),
    /// The call failed with this errno.
    Failed(i32),
    /// No step before it has made this.
    Unmade(String),
    /// The release has no such call, or the card no such class.
    Absent(String),
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => write!(f, "done"),
            Self::Refused(status) => write!(f, "{status}"),
            Self::Failed(errno) => write!(f, "errno {errno}"),
            Self::Unmade(name) => write!(f, "${name} was not made"),
            Self::Absent(what) => write!(f, "there is no {what}"),
        }
    }
}

impl Program {
    /// The names of all tables.
    pub fn names() -> impl Iterator<Item = &'static str> {
        TABLES.iter().map(|(name, _)| *name)
    }

    /// The table of a name; `None`: there is none.
    ///
    /// # Errors
    /// What is wrong with the table.
    #[must_use]
    pub fn named(name: &str) -> Option<Result<Self, TableError>> {
        let (name, text) = TABLES.iter().find(|(known, _)| *known == name)?;
        Some(Self::parse(name, text))
    }

    /// What it does.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The program whose calls come before these.
    #[must_use]
    pub fn after(&self) -> Option<&str> {
        self.after.as_deref()
    }

    /// Its calls, in order.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Makes every call of the programs before it, and then its own; the answers to its own, in order. A step that is refused is
    /// followed by the next one. `release` is that of the driver that the program was built for.
    ///
    /// # Errors
    /// What is wrong with the table of a program before it.
    pub fn play(&self, nodes: &Nodes, release: Release) -> Result<Vec<Answer>, TableError> {
        let mut before = Vec::new();
        let mut after = self.after.clone();
        while let Some(name) = after.take() {
            // A chain that is longer than the list of tables never ends.
            let program = match Self::named(&name) {
                Some(program) if before.len() < TABLES.len() => program?,
                Some(_) | None => return Err(TableError::NoProgram { name }),
            };
            after.clone_from(&program.after);
            before.push(program);
        }
        let mut player = play::Player::new(nodes, release);
        for program in before.iter().rev() {
            for step in &program.steps {
                player.play(step);
            }
        }
        Ok(self.steps.iter().map(|step| player.play(step)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_table_is_one_and_comes_after_one() {
        for name in Program::names() {
            let program = Program::named(name).unwrap().unwrap();
            assert!(!program.steps().is_empty(), "{name}");
            let before = program
                .after()
                .map(|before| Program::named(before).is_some());
            assert_ne!(before, Some(false), "{name}");
        }
    }

    #[test]
    fn without_a_driver_every_step_reports_what_it_lacks() {
        let empty = tempfile::tempdir().unwrap();
        let program = Program::named("cuInit").unwrap().unwrap();
        let answers = program
            .play(&Nodes::in_dir(empty.path()), Release::R570)
            .unwrap();
        assert_eq!(answers.len(), program.steps().len());
        assert_eq!(answers.first(), Some(&Answer::Failed(2)));
        assert!(!answers.contains(&Answer::Done));
    }

    proptest! {
        #[test]
        fn no_text_is_more_than_an_error(text in "(open|control|after|-|#|\t|\n|=|\\$a|0x|1..9|,|:|NV_ESC_RM_FREE|[ -~]){0,60}") {
            let _either = Program::parse("x", &format!("{}\n{text}", table::HEADING));
        }
    }
}
