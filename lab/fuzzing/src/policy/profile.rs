//! Seccomp profiles: whatever the engine's is, the driver's calls are the broker's or fail.

use arbitrary::Unstructured;
use arch::Arch;
use serde_json::{Value, json};
use verdict::filter::{self, Action};

use super::{EditedFor, compiled, edited};

pub(super) const ACTIONS: [(&str, u32); 9] = [
    ("SCMP_ACT_ALLOW", 0x7fff_0000),
    ("SCMP_ACT_ERRNO", 0x0005_0000),
    ("SCMP_ACT_KILL", 0),
    ("SCMP_ACT_KILL_THREAD", 0),
    ("SCMP_ACT_KILL_PROCESS", 0x8000_0000),
    ("SCMP_ACT_TRAP", 0x0003_0000),
    ("SCMP_ACT_LOG", 0x7ffc_0000),
    ("SCMP_ACT_TRACE", 0x7ff0_0000),
    ("SCMP_ACT_NOTIFY", 0x7fc0_0000),
];
pub(super) const OPERATORS: [(&str, u32); 7] = [
    ("SCMP_CMP_NE", 1),
    ("SCMP_CMP_LT", 2),
    ("SCMP_CMP_LE", 3),
    ("SCMP_CMP_EQ", 4),
    ("SCMP_CMP_GE", 5),
    ("SCMP_CMP_GT", 6),
    ("SCMP_CMP_MASKED_EQ", 7),
];
const CALLS: [&str; 5] = ["ioctl", "mmap", "seccomp", "read", "no_such_call"];
const OPERANDS: [u64; 20] = [
    0,
    1,
    8,
    9,
    0x20,
    0x21,
    0xff,
    0x5401,
    0x1_0000,
    0xffff,
    0x3fff_00ff,
    0xffff_ffff,
    0xc020_462a,
    0xc030_462b,
    0xc020_002a,
    0xc010_46d3,
    0x20_002a,
    0x3000_0001,
    0x21_0000_0000,
    u64::MAX,
];

fn rule(input: &mut Unstructured<'_>) -> arbitrary::Result<Value> {
    let names: Vec<&str> = (0..input.int_in_range(1..=3_u8)?)
        .map(|_| input.choose(&CALLS).copied())
        .collect::<arbitrary::Result<_>>()?;
    let action = input.choose(&ACTIONS)?.0;
    let mut rule = json!({"names": names, "action": action});
    if input.ratio(1, 2)? {
        rule["errnoRet"] = json!(*input.choose(&[0, 1, 16, 22, 25, 38])?);
    }
    let args: Vec<Value> = (0..input.int_in_range(0..=3_u8)?)
        .map(|_| {
            let operator = input.choose(&OPERATORS)?.0;
            let index = *input.choose(&[1_u64, 1, 1, 0, 3, 5, 2])?;
            let mut condition = json!({
                "index": index,
                "value": *input.choose(&OPERANDS)?,
                "op": operator,
            });
            if operator == "SCMP_CMP_MASKED_EQ" || input.ratio(1, 8)? {
                condition["valueTwo"] = json!(*input.choose(&OPERANDS)?);
            }
            Ok(condition)
        })
        .collect::<arbitrary::Result<_>>()?;
    if !args.is_empty() {
        rule["args"] = Value::Array(args);
    }
    Ok(rule)
}

/// A profile of the right shape, edited, and compiled where there is a compiler of profiles.
pub(super) fn seccomp(input: &mut Unstructured<'_>, terms: &EditedFor) -> arbitrary::Result<()> {
    let mut profile = json!({"defaultAction": input.choose(&ACTIONS)?.0});
    if input.ratio(1, 3)? {
        profile["defaultErrnoRet"] = json!(*input.choose(&[1, 16, 22, 25, 38])?);
    }
    if input.ratio(1, 2)? {
        profile["architectures"] = json!(["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]);
    }
    let rules: Vec<Value> = (0..input.int_in_range(0..=5_u8)?)
        .map(|_| rule(input))
        .collect::<arbitrary::Result<_>>()?;
    profile["syscalls"] = Value::Array(rules);
    let before = profile.clone();
    let spec = json!({"ociVersion": "1.0.2", "linux": {"seccomp": profile}});
    let Some(once) = edited(&spec, terms) else {
        return Ok(());
    };
    check_shape(&once);
    let twice = edited(&once, terms).expect("an edited specification can be edited");
    assert_eq!(once.to_string(), twice.to_string());
    check_effect(&before, &once["linux"]["seccomp"], terms, input)
}

/// What can be seen without compiling: no call of ours goes unconditionally. Of several unconditional rules on a call
/// libseccomp keeps the first, and runc skips those that say what the default says.
pub(super) fn check_shape(spec: &Value) {
    let profile = &spec["linux"]["seccomp"];
    let empty = Vec::new();
    let rules = profile["syscalls"].as_array().unwrap_or(&empty);
    for call in ["ioctl", "mmap", "seccomp"] {
        let first = rules.iter().find(|rule| {
            let names = rule["names"].as_array().unwrap_or(&empty);
            let args = rule["args"].as_array().unwrap_or(&empty);
            names.iter().any(|name| name == call)
                && args.is_empty()
                && compiled::reports(rule) != compiled::reports_by_default(profile)
        });
        if let Some(rule) = first {
            assert!(denies(&rule["action"]), "{rule} in {profile}");
        }
    }
}

fn denies(action: &Value) -> bool {
    [
        "SCMP_ACT_KILL",
        "SCMP_ACT_KILL_THREAD",
        "SCMP_ACT_KILL_PROCESS",
        "SCMP_ACT_TRAP",
        "SCMP_ACT_ERRNO",
    ]
    .iter()
    .any(|denial| action == denial)
}

/// Whether a filter's answer lets a call go on.
fn lets_go(answer: u32) -> bool {
    // Allow, log, and trace: a tracer is the tenant's own.
    matches!(
        answer & 0xffff_0000,
        0x7fff_0000 | 0x7ffc_0000 | 0x7ff0_0000
    )
}

/// The compiled filter over the calls that must not pass.
fn check_effect(
    before: &Value,
    after: &Value,
    terms: &EditedFor,
    input: &mut Unstructured<'_>,
) -> arbitrary::Result<()> {
    // runc itself refuses what cannot be compiled: no container, no hole.
    let Some(Ok(program)) = compiled::program(after) else {
        return Ok(());
    };
    let (free, high) = (input.arbitrary::<u32>()?, input.arbitrary::<u32>()?);
    let other: [u64; 6] = input.arbitrary()?;
    let decide = |nr, args| {
        bpf::run(
            &program,
            bpf::Call {
                nr,
                arch: Arch::X86_64.audit(),
                args,
            },
        )
        .expect("a program")
    };
    let context = |what: &str| format!("{what}\nbefore {before}\nafter {after}");
    for rule in &terms.seccomp.ioctl {
        for bits in [0, free, !rule.when.mask] {
            let command = rule.when.value | (bits & !rule.when.mask);
            let mut args = other;
            args[1] = u64::from(command) | (u64::from(high) << 32);
            let answer = decide(16, args);
            assert!(
                !lets_go(answer),
                "{}",
                context(&format!("{} {:#x} ends {answer:#x}", rule.name, args[1]))
            );
            if matches!(rule.action, Action::Errno(_)) {
                assert_ne!(answer & 0xffff_0000, bpf::NOTIFY, "{}", context(rule.name));
            }
        }
    }
    let mut mapping = other;
    mapping[3] = (mapping[3] & !0x21) | 1;
    let [first, second] = filter::MMAP.fixed.map(u64::from);
    for (fixed, offset) in [
        (0, filter::MMAP.least_offset_bytes),
        (first, 0),
        (second, 0),
    ] {
        let mut mapping = mapping;
        mapping[3] |= fixed;
        mapping[5] |= offset;
        let answer = decide(9, mapping);
        assert!(
            !lets_go(answer),
            "{}",
            context(&format!("mmap {mapping:x?} ends {answer:#x}"))
        );
    }
    let answer = decide(216, other);
    assert!(
        !lets_go(answer),
        "{}",
        context(&format!("remap_file_pages ends {answer:#x}"))
    );
    let mut listener = other;
    listener[0] = 1 | (u64::from(high) << 32);
    listener[1] |= 8;
    let answer = decide(317, listener);
    assert!(
        !lets_go(answer),
        "{}",
        context(&format!("seccomp {listener:x?} ends {answer:#x}"))
    );
    Ok(())
}
