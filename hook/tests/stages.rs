//! `cgpu-hook` as podman and OCI runtimes call it, with a played broker.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod fake;

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use cards::FrontendKind;
use serde_json::{Value, json};

use self::fake::{Host, ID, STATE, slice, spec};

/// Not a test: see [`fake`].
#[test]
fn play_broker() {
    fake::broker();
}

fn call(host: &Host, stage: &str, input: &str) -> Output {
    let mut command = host.command(env!("CARGO_BIN_EXE_cgpu-hook"));
    if stage != "precreate" {
        // As precreate has it called.
        let config = host.path("cgpu.toml");
        command
            .env_clear()
            .env("CGPU_HOOK", "1")
            .env("CGPU_CONFIG", config);
    }
    call_as(command, stage, input)
}

fn call_as(mut command: Command, stage: &str, input: &str) -> Output {
    let mut child = command
        .arg(stage)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // One that reads nothing, since its argument is wrong, has closed it.
    drop(child.stdin.take().unwrap().write_all(input.as_bytes()));
    child.wait_with_output().unwrap()
}

fn reply(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn state(host: &Host, id: &str, status: &str, pid: u32) -> String {
    let bundle = host.path("bundles").join(id);
    json!({"ociVersion": "1.0.2", "id": id, "status": status, "pid": pid, "bundle": bundle})
        .to_string()
}

#[test]
fn a_spec_goes_in_and_one_with_the_vgpu_comes_out_until_the_container_is_deleted() {
    let Some(host) = Host::find() else { return };
    let before = spec(slice());
    let output = call(&host, "precreate", &before.to_string());
    assert!(output.status.success(), "{}", reply(&output));
    let edited: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        edited["annotations"]["cgpu.io/applied"],
        format!("podman/{ID}")
    );
    let notify = host
        .path(STATE)
        .join("vgpus/podman")
        .join(ID)
        .join("notify.sock");
    assert_eq!(
        edited["linux"]["seccomp"]["listenerPath"],
        notify.to_str().unwrap()
    );
    for stage in ["createRuntime", "poststart", "poststop"] {
        let hook = &edited["hooks"][stage][0];
        assert_eq!(hook["path"], env!("CARGO_BIN_EXE_cgpu-hook"));
        assert_eq!(
            hook["env"],
            json!([
                "CGPU_HOOK=1",
                format!("CGPU_CONFIG={}", host.path("cgpu.toml").display())
            ])
        );
    }
    let grant = host.grant("podman", ID).unwrap();
    assert_eq!(
        (grant.frontend.kind, grant.bundle),
        (FrontendKind::Hook, None)
    );
    assert_eq!(grant.cards[0].quota_bytes, 4 << 30);

    // The engine writes what came out; a container of another name must not come with it.
    let bundle = host.bundle(ID, json!({}));
    fs::write(bundle.join("config.json"), &output.stdout).unwrap();
    let me = std::process::id();
    let created = call(&host, "createRuntime", &state(&host, ID, "creating", me));
    assert!(created.status.success(), "{}", reply(&created));
    let other = host.bundle("other", json!({}));
    fs::write(other.join("config.json"), &output.stdout).unwrap();
    let refused = call(
        &host,
        "createRuntime",
        &state(&host, "other", "creating", 1),
    );
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        reply(&refused).contains("but this is container other"),
        "{}",
        reply(&refused)
    );

    // Below it a wrapper finds the work done.
    let arguments = ["create", "--bundle", bundle.to_str().unwrap(), ID];
    let below = host
        .command(env!("CARGO_BIN_EXE_cgpu-runtime"))
        .args(arguments)
        .output()
        .unwrap();
    assert!(below.status.success(), "{below:?}");
    assert!(host.grant("runc", ID).is_none());
    let arguments = ["create", "--bundle", other.to_str().unwrap(), "other"];
    let forged = host
        .command(env!("CARGO_BIN_EXE_cgpu-runtime"))
        .args(arguments)
        .output()
        .unwrap();
    assert_eq!(forged.status.code(), Some(1));
    assert!(
        reply(&forged).contains("cgpu alone writes this annotation"),
        "{forged:?}"
    );

    // The first process has ended meanwhile, and its number is another process's.
    let mut first = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let created = call(
        &host,
        "createRuntime",
        &state(&host, ID, "creating", first.id()),
    );
    assert!(created.status.success(), "{}", reply(&created));
    let mut stranger = Command::new("sleep").arg("1000").spawn().unwrap();
    let started = call(
        &host,
        "poststart",
        &state(&host, ID, "running", stranger.id()),
    );
    let ended = stranger.try_wait().unwrap();
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    assert_eq!(ended, None, "{}", reply(&started));
    assert!(started.status.success(), "{}", reply(&started));
    // Its own process is looked at, and has no filter.
    let started = call(&host, "poststart", &state(&host, ID, "running", first.id()));
    assert_eq!(started.status.code(), Some(1), "{}", reply(&started));
    assert!(!first.wait().unwrap().success(), "killed");

    let stopped = call(&host, "poststop", &state(&host, ID, "stopped", 0));
    assert!(stopped.status.success(), "{}", reply(&stopped));
    host.assert_clean();
    // Safe to repeat, and nothing to a container that had none.
    assert!(
        call(&host, "poststop", &state(&host, ID, "stopped", 0))
            .status
            .success()
    );
}

#[test]
fn a_spec_that_asks_for_nothing_comes_out_byte_for_byte() {
    let Some(host) = Host::find() else { return };
    let mut odd = spec(json!({}));
    odd["future"] = json!({"field": 18_446_744_073_709_551_615_u64});
    let text = serde_json::to_string_pretty(&odd).unwrap();
    let output = call(&host, "precreate", &text);
    assert!(output.status.success(), "{}", reply(&output));
    assert_eq!(output.stdout, text.as_bytes());
    assert!(!host.path(STATE).join("lock").exists());
}

#[test]
fn a_plain_container_that_others_reach_is_closed_to_the_driver() {
    let Some(host) = Host::find() else { return };
    let mut joined = spec(json!({}));
    joined["linux"]["namespaces"][1]["path"] = json!("/proc/1/ns/net");
    let mut nameless = joined.clone();
    nameless["linux"]["cgroupsPath"] = json!("/somebody/else");
    let text = fs::read_to_string(host.path("cgpu.toml")).unwrap();
    for configuration in [text.as_str(), "[broker"] {
        host.configure(configuration);
        for plain in [&joined, &nameless] {
            // A broken configuration says no runtime either: with a profile of the engine's that does not matter.
            let mut plain = plain.clone();
            plain["linux"]["seccomp"] = json!({"defaultAction": "SCMP_ACT_ALLOW"});
            let output = call(&host, "precreate", &plain.to_string());
            assert!(output.status.success(), "{}", reply(&output));
            let mut closed: Value = serde_json::from_slice(&output.stdout).unwrap();
            let rules = closed["linux"]["seccomp"]["syscalls"].take();
            assert!(rules.as_array().unwrap().len() > 20, "{rules}");
            closed["linux"]["seccomp"] = plain["linux"]["seccomp"].clone();
            assert_eq!(closed, plain);
        }
    }
    host.assert_clean();
}

/// It is called for every container of podman's: none of them has chosen cgpu, and none gets what it has not asked for.
#[test]
fn a_missed_request_is_reported_and_the_hosts_default_is_not_for_podmans_containers() {
    let Some(host) = Host::find() else { return };
    let text = fs::read_to_string(host.path("cgpu.toml")).unwrap();
    host.configure(&format!("{text}[request]\ndefault = \"1Gi\"\n"));
    let near = spec(json!({"cgpu/memory": "4Gi"})).to_string();
    for input in [spec(json!({})).to_string(), near.clone()] {
        let output = call(&host, "precreate", &input);
        assert!(output.status.success(), "{}", reply(&output));
        assert_eq!(output.stdout, input.as_bytes());
    }
    host.assert_clean();
    let log = || cards::events::read(&host.path(STATE).join("events/containers/podman").join(ID));
    let kinds = || -> Vec<String> { log().unwrap().into_iter().map(|event| event.kind).collect() };
    assert_eq!(kinds(), ["near_miss"]);
    // Without a name there is no log, and nothing else is lost.
    let mut nameless = spec(json!({"cgpu/memory": "4Gi"}));
    nameless["linux"]["cgroupsPath"] = json!("/somebody/else");
    let nameless = nameless.to_string();
    let output = call(&host, "precreate", &nameless);
    assert_eq!(output.stdout, nameless.as_bytes(), "{}", reply(&output));
    host.configure(&format!("{text}[request]\nstrict = true\n"));
    for input in [near, nameless] {
        let refused = call(&host, "precreate", &input);
        assert_eq!(refused.status.code(), Some(1));
        assert!(
            reply(&refused).contains("[request] strict"),
            "{}",
            reply(&refused)
        );
        assert!(refused.stdout.is_empty());
    }
    assert_eq!(kinds(), ["near_miss", "refused"]);
    host.assert_clean();
}

#[test]
fn what_cannot_be_held_is_refused_and_holds_nothing() {
    let Some(host) = Host::find() else { return };
    let mut nameless = spec(slice());
    nameless["linux"]["cgroupsPath"] = json!("/somebody/else");
    let mut marked = spec(slice());
    marked["annotations"]["cgpu.io/applied"] = json!("podman/other");
    for (input, needed) in [
        (
            spec(json!({"cgpu.io/memory": "25Gi"})).to_string(),
            "25 GiB on one card is requested",
        ),
        (
            spec(json!({"cgpu.io/memory": "much"})).to_string(),
            "cgpu.io/memory",
        ),
        (nameless.to_string(), "which container it is of"),
        (marked.to_string(), "cgpu alone writes this annotation"),
        ("[]".to_owned(), "is not an object"),
        ("{".to_owned(), "no container spec"),
        (String::new(), "no container spec"),
    ] {
        let refused = call(&host, "precreate", &input);
        assert_eq!(refused.status.code(), Some(1), "{input}");
        assert!(
            reply(&refused).contains(needed),
            "{input}: {}",
            reply(&refused)
        );
        assert!(refused.stdout.is_empty());
        host.assert_clean();
    }
    for stage in ["createContainer", ""] {
        assert!(reply(&call(&host, stage, "{}")).contains("unknown stage"));
    }
    assert!(reply(&call(&host, "poststop", "{}")).contains("no state of a container"));
}

/// It is too late there to change the spec: such a container would run without a quota.
#[test]
fn a_container_that_nobody_has_edited_is_refused_when_it_is_created() {
    let Some(host) = Host::find() else { return };
    host.bundle("plain", json!({}));
    let plain = call(
        &host,
        "createRuntime",
        &state(&host, "plain", "creating", 1),
    );
    assert!(plain.status.success(), "{}", reply(&plain));
    host.bundle("asks", slice());
    for stage in ["createRuntime", "prestart"] {
        let refused = call(&host, stage, &state(&host, "asks", "creating", 1));
        assert_eq!(refused.status.code(), Some(1));
        assert!(
            reply(&refused).contains("let the engine use cgpu-runtime"),
            "{}",
            reply(&refused)
        );
    }
    host.bundle(
        "marked",
        json!({"cgpu.io/applied": "podman/marked", "cgpu.io/memory": "4Gi"}),
    );
    let refused = call(
        &host,
        "createRuntime",
        &state(&host, "marked", "creating", 1),
    );
    assert!(
        reply(&refused).contains("which holds no vGPU"),
        "{}",
        reply(&refused)
    );
    host.assert_clean();
}

/// runc before 1.3 gives a hook without an environment the container's, which the image chose.
#[test]
fn a_container_s_environment_names_no_configuration() {
    let Some(host) = Host::find() else { return };
    let folder = host.path("bundles").join("plain");
    fs::create_dir_all(&folder).unwrap();
    let spec = |annotations: &str| {
        let text = format!(r#"{{"annotations": {{{annotations}}}}}"#);
        fs::write(folder.join("config.json"), text).unwrap();
    };
    let evil = host.path("evil.toml");
    fs::write(&evil, "state_dir = 7").unwrap();
    let called = |path: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cgpu-hook"));
        command
            .env_clear()
            .env("CGPU_CONFIG", &evil)
            .env("CGPU_HOOK", "1");
        command.envs(path.map(|path| ("PATH", path)));
        call_as(
            command,
            "createRuntime",
            &state(&host, "plain", "creating", 1),
        )
    };
    spec(r#""cgpu.io/memory": "1Gi""#);
    let of_container = reply(&called(Some("/bin")));
    assert!(!of_container.contains("evil.toml"), "{of_container}");
    // The same file, named by ourselves, is read.
    let ours = reply(&called(None));
    assert!(ours.contains("evil.toml"), "{ours}");
    // And it is nothing to a container that asks for nothing.
    spec("");
    let plain = called(None);
    assert!(plain.status.success(), "{}", reply(&plain));
}
