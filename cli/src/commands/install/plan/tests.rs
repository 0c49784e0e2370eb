//! What `configs/` holds is what is written where nothing stands.

use std::path::{Path, PathBuf};

use super::*;
use crate::commands::install::change::changed;

pub(in super::super) fn request(as_default: AsDefault) -> InstallRequest {
    InstallRequest {
        runtime: "cgpu".to_owned(),
        as_default,
        programs: "/usr/bin".to_owned(),
        are_there: true,
    }
}

fn texts(given: &[(&'static str, &str)]) -> Texts {
    given
        .iter()
        .map(|(path, text)| (*path, Some((*text).to_owned())))
        .collect()
}

fn files(
    engine: Engine,
    version: Option<Version>,
    request: &InstallRequest,
    texts: &Texts,
) -> Vec<Needed> {
    match plan(engine, version, request, texts, None).unwrap() {
        Plan::Files(files) => files,
        Plan::Nothing(reason) => panic!("{reason}"),
    }
}

fn error(engine: Engine, version: Version, texts: &Texts) -> String {
    format!(
        "{:#}",
        plan(engine, Some(version), &request(AsDefault::No), texts, None).unwrap_err()
    )
}

fn written(needed: &Needed, text: Option<&str>) -> String {
    changed(
        needed.format,
        text.unwrap_or(&needed.fresh),
        &needed.changes,
    )
    .unwrap()
    .0
}

fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs")
}

/// An engine, and for each file that is written its name below `configs/`.
type Shipped = (
    Engine,
    Option<Version>,
    &'static [(&'static str, &'static str)],
);

#[test]
fn configs_holds_exactly_what_is_written() {
    let shipped: [Shipped; 8] = [
        (
            Engine::Containerd,
            Some(Version(1, 6)),
            &[(CONTAINERD_MAIN, "containerd/1.6/config.toml")],
        ),
        (
            Engine::Containerd,
            Some(Version(1, 7)),
            &[(CONTAINERD_MAIN, "containerd/1.7/config.toml")],
        ),
        (
            Engine::Containerd,
            Some(Version(2, 1)),
            &[
                (DROP_IN, "containerd/2.x/conf.d/cgpu.toml"),
                (CONTAINERD_MAIN, "containerd/2.x/config.toml"),
            ],
        ),
        (
            Engine::Docker,
            Some(Version(20, 10)),
            &[(DAEMON_JSON, "docker/20.10/daemon.json")],
        ),
        (
            Engine::Docker,
            Some(Version(28, 5)),
            &[(DAEMON_JSON, "docker/24/daemon.json")],
        ),
        (
            Engine::Podman,
            None,
            &[(CONTAINERS_CONF, "podman/containers.conf.d/cgpu.conf")],
        ),
        (
            Engine::PodmanHook,
            None,
            &[(HOOK_JSON, "podman/hooks.d/cgpu.json")],
        ),
        (
            Engine::Crio,
            None,
            &[(CRIO_CONF, "crio/crio.conf.d/99-cgpu.conf")],
        ),
    ];
    let update = std::env::var_os("CGPU_UPDATE_CONFIGS").is_some();
    for (engine, version, expected) in shipped {
        let files = files(engine, version, &request(AsDefault::No), &Texts::new());
        let paths: Vec<&str> = files.iter().map(|file| file.path).collect();
        let needed: Vec<&str> = expected.iter().map(|(path, _)| *path).collect();
        assert_eq!(paths, needed);
        for (file, (_, name)) in files.iter().zip(expected) {
            let path = configs().join(name);
            let text = written(file, None);
            if update {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(&path, &text).unwrap();
            }
            let shipped = std::fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert_eq!(
                shipped, text,
                "{name} is not what is written; CGPU_UPDATE_CONFIGS=1 writes it"
            );
        }
    }
}

/// The few lines of YAML that it is: nested keys with scalars.
#[test]
fn the_runtime_class_names_the_runtime_that_is_installed() {
    let text = std::fs::read_to_string(configs().join("kubernetes/runtimeclass.yaml")).unwrap();
    let mut parents: Vec<(usize, String)> = Vec::new();
    let mut keys = Vec::new();
    for line in text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
    {
        let (key, value) = line.split_once(':').unwrap();
        let depth = key.len() - key.trim_start().len();
        parents.retain(|(at, _)| *at < depth);
        let path: Vec<&str> = parents
            .iter()
            .map(|(_, name)| name.as_str())
            .chain([key.trim()])
            .collect();
        if !value.trim().is_empty() {
            keys.push((path.join("."), value.trim().to_owned()));
        }
        parents.push((depth, key.trim().to_owned()));
    }
    let needed = [
        ("apiVersion", "node.k8s.io/v1"),
        ("kind", "RuntimeClass"),
        ("metadata.name", "cgpu"),
        ("handler", request(AsDefault::No).runtime.as_str()),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(keys, needed);
}

#[test]
fn a_main_file_of_version_2_gets_a_drop_in_of_version_2() {
    let main = "version = 2\nimports = [\"conf.d/*.toml\"]\n";
    let files = files(
        Engine::Containerd,
        Some(Version(2, 1)),
        &request(AsDefault::Yes),
        &texts(&[(CONTAINERD_MAIN, main)]),
    );
    assert_eq!(files.len(), 1, "the folder is imported already");
    let text = written(&files[0], None);
    assert!(text.contains("version = 2\n"), "{text}");
    assert!(
        text.contains(
            "[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"cgpu\""
        ),
        "{text}"
    );
}

#[test]
fn a_main_file_of_version_4_gets_a_drop_in_of_version_4() {
    let main = "version = 4\nimports = [\"conf.d/*.toml\"]\n";
    let given = texts(&[(CONTAINERD_MAIN, main)]);
    let version = Some(Version(2, 3));
    let files = files(
        Engine::Containerd,
        version,
        &request(AsDefault::Yes),
        &given,
    );
    let text = written(&files[0], None);
    assert!(text.contains("version = 4\n"), "{text}");
    // As in version 3.
    let section = "[plugins.\"io.containerd.cri.v1.runtime\".containerd]\ndefault_runtime_name";
    assert!(text.contains(section), "{text}");
}

#[test]
fn containerd_1_keeps_its_own_runc_beside_the_first_runtime() {
    let version = Some(Version(1, 7));
    let with_runtimes = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n  [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n    SystemdCgroup = true\n";
    let given = texts(&[(CONTAINERD_MAIN, with_runtimes)]);
    let there = files(Engine::Containerd, version, &request(AsDefault::No), &given);
    let text = written(&there[0], Some(with_runtimes));
    assert!(text.starts_with(with_runtimes), "{text}");
    // As runc's cgroups are managed, so are ours.
    assert_eq!(text.matches("SystemdCgroup = true").count(), 2, "{text}");

    let none = "version = 2\n";
    let given = texts(&[(CONTAINERD_MAIN, none)]);
    let made = files(Engine::Containerd, version, &request(AsDefault::No), &given);
    let text = written(&made[0], Some(none));
    assert!(text.contains(".runtimes.runc]"), "{text}");
}

#[test]
fn what_an_engine_cannot_be_given_is_refused_with_the_reason() {
    let main = |text| texts(&[(CONTAINERD_MAIN, text)]);
    let one = Version(1, 7);
    for (version, text, reply) in [
        (one, "[plugins.cri]\n", "is of version 1 (it has `plugins`"),
        (one, "version = 3\n", "is of version 3"),
        (Version(2, 1), "version = 1\n", "containerd config migrate"),
        (
            Version(2, 3),
            "version = 5\n",
            "newer than this cgpu: it knows 2 to 4",
        ),
        (Version(2, 1), "version = \"2\"\n", "not a number"),
        (Version(2, 1), "imports = 3\n", "imports is 3, not a list"),
        (Version(1, 4), "", "older than 1.6"),
        (one, "version = 2\nx = = 1\n", "not TOML"),
        (
            one,
            "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.cgpu]\nruntime_type = \"io.containerd.kata.v2\"\n",
            "another runtime named",
        ),
    ] {
        let error = error(Engine::Containerd, version, &main(text));
        assert!(
            error.contains(reply)
                && (error.contains("config.toml") || error.contains("containerd 1.4")),
            "{error}"
        );
    }
    let daemon = |text| texts(&[(DAEMON_JSON, text)]);
    for (version, text, reply) in [
        (Version(19, 3), "{}", "older than 20.10"),
        (Version(28, 5), "{\n  # no\n}", "line 2"),
        (
            Version(28, 5),
            "{\"runtimes\": []}",
            "runtimes is no object",
        ),
        (
            Version(28, 5),
            "{\"runtimes\": {\"cgpu\": {\"path\": \"/usr/bin/kata\"}}}",
            "choose another name with --runtime",
        ),
    ] {
        let error = error(Engine::Docker, version, &daemon(text));
        assert!(error.contains(reply), "{error}");
    }
    let none = plan(
        Engine::Docker,
        None,
        &request(AsDefault::No),
        &Texts::new(),
        None,
    )
    .unwrap_err();
    assert!(
        none.to_string().contains("--engine docker@VERSION"),
        "{none}"
    );
}

#[test]
fn a_containerd_without_cri_needs_nothing() {
    for (version, name) in [
        (Version(1, 7), "cri"),
        (Version(2, 1), "io.containerd.cri.v1.runtime"),
    ] {
        let text = format!("disabled_plugins = [\"{name}\"]\n");
        let given = texts(&[(CONTAINERD_MAIN, text.as_str())]);
        let done = plan(
            Engine::Containerd,
            Some(version),
            &request(AsDefault::No),
            &given,
            None,
        )
        .unwrap();
        assert!(matches!(done, Plan::Nothing(_)), "{done:?}");
    }
}

#[test]
fn docker_gets_the_shim_from_24_on_and_the_wrapper_before() {
    for (version, program) in [
        (Version(20, 10), WRAPPER),
        (Version(23, 0), WRAPPER),
        (Version(24, 0), SHIM),
        (Version(28, 5), SHIM),
    ] {
        let needed = files(
            Engine::Docker,
            Some(version),
            &request(AsDefault::No),
            &Texts::new(),
        );
        assert!(written(&needed[0], None).contains(program), "{version}");
        assert_eq!(programs_of(Engine::Docker, Some(version)), [program]);
    }
}

#[test]
fn containerd_1_6_finds_the_shim_in_its_own_path_alone() {
    let mut request = request(AsDefault::No);
    let old = Some(Version(1, 6));
    assert_eq!(remark(Engine::Containerd, old, &request), None);
    request.programs = "/opt/cgpu".to_owned();
    let reply = remark(Engine::Containerd, old, &request).unwrap();
    assert!(reply.contains("must have /opt/cgpu"), "{reply}");
    assert_eq!(
        remark(Engine::Containerd, Some(Version(1, 7)), &request),
        None
    );
    assert_eq!(remark(Engine::Podman, None, &request), None);
}
