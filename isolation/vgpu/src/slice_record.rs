//! What a container can know of its share: a file of the host, bound into the container read-only.
//!
//! The bound file is one inode for the container's life, so that it is written over, never replaced: in one write of one length,
//! which a reader sees whole or not at all but for the moment of the write itself.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use cards::GpuUuid;
use cards::store::read_capped;
use control::slice_record::{RecordedCard, SliceRecord};
use host_config::chain;
use plan::Terms;
use rustix::fs::XattrFlags;
use serde_json::Value;
use spec::edit::Mount;
use sys::failed;

use crate::Error;
use crate::mount;
use crate::state::ContainerDir;

/// In the container's folder.
const FILE: &str = "slice.json";

/// Where the container finds it.
pub const TARGET: &str = "/dev/cgpu-slice.json";

/// The attribute that SELinux reads a file's label from.
const LABEL: &str = "security.selinux";

/// A note of sixteen cards is a quarter of this.
const SIZE_BYTES: usize = 8 << 10;

/// Writes the note of a new container.
pub(crate) fn write(dir: &ContainerDir, terms: &[(GpuUuid, Terms)]) -> Result<(), Error> {
    let cards = terms
        .iter()
        .map(|(uuid, terms)| RecordedCard {
            uuid: uuid.to_string(),
            terms: *terms,
        })
        .collect();
    put(&dir.file(FILE), &SliceRecord::of(cards))
}

/// Writes other terms over those of the same cards. What a container can read of itself binds nobody: a failure is said, and
/// changes nothing else.
pub(crate) fn update(dir: &ContainerDir, terms: &[(GpuUuid, Terms)]) {
    let path = dir.file(FILE);
    if !path.exists() {
        return;
    }
    let updated = read(&path).and_then(|mut record| {
        for (uuid, terms) in terms {
            if let Some(card) = record
                .cards
                .iter_mut()
                .find(|card| card.uuid == uuid.as_str())
            {
                card.terms = *terms;
            }
        }
        put(&path, &record)
    });
    if let Err(error) = updated {
        tracing::warn!(path = %path.display(), error = %chain(&error), "a container cannot read its new share");
    }
}

/// How the container finds it; nothing where nobody holds a share for it. The engine's `spec` may name a label for the container's
/// files: under SELinux the container reads no others, and runc gives the source of a bind mount none.
pub(crate) fn mount(dir: &ContainerDir, spec: Option<&Value>) -> Result<Option<Mount>, Error> {
    let path = dir.file(FILE);
    if !path.exists() {
        return Ok(None);
    }
    let label = spec.and_then(|spec| spec.pointer("/linux/mountLabel")?.as_str());
    if let Some(label) = label.filter(|label| !label.is_empty())
        && let Err(error) = set_label(&path, label)
    {
        tracing::warn!(path = %path.display(), label, %error, "a container may not be able to read its share");
    }
    let options = ["bind", "ro", "nosuid", "nodev", "noexec"];
    mount::checked(path, TARGET.into(), &options).map(Some)
}

/// What the container can read of itself binds nobody, so that a file system without labels is no reason not to start.
fn set_label(path: &Path, label: &str) -> rustix::io::Result<()> {
    // With the zero at its end, as libselinux writes it.
    let value = [label.as_bytes(), b"\0"].concat();
    rustix::fs::lsetxattr(path, LABEL, &value, XattrFlags::empty())
}

fn read(path: &Path) -> Result<SliceRecord, Error> {
    let limit_bytes = u64::try_from(SIZE_BYTES).unwrap_or(u64::MAX);
    let bytes = read_capped("note of a share", path, limit_bytes)?;
    serde_json::from_slice(&bytes).map_err(|source| Error::ShareRecord {
        path: path.to_owned(),
        source,
    })
}

fn put(path: &Path, record: &SliceRecord) -> Result<(), Error> {
    let mut bytes = serde_json::to_vec(record).map_err(|source| Error::ShareRecord {
        path: path.to_owned(),
        source,
    })?;
    // The length never changes: a reader finds spaces, and never the end of a longer former note.
    bytes.resize(SIZE_BYTES.max(bytes.len() + 1), b' ');
    if let Some(last) = bytes.last_mut() {
        *last = b'\n';
    }
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o444)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .and_then(|mut file| file.write_all(&bytes));
    Ok(written.map_err(failed("write", path))?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use cards::ContainerKey;

    use super::*;

    #[test]
    fn the_record_stays_one_file_of_one_length_with_the_terms_that_hold() {
        let folder = tempfile::tempdir().unwrap();
        let key = ContainerKey::new("default", "c1").unwrap();
        let dir = ContainerDir::of(folder.path(), &key);
        std::fs::create_dir_all(dir.path()).unwrap();
        let uuid = |index: u32| GpuUuid::new(format!("GPU-{index}")).unwrap();
        let fixed = Terms {
            policy: plan::Policy::Fixed,
            percent: Some(30),
            ..Terms::NATIVE
        };
        // Nobody holds a share: there is nothing to bind, and nothing to update.
        update(&dir, &[(uuid(0), fixed)]);
        assert_eq!(mount(&dir, None).unwrap(), None);
        write(&dir, &[(uuid(0), fixed), (uuid(1), Terms::NATIVE)]).unwrap();
        let before = std::fs::metadata(dir.file(FILE)).unwrap();
        let weighted = Terms {
            policy: plan::Policy::Weighted,
            weight: 3,
            ..Terms::NATIVE
        };
        update(&dir, &[(uuid(1), weighted)]);
        let after = std::fs::metadata(dir.file(FILE)).unwrap();
        assert_eq!(
            (before.ino(), before.len(), after.mode() & 0o777),
            (after.ino(), after.len(), 0o444)
        );
        let record = read(&dir.file(FILE)).unwrap();
        let terms: Vec<Terms> = record.cards.iter().map(|card| card.terms).collect();
        assert_eq!(terms, [fixed, weighted]);
        let mount = mount(&dir, None).unwrap().unwrap();
        assert_eq!(mount.target, Path::new(TARGET));
        assert!(mount.options.contains(&"ro".to_owned()));
    }

    #[test]
    fn the_record_has_the_label_of_the_containers_files() {
        const TEST: &str = "the_record_has_the_label_of_the_containers_files";
        const CONTAINERS: &str = "system_u:object_r:container_file_t:s0:c1,c2";
        let folder = tempfile::tempdir().unwrap();
        let key = ContainerKey::new("default", "c1").unwrap();
        let dir = ContainerDir::of(folder.path(), &key);
        std::fs::create_dir_all(dir.path()).unwrap();
        write(&dir, &[]).unwrap();
        let path = dir.file(FILE);
        // Without SELinux root may write any label that a file system has room for.
        if let Err(error) = set_label(&path, "system_u:object_r:var_run_t:s0") {
            let skipped = writeln!(
                std::io::stderr(),
                "SKIP: {TEST}: no label can be set: {error}"
            );
            skipped.unwrap();
            return;
        }
        let label = || {
            let mut buffer = [0; 256];
            let length = rustix::fs::lgetxattr(&path, LABEL, &mut buffer[..]).unwrap();
            String::from_utf8(buffer[..length].to_vec()).unwrap()
        };
        for spec in [
            serde_json::json!({}),
            serde_json::json!({"linux": {"mountLabel": ""}}),
        ] {
            mount(&dir, Some(&spec)).unwrap().unwrap();
            assert_eq!(label(), "system_u:object_r:var_run_t:s0\0");
        }
        let spec = serde_json::json!({"linux": {"mountLabel": CONTAINERS}});
        let mount = mount(&dir, Some(&spec)).unwrap().unwrap();
        assert_eq!(label(), format!("{CONTAINERS}\0"));
        // The label is the file's: none is asked for among the mount's options.
        assert_eq!(mount.options, ["bind", "ro", "nosuid", "nodev", "noexec"]);
        std::fs::remove_file(&path).unwrap();
    }
}
