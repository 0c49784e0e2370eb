//! The image of a node: a layout whose parts name each other by their digests, with the files of its packages, that every engine loads
//! and runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;
use integration::command::{LIMIT, Outcome, succeed, wait_until};
use integration::containerd::{Containerd, RUNC};
use integration::docker::Docker;
use integration::engines::Engines;
use integration::image::Image;
use integration::nerdctl::{self, Nerdctl};
use integration::node::Node;
use integration::oci::OciRuntime;
use integration::packages::Suite;
use integration::podman::{Cgroups, Frontend, Podman, Release};
use integration::skip;
use oci_spec::image::{
    Descriptor, ImageConfiguration, ImageIndex, ImageManifest, MediaType, OciLayout,
};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::common::{MAKERS, build, lacking, package, packages};
use crate::listing::files;

const NAME: &str = "cgpu-node";

fn image() -> Result<Image> {
    Ok(Image {
        name: build(1)?.image_name(NAME),
        tar: package(packages()?, NAME, ".oci.tar")?,
    })
}

/// The regular files of a tar: path, mode and bytes.
type Tar = BTreeMap<PathBuf, (u32, Vec<u8>)>;

fn unpack(bytes: &[u8]) -> Result<Tar> {
    let mut files = Tar::new();
    for entry in tar::Archive::new(bytes).entries()? {
        let mut entry = entry?;
        let (path, header) = (entry.path()?.into_owned(), entry.header().clone());
        ensure!(
            header.mtime()? == build(1)?.epoch,
            "{path:?} has another time"
        );
        ensure!(
            (header.uid()?, header.gid()?) == (0, 0),
            "{path:?} is not root's"
        );
        if header.entry_type().is_file() {
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes)?;
            let twice = files.insert(path.clone(), (header.mode()?, bytes));
            ensure!(twice.is_none(), "{path:?} is there twice");
        }
    }
    Ok(files)
}

fn sha256(bytes: &[u8]) -> String {
    let digits = Sha256::digest(bytes);
    let digits: String = digits.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

/// A layout that was read back.
struct Layout {
    index: ImageIndex,
    manifest: ImageManifest,
    config: ImageConfiguration,
    /// Each layer's files.
    layers: Vec<Tar>,
    files: Tar,
}

impl Layout {
    /// Reads the tests' own image; every descriptor's digest and size hold, and so does each layer's diff id.
    fn read() -> Result<Self> {
        let files = unpack(&fs::read(image()?.tar)?)?;
        let file = |name: &str| -> Result<&[u8]> {
            let (_, bytes) = files
                .get(Path::new(name))
                .with_context(|| name.to_owned())?;
            Ok(bytes)
        };
        let layout = OciLayout::from_reader(file("oci-layout")?)?;
        ensure!(layout.image_layout_version() == "1.0.0", "{layout:?}");
        let mut reached = BTreeSet::new();
        let mut blob = |of: &Descriptor, kind: MediaType| -> Result<&[u8]> {
            ensure!(*of.media_type() == kind, "{of:?} is no {kind}");
            let path = format!("blobs/{}", of.digest().to_string().replace(':', "/"));
            let bytes = file(&path)?;
            ensure!(sha256(bytes) == of.digest().to_string(), "{of:?}");
            ensure!(bytes.len() as u64 == of.size(), "{of:?}");
            reached.insert(PathBuf::from(path));
            Ok(bytes)
        };
        let index = ImageIndex::from_reader(file("index.json")?)?;
        let [manifest] = index.manifests().as_slice() else {
            anyhow::bail!("{index:?}");
        };
        let manifest = ImageManifest::from_reader(blob(manifest, MediaType::ImageManifest)?)?;
        let config =
            ImageConfiguration::from_reader(blob(manifest.config(), MediaType::ImageConfig)?)?;
        let diff_ids = config.rootfs().diff_ids();
        ensure!(diff_ids.len() == manifest.layers().len(), "{diff_ids:?}");
        let mut layers = Vec::new();
        for (layer, diff_id) in manifest.layers().iter().zip(diff_ids) {
            let mut bytes = Vec::new();
            GzDecoder::new(blob(layer, MediaType::ImageLayerGzip)?).read_to_end(&mut bytes)?;
            ensure!(sha256(&bytes) == *diff_id, "{layer:?} is not {diff_id}");
            layers.push(unpack(&bytes)?);
        }
        let blobs: BTreeSet<PathBuf> = files
            .keys()
            .filter(|path| path.starts_with("blobs"))
            .cloned()
            .collect();
        ensure!(blobs == reached, "{blobs:?} are not {reached:?}");
        Ok(Self {
            index,
            manifest,
            config,
            layers,
            files,
        })
    }
}

#[test]
fn every_part_of_the_image_is_named_by_its_digest_and_has_a_time() -> Result<()> {
    const TEST: &str = "every_part_of_the_image_is_named_by_its_digest_and_has_a_time";
    if let Some(reason) = lacking(&MAKERS) {
        skip!(TEST, "{reason}");
    }
    let layout = Layout::read()?;
    let (name, created) = (image()?.name, Some("2023-11-14T22:13:20Z".to_owned()));
    // umoci ends with a panic where a time is absent.
    ensure!(*layout.config.created() == created, "{:?}", layout.config);
    let history = layout.config.history().as_deref().unwrap_or_default();
    ensure!(history.len() == layout.layers.len(), "{history:?}");
    ensure!(
        history.iter().all(|entry| *entry.created() == created),
        "{history:?}"
    );
    let config = layout.config.config().as_ref().context("no config")?;
    let labels = config.labels().as_ref().context("no labels")?;
    for key in [
        "title", "source", "version", "revision", "licenses", "created",
    ] {
        let label = labels.get(&format!("org.opencontainers.image.{key}"));
        ensure!(label.is_some_and(|value| !value.is_empty()), "no {key}");
    }
    let manifest = layout.index.manifests().first().context("a manifest")?;
    let annotations = manifest.annotations().as_ref().context("no annotations")?;
    for key in [
        "org.opencontainers.image.ref.name",
        "io.containerd.image.name",
    ] {
        ensure!(annotations.get(key) == Some(&name), "{annotations:?}");
    }
    // What an older docker reads names the same parts.
    let (_, docker) = &layout.files[Path::new("manifest.json")];
    let docker: Value = serde_json::from_slice(docker)?;
    let path = |of: &Descriptor| format!("blobs/{}", of.digest().to_string().replace(':', "/"));
    ensure!(
        docker[0]["Config"] == path(layout.manifest.config()),
        "{docker}"
    );
    let layers: Vec<String> = layout.manifest.layers().iter().map(path).collect();
    ensure!(docker[0]["Layers"] == serde_json::json!(layers), "{docker}");
    ensure!(docker[0]["RepoTags"][0] == name, "{docker}");
    Ok(())
}

#[test]
fn the_image_has_the_files_of_its_packages_and_libraries_with_licences() -> Result<()> {
    const TEST: &str = "the_image_has_the_files_of_its_packages_and_libraries_with_licences";
    if let Some(reason) = lacking(&MAKERS) {
        skip!(TEST, "{reason}");
    }
    let layout = Layout::read()?;
    let [libraries, layers @ ..] = layout.layers.as_slice() else {
        anyhow::bail!("no layers");
    };
    for (name, layer) in ["cgpu", "cgpu-agent"].iter().zip(layers) {
        let unpacked = tempfile::tempdir()?;
        let deb = package(packages()?, name, ".deb")?;
        succeed(
            Command::new("dpkg-deb")
                .arg("-x")
                .arg(deb)
                .arg(unpacked.path()),
        )?;
        let listing = succeed(
            Command::new("find")
                .args([".", "-type", "f"])
                .current_dir(unpacked.path()),
        )?;
        let of_deb = files(&listing.stdout);
        let of_image: Vec<String> = layer
            .keys()
            .map(|path| format!("/{}", path.display()))
            .collect();
        ensure!(
            of_deb == files(&of_image.join("\n")),
            "{name}: {of_image:?}"
        );
        for (path, (mode, bytes)) in layer {
            let deb = unpacked.path().join(path);
            ensure!(*bytes == fs::read(&deb)?, "{path:?} differs");
            let of_deb = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&deb)?);
            ensure!(of_deb & 0o7777 == *mode, "{path:?}: {of_deb:o}, {mode:o}");
        }
    }
    ensure!(layers.len() == 2, "{} layers", layers.len());
    let is_library = |path: &Path| path.to_string_lossy().contains(".so");
    let (found, others): (Vec<_>, Vec<_>) = libraries.keys().partition(|path| is_library(path));
    for name in [
        "libc.so.6",
        "libgcc_s.so.1",
        "libdl.so.2",
        "ld-linux-x86-64.so.2",
    ] {
        ensure!(found.iter().any(|path| path.ends_with(name)), "{found:?}");
    }
    ensure!(others.len() >= 2, "licences: {others:?}");
    Ok(())
}

/// What an engine must do with the image; `run` takes the engine's options and the command.
fn runs(run: impl Fn(&[&str], &[&str]) -> Result<Outcome>) -> Result<()> {
    let version = run(&[], &["cgpu", "--version"])?.success()?;
    ensure!(version.stdout.starts_with("cgpu 0."), "{version:?}");
    let agent = run(&[], &["cgpu-agent", "--version"])?.success()?;
    ensure!(agent.stdout.starts_with("cgpu-agent 0."), "{agent:?}");
    let help = run(&[], &["cgpu", "doctor", "--help"])?.success()?;
    ensure!(help.stdout.contains("--repair"), "{help:?}");
    // Every program finds its libraries, also those that only cgpu starts.
    for program in ["cgpu-broker", "cgpu-executor", "cgpu-limits", "cgpu-top"] {
        let path = format!("/usr/libexec/cgpu/{program}");
        let version = run(&[], &[&path, "--version"])?.success()?;
        ensure!(version.stdout.starts_with(program), "{version:?}");
    }
    Ok(())
}

/// Where the image can be tried with the engines of a release.
fn engines(test: &str, suite: Suite) -> Result<Option<(Node, Engines, Image)>> {
    if let Some(reason) = lacking(&MAKERS) {
        skip::record(test, &reason);
        return Ok(None);
    }
    match Engines::fetch(suite) {
        Ok(engines) => Ok(Some((Node::bare()?, engines, image()?))),
        Err(error) => {
            skip::record(test, &format!("no engines: {error:#}"));
            Ok(None)
        }
    }
}

#[test]
fn containerd_imports_and_runs_the_image() -> Result<()> {
    let Some((node, engines, image)) =
        engines("containerd_imports_and_runs_the_image", Suite::Host)?
    else {
        return Ok(());
    };
    let mut containerd = Containerd::start(&node, &engines)?;
    containerd.import(&image)?;
    runs(|options, program| {
        let options = [&["--runtime", RUNC], options].concat();
        containerd.run_once(&image, "once", &options, program)
    })?;
    containerd.stop()?;
    node.finish()
}

#[test]
fn nerdctl_loads_and_runs_the_image() -> Result<()> {
    const TEST: &str = "nerdctl_loads_and_runs_the_image";
    let Some((node, engines, image)) = engines(TEST, Suite::Host)? else {
        return Ok(());
    };
    if let Err(error) = nerdctl::program() {
        skip!(TEST, "no nerdctl: {error:#}");
    }
    let mut containerd = Containerd::start(&node, &engines)?;
    let nerdctl = Nerdctl::new(&node, &containerd)?;
    nerdctl.load(&image)?;
    runs(|options, program| {
        let mut args = vec!["run", "--rm", "--net=none", "--runtime", RUNC];
        args.extend(options);
        args.push(&image.name);
        args.extend(program);
        nerdctl.nerdctl(&args)
    })?;
    containerd.stop()?;
    node.finish()
}

/// Debian 12's docker, which knows no OCI layout.
#[test]
fn docker_20_loads_the_image_and_its_agent_serves_metrics() -> Result<()> {
    docker(
        "docker_20_loads_the_image_and_its_agent_serves_metrics",
        Suite::Host,
    )
}

#[test]
fn docker_26_loads_the_image_and_its_agent_serves_metrics() -> Result<()> {
    docker(
        "docker_26_loads_the_image_and_its_agent_serves_metrics",
        Suite::Trixie,
    )
}

fn docker(test: &str, suite: Suite) -> Result<()> {
    let Some((node, engines, image)) = engines(test, suite)? else {
        return Ok(());
    };
    let mut containerd = Containerd::start(&node, &engines)?;
    let mut docker = Docker::start(&node, &containerd)?;
    docker.load(&image)?;
    let run = |options: &[&str], program: &[&str]| {
        let mut args = vec!["run", "--network=none"];
        args.extend(options);
        args.push(&image.name);
        args.extend(program);
        docker.docker(&args)
    };
    runs(|options, program| run(&[&["--rm"], options].concat(), program))?;
    // Without a command it says what it has.
    let help = run(&["--rm"], &[])?.success()?;
    ensure!(help.stdout.contains("cgpu doctor"), "{help:?}");
    serves_metrics(&node, &run)?;
    installs(&node, &run)?;
    docker.stop()?;
    drop(docker);
    containerd.stop()?;
    node.finish()
}

/// The programs are copied to a host's tree by hand, and the image tells its engine of them; `cgpu install --host` is in `daemonset.rs`.
fn installs(node: &Node, run: &impl Fn(&[&str], &[&str]) -> Result<Outcome>) -> Result<()> {
    let host = node.root().join("host");
    for layer in Layout::read()?.layers {
        for (path, (mode, bytes)) in layer {
            let below_usr = path
                .strip_prefix("usr")
                .unwrap_or_else(|_other| Path::new(""));
            if below_usr.starts_with("bin") || below_usr.starts_with("libexec") {
                let to = host.join("opt/cgpu").join(below_usr);
                fs::create_dir_all(to.parent().context("a file has a folder")?)?;
                fs::write(&to, bytes)?;
                fs::set_permissions(&to, fs::Permissions::from_mode(mode))?;
            }
        }
    }
    fs::create_dir_all(host.join("etc/docker"))?;
    let daemon = host.join("etc/docker/daemon.json");
    fs::write(&daemon, r#"{"debug": true}"#)?;
    let mount = format!("{}:/host", host.display());
    let options = ["--rm", "-v", &mount];
    let of_host = ["--root", "/host", "--engine", "docker@24.0"];
    let install = ["cgpu", "install", "--programs", "/opt/cgpu/bin"];
    run(&options, &[install.as_slice(), &of_host].concat())?.success()?;
    let text = fs::read_to_string(&daemon)?;
    let shim = "/opt/cgpu/bin/containerd-shim-cgpu-v2";
    ensure!(text.contains(shim) && text.contains("debug"), "{text}");
    run(
        &options,
        &[&["cgpu", "uninstall"], of_host.as_slice()].concat(),
    )?
    .success()?;
    let text = fs::read_to_string(&daemon)?;
    ensure!(text == r#"{"debug": true}"#, "{text}");
    Ok(())
}

/// As in a DaemonSet: nothing can be written but what is mounted.
fn serves_metrics(node: &Node, run: &impl Fn(&[&str], &[&str]) -> Result<Outcome>) -> Result<()> {
    let folder = node.root().join("agent");
    fs::create_dir_all(&folder)?;
    let mount = format!("{}:/run/cgpu-agent", folder.display());
    let state = format!("{}:/run/cgpu", node.state_dir().display());
    let options = ["-d", "--read-only", "-v", &mount, "-v", &state];
    let socket = "unix:/run/cgpu-agent/metrics.sock";
    let history = "/run/cgpu-agent/history";
    let command = ["cgpu-agent", "--listen", socket, "--history-dir", history];
    run(&options, &command)?.success()?;
    let socket = folder.join("metrics.sock");
    // It is there a moment before anybody listens on it.
    wait_until("the agent to listen", LIMIT, || {
        Ok(UnixStream::connect(&socket).is_ok())
    })?;
    let mut client = UnixStream::connect(&socket)?;
    client.set_read_timeout(Some(LIMIT))?;
    client.write_all(b"GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
    let mut reply = String::new();
    client.read_to_string(&mut reply)?;
    ensure!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    ensure!(reply.contains("cgpu_build_info{"), "{reply}");
    Ok(())
}

#[test]
fn podman_loads_and_runs_the_image() -> Result<()> {
    const TEST: &str = "podman_loads_and_runs_the_image";
    let Some((node, _, image)) = engines(TEST, Suite::Host)? else {
        return Ok(());
    };
    let parts =
        || Ok::<_, anyhow::Error>((Release::fetch(Suite::Host)?, OciRuntime::HostRunc.fetch()?));
    let (release, runc) = match parts() {
        Ok(parts) => parts,
        Err(error) => skip!(TEST, "no podman: {error:#}"),
    };
    let mut podman = Podman::start(&node, &release, Frontend::Plain, &runc, Cgroups::Host)?;
    podman.load(&image)?;
    runs(|options, program| podman.run(&image, &[&["--rm"], options].concat(), program))?;
    podman.stop()?;
    drop(podman);
    node.finish()
}
