//! Where engines look for a runtime's error: the file behind `--log`, else standard error.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use serde_json::json;

use crate::command_line::Logging;

/// Where the error goes.
#[derive(Debug, Default)]
pub struct ErrorLog {
    file: Option<PathBuf>,
    json: Format,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Format {
    #[default]
    Text,
    Json,
}

impl ErrorLog {
    /// What the caller asked for by `--log` and `--log-format`.
    #[must_use]
    pub fn of(logging: &Logging) -> Self {
        let json = if logging.log_format.as_deref() == Some("json") {
            Format::Json
        } else {
            Format::Text
        };
        Self {
            file: logging.log.clone(),
            json,
        }
    }

    /// Reports an error in runc's forms. Standard error gets it too: it is where people look.
    pub fn report(&self, message: &str) {
        let text = format!("cgpu-runtime: {message}");
        if let Some(path) = &self.file {
            let line = match self.json {
                Format::Json => json!({"level": "error", "msg": text}).to_string(),
                Format::Text => format!("level=error msg={text:?}"),
            };
            // If the log cannot be written, standard error has the message still.
            drop(
                OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(path)
                    .and_then(|mut file| writeln!(file, "{line}")),
            );
        }
        drop(writeln!(std::io::stderr(), "{text}"));
    }
}
