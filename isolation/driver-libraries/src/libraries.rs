//! The driver's user libraries in a container of real cards: which, from where, and to which place.
//!
//! ```text
//!   NVIDIA_DRIVER_CAPABILITIES ──> what is wanted ─┐
//!   CDI spec of the host, else own discovery ──────┼──> mounts of config.json (runc does them), environment,
//!   the container's root: its linker's folder ─────┘     masked paths; names added to the image's linker cache
//! ```
//!
//! Sources are files of the host that only root could change, found without leaving the driver's root. Destinations are
//! texts in `config.json`: runc resolves them inside the container. Nothing of the image is mounted or executed; CUDA's
//! compatibility libraries of an image are therefore not put in the driver's place. Simulated cards get nothing.
//!
//! A library is mounted under its own name, the name that programs ask for (its soname), and the links that the driver's
//! installer makes: the same file, so that a program that asks twice loads it once.

use std::path::{Path, PathBuf};

use cards::{Card, CardGrant, DriverSpec, Grant};
use host_config::config::{Config, DriverConfig, LibrarySource, OtherCards};
use host_config::host_files::ThisHost;
use host_config::own_places::OwnPlaces;
use serde_json::Value;
use spec::capabilities::Capabilities;
use spec::edit::{Additions, Mount};
use spec::escape_checks;

use crate::cdi::{self, Needed, Others, Specs};
use crate::discover::{self, Discovered, FoundLibrary};
use crate::elf::Machine;
use crate::error::{Error, cut};
use crate::image::Image;
use crate::linker_cache::{self, Entry};
use crate::tree::Tree;

/// Where CDI specs are, if the configuration does not say; the last counts most.
const CDI_FOLDERS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// What the edits of one container need.
#[derive(Debug, Default)]
pub struct DriverLibraries {
    /// The files.
    pub mounts: Vec<Mount>,
    /// What they need beside that.
    pub additions: Additions,
    /// Capabilities that are asked for by name, and whose calls a broker refuses.
    pub refused: Vec<&'static str>,
    linker: Vec<Entry>,
}

/// Whose container it is, and on what.
#[derive(Debug)]
pub struct Context<'a> {
    /// The host's.
    pub config: &'a Config,
    /// What it was granted.
    pub grant: &'a Grant,
    /// Of this host, granted or not.
    pub cards: &'a [Card],
    /// As the engine wrote it.
    pub spec: &'a Value,
    /// Where its root is.
    pub bundle: &'a Path,
}

/// What this container gets. Nothing is changed.
///
/// # Errors
/// An unknown capability; libraries that are absent, of another driver, or not root's alone; a CDI spec that is wrong or
/// gives more than was granted.
pub fn prepare(context: &Context<'_>) -> Result<DriverLibraries, Error> {
    match context.grant.driver {
        DriverSpec::Sim { .. } => return Ok(DriverLibraries::default()),
        DriverSpec::Kernel => {}
    }
    let capabilities = Capabilities::of_container(context.spec)?;
    let others = match context.config.isolation.allow.other_cards {
        OtherCards::Refuse => Others::Refused,
        OtherCards::LeaveOut => Others::LeftOut,
    };
    let needed = needed(&context.grant.cards, context.cards);
    let found = find(
        &context.config.driver,
        &needed,
        &context.grant.driver_version,
        &capabilities,
        others,
    )?;
    refuse_what_leads_out(context, &found)?;
    let image = Image::of(context.spec, context.bundle);
    let mut driver_libraries = place(&found, &image);
    driver_libraries.refused = capabilities.refused(&context.grant.isolation.capabilities);
    driver_libraries.additions = Additions {
        environment: found.environment,
        masked_paths: other_cards_files(&context.grant.cards, context.cards),
    };
    Ok(driver_libraries)
}

impl DriverLibraries {
    /// Makes the libraries known to those who read the image's linker cache. Before runc sees the container.
    pub fn tell_linker(&self, spec: &Value, bundle: &Path) {
        if !self.linker.is_empty() {
            Image::of(spec, bundle).add_to_linker_cache(&self.linker);
        }
    }
}

/// What `cgpu doctor` says of the host's libraries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// `discovery below /`, or the CDI specs; `none` where the configuration says so.
    pub source: String,
    /// The libraries' own names, in order.
    pub libraries: Vec<String>,
    /// What CDI specs give and containers do not get.
    pub left_out: Vec<String>,
}

/// Looks for everything that a container with all of these cards could get.
///
/// # Errors
/// What a container of these cards would be refused for.
pub fn survey(config: &Config, version: &str, cards: &[Card]) -> Result<Survey, Error> {
    if config.driver.libraries == LibrarySource::None {
        return Ok(Survey {
            source: "none (driver.libraries = none)".to_owned(),
            libraries: Vec::new(),
            left_out: Vec::new(),
        });
    }
    let needed: Vec<Needed> = cards
        .iter()
        .map(|card| Needed {
            uuid: card.uuid.to_string(),
            index: Some(card.index),
            minor: card.minor,
        })
        .collect();
    let found = find(
        &config.driver,
        &needed,
        version,
        &Capabilities::all(),
        Others::Refused,
    )?;
    let mut libraries: Vec<String> = found
        .libraries
        .iter()
        .filter_map(|library| library.names.first().cloned())
        .collect();
    libraries.sort_unstable();
    libraries.dedup();
    Ok(Survey {
        source: found.source,
        libraries,
        left_out: found.left_out,
    })
}

/// From either source.
#[derive(Debug, Default)]
struct FoundFiles {
    source: String,
    libraries: Vec<FoundLibrary>,
    files: Vec<cdi::File>,
    environment: Vec<String>,
    left_out: Vec<String>,
}

fn find(
    config: &DriverConfig,
    cards: &[Needed],
    version: &str,
    capabilities: &Capabilities,
    others: Others,
) -> Result<FoundFiles, Error> {
    let by_cdi = match config.libraries {
        LibrarySource::None => return Ok(FoundFiles::default()),
        LibrarySource::Discover => None,
        LibrarySource::Auto | LibrarySource::Cdi => config.cdi.folders(&CDI_FOLDERS),
    };
    if let Some(folders) = by_cdi {
        let host = Tree::open(Path::new("/"))?;
        let specs = Specs::read(&host, &folders)?;
        match specs.take(&host, cards, version, capabilities, others)? {
            Ok(taken) => return Ok(taken.into()),
            Err(card) if config.libraries == LibrarySource::Cdi => {
                let searched = folders.iter().map(|folder| folder.display().to_string());
                return Err(Error::NoCdi {
                    searched: searched.collect::<Vec<_>>().join(", "),
                    card,
                });
            }
            Err(card) => {
                for path in specs.paths() {
                    tracing::warn!(path = %path.display(), %card, kind = cdi::KIND, "the CDI spec lacks a granted card; the driver's libraries are looked for without it");
                }
            }
        }
    }
    let tree = Tree::open(&config.root)?;
    let Discovered { libraries, files } = discover::discover(&tree, version, capabilities)?;
    Ok(FoundFiles {
        source: format!("discovery below {}", config.root.display()),
        libraries,
        files: files
            .into_iter()
            .map(|(source, target)| cdi::File {
                source,
                target,
                spec: PathBuf::new(),
            })
            .collect(),
        ..FoundFiles::default()
    })
}

impl From<cdi::Taken> for FoundFiles {
    fn from(taken: cdi::Taken) -> Self {
        let specs = taken.specs.iter().map(|path| path.display().to_string());
        Self {
            source: format!("CDI spec {}", specs.collect::<Vec<_>>().join(", ")),
            libraries: taken.libraries,
            files: taken.files,
            environment: taken.environment,
            left_out: taken.left_out,
        }
    }
}

fn needed(granted: &[CardGrant], cards: &[Card]) -> Vec<Needed> {
    granted
        .iter()
        .map(|grant| Needed {
            uuid: grant.uuid.to_string(),
            index: cards
                .iter()
                .find(|card| card.uuid == grant.uuid)
                .map(|card| card.index),
            minor: grant.minor,
        })
        .collect()
}

/// A CDI spec is held to the rules of what an engine gives, without the configuration's exceptions: nobody has asked for
/// these files by name.
fn refuse_what_leads_out(context: &Context<'_>, found: &FoundFiles) -> Result<(), Error> {
    let is_held = match context.grant.backend {
        cards::Backend::Broker | cards::Backend::DriverLimit => true,
        cards::Backend::Share => false,
    };
    let own = OwnPlaces::of(context.config, Some(context.bundle));
    for file in found.files.iter().filter(|_| is_held) {
        let weakness =
            escape_checks::of_file(context.spec, (&file.source, &file.target), &own, &ThisHost)?;
        if let Some(weakness) = weakness {
            return Err(Error::CdiExposes {
                path: file.spec.clone(),
                value: cut(&file.source.display().to_string()),
                weakness: weakness.name(),
            });
        }
    }
    Ok(())
}

fn place(found: &FoundFiles, image: &Image) -> DriverLibraries {
    let mut driver_libraries = DriverLibraries::default();
    let native = image.library_folder();
    let x86 = image.library_folder_32();
    for library in &found.libraries {
        let (folder, flags) = match (library.machine, &x86) {
            (Machine::Native, _) => (&native, linker_cache::NATIVE),
            (Machine::X86, Some(folder)) => (folder, linker_cache::X86),
            (Machine::X86, None) | (Machine::Other, _) => continue,
        };
        for name in &library.names {
            let target = folder.join(name);
            driver_libraries.linker.push(Entry {
                name: name.clone(),
                path: target.display().to_string(),
                flags,
            });
            driver_libraries.add(&library.source, target);
        }
    }
    for file in &found.files {
        driver_libraries.add(&file.source, file.target.clone());
    }
    driver_libraries
}

impl DriverLibraries {
    /// Programs are among them, so that `noexec` is not; the first of one destination counts.
    fn add(&mut self, source: &Path, target: PathBuf) {
        const OPTIONS: [&str; 4] = ["bind", "ro", "nosuid", "nodev"];
        if self.mounts.iter().all(|mount| mount.target != target) {
            self.mounts.push(Mount {
                source: source.to_owned(),
                target,
                options: OPTIONS.map(str::to_owned).to_vec(),
            });
        }
    }
}

/// What procfs shows of cards that were not granted: their model, UUID, serial number and state.
fn other_cards_files(granted: &[CardGrant], cards: &[Card]) -> Vec<String> {
    cards
        .iter()
        .filter(|card| granted.iter().all(|grant| grant.uuid != card.uuid))
        .filter_map(|card| {
            Some(format!(
                "/proc/driver/nvidia/gpus/{}",
                procfs_name(&card.pci)?
            ))
        })
        .collect()
}

/// `00000000:3B:00.0`, as NVML writes an address, is `0000:3b:00.0` in procfs.
pub(crate) fn procfs_name(pci: &str) -> Option<String> {
    let (domain, rest) = pci.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    let plain = |byte: u8| byte.is_ascii_hexdigit() || b":.".contains(&byte);
    (!rest.is_empty() && rest.bytes().all(plain))
        .then(|| format!("{domain:04x}:{}", rest.to_ascii_lowercase()))
}
