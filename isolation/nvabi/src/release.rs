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

/// A set of layouts that does not change within itself. [`SPANS`] says which versions have it.
///
/// A version that is in none of them may still have one's layouts, but for some controls that [`Changes`] tell of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Release {
    /// Its place among [`Release::ALL`].
    place: u8,
    name: &'static str,
    headers: &'static str,
    changes: Option<&'static Changes>,
}

/// What a version has otherwise than the release that it has all else of.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Changes {
    /// Commands of controls, ascending, and the bytes of their parameters, which are without pointers, descriptors and handles; `None`:
    /// nothing is known that would be safe to believe, and the control is answered as one that the driver lacks.
    pub controls: &'static [(u32, Option<u32>)],
}

/// Versions from one tag on up to the next span's first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The first version.
    pub from: DriverVersion,
    /// Their layouts; `None`: they have none of those known.
    pub release: Option<Release>,
    /// What is different in them, or why nothing is.
    pub because: &'static str,
}

const fn from(
    major: u16,
    minor: u16,
    patch: u16,
    release: Option<Release>,
    because: &'static str,
) -> Span {
    Span {
        from: DriverVersion {
            major,
            minor,
            patch,
        },
        release,
        because,
    }
}

/// Which layouts a driver version has, by its first version. What was compared: `cargo xtask headers` on the public headers of
/// the versions named, and between them gVisor's nvproxy, which keeps the first version of each change. A branch between two
/// known ones is refused unless its headers show no difference in anything that is decoded. docs/internals/adding-a-driver-version.md has the list.
#[rustfmt::skip] // one span a row
pub const SPANS: &[Span] = &[
    from(535, 0, 0, None,
        "535.43.02 and 535.54.03 have shorter channel parameters than 535.86.05"),
    from(535, 86, 5, Some(Release::R535),
        "channel parameters of 360 bytes"),
    from(545, 0, 0, None,
        "no public headers of 545 before 545.23.06"),
    from(545, 23, 6, Some(Release::R545),
        "memory parameters of 128 bytes, the UVM structs of 535"),
    from(550, 0, 0, None,
        "550.40 still has UVM structs for 32 cards"),
    from(550, 54, 14, Some(Release::R550),
        "550.54.14 to 550.67 lack one control of 550.163.01, which the driver itself refuses there"),
    from(555, 0, 0, None,
        "no public headers of 555 before 555.42.02"),
    from(555, 42, 2, Some(Release::R555),
        "a class list of 404 bytes, without one control of 550.163.01"),
    from(560, 0, 0, None,
        "no public headers of 560 before 560.28.03"),
    from(560, 28, 3, Some(Release::R560),
        "FB_GET_INFO_V2 of 460 bytes"),
    from(565, 0, 0, None,
        "no public headers of 565 before 565.57.01"),
    from(565, 57, 1, Some(Release::R565),
        "all of 570 but the channel parameters, the dma-buf export and three controls"),
    from(570, 0, 0, None,
        "no public headers of 570 before 570.86.15"),
    from(570, 86, 15, Some(Release::R570),
        "channel parameters of 368 bytes, dma-buf export of 2608"),
    from(575, 0, 0, None,
        "no public headers of 575 before 575.51.02"),
    from(575, 51, 2, Some(Release::R575),
        "GPFIFO_SCHEDULE of 3 bytes"),
    from(580, 0, 0, None,
        "no public headers of 580 before 580.65.06"),
    from(580, 65, 6, Some(Release::R580),
        "NVOS46 of 64 bytes, FB_GET_INFO_V2 of 1028"),
    from(590, 0, 0, None,
        "no public headers of 590 before 590.44.01"),
    from(590, 44, 1, Some(Release::R590),
        "UVM_FREE without a length, card names of 128 bytes"),
    from(595, 0, 0, None,
        "no public headers of 595 before 595.44.02"),
    from(595, 44, 2, Some(Release::R595),
        "card names of 64 bytes"),
    from(596, 0, 0, None,
        "it is newer than any whose headers have been compared"),
];

/// A driver whose layouts cgpu does not know: decoding its calls would be guessing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsupportedRelease(pub DriverVersion);

impl fmt::Display for UnsupportedRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "driver {} is not supported: ", self.0)?;
        match span_of(self.0) {
            Some(span) => f.write_str(span.because)?,
            None => f.write_str("it is older than any known")?,
        }
        write!(f, "; known are {Known}")?;
        f.write_str("; docs/guide/support.md says how a version is added")
    }
}

impl core::error::Error for UnsupportedRelease {}

/// Displays every branch that cgpu knows the layouts of, and the first version of each.
#[derive(Debug, Clone, Copy)]
pub struct Known;

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = SPANS.iter().filter(|span| span.release.is_some());
        for (at, Span { from, .. }) in known.enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            write!(f, "{separator}{} from {from}", from.major)?;
        }
        Ok(())
    }
}

fn span_of(version: DriverVersion) -> Option<&'static Span> {
    SPANS.iter().rev().find(|span| span.from <= version)
}

impl Release {
    /// Branch 535.
    pub const R535: Self = Self::new(0, "R535", "535.261.03");
    /// Branch 545.
    pub const R545: Self = Self::new(1, "R545", "545.29.06");
    /// Branch 550.
    pub const R550: Self = Self::new(2, "R550", "550.163.01");
    /// Branch 555.
    pub const R555: Self = Self::new(3, "R555", "555.58.02");
    /// Branch 560.
    pub const R560: Self = Self::new(4, "R560", "560.35.03");
    /// Branch 565.
    pub const R565: Self = Self::new(5, "R565", "565.77");
    /// Branch 570.
    pub const R570: Self = Self::new(6, "R570", "570.195.03");
    /// Branch 575.
    pub const R575: Self = Self::new(7, "R575", "575.64.05");
    /// Branch 580.
    pub const R580: Self = Self::new(8, "R580", "580.105.08");
    /// Branch 590.
    pub const R590: Self = Self::new(9, "R590", "590.48.01");
    /// Branch 595.
    pub const R595: Self = Self::new(10, "R595", "595.45.04");
    /// Every release, oldest first.
    pub const ALL: [Self; 11] = [
        Self::R535,
        Self::R545,
        Self::R550,
        Self::R555,
        Self::R560,
        Self::R565,
        Self::R570,
        Self::R575,
        Self::R580,
        Self::R590,
        Self::R595,
    ];

    const fn new(place: u8, name: &'static str, headers: &'static str) -> Self {
        Self {
            place,
            name,
            headers,
            changes: None,
        }
    }

    /// Where its number is in a table with one for each release.
    pub(crate) const fn place(self) -> usize {
        self.place as usize
    }

    /// The same layouts, but for these.
    #[must_use]
    pub const fn with(self, changes: &'static Changes) -> Self {
        Self {
            changes: Some(changes),
            ..self
        }
    }

    /// What a control's parameters are otherwise than in [`Release::ALL`]; see [`Changes::controls`].
    pub(crate) fn change_of(self, cmd: u32) -> Option<Option<u32>> {
        let controls = self.changes?.controls;
        let at = controls.binary_search_by_key(&cmd, |(of, _)| *of).ok()?;
        controls.get(at).map(|(_, bytes)| *bytes)
    }

    /// Its name, e.g. `R545`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// The version whose public headers the tables were written from, e.g. `545.29.06`.
    #[must_use]
    pub const fn headers(self) -> &'static str {
        self.headers
    }

    /// The release of a name, e.g. `R545`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|release| release.name() == name)
    }

    /// The layout set of a driver version.
    ///
    /// # Errors
    /// [`UnsupportedRelease`] for a version in none of the [`SPANS`], or in one whose layouts are not among those known.
    pub fn of(version: DriverVersion) -> Result<Self, UnsupportedRelease> {
        span_of(version)
            .and_then(|span| span.release)
            .ok_or(UnsupportedRelease(version))
    }
}

impl fmt::Debug for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self.changes {
            None => Ok(()),
            Some(changes) => write!(f, " with {} changes", changes.controls.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_has_the_release_of_its_headers() {
        for (text, release) in [
            ("535.86.05", Some(Release::R535)),
            ("535.104.05", Some(Release::R535)),
            ("535.288.01", Some(Release::R535)),
            ("545.23.06", Some(Release::R545)),
            ("545.29.06", Some(Release::R545)),
            ("550.54.14", Some(Release::R550)),
            ("550.163.01", Some(Release::R550)),
            ("555.42.02", Some(Release::R555)),
            ("555.58.02", Some(Release::R555)),
            ("560.28.03", Some(Release::R560)),
            ("560.35.03", Some(Release::R560)),
            ("565.57.01", Some(Release::R565)),
            ("565.77", Some(Release::R565)),
            ("570.86.15", Some(Release::R570)),
            ("570.195.03", Some(Release::R570)),
            ("575.51.02", Some(Release::R575)),
            ("575.64.05", Some(Release::R575)),
            ("580.65.06", Some(Release::R580)),
            ("580.105.08", Some(Release::R580)),
            ("590.44.01", Some(Release::R590)),
            ("590.48.01", Some(Release::R590)),
            ("595.44.02", Some(Release::R595)),
            ("595.45.04", Some(Release::R595)),
            // Between two of them, before the first, behind the last.
            ("470.57.02", None),
            ("530.41.03", None),
            ("535.43.02", None),
            ("535.43.28", None),
            ("535.54.03", None),
            ("545.10", None),
            ("550.40.07", None),
            ("550.40.85", None),
            ("555.10", None),
            ("560.10", None),
            ("565.10", None),
            ("570.86.14", None),
            ("575.10", None),
            ("580.10", None),
            ("590.10", None),
            ("595.10", None),
            ("596.1", None),
            ("610.43.02", None),
            ("620.6.0", None),
            ("999.1.1", None),
        ] {
            let version: DriverVersion = text.parse().unwrap();
            assert_eq!(Release::of(version).ok(), release, "{text}");
        }
    }

    #[test]
    fn a_refusal_reports_why_and_what_is_known() {
        let refusal = |text: &str| {
            let version: DriverVersion = text.parse().unwrap();
            std::format!("{}", Release::of(version).unwrap_err())
        };
        for text in ["470.57.02", "545.10", "550.40.07", "610.43.02"] {
            let replied = refusal(text);
            for part in [
                text,
                "535 from 535.86.05, 545 from 545.23.06",
                "595 from 595.44.02",
                "docs/guide/support.md",
            ] {
                assert!(replied.contains(part), "{replied}");
            }
        }
        assert!(refusal("590.10").contains("before 590.44.01"));
        assert!(refusal("550.40.07").contains("32 cards"));
    }

    #[test]
    fn spans_ascend_and_name_each_release_once() {
        assert!(SPANS.windows(2).all(|pair| pair[0].from < pair[1].from));
        for release in Release::ALL {
            let spans = SPANS.iter().filter(|span| span.release == Some(release));
            assert_eq!(spans.count(), 1, "{release:?}");
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

    extern crate std;
}
