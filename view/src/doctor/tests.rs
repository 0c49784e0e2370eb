use std::path::PathBuf;

use cards::Weakness;
use driver_libraries::Survey as Libraries;
use driver_libraries::uvm_module::Standing as UvmModule;
use host_config::config::{Allow, Authority, IsolationConfig, Strength};

use super::*;
use crate::ps::State;

fn healthy() -> Facts {
    Facts {
        configuration: Ok("/etc/cgpu/cgpu.toml".to_owned()),
        configured: Configured {
            tools: Ok(()),
            own_groups: Ok(()),
            rules: Ok(()),
            default_request: None,
        },
        kernel_release: "6.1.0".to_owned(),
        is_root: true,
        seccomp_notify: Ok(()),
        wait_killable: true,
        pidfd_getfd: Ok(()),
        filters: Ok(()),
        mmap_min_addr: Ok(65536),
        cgroup: Cgroup::V2,
        selinux: None,
        host_engine: false,
        runc: Ok(Runc {
            path: PathBuf::from("/usr/bin/runc"),
            version: "runc version 1.1.5".to_owned(),
            notify: true,
        }),
        broker: Ok(PathBuf::from("/usr/bin/cgpu-broker")),
        programs: Vec::new(),
        engines: Vec::new(),
        driver: HostDriver::Sim,
        driver_version: Ok("570.195.03".parse().unwrap()),
        driver_file: None,
        installed_driver: None,
        cards: Ok(2),
        simulator: Ok(()),
        unhealthy: Ok(Vec::new()),
        unshareable: Vec::new(),
        libraries: None,
        uvm: None,
        node_differences: Vec::new(),
        uvm_disable_hmm: None,
        kubelet: None,
        authority: Authority::Auto,
        claims: ClaimsFacts {
            prepared: Ok(0),
            served_by: None,
        },
        isolation: IsolationConfig::default(),
        backends: Ok(survey(Kind::Broker)),
        state_dir: PathBuf::from("/run/cgpu"),
        state_dir_usable: Ok(()),
        containers: Ok(Vec::new()),
        forsaken: Vec::new(),
        elsewhere: Vec::new(),
    }
}

#[test]
fn a_host_engine_that_listens_is_a_hint_where_there_are_real_cards() {
    let found = |driver, host_engine| {
        let mut facts = healthy();
        facts.driver = driver;
        facts.host_engine = host_engine;
        let checks = assess(&facts).checks;
        checks.into_iter().find(|check| check.name == "DCGM")
    };
    let hint = found(HostDriver::Kernel, true).unwrap();
    assert_eq!(hint.level, Level::Hint);
    assert!(
        hint.remedy
            .is_some_and(|text| text.contains("--domain-socket"))
    );
    assert_eq!(found(HostDriver::Kernel, false), None);
    assert_eq!(found(HostDriver::Sim, true), None);
}

#[test]
fn a_policy_that_keeps_brokers_out_is_named_with_its_remedy() {
    let under = |is_enforcing, answers: &[Option<bool>]| {
        let engine = |may_trace: &Option<bool>| EngineDomain {
            program: "dockerd".to_owned(),
            domain: "dockerd_t".to_owned(),
            may_trace: *may_trace,
        };
        let mut facts = healthy();
        facts.selinux = Some(Selinux {
            is_enforcing,
            containers: "container_t".to_owned(),
            engines: answers.iter().map(engine).collect(),
        });
        let checks = assess(&facts).checks;
        checks.into_iter().find(|check| check.name == "SELinux")
    };
    let named = |check: &Check| check.name == "SELinux";
    assert!(!assess(&healthy()).checks.iter().any(named));
    for (is_enforcing, answers, level, part) in [
        (true, [Some(false)].as_slice(), Level::Broken, "trace no"),
        (true, &[Some(true), Some(false)], Level::Broken, "trace no"),
        (
            true,
            &[Some(true)],
            Level::Ok,
            "dockerd (dockerd_t) may trace",
        ),
        (true, &[None], Level::Hint, "does not tell whether dockerd"),
        (true, &[], Level::Hint, "no engine's daemon"),
        (false, &[Some(false)], Level::Hint, "once it enforces"),
        (false, &[None], Level::Ok, "permissive"),
    ] {
        let check = under(is_enforcing, answers).unwrap();
        assert_eq!(check.level, level, "{check:?}");
        assert!(check.found.contains(part), "{check:?}");
        let is_remedied = check
            .remedy
            .is_some_and(|text| text.contains("semodule -i"));
        assert_eq!(is_remedied, level != Level::Ok);
    }
}

#[test]
fn a_configuration_of_which_each_start_fails_lets_nothing_start() {
    type Wrong = fn(&mut Configured);
    let cases: [(Wrong, &str, bool); 4] = [
        (|it| it.tools = Err("no".into()), "container_tools", false),
        (
            |it| it.own_groups = Err("no".into()),
            "broker's control groups",
            false,
        ),
        (|it| it.rules = Err("no".into()), "rules of cards", false),
        (
            |it| it.default_request = Some(Err("no".into())),
            "request.default",
            true,
        ),
    ];
    for (break_it, name, can_start) in cases {
        let mut facts = healthy();
        break_it(&mut facts.configured);
        let document = assess(&facts);
        assert_eq!((document.can_start, document.is_well), (can_start, false));
        assert!(document.checks.iter().any(|check| check.name == name));
        facts.cgroup = Cgroup::None;
        let can_start = can_start || name == "broker's control groups";
        assert_eq!(assess(&facts).can_start, can_start, "{name}");
    }
}

#[test]
fn the_document_is_as_scripts_know_it() {
    let mut document = assess(&healthy());
    document.reclaimed = Some(vec!["default/c1".to_owned()]);
    crate::snapshot::check(&document, "doctor");
}

fn survey(chosen: Kind) -> Survey {
    let offer = |backend: Kind, strength, why_not: Option<&str>| Offer {
        backend,
        strength,
        why_not: why_not.filter(|_| backend != chosen).map(str::to_owned),
    };
    Survey {
        offers: vec![
            offer(
                Kind::Broker,
                Strength::Exact,
                Some("driver 615.71.09 is not supported"),
            ),
            offer(
                Kind::DriverLimit,
                Strength::Hard,
                Some("the cards are simulated"),
            ),
            offer(Kind::Share, Strength::None, Some("the cards are simulated")),
        ],
        chosen: Ok((chosen, "auto".to_owned())),
    }
}

#[test]
fn a_driver_that_only_its_own_limit_can_hold_is_enough() {
    let mut facts = healthy();
    facts.driver = HostDriver::Kernel;
    facts.driver_version = Ok("615.71.09".parse().unwrap());
    facts.broker = Err("why".into());
    facts.backends = Ok(survey(Kind::DriverLimit));
    let document = assess(&facts);
    let choice = document.choice.unwrap();
    assert_eq!((document.can_start, choice.backend), (true, "driver-limit"));
    assert!(choice.memory.contains("NVIDIA's driver"));
    assert_eq!(
        document.backends[0].why_not.as_deref(),
        Some("driver 615.71.09 is not supported")
    );
    assert_eq!(document.backends[1].why_not, None);

    let mut nothing = survey(Kind::Broker);
    nothing.chosen = Err("driver-limit is not offered (…)".to_owned());
    facts.backends = Ok(nothing);
    let document = assess(&facts);
    assert!(!document.can_start);
    let missing = document
        .checks
        .iter()
        .filter(|check| check.level == Level::Missing);
    assert_eq!(
        missing.map(|check| check.name).collect::<Vec<_>>(),
        ["broker", "driver", "backend"]
    );
}

type Damage = fn(&mut Facts);

#[test]
fn each_missing_thing_stops_a_start_and_reports_how_to_get_it() {
    let damages: [(&str, Damage); 16] = [
        ("card modes", |f| {
            f.unshareable = ["GPU-0", "GPU-1"]
                .map(|uuid| (uuid.to_owned(), "why".to_owned()))
                .to_vec()
        }),
        ("nvidia-uvm", |f| {
            f.uvm = Some(Ok(UvmModule::Missing("why".to_owned())))
        }),
        ("read seccomp filters", |f| {
            f.filters = Err(FiltersUnread::NoTrace("why".into()))
        }),
        ("read seccomp filters", |f| {
            f.filters = Err(FiltersUnread::NoFilters("why".into()))
        }),
        ("user libraries", |f| f.libraries = Some(Err("why".into()))),
        ("seccomp user notification", |f| {
            f.seccomp_notify = Err("why".into())
        }),
        ("pidfd_getfd", |f| f.pidfd_getfd = Err("why".into())),
        ("runc", |f| f.runc = Err("why".into())),
        ("runc", |f| f.runc.as_mut().unwrap().notify = false),
        ("broker", |f| f.broker = Err("why".into())),
        ("driver", |f| f.driver = HostDriver::None),
        ("driver", |f| {
            f.driver_version = Ok("470.1.1".parse().unwrap())
        }),
        ("simulator", |f| f.simulator = Err("why".into())),
        ("cards", |f| f.cards = Ok(0)),
        ("state folder", |f| f.state_dir_usable = Err("why".into())),
        ("configuration", |f| f.configuration = Err("why".into())),
    ];
    for (name, damage) in damages {
        let mut facts = healthy();
        damage(&mut facts);
        let document = assess(&facts);
        assert!(!document.can_start, "{name}");
        assert_eq!(document.choice, None, "{name}");
        let missing: Vec<&Check> = document
            .checks
            .iter()
            .filter(|check| check.level == Level::Missing)
            .collect();
        assert_eq!(missing.len(), 1, "{name}: {missing:?}");
        assert_eq!(missing[0].name, name);
        assert!(missing[0].remedy.is_some(), "{name}");
    }
}

#[test]
fn an_unknown_driver_version_is_reported_with_the_known_ones_and_how_one_is_added() {
    let mut facts = healthy();
    facts.driver_version = Ok("610.43.02".parse().unwrap());
    let checks = assess(&facts).checks;
    let check = checks.iter().find(|check| check.name == "driver").unwrap();
    assert_eq!(check.level, Level::Missing);
    for part in ["610.43.02", "535 from 535.86.05", "595.44.02"] {
        assert!(check.found.contains(part), "{part}: {}", check.found);
    }
    let remedy = check.remedy.as_ref().unwrap();
    assert!(remedy.contains("docs/guide/support.md"), "{remedy}");
}

#[test]
fn a_file_of_the_operators_makes_a_version_known_or_reports_why_not() {
    let mut facts = healthy();
    facts.driver_version = Ok("610.43.02".parse().unwrap());
    let path = PathBuf::from("/etc/cgpu/drivers.d/610.43.02.json");
    let found = |facts: &Facts| {
        let mut checks = assess(facts).checks;
        checks.retain(|check| check.name == "driver");
        checks.remove(0)
    };
    facts.driver_file = Some((path.clone(), Ok("as R595".to_owned())));
    let check = found(&facts);
    assert_eq!(check.level, Level::Ok);
    assert!(
        check.found.ends_with("610.43.02.json as R595"),
        "{}",
        check.found
    );
    facts.driver_file = Some((path, Err("no release has its layouts".to_owned())));
    let check = found(&facts);
    assert_eq!(check.level, Level::Missing);
    assert!(
        check.found.contains("no release has its layouts"),
        "{}",
        check.found
    );
}

#[test]
fn an_installed_driver_that_the_next_boot_cannot_use_is_reported() {
    let mut facts = healthy();
    let version = "610.43.02".parse().unwrap();
    facts.installed_driver = Some((version, Ok(())));
    let reported = |facts: &Facts| {
        let document = assess(facts);
        assert!(document.can_start);
        let mut checks = document.checks.into_iter();
        checks.find(|check| check.name == "installed driver")
    };
    assert!(reported(&facts).is_none());
    facts.installed_driver = Some((version, Err("it is not known".to_owned())));
    let check = reported(&facts).unwrap();
    assert_eq!(check.level, Level::Hint);
    assert!(check.found.contains("610.43.02") && check.found.contains("not known"));
}

fn unhealthy(uuid: &str, used_again: UsedAgain) -> Unhealthy {
    Unhealthy {
        uuid: uuid.to_owned(),
        reason: "why".to_owned(),
        used_again,
    }
}

#[test]
fn the_remedy_is_what_makes_a_card_used_again() {
    let cleared = unhealthy("GPU-0", UsedAgain::WhenCleared);
    let lost = unhealthy("GPU-1", UsedAgain::WhenFound);
    for (cards, repairs, looks) in [
        (vec![cleared.clone()], true, false),
        (vec![lost.clone()], false, true),
        (vec![cleared, lost], true, true),
    ] {
        let check = standing::cards("cards", 3, &Ok(cards));
        let remedy = check.remedy.unwrap();
        assert_eq!(remedy.contains("--repair --card"), repairs, "{remedy}");
        assert_eq!(remedy.contains("`cgpu cards`"), looks, "{remedy}");
    }
}

#[test]
fn one_card_unhealthy_and_the_other_not_shared_leave_none() {
    let mut facts = healthy();
    let reason = |uuid: &str| vec![(uuid.to_owned(), "why".to_owned())];
    facts.unhealthy = Ok(vec![unhealthy("GPU-0", UsedAgain::WhenCleared)]);
    facts.unshareable = reason("GPU-0");
    assert!(assess(&facts).can_start);
    facts.unshareable = reason("GPU-1");
    assert!(!assess(&facts).can_start);
}

#[test]
fn what_only_makes_it_worse_does_not_stop_a_start() {
    let mut facts = healthy();
    facts.wait_killable = false;
    facts.cgroup = Cgroup::None;
    facts.containers = Ok(vec![Container {
        name: "default/c1".to_owned(),
        state: Ok(State::Stale),
    }]);
    facts.filters = Err(FiltersUnread::NotTried("why".into()));
    facts.node_differences = vec!["/dev/nvidia-uvm is 510:0".to_owned()];
    facts.unshareable = vec![("GPU-1".to_owned(), "is in MIG mode".to_owned())];
    facts.uvm = Some(Ok(UvmModule::Loadable {
        modprobe: "/sbin/modprobe".into(),
    }));
    let document = assess(&facts);
    assert!(document.can_start);
    let hints = document
        .checks
        .iter()
        .filter(|check| check.level == Level::Hint);
    assert_eq!(hints.count(), 7);
}

#[test]
fn user_libraries_are_named_by_source_and_what_is_left_out() {
    let mut facts = healthy();
    let found = |facts: &Facts| {
        let check = assess(facts)
            .checks
            .into_iter()
            .find(|check| check.name == "user libraries");
        check.map(|check| (check.level, check.found))
    };
    assert_eq!(found(&facts), None);
    let mut libraries = Libraries {
        source: "CDI spec /etc/cdi/nvidia.yaml".to_owned(),
        libraries: vec![
            "libcuda.so.570.195.03".to_owned(),
            "libnvidia-ml.so.570.195.03".to_owned(),
        ],
        left_out: vec![
            "/dev/dri/card0".to_owned(),
            "/dev/nvidia-modeset".to_owned(),
        ],
    };
    facts.libraries = Some(Ok(libraries.clone()));
    let text = "CDI spec /etc/cdi/nvidia.yaml: 2; containers do not get /dev/dri/card0, /dev/nvidia-modeset";
    assert_eq!(found(&facts), Some((Level::Ok, text.to_owned())));
    libraries.libraries.clear();
    libraries.source = "none (driver.libraries = none)".to_owned();
    facts.libraries = Some(Ok(libraries.clone()));
    assert_eq!(found(&facts), Some((Level::Ok, libraries.source)));
}

#[test]
fn who_can_ask_for_a_pod_s_vgpu_is_reported_where_there_are_pods() {
    let check = |kubelet: Option<&str>, authority: Authority| {
        let mut facts = healthy();
        facts.kubelet = kubelet.map(PathBuf::from);
        facts.authority = authority;
        let mut checks = assess(&facts).checks.into_iter();
        checks.find(|check| check.name == "pods")
    };
    let kubelet = Some("/var/lib/kubelet/pods");
    assert_eq!(check(None, Authority::Auto), None);
    let claims = check(kubelet, Authority::Auto).unwrap();
    assert_eq!(claims.level, Level::Hint);
    assert!(claims.found.contains("/var/lib/kubelet/pods"), "{claims:?}");
    for kubelet in [kubelet, None] {
        let open = check(kubelet, Authority::Annotations);
        assert_eq!(open.is_some(), kubelet.is_some());
        if let Some(open) = open {
            assert_eq!(open.level, Level::Hint);
            assert!(open.found.contains("any amount"), "{open:?}");
        }
    }
    assert!(check(None, Authority::Claims).is_some());
}

#[test]
fn claims_are_served_by_a_driver_and_a_record_that_cannot_be_read_stops_all_starts() {
    let check = |prepared: Result<usize, String>, served_by: Option<KubeletServer>| {
        let mut facts = healthy();
        facts.kubelet = Some(PathBuf::from("/var/lib/kubelet/pods"));
        facts.claims = ClaimsFacts {
            prepared,
            served_by,
        };
        let assessed = assess(&facts);
        let is_well = assessed.is_well;
        let mut checks = assessed.checks.into_iter();
        (checks.find(|check| check.name == "pods").unwrap(), is_well)
    };
    for (server, name) in [
        (KubeletServer::Driver, "gpu.cgpu.io"),
        (KubeletServer::DevicePlugin, "device plugin"),
    ] {
        let (served, _) = check(Ok(3), Some(server));
        assert_eq!(served.level, Level::Ok);
        let found = &served.found;
        assert!(
            found.contains("prepared: 3") && found.contains(name),
            "{found}"
        );
    }
    let (unserved, _) = check(Ok(3), None);
    assert_eq!(unserved.level, Level::Hint);
    assert!(unserved.remedy.unwrap().contains("cgpu-agent --kubernetes"));
    let (broken, is_well) = check(Err("claims/x.json cannot be read".to_owned()), None);
    assert_eq!((broken.level, is_well), (Level::Broken, false));
    assert!(broken.found.contains("claims/x.json"), "{broken:?}");
}

#[test]
fn what_loosens_isolation_is_recorded() {
    let found = |facts: &Facts, name: &str| {
        assess(facts)
            .checks
            .into_iter()
            .find(|check| check.name == name)
    };
    let mut facts = healthy();
    assert_eq!(found(&facts, "mode").unwrap().level, Level::Ok);
    assert_eq!(found(&facts, "HMM"), None);
    assert_eq!(found(&facts, "allowed beside a quota"), None);
    facts.isolation.mode = Mode::Compat;
    facts.isolation.allow = Allow::of(&[Weakness::Dri]);
    facts.isolation.io_uring = IoUring::Deny;
    let registered = "registered memory";
    assert_eq!(found(&facts, registered).unwrap().level, Level::Ok);
    facts.driver = HostDriver::Kernel;
    assert_eq!(found(&facts, registered).unwrap().level, Level::Hint);
    facts.isolation.registered_memory = RegisteredMemory::Refuse;
    assert_eq!(found(&facts, registered).unwrap().level, Level::Ok);
    facts.driver = HostDriver::Sim;
    for (text, level) in [("Y\n", Level::Ok), ("N\n", Level::Hint)] {
        facts.uvm_disable_hmm = Some(text.to_owned());
        assert_eq!(found(&facts, "HMM").unwrap().level, level, "{text:?}");
    }
    assert_eq!(found(&facts, "mode").unwrap().level, Level::Hint);
    let allowed = found(&facts, "allowed beside a quota").unwrap();
    assert!(allowed.found.starts_with("dri:"), "{allowed:?}");
    assert!(
        found(&facts, "io_uring")
            .unwrap()
            .found
            .starts_with("denied")
    );
    assert!(assess(&facts).can_start);
}

/// The simulator does not read `cgpu.toml`.
#[test]
fn a_simulator_for_another_state_folder_is_named_with_it() {
    let remedy = |state_dir: &str| {
        let mut facts = healthy();
        facts.driver = HostDriver::None;
        facts.state_dir = PathBuf::from(state_dir);
        let checks = assess(&facts).checks;
        let driver = checks.iter().find(|check| check.name == "driver").unwrap();
        driver.remedy.clone().unwrap()
    };
    assert!(remedy("/run/cgpu").ends_with("`cgpu-sim --profile two-ada`"));
    let other = remedy("/srv/cgpu");
    assert!(
        other.ends_with("`cgpu-sim --profile two-ada --state-dir /srv/cgpu`"),
        "{other}"
    );
}
