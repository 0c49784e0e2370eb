//! Specifications, terms and words, and what of an edited specification is the edits' own.

use arbitrary::Unstructured;
use host_config::terms::APPLIED_KEY;
use serde_json::{Map, Value, json};

pub(super) const ANNOTATIONS: [&str; 12] = [
    "cgpu.io/memory",
    "cgpu.io/cards",
    "cgpu.io/compute",
    "cgpu.io/weight",
    "cgpu.io/policy",
    "cgpu.io/priority",
    "cgpu.io/placement",
    "cgpu.io/applied",
    "cgpu.io/memroy",
    "cgpu.io/",
    "io.kubernetes.cri.container-type",
    "nvidia.com/gpu",
];

pub(super) const VARIABLES: [&str; 10] = [
    "ALIYUN_COM_GPU_MEM_CONTAINER",
    "ALIYUN_COM_GPU_MEM_DEV",
    "ALIYUN_COM_GPU_MEM_IDX",
    "ALIYUN_COM_GPU_VISIBLE_DEVICES",
    "ALIYUN_COM_GPU_SCHD_WEIGHT",
    "ALIYUN_COM_GPU_HIGH_PRIO",
    "CGPU_DISABLE",
    "NVIDIA_VISIBLE_DEVICES",
    "PATH",
    "",
];

pub(super) const TABLES: [&str; 6] = ["broker", "driver", "placement", "request", "isolation", "x"];

pub(super) const KEYS: [&str; 14] = [
    "state_dir",
    "runc",
    "container_tools",
    "path",
    "start_timeout_ms",
    "stop_timeout_ms",
    "kind",
    "policy",
    "environment",
    "cgpu_disable",
    "mode",
    "managed",
    "on_violation",
    "allow",
];

pub(super) const TOML_VALUES: [&str; 12] = [
    "\"/run/x\"",
    "\"relative\"",
    "5000",
    "0",
    "\"auto\"",
    "\"sim\"",
    "\"binpack\"",
    "\"tighten_only\"",
    "\"obey\"",
    "{}",
    "[]",
    "true",
];

/// Pieces that values are made of.
const PIECES: [&str; 36] = [
    "4Gi",
    "512Mi",
    "1",
    "0",
    "16",
    "100",
    "101",
    "%",
    ",",
    "GPU-0",
    "GPU-1",
    "all",
    "void",
    "none",
    "-1",
    "+",
    " ",
    "fixed",
    "weighted",
    "2",
    "high",
    "normal",
    "binpack",
    "spread",
    "true",
    "false",
    "Ti",
    "99999999999999999999",
    "M",
    "\u{0}",
    "é",
    "=",
    "sandbox",
    "n/c",
    "no-gpu-has-",
    "\t",
];

/// A word of a few pieces.
pub(super) fn word(input: &mut Unstructured<'_>) -> arbitrary::Result<String> {
    if input.ratio(1, 12)? {
        return input.arbitrary::<&str>().map(str::to_owned);
    }
    (0..input.int_in_range(1..=3_u8)?)
        .map(|_| input.choose(&PIECES).copied())
        .collect()
}

/// Keys with words.
pub(super) fn terms(
    input: &mut Unstructured<'_>,
    keys: &[&str],
) -> arbitrary::Result<Vec<(String, String)>> {
    (0..input.int_in_range(0..=6_u8)?)
        .map(|_| Ok(((*input.choose(keys)?).to_owned(), word(input)?)))
        .collect()
}

const SPEC_KEYS: [&str; 20] = [
    "annotations",
    "process",
    "env",
    "linux",
    "devices",
    "resources",
    "mounts",
    "destination",
    "seccomp",
    "syscalls",
    "defaultAction",
    "listenerPath",
    "path",
    "major",
    "type",
    "cgpu.io/applied",
    "capabilities",
    "namespaces",
    "x-unknown",
    "hooks",
];

const TEXTS: [&str; 16] = [
    "/dev/nvidia0",
    "/dev//nvidia-uvm",
    "/dev/./nvidiactl",
    "/dev/null",
    "dev/nvidia0",
    "/dev/nvidia-caps/../nvidia1",
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_VISIBLE_DEVICES",
    "PATH=/bin",
    "c",
    "b",
    "SCMP_ACT_ALLOW",
    "SCMP_ACT_ERRNO",
    super::LISTENER,
    "n/c",
    "",
];

/// Any value, leaning to what specifications hold.
fn value(input: &mut Unstructured<'_>, depth: u8) -> arbitrary::Result<Value> {
    let widest = if depth == 0 { 7 } else { 9_u8 };
    Ok(match input.int_in_range(0..=widest)? {
        0 => Value::Null,
        1 => json!(input.arbitrary::<bool>()?),
        2 => json!(input.arbitrary::<i64>()?),
        3 => json!(*input.choose(&[195_u64, 510, 255, 0, u64::MAX])?),
        4 => json!(word(input)?),
        5..=7 => json!(*input.choose(&TEXTS)?),
        8 => Value::Array(
            (0..input.int_in_range(0..=3_u8)?)
                .map(|_| value(input, depth - 1))
                .collect::<arbitrary::Result<_>>()?,
        ),
        _ => Value::Object(
            (0..input.int_in_range(0..=3_u8)?)
                .map(|_| {
                    let key = *input.choose(&SPEC_KEYS)?;
                    Ok((key.to_owned(), value(input, depth - 1)?))
                })
                .collect::<arbitrary::Result<_>>()?,
        ),
    })
}

/// A specification of the right shape.
pub(super) fn specification(input: &mut Unstructured<'_>) -> arbitrary::Result<Value> {
    let texts = |input: &mut Unstructured<'_>| -> arbitrary::Result<Vec<&str>> {
        (0..input.int_in_range(0..=3_u8)?)
            .map(|_| input.choose(&TEXTS).copied())
            .collect()
    };
    let env = texts(input)?;
    let mounts: Vec<Value> = texts(input)?
        .into_iter()
        .map(|to| json!({"destination": to, "type": "bind", "source": "/x", "options": ["ro"]}))
        .collect();
    let devices: Vec<Value> = texts(input)?
        .into_iter()
        .map(|path| {
            let major = *input.choose(&[195_u64, 510, 1, 226])?;
            Ok(json!({"path": path, "type": "c", "major": major, "minor": 0}))
        })
        .collect::<arbitrary::Result<_>>()?;
    let rules: Vec<Value> = (0..input.int_in_range(0..=3_u8)?)
        .map(|_| {
            let major = *input.choose(&[Some(195), Some(510), Some(1), None])?;
            Ok(json!({"allow": true, "type": *input.choose(&["c", "b", "a"])?, "major": major, "access": "rwm"}))
        })
        .collect::<arbitrary::Result<_>>()?;
    Ok(json!({
        "ociVersion": "1.0.2",
        "process": {"args": ["/bin/sh"], "env": env, "cwd": "/", "x-unknown": value(input, 2)?},
        "root": {"path": "rootfs"},
        "mounts": mounts,
        "hooks": {"prestart": [{"path": "/bin/true"}]},
        "x-unknown": value(input, 2)?,
        "linux": {"devices": devices, "resources": {"devices": rules, "memory": {"limit": 1}}, "x-unknown": value(input, 1)?},
    }))
}

/// Puts anything somewhere.
pub(super) fn change(spec: &mut Value, input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let mut at = spec;
    for _level in 0..input.int_in_range(0..=4_u8)? {
        let length = match &at {
            Value::Object(map) => map.len(),
            Value::Array(list) => list.len(),
            _ => 0,
        };
        let Some(last) = length.checked_sub(1) else {
            break;
        };
        let which = input.int_in_range(0..=last)?;
        at = match at {
            Value::Object(map) => map.values_mut().nth(which).expect("within the object"),
            Value::Array(list) => &mut list[which],
            _ => unreachable!("it has a length"),
        };
    }
    *at = value(input, 3)?;
    Ok(())
}

/// A specification less all that the edits may change, with what they may create left out where it is empty.
pub(super) fn without_ours(spec: &Value) -> Value {
    let mut spec = spec.clone();
    let Some(root) = spec.as_object_mut() else {
        return spec;
    };
    within(root, "annotations", |annotations| {
        annotations.shift_remove(APPLIED_KEY);
    });
    within(root, "process", |process| {
        list(process, "env", |entry| {
            let text = entry.as_str().unwrap_or_default();
            text.split('=').next() != Some("NVIDIA_VISIBLE_DEVICES")
        });
    });
    list(root, "mounts", |mount| {
        !is_node(mount, "destination") && !is_node(mount, "source")
    });
    within(root, "linux", |linux| {
        linux.shift_remove("seccomp");
        list(linux, "readonlyPaths", |path| {
            !path.as_str().is_some_and(|path| path.ends_with("/driver"))
        });
        list(linux, "maskedPaths", |path| {
            !path
                .as_str()
                .is_some_and(|path| OF_PEER_MEMORY.contains(&path))
        });
        list(linux, "devices", |it| !is_node(it, "path") && !is_ours(it));
        within(linux, "resources", |resources| {
            list(resources, "devices", |it| !is_ours(it));
        });
    });
    spec
}

/// What sysfs has of peer memory on a host, hidden from a container of a real card.
const OF_PEER_MEMORY: [&str; 3] = [
    "/sys/module/nvidia_peermem",
    "/sys/module/nv_peer_mem",
    "/sys/kernel/mm/memory_peers",
];

/// Changes the object at a key; takes it away when nothing is left.
fn within(
    parent: &mut Map<String, Value>,
    key: &str,
    change: impl FnOnce(&mut Map<String, Value>),
) {
    let is_empty = match parent.get_mut(key) {
        Some(Value::Object(object)) => {
            change(object);
            object.is_empty()
        }
        Some(other) => other.is_null(),
        None => false,
    };
    if is_empty {
        parent.shift_remove(key);
    }
}

fn list(parent: &mut Map<String, Value>, key: &str, keep: impl FnMut(&Value) -> bool) {
    let is_empty = match parent.get_mut(key) {
        Some(Value::Array(array)) => {
            array.retain(keep);
            array.is_empty()
        }
        Some(other) => other.is_null(),
        None => false,
    };
    if is_empty {
        parent.shift_remove(key);
    }
}

fn is_node(entry: &Value, key: &str) -> bool {
    let path = entry.get(key).and_then(Value::as_str).unwrap_or_default();
    let mut parts = path
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".");
    parts.next() == Some("dev") && parts.next().is_some_and(|it| it.starts_with("nvidia"))
}

fn is_ours(entry: &Value) -> bool {
    let major = entry.get("major").and_then(Value::as_u64);
    entry.get("type").and_then(Value::as_str) != Some("b") && matches!(major, Some(195 | 510))
}
