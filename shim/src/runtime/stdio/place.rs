//! What an engine's stream name means. Decides only: nothing is opened here.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::runtime::logger::{Logger, Readiness, decoded};

/// What an engine's stream name means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    Nowhere,
    Fifo(PathBuf),
    File(PathBuf),
    Logger(Logger),
}

/// Reads the name that the engine gave for the stream `key`.
pub(super) fn place(key: &'static str, name: &str) -> Result<Place> {
    const ALLOWED: &str = "empty, the path of a FIFO, fifo://PATH, file://PATH, binary://PROGRAM or binary-v2://PROGRAM";
    let denied = || Error::Invalid {
        key,
        value: name.to_owned(),
        allowed: ALLOWED,
    };
    let (scheme, path) = name.split_once("://").unwrap_or(("fifo", name));
    let logger = |readiness| {
        Logger::parse(path, readiness)
            .map(Place::Logger)
            .ok_or_else(denied)
    };
    match scheme {
        "fifo" if name.is_empty() => Ok(Place::Nowhere),
        _ if !Path::new(path).is_absolute() => Err(denied()),
        "fifo" => Ok(Place::Fifo(path.into())),
        "file" => {
            // Clients write it as a URI.
            let path = path.split(['?', '#']).next().and_then(decoded);
            Ok(Place::File(path.ok_or_else(denied)?.into()))
        }
        "binary" => logger(Readiness::Closed),
        "binary-v2" => logger(Readiness::Reported),
        _ => Err(denied()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_name_is_a_fifo_a_file_or_nothing() {
        assert_eq!(place("stdout", "").unwrap(), Place::Nowhere);
        assert_eq!(
            place("stdout", "/run/f").unwrap(),
            Place::Fifo("/run/f".into())
        );
        assert_eq!(
            place("stdout", "fifo:///run/f").unwrap(),
            Place::Fifo("/run/f".into())
        );
        assert_eq!(
            place("stdout", "file:///var/log/x").unwrap(),
            Place::File("/var/log/x".into())
        );
        assert_eq!(
            place("stdout", "file:///var/log/a%20b?x=1").unwrap(),
            Place::File("/var/log/a b".into())
        );
        for bad in [
            "relative",
            "file:///x%",
            "file://relative",
            "http://x",
            "npipe:///x",
            "binary://x",
        ] {
            let error = place("stdout", bad).unwrap_err().to_string();
            assert!(error.contains(bad) && error.contains("stdout"), "{error}");
        }
    }
}
