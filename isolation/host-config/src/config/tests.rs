use cards::Weakness;

use super::*;

fn parse(text: &str) -> Result<Config, String> {
    Config::from_text(Path::new("/etc/cgpu/cgpu.toml"), text).map_err(|error| sys::chain(&error))
}

#[test]
fn an_empty_file_is_all_defaults() {
    assert_eq!(parse("").unwrap(), Config::default());
}

#[test]
fn defaults_hold_where_there_is_no_file_and_nowhere_else() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let load = |name: &str| Config::from_trusted_or_default(&at(name));
    let folders = ["full", "empty"].map(|name| std::fs::create_dir(at(name)));
    assert!(folders.iter().all(Result::is_ok));
    std::fs::write(at("full/cgpu.toml"), "state_dir = \"/run/other\"\n").unwrap();
    for (link, to) in [
        ("to-full", "full"),
        ("to-empty", "empty"),
        ("nowhere", "absent"),
        ("round", "round"),
        ("empty/dangling.toml", "/mnt/absent/cgpu.toml"),
        ("empty/round.toml", "round.toml"),
    ] {
        symlink(to, at(link)).unwrap();
    }
    for absent in ["empty/cgpu.toml", "absent/cgpu.toml", "to-empty/cgpu.toml"] {
        assert_eq!(load(absent).unwrap(), Config::default(), "{absent}");
    }
    for present in ["full/cgpu.toml", "to-full/cgpu.toml"] {
        let found = load(present).unwrap();
        assert_eq!(found.state_dir, Path::new("/run/other"), "{present}");
    }
    for unknown in [
        "empty/dangling.toml",
        "empty/round.toml",
        "nowhere/cgpu.toml",
        "round/cgpu.toml",
        "full/cgpu.toml/cgpu.toml",
    ] {
        let error = load(unknown).unwrap_err();
        assert!(sys::chain(&error).contains(unknown), "{error}");
    }
}

#[test]
fn every_wrong_value_is_named_with_what_is_allowed() {
    for (text, expected) in [
        (
            "memroy = 1",
            &["/etc/cgpu/cgpu.toml", "memroy", "state_dir"][..],
        ),
        (
            "[driver]\nkind = \"fake\"",
            &["fake", "auto", "kernel", "sim"],
        ),
        ("[driver]\nkidn = \"sim\"", &["kidn", "kind"]),
        (
            "[driver]\nroot = \"driver\"",
            &["driver.root", "driver", "an absolute path"],
        ),
        (
            "[driver]\nreleases = \"drivers.d\"",
            &["driver.releases", "drivers.d", "an absolute path"],
        ),
        (
            "[driver]\nlibraries = \"yes\"",
            &["yes", "auto", "cdi", "discover", "none"],
        ),
        ("[driver]\ncdi = \"on\"", &["on", "auto", "off", "absolute"]),
        ("[driver]\ncdi = [\"etc/cdi\"]", &["etc/cdi", "absolute"]),
        ("[driver]\ncdi = []", &["length 0", "absolute"]),
        ("[driver]\ncdi = true", &["true", "auto", "off"]),
        (
            "[driver]\nlibraries = \"cdi\"\ncdi = \"off\"",
            &["driver.libraries", "cdi", "discover"],
        ),
        (
            "[placement]\npolicy = \"random\"",
            &["random", "binpack", "spread"],
        ),
        (
            "[broker]\nstart_timeout_ms = 0",
            &["broker.start_timeout_ms", "0", "1 to 600000"],
        ),
        (
            "[broker]\nhung_call_ms = 99",
            &["broker.hung_call_ms", "99", "100 to 3600000"],
        ),
        (
            "[isolation]\nreconcile_ms = 0",
            &["isolation.reconcile_ms", "0", "100 to 3600000"],
        ),
        (
            "[isolation]\nhost_memory = \"8\"",
            &["isolation.host_memory", "8", "a number with a unit"],
        ),
        (
            "[isolation]\ncapabilities = [\"compute\"]",
            &["compute", "graphics", "video"],
        ),
        (
            "[isolation]\ncapabilities = \"video\"",
            &["capabilities", "video", "sequence"],
        ),
        ("[broker]\nstart_timeout_ms = -1", &["-1"]),
        ("[broker]\nstart_timeout_ms = \"soon\"", &["soon"]),
        (
            "state_dir = \"run\"",
            &["state_dir", "run", "an absolute path"],
        ),
        ("runc = \"runc\"", &["runc", "an absolute path"]),
        (
            "[request]\nenvironment = \"no\"",
            &["no", "request", "tighten_only"],
        ),
        (
            "[request]\ndefault = \"lots\"",
            &["line 2", "request.default", "lots", "docker -m"],
        ),
        (
            "[request]\ndefault = true",
            &["request.default", "true", "such as \"4Gi\"", "cards"],
        ),
        ("[request.default]\ncards = 2", &["request.default.memory"]),
        (
            "[request.default]\nmemory = \"4Gi\"\ncards = 0",
            &["request.default.cards", "\"0\"", "how many cards"],
        ),
        (
            "[request.default]\nmemory = \"4Gi\"\nshare-group = \"g\"",
            &["request.default.share-group", "memory, cards"],
        ),
        (
            "[request.default]\nmemory = \"4Gi\"\ncards = [1]",
            &["request.default.cards", "[1]", "whole numbers"],
        ),
        (
            "[request.default]\nmemory = \"4Gi\"\npriority = \"high\"\ncompute = 30",
            &[
                "request.default",
                "exclude each other",
                "priority high",
                "(30)",
            ],
        ),
        (
            "[request.default]\nmemory = \"4Gi\"\npolicy = \"native\"\ncompute = 30",
            &["request.default", "policy native"],
        ),
        ("[request]\nstrict = \"yes\"", &["strict", "yes"]),
        ("[request]\nstrikt = true", &["strikt", "strict", "default"]),
        ("state_dir = ", &["line 1"]),
        (
            "[backend]\nkind = \"mig\"",
            &["mig", "auto", "broker", "driver-limit", "share"],
        ),
        (
            "[backend]\nkind = \"share\"",
            &["backend.min_strength", "hard", "none, since"],
        ),
        (
            "[backend]\nkind = \"driver-limit\"\nmin_strength = \"exact\"",
            &["backend.min_strength", "exact", "none or hard"],
        ),
        (
            "[backend]\nmin_strength = \"some\"",
            &["some", "none", "hard", "exact"],
        ),
        (
            "[backend]\nnvml_library = \"libnvidia-ml.so.1\"",
            &["backend.nvml_library", "an absolute path"],
        ),
        (
            "[isolation]\nmode = \"observe\"",
            &["mode", "observe", "strict", "compat"],
        ),
        (
            "[isolation]\nmanaged = \"yes\"",
            &["managed", "yes", "charge", "deny", "allow"],
        ),
        (
            "[isolation]\non_violation = \"warn\"",
            &["on_violation", "warn", "log", "kill"],
        ),
        (
            "[isolation]\nio_uring = true",
            &["isolation.io_uring", "true", "allow or deny"],
        ),
        (
            "[isolation]\nregistered_memory = true",
            &["isolation.registered_memory", "true", "allow or refuse"],
        ),
        (
            "[request]\ncgpu_disable = true",
            &["request.cgpu_disable", "true", "obey or refuse"],
        ),
        (
            "container_tools = false",
            &["container_tools", "false", "or off"],
        ),
        (
            "[isolation]\nreconcile_ms = -1",
            &["isolation.reconcile_ms", "-1", "100 to 3600000"],
        ),
        (
            "[isolation]\nreconcile_ms = \"5s\"",
            &["isolation.reconcile_ms", "5s", "100 to 3600000"],
        ),
        (
            "[isolation]\ncard_figures = \"hide\"",
            &["card_figures", "hide", "show", "refuse"],
        ),
        (
            "[isolation]\nregistered_memory = \"deny\"",
            &["registered_memory", "deny", "allow", "refuse"],
        ),
        (
            "[isolation]\nallow = [\"cap-sys-admin\", \"everything\"]",
            &[
                "allow",
                "everything",
                "cap-sys-admin",
                "host-devices",
                "privileged",
                "other-cards",
            ],
        ),
        (
            "[compute]\npolicy = \"fair\"",
            &["compute.policy", "fair", "0 or fair-share", "5 or native"],
        ),
        (
            "[compute]\npolicy = 6",
            &["compute.policy", "6", "4 or soft"],
        ),
        (
            "[compute]\nmax_tenants = 0",
            &["compute.max_tenants", "0", "1 to 25"],
        ),
        ("[compute]\nmax_tenants = 101", &["101", "to 100"]),
        ("[compute]\nmax_tenants = -1", &["-1"]),
        (
            "[compute]\nprio_ratio = 100",
            &["compute.prio_ratio", "100", "20 to 99"],
        ),
        ("[compute]\nprio_ratio = 19", &["19", "20 to 99"]),
        (
            "[compute]\nidle = \"lend\"",
            &["idle", "lend", "borrow", "waste"],
        ),
        (
            "[compute]\nmode = \"exact\"",
            &["mode", "exact", "best-effort", "strict"],
        ),
        (
            "[compute]\nfail = \"shut\"",
            &["fail", "shut", "open", "closed"],
        ),
        ("[compute]\nmax = 3", &["max", "max_tenants", "prio_ratio"]),
        ("[isolation]\nallow = \"dri\"", &["allow", "dri"]),
        (
            "[isolation]\ndata_folders = [\"/data\", \"data\"]",
            &["isolation.data_folders", "data", "absolute"],
        ),
        (
            "[isolation]\ndata_folders = [\"/opt/..\"]",
            &["isolation.data_folders", "/opt/..", "without"],
        ),
        ("[isolation]\ndata_folders = [\"/\"]", &["not /"]),
        ("[isolation]\nalow = []", &["alow", "allow", "on_violation"]),
    ] {
        let error = parse(text).unwrap_err();
        for part in expected {
            assert!(error.contains(part), "{text:?}: {error:?} lacks {part:?}");
        }
    }
}

#[test]
fn a_default_request_is_an_amount_or_a_table_of_terms() {
    let terms = |text: &str| -> Vec<(String, String)> {
        let default = parse(text).unwrap().request.default.unwrap();
        default
            .terms()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    };
    let memory = |amount: &str| ("cgpu.io/memory".to_owned(), amount.to_owned());
    assert_eq!(terms("[request]\ndefault = \"4Gi\""), [memory("4Gi")]);
    assert_eq!(
        terms("[request.default]\nmemory = \"25%\"\ncompute = 30\npolicy = \"fixed\""),
        [
            ("cgpu.io/compute".to_owned(), "30".to_owned()),
            memory("25%"),
            ("cgpu.io/policy".to_owned(), "fixed".to_owned()),
        ]
    );
    assert_eq!(parse("").unwrap().request.default, None);
}

#[test]
fn a_card_s_policy_is_named_or_numbered() {
    use cards::grant::ComputePolicy;
    for text in ["\"fair-share\"", "\"0\"", "0"] {
        let config = parse(&format!("[compute]\npolicy = {text}")).unwrap();
        assert_eq!(config.compute.rules(1).policy, ComputePolicy::FairShare);
    }
    let config = parse("[compute]\nmax_tenants = 4\nprio_ratio = 99\nidle = \"waste\"");
    let rules = config.unwrap().compute.rules(2);
    assert_eq!((rules.max_tenants, rules.prio_ratio_percent), (4, 99));
    assert_eq!(rules.idle, plan::Idle::Waste);
}

#[test]
fn what_is_let_through_is_named_one_by_one_or_as_what_an_engine_calls_privileged() {
    let allow = |text: &str| parse(text).unwrap().isolation.allow;
    let some = allow("[isolation]\nallow = [\"dri\", \"mps\"]");
    assert_eq!(some, Allow::of(&[Weakness::Mps, Weakness::Dri]));
    assert_eq!(some.other_cards, OtherCards::Refuse);
    let privileged = allow("[isolation]\nallow = [\"privileged\", \"other-cards\"]");
    assert!(privileged.lets_through(Weakness::CapSysAdmin));
    assert!(!privileged.lets_through(Weakness::EngineSocket));
    assert_eq!(privileged.other_cards, OtherCards::LeaveOut);
    for weakness in Weakness::ALL {
        let one = allow(&format!("[isolation]\nallow = [\"{}\"]", weakness.name()));
        assert_eq!(one, Allow::of(&[*weakness]));
        // CAP_SYS_ADMIN contains it.
        assert_eq!(
            one.lets_through(Weakness::CapPerfmon),
            matches!(weakness, Weakness::CapPerfmon | Weakness::CapSysAdmin)
        );
    }
}

#[test]
fn what_is_wrong_with_metrics_is_the_agent_s_matter() {
    for (text, wrong) in [
        ("[metrics]\nlisten = 9402", "metrics.listen = 9402"),
        (
            "[metrics]\ndialects = \"cgpu,ack\"",
            "metrics.dialects = \"cgpu,ack\"",
        ),
        ("[metrics]\nlistn = 1", "metrics.listn = 1"),
        ("metrics = true", "metrics = true"),
    ] {
        let config = parse(text).unwrap();
        let error = config.metrics.read().unwrap_err().to_string();
        assert!(error.starts_with(wrong), "{error}");
    }
    assert_eq!(parse("").unwrap().metrics.read().unwrap().dialects.len(), 2);
}
