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

    /// And that no container is in another state folder.
    const NONE: &str = "\"elsewhere\": []";

    /// `leave_host` with a `cgpu` that has no container, and whose list and uninstall report this. It has no doctor.
    fn leave_host(list: &str, uninstall: &str, force: &str) -> Output {
        let folder = tempfile::tempdir().unwrap();
        let program = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        };
        let cases = [
            ("ps--json", &*format!("\"vgpus\": [], {list}")),
            ("uninstall--dry-run", uninstall),
            ("uninstall", "done"),
        ];
        let cases = cases.map(|(of, reply)| format!("{of}) cat << 'EOF'\n{reply}\nEOF\n;;\n"));
        program("cgpu", &format!("case $1$2 in {} esac", cases.concat()));
        // The machine's own services are left alone.
        program("systemctl", "exit 1");
        let functions = format!("{REPOSITORY}/packaging/scripts/cgpu/functions");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("sh");
        command.args(["-ec", &format!(". {functions}; leave_host")]);
        command.env("PATH", format!("{}:{path}", folder.path().display()));
        command.env("CGPU_FORCE_REMOVE", force).output().unwrap()
    }

    #[test]
    fn a_package_that_an_engine_or_a_container_cannot_do_without_is_not_removed() {
        let by_hand = format!("FILE names PROGRAM; without cgpu's programs {NO_CONTAINER}");
        let elsewhere = NONE.replace("[]", "[\n\"/run/cgpu/vgpus/moby/1\"\n]");
        for (list, uninstall, part) in [
            (NONE, &*by_hand, &*by_hand),
            (&*elsewhere, "", "remove them first"),
            // What reports nothing of them has not looked.
            ("", "", "remove them first"),
        ] {
            let refused = leave_host(list, uninstall, "");
            let error = String::from_utf8_lossy(&refused.stderr).into_owned();
            let has_gone = refused.status.success() || !refused.stdout.is_empty();
            assert!(!has_gone, "{refused:?}");
            for part in [part, "CGPU_FORCE_REMOVE=1"] {
                assert!(error.contains(part), "{error}");
            }
        }
        for (list, uninstall, force) in [
            (NONE, "FILE names PROGRAM", ""),
            (&*elsewhere, &*by_hand, "1"),
        ] {
            let left = leave_host(list, uninstall, force);
            assert!(left.status.success(), "{left:?}");
            assert_eq!(left.stdout, b"done\n");
        }
        for (file, text) in [
            ("cli/src/commands/install/named.rs", NO_CONTAINER),
            ("view/src/ps.rs", "pub elsewhere: Option<Vec<PathBuf>>"),
        ] {
            let printing = fs::read_to_string(Path::new(REPOSITORY).join(file)).unwrap();
            assert!(printing.contains(text), "{file} prints {text:?}");
        }
    }

    /// `check_unused` of cgpu-sim, whose service runs, with this `cgpu`.
    fn check_unused(cgpu: Option<&str>, force: &str) -> Output {
        let folder = tempfile::tempdir().unwrap();
        let program = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        };
        program("systemctl", "exit 0");
        if let Some(text) = cgpu {
            program("cgpu", text);
        }
        let functions = format!("{REPOSITORY}/packaging/scripts/cgpu-sim/functions");
        let booted = folder.path().display().to_string();
        let functions = fs::read_to_string(functions).unwrap();
        let functions = functions.replace("/run/systemd/system", &booted);
        let mut command = Command::new("/bin/sh");
        command.args(["-ec", &format!("{functions}\ncheck_unused")]);
        command.env("PATH", folder.path());
        command.env("CGPU_FORCE_REMOVE", force).output().unwrap()
    }

    #[test]
    fn a_simulator_is_not_removed_while_it_is_unknown_whether_containers_have_its_cards() {
        for (cgpu, force, refused) in [
            (Some("echo moby/a"), "", Some("moby/a")),
            (
                Some("echo its TOML is wrong >&2; exit 1"),
                "",
                Some("wrong"),
            ),
            (Some("echo moby/a; exit 1"), "", Some("unknown what runs")),
            (Some("exit 1"), "1", None),
            (Some(""), "", None),
            (None, "", None),
        ] {
            let output = check_unused(cgpu, force);
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(
                output.status.success(),
                refused.is_none(),
                "{cgpu:?}: {error}"
            );
            for part in refused
                .into_iter()
                .flat_map(|part| [part, "CGPU_FORCE_REMOVE=1"])
            {
                assert!(error.contains(part), "{cgpu:?}: {error}");
            }
        }
    }
}
