//! Skipping aloud: a test that cannot run here says so, and the run counts it.

use std::fs::OpenOptions;
use std::io::Write;

/// Prints `SKIP: test: reason` and adds the line to the file that `CGPU_SKIPS` names.
pub fn record(test: &str, reason: &str) {
    let line = format!("SKIP: {test}: {}", reason.replace('\n', " "));
    // Straight to the terminal: the test runner keeps what a passing test prints.
    let written = writeln!(std::io::stderr().lock(), "{line}");
    if let Err(error) = written {
        println!("{line} ({error})");
    }
    if let Some(path) = std::env::var_os("CGPU_SKIPS") {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        if let Err(error) = file.and_then(|mut file| writeln!(file, "{line}")) {
            panic!("recording a skip in {}: {error}", path.display());
        }
    }
}

/// Skips the test that stands around it: `skip!("slices", "no containerd: {error:#}")`.
#[macro_export]
macro_rules! skip {
    ($test:expr, $($reason:tt)+) => {{
        $crate::skip::record($test, &format!($($reason)+));
        return Ok(());
    }};
}

/// Whether this machine can run engines at all: they need root. `None` when it can.
pub fn lacks_root() -> Option<&'static str> {
    (!nix::unistd::geteuid().is_root()).then_some("needs root")
}
