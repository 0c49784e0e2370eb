//! Where cgpu's own programs are.
//!
//! What engines and people start is in a folder `bin`. What only cgpu itself starts is in `libexec/cgpu` beside that folder. A
//! build's folder has all programs together. The choice is by folder and not by file: the programs of one installation work
//! together, and a program that an earlier installation has left in `bin` must not be taken for this one's.

use std::io;
use std::path::{Path, PathBuf};

/// The folder in which a program of the folder `bin` finds the others, from the folder above `bin`.
const INTERNAL: &str = "libexec/cgpu";

/// The folder of the programs for the inside of containers, from the folder above `bin`.
const STATIC: &str = "lib/cgpu/static";

/// A program that only cgpu itself starts, of the installation that the running program belongs to. It need not exist.
///
/// # Errors
/// The system's, where the running program cannot be named.
pub fn internal(name: &str) -> io::Result<PathBuf> {
    Ok(folder_of(&std::env::current_exe()?).join(name))
}

/// A static program of the installation that the running program belongs to, for images of any C library; `None` where the
/// installation has none, as a build's folder.
#[must_use]
pub fn inside_containers(name: &str) -> Option<PathBuf> {
    inside(&std::env::current_exe().ok()?, name)
}

fn inside(program: &Path, name: &str) -> Option<PathBuf> {
    let file = prefix_of(program)?.join(STATIC).join(name);
    file.is_file().then_some(file)
}

/// The folder above `bin` and `libexec`; a build's folder has none.
fn prefix_of(program: &Path) -> Option<&Path> {
    let folder = program.parent()?;
    if folder.ends_with("bin") {
        folder.parent()
    } else if folder.ends_with(INTERNAL) {
        folder.parent()?.parent()
    } else {
        None
    }
}

/// The folder of all versions where `cgpu install --host` has copied this one beside others: engines start the next container from
/// another version than this program's.
pub(crate) fn folder_of_versions(program: &Path) -> Option<PathBuf> {
    let versions = prefix_of(program)?.parent()?;
    let folder = versions.parent()?;
    versions.ends_with("versions").then(|| folder.to_owned())
}

/// The folder of the programs that belong to this one.
pub(crate) fn folder_of(program: &Path) -> PathBuf {
    let own = program.parent().unwrap_or_else(|| Path::new("/"));
    let internal = own.with_file_name(INTERNAL);
    if own.ends_with("bin") && internal.is_dir() {
        internal
    } else {
        own.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_programs_are_in_libexec_or_where_it_is_absent_beside_the_program() {
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("usr/bin");
        assert_eq!(folder_of(&bin.join("cgpu")), bin);
        let internal = root.path().join("usr/libexec/cgpu");
        std::fs::create_dir_all(&internal).unwrap();
        assert_eq!(folder_of(&bin.join("cgpu")), internal);
        // What the supervisor and the broker start is beside them, and a build's folder is whole.
        assert_eq!(folder_of(&internal.join("cgpu-broker")), internal);
        let build = root.path().join("usr/debug");
        assert_eq!(folder_of(&build.join("cgpu")), build);
    }

    #[test]
    fn programs_for_containers_are_of_an_installation_alone() {
        let root = tempfile::tempdir().unwrap();
        let usr = root.path().join("usr");
        let file = usr.join("lib/cgpu/static/cgpu");
        assert_eq!(inside(&usr.join("bin/cgpu"), "cgpu"), None);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "").unwrap();
        for program in ["bin/cgpu", "libexec/cgpu/cgpu-broker"] {
            assert_eq!(inside(&usr.join(program), "cgpu").as_deref(), Some(&*file));
        }
        assert_eq!(inside(&usr.join("debug/cgpu"), "cgpu"), None);
    }

    /// A program that was replaced while it runs is named with this ending by the kernel.
    #[test]
    fn a_replaced_program_finds_the_others_of_its_folder() {
        let me = Path::new("/opt/cgpu/containerd-shim-cgpu-v2 (deleted)");
        assert_eq!(folder_of(me), Path::new("/opt/cgpu"));
    }

    #[test]
    fn copies_of_other_versions_belong_to_a_copied_program() {
        let of = |program: &str| folder_of_versions(Path::new(program));
        let folder = Some(PathBuf::from("/opt/cgpu"));
        assert_eq!(of("/opt/cgpu/versions/1-ab/bin/cgpu"), folder);
        assert_eq!(
            of("/opt/cgpu/versions/1-ab/libexec/cgpu/cgpu-broker"),
            folder
        );
        assert_eq!(of("/usr/bin/cgpu"), None);
        assert_eq!(of("/target/debug/cgpu"), None);
    }
}
