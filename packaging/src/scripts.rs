//! Maintainer scripts of a package, in `scripts/<package>`: what both package managers do is written once, in `functions`.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result};

/// What of a script is replaced by the functions.
const PLACE: &str = "#FUNCTIONS#\n";

/// Those of a deb: name and text.
pub(crate) fn debian(repository: &Path, package: &str) -> Result<Vec<(&'static str, String)>> {
    read(
        repository,
        package,
        "deb",
        &["preinst", "postinst", "prerm", "postrm"],
    )
}

/// Those of an rpm: section and text.
pub(crate) fn rpm(repository: &Path, package: &str) -> Result<Vec<(&'static str, String)>> {
    read(
        repository,
        package,
        "rpm",
        &["pre", "post", "preun", "postun"],
    )
}

/// Those of these names that the package has; none where it has no folder.
fn read(
    repository: &Path,
    package: &str,
    kind: &str,
    names: &[&'static str],
) -> Result<Vec<(&'static str, String)>> {
    let folder = repository.join("packaging/scripts").join(package);
    let text = |path: &Path| -> Result<Option<String>> {
        match fs::read_to_string(path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
        }
    };
    let functions = text(&folder.join("functions"))?.unwrap_or_default();
    let mut scripts = Vec::new();
    for name in names {
        if let Some(script) = text(&folder.join(kind).join(name))? {
            scripts.push((*name, script.replace(PLACE, &functions)));
        }
    }
    Ok(scripts)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Output};

    use super::*;

    const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    /// By what `leave_host` knows an engine that would start nothing.
    const NO_CONTAINER: &str = "the engine starts no container";

    /// `leave_host` with a `cgpu` that has no container and reports this of the engines.
    fn leave_host(report: &str, force: &str) -> Output {
        let folder = tempfile::tempdir().unwrap();
        let cgpu = folder.path().join("cgpu");
        let text = format!(
            "#!/bin/sh\ncase $* in\n'ps --json') echo '\"vgpus\": []' ;;\n*--dry-run) echo \"{report}\" ;;\nuninstall) echo done ;;\nesac\n"
        );
        fs::write(&cgpu, text).unwrap();
        fs::set_permissions(&cgpu, fs::Permissions::from_mode(0o755)).unwrap();
        let functions = format!("{REPOSITORY}/packaging/scripts/cgpu/functions");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("sh");
        command.args(["-ec", &format!(". {functions}; leave_host")]);
        command.env("PATH", format!("{}:{path}", folder.path().display()));
        command.env("CGPU_FORCE_REMOVE", force).output().unwrap()
    }

    #[test]
    fn a_package_that_an_engine_has_as_its_default_by_hand_is_not_removed() {
        let by_hand = format!("FILE names PROGRAM; without cgpu's programs {NO_CONTAINER}");
        let refused = leave_host(&by_hand, "");
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
        for part in [&*by_hand, "CGPU_FORCE_REMOVE=1"] {
            assert!(error.contains(part), "{error}");
        }
        for (report, force) in [("FILE names PROGRAM", ""), (&*by_hand, "1")] {
            let left = leave_host(report, force);
            assert!(left.status.success(), "{left:?}");
            assert_eq!(left.stdout, b"done\n");
        }
        let named = Path::new(REPOSITORY).join("cli/src/commands/install/named.rs");
        let printed = fs::read_to_string(named).unwrap();
        assert!(printed.contains(NO_CONTAINER), "what `cgpu uninstall` prints");
    }
}
