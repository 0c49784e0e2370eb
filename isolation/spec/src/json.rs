//! Reading `config.json` as it comes: a JSON value of any shape, from an engine or from a stranger.

use serde_json::{Map, Value};

/// JSON of another shape than the OCI specification's.
#[derive(Debug, thiserror::Error)]
#[error("{field} of the container's spec is not {expected}")]
pub struct ShapeError {
    /// Where.
    pub field: String,
    /// What it must be.
    pub expected: &'static str,
}

/// The annotations, in the file's order; none if there are none.
pub fn annotations(spec: &Value) -> Result<Vec<(&str, &str)>, ShapeError> {
    let Some(annotations) = object(spec, "")?
        .get("annotations")
        .filter(|value| !value.is_null())
    else {
        return Ok(Vec::new());
    };
    object(annotations, "annotations")?
        .iter()
        .map(|(key, value)| match value.as_str() {
            Some(value) => Ok((key.as_str(), value)),
            None => Err(ShapeError {
                field: format!("annotations[{key:.128}]"),
                expected: "a string",
            }),
        })
        .collect()
}

/// Where the spec puts the container's control group, in the runtime's words; `None`: it does not say.
pub fn control_group(spec: &Value) -> Result<Option<&str>, ShapeError> {
    match spec.pointer("/linux/cgroupsPath") {
        None | Some(Value::Null) => Ok(None),
        Some(path) => path.as_str().map(Some).ok_or_else(|| ShapeError {
            field: "linux.cgroupsPath".to_owned(),
            expected: "a string",
        }),
    }
}

/// The environment of the container's first process; entries without `=` name a variable without a value.
pub fn environment(spec: &Value) -> Result<Vec<(&str, &str)>, ShapeError> {
    let process = object(spec, "")?
        .get("process")
        .filter(|value| !value.is_null());
    match process
        .map(|process| object(process, "process"))
        .transpose()?
    {
        None => Ok(Vec::new()),
        Some(process) => process_environment(process),
    }
}

/// The environment of a process spec.
pub fn process_environment(process: &Map<String, Value>) -> Result<Vec<(&str, &str)>, ShapeError> {
    let Some(environment) = process.get("env").filter(|value| !value.is_null()) else {
        return Ok(Vec::new());
    };
    let wrong = || ShapeError {
        field: "process.env".to_owned(),
        expected: "an array of strings",
    };
    environment
        .as_array()
        .ok_or_else(wrong)?
        .iter()
        .map(|entry| {
            Ok(entry
                .as_str()
                .ok_or_else(wrong)?
                .split_once('=')
                .unwrap_or_else(|| (entry.as_str().unwrap_or_default(), "")))
        })
        .collect()
}

/// A value that must be an object.
pub fn object<'a>(value: &'a Value, field: &str) -> Result<&'a Map<String, Value>, ShapeError> {
    value.as_object().ok_or_else(|| shape(field))
}

/// The array at `key` of an object called `of`; empty if it is absent or null.
pub fn list<'a>(
    object: &'a Map<String, Value>,
    of: &str,
    key: &str,
) -> Result<&'a [Value], ShapeError> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(values)) => Ok(values),
        Some(_) => Err(ShapeError {
            field: if of.is_empty() {
                key.to_owned()
            } else {
                format!("{of}.{key}")
            },
            expected: "an array",
        }),
    }
}

fn shape(field: &str) -> ShapeError {
    ShapeError {
        field: if field.is_empty() {
            "the spec".to_owned()
        } else {
            field.to_owned()
        },
        expected: "an object",
    }
}

/// The object at `key`, created if it is absent or null.
pub fn child_object<'a>(
    parent: &'a mut Map<String, Value>,
    key: &str,
) -> Result<&'a mut Map<String, Value>, ShapeError> {
    let slot = parent.entry(key).or_insert(Value::Null);
    if slot.is_null() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut().ok_or_else(|| shape(key))
}

/// The array at `key`, created if it is absent or null.
pub fn child_array<'a>(
    parent: &'a mut Map<String, Value>,
    key: &str,
) -> Result<&'a mut Vec<Value>, ShapeError> {
    let slot = parent.entry(key).or_insert(Value::Null);
    if slot.is_null() {
        *slot = Value::Array(Vec::new());
    }
    slot.as_array_mut().ok_or_else(|| ShapeError {
        field: key.to_owned(),
        expected: "an array",
    })
}
