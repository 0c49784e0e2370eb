//! Single values: a policy, a weight, a card.

use cards::grant::{ComputePolicy, Priority};
use cards::placement::CardName;
use plan::terms::WEIGHT_MAX;
use strum::VariantArray;

use super::error::Error;

/// The value that [`Error::Value`] quotes is cut here: it comes from strangers and ends in logs.
pub const QUOTED_CHARS_MAX: usize = 120;

/// Reads a compute policy, by name or by cGPU's number; `key` is for the error.
///
/// # Errors
/// [`Error::Value`] names the key, the value and what is allowed.
pub fn compute_policy(key: &str, text: &str) -> Result<ComputePolicy, Error> {
    ComputePolicy::ALL
        .iter()
        .copied()
        .find(|policy| policy.name() == text || policy.number().to_string() == text)
        .ok_or_else(|| {
            let all = ComputePolicy::ALL.iter();
            let allowed: Vec<_> = all
                .map(|policy| format!("{} or {}", policy.number(), policy.name()))
                .collect();
            bad_value(key, text, allowed.join(", "))
        })
}

/// Reads a part of a card's time, `30` or `30%`; `key` is for the error.
///
/// # Errors
/// [`Error::Value`] names the key, the value and what is allowed.
pub fn percent(key: &str, text: &str) -> Result<u32, Error> {
    let digits = text.strip_suffix('%').unwrap_or(text);
    whole(key, digits, 1..=100, "1 to 100, in percent of a card")
        .map_err(|_in_part| bad_value(key, text, "1 to 100, in percent of a card"))
}

/// Reads a weight; `key` is for the error.
///
/// # Errors
/// [`Error::Value`] names the key, the value and what is allowed.
pub fn weight(key: &str, text: &str) -> Result<u32, Error> {
    // cGPU documents no bound.
    whole(key, text, 1..=WEIGHT_MAX, "1 to 1000")
}

/// Reads a priority; `key` is for the error.
///
/// # Errors
/// [`Error::Value`] names the key, the value and what is allowed.
pub fn priority(key: &str, text: &str) -> Result<Priority, Error> {
    one_of(
        &[Priority::High, Priority::Normal, Priority::Low],
        key,
        text,
    )
}

/// Reads a word of an enum; `key` is for the error.
///
/// # Errors
/// [`Error::Value`] names the key, the value and what is allowed.
pub fn word<T: VariantArray + Copy + Into<&'static str>>(
    key: &str,
    text: &str,
) -> Result<T, Error> {
    one_of(T::VARIANTS, key, text)
}

fn one_of<T: Copy + Into<&'static str>>(all: &[T], key: &str, text: &str) -> Result<T, Error> {
    let words = || all.iter().map(|value| (*value).into());
    let at = words().position(|word| word == text);
    at.and_then(|at| all.get(at).copied())
        .ok_or_else(|| bad_value(key, text, words().collect::<Vec<_>>().join(", ")))
}

/// A whole number in a range, digits only.
///
/// # Errors
/// [`Error::Value`] names the key, the value and what is allowed.
pub fn whole(
    key: &str,
    text: &str,
    range: std::ops::RangeInclusive<u32>,
    allowed: &str,
) -> Result<u32, Error> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<u32>() {
        Ok(number) if digits && range.contains(&number) => Ok(number),
        _ => Err(bad_value(key, text, allowed)),
    }
}

/// One card, by its UUID or its index.
///
/// # Errors
/// [`Error::Value`] names the key, the value and what is allowed.
pub fn one_card(key: &str, value: &str) -> Result<CardName, Error> {
    const ALLOWED: &str = "a card's UUID or index";
    match card_list(key, value, ALLOWED)?.as_slice() {
        [one] => Ok(one.clone()),
        _ => Err(bad_value(key, value, ALLOWED)),
    }
}

/// The error of a value that is not allowed, which is cut.
#[must_use]
pub fn bad_value(key: &str, value: &str, allowed: impl Into<String>) -> Error {
    Error::Value {
        key: key.to_owned(),
        value: value.chars().take(QUOTED_CHARS_MAX).collect(),
        allowed: allowed.into(),
    }
}

/// `GPU-…` names and indices, separated by commas.
///
/// # Errors
/// Another name than these, or none.
pub fn card_list(key: &str, value: &str, allowed: &'static str) -> Result<Vec<CardName>, Error> {
    let names: Vec<CardName> = value
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(|name| match name.parse::<u32>() {
            Ok(index) => Ok(CardName::Index(index)),
            Err(_) => cards::GpuUuid::new(name)
                .map(CardName::Uuid)
                .map_err(|_spelling| bad_value(key, value, allowed)),
        })
        .collect::<Result<_, _>>()?;
    if names.is_empty() {
        Err(bad_value(key, value, allowed))
    } else {
        Ok(names)
    }
}
