//! `cgpu install --host` on the root of a host that a container has mounted: the container's own root stays as it is, nothing is removed
//! that runs, and in the end nothing is left.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use integration::command::{LIMIT, Outcome, capture, find, succeed};
use integration::mounts;
use integration::picture::{self, Picture};
use integration::programs::Programs;
use integration::{own_host, skip};
use nix::mount::{MsFlags, mount};
use serde_json::Value;

const ENGINE: &str = "--engine=containerd@2.1";
/// Folders of this machine that programs need, and links at its root.
const OF_MACHINE: [&str; 5] = ["usr", "lib", "lib64", "bin", "sbin"];

/// A host's root, and an image's beside it.
struct Roots {
    host: PathBuf,
    image: PathBuf,
    /// A folder of the container's, whose path the host does not have.
    outside: PathBuf,
}

impl Roots {
    fn make(at: &Path) -> Result<Self> {
        let roots = Self {
            host: at.join("host"),
            image: at.join("image/usr"),
            outside: at.join("outside"),
        };
        for folder in [
            "proc",
            "dev",
            "tmp",
            "var/lib",
            "data/opt",
            "etc/containerd",
        ] {
            fs::create_dir_all(roots.host.join(folder))?;
        }
        fs::create_dir_all(&roots.outside)?;
        symlink("/data/opt", roots.host.join("opt"))?;
        fs::write(
            roots.host.join("etc/containerd/config.toml"),
            "version = 3\n",
        )?;
        for name in OF_MACHINE {
            let (from, to) = (Path::new("/").join(name), roots.host.join(name));
            match fs::read_link(&from) {
                Ok(target) => symlink(target, to)?,
                Err(_) if from.is_dir() => {
                    fs::create_dir(&to)?;
                    own_host::bind(&from, &to)?;
                }
                Err(_) => {}
            }
        }
        for folder in ["proc", "dev"] {
            own_host::bind(&Path::new("/").join(folder), &roots.host.join(folder))?;
        }
        // A containerd of this machine's is none of the host's, which has a version that is named.
        for folder in ["usr/bin", "usr/sbin"] {
            let containerd = roots.host.join(folder).join("containerd");
            if containerd.is_file() {
                own_host::bind(Path::new("/dev/null"), &containerd)?;
            }
        }
        let local = roots.host.join("usr/local");
        mount(
            Some("cgpu-test"),
            &local,
            Some("tmpfs"),
            MsFlags::MS_NOSUID,
            None::<&str>,
        )
        .context("a tmpfs at the host's /usr/local")?;
        Ok(roots)
    }

    /// The programs where a package and the image have them.
    fn fill_image(&self, programs: &Programs) -> Result<()> {
        // As packages are: without symbols a test copies a tenth.
        let place = |from: &Path, to: &Path| {
            let mut strip = Command::new("strip");
            strip.arg("--strip-all").arg("-o").arg(to).arg(from);
            succeed(&mut strip).map(drop)
        };
        for (folder, names) in [
            (
                "bin",
                &[
                    "cgpu",
                    "containerd-shim-cgpu-v2",
                    "cgpu-runtime",
                    "cgpu-hook",
                ][..],
            ),
            (
                "libexec/cgpu",
                &["cgpu-broker", "cgpu-executor", "cgpu-limits", "cgpu-top"],
            ),
        ] {
            fs::create_dir_all(self.image.join(folder))?;
            for name in names {
                place(
                    &programs.program(name)?,
                    &self.image.join(folder).join(name),
                )?;
            }
        }
        let inside = self.image.join("lib/cgpu/static");
        fs::create_dir_all(&inside)?;
        place(&programs.folder().join("static/cgpu"), &inside.join("cgpu"))
    }

    fn cgpu(&self, args: &[&str]) -> Result<Outcome> {
        let mut command = Command::new(self.image.join("bin/cgpu"));
        command
            .args(args)
            .arg("--host")
            .arg(&self.host)
            .arg("--json");
        capture(&mut command, LIMIT)
    }

    fn done(&self, args: &[&str]) -> Result<Value> {
        self.cgpu(args)?.success()?.json()
    }

    /// What of the host is its own.
    fn picture(&self) -> Result<Picture> {
        let mut picture = Picture::new();
        for folder in ["tmp", "var", "data", "etc"] {
            picture::add(&mut picture, &self.host.join(folder), &|_folder| true)?;
        }
        Ok(picture)
    }

    fn version(&self) -> Result<String> {
        let link = fs::read_link(self.host.join("data/opt/cgpu/current"))?;
        Ok(link.display().to_string())
    }
}

/// In a mount namespace that ends with its thread.
fn on_a_host(test: &str, body: fn(&Roots) -> Result<()>) -> Result<()> {
    if let Some(reason) = skip::lacks_root() {
        skip!(test, "{reason}");
    }
    if find("strip").is_none() {
        skip!(test, "no strip");
    }
    let programs = Programs::for_tests()?;
    let folder = tempfile::tempdir()?;
    let at = fs::canonicalize(folder.path())?;
    let inside = move || -> Result<()> {
        mounts::enter_new()?;
        let roots = Roots::make(&at)?;
        roots.fill_image(programs)?;
        body(&roots)
    };
    let done = std::thread::spawn(inside).join();
    done.unwrap_or_else(|panic| resume_unwind(panic))
}

#[test]
fn links_of_a_host_lead_where_they_lead_there() -> Result<()> {
    on_a_host("links_of_a_host_lead_where_they_lead_there", |roots| {
        let before = roots.picture()?;
        // The host does not have that path, and the container does.
        let drop_ins = roots.host.join("etc/containerd/conf.d");
        symlink(&roots.outside, &drop_ins)?;
        roots.cgpu(&["install", ENGINE])?.failure()?;
        ensure!(
            fs::read_dir(&roots.outside)?.next().is_none(),
            "written outside"
        );
        fs::remove_file(&drop_ins)?;
        ensure!(
            roots.picture()? == before,
            "a refused install left something"
        );
        // One that leads somewhere there is followed, and so is the one of /opt.
        fs::create_dir(roots.host.join("data/drop-ins"))?;
        symlink("/data/drop-ins", &drop_ins)?;
        let before = roots.picture()?;
        let report = roots.done(&["install", ENGINE])?;
        ensure!(report["programs"]["state"] == "copied", "{report}");
        let text = fs::read_to_string(roots.host.join("data/drop-ins/cgpu.toml"))?;
        let shim = "/opt/cgpu/current/bin/containerd-shim-cgpu-v2";
        ensure!(text.contains(shim), "{text}");
        let copied = roots.host.join("data").join(shim.trim_start_matches('/'));
        ensure!(fs::read(copied)? == fs::read(roots.image.join("bin/containerd-shim-cgpu-v2"))?);
        ensure!(!Path::new("/opt/cgpu").exists(), "the container's own /opt");
        let report = roots.done(&["install", ENGINE])?;
        ensure!(report["programs"]["state"] == "unchanged", "{report}");
        ensure!(report["engines"][0]["state"] == "unchanged", "{report}");
        roots.done(&["uninstall"])?;
        ensure!(roots.picture()? == before, "something is left");
        Ok(())
    })
}

#[test]
fn a_version_that_runs_stays_and_nothing_is_uninstalled_under_it() -> Result<()> {
    on_a_host(
        "a_version_that_runs_stays_and_nothing_is_uninstalled_under_it",
        |roots| {
            let before = roots.picture()?;
            roots.done(&["install", ENGINE])?;
            let first = roots.version()?;
            let program = roots
                .host
                .join("data/opt/cgpu")
                .join(&first)
                .join("bin/cgpu");
            let config = roots.outside.join("cgpu.toml");
            fs::write(
                &config,
                format!("state_dir = {:?}\n", roots.outside.join("state")),
            )?;
            let mut running = Command::new(&program)
                .args(["events", "--follow"])
                .env("CGPU_CONFIG", &config)
                .stdout(std::process::Stdio::null())
                .spawn()?;
            let checked = (|| -> Result<()> {
                // Two more versions: the first would go if nothing ran from it.
                for text in ["second", "third"] {
                    let hook = roots.image.join("bin/cgpu-hook");
                    fs::remove_file(&hook)?;
                    fs::write(&hook, text)?;
                    fs::set_permissions(&hook, Permissions::from_mode(0o755))?;
                    let report = roots.done(&["install", ENGINE])?;
                    ensure!(report["programs"]["state"] == "copied", "{report}");
                    ensure!(report["engines"][0]["state"] == "unchanged", "{report}");
                }
                ensure!(roots.version()? != first, "the version is the first one");
                ensure!(program.is_file(), "what runs is gone");
                let installed = roots.picture()?;
                let refused = roots.cgpu(&["uninstall"])?.failure()?;
                let process = format!("bin/cgpu ({})", running.id());
                ensure!(refused.contains(&process), "{refused}");
                ensure!(
                    roots.picture()? == installed,
                    "something is gone: {refused}"
                );
                Ok(())
            })();
            running.kill()?;
            running.wait()?;
            checked?;
            roots.done(&["uninstall"])?;
            ensure!(roots.picture()? == before, "something is left");
            Ok(())
        },
    )
}

#[test]
fn a_host_that_has_a_package_is_left_alone() -> Result<()> {
    on_a_host("a_host_that_has_a_package_is_left_alone", |roots| {
        let packaged = roots.host.join("usr/local/bin/containerd-shim-cgpu-v2");
        fs::create_dir(roots.host.join("usr/local/bin"))?;
        succeed(
            Command::new("cp")
                .arg(roots.image.join("bin/containerd-shim-cgpu-v2"))
                .arg(&packaged),
        )?;
        let before = roots.picture()?;
        for command in [&["install", ENGINE][..], &["uninstall"]] {
            let report = roots.done(command)?;
            ensure!(report["programs"]["state"] == "left_alone", "{report}");
            ensure!(roots.picture()? == before, "{command:?} changed something");
        }
        // A folder that is no host's root.
        let empty = roots.outside.to_string_lossy();
        let mut command = Command::new(roots.image.join("bin/cgpu"));
        command.args(["install", "--host", &empty]);
        let refused = capture(&mut command, LIMIT)?.failure()?;
        ensure!(
            refused.contains("not the root of a running host"),
            "{refused}"
        );
        Ok(())
    })
}

/// The engine's files are changed; that it has not read them is not forgotten, and nobody but containerd gets its signal.
#[test]
fn a_restart_that_failed_is_tried_again_by_the_next_run() -> Result<()> {
    on_a_host(
        "a_restart_that_failed_is_tried_again_by_the_next_run",
        |roots| {
            let before = roots.picture()?;
            let signal = ["install", ENGINE, "--restart=signal"];
            let answer = |state: &str, remark: &str| -> Result<()> {
                let outcome = roots.cgpu(&signal)?;
                ensure!(outcome.code == Some(1), "{outcome:?}");
                let report: Value = serde_json::from_str(&outcome.stdout)?;
                let engine = &report["engines"][0];
                ensure!(
                    engine["state"] == state && engine["then_done"] == false,
                    "{report}"
                );
                ensure!(engine["remarks"].to_string().contains(remark), "{report}");
                Ok(())
            };
            answer(
                "changed",
                "no containerd at /run/containerd/containerd.sock",
            )?;
            let socket = roots.host.join("run/containerd/containerd.sock");
            fs::create_dir_all(socket.parent().context("a folder")?)?;
            // This process: a signal would end the test.
            let _listener = UnixListener::bind(&socket)?;
            answer("unchanged", "not by containerd: it was sent no signal")?;
            // Whoever restarts the engine otherwise asks for none.
            roots.done(&["install", ENGINE])?;
            roots.done(&["uninstall"])?;
            ensure!(roots.picture()? == before, "something is left");
            Ok(())
        },
    )
}
