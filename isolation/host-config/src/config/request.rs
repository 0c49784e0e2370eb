//! Table `[request]`: how requests are read, and what becomes of a container that makes none.

use serde::{Deserialize, Deserializer, de};

use crate::terms::{self, check_default};

/// Table `[request]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RequestConfig {
    /// What a container's environment may do.
    pub environment: EnvironmentRule,
    /// Whether `CGPU_DISABLE` in a container's environment is obeyed.
    pub cgpu_disable: DisableRule,
    /// Whether a container is refused that asks for no vGPU but says what is nearly a request; else it starts, and an event says
    /// what to write.
    pub strict: bool,
    /// What a container gets that asks for nothing; absent: nothing.
    #[serde(deserialize_with = "default_terms")]
    pub default: Option<DefaultTerms>,
}

/// What a container's environment may do. An image's own variables cannot be told from the caller's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnvironmentRule {
    /// Ask for a vGPU, as cGPU's users do, and narrow what the annotations ask for.
    #[default]
    Request,
    /// Only narrow what the annotations ask for.
    TightenOnly,
}

/// Whether `CGPU_DISABLE` is obeyed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DisableRule {
    /// The container is left alone, as cGPU does.
    #[default]
    Obey,
    /// A container that asks for a vGPU and disables it is refused.
    Refuse,
}

/// `request.default`: terms as annotations have them, an amount of memory among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultTerms(Vec<(&'static str, String)>);

impl DefaultTerms {
    /// Each as an annotation, `("cgpu.io/memory", "4Gi")`.
    pub fn terms(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (*key, value.as_str()))
    }
}

/// `"4Gi"`, or a table `{ memory = "4Gi", cards = 2 }`.
fn default_terms<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<DefaultTerms>, D::Error> {
    use toml::Value;
    let of_text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(_)
        | Value::Boolean(_)
        | Value::Datetime(_)
        | Value::Array(_)
        | Value::Table(_) => None,
    };
    let wrong = |key: &str, value: &Value| {
        de::Error::custom(format_args!(
            "{key} = {value} is not allowed: an amount of memory such as \"4Gi\", or a table of {} with texts or whole numbers",
            terms::default_keys().collect::<Vec<_>>().join(", ")
        ))
    };
    let (terms, (annotation, name)) = match Value::deserialize(deserializer)? {
        Value::Table(table) => {
            let mut terms = Vec::new();
            for (key, value) in &table {
                let path = format!("request.default.{key}");
                let known = terms::default_key(key).ok_or_else(|| wrong(&path, value))?;
                let text = of_text(value).ok_or_else(|| wrong(&path, value))?;
                terms.push((known, text));
            }
            (terms, (terms::PREFIX, "request.default."))
        }
        value @ (Value::String(_)
        | Value::Integer(_)
        | Value::Float(_)
        | Value::Boolean(_)
        | Value::Datetime(_)
        | Value::Array(_)) => {
            let text = of_text(&value).ok_or_else(|| wrong("request.default", &value))?;
            let terms = vec![(terms::MEMORY_KEY, text)];
            (terms, (terms::MEMORY_KEY, "request.default"))
        }
    };
    let terms = DefaultTerms(terms);
    match check_default(terms.terms()) {
        Ok(()) => Ok(Some(terms)),
        Err(error @ terms::Error::Together(_)) => Err(de::Error::custom(format_args!(
            "request.default: {}",
            sys::chain(&error)
        ))),
        // The file has other names than the annotations.
        Err(error) => Err(de::Error::custom(
            sys::chain(&error).replace(annotation, name),
        )),
    }
}
