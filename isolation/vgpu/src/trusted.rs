//! Files that decide over every container: the runtime, the broker, the configuration. They must be root's (or this user's)
//! alone, and so must every folder and link on the way to them: whoever can change one of these holds every container.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::Error;
use crate::error::{CONFIGURATION, DRIVER_FILE};
use crate::walk::walk;

/// Checks a program.
///
/// # Errors
/// It is absent, no file that can be run, or others can change it.
pub fn program(what: &'static str, path: &Path) -> Result<(), Error> {
    check(what, path, |metadata| metadata.mode() & 0o111 != 0)
}

/// Whether a path leads to a program that nobody but root (or this user) could have put there.
#[must_use]
pub fn is_trusted_program(path: &Path) -> bool {
    program("program", path).is_ok()
}

/// Checks a file that is read.
///
/// # Errors
/// It is absent, no plain file, or others can change it.
pub(crate) fn file(what: &'static str, path: &Path) -> Result<(), Error> {
    check(what, path, |_| true)
}

fn check(
    what: &'static str,
    path: &Path,
    is_as_needed: impl Fn(&Metadata) -> bool,
) -> Result<(), Error> {
    let absolute = std::path::absolute(path).map_err(Error::io("resolve", path))?;
    let walked = walk(&absolute);
    let metadata = std::fs::metadata(&absolute).map_err(Error::io(
        match what {
            CONFIGURATION => "find the configuration",
            DRIVER_FILE => "find the file of the driver's version",
            "runtime" => "find the OCI runtime",
            "broker" => "find the broker",
            _ => "find",
        },
        path,
    ))?;
    let untrusted = |metadata: &Metadata| Error::UntrustedFile {
        what,
        path: path.to_owned(),
        owner: metadata.uid(),
        mode: metadata.mode() & 0o7777,
    };
    if walked.is_magic
        || !metadata.is_file()
        || !is_ours(&metadata)
        || others_write(&metadata)
        || !is_as_needed(&metadata)
    {
        return Err(untrusted(&metadata));
    }
    for part in &walked.through {
        let metadata = std::fs::symlink_metadata(part).map_err(Error::io("read", part))?;
        // In a sticky folder others cannot touch what is not theirs; a link has no mode of its own.
        let is_safe = metadata.is_symlink()
            || !others_write(&metadata)
            || metadata.mode() & libc::S_ISVTX != 0;
        if !is_ours(&metadata) || !is_safe {
            return Err(Error::UntrustedFolder {
                what,
                file: path.to_owned(),
                folder: part.clone(),
                owner: metadata.uid(),
                mode: metadata.mode() & 0o7777,
            });
        }
    }
    Ok(())
}

fn is_ours(metadata: &Metadata) -> bool {
    metadata.uid() == 0 || metadata.uid() == nix::unistd::geteuid().as_raw()
}

fn others_write(metadata: &Metadata) -> bool {
    metadata.mode() & 0o022 != 0
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::path::PathBuf;

    use super::*;
    use crate::Config;

    struct Fixture {
        dir: tempfile::TempDir,
        file: PathBuf,
    }

    impl Fixture {
        fn new(text: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("own/file");
            fs::create_dir(dir.path().join("own")).unwrap();
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
            Self { dir, file }
        }

        fn mode(&self, path: &Path, mode: u32) {
            fs::set_permissions(self.dir.path().join(path), fs::Permissions::from_mode(mode))
                .unwrap();
        }
    }

    /// Everything that must make a use of the file fail.
    fn assert_guarded(fixture: &Fixture, used: &dyn Fn(&Path) -> Result<(), Error>) {
        used(&fixture.file).unwrap();
        for (path, bad, good) in [
            (Path::new("own/file"), 0o775, 0o755),
            (Path::new("own/file"), 0o757, 0o755),
            (Path::new("own"), 0o775, 0o755),
            (Path::new("own"), 0o757, 0o1777),
        ] {
            fixture.mode(path, bad);
            let error = crate::chain(&used(&fixture.file).unwrap_err());
            let reported = error.contains(&format!("{bad:o}"))
                && error.contains(fixture.dir.path().join(path).to_str().unwrap());
            assert!(reported, "{error}");
            fixture.mode(path, good);
            used(&fixture.file).unwrap();
        }
        let link = fixture.dir.path().join("own/link");
        symlink("file", &link).unwrap();
        used(&link).unwrap();
        if !nix::unistd::geteuid().is_root() {
            println!("SKIP: not root");
            return;
        }
        // A sticky folder keeps a stranger's link as it keeps ours.
        std::os::unix::fs::lchown(&link, Some(1000), None).unwrap();
        assert!(matches!(used(&link), Err(Error::UntrustedFolder { .. })));
        chown(fixture.dir.path().join("own"), Some(1000), None).unwrap();
        assert!(matches!(
            used(&fixture.file),
            Err(Error::UntrustedFolder { .. })
        ));
        chown(fixture.dir.path().join("own"), Some(0), None).unwrap();
        chown(&fixture.file, Some(1000), None).unwrap();
        assert!(matches!(
            used(&fixture.file),
            Err(Error::UntrustedFile { .. })
        ));
    }

    #[test]
    fn the_runtime_is_root_s_alone() {
        let fixture = Fixture::new("");
        assert_guarded(&fixture, &|path| {
            let config = Config {
                runc: Some(path.to_owned()),
                ..Config::default()
            };
            crate::runc::path(&config).map(drop)
        });
    }

    #[test]
    fn the_broker_is_root_s_alone() {
        let fixture = Fixture::new("");
        assert_guarded(&fixture, &|path| {
            let mut config = Config::default();
            config.broker.path = Some(path.to_owned());
            crate::broker::program(&config).map(drop)
        });
    }

    #[test]
    fn the_configuration_is_root_s_alone() {
        let fixture = Fixture::new("[broker]\nstart_timeout_ms = 7\n");
        assert_guarded(&fixture, &|path| Config::from_trusted(path).map(drop));
    }
}
