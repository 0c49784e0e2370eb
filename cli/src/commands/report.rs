//! `cgpu report`: what helps others to understand this host, in one archive. Nothing of a container's request, environment or files is in it.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use host_config::Config;
use host_config::config::DEFAULT_PATH;
use vgpu::Container;
use view::events::{Line, Subject};
use view::metrics::text::{Dialect, TextForm};
use view::ps::{Ps, PsVgpu, State};
use view::version::{Build, Document};
use view::{cards, metrics, moment, ps};

use super::{doctor, version};
use crate::output::print;
use crate::render::Look;

/// Containers whose logs are taken: those first that are not well.
const CONTAINERS_MOST: usize = 64;
/// What is taken of one file.
const FILE_BYTES_MOST: u64 = 1 << 20;

/// Files of the host that are taken as they are, where they exist.
const HOST_FILES: [&str; 6] = [
    "/etc/os-release",
    "/proc/version",
    "/proc/meminfo",
    "/proc/cgroups",
    "/proc/driver/nvidia/version",
    "/proc/driver/nvidia/params",
];

/// Below the help of `cgpu report`.
pub(super) const EXAMPLES: &str = "\
In it are: what `cgpu doctor`, `ps`, `cards`, `events` and `metrics` say, cgpu.toml, the brokers' logs, and which kernel, system
and driver this is. Names of containers, pods and processes are in these. Not in it: containers' specs, environments and files,
engines' configurations, host names and addresses. Look before you send it: `tar tzf FILE`.

Examples:
  cgpu report
  cgpu report --output /tmp/cgpu.tar.gz";

/// The options of `cgpu report`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// The archive, which must not exist. Default: cgpu-report-TIME.tar.gz in this folder.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn run(options: &Options, build: Build) -> anyhow::Result<ExitCode> {
    if !nix::unistd::geteuid().is_root() {
        bail!("`cgpu report` needs root: it reads the state folder");
    }
    let now = cards_now();
    let path = options.output.clone().unwrap_or_else(|| {
        let time = moment(now).replace([':', '-'], "");
        let time = time.get(..15).unwrap_or(&time);
        PathBuf::from(format!("cgpu-report-{time}.tar.gz"))
    });
    let file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("create {}", path.display()))?;
    let mut archive = Archive {
        tar: tar::Builder::new(GzEncoder::new(file, Compression::default())),
        at_unix_s: now / 1000,
        contents: String::new(),
    };
    let written = fill(&mut archive, build).and_then(|()| archive.end());
    if let Err(error) = written {
        // Half of an archive says less than the error.
        let removed = std::fs::remove_file(&path);
        return Err(error).context(match removed {
            Ok(()) => format!("write {}", path.display()),
            Err(why) => format!("write {}, which stays ({why})", path.display()),
        });
    }
    print(&format!(
        "{} is written; `tar tzf` lists what is in it",
        path.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn cards_now() -> u64 {
    ::cards::events::now_unix_ms()
}

/// An archive, and the list of what is in it.
struct Archive {
    tar: tar::Builder<GzEncoder<File>>,
    at_unix_s: u64,
    contents: String,
}

impl Archive {
    /// Adds a text, or why there is none: the next reader must not take a gap for a fact.
    fn add(&mut self, name: &str, text: anyhow::Result<String>) -> anyhow::Result<()> {
        match text {
            Ok(text) => {
                self.write(name, text.as_bytes())?;
                self.contents.push_str(&format!("{name}\n"));
            }
            Err(error) => {
                let line = format!("{name} is left out: {error:#}\n");
                self.contents.push_str(&line);
            }
        }
        Ok(())
    }

    /// Adds a file of the host's, its end where it is long; nothing where it does not exist.
    fn add_file(&mut self, name: &str, path: &Path) -> anyhow::Result<()> {
        if !path.exists() {
            return Ok(());
        }
        let text = end_of(path).with_context(|| format!("read {}", path.display()));
        self.add(name, text)
    }

    fn write(&mut self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(bytes.len())?);
        header.set_mode(0o644);
        header.set_mtime(self.at_unix_s);
        let name = format!("cgpu-report/{name}");
        self.tar.append_data(&mut header, name, bytes)?;
        Ok(())
    }

    fn end(mut self) -> anyhow::Result<()> {
        let contents = std::mem::take(&mut self.contents);
        self.write("contents.txt", contents.as_bytes())?;
        self.tar.into_inner()?.finish()?.sync_all()?;
        Ok(())
    }
}

fn end_of(path: &Path) -> std::io::Result<String> {
    use std::io::{Seek, SeekFrom};
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    // Files of proc say 0.
    if length > FILE_BYTES_MOST {
        file.seek(SeekFrom::Start(length - FILE_BYTES_MOST))?;
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MOST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn fill(archive: &mut Archive, build: Build) -> anyhow::Result<()> {
    archive.add(
        "version.txt",
        version::lines(&Document::of(build)).map_err(Into::into),
    )?;
    for path in HOST_FILES {
        archive.add_file(&format!("host{path}"), Path::new(path))?;
    }
    let loaded = Config::load();
    let configuration = std::env::var_os(host_config::config::PATH_VARIABLE);
    let configuration = configuration.map_or_else(|| PathBuf::from(DEFAULT_PATH), PathBuf::from);
    archive.add_file("cgpu.toml", &configuration)?;
    let doctor = doctor::assessed(&loaded);
    archive.add(
        "doctor.txt",
        Ok(crate::render::doctor::render(&doctor, Look::WIDE)),
    )?;
    archive.add("doctor.json", view::json(&doctor).map_err(Into::into))?;
    let Ok(config) = loaded else {
        return Ok(());
    };
    let cards = cards::collect(&config);
    archive.add(
        "cards.json",
        cards.and_then(|cards| Ok(view::json(&cards)?)),
    )?;
    let metrics = metrics::collect(&config, build);
    let metrics =
        metrics.and_then(|all| metrics::text::render(&all, TextForm::Prometheus, &[Dialect::Cgpu]));
    archive.add("metrics.prom", metrics)?;
    archive.add("events.jsonl", events(&config))?;
    let ps = ps::collect(&config).map_err(anyhow::Error::from);
    match ps {
        Ok(ps) => containers(archive, &config, ps),
        Err(error) => archive.add("ps.json", Err(error)),
    }
}

fn events(config: &Config) -> anyhow::Result<String> {
    let mut lines = Vec::new();
    for subject in Subject::all(config, None)? {
        let (events, names) = subject.log(config, None)?;
        for event in &events {
            let line = serde_json::to_string(&Line::new(&subject, &names, event))?;
            lines.push((event.at_unix_ms, line));
        }
    }
    lines.sort();
    Ok(lines.into_iter().map(|(_, line)| line + "\n").collect())
}

fn containers(archive: &mut Archive, config: &Config, ps: Ps) -> anyhow::Result<()> {
    archive.add("ps.json", view::json(&ps).map_err(Into::into))?;
    for unread in &ps.unread {
        let line = format!("a container cannot be read: {unread}\n");
        archive.contents.push_str(&line);
    }
    let is_well = |vgpu: &PsVgpu| {
        vgpu.state == State::Running && vgpu.health.as_deref().is_none_or(|health| health == "ok")
    };
    let mut vgpus = ps.vgpus;
    vgpus.sort_by_key(is_well);
    for vgpu in vgpus.iter().take(CONTAINERS_MOST) {
        let key = ::cards::ContainerKey::new(&*vgpu.namespace, &*vgpu.container)?;
        let container = Container::new(config.clone(), key);
        let folder = format!("logs/{}/{}", vgpu.namespace, vgpu.container);
        let logs = container.logs();
        archive.add_file(&format!("{folder}/broker.1.log"), &logs.older)?;
        archive.add_file(&format!("{folder}/broker.log"), &logs.current)?;
    }
    let left_out = vgpus.len().saturating_sub(CONTAINERS_MOST);
    if left_out > 0 {
        let line = format!("logs of {left_out} containers are left out, which are well\n");
        archive.contents.push_str(&line);
    }
    Ok(())
}
