//! Sizes, offsets and numbers by name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use nvabi::{PerRelease, Release, class, control, headers, lists, uvm};

/// One thing that the headers say.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// Bytes of a struct.
    Size(String),
    /// Offset of a field in a struct.
    Offset(String, String),
    /// Value of a constant.
    Value(String),
    /// A digest of a struct's text and of those in it.
    Text(String),
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(name) => write!(f, "sizeof {name}"),
            Self::Offset(name, field) => write!(f, "offsetof {name}.{field}"),
            Self::Value(name) => f.write_str(name),
            Self::Text(name) => write!(f, "text of {name}"),
        }
    }
}

impl FromStr for What {
    type Err = &'static str;

    /// As it is displayed.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(name) = text.strip_prefix("sizeof ") {
            return Ok(Self::Size(name.to_owned()));
        }
        if let Some(name) = text.strip_prefix("text of ") {
            return Ok(Self::Text(name.to_owned()));
        }
        if let Some(member) = text.strip_prefix("offsetof ") {
            let (name, field) = member.split_once('.').ok_or("an offset of no field")?;
            return Ok(Self::Offset(name.to_owned(), field.to_owned()));
        }
        match text.contains(' ') {
            true => Err("neither a size, an offset, a text nor a number"),
            false => Ok(Self::Value(text.to_owned())),
        }
    }
}

/// What is known of one driver version.
#[derive(Debug, PartialEq, Eq)]
pub struct Facts {
    known: BTreeMap<What, u64>,
}

impl Facts {
    /// What was found.
    #[must_use]
    pub fn new(known: BTreeMap<What, u64>) -> Self {
        Self { known }
    }

    /// What `nvabi` says of a release: everything that the broker decodes by.
    pub fn of_release(release: Release) -> Self {
        let mut known = BTreeMap::new();
        let mut size = |name: &str, bytes: u32| {
            if bytes != 0 {
                known.insert(What::Size(name.to_owned()), u64::from(bytes));
            }
        };
        for (name, bytes) in headers::escape_structs() {
            size(name, bytes.of(release));
        }
        for row in uvm::ALL {
            size(&format!("{}_PARAMS", row.name), row.size.of(release));
        }
        for (number, name) in headers::CLASS_STRUCTS {
            if let Some(class) = class::row_of(*number, release) {
                size(name, class.params.of(release));
            }
        }
        let structs = control_structs(release);
        for (cmd, name) in &structs {
            if let Some(row) = control::row(*cmd, release) {
                size(name, row.params_bytes);
            }
        }
        let mut offset = |name: &str, field: &str, at: PerRelease| {
            let what = What::Offset(name.to_owned(), field.to_owned());
            known.insert(what, u64::from(at.of(release)));
        };
        for (name, field, at) in headers::fields() {
            offset(name, field, *at);
        }
        for row in uvm::ALL.iter().filter(|row| row.size.of(release) != 0) {
            offset(&format!("{}_PARAMS", row.name), "rmStatus", row.status);
        }
        for (name, number) in headers::numbers() {
            known.insert(What::Value(name.to_owned()), u64::from(number));
        }
        for (cmd, name) in control::rows() {
            if control::row(cmd, release).is_some() {
                known.insert(What::Value(name.to_owned()), u64::from(cmd));
            }
        }
        for (name, digest) in lists::texts(lists::TEXTS) {
            let digest = digest
                .of(release)
                .map(|digest| u64::from_str_radix(digest, 16));
            if let Some(Ok(digest)) = digest {
                known.insert(What::Text(name.to_owned()), digest);
            }
        }
        Self { known }
    }

    /// What is known of one thing.
    pub fn value(&self, what: &What) -> Option<u64> {
        self.known.get(what).copied()
    }

    /// Every fact.
    pub fn iter(&self) -> impl Iterator<Item = (&What, u64)> {
        self.known.iter().map(|(what, value)| (what, *value))
    }
}

/// Every struct whose text counts: of the calls, of what is read in them, and of the admitted controls' parameters.
#[must_use]
pub fn structs() -> BTreeSet<String> {
    let calls = headers::escape_structs().map(|(name, _)| name);
    let classes = headers::CLASS_STRUCTS.iter().map(|(_, name)| *name);
    let fields = headers::fields().map(|(name, ..)| *name);
    let controls = Release::ALL.into_iter().flat_map(control_structs);
    let named = calls.chain(classes).chain(fields);
    let managed = uvm::ALL.iter().map(|row| format!("{}_PARAMS", row.name));
    named
        .chain(controls.map(|(_, name)| name))
        .map(str::to_owned)
        .chain(managed)
        .collect()
}

/// Command and parameter struct of every admitted control that takes parameters in a release.
pub(crate) fn control_structs(release: Release) -> Vec<(u32, &'static str)> {
    lists::exported(lists::EXPORTED)
        .filter(|exported| {
            let row = control::row(exported.cmd, release);
            !exported.params.is_empty() && row.is_some_and(|row| row.params_bytes != 0)
        })
        .map(|exported| (exported.cmd, exported.params))
        .collect()
}
