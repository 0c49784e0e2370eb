//! The runtime's own command line, as far as it must be understood to find subcommand, bundle and container.
//!
//! Options that take a value must be known, or a value would be taken for the container's name. The tables are of runc 1.3
//! and crun 1.21, in one: an option that is not in them is refused where it matters (create, run, restore, checkpoint, exec)
//! unless it brings its value along (`--option=value`). How an option is spelled, and whether one may be behind the container's name,
//! depends on who parses it: [`Spelling`].

mod options;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use self::options::{
    CHECKPOINT, CREATE, DELETE, EXEC, FDS_MAX, GLOBAL, HELP, RESTORE, Scanned, UPDATE, scan,
};

/// What a command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    /// `--root`, the folder of the engine's namespace.
    pub root: Option<PathBuf>,
    /// How many words the global options are.
    pub global_arguments: usize,
    /// What to do.
    pub subcommand: Subcommand,
}

/// Where a runtime's errors go, by its global options.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Logging {
    /// `--log`
    pub log: Option<PathBuf>,
    /// `--log-format`
    pub log_format: Option<String>,
}

/// The subcommands that concern a vGPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subcommand {
    /// `create` and `run`.
    Create {
        /// The container.
        id: String,
        /// Its bundle; absent: the current folder.
        bundle: Option<PathBuf>,
        /// How far it takes the container.
        step: Step,
        /// `--pid-file`
        pid_file: Option<PathBuf>,
        /// `--preserve-fds`
        preserved_fds: u32,
    },
    /// `restore`, from a checkpoint.
    Restore {
        /// The bundle; absent: the current folder.
        bundle: Option<PathBuf>,
    },
    /// `checkpoint`.
    Checkpoint {
        /// The container.
        id: String,
    },
    /// `start`.
    Start {
        /// The container.
        id: String,
    },
    /// `exec`.
    Exec {
        /// The container.
        id: String,
        /// The file of the process spec, if there is one.
        process: Option<FileOption>,
        /// `--cap`: what the process may do beyond the container's own.
        capabilities: Vec<String>,
        /// `--detach`: the runtime ends before its process. Absent: behind it.
        detached: Option<Detached>,
        /// `--preserve-fds`
        preserved_fds: u32,
    },
    /// `delete`.
    Delete {
        /// Which containers.
        which: Deleted,
    },
    /// `update`.
    Update {
        /// The container.
        id: String,
        /// The file of its new resources; `-` is standard input.
        resources: Option<FileOption>,
    },
    /// Everything else.
    Other,
}

impl Subcommand {
    /// The container that it is about, if that is there already.
    #[must_use]
    pub fn container(&self) -> Option<&str> {
        match self {
            Self::Checkpoint { id }
            | Self::Start { id }
            | Self::Exec { id, .. }
            | Self::Update { id, .. }
            | Self::Delete {
                which: Deleted::One(id),
            } => Some(id),
            Self::Create { .. }
            | Self::Restore { .. }
            | Self::Delete {
                which: Deleted::ByPattern,
            }
            | Self::Other => None,
        }
    }
}

/// What `delete` removes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deleted {
    /// One container.
    One(String),
    /// Those that crun's regular expression fits.
    ByPattern,
}

/// How far the container is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// `create`: it waits to be started.
    Create,
    /// `run`: it runs.
    CreateAndStart,
}

/// How the runtime's parser reads options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// runc's, of Go: one dash is as good as two, and names are written out.
    Go,
    /// crun's, of the C library: one dash is for letters, which may stand together with their value (`-b/bundle`), and long
    /// names may be cut as long as one fits.
    C,
}

impl Spelling {
    /// By the program's name: there is no runtime that says whose parser it has.
    #[must_use]
    pub fn of(runtime: &Path) -> Self {
        let name = runtime.file_name().unwrap_or_default().to_string_lossy();
        if name.contains("crun") {
            Self::C
        } else {
            Self::Go
        }
    }
}

/// Why a command line is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// An option that neither runc 1.3 nor crun 1.21 has.
    #[error(
        "unknown option {option} of {subcommand}: write it out, as --option=value if it has a value"
    )]
    UnknownOption {
        /// The option.
        option: String,
        /// Where it stands.
        subcommand: String,
    },
    /// An option without its value.
    #[error("option {option} of {subcommand} lacks its value")]
    NoValue {
        /// The option.
        option: String,
        /// Where it stands.
        subcommand: String,
    },
    /// A value that is no number of descriptors.
    #[error("--preserve-fds = {value:?} of {subcommand}: allowed are 0 to {FDS_MAX}")]
    NotFds {
        /// The value.
        value: String,
        /// Where it stands.
        subcommand: String,
    },
    /// A spec of another name.
    #[error(
        "--config = {value:?} of {subcommand}: allowed is config.json, which alone is edited for a vGPU"
    )]
    OtherConfig {
        /// The value.
        value: String,
        /// Where it stands.
        subcommand: String,
    },
    /// No container.
    #[error("{subcommand} names no container")]
    NoContainer {
        /// The subcommand.
        subcommand: String,
    },
}

/// An option that names a JSON file: `--process` of an exec, `--resources` of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileOption {
    /// The file.
    pub file: PathBuf,
    /// `--process` or `-p`, say: runc takes one of both alone.
    pub name: String,
    /// Where another one may be put: behind so many words of the command line.
    pub options_end: usize,
}

impl FileOption {
    fn of(scanned: &Scanned<'_>, names: [&str; 2], before: usize) -> Option<Self> {
        let (name, file) = scanned.named_value(&names)?;
        let dashes = if name.len() == 1 { "-" } else { "--" };
        Some(Self {
            file: PathBuf::from(file),
            name: format!("{dashes}{name}"),
            options_end: before + scanned.options_end,
        })
    }

    /// The command line with another file: of several the last one holds.
    #[must_use]
    pub fn replaced(&self, arguments: &[OsString], file: PathBuf) -> Vec<OsString> {
        with_option(
            arguments,
            self.options_end,
            [OsString::from(&self.name), file.into()],
        )
    }
}

/// `--detach` of an exec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detached {
    /// `--pid-file`
    pub pid_file: Option<PathBuf>,
    /// So many words of the command line are before the container's name.
    pub options_end: usize,
}

impl Detached {
    /// The command line with a file for the process.
    #[must_use]
    pub fn with_pid_file(&self, arguments: &[OsString], file: &Path) -> Vec<OsString> {
        with_option(
            arguments,
            self.options_end,
            [OsString::from("--pid-file"), file.into()],
        )
    }
}

fn with_option(arguments: &[OsString], at: usize, option: [OsString; 2]) -> Vec<OsString> {
    let mut all = arguments.to_vec();
    let at = at.min(all.len());
    all.splice(at..at, option);
    all
}

/// Where the errors of this command line go. Read before anything else, so that a wrong configuration is reported there too;
/// what is not understood is passed over.
#[must_use]
pub fn logging(arguments: &[OsString]) -> Logging {
    let arguments = to_text(arguments);
    let scanned = match scan(&arguments, &GLOBAL, Spelling::Go, "the command line") {
        Ok(scanned) => scanned,
        Err(_unknown) => return Logging::default(),
    };
    Logging {
        log: scanned.value(&["log"]).map(PathBuf::from),
        log_format: scanned.value(&["log-format"]).map(str::to_owned),
    }
}

/// Understands the arguments that follow the program's name.
///
/// # Errors
/// An option that is not known where it matters, or a missing value or container.
pub fn parse(arguments: &[OsString], spelling: Spelling) -> Result<Invocation, ParseError> {
    let arguments = to_text(arguments);
    let global = scan(&arguments, &GLOBAL, spelling, "the command line")?;
    let rest = arguments.get(global.consumed..).unwrap_or_default();
    Ok(Invocation {
        root: global.value(&["root"]).map(PathBuf::from),
        global_arguments: global.consumed - usize::from(global.positional.is_some()),
        subcommand: match global.positional {
            Some(name) => subcommand(name, (rest, global.consumed), spelling)?,
            None => Subcommand::Other,
        },
    })
}

/// `rest`: what follows it, and how many words are before that.
fn subcommand(
    name: &str,
    (rest, before): (&[String], usize),
    spelling: Spelling,
) -> Result<Subcommand, ParseError> {
    let known = match name {
        "create" | "run" => &CREATE,
        "restore" => &RESTORE,
        "checkpoint" => &CHECKPOINT,
        "exec" => &EXEC,
        // The runtime itself judges what is wrong with these.
        "delete" => {
            return Ok(scan(rest, &DELETE, spelling, name).map_or(Subcommand::Other, delete));
        }
        "start" => return Ok(start(rest)),
        "update" => return Ok(update((rest, before), spelling)),
        _ => return Ok(Subcommand::Other),
    };
    let scanned = scan(rest, known, spelling, name)?;
    if scanned.has(&HELP) {
        return Ok(Subcommand::Other);
    }
    let bundle = scanned.value(&["bundle", "b"]).map(PathBuf::from);
    let options_end = before + scanned.options_end;
    Ok(match name {
        "restore" => Subcommand::Restore { bundle },
        "checkpoint" => Subcommand::Checkpoint {
            id: scanned.container()?,
        },
        "exec" => Subcommand::Exec {
            id: scanned.container()?,
            process: FileOption::of(&scanned, ["process", "p"], before),
            capabilities: scanned.values(&["cap", "c"]),
            detached: scanned.has(&["detach", "d"]).then(|| Detached {
                pid_file: scanned.pid_file(),
                options_end,
            }),
            preserved_fds: scanned.preserved_fds()?,
        },
        _ => create(&scanned, bundle)?,
    })
}

fn to_text(arguments: &[OsString]) -> Vec<String> {
    arguments
        .iter()
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect()
}

fn create(scanned: &Scanned<'_>, bundle: Option<PathBuf>) -> Result<Subcommand, ParseError> {
    if let Some(value) = scanned.value(&["config", "f"])
        && value != "config.json"
    {
        return Err(ParseError::OtherConfig {
            value: value.to_owned(),
            subcommand: scanned.subcommand.to_owned(),
        });
    }
    Ok(Subcommand::Create {
        id: scanned.container()?,
        bundle,
        step: if scanned.subcommand == "create" {
            Step::Create
        } else {
            Step::CreateAndStart
        },
        pid_file: scanned.pid_file(),
        preserved_fds: scanned.preserved_fds()?,
    })
}

/// It has no options of its own.
fn start(rest: &[String]) -> Subcommand {
    match rest {
        [id] if !id.starts_with('-') => Subcommand::Start { id: id.clone() },
        _ => Subcommand::Other,
    }
}

/// With an option that is not known here the last word counts.
fn update((rest, before): (&[String], usize), spelling: Spelling) -> Subcommand {
    let scanned = scan(rest, &UPDATE, spelling, "update");
    let (id, resources) = match &scanned {
        Ok(scanned) => (
            scanned.positional,
            FileOption::of(scanned, ["resources", "r"], before),
        ),
        Err(_unknown) => (rest.last().map(String::as_str), None),
    };
    match id {
        Some(id) if !id.starts_with('-') => Subcommand::Update {
            id: id.to_owned(),
            resources,
        },
        _ => Subcommand::Other,
    }
}

/// Without a container there is nothing to release.
fn delete(scanned: Scanned<'_>) -> Subcommand {
    let which = match scanned.positional {
        _ if scanned.has(&["regex", "r"]) => Deleted::ByPattern,
        Some(id) => Deleted::One(id.to_owned()),
        None => return Subcommand::Other,
    };
    Subcommand::Delete { which }
}

#[cfg(test)]
mod tests;
