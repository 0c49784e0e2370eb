//! A copy of the logs that outlives the state folder, which is empty after a reboot. `cgpu-agent` keeps it.
//!
//! The copy has the layout of a state folder's logs, so that [`events::read`](super::read) and its like read it. Each log in it is
//! bounded as its source is; all of them together are bounded by [`keep_within`].

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::{Event, FORMER_NAME, Kept, NAME, containers, cut, of_container, remove};

/// Where it is on a host.
pub const DIR: &str = "/var/lib/cgpu/history";

/// So many of the last copied events tell where a log goes on. One alone may be there twice.
const CONTEXT: usize = 8;

/// A file takes this much of a disk at least.
const BLOCK_BYTES: u64 = 4096;

/// An event as it is copied: without control characters, by which a driver or a process may have named itself.
#[must_use]
pub fn cleaned(event: Event) -> Event {
    let clean = |text: &str| cut(&text.replace(char::is_control, " ")).to_owned();
    Event {
        kind: clean(&event.kind),
        text: clean(&event.text),
        tenant: event.tenant.as_deref().map(clean),
        reason: event.reason.as_deref().map(clean),
        ..event
    }
}

/// What of a log is not in its copy yet; both oldest first. The events of the log are [`cleaned`].
///
/// A copy may say what a container was called where its log does not.
///
/// The copy's last events are looked for in the log, as many as fit before each place. Where they are not found the log has lost
/// its oldest events since, or is another one, and all of it is new.
#[must_use]
pub fn not_in(copy: &[Event], log: Vec<Event>) -> Vec<Event> {
    let log: Vec<Event> = log.into_iter().map(cleaned).collect();
    let goes_on = (1..=log.len()).rev().find(|place| {
        let context = CONTEXT.min(*place).min(copy.len());
        let last = copy.len().saturating_sub(context);
        let before = place.saturating_sub(context);
        let (copied, there) = (copy.get(last..), log.get(before..*place));
        let is_same = |(copied, there): (&[Event], &[Event])| {
            copied.len() == there.len()
                && copied.iter().zip(there).all(|(one, other)| one.is(other))
        };
        context > 0 && copied.zip(there).is_some_and(is_same)
    });
    log.into_iter().skip(goes_on.unwrap_or(0)).collect()
}

/// Removes logs of containers from a copy until the rest takes so many bytes of the disk at most: each time the one of the tenant
/// with most that has been quiet for longest. A copy of what is in the source still stays, beside those: all of it would be new the next time.
///
/// # Errors
/// The system's.
pub fn keep_within(dir: &Path, source: &Path, most_bytes: u64) -> io::Result<()> {
    let mut by_tenant: BTreeMap<String, Vec<(Kept, u64)>> = BTreeMap::new();
    let mut total_bytes = 0_u64;
    for key in containers(dir)? {
        let log = of_container(source, &key);
        if [NAME, FORMER_NAME]
            .iter()
            .any(|name| log.join(name).exists())
        {
            continue;
        }
        let bytes = bytes_of(&of_container(dir, &key));
        total_bytes = total_bytes.saturating_add(bytes);
        let kept = Kept::new(dir, key);
        let logs = by_tenant.entry(kept.tenant.clone()).or_default();
        logs.push((kept, bytes));
    }
    for logs in by_tenant.values_mut() {
        // The oldest is last.
        logs.sort_by_key(|(kept, _)| std::cmp::Reverse(kept.at_unix_ms));
    }
    let sum = |logs: &Vec<(Kept, u64)>| logs.iter().map(|(_, bytes)| bytes).sum::<u64>();
    while total_bytes > most_bytes {
        let most = by_tenant.values_mut().max_by_key(|logs| sum(logs));
        let Some((oldest, bytes)) = most.and_then(Vec::pop) else {
            break;
        };
        remove(dir, &oldest.key)?;
        total_bytes = total_bytes.saturating_sub(bytes);
    }
    Ok(())
}

fn bytes_of(folder: &Path) -> u64 {
    let files = [NAME, FORMER_NAME].map(|name| std::fs::symlink_metadata(folder.join(name)));
    let blocks = files.into_iter().flatten().map(|file| {
        let blocks = file.len().div_ceil(BLOCK_BYTES);
        blocks.saturating_mul(BLOCK_BYTES)
    });
    // And the folder.
    blocks.sum::<u64>().saturating_add(BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::append;
    use crate::identity::ContainerKey;
    use crate::names::Names;

    fn event(at_unix_ms: u64, text: &str) -> Event {
        Event {
            at_unix_ms,
            ..Event::now("xid", text)
        }
    }

    fn numbers(events: impl IntoIterator<Item = u64>) -> Vec<Event> {
        events.into_iter().map(|at| event(at, "same")).collect()
    }

    #[test]
    fn a_log_goes_on_where_its_copy_ends() {
        let log = numbers(0..100);
        assert_eq!(not_in(&[], log.clone()).len(), 100);
        for copied in [1, 5, 50, 99, 100] {
            let rest = not_in(&log[..copied], log.clone());
            assert_eq!(rest, log[copied..], "{copied}");
        }
        // The copy has lost its oldest events, the log its own.
        assert_eq!(not_in(&log[40..60], log[20..].to_vec()), log[60..]);
        assert_eq!(not_in(&log[..60], log[55..].to_vec()), log[60..]);
        // The log has lost more than was copied.
        assert_eq!(not_in(&log[..60], log[70..].to_vec()), log[70..]);
        // After a reboot, of a container of the same id: another log, and then more of it.
        let other = numbers(500..503);
        assert_eq!(not_in(&log, other.clone()), other);
        let both = [log, other[..1].to_vec()].concat();
        assert_eq!(not_in(&both, other.clone()), other[1..]);
    }

    #[test]
    fn events_that_are_alike_differ_by_those_before_them() {
        let alike = |times: usize| vec![event(1, "same"); times];
        assert_eq!(not_in(&alike(3), alike(3)).len(), 0);
        let log = [alike(2), vec![event(2, "other")], alike(2)].concat();
        assert_eq!(not_in(&log[..3], log.clone()), log[3..]);
    }

    #[test]
    fn a_copy_that_has_names_is_one_still() {
        let log = numbers(0..5);
        let mut copy = log[..3].to_vec();
        let names: Names = serde_json::from_str(r#"{"name": "web"}"#).unwrap();
        copy[1].names = names.clone();
        copy[2].names = names;
        assert_eq!(not_in(&copy, log.clone()), log[3..]);
    }

    #[test]
    fn no_control_characters_are_copied_and_copied_events_are_known_again() {
        let loud = Event {
            tenant: Some("a\nb".to_owned()),
            ..event(1, "\u{1b}[2J\r\nXid")
        };
        let copy = not_in(&[], vec![loud.clone()]);
        assert_eq!(copy[0].text, " [2J  Xid");
        assert_eq!(copy[0].tenant.as_deref(), Some("a b"));
        assert_eq!(not_in(&copy, vec![loud]), []);
    }

    #[test]
    fn a_copy_stays_within_its_bytes_and_quiet_tenants_keep_theirs() {
        let dir = tempfile::tempdir().unwrap();
        let add = |id: &str, tenant: &str, at_unix_ms: u64| {
            let key = ContainerKey::new("k8s.io", id).unwrap();
            let last = Event {
                tenant: Some(tenant.to_owned()),
                ..event(at_unix_ms, "ended")
            };
            append(&of_container(dir.path(), &key), &last).unwrap();
        };
        add("quiet", "k8s.io/quiet", 0);
        for at in 0..40 {
            add(&format!("loud{at}"), "k8s.io/loud", 100 + at);
        }
        let of_one = 2 * BLOCK_BYTES;
        let source = tempfile::tempdir().unwrap();
        let there = ContainerKey::new("k8s.io", "loud0").unwrap();
        append(&of_container(source.path(), &there), &event(100, "lives")).unwrap();
        keep_within(dir.path(), source.path(), 41 * of_one).unwrap();
        assert_eq!(containers(dir.path()).unwrap().len(), 41);
        keep_within(dir.path(), source.path(), 10 * of_one + 1).unwrap();
        let kept = containers(dir.path()).unwrap();
        let ids: Vec<&str> = kept.iter().map(ContainerKey::id).collect();
        assert_eq!(ids.len(), 11, "{ids:?}");
        assert!(ids.contains(&"quiet") && ids.contains(&"loud39") && !ids.contains(&"loud1"));
        assert!(ids.contains(&"loud0"), "its log is there");
    }
}
