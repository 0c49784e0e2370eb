//! The folder that keeps what was fetched and built between runs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The root of the checkout.
pub fn repository() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// `.cache` at the root of the checkout, or what `CGPU_CACHE` names.
pub fn folder() -> PathBuf {
    std::env::var_os("CGPU_CACHE").map_or_else(|| repository().join(".cache"), PathBuf::from)
}

/// Held while something in the cache is made; other test processes wait.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held for its lock, which ends with the file")] File);

/// Waits for and takes the lock of one part of the cache.
pub fn lock(part: &str) -> Result<Lock> {
    let folder = folder();
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let path = folder.join(format!("{part}.lock"));
    let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
    file.lock()
        .with_context(|| format!("locking {}", path.display()))?;
    Ok(Lock(file))
}

/// Whether `folder` is whole and made from what `stamp` names.
pub fn is_made(folder: &Path, stamp: &str) -> bool {
    fs::read_to_string(folder.join(".stamp")).is_ok_and(|there| there == stamp)
}

/// Makes `folder` by `make` in a temporary place and moves it there when whole, so that a killed run leaves
/// nothing that looks finished. `stamp` names what it was made from: another stamp means to make it anew. It is made under the
/// lock of a `part`; what is there waits for nobody.
pub fn once(
    part: &str,
    folder: &Path,
    stamp: &str,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    if is_made(folder, stamp) {
        return Ok(());
    }
    let _lock = lock(part)?;
    if is_made(folder, stamp) {
        return Ok(());
    }
    let parent = folder.parent().context("a cache folder has a parent")?;
    fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
    let making = tempfile::Builder::new()
        .prefix(".making-")
        .tempdir_in(parent)
        .context("temporary folder in the cache")?;
    make(making.path())?;
    fs::write(making.path().join(".stamp"), stamp)?;
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    let made = making.keep();
    fs::rename(&made, folder).with_context(|| format!("moving to {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_makes_again_only_for_another_stamp_and_never_keeps_a_half() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("part");
        let make = |text: &'static str| {
            move |at: &Path| {
                fs::write(at.join("text"), text)?;
                Ok(())
            }
        };
        assert!(!is_made(&folder, "1"));
        once("tests", &folder, "1", make("a")).unwrap();
        assert!(is_made(&folder, "1") && !is_made(&folder, "2"));
        once("tests", &folder, "1", make("b")).unwrap();
        assert_eq!(fs::read_to_string(folder.join("text")).unwrap(), "a");
        once("tests", &folder, "2", |_| anyhow::bail!("half-way")).unwrap_err();
        assert_eq!(fs::read_to_string(folder.join("text")).unwrap(), "a");
        once("tests", &folder, "2", make("c")).unwrap();
        assert_eq!(fs::read_to_string(folder.join("text")).unwrap(), "c");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }
}
