//! `cargo xtask long roots`: the packages in roots of distributions, each with its own C library, runc and containerd, on this
//! machine's kernel.
//!
//! ```text
//!   debootstrap ─▶ root ─▶ dpkg -i ─▶ doctor, cgpu run ─▶ its containerd ─▶ its docker's absence ─▶ purge ─▶ as before?
//! ```

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use integration::cache::repository;
use integration::command::{Outcome, progress};
use integration::image;
use integration::packages::ensure_installed;
use integration::picture::Picture;
use integration::programs::{Profile, Programs};
use integration::roots::{Root, System};
use packaging::{Build, CargoPackages, Form};

use crate::machine;

/// The systems, oldest first within a distribution.
const SYSTEMS: [System; 8] = [
    System::debian("Debian 11", "bullseye"),
    System::BOOKWORM,
    System::debian("Debian 13", "trixie"),
    System::debian("Debian testing", "forky"),
    System::ubuntu("Ubuntu 20.04", "focal"),
    System::ubuntu("Ubuntu 22.04", "jammy"),
    System::ubuntu("Ubuntu 24.04", "noble"),
    System::ubuntu("Ubuntu 26.04", "resolute"),
];

/// What is in each root beside the least of the system.
const PACKAGES: [&str; 2] = ["containerd", "runc"];

#[derive(clap::Args)]
pub(super) struct Options {
    /// Only systems whose name contains this; nothing is written.
    #[arg(long)]
    only: Option<String>,
}

/// A row of the page.
struct Row {
    system: &'static str,
    facts: Result<Facts, String>,
    /// What was asked, and its answer.
    answers: Vec<(&'static str, Result<String, String>)>,
}

struct Facts {
    glibc: String,
    runc: String,
    containerd: String,
}

pub(super) fn run(options: &Options) -> Result<ExitCode> {
    ensure_installed(&[
        ("debootstrap", "debootstrap"),
        ("curl", "curl"),
        ("strip", "binutils"),
        ("zstd", "zstd"),
    ])?;
    let began = Instant::now();
    let programs = Programs::build(Profile::Dev)?;
    let packages = tempfile::tempdir()?;
    let build = Build::for_tests(
        repository(),
        programs.folder(),
        CargoPackages {
            host: Programs::host_packages(),
            containers: Programs::static_packages(),
        },
    );
    packaging::write(&build, &[Form::Deb], packages.path())?;
    // For images without a C library.
    fs::copy(
        programs.folder().join("static/cgpu-burn"),
        packages.path().join("static-burn"),
    )?;
    for script in QUICK_STARTS {
        let path = repository().join("examples").join(script);
        fs::copy(path, packages.path().join(script))?;
    }
    fs::copy(image::busybox(None)?.tar, packages.path().join("image.tar"))?;
    let only = options.only.as_deref().unwrap_or_default();
    let chosen = SYSTEMS.iter().filter(|system| system.name.contains(only));
    let rows: Vec<Row> = chosen.map(|system| ask(system, packages.path())).collect();
    ensure!(!rows.is_empty(), "no system's name contains {only:?}");
    let page = page(&rows, began);
    print!("{page}");
    if options.only.is_none() {
        let path = repository().join("docs/reports/roots.md");
        fs::write(&path, &page)?;
        println!("wrote {}", path.display());
    }
    let failed = rows
        .iter()
        .any(|row| row.facts.is_err() || row.answers.iter().any(|(_, answer)| answer.is_err()));
    Ok(ExitCode::from(u8::from(failed)))
}

/// What is asked of every system.
const COLUMNS: [&str; 6] = [
    "packages to the first slice",
    "doctor",
    "quick starts",
    "quota, cgpu run",
    "quota, its containerd",
    "removed, as before",
];

fn ask(system: &System, packages: &Path) -> Row {
    progress(system.name);
    let mut row = Row {
        system: system.name,
        facts: Err("not made".to_owned()),
        answers: Vec::new(),
    };
    let root = match Root::of(system, &PACKAGES) {
        Ok(root) => root,
        Err(error) => {
            row.facts = Err(format!("no root: {error:#}"));
            return row;
        }
    };
    let made = root.bring(packages, "packages").and_then(|()| facts(&root));
    let is_too_old = match &made {
        Ok(facts) => is_older(&facts.glibc, 2, 34),
        Err(_) => false,
    };
    let containerd = made.as_ref().map(|facts| facts.containerd.clone());
    let containerd = containerd.unwrap_or_default();
    row.facts = made.map_err(|error| format!("{error:#}"));
    if row.facts.is_err() {
        return row;
    }
    let mut record = |column, answer: Result<String>| {
        let is_well = answer.is_ok();
        row.answers
            .push((column, answer.map_err(|error| format!("{error:#}"))));
        is_well
    };
    let Ok(before) = root.picture() else {
        record(COLUMNS[0], Err(anyhow::anyhow!("the root cannot be read")));
        return row;
    };
    if is_too_old {
        record(COLUMNS[0], refused(&root, &before));
        return row;
    }
    if !record(COLUMNS[0], installed(&root)) {
        return row;
    }
    record(COLUMNS[1], doctor(&root));
    record(COLUMNS[2], quick_starts(&root, &containerd));
    record(COLUMNS[3], by_run(&root));
    record(COLUMNS[4], by_containerd(&root));
    record(COLUMNS[5], removed(&root, &before));
    row
}

fn is_older(version: &str, major: u32, minor: u32) -> bool {
    let mut numbers = version
        .split('.')
        .map_while(|part| part.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < (major, minor)
}

fn facts(root: &Root) -> Result<Facts> {
    let reply =
        root.run("getconf GNU_LIBC_VERSION; runc --version | head -n 1; containerd --version")?;
    let text = reply.success()?.stdout;
    let lines: Vec<&str> = text.lines().collect();
    let [glibc, runc, containerd] = lines.as_slice() else {
        bail!("versions: {text}");
    };
    let last = |line: &str| line.split(' ').next_back().unwrap_or_default().to_owned();
    let third = containerd.split(' ').nth(2).unwrap_or_default();
    Ok(Facts {
        glibc: last(glibc),
        runc: last(runc),
        containerd: third.trim_start_matches('v').to_owned(),
    })
}

/// The sentence with which an older system is refused.
fn refused(root: &Root, before: &Picture) -> Result<String> {
    let printed = root.run("dpkg -i /packages/cgpu_*.deb")?.failure()?;
    let sentence = printed.lines().find(|line| line.contains("cgpu needs"));
    let sentence = sentence.with_context(|| format!("no sentence in {printed}"))?;
    // dpkg notes that the package was requested.
    root.compare(before, &["/var/lib/dpkg/status"])?;
    Ok(format!("refused: {}", sentence.trim()))
}

fn installed(root: &Root) -> Result<String> {
    let script = format!(
        "began=$(date +%s%N)\ndpkg -i /packages/*.deb\n{CARDS}cgpu run --memory 4Gi -- cgpu smi || exit 1\n\
         echo \"took $((($(date +%s%N) - began) / 100000000))\""
    );
    let ran = root.run(&script)?.success()?;
    in_order(&ran, &["4096 MiB"])?;
    let mut lines = ran.stdout.lines();
    let tenths = lines.find_map(|line| line.strip_prefix("took ")?.parse::<u32>().ok());
    let tenths = tenths.with_context(|| format!("no time in {ran:?}"))?;
    Ok(format!("{}.{} s", tenths / 10, tenths % 10))
}

/// Scripts of `examples/` that need no more than containerd.
const QUICK_STARTS: [&str; 2] = ["containerd.sh", "without-an-engine.sh"];

/// The scripts as they are for people, on a containerd at its usual place.
fn quick_starts(root: &Root, containerd: &str) -> Result<String> {
    // Its client has no annotations.
    let is_too_old = is_older(containerd, 1, 6);
    let script = format!(
        "{CARDS}cd /packages/\n[ {is_too_old} = true ] || {{ {USUAL_CONTAINERD}\nsh ./containerd.sh || exit 1\n{NO_CONTAINERD}; }}\n\
         sh ./without-an-engine.sh || exit 1\necho \"left: $(cgpu ps -q)\""
    );
    let ran = root.run(&script)?.success()?;
    in_order(&ran, &["2048 MiB", "NV_ERR_NO_MEMORY", "left: \n"])?;
    if is_too_old {
        return Ok("cgpu run; its ctr has no annotations".to_owned());
    }
    in_order(&ran, &["4096 MiB -> 6144 MiB", "fixed 60 %"])?;
    Ok("containerd, cgpu run".to_owned())
}

/// What it makes for itself outlives it.
const NO_CONTAINERD: &str = r"kill $containerd; wait $containerd; umount /var/lib/containerd; rmdir $made 2> /dev/null; true";

/// containerd without configuration, and the image that the scripts are given.
const USUAL_CONTAINERD: &str = r#"
made=
for folder in /etc/cni/net.d /etc/cni /opt/containerd/bin /opt/containerd/lib /opt/containerd /var/lib/containerd; do [ -e $folder ] || made="$made $folder"; done
mkdir -p /run/containerd /var/lib/containerd
mount -t tmpfs tmpfs /var/lib/containerd
containerd > /run/containerd.log 2>&1 & containerd=$!
for i in $(seq 200); do ctr version > /dev/null 2>&1 && break; sleep 0.1; done
ctr images import /packages/image.tar > /dev/null
export IMAGE=$(ctr images ls -q | head -n 1)
"#;

/// Simulated cards, for the script behind it.
const CARDS: &str = r#"
cgpu-sim --profile two-ada > /run/sim.log 2>&1 &
for i in $(seq 200); do grep -q ready /run/sim.log && break; sleep 0.1; done
"#;

fn in_order(reply: &Outcome, expected: &[&str]) -> Result<()> {
    for part in expected {
        let is_there = reply.stdout.contains(part);
        ensure!(
            is_there,
            "no {part:?} in {}\n{}",
            reply.stdout,
            reply.stderr
        );
    }
    Ok(())
}

fn doctor(root: &Root) -> Result<String> {
    let reply = root.run(&format!("{CARDS}cgpu doctor; echo \"ends with $?\""))?;
    in_order(&reply, &["/usr/libexec/cgpu/cgpu-broker", "ends with 0"])?;
    Ok("well".to_owned())
}

fn by_run(root: &Root) -> Result<String> {
    let script = format!(
        "{CARDS}cgpu run --memory 1Gi -- cgpu-burn alloc 2Gi; echo \"above: $?\"\n\
         cgpu run --memory 1Gi -- cgpu-burn alloc 512Mi; echo \"within: $?\"\n\
         cgpu run --memory 1Gi -- cgpu smi"
    );
    let reply = root.run(&script)?;
    in_order(&reply, &["above: 3", "within: 0", "1024 MiB"])?;
    Ok("held".to_owned())
}

/// A container of the system's own containerd and runc.
const CONTAINERD: &str = r#"
mkdir -p /run/c /srv/image/bin
cp /packages/static-burn /srv/image/bin/cgpu-burn
cat > /run/c/config.toml <<END
version = 2
root = "/run/c/root"
state = "/run/c/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.internal.v1.opt"]
[grpc]
address = "/run/c/containerd.sock"
END
containerd --config /run/c/config.toml > /run/c/log 2>&1 &
for i in $(seq 200); do ctr -a /run/c/containerd.sock version > /dev/null 2>&1 && break; sleep 0.1; done
start() { name=$1; shift; ctr -a /run/c/containerd.sock run --rm --rootfs --runtime io.containerd.cgpu.v2 "$@"; echo "$name: $?"; }
start plain /srv/image plain /bin/cgpu-burn --version
# By the environment: ctr of containerd 1.5 has no annotations.
quota="--env ALIYUN_COM_GPU_MEM_CONTAINER=1 --env ALIYUN_COM_GPU_MEM_DEV=24"
start above $quota /srv/image above /bin/cgpu-burn alloc 2Gi
start within $quota /srv/image within /bin/cgpu-burn alloc 512Mi
cgpu ps --json | grep -c '"container":'
rm -r /srv/image
tail -n 3 /run/c/log
"#;

fn by_containerd(root: &Root) -> Result<String> {
    let reply = root.run(&format!("{CARDS}{CONTAINERD}"))?;
    in_order(&reply, &["plain: 0", "above: 3", "within: 0"])?;
    Ok("held".to_owned())
}

fn removed(root: &Root, before: &Picture) -> Result<String> {
    root.run("dpkg --purge cgpu-agent cgpu-sim kubectl-cgpu cgpu")?
        .success()?;
    root.compare(before, &[])?;
    Ok("yes".to_owned())
}

fn page(rows: &[Row], began: Instant) -> String {
    let mut page = format!(
        "# Roots of distributions\n\nWritten by `cargo xtask long roots`; {} s, {}. Each root is made by debootstrap with the system's own C library, runc and containerd, and runs on this\n\
         machine's kernel and control groups: what differs there is the user space. The packages are those of this tree. \"Packages to the first slice\": from `dpkg -i` with the packages at hand to `cgpu smi` in a slice of simulated cards. \"Quick starts\": scripts of `examples/`, as they are, with an image that has nothing of\n\
         ours. \"Quota\": an allocation of 2 GiB in a slice of 1 GiB is refused\n\
         (exit code 3), one of 512 MiB is made; by `cgpu run`, and in a container that the system's containerd starts with its runc by the type `io.containerd.cgpu.v2`. \"As before\": after\n\
         purge, each file of the root has the mode, owner and content that it had before the packages came.\n\n",
        began.elapsed().as_secs(),
        machine::describe(),
    );
    let mut line = |cells: &[String]| {
        // A `String` takes whatever is written.
        let _infallible = writeln!(page, "| {} |", cells.join(" | "));
    };
    let headings = ["system", "glibc", "runc", "containerd"].iter();
    let headings: Vec<String> = headings
        .chain(&COLUMNS)
        .map(|text| (*text).to_owned())
        .collect();
    line(&headings);
    line(&vec!["---".to_owned(); headings.len()]);
    let mut faults = Vec::new();
    for row in rows {
        let mut cells = vec![row.system.to_owned()];
        match &row.facts {
            Ok(facts) => {
                cells.extend([&facts.glibc, &facts.runc, &facts.containerd].map(Clone::clone))
            }
            Err(why) => faults.push(format!("{}: {why}", row.system)),
        }
        for column in COLUMNS {
            let answer = row.answers.iter().find(|(name, _)| *name == column);
            cells.push(match answer {
                None => "-".to_owned(),
                Some((_, Ok(text))) => text.clone(),
                Some((_, Err(why))) => {
                    faults.push(format!("{}, {column}: {why}", row.system));
                    "**no**".to_owned()
                }
            });
        }
        line(&cells);
    }
    if !faults.is_empty() {
        page.push_str(&format!("\n```text\n{}\n```\n", faults.join("\n\n")));
    }
    page
}
