//! Files that decide over every container are refused where others than root could change them.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use host_config::trusted::Error;
use host_config::{Config, chain, config};

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
        fs::set_permissions(self.dir.path().join(path), fs::Permissions::from_mode(mode)).unwrap();
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
        let error = chain(&used(&fixture.file).unwrap_err());
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
    assert!(matches!(used(&link), Err(Error::Folder { .. })));
    chown(fixture.dir.path().join("own"), Some(1000), None).unwrap();
    assert!(matches!(used(&fixture.file), Err(Error::Folder { .. })));
    chown(fixture.dir.path().join("own"), Some(0), None).unwrap();
    chown(&fixture.file, Some(1000), None).unwrap();
    assert!(matches!(used(&fixture.file), Err(Error::File { .. })));
}

fn of_trust(error: vgpu::Error) -> Error {
    match error {
        vgpu::Error::Trusted(error) => error,
        other => panic!("{other}"),
    }
}

fn read(path: &Path) -> Result<(), Error> {
    Config::from_trusted(path)
        .map(drop)
        .map_err(|error| match error {
            config::Error::Trusted(error) => error,
            other => panic!("{other}"),
        })
}

#[test]
fn the_runtime_is_root_s_alone() {
    let fixture = Fixture::new("");
    assert_guarded(&fixture, &|path| {
        let config = Config {
            runc: Some(path.to_owned()),
            ..Config::default()
        };
        vgpu::runc::path(&config).map(drop).map_err(of_trust)
    });
}

#[test]
fn the_broker_is_root_s_alone() {
    let fixture = Fixture::new("");
    assert_guarded(&fixture, &|path| {
        let mut config = Config::default();
        config.broker.path = Some(path.to_owned());
        vgpu::broker::program(&config).map(drop).map_err(of_trust)
    });
}

#[test]
fn the_configuration_is_root_s_alone() {
    let fixture = Fixture::new("[broker]\nstart_timeout_ms = 7\n");
    assert_guarded(&fixture, &|path| read(path));
}
