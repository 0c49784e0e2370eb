//! Values of a wrong type, by key: the reader of TOML knows neither the key nor what is allowed there.

use std::path::Path;

use toml::{Table, Value};

use super::error::Error;
use super::wrong;

/// Keys that are one of some words, and these.
const WORDS: [(&str, &str); 15] = [
    ("backend.kind", "auto, broker, driver-limit or share"),
    ("backend.min_strength", "none, hard or exact"),
    ("compute.fail", "open or closed"),
    ("compute.idle", "borrow or waste"),
    ("compute.mode", "best-effort or strict"),
    ("container_tools", "an absolute path, or off"),
    ("driver.kind", "auto, kernel or sim"),
    ("isolation.card_figures", "show or refuse"),
    ("isolation.io_uring", "allow or deny"),
    ("isolation.managed", "charge, deny or allow"),
    ("isolation.mode", "strict or compat"),
    ("isolation.on_violation", "log or kill"),
    ("isolation.registered_memory", "allow or refuse"),
    ("request.cgpu_disable", "obey or refuse"),
    ("request.environment", "request or tighten_only"),
];

/// Keys that are whole numbers, and their ranges.
const NUMBERS: [(&str, &str); 6] = [
    ("broker.hung_call_ms", "100 to 3600000"),
    ("broker.start_timeout_ms", "1 to 600000"),
    ("broker.stop_timeout_ms", "1 to 600000"),
    ("compute.max_tenants", "1 to 25, on simulated cards to 100"),
    ("compute.prio_ratio", "20 to 99, in percent"),
    ("isolation.reconcile_ms", "100 to 3600000"),
];

/// Checks the types of these keys in a text. One that is not TOML is the reader's to refuse.
pub(super) fn check(path: &Path, text: &str) -> Result<(), Error> {
    let Ok(table) = text.parse::<Table>() else {
        return Ok(());
    };
    for (key, allowed) in WORDS {
        if let Some(value) = at(&table, key).filter(|value| !value.is_str()) {
            return Err(wrong(path, key, value, allowed));
        }
    }
    for (key, allowed) in NUMBERS {
        let is_number = |value: &Value| value.as_integer().is_some_and(|number| number >= 0);
        if let Some(value) = at(&table, key).filter(|value| !is_number(value)) {
            return Err(wrong(path, key, value, allowed));
        }
    }
    Ok(())
}

fn at<'a>(table: &'a Table, key: &str) -> Option<&'a Value> {
    match key.split_once('.') {
        Some((of, key)) => table.get(of)?.as_table()?.get(key),
        None => table.get(key),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    /// The words stand in the types too: what is named as allowed here is.
    #[test]
    fn every_word_that_is_named_as_allowed_is() {
        for (key, allowed) in WORDS {
            for word in allowed.split([',', ' ']).filter(|word| !word.is_empty()) {
                if matches!(word, "or" | "an" | "absolute" | "path") {
                    continue;
                }
                let text = match key.split_once('.') {
                    Some((table, key)) => format!("[{table}]\n{key} = \"{word}\""),
                    None => format!("{key} = \"{word}\""),
                };
                // Sharing holds nothing, and may not be asked to.
                let rest = if word == "share" {
                    "\nmin_strength = \"none\""
                } else {
                    ""
                };
                Config::from_text(Path::new("cgpu.toml"), &format!("{text}{rest}")).unwrap();
            }
        }
    }
}
