//! What systemd is told (`sd_notify(3)`). Without systemd nothing is.

use sd_notify::NotifyState;

/// The agent listens.
pub(crate) fn ready() {
    notify(NotifyState::Ready);
}

/// The agent ends.
pub(crate) fn stopping() {
    notify(NotifyState::Stopping);
}

/// Tells the unit's watchdog that the event loop turns, twice in its time. Ends never.
pub(crate) async fn watchdog() {
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
        tracing::warn!(%error, "systemd is not told");
    }
}
