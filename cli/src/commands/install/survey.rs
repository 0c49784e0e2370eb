//! Which engines of this host know of cgpu, as `cgpu doctor` asks. Nothing is changed, and no engine is asked: a daemon that
//! hangs holds up nobody.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::change::Document;
use super::engine::{self, Engine};
use super::journal::Journal;
use super::named::{format_of, ours};
use super::plan::{self, SHIM};
use super::work::Site;
use super::{place, processes, report};
use crate::commands::doctor::standing_of;
use view::doctor::{self, Named};

/// The engines whose programs are below `root`; `processes` is where procfs is mounted.
pub(in crate::commands) fn survey(root: &Path, processes: &Path) -> Vec<doctor::Engine> {
    Engine::FOUND
        .into_iter()
        .filter_map(|engine| {
            let program = engine::find(root, engine.program())?;
            Some(doctor::Engine {
                name: engine.name(),
                names: names(root, engine).map_err(|error| format!("{error:#}")),
                unread: report::reload(engine)
                    .filter(|_| {
                        let files = plan::files_of(engine).iter().copied();
                        is_older_than(files, root, processes, &program)
                    })
                    .map(str::to_owned),
            })
        })
        .collect()
}

/// The programs of ours that an engine's files name. Podman may go by its hook alone.
fn names(root: &Path, engine: Engine) -> anyhow::Result<Vec<Named>> {
    let mut named = Vec::new();
    for path in files(engine) {
        let Some(found) = place::read(&at(root, path))? else {
            continue;
        };
        let document =
            Document::parse(format_of(path), &found.text).with_context(|| path.to_owned())?;
        let value = document.value().with_context(|| path.to_owned())?;
        let mut programs = ours(&value);
        programs.sort();
        programs.dedup();
        // A path is what counts beside the type's name, by which a shim is looked for.
        if programs.iter().any(|program| program.is_absolute()) {
            programs.retain(|program| program.is_absolute());
        }
        named.extend(programs.into_iter().map(|program| {
            let program = if program.is_absolute() {
                program
            } else {
                engine::find(root, SHIM).unwrap_or_else(|| PathBuf::from(SHIM))
            };
            Named {
                file: path.to_owned(),
                standing: standing_of(&root.join(program.strip_prefix("/").unwrap_or(&program))),
                program,
            }
        }));
    }
    Ok(named)
}

fn files(engine: Engine) -> Vec<&'static str> {
    let hook = (engine == Engine::Podman).then(|| plan::files_of(Engine::PodmanHook));
    let own = plan::files_of(engine).iter();
    own.chain(hook.into_iter().flatten()).copied().collect()
}

fn at(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// Whether the engine runs since before the files that have cgpu's entries were changed.
pub(super) fn has_not_read(site: &Site, journal: &Journal, engine: Engine) -> bool {
    let entries = journal.files.iter().filter(|entry| entry.engine == engine);
    let files = entries.map(|entry| entry.path.as_str());
    engine::find(&site.root, engine.program())
        .is_some_and(|program| is_older_than(files, &site.root, Path::new("/proc"), &program))
}

/// Whether the running daemon was started before its files were changed. One that was told to read them again cannot be told
/// from one that was not.
fn is_older_than<'a>(
    files: impl Iterator<Item = &'a str>,
    root: &Path,
    processes: &Path,
    program: &Path,
) -> bool {
    let changed = files
        .filter_map(|path| fs::metadata(at(root, path)).ok())
        .map(|about| about.mtime())
        .max();
    let started = started_at_unix_s(processes, program);
    matches!((changed, started), (Some(changed), Some(started)) if started < changed)
}

/// When the first living process of this program was started.
fn started_at_unix_s(processes: &Path, program: &Path) -> Option<i64> {
    let program = fs::canonicalize(program).ok()?;
    let stat = fs::read_to_string(processes.join("stat")).ok()?;
    let boot = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    let boot: i64 = boot.trim().parse().ok()?;
    let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok()??;
    // By the file itself: in a container's own tree another one has the same path.
    let running = processes::running(processes, &[program]).ok()?;
    let starts = running.into_iter().filter_map(|process| {
        let folder = processes.join(process.pid.to_string());
        let stat = fs::read_to_string(folder.join("stat")).ok()?;
        // The name, in parentheses, can hold anything; field 22 is counted from behind it.
        let (_, fields) = stat.rsplit_once(") ")?;
        let ticks: i64 = fields.split(' ').nth(22 - 3)?.parse().ok()?;
        Some(boot + ticks / per_second)
    });
    starts.min()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};

    use super::*;
    use view::doctor::Standing;

    fn program(root: &Path, path: &str, text: &[u8]) -> PathBuf {
        let path = at(root, path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn file(root: &Path, path: &str, text: &str) {
        fs::create_dir_all(at(root, path).parent().unwrap()).unwrap();
        fs::write(at(root, path), text).unwrap();
    }

    #[test]
    fn each_engine_reports_which_of_our_programs_it_would_start() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let none = Path::new("/nonexistent");
        assert_eq!(survey(root, none), []);
        for engine in ["containerd", "dockerd", "podman", "crio"] {
            program(root, &format!("usr/bin/{engine}"), b"");
        }
        let bare = survey(root, none);
        assert_eq!(bare.len(), 4);
        assert!(bare.iter().all(|engine| engine.names == Ok(Vec::new())));
        program(root, "usr/bin/cgpu-runtime", b"");
        file(
            root,
            plan::DAEMON_JSON,
            r#"{"runtimes": {"cgpu": {"path": "/usr/bin/cgpu-runtime"}, "kata": {"path": "/usr/bin/kata"}}}"#,
        );
        file(
            root,
            plan::CONTAINERD_MAIN,
            "version = 2\n[plugins.x.runtimes.cgpu]\nruntime_type = \"io.containerd.cgpu.v2\"\n",
        );
        file(root, plan::CRIO_CONF, "[crio\n");
        file(
            root,
            plan::HOOK_JSON,
            r#"{"hook": {"path": "/usr/bin/cgpu-hook", "args": ["cgpu-hook", "precreate"]}}"#,
        );
        let found = survey(root, none);
        let of = |name: &str| {
            let engine = found.iter().find(|engine| engine.name == name).unwrap();
            engine.names.clone().map(|names| {
                let pairs = names
                    .into_iter()
                    .map(|named| (named.program, named.standing));
                pairs.collect::<Vec<_>>()
            })
        };
        let runtime = PathBuf::from("/usr/bin/cgpu-runtime");
        assert_eq!(of("docker"), Ok(vec![(runtime, Standing::Fine)]));
        // The type alone: the shim is in no folder where containerd looks for it.
        let shim = PathBuf::from("containerd-shim-cgpu-v2");
        assert_eq!(of("containerd"), Ok(vec![(shim, Standing::Absent)]));
        let hook = PathBuf::from("/usr/bin/cgpu-hook");
        assert_eq!(of("podman"), Ok(vec![(hook, Standing::Absent)]));
        assert!(of("crio").unwrap_err().contains("99-cgpu.conf"));
    }

    #[test]
    fn a_daemon_that_is_older_than_its_configuration_is_reported_to_read_it() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let daemon = program(root, "usr/bin/dockerd", b"");
        // By another process: what a test beside this one forks meanwhile would hold the copy open for writing.
        let mut copy = Command::new("cp");
        copy.arg("/bin/sleep").arg(&daemon);
        assert!(copy.status().unwrap().success());
        file(root, plan::DAEMON_JSON, "{}");
        let daemon_json = &at(root, plan::DAEMON_JSON);
        let unread = || survey(root, Path::new("/proc"))[0].unread.clone();
        assert_eq!(unread(), None, "it does not run");
        let mut running = Command::new(&daemon).arg("1000").spawn().unwrap();
        let changed = |at: std::time::SystemTime| {
            let mut options = fs::File::options();
            let file = options.write(true).open(daemon_json).unwrap();
            file.set_modified(at).unwrap();
        };
        let minute = std::time::Duration::from_secs(60);
        let now = std::time::SystemTime::now();
        changed(now - minute);
        let before = unread();
        changed(now + minute);
        let after = unread();
        running.kill().unwrap();
        running.wait().unwrap();
        assert_eq!(before, None);
        assert_eq!(after.as_deref(), Some("systemctl reload docker"));
    }

    #[test]
    fn a_program_of_the_same_path_in_another_tree_is_not_the_host_s_daemon() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let daemon = program(root, "usr/bin/dockerd", b"");
        file(root, plan::DAEMON_JSON, "{}");
        let minute = std::time::Duration::from_secs(60);
        let options = fs::File::options()
            .write(true)
            .open(at(root, plan::DAEMON_JSON));
        let later = std::time::SystemTime::now() + minute;
        options.unwrap().set_modified(later).unwrap();
        // As a container's own, which is there before the host's file changes.
        let own = r#"mount --bind "$(command -v sleep)" "$0" && echo is there && exec "$0" 1000"#;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", own]).arg(&daemon);
        let mut other = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(other.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let exe = format!("/proc/{}/exe", other.id());
        let runs = || fs::read_link(&exe).is_ok_and(|exe| exe == daemon);
        while !runs() && other.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        let is_there = runs();
        let unread = survey(root, Path::new("/proc"))[0].unread.clone();
        drop(other.kill());
        other.wait().unwrap();
        if !is_there {
            assert_eq!(line, "", "it was mounted and does not run");
            println!(
                "SKIP: a_program_of_the_same_path_in_another_tree_is_not_the_host_s_daemon: mounting needs root"
            );
            return;
        }
        assert_eq!(unread, None);
    }
}
