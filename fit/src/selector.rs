//! Expressions of classes and requests that choose among devices: those of a plain form are evaluated, of others it is reported that they are
//! not. Pure.
//!
//! The language is CEL, with Kubernetes' types. What cgpu's classes and templates, and the guide, write is comparisons joined by `&&`.

use std::cmp::Ordering;

use dra::{DRIVER, quantity};

use crate::cards::Card;

/// Whether an expression chooses a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// It does.
    Yes,
    /// It does not.
    No,
    /// Its form is not known here.
    Unknown,
}

/// Longer ones are not evaluated. The API has 10 KiB at most.
const EXPRESSION_BYTES_MAX: usize = 10 << 10;

#[cfg(test)]
std::thread_local! {
    static EVALUATED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Expressions that this thread has evaluated.
#[cfg(test)]
pub(crate) fn evaluated() -> usize {
    EVALUATED.with(std::cell::Cell::get)
}

/// Evaluates one expression for one card.
pub(crate) fn choose(expression: &str, card: &Card) -> Choice {
    #[cfg(test)]
    EVALUATED.with(|count| count.set(count.get() + 1));
    if expression.len() > EXPRESSION_BYTES_MAX {
        return Choice::Unknown;
    }
    let parts = split(expression);
    let choices: Vec<Choice> = parts.iter().map(|part| comparison(part, card)).collect();
    if choices.contains(&Choice::No) {
        Choice::No
    } else if choices.contains(&Choice::Unknown) {
        Choice::Unknown
    } else {
        Choice::Yes
    }
}

/// Whether an expression is of another driver's devices alone.
pub(crate) fn is_foreign(expression: &str) -> bool {
    split(expression).into_iter().any(|part| {
        let driver = equality(part).filter(|(left, _)| *left == "device.driver");
        let driver = driver.and_then(|(_, right)| literal(right));
        driver.is_some_and(|driver| driver != DRIVER)
    })
}

/// The operands of `&&` at the top; an expression with `||` or `?` at the top is one operand.
fn split(expression: &str) -> Vec<&str> {
    let bytes = expression.as_bytes();
    let (mut depth, mut quote, mut start, mut parts) = (0_i32, None, 0, Vec::new());
    for (at, byte) in bytes.iter().enumerate() {
        match (quote, byte) {
            (Some(open), byte) if open == *byte => quote = None,
            (Some(_), _) => {}
            (None, b'"' | b'\'') => quote = Some(*byte),
            (None, b'(' | b'[' | b'{') => depth += 1,
            (None, b')' | b']' | b'}') => depth -= 1,
            (None, b'|' | b'?') if depth == 0 => return vec![expression.trim()],
            (None, b'&') if depth == 0 && bytes.get(at + 1) == Some(&b'&') => {
                parts.push(expression.get(start..at).unwrap_or_default().trim());
                start = at + 2;
            }
            _ => {}
        }
    }
    parts.push(expression.get(start..).unwrap_or_default().trim());
    parts
}

fn comparison(text: &str, card: &Card) -> Choice {
    let of = |is_chosen: bool| if is_chosen { Choice::Yes } else { Choice::No };
    match text {
        "true" => return Choice::Yes,
        "device.allowMultipleAllocations" => return of(card.is_shared()),
        "!device.allowMultipleAllocations" => return of(!card.is_shared()),
        _ => {}
    }
    if let Some(choice) = capacity(text, card) {
        return choice;
    }
    let Some((left, right)) = equality(text) else {
        return Choice::Unknown;
    };
    if left == "device.driver" {
        return literal(right).map_or(Choice::Unknown, |driver| of(driver == DRIVER));
    }
    let Some(name) = member(left, "device.attributes[") else {
        return Choice::Unknown;
    };
    // For the scheduler it is an error to read what a device has not: it is not chosen.
    let Some(attribute) = card
        .device
        .attributes
        .as_ref()
        .and_then(|all| all.get(&name))
    else {
        return Choice::No;
    };
    if let (Some(value), Some(literal)) = (&attribute.string, literal(right)) {
        return of(value == literal);
    }
    if let (Some(value), Ok(literal)) = (attribute.int, right.parse::<i64>()) {
        return of(value == literal);
    }
    if let (Some(value), Ok(literal)) = (attribute.bool, right.parse::<bool>()) {
        return of(value == literal);
    }
    Choice::Unknown
}

/// `left == right`.
fn equality(text: &str) -> Option<(&str, &str)> {
    let (left, right) = text.split_once("==")?;
    Some((left.trim(), right.trim()))
}

/// `device.capacity["gpu.cgpu.io"].memory.compareTo(quantity("24Gi")) >= 0`
fn capacity(text: &str, card: &Card) -> Option<Choice> {
    let (left, rest) = text.split_once(".compareTo(quantity(")?;
    let name = member(left.trim(), "device.capacity[")?;
    let (amount, rest) = rest.split_once("))")?;
    let amount = quantity::whole(literal(amount.trim())?)?;
    let there = quantity::whole(&card.capacity(&name)?.value.0)?;
    let order = there.cmp(&amount);
    let (operator, zero) = rest.trim().split_at_checked(2)?;
    let is_chosen = match (operator, zero.trim()) {
        ("==", "0") => order == Ordering::Equal,
        ("!=", "0") => order != Ordering::Equal,
        (">=", "0") => order != Ordering::Less,
        ("<=", "0") => order != Ordering::Greater,
        ("> ", "0") => order == Ordering::Greater,
        ("< ", "0") => order == Ordering::Less,
        _ => return None,
    };
    Some(if is_chosen { Choice::Yes } else { Choice::No })
}

/// The name, as slices have it, of `device.attributes["gpu.cgpu.io"].productName`: those of our own domain have none before them.
fn member(text: &str, prefix: &str) -> Option<String> {
    let (domain, name) = text.strip_prefix(prefix)?.split_once("].")?;
    let domain = literal(domain)?;
    let is_plain = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if name.is_empty() || !is_plain {
        return None;
    }
    Some(if domain == DRIVER {
        name.to_owned()
    } else {
        format!("{domain}/{name}")
    })
}

/// A string literal without escapes.
fn literal(text: &str) -> Option<&str> {
    let inside = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    let text = inside('"').or_else(|| inside('\''))?;
    (!text.contains(['"', '\'', '\\'])).then_some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn card() -> Card {
        let device = json!({
            "name": "gpu-0",
            "allowMultipleAllocations": true,
            "attributes": {
                "productName": {"string": "NVIDIA H200"},
                "index": {"int": 3},
                "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
            },
            "capacity": {"memory": {"value": "24Gi"}},
        });
        Card {
            pool: "n1".to_owned(),
            device: serde_json::from_value(device).unwrap(),
            shares: Vec::new(),
        }
    }

    #[test]
    fn plain_expressions_are_evaluated_and_others_are_unknown() {
        for (expression, choice) in [
            (
                "device.driver == \"gpu.cgpu.io\" && device.allowMultipleAllocations",
                Choice::Yes,
            ),
            ("device.driver == 'gpu.nvidia.com'", Choice::No),
            ("!device.allowMultipleAllocations", Choice::No),
            (
                "device.attributes[\"gpu.cgpu.io\"].productName == \"NVIDIA H200\"",
                Choice::Yes,
            ),
            (
                "device.attributes[\"gpu.cgpu.io\"].productName == \"a && b\"",
                Choice::No,
            ),
            ("device.attributes[\"gpu.cgpu.io\"].index == 3", Choice::Yes),
            ("device.attributes[\"gpu.cgpu.io\"].other == 3", Choice::No),
            (
                "device.attributes['resource.kubernetes.io'].pcieRoot == 'pci0000:00'",
                Choice::Yes,
            ),
            (
                "device.capacity[\"gpu.cgpu.io\"].memory.compareTo(quantity(\"24Gi\")) == 0",
                Choice::Yes,
            ),
            (
                "device.capacity[\"gpu.cgpu.io\"].memory.compareTo(quantity(\"25Gi\")) >= 0",
                Choice::No,
            ),
            (
                "device.capacity[\"gpu.cgpu.io\"].memory.compareTo(quantity(\"20Gi\")) > 0",
                Choice::Yes,
            ),
            ("device.driver == \"gpu.cgpu.io\" || true", Choice::Unknown),
            (
                "device.attributes[\"gpu.cgpu.io\"].productName.startsWith(\"N\")",
                Choice::Unknown,
            ),
            ("device.driver == \"gpu.cgpu.io\" && f(x)", Choice::Unknown),
            ("device.driver == \"x\" && f(x)", Choice::No),
        ] {
            assert_eq!(choose(expression, &card()), choice, "{expression}");
        }
        assert!(is_foreign("device.driver == 'gpu.nvidia.com'"));
        assert!(!is_foreign(
            "device.driver == 'gpu.cgpu.io' && device.allowMultipleAllocations"
        ));
        assert!(!is_foreign("true"));
    }

    proptest! {
        #[test]
        fn no_expression_is_too_strange(text in ".{0,80}", plain in "[a-z&|()\"'=. ]{0,60}") {
            choose(&text, &card());
            choose(&plain, &card());
            is_foreign(&plain);
        }
    }
}
