//! What a profile becomes: the OCI form as runc hands it to libseccomp, and libseccomp's program.
//!
//! libseccomp runs in a program of its own that is compiled at the first use; a machine without it or without a C compiler
//! has no oracle, and the profiles' effect is then not judged.

use arch::Arch;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use serde_json::Value;

use super::profile::{ACTIONS, OPERATORS};

const SOURCE: &str = include_str!("oracle.c");
/// `EPERM`, what runc fails a call with when a profile names no number.
const DEFAULT_ERRNO: u32 = 1;

/// Whether profiles can be compiled here.
#[must_use]
pub fn has_compiler() -> bool {
    oracle().is_some()
}

/// The program of a profile, or libseccomp's errno; `None` where there is no oracle or runc itself refuses the profile.
pub(super) fn program(profile: &Value) -> Option<Program> {
    let oracle = oracle()?;
    let text = lines(profile)?;
    let mut oracle = oracle.lock().unwrap_or_else(PoisonError::into_inner);
    Some(oracle.program(text))
}

/// A rule's action, or a profile's default, as a number; `None` for what runc does not know.
pub(super) fn reports(rule: &Value) -> Option<u32> {
    action(rule, "action", "errnoRet")
}

pub(super) fn reports_by_default(profile: &Value) -> Option<u32> {
    action(profile, "defaultAction", "defaultErrnoRet")
}

/// An action as libseccomp numbers it.
fn action(object: &Value, action_key: &str, errno_key: &str) -> Option<u32> {
    let name = object.get(action_key)?.as_str()?;
    let (_, number) = ACTIONS.iter().find(|(known, _)| *known == name)?;
    let takes_number = matches!(name, "SCMP_ACT_ERRNO" | "SCMP_ACT_TRACE");
    let given = object.get(errno_key).and_then(Value::as_u64);
    let errno = match (takes_number, given) {
        (false, _) => 0,
        (true, None) => DEFAULT_ERRNO,
        (true, Some(given)) => u32::try_from(given & 0xffff).ok()?,
    };
    Some(number | errno)
}

/// The oracle's input; `None` for what runc refuses.
fn lines(profile: &Value) -> Option<String> {
    let default = reports_by_default(profile)?;
    if profile["defaultAction"] == "SCMP_ACT_NOTIFY" {
        return None;
    }
    let mut text = format!("D {default:x}\n");
    for architecture in profile["architectures"].as_array().into_iter().flatten() {
        let token = match architecture.as_str()? {
            "SCMP_ARCH_X86_64" => Arch::X86_64.audit(),
            "SCMP_ARCH_X86" => 0x4000_0003,
            "SCMP_ARCH_X32" => 0x4000_003e,
            _ => return None,
        };
        writeln!(text, "A {token:x}").ok()?;
    }
    for rule in profile["syscalls"].as_array()? {
        let action = reports(rule)?;
        // A rule that says what the default says is skipped by runc.
        if action == default {
            continue;
        }
        let conditions = rule["args"]
            .as_array()
            .map_or(&[][..], Vec::as_slice)
            .iter()
            .map(condition)
            .collect::<Option<Vec<_>>>()?;
        for name in rule["names"].as_array()? {
            let name = name.as_str()?;
            let repeated = conditions
                .iter()
                .enumerate()
                .any(|(at, one)| conditions.iter().take(at).any(|other| other.0 == one.0));
            // All conditions hold together, unless two are on one argument: then each is a rule of its own.
            if repeated {
                for one in &conditions {
                    writeln!(text, "R {action:x} {name} 1{}", one.1).ok()?;
                }
            } else {
                let all: String = conditions.iter().map(|one| one.1.as_str()).collect();
                writeln!(text, "R {action:x} {name} {}{all}", conditions.len()).ok()?;
            }
        }
    }
    text.push_str("E\n");
    Some(text)
}

/// An argument's index, and its condition as the oracle reads it.
fn condition(condition: &Value) -> Option<(u64, String)> {
    let field = |key| condition.get(key).and_then(Value::as_u64);
    let index = field("index")?;
    let name = condition.get("op")?.as_str()?;
    let (_, operator) = OPERATORS.iter().find(|(known, _)| *known == name)?;
    let (value, second) = (field("value")?, field("valueTwo").unwrap_or(0));
    Some((index, format!(" {index} {operator} {value:x} {second:x}")))
}

/// Programs kept: many inputs make the same profile.
const KEPT_MAX: usize = 8192;

type Program = Result<Vec<bpf::Instruction>, i32>;

struct Oracle {
    kept: HashMap<String, Program>,
    /// Ends when its standard input does, with this process.
    _process: Child,
    to: ChildStdin,
    from: ChildStdout,
}

impl Oracle {
    fn program(&mut self, text: String) -> Program {
        if let Some(program) = self.kept.get(&text) {
            return program.clone();
        }
        let program = self.ask(&text).expect("the oracle answers");
        if self.kept.len() >= KEPT_MAX {
            self.kept.clear();
        }
        self.kept.insert(text, program.clone());
        program
    }

    fn ask(&mut self, text: &str) -> std::io::Result<Program> {
        self.to.write_all(text.as_bytes())?;
        self.to.flush()?;
        let mut head = [0; 4];
        self.from.read_exact(&mut head)?;
        let head = i32::from_le_bytes(head);
        let Ok(count) = usize::try_from(head) else {
            return Ok(Err(head));
        };
        let mut bytes = vec![0; count * 8];
        self.from.read_exact(&mut bytes)?;
        let program = bytes.chunks_exact(8).map(|it| bpf::Instruction {
            code: u16::from_le_bytes([it[0], it[1]]),
            jt: it[2],
            jf: it[3],
            k: u32::from_le_bytes([it[4], it[5], it[6], it[7]]),
        });
        Ok(Ok(program.collect()))
    }
}

fn oracle() -> Option<&'static Mutex<Oracle>> {
    static ORACLE: OnceLock<Option<Mutex<Oracle>>> = OnceLock::new();
    ORACLE.get_or_init(|| start().map(Mutex::new)).as_ref()
}

fn start() -> Option<Oracle> {
    let dir = tempfile::tempdir().ok()?;
    let (source, program) = (dir.path().join("oracle.c"), dir.path().join("oracle"));
    std::fs::write(&source, SOURCE).ok()?;
    let compiled = Command::new("cc")
        .args(["-O1", "-D_GNU_SOURCE", "-o"])
        .args([&program, &source])
        .arg("-l:libseccomp.so.2")
        .stderr(Stdio::null())
        .status();
    if !compiled.is_ok_and(|status| status.success()) {
        return None;
    }
    let mut process = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let (to, from) = (process.stdin.take()?, process.stdout.take()?);
    Some(Oracle {
        kept: HashMap::new(),
        _process: process,
        to,
        from,
    })
}
