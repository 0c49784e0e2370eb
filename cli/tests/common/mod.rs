//! What tests with real slices share.

use std::path::{Path, PathBuf};

/// A program of the same build as `cgpu`.
pub(crate) fn beside(name: &str) -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_cgpu")).with_file_name(name)
}

/// Whether a slice can be made here, with these programs; that it cannot is said aloud.
pub(crate) fn can_make_slices(test: &str, programs: &[&str]) -> bool {
    let absent = programs.iter().find(|name| !beside(name).is_file());
    let reason = if let Some(name) = absent {
        format!("{name} is not built beside cgpu")
    } else if !nix::unistd::geteuid().is_root() {
        "needs root".to_owned()
    } else if let Err(error) = sys::seccomp::supported() {
        format!("no seccomp user notification: {error}")
    } else {
        return true;
    };
    println!("SKIP: {test}: {reason}");
    false
}
