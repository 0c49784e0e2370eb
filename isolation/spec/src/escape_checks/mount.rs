//! One mount as a spec writes it: where its files come from, and whether they can be written.

use serde_json::Value;

use crate::time_zone;

/// Options of overlay filesystems that name folders.
const LOWER: [&str; 4] = ["lowerdir", "lowerdir+", "datadir", "datadir+"];
const UPPER: [&str; 2] = ["upperdir", "workdir"];

/// What can be done with the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Write,
    Read,
}

/// One of `mounts`.
pub(super) struct Mount<'a> {
    /// The kind of filesystem.
    pub(super) kind: &'a str,
    /// As written, not cleaned.
    pub(super) source: &'a str,
    /// In the container.
    pub(super) destination: &'a str,
    options: Vec<&'a str>,
}

impl<'a> Mount<'a> {
    pub(super) fn read(entry: &'a Value) -> Option<Self> {
        let text = |key| entry.get(key).and_then(Value::as_str).unwrap_or("");
        entry.as_object()?;
        Some(Self {
            kind: text("type"),
            source: text("source"),
            destination: text("destination"),
            options: entry
                .get("options")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect(),
        })
    }

    fn has(&self, option: &str) -> bool {
        self.options.contains(&option)
    }

    pub(super) fn is_bind(&self) -> bool {
        self.kind == "bind" || self.has("bind") || self.has("rbind")
    }

    /// The last of `ro` and `rw` counts. Of a recursive mount it is the top alone, unless `rro` says more. Where `rrw` stands, a
    /// runtime makes all writable after it has mounted, whatever the order (runc 1.1 does). A time zone of the host becomes
    /// read-only by [`crate::edit`].
    pub(super) fn access(&self) -> Access {
        if self.is_bind() && time_zone::is_one(self.source) {
            return Access::Read;
        }
        let mut words = self.options.iter().rev();
        match words.find(|option| matches!(**option, "ro" | "rw" | "rro")) {
            _ if self.has("rrw") => Access::Write,
            Some(&("ro" | "rro")) => Access::Read,
            _ => Access::Write,
        }
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.access() == Access::Read && (!self.is_recursive() || self.has("rro"))
    }

    /// Whether it changes a mount that was made before it: what was judged read-only becomes writable (with runc 1.1, by trying).
    pub(super) fn is_remount(&self) -> bool {
        self.has("remount")
    }

    /// Only an explicit `bind` leaves out what is mounted below.
    pub(super) fn is_recursive(&self) -> bool {
        self.is_bind() && (self.has("rbind") || !self.has("bind"))
    }

    /// The folders that an overlay filesystem is laid over. A colon and a comma may be escaped.
    pub(super) fn layers(&self) -> Vec<(String, Access)> {
        let mut found = Vec::new();
        for option in self.options.iter().flat_map(|option| split(option, ',')) {
            let Some((name, value)) = option.split_once('=') else {
                continue;
            };
            if LOWER.contains(&name) {
                let lower = split(value, ':').into_iter();
                found.extend(lower.map(|layer| (layer, Access::Read)));
            } else if UPPER.contains(&name) {
                found.push((value.to_owned(), Access::Write));
            }
        }
        found.retain(|(layer, _)| !layer.is_empty());
        // Both readings of what is escaped.
        let plain: Vec<_> = found
            .iter()
            .filter(|(layer, _)| layer.contains('\\'))
            .map(|(layer, access)| (layer.replace('\\', ""), *access))
            .collect();
        found.extend(plain);
        found
    }
}

/// Parts between a separator that no backslash is before.
fn split(text: &str, separator: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut is_escaped = false;
    for letter in text.chars() {
        if letter == separator && !is_escaped {
            parts.push(String::new());
        } else if let Some(last) = parts.last_mut() {
            last.push(letter);
        }
        is_escaped = letter == '\\' && !is_escaped;
    }
    parts
}
