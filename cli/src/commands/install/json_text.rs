//! A JSON text that is edited in place: what is not edited keeps its bytes, white space and spelling of numbers included.

use std::io::{self, Write};
use std::ops::Range;

use anyhow::{Context, bail};
use serde_json::Value;

/// A valid JSON document whose top is an object.
#[derive(Debug, Clone)]
pub(super) struct JsonText {
    text: String,
}

/// A value's place, and what it holds if it is an object.
#[derive(Debug)]
struct Node {
    span: Range<usize>,
    members: Option<Vec<Member>>,
}

#[derive(Debug)]
struct Member {
    name: String,
    /// From the name's quotation mark to the value's end.
    span: Range<usize>,
    value: Node,
}

impl JsonText {
    /// # Errors
    /// Where it is not JSON, with line and column, or no object; a key that stands twice.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        // An empty file is an empty object: so dockerd reads it.
        let text = if text.trim().is_empty() { "{}\n" } else { text };
        let value: Value = serde_json::from_str(text).map_err(|error| {
            let line = text
                .lines()
                .nth(error.line().saturating_sub(1))
                .unwrap_or_default();
            let comment = ["//", "/*", "#"]
                .iter()
                .any(|comment| line.contains(comment));
            let hint = if comment {
                "; JSON knows no comments"
            } else {
                ""
            };
            anyhow::anyhow!("not JSON: {error}{hint}")
        })?;
        if !value.is_object() {
            bail!("the document is {}, not an object", kind(&value));
        }
        Ok(Self {
            text: text.to_owned(),
        })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn value(&self) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&self.text)?)
    }

    /// The value at a path; an error where something on the way is no object or stands twice.
    pub(super) fn get(&self, path: &[String]) -> anyhow::Result<Option<Value>> {
        let top = self.nodes()?;
        let mut at = &top;
        for (depth, name) in path.iter().enumerate() {
            let members = at
                .members
                .as_ref()
                .with_context(|| format!("{} is no object", path[..depth].join(".")))?;
            match only(members, name)? {
                Some(member) => at = &member.value,
                None => return Ok(None),
            }
        }
        Ok(Some(serde_json::from_str(self.slice(&at.span))?))
    }

    /// Puts a value at a path; objects on the way are made.
    pub(super) fn set(&mut self, path: &[String], value: &Value) -> anyhow::Result<()> {
        let top = self.nodes()?;
        let mut at = &top;
        for (depth, name) in path.iter().enumerate() {
            let members = at
                .members
                .as_ref()
                .with_context(|| format!("{} is no object", path[..depth].join(".")))?;
            match only(members, name)? {
                Some(member) => at = &member.value,
                None => {
                    let nested = path[depth + 1..]
                        .iter()
                        .rev()
                        .fold(value.clone(), |inner, name| {
                            Value::Object([(name.clone(), inner)].into_iter().collect())
                        });
                    let (place, text) = self.insertion(at, members, name, &nested)?;
                    self.text.replace_range(place, &text);
                    return Ok(());
                }
            }
        }
        let written = self.written(value, &self.indent_of_line(at.span.start))?;
        let span = at.span.clone();
        self.text.replace_range(span, &written);
        Ok(())
    }

    /// Takes a key out; an absent one is fine.
    pub(super) fn remove(&mut self, path: &[String]) -> anyhow::Result<()> {
        let Some((name, parents)) = path.split_last() else {
            bail!("the whole document cannot be taken out");
        };
        let top = self.nodes()?;
        let mut at = &top;
        for parent in parents {
            let members = at.members.as_ref().context("no object on the way")?;
            match only(members, parent)? {
                Some(member) => at = &member.value,
                None => return Ok(()),
            }
        }
        let members = at.members.as_ref().context("no object on the way")?;
        let Some(index) = members.iter().position(|member| &member.name == name) else {
            return Ok(());
        };
        let span = &members[index].span;
        let cut = match (index.checked_sub(1), members.get(index + 1)) {
            (Some(before), _) => members[before].span.end..span.end,
            (None, Some(after)) => span.start..after.span.start,
            (None, None) => at.span.start + 1..at.span.end - 1,
        };
        self.text.replace_range(cut, "");
        Ok(())
    }

    fn slice(&self, span: &Range<usize>) -> &str {
        &self.text[span.clone()]
    }

    /// Where a new member goes, and its text, in the manner of its neighbours.
    fn insertion(
        &self,
        at: &Node,
        members: &[Member],
        name: &str,
        value: &Value,
    ) -> anyhow::Result<(Range<usize>, String)> {
        let name = serde_json::to_string(name)?;
        let Some(last) = members.last() else {
            let outer = self.indent_of_line(at.span.start);
            let inner = format!("{outer}{}", self.unit());
            let written = self.written(value, &inner)?;
            return Ok((
                at.span.clone(),
                format!("{{\n{inner}{name}: {written}\n{outer}}}"),
            ));
        };
        let from = match members.len().checked_sub(2) {
            Some(index) => members[index].span.end,
            None => at.span.start + 1,
        };
        // What is before the last member, without the comma: a line break and its indentation, or a space.
        let gap: String = self.text[from..last.span.start]
            .chars()
            .filter(|character| *character != ',')
            .collect();
        let written = match gap.rsplit_once('\n') {
            Some((_, indent)) => self.written(value, indent)?,
            None => in_one_line(value)?,
        };
        let gap = if gap.is_empty() { " " } else { &gap };
        let end = last.span.end;
        Ok((end..end, format!(",{gap}{name}: {written}")))
    }

    /// A value over several lines, which stand `indent` deep.
    fn written(&self, value: &Value, indent: &str) -> anyhow::Result<String> {
        let unit = self.unit();
        let mut bytes = Vec::new();
        let formatter = serde_json::ser::PrettyFormatter::with_indent(unit.as_bytes());
        let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, formatter);
        serde::Serialize::serialize(value, &mut serializer)?;
        Ok(String::from_utf8(bytes)?.replace('\n', &format!("\n{indent}")))
    }

    fn indent_of_line(&self, at: usize) -> String {
        let line = self.text[..at].rfind('\n').map_or(0, |end| end + 1);
        self.text[line..at]
            .chars()
            .take_while(|character| matches!(character, ' ' | '\t'))
            .collect()
    }

    /// What the document indents by: its first indented line's white space, else two spaces.
    fn unit(&self) -> String {
        self.text
            .lines()
            .map(|line| {
                line.chars()
                    .take_while(|character| matches!(character, ' ' | '\t'))
                    .collect::<String>()
            })
            .find(|indent| !indent.is_empty())
            .unwrap_or_else(|| "  ".to_owned())
    }

    fn nodes(&self) -> anyhow::Result<Node> {
        Scanner {
            text: self.text.as_bytes(),
            at: 0,
        }
        .value(&self.text)
    }
}

/// A value in one line, with the spaces that people write.
fn in_one_line(value: &Value) -> anyhow::Result<String> {
    struct Spaced;
    impl serde_json::ser::Formatter for Spaced {
        fn begin_array_value<W: ?Sized + Write>(
            &mut self,
            to: &mut W,
            first: bool,
        ) -> io::Result<()> {
            to.write_all(if first { b"" } else { b", " })
        }
        fn begin_object_key<W: ?Sized + Write>(
            &mut self,
            to: &mut W,
            first: bool,
        ) -> io::Result<()> {
            to.write_all(if first { b"" } else { b", " })
        }
        fn begin_object_value<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
            to.write_all(b": ")
        }
    }
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Spaced);
    serde::Serialize::serialize(value, &mut serializer)?;
    Ok(String::from_utf8(bytes)?)
}

fn only<'a>(members: &'a [Member], name: &str) -> anyhow::Result<Option<&'a Member>> {
    let mut named = members.iter().filter(|member| member.name == name);
    let first = named.next();
    if named.next().is_some() {
        bail!("the key {name:?} stands twice in one object");
    }
    Ok(first)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Finds the places of values in a text that is known to be valid JSON.
struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    fn value(&mut self, text: &str) -> anyhow::Result<Node> {
        self.blank();
        let start = self.at;
        let members = match self.peek()? {
            b'{' => Some(self.object(text)?),
            b'[' => {
                self.at += 1;
                self.blank();
                while self.peek()? != b']' {
                    self.value(text)?;
                    self.blank();
                    if self.peek()? == b',' {
                        self.at += 1;
                    }
                    self.blank();
                }
                self.at += 1;
                None
            }
            b'"' => {
                self.string()?;
                None
            }
            _ => {
                while self.text.get(self.at).is_some_and(|byte| {
                    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')
                }) {
                    self.at += 1;
                }
                None
            }
        };
        Ok(Node {
            span: start..self.at,
            members,
        })
    }

    fn object(&mut self, text: &str) -> anyhow::Result<Vec<Member>> {
        self.at += 1;
        let mut members = Vec::new();
        loop {
            self.blank();
            match self.peek()? {
                b'}' => {
                    self.at += 1;
                    return Ok(members);
                }
                b',' => {
                    self.at += 1;
                    continue;
                }
                _ => {}
            }
            let start = self.at;
            self.string()?;
            let name = serde_json::from_str(&text[start..self.at])?;
            self.blank();
            // The colon.
            self.at += 1;
            let value = self.value(text)?;
            members.push(Member {
                name,
                span: start..self.at,
                value,
            });
        }
    }

    fn string(&mut self) -> anyhow::Result<()> {
        self.at += 1;
        loop {
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Ok(());
                }
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
    }

    fn blank(&mut self) {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
    }

    fn peek(&self) -> anyhow::Result<u8> {
        self.text
            .get(self.at)
            .copied()
            .context("the document ends too early")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn path(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_key_goes_in_as_its_neighbours_stand_and_comes_out_without_a_trace() {
        let runtime = json!({"path": "/usr/bin/cgpu-runtime"});
        for (before, after) in [
            (
                "{\n\t\"log-level\": \"warn\", \"x\": 1.50e3\n}\n",
                "{\n\t\"log-level\": \"warn\", \"x\": 1.50e3, \"runtimes\": {\"cgpu\": {\"path\": \"/usr/bin/cgpu-runtime\"}}\n}\n",
            ),
            (
                "{\n    \"a\": {\"b\": [1, {}]},\n    \"runtimes\": {\n        \"k\": {\"path\": \"/k\"}\n    }\n}",
                "{\n    \"a\": {\"b\": [1, {}]},\n    \"runtimes\": {\n        \"k\": {\"path\": \"/k\"},\n        \"cgpu\": {\n            \"path\": \"/usr/bin/cgpu-runtime\"\n        }\n    }\n}",
            ),
        ] {
            let mut text = JsonText::parse(before).unwrap();
            let created = text.get(&path(&["runtimes"])).unwrap().is_none();
            text.set(&path(&["runtimes", "cgpu"]), &runtime).unwrap();
            assert_eq!(text.text(), after);
            text.remove(&path(if created {
                &["runtimes"]
            } else {
                &["runtimes", "cgpu"]
            }))
            .unwrap();
            assert_eq!(text.text(), before);
        }
    }

    #[test]
    fn an_empty_file_and_an_empty_object_become_a_document() {
        for before in ["", " \n", "{}", "{ }\n"] {
            let mut text = JsonText::parse(before).unwrap();
            text.set(&path(&["runtimes", "cgpu"]), &json!({"path": "/p"}))
                .unwrap();
            assert_eq!(
                text.text().trim_end(),
                "{\n  \"runtimes\": {\n    \"cgpu\": {\n      \"path\": \"/p\"\n    }\n  }\n}"
            );
        }
    }

    #[test]
    fn what_is_no_json_is_reported_with_its_place() {
        for (text, reply) in [
            ("{\n  \"a\": 1,\n}", "line 3 column 1"),
            (
                "{\n  // why\n  \"a\": 1\n}",
                "line 2 column 3; JSON knows no comments",
            ),
            ("\u{feff}{}", "line 1 column 1"),
            ("[]", "a list, not an object"),
        ] {
            let error = JsonText::parse(text).unwrap_err().to_string();
            assert!(error.contains(reply), "{error}");
        }
        let text = JsonText::parse("{\"a\": {}, \"a\": 1, \"b\": 1}").unwrap();
        let error = text.get(&path(&["a"])).unwrap_err().to_string();
        assert!(error.contains("twice"), "{error}");
        let error = text.get(&path(&["b", "c"])).unwrap_err().to_string();
        assert!(error.contains("b is no object"), "{error}");
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-z\"\\\\\\n{}\\[\\],:é]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-d\"\\\\,:{}]{0,2}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn an_edit_changes_what_it_names_and_nothing_else(
            members in prop::collection::btree_map("[a-d\"\\\\,:{}]{0,2}", any_json(), 0..5),
            pretty in any::<bool>(),
            names in prop::collection::vec("[a-d\"\\\\]{1,2}", 1..3),
            value in any_json(),
        ) {
            let before = Value::Object(members.into_iter().collect());
            let text = if pretty {
                serde_json::to_string_pretty(&before).unwrap()
            } else {
                serde_json::to_string(&before).unwrap()
            };
            let mut edited = JsonText::parse(&text).unwrap();
            let Ok(former) = edited.get(&names) else {
                return Ok(());
            };
            edited.set(&names, &value).unwrap();
            let mut model = before.clone();
            let mut at = &mut model;
            for name in &names {
                at = at.as_object_mut().unwrap().entry(name.clone()).or_insert_with(|| json!({}));
            }
            *at = value;
            prop_assert_eq!(edited.value().unwrap(), model);
            if former.is_none() {
                // The topmost key that was made.
                let made = (1..=names.len())
                    .find(|depth| JsonText::parse(&text).unwrap().get(&names[..*depth]).unwrap().is_none())
                    .unwrap();
                edited.remove(&names[..made]).unwrap();
                prop_assert_eq!(edited.value().unwrap(), before);
            }
        }
    }
}
