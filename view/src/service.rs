//! What programs that are services have in common: their log, and what they report to systemd (`sd_notify(3)`; without systemd nothing is sent).

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use sd_notify::NotifyState;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Begins the names of what the journal has beside a line's text, as in `CGPU_CONTAINER`.
const FIELD_PREFIX: &str = "CGPU";

/// It serves from now on.
pub fn ready() {
    notify(NotifyState::Ready);
}

/// It ends.
pub fn stopping() {
    notify(NotifyState::Stopping);
}

/// Reports to the unit's watchdog, twice in its time, that the event loop turns. Never ends.
pub async fn watchdog() {
    let Some(time) = sd_notify::watchdog_enabled() else {
        return std::future::pending().await;
    };
    loop {
        notify(NotifyState::Watchdog);
        tokio::time::sleep(time / 2).await;
    }
}

fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "systemd is not notified");
    }
}

/// Logs at the level that `CGPU_LOG` names, else `info`: as a service of systemd's to the journal, whose entries have fields, elsewhere to
/// standard error. Called once.
pub fn log() {
    let (filter, problem) = logfile::filter::of_environment(LevelFilter::INFO);
    // It writes the whole of an answer that it cannot read: megabytes that tenants have written.
    let filter = match "kube_client::client=error".parse() {
        Ok(quiet) => filter.add_directive(quiet),
        Err(_never) => filter,
    };
    let journal = is_to_journal().then(tracing_journald::layer);
    // Its socket may be absent, as in a container.
    let journal = journal.and_then(Result::ok);
    let journal = journal.map(|layer| layer.with_field_prefix(Some(FIELD_PREFIX.to_owned())));
    let stderr = journal.is_none().then(|| {
        tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(false)
    });
    tracing_subscriber::registry()
        .with(filter)
        .with(journal)
        .with(stderr)
        .init();
    if let Some(problem) = problem {
        tracing::warn!("{problem}");
    }
}

/// Whether systemd has connected standard error to its journal: a program that somebody starts below a service inherits the variable, with
/// a standard error of its own (systemd.exec(5), `$JOURNAL_STREAM`: device and inode).
fn is_to_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let stderr = std::io::stderr().as_fd().try_clone_to_owned();
    let about = stderr.and_then(|stderr| File::from(stderr).metadata());
    about.is_ok_and(|about| stream == format!("{}:{}", about.dev(), about.ino()))
}
