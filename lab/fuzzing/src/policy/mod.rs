//! What a container asks for and what its specification becomes: requests, configuration, edits.

mod compiled;
mod json;
mod profile;

use arch::Arch;
use std::path::Path;
use std::sync::OnceLock;

use arbitrary::Unstructured;
use cards::grant::{self, Frontend};
use cards::placement::Amount;
use cards::{CardGrant, ComputeTerms, ContainerKey, DriverSpec, FrontendKind, GpuUuid, Grant};
use host_config::Config;
use host_config::config::{EnvironmentRule, OtherCards};
use host_config::terms::{APPLIED_KEY, PREFIX};
use nvabi::Release;
use nvabi::escape::KEY_MASK;
use serde_json::{Map, Value, json};
use spec::Request;
use spec::edit::{Additions, Plan, SeccompRules, applied_for, apply, apply_to_exec};
use spec::request::{Reading, Whose};
use verdict::filter::{Action, Coverage, FilterSpec, IoctlRule};

pub use self::compiled::has_compiler;

/// Where the played container's listener goes.
const LISTENER: &str = "/run/cgpu/vgpus/n/c/notify.sock";

/// The body.
pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    // Input that is too short for a choice ends the run.
    choose(&mut input).unwrap_or_default();
}

fn choose(input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let way = input.int_in_range(0..=5_u8)?;
    let terms = EditedFor::read(input)?;
    match way {
        0 => {
            let text = input.bytes(input.len())?;
            raw(text, &terms);
            Ok(())
        }
        1 => request(input, &terms),
        2 => configuration(input),
        3 => edits(input, &terms),
        _ => profile::seccomp(input, &terms),
    }
}

/// Text of any kind where JSON or TOML is read.
fn raw(text: &[u8], terms: &EditedFor) {
    if let Ok(text) = std::str::from_utf8(text) {
        drop(Config::from_text(Path::new("/etc/cgpu/cgpu.toml"), text));
    }
    if let Ok(value) = serde_json::from_slice::<Value>(text) {
        judge(&value, terms);
    }
}

/// Everything that reads a specification, over one.
fn judge(spec: &Value, terms: &EditedFor) {
    let before = spec.to_string();
    for config in configurations() {
        let first = Request::from_spec(&config, Whose::default(), spec);
        if let Ok(Some(request)) = &first {
            check_request(request);
        }
        let again = Request::from_spec(&config, Whose::default(), spec);
        match (first, again) {
            (Ok(first), Ok(again)) => assert_eq!(first, again),
            (Err(first), Err(again)) => assert_eq!(first.to_string(), again.to_string()),
            (first, again) => panic!("{first:?}, then {again:?}"),
        }
        if let Ok(reading) = Reading::of(&config, Whose::default(), spec, FrontendKind::Shim) {
            assert!(!config.request.strict || reading.near_miss.is_none());
            assert!(reading.near_miss.is_none() || reading.request.is_some() == reading.is_default);
        }
    }
    drop(applied_for(spec));
    assert_eq!(
        before,
        spec.to_string(),
        "reading changed the specification"
    );
    check_edits(spec, terms);
    if let Some(process) = spec.get("process") {
        let mut once = process.clone();
        if apply_to_exec(&mut once).is_ok() {
            let mut twice = once.clone();
            apply_to_exec(&mut twice).expect("an edited process is a process");
            assert_eq!(once.to_string(), twice.to_string());
        }
    }
}

fn configurations() -> [Config; 3] {
    let tightening = {
        let mut config = Config::default();
        config.request.environment = EnvironmentRule::TightenOnly;
        config
    };
    let giving = "[request]\ndefault = \"25%\"";
    let giving =
        Config::from_text(Path::new("/etc/cgpu/cgpu.toml"), giving).expect("a configuration");
    [Config::default(), tightening, giving]
}

fn check_request(request: &Request) {
    match &request.request.amount {
        Amount::TotalBytes(bytes) => assert!(*bytes >= 1 << 20, "{bytes}"),
        Amount::AtMost { total_bytes, share } => {
            assert!(*total_bytes >= 1 << 20, "{total_bytes}");
            assert!((1..=share.device).contains(&share.container), "{share:?}");
        }
        Amount::Share(share) => {
            assert!((1..=share.device).contains(&share.container), "{share:?}");
        }
        _ => {}
    }
    let compute = &request.compute;
    assert!(compute.percent.is_none_or(|it| (1..=100).contains(&it)));
    assert!(compute.weight.is_none_or(|it| (1..=1000).contains(&it)));
}

/// A request with known keys; annotations and environment meet.
fn request(input: &mut Unstructured<'_>, terms: &EditedFor) -> arbitrary::Result<()> {
    let annotations = json::terms(input, &json::ANNOTATIONS)?;
    let variables = json::terms(input, &json::VARIABLES)?;
    let spec = |variables: &[(String, String)]| {
        let annotations: Map<String, Value> = annotations
            .iter()
            .map(|(key, value)| (key.clone(), json!(value)))
            .collect();
        let variables: Vec<String> = variables
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        json!({"ociVersion": "1.0.2", "annotations": annotations, "process": {"env": variables}})
    };
    let with = spec(&variables);
    judge(&with, terms);
    let asks = annotations
        .iter()
        .any(|(key, _)| key.starts_with(PREFIX) && key != APPLIED_KEY);
    let [config, tightening, _giving] = configurations();
    let wide = Request::from_spec(&config, Whose::default(), &spec(&[]));
    let narrow = Request::from_spec(&config, Whose::default(), &with);
    if !asks {
        // The environment alone gets nothing; one that cannot be read may be refused.
        assert!(!matches!(
            Request::from_spec(&tightening, Whose::default(), &with),
            Ok(Some(_))
        ));
    }
    // Beside annotations the environment only narrows.
    if let (true, Ok(Some(wide)), Ok(Some(narrow))) = (asks, &wide, &narrow) {
        let bytes = |amount: &Amount| match amount {
            Amount::TotalBytes(bytes) => *bytes,
            Amount::AtMost { total_bytes, .. } => *total_bytes,
            _ => u64::MAX,
        };
        assert_eq!(bytes(&narrow.request.amount), bytes(&wide.request.amount));
        assert_eq!(narrow.request.cards, wide.request.cards);
        assert!(narrow.compute.weight <= wide.compute.weight.or(narrow.compute.weight));
        assert_eq!(narrow.compute.percent, wide.compute.percent);
        assert_eq!(narrow.compute.policy, wide.compute.policy);
        assert_eq!(narrow.compute.priority, wide.compute.priority);
    }
    Ok(())
}

/// A configuration of known tables and keys.
fn configuration(input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let mut text = String::new();
    while !input.is_empty() && text.len() < 4096 {
        if input.ratio(1, 3)? {
            text.push_str(&format!("[{}]\n", input.choose(&json::TABLES)?));
        }
        let key = *input.choose(&json::KEYS)?;
        let value = match input.int_in_range(0..=3_u8)? {
            0 => input.arbitrary::<i64>()?.to_string(),
            1 => json::word(input)?,
            2 => format!("{:?}", json::word(input)?),
            _ => (*input.choose(&json::TOML_VALUES)?).to_owned(),
        };
        text.push_str(&format!("{key} = {value}\n"));
    }
    let path = Path::new("/etc/cgpu/cgpu.toml");
    if let Ok(config) = Config::from_text(path, &text) {
        assert!(config.state_dir.is_absolute());
        assert!(config.runc.is_none_or(|runc| runc.is_absolute()));
        assert!((1..=600_000).contains(&config.broker.start_timeout_ms));
        assert!((1..=600_000).contains(&config.broker.stop_timeout_ms));
    }
    Ok(())
}

/// A specification like an engine's, with anything in any place.
fn edits(input: &mut Unstructured<'_>, terms: &EditedFor) -> arbitrary::Result<()> {
    let mut spec = json::specification(input)?;
    for _change in 0..input.int_in_range(0..=3_u8)? {
        json::change(&mut spec, input)?;
    }
    judge(&spec, terms);
    Ok(())
}

fn check_edits(spec: &Value, terms: &EditedFor) {
    let Some(once) = edited(spec, terms) else {
        return;
    };
    let twice = edited(&once, terms).expect("an edited specification can be edited");
    assert_eq!(once.to_string(), twice.to_string(), "a second edit changes");
    // A frontend has read the annotations before it edits: other values than texts do not come that far.
    if applied_for(spec).is_ok() {
        let key = ContainerKey::new("n", "c").expect("a name");
        assert_eq!(applied_for(&once).expect("a mark"), Some(key));
    }
    assert_eq!(
        json::without_ours(spec).to_string(),
        json::without_ours(&once).to_string(),
        "the edit touched what is not its own"
    );
    profile::check_shape(&once);
}

/// What a specification is edited for.
struct EditedFor {
    driver: DriverSpec,
    seccomp: SeccompRules,
    other_cards: OtherCards,
}

impl EditedFor {
    fn read(input: &mut Unstructured<'_>) -> arbitrary::Result<Self> {
        let is_kernel = input.arbitrary()?;
        let all = all_rules(is_kernel);
        // What an edit costs grows with the square of the rules: mostly a few of each form are enough.
        let ioctl = if input.ratio(1, 64)? {
            all.to_vec()
        } else {
            let of_mask = |mask| all.iter().filter(move |rule| rule.when.mask == mask);
            let closed = |rule: &&IoctlRule| matches!(rule.action, Action::Errno(_));
            let skipped = input.int_in_range(0..=9_usize)?;
            of_mask(KEY_MASK)
                .skip(skipped)
                .take(2)
                .chain(of_mask(KEY_MASK).filter(closed).take(1))
                .chain(of_mask(0xffff).take(1))
                .chain(of_mask(u32::MAX).skip(skipped).take(1))
                .copied()
                .collect::<Vec<_>>()
        };
        let mut seen = Vec::new();
        let ioctl = ioctl
            .into_iter()
            .filter(|rule| {
                let is_new = !seen.contains(&rule.when);
                seen.push(rule.when);
                is_new
            })
            .collect();
        Ok(Self {
            driver: if is_kernel {
                DriverSpec::Kernel
            } else {
                DriverSpec::Sim {
                    socket: "/run/cgpu/sim/sim.sock".into(),
                }
            },
            seccomp: SeccompRules { ioctl },
            other_cards: *input.choose(&[OtherCards::LeaveOut, OtherCards::Refuse])?,
        })
    }
}

/// The real rules, made once.
fn all_rules(is_kernel: bool) -> &'static [IoctlRule] {
    static RULES: OnceLock<[Vec<IoctlRule>; 2]> = OnceLock::new();
    let [simulated, kernel] = RULES.get_or_init(|| {
        [Coverage::Simulated, Coverage::Production].map(|coverage| {
            let release = Release::R570;
            SeccompRules::of(&FilterSpec {
                release,
                coverage,
                arch: Arch::NATIVE,
            })
            .ioctl
        })
    });
    if is_kernel { kernel } else { simulated }
}

/// The specification after all edits; `None` where it was refused.
fn edited(spec: &Value, terms: &EditedFor) -> Option<Value> {
    let grant = Grant {
        version: grant::VERSION,
        key: ContainerKey::new("n", "c").expect("a name"),
        driver: terms.driver.clone(),
        driver_version: "570.195.03".to_owned(),
        layouts: None,
        cards: vec![CardGrant {
            uuid: GpuUuid::new("GPU-0").expect("a name"),
            minor: 0,
            quota_bytes: 1 << 30,
        }],
        compute: ComputeTerms::default(),
        isolation: cards::Isolation::default(),
        claims: Vec::new(),
        backend: cards::Backend::Broker,
        backend_reason: String::new(),
        frontend: Frontend {
            kind: FrontendKind::Runtime,
            pid: 0,
        },
        bundle: None,
        created_at_unix_ms: 0,
    };
    let mut edited = spec.clone();
    let done = apply(
        &mut edited,
        &Plan {
            grant: &grant,
            mounts: &[],
            additions: &Additions::default(),
            nodes: &spec::nodes::of(&grant, Some(510), nvabi::proc_files::DeviceFiles::default()),
            uvm_major: Some(510),
            listener: Path::new(LISTENER),
            seccomp: &terms.seccomp,
            other_cards: terms.other_cards,
        },
    );
    done.is_ok().then_some(edited)
}
