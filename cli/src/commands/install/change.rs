//! What is changed in one file of an engine, and how it is taken back when the file is no longer as it was left.

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::json_text::JsonText;
use super::toml_text::TomlText;

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Format {
    Json,
    Toml,
}

/// One thing that is to be in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Change {
    /// A key with this value.
    Set { path: Vec<String>, value: Value },
    /// An element of a list of strings.
    Include { path: Vec<String>, element: String },
}

impl Change {
    pub(super) fn set(path: &[&str], value: Value) -> Self {
        Self::Set {
            path: owned(path),
            value,
        }
    }

    pub(super) fn include(path: &[&str], element: &str) -> Self {
        Self::Include {
            path: owned(path),
            element: element.to_owned(),
        }
    }

    fn path(&self) -> &[String] {
        match self {
            Self::Set { path, .. } | Self::Include { path, .. } => path,
        }
    }
}

pub(super) fn owned(path: &[&str]) -> Vec<String> {
    path.iter().map(|name| (*name).to_owned()).collect()
}

/// A change that was made, with what undoes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Made {
    #[serde(flatten)]
    change: Change,
    /// What was at the path before; absent: nothing did.
    former: Option<Value>,
    /// How many of the path's names were there before.
    depth_before: usize,
}

/// A file's text as a document.
#[derive(Debug, Clone)]
pub(super) enum Document {
    Json(JsonText),
    Toml(TomlText),
}

impl Document {
    /// # Errors
    /// Says what is wrong and where.
    pub(super) fn parse(format: Format, text: &str) -> anyhow::Result<Self> {
        Ok(match format {
            Format::Json => Self::Json(JsonText::parse(text)?),
            Format::Toml => Self::Toml(TomlText::parse(text)?),
        })
    }

    pub(super) fn text(&self) -> String {
        match self {
            Self::Json(json) => json.text().to_owned(),
            Self::Toml(toml) => toml.text(),
        }
    }

    pub(super) fn value(&self) -> anyhow::Result<Value> {
        match self {
            Self::Json(json) => json.value(),
            Self::Toml(toml) => Ok(toml.value()),
        }
    }

    pub(super) fn get(&self, path: &[String]) -> anyhow::Result<Option<Value>> {
        match self {
            Self::Json(json) => json.get(path),
            Self::Toml(toml) => toml.get(path),
        }
    }

    /// [`Document::get`] of a path that is written out.
    pub(super) fn at(&self, path: &[&str]) -> anyhow::Result<Option<Value>> {
        self.get(&owned(path))
    }

    fn set(&mut self, path: &[String], value: &Value) -> anyhow::Result<()> {
        match self {
            Self::Json(json) => json.set(path, value),
            Self::Toml(toml) => toml.set(path, value),
        }
    }

    fn remove(&mut self, path: &[String]) -> anyhow::Result<()> {
        match self {
            Self::Json(json) => json.remove(path),
            Self::Toml(toml) => toml.remove(path),
        }
    }

    /// Makes a change. `None`: it stands already.
    pub(super) fn make(&mut self, change: &Change) -> anyhow::Result<Option<Made>> {
        let path = change.path();
        let former = self.get(path)?;
        let mut depth_before = 0;
        while depth_before < path.len() && self.get(&path[..=depth_before])?.is_some() {
            depth_before += 1;
        }
        match change {
            Change::Set { value, .. } if former.as_ref() == Some(value) => return Ok(None),
            Change::Set { value, .. } => self.set(path, value)?,
            Change::Include { element, .. } => {
                let there = former
                    .as_ref()
                    .and_then(Value::as_array)
                    .is_some_and(|list| list.iter().any(|value| value == element));
                if there {
                    return Ok(None);
                }
                match self {
                    Self::Toml(toml) => toml.include(path, element)?,
                    Self::Json(_) => anyhow::bail!("lists in JSON are not added to"),
                }
            }
        }
        Ok(Some(Made {
            change: change.clone(),
            former,
            depth_before,
        }))
    }

    /// Takes a change back, in a document that may have changed since. What is not as it was left is reported in `remarks`.
    pub(super) fn undo(&mut self, made: &Made, remarks: &mut Vec<String>) -> anyhow::Result<()> {
        let path = made.change.path();
        let name = path.join(".");
        let Some(now) = self.get(path)? else {
            remarks.push(format!("{name} had been taken out already"));
            return self.prune(made);
        };
        match &made.change {
            Change::Set { value, .. } => {
                if &now != value {
                    if !value.is_object() {
                        // Another value at a key that is not ours alone: their choice.
                        remarks.push(format!("{name} has another value now, {now}: it stays"));
                        return Ok(());
                    }
                    remarks.push(format!("{name} had been changed; it was taken out"));
                }
                match &made.former {
                    Some(former) => self.set(path, former)?,
                    None => self.remove(path)?,
                }
            }
            Change::Include { element, .. } => {
                let left = match self {
                    Self::Toml(toml) => toml.exclude(path, element)?,
                    Self::Json(_) => anyhow::bail!("lists in JSON are not added to"),
                };
                if left == 0 && made.former.is_none() {
                    self.remove(path)?;
                }
            }
        }
        self.prune(made)
    }

    /// Takes out the tables that a change had to make and that are empty now.
    fn prune(&mut self, made: &Made) -> anyhow::Result<()> {
        let path = made.change.path();
        for depth in (made.depth_before + 1..path.len()).rev() {
            let at = &path[..depth];
            match self.get(at)? {
                Some(Value::Object(members)) if members.is_empty() => self.remove(at)?,
                _ => break,
            }
        }
        Ok(())
    }
}

/// A text with changes made, and what undoes them.
pub(super) fn changed(
    format: Format,
    text: &str,
    changes: &[Change],
) -> anyhow::Result<(String, Vec<Made>)> {
    let mut document = Document::parse(format, text)?;
    let mut made = Vec::new();
    for change in changes {
        let one = document
            .make(change)
            .with_context(|| format!("set {}", change.path().join(".")))?;
        made.extend(one);
    }
    let mut written = document.text();
    if format == Format::Toml && is_only_comments(text) {
        // A document without keys keeps its comments last; a header stands first.
        let body = written.replacen(text.trim(), "", 1);
        written = format!("{}\n\n{}\n", text.trim(), body.trim())
            .trim_start()
            .to_owned();
    }
    // What is written is read again: an edit that broke the document stops here.
    Document::parse(format, &written).context("the edited text")?;
    Ok((written, made))
}

fn is_only_comments(text: &str) -> bool {
    text.lines()
        .map(str::trim)
        .all(|line| line.is_empty() || line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn undone(format: Format, text: &str, made: &[Made]) -> (String, Vec<String>) {
        let mut document = Document::parse(format, text).unwrap();
        let mut remarks = Vec::new();
        for one in made.iter().rev() {
            document.undo(one, &mut remarks).unwrap();
        }
        (document.text(), remarks)
    }

    #[test]
    fn what_the_admin_added_since_stays_and_what_was_replaced_comes_back() {
        let before = "{\n  \"default-runtime\": \"kata\",\n  \"runtimes\": {\"kata\": {\"path\": \"/k\"}}\n}\n";
        let changes = [
            Change::set(&["runtimes", "cgpu"], json!({"path": "/c"})),
            Change::set(&["default-runtime"], json!("cgpu")),
        ];
        let (after, made) = changed(Format::Json, before, &changes).unwrap();
        assert_eq!(undone(Format::Json, &after, &made).0, before);
        let (again, none) = changed(Format::Json, &after, &changes).unwrap();
        assert_eq!((again.as_str(), none.len()), (after.as_str(), 0));

        let edited = after.replace("{\n  \"default", "{\n  \"debug\": true,\n  \"default");
        let (left, remarks) = undone(Format::Json, &edited, &made);
        assert_eq!(
            left,
            before.replace("{\n  \"default", "{\n  \"debug\": true,\n  \"default")
        );
        assert!(remarks.is_empty(), "{remarks:?}");

        // A default of their own is left; a runtime of ours goes, whatever was done to it.
        let edited = after
            .replace(
                "\"default-runtime\": \"cgpu\"",
                "\"default-runtime\": \"kata\"",
            )
            .replace("/c", "/changed");
        let (left, remarks) = undone(Format::Json, &edited, &made);
        assert_eq!(left, before);
        assert_eq!(remarks.len(), 2, "{remarks:?}");
    }

    #[test]
    fn a_header_stays_first() {
        let changes = [Change::set(&["engine", "runtimes", "cgpu"], json!(["/c"]))];
        let (after, made) = changed(Format::Toml, "# ours\n", &changes).unwrap();
        assert_eq!(after, "# ours\n\n[engine.runtimes]\ncgpu = [\"/c\"]\n");
        assert_eq!(undone(Format::Toml, &after, &made).0, "");
        let (after, _) = changed(Format::Toml, "", &changes).unwrap();
        assert_eq!(after, "[engine.runtimes]\ncgpu = [\"/c\"]\n");
    }

    #[test]
    fn tables_that_were_made_go_with_what_they_were_made_for() {
        let before = "version = 2\n";
        let changes = [
            Change::set(&["plugins", "a.b", "runtimes", "cgpu"], json!({"x": 1})),
            Change::include(&["imports"], "/y"),
        ];
        let (after, made) = changed(Format::Toml, before, &changes).unwrap();
        assert_eq!(undone(Format::Toml, &after, &made).0, before);
        let theirs = format!("{after}\n[plugins.\"a.b\".runtimes.other]\nx = 2\n");
        let (left, _) = undone(Format::Toml, &theirs, &made);
        assert_eq!(
            Document::parse(Format::Toml, &left)
                .unwrap()
                .value()
                .unwrap(),
            json!({"version": 2, "plugins": {"a.b": {"runtimes": {"other": {"x": 2}}}}})
        );
    }
}
