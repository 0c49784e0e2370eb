//! Units as systemd reads them, and what they start.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use integration::cache::repository;
use integration::command::{LIMIT, capture, succeed};
use integration::skip;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use regex::Regex;

use crate::common::{MAKERS, lacking, package, packages};

/// Packages.
const PACKAGES: [&str; 3] = ["cgpu", "cgpu-agent", "cgpu-sim"];

/// Their units.
const UNITS: [&str; 4] = [
    "cgpu.service",
    "cgpu-agent.service",
    "cgpu-sim.service",
    "cgpu-tree.service",
];

/// All packages in one tree.
fn unpack(tree: &Path) -> Result<()> {
    for name in PACKAGES {
        let deb = package(packages()?, name, ".deb")?;
        succeed(Command::new("dpkg-deb").arg("-x").arg(deb).arg(tree))?;
    }
    Ok(())
}

fn unit(tree: &Path, name: &str) -> Result<String> {
    let path = tree.join("usr/lib/systemd/system").join(name);
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

#[test]
fn systemd_takes_every_unit() -> Result<()> {
    const TEST: &str = "systemd_takes_every_unit";
    if let Some(reason) = lacking(&[MAKERS.as_slice(), &["systemd-analyze"]].concat()) {
        skip!(TEST, "{reason}");
    }
    let tree = tempfile::tempdir()?;
    unpack(tree.path())?;
    for name in UNITS {
        // Our programs are in the tree, and systemd looks for them.
        let programs = format!("={}/usr/bin/cgpu", tree.path().display());
        let text = unit(tree.path(), name)?.replace("=/usr/bin/cgpu", &programs);
        let moved = tree.path().join(name);
        fs::write(&moved, text)?;
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--man=no"]).arg(&moved);
        let reply = capture(&mut verify, LIMIT)?.success()?;
        let about = reply.stderr.lines().filter(|line| line.contains("cgpu"));
        // A key that systemd knows since 254.
        let about: Vec<_> = about
            .filter(|line| !line.contains("DelegateSubgroup"))
            .collect();
        ensure!(about.is_empty(), "{name}: {about:?}");
        // What is checked can be refused.
        let wrong = fs::read_to_string(&moved)?.replace("ExecStart=", "ExecStart=/absent/");
        fs::write(&moved, wrong)?;
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--man=no"]).arg(&moved);
        let reply = capture(&mut verify, LIMIT)?;
        ensure!(reply.stderr.contains("/absent/"), "{name}: {reply:?}");
    }
    Ok(())
}

/// `needrestart` asks so before it restarts a service: which of its patterns name it (`needrestart`, from "override_rc" on).
const NEEDRESTART: &str = r#"
our %nrconf = (override_rc => {});
while (@ARGV && $ARGV[0] ne "--") { my $file = shift; defined(do $file) or die "$file: $@ $!"; }
shift;
for my $unit (@ARGV) {
    my @own = grep { $unit =~ /$_/ } keys %{$nrconf{override_rc}};
    print "$unit ", (@own ? $nrconf{override_rc}{$own[0]} : 1), "\n";
}
"#;

/// After an upgrade of a library the distribution restarts what no container depends on, and nothing else.
#[test]
fn needrestart_leaves_alone_what_containers_depend_on() -> Result<()> {
    const TEST: &str = "needrestart_leaves_alone_what_containers_depend_on";
    if let Some(reason) = lacking(&[MAKERS.as_slice(), &["perl"]].concat()) {
        skip!(TEST, "{reason}");
    }
    let tree = tempfile::tempdir()?;
    unpack(tree.path())?;
    let mut files = Vec::new();
    for entry in fs::read_dir(tree.path().join("etc/needrestart/conf.d"))? {
        files.push(entry?.path());
    }
    let mut perl = Command::new("perl");
    perl.args(["-w", "-e", NEEDRESTART]).args(files).arg("--");
    let reply = succeed(perl.args(UNITS))?;
    ensure!(reply.stderr.is_empty(), "{}", reply.stderr);
    let expected =
        "cgpu.service 0\ncgpu-agent.service 1\ncgpu-sim.service 0\ncgpu-tree.service 1\n";
    ensure!(reply.stdout == expected, "{}", reply.stdout);
    Ok(())
}

/// The keys of a unit of the repository.
fn keys(name: &str) -> Result<Vec<String>> {
    let path = repository().join("configs/systemd").join(name);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let keys = lines.filter_map(|line| Some(line.split_once('=')?.0.to_owned()));
    Ok(keys.collect())
}

/// By systemd.exec(5): what gives a service mounts of its own. A mount that it makes is in these alone then.
#[test]
fn the_trees_unit_has_no_mounts_of_its_own() -> Result<()> {
    let own = Regex::new(
        "^(Private|Protect|ReadOnly|ReadWrite|Inaccessible|NoExec|ExecPaths|Bind|Root|Temporary|Mount|Dynamic|Proc|.*Directory|.*Image)",
    )?;
    ensure!(own.is_match("ProtectSystem") && own.is_match("StateDirectory"));
    for key in keys("cgpu-tree.service")? {
        ensure!(!own.is_match(&key), "{key}");
    }
    Ok(())
}

/// Cards' device files are no service's own. `ProtectClock=` is among these with systemd before 253 (systemd's issue 18142).
#[test]
fn no_unit_closes_the_cards_devices() -> Result<()> {
    for name in UNITS {
        let keys = keys(name)?;
        ensure!(
            keys.iter().any(|key| key == "ExecStart"),
            "{name}: {keys:?}"
        );
        for closes in [
            "DeviceAllow",
            "DevicePolicy",
            "PrivateDevices",
            "ProtectClock",
        ] {
            ensure!(!keys.iter().any(|key| key == closes), "{name}: {closes}");
        }
    }
    Ok(())
}

/// All vGPUs' own processes of a host are below it, each container's with a limit of its own.
#[test]
fn the_delegated_group_limits_no_number_of_processes() -> Result<()> {
    let path = repository().join("configs/systemd/cgpu.service");
    let text = fs::read_to_string(&path)?;
    let lines = text.lines().filter(|line| line.starts_with("TasksMax="));
    let limits: Vec<&str> = lines.collect();
    ensure!(limits == ["TasksMax=infinity"], "{limits:?}");
    Ok(())
}

#[test]
fn the_simulators_unit_starts_a_shipped_profile_and_reports_that_it_is_ready() -> Result<()> {
    const TEST: &str = "the_simulators_unit_starts_a_shipped_profile_and_reports_that_it_is_ready";
    if let Some(reason) = lacking(&MAKERS) {
        skip!(TEST, "{reason}");
    }
    let tree = tempfile::tempdir()?;
    unpack(tree.path())?;
    let text = unit(tree.path(), "cgpu-sim.service")?;
    let value = |key: &str| -> Result<&str> {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.with_context(|| key.to_owned())
    };
    let profile = value("Environment=PROFILE=")?;
    let file = tree
        .path()
        .join(format!("usr/share/cgpu/sim/{profile}.toml"));
    ensure!(file.is_file(), "{} is not shipped", file.display());
    let command = value("ExecStart=")?.replace("${PROFILE}", profile);
    let (program, args) = command.split_once(' ').context("arguments")?;
    let state = tempfile::tempdir()?;
    let socket = state.path().join("notify");
    let notified = UnixDatagram::bind(&socket)?;
    notified.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut simulator = Command::new(tree.path().join(program.trim_start_matches('/')))
        .args(args.split(' '))
        .arg("--state-dir")
        .arg(state.path())
        .env("NOTIFY_SOCKET", &socket)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let mut message = [0; 256];
    let received = notified.recv(&mut message);
    // What systemd sends to end it.
    kill(
        Pid::from_raw(i32::try_from(simulator.id())?),
        Signal::SIGTERM,
    )?;
    let ended = simulator.wait()?;
    let message = message.get(..received?).context("a message")?;
    ensure!(
        message == b"READY=1\n",
        "{:?}",
        String::from_utf8_lossy(message)
    );
    ensure!(ended.success(), "{ended}");
    Ok(())
}
