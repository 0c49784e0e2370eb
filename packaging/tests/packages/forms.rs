//! Packages as package managers see them: the same bytes twice, the same files in each form, and a system's root that is as it was
//! after install, upgrade, remove and purge.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use integration::cache::repository;
use integration::command::{capture, find, succeed};
use integration::prefetch;
use integration::roots::{LIMIT, Root, System};
use integration::skip;
use packaging::{Form, write};

use crate::common::{MAKERS, build, lacking, newer, package, packages};
use crate::listing::files;

#[test]
fn the_same_programs_give_the_same_packages() -> Result<()> {
    if let Some(reason) = lacking(&MAKERS) {
        skip!("the_same_programs_give_the_same_packages", "{reason}");
    }
    let again = tempfile::tempdir()?;
    // Times of files are of the second in which they were made, where they are not set.
    let written = write(&build(1)?, &Form::ALL, again.path())?;
    ensure!(written.len() >= 4, "{written:?}");
    for path in written {
        let name = path.file_name().context("a package has a name")?;
        let one = fs::read(packages()?.join(name))?;
        ensure!(one == fs::read(&path)?, "{} differs", path.display());
    }
    Ok(())
}

#[test]
fn deb_rpm_and_archive_have_the_same_files() -> Result<()> {
    const TEST: &str = "deb_rpm_and_archive_have_the_same_files";
    if let Some(reason) = lacking(&MAKERS) {
        skip!(TEST, "{reason}");
    }
    let folder = packages()?;
    for name in ["cgpu", "cgpu-agent", "cgpu-sim", "kubectl-cgpu"] {
        let deb = Command::new("sh")
            .arg("-c")
            .arg("dpkg-deb --fsys-tarfile \"$1\" | tar --list")
            .arg("sh")
            .arg(package(folder, name, ".deb")?)
            .output()?;
        let deb = files(&String::from_utf8(deb.stdout)?);
        let archive = package(folder, name, ".tar.zst")?;
        let listing = succeed(
            Command::new("tar")
                .args(["--zstd", "--list", "--file"])
                .arg(archive),
        )?;
        assert_eq!(deb, files(&listing.stdout), "{name}");
        let expected = match name {
            "cgpu" => "/usr/libexec/cgpu/cgpu-broker",
            "cgpu-agent" => "/usr/lib/systemd/system/cgpu-agent.service",
            "kubectl-cgpu" => "/usr/bin/kubectl-inspect-cgpu",
            _ => "/usr/bin/cgpu-burn",
        };
        assert!(deb.contains(expected), "{deb:?}");
        for program in deb.iter().filter_map(|path| path.strip_prefix("/usr/bin/")) {
            let is_page = |path: &String| {
                path.starts_with("/usr/share/man/") && path.contains(&format!("/{program}."))
            };
            ensure!(deb.iter().any(is_page), "{program} has no manual page");
        }
        if find("rpm").is_none() || find("rpmbuild").is_none() {
            skip!(TEST, "no rpm: deb and archive alone were compared");
        }
        let rpm = package(folder, name, ".rpm")?;
        // A folder has no other sign in this list.
        let query = "[%{FILEMODES:perms} %{FILENAMES}\n]";
        let listing = succeed(
            Command::new("rpm")
                .args(["-qp", "--queryformat", query])
                .arg(rpm),
        )?;
        let plain: Vec<&str> = listing
            .stdout
            .lines()
            .filter(|line| line.starts_with('-'))
            .filter_map(|line| line.split_once(' ').map(|(_, path)| path))
            .collect();
        assert_eq!(deb, files(&plain.join("\n")), "{name}");
    }
    Ok(())
}

#[test]
fn lintian_finds_no_fault() -> Result<()> {
    const TEST: &str = "lintian_finds_no_fault";
    if let Some(reason) = lacking(&[MAKERS.as_slice(), &["lintian"]].concat()) {
        skip!(TEST, "{reason}");
    }
    let folder = packages()?;
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "error,warning"]);
    // A number of a bug in the distribution's own archive.
    lintian.args(["--suppress-tags", "initial-upload-closes-no-bugs"]);
    for name in ["cgpu", "cgpu-agent", "cgpu-sim", "kubectl-cgpu"] {
        lintian.arg(package(folder, name, ".deb")?);
    }
    // It unpacks programs with their symbols, beside other tests.
    capture(&mut lintian, LIMIT)?.success()?;
    Ok(())
}

#[test]
fn rpmlint_finds_no_fault() -> Result<()> {
    const TEST: &str = "rpmlint_finds_no_fault";
    let needed = [MAKERS.as_slice(), &["rpmbuild", "rpmlint"]].concat();
    if let Some(reason) = lacking(&needed) {
        skip!(TEST, "{reason}");
    }
    let folder = packages()?;
    let mut rpmlint = Command::new("rpmlint");
    rpmlint
        .arg("--config")
        .arg(repository().join("packaging/rpmlint.toml"));
    for name in ["cgpu", "cgpu-agent", "cgpu-sim", "kubectl-cgpu"] {
        rpmlint.arg(package(folder, name, ".rpm")?);
    }
    let reply = capture(&mut rpmlint, LIMIT)?.success()?;
    ensure!(
        reply.stdout.contains("0 errors, 0 warnings"),
        "{}",
        reply.stdout
    );
    Ok(())
}

/// A root of Debian 12, with the packages in `/packages` and a second revision in `/newer`.
fn debian(test: &str) -> Result<Option<Root>> {
    if let Some(reason) = lacking(&[MAKERS.as_slice(), &["debootstrap", "unshare"]].concat()) {
        skip::record(test, &reason);
        return Ok(None);
    }
    match Root::of(&System::BOOKWORM, &prefetch::IN_ROOT) {
        Ok(root) => Ok(Some(root)),
        Err(error) => {
            skip::record(test, &format!("no root of Debian 12: {error:#}"));
            Ok(None)
        }
    }
}

#[test]
fn a_root_is_as_before_after_install_use_upgrade_remove_and_purge() -> Result<()> {
    let test = "a_root_is_as_before_after_install_use_upgrade_remove_and_purge";
    let Some(root) = debian(test)? else {
        return Ok(());
    };
    root.bring(packages()?, "packages")?;
    root.bring(newer()?, "newer")?;
    let before = root.picture()?;

    let reply = root.run("dpkg -i /packages/*.deb")?.success()?;
    ensure!(
        reply.stdout.contains("`cgpu install` registers"),
        "{}",
        reply.stdout
    );
    let reply = root.run(USE)?.success()?;
    for expected in [
        "version: cgpu 0.",
        "units at boot: cgpu-agent.service cgpu.service \n",
        "agent: cgpu-agent 0.",
        "tree: cgpu-tree 0.",
        "plugin: kubectl-cgpu 0.",
        "the agent ends with 0",
        "doctor ends with 0",
        "/usr/libexec/cgpu/cgpu-broker",
        "answered NV_ERR_NO_MEMORY",
        "refused with 3",
        "the smaller one ends with 0",
        "registered",
    ] {
        ensure!(
            reply.stdout.contains(expected),
            "{expected} in {}\n{}",
            reply.stdout,
            reply.stderr
        );
    }
    let reply = root.run(UPGRADE)?.success()?;
    for expected in [
        "running before: 1",
        "running after: 1",
        "removal below its service ends with 1",
        "removal ends with 1",
        "brokers are replaced",
        "the command ends with 0",
    ] {
        ensure!(
            reply.stdout.contains(expected),
            "{expected} in {}\n{}",
            reply.stdout,
            reply.stderr
        );
    }
    for expected in [
        "containers with a vGPU exist",
        "containers have simulated GPUs",
    ] {
        ensure!(reply.stderr.contains(expected), "{}", reply.stderr);
    }

    root.run("dpkg -r cgpu-agent cgpu-sim kubectl-cgpu cgpu")?
        .success()?;
    let kept = root
        .run("ls /etc/cgpu /etc/docker; cat /etc/docker/daemon.json")?
        .success()?;
    ensure!(
        kept.stdout.contains("cgpu.toml") && !kept.stdout.contains("cgpu-runtime"),
        "{}",
        kept.stdout
    );
    root.run(
        "dpkg --purge cgpu-agent cgpu-sim kubectl-cgpu cgpu && rm -r /etc/docker /usr/sbin/dockerd",
    )?
    .success()?;
    root.compare(&before, &[])
}

/// First steps, with a docker that has only its name and version.
const USE: &str = r#"
echo "version: $(cgpu --version)"
echo "units at boot: $(ls /etc/systemd/system/multi-user.target.wants | grep cgpu | tr '\n' ' ')"
# As an administrator's systemctl enable does.
deb-systemd-helper enable cgpu-sim.service
echo "agent: $(cgpu-agent --version)"
echo "tree: $(cgpu-tree --version)"
echo "plugin: $(kubectl-cgpu --version)"
timeout --preserve-status 2 cgpu-agent; echo "the agent ends with $?"
cgpu-sim --profile two-ada > /run/sim.log 2>&1 &
for i in $(seq 100); do grep -q ready /run/sim.log && break; sleep 0.1; done
cgpu doctor; echo "doctor ends with $?"
cgpu run --memory 1Gi -- cgpu-burn alloc 2Gi; echo "refused with $?"
cgpu run --memory 1Gi -- cgpu-burn alloc 512Mi; echo "the smaller one ends with $?"
printf '#!/bin/sh\necho "Docker version 24.0.9, build 1"\n' > /usr/sbin/dockerd
chmod 755 /usr/sbin/dockerd; mkdir /etc/docker; echo '{"debug": true}' > /etc/docker/daemon.json
cgpu install --engine docker && grep -q containerd-shim-cgpu-v2 /etc/docker/daemon.json && echo registered
"#;

/// A container lives through an upgrade, and holds up a removal.
const UPGRADE: &str = r#"
cgpu-sim --profile two-ada > /run/sim.log 2>&1 &
for i in $(seq 100); do grep -q ready /run/sim.log && break; sleep 0.1; done
cgpu run --memory 1Gi -- cgpu-burn alloc 512Mi --hold 25 & live=$!
for i in $(seq 100); do cgpu ps --json | grep -q '"container":' && break; sleep 0.1; done
echo "running before: $(cgpu ps --json | grep -c '"container":')"
dpkg -i /newer/*.deb || exit 1
echo "running after: $(cgpu ps --json | grep -c '"container":')"
cgpu upgrade && echo "brokers are replaced"
mkdir -p /run/systemd/system; printf '#!/bin/sh\n' > /usr/local/sbin/systemctl; chmod 755 /usr/local/sbin/systemctl
dpkg -r cgpu-sim; echo "removal below its service ends with $?"
rm -r /run/systemd/system /usr/local/sbin/systemctl
dpkg -r cgpu-sim cgpu-agent; dpkg -r cgpu; echo "removal ends with $?"
wait $live; echo "the command ends with $?"
dpkg -i /newer/cgpu-sim*.deb /newer/cgpu-agent*.deb
"#;

#[test]
fn an_agent_that_comes_again_is_started_and_an_upgrade_starts_none() -> Result<()> {
    let test = "an_agent_that_comes_again_is_started_and_an_upgrade_starts_none";
    let Some(root) = debian(test)? else {
        return Ok(());
    };
    root.bring(packages()?, "packages")?;
    let reply = root.run(STARTS)?.success()?;
    let starts = reply.stdout.lines().filter(|line| line.contains("starts"));
    assert_eq!(
        starts.collect::<Vec<_>>(),
        [
            "installed, starts: 1",
            "upgraded, starts: 1",
            "installed again, starts: 2",
            "upgraded again, starts: 2"
        ],
        "{}",
        reply.stderr
    );
    Ok(())
}

/// How often the agent was started, by a stand-in that writes down what systemd is to do.
const STARTS: &str = r#"
mkdir -p /run/systemd/system
printf '#!/bin/sh\necho "$*" >> /run/systemctl.log\ncase $* in *is-enabled*cgpu-agent*) echo enabled;; esac\n' > /usr/local/sbin/systemctl
chmod 755 /usr/local/sbin/systemctl
starts() { echo "$1, starts: $(grep -c ' start cgpu-agent' /run/systemctl.log)"; }
dpkg -i /packages/cgpu_*.deb /packages/cgpu-agent_*.deb && starts installed
dpkg -i /packages/cgpu-agent_*.deb && starts upgraded
dpkg -r cgpu-agent && dpkg -i /packages/cgpu-agent_*.deb && starts "installed again"
dpkg -i /packages/cgpu-agent_*.deb && starts "upgraded again"
"#;

#[test]
fn an_older_host_is_refused_before_anything_is_unpacked() -> Result<()> {
    let Some(root) = debian("an_older_host_is_refused_before_anything_is_unpacked")? else {
        return Ok(());
    };
    root.bring(packages()?, "packages")?;
    let before = root.picture()?;
    for (program, reply, sentence) in [
        (
            "uname",
            "5.4.0-1",
            "cgpu needs Linux 5.9 or later; this is 5.4.0-1.",
        ),
        (
            "getconf",
            "glibc 2.31",
            "cgpu needs glibc 2.34 or later; this is glibc 2.31.",
        ),
        (
            "runc",
            "runc version 1.0.3",
            "cgpu needs runc 1.1 or later, or crun; this is runc 1.0.3.",
        ),
    ] {
        let fake = format!(
            "printf '#!/bin/sh\\necho \"{reply}\"\\n' > /usr/local/sbin/{program}\nchmod 755 /usr/local/sbin/{program}\n\
             dpkg -i /packages/cgpu_*.deb; code=$?\nrm /usr/local/sbin/{program}\nexit $code"
        );
        let printed = root.run(&fake)?.failure()?;
        ensure!(printed.contains(sentence), "{printed}");
    }
    // dpkg notes that the package was requested.
    root.compare(&before, &["/var/lib/dpkg/status"])
}

#[test]
fn an_rpm_is_installed_upgraded_and_erased_in_a_root() -> Result<()> {
    let test = "an_rpm_is_installed_upgraded_and_erased_in_a_root";
    if let Some(reason) = lacking(&["rpm", "rpmbuild"]) {
        skip!(test, "{reason}");
    }
    let Some(root) = debian(test)? else {
        return Ok(());
    };
    let before = root.picture()?;
    let rpm = |args: &[&str]| {
        // The root is Debian's: what it has is not in rpm's database.
        root.outside(
            "rpm",
            &[&["--dbpath", "/var/lib/rpm", "--nodeps"], args].concat(),
        )
    };
    rpm(&[
        "-i",
        &package(packages()?, "cgpu", ".rpm")?.to_string_lossy(),
    ])?
    .success()?;
    let reply =
        root.run("cgpu --version; stat -c %a /usr/libexec/cgpu/cgpu-broker /etc/cgpu/cgpu.toml")?;
    ensure!(
        reply.stdout.starts_with("cgpu 0.") && reply.stdout.ends_with("755\n644\n"),
        "{}",
        reply.stdout
    );
    let newest = newer()?.join(format!("cgpu-{}.x86_64.rpm", build(2)?.full_version()));
    rpm(&["-U", &newest.to_string_lossy()])?.success()?;
    rpm(&["-e", "cgpu"])?.success()?;
    root.run("rm -rf /var/lib/rpm")?.success()?;
    root.compare(&before, &[])
}
