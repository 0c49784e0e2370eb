//! JSON that somebody else wrote and that somebody else reads as well: a spec, an exec's process, a container's state, a CDI
//! spec.
//!
//! The runtime behind cgpu reads the same bytes by other rules. Go's decoder folds the case of a struct's keys, `ſ` and the
//! Kelvin sign among them, takes the last of equal keys, stops behind the first document and turns what is no UTF-8 into
//! U+FFFD; C programs take the first of equal keys and end a string at its first NUL. So a text that the rules disagree
//! on would show cgpu one container and the runtime another one. Such a text is refused here, whatever it asks for:
//!
//! - a key that is there twice, in any object, also where only Go's folding makes the two equal;
//! - a key that Go folds onto one that runc or cgpu knows, outside of objects whose keys are free ([`Document`]);
//! - a NUL in a key or a string;
//! - and, by the rules of `serde_json`: bytes that are no UTF-8, half a surrogate pair, a mark of byte order, anything behind the
//!   document, comments, and more than 127 levels.
//!
//! `null` needs no rule: Go leaves the field unset, and cgpu's readers take it for absent.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// What is read: it says which keys are known, and which objects have free ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Document {
    /// A container's `config.json`.
    Spec,
    /// The process of an exec.
    Process,
    /// What hooks read from their standard input.
    State,
    /// A spec of the Container Device Interface.
    Cdi,
}

/// Reads a document.
///
/// # Errors
/// A text that another decoder could read differently; the error names the key and where it stands.
pub fn parse(document: Document, bytes: &[u8]) -> Result<Value, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let place = Place {
        document,
        parent: None,
        key: "",
    };
    let value = Strict(&place).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// Checks the keys and strings of a value that was read from another syntax, whose reader refuses keys that are there twice.
///
/// # Errors
/// As [`parse`].
pub fn check(document: Document, value: &Value) -> Result<(), serde_json::Error> {
    // Written and read again: there is one set of rules, in one place.
    parse(document, &serde_json::to_vec(value)?).map(drop)
}

impl Document {
    /// Keys of this document's structs, of all levels. No two fold onto each other, so that a key which is spelled like one
    /// of them is one for Go as well, at whatever level.
    fn known(self) -> &'static [&'static str] {
        match self {
            Self::Spec | Self::Process => OCI_KEYS,
            Self::State => STATE_KEYS,
            Self::Cdi => CDI_KEYS,
        }
    }

    /// Objects that Go reads as maps, whose keys it compares byte by byte. Arrays are no part of a path.
    fn free(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::Spec => &[
                &["annotations"],
                &["linux", "sysctl"],
                &["linux", "netDevices"],
                &["linux", "timeOffsets"],
                &["linux", "resources", "rdma"],
                &["linux", "resources", "unified"],
            ],
            Self::Process => &[],
            Self::State => &[&["annotations"]],
            Self::Cdi => &[&["annotations"], &["devices", "annotations"]],
        }
    }
}

/// Where a value stands.
struct Place<'a> {
    document: Document,
    parent: Option<&'a Place<'a>>,
    key: &'a str,
}

impl Place<'_> {
    fn path(&self) -> Vec<&str> {
        let mut path = self.parent.map_or_else(Vec::new, Place::path);
        if self.parent.is_some() {
            path.push(self.key);
        }
        path
    }

    fn has_free_keys(&self) -> bool {
        let path = self.path();
        self.document.free().contains(&path.as_slice())
    }

    fn shown(&self) -> String {
        let path = self.path();
        if path.is_empty() {
            "at the top".to_owned()
        } else {
            format!("in {:.120}", path.join("."))
        }
    }
}

/// Keys come from strangers and end in logs.
fn cut(key: &str) -> String {
    const KEY_CHARS_MAX: usize = 64;
    // Written with escapes: `ſ` looks like what it is taken for.
    key.chars()
        .take(KEY_CHARS_MAX)
        .collect::<String>()
        .escape_default()
        .to_string()
}

/// One key as Go's `encoding/json` compares it: every letter of ASCII, and the only two others that fold onto one.
fn folded(key: &str) -> String {
    key.chars()
        .map(|letter| match letter {
            '\u{17f}' => 'S',
            '\u{212a}' => 'K',
            letter => letter.to_ascii_uppercase(),
        })
        .collect()
}

struct Strict<'a>(&'a Place<'a>);

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("a number is infinite"))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        self.visit_string(value.to_owned())
    }

    fn visit_string<E: serde::de::Error>(self, value: String) -> Result<Value, E> {
        if value.contains('\0') {
            return Err(E::custom(format!(
                "a string has a NUL, where other programs end it, {}",
                self.0.shown()
            )));
        }
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(element) = elements.next_element_seed(Strict(self.0))? {
            array.push(element);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let is_free = self.0.has_free_keys();
        let mut seen = HashSet::new();
        let mut object = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            self.judge(&key, is_free).map_err(A::Error::custom)?;
            let compared = if is_free { key.clone() } else { folded(&key) };
            if !seen.insert(compared) {
                return Err(A::Error::custom(format!(
                    "the key \"{}\" is there twice {}: not every program takes the same one",
                    cut(&key),
                    self.0.shown()
                )));
            }
            let place = Place {
                document: self.0.document,
                parent: Some(self.0),
                key: &key,
            };
            let value = members.next_value_seed(Strict(&place))?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

impl Strict<'_> {
    fn judge(&self, key: &str, is_free: bool) -> Result<(), String> {
        if key.contains('\0') {
            return Err(format!(
                "the key \"{}\" has a NUL {}",
                cut(key),
                self.0.shown()
            ));
        }
        let known = self.0.document.known();
        if is_free || known.contains(&key) {
            return Ok(());
        }
        let own = folded(key);
        match known.iter().find(|known| folded(known) == own) {
            None => Ok(()),
            Some(known) => Err(format!(
                "the key \"{}\" {} is taken for {known:?} by some programs and not by others: write it exactly so",
                cut(key),
                self.0.shown()
            )),
        }
    }
}

/// Of the runtime specification 1.3, `config.json` on Linux: every struct that runc reads, and what cgpu reads.
#[rustfmt::skip]
const OCI_KEYS: &[&str] = &[
    "ociVersion", "process", "root", "hostname", "domainname", "mounts", "hooks", "annotations", "linux",
    "solaris", "windows", "vm", "zos", "freebsd",
    // process
    "terminal", "consoleSize", "height", "width", "user", "uid", "gid", "umask", "additionalGids", "username", "args",
    "commandLine", "env", "cwd", "capabilities", "bounding", "effective", "inheritable", "permitted", "ambient", "rlimits",
    "type", "hard", "soft", "noNewPrivileges", "apparmorProfile", "oomScoreAdj", "scheduler", "policy", "nice", "priority",
    "flags", "runtime", "deadline", "period", "selinuxLabel", "ioPriority", "class", "execCPUAffinity", "initial", "final",
    // root, mounts, hooks
    "path", "readonly", "destination", "source", "options", "uidMappings", "gidMappings", "containerID", "hostID", "size",
    "prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop", "timeout",
    // linux
    "sysctl", "resources", "cgroupsPath", "namespaces", "devices", "netDevices", "seccomp", "rootfsPropagation",
    "maskedPaths", "readonlyPaths", "mountLabel", "intelRdt", "memoryPolicy", "personality", "timeOffsets", "name",
    "mode", "nodes", "domain", "secs", "nanosecs", "major", "minor", "fileMode",
    "closID", "schemata", "l3CacheSchema", "memBwSchema", "enableCMT", "enableMBM", "enableMonitoring",
    // linux.resources
    "allow", "access", "memory", "limit", "reservation", "swap", "kernel", "kernelTCP", "swappiness", "disableOOMKiller",
    "useHierarchy", "checkBeforeUpdate", "cpu", "shares", "quota", "burst", "realtimeRuntime", "realtimePeriod", "cpus",
    "mems", "idle", "pids", "blockIO", "weight", "leafWeight", "weightDevice", "throttleReadBpsDevice",
    "throttleWriteBpsDevice", "throttleReadIOPSDevice", "throttleWriteIOPSDevice", "rate", "hugepageLimits", "pageSize",
    "network", "classID", "priorities", "rdma", "hcaHandles", "hcaObjects", "unified",
    // linux.seccomp
    "defaultAction", "defaultErrnoRet", "architectures", "listenerPath", "listenerMetadata", "syscalls", "names", "action",
    "errnoRet", "index", "value", "valueTwo", "op",
];

/// Of the runtime specification 1.3, `state`.
const STATE_KEYS: &[&str] = &["ociVersion", "id", "status", "pid", "bundle", "annotations"];

/// Of the Container Device Interface 1.1.
#[rustfmt::skip]
const CDI_KEYS: &[&str] = &[
    "cdiVersion", "kind", "annotations", "devices", "containerEdits", "name", "env", "deviceNodes", "netDevices", "hooks",
    "mounts", "intelRdt", "additionalGids", "path", "hostPath", "containerPath", "type", "major", "minor", "fileMode",
    "permissions", "uid", "gid", "hostInterfaceName", "hookName", "args", "timeout", "options", "closID", "schemata",
    "l3CacheSchema", "memBwSchema", "enableCMT", "enableMBM", "enableMonitoring",
];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_two_known_keys_fold_onto_each_other() {
        for document in [Document::Spec, Document::State, Document::Cdi] {
            let mut all: Vec<String> = document.known().iter().map(|key| folded(key)).collect();
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), count, "{document:?}");
            assert!(document.known().iter().all(|key| key.is_ascii()));
        }
    }

    #[test]
    fn values_of_every_kind_are_read_as_they_are() {
        let text = br#"{"x":[null,true,-1,18446744073709551615,0.5,"a\u00e9",{}],"y":{"z":[]}}"#;
        let plain: Value = serde_json::from_slice(text).unwrap();
        assert_eq!(parse(Document::Spec, text).unwrap(), plain);
        parse(Document::Spec, b"1e400").unwrap_err();
    }

    #[test]
    fn free_keys_are_free_at_their_own_place_alone() {
        let read = |value: Value| parse(Document::Spec, value.to_string().as_bytes());
        read(json!({"linux": {"sysctl": {"Mounts": "x"}}})).unwrap();
        read(json!({"linux": {"resources": {"rdma": {"Mounts": {"hcaHandles": 1}}}}})).unwrap();
        for value in [
            json!({"sysctl": {"Mounts": "x"}}),
            json!({"x": {"annotations": {"Mounts": "x"}}}),
            json!({"mounts": [{"annotations": {"Source": "x"}}]}),
            json!({"linux": {"resources": {"rdma": {"x": {"HcaHandles": 1}}}}}),
        ] {
            read(value.clone()).expect_err(&value.to_string());
        }
        let state = json!({"id": "x", "annotations": {"PID": "x"}});
        parse(Document::State, state.to_string().as_bytes()).unwrap();
        let cdi = json!({"devices": [{"name": "0", "annotations": {"NAME": "x"}}]});
        check(Document::Cdi, &cdi).unwrap();
        check(Document::Cdi, &json!({"devices": [{"Name": "0"}]})).unwrap_err();
    }

    #[test]
    fn an_error_shows_what_looks_alike() {
        let text = "{\"linux\":{\"device\u{17f}\":[]}}";
        let error = parse(Document::Spec, text.as_bytes())
            .unwrap_err()
            .to_string();
        for part in ["device\\u{17f}", "in linux", "\"devices\"", "line 1"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
