//! Where somebody has registered cgpu's programs by hand.

use std::fs;
use std::path::Path;

use super::check::Tree;
use super::engine::Engine;
use super::files;
use super::journal::Journal;
use super::named;
use super::plan::TYPE;

/// What names cgpu in the files by which an engine goes, as they are to be. `own`: the folder of this installation's programs;
/// `restored`: what becomes of the files that `cgpu install` has changed.
pub(super) fn left(
    root: &Path,
    own: &Path,
    journal: &Journal,
    engine: Engine,
    restored: &Tree,
) -> Vec<String> {
    let goes = |program: &str| goes(root, own, journal, program);
    let text = |path: String| {
        let text = match restored.get(&path) {
            Some(after) => after.clone(),
            None => files::text(root, &path),
        };
        Some((path, text?))
    };
    let mut paths = files::read_by(root, engine);
    paths.extend(restored.keys().cloned());
    paths.sort();
    paths.dedup();
    let is_there = engine.is_there(root);
    let texts = paths.into_iter().filter_map(text);
    let mut left = named::left_by_hand(texts, |program| is_there && goes(program));
    if engine == Engine::Containerd {
        for (_, folder) in files::EMBEDDED {
            // Where one of these is, its containerd is.
            let texts = files::templates(root, folder).into_iter().filter_map(text);
            left.extend(named::left_by_hand(texts, goes));
        }
    }
    left
}

/// Whether a program goes with this installation, by the folder that its path leads to. A shim is looked for by its type.
fn goes(root: &Path, own: &Path, journal: &Journal, program: &str) -> bool {
    if program == TYPE {
        return true;
    }
    let at = |path: &Path| fs::canonicalize(root.join(path.strip_prefix("/").unwrap_or(path)));
    let Ok(file) = at(Path::new(program)) else {
        return false;
    };
    match (file.parent(), &journal.programs) {
        (Some(folder), Some(copies)) => copies.need(root, folder),
        (folder, _) => folder == at(own).ok().as_deref(),
    }
}
