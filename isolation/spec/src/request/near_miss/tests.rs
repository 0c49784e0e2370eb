//! What is nearly a request, and what is far from one.

use cards::FrontendKind;
use host_config::Config;
use proptest::prelude::*;
use serde_json::json;

use super::super::{Amount, Choice, Reading, Request, Whose};
use super::*;

/// A container's spec.
fn spec(annotations: &[(&str, &str)], environment: &[&str]) -> Value {
    let annotations: serde_json::Map<String, Value> = annotations
        .iter()
        .map(|(key, value)| ((*key).to_owned(), json!(value)))
        .collect();
    json!({
        "ociVersion": "1.0.2",
        "annotations": annotations,
        "process": {"env": environment},
        "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]},
    })
}

fn configured(text: &str) -> Config {
    Config::from_text(Path::new("cgpu.toml"), text).unwrap()
}

fn read(config: &Config, spec: &Value) -> Result<Reading, String> {
    Reading::of(config, Whose::default(), spec, FrontendKind::Shim)
        .map_err(|error| host_config::chain(&error))
}

/// What is said of a container that gets nothing by an empty configuration.
fn reply(annotations: &[(&str, &str)], environment: &[&str]) -> Option<String> {
    let reading = read(&Config::default(), &spec(annotations, environment)).unwrap();
    assert_eq!(reading.request, None);
    reading.near_miss.map(|near_miss| near_miss.to_string())
}

#[test]
fn a_request_that_is_missed_is_found_with_what_to_write() {
    for (annotations, environment, parts) in [
        (
            &[][..],
            &["ALIYUN_COM_GPU_MEM_CONTAINR=4", "ALIYUN_COM_GPU_MEM_DEV=24"][..],
            &[
                "ALIYUN_COM_GPU_MEM_CONTAINR = \"4\"",
                "write ALIYUN_COM_GPU_MEM_CONTAINER ",
            ][..],
        ),
        (
            &[],
            &["ALYIUN_COM_GPU_MEM_CONTAINER=4"],
            &["write ALIYUN_COM_GPU_MEM_CONTAINER "],
        ),
        (
            &[],
            &["aliyun_com_gpu_mem_container=4"],
            &["write ALIYUN_COM_GPU_MEM_CONTAINER "],
        ),
        (
            &[],
            &["ALIYUN_COM_GPU_SHCD_WEIGHT=4"],
            &["write ALIYUN_COM_GPU_SCHD_WEIGHT"],
        ),
        (
            &[],
            &["ALIYUN_COM_GPU_SOMETHING_ELSE=4"],
            &["ALIYUN_COM_GPU_SOMETHING_ELSE = \"4\" is unknown"],
        ),
        (
            &[],
            &["ALIYUN_COM_GPU_MEM_POD=4", "ALIYUN_COM_GPU_MEM_DEV=24"],
            &[
                "sum over a pod's containers",
                "ALIYUN_COM_GPU_MEM_CONTAINER",
            ],
        ),
        (
            &[],
            &["ALIYUN_COM_GPU_MEM_DEV=24"],
            &[
                "ALIYUN_COM_GPU_MEM_DEV = \"24\" asks for nothing without ALIYUN_COM_GPU_MEM_CONTAINER",
            ],
        ),
        (
            &[],
            &["ALIYUN_COM_GPU_VISIBLE_DEVICES=0"],
            &["asks for nothing without"],
        ),
        (
            &[],
            &["CGPU_MEMORY=4g"],
            &["CGPU_MEMORY", "cgpu.io/memory=4g"],
        ),
        (
            &[],
            &["CGPU_MEM=lots"],
            &["write the annotation cgpu.io/memory=4Gi"],
        ),
        (
            &[],
            &["cgpu_wieght=4"],
            &["cgpu.io/weight beside cgpu.io/memory"],
        ),
        (&[], &["CGPU_SHARE_GROUP=a"], &["cgpu.io/share-group"]),
        (
            &[("cgpu/memory", "4Gi")],
            &[],
            &["the annotation cgpu/memory = \"4Gi\" is unknown: write cgpu.io/memory=4Gi"],
        ),
        (
            &[("cpgu.io/memory", "4Gi")],
            &[],
            &["unknown: write cgpu.io/memory=4Gi"],
        ),
        (
            &[("CGPU.IO/Memory", "4Gi")],
            &[],
            &["unknown: write cgpu.io/memory=4Gi"],
        ),
        (
            &[("cgpu.io.memory", "4Gi")],
            &[],
            &["unknown: write cgpu.io/memory=4Gi"],
        ),
        (
            &[("cgpu-memroy", "4Gi")],
            &[],
            &["unknown: write cgpu.io/memory=4Gi"],
        ),
        (&[("cgpu.com/cards", "2")], &[], &["cgpu.io/cards beside"]),
        (
            &[("ALIYUN_COM_GPU_MEM_CONTAINER", "4")],
            &[],
            &["variable of the environment"],
        ),
        (
            &[("nvidia.com/gpumem", "4096")],
            &[],
            &["HAMi", "cgpu.io/memory=4096Mi"],
        ),
        (
            &[("nvidia.com/gpumem-percentage", "50")],
            &[],
            &["HAMi", "cgpu.io/memory=50%"],
        ),
        (
            &[("nvidia.com/gpucores", "30")],
            &[],
            &["HAMi", "cgpu.io/compute=30 beside cgpu.io/memory"],
        ),
        (&[("nvidia.com/gpu", "1")], &[], &["cgpu.io/cards=1 beside"]),
        (
            &[],
            &["CUDA_DEVICE_MEMORY_LIMIT=4g"],
            &["HAMi", "cgpu.io/memory=4g"],
        ),
        (
            &[],
            &["CUDA_DEVICE_MEMORY_LIMIT=1073741824"],
            &["cgpu.io/memory=1024Mi"],
        ),
        (
            &[],
            &["CUDA_DEVICE_MEMORY_LIMIT_0=4096m"],
            &["cgpu.io/memory=4096m"],
        ),
        (
            &[],
            &["NVIDIA_VISIBLE_DEVICES=all"],
            &[
                "NVIDIA_VISIBLE_DEVICES = \"all\"",
                "NVIDIA_VISIBLE_DEVICES=void",
            ],
        ),
        (
            &[(
                "io.kubernetes.cri-o.Labels",
                r#"{"app":"a","cgpu.io/memory":"4Gi"}"#,
            )],
            &[],
            &["the label cgpu.io/memory = \"4Gi\"", "as an annotation"],
        ),
    ] {
        let text = reply(annotations, environment).unwrap_or_default();
        for part in parts.iter().copied().chain(["cgpu.io/memory=4Gi"]) {
            assert!(
                text.contains(part),
                "{annotations:?} {environment:?}: {text:?} lacks {part:?}"
            );
        }
    }
}

#[test]
fn what_is_no_request_in_any_spelling_is_left_alone() {
    for (annotations, environment) in [
        (&[][..], &[][..]),
        (&[], &["PATH=/bin", "GPU_MEMORY=4", "MEMORY=4Gi", "CGPU=1"]),
        (&[], &["NVIDIA_VISIBLE_DEVICES=void"]),
        (&[], &["NVIDIA_VISIBLE_DEVICES=none"]),
        (&[], &["NVIDIA_VISIBLE_DEVICES="]),
        (
            &[],
            &["NVIDIA_DRIVER_CAPABILITIES=all", "CUDA_VERSION=12.4"],
        ),
        (
            &[],
            &["CUDA_VISIBLE_DEVICES=0", "CUDA_DEVICE_MEMORY_LIMITS=4g"],
        ),
        (&[], &["CGPU_CONFIG=/x", "CGPU_HOOK=1", "CGPU_DISABLE=0"]),
        // Whoever disables it knows what it is.
        (&[], &["ALIYUN_COM_GPU_MEM_CONTAINR=4", "CGPU_DISABLE=1"]),
        (&[], &["NVIDIA_VISIBLE_DEVICES=all", "CGPU_DISABLE=true"]),
        (
            &[
                ("some.org/memory", "4Gi"),
                ("nvidia.com/gpu.product", "A100"),
            ],
            &[],
        ),
        (
            &[("cgpu.example.com/owner", "me"), ("cpu.memory", "4Gi")],
            &[],
        ),
        (
            &[("io.kubernetes.cri-o.Labels", r#"{"app":"cgpu.io"}"#)],
            &[],
        ),
        (&[("io.kubernetes.cri-o.Labels", "no JSON")], &[]),
    ] {
        assert_eq!(reply(annotations, environment), None, "{environment:?}");
    }
}

#[test]
fn nvidias_hooks_are_seen_where_they_act() {
    let with = |path: &str, environment: &[&str]| {
        let mut spec = spec(&[], environment);
        spec["hooks"] = json!({"prestart": [{"path": "/usr/bin/other"}, {"path": path}]});
        let reading = read(&Config::default(), &spec).unwrap();
        reading.near_miss.map(|near_miss| near_miss.to_string())
    };
    // As dockerd writes it for `--gpus all`.
    let gpus = with(
        "/usr/bin/nvidia-container-runtime-hook",
        &["NVIDIA_VISIBLE_DEVICES=all"],
    );
    let text = gpus.unwrap();
    assert!(
        text.contains("docker --gpus") && text.contains("nvidia-container-runtime-hook"),
        "{text}"
    );
    assert!(!text.contains("for NVIDIA's own runtime"), "{text}");
    // CDI's own specs hide the cards from the other hook, and give their nodes.
    with("/usr/bin/nvidia-cdi-hook", &["NVIDIA_VISIBLE_DEVICES=void"]).unwrap();
    for (path, environment) in [
        (
            "/usr/bin/nvidia-container-runtime-hook",
            &["NVIDIA_VISIBLE_DEVICES=void"][..],
        ),
        ("/usr/bin/nvidia-container-runtime-hook.sh", &[]),
        ("/usr/bin/podman-hook", &[]),
    ] {
        assert_eq!(with(path, environment), None, "{path}");
    }
    for hooks in [
        json!(1),
        json!([]),
        json!({"prestart": {}}),
        json!({"prestart": [1, {}]}),
    ] {
        let mut spec = spec(&[], &[]);
        spec["hooks"] = hooks;
        assert_eq!(read(&Config::default(), &spec).unwrap().near_miss, None);
    }
}

#[test]
fn a_container_with_a_request_misses_none() {
    let environment = [
        "ALIYUN_COM_GPU_MEM_CONTAINER=4",
        "ALIYUN_COM_GPU_MEM_DEV=24",
        "ALIYUN_COM_GPU_MEM_POD=4",
        "NVIDIA_VISIBLE_DEVICES=all",
    ];
    let reading = read(
        &configured("[request]\nstrict = true"),
        &spec(&[], &environment),
    )
    .unwrap();
    assert!(reading.request.is_some() && reading.near_miss.is_none());
}

#[test]
fn where_the_environment_may_not_ask_that_is_reported() {
    let config = configured("[request]\nenvironment = \"tighten_only\"");
    let environment = [
        "ALIYUN_COM_GPU_MEM_CONTAINER=4",
        "ALIYUN_COM_GPU_MEM_DEV=24",
    ];
    let reading = read(&config, &spec(&[], &environment)).unwrap();
    assert_eq!(reading.request, None);
    let text = reading.near_miss.unwrap().to_string();
    assert!(text.contains("tighten_only"), "{text}");
}

#[test]
fn names_and_values_are_quoted_and_cut_and_there_are_few() {
    let long = format!("CGPU_MEMORY={}", "x\n".repeat(1000));
    let text = reply(&[], &[&long]).unwrap();
    assert!(
        text.len() < 600 && !text.contains('\n') && text.contains('…'),
        "{text}"
    );
    for value in [format!("{}4Gi", "0".repeat(1000)), "4\n \nGi".to_owned()] {
        let text = reply(&[], &[&format!("CGPU_MEMORY={value}")]).unwrap();
        assert!(text.len() < 600 && !text.contains('\n'), "{text}");
    }
    let long_name = format!("ALIYUN_COM_GPU_{}=1", "X".repeat(1000));
    assert_eq!(reply(&[], &[&long_name]), None);
    let many: Vec<String> = (0..1000)
        .map(|at| format!("ALIYUN_COM_GPU_X{at}=1"))
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let text = reply(&[], &many).unwrap();
    assert!(
        text.contains("; and 997 more") && text.len() < 1024,
        "{text}"
    );
}

#[test]
fn a_strict_host_refuses_what_is_nearly_a_request_and_nothing_else() {
    let strict = configured("[request]\nstrict = true");
    let error = read(&strict, &spec(&[("cgpu/memory", "4Gi")], &[])).unwrap_err();
    for part in [
        "cgpu/memory",
        "cgpu.io/memory=4Gi",
        "[request] strict",
        "CGPU_DISABLE=1",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let plain = read(&strict, &spec(&[], &["NVIDIA_VISIBLE_DEVICES=void"])).unwrap();
    assert_eq!((plain.request, plain.near_miss), (None, None));
    // Of a sandbox nothing is missed: its pod's annotations are for the pod's containers.
    let mut sandbox = spec(
        &[
            ("nvidia.com/gpumem", "4096"),
            ("io.kubernetes.cri.container-type", "sandbox"),
            ("io.kubernetes.cri.sandbox-id", "5a4d"),
        ],
        &["NVIDIA_VISIBLE_DEVICES=all"],
    );
    assert_eq!(read(&strict, &sandbox).unwrap().near_miss, None);
    sandbox["annotations"]["io.kubernetes.cri.container-type"] = json!("container");
    read(&strict, &sandbox).unwrap_err();
}

#[test]
fn a_pods_author_who_names_a_container_has_reported_what_the_others_get() {
    let of_pod = |named: &str| {
        spec(
            &[
                ("io.kubernetes.cri.container-type", "container"),
                ("io.kubernetes.cri.sandbox-id", "5a4d"),
                ("io.kubernetes.cri.container-name", "sidecar"),
                (named, "4Gi"),
            ],
            &["NVIDIA_VISIBLE_DEVICES=all"],
        )
    };
    let config = configured("[request]\nstrict = true\ndefault = \"1Gi\"");
    let reading = read(&config, &of_pod("cgpu.io/memory.app")).unwrap();
    assert_eq!((reading.request, reading.near_miss), (None, None));
    read(&config, &of_pod("cgpu.io/memroy.app")).unwrap_err();
}

/// The default's request, or none.
fn default(config: &Config, spec: &Value) -> Option<Request> {
    let reading = read(config, spec).unwrap();
    assert_eq!(reading.is_default, reading.request.is_some());
    reading.request
}

#[test]
fn a_container_without_a_request_gets_the_host_s_default() {
    let config = configured("[request.default]\nmemory = \"25%\"\ncards = 2\nweight = 3");
    let request = default(&config, &spec(&[], &[])).unwrap();
    assert!(matches!(request.request.amount, Amount::Share(_)));
    assert_eq!(request.request.cards, Choice::Count(2));
    assert_eq!(request.compute.weight, Some(3));
    // The environment narrows it, as it narrows annotations.
    let narrowed = default(&config, &spec(&[], &["ALIYUN_COM_GPU_SCHD_WEIGHT=2"])).unwrap();
    assert_eq!(narrowed.compute.weight, Some(2));
    // Who wants none gets none.
    for wants_none in [
        "CGPU_DISABLE=1",
        "NVIDIA_VISIBLE_DEVICES=void",
        "NVIDIA_VISIBLE_DEVICES=none",
        "NVIDIA_VISIBLE_DEVICES=",
    ] {
        assert_eq!(
            default(&config, &spec(&[], &[wants_none])),
            None,
            "{wants_none}"
        );
    }
    // A request of its own is its own alone.
    let own = read(&config, &spec(&[("cgpu.io/memory", "1Gi")], &[])).unwrap();
    assert!(!own.is_default);
    let own = own.request.unwrap();
    assert_eq!(own.request.amount, Amount::TotalBytes(1 << 30));
    assert_eq!(
        (own.request.cards, own.compute.weight),
        (Choice::Count(1), None)
    );
    // podman's hook is called for every container of the host.
    let by_hook = Reading::of(
        &config,
        Whose::default(),
        &spec(&[], &[]),
        FrontendKind::Hook,
    )
    .unwrap();
    assert_eq!(by_hook.request, None);
}

#[test]
fn a_default_is_for_a_pods_containers_and_meets_the_pods_own_terms() {
    let config = configured("[request.default]\nmemory = \"2Gi\"\npriority = \"low\"");
    let of_pod = |kind: &str, own: (&str, &str)| {
        spec(
            &[
                ("io.kubernetes.cri.container-type", kind),
                ("io.kubernetes.cri.sandbox-id", "5a4d"),
                ("io.kubernetes.cri.container-name", "app"),
                own,
            ],
            &[],
        )
    };
    assert_eq!(default(&config, &of_pod("sandbox", ("a", "b"))), None);
    let request = default(&config, &of_pod("container", ("cgpu.io/priority", "high"))).unwrap();
    assert_eq!(request.request.amount, Amount::TotalBytes(2 << 30));
    assert_eq!(request.compute.priority, cards::grant::Priority::High);
    let place = request.pod.unwrap();
    assert_eq!(
        (place.container.as_str(), place.amount),
        ("app", super::super::AmountOf::Container)
    );
    // Where claims alone count, its author has no say in it.
    let config = configured(
        "[request.default]\nmemory = \"2Gi\"\npriority = \"low\"\n[kubernetes]\nauthority = \"claims\"",
    );
    for own in [("cgpu.io/priority", "high"), ("cgpu.io/cards", "8")] {
        let request = default(&config, &of_pod("container", own)).unwrap();
        assert_eq!(request.request.cards, Choice::Count(1));
        assert_eq!(request.compute.priority, cards::grant::Priority::Low);
    }
}

#[test]
fn a_default_holds_as_any_request_does_and_reports_whose_it_is() {
    let config = configured("[request]\ndefault = \"4Gi\"");
    let mut privileged = spec(&[], &[]);
    privileged["process"]["capabilities"] = json!({"bounding": ["CAP_SYS_ADMIN"]});
    let error = read(&config, &privileged).unwrap_err();
    for part in ["[request] default", "CAP_SYS_ADMIN", "CGPU_DISABLE=1"] {
        assert!(error.contains(part), "{error}");
    }
    // Both are heard: the default is what there is, the near miss what may have been meant.
    let reading = read(&config, &spec(&[("cgpu/memory", "8Gi")], &[])).unwrap();
    assert!(reading.is_default && reading.near_miss.is_some());
}

proptest! {
    #[test]
    fn no_spec_is_too_strange(
        names in proptest::collection::vec("[A-Z_a-z./]{0,30}|(ALIYUN_COM_GPU_|CGPU_|cgpu[./])[A-Za-z_]{0,20}", 0..6),
        value in ".{0,60}",
    ) {
        let annotations: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), value.as_str())).collect();
        let environment: Vec<String> = names.iter().map(|name| format!("{name}={value}")).collect();
        let environment: Vec<&str> = environment.iter().map(String::as_str).collect();
        for config in [Config::default(), configured("[request]\nstrict = true\ndefault = \"1Gi\"")] {
            for spec in [spec(&annotations, &[]), spec(&[], &environment)] {
                if let Ok(Reading { near_miss: Some(near_miss), .. }) = read(&config, &spec) {
                    let text = near_miss.to_string();
                    prop_assert!(text.len() < 4096 && !text.contains('\n'));
                }
            }
        }
    }

    /// One slip anywhere in a name of cGPU's is found.
    #[test]
    fn every_slip_is_found(at in 0..27_usize, slip in 0..3_u8, letter in "[A-Z]") {
        let mut name: Vec<char> = CONTAINER.chars().collect();
        match slip {
            0 => { name.remove(at); }
            1 => name.insert(at, letter.chars().next().unwrap()),
            _ => name[at] = letter.chars().next().unwrap(),
        }
        let name: String = name.into_iter().collect();
        if name != CONTAINER {
            let text = reply(&[], &[&format!("{name}=4")]).unwrap_or_default();
            let needed = format!("write {CONTAINER}");
            prop_assert!(text.contains(&needed), "{}: {}", name, text);
        }
    }
}
