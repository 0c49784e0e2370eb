//! Sizes, offsets and numbers by name, and what differs between two sets of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::Context;
use nvabi::{PerRelease, Release, class, control, headers, lists, uvm};

/// One thing that the headers say.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum What {
    /// Bytes of a struct.
    Size(String),
    /// Offset of a field in a struct.
    Offset(String, String),
    /// Value of a constant.
    Value(String),
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(name) => write!(f, "sizeof {name}"),
            Self::Offset(name, field) => write!(f, "offsetof {name}.{field}"),
            Self::Value(name) => f.write_str(name),
        }
    }
}

/// Something that is not as expected; `None`: absent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) what: What,
    pub(crate) ours: Option<u64>,
    pub(crate) theirs: Option<u64>,
}

/// What is known of one driver version.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    known: BTreeMap<What, u64>,
    /// Sizes of fields, kept only for the data file.
    widths: BTreeMap<What, u64>,
    /// Data files carry no numbers: what is absent there says nothing.
    layouts_only: bool,
}

impl Facts {
    /// Of answers to [`questions`].
    pub(super) fn new(known: BTreeMap<What, u64>, widths: BTreeMap<What, u64>) -> Self {
        Self {
            known,
            widths,
            layouts_only: false,
        }
    }

    /// What `nvabi` says of a release: everything that the broker decodes by.
    pub(crate) fn of_release(release: Release) -> Self {
        let mut known = BTreeMap::new();
        let mut size = |name: &str, bytes: u32| {
            if bytes != 0 {
                known.insert(What::Size(name.to_owned()), u64::from(bytes));
            }
        };
        for (name, bytes) in headers::ESCAPE_STRUCTS {
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
        for (name, field, at) in headers::FIELDS {
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
        Self {
            known,
            ..Self::default()
        }
    }

    /// What is known of one thing.
    pub(super) fn value(&self, what: &What) -> Option<u64> {
        self.known.get(what).copied()
    }

    /// How many facts.
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// What these facts say otherwise than `ours`.
    ///
    /// A number's name that the headers lack is no difference: `nvabi` names some rows as gVisor does, and a class that a
    /// version has no header for cannot be allocated there.
    pub(crate) fn against(&self, ours: &Self) -> Vec<Difference> {
        let mut all: BTreeSet<&What> = ours.known.keys().collect();
        if !self.layouts_only {
            // What the release lacks and these headers have: a call or control that can be admitted.
            all.extend(self.known.keys());
        }
        all.into_iter()
            .filter_map(|what| {
                let (ours, theirs) = (ours.known.get(what), self.known.get(what));
                let is_silent = theirs.is_none()
                    && (self.layouts_only || matches!(what, What::Value(_)))
                    || ours.is_none() && !is_call(what);
                (ours != theirs && !is_silent).then(|| Difference {
                    what: what.clone(),
                    ours: ours.copied(),
                    theirs: theirs.copied(),
                })
            })
            .collect()
    }

    /// Reads a data file: `{"STRUCT": [bytes, [["field", offset, size], ...]]}`.
    pub(crate) fn from_json(text: &str) -> anyhow::Result<Self> {
        type Layouts = BTreeMap<String, (u64, Vec<(String, u64, u64)>)>;
        let layouts: Layouts = serde_json::from_str(text).context("not a map of structs")?;
        let mut facts = Self {
            layouts_only: true,
            ..Self::default()
        };
        for (name, (bytes, fields)) in layouts {
            for (field, at, width) in fields {
                // An array is one field; some files name its length.
                let field = field.split('[').next().unwrap_or_default().to_owned();
                let what = What::Offset(name.clone(), field);
                facts.widths.insert(what.clone(), width);
                facts.known.insert(what, at);
            }
            facts.known.insert(What::Size(name), bytes);
        }
        Ok(facts)
    }

    /// The data file: one struct a line.
    pub(crate) fn to_json(&self) -> String {
        let lines: Vec<String> = self
            .known
            .iter()
            .filter_map(|(what, bytes)| match what {
                What::Size(name) => Some((name, bytes)),
                What::Offset(..) | What::Value(_) => None,
            })
            .map(|(name, bytes)| {
                let fields: Vec<String> = self
                    .known
                    .iter()
                    .filter_map(|(what, at)| match what {
                        What::Offset(of, field) if of == name => {
                            let width = self.widths.get(what).copied().unwrap_or_default();
                            Some((*at, format!("[\"{field}\", {at}, {width}]")))
                        }
                        What::Offset(..) | What::Size(_) | What::Value(_) => None,
                    })
                    .collect::<BTreeMap<u64, String>>()
                    .into_values()
                    .collect();
                format!("\"{name}\": [{bytes}, [{}]]", fields.join(", "))
            })
            .collect();
        format!("{{\n{}\n}}\n", lines.join(",\n"))
    }
}

/// Whether a release that lacks it lacks a call. A control's struct may stay in the headers when the module has dropped the control.
fn is_call(what: &What) -> bool {
    match what {
        What::Size(name) => name.starts_with("UVM_") || name.starts_with("nv_ioctl_"),
        What::Offset(..) | What::Value(_) => false,
    }
}

/// What to ask of headers: everything that some release knows, and the size of every struct with a field in it, which the data
/// file has.
pub(super) fn questions() -> Vec<What> {
    let known = Release::ALL
        .into_iter()
        .flat_map(|release| Facts::of_release(release).known.into_keys());
    let sizes = headers::FIELDS
        .iter()
        .map(|(name, ..)| What::Size((*name).to_owned()));
    let all: BTreeSet<What> = known.chain(sizes).collect();
    all.into_iter().collect()
}

/// Command and parameter struct of every admitted control that takes parameters in a release.
fn control_structs(release: Release) -> Vec<(u32, &'static str)> {
    lists::exported(lists::EXPORTED)
        .filter(|exported| {
            let row = control::row(exported.cmd, release);
            !exported.params.is_empty() && row.is_some_and(|row| row.params_bytes != 0)
        })
        .map(|exported| (exported.cmd, exported.params))
        .collect()
}
