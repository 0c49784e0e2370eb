//! Places of cgpu's own on this host, and what the administrator calls data.

use std::path::{Path, PathBuf};

use crate::config::{CdiFolders, Config, PATH_VARIABLE};
use crate::host_files::HostFiles;
use crate::programs::{folder_of, folder_of_versions};
use crate::walk::walk;

/// What a container must not reach, whatever it is called.
#[derive(Debug, Clone, Default)]
pub struct OwnPlaces {
    /// `state_dir`
    pub state_dir: PathBuf,
    /// Without links: the folders of this program and of those that it starts, and files that the configuration names.
    pub programs: Vec<PathBuf>,
    /// `[isolation] data_folders`, without links.
    pub data_folders: Vec<PathBuf>,
    /// Of the container that is judged.
    pub bundle: Option<PathBuf>,
}

impl OwnPlaces {
    /// Those of this program and configuration.
    #[must_use]
    pub fn of(config: &Config, bundle: Option<&Path>) -> Self {
        let mut programs = Vec::new();
        if let Ok(me) = std::env::current_exe() {
            programs.extend(me.parent().map(Path::to_owned));
            programs.push(folder_of(&me));
            programs.extend(folder_of_versions(&me));
        }
        let named = [
            config.runc.clone(),
            config.broker.path.clone(),
            config.backend.limits_program.clone(),
            config.backend.nvml_library.clone(),
            config.container_tools.file(),
            std::env::var_os(PATH_VARIABLE).map(PathBuf::from),
            Some(config.driver.root.clone()).filter(|root| root != Path::new("/")),
        ];
        programs.extend(named.into_iter().flatten());
        if let CdiFolders::Folders(folders) = &config.driver.cdi {
            programs.extend(folders.iter().cloned());
        }
        // The way to a file is as good as the file.
        let mut all: Vec<PathBuf> = programs
            .iter()
            .filter_map(|path| std::path::absolute(path).ok())
            .flat_map(|path| [walk(&path).end, path])
            .collect();
        all.sort_unstable();
        all.dedup();
        Self {
            programs: all,
            data_folders: config
                .isolation
                .data_folders
                .iter()
                .map(|path| walk(path).end)
                .collect(),
            bundle: bundle.and_then(|bundle| std::path::absolute(bundle).ok()),
            state_dir: config.state_dir.clone(),
        }
    }

    /// The state folder, as it is called and as it is.
    pub fn state_dirs(&self, host: &dyn HostFiles) -> impl Iterator<Item = PathBuf> {
        [self.state_dir.clone(), host.resolve(&self.state_dir)].into_iter()
    }
}
