//! What was found of a driver version, as a data file, and what it says otherwise than a release.

use std::collections::{BTreeMap, BTreeSet};

use releases::{Facts, What};

/// Something that is not as expected; `None`: absent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Difference {
    /// Of what.
    pub(super) what: What,
    /// What was expected.
    pub(super) ours: Option<u64>,
    /// What was found.
    pub(super) theirs: Option<u64>,
}

/// What was found of one driver version.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) facts: Facts,
    /// Sizes of fields, kept only for the data file.
    widths: BTreeMap<What, u64>,
    /// Data files carry no numbers: what is absent there says nothing.
    layouts_only: bool,
}

impl Found {
    /// By a source tree: what was found, and the bytes of each field.
    pub(super) fn new(known: BTreeMap<What, u64>, widths: BTreeMap<What, u64>) -> Self {
        Self {
            facts: Facts::new(known),
            widths,
            layouts_only: false,
        }
    }

    /// What these facts say otherwise than `ours`.
    ///
    /// A number's name that the headers lack is no difference: `nvabi` names some rows as gVisor does, and a class that a
    /// version has no header for cannot be allocated there.
    pub(super) fn against(&self, ours: &Facts) -> Vec<Difference> {
        let mut all: BTreeSet<&What> = ours.iter().map(|(what, _)| what).collect();
        if !self.layouts_only {
            // What the release lacks and these headers have: a call or control that can be admitted.
            all.extend(self.facts.iter().map(|(what, _)| what));
        }
        all.into_iter()
            .filter_map(|what| {
                let (ours, theirs) = (ours.value(what), self.facts.value(what));
                let is_silent = theirs.is_none()
                    && (self.layouts_only || matches!(what, What::Value(_) | What::Text(_)))
                    || ours.is_none() && !is_call(what);
                (ours != theirs && !is_silent).then(|| Difference {
                    what: what.clone(),
                    ours,
                    theirs,
                })
            })
            .collect()
    }

    /// Reads a data file: `{"STRUCT": [bytes, [["field", offset, size], ...]]}`.
    ///
    /// # Errors
    /// The text has another form.
    pub(super) fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        type Layouts = BTreeMap<String, (u64, Vec<(String, u64, u64)>)>;
        let layouts: Layouts = serde_json::from_str(text)?;
        let (mut known, mut widths) = (BTreeMap::new(), BTreeMap::new());
        for (name, (bytes, fields)) in layouts {
            for (field, at, width) in fields {
                // An array is one field; some files name its length.
                let field = field.split('[').next().unwrap_or_default().to_owned();
                let what = What::Offset(name.clone(), field);
                widths.insert(what.clone(), width);
                known.insert(what, at);
            }
            known.insert(What::Size(name), bytes);
        }
        Ok(Self {
            facts: Facts::new(known),
            widths,
            layouts_only: true,
        })
    }

    /// The data file: one struct a line.
    pub(super) fn to_json(&self) -> String {
        let lines: Vec<String> = self
            .facts
            .iter()
            .filter_map(|(what, bytes)| match what {
                What::Size(name) => Some((name, bytes)),
                What::Offset(..) | What::Value(_) | What::Text(_) => None,
            })
            .map(|(name, bytes)| {
                let fields: Vec<String> = self
                    .facts
                    .iter()
                    .filter_map(|(what, at)| match what {
                        What::Offset(of, field) if of == name => {
                            let width = self.widths.get(what).copied().unwrap_or_default();
                            Some((at, format!("[\"{field}\", {at}, {width}]")))
                        }
                        What::Offset(..) | What::Size(_) | What::Value(_) | What::Text(_) => None,
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
        What::Offset(..) | What::Value(_) | What::Text(_) => false,
    }
}
