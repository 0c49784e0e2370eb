//! What a test executable prints, line by line.

use std::fmt::Write as _;

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// From `test result: ok. 6 passed; 0 failed; 0 ignored; …`.
    fn of_line(line: &str) -> Option<Self> {
        let counts = line.strip_prefix("test result: ")?.split_once(". ")?.1;
        let number = |argument: &str| -> Option<u64> {
            counts
                .split("; ")
                .find_map(|part| part.strip_suffix(argument)?.trim().parse().ok())
        };
        Some(Self {
            passed: number("passed")?,
            failed: number("failed")?,
            ignored: number("ignored")?,
        })
    }
}

/// What passing tests have printed is read for their skips, and not shown.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// Between `successes:` and the next heading.
    of_passing: bool,
    /// Whose output it is.
    test: Option<String>,
    pub(crate) counts: Counts,
    /// What is to be shown.
    pub(crate) shown: String,
    /// With the names of the tests that skipped.
    pub(crate) skips: Vec<String>,
}

impl Reader {
    pub(crate) fn read(&mut self, line: &str) {
        if line == "successes:" {
            self.of_passing = true;
        } else if line == "failures:" || line.starts_with("test result: ") {
            self.of_passing = false;
            self.test = None;
        } else if let Some(test) = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            self.test = Some(test.to_owned());
        }
        if let Some(reason) = line.strip_prefix("SKIP: ") {
            self.skips.push(match &self.test {
                Some(test) if !reason.contains(test.as_str()) => format!("SKIP: {test}: {reason}"),
                _ => line.to_owned(),
            });
        }
        if let Some(counts) = Counts::of_line(line) {
            self.counts.add(counts);
        }
        let is_noise = line.is_empty() || line.starts_with("running ") || line.ends_with(" ... ok");
        if !self.of_passing && !is_noise {
            let _never_fails = writeln!(self.shown, "{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_of_passing_tests_are_counted_and_their_output_is_not_shown() {
        let mut reader = Reader::default();
        for line in [
            "running 3 tests",
            "test one ... ok",
            "SKIP: not root",
            "successes:",
            "---- part::one stdout ----",
            "  a note",
            "SKIP: no loop devices",
            "---- two stdout ----",
            "SKIP: two: needs root",
            "failures:",
            "---- three stdout ----",
            "  why",
            "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out",
            "successes:",
            "test result: ok. 1 passed; 0 failed; 2 ignored; 0 measured",
        ] {
            reader.read(line);
        }
        let counts = Counts {
            passed: 3,
            failed: 1,
            ignored: 2,
        };
        assert_eq!(reader.counts, counts);
        assert_eq!(
            reader.skips,
            [
                "SKIP: not root",
                "SKIP: part::one: no loop devices",
                "SKIP: two: needs root",
            ]
        );
        for (text, is_shown) in [
            ("  a note", false),
            ("test one ... ok", false),
            ("  why", true),
            ("---- three stdout ----", true),
            ("2 ignored", true),
        ] {
            assert_eq!(reader.shown.contains(text), is_shown, "{text}");
        }
    }

    #[test]
    fn counts_are_read_from_the_runners_line() {
        assert_eq!(Counts::of_line("running 3 tests"), None);
        assert_eq!(Counts::of_line("test result: ok."), None);
    }
}
