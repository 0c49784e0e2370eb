//! The container's own memory limit, which bounds what a driver takes of the host's memory for it.

use serde_json::Value;

use crate::json::{self, ShapeError};

/// The memory limit of the container's control group, as its spec says it; `None`: it has none.
///
/// # Errors
/// A spec of the wrong shape.
pub(super) fn limit_of(spec: &Value) -> Result<Option<u64>, ShapeError> {
    let mut at = json::object(spec, "")?;
    for field in ["linux", "resources", "memory"] {
        match at.get(field) {
            None | Some(Value::Null) => return Ok(None),
            Some(value) => at = json::object(value, field)?,
        }
    }
    match at.get("limit") {
        None | Some(Value::Null) => Ok(None),
        // Negative: no limit.
        Some(limit) => match limit.as_i64() {
            Some(bytes) => Ok(u64::try_from(bytes).ok().filter(|bytes| *bytes > 0)),
            None => Err(ShapeError {
                field: "linux.resources.memory.limit".to_owned(),
                expected: "a whole number",
            }),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
}
