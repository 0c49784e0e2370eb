//! What programs that are services have in common: their log, and what they report to systemd (`sd_notify(3)`; without systemd nothing is sent).

use sd_notify::NotifyState;
use tracing_subscriber::EnvFilter;

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

/// Logs to standard error, at the level that `CGPU_LOG` names, else `info`. Called once.
pub fn log_to_stderr() {
    let filter =
        EnvFilter::try_from_env("CGPU_LOG").unwrap_or_else(|_unset| EnvFilter::new("info"));
    // systemd's journal adds the time by itself.
    let by_journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let format = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false);
    if by_journal {
        format.without_time().init();
    } else {
        format.init();
    }
}
