//! CDI specs as NVIDIA's toolkit writes them, and those that give what was not granted.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use host_config::config::{Allow, CdiFolders, LibrarySource};
use serde_json::{Value, json};

use super::fake_container::{OTHER_VERSION, assert_reports, source, spec, targets};
use crate::fake::{FakeHost, Layout, VERSION};
use crate::{Context, prepare, survey};

/// A host whose specs have the driver's files; discovery would find none.
struct CdiHost {
    fake: FakeHost,
    files: PathBuf,
}

impl CdiHost {
    fn new() -> Option<Self> {
        let mut fake = FakeHost::new(Layout::RedHat)?;
        let files = fake.root();
        fake.config.driver.root = "/nonexistent".into();
        Some(Self { fake, files })
    }

    fn file(&self, path: &str) -> String {
        self.files
            .join(path.trim_start_matches('/'))
            .display()
            .to_string()
    }

    fn mount(&self, path: &str) -> Value {
        json!({"hostPath": self.file(path), "containerPath": path, "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"]})
    }

    /// As `nvidia-ctk cdi generate` writes it for two cards.
    fn document(&self) -> Value {
        let library = |name: &str| self.mount(&format!("/usr/lib64/{name}.{VERSION}"));
        let card = |index: u32, name: String| {
            json!({"name": name, "containerEdits": {
                "deviceNodes": [{"path": format!("/dev/nvidia{index}")}, {"path": format!("/dev/dri/card{index}")}],
                "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "create-symlinks", "--link", "../card0::/dev/dri/by-path/pci"]}],
            }})
        };
        json!({
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": [
                card(0, "0".to_owned()), card(1, "1".to_owned()), card(0, "GPU-0".to_owned()), card(1, "GPU-1".to_owned()),
                {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}, {"path": "/dev/nvidia1"}]}},
            ],
            "containerEdits": {
                "env": ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64"],
                "deviceNodes": [{"path": "/dev/nvidia-modeset"}, {"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}],
                "hooks": [
                    {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "create-symlinks", "--link", "libcuda.so.1::/usr/lib64/libcuda.so", "--link=libnvidia-ml.so.1::/usr/lib64/libnvidia-ml-extra.so"]},
                    {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "enable-cuda-compat", "--host-driver-version", VERSION]},
                    {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib64"]},
                ],
                "mounts": [
                    library("libcuda.so"), library("libnvidia-ml.so"), library("libnvidia-encode.so"), library("libnvidia-glcore.so"),
                    self.mount("/usr/bin/nvidia-smi"),
                    self.mount("/usr/share/vulkan/icd.d/nvidia_icd.json"),
                    {"hostPath": "/run/nvidia-persistenced/socket", "containerPath": "/run/nvidia-persistenced/socket"},
                    {"hostPath": "/tmp/nvidia-mps", "containerPath": "/tmp/nvidia-mps"},
                ],
            },
        })
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.fake.path().join("cdi").join(name), text).unwrap();
    }

    fn with(&self, document: &Value) -> Result<crate::DriverLibraries, String> {
        self.write("nvidia.json", &document.to_string());
        self.fake.prepared("")
    }

    /// The error of a document that was changed.
    fn refusal(&self, change: impl FnOnce(&mut Value)) -> String {
        let mut document = self.document();
        change(&mut document);
        match self.with(&document) {
            Err(error) => {
                assert_reports(&error, &["nvidia.json"]);
                error
            }
            Ok(driver_libraries) => panic!("{driver_libraries:?}"),
        }
    }
}

fn push(document: &mut Value, pointer: &str, value: Value) {
    document
        .pointer_mut(pointer)
        .unwrap()
        .as_array_mut()
        .unwrap()
        .push(value);
}

#[test]
fn a_generated_spec_gives_the_files_of_the_driver_and_nothing_else() {
    let Some(host) = CdiHost::new() else { return };
    let driver_libraries = host.with(&host.document()).unwrap();
    let folder = "/usr/lib/x86_64-linux-gnu";
    let mut expected: Vec<String> = [
        "libcuda.so".to_owned(),
        "libcuda.so.1".to_owned(),
        format!("libcuda.so.{VERSION}"),
        "libnvidia-ml-extra.so".to_owned(),
        "libnvidia-ml.so.1".to_owned(),
        format!("libnvidia-ml.so.{VERSION}"),
    ]
    .iter()
    .map(|name| format!("{folder}/{name}"))
    .collect();
    expected.insert(0, "/usr/bin/nvidia-smi".to_owned());
    expected.sort();
    assert_eq!(targets(&driver_libraries), expected);
    assert_eq!(
        source(&driver_libraries, &format!("{folder}/libcuda.so"))
            .unwrap()
            .display()
            .to_string(),
        host.file(&format!("/usr/lib64/libcuda.so.{VERSION}"))
    );
    // Never as the spec says: `rw` would be one word of it.
    assert!(
        driver_libraries
            .mounts
            .iter()
            .all(|mount| mount.options == ["bind", "ro", "nosuid", "nodev"])
    );
    assert_eq!(
        driver_libraries.additions.environment,
        ["NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64"]
    );
    // All capabilities: what the spec has for them, and no more.
    let all = host.fake.prepared("all").unwrap();
    let more = targets(&all);
    assert!(
        more.contains(&format!("{folder}/libnvidia-encode.so.1")),
        "{more:?}"
    );
    assert!(more.contains(&"/usr/share/vulkan/icd.d/nvidia_icd.json".to_owned()));
    assert!(
        !more
            .iter()
            .any(|target| target.contains("mps") || target.contains("persistenced"))
    );

    let found = survey(&host.fake.config, VERSION, &host.fake.cards).unwrap();
    assert_reports(&found.source, &["CDI spec", "nvidia.json"]);
    assert!(found.libraries.contains(&format!("libcuda.so.{VERSION}")));
    assert_eq!(
        found.left_out,
        [
            "/dev/nvidia-modeset",
            "/run/nvidia-persistenced/socket",
            "/tmp/nvidia-mps",
            "/dev/dri/card0",
            "/dev/dri/card1"
        ]
    );
}

#[test]
fn yaml_reports_the_same_as_json() {
    let Some(host) = CdiHost::new() else { return };
    let from_json = host.with(&host.document()).unwrap();
    fs::remove_file(host.fake.path().join("cdi/nvidia.json")).unwrap();
    let yaml = format!(
        r#"---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidia-modeset
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  - NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64
  hooks:
  - args:
    - nvidia-cdi-hook
    - create-symlinks
    - --link
    - libcuda.so.1::/usr/lib64/libcuda.so
    - --link
    - libnvidia-ml.so.1::/usr/lib64/libnvidia-ml-extra.so
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
  mounts:
  - containerPath: /usr/lib64/libcuda.so.{VERSION}
    hostPath: {cuda}
    options:
    - ro
    - bind
  - containerPath: /usr/lib64/libnvidia-ml.so.{VERSION}
    hostPath: {ml}
  - containerPath: /usr/bin/nvidia-smi
    hostPath: {smi}
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
      major: 195
      fileMode: 438
    hooks: null
  name: "0"
kind: nvidia.com/gpu
"#,
        cuda = host.file(&format!("/usr/lib64/libcuda.so.{VERSION}")),
        ml = host.file(&format!("/usr/lib64/libnvidia-ml.so.{VERSION}")),
        smi = host.file("/usr/bin/nvidia-smi"),
    );
    host.write("nvidia.yaml", &yaml);
    let from_yaml = host.fake.prepared("").unwrap();
    assert_eq!(targets(&from_yaml), targets(&from_json));
    assert_eq!(from_yaml.additions, from_json.additions);
    host.write("nvidia.yaml", &yaml.replace("kind:", "kind: [\nkind:"));
    assert_reports(
        &host.fake.prepared("").unwrap_err(),
        &["nvidia.yaml", "wrong"],
    );
    // Aliases that multiply are cut off, not expanded.
    let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f]\nkind: nvidia.com/gpu\n";
    host.write("nvidia.yaml", bomb);
    assert_reports(
        &host.fake.prepared("").unwrap_err(),
        &["nvidia.yaml", "wrong"],
    );
}

#[test]
fn a_spec_that_is_wrong_is_named_with_key_value_and_what_is_allowed() {
    let Some(host) = CdiHost::new() else { return };
    for (pointer, value, words) in [
        (
            "/cdiVersion",
            json!("2.0.0"),
            &["cdiVersion", "2.0.0", "1.1.0"][..],
        ),
        ("/cdiVersion", json!("0.5"), &["cdiVersion", "0.5"]),
        ("/cdiVersion", json!(""), &["cdiVersion"]),
        ("/devices", json!([]), &["devices", "at least one"]),
        ("/devices", json!(null), &["devices", "at least one"]),
        ("/devices", json!({}), &["wrong", "sequence"]),
        (
            "/devices/0/name",
            json!("a b"),
            &["devices.name", "a b", "letters"],
        ),
        (
            "/devices/0/containerEdits",
            json!({}),
            &["devices", "containerEdits"],
        ),
        (
            "/containerEdits/env/1",
            json!("=x"),
            &["containerEdits.env", "NAME=value"],
        ),
        (
            "/containerEdits/mounts/0/type",
            json!("tmpfs"),
            &["mounts.type", "tmpfs", "bind"],
        ),
        (
            "/containerEdits/mounts/0/hostPath",
            json!("lib"),
            &["mounts.hostPath", "lib", "absolute"],
        ),
        (
            "/containerEdits/mounts/0/containerPath",
            json!(""),
            &["mounts.containerPath", "absolute"],
        ),
        (
            "/containerEdits/mounts/0/hostPath",
            json!("/nonexistent/x"),
            &["/nonexistent/x", "nvidia-ctk cdi generate"],
        ),
    ] {
        let error = host.refusal(|document| {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            match document.pointer_mut(parent).unwrap() {
                Value::Array(list) => list[key.parse::<usize>().unwrap()] = value.clone(),
                object => object[key] = value.clone(),
            }
        });
        assert_reports(&error, words);
    }
    host.write("nvidia.json", "{\"kind\": \"nvidia.com/gpu\"");
    assert_reports(
        &host.fake.prepared("").unwrap_err(),
        &["nvidia.json", "wrong"],
    );
    // Versions that are known, with and without later patches.
    for version in ["0.3.0", "0.8.0", "1.0.0", "1.1.0", "v0.6.1"] {
        let mut document = host.document();
        document["cdiVersion"] = json!(version);
        host.with(&document).unwrap();
    }
}

#[test]
fn other_vendors_specs_are_not_read_and_not_judged() {
    let Some(host) = CdiHost::new() else { return };
    host.write("broken.json", "{");
    host.write(
        "other.yaml",
        "cdiVersion: 9.9.9\nkind: vendor.com/net\ndevices: 7\n",
    );
    host.write("readme.txt", "kind: nvidia.com/gpu");
    host.with(&host.document()).unwrap();
}

#[test]
fn libraries_of_another_driver_are_a_clear_error() {
    let Some(host) = CdiHost::new() else { return };
    let old = host.file(&format!("/usr/lib64/libcuda.so.{OTHER_VERSION}"));
    fs::copy(host.file(&format!("/usr/lib64/libcuda.so.{VERSION}")), &old).unwrap();
    let error =
        host.refusal(|document| document["containerEdits"]["mounts"][0]["hostPath"] = json!(old));
    assert_reports(
        &error,
        &[
            OTHER_VERSION,
            VERSION,
            "nvidia-ctk cdi generate",
            "discover",
        ],
    );
}

#[test]
fn a_card_that_was_not_granted_is_refused_or_left_out() {
    let Some(mut host) = CdiHost::new() else {
        return;
    };
    for (pointer, node) in [
        (
            "/devices/2/containerEdits/deviceNodes",
            json!({"path": "/dev/nvidia1"}),
        ),
        (
            "/devices/2/containerEdits/deviceNodes",
            json!({"path": "/dev/x", "hostPath": "//dev/./nvidia1"}),
        ),
        (
            "/containerEdits/deviceNodes",
            json!({"path": "/dev/nvidia7"}),
        ),
    ] {
        let error = host.refusal(|document| push(document, pointer, node.clone()));
        assert_reports(
            &error,
            &[
                "nvidia",
                "granted (/dev/nvidia0)",
                "other-cards",
                "discover",
            ],
        );
    }
    host.fake.config.isolation.allow.other_cards = host_config::config::OtherCards::LeaveOut;
    let mut document = host.document();
    push(
        &mut document,
        "/containerEdits/deviceNodes",
        json!({"path": "/dev/nvidia7"}),
    );
    host.with(&document).unwrap();
}

#[test]
fn what_leads_out_of_a_slice_is_refused_by_the_rules_for_engines() {
    let Some(mut host) = CdiHost::new() else {
        return;
    };
    let state = host.fake.config.state_dir.clone();
    fs::create_dir(&state).unwrap();
    for (path, name) in [
        ("/dev", "host-dev"),
        ("/", "host-root"),
        (state.to_str().unwrap(), "cgpu-state"),
        ("/proc/sys", "host-proc"),
    ] {
        // Also where the configuration lets engines give it: nobody has asked for this by name.
        host.fake.config.isolation.allow = Allow::of(cards::Weakness::ALL);
        let mount = json!({"hostPath": path, "containerPath": "/there", "options": ["ro"]});
        let error = host.refusal(|document| push(document, "/containerEdits/mounts", mount));
        assert_reports(&error, &[path, name, "discover"]);
    }
    // A node as a mount is neither a file nor a folder.
    let error = {
        let mut document = host.document();
        push(
            &mut document,
            "/containerEdits/mounts",
            json!({"hostPath": "/dev/null", "containerPath": "/dev/dri/card0"}),
        );
        host.with(&document).unwrap_err()
    };
    assert_reports(&error, &["/dev/null"]);
}

#[test]
fn sources_that_others_could_swap_are_refused() {
    let Some(host) = CdiHost::new() else { return };
    let smi = host.file("/usr/bin/nvidia-smi");
    fs::set_permissions(&smi, fs::Permissions::from_mode(0o777)).unwrap();
    assert_reports(
        &host.with(&host.document()).unwrap_err(),
        &["nvidia-smi", "mode 777"],
    );
    fs::set_permissions(&smi, fs::Permissions::from_mode(0o755)).unwrap();
    host.with(&host.document()).unwrap();
    let folder = host.fake.path().join("cdi");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    assert_reports(&host.fake.prepared("").unwrap_err(), &["cdi", "mode 777"]);
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    let spec = host.fake.path().join("cdi/nvidia.json");
    fs::set_permissions(&spec, fs::Permissions::from_mode(0o666)).unwrap();
    assert_reports(
        &host.fake.prepared("").unwrap_err(),
        &["nvidia.json", "mode 666"],
    );
}

#[test]
fn devices_are_found_by_uuid_by_index_and_by_their_only_node() {
    let Some(host) = CdiHost::new() else { return };
    let devices = |names: &[&str]| {
        let mut document = host.document();
        document["devices"]
            .as_array_mut()
            .unwrap()
            .retain(|device| names.contains(&device["name"].as_str().unwrap()));
        document
    };
    for names in [&["GPU-0", "GPU-1"][..], &["0", "1"], &["1", "0", "all"]] {
        host.with(&devices(names)).unwrap();
    }
    let mut renamed = devices(&["0", "1"]);
    renamed["devices"][0]["name"] = json!("first");
    host.with(&renamed).unwrap();
    // `all` is nobody's: it has a card too many.
    for names in [&["all"][..], &["1", "all"]] {
        assert_reports(&host.with(&devices(names)).unwrap_err(), &["/nonexistent"]);
    }
    // An index that is another card's by now.
    let mut swapped = devices(&["0", "1"]);
    swapped["devices"][0]["name"] = json!("1");
    swapped["devices"][1]["name"] = json!("0");
    let driver_libraries = host.with(&swapped).unwrap();
    assert!(!driver_libraries.mounts.is_empty());
}

#[test]
fn the_last_folder_counts_and_two_specs_of_one_folder_contend() {
    let Some(mut host) = CdiHost::new() else {
        return;
    };
    let dynamic = host.fake.path().join("run");
    fs::create_dir(&dynamic).unwrap();
    host.fake.config.driver.cdi = CdiFolders::Folders(vec![
        host.fake.path().join("cdi"),
        dynamic.clone(),
        "/nonexistent".into(),
    ]);
    let mut marked = host.document();
    marked["containerEdits"]["env"] = json!(["FROM=run"]);
    fs::write(dynamic.join("x.json"), marked.to_string()).unwrap();
    let driver_libraries = host.with(&host.document()).unwrap();
    assert_eq!(driver_libraries.additions.environment, ["FROM=run"]);
    fs::write(dynamic.join("y.json"), marked.to_string()).unwrap();
    assert_reports(
        &host.fake.prepared("").unwrap_err(),
        &["x.json", "y.json", "GPU-0"],
    );
}

#[test]
fn the_configuration_chooses_between_specs_and_discovery() {
    let Some(mut host) = CdiHost::new() else {
        return;
    };
    host.fake.config.driver.libraries = LibrarySource::Cdi;
    let error = host.fake.prepared("").unwrap_err();
    assert_reports(
        &error,
        &["no CDI spec", "GPU-0", "cdi", "nvidia-ctk cdi generate"],
    );
    host.with(&host.document()).unwrap();
    // Discovery finds nothing on this host: that is what it says, although there is a spec.
    host.fake.config.driver.libraries = LibrarySource::Discover;
    assert_reports(&host.fake.prepared("").unwrap_err(), &["/nonexistent"]);
    host.fake.config.driver.libraries = LibrarySource::Auto;
    host.fake.config.driver.cdi = CdiFolders::Off;
    assert_reports(&host.fake.prepared("").unwrap_err(), &["/nonexistent"]);
    host.fake.config.driver.root = host.files.clone();
    host.fake.prepared("").unwrap();
}

#[test]
fn the_environment_of_a_spec_takes_the_place_of_the_image_s_own() {
    let Some(host) = CdiHost::new() else { return };
    host.write("nvidia.json", &host.document().to_string());
    let bundle = host.fake.bundle(&[]);
    let mut value = spec("");
    push(
        &mut value,
        "/process/env",
        json!("NVIDIA_CTK_LIBCUDA_DIR=/image"),
    );
    let grant = host.fake.grant(&[0]);
    let driver_libraries = prepare(&Context {
        config: &host.fake.config,
        grant: &grant,
        cards: &host.fake.cards,
        spec: &value,
        bundle: &bundle,
    })
    .unwrap();
    let plan = spec::edit::Plan {
        grant: &grant,
        mounts: &[],
        additions: &driver_libraries.additions,
        nodes: &spec::nodes::of(&grant, None, nvabi::proc_files::DeviceFiles::default()),
        uvm_major: None,
        listener: Path::new("/x"),
        seccomp: &spec::edit::SeccompRules::none(),
        other_cards: host_config::config::OtherCards::Refuse,
    };
    for _twice in 0..2 {
        spec::edit::apply(&mut value, &plan).unwrap();
        assert_eq!(
            value["process"]["env"],
            json!([
                "NVIDIA_DRIVER_CAPABILITIES=",
                "A=b",
                "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64",
                "NVIDIA_VISIBLE_DEVICES=void"
            ])
        );
    }
}
