//! Which cgpu a program is of, and which drivers it knows.

use nvabi::{SPANS, Span};
use serde::Serialize;

use crate::{JSON_VERSION, moment};

/// What a program was built from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Build {
    /// As in `0.1.0`.
    pub version: &'static str,
    /// In hexadecimal; `unknown` for a build outside a repository.
    pub commit: &'static str,
    /// Seconds since 1970: `SOURCE_DATE_EPOCH` of the build, else the commit's time.
    pub time_unix_s: Option<u64>,
}

/// The document.
#[derive(Debug, Serialize)]
pub struct Document {
    version: u32,
    /// The version of cgpu.
    pub cgpu: &'static str,
    /// The commit that it was built from, in hexadecimal; `unknown` for a build outside a repository.
    pub commit: &'static str,
    /// Seconds since 1970: `SOURCE_DATE_EPOCH` of the build, else the time of the commit.
    pub built_at_unix_s: Option<u64>,
    /// As in `x86_64`.
    pub architecture: &'static str,
    /// Driver versions that are known without a file of the host's.
    pub drivers: Vec<Drivers>,
}

/// Driver versions of one branch.
#[derive(Debug, Serialize)]
pub struct Drivers {
    /// As in `R570`.
    pub release: &'static str,
    /// The first version.
    pub from: String,
}

impl Document {
    /// What is known of a build.
    #[must_use]
    pub fn of(build: Build) -> Self {
        let drivers = SPANS.iter().filter_map(|Span { from, release, .. }| {
            Some(Drivers {
                release: release.as_ref()?.name(),
                from: from.to_string(),
            })
        });
        Self {
            version: JSON_VERSION,
            cgpu: build.version,
            commit: build.commit,
            built_at_unix_s: build.time_unix_s,
            architecture: std::env::consts::ARCH,
            drivers: drivers.collect(),
        }
    }

    /// When it was built, for people.
    #[must_use]
    pub fn built(&self) -> String {
        self.built_at_unix_s.map_or_else(
            || "unknown".to_owned(),
            |seconds| moment(seconds.saturating_mul(1000)).replace(".000Z", "Z"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_outside_a_repository_has_no_time() {
        let mut build = Build {
            version: "0.1.0",
            commit: "unknown",
            time_unix_s: None,
        };
        assert_eq!(Document::of(build).built(), "unknown");
        build.time_unix_s = Some(1_700_000_000);
        let document = Document::of(build);
        assert_eq!(document.built(), "2023-11-14T22:13:20Z");
        let drivers: Vec<_> = document.drivers.iter().map(|row| row.release).collect();
        assert_eq!(drivers.first(), Some(&"R535"));
        assert_eq!(drivers.len(), nvabi::Release::ALL.len());
    }

    #[test]
    fn the_document_is_as_scripts_know_it() {
        let document = Document {
            architecture: "x86_64",
            ..Document::of(Build {
                version: "0.1.0",
                commit: "c0ffee",
                time_unix_s: Some(1_700_000_000),
            })
        };
        crate::snapshot::check(&document, "version");
    }
}
