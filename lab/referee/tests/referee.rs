//! The simulated driver against RM's own resource server: the same calls, every status and the trees at the end compared.
//!
//! Two trees are Debian's source packages, fetched once; others are compared where `CGPU_REFEREE_SOURCE` names them (folders with `:` between
//! them). `CGPU_REFEREE_SEQUENCES` says how many sequences a tree, `CGPU_REFEREE_SEED` which, and what was played is added to the file that
//! `CGPU_REFEREE_SUMMARY` names. `CGPU_REFEREE_CORE` names trees whose whole core is compiled, some minutes each, and compared
//! by `CGPU_REFEREE_CORE_SEQUENCES` sequences. `cargo xtask long referee` plays many.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use integration::command::find;
use integration::skip;
use nvabi::layout::memory_params as params;
use nvabi::{Release, class};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use referee::{
    CHIPS, CORE_VARIABLE, Contest, Core, CoreWithCard, Debian, Device, Referee, ResourceServer,
    SOURCE_VARIABLE, Sequence, Tally, Tree,
};
use verdict::page_size::{self, Requested};

/// Of the resource server's, for every change.
const SEQUENCES: u64 = 25_000;
/// Of the whole core's, where a tree is at hand.
const SEQUENCES_OF_CORE: u64 = 2000;
/// Says how many of the resource server's, and how many of the core's.
const GIVEN: &str = "CGPU_REFEREE_SEQUENCES";
const GIVEN_OF_CORE: &str = "CGPU_REFEREE_CORE_SEQUENCES";
const SEED: u64 = 12;

fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Debian's tree, where it can be fetched and compiled; a reason to skip aloud otherwise.
fn of_debian(debian: Debian) -> Result<Tree> {
    find("gcc").context("no gcc")?;
    Tree::of_debian(debian).context("no source of the open kernel modules")
}

/// Plays the sequences of a seed, by as many contests at a time as the machine has processors.
fn compare<R: Referee>(tree: &Tree, sequences: &str, otherwise: u64) -> Result<()> {
    let (sequences, seed) = (
        given(sequences).unwrap_or(otherwise),
        given("CGPU_REFEREE_SEED").unwrap_or(SEED),
    );
    let contests = thread::available_parallelism()?.get();
    let began = Instant::now();
    let play = |first: u64| -> Result<Tally> {
        let mut contest = Contest::<R>::of(tree)?;
        for number in (first..sequences).step_by(contests) {
            if let Some(difference) = contest.play_number(seed, number)? {
                panic!("seed {seed}, sequence {number}: {difference}");
            }
        }
        Ok(contest.tally().clone())
    };
    let tally = thread::scope(|scope| {
        let players: Vec<_> = (0..)
            .take(contests)
            .map(|first| scope.spawn(move || play(first)))
            .collect();
        let mut all = Tally::default();
        for player in players {
            let done = player.join();
            all += done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        anyhow::Ok(all)
    })?;
    let mut report = format!(
        "{}, {}: {} sequences of seed {seed}, {} calls, {} sequences ended by a call that RM does not come back from whole, {} s: no difference\n",
        tree.version,
        R::NAME,
        tally.sequences,
        tally.calls,
        tally.broken,
        began.elapsed().as_secs()
    );
    for ((call, status), count) in &tally.answers {
        writeln!(report, "  {call:<7} {status:<7} {count:>9}")?;
    }
    println!("{report}");
    if let Some(path) = std::env::var_os("CGPU_REFEREE_SUMMARY") {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        file.and_then(|mut file| file.write_all(report.as_bytes()))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

#[test]
fn the_simulator_answers_as_the_resource_server_of_debian_12() -> Result<()> {
    match of_debian(Debian::Bookworm) {
        Ok(tree) => compare::<ResourceServer>(&tree, GIVEN, SEQUENCES),
        Err(error) => skip!(
            "the_simulator_answers_as_the_resource_server_of_debian_12",
            "{error:#}"
        ),
    }
}

/// What differs between two drivers is found, and shortened to the calls that show it.
#[test]
fn a_simulator_of_another_driver_is_found_out() -> Result<()> {
    let tree = match of_debian(Debian::Bookworm) {
        Ok(tree) => tree,
        Err(error) => skip!("a_simulator_of_another_driver_is_found_out", "{error:#}"),
    };
    let mut contest = Contest::<ResourceServer>::between(&tree, "595.45.04")?;
    for number in 0..SEQUENCES {
        if let Some(difference) = contest.play(&Sequence::drawn(SEED, number))? {
            assert!(difference.sequence.0.len() <= 5, "{difference}");
            let last = difference.simulator.last().context("a line")?;
            assert!(last.ends_with(" broken"), "{difference}");
            return Ok(());
        }
    }
    panic!(
        "a simulator of 595 passes for the resource server of {}",
        tree.version
    );
}

#[test]
fn the_simulator_answers_as_the_resource_server_of_debian_13() -> Result<()> {
    match of_debian(Debian::Trixie) {
        Ok(tree) => compare::<ResourceServer>(&tree, GIVEN, SEQUENCES),
        Err(error) => skip!(
            "the_simulator_answers_as_the_resource_server_of_debian_13",
            "{error:#}"
        ),
    }
}

#[test]
fn the_simulator_answers_as_the_resource_servers_at_hand() -> Result<()> {
    let trees = Tree::at_hand(SOURCE_VARIABLE)?;
    if trees.is_empty() {
        skip!(
            "the_simulator_answers_as_the_resource_servers_at_hand",
            "{SOURCE_VARIABLE} names no source tree of the open kernel modules"
        );
    }
    trees
        .iter()
        .try_for_each(|tree| compare::<ResourceServer>(tree, GIVEN, SEQUENCES))
}

#[test]
fn the_simulator_answers_as_the_whole_cores_at_hand() -> Result<()> {
    let trees = Tree::at_hand(CORE_VARIABLE)?;
    if trees.is_empty() {
        skip!(
            "the_simulator_answers_as_the_whole_cores_at_hand",
            "{CORE_VARIABLE} names no source tree of the open kernel modules"
        );
    }
    trees
        .iter()
        .try_for_each(|tree| compare::<Core>(tree, GIVEN_OF_CORE, SEQUENCES_OF_CORE))
}

/// The same with a card below the core.
#[test]
fn the_simulator_answers_as_the_core_with_a_card_at_hand() -> Result<()> {
    let trees = Tree::at_hand(CORE_VARIABLE)?;
    let Some(tree) = trees.iter().find(|tree| has_card(tree)) else {
        skip!(
            "the_simulator_answers_as_the_core_with_a_card_at_hand",
            "{CORE_VARIABLE} names no source tree of branch 580"
        );
    };
    compare::<CoreWithCard>(tree, GIVEN_OF_CORE, SEQUENCES_OF_CORE)
}

/// The card is written for the structs of this branch.
fn has_card(tree: &Tree) -> bool {
    tree.version.starts_with("580.")
}

/// Of a chip.
const ALLOCATIONS: u64 = 4000;

/// Below a number.
fn below(draw: &mut Xoshiro256PlusPlus, many: u32) -> u32 {
    draw.next_u32() % many
}

/// A request for card memory: sizes around pages, and every attribute that decides about pages, whatever else they mean.
fn request(draw: &mut Xoshiro256PlusPlus) -> (Requested, u64) {
    let mut of = |many: u32| below(draw, many);
    let unit: u64 = match of(5) {
        0 => 1,
        1 => 4 << 10,
        2 => 64 << 10,
        3 => 2 << 20,
        _large => 512 << 20,
    };
    let size_bytes = match of(4) {
        0 => unit,
        1 => (unit * u64::from(1 + of(4))).saturating_sub(u64::from(of(3))),
        _some => unit * u64::from(of(3)) + u64::from(of(5000)),
    };
    let alignment_bytes = match of(4) {
        0 => 1 << of(31),
        1 => u64::from(of(1 << 22)),
        _none => 0,
    };
    let mut flags = 0;
    for flag in [
        params::FLAG_FIXED_ADDRESS,
        params::FLAG_ALIGNMENT_HINT,
        params::FLAG_ALIGNMENT_FORCE,
    ] {
        flags |= if of(3) == 0 { flag } else { 0 };
    }
    // Whatever else there is to ask for, but that the memory be virtual.
    if of(3) == 0 {
        flags |= 1 << of(32) & !params::FLAG_VIRTUAL;
    }
    let compression = if of(3) == 0 { of(4) << 12 } else { 0 };
    let offset_bytes = match of(2) {
        0 => (1 << 30) + u64::from(of(1 << 30)),
        _none => 0,
    };
    let requested = Requested {
        size_bytes,
        flags,
        // Any page size, any compression, contiguous or not; the place stays the card.
        attr: of(4) << 23 | compression | of(3) << 27,
        attr2: of(4) << 20,
        alignment_bytes,
    };
    (requested, offset_bytes)
}

/// What is reserved before a call must be as much as RM takes of the card at least, and what is charged behind it too: by RM's own heap.
#[test]
fn no_allocation_takes_more_of_a_card_than_is_reserved_and_charged_for_it() -> Result<()> {
    let trees = Tree::at_hand(CORE_VARIABLE)?;
    let Some(tree) = trees.iter().find(|tree| has_card(tree)) else {
        skip!(
            "no_allocation_takes_more_of_a_card_than_is_reserved_and_charged_for_it",
            "{CORE_VARIABLE} names no source tree of branch 580"
        );
    };
    let release = Release::of(tree.version.parse()?).context("a known driver")?;
    for chip in CHIPS {
        let mut device = Device::of(tree, chip)?;
        let mut draw =
            Xoshiro256PlusPlus::seed_from_u64(given("CGPU_REFEREE_SEED").unwrap_or(SEED));
        let (mut given, mut refused) = (0, 0);
        for number in 0..ALLOCATIONS {
            let (requested, offset_bytes) = request(&mut draw);
            let took =
                match device.memory(class::NV01_MEMORY_LOCAL_USER, &requested, offset_bytes)? {
                    Ok(took) => took,
                    Err(_status) => {
                        refused += 1;
                        continue;
                    }
                };
            given += 1;
            let takes = requested.takes(release);
            let charged = match takes.is_reported {
                true => page_size::taken(took.size_bytes),
                false => takes.most_bytes,
            };
            assert!(
                took.taken_bytes <= takes.most_bytes
                    && took.taken_bytes <= charged
                    && charged <= takes.most_bytes,
                "{}, number {number}: {requested:x?} at {offset_bytes:#x} took {took:x?}, {takes:x?} were reserved and {charged:#x} charged",
                chip.name
            );
        }
        println!(
            "{}, {}: {given} allocations, {refused} refused: none took more than was reserved and charged",
            tree.version, chip.name
        );
        assert!(
            given > ALLOCATIONS / 4,
            "{}: nearly all were refused",
            chip.name
        );
    }
    Ok(())
}
