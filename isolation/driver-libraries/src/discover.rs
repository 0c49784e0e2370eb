//! The driver's files of exactly the running version, where no CDI spec names them.
//!
//! The host's linker cache says in which folders libraries of the driver are; the file of the running version is then
//! looked for there by its whole name, and after that in the folders that distributions use. A library of another version
//! is never taken.

use std::io::Read;
use std::path::{Path, PathBuf};

use nvabi::DriverVersion;
use spec::capabilities::{Capabilities, Capability};
use sys::failed;

use crate::catalogue::{self, DATA, LIBRARIES, Library, Need, PROGRAM_FOLDERS, PROGRAMS};
use crate::elf::{self, Machine};
use crate::error::Error;
use crate::linker_cache;
use crate::tree::{Found, LastLink, Tree};

/// Where distributions put the driver's libraries, for this machine's programs and for 32-bit ones.
const FOLDERS: [&str; 11] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/lib64",
    "/usr/lib64/nvidia",
    "/usr/lib",
    "/usr/lib/nvidia",
    "/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/local/nvidia/lib64",
];
const FOLDERS_32: [&str; 4] = [
    "/usr/lib/i386-linux-gnu",
    "/usr/lib/i386-linux-gnu/nvidia/current",
    "/usr/lib32",
    "/usr/lib",
];

/// Where some distributions put `libvdpau_nvidia.so`, in each of the above.
const VDPAU: &str = "vdpau";

const CACHE: &str = "/etc/ld.so.cache";
const CACHE_MAX_BYTES: u64 = 16 << 20;

/// A library that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundLibrary {
    /// On the host, without links.
    pub(crate) source: PathBuf,
    /// Every name under which a container must find it.
    pub(crate) names: Vec<String>,
    pub(crate) machine: Machine,
}

/// Everything of the driver that was wanted and is there.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Discovered {
    pub(crate) libraries: Vec<FoundLibrary>,
    /// Programs and data: on the host, and in the container.
    pub(crate) files: Vec<(PathBuf, PathBuf)>,
}

/// Looks below the driver's root. `version` is as the driver writes it, for example `570.195.03`.
///
/// # Errors
/// A required library that is absent, or of another version only; a file that others than root could change.
pub(crate) fn discover(
    tree: &Tree,
    version: &str,
    needed: &Capabilities,
) -> Result<Discovered, Error> {
    let known = folders(tree)?;
    let mut found = Discovered::default();
    for library in &LIBRARIES {
        if !needed.has_any(library.of) {
            continue;
        }
        match at_version(tree, &known.native, library, version, Machine::Native)? {
            Some(native) => found.libraries.push(native),
            None if library.need == Need::Required => {
                return Err(missing(tree, &known.native, library, version)?);
            }
            None => {}
        }
        if needed.has(Capability::Compat32) {
            let other = at_version(tree, &known.x86, library, version, Machine::X86)?;
            found.libraries.extend(other);
        }
    }
    for program in PROGRAMS.iter().filter(|one| needed.has_any(one.of)) {
        for folder in PROGRAM_FOLDERS {
            let path = Path::new(folder).join(program.name);
            if let Some(source) = plain(tree, &path)? {
                let target = Path::new("/usr/bin").join(program.name);
                found.files.push((source.trusted()?.to_owned(), target));
                break;
            }
        }
    }
    for data in DATA.iter().filter(|one| needed.has_any(one.of)) {
        if let Some(source) = plain(tree, Path::new(data.name))? {
            found
                .files
                .push((source.trusted()?.to_owned(), PathBuf::from(data.name)));
        }
    }
    Ok(found)
}

struct Folders {
    native: Vec<PathBuf>,
    x86: Vec<PathBuf>,
}

fn folders(tree: &Tree) -> Result<Folders, Error> {
    let cached = cached(tree)?;
    let from = |flags: u32, usual: &[&str]| {
        let mut folders: Vec<PathBuf> = Vec::new();
        let named = cached
            .iter()
            .filter(|(of, _)| *of == flags)
            .map(|(_, folder)| folder.clone());
        let usual = usual.iter().flat_map(|folder| {
            let folder = PathBuf::from(folder);
            [folder.join(VDPAU), folder]
        });
        for folder in named.chain(usual) {
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
        folders
    };
    Ok(Folders {
        native: from(linker_cache::NATIVE, &FOLDERS),
        x86: from(linker_cache::X86, &FOLDERS_32),
    })
}

/// The folders in which the linker cache of the driver's root has the driver's libraries: of the names themselves, and of
/// the files that they lead to, which on Debian are elsewhere.
fn cached(tree: &Tree) -> Result<Vec<(u32, PathBuf)>, Error> {
    let Some(cache) = plain(tree, Path::new(CACHE))? else {
        return Ok(Vec::new());
    };
    let mut bytes = Vec::new();
    cache
        .read()?
        .take(CACHE_MAX_BYTES)
        .read_to_end(&mut bytes)
        .map_err(failed("read", cache.path()))?;
    let Some(entries) = linker_cache::entries(&bytes) else {
        tracing::warn!(path = %cache.path().display(), "it is no linker cache; the driver's libraries are looked for in the usual folders");
        return Ok(Vec::new());
    };
    let mut folders = Vec::new();
    for entry in entries {
        if catalogue::library_of(&entry.name).is_none() {
            continue;
        }
        let path = Path::new(&entry.path);
        let real = plain(tree, path)?.and_then(|file| inside(tree, file.path()));
        for path in [Some(path.to_owned()), real].into_iter().flatten() {
            if let Some(folder) = path.parent() {
                folders.push((entry.flags, folder.to_owned()));
            }
        }
    }
    Ok(folders)
}

/// A path of the host as one below the root.
fn inside(tree: &Tree, path: &Path) -> Option<PathBuf> {
    let root = tree.root().canonicalize().ok()?;
    Some(Path::new("/").join(path.strip_prefix(root).ok()?))
}

/// A plain file; anything else that is there is none.
fn plain(tree: &Tree, path: &Path) -> Result<Option<Found>, Error> {
    Ok(tree.find(path, LastLink::Followed)?.filter(Found::is_file))
}

fn at_version(
    tree: &Tree,
    folders: &[PathBuf],
    library: &Library,
    version: &str,
    machine: Machine,
) -> Result<Option<FoundLibrary>, Error> {
    let name = format!("{}.{version}", library.name);
    for folder in folders {
        let Some(file) = plain(tree, &folder.join(&name))? else {
            continue;
        };
        let source = file.trusted()?.to_owned();
        let reply = elf::read(&file)?;
        // Red Hat's /usr/lib has 32-bit libraries, Arch's has 64-bit ones.
        if reply.machine != machine {
            continue;
        }
        let links = library.links.iter().map(|link| (*link).to_owned());
        let mut names = vec![name];
        names.extend(reply.soname.into_iter().chain(links));
        names.dedup();
        return Ok(Some(FoundLibrary {
            source,
            names,
            machine,
        }));
    }
    Ok(None)
}

/// Why a required library is not there: it may be there for another driver.
fn missing(
    tree: &Tree,
    folders: &[PathBuf],
    library: &Library,
    version: &str,
) -> Result<Error, Error> {
    for folder in folders {
        for name in ["", ".1"] {
            let path = folder.join(format!("{}{name}", library.name));
            let Some(file) = plain(tree, &path)? else {
                continue;
            };
            let file_name = file.path().file_name().and_then(|name| name.to_str());
            let other = file_name.and_then(catalogue::library_of);
            if let Some((_, found)) = other.filter(|(_, end)| end.parse::<DriverVersion>().is_ok())
            {
                return Ok(Error::Version {
                    found: found.to_owned(),
                    path: file.path().to_owned(),
                    running: version.to_owned(),
                    remedy: "load the driver that belongs to the libraries (after an update: restart the host), or install those of the running one",
                });
            }
        }
    }
    let searched: Vec<String> = folders
        .iter()
        .filter(|folder| !folder.ends_with(VDPAU))
        .map(|folder| {
            let below = folder.strip_prefix("/").unwrap_or(folder);
            tree.root().join(below).display().to_string()
        })
        .collect();
    Ok(Error::Absent {
        name: library.name,
        running: version.to_owned(),
        searched: searched.join(", "),
    })
}
