//! runc's command line, as far as it must be understood to find subcommand, bundle and container.
//!
//! Options that take a value must be known, or a value would be taken for the container's name. The tables are of
//! runc 1.3; an option that is not in them is refused where it matters (create, run, exec) unless it brings its value along
//! (`--option=value`). Options are written with one dash or two, as runc's parser allows.

use std::ffi::OsString;
use std::path::PathBuf;

/// What a command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    /// `--root`, the folder of the engine's namespace.
    pub root: Option<PathBuf>,
    /// `--log`
    pub log: Option<PathBuf>,
    /// `--log-format`
    pub log_format: Option<String>,
    /// What to do.
    pub subcommand: Subcommand,
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
        /// When runc's process ends.
        ends: Ends,
        /// How far it takes the container.
        step: Step,
    },
    /// `exec`.
    Exec {
        /// The container.
        id: String,
        /// The file of the process spec, if there is one.
        process: Option<PathBuf>,
    },
    /// `delete`.
    Delete {
        /// The container.
        id: String,
    },
    /// Everything else.
    Other,
}

/// When runc's process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// Once the container is created: `create`, `run --detach`.
    AfterCreate,
    /// With the container, which is gone then: `run`.
    WithContainer,
}

/// How far the container is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// `create`: it waits to be started.
    Create,
    /// `run`: it runs.
    CreateAndStart,
}

/// Why a command line is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// An option that runc 1.3 does not have.
    #[error("unknown option {option} of {subcommand}: write --option=value if your runtime has it")]
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
    /// No container.
    #[error("{subcommand} names no container")]
    NoContainer {
        /// The subcommand.
        subcommand: String,
    },
}

struct Options {
    with_value: &'static [&'static str],
    alone: &'static [&'static str],
}

const GLOBAL: Options = Options {
    with_value: &["log", "log-format", "root", "criu", "rootless"],
    alone: &["debug", "systemd-cgroup", "help", "h", "version", "v"],
};

const CREATE: Options = Options {
    with_value: &[
        "bundle",
        "b",
        "console-socket",
        "pidfd-socket",
        "pid-file",
        "preserve-fds",
    ],
    alone: &[
        "no-pivot",
        "no-new-keyring",
        "no-subreaper",
        "detach",
        "d",
        "keep",
        "help",
        "h",
    ],
};

const EXEC: Options = Options {
    with_value: &[
        "console-socket",
        "pidfd-socket",
        "cwd",
        "env",
        "e",
        "user",
        "u",
        "additional-gids",
        "g",
        "process",
        "p",
        "pid-file",
        "process-label",
        "apparmor",
        "cap",
        "c",
        "preserve-fds",
        "cgroup",
    ],
    alone: &[
        "tty",
        "t",
        "detach",
        "d",
        "no-new-privs",
        "ignore-paused",
        "help",
        "h",
    ],
};

const DELETE: Options = Options {
    with_value: &[],
    alone: &["force", "f", "help", "h"],
};

/// Understands the arguments that follow the program's name.
///
/// # Errors
/// An option that is not known where it matters, or a missing value or container.
pub fn parse(arguments: &[OsString]) -> Result<Invocation, ParseError> {
    let words: Vec<String> = arguments
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let global = scan(&words, &GLOBAL, "the command line")?;
    let name = global.positional.unwrap_or_default();
    let rest = words.get(global.consumed..).unwrap_or_default();
    let subcommand = match name {
        "create" | "run" => {
            let scanned = scan(rest, &CREATE, name)?;
            if scanned.has(&["help", "h"]) {
                Subcommand::Other
            } else {
                let detached = name == "create" || scanned.has(&["detach", "d"]);
                Subcommand::Create {
                    id: scanned.container(name)?,
                    bundle: scanned.value(&["bundle", "b"]).map(PathBuf::from),
                    ends: if detached {
                        Ends::AfterCreate
                    } else {
                        Ends::WithContainer
                    },
                    step: if name == "create" {
                        Step::Create
                    } else {
                        Step::CreateAndStart
                    },
                }
            }
        }
        "exec" => {
            let scanned = scan(rest, &EXEC, name)?;
            if scanned.has(&["help", "h"]) {
                Subcommand::Other
            } else {
                Subcommand::Exec {
                    id: scanned.container(name)?,
                    process: scanned.value(&["process", "p"]).map(PathBuf::from),
                }
            }
        }
        // runc itself judges the rest; without a container there is nothing to release.
        "delete" => match scan(rest, &DELETE, name).and_then(|scanned| scanned.container(name)) {
            Ok(id) => Subcommand::Delete { id },
            Err(_) => Subcommand::Other,
        },
        _ => Subcommand::Other,
    };
    Ok(Invocation {
        root: global.value(&["root"]).map(PathBuf::from),
        log: global.value(&["log"]).map(PathBuf::from),
        log_format: global.value(&["log-format"]).map(str::to_owned),
        subcommand,
    })
}

/// Options up to the first word that is none.
struct Scanned<'a> {
    options: Vec<(&'a str, Option<&'a str>)>,
    positional: Option<&'a str>,
    /// How many words were read, the positional one included.
    consumed: usize,
}

impl<'a> Scanned<'a> {
    /// The last one holds, as in runc.
    fn value(&self, names: &[&str]) -> Option<&'a str> {
        self.options
            .iter()
            .rev()
            .find(|(name, _)| names.contains(name))
            .and_then(|(_, value)| *value)
    }

    fn has(&self, names: &[&str]) -> bool {
        self.options
            .iter()
            .any(|(name, value)| names.contains(name) && *value != Some("false"))
    }

    fn container(&self, subcommand: &str) -> Result<String, ParseError> {
        self.positional
            .map(str::to_owned)
            .ok_or_else(|| ParseError::NoContainer {
                subcommand: subcommand.to_owned(),
            })
    }
}

fn scan<'a>(
    words: &'a [String],
    known: &Options,
    subcommand: &str,
) -> Result<Scanned<'a>, ParseError> {
    let mut options = Vec::new();
    let mut at = 0;
    while let Some(word) = words.get(at) {
        at += 1;
        if word == "--" {
            return Ok(Scanned {
                options,
                positional: words.get(at).map(String::as_str),
                consumed: at + 1,
            });
        }
        let Some(option) = word
            .strip_prefix("--")
            .or_else(|| word.strip_prefix('-'))
            .filter(|option| !option.is_empty())
        else {
            return Ok(Scanned {
                options,
                positional: Some(word),
                consumed: at,
            });
        };
        if let Some((name, value)) = option.split_once('=') {
            options.push((name, Some(value)));
        } else if known.with_value.contains(&option) {
            let value = words.get(at).ok_or_else(|| ParseError::NoValue {
                option: word.clone(),
                subcommand: subcommand.to_owned(),
            })?;
            options.push((option, Some(value.as_str())));
            at += 1;
        } else if known.alone.contains(&option) {
            options.push((option, None));
        } else {
            return Err(ParseError::UnknownOption {
                option: word.clone(),
                subcommand: subcommand.to_owned(),
            });
        }
    }
    Ok(Scanned {
        options,
        positional: None,
        consumed: at,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Invocation, ParseError> {
        parse(
            &line
                .split_whitespace()
                .map(OsString::from)
                .collect::<Vec<_>>(),
        )
    }

    fn create(id: &str, bundle: Option<&str>) -> Subcommand {
        Subcommand::Create {
            id: id.to_owned(),
            bundle: bundle.map(PathBuf::from),
            ends: Ends::AfterCreate,
            step: Step::Create,
        }
    }

    fn run(id: &str, bundle: Option<&str>, ends: Ends) -> Subcommand {
        Subcommand::Create {
            id: id.to_owned(),
            bundle: bundle.map(PathBuf::from),
            ends,
            step: Step::CreateAndStart,
        }
    }

    #[test]
    fn what_engines_send_is_understood() {
        // docker 20.10 through containerd-shim-runc-v2.
        let invocation = parsed(
            "--root /var/run/docker/runtime-runc/moby --log /b/log.json --log-format json create --bundle /b --pid-file /b/init.pid --console-socket /tmp/pty.sock abc",
        )
        .unwrap();
        assert_eq!(
            invocation.root,
            Some("/var/run/docker/runtime-runc/moby".into())
        );
        assert_eq!(
            (invocation.log, invocation.log_format.as_deref()),
            (Some("/b/log.json".into()), Some("json"))
        );
        assert_eq!(invocation.subcommand, create("abc", Some("/b")));
        // conmon.
        assert_eq!(
            parsed(
                "--root=/run/runc --systemd-cgroup create --bundle=/b -no-pivot --pid-file /p abc"
            )
            .unwrap()
            .subcommand,
            create("abc", Some("/b"))
        );
        assert_eq!(
            parsed("--log l exec --process /tmp/p.json --detach --pid-file /p abc")
                .unwrap()
                .subcommand,
            Subcommand::Exec {
                id: "abc".to_owned(),
                process: Some("/tmp/p.json".into())
            }
        );
        assert_eq!(
            parsed("exec -t -e A=b -u 0:0 abc sh -p 1")
                .unwrap()
                .subcommand,
            Subcommand::Exec {
                id: "abc".to_owned(),
                process: None
            }
        );
        assert_eq!(
            parsed("delete --force abc").unwrap().subcommand,
            Subcommand::Delete {
                id: "abc".to_owned()
            }
        );
        assert_eq!(
            parsed("run abc").unwrap().subcommand,
            run("abc", None, Ends::WithContainer)
        );
        assert_eq!(
            parsed("run -d -b . abc").unwrap().subcommand,
            run("abc", Some("."), Ends::AfterCreate)
        );
        assert_eq!(
            parsed("run --detach=false abc").unwrap().subcommand,
            run("abc", None, Ends::WithContainer)
        );
        assert_eq!(
            parsed("create -- -abc").unwrap().subcommand,
            create("-abc", None)
        );
    }

    #[test]
    fn everything_else_is_runc_s() {
        for line in [
            "",
            "--version",
            "state abc",
            "kill --all abc 9",
            "events --stats abc",
            "features",
            "create --help",
            "delete",
            "delete --unknown abc",
            "start abc",
        ] {
            assert_eq!(
                parsed(line).unwrap().subcommand,
                Subcommand::Other,
                "{line}"
            );
        }
    }

    #[test]
    fn a_value_is_never_taken_for_the_container() {
        assert!(matches!(
            parsed("create --future value abc"),
            Err(ParseError::UnknownOption { .. })
        ));
        assert!(matches!(
            parsed("--future value create abc"),
            Err(ParseError::UnknownOption { .. })
        ));
        assert_eq!(
            parsed("create --future=value abc").unwrap().subcommand,
            create("abc", None)
        );
        assert!(matches!(
            parsed("create --bundle"),
            Err(ParseError::NoValue { .. })
        ));
        assert!(matches!(
            parsed("create --bundle /b"),
            Err(ParseError::NoContainer { .. })
        ));
    }
}
