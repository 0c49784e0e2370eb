//! The grammar of an amount of memory.

use cards::placement::MIB;

use super::bad_value;
use crate::Error;

/// What [`parse`] takes, for people.
pub(super) const ALLOWED: &str = "a whole number with a unit: Mi, Gi, Ti (powers of 1024) or M, G, T (powers of 1000, rounded down to whole MiB), at least 1Mi";

const UNITS: [(&str, u64); 12] = [
    ("MiB", MIB),
    ("GiB", MIB << 10),
    ("TiB", MIB << 20),
    ("Mi", MIB),
    ("Gi", MIB << 10),
    ("Ti", MIB << 20),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
];

/// `4Gi` → bytes, whole MiB. A number without a unit is refused: dialects differ in what it would mean.
pub(super) fn parse(key: &str, value: &str) -> Result<u64, Error> {
    let refused = || bad_value(key, value, ALLOWED);
    let text = value.trim();
    let (digits, unit_bytes) = UNITS
        .iter()
        .find_map(|(unit, unit_bytes)| {
            text.strip_suffix(unit)
                .map(|digits| (digits.trim_end(), *unit_bytes))
        })
        .ok_or_else(refused)?;
    // `u64::from_str` would take a leading plus sign.
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(refused());
    }
    let number: u64 = digits.parse().map_err(|_overflow| refused())?;
    let bytes = number.checked_mul(unit_bytes).ok_or_else(refused)? / MIB * MIB;
    if bytes == 0 {
        Err(refused())
    } else {
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_mean_what_they_say() {
        for (text, bytes) in [
            ("1Mi", MIB),
            ("4Gi", 4 << 30),
            ("4GiB", 4 << 30),
            ("4 Gi", 4 << 30),
            ("1Ti", 1 << 40),
            ("512MiB", 512 << 20),
            // 4 000 000 000 bytes are 3814.69 MiB.
            ("4G", 3814 * MIB),
            ("4GB", 3814 * MIB),
            ("2M", MIB),
        ] {
            assert_eq!(parse("cgpu.io/memory", text).unwrap(), bytes, "{text}");
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
            "4.5Gi",
            "four",
            "Gi",
            "4Ki",
            "4gi",
            "4Gib",
            "1M",
            "0x4Gi",
            "99999999999999999999Gi",
            "18446744073709551615Ti",
            "4GiGi",
            "٤Gi",
        ] {
            let error = parse("cgpu.io/memory", text).unwrap_err().to_string();
            assert!(
                error.contains("cgpu.io/memory") && error.contains(text) && error.contains("Gi"),
                "{text:?}: {error}"
            );
        }
    }
}
