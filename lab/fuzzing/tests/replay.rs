//! Every target over its committed corpus, its regressions, and some inputs that are new in each run.
#![forbid(unsafe_code)]

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fuzzing::{TARGETS, Target};

/// How long new inputs are tried in one target.
const RANDOM_FOR: Duration = Duration::from_secs(2);
/// Names the first seed of the new inputs, so that a failure can be had again.
const SEED_VARIABLE: &str = "CGPU_FUZZ_SEED";

fn folder(kind: &str, target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz")
        .join(kind)
        .join(target.name)
}

fn inputs(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let bytes = fs::read(&path).expect("a file of the corpus");
            (path, bytes)
        })
        .collect()
}

fn target(name: &str) -> &'static Target {
    TARGETS
        .iter()
        .find(|target| target.name == name)
        .unwrap_or_else(|| panic!("no target {name}"))
}

fn replay(name: &str) {
    let target = target(name);
    let corpus = inputs(&folder("corpus", target));
    assert!(!corpus.is_empty(), "no corpus for {name}");
    let regressions = inputs(&folder("regressions", target));
    for (path, bytes) in corpus.iter().chain(&regressions) {
        if catch_unwind(AssertUnwindSafe(|| (target.body)(bytes))).is_err() {
            panic!("{} fails, see above", path.display());
        }
    }
    println!(
        "{name}: {} inputs of the corpus, {} regressions",
        corpus.len(),
        regressions.len()
    );
    try_new(target, &corpus);
}

/// Inputs of the corpus with bytes changed, cut or joined, and some that are only noise.
fn try_new(target: &Target, corpus: &[(PathBuf, Vec<u8>)]) {
    let first = std::env::var(SEED_VARIABLE)
        .ok()
        .map(|text| text.parse::<u64>().expect("a number"))
        .unwrap_or_else(|| RandomState::new().build_hasher().finish());
    println!("{}: new inputs from {SEED_VARIABLE}={first}", target.name);
    let until = Instant::now() + RANDOM_FOR;
    let mut tried = 0_u64;
    while Instant::now() < until {
        let seed = first.wrapping_add(tried);
        let input = made(&mut Random(seed), target.most_bytes, corpus);
        if catch_unwind(AssertUnwindSafe(|| (target.body)(&input))).is_err() {
            panic!(
                "{} fails on a new input, see above: {SEED_VARIABLE}={seed}, bytes {input:02x?}",
                target.name
            );
        }
        tried += 1;
    }
    println!("{}: {tried} new inputs", target.name);
}

fn made(random: &mut Random, most_bytes: usize, corpus: &[(PathBuf, Vec<u8>)]) -> Vec<u8> {
    let pick = |random: &mut Random| corpus[random.below(corpus.len())].1.clone();
    let mut input = match random.below(4) {
        0 => {
            let length = random.below(most_bytes) + 1;
            (0..length).map(|_| random.byte()).collect()
        }
        1 => {
            let (mut head, tail) = (pick(random), pick(random));
            head.truncate(random.below(head.len() + 1));
            head.extend(tail.iter().skip(random.below(tail.len() + 1)));
            head
        }
        _ => pick(random),
    };
    for _change in 0..random.below(6) {
        if input.is_empty() {
            break;
        }
        let at = random.below(input.len());
        match random.below(3) {
            0 => input[at] = random.byte(),
            1 => input[at] ^= 1 << random.below(8),
            _ => input.insert(at, random.byte()),
        }
    }
    input.truncate(most_bytes);
    input
}

/// SplitMix64: good enough to choose bytes, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound.max(1)).expect("64 bits");
        usize::try_from(self.next() % bound).expect("below a usize")
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}

#[test]
fn every_target_has_its_folder_and_every_folder_its_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let mut folders: Vec<String> = fs::read_dir(corpus)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    folders.sort();
    let mut names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    names.sort_unstable();
    assert_eq!(folders, names);
}

#[test]
fn the_decoder_holds() {
    replay("decoder");
}

#[test]
fn the_ledger_holds() {
    replay("ledger");
}

#[test]
fn the_policy_holds() {
    if !fuzzing::policy::has_compiler() {
        println!("SKIP: no C compiler or no libseccomp: what edited profiles do is not judged");
    }
    replay("policy");
}

#[test]
fn the_wire_holds() {
    replay("wire");
}

#[test]
fn the_whole_path_of_a_call_holds() {
    match fuzzing::notify::can_run() {
        Ok(()) => replay("notify"),
        Err(reason) => println!("SKIP: {reason}"),
    }
}
