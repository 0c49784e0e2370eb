//! The program against a library that plays NVML: the real way of loading, with what can go wrong. Skips aloud without a C
//! compiler.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use limits::{Answer, CardLimit, CardUse, Error, Question, Refusal, UNLIMITED_BYTES, What, ask};

const GIB: u64 = 1 << 30;
/// More than any answer takes.
const IN_ALL: Duration = Duration::from_secs(60);

/// A folder with a played driver of two cards, of which MIG divides the second.
struct Driver(tempfile::TempDir);

impl Driver {
    fn new(options: &[&str]) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("libnvidia-ml.so.1");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(format!("-DSTATE_DIR=\"{}\"", dir.path().display()))
            .arg("-DVERSION=\"615.71.09\"")
            .args(options)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_nvml.c"))
            .status();
        match compiled {
            Err(error) => {
                println!("SKIP: no C compiler ({error})");
                return None;
            }
            Ok(status) => assert!(status.success(), "the played library does not compile"),
        }
        fs::set_permissions(&library, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(dir.path().join("cards"), "GPU-0\nGPU-1 mig\nGPU-2\n").unwrap();
        fs::create_dir(dir.path().join("leaf")).unwrap();
        Some(Self(dir))
    }

    fn library(&self) -> PathBuf {
        self.0.path().join("libnvidia-ml.so.1")
    }

    fn leaf(&self) -> PathBuf {
        self.0.path().join("leaf")
    }

    fn fault(&self, word: &str) {
        fs::write(self.0.path().join("fault"), word).unwrap();
    }

    fn ask(&self, what: What) -> Result<Answer, Error> {
        ask(program(), &self.question(what), IN_ALL)
    }

    fn question(&self, what: What) -> Question {
        Question {
            library: Some(self.library()),
            what,
        }
    }

    fn set(&self, uuid: &str) -> Result<Answer, Error> {
        self.ask(What::Set {
            cgroup: self.leaf(),
            cards: vec![limit(uuid)],
        })
    }

    fn refusal(&self, what: What) -> Refusal {
        match self.ask(what) {
            Err(Error::Refused(refusal)) => *refusal,
            other => panic!("{other:?}"),
        }
    }
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_cgpu-limits"))
}

fn limit(uuid: &str) -> CardLimit {
    CardLimit {
        uuid: uuid.to_owned(),
        soft_bytes: 4 * GIB,
        hard_bytes: 4 * GIB,
    }
}

fn probe(uuid: &str) -> What {
    What::Probe {
        cards: vec![uuid.to_owned()],
    }
}

fn is_root() -> bool {
    let root = nix_is_root();
    if !root {
        println!("SKIP: not root");
    }
    root
}

fn nix_is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

#[test]
fn a_limit_that_was_set_reads_back_and_one_that_was_not_is_none() {
    let Some(driver) = is_root().then(|| Driver::new(&[])).flatten() else {
        return;
    };
    assert_eq!(
        driver.ask(probe("GPU-0")).unwrap(),
        Answer::Offered {
            driver_version: "615.71.09".to_owned()
        }
    );
    assert_eq!(driver.set("GPU-0").unwrap(), Answer::Set);
    let found = driver.ask(What::Get {
        cgroup: driver.leaf(),
        cards: vec!["GPU-0".to_owned(), "GPU-2".to_owned()],
    });
    let unlimited = CardLimit {
        uuid: "GPU-2".to_owned(),
        soft_bytes: 0,
        hard_bytes: UNLIMITED_BYTES,
    };
    let cards = [limit("GPU-0"), unlimited]
        .map(|limit| CardUse {
            limit,
            used_bytes: 0,
        })
        .to_vec();
    assert_eq!(found.unwrap(), Answer::Found { cards });
}

#[test]
fn what_the_driver_does_not_hold_is_refused_and_named() {
    let Some(driver) = is_root().then(|| Driver::new(&[])).flatten() else {
        return;
    };
    let set = |uuid: &str| What::Set {
        cgroup: driver.leaf(),
        cards: vec![limit(uuid)],
    };
    assert!(
        matches!(driver.refusal(set("GPU-9")), Refusal::NoCard { uuid, .. } if uuid == "GPU-9")
    );
    assert!(matches!(driver.refusal(set("GPU-1")), Refusal::Mig { uuid } if uuid == "GPU-1"));
    let gone = What::Set {
        cgroup: driver.0.path().join("gone"),
        cards: vec![limit("GPU-0")],
    };
    assert!(matches!(driver.refusal(gone), Refusal::Set { .. }));
    let relative = What::Set {
        cgroup: "leaf".into(),
        cards: vec![limit("GPU-0")],
    };
    assert!(matches!(driver.refusal(relative), Refusal::Cgroup { .. }));

    driver.fault("set");
    assert!(
        matches!(driver.refusal(set("GPU-0")), Refusal::Set { reason, .. } if reason.contains("not available"))
    );
    driver.fault("get");
    assert!(matches!(driver.refusal(set("GPU-0")), Refusal::Get { .. }));
    driver.fault("readback");
    let refusal = driver.refusal(set("GPU-0"));
    assert!(
        matches!(&refusal, Refusal::ReadBack { found, .. } if found.hard_bytes == 4 * GIB + 4096),
        "{refusal}"
    );
    assert!(refusal.to_string().contains("4294971392"), "{refusal}");
    driver.fault("init");
    assert!(matches!(
        driver.refusal(set("GPU-0")),
        Refusal::Library { .. }
    ));
    driver.fault("crash");
    let error = driver.ask(set("GPU-0")).unwrap_err();
    assert!(matches!(error, Error::NoAnswer { .. }), "{error}");
}

#[test]
fn a_driver_before_r615_does_not_offer_it() {
    let Some(driver) = is_root()
        .then(|| Driver::new(&["-DWITHOUT_LIMITS"]))
        .flatten()
    else {
        return;
    };
    let refusal = driver.refusal(probe("GPU-0"));
    assert!(matches!(refusal, Refusal::NoFunction { .. }), "{refusal}");
    let text = refusal.to_string();
    for part in [
        "not offered by this driver",
        "615.71.09",
        "nvmlDeviceSetMemoryLimits_v1",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_library_that_is_absent_no_library_or_somebody_else_s_is_not_used() {
    let Some(driver) = is_root().then(|| Driver::new(&[])).flatten() else {
        return;
    };
    let at = |library: &Path| {
        let question = Question {
            library: Some(library.to_owned()),
            what: probe("GPU-0"),
        };
        match ask(program(), &question, IN_ALL) {
            Err(Error::Refused(refusal)) => *refusal,
            other => panic!("{other:?}"),
        }
    };
    let absent = at(&driver.0.path().join("absent.so"));
    assert!(matches!(absent, Refusal::Library { .. }), "{absent}");
    let text = driver.0.path().join("text.so");
    fs::write(&text, "no library").unwrap();
    fs::set_permissions(&text, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(at(&text), Refusal::Library { .. }));
    assert!(matches!(
        at(Path::new("proc/self/exe")),
        Refusal::Library { .. } | Refusal::Untrusted { .. }
    ));
    fs::set_permissions(driver.library(), fs::Permissions::from_mode(0o775)).unwrap();
    assert!(matches!(at(&driver.library()), Refusal::Untrusted { .. }));
    fs::set_permissions(driver.library(), fs::Permissions::from_mode(0o755)).unwrap();
    chown(driver.library(), Some(65534), None).unwrap();
    assert!(matches!(at(&driver.library()), Refusal::Untrusted { .. }));
}

#[test]
fn only_root_sets_and_a_broken_question_has_no_answer() {
    let Some(driver) = is_root().then(|| Driver::new(&[])).flatten() else {
        return;
    };
    // A copy that the other user can reach wherever the build is. Another process writes it: what this one has open for writing is open in
    // what other tests' threads start meanwhile too, and cannot be executed then.
    let copy = driver.0.path().join("cgpu-limits");
    let copied = Command::new("cp")
        .arg(program())
        .arg(&copy)
        .status()
        .unwrap();
    assert!(copied.success(), "{copied}");
    fs::set_permissions(driver.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let spoken = |bytes: &[u8], user: u32| {
        let mut child = Command::new(&copy)
            .uid(user)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), bytes).unwrap();
        child.wait_with_output().unwrap()
    };
    let question = serde_json::to_vec(&driver.question(probe("GPU-0"))).unwrap();
    let answer: Answer = serde_json::from_slice(&spoken(&question, 65534).stdout).unwrap();
    assert_eq!(
        answer,
        Answer::Refused {
            refusal: Refusal::NotRoot
        }
    );
    let broken = spoken(b"{\"library\": 3}", 0);
    assert!(!broken.status.success() && broken.stdout.is_empty() && !broken.stderr.is_empty());
}

#[test]
fn a_program_that_is_not_there_or_reports_something_else_is_an_error() {
    let question = Question {
        library: None,
        what: probe("GPU-0"),
    };
    let absent = ask(Path::new("/nonexistent/cgpu-limits"), &question, IN_ALL).unwrap_err();
    assert!(matches!(absent, Error::Spawn { .. }), "{absent}");
    let chatty = ask(Path::new("/bin/pwd"), &question, IN_ALL).unwrap_err();
    assert!(matches!(chatty, Error::Answer { .. }), "{chatty}");
}

#[test]
fn a_program_that_does_not_answer_in_time_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let (hung, number) = (dir.path().join("cgpu-limits"), dir.path().join("number"));
    let script = format!("#!/bin/sh\necho $$ > {}\nexec sleep 30\n", number.display());
    // Another process writes it, as above.
    let written = Command::new("sh")
        .args(["-c", "printf %s \"$1\" > \"$2\" && chmod 755 \"$2\"", "sh"])
        .arg(script)
        .arg(&hung)
        .status()
        .unwrap();
    assert!(written.success(), "{written}");
    let question = Question {
        library: None,
        what: probe("GPU-0"),
    };
    let error = ask(&hung, &question, Duration::from_secs(2)).unwrap_err();
    let Error::Pipe { source, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(source.kind(), std::io::ErrorKind::TimedOut);
    assert!(source.to_string().contains("nvidia-persistenced"));
    // The driver did not hold it: the next one is started.
    let next = ask(Path::new("/bin/pwd"), &question, IN_ALL).unwrap_err();
    assert!(matches!(next, Error::Answer { .. }), "{next}");
    let number = fs::read_to_string(number).unwrap();
    assert!(!Path::new("/proc").join(number.trim()).exists());
}
