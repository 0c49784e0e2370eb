//! Sizes as people write and read them.

use std::fmt;

/// A size that a command line names, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size {
    /// Bytes.
    pub bytes: u64,
}

/// The text names no size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseSizeError {
    text: String,
}

impl fmt::Display for ParseSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a size; expected a whole number of bytes, or of Ki, Mi, Gi or Ti, e.g. 512Mi",
            self.text
        )
    }
}

impl std::error::Error for ParseSizeError {}

const UNITS: [(&str, u64); 5] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("", 1),
];

impl std::str::FromStr for Size {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let malformed = || ParseSizeError {
            text: text.to_owned(),
        };
        let (digits, unit) = UNITS
            .iter()
            .find_map(|(suffix, bytes)| text.strip_suffix(suffix).map(|digits| (digits, *bytes)))
            .ok_or_else(malformed)?;
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(malformed());
        }
        let number: u64 = digits.parse().map_err(|_overflow| malformed())?;
        let bytes = number.checked_mul(unit).ok_or_else(malformed)?;
        Ok(Self { bytes })
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&human(self.bytes))
    }
}

/// Bytes in the largest unit that leaves no fraction, but whole MiB from there on: `4096 MiB`, `64 KiB`, `17 B`.
#[must_use]
pub fn human(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    match bytes {
        0 => "0 MiB".to_owned(),
        _ if bytes.is_multiple_of(MIB) => format!("{} MiB", bytes / MIB),
        // A fraction of a MiB is rounded up in view, so that used and free never promise more than there is.
        _ if bytes > 16 * MIB => format!("{} MiB", bytes.div_ceil(MIB)),
        _ if bytes.is_multiple_of(KIB) => format!("{} KiB", bytes / KIB),
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units_are_binary() {
        for (text, bytes) in [
            ("4Gi", 4 << 30),
            ("64Mi", 64 << 20),
            ("1Ki", 1024),
            ("7", 7),
        ] {
            assert_eq!(text.parse(), Ok(Size { bytes }), "{text}");
        }
    }

    #[test]
    fn nonsense_is_named_in_the_error() {
        for text in ["", "Gi", "-1", "1.5Gi", "4G", "4 Gi", "99999999999Ti", "+3"] {
            let error = text.parse::<Size>().unwrap_err();
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn whole_mebibytes_read_back(mebibytes in 1u64..1 << 30) {
            let text = human(mebibytes << 20).replace(" MiB", "Mi");
            prop_assert_eq!(text.parse::<Size>().unwrap().bytes, mebibytes << 20);
        }
    }
}
