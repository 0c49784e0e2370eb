//! The driver's files as a CDI spec names them.
//!
//! Of a spec's edits are taken: mounts, read-only, and the environment. Not taken are
//!
//! - *device nodes*: those of the granted cards are ours; no others are given, whatever the spec says;
//! - *hooks*: none is run. What `create-symlinks` and `update-ldcache` do, mounts under every name and our own edit of the
//!   linker cache do; the others change what is ours to decide;
//! - *sockets of NVIDIA's daemons*, which steer whole cards.
//!
//! A spec that gives a card that was not granted, or a mount that leads out of a slice, is refused.

mod document;

use std::path::{Path, PathBuf};

use host_config::walk::cleaned;
use spec::capabilities::Capabilities;
use spec::escape_checks::is_card_s;
use sys::failed;

pub(crate) use self::document::KIND;
use self::document::{Edits, Spec};
use crate::catalogue;
use crate::discover::FoundLibrary;
use crate::elf::{self, Machine};
use crate::error::{Error, cut};
use crate::tree::{LastLink, Tree};

/// One card that was granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Needed {
    pub(crate) uuid: String,
    pub(crate) index: Option<u32>,
    pub(crate) minor: u32,
}

/// What a container gets of a spec.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The specs that were used.
    pub(crate) specs: Vec<PathBuf>,
    /// Libraries that the linker finds by name, wherever the spec puts them.
    pub(crate) libraries: Vec<FoundLibrary>,
    /// Other files and folders: on the host, in the container, and whose they are.
    pub(crate) files: Vec<File>,
    /// `NAME=value`.
    pub(crate) environment: Vec<String>,
    /// What the specs give and the container does not get.
    pub(crate) left_out: Vec<String>,
}

/// A file, or a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) source: PathBuf,
    pub(crate) target: PathBuf,
    pub(crate) spec: PathBuf,
}

/// What becomes of other cards' nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    Refused,
    LeftOut,
}

/// The specs of NVIDIA's cards on a host: folder by folder, the last folder first, since it counts most.
#[derive(Debug)]
pub(crate) struct Specs(Vec<Vec<Spec>>);

impl Specs {
    /// # Errors
    /// A folder that cannot be listed; a spec of NVIDIA's cards that is wrong.
    pub(crate) fn read(host: &Tree, folders: &[PathBuf]) -> Result<Self, Error> {
        let mut all = Vec::new();
        for folder in folders.iter().rev() {
            let listed = sys::absent_is_none(std::fs::read_dir(folder));
            let Some(listed) = listed.map_err(failed("list", folder))? else {
                continue;
            };
            let mut paths: Vec<PathBuf> = listed
                .map(|entry| entry.map(|entry| entry.path()))
                .collect::<Result<_, _>>()
                .map_err(failed("list", folder))?;
            paths.retain(|path| {
                let extension = path.extension().and_then(|extension| extension.to_str());
                matches!(extension, Some("json" | "yaml" | "yml"))
            });
            paths.sort();
            let mut specs = Vec::new();
            for path in paths {
                specs.extend(Spec::read(host, &path)?);
            }
            // A spec may be a link: whoever can write the folder chooses where it leads.
            if let (false, Some(found)) = (specs.is_empty(), host.find(folder, LastLink::Followed)?)
            {
                found.trusted()?;
            }
            all.push(specs);
        }
        Ok(Self(all))
    }

    /// Where the specs are.
    pub(crate) fn paths(&self) -> Vec<&Path> {
        self.0
            .iter()
            .flatten()
            .map(|spec| spec.path.as_path())
            .collect()
    }

    /// What the specs give with these cards; `Err(card)` in the inner result: no spec has it.
    ///
    /// # Errors
    /// Two specs that contend for a card; a card that was not granted; a file that is absent, not the running driver's, or
    /// that others than root could change.
    pub(crate) fn take(
        &self,
        host: &Tree,
        cards: &[Needed],
        version: &str,
        capabilities: &Capabilities,
        others: Others,
    ) -> Result<Result<Taken, String>, Error> {
        let mut chosen: Vec<(&Spec, Vec<(String, &Edits)>)> = Vec::new();
        for card in cards {
            let Some((spec, name, edits)) = self.device(card)? else {
                return Ok(Err(card.uuid.clone()));
            };
            match chosen.iter_mut().find(|(one, _)| std::ptr::eq(*one, spec)) {
                Some((_, devices)) => devices.push((name, edits)),
                None => chosen.push((spec, vec![(name, edits)])),
            }
        }
        let mut taking = Taking {
            host,
            cards,
            version,
            capabilities,
            others,
            taken: Taken::default(),
        };
        for (spec, devices) in chosen {
            taking.spec(spec, &devices)?;
        }
        Ok(Ok(taking.taken))
    }

    /// The device that is a card: by UUID, by index, else the only one with nothing but the card's node.
    fn device(&self, card: &Needed) -> Result<Option<(&Spec, String, &Edits)>, Error> {
        let index = card.index.map(|index| index.to_string());
        for specs in &self.0 {
            let found = |is_it: &dyn Fn(&str, &Edits) -> bool| -> Result<_, Error> {
                let mut first: Option<(&Spec, String, &Edits)> = None;
                for spec in specs {
                    for device in &spec.document.devices {
                        if !is_it(&device.name, &device.container_edits) {
                            continue;
                        }
                        match &first {
                            None => {
                                first = Some((spec, device.name.clone(), &device.container_edits))
                            }
                            Some((one, name, _)) if !std::ptr::eq(*one, spec) => {
                                return Err(Error::CdiConflict {
                                    one: one.path.clone(),
                                    other: spec.path.clone(),
                                    device: name.clone(),
                                });
                            }
                            Some(_) => {}
                        }
                    }
                }
                Ok(first)
            };
            let by_uuid = found(&|name, _| name == card.uuid)?;
            let by_index = || {
                found(&|name, edits| {
                    Some(name) == index.as_deref() && minors(edits).contains(&card.minor)
                })
            };
            let by_node = || found(&|_, edits| minors(edits) == [card.minor]);
            let device = match by_uuid {
                Some(device) => Some(device),
                None => match by_index()? {
                    Some(device) => Some(device),
                    None => by_node()?,
                },
            };
            if device.is_some() {
                return Ok(device);
            }
        }
        Ok(None)
    }
}

/// The cards whose nodes edits have.
fn minors(edits: &Edits) -> Vec<u32> {
    let mut minors: Vec<u32> = edits
        .device_nodes
        .iter()
        .flat_map(|node| [&node.path, &node.host_path])
        .filter_map(|path| minor(path))
        .collect();
    minors.sort_unstable();
    minors.dedup();
    minors
}

fn minor(path: &str) -> Option<u32> {
    let path = cleaned(Path::new(path));
    let name = path.strip_prefix("/dev").ok()?.to_str()?;
    name.strip_prefix("nvidia")?.parse().ok()
}

struct Taking<'a> {
    host: &'a Tree,
    cards: &'a [Needed],
    version: &'a str,
    capabilities: &'a Capabilities,
    others: Others,
    taken: Taken,
}

impl Taking<'_> {
    fn spec(&mut self, spec: &Spec, devices: &[(String, &Edits)]) -> Result<(), Error> {
        let all = (
            "the edits of all devices".to_owned(),
            &spec.document.container_edits,
        );
        let edits: Vec<(String, &Edits)> = std::iter::once(all)
            .chain(
                devices
                    .iter()
                    .map(|(name, edits)| (format!("device {name:?}"), *edits)),
            )
            .collect();
        let searched = searched_folders(edits.iter().map(|(_, edits)| *edits));
        for (name, edits) in &edits {
            self.nodes(spec, name, edits)?;
            self.environment(spec, edits)?;
            for mount in &edits.mounts {
                self.mount(spec, mount, &searched)?;
            }
        }
        for (_, edits) in &edits {
            self.links(spec, edits);
        }
        self.taken.specs.push(spec.path.clone());
        Ok(())
    }

    fn nodes(&mut self, spec: &Spec, device: &str, edits: &Edits) -> Result<(), Error> {
        for node in &edits.device_nodes {
            for path in [&node.path, &node.host_path] {
                let Some(minor) = minor(path) else { continue };
                if self.cards.iter().any(|card| card.minor == minor) {
                    continue;
                }
                if self.others == Others::Refused {
                    let granted: Vec<String> = self
                        .cards
                        .iter()
                        .map(|card| format!("/dev/nvidia{}", card.minor))
                        .collect();
                    return Err(Error::CdiOtherCard {
                        path: spec.path.clone(),
                        device: device.to_owned(),
                        node: cut(path),
                        granted: granted.join(", "),
                    });
                }
            }
            let name = cleaned(Path::new(&node.path));
            let is_ours = name
                .strip_prefix("/dev")
                .ok()
                .and_then(|name| name.to_str())
                .is_some_and(is_card_s);
            if !is_ours {
                self.left_out(name.display().to_string());
            }
        }
        Ok(())
    }

    fn environment(&mut self, spec: &Spec, edits: &Edits) -> Result<(), Error> {
        for variable in &edits.env {
            match variable.split_once('=') {
                Some((name, _)) if !name.is_empty() => {
                    // What hides the cards from other hooks is ours to say.
                    if name != "NVIDIA_VISIBLE_DEVICES"
                        && !self.taken.environment.contains(variable)
                    {
                        self.taken.environment.push(variable.clone());
                    }
                }
                _ => return Err(spec.wrong("containerEdits.env", variable, "NAME=value")),
            }
        }
        Ok(())
    }

    fn mount(
        &mut self,
        spec: &Spec,
        mount: &document::CdiMount,
        searched: &[PathBuf],
    ) -> Result<(), Error> {
        let (host_path, target) = (
            Path::new(&mount.host_path),
            Path::new(&mount.container_path),
        );
        if !matches!(mount.kind.as_str(), "" | "bind" | "none") {
            return Err(spec.wrong("mounts.type", &mount.kind, "bind, or none at all"));
        }
        for (key, value) in [
            ("mounts.hostPath", &mount.host_path),
            ("mounts.containerPath", &mount.container_path),
        ] {
            if !Path::new(value).is_absolute() {
                return Err(spec.wrong(key, value, "an absolute path"));
            }
        }
        let target = cleaned(target);
        if catalogue::is_daemon_s(&cleaned(host_path)) || catalogue::is_daemon_s(&target) {
            self.left_out(mount.host_path.clone());
            return Ok(());
        }
        if catalogue::purpose_of(&target).is_some_and(|of| !self.capabilities.has_any(of)) {
            return Ok(());
        }
        self.version_of(spec, &cleaned(host_path))?;
        let Some(found) = self.host.find(host_path, LastLink::Followed)? else {
            return Err(spec.wrong(
                "mounts.hostPath",
                &mount.host_path,
                "a file that is there: write the spec anew (`nvidia-ctk cdi generate`)",
            ));
        };
        let source = found.trusted()?.to_owned();
        if !found.is_file() && !found.metadata().is_dir() {
            return Err(Error::Kind {
                path: source,
                expected: "a plain file or a folder",
            });
        }
        let name = target
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let is_searched = target
            .parent()
            .is_some_and(|folder| searched.iter().any(|one| one == folder));
        if found.is_file() && is_library(name) && is_searched {
            // A script of the link editor may have such a name; it has no other one then.
            let reply = elf::read(&found).ok();
            let machine = reply
                .as_ref()
                .map_or(Machine::Native, |reply| reply.machine);
            if machine == Machine::X86
                && !self
                    .capabilities
                    .has(spec::capabilities::Capability::Compat32)
            {
                return Ok(());
            }
            let links = catalogue::library_of(name).map_or(&[][..], |(library, _)| library.links);
            let mut names = vec![name.to_owned()];
            names.extend(reply.and_then(|reply| reply.soname));
            names.extend(links.iter().map(|link| (*link).to_owned()));
            names.dedup();
            self.taken.libraries.push(FoundLibrary {
                source,
                names,
                machine,
            });
        } else {
            self.taken.files.push(File {
                source,
                target,
                spec: spec.path.clone(),
            });
        }
        Ok(())
    }

    /// A library of the driver must be the running driver's.
    fn version_of(&self, spec: &Spec, path: &Path) -> Result<(), Error> {
        let found = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(catalogue::library_of)
            .map(|(_, end)| end)
            .filter(|end| catalogue::is_driver_version(end) && *end != self.version);
        // `libnvidia-ml.so.1` has an interface's version, and no dot.
        match found {
            Some(found) => Err(Error::Version {
                path: spec.path.clone(),
                found: found.to_owned(),
                running: self.version.to_owned(),
                remedy: "write the CDI spec anew (`nvidia-ctk cdi generate`), or set `driver.libraries = \"discover\"` in cgpu.toml",
            }),
            None => Ok(()),
        }
    }

    /// What a `create-symlinks` hook would make: a link to a library becomes one more name of it.
    fn links(&mut self, spec: &Spec, edits: &Edits) {
        for hook in &edits.hooks {
            if !hook.args.iter().any(|word| word == "create-symlinks") {
                continue;
            }
            for link in values_of(&hook.args, "--link") {
                let Some((to, at)) = link.split_once("::") else {
                    continue;
                };
                let (to, at) = (Path::new(to), cleaned(Path::new(at)));
                let (Some(file), Some(name)) = (
                    to.file_name(),
                    at.file_name().and_then(|name| name.to_str()),
                ) else {
                    continue;
                };
                let library = self
                    .taken
                    .libraries
                    .iter_mut()
                    .find(|library| library.names.iter().any(|one| file == one.as_str()));
                if let Some(library) = library {
                    if !library.names.iter().any(|one| one == name) {
                        library.names.push(name.to_owned());
                    }
                    continue;
                }
                let target = at
                    .parent()
                    .map_or_else(|| to.to_owned(), |folder| cleaned(&folder.join(to)));
                let linked = self.taken.files.iter().find(|one| one.target == target);
                if let Some(source) = linked.map(|one| one.source.clone()) {
                    self.taken.files.push(File {
                        source,
                        target: at,
                        spec: spec.path.clone(),
                    });
                }
            }
        }
    }

    fn left_out(&mut self, what: String) {
        if !self.taken.left_out.contains(&what) {
            self.taken.left_out.push(what);
        }
    }
}

/// Folders that an `update-ldcache` hook would have the linker search; without such a hook, those of the catalogue's
/// libraries.
fn searched_folders<'a>(edits: impl Iterator<Item = &'a Edits>) -> Vec<PathBuf> {
    let edits: Vec<&Edits> = edits.collect();
    let mut folders: Vec<PathBuf> = edits
        .iter()
        .flat_map(|edits| &edits.hooks)
        .filter(|hook| hook.args.iter().any(|word| word == "update-ldcache"))
        .flat_map(|hook| values_of(&hook.args, "--folder"))
        .map(|folder| cleaned(Path::new(folder)))
        .collect();
    if folders.is_empty() {
        folders = edits
            .iter()
            .flat_map(|edits| &edits.mounts)
            .map(|mount| cleaned(Path::new(&mount.container_path)))
            .filter(|path| {
                let name = path.file_name().and_then(|name| name.to_str());
                name.and_then(catalogue::library_of).is_some()
            })
            .filter_map(|path| path.parent().map(Path::to_owned))
            .collect();
    }
    folders
}

/// The values of an option, in both of its spellings.
fn values_of<'a>(args: &'a [String], option: &'static str) -> impl Iterator<Item = &'a str> {
    args.iter().enumerate().filter_map(move |(at, word)| {
        if word == option {
            return args.get(at + 1).map(String::as_str);
        }
        word.strip_prefix(option)?.strip_prefix('=')
    })
}

fn is_library(name: &str) -> bool {
    name.starts_with("lib") && (name.ends_with(".so") || name.contains(".so."))
}
