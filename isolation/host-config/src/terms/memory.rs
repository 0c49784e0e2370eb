//! The grammar of an amount of memory.

use cards::placement::{MIB, Share};

use super::error::Error;
use super::values::bad_value;

/// What [`bytes`] takes, for people.
const AMOUNT_ALLOWED: &str = "a number with a unit, such as 4Gi or 1.5Gi, at least 1Mi; units are Mi Gi Ti, mi gi ti, MiB GiB TiB, mib gib tib and, as for `docker -m`, m g t (powers of 1024), M G T and MB GB TB (powers of 1000)";

/// Beside it, where the cards are not chosen yet.
const PERCENT_ALLOWED: &str = "or 1% to 100%, a part of each card";

/// As Kubernetes and the SI have them, and what docker, LVM, the JVM and HAMi take in lower case: all four count `g` by 1024.
const UNITS: [(&str, u64); 21] = [
    ("MiB", MIB),
    ("GiB", MIB << 10),
    ("TiB", MIB << 20),
    ("mib", MIB),
    ("gib", MIB << 10),
    ("tib", MIB << 20),
    ("Mi", MIB),
    ("Gi", MIB << 10),
    ("Ti", MIB << 20),
    ("mi", MIB),
    ("gi", MIB << 10),
    ("ti", MIB << 20),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("m", MIB),
    ("g", MIB << 10),
    ("t", MIB << 20),
];

/// More decimals are no amount that anybody means, and what they are multiplied to fits into 128 bits.
const DECIMALS_MAX: usize = 12;

/// Memory as a request names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// In all, over all cards.
    Bytes(u64),
    /// This part of each card, whatever its size.
    OfEachCard(Share),
}

/// `4Gi` or `25%`; `key` is for the error.
///
/// # Errors
/// [`Error::Value`] names the key, the value, what is allowed, and what may have been meant.
pub fn parse(key: &str, value: &str) -> Result<Memory, Error> {
    let text = value.trim();
    let read = match text.strip_suffix('%') {
        Some(number) => percent(number).map(Memory::OfEachCard),
        None => amount(text).map(Memory::Bytes),
    };
    read.map_err(|hint| {
        let allowed = format!("{AMOUNT_ALLOWED}; {PERCENT_ALLOWED}");
        refused(key, value, hint, &allowed)
    })
}

/// An amount of memory as the annotation `cgpu.io/memory` writes it, but for parts of a card; bytes, whole MiB.
///
/// # Errors
/// As [`parse`].
pub fn bytes(key: &str, value: &str) -> Result<u64, Error> {
    amount(value.trim()).map_err(|hint| {
        let of_percent = || "a part of a card is not possible here: write an amount".to_owned();
        let is_percent = value.trim().ends_with('%');
        refused(
            key,
            value,
            hint.or_else(|| is_percent.then(of_percent)),
            AMOUNT_ALLOWED,
        )
    })
}

/// What to write instead, if that can be said.
type Hint = Option<String>;

fn refused(key: &str, value: &str, hint: Hint, allowed: &str) -> Error {
    let allowed = match hint {
        Some(hint) => format!("{hint} (allowed is {allowed})"),
        None => allowed.to_owned(),
    };
    bad_value(key, value, allowed)
}

fn percent(number: &str) -> Result<Share, Hint> {
    let number = number.trim_end();
    let is_whole = number.bytes().all(|byte| byte.is_ascii_digit());
    match number.parse() {
        Ok(container @ 1..=100) if is_whole => Ok(Share {
            container,
            device: 100,
        }),
        Ok(_) | Err(_) => Err(None),
    }
}

/// A number without a unit is refused: dialects differ in what it would mean.
fn amount(text: &str) -> Result<u64, Hint> {
    let (number, unit_bytes) = UNITS
        .iter()
        .find_map(|(unit, unit_bytes)| {
            text.strip_suffix(unit)
                .map(|number| (number.trim_end(), *unit_bytes))
        })
        .ok_or_else(|| other_spelling(text))?;
    let bytes = product(number, unit_bytes)?;
    if bytes < MIB {
        return Err(None);
    }
    Ok(bytes / MIB * MIB)
}

/// Exactly so many bytes, or none.
fn product(number: &str, unit_bytes: u64) -> Result<u64, Hint> {
    let (whole, decimals) = match number.split_once('.') {
        Some((whole, decimals)) => (whole, Some(decimals)),
        None => (number, None),
    };
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !decimals.is_none_or(is_digits) {
        return Err(None);
    }
    let decimals = decimals.unwrap_or_default().trim_end_matches('0');
    if decimals.len() > DECIMALS_MAX {
        return Err(None);
    }
    let scale = 10_u128.pow(u32::try_from(decimals.len()).map_err(|_too_many| None)?);
    let digits: u128 = format!("{whole}{decimals}")
        .parse()
        .map_err(|_overflow| None)?;
    let scaled = digits.checked_mul(u128::from(unit_bytes)).ok_or(None)?;
    let bytes = u64::try_from(scaled / scale).map_err(|_overflow| None)?;
    if scaled.is_multiple_of(scale) {
        Ok(bytes)
    } else {
        Err(Some(format!(
            "it is not a whole number of bytes: write {}Mi",
            (bytes / MIB).max(1)
        )))
    }
}

/// What a number with another unit, or without one, may have meant.
fn other_spelling(text: &str) -> Hint {
    let number = text.trim_end_matches(|of: char| of.is_ascii_alphabetic());
    let unit = text.get(number.len()..)?;
    let number = number.trim_end();
    let is_number = !number.is_empty()
        && number
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let is_zero = number.bytes().all(|byte| matches!(byte, b'0' | b'.'));
    if !is_number || is_zero || number.len() > 20 {
        return None;
    }
    let write = |unit: &str| format!("{number}{unit}");
    match unit.to_ascii_lowercase().as_str() {
        "" => Some(format!(
            "it has no unit: write {} or {}",
            write("Mi"),
            write("Gi")
        )),
        // Docker counts by 1024 what the SI counts by 1000.
        unit @ ("mb" | "gb" | "tb") => {
            let letter = unit.get(..1)?.to_ascii_uppercase();
            Some(format!(
                "write {} (powers of 1024) or {} (powers of 1000)",
                write(&format!("{letter}iB")),
                write(&format!("{letter}B"))
            ))
        }
        unit @ ("mi" | "gi" | "ti" | "mib" | "gib" | "tib") => {
            let letter = unit.get(..1)?.to_ascii_uppercase();
            Some(format!("write {}", write(&format!("{letter}i"))))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: &str = "cgpu.io/memory";

    #[test]
    fn units_mean_what_they_report() {
        for (text, bytes) in [
            ("1Mi", MIB),
            ("4Gi", 4 << 30),
            ("4GiB", 4 << 30),
            ("4 Gi", 4 << 30),
            ("1Ti", 1 << 40),
            ("512MiB", 512 << 20),
            ("4gi", 4 << 30),
            ("4gib", 4 << 30),
            // As `docker -m`, LVM, the JVM and HAMi have them.
            ("4g", 4 << 30),
            ("4096m", 4 << 30),
            ("1t", 1 << 40),
            // 4 000 000 000 bytes are 3814.69 MiB.
            ("4G", 3814 * MIB),
            ("4GB", 3814 * MIB),
            ("2M", MIB),
            ("1.5Gi", 1536 * MIB),
            ("1.50g", 1536 * MIB),
            ("0.5Gi", 512 * MIB),
            ("4.000Gi", 4 << 30),
            ("0.0009765625Gi", MIB),
            ("1.5Mi", MIB),
            ("0.5G", 476 * MIB),
            ("1.3T", 1_300_000_000_000 / MIB * MIB),
        ] {
            assert_eq!(parse(KEY, text).unwrap(), Memory::Bytes(bytes), "{text}");
            assert_eq!(super::bytes(KEY, text).unwrap(), bytes, "{text}");
        }
        for (text, container) in [("25%", 25), ("1 %", 1), ("100%", 100), (" 5% ", 5)] {
            let share = Share {
                container,
                device: 100,
            };
            assert_eq!(parse(KEY, text).unwrap(), Memory::OfEachCard(share));
            let error = bytes(KEY, text).unwrap_err().to_string();
            assert!(error.contains("write an amount"), "{error}");
        }
    }

    #[test]
    fn everything_else_names_key_value_and_what_is_allowed() {
        for text in [
            "",
            "0",
            "0Gi",
            "4",
            "-4Gi",
            "+4Gi",
            "four",
            "Gi",
            ".5Gi",
            "1.Gi",
            "1,5Gi",
            "1.5.2Gi",
            "4Ki",
            "4Gib",
            "4gB",
            "4gb",
            "1M",
            "0.99Mi",
            "0x4Gi",
            "99999999999999999999Gi",
            "18446744073709551615Ti",
            "4GiGi",
            "٤Gi",
            "0.1234567890123Ti",
            "0%",
            "101%",
            "12.5%",
            "%",
            "-1%",
            "+1%",
            "25%%",
        ] {
            let error = parse(KEY, text).unwrap_err().to_string();
            for part in [KEY, text, "Gi", "docker -m", "100%"] {
                assert!(error.contains(part), "{text:?}: {error} lacks {part}");
            }
        }
    }

    /// The list in the error is the table.
    #[test]
    fn the_error_lists_every_unit() {
        let error = parse(KEY, "much").unwrap_err().to_string();
        let listed: Vec<&str> = error.split([' ', ',', ';']).collect();
        for (unit, _) in UNITS {
            assert!(listed.contains(&unit), "{error} lacks {unit}");
        }
    }

    #[test]
    fn a_near_spelling_is_answered_with_the_right_one() {
        for (text, parts) in [
            ("4096", &["no unit", "write 4096Mi or 4096Gi"][..]),
            ("4gb", &["write 4GiB", "or 4GB"]),
            ("1.5Mb", &["write 1.5MiB", "or 1.5MB"]),
            ("4Gib", &["write 4Gi "]),
            ("4GI", &["write 4Gi "]),
            ("0.1Gi", &["not a whole number of bytes", "write 102Mi"]),
        ] {
            let error = parse(KEY, text).unwrap_err().to_string();
            for part in parts {
                assert!(error.contains(part), "{text}: {error} lacks {part}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(text in ".{0,40}") {
            if let Ok(Memory::Bytes(bytes)) = parse(KEY, &text) {
                prop_assert!(bytes >= MIB && bytes.is_multiple_of(MIB));
            }
            drop(bytes(KEY, &text));
        }

        /// Against the number written out: hundredths of a unit.
        #[test]
        fn decimals_are_exact_or_refused(hundredths in 0..1_000_000_u64, unit in 0..UNITS.len()) {
            let (name, unit_bytes) = UNITS[unit];
            let text = format!("{}.{:02}{name}", hundredths / 100, hundredths % 100);
            let exact = u128::from(hundredths) * u128::from(unit_bytes);
            let bytes = u64::try_from(exact / 100).unwrap();
            let needed = (exact % 100 == 0 && bytes >= MIB).then_some(bytes / MIB * MIB);
            prop_assert_eq!(super::bytes(KEY, &text).ok(), needed, "{}", text);
        }

        /// Whatever is taken is also taken with a space before the unit, and means the same.
        #[test]
        fn units_and_numbers_of_any_kind(number in "[0-9.+-]{0,6}", unit in "[a-zA-Z%]{0,3}") {
            let joined = parse(KEY, &format!("{number}{unit}"));
            let apart = parse(KEY, &format!(" {number} {unit} "));
            prop_assert_eq!(joined.is_ok(), apart.is_ok());
            if let (Ok(joined), Ok(apart)) = (joined, apart) {
                prop_assert_eq!(joined, apart);
            }
        }
    }
}
