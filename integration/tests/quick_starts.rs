//! The scripts of `examples/`, as a newcomer runs them on a host of its own: an image with nothing of ours in it, engines at
//! their usual places, two simulated cards or one. The page `docs/guide/quick-start.md` names each.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use integration::cache::repository;
use integration::command::{Outcome, capture, succeed};
use integration::nerdctl::Nerdctl;
use integration::own_host::{self, OwnHost};
use integration::packages::{Suite, unpacked};
use integration::podman::{Cgroups, Frontend, Podman, Release};
use integration::skip;

/// How long a script may take; the slowest loads nothing and starts two containers.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(240);

/// Cards on which both containers fit.
const PROFILES: [&str; 2] = ["two-ada", "old-driver"];

/// A card that is too small for the second container.
const SMALL: &str = r#"
[driver]
version = "570.195.03"

[[card]]
name = "Simulated card"
memory_mib = 5120
architecture = "ada"
"#;

/// Runs the simulated driver beside the script, which is given as the first argument, with the profile that the second one names.
const WITH_CARDS: &str = r#"
cgpu-sim --profile "${2:-two-ada}" > sim.log 2>&1 & sim=$!
for i in $(seq 100); do grep -q ready sim.log && break; sleep 0.1; done
"$1"; code=$?
echo "left: $(cgpu ps -q | tr '\n' ' ')$(ctr containers ls -q | tr '\n' ' ')"
kill $sim; wait $sim
exit $code
"#;

/// On a host of its own, whose image has nothing of ours in it.
fn on_a_host<F>(test: &str, body: F) -> Result<()>
where
    F: FnOnce(&mut OwnHost) -> Result<()> + Send + 'static,
{
    own_host::on_one(test, |host| {
        host.load_plain_image()?;
        body(host)
    })
}

fn run(host: &OwnHost, script: &str, profile: &str) -> Result<Outcome> {
    let path = repository().join("examples").join(script);
    let mut shell = host.shell()?;
    shell.args(["-c", WITH_CARDS, "sh"]).arg(path).arg(profile);
    capture(&mut shell, LIMIT)
}

/// With each of [`PROFILES`] the script shows `parts`, one after the other. Where the second container finds no room it fails, and leaves
/// nothing.
fn shares_a_card(host: &OwnHost, script: &str, parts: &[&str]) -> Result<()> {
    for profile in PROFILES {
        let ran = run(host, script, profile)?.success()?;
        let mut rest = ran.stdout.as_str();
        for part in parts {
            let at = rest
                .find(part)
                .with_context(|| format!("no {part} in {ran:?}"))?;
            rest = rest.get(at + part.len()..).unwrap_or_default();
        }
        let cards = cards_of_running(&ran);
        ensure!(
            cards.len() == 2 && cards[0] == cards[1],
            "with {profile} on one card: {ran:?}"
        );
        nothing_left(&ran)?;
    }
    let small = host.node.root().join("small.toml");
    fs::write(&small, SMALL)?;
    let ran = run(host, script, &small.display().to_string())?;
    ensure!(ran.code != Some(0), "{ran:?}");
    nothing_left(&ran)
}

/// What two containers of 4 and 2 GiB show, of which the first then gets 6.
const SLICES: [&str; 5] = [
    "/4096 MiB",
    "/2048 MiB",
    "fixed 60 %",
    "4096 MiB -> 6144 MiB",
    "/6144 MiB",
];

/// The column CARD of `cgpu ps`, of its containers.
fn cards_of_running(ran: &Outcome) -> Vec<&str> {
    let rows = ran.stdout.lines();
    rows.filter(|line| line.contains(" MiB ") && line.contains(" running "))
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect()
}

fn nothing_left(ran: &Outcome) -> Result<()> {
    let left = ran.stdout.lines().last().unwrap_or_default();
    ensure!(left == "left: ", "{ran:?}");
    Ok(())
}

#[test]
fn two_containers_of_containerd_share_a_card() -> Result<()> {
    on_a_host("two_containers_of_containerd_share_a_card", |host| {
        shares_a_card(host, "containerd.sh", &SLICES)
    })
}

#[test]
fn two_containers_of_docker_share_a_card() -> Result<()> {
    on_a_host("two_containers_of_docker_share_a_card", |host| {
        host.start_docker()?;
        shares_a_card(host, "docker.sh", &SLICES)
    })
}

#[test]
fn two_services_of_compose_share_a_card() -> Result<()> {
    let test = "two_services_of_compose_share_a_card";
    let compose = match unpacked(Suite::Trixie, "engines/compose", &["docker-compose"]) {
        Ok(root) => root,
        Err(error) => skip!(test, "{error:#}"),
    };
    on_a_host(test, move |host| {
        host.start_docker()?;
        let plugins = Path::new("/usr/lib/docker/cli-plugins");
        fs::create_dir_all(plugins)?;
        fs::copy(
            compose.join("usr/libexec/docker/cli-plugins/docker-compose"),
            plugins.join("docker-compose"),
        )?;
        let parts = ["/6144 MiB", "/2048 MiB", "shared-card-inference-1"];
        shares_a_card(host, "compose.sh", &parts)
    })
}

#[test]
fn two_containers_of_nerdctl_share_a_card() -> Result<()> {
    let test = "two_containers_of_nerdctl_share_a_card";
    if let Err(error) = integration::nerdctl::program() {
        skip!(test, "{error:#}");
    }
    on_a_host(test, |host| {
        let nerdctl = Nerdctl::new(&host.node, &host.containerd)?;
        nerdctl.load(&host.image)?;
        OwnHost::provide("nerdctl", &nerdctl.command(&[]))?;
        shares_a_card(host, "nerdctl.sh", &SLICES)
    })
}

#[test]
fn two_containers_of_podman_share_a_card() -> Result<()> {
    let test = "two_containers_of_podman_share_a_card";
    let release = match Release::fetch(Suite::Host) {
        Ok(release) => release,
        Err(error) => skip!(test, "{error:#}"),
    };
    on_a_host(test, move |host| {
        let runc = Path::new("/usr/sbin/runc");
        let mut podman = Podman::start(&host.node, &release, Frontend::Plain, runc, Cgroups::Host)?;
        podman.load(&host.image)?;
        OwnHost::provide("podman", &podman.command(&[]))?;
        let shared = shares_a_card(host, "podman.sh", &SLICES);
        podman.stop()?;
        shared
    })
}

#[test]
fn the_example_without_an_engine_holds_its_quota() -> Result<()> {
    on_a_host("the_example_without_an_engine_holds_its_quota", |host| {
        let script = repository().join("examples/without-an-engine.sh");
        let ran = succeed(host.shell()?.arg(script))?;
        ensure!(
            ran.stdout.matches("/2048 MiB").count() == 2,
            "each of two cards gives half of 4 GiB: {}",
            ran.stdout
        );
        ensure!(
            ran.stdout.contains("NV_ERR_NO_MEMORY"),
            "2 GiB do not fit into 1 GiB: {}",
            ran.stdout
        );
        Ok(())
    })
}

/// The OCI runtime cannot make a file in it to bind the program over, and so the container must do without.
#[test]
fn an_image_that_nobody_can_write_starts_without_our_program() -> Result<()> {
    on_a_host(
        "an_image_that_nobody_can_write_starts_without_our_program",
        |host| {
            let script = host.node.root().join("fixed.sh");
            fs::write(&script, FIXED_IMAGE)?;
            let mut shell = host.shell()?;
            shell.args(["-c", WITH_CARDS, "sh", "/bin/sh"]);
            let mut shell = host.shell()?;
            let ran = capture(
                shell
                    .args(["-c", &WITH_CARDS.replace("\"$1\"", "sh \"$1\""), "sh"])
                    .arg(&script),
                LIMIT,
            )?
            .success()?;
            ensure!(ran.stdout.contains("in it: no program of ours"), "{ran:?}");
            nothing_left(&ran)
        },
    )
}

/// Its state is the state of the container's first process; what that finds is in a file.
const FIXED_IMAGE: &str = r#"
set -eu
mkdir -p bundle/rootfs && cd bundle
mount -t tmpfs fixed rootfs
trap 'cgpu-runtime delete --force fixed; umount rootfs' EXIT
mkdir rootfs/bin rootfs/dev rootfs/proc rootfs/sys
cp "$(command -v busybox)" rootfs/bin/busybox
mount -o remount,ro rootfs
runc spec
sed -i 's/"terminal": true/"terminal": false/
    s|"sh"$|"busybox", "sleep", "1000"|
    s|"ociVersion"|"annotations": {"cgpu.io/memory": "1Gi"}, "ociVersion"|' config.json
cgpu-runtime create --bundle . fixed > create.log 2>&1
cgpu-runtime start fixed
cgpu-runtime exec fixed busybox ls /dev/nvidia0
if cgpu-runtime exec fixed busybox ls /usr/bin/cgpu; then exit 1; fi
echo in it: no program of ours
"#;
