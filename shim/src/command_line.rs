//! containerd's command line: Go flags (`-id x`, `--id=x`), then a verb. clap does not read these.

use std::ffi::OsString;
use std::path::PathBuf;

use containerd_shim_protos::bootstrap_api::{BootstrapParams, LogLevel};
use protobuf::Enum;

use crate::error::{Error, Result};

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// `-help`: what this program is, for a person.
    Help,
    /// `-v`
    Version,
    /// `-info`
    Info,
    /// `start`: have a server, reply with its address.
    Start,
    /// `delete`: clean up after a shim that is gone.
    Delete,
    /// No verb: be the server.
    Serve,
}

/// The command line, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Invocation {
    /// What to do.
    pub(crate) action: Action,
    /// `-namespace`
    pub(crate) namespace: String,
    /// `-id`: the container, or the sandbox.
    pub(crate) id: String,
    /// `-address`: containerd's gRPC socket.
    pub(crate) address: String,
    /// `-bundle`: for `delete`; otherwise the working directory is the bundle.
    pub(crate) bundle: Option<PathBuf>,
    /// `-debug`
    pub(crate) verbosity: Verbosity,
}

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verbosity {
    /// Information, warnings and errors.
    Normal,
    /// Everything.
    Debug,
}

fn wrong(text: String) -> Error {
    Error::CommandLine(text)
}

impl Invocation {
    /// Reads the arguments after the program's name.
    pub(crate) fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Self> {
        let mut read = Self {
            action: Action::Serve,
            namespace: String::new(),
            id: String::new(),
            address: String::new(),
            bundle: None,
            verbosity: Verbosity::Normal,
        };
        let mut arguments = arguments.map(|raw| {
            raw.into_string()
                .map_err(|raw| wrong(format!("{} is not UTF-8", raw.to_string_lossy())))
        });
        while let Some(argument) = arguments.next().transpose()? {
            let Some(flag) = argument
                .strip_prefix("--")
                .or_else(|| argument.strip_prefix('-'))
            else {
                read.action = verb(&argument)?;
                continue;
            };
            let (name, inline) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (flag, None),
            };
            let mut value = || match inline.clone() {
                Some(value) => Ok(value),
                None => arguments
                    .next()
                    .unwrap_or_else(|| Err(wrong(format!("-{name} needs a value")))),
            };
            match name {
                "h" | "help" => read.action = Action::Help,
                "v" | "version" => read.action = Action::Version,
                "info" => read.action = Action::Info,
                "debug" if inline.as_deref() != Some("false") => read.verbosity = Verbosity::Debug,
                "debug" => {}
                "namespace" => read.namespace = value()?,
                "id" => read.id = value()?,
                "address" => read.address = value()?,
                "bundle" => {
                    read.bundle = Some(value()?)
                        .filter(|path| !path.is_empty())
                        .map(PathBuf::from)
                }
                // Events go over TTRPC_ADDRESS; the socket is ours to choose.
                "publish-binary" | "socket" => drop(value()?),
                _ => return Err(wrong(format!("unknown flag -{name}"))),
            }
        }
        read.checked()
    }

    fn checked(self) -> Result<Self> {
        let needed = match self.action {
            // What `start` is for may be on its standard input.
            Action::Help | Action::Version | Action::Info | Action::Start => return Ok(self),
            Action::Delete | Action::Serve => [("namespace", &self.namespace), ("id", &self.id)],
        };
        present(&needed)?;
        Ok(self)
    }

    /// What the parameters on standard input say comes in place of flags that are not given: containerd means to leave
    /// these out one day.
    pub(crate) fn completed(mut self, params: Option<&BootstrapParams>) -> Result<Self> {
        if let Some(params) = params {
            let flags = [
                (&mut self.namespace, &params.namespace),
                (&mut self.id, &params.instance_id),
                (&mut self.address, &params.containerd_grpc_address),
            ];
            for (flag, param) in flags {
                if flag.is_empty() {
                    flag.clone_from(param);
                }
            }
            if params.log_level.value() <= LogLevel::LOG_LEVEL_DEBUG.value() {
                self.verbosity = Verbosity::Debug;
            }
        }
        present(&[("namespace", &self.namespace), ("id", &self.id)])?;
        Ok(self)
    }
}

fn present(needed: &[(&str, &String)]) -> Result<()> {
    match needed.iter().find(|(_, value)| value.is_empty()) {
        Some((name, _)) => Err(wrong(format!("-{name} is missing"))),
        None => Ok(()),
    }
}

fn verb(argument: &str) -> Result<Action> {
    match argument {
        "start" => Ok(Action::Start),
        "delete" => Ok(Action::Delete),
        _ => Err(wrong(format!(
            "unknown command {argument:?}: allowed are start and delete"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Invocation> {
        Invocation::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn the_lines_that_containerd_sends_are_read() {
        let start = parse(
            "-namespace default -address /run/c.sock -publish-binary /usr/bin/containerd -id a -debug start",
        );
        let start = start.unwrap();
        assert_eq!(
            (start.action, start.verbosity),
            (Action::Start, Verbosity::Debug)
        );
        assert_eq!(
            (start.namespace.as_str(), start.id.as_str()),
            ("default", "a")
        );
        let delete =
            parse("--namespace=k8s.io --id=b -address x -publish-binary y -bundle /b delete")
                .unwrap();
        assert_eq!(
            (delete.action, delete.bundle),
            (Action::Delete, Some("/b".into()))
        );
        for (line, action) in [
            ("-v", Action::Version),
            ("--version", Action::Version),
            ("--help", Action::Help),
        ] {
            assert_eq!(parse(line).unwrap().action, action);
        }
        assert_eq!(parse("-info").unwrap().action, Action::Info);
        assert_eq!(
            parse("-namespace n -id i -address a").unwrap().action,
            Action::Serve
        );
        assert_eq!(
            parse("-namespace n -id i -debug=false").unwrap().verbosity,
            Verbosity::Normal
        );
    }

    #[test]
    fn what_is_missing_or_unknown_is_named() {
        for (line, argument) in [
            ("delete", "-namespace"),
            ("-id x", "-namespace"),
            ("-x start", "-x"),
            ("-id", "-id"),
        ] {
            assert!(
                parse(line).unwrap_err().to_string().contains(argument),
                "{line}"
            );
        }
        assert!(
            parse("-namespace n -id i stop")
                .unwrap_err()
                .to_string()
                .contains("stop")
        );
    }
}
