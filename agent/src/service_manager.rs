//! What the agent reports to systemd (`sd_notify(3)`). Without systemd nothing is sent.

use sd_notify::NotifyState;

/// The agent listens.
pub(crate) fn ready() {
    notify(NotifyState::Ready);
}

/// The agent ends.
pub(crate) fn stopping() {
    notify(NotifyState::Stopping);
}

/// Reports to the unit's watchdog, twice in its time, that the event loop turns. Never ends.
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
        tracing::warn!(%error, "systemd is not notified");
    }
}
