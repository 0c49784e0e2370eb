//! What an engine's stream name means. Decides only: nothing is opened here.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::runtime::logger::Logger;

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
    const ALLOWED: &str = "empty, the path of a FIFO, fifo://PATH, file://PATH or binary://PROGRAM";
    let denied = || Error::Invalid {
        key,
        value: name.to_owned(),
        allowed: ALLOWED,
    };
    let (scheme, path) = name.split_once("://").unwrap_or(("fifo", name));
    let path = Path::new(path);
    match scheme {
        "fifo" if name.is_empty() => Ok(Place::Nowhere),
        _ if !path.is_absolute() => Err(denied()),
        "fifo" => Ok(Place::Fifo(path.to_owned())),
        "file" => Ok(Place::File(path.to_owned())),
        "binary" => Logger::parse(name.strip_prefix("binary://").unwrap_or_default())
            .map(Place::Logger)
            .ok_or_else(denied),
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
        for bad in [
            "relative",
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
