//! Own discovery: every layout of a distribution, and hosts on which something is wrong.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cards::{Backend, DriverSpec};
use host_config::config::{LibrarySource, OtherCards};
use host_config::host_files::ThisHost;
use host_config::own_places::OwnPlaces;
use serde_json::Value;
use spec::edit::{self, Plan, SeccompRules};
use spec::escape_checks;

use super::fake_container::{OTHER_VERSION, assert_reports, source, spec, targets};
use crate::fake::{FakeHost, Layout, VERSION, link};
use crate::survey;

const FOLDER: &str = "/usr/lib/x86_64-linux-gnu";

fn in_folder(names: &[&str]) -> Vec<String> {
    names
        .iter()
        .map(|name| format!("{FOLDER}/{name}"))
        .collect()
}

#[test]
fn every_layout_gives_the_running_driver_s_libraries_under_all_their_names() {
    for layout in [Layout::Debian, Layout::RedHat, Layout::CacheOnly] {
        let Some(host) = FakeHost::new(layout) else {
            return;
        };
        // The last driver's, left behind beside the running one's.
        for name in ["libcuda.so", "libnvidia-ml.so"] {
            let folder = host.at(layout.folder());
            fs::copy(
                folder.join(format!("{name}.{VERSION}")),
                folder.join(format!("{name}.{OTHER_VERSION}")),
            )
            .unwrap();
        }
        let driver_libraries = host.prepared("compute,utility").unwrap();
        let mut expected = in_folder(&[
            "libcuda.so",
            "libcuda.so.1",
            &format!("libcuda.so.{VERSION}"),
            "libnvidia-ml.so.1",
            &format!("libnvidia-ml.so.{VERSION}"),
            "libnvidia-nvvm.so.4",
            &format!("libnvidia-nvvm.so.{VERSION}"),
            "libnvidia-ptxjitcompiler.so.1",
            &format!("libnvidia-ptxjitcompiler.so.{VERSION}"),
        ]);
        expected.insert(0, "/usr/bin/nvidia-smi".to_owned());
        expected.sort();
        assert_eq!(targets(&driver_libraries), expected, "{layout:?}");
        let real = host.at(&format!("{}/libcuda.so.{VERSION}", layout.folder()));
        for name in [
            "libcuda.so",
            "libcuda.so.1",
            &format!("libcuda.so.{VERSION}"),
        ] {
            let target = format!("{FOLDER}/{name}");
            assert_eq!(
                source(&driver_libraries, &target),
                Some(real.as_path()),
                "{layout:?}"
            );
        }
        for mount in &driver_libraries.mounts {
            assert_eq!(mount.options, ["bind", "ro", "nosuid", "nodev"]);
            assert!(!mount.source.is_symlink());
        }
    }
}

#[test]
fn a_container_gets_the_files_of_its_capabilities_alone() {
    let Some(host) = FakeHost::new(Layout::RedHat) else {
        return;
    };
    let of = |capabilities: &str| {
        let driver_libraries = host.prepared(capabilities).unwrap();
        let mut names: Vec<String> = targets(&driver_libraries)
            .into_iter()
            .map(|target| target.rsplit('/').next().unwrap().to_owned())
            .filter(|name| !name.ends_with(VERSION))
            .collect();
        names.sort();
        names.join(" ")
    };
    let compute = "libcuda.so libcuda.so.1 libnvidia-nvvm.so.4 libnvidia-ptxjitcompiler.so.1";
    assert_eq!(of("utility"), "libnvidia-ml.so.1 nvidia-smi");
    assert_eq!(of("compute"), compute);
    assert_eq!(of("video"), "libnvidia-encode.so.1");
    assert_eq!(of("ngx"), "libnvidia-ngx.so.1");
    assert_eq!(
        of("graphics"),
        "libGLX_indirect.so.0 libGLX_nvidia.so.0 nvidia_icd.json"
    );
    assert_eq!(of("display"), of("graphics"));
    assert_eq!(of(""), of("utility,compute"));
    assert_eq!(of("all").split(' ').count(), 11);
    let error = host.prepared("compute,gl").unwrap_err();
    assert_reports(
        &error,
        &[
            "NVIDIA_DRIVER_CAPABILITIES",
            "\"compute,gl\"",
            "\"gl\"",
            "graphics",
        ],
    );
}

#[test]
fn libraries_of_another_driver_are_a_clear_error() {
    let host = FakeHost::empty();
    let Some(()) = host.install(Layout::Debian, OTHER_VERSION) else {
        return;
    };
    for capabilities in ["compute", "utility", "all"] {
        let error = host.prepared(capabilities).unwrap_err();
        assert_reports(&error, &[VERSION, OTHER_VERSION, "restart the host"]);
    }
    // What asks for neither CUDA nor NVML, and is not there, is not given.
    assert_eq!(
        targets(&host.prepared("video").unwrap()),
        Vec::<String>::new()
    );
    let found = survey(&host.config, VERSION, &host.cards).unwrap_err();
    assert_reports(&host_config::chain(&found), &[OTHER_VERSION]);
}

#[test]
fn a_host_without_libraries_is_a_clear_error_unless_none_are_needed() {
    let mut host = FakeHost::empty();
    let error = host.prepared("").unwrap_err();
    let folder = host.at("/usr/lib64").display().to_string();
    assert_reports(
        &error,
        &[
            "libcuda.so",
            VERSION,
            &folder,
            "driver.root",
            "driver.libraries",
        ],
    );
    host.config.driver.root = "/nonexistent".into();
    assert_reports(&host.prepared("").unwrap_err(), &["/nonexistent"]);
    host.config.driver.libraries = LibrarySource::None;
    assert!(host.prepared("").unwrap().mounts.is_empty());
    assert!(
        survey(&host.config, VERSION, &host.cards)
            .unwrap()
            .libraries
            .is_empty()
    );
}

#[test]
fn simulated_cards_get_nothing() {
    let Some(host) = FakeHost::new(Layout::Debian) else {
        return;
    };
    let mut grant = host.grant(&[0]);
    grant.driver = DriverSpec::Sim {
        socket: "/x".into(),
    };
    let bundle = host.bundle(&[]);
    // Not even a word that means nothing is judged.
    let driver_libraries = host.prepare(&grant, "nonsense", &bundle).unwrap();
    assert!(driver_libraries.mounts.is_empty());
    assert_eq!(driver_libraries.additions, edit::Additions::default());
}

#[test]
fn what_others_could_change_or_lead_out_of_the_root_is_not_given() {
    let Some(host) = FakeHost::new(Layout::Debian) else {
        return;
    };
    let real = host.at(&format!("{}/libcuda.so.{VERSION}", Layout::Debian.folder()));
    let mode =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(&real, 0o666);
    assert_reports(
        &host.prepared("").unwrap_err(),
        &["libcuda.so.570", "mode 666", "root's"],
    );
    mode(&real, 0o644);
    mode(real.parent().unwrap(), 0o777);
    assert_reports(
        &host.prepared("").unwrap_err(),
        &["current belongs to", "mode 777"],
    );
    mode(real.parent().unwrap(), 0o755);
    host.prepared("").unwrap();

    // A link out of the root leads to the root's own file of that name, of which there is none.
    let outside = host.path().join("outside");
    fs::copy(&real, &outside).unwrap();
    link(outside.to_str().unwrap(), &real);
    assert_reports(&host.prepared("").unwrap_err(), &["libcuda.so", VERSION]);
    link(
        &format!("../../../../../../../../../../{}", outside.display()),
        &real,
    );
    host.prepared("").unwrap_err();
    // A pipe in the place of a library is not waited for.
    fs::remove_file(&real).unwrap();
    nix::unistd::mkfifo(&real, nix::sys::stat::Mode::S_IRWXU).unwrap();
    host.prepared("").unwrap_err();
    fs::remove_file(&real).unwrap();
    fs::write(&real, "GROUP ( libcuda.so.1 )").unwrap();
    assert_reports(
        &host.prepared("").unwrap_err(),
        &["libcuda.so.570", "no library"],
    );
}

#[test]
fn a_cache_that_is_none_leaves_the_usual_folders() {
    let Some(host) = FakeHost::new(Layout::RedHat) else {
        return;
    };
    fs::write(host.at("/etc/ld.so.cache"), "nonsense").unwrap();
    let driver_libraries = host.prepared("utility").unwrap();
    assert!(
        source(
            &driver_libraries,
            "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
        )
        .is_some()
    );
}

#[test]
fn a_library_for_another_machine_is_passed_over() {
    let Some(host) = FakeHost::new(Layout::RedHat) else {
        return;
    };
    // As Red Hat has 32-bit libraries in /usr/lib, here in the folder that is looked into first.
    let first = host.at("/usr/lib/x86_64-linux-gnu");
    fs::create_dir_all(&first).unwrap();
    let real = host.at(&format!("/usr/lib64/libcuda.so.{VERSION}"));
    let mut bytes = fs::read(&real).unwrap();
    bytes[18] = 0xb7; // e_machine: AArch64
    fs::write(host.at("/etc/ld.so.cache"), "").unwrap();
    fs::write(first.join(format!("libcuda.so.{VERSION}")), bytes).unwrap();
    let driver_libraries = host.prepared("compute").unwrap();
    assert_eq!(
        source(&driver_libraries, &format!("{FOLDER}/libcuda.so.1")),
        Some(real.as_path())
    );
}

#[test]
fn libraries_of_32_bit_programs_are_given_where_they_are_requested_and_can_be_used() {
    let Some(host) = FakeHost::new(Layout::Debian) else {
        return;
    };
    let folder = host.at("/usr/lib/i386-linux-gnu");
    fs::create_dir_all(&folder).unwrap();
    let name = format!("libcuda.so.{VERSION}");
    let mut bytes = fs::read(host.at(Layout::Debian.folder()).join(&name)).unwrap();
    bytes[18] = 3; // e_machine: 386
    fs::write(folder.join(&name), bytes).unwrap();
    let grant = host.grant(&[0]);
    let both = host.bundle(&[
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
        "/usr/lib/i386-linux-gnu/libc.so.6",
    ]);
    let one = host.bundle(&["/usr/lib/x86_64-linux-gnu/libc.so.6"]);
    for (bundle, capabilities, expected) in [
        (&both, "compute,compat32", true),
        (&both, "compute", false),
        (&both, "compat32", false),
        (&one, "all", false),
    ] {
        let driver_libraries = host.prepare(&grant, capabilities, bundle).unwrap();
        let at = source(&driver_libraries, "/usr/lib/i386-linux-gnu/libcuda.so.1");
        assert_eq!(at.is_some(), expected, "{capabilities}");
        assert!(at.is_none_or(|source| source.starts_with(&folder)));
    }
}

/// The edits with the libraries, twice.
fn edited(host: &FakeHost, minors: &[u32]) -> Value {
    let grant = host.grant(minors);
    let bundle = host.bundle(&["/usr/lib/x86_64-linux-gnu/libc.so.6"]);
    let driver_libraries = host.prepare(&grant, "", &bundle).unwrap();
    let plan = Plan {
        grant: &grant,
        mounts: &driver_libraries.mounts,
        additions: &driver_libraries.additions,
        nodes: &spec::nodes::of(&grant, Some(511), nvabi::proc_files::DeviceFiles::default()),
        uvm_major: Some(511),
        listener: Path::new("/run/notify.sock"),
        seccomp: &SeccompRules::none(),
        other_cards: OtherCards::Refuse,
    };
    let mut value = spec("");
    edit::apply(&mut value, &plan).unwrap();
    let once = value.clone();
    edit::apply(&mut value, &plan).unwrap();
    assert_eq!(value, once, "a second time changes nothing");
    value
}

#[test]
fn the_spec_has_the_granted_card_s_nodes_the_libraries_and_no_other_card_s_state() {
    let Some(host) = FakeHost::new(Layout::Debian) else {
        return;
    };
    let value = edited(&host, &[1]);
    let nodes: Vec<&str> = value["linux"]["devices"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|node| node["path"].as_str())
        .collect();
    assert_eq!(
        nodes,
        [
            "/dev/nvidiactl",
            "/dev/nvidia1",
            "/dev/nvidia-uvm",
            "/dev/nvidia-uvm-tools"
        ]
    );
    // What sysfs has of peer memory is hidden beside it.
    let of_procfs = |spec: &Value| -> Vec<String> {
        let masked = spec["linux"]["maskedPaths"].as_array().unwrap().iter();
        let masked = masked.map(|path| path.as_str().unwrap().to_owned());
        masked.filter(|path| path.starts_with("/proc")).collect()
    };
    assert_eq!(of_procfs(&value), ["/proc/driver/nvidia/gpus/0000:00:00.0"]);
    // Root writes what the driver keeps for all cards to `registry` there, and to that of a granted card.
    let read_only = value["linux"]["readonlyPaths"].as_array().unwrap();
    assert!(read_only.contains(&serde_json::json!("/proc/driver")));
    let mounts = value["mounts"].as_array().unwrap();
    assert_eq!(mounts.len(), 10);
    assert_eq!(mounts[0]["type"], "bind");
    assert!(of_procfs(&edited(&host, &[0, 1])).is_empty());

    // What judges an engine's spec has nothing against these mounts.
    let findings =
        escape_checks::of_container(&value, &OwnPlaces::of(&host.config, None), &ThisHost).unwrap();
    assert!(
        findings.iter().all(|finding| finding.key != "mounts"),
        "{findings:?}"
    );
}

#[test]
fn a_backend_without_a_broker_gets_the_same_libraries() {
    let Some(host) = FakeHost::new(Layout::Debian) else {
        return;
    };
    let bundle = host.bundle(&[]);
    let [held, shared] = [Backend::DriverLimit, Backend::Share].map(|backend| {
        let mut grant = host.grant(&[0]);
        grant.backend = backend;
        targets(&host.prepare(&grant, "", &bundle).unwrap())
    });
    assert_eq!(held, shared);
    assert_eq!(held.len(), 10);
}
