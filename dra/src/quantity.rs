//! Kubernetes' quantities: `8Gi`, `1500m`, `1e3`.
//!
//! The API server writes them in canonical form, so that what is written here has that form too: a slice that is read back is the one that was
//! written.

/// From the largest.
const BINARY: [(&str, u32); 6] = [
    ("Ei", 60),
    ("Pi", 50),
    ("Ti", 40),
    ("Gi", 30),
    ("Mi", 20),
    ("Ki", 10),
];

/// A suffix and its power of ten.
const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

/// No quantity that fits 64 bits needs more.
const DIGITS_MAX: usize = 40;

/// An amount of bytes, by the largest unit that divides it.
#[must_use]
pub fn bytes(amount: u64) -> String {
    let divides = |shift: u32| amount != 0 && amount.trailing_zeros() >= shift;
    let unit = BINARY.iter().find(|(_, shift)| divides(*shift));
    match unit {
        Some((suffix, shift)) => format!("{}{suffix}", amount >> shift),
        None => amount.to_string(),
    }
}

/// A count, by the largest power of a thousand that divides it.
#[must_use]
pub fn count(amount: u64) -> String {
    let mut units = DECIMAL.iter().rev().filter(|(_, power)| *power > 0);
    let unit = units.find(|(_, power)| {
        let by = 10_u64.pow(power.unsigned_abs());
        amount != 0 && amount.is_multiple_of(by)
    });
    match unit {
        Some((suffix, power)) => format!("{}{suffix}", amount / 10_u64.pow(power.unsigned_abs())),
        None => amount.to_string(),
    }
}

/// The whole number that a quantity is; a part of one more counts as one, as it does for Kubernetes. `None`: it is no quantity, is negative, or
/// does not fit.
#[must_use]
pub fn whole(quantity: &str) -> Option<u64> {
    let text = quantity.strip_prefix('+').unwrap_or(quantity);
    let end = text
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (before, after) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{before}{after}");
    if digits.is_empty() || digits.len() > DIGITS_MAX || after.contains('.') {
        return None;
    }
    let digits: u128 = digits.parse().ok()?;
    let decimals = i32::try_from(after.len()).ok()?;
    if let Some((_, shift)) = BINARY.iter().find(|(unit, _)| *unit == suffix) {
        return scaled(digits.checked_mul(1_u128 << shift)?, -decimals);
    }
    let named = DECIMAL.iter().find(|(unit, _)| *unit == suffix);
    let power = match named {
        Some((_, power)) => *power,
        None => suffix.strip_prefix(['e', 'E'])?.parse().ok()?,
    };
    scaled(digits, power.checked_sub(decimals)?)
}

/// `digits` times a power of ten, rounded up.
fn scaled(digits: u128, power: i32) -> Option<u64> {
    if digits == 0 {
        return Some(0);
    }
    let by = 10_u128.checked_pow(power.unsigned_abs());
    let number = match (power >= 0, by) {
        (true, by) => digits.checked_mul(by?)?,
        (false, Some(by)) => digits.div_ceil(by),
        // Less than one of anything.
        (false, None) => 1,
    };
    u64::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, number) in [
            ("0", 0),
            ("30", 30),
            ("8Gi", 8 << 30),
            ("1.5Gi", 3 << 29),
            ("1572864", 1_572_864),
            ("1k", 1000),
            ("1e3", 1000),
            ("1E3", 1000),
            ("1E", 1_000_000_000_000_000_000),
            ("100m", 1),
            ("2500m", 3),
            ("1n", 1),
            ("+5", 5),
            (".5", 1),
            ("5.", 5),
            ("1e-400000000", 1),
        ] {
            assert_eq!(whole(text), Some(number), "{text}");
        }
        for text in [
            "",
            "-1",
            "Gi",
            "8gi",
            "8 Gi",
            "1.2.3",
            "e3",
            "16Ei",
            "1e99",
            "1e999999999999",
            "99999999999999999999999999999999999999999999999",
            "٣",
        ] {
            assert_eq!(whole(text), None, "{text}");
        }
    }

    #[test]
    fn amounts_have_the_form_that_the_server_gives_them() {
        assert_eq!(bytes(0), "0");
        assert_eq!(bytes(24 << 30), "24Gi");
        assert_eq!(bytes(141_557_760 << 10), "135Gi");
        assert_eq!(bytes((24 << 30) + (1 << 20)), "24577Mi");
        assert_eq!(bytes(1023), "1023");
        assert_eq!(count(100), "100");
        assert_eq!(count(2_000), "2k");
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(amount: u64) {
            prop_assert_eq!(whole(&bytes(amount)), Some(amount));
            prop_assert_eq!(whole(&count(amount)), Some(amount));
        }

        #[test]
        fn no_text_is_too_strange(text in ".{0,60}") {
            let read = whole(&text);
            prop_assert!(read.is_none() || text.chars().any(|letter| letter.is_ascii_digit()));
        }
    }
}
