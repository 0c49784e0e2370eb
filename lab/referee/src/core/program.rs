//! RM's core as a program, and what is said to it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use integration::cache;
use integration::command::{capture, progress};
use nvabi::Release;
use sim::{ObjectEntry, Profile};

use super::device::AD102;
use super::player::{Answer, Block, Driver, Ioctl, On};
use super::sequence::{CONTROL_FILES, Requested};
use crate::compile::{Flags, LIMIT};
use crate::contest::Referee;
use crate::sequence::Sequence;
use crate::source::Tree;
use crate::talk::Talk;

const OS: (&str, &str) = ("os.c", include_str!("../../harness/os.c"));
const CORE_OS: (&str, &str) = ("core_os.c", include_str!("../../harness/core_os.c"));
const CARD: (&str, &str) = ("card.c", include_str!("../../harness/card.c"));
const CORE: (&str, &str) = ("core.c", include_str!("../../harness/core.c"));

/// What is linked to the core.
#[derive(Debug)]
pub(super) struct Program {
    name: &'static str,
    /// What is defined for it besides.
    defined: Option<&'static str>,
    /// The first have what is before the core's own.
    harness: &'static [(&'static str, &'static str)],
}

impl Program {
    const CORE: Self = Self {
        name: "core",
        defined: None,
        harness: &[CORE, CORE_OS, OS],
    };
    const CARD: Self = Self {
        name: "card",
        defined: Some("-DREFEREE_CARD"),
        harness: &[CORE, CARD, CORE_OS, OS],
    };
    pub(super) const DEVICE: Self = Self {
        name: "device",
        defined: None,
        harness: &[
            ("device.c", include_str!("../../harness/device.c")),
            CARD,
            CORE_OS,
            OS,
        ],
    };
}

/// Beyond what every file of a tree is compiled with.
const DEFINED: &[&str] = &[
    "RS_STANDALONE=0",
    "RS_STANDALONE_TEST=0",
    "INCLUDE_NVLINK_LIB",
    "INCLUDE_NVSWITCH_LIB",
    "LIBSPDM_CONFIG=<nvspdm_rmconfig.h>",
];
/// A library that RM talks to a card's firmware with, where a card computes confidentially.
const SPDM: &str = "src/libraries/libspdm";
/// Its `memset` calls RM's own, which calls `memset`.
const NOT_COMPILED: &str = "gcc_helper.c";

/// Compiles the core of a tree, once (some minutes), links the program and starts it.
pub(super) fn started(tree: &Tree, program: &Program) -> Result<Talk> {
    Talk::start(&linked(tree, program)?)
}

/// The memory of the card that sequences are for.
const CARD_MIB: u64 = 8192;

fn release_of(version: &str) -> Result<Release> {
    Release::of(version.parse().context("a driver version")?).context("a known driver version")
}

/// The core of one source tree.
#[derive(Debug)]
pub struct Core {
    release: Release,
    talk: Talk,
}

impl Core {
    /// Compiles it, once a tree (some minutes), and starts it.
    ///
    /// # Errors
    /// There is no gcc, the tree does not compile, or the program does not start.
    pub fn of(tree: &Tree) -> Result<Self> {
        Ok(Self {
            release: release_of(&tree.version)?,
            talk: started(tree, &Program::CORE)?,
        })
    }

    fn send(&mut self, line: &str) -> Result<String> {
        self.talk.ask(line)
    }

    fn hear(&mut self) -> Result<String> {
        self.talk.hear()
    }
}

/// The core of one source tree, with an invented card below it.
#[derive(Debug)]
pub struct CoreWithCard(Core);

impl Referee for CoreWithCard {
    type Call = Requested;
    const NAME: &'static str = "RM's core with a card";
    const CARD_MIB: u64 = CARD_MIB;

    fn of(tree: &Tree) -> Result<Self> {
        let mut core = Core {
            release: release_of(&tree.version)?,
            talk: started(tree, &Program::CARD)?,
        };
        let reply = core.send(&format!("chip {:x}", AD102.boot_42))?;
        ensure!(
            reply == "ready",
            "RM starts with no {}: {reply}",
            AD102.name
        );
        Ok(Self(core))
    }

    fn drawn(_version: &str, seed: u64, number: u64) -> Result<Sequence<Requested>> {
        Ok(Sequence::for_card(seed, number))
    }

    fn play(&mut self, sequence: &Sequence<Requested>) -> Result<Vec<String>> {
        self.0.play(sequence)
    }

    fn simulate(profile: Profile, sequence: &Sequence<Requested>) -> Result<Vec<String>> {
        super::player::simulate(profile, sequence)
    }
}

impl Referee for Core {
    type Call = Requested;
    const NAME: &'static str = "RM's core";
    const CARD_MIB: u64 = CARD_MIB;

    fn of(tree: &Tree) -> Result<Self> {
        Self::of(tree)
    }

    fn drawn(version: &str, seed: u64, number: u64) -> Result<Sequence<Requested>> {
        Ok(Sequence::for_core(release_of(version)?, seed, number))
    }

    fn play(&mut self, sequence: &Sequence<Requested>) -> Result<Vec<String>> {
        let ready = self.send(&format!("begin {CONTROL_FILES}"))?;
        ensure!(ready == "ready", "RM's core says {ready:?} and not ready");
        let release = self.release;
        super::player::Player::new(self, release).play(sequence)
    }

    fn simulate(profile: Profile, sequence: &Sequence<Requested>) -> Result<Vec<String>> {
        super::player::simulate(profile, sequence)
    }
}

impl Driver for &mut Core {
    fn ioctl(&mut self, ioctl: &Ioctl) -> Result<Answer> {
        let reply = self.send(&line_of(ioctl))?;
        answer_of(&reply).with_context(|| format!("RM's core says {reply:?}"))
    }

    fn close(&mut self, on: &On) -> Result<bool> {
        let reply = self.send(&format!(
            "close {} {} {} {}",
            on.file,
            on.pid,
            on.user(),
            u8::from(on.is_admin)
        ))?;
        Ok(reply == "closed")
    }

    fn objects(&mut self) -> Result<Vec<ObjectEntry>> {
        let mut line = self.send("end")?;
        let (mut objects, mut client) = (Vec::new(), 0);
        while line != "end" {
            match line.strip_prefix("client ") {
                Some(handle) => client = number(handle)?,
                None => objects.push(object_of(client, &line)?),
            }
            line = self.hear()?;
        }
        Ok(objects)
    }
}

fn number(word: &str) -> Result<u32> {
    let digits = word
        .strip_prefix("0x")
        .with_context(|| format!("no number: {word:?}"))?;
    u32::from_str_radix(digits, 16).with_context(|| format!("no number: {word:?}"))
}

fn object_of(client: u32, line: &str) -> Result<ObjectEntry> {
    let mut words = line.split(' ');
    let mut word = || words.next().with_context(|| format!("no object: {line:?}"));
    Ok(ObjectEntry {
        client,
        handle: number(word()?)?,
        parent: number(word()?)?,
        class: number(word()?)?,
        rights: word()?.parse()?,
        mappings: word()?.parse()?,
    })
}

/// The call as `harness/core.c` reads it.
fn line_of(ioctl: &Ioctl) -> String {
    let on = &ioctl.on;
    let mut line = format!(
        "ioctl {} {} {} {} {}",
        on.file,
        on.pid,
        on.user(),
        u8::from(on.is_admin),
        ioctl.row.nr
    );
    for (number, Block { within, at, bytes }) in ioctl.blocks.iter().enumerate() {
        line.push(' ');
        if number > 0 {
            line += &format!("{within}@{at}:");
        }
        line.extend(bytes.iter().flat_map(|byte| hex(*byte)));
    }
    line
}

fn hex(byte: u8) -> [char; 2] {
    [byte >> 4, byte & 0xf].map(|half| char::from_digit(half.into(), 16).unwrap_or('0'))
}

/// What the core says of a call.
fn answer_of(reply: &str) -> Result<Answer> {
    if let Some(signal) = reply.strip_prefix("died ") {
        return Ok(Answer::Died(signal.parse()?));
    }
    let mut words = reply.split(' ');
    let ret = words.next().context("no return")?.parse()?;
    let (mut blocks, mut is_whole) = (Vec::new(), true);
    for word in words {
        match word {
            "broken" => is_whole = false,
            "-" => blocks.push(Vec::new()),
            hex => blocks.push(bytes_of(hex)?),
        }
    }
    Ok(Answer::Done {
        ret,
        blocks,
        is_whole,
    })
}

fn bytes_of(hex: &str) -> Result<Vec<u8>> {
    ensure!(
        hex.is_ascii() && hex.len().is_multiple_of(2),
        "no bytes: {hex:?}"
    );
    hex.as_bytes()
        .chunks_exact(2)
        .map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?))
        .collect()
}

fn linked(tree: &Tree, program: &Program) -> Result<PathBuf> {
    let flags = flags(tree)?;
    let core = compiled(tree, &flags)?;
    let part = format!("referee-{}-program-{}", program.name, tree.version);
    let folder = cache::folder().join(&part);
    let harness = program.harness.iter();
    let stamp = harness.fold(flags.stamp(), |stamp, (_, text)| stamp + text);
    cache::once(&part, &folder, &stamp, |at| {
        link(program, &core, &flags, at)
    })?;
    Ok(folder.join(program.name))
}

fn flags(tree: &Tree) -> Result<Flags> {
    let nvidia = tree.folder.join("src/nvidia");
    let mut included = Vec::new();
    let spdm = nvidia.join(SPDM);
    if spdm.exists() {
        folders_with_headers(&spdm, &mut included)?;
    }
    included.sort();
    Ok(Flags::new(tree, "-O0", DEFINED.iter().copied(), &included)
        .with("-ffunction-sections")
        .with("-fdata-sections"))
}

fn folders_with_headers(below: &Path, into: &mut Vec<PathBuf>) -> Result<()> {
    let mut has_headers = false;
    for entry in fs::read_dir(below).with_context(|| format!("reading {}", below.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            folders_with_headers(&path, into)?;
        } else {
            has_headers |= path.extension().is_some_and(|extension| extension == "h");
        }
    }
    // Headers name others by their path below a folder of this name.
    let is_top = below.file_name().is_some_and(|name| name == "include");
    if has_headers || is_top {
        into.push(below.to_owned());
    }
    Ok(())
}

/// The objects of the core's own files, in a folder.
fn compiled(tree: &Tree, flags: &Flags) -> Result<PathBuf> {
    let part = format!("referee-core-{}", tree.version);
    let folder = cache::folder().join(&part);
    cache::once(&part, &folder, &flags.stamp(), |at| {
        let nvidia = tree.folder.join("src/nvidia");
        let list = nvidia.join("srcs.mk");
        let text =
            fs::read_to_string(&list).with_context(|| format!("reading {}", list.display()))?;
        let files: Vec<&str> = sources(&text).collect();
        ensure!(!files.is_empty(), "{} names no files", list.display());
        for (number, file) in files.iter().enumerate() {
            if number.is_multiple_of(200) {
                progress(&format!(
                    "compiling the core of {}: {number} of {} files",
                    tree.version,
                    files.len()
                ));
            }
            let object = at.join(file.replace('/', "+")).with_extension("o");
            flags.compile(&nvidia.join(file), &object)?;
        }
        Ok(())
    })?;
    Ok(folder)
}

/// The files that srcs.mk names, as far as they are compiled.
fn sources(srcs_mk: &str) -> impl Iterator<Item = &str> {
    srcs_mk
        .lines()
        .filter_map(|line| line.strip_prefix("SRCS += "))
        .map(str::trim)
        .filter(|file| !file.starts_with(SPDM) && !file.ends_with(NOT_COMPILED))
}

fn link(program: &Program, core: &Path, flags: &Flags, at: &Path) -> Result<()> {
    for (name, text) in program.harness {
        let file = at.join(name);
        fs::write(&file, text)?;
        let own = flags.clone().with("-DREFEREE_CORE");
        let own = match program.defined {
            Some(defined) => own.with(defined),
            None => own,
        };
        own.compile(&file, &file.with_extension("o"))?;
    }
    let mut objects: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(core)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "o") {
            objects.push(path);
        }
    }
    objects.sort();
    let own = program.harness.iter();
    let own: Vec<PathBuf> = own
        .map(|(name, _)| at.join(name).with_extension("o"))
        .collect();
    let needed = symbols(&["-u"], &objects)?;
    let all: Vec<PathBuf> = objects.iter().chain(&own).cloned().collect();
    let defined = symbols(&["--defined-only"], &all)?;
    let missing: Vec<&String> = needed
        .difference(&defined)
        // The C library's, and the linker's.
        .filter(|name| !name.starts_with("mem") && !name.starts_with("_GLOBAL"))
        .collect();
    let stubs = at.join("stubs.c");
    fs::write(&stubs, stubs_of(&missing))?;
    let stubs_object = at.join("stubs.o");
    flags
        .clone()
        .with("-fno-builtin")
        .compile(&stubs, &stubs_object)?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-no-pie", "-Wl,--gc-sections", "-Wl,-z,muldefs", "-o"])
        .arg(at.join(program.name))
        .args(&own)
        .arg(&stubs_object)
        .args(&objects);
    capture(&mut gcc, LIMIT)?.success()?;
    Ok(())
}

/// Functions that return 0, and say their names where `REFEREE_STUBS` is set.
fn stubs_of(names: &[&String]) -> String {
    let declared = "int referee_stub(const char *name);\n".to_owned();
    names.iter().fold(declared, |text, name| {
        text + &format!(
            "long {name}(void) {{ static int n; return n++ ? 0 : referee_stub(\"{name}\"); }}\n"
        )
    })
}

fn symbols(how: &[&str], objects: &[PathBuf]) -> Result<std::collections::BTreeSet<String>> {
    let mut nm = Command::new("nm");
    nm.args(how).args(objects);
    let reply = capture(&mut nm, LIMIT)?.success()?.stdout;
    Ok(reply
        .lines()
        .filter(|line| !line.ends_with(':'))
        .filter_map(|line| line.split_whitespace().last())
        .map(str::to_owned)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_sources_are_those_that_are_named_and_compiled() {
        let text = "SRCS ?=\nSRCS_CXX ?=\n\nSRCS += generated/g_x.c\nSRCS += src/libraries/libspdm/a.c\nSRCS += arch/gcc_helper.c\n";
        assert_eq!(sources(text).collect::<Vec<_>>(), ["generated/g_x.c"]);
    }

    #[test]
    fn what_the_core_reports_of_an_object_is_read_and_nothing_else_is_one() {
        let object = object_of(1, "0xcaf00000 0x1 0x79 5 2").unwrap();
        assert_eq!(
            (
                object.handle,
                object.parent,
                object.class,
                object.rights,
                object.mappings
            ),
            (0xcaf0_0000, 1, 0x79, 5, 2)
        );
        for line in ["", "0x1 0x2", "client", "0x1 0x2 0x3 x 0"] {
            object_of(1, line).unwrap_err();
        }
    }

    proptest! {
        #[test]
        fn blocks_are_sent_and_received_as_they_are(ret in -22..=0_i32, blocks: Vec<Vec<u8>>, is_whole: bool) {
            let mut reply = ret.to_string();
            for block in &blocks {
                reply.push(' ');
                for byte in block {
                    reply += &format!("{byte:02x}");
                }
                if block.is_empty() {
                    reply.push('-');
                }
            }
            if !is_whole {
                reply += " broken";
            }
            let Answer::Done { ret: heard, blocks: heard_blocks, is_whole: heard_whole } = answer_of(&reply).unwrap() else {
                panic!("{reply}");
            };
            prop_assert_eq!((heard, heard_blocks, heard_whole), (ret, blocks, is_whole));
        }

        #[test]
        fn nothing_that_is_heard_is_a_panic(reply: String) {
            drop(answer_of(&reply));
            drop(object_of(0, &reply));
        }
    }
}
