//! What programs of an image load: the loader and the libraries that `ldd` finds on this machine, each with its licence.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{Build, tool};

/// Files by the path that they have in the image, and on this machine.
pub(crate) type Files = BTreeMap<String, PathBuf>;

/// The libraries of `programs`, those of `named` that stand beside the C library, and the licence of each.
///
/// # Errors
/// A library is not found, or has no licence on this machine.
pub(crate) fn find(build: &Build, programs: &[PathBuf], named: &[String]) -> Result<Files> {
    let mut libraries = BTreeSet::new();
    for program in programs {
        libraries.extend(loaded_by(build, program)?);
    }
    let c_library = libraries
        .iter()
        .find(|path| path.file_name().is_some_and(|name| name == "libc.so.6"));
    let folder = c_library
        .and_then(|path| path.parent())
        .context("no program loads libc.so.6")?;
    let beside: Vec<PathBuf> = named.iter().map(|name| folder.join(name)).collect();
    libraries.extend(beside);
    let mut files = Files::new();
    for library in libraries {
        for licence in Origin::of(build, &library)?.licences {
            files.insert(licence.display().to_string(), licence);
        }
        files.insert(library.display().to_string(), library);
    }
    Ok(files)
}

/// What `ldd` says of one program; nothing of a static one.
pub(crate) fn loaded_by(build: &Build, program: &Path) -> Result<BTreeSet<PathBuf>> {
    let done = tool::command("ldd", build.epoch)
        .arg(program)
        .output()
        .context("start ldd; is it installed?")?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    if [&text, &errors].iter().any(|text| is_static(text)) {
        return Ok(BTreeSet::new());
    }
    if !done.status.success() {
        bail!(
            "ldd {} ended with {}: {errors}",
            program.display(),
            done.status
        );
    }
    parse(&text).with_context(|| program.display().to_string())
}

fn is_static(text: &str) -> bool {
    text.contains("not a dynamic executable") || text.contains("statically linked")
}

/// Lines of `ldd`: `name => path (address)`, `path (address)` of the loader, and the kernel's own object, which has no path.
fn parse(text: &str) -> Result<BTreeSet<PathBuf>> {
    let mut paths = BTreeSet::new();
    for line in text.lines() {
        let place = line.split_once("=>").map_or(line, |(_, place)| place);
        let Some(path) = place.split_whitespace().next() else {
            continue;
        };
        if line.contains("not found") {
            bail!("{} is not found", line.trim());
        }
        if path.starts_with('/') {
            paths.insert(PathBuf::from(path));
        }
    }
    Ok(paths)
}

/// The package of this machine that a library is of.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) version: String,
    pub(crate) licences: Vec<PathBuf>,
}

impl Origin {
    /// Asks Debian's and Fedora's package managers.
    ///
    /// # Errors
    /// Neither has a licence for it.
    pub(crate) fn of(build: &Build, library: &Path) -> Result<Self> {
        let origin = Self::debian(build, library).or_else(|| Self::fedora(build, library));
        origin
            .filter(|origin| !origin.licences.is_empty())
            .with_context(|| {
                format!(
                    "no licence of {} is on this machine, and without one it is in no package",
                    library.display()
                )
            })
    }

    fn debian(build: &Build, library: &Path) -> Option<Self> {
        // Since Debian 13 the package has `/usr` before the path by which programs are linked.
        let moved = Path::new("/usr").join(library.strip_prefix("/").unwrap_or(library));
        let line = [library, &moved].into_iter().find_map(|path| {
            tool::run(tool::command("dpkg", build.epoch).arg("-S").arg(path)).ok()
        })?;
        let package = line.split([':', ',']).next()?;
        let mut query = tool::command("dpkg-query", build.epoch);
        query.args(["--show", "--showformat=${Version}\n", package]);
        let text = Path::new("/usr/share/doc").join(package).join("copyright");
        Some(Self {
            version: tool::run(&mut query).ok()?.lines().next()?.to_owned(),
            licences: Some(text)
                .into_iter()
                .filter(|text| text.is_file())
                .collect(),
        })
    }

    fn fedora(build: &Build, library: &Path) -> Option<Self> {
        let mut query = tool::command("rpm", build.epoch);
        query.args(["-qf", "--queryformat", "%{NAME} %{VERSION}-%{RELEASE}\n"]);
        let reply = tool::run(query.arg(library)).ok()?;
        let (package, version) = reply.lines().next()?.split_once(' ')?;
        let folder = fs::read_dir(Path::new("/usr/share/licenses").join(package)).ok()?;
        let mut licences: Vec<PathBuf> = folder.flatten().map(|entry| entry.path()).collect();
        licences.sort();
        Some(Self {
            version: version.to_owned(),
            licences,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_the_loader_are_read_and_the_kernels_object_is_not() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let paths: Vec<_> = parse(text).unwrap().into_iter().collect();
        assert_eq!(
            paths,
            [
                PathBuf::from("/lib/x86_64-linux-gnu/libgcc_s.so.1"),
                PathBuf::from("/lib64/ld-linux-x86-64.so.2")
            ]
        );
    }

    #[test]
    fn a_library_that_is_absent_is_an_error_that_names_it() {
        let error = parse("\tlibmissing.so.1 => not found\n").unwrap_err();
        assert!(error.to_string().contains("libmissing.so.1"), "{error}");
    }
}
