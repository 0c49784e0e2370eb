//! `cgpu-tree`: this host's cards and containers as files, in the shape of cGPU's `/proc/cgpu_km`, for scripts that read and write there.
//!
//! ```text
//!   cat, echo ──▶ kernel (FUSE) ──▶ filesystem ──▶ hierarchy ◀── a thread that asks brokers and reads the state folder
//!                                       └──▶ changes: what `cgpu set` does, one at a time
//! ```
//!
//! `node` numbers files and folders, `names` calls containers' folders, `hierarchy` is all files of one moment, `request` reads what is
//! written: these are pure. `mount` makes the mount and takes it away.
//!
//! No container depends on it, and it decides nothing: what is shown is `view`'s, what is changed is `vgpu`'s.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod changes;
mod errno;
mod filesystem;
mod hierarchy;
mod mount;
mod names;
mod node;
mod opened;
mod options;
mod request;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use fuser::{Session, SessionACL};
use host_config::Config;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use view::host_driver::HostDriver;
use view::inventories::Inventories;
use view::service;
use view::source::Source;

use self::changes::Changes;
use self::filesystem::Tree;
use self::hierarchy::{Hierarchy, Serials};
use self::mount::Mount;

pub use self::options::Options;

/// In the state folder.
const FOLDER: &str = "cgpu_km";

/// How long a simulator may take to answer: a silent one makes no file late for long.
const SIMULATOR: Duration = Duration::from_millis(300);

/// Serves until SIGTERM or SIGINT, and takes the mount away.
///
/// # Errors
/// A configuration that cannot be read; not root, no FUSE, another program of this kind; a mount that somebody else has taken away.
pub fn run(options: &Options) -> anyhow::Result<()> {
    service::log();
    let config = Arc::new(Config::load()?);
    let target = options.mount.clone();
    let target = target.unwrap_or_else(|| config.state_dir.join(FOLDER));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the event loop")?;
    let source = Arc::new(collect(Arc::clone(&config))?);
    let renewed = Arc::clone(&source);
    let changes = Arc::new(Changes::start(config, move || renewed.renew())?);
    let tree = Tree::new(source, Arc::clone(&changes), runtime.handle().clone());
    let (mount, device) = Mount::new(&target)?;
    let session = Session::from_fd(tree, device, SessionACL::Owner, fuser::Config::default());
    let session = session.context("talk to the kernel's FUSE")?.spawn()?;
    let served = runtime.block_on(async {
        let ended = when_unmounted(move || session.join());
        tracing::info!(mount = %target.display(), "serving");
        service::ready();
        until_ended(ended).await
    });
    service::stopping();
    drop(mount);
    changes.finish();
    tracing::info!("ended");
    served
}

/// Collects the files of a moment when somebody looks.
fn collect(config: Arc<Config>) -> anyhow::Result<Source<Hierarchy>> {
    let mut inventories = Inventories::default();
    let mut serials = Serials::default();
    let mut log = Changing::default();
    Source::start("files", move || {
        let found = hierarchy(&config, &mut inventories, &mut serials);
        log.set(match &found {
            Ok((hierarchy, unread)) if hierarchy.left_out + unread > 0 => Some(format!(
                "containers are not shown: {unread} cannot be read, {} are too many",
                hierarchy.left_out
            )),
            Ok(_) => None,
            Err(error) => Some(format!("nothing can be shown: {error:#}")),
        });
        found.map(|(hierarchy, _)| hierarchy)
    })
}

/// What there is now, and how many containers cannot be read.
fn hierarchy(
    config: &Config,
    inventories: &mut Inventories,
    serials: &mut Serials,
) -> anyhow::Result<(Hierarchy, usize)> {
    let driver = HostDriver::of(config);
    let inventory = inventories.of(driver, config)?;
    let cards = view::cards::collect_of(config, driver, inventory, SIMULATOR)?;
    let all = view::ps::each(config, SIMULATOR)?;
    let count = all.len();
    let vgpus: Vec<_> = all.into_iter().filter_map(|(_, read)| read.ok()).collect();
    let unread = count - vgpus.len();
    Ok((Hierarchy::new(cards.cards, vgpus, serials), unread))
}

/// A state that is logged when it changes, and not each second.
#[derive(Debug, Default)]
struct Changing(Option<String>);

impl Changing {
    fn set(&mut self, state: Option<String>) {
        if state != self.0 {
            match &state {
                Some(text) => tracing::warn!("{text}"),
                None => tracing::info!("all is shown"),
            }
            self.0 = state;
        }
    }
}

/// Hears when the kernel has no more questions.
fn when_unmounted(
    join: impl FnOnce() -> std::io::Result<()> + Send + 'static,
) -> oneshot::Receiver<std::io::Result<()>> {
    let (send, ended) = oneshot::channel();
    std::thread::spawn(move || {
        // Nobody hears it at this program's end.
        let _unheard = send.send(join());
    });
    ended
}

async fn until_ended(unmounted: oneshot::Receiver<std::io::Result<()>>) -> anyhow::Result<()> {
    let mut terminated = signal(SignalKind::terminate()).context("await SIGTERM")?;
    let mut interrupted = signal(SignalKind::interrupt()).context("await SIGINT")?;
    tokio::select! {
        _ = terminated.recv() => Ok(()),
        _ = interrupted.recv() => Ok(()),
        ended = unmounted => match ended {
            Ok(Err(error)) => Err(error).context("the kernel's FUSE"),
            Ok(Ok(())) | Err(_) => bail!("somebody else has unmounted the tree"),
        }
    }
}
