//! What a write asks for, in the words of `cgpu set`. Pure.

use std::fmt;

use cards::ContainerKey;
use cards::placement::MIB;
use fuser::Errno;
use host_config::terms;

use crate::hierarchy::Target;
use crate::node::{CardFile, ContainerFile};

/// The longest write, bytes: more than any value has.
pub(crate) const LONGEST: usize = 128;

/// What of a wrong write is logged, bytes.
const SHOWN_MOST: usize = 32;

/// A change of what is there, with the value as `cgpu set` takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// `--memory`: in all of the container's cards.
    Memory(ContainerKey, String),
    /// `--weight`
    Weight(ContainerKey, String),
    /// `--priority`
    Priority(ContainerKey, &'static str),
    /// `--card` with its UUID, and `--max-tenants`, `--policy` or `--prio-ratio`.
    Rule(String, CardFile, String),
}

impl fmt::Display for Request {
    /// In the words of `cgpu set`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(key, total) => write!(f, "{key} --memory {total}"),
            Self::Weight(key, weight) => write!(f, "{key} --weight {weight:?}"),
            Self::Priority(key, priority) => write!(f, "{key} --priority {priority}"),
            Self::Rule(uuid, file, value) => write!(f, "--card {uuid}, {file} {value:?}"),
        }
    }
}

/// A write that asks for nothing that there is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Malformed {
    #[error(transparent)]
    Terms(#[from] terms::Error),
    #[error("{text:?} is not allowed: {allowed}")]
    Value { text: String, allowed: String },
}

impl Malformed {
    /// What the writer gets.
    pub(crate) const ERRNO: Errno = Errno::EINVAL;

    fn new(data: &[u8], allowed: impl Into<String>) -> Self {
        let shown = data.get(..SHOWN_MOST).unwrap_or(data);
        Self::Value {
            text: String::from_utf8_lossy(shown).into_owned(),
            allowed: allowed.into(),
        }
    }
}

/// Reads a write: all of a value, with or without a line's end.
///
/// # Errors
/// What is no value of this file.
pub(crate) fn read(target: Target, data: &[u8]) -> Result<Request, Malformed> {
    let text = match std::str::from_utf8(data) {
        Ok(text) if data.len() <= LONGEST => text.trim(),
        Ok(_) | Err(_) => {
            let allowed = format!("a value of at most {LONGEST} bytes");
            return Err(Malformed::new(data, allowed));
        }
    };
    Ok(match target {
        Target::Rule(uuid, file) => Request::Rule(uuid, file, text.to_owned()),
        Target::Container(key, cards, ContainerFile::Memsize) => {
            Request::Memory(key, memory(text, cards)?)
        }
        Target::Container(key, _, ContainerFile::Weight) => Request::Weight(key, text.to_owned()),
        Target::Container(key, _, ContainerFile::Highprio) => {
            let priority = match text {
                "1" => plan::Priority::High.name(),
                "0" => plan::Priority::Normal.name(),
                _ => return Err(Malformed::new(data, "1 (high) or 0 (normal)")),
            };
            Request::Priority(key, priority)
        }
        Target::Container(_, _, ContainerFile::Id | ContainerFile::Meminfo) => {
            return Err(Malformed::new(data, "nothing is written here"));
        }
    })
}

/// The amount for all cards of a container by that for one: bytes, or an amount with a unit; whole MiB.
fn memory(text: &str, cards: u64) -> Result<String, Malformed> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mib = if is_number {
        // What does not fit into 64 bits is as much too much as the most that does.
        text.parse().unwrap_or(u64::MAX) / MIB
    } else {
        terms::memory_amount("memsize", text)? / MIB
    };
    match mib.checked_mul(cards) {
        Some(total) if total > 0 => Ok(format!("{total}Mi")),
        Some(_) => {
            let allowed = format!("bytes, at least {MIB}, or an amount with a unit such as 4Gi");
            Err(Malformed::new(text.as_bytes(), allowed))
        }
        None => Err(Malformed::new(text.as_bytes(), "fewer bytes")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use strum::VariantArray;

    use super::*;

    fn key() -> ContainerKey {
        ContainerKey::new("moby", "c1").unwrap()
    }

    fn write(cards: u64, file: ContainerFile, text: &str) -> Result<Request, String> {
        let target = Target::Container(key(), cards, file);
        read(target, text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn memsize_is_bytes_or_an_amount_of_one_card() {
        for (cards, text, total) in [
            (1, "4294967296\n", "4096Mi"),
            (1, "4Gi\n", "4096Mi"),
            (1, " 1.5g ", "1536Mi"),
            (2, "1073741824", "2048Mi"),
            // Whole MiB, as `cgpu set --memory 4G` makes of it.
            (1, "4000000000", "3814Mi"),
            (1, "4G", "3814Mi"),
        ] {
            let request = write(cards, ContainerFile::Memsize, text);
            assert_eq!(
                request,
                Ok(Request::Memory(key(), total.to_owned())),
                "{text}"
            );
        }
        for (text, part) in [
            ("4\n", "bytes, at least 1048576"),
            ("", "4Gi"),
            ("-1", "4Gi"),
            ("50%", "write an amount"),
            ("4Gi 5Gi", "4Gi"),
        ] {
            let error = write(1, ContainerFile::Memsize, text).unwrap_err();
            assert!(error.contains(part), "{error} lacks {part}");
        }
        // Much too much is as much as there can be, and does not fit anywhere.
        let most = format!("{}Mi", u64::MAX / MIB);
        let request = write(1, ContainerFile::Memsize, "99999999999999999999");
        assert_eq!(request, Ok(Request::Memory(key(), most)));
        write(1 << 40, ContainerFile::Memsize, &u64::MAX.to_string()).unwrap_err();
    }

    #[test]
    fn highprio_is_one_or_nought_and_other_values_go_on_as_they_are() {
        let high = write(1, ContainerFile::Highprio, "1\n");
        assert_eq!(high, Ok(Request::Priority(key(), "high")));
        let normal = write(1, ContainerFile::Highprio, "0");
        assert_eq!(normal, Ok(Request::Priority(key(), "normal")));
        for wrong in ["", "2", "high", "01"] {
            write(1, ContainerFile::Highprio, wrong).unwrap_err();
        }
        let weight = write(1, ContainerFile::Weight, "3\n");
        assert_eq!(weight, Ok(Request::Weight(key(), "3".to_owned())));
        let rule = Target::Rule("GPU-1".to_owned(), CardFile::Policy);
        let expected = Request::Rule("GPU-1".to_owned(), CardFile::Policy, "2".to_owned());
        assert_eq!(read(rule, b"2\n").unwrap(), expected);
    }

    #[test]
    fn a_write_that_is_too_long_or_no_text_is_refused() {
        let target = || Target::Container(key(), 1, ContainerFile::Weight);
        read(target(), &[b'1'; LONGEST]).unwrap();
        let long = read(target(), &[b'1'; LONGEST + 1])
            .unwrap_err()
            .to_string();
        assert!(
            long.contains("at most 128 bytes") && long.len() < 100,
            "{long}"
        );
        read(target(), b"\xff").unwrap_err();
    }

    proptest! {
        /// What is taken is a whole number of MiB for each card, and never more than was written.
        #[test]
        fn no_more_is_requested_than_was_written(bytes in any::<u64>(), cards in 1..9_u64) {
            let request = write(cards, ContainerFile::Memsize, &bytes.to_string());
            if let Ok(Request::Memory(_, total)) = request {
                let mib: u64 = total.strip_suffix("Mi").unwrap().parse().unwrap();
                prop_assert_eq!(mib % cards, 0);
                prop_assert!(mib / cards <= bytes / MIB && mib > 0);
            }
        }

        #[test]
        fn no_write_is_too_strange(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            for &file in ContainerFile::VARIANTS {
                drop(read(Target::Container(key(), 1, file), &data));
            }
        }
    }
}
