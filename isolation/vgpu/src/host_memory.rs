//! How much of the host's memory a driver may take for one container.
//!
//! A driver allocates pinned memory by itself (class `NV01_MEMORY_SYSTEM`): its pages are in no control group, so nothing but the broker's
//! ledger limits them. The limit is what the configuration says, else the container's own memory limit, else a part of the machine's memory.

use serde_json::Value;

use crate::{Error, spec};

/// Of the machine's memory, for a container that has no limit of its own.
const PART: u64 = 2;

/// The memory limit of the container's control group, as its spec says it; `None`: it has none.
///
/// # Errors
/// A spec of the wrong shape.
pub(crate) fn limit_of(spec: &Value) -> Result<Option<u64>, Error> {
    let mut at = spec::object(spec, "")?;
    for field in ["linux", "resources", "memory"] {
        match at.get(field) {
            None | Some(Value::Null) => return Ok(None),
            Some(value) => at = spec::object(value, field)?,
        }
    }
    match at.get("limit") {
        None | Some(Value::Null) => Ok(None),
        // Negative: no limit.
        Some(limit) => match limit.as_i64() {
            Some(bytes) => Ok(u64::try_from(bytes).ok().filter(|bytes| *bytes > 0)),
            None => Err(Error::SpecShape {
                field: "linux.resources.memory.limit".to_owned(),
                expected: "a whole number",
            }),
        },
    }
}

/// For a container without a limit. A machine that does not say what it has gives none.
pub(crate) fn part_of_the_machine() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    total_bytes(&text).unwrap_or_default() / PART
}

fn total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_limit_is_that_of_the_control_group() {
        let of =
            |limit: Value| limit_of(&json!({"linux": {"resources": {"memory": {"limit": limit}}}}));
        assert_eq!(of(json!(1 << 30)).unwrap(), Some(1 << 30));
        assert_eq!(of(json!(-1)).unwrap(), None);
        assert_eq!(of(json!(0)).unwrap(), None);
        assert_eq!(of(Value::Null).unwrap(), None);
        for spec in [
            json!({}),
            json!({"linux": null}),
            json!({"linux": {"resources": {}}}),
        ] {
            assert_eq!(limit_of(&spec).unwrap(), None);
        }
        of(json!("1Gi")).unwrap_err();
        limit_of(&json!({"linux": []})).unwrap_err();
    }

    #[test]
    fn a_machine_reports_what_it_has() {
        assert_eq!(
            total_bytes("MemTotal:        2048 kB\nMemFree: 1 kB\n"),
            Some(2 << 20)
        );
        assert_eq!(total_bytes("MemTotal: much\n"), None);
        assert!(part_of_the_machine() > 0);
    }
}
