//! One agent: a lock that ends with its holder.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use cards::lock::{Attempt, FileLock};

/// From one try to the next.
const BETWEEN_TRIES: Duration = Duration::from_secs(1);

/// Takes the lock of this folder, which is made where it is absent.
///
/// # Errors
/// Another agent has it; the folder cannot be made.
pub(crate) fn take(runtime_dir: &Path) -> anyhow::Result<FileLock> {
    let path = path(runtime_dir)?;
    match FileLock::attempt(&path)? {
        Attempt::Taken(lock) => Ok(lock),
        Attempt::Held => bail!(
            "another cgpu-agent runs on this host (it holds {})",
            path.display()
        ),
    }
}

/// The lock's file, in a folder that is there.
fn path(runtime_dir: &Path) -> anyhow::Result<PathBuf> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(runtime_dir)
        .with_context(|| format!("make {}", runtime_dir.display()))?;
    Ok(runtime_dir.join("lock"))
}

/// Waits until no other agent runs.
///
/// # Errors
/// The lock cannot be made.
pub(crate) async fn wait(runtime_dir: &Path) -> anyhow::Result<FileLock> {
    let path = path(runtime_dir)?;
    let mut reported = false;
    loop {
        if let Attempt::Taken(lock) = FileLock::attempt(&path)? {
            return Ok(lock);
        }
        if !std::mem::replace(&mut reported, true) {
            tracing::info!("metrics are served when the other agent of this host has ended");
        }
        tokio::time::sleep(BETWEEN_TRIES).await;
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
