//! Lists of files that package managers print.

use std::collections::BTreeSet;

/// The files in a listing of one path a line.
pub(crate) fn files(listing: &str) -> BTreeSet<String> {
    listing
        .lines()
        .map(|line| line.trim_start_matches('.'))
        .filter(|line| line.starts_with('/') && !line.ends_with('/'))
        // The one file that distributions have in different places.
        .map(|line| line.replace("zsh/vendor-completions", "zsh/site-functions"))
        .collect()
}
