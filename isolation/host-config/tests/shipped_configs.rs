//! The shipped `cgpu.toml` says what the programs read. The engines' files are compared by `cgpu install`'s own tests.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use cards::Weakness;
use host_config::Config;
use host_config::config::{
    BackendConfig, BrokerConfig, ContainerTools, IsolationConfig, RequestConfig,
};

fn shipped(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../configs")
        .join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn cgpu_toml_as_shipped_is_all_defaults() {
    assert_eq!(
        Config::from_text(Path::new("cgpu.toml"), &shipped("cgpu.toml")).unwrap(),
        Config::default()
    );
}

#[test]
fn cgpu_toml_names_every_key_with_its_default() {
    let keys: String = shipped("cgpu.toml")
        .lines()
        .map(|line| {
            line.strip_prefix('#')
                .filter(|key| !key.starts_with(' '))
                .unwrap_or(line)
        })
        .fold(String::new(), |text, line| text + line + "\n");
    let config = Config::from_text(Path::new("cgpu.toml"), &keys).unwrap();
    // Without a fixed default; the file shows an example.
    assert_eq!(config.runc, Some(PathBuf::from("/usr/sbin/runc")));
    assert_eq!(
        config.container_tools,
        ContainerTools::File(PathBuf::from("/usr/lib/cgpu/static/cgpu"))
    );
    assert_eq!(
        config.broker.path,
        Some(PathBuf::from("/usr/libexec/cgpu/cgpu-broker"))
    );
    assert_eq!(
        config.backend.limits_program,
        Some(PathBuf::from("/usr/libexec/cgpu/cgpu-limits"))
    );
    assert!(config.backend.nvml_library.is_some());
    assert_eq!(config.isolation.host_memory, Some(8 << 30));
    assert!(config.request.default.is_some());
    let without_examples = Config {
        request: RequestConfig {
            default: None,
            ..config.request
        },
        isolation: IsolationConfig {
            host_memory: None,
            ..config.isolation
        },
        backend: BackendConfig {
            limits_program: None,
            nvml_library: None,
            ..config.backend
        },
        runc: None,
        container_tools: ContainerTools::Installed,
        broker: BrokerConfig {
            path: None,
            ..config.broker
        },
        ..config
    };
    assert_eq!(without_examples, Config::default());
}

#[test]
fn cgpu_toml_explains_every_name_that_can_be_allowed() {
    let text = shipped("cgpu.toml");
    let words: Vec<&str> = text
        .split(|byte: char| !(byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == '-'))
        .collect();
    for name in Weakness::ALL
        .iter()
        .map(|weakness| weakness.name())
        .chain(["privileged", "other-cards"])
    {
        assert!(words.contains(&name), "{name}");
    }
}
