//! One agent: a lock that ends with its holder.

use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use anyhow::{Context, bail};
use cards::lock::{Attempt, FileLock};

/// Takes the lock of this folder, which is made where it is absent.
///
/// # Errors
/// Another agent has it; the folder cannot be made.
pub(crate) fn take(runtime_dir: &Path) -> anyhow::Result<FileLock> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(runtime_dir)
        .with_context(|| format!("make {}", runtime_dir.display()))?;
    let path = runtime_dir.join("lock");
    match FileLock::attempt(&path)? {
        Attempt::Taken(lock) => Ok(lock),
        Attempt::Held => bail!(
            "another cgpu-agent runs on this host (it holds {})",
            path.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_is_refused_while_the_first_lives() {
        let folder = tempfile::tempdir().unwrap();
        let runtime_dir = folder.path().join("run");
        let first = take(&runtime_dir).unwrap();
        let error = take(&runtime_dir).unwrap_err().to_string();
        assert!(error.contains("another cgpu-agent runs"), "{error}");
        drop(first);
        take(&runtime_dir).unwrap();
    }
}
