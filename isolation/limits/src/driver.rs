//! Answers a question with NVML.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nvml_wrapper::Device;
use sys::nvml::{Library, MemoryLimitFunctions, NvmlError};

use crate::question::{Answer, CardLimit, CardUse, Question, Refusal, UNLIMITED_BYTES, What};

/// What the linker is asked for where no file is named.
const LINKER_NAME: &str = "libnvidia-ml.so.1";

/// `nvmlDeviceMigMode`'s value for a card that MIG divides.
const MIG_ENABLED: u32 = 1;

/// Loads the library, does what is asked, unloads it.
#[must_use]
pub fn answer(question: &Question) -> Answer {
    try_answer(question).unwrap_or_else(|refusal| Answer::Refused { refusal })
}

fn try_answer(question: &Question) -> Result<Answer, Refusal> {
    let sets = match question.what {
        What::Probe { .. } | What::Set { .. } => true,
        What::Get { .. } => false,
    };
    if sets && !nix::unistd::geteuid().is_root() {
        return Err(Refusal::NotRoot);
    }
    if let Some(path) = &question.library {
        trusted(path)?;
    }
    let unusable = |error: NvmlError| Refusal::Library {
        library: question
            .library
            .as_ref()
            .map_or_else(|| LINKER_NAME.to_owned(), |path| path.display().to_string()),
        reason: error.to_string(),
    };
    let library = Library::open(question.library.as_deref()).map_err(unusable)?;
    let driver_version = library.nvml().sys_driver_version().map_err(unusable)?;
    let functions = library
        .memory_limits()
        .map_err(|function| Refusal::NoFunction {
            driver_version: driver_version.clone(),
            function: function.to_owned(),
        })?;
    match &question.what {
        What::Probe { cards } => {
            for uuid in cards {
                card(&library, uuid)?;
            }
            Ok(Answer::Offered { driver_version })
        }
        What::Set { cgroup, cards } => {
            let path = c_path(cgroup)?;
            for requested in cards {
                set(&library, &functions, cgroup, &path, requested)?;
            }
            Ok(Answer::Set)
        }
        What::Get { cgroup, cards } => {
            let path = c_path(cgroup)?;
            let found = cards.iter().map(|uuid| {
                let card = card(&library, uuid)?;
                get(&functions, &card, uuid, cgroup, &path)
            });
            Ok(Answer::Found {
                cards: found.collect::<Result<_, _>>()?,
            })
        }
    }
}

/// It runs with our rights: nobody else may be able to change it, or which file the path names.
fn trusted(path: &Path) -> Result<(), Refusal> {
    let untrusted = || Refusal::Untrusted {
        path: path.to_owned(),
    };
    let metadata = std::fs::metadata(path).map_err(|error| Refusal::Library {
        library: path.display().to_string(),
        reason: error.to_string(),
    })?;
    let fine = path.is_absolute()
        && metadata.is_file()
        && metadata.uid() == 0
        && metadata.mode() & 0o022 == 0;
    fine.then_some(()).ok_or_else(untrusted)
}

fn c_path(cgroup: &Path) -> Result<CString, Refusal> {
    CString::new(cgroup.as_os_str().as_bytes())
        .ok()
        .filter(|_| cgroup.is_absolute())
        .ok_or_else(|| Refusal::Cgroup {
            path: cgroup.to_owned(),
        })
}

fn card<'library>(library: &'library Library, uuid: &str) -> Result<Device<'library>, Refusal> {
    let card = library
        .nvml()
        .device_by_uuid(uuid)
        .map_err(|error| Refusal::NoCard {
            uuid: uuid.to_owned(),
            reason: error.to_string(),
        })?;
    match card.mig_mode() {
        Ok(mode) if mode.current == MIG_ENABLED => Err(Refusal::Mig {
            uuid: uuid.to_owned(),
        }),
        // Cards that MIG cannot divide do not know the question.
        Ok(_) | Err(NvmlError::NotSupported) => Ok(card),
        Err(error) => Err(Refusal::NoCard {
            uuid: uuid.to_owned(),
            reason: error.to_string(),
        }),
    }
}

fn set(
    library: &Library,
    functions: &MemoryLimitFunctions<'_>,
    cgroup: &Path,
    path: &CStr,
    requested: &CardLimit,
) -> Result<(), Refusal> {
    let card = card(library, &requested.uuid)?;
    functions
        .set(&card, path, requested.soft_bytes, requested.hard_bytes)
        .map_err(|error| Refusal::Set {
            uuid: requested.uuid.clone(),
            cgroup: cgroup.to_owned(),
            reason: error.to_string(),
        })?;
    let found = get(functions, &card, &requested.uuid, cgroup, path)?.limit;
    if found == *requested {
        Ok(())
    } else {
        Err(Refusal::ReadBack {
            cgroup: cgroup.to_owned(),
            requested: requested.clone(),
            found,
        })
    }
}

fn get(
    functions: &MemoryLimitFunctions<'_>,
    card: &Device<'_>,
    uuid: &str,
    cgroup: &Path,
    path: &CStr,
) -> Result<CardUse, Refusal> {
    let limit = |soft_bytes, hard_bytes| CardLimit {
        uuid: uuid.to_owned(),
        soft_bytes,
        hard_bytes,
    };
    match functions.get(card, path) {
        Ok(found) => Ok(CardUse {
            limit: limit(found.soft_bytes, found.hard_bytes),
            used_bytes: found.used_bytes,
        }),
        // The driver's words for a cgroup on which nothing is set, by what keeps its account: dmem, misc.
        Err(NvmlError::NotFound | NvmlError::NotSupported) => Ok(CardUse {
            limit: limit(0, UNLIMITED_BYTES),
            used_bytes: 0,
        }),
        Err(error) => Err(Refusal::Get {
            uuid: uuid.to_owned(),
            cgroup: cgroup.to_owned(),
            reason: error.to_string(),
        }),
    }
}
