//! Driver versions, and the layout set that each belongs to.

use core::fmt;
use core::str::FromStr;

/// A driver version as `/proc/driver/nvidia/version` prints it, e.g. `570.195.03`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverVersion {
    /// The branch, e.g. 570.
    pub major: u16,
    /// The release of the branch, e.g. 195.
    pub minor: u16,
    /// The patch, e.g. 3; absent in some early releases and then 0.
    pub patch: u16,
}

/// The text is not `MAJOR.MINOR` or `MAJOR.MINOR.PATCH` in decimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseVersionError;

impl fmt::Display for ParseVersionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "not a driver version; expected MAJOR.MINOR or MAJOR.MINOR.PATCH, e.g. 570.195.03",
        )
    }
}

impl core::error::Error for ParseVersionError {}

impl FromStr for DriverVersion {
    type Err = ParseVersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |part: &str| {
            if part.is_empty() || part.len() > 4 || !part.bytes().all(|b| b.is_ascii_digit()) {
                return Err(ParseVersionError);
            }
            part.parse::<u16>().map_err(|_number| ParseVersionError)
        };
        let mut parts = text.split('.');
        let major = number(parts.next().unwrap_or(""))?;
        let minor = number(parts.next().unwrap_or(""))?;
        let patch = parts.next().map_or(Ok(0), number)?;
        if parts.next().is_some() {
            return Err(ParseVersionError);
        }
        Ok(Self {
            major,
            minor,
            patch,
        })
    }
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}.{:02}", self.major, self.minor, self.patch)
    }
}

/// A set of layouts that does not change within itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Release {
    /// 535.x
    R535,
    /// 550.54.14 and later 550.x
    R550,
    /// 570.86.15 and later 570.x
    R570,
    /// 580.65.06 and later 580.x
    R580,
}

/// A driver whose layouts cgpu does not know: decoding its calls would be guessing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsupportedRelease(pub DriverVersion);

impl fmt::Display for UnsupportedRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "driver {} is not supported; known are 535.x, 550.54.14 and later 550.x, 570.86.15 and later 570.x, 580.65.06 and later 580.x",
            self.0
        )
    }
}

impl core::error::Error for UnsupportedRelease {}

impl Release {
    /// Every release, oldest first.
    pub const ALL: [Self; 4] = [Self::R535, Self::R550, Self::R570, Self::R580];

    /// The layout set of a driver version.
    ///
    /// # Errors
    /// [`UnsupportedRelease`] for a branch that is not in the tables, and for the first releases of a branch that
    /// still had an older layout.
    pub fn of(version: DriverVersion) -> Result<Self, UnsupportedRelease> {
        let at_least = |minor, patch| (version.minor, version.patch) >= (minor, patch);
        match version.major {
            535 => Ok(Self::R535),
            550 if at_least(54, 14) => Ok(Self::R550),
            570 if at_least(86, 15) => Ok(Self::R570),
            580 if at_least(65, 6) => Ok(Self::R580),
            _ => Err(UnsupportedRelease(version)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_versions_have_a_release() {
        for (text, release) in [
            ("535.104.05", Release::R535),
            ("550.163.01", Release::R550),
            ("570.195.03", Release::R570),
            ("580.105.08", Release::R580),
        ] {
            let version: DriverVersion = text.parse().unwrap();
            assert_eq!(Release::of(version), Ok(release));
            assert_eq!(version.to_string_in_test(), text);
        }
    }

    #[test]
    fn early_and_foreign_versions_are_refused() {
        for text in ["550.40.07", "545.23.06", "580.10", "470.57.02", "999.1.1"] {
            assert!(Release::of(text.parse().unwrap()).is_err(), "{text}");
        }
    }

    #[test]
    fn malformed_versions_are_refused() {
        for text in [
            "",
            "570",
            "570.",
            "570.1.2.3",
            "a.b.c",
            "570.-1",
            "99999.1",
            " 570.1",
        ] {
            assert!(text.parse::<DriverVersion>().is_err(), "{text:?}");
        }
    }

    impl DriverVersion {
        fn to_string_in_test(self) -> std::string::String {
            std::format!("{self}")
        }
    }
    extern crate std;
}
