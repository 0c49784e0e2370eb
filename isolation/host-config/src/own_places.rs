//! Places of cgpu's own on this host, and what the administrator calls data.

use std::path::{Path, PathBuf};

use crate::config::{
    BackendConfig, BrokerConfig, CdiFolders, Config, DEFAULT_PATH, DriverConfig, PATH_VARIABLE,
};
use crate::host_files::HostFiles;
use crate::programs::{folder_of, folder_of_versions};
use crate::walk::walk;

/// What outlives a reboot: the journal of `cgpu install` with the originals of engines' files, which root's next `cgpu uninstall` puts
/// back, and the history of events.
pub const JOURNAL_DIR: &str = "/var/lib/cgpu";

/// What `metrics.listen` begins with where it is a socket.
const UNIX: &str = "unix:";

/// What a container must not reach, whatever it is called.
#[derive(Debug, Clone, Default)]
pub struct OwnPlaces {
    /// `state_dir`
    pub state_dir: PathBuf,
    /// Without links: the folders of this program and of those that it starts, files that the configuration names, and
    /// [`JOURNAL_DIR`].
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
        programs.push(PathBuf::from(JOURNAL_DIR));
        let file = std::env::var_os(PATH_VARIABLE);
        programs.push(file.map_or_else(|| DEFAULT_PATH.into(), PathBuf::from));
        programs.extend(named(config));
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

/// All files and folders that a configuration names, but for those that are judged by another name. By its fields, so that no new one is
/// forgotten.
fn named(config: &Config) -> Vec<PathBuf> {
    let Config {
        runc,
        broker,
        container_tools,
        driver,
        backend,
        metrics,
        // A place of its own, and data.
        state_dir: _,
        isolation: _,
        // They name no file.
        placement: _,
        request: _,
        compute: _,
        kubernetes: _,
        source: _,
    } = config;
    let BrokerConfig {
        path: broker,
        // Control groups are judged by their kind.
        cgroup_root: _,
        start_timeout_ms: _,
        stop_timeout_ms: _,
        hung_call_ms: _,
    } = broker;
    let DriverConfig {
        root,
        cdi,
        releases,
        kind: _,
        libraries: _,
    } = driver;
    let BackendConfig {
        limits_program,
        nvml_library,
        cgroup_root: _,
        kind: _,
        min_strength: _,
    } = backend;
    // What is wrong there the agent reports.
    let listen = metrics.read().ok().map(|metrics| metrics.listen);
    let socket = listen.and_then(|listen| Some(PathBuf::from(listen.strip_prefix(UNIX)?)));
    let folders = match cdi {
        CdiFolders::Folders(folders) => folders.as_slice(),
        CdiFolders::Auto | CdiFolders::Off => &[],
    };
    let one_each = [
        runc.clone(),
        broker.clone(),
        limits_program.clone(),
        nvml_library.clone(),
        container_tools.file(),
        Some(root.clone()).filter(|root| root != Path::new("/")),
        Some(releases.clone()),
        socket,
    ];
    one_each
        .into_iter()
        .flatten()
        .chain(folders.iter().cloned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of them decides over the host, or over what the agent and the broker believe.
    #[test]
    fn what_the_configuration_names_is_no_container_s_to_write() {
        let text = r#"
            runc = "/a/runc"
            container_tools = "/a/tools"
            [broker]
            path = "/a/broker"
            [backend]
            limits_program = "/a/limits"
            nvml_library = "/a/nvml"
            [driver]
            root = "/a/root"
            cdi = ["/a/cdi", "/a/cdi-too"]
            releases = "/a/releases"
            [metrics]
            listen = "unix:/a/metrics.sock"
            [isolation]
            data_folders = ["/a/data"]
        "#;
        let config = Config::from_text(Path::new("cgpu.toml"), text).unwrap();
        let own = OwnPlaces::of(&config, None);
        let mut found: Vec<&Path> = own.programs.iter().map(PathBuf::as_path).collect();
        found.retain(|path| path.starts_with("/a"));
        let expected = [
            "/a/broker",
            "/a/cdi",
            "/a/cdi-too",
            "/a/limits",
            "/a/metrics.sock",
            "/a/nvml",
            "/a/releases",
            "/a/root",
            "/a/runc",
            "/a/tools",
        ];
        assert_eq!(found, expected.map(Path::new));
    }

    #[test]
    fn the_journal_of_an_install_is_no_container_s_to_write_whatever_is_data() {
        let text = "[isolation]\ndata_folders = [\"/var/lib\"]";
        let config = Config::from_text(Path::new("cgpu.toml"), text).unwrap();
        let own = OwnPlaces::of(&config, None);
        assert!(own.programs.contains(&PathBuf::from("/var/lib/cgpu")));
    }
}
