//! A TOML text that is edited in place: comments, order and spelling of what is not edited stay.

use anyhow::{Context, bail};
use serde_json::Value;
use toml_edit::{Array, DocumentMut, Item, Table, TableLike, value as item_of};

/// A valid TOML document.
#[derive(Debug, Clone)]
pub(super) struct TomlText {
    document: DocumentMut,
}

impl TomlText {
    /// # Errors
    /// Where it is not TOML, with line and column.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        let document = text.parse().map_err(|error: toml_edit::TomlError| {
            let place = error.span().map_or_else(String::new, |span| {
                let before = text.get(..span.start).unwrap_or_default();
                let line = before.matches('\n').count() + 1;
                let start = before.rfind('\n').map_or(0, |end| end + 1);
                let column = before[start..].chars().count() + 1;
                format!(" at line {line} column {column}")
            });
            let message = error.message().trim().replace('\n', ", ");
            anyhow::anyhow!("not TOML: {message}{place}")
        })?;
        Ok(Self { document })
    }

    pub(super) fn text(&self) -> String {
        self.document.to_string()
    }

    /// The whole document; dates as strings.
    pub(super) fn value(&self) -> Value {
        json_of(self.document.as_item())
    }

    /// The value at a path; an error where something on the way is no table.
    pub(super) fn get(&self, path: &[String]) -> anyhow::Result<Option<Value>> {
        let mut at = self.document.as_item();
        for (depth, name) in path.iter().enumerate() {
            let table = at
                .as_table_like()
                .with_context(|| format!("{} is no table", path[..depth].join(".")))?;
            match table.get(name) {
                Some(item) if !item.is_none() => at = item,
                _ => return Ok(None),
            }
        }
        Ok(Some(json_of(at)))
    }

    /// Puts a value at a path; tables on the way are made.
    pub(super) fn set(&mut self, path: &[String], value: &Value) -> anyhow::Result<()> {
        let (table, name) = self.parent(path)?;
        let mut item = item_from(value)?;
        match (table.get_mut(name), item.is_value()) {
            (Some(there), true) if there.is_value() => {
                // A line that stands keeps the comment behind it.
                if let (Some(old), Some(new)) = (there.as_value(), item.as_value_mut()) {
                    *new.decor_mut() = old.decor().clone();
                }
                *there = item;
            }
            _ => {
                table.insert(name, item);
            }
        }
        Ok(())
    }

    /// Takes a key out; an absent one is fine.
    pub(super) fn remove(&mut self, path: &[String]) -> anyhow::Result<()> {
        if self.get(path)?.is_some() {
            let (table, name) = self.parent(path)?;
            table.remove(name);
        }
        Ok(())
    }

    /// Adds an element to a list of strings; the list is made where there is none.
    pub(super) fn include(&mut self, path: &[String], element: &str) -> anyhow::Result<()> {
        let (table, name) = self.parent(path)?;
        match table.get_mut(name) {
            Some(item) => {
                let array = item
                    .as_array_mut()
                    .with_context(|| format!("{} is no list", path.join(".")))?;
                array.push(element);
            }
            None => {
                table.insert(name, item_of(Array::from_iter([element])));
            }
        }
        Ok(())
    }

    /// Takes an element out of a list of strings. Returns how many are left in the list.
    pub(super) fn exclude(&mut self, path: &[String], element: &str) -> anyhow::Result<usize> {
        if self.get(path)?.is_none() {
            return Ok(0);
        }
        let (table, name) = self.parent(path)?;
        let array = table
            .get_mut(name)
            .and_then(Item::as_array_mut)
            .with_context(|| format!("{} is no list", path.join(".")))?;
        array.retain(|value| value.as_str() != Some(element));
        Ok(array.len())
    }

    fn parent<'a>(&mut self, path: &'a [String]) -> anyhow::Result<(&mut dyn TableLike, &'a str)> {
        let Some((name, parents)) = path.split_last() else {
            bail!("the whole document cannot be named");
        };
        let mut at = self.document.as_item_mut();
        for (depth, parent) in parents.iter().enumerate() {
            let table = at
                .as_table_like_mut()
                .with_context(|| format!("{} is no table", path[..depth].join(".")))?;
            at = table.entry(parent).or_insert_with(|| {
                let mut made = Table::new();
                made.set_implicit(true);
                Item::Table(made)
            });
        }
        let table = at
            .as_table_like_mut()
            .with_context(|| format!("{} is no table", parents.join(".")))?;
        Ok((table, name))
    }
}

fn json_of(item: &Item) -> Value {
    if let Some(table) = item.as_table_like() {
        return Value::Object(
            table
                .iter()
                .map(|(name, item)| (name.to_owned(), json_of(item)))
                .collect(),
        );
    }
    match item {
        Item::ArrayOfTables(tables) => tables
            .iter()
            .map(|table| json_of(&Item::Table(table.clone())))
            .collect(),
        Item::Value(value) => json_of_value(value),
        Item::None | Item::Table(_) => Value::Null,
    }
}

fn json_of_value(value: &toml_edit::Value) -> Value {
    match value {
        toml_edit::Value::String(text) => text.value().as_str().into(),
        toml_edit::Value::Integer(number) => (*number.value()).into(),
        toml_edit::Value::Float(number) => (*number.value()).into(),
        toml_edit::Value::Boolean(truth) => (*truth.value()).into(),
        toml_edit::Value::Datetime(date) => date.value().to_string().into(),
        toml_edit::Value::Array(array) => array.iter().map(json_of_value).collect(),
        toml_edit::Value::InlineTable(table) => Value::Object(
            table
                .iter()
                .map(|(name, value)| (name.to_owned(), json_of_value(value)))
                .collect(),
        ),
    }
}

/// An object becomes a table with a header of its own.
fn item_from(value: &Value) -> anyhow::Result<Item> {
    Ok(match value {
        Value::Object(members) => {
            let mut table = Table::new();
            for (name, value) in members {
                table.insert(name, item_from(value)?);
            }
            Item::Table(table)
        }
        Value::Array(elements) => {
            let mut array = Array::new();
            for element in elements {
                match item_from(element)? {
                    Item::Value(value) => array.push_formatted(value),
                    _ => bail!("a list of tables is not written"),
                }
            }
            array.fmt();
            item_of(array)
        }
        Value::String(text) => item_of(text),
        Value::Bool(truth) => item_of(*truth),
        Value::Number(number) => match number.as_i64() {
            Some(number) => item_of(number),
            None => item_of(number.as_f64().context("a number that TOML has not")?),
        },
        Value::Null => bail!("TOML has no null"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn path(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    const CONFIG: &str = r#"# ours
version = 2 # of the file

[plugins]
  # indented, as containerd's own
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = 'pause:1'   # mine
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

[grpc]
  gid = 0x10
"#;

    #[test]
    fn a_table_goes_in_beside_its_siblings_and_the_rest_keeps_its_bytes() {
        let mut text = TomlText::parse(CONFIG).unwrap();
        let at = path(&[
            "plugins",
            "io.containerd.grpc.v1.cri",
            "containerd",
            "runtimes",
            "cgpu",
        ]);
        text.set(
            &at,
            &json!({"runtime_type": "x", "list": ["a", "b"], "options": {"SystemdCgroup": true}}),
        )
        .unwrap();
        let added = r#"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.cgpu]
runtime_type = "x"
list = ["a", "b"]

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.cgpu.options]
SystemdCgroup = true
"#;
        let written = text.text();
        assert!(written.contains(added), "{written}");
        assert_eq!(written.replace(added, ""), CONFIG);
        text.remove(&at).unwrap();
        assert_eq!(text.text(), CONFIG);
    }

    #[test]
    fn a_list_takes_an_element_and_gives_it_back() {
        let mut text = TomlText::parse("imports = [\n  \"/a/*.toml\", # theirs\n]\n").unwrap();
        let imports = path(&["imports"]);
        text.include(&imports, "/b").unwrap();
        assert_eq!(
            text.get(&imports).unwrap(),
            Some(json!(["/a/*.toml", "/b"]))
        );
        assert!(text.text().contains("# theirs"), "{}", text.text());
        assert_eq!(text.exclude(&imports, "/b").unwrap(), 1);
        assert_eq!(text.get(&imports).unwrap(), Some(json!(["/a/*.toml"])));
        let mut text = TomlText::parse("version = 3\n\n[grpc]\n  gid = 1\n").unwrap();
        text.include(&imports, "/b").unwrap();
        assert_eq!(
            text.text(),
            "version = 3\nimports = [\"/b\"]\n\n[grpc]\n  gid = 1\n"
        );
    }

    #[test]
    fn what_is_no_toml_is_reported_with_its_place() {
        let error = TomlText::parse("version = 2\nfoo = = 1\n")
            .unwrap_err()
            .to_string();
        assert!(error.contains("line 2 column"), "{error}");
        let text = TomlText::parse("plugins = 3\n").unwrap();
        let error = text.get(&path(&["plugins", "x"])).unwrap_err().to_string();
        assert!(error.contains("plugins is no table"), "{error}");
    }
}
