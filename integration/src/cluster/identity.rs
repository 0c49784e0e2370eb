//! Who speaks to the API server: tokens, and the files that `kubectl` and the servers read them from.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

/// Everybody that the server knows by a token of its own file, with their groups: the roles are those that the server sets up itself.
const KNOWN: [(&str, &str, &str); 5] = [
    ("admin", "admin", "system:masters"),
    ("scheduler", "system:kube-scheduler", ""),
    ("controllers", "system:kube-controller-manager", ""),
    ("k1", "system:node:k1", "system:nodes"),
    ("k2", "system:node:k2", "system:nodes"),
];

/// The server's address and the folder of the files.
#[derive(Debug, Clone)]
pub(super) struct Identities {
    folder: PathBuf,
    address: String,
}

impl Identities {
    /// Makes tokens and files for all that are known from the start.
    pub(super) fn make(folder: &Path, address: &str) -> Result<Self> {
        let identities = Self {
            folder: folder.to_path_buf(),
            address: address.to_owned(),
        };
        let mut table = String::new();
        for (name, user, groups) in KNOWN {
            let token = random()?;
            table += &format!("{token},{user},{user},\"{groups}\"\n");
            identities.file(name, &token)?;
        }
        let path = identities.table();
        fs::write(&path, table).with_context(|| format!("writing {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        Ok(identities)
    }

    /// `--token-auth-file`.
    pub(super) fn table(&self) -> PathBuf {
        self.folder.join("tokens.csv")
    }

    /// The file of somebody that is known.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.conf"))
    }

    /// Writes the file of somebody with this token. JSON is YAML.
    pub(super) fn file(&self, name: &str, token: &str) -> Result<PathBuf> {
        let path = self.path(name);
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {
                "server": self.address,
                "certificate-authority": self.folder.join("certificates/apiserver.crt"),
            }}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
            "current-context": "test",
        });
        fs::write(&path, serde_json::to_vec_pretty(&config)?)
            .with_context(|| format!("writing {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        Ok(path)
    }
}

fn random() -> Result<String> {
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid").context("a random token")?;
    Ok(uuid.trim().to_owned())
}
