//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::anyhow;
use cards::events::history;
use clap::Parser;
use host_config::config::{DEFAULT_PATH, MetricsConfig, PATH_VARIABLE};
use view::metrics::text::Dialect;

/// With these the agent serves no node, so what only a node's agent reads would be ignored. (`requires` alone does not refuse it: clap
/// takes a required option for met where one that excludes it is there.)
const CONTROLLERS: [&str; 2] = ["classic_templates", "evict_for_priority"];

/// Below the help.
const PATHS: &str = "\
Paths:
  /          GPUs and containers for people, as a page that loads itself again
  /metrics   Metrics for Prometheus, as OpenMetrics or in Prometheus' own text form
  /healthz   200 while the agent answers
  /readyz    200 while the state folder can be read, else 503 and the reason";

/// Serves the metrics of this host's GPUs and of the containers that share them.
///
/// One agent runs on a host. No container depends on it.
#[derive(Debug, Parser)]
#[command(name = "cgpu-agent", version, after_help = PATHS)]
pub struct Options {
    /// Where to listen: an address and port, or `unix:` and a path. Default: `metrics.listen` of cgpu.toml, 127.0.0.1:9402 without it.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = CONTROLLERS)]
    pub listen: Option<Listen>,
    /// Whose names the metrics have: `cgpu`'s own, `ack`, `dcgm`, `hami`. Default: `metrics.dialects` of cgpu.toml, cgpu and ack without it.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with_all = CONTROLLERS)]
    pub dialects: Option<Vec<Dialect>>,
    /// The folder to which events are copied: those in the state folder are gone after a reboot.
    #[arg(long, value_name = "DIR", default_value = history::DIR, conflicts_with_all = CONTROLLERS)]
    pub history_dir: PathBuf,
    /// The folder of the agent's lock. Only one agent runs for each.
    #[arg(long, value_name = "DIR", default_value = "/run/cgpu-agent", conflicts_with_all = CONTROLLERS)]
    pub runtime_dir: PathBuf,
    /// What concerns a cluster.
    #[command(flatten)]
    pub cluster: ClusterOptions,
}

/// The options of a cluster's node, and of the cluster's one controller.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Kubernetes")]
pub struct ClusterOptions {
    /// Serves the kubelet too, as the DRA driver gpu.cgpu.io: the node's GPUs are published, and claims of pods prepared.
    #[arg(long, group = "role")]
    pub kubernetes: bool,
    /// Serves no node, but the cluster: makes the templates that classic pods' claims are made from, removes those that nobody names, and counts for namespaces with cgpu.io/max-memory.
    #[arg(long, group = "role")]
    pub classic_templates: bool,
    /// Serves no node, but the cluster: evicts pods of lower priority for a pod that the scheduler cannot place for want of a GPU's memory, time or places.
    #[arg(long, group = "role")]
    pub evict_for_priority: bool,
    /// This node's name in the cluster. Default: $NODE_NAME.
    #[arg(long, value_name = "NAME", requires = "kubernetes", conflicts_with_all = CONTROLLERS)]
    pub node_name: Option<String>,
    /// The kubelet's folder, in which its plugins have their sockets.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/kubelet",
        requires = "kubernetes",
        conflicts_with_all = CONTROLLERS
    )]
    pub kubelet_dir: PathBuf,
    /// The folder of CDI files that the container engine reads.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/run/cdi",
        requires = "kubernetes",
        conflicts_with_all = CONTROLLERS
    )]
    pub cdi_dir: PathBuf,
    /// The uid of the agent's own pod. With it, a second agent serves claims at once during a rolling update, and all else when the first has ended.
    #[arg(long, value_name = "UID", requires = "kubernetes", conflicts_with_all = CONTROLLERS)]
    pub pod_uid: Option<String>,
    /// Serves the kubelet as a device plugin of this resource instead, a unit for each GiB: for clusters below Kubernetes 1.34.
    #[arg(
        long,
        value_name = "RESOURCE",
        requires = "kubernetes",
        conflicts_with_all = CONTROLLERS,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "aliyun.com/gpu-mem"
    )]
    pub device_plugin: Option<String>,
    /// A kubeconfig file. Default: the pod's service account, else $KUBECONFIG.
    #[arg(long, value_name = "FILE", requires = "role")]
    pub kubeconfig: Option<PathBuf>,
    /// The API server's address, where it is another one than these say.
    #[arg(long, value_name = "URL", requires = "role")]
    pub api_server: Option<String>,
}

/// What holds of options and configuration.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) listen: Listen,
    pub(crate) dialects: Vec<Dialect>,
}

impl Settings {
    /// An option comes before its key, which has the default where it is absent.
    ///
    /// # Errors
    /// A value of the configuration that is not allowed: the error names file, key, value and what is allowed.
    pub(crate) fn of(options: &Options, config: &MetricsConfig) -> anyhow::Result<Self> {
        let in_file = |why: &dyn std::fmt::Display| {
            let file =
                std::env::var_os(PATH_VARIABLE).map_or_else(|| DEFAULT_PATH.into(), PathBuf::from);
            anyhow!("configuration {}: {why}", file.display())
        };
        let wrong = |key: &str, value: &dyn std::fmt::Debug, allowed: &str| {
            in_file(&format!(
                "metrics.{key} = {value:?} is not allowed: {allowed}"
            ))
        };
        let config = config.read().map_err(|error| in_file(&error))?;
        let listen = match (&options.listen, config.listen.as_str()) {
            (Some(listen), _) => listen.clone(),
            (None, text) => text
                .parse()
                .map_err(|expected: String| wrong("listen", &text, &expected))?,
        };
        let dialects = match (&options.dialects, config.dialects.as_slice()) {
            (Some(dialects), _) => dialects.clone(),
            (None, []) => {
                let expected = "expected one or more of cgpu, ack, dcgm and hami";
                return Err(wrong("dialects", &[""; 0], expected));
            }
            (None, names) => names
                .iter()
                .map(|name| {
                    let dialect = name.parse();
                    dialect.map_err(|expected: String| wrong("dialects", &[name], &expected))
                })
                .collect::<Result<_, _>>()?,
        };
        Ok(Self { listen, dialects })
    }
}

/// Where the agent listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// On a TCP port.
    Tcp(SocketAddr),
    /// On a socket of this path, for root and its group.
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return if path.is_absolute() {
                Ok(Self::Unix(path))
            } else {
                Err("the path after unix: must begin with /".to_owned())
            };
        }
        text.parse().map(Self::Tcp).map_err(|_unlike| {
            "expected an address such as 127.0.0.1:9402, or unix: and a path".to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_or_a_path_is_taken() {
        assert_eq!(
            "unix:/run/cgpu-agent/metrics.sock".parse(),
            Ok(Listen::Unix("/run/cgpu-agent/metrics.sock".into()))
        );
        assert!(matches!("[::1]:9402".parse(), Ok(Listen::Tcp(_))));
        for wrong in ["9402", "localhost:9402", "unix:metrics.sock", "unix:", ""] {
            wrong.parse::<Listen>().unwrap_err();
        }
    }

    #[test]
    fn what_a_controller_would_ignore_is_refused() {
        for role in ["--classic-templates", "--evict-for-priority"] {
            Options::try_parse_from(["cgpu-agent", role, "--api-server=https://a"]).unwrap();
            for option in [
                "--listen=127.0.0.1:1",
                "--dialects=cgpu",
                "--history-dir=/a",
                "--runtime-dir=/a",
                "--node-name=n1",
                "--kubelet-dir=/a",
                "--cdi-dir=/a",
                "--pod-uid=1",
                "--device-plugin",
            ] {
                let error = Options::try_parse_from(["cgpu-agent", role, option]).unwrap_err();
                assert!(error.to_string().contains(role), "{option}: {error}");
            }
        }
    }

    fn settings(arguments: &[&str], text: &str) -> Result<Settings, String> {
        let options = [&["cgpu-agent"], arguments].concat();
        let options = Options::try_parse_from(options).unwrap();
        let path = std::path::Path::new("cgpu.toml");
        let config = host_config::Config::from_text(path, text).unwrap();
        Settings::of(&options, &config.metrics).map_err(|error| error.to_string())
    }

    #[test]
    fn an_option_comes_before_its_key_and_a_key_before_the_default() {
        const KEYS: &str = "[metrics]\nlisten = \"unix:/run/a.sock\"\ndialects = [\"hami\"]\n";
        let default = settings(&[], "").unwrap();
        assert_eq!("127.0.0.1:9402".parse(), Ok(default.listen));
        assert_eq!(default.dialects, [Dialect::Cgpu, Dialect::Ack]);
        let keys = settings(&[], KEYS).unwrap();
        assert_eq!(keys.listen, Listen::Unix("/run/a.sock".into()));
        assert_eq!(keys.dialects, [Dialect::Hami]);
        let arguments = ["--listen", "127.0.0.1:1", "--dialects", "cgpu,dcgm"];
        let options = settings(&arguments, KEYS).unwrap();
        assert_eq!("127.0.0.1:1".parse(), Ok(options.listen));
        assert_eq!(options.dialects, [Dialect::Cgpu, Dialect::Dcgm]);
    }

    #[test]
    fn a_wrong_key_is_named_with_its_value_and_what_is_allowed() {
        for (text, parts) in [
            (
                "listen = \"localhost:9402\"",
                [
                    "metrics.listen = \"localhost:9402\"",
                    "127.0.0.1:9402, or unix:",
                ],
            ),
            (
                "listen = \"unix:a.sock\"",
                ["metrics.listen = \"unix:a.sock\"", "must begin with /"],
            ),
            (
                "dialects = [\"cgpu\", \"nvidia\"]",
                ["metrics.dialects = [\"nvidia\"]", "cgpu, ack, dcgm or hami"],
            ),
            (
                "listen = 9402",
                ["metrics.listen = 9402", "such as \"127.0.0.1:9402\""],
            ),
            (
                "dialects = \"cgpu,ack\"",
                ["metrics.dialects = \"cgpu,ack\"", "a list of one or more"],
            ),
            ("listn = \"a\"", ["metrics.listn", "listen and dialects"]),
            (
                "dialects = []",
                [
                    "metrics.dialects = []",
                    "one or more of cgpu, ack, dcgm and hami",
                ],
            ),
        ] {
            let error = settings(&[], &format!("[metrics]\n{text}\n")).unwrap_err();
            for part in parts {
                assert!(error.contains(part), "{part} is not in {error}");
            }
        }
    }
}
