//! `cgpu install` before real engines: their own checks take what it writes, and a container starts under the runtime's name.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use integration::cache;
use integration::command::{LIMIT, Outcome, capture, find, succeed, wait_until};
use integration::containerd::Containerd;
use integration::crictl::{self, Crictl, NAMESPACE, PodContainer, Processes};
use integration::docker::Docker;
use integration::engines::Engines;
use integration::image::{self, Image};
use integration::node::Node;
use integration::packages::Suite;
use integration::picture::picture;
use integration::podman::Release;
use integration::pods::PodsSetup;
use integration::programs::Programs;
use integration::rig::TWO_CARDS;
use integration::skip;
use serde_json::Value;

const GIB: u64 = 1 << 30;
const MAIN: &str = "etc/containerd/config.toml";

fn put(root: &Path, path: &str, text: &str) -> Result<()> {
    let path = root.join(path);
    fs::create_dir_all(path.parent().context("a file's folder")?)?;
    Ok(fs::write(path, text)?)
}

fn link(program: &Path, root: &Path, path: &str) -> Result<()> {
    let path = root.join(path);
    fs::create_dir_all(path.parent().context("a program's folder")?)?;
    Ok(symlink(program, path)?)
}

/// A host's tree with a release's engines and our programs in it.
fn host(engines: &Engines, programs: &Programs, root: &Path) -> Result<()> {
    for name in ["containerd", "dockerd", "docker-proxy"] {
        link(&engines.program(name)?, root, &format!("usr/sbin/{name}"))?;
    }
    for name in ["containerd-shim-cgpu-v2", "cgpu-runtime", "cgpu-hook"] {
        link(&programs.program(name)?, root, &format!("usr/bin/{name}"))?;
    }
    Ok(())
}

fn cgpu(programs: &Programs, root: &Path, args: &[&str]) -> Result<Outcome> {
    let mut command = Command::new(programs.program("cgpu")?);
    command.args(args).arg("--root").arg(root);
    capture(&mut command, LIMIT)
}

fn done(programs: &Programs, root: &Path, args: &[&str]) -> Result<Value> {
    let mut args = args.to_vec();
    args.push("--json");
    cgpu(programs, root, &args)?.success()?.json()
}

fn engine<'a>(report: &'a Value, name: &str) -> Result<&'a Value> {
    report["engines"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|engine| engine["engine"] == name)
        .with_context(|| format!("{name} in {report}"))
}

/// What containerd reads when `root`'s `/etc` is its own, in a mount namespace that nobody else sees.
fn containerd_reads(engines: &Engines, root: &Path) -> Result<String> {
    let unshare = find("unshare").context("no unshare in PATH")?;
    let mut command = Command::new(unshare);
    command
        .args(["--mount", "--propagation", "private", "sh", "-c"])
        .arg("mount --bind \"$1\" /etc && exec \"$2\" config dump")
        .arg("sh")
        .arg(root.join("etc"))
        .arg(engines.program("containerd")?);
    Ok(succeed(&mut command)?.stdout)
}

/// Settings that a node has, in the form of each of containerd's releases.
fn main_files(major: u32, distribution: Option<String>) -> Vec<String> {
    let mut files = vec![
        String::new(),
        r#"# the node's
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "example.test/pause:1" # theirs
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata]
    runtime_type = "io.containerd.kata.v2"
"#
        .to_owned(),
    ];
    if major >= 2 {
        files.push(
            r#"version = 3
imports = ["/etc/containerd/conf.d/*.toml"]

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = 'example.test/pause:1'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = true
"#
            .to_owned(),
        );
    }
    files.extend(distribution);
    files
}

fn checked(suite: Suite, test: &str) -> Result<()> {
    let engines = match Engines::fetch(suite) {
        Ok(engines) => engines,
        Err(error) => skip!(test, "{error:#}"),
    };
    let programs = Programs::for_tests()?;
    let version = engines.containerd_version()?;
    let major = version.0;
    let shim = if version < (1, 7) {
        "\"io.containerd.cgpu.v2\""
    } else {
        "/usr/bin/containerd-shim-cgpu-v2"
    };
    let validates = engines.docker_version()?.0 >= 23;
    let distribution = fs::read_to_string(engines.root().join(MAIN)).ok();
    for main in main_files(major, distribution) {
        let root = tempfile::tempdir()?;
        let root = root.path();
        host(&engines, programs, root)?;
        fs::create_dir_all(root.join("var/lib"))?;
        fs::create_dir_all(root.join("etc"))?;
        put(
            root,
            "etc/docker/daemon.json",
            "{\"log-level\": \"warn\"}\n",
        )?;
        if !main.is_empty() {
            put(root, MAIN, &main)?;
        }
        let before = picture(root)?;
        for options in [&["install"][..], &["install", "--default"]] {
            let report = done(programs, root, options)?;
            assert_eq!(
                engine(&report, "containerd")?["check"]["outcome"],
                "passed",
                "{report}"
            );
            let docker = &engine(&report, "docker")?["check"]["outcome"];
            assert_eq!(
                docker,
                if validates { "passed" } else { "not_run" },
                "{report}"
            );
            let reads = containerd_reads(&engines, root)?;
            assert!(reads.contains(shim), "{reads}");
            if main.contains("example.test/pause:1") {
                assert!(reads.contains("example.test/pause:1"), "{reads}");
            }
            if main.contains("SystemdCgroup = true") {
                // Beside the node's runc; on 1.6 the handler has no options.
                let expected = if version < (1, 7) { 1 } else { 2 };
                assert_eq!(
                    reads.matches("SystemdCgroup = true").count(),
                    expected,
                    "{reads}"
                );
            }
            if options.len() > 1 {
                continue;
            }
            let installed = picture(root)?;
            let again = done(programs, root, options)?;
            assert_eq!(engine(&again, "containerd")?["state"], "unchanged");
            ensure!(
                picture(root)? == installed,
                "a second install changed something"
            );
        }
        let report = done(programs, root, &["uninstall"])?;
        let remarks = engine(&report, "docker")?["remarks"].to_string();
        assert!(remarks.contains("systemctl restart docker"), "{report}");
        ensure!(
            picture(root)? == before,
            "uninstall left something of {main:?}"
        );
        if main.contains("conf.d/*.toml") {
            a_default_by_hand_stays(programs, root, &main)?;
        }
        if major >= 2 {
            // A killed run leaves the drop-in without its import, and a hand may leave the import without the drop-in.
            let drop_in = root.join("etc/containerd/conf.d/cgpu.toml");
            done(programs, root, &["install"])?;
            let text = fs::read(&drop_in)?;
            fs::remove_file(&drop_in)?;
            containerd_reads(&engines, root)?;
            done(programs, root, &["uninstall"])?;
            fs::create_dir_all(drop_in.parent().context("its folder")?)?;
            fs::write(&drop_in, text)?;
            containerd_reads(&engines, root)?;
        }
    }
    Ok(())
}

/// containerd itself takes a default runtime that does not exist; its CRI plugin does not load then.
fn a_default_by_hand_stays(programs: &Programs, root: &Path, main: &str) -> Result<()> {
    done(programs, root, &["install", "--engine", "containerd"])?;
    let by_hand =
        "[plugins.'io.containerd.cri.v1.runtime'.containerd]\n  default_runtime_name = 'cgpu'\n";
    put(root, MAIN, &format!("{main}{by_hand}"))?;
    let installed = picture(root)?;
    let error = cgpu(programs, root, &["uninstall"])?.failure()?;
    assert!(error.contains("does not exist then"), "{error}");
    ensure!(picture(root)? == installed, "{error}, and something went");
    put(root, MAIN, main)?;
    done(programs, root, &["uninstall"])?;
    Ok(())
}

#[test]
fn containerd_1_6_and_docker_20_take_what_is_written() -> Result<()> {
    checked(
        Suite::Host,
        "containerd_1_6_and_docker_20_take_what_is_written",
    )
}

#[test]
fn containerd_1_7_and_docker_26_take_what_is_written() -> Result<()> {
    checked(
        Suite::Trixie,
        "containerd_1_7_and_docker_26_take_what_is_written",
    )
}

#[test]
fn containerd_2_and_docker_28_take_what_is_written() -> Result<()> {
    checked(
        Suite::Newer,
        "containerd_2_and_docker_28_take_what_is_written",
    )
}

#[test]
fn an_import_that_would_hide_the_runtime_is_seen_before_anything_is_written() -> Result<()> {
    const TEST: &str = "an_import_that_would_hide_the_runtime_is_seen_before_anything_is_written";
    let engines = match Engines::fetch(Suite::Host) {
        Ok(engines) => engines,
        Err(error) => skip!(TEST, "{error:#}"),
    };
    let programs = Programs::for_tests()?;
    let root = tempfile::tempdir()?;
    let root = root.path();
    host(&engines, programs, root)?;
    put(
        root,
        MAIN,
        "version = 2\nimports = [\"/etc/containerd/site/*.toml\"]\n",
    )?;
    let site = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"example.test/pause:1\"\n";
    put(root, "etc/containerd/site/cri.toml", site)?;
    let before = picture(root)?;
    let error = cgpu(programs, root, &["install", "--engine", "containerd"])?.failure()?;
    assert!(error.contains("imports replaces its section"), "{error}");
    assert_eq!(picture(root)?, before);
    Ok(())
}

#[test]
fn podman_takes_what_is_written() -> Result<()> {
    const TEST: &str = "podman_takes_what_is_written";
    if let Err(error) = Release::fetch(Suite::Host) {
        skip!(TEST, "{error:#}");
    }
    let programs = Programs::for_tests()?;
    let root = tempfile::tempdir()?;
    let root = root.path();
    let engines = cache::folder().join("engines");
    link(
        &engines.join("podman-host-linked/podman"),
        root,
        "usr/bin/podman",
    )?;
    link(
        &engines.join("conmon/usr/bin/conmon"),
        root,
        "usr/bin/conmon",
    )?;
    for name in ["cgpu-runtime", "cgpu-hook"] {
        link(&programs.program(name)?, root, &format!("usr/bin/{name}"))?;
    }
    let before = picture(root)?;
    let report = done(programs, root, &["install", "--default"])?;
    assert_eq!(
        engine(&report, "podman")?["check"]["outcome"],
        "passed",
        "{report}"
    );
    // Podman would take a runtime whose program is gone for none.
    fs::remove_file(root.join("usr/bin/cgpu-runtime"))?;
    let error = cgpu(programs, root, &["install"])?.failure()?;
    assert!(error.contains("cgpu-runtime"), "{error}");
    link(
        &programs.program("cgpu-runtime")?,
        root,
        "usr/bin/cgpu-runtime",
    )?;
    done(programs, root, &["uninstall"])?;
    assert_eq!(picture(root)?, before);
    Ok(())
}

/// Everything that runs while a node's containerd and dockerd are on files below `root`.
struct Installed {
    crictl: Crictl,
    containerd: Containerd,
    docker: Docker,
    image: Image,
    node: Node,
    root: PathBuf,
    programs: &'static Programs,
}

impl Installed {
    fn start(suite: Suite) -> Result<Result<Self, String>> {
        if let Some(reason) = skip::lacks_root() {
            return Ok(Err(reason.to_owned()));
        }
        if let Err(error) = crictl::program() {
            return Ok(Err(format!("{error:#}")));
        }
        let engines = match Engines::fetch(suite) {
            Ok(engines) => engines,
            Err(error) => return Ok(Err(format!("{error:#}"))),
        };
        let programs = Programs::for_tests()?;
        let node = Node::simulated(programs, &engines, TWO_CARDS)?;
        let setup = match PodsSetup::new(&node, &engines) {
            Ok(setup) => setup,
            Err(error) => return Ok(Err(format!("{error:#}"))),
        };
        let (pause, image) = (setup.pause.clone(), image::busybox(Some(programs))?);
        let crictl = Crictl::new(&node)?;
        let containerd = Containerd::start_for_pods(&node, &engines, setup)?;
        for image in [&pause, &image] {
            containerd.import_into(NAMESPACE, image)?;
        }
        let docker = Docker::start(&node, &containerd)?;
        docker.load(&image)?;

        // From here on their files are below a root of their own, without a word of us.
        let root = node.root().join("host");
        host(&engines, programs, &root)?;
        link(
            programs.folder(),
            &root,
            programs
                .folder()
                .strip_prefix("/")?
                .to_str()
                .context("UTF-8")?,
        )?;
        fs::create_dir_all(root.join("var/lib"))?;
        let own = node
            .root()
            .join(format!("containerd-{}/config.toml", suite.name()));
        put(
            &root,
            MAIN,
            &without_ours(&fs::read_to_string(&own)?, &root),
        )?;
        put(
            &root,
            "etc/docker/daemon.json",
            "{\n\t\"log-level\": \"info\"\n}\n",
        )?;
        let docker_own = node
            .root()
            .join(format!("docker-{}/daemon.json", suite.name()));
        for (own, path) in [(own, MAIN), (docker_own, "etc/docker/daemon.json")] {
            fs::remove_file(&own)?;
            symlink(root.join(path), own)?;
        }
        Ok(Ok(Self {
            crictl,
            containerd,
            docker,
            image,
            node,
            root,
            programs,
        }))
    }

    /// What an admin does after an install or uninstall.
    fn restart(&mut self) -> Result<()> {
        // `docker run --rm` ends before its container is removed, and a containerd that ends then leaves a shim's socket.
        wait_until("docker's containers to be removed", LIMIT, || {
            let listed = self.docker.docker(&["ps", "-aq"])?.success()?;
            Ok(listed.stdout.trim().is_empty())
        })?;
        self.containerd.stop()?;
        self.containerd.restart()?;
        self.docker.stop_and_start()?;
        wait_until("the images", LIMIT, || {
            let reply = self
                .crictl
                .crictl(&self.containerd, &["images", "-o", "json"])?;
            Ok(reply.succeeded() && reply.stdout.contains(&self.image.name))
        })
    }

    fn docker_runs(&self) -> Result<Outcome> {
        self.docker.docker(&[
            "run",
            "--rm",
            "--network=none",
            "--runtime",
            "cgpu",
            "-e",
            "ALIYUN_COM_GPU_MEM_CONTAINER=4",
            "-e",
            "ALIYUN_COM_GPU_MEM_DEV=24",
            &self.image.name,
            "cgpu",
            "smi",
            "--json",
        ])
    }

    fn pod_runs(&self) -> Result<Value> {
        let annotations = ["cgpu.io/memory=4Gi"];
        let pod = self
            .crictl
            .pod("by-name", &annotations, Processes::OfTheContainer)?;
        let sandbox = self.crictl.run_pod(&self.containerd, &pod, "cgpu")?;
        let container = PodContainer {
            name: "one",
            program: &["sleep", "100000"],
            ..PodContainer::default()
        };
        let id = self.crictl.run_container(
            &self.containerd,
            &sandbox,
            &pod,
            &self.image.name,
            &container,
        )?;
        self.crictl
            .crictl(
                &self.containerd,
                &["exec", "-s", &id, "cgpu", "smi", "--json"],
            )?
            .success()?
            .json()
    }

    fn finish(mut self) -> Result<()> {
        self.crictl.remove_all(&self.containerd)?;
        self.docker.stop()?;
        drop(self.docker);
        self.containerd.stop()?;
        drop(self.containerd);
        self.node.finish()
    }
}

/// The harness's configuration without its handlers for our shim, and with the drop-ins' folder of its root.
fn without_ours(text: &str, root: &Path) -> String {
    let mut kept = Vec::new();
    let mut ours = false;
    for line in text.lines() {
        if line.starts_with('[') {
            ours = line.contains(".containerd.runtimes.cgpu");
        }
        if !ours {
            kept.push(line.to_owned());
        }
        if line == "version = 3" {
            kept.push(format!(
                "imports = [\"{}/etc/containerd/conf.d/*.toml\"]",
                root.display()
            ));
        }
    }
    kept.join("\n") + "\n"
}

fn runs_by_name(suite: Suite, test: &str) -> Result<()> {
    let mut host = match Installed::start(suite)? {
        Ok(host) => host,
        Err(reason) => skip!(test, "{reason}"),
    };
    let before = picture(&host.root)?;
    let folder = host.programs.folder().to_str().context("UTF-8")?.to_owned();
    let report = done(
        host.programs,
        &host.root,
        &["install", "--programs", &folder],
    )?;
    for name in ["containerd", "docker"] {
        assert_eq!(engine(&report, name)?["state"], "changed", "{report}");
    }
    host.restart()?;
    for smi in [host.pod_runs()?, host.docker_runs()?.success()?.json()?] {
        let total = smi["cards"][0]["memory_total_bytes"].as_u64();
        assert_eq!(total, Some(4 * GIB), "{smi}");
    }
    host.crictl.remove_all(&host.containerd)?;

    done(host.programs, &host.root, &["uninstall"])?;
    ensure!(picture(&host.root)? == before, "uninstall left something");
    host.restart()?;
    let reply = host.docker_runs()?.failure()?;
    assert!(reply.to_lowercase().contains("unknown"), "{reply}");
    let reply = format!("{:#}", host.pod_runs().err().context("a handler is left")?);
    assert!(reply.contains("is configured"), "{reply}");
    host.finish()
}

#[test]
fn pods_and_docker_containers_run_by_name_on_containerd_1_6() -> Result<()> {
    runs_by_name(
        Suite::Host,
        "pods_and_docker_containers_run_by_name_on_containerd_1_6",
    )
}

#[test]
fn pods_and_docker_containers_run_by_name_on_containerd_1_7() -> Result<()> {
    runs_by_name(
        Suite::Trixie,
        "pods_and_docker_containers_run_by_name_on_containerd_1_7",
    )
}

#[test]
fn pods_and_docker_containers_run_by_name_on_containerd_2() -> Result<()> {
    runs_by_name(
        Suite::Newer,
        "pods_and_docker_containers_run_by_name_on_containerd_2",
    )
}
