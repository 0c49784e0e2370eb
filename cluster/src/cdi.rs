//! The CDI files of claims: how a container comes to the pointers that name its shares.
//!
//! The engine reads `<folder>/gpu.cgpu.io-claim-<uid>.json` when the kubelet names a device in it, and adds the device's variable to the
//! container. It carries no node and no library: under another runtime than cgpu's there is no card.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cards::claims::{ClaimUid, Pointer, Record};
use serde_json::{Value, json};

use crate::error::Error;

/// Kind of the devices.
const KIND: &str = "gpu.cgpu.io/claim";

/// The oldest version of CDI that has what is used: containerd 1.7 and later read it.
const VERSION: &str = "0.6.0";

const PREFIX: &str = "gpu.cgpu.io-claim-";
const SUFFIX: &str = ".json";
const TEMPORARY: &str = ".tmp";

/// A temporary file that is older has no writer any more.
const WRITTEN_WITHIN: Duration = Duration::from_secs(60);

/// How variables begin that name a share.
const VARIABLE: &str = "CGPU_CLAIM_";

/// Digits of a share in its variable's name.
const DIGITS: usize = 8;

/// The folder that engines read.
#[derive(Debug, Clone)]
pub(crate) struct CdiFolder {
    path: PathBuf,
}

impl CdiFolder {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Writes a claim's file durably: engines see the former one or this one, and each of two agents writes a temporary file of its own.
    ///
    /// # Errors
    /// A failed file operation.
    pub(crate) fn write(&self, record: &Record) -> Result<(), Error> {
        let path = self.path_of(&record.claim.uid);
        let mut text = document(record).to_string();
        text.push('\n');
        if fs::read(&path).is_ok_and(|former| former == text.as_bytes()) {
            return Ok(());
        }
        fs::create_dir_all(&self.path).map_err(Error::io("make", &self.path))?;
        // Two agents in pods of their own may have the same pid.
        let random = RandomState::new().hash_one(&record.claim.uid);
        let name = format!(".{PREFIX}{}.{random:016x}{TEMPORARY}", record.claim.uid);
        let temporary = self.path.join(name);
        let written = write_new(&temporary, text.as_bytes())
            .map_err(Error::io("write", &temporary))
            .and_then(|()| fs::rename(&temporary, &path).map_err(Error::io("replace", &path)));
        if written.is_err() {
            drop(fs::remove_file(&temporary));
        }
        written?;
        self.sync()
    }

    /// Removes a claim's file; an absent one is fine.
    ///
    /// # Errors
    /// A failed file operation.
    pub(crate) fn remove(&self, claim: &ClaimUid) -> Result<(), Error> {
        let path = self.path_of(claim);
        let removed = sys::absent_is_none(fs::remove_file(&path));
        match removed.map_err(Error::io("remove", &path))? {
            Some(()) => self.sync(),
            None => Ok(()),
        }
    }

    /// Removes what a crash has left between two steps.
    pub(crate) fn sweep(&self) {
        let entries = fs::read_dir(&self.path).into_iter().flatten();
        for entry in entries.filter_map(Result::ok) {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_ours = name.starts_with(&format!(".{PREFIX}")) && name.ends_with(TEMPORARY);
            let age = entry.metadata().and_then(|about| about.modified());
            let age = age.ok().and_then(|modified| modified.elapsed().ok());
            if is_ours && age.is_some_and(|age| age > WRITTEN_WITHIN) {
                drop(fs::remove_file(entry.path()));
            }
        }
    }

    /// The claims that have a file.
    ///
    /// # Errors
    /// The folder cannot be read; an absent one has none.
    pub(crate) fn claims(&self) -> Result<Vec<ClaimUid>, Error> {
        let mut found = Vec::new();
        for entry in sys::entries(&self.path).map_err(Error::io("read", &self.path))? {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let uid = name
                .strip_prefix(PREFIX)
                .and_then(|name| name.strip_suffix(SUFFIX));
            found.extend(uid.and_then(|uid| ClaimUid::new(uid).ok()));
        }
        Ok(found)
    }

    fn path_of(&self, claim: &ClaimUid) -> PathBuf {
        self.path.join(format!("{PREFIX}{claim}{SUFFIX}"))
    }

    fn sync(&self) -> Result<(), Error> {
        let synced = File::open(&self.path).and_then(|folder| folder.sync_all());
        synced.map_err(Error::io("sync", &self.path))
    }
}

/// World-readable, whatever the umask is: rootless engines read it too, and it holds no secret.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o644)
        .open(path)?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The name by which the kubelet hands a share's device to the engine.
pub(crate) fn device_id(pointer: &Pointer) -> String {
    format!("{KIND}={}", device_name(pointer))
}

/// CDI takes letters, digits, `_`, `-`, `.` and `:`.
fn device_name(pointer: &Pointer) -> String {
    let request = pointer.request.replace('/', ".");
    format!("{}-{request}-{}", pointer.claim, pointer.share)
}

/// A claim's file.
fn document(record: &Record) -> Value {
    let shares = record.shares().zip(variables(record));
    let devices: Vec<Value> = shares
        .map(|((pointer, _, _), (variable, value))| {
            let env = format!("{variable}={value}");
            json!({"name": device_name(&pointer), "containerEdits": {"env": [env]}})
        })
        .collect();
    json!({"cdiVersion": VERSION, "kind": KIND, "devices": devices})
}

/// The variable of each share, and its pointer.
pub(crate) fn variables(record: &Record) -> Vec<(String, String)> {
    let mut names = BTreeSet::new();
    let shares = record.shares();
    shares
        .map(|(pointer, _, _)| (variable(&pointer, &mut names), pointer.to_string()))
        .collect()
}

/// A container can have several shares, and a variable that is set again replaces the former one: each has a name of its own.
fn variable(pointer: &Pointer, names: &mut BTreeSet<String>) -> String {
    let plain: String = pointer
        .share
        .chars()
        .filter(char::is_ascii_hexdigit)
        .collect();
    let is_uuid = plain.len() == 32 && pointer.share.len() == 36;
    // A device that is not shared has a name instead of an id.
    let digits = if is_uuid {
        plain.to_ascii_lowercase()
    } else {
        format!("{:.32}", cards::digest(pointer.to_string()))
    };
    let mut length = DIGITS;
    loop {
        let name = match digits.get(..length) {
            Some(digits) => format!("{VARIABLE}{digits}"),
            // The same share twice.
            None => format!("{VARIABLE}{digits}_{length}"),
        };
        if names.insert(name.clone()) {
            return name;
        }
        length += 1;
    }
}

#[cfg(test)]
mod tests {
    use cards::GpuUuid;
    use cards::claims::{ClaimName, Given, Share};

    use super::*;

    fn record(requests: &[(&str, &[&str])]) -> Record {
        let given = |shares: &[&str]| Given {
            shares: shares
                .iter()
                .map(|id| Share {
                    id: (*id).to_owned(),
                    card: GpuUuid::new("GPU-1").unwrap(),
                    device: "gpu-1".to_owned(),
                    memory_bytes: 1 << 30,
                })
                .collect(),
            compute: cards::ComputeTerms::default(),
            managed: None,
            share_group: None,
        };
        Record {
            version: cards::claims::VERSION,
            claim: ClaimName {
                namespace: "team-a".to_owned(),
                name: "c".to_owned(),
                uid: ClaimUid::new("11111111-2222-3333-4444-555555555555").unwrap(),
            },
            node: "n1".to_owned(),
            pods: Vec::new(),
            requests: requests
                .iter()
                .map(|(name, shares)| ((*name).to_owned(), given(shares)))
                .collect(),
        }
    }

    fn written(record: &Record) -> Vec<String> {
        let document = document(record);
        let devices = document["devices"].as_array().unwrap();
        let of = |device: &Value| {
            device["containerEdits"]["env"][0]
                .as_str()
                .unwrap()
                .to_owned()
        };
        devices.iter().map(of).collect()
    }

    #[test]
    fn a_device_carries_a_pointer_and_nothing_else() {
        let record = record(&[("vgpu", &["7007bb35-0000-4000-8000-000000000001"])]);
        let expected = json!({
            "cdiVersion": "0.6.0",
            "kind": "gpu.cgpu.io/claim",
            "devices": [{
                "name": "11111111-2222-3333-4444-555555555555-vgpu-7007bb35-0000-4000-8000-000000000001",
                "containerEdits": {"env": [
                    "CGPU_CLAIM_7007bb35=11111111-2222-3333-4444-555555555555/vgpu/7007bb35-0000-4000-8000-000000000001"
                ]},
            }],
        });
        assert_eq!(document(&record), expected);
    }

    #[test]
    fn variables_differ_where_shares_begin_alike() {
        let record = record(&[
            (
                "a",
                &[
                    "7007bb35-0000-4000-8000-000000000001",
                    "7007bb35-1000-4000-8000-000000000001",
                ],
            ),
            (
                "b/large",
                &["7007bb35-0000-4000-8000-000000000001", "gpu-1"],
            ),
        ]);
        let variables = written(&record);
        let names: BTreeSet<&str> = variables
            .iter()
            .filter_map(|variable| variable.split('=').next())
            .collect();
        assert_eq!(names.len(), 4, "{variables:?}");
        for variable in &variables {
            let (name, pointer) = variable.split_once('=').unwrap();
            assert!(name.strip_prefix(VARIABLE).unwrap().len() >= DIGITS);
            let pointer: Pointer = pointer.parse().unwrap();
            assert!(record.share(&pointer).is_some(), "{variable}");
        }
    }

    #[test]
    fn a_file_is_whole_for_all_to_read_and_gone_when_removed() {
        let folder = tempfile::tempdir().unwrap();
        let cdi = CdiFolder::new(folder.path().join("run/cdi"));
        assert_eq!(cdi.claims().unwrap(), []);
        let record = record(&[("vgpu", &["7007bb35-0000-4000-8000-000000000001"])]);
        cdi.write(&record).unwrap();
        cdi.write(&record).unwrap();
        let path = cdi.path_of(&record.claim.uid);
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o644
        );
        let written: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(written, document(&record));
        fs::write(cdi.path.join("nvidia.json"), "{}").unwrap();
        assert_eq!(
            cdi.claims().unwrap(),
            std::slice::from_ref(&record.claim.uid)
        );
        assert_eq!(
            fs::read_dir(&cdi.path).unwrap().count(),
            2,
            "no temporary file stays"
        );
        cdi.remove(&record.claim.uid).unwrap();
        cdi.remove(&record.claim.uid).unwrap();
        assert_eq!(cdi.claims().unwrap(), []);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let cdi = CdiFolder::new(file.join("cdi"));
        let error = cdi.write(&record(&[])).unwrap_err().to_string();
        assert!(error.contains(&*file.to_string_lossy()), "{error}");
    }
}
