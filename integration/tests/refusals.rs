//! What a person reads when a container is refused, through each kind of engine: whole, whatever is in it.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use integration::command::capture;
use integration::matrix::{Ask, Container, Family, Frontend, ROWS, Row};
use integration::oci::OciRuntime;
use integration::packages::Suite;
use integration::programs::Programs;
use integration::skip;

/// Verbs of Go's fmt, one that takes a flag and one without a letter among them.
const WRONG: &str = "80% of %s %d 5%";

/// As the shim says it, and as the wrapper does, whose text no engine uses as a format.
const REPORTED: [&str; 2] = [r"80 percent of \x25s \x25d 5 percent", WRONG];

macro_rules! rows {
    ($($name:ident: $family:ident $suite:ident $oci:ident $frontend:ident;)*) => {
        $(#[test] fn $name() -> Result<()> {
            let row = Row {
                family: Family::$family,
                origin: Suite::$suite.into(),
                oci: OciRuntime::$oci,
                frontend: Frontend::$frontend,
            };
            per_cent_signs(stringify!($name), &row)
        })*
    };
}

rows! {
    per_cent_signs_through_ctr: Containerd Host HostRunc Shim;
    per_cent_signs_through_ctr_of_containerd_1_7: Containerd Trixie HostRunc Shim;
    per_cent_signs_through_docker: Docker Trixie HostRunc Shim;
    per_cent_signs_through_docker_and_the_wrapper: Docker Host HostRunc Wrapper;
    per_cent_signs_through_cri: Cri Host HostRunc Shim;
}

#[test]
fn every_program_answers_help_and_version_at_once() -> Result<()> {
    let programs = Programs::for_tests()?;
    for name in Programs::names() {
        for flag in ["--help", "--version"] {
            let reported = match (name, flag) {
                // Engines read the runtime's own answer.
                ("cgpu-runtime", _) => "runc",
                // A plugin's help is for those who type it behind kubectl.
                ("kubectl-cgpu", "--help") => "kubectl cgpu",
                (name, _) => name,
            };
            let mut command = Command::new(programs.program(name)?);
            let reply = capture(command.arg(flag), Duration::from_secs(20))?.success()?;
            ensure!(reply.stdout.contains(reported), "{name} {flag}: {reply:?}");
        }
    }
    // An input that is none is refused.
    for (name, arguments, part) in [
        ("cgpu-executor", &[][..], "not a listening socket"),
        ("cgpu-limits", &[], "EOF"),
        ("cgpu-hook", &["precreate"], "EOF"),
        (
            "containerd-shim-cgpu-v2",
            &["-namespace", "n", "-id", "i"],
            "listening socket",
        ),
    ] {
        let mut command = Command::new(programs.program(name)?);
        let reply = capture(command.args(arguments), Duration::from_secs(20))?.failure()?;
        ensure!(reply.contains(part), "{name}: {reply}");
    }
    Ok(())
}

fn per_cent_signs(test: &str, row: &Row) -> Result<()> {
    assert!(ROWS.contains(row), "{} is no row", row.key());
    if let Some(reason) = skip::lacks_root() {
        skip!(test, "{reason}");
    }
    let engine = match row.open(Programs::for_tests()?)? {
        Ok(engine) => engine,
        Err(absent) => skip!(test, "{}", absent.reason),
    };
    let container = Container {
        ask: Ask::Wrong(WRONG),
        ..Container::waiting("refused")
    };
    let reported = match engine.start(&container) {
        Err(error) => format!("{error:#}"),
        Ok(()) => bail!("{WRONG:?} was taken for an amount"),
    };
    // A client may quote the text once more.
    let plain = reported.replace(r"\\", r"\");
    ensure!(!reported.contains("%!"), "{reported}");
    ensure!(
        REPORTED.iter().any(|text| plain.contains(text)),
        "{reported}"
    );
    engine.remove_all()?;
    engine.finish()
}
