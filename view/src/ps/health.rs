//! What went wrong around a container, in a few words.

use control::Status;

use super::PsIncidents;

impl PsIncidents {
    fn text(self) -> String {
        let parts: Vec<String> = [
            (self.card_lost, "card lost"),
            (self.violations, "violation"),
            (self.hung_now, "hung call"),
            (self.xid, "Xid"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, name)| match count {
            1 => name.to_owned(),
            several => format!("{several} {name}s"),
        })
        .collect();
        if parts.is_empty() {
            OK.to_owned()
        } else {
            parts.join(", ")
        }
    }
}

/// Nothing went wrong.
pub const OK: &str = "ok";

/// The health of a container whose broker and supervisor are gone.
pub(super) const BROKER_GONE: &str = "every GPU call fails: restart the container";

/// What went wrong, what the broker lacks, and that nothing vouches for the figures but the ledger itself.
pub(crate) fn health_text(status: &Status) -> String {
    let health = &status.health;
    let unwatched = (status.broker.supervisor_pid == 0).then(|| "no supervisor".to_owned());
    let incidents = Some(PsIncidents::from(health).text())
        .filter(|text| text != OK || (health.unreachable.is_none() && unwatched.is_none()));
    let lacking = health.short_of.clone();
    let unwritten = health
        .unwritten
        .as_ref()
        .map(|why| format!("state not written ({why})"));
    let is_uncompared = status.watching.sums == Some(false);
    let uncompared = is_uncompared.then(|| "not reconciled".to_owned());
    let unreachable = health
        .unreachable
        .as_ref()
        .map(|why| format!("driver unreachable ({why})"));
    let parts = [
        incidents,
        unreachable,
        unwatched,
        lacking,
        unwritten,
        uncompared,
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The health of a container whose driver does not answer, whatever its broker has seen of that.
pub(super) fn unanswered(health: Option<&str>) -> String {
    const TEXT: &str = "driver unreachable";
    match health {
        None | Some("ok") => TEXT.to_owned(),
        // The broker has seen it as well, and says why.
        Some(reported) if reported.contains(TEXT) => reported.to_owned(),
        Some(more) => format!("{TEXT}, {more}"),
    }
}
