//! The agent on a node of a cluster whose API server is away. What it does there otherwise is tested in `cluster/`.
#![cfg(feature = "kubernetes")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like the tests")]

// Not all of it is used here.
#[path = "host/mod.rs"]
#[expect(dead_code, reason = "the fixture of all tests of the agent")]
mod host;
#[expect(dead_code, reason = "the fixture of all tests of the agent")]
mod served;

use std::process::Command;

use host::{Host, soon};
use served::Agent;

/// An agent on a node whose kubelet has this folder.
fn command(host: &Host, pod_uid: Option<&str>) -> Command {
    let mut command = host.command("127.0.0.1:0");
    command
        .args(["--kubernetes", "--node-name", "n1", "--kubelet-dir"])
        .arg(host.path("kubelet"))
        .arg("--cdi-dir")
        .arg(host.path("cdi"))
        .arg("--kubeconfig")
        .arg(host.path("no-kubeconfig"))
        .args(pod_uid.iter().flat_map(|uid| ["--pod-uid", uid]));
    command
}

/// Memory that is this process' alone, KiB.
fn private_kib(pid: u32) -> u64 {
    let rollup = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(rollup).unwrap();
    let lines = text.lines().filter(|line| line.starts_with("Private_"));
    let amounts = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    amounts.sum()
}

#[test]
fn metrics_and_the_kubelet_are_served_without_an_api_server() {
    let mut host = Host::new();
    host.container("web");
    let child = command(&host, None).spawn().unwrap();
    let pid = child.id();
    let agent = Agent::of(child);
    assert_eq!(agent.get("/readyz").status, 200);
    let metrics = agent.get("/metrics");
    assert_eq!(
        metrics.value("cgpu_broker_up", &["name=\"web\""]),
        Some(1.0)
    );
    let registration = host.path("kubelet/plugins_registry/gpu.cgpu.io@reg.sock");
    let plugin = host.path("kubelet/plugins/gpu.cgpu.io/dra.sock");
    soon("both sockets", || registration.exists() && plugin.exists());
    println!(
        "private memory of the agent with the driver: {} KiB",
        private_kib(pid)
    );
    assert!(agent.terminate().success());
    assert!(!registration.exists() && !plugin.exists());
}

#[test]
fn during_a_rolling_update_metrics_follow_when_the_first_agent_ends() {
    let host = Host::new();
    let old = Agent::start(&mut command(&host, Some("old")));
    let new = command(&host, Some("new")).spawn().unwrap();
    let socket = host.path("kubelet/plugins_registry/gpu.cgpu.io@new-reg.sock");
    soon("the new agent's socket", || socket.exists());
    assert!(old.terminate().success());
    assert_eq!(Agent::of(new).get("/healthz").status, 200);
}

#[test]
fn a_node_without_a_name_and_options_without_a_cluster_are_refused() {
    let host = Host::new();
    let output = host
        .command("127.0.0.1:0")
        .arg("--kubernetes")
        .env_remove("NODE_NAME")
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && error.contains("--node-name or $NODE_NAME"),
        "{error}"
    );
    let output = host
        .command("127.0.0.1:0")
        .args(["--pod-uid", "a"])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && error.contains("--kubernetes"),
        "{error}"
    );
}
