//! The options of runc 1.3 and crun 1.21, and how a word is taken apart.

use std::path::PathBuf;

use super::{ParseError, Spelling};

/// More than any engine passes on, and less than a kernel's limit.
pub(super) const FDS_MAX: u32 = 1 << 16;

/// What a subcommand knows besides [`HELP`]: names with a space between.
pub(super) struct Options {
    with_value: &'static str,
    alone: &'static str,
    behind: Behind,
}

/// What is behind the first word that is no option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behind {
    /// Another command's.
    Other,
    /// Go's programs read options there as well, up to `--`; crun takes no more than that word.
    Options,
}

pub(super) const GLOBAL: Options = Options {
    with_value: "log log-format log-level root criu rootless cgroup-manager",
    alone: "debug systemd-cgroup version v V",
    behind: Behind::Other,
};

pub(super) const CREATE: Options = Options {
    with_value: "bundle b config f console-socket pidfd-socket pid-file preserve-fds",
    alone: "no-pivot no-new-keyring no-subreaper detach d keep",
    behind: Behind::Options,
};

pub(super) const RESTORE: Options = Options {
    with_value: "bundle b console-socket image-path work-path pid-file manage-cgroups-mode empty-ns \
        lsm-profile lsm-mount-context",
    alone: "tcp-established ext-unix-sk shell-job file-locks detach d no-subreaper no-pivot \
        auto-dedup lazy-pages",
    behind: Behind::Options,
};

pub(super) const CHECKPOINT: Options = Options {
    with_value: "image-path work-path parent-path page-server status-fd manage-cgroups-mode \
        network-lock empty-ns",
    alone: "leave-running tcp-established tcp-skip-in-flight link-remap ext-unix-sk shell-job \
        lazy-pages file-locks pre-dump auto-dedup",
    behind: Behind::Options,
};

pub(super) const EXEC: Options = Options {
    with_value: "console-socket pidfd-socket cwd env e user u additional-gids g process p pid-file \
        process-label apparmor cap c preserve-fds cgroup",
    alone: "tty t detach d no-new-privs ignore-paused",
    behind: Behind::Other,
};

pub(super) const DELETE: Options = Options {
    with_value: "",
    alone: "force f regex r",
    behind: Behind::Options,
};

pub(super) const UPDATE: Options = Options {
    with_value: "resources r blkio-weight cpu-period cpu-quota cpu-burst cpu-share cpu-rt-period \
        cpu-rt-runtime cpu-idle cpuset-cpus cpuset-mems kernel-memory kernel-memory-tcp memory \
        memory-reservation memory-swap pids-limit l3-cache-schema mem-bw-schema",
    alone: "",
    behind: Behind::Options,
};

/// Known to every subcommand, and among the global options.
pub(super) const HELP: [&str; 4] = ["help", "h", "?", "usage"];

/// Options up to the first word that is none, or also those behind it ([`Behind`]).
#[derive(Default)]
pub(super) struct Scanned<'a> {
    /// Where they stand.
    pub(super) subcommand: &'a str,
    options: Vec<(&'a str, Option<&'a str>)>,
    pub(super) positional: Option<&'a str>,
    /// How many words were read, the positional one included.
    pub(super) consumed: usize,
    /// How many of them are options and their values.
    pub(super) options_end: usize,
}

impl<'a> Scanned<'a> {
    /// The last one holds, as in the runtimes.
    pub(super) fn value(&self, names: &[&str]) -> Option<&'a str> {
        Some(self.named_value(names)?.1)
    }

    /// [`Scanned::value`], and the name that was used.
    pub(super) fn named_value(&self, names: &[&str]) -> Option<(&'a str, &'a str)> {
        let mut options = self.options.iter().rev();
        let (name, value) = options.find(|(name, _)| names.contains(name))?;
        Some((*name, (*value)?))
    }

    /// All of them, for an option that may stand more than once.
    pub(super) fn values(&self, names: &[&str]) -> Vec<String> {
        self.options
            .iter()
            .filter(|(name, _)| names.contains(name))
            .filter_map(|(_, value)| value.map(str::to_owned))
            .collect()
    }

    pub(super) fn has(&self, names: &[&str]) -> bool {
        self.options
            .iter()
            .any(|(name, value)| names.contains(name) && *value != Some("false"))
    }

    pub(super) fn container(&self) -> Result<String, ParseError> {
        self.positional
            .map(str::to_owned)
            .ok_or_else(|| ParseError::NoContainer {
                subcommand: self.subcommand.to_owned(),
            })
    }

    pub(super) fn pid_file(&self) -> Option<PathBuf> {
        self.value(&["pid-file"]).map(PathBuf::from)
    }

    pub(super) fn preserved_fds(&self) -> Result<u32, ParseError> {
        let Some(value) = self.value(&["preserve-fds"]) else {
            return Ok(0);
        };
        value
            .parse()
            .ok()
            .filter(|count| *count <= FDS_MAX)
            .ok_or_else(|| ParseError::NotFds {
                value: value.to_owned(),
                subcommand: self.subcommand.to_owned(),
            })
    }
}

/// One option of a word.
enum Read<'a> {
    Whole(&'a str, Option<&'a str>),
    /// Its value is the next word.
    Needs(&'a str),
}

/// Reads options as the runtime's own parser does.
///
/// # Errors
/// An option that is not known, or lacks its value.
pub(super) fn scan<'a>(
    arguments: &'a [String],
    known: &Options,
    spelling: Spelling,
    subcommand: &'a str,
) -> Result<Scanned<'a>, ParseError> {
    let mut scanned = Scanned {
        subcommand,
        ..Scanned::default()
    };
    while let Some(argument) = arguments.get(scanned.consumed) {
        scanned.options_end = scanned.consumed;
        scanned.consumed += 1;
        if argument == "--" {
            if let (None, Some(word)) = (scanned.positional, arguments.get(scanned.consumed)) {
                scanned.positional = Some(word);
                scanned.consumed += 1;
            }
            break;
        }
        let read = match (argument.strip_prefix("--"), argument.strip_prefix('-')) {
            (None, None | Some("")) => {
                // Of several the runtime complains.
                scanned.positional.get_or_insert(argument);
                if known.behind == Behind::Other || spelling == Spelling::C {
                    break;
                }
                continue;
            }
            (None, Some(name)) if spelling == Spelling::C => letters(name, known),
            (Some(name), _) | (None, Some(name)) => {
                long(name, known, spelling).map(|read| vec![read])
            }
        };
        let read = read.ok_or_else(|| ParseError::UnknownOption {
            option: argument.clone(),
            subcommand: subcommand.to_owned(),
        })?;
        for option in read {
            match option {
                Read::Whole(name, value) => scanned.options.push((name, value)),
                Read::Needs(name) => {
                    let value =
                        arguments
                            .get(scanned.consumed)
                            .ok_or_else(|| ParseError::NoValue {
                                option: argument.clone(),
                                subcommand: subcommand.to_owned(),
                            })?;
                    scanned.options.push((name, Some(value.as_str())));
                    scanned.consumed += 1;
                }
            }
        }
        scanned.options_end = scanned.consumed;
    }
    Ok(scanned)
}

/// An option by its name. One that brings its value along need not be known.
fn long<'a>(argument: &'a str, known: &Options, spelling: Spelling) -> Option<Read<'a>> {
    let (name, value) = match argument.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (argument, None),
    };
    let full = match spelling {
        Spelling::Go => known.exactly(name),
        Spelling::C => known.exactly(name).or_else(|| known.beginning(name)),
    };
    match (full, value) {
        (full, Some(value)) => Some(Read::Whole(
            full.map_or(name, |(full, _)| full),
            Some(value),
        )),
        (Some((full, Takes::Value)), None) => Some(Read::Needs(full)),
        (Some((full, Takes::Nothing)), None) => Some(Read::Whole(full, None)),
        (None, None) => None,
    }
}

/// crun's `-t` may have a value, but only in the same word: what follows it there is not looked at.
const SWALLOWS: &str = "t";

/// Letters in one word, of which the last may have the rest of it as its value.
fn letters<'a>(argument: &'a str, known: &Options) -> Option<Vec<Read<'a>>> {
    let mut read = Vec::new();
    for (at, letter) in argument.char_indices() {
        let end = at + letter.len_utf8();
        let rest = argument.get(end..).filter(|rest| !rest.is_empty());
        match known.exactly(argument.get(at..end)?)? {
            (name, Takes::Value) => {
                read.push(match rest {
                    Some(value) => Read::Whole(name, Some(value)),
                    None => Read::Needs(name),
                });
                break;
            }
            (name, Takes::Nothing) => {
                read.push(Read::Whole(name, None));
                if name == SWALLOWS {
                    break;
                }
            }
        }
    }
    Some(read)
}

#[derive(Clone, Copy)]
enum Takes {
    Value,
    Nothing,
}

impl Options {
    fn all(&self) -> impl Iterator<Item = (&'static str, Takes)> {
        let with_value = self.with_value.split_whitespace();
        let alone = self.alone.split_whitespace().chain(HELP);
        with_value
            .map(|name| (name, Takes::Value))
            .chain(alone.map(|name| (name, Takes::Nothing)))
    }

    fn exactly(&self, name: &str) -> Option<(&'static str, Takes)> {
        self.all().find(|(known, _)| *known == name)
    }

    /// The only one that begins so.
    fn beginning(&self, name: &str) -> Option<(&'static str, Takes)> {
        let mut found = self
            .all()
            .filter(|(known, _)| known.len() > 1 && known.starts_with(name));
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }
}
