//! A kernel's modules: those that a guest loads before it has a root.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

/// A kernel's modules, and those that were taken.
#[derive(Debug, Default)]
pub(super) struct Modules {
    /// Files by name.
    files: BTreeMap<String, PathBuf>,
    /// Names in which each comes after what it depends on.
    pub(super) order: Vec<String>,
}

impl Modules {
    pub(super) fn below(folder: &Path) -> Result<Self> {
        let mut modules = Self::default();
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder)? {
                let path = entry?.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                if path.is_dir() && !path.is_symlink() {
                    folders.push(path);
                } else if let Some((name, "ko" | "ko.xz" | "ko.zst")) = name.split_once('.') {
                    modules.files.insert(name.replace('-', "_"), path);
                }
            }
        }
        Ok(modules)
    }

    /// Puts a module, and what it depends on, into a folder.
    pub(super) fn unpack(&mut self, name: &str, folder: &Path) -> Result<()> {
        let Some(path) = self.files.get(name).cloned() else {
            // The kernel has it in itself.
            return Ok(());
        };
        if self.order.iter().any(|taken| taken == name) {
            return Ok(());
        }
        let mut bytes = fs::read(&path)?;
        let packer = match path.extension().and_then(OsStr::to_str) {
            Some("xz") => Some("xz"),
            Some("zst") => Some("zstd"),
            _ => None,
        };
        if let Some(packer) = packer {
            let unpacked = Command::new(packer).arg("-dc").arg(&path).output()?;
            ensure!(unpacked.status.success(), "{packer} -dc {}", path.display());
            bytes = unpacked.stdout;
        }
        for needed in depends(&bytes) {
            self.unpack(&needed, folder)?;
        }
        fs::write(folder.join(name), bytes)?;
        self.order.push(name.to_owned());
        Ok(())
    }
}

/// Names out of `depends=a,b` of a module's `.modinfo`.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let at = module.windows(KEY.len()).position(|part| part == KEY);
    let text = at
        .and_then(|at| module.get(at + KEY.len()..))
        .unwrap_or_default();
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    let names = text.split(',').filter(|name| !name.is_empty());
    names.map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_after_what_it_depends_on_and_once() {
        let kernel = tempfile::tempdir().unwrap();
        let deep = kernel.path().join("lib/modules/1/kernel/fs");
        fs::create_dir_all(&deep).unwrap();
        for (name, depends) in [
            ("top", "left,right-er"),
            ("left", "base"),
            ("right-er", "base"),
            ("base", ""),
        ] {
            let text = format!("ELF\0license=GPL\0depends={depends}\0vermagic=1\0");
            fs::write(deep.join(format!("{name}.ko")), text).unwrap();
        }
        let mut modules = Modules::below(kernel.path()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        for name in ["top", "left", "in_the_kernel"] {
            modules.unpack(name, folder.path()).unwrap();
        }
        assert_eq!(modules.order, ["base", "left", "right_er", "top"]);
        assert!(folder.path().join("right_er").exists());
    }
}
