//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use cards::events::history;
use clap::Parser;
use view::metrics::text::Dialect;

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
    /// Where to listen: an address and port, or `unix:` and a path.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9402")]
    pub listen: Listen,
    /// Whose names the metrics have: `cgpu`'s own, `ack`, `dcgm`, `hami`.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "cgpu,ack"
    )]
    pub dialects: Vec<Dialect>,
    /// The folder to which events are copied: those in the state folder are gone after a reboot.
    #[arg(long, value_name = "DIR", default_value = history::DIR)]
    pub history_dir: PathBuf,
    /// The folder of the agent's lock. Only one agent runs for each.
    #[arg(long, value_name = "DIR", default_value = "/run/cgpu-agent")]
    pub runtime_dir: PathBuf,
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
}
