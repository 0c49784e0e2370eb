//! `cgpu smi`

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::Args;
use control::slice_record::SliceRecord;
use rmclient::Nodes;

use crate::output::{self, Reader};
use crate::render::query::{self, AppFields, Csv, GpuFields};
use crate::render::{self, Look};
use view::smi::{Absent, RECORD_FILE, Smi, collect};

/// Where the driver's nodes are, unless `--dev` says otherwise.
const DEV: &str = "/dev";

/// Below the help of `cgpu smi`.
pub(super) const EXAMPLES: &str = "\
Fields of --query-gpu: timestamp, driver_version, count, index, name, uuid, pci.bus_id, memory.total, memory.used, memory.free,
utilization.gpu. Fields of --query-compute-apps: timestamp, gpu_name, gpu_bus_id, gpu_uuid, pid, process_name, used_memory.
All others that nvidia-smi documents are [N/A], and so is what is not known here.

Examples:
  cgpu smi
  cgpu smi -L
  cgpu smi -l 2
  cgpu smi --query-gpu=index,memory.used,memory.total --format=csv,noheader,nounits
  cgpu smi --query-compute-apps=pid,process_name,used_memory";

/// The options of `cgpu smi`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Print a JSON document instead of tables.
    #[arg(long, conflicts_with_all = ["list", "query_gpu", "query_compute_apps"])]
    json: bool,
    /// List the GPUs and their UUIDs, one a line.
    #[arg(short = 'L', long = "list-gpus", conflicts_with_all = ["query_gpu", "query_compute_apps"])]
    list: bool,
    /// Show this GPU alone: its index, UUID or bus id.
    #[arg(short = 'i', long, value_name = "GPU")]
    id: Option<String>,
    /// Show it again every SEC seconds, until interrupted; 5 where none are given.
    #[arg(
        short = 'l',
        long = "loop",
        value_name = "SEC",
        num_args = 0..=1,
        default_missing_value = "5",
        value_parser = clap::value_parser!(u64).range(1..=86_400)
    )]
    every_s: Option<u64>,
    /// Print these fields of each GPU, for example index,memory.used.
    #[arg(long, value_name = "FIELDS", conflicts_with = "query_compute_apps")]
    query_gpu: Option<GpuFields>,
    /// Print these fields of each process on a GPU, for example pid,used_memory.
    #[arg(long, value_name = "FIELDS")]
    query_compute_apps: Option<AppFields>,
    /// How a query is printed: csv, and behind it noheader and nounits.
    #[arg(
        long,
        value_name = "csv[,noheader][,nounits]",
        default_value = "csv",
        hide_default_value = true
    )]
    format: Csv,
    /// The folder with the driver's device nodes.
    #[arg(long, value_name = "DIR", default_value = DEV)]
    dev: PathBuf,
}

pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let mut format = options.format;
    loop {
        let smi = chosen(visible(&options.dev)?, options.id.as_deref())?;
        let text = text(options, format, &smi)?;
        // A query that finds nothing, and has no header, is no line.
        let reader = if text.is_empty() {
            Reader::There
        } else {
            output::print(&text).context("write to standard output")?
        };
        match options.every_s {
            Some(every_s) if reader == Reader::There => {
                // One header is enough for a reader of lines.
                format.has_header = false;
                std::thread::sleep(Duration::from_secs(every_s));
            }
            Some(_) | None => return Ok(ExitCode::SUCCESS),
        }
    }
}

fn text(options: &Options, format: Csv, smi: &Smi) -> anyhow::Result<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_millis();
    let at_unix_ms = u64::try_from(now).unwrap_or(u64::MAX);
    if options.json {
        return Ok(view::json(smi)?);
    }
    if options.list {
        return Ok(render::smi::list(smi));
    }
    if let Some(fields) = &options.query_gpu {
        return Ok(query::of_cards(smi, fields, format, at_unix_ms));
    }
    if let Some(fields) = &options.query_compute_apps {
        return Ok(query::of_processes(smi, fields, format, at_unix_ms));
    }
    let table = render::smi::render(smi, Look::of_output());
    Ok(match options.every_s {
        Some(_) => format!("{}\n{table}\n", view::moment(at_unix_ms)),
        None => table,
    })
}

/// The document with one card alone.
fn chosen(mut smi: Smi, id: Option<&str>) -> anyhow::Result<Smi> {
    let Some(id) = id else {
        return Ok(smi);
    };
    let is_meant = |card: &view::smi::SmiCard| {
        card.index.to_string() == id || card.uuid == id || card.bus_id == id
    };
    if !smi.cards.iter().any(is_meant) {
        let all: Vec<String> = smi
            .cards
            .iter()
            .map(|card| format!("{} ({})", card.index, card.uuid))
            .collect();
        bail!("no GPU {id:?} here; there are {}", all.join(", "));
    }
    smi.cards.retain(is_meant);
    Ok(smi)
}

/// What the driver shows here, or the simulator of this host.
fn visible(dev: &Path) -> anyhow::Result<Smi> {
    let record = SliceRecord::read(&dev.join(RECORD_FILE));
    match collect(&Nodes::in_dir(dev), &record).context("query the driver")? {
        Ok(smi) => Ok(smi),
        Err(Absent::Driver(node)) => {
            let simulated = if dev == Path::new(DEV) {
                simulated()?
            } else {
                None
            };
            simulated.with_context(|| {
                let simulator = if nix::unistd::geteuid().is_root() {
                    "cgpu-sim does not run"
                } else {
                    "only root sees simulated GPUs"
                };
                format!(
                    "no GPU here: {} does not exist, and {simulator}. In a container: it was given no GPU. On the host: load NVIDIA's \
                     driver, or simulate GPUs with `cgpu-sim --profile two-ada`",
                    node.display()
                )
            })
        }
        Err(Absent::Cards(missing)) => bail!(
            "the driver answers, but no card is visible here: none of {} exists",
            listed(&missing)
        ),
    }
}

/// The simulated cards of this host, which have no nodes; `None` where it simulates none.
#[cfg(feature = "host")]
fn simulated() -> anyhow::Result<Option<Smi>> {
    use view::host_driver::{ANSWER, HostDriver};
    use view::{cards, ps, smi};
    let config = host_config::Config::load()?;
    let driver = HostDriver::of(&config);
    if driver != HostDriver::Sim {
        return Ok(None);
    }
    if let Some(why) = driver.trouble(&config, ANSWER) {
        // Another user may not ask it: that is no fault of the simulator's.
        if let Err(error) = HostDriver::ask_simulator(&config, ANSWER)
            && error.kind() == std::io::ErrorKind::PermissionDenied
        {
            return Err(
                anyhow::Error::from(error).context("ask the simulator of this host's cards")
            );
        }
        bail!("the simulator of this host's cards does not answer: {why}");
    }
    let (cards, vgpus) = (cards::collect(&config)?, ps::collect(&config)?);
    for unread in &vgpus.unread {
        tracing::warn!("a container cannot be read: {unread}");
    }
    Ok(Some(smi::simulated(&cards, &vgpus)))
}

/// A container knows nothing of its host.
#[cfg(not(feature = "host"))]
fn simulated() -> anyhow::Result<Option<Smi>> {
    Ok(None)
}

fn listed(paths: &[PathBuf]) -> String {
    if paths.is_empty() {
        return "its (empty) list of cards".to_owned();
    }
    let paths: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    paths.join(", ")
}
