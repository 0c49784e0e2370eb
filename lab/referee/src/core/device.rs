//! RM's core with an invented card below it: what memory takes of the card, by RM's own heap.
//!
//! Nothing of the card but its registers' first words is there. RM is a client of firmware that agrees to everything (`harness/device.c`), so
//! a class, its attributes, page sizes and the heap are RM's own word, and what firmware would refuse is not.

use anyhow::{Context, Result, ensure};
use verdict::page_size::Requested;

use super::program::{Program, started};
use crate::source::Tree;
use crate::talk::Talk;

/// A card's chip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chip {
    /// Its name.
    pub name: &'static str,
    /// The register that says so (`NV_PMC_BOOT_42`; dev_boot.h): architecture in bits 29:24, implementation in 23:20.
    pub(super) boot_42: u32,
}

/// The card of sequences.
pub(super) const AD102: Chip = chip("AD102", 0x192a_1000);

/// One of each architecture that RM's core starts with.
pub const CHIPS: [Chip; 5] = [
    chip("GA100", 0x170a_1000),
    chip("GA102", 0x172a_1000),
    AD102,
    chip("GH100", 0x180a_1000),
    chip("GB202", 0x1b2a_1000),
];

const fn chip(name: &'static str, boot_42: u32) -> Chip {
    Chip { name, boot_42 }
}

/// What an allocation took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Given {
    /// Bytes that RM wrote back.
    pub size_bytes: u64,
    /// The alignment that it wrote back.
    pub alignment_bytes: u64,
    /// By how much less the card has free.
    pub taken_bytes: u64,
}

/// The core with a card.
#[derive(Debug)]
pub struct Device(Talk);

impl Device {
    /// Compiles it, once a tree, and starts it with a card of a chip.
    ///
    /// # Errors
    /// The tree does not compile, or RM does not start with the card.
    pub fn of(tree: &Tree, chip: Chip) -> Result<Self> {
        let mut talk = started(tree, &Program::DEVICE)?;
        let reply = talk.ask(&format!("chip {:x}", chip.boot_42))?;
        ensure!(reply == "ready", "RM starts with no {}: {reply}", chip.name);
        Ok(Self(talk))
    }

    /// Allocates memory of a class as a user, asks what it took, and frees it again; `offset_bytes` is where it is wanted, if `requested` says that.
    /// The status where RM refuses it.
    ///
    /// # Errors
    /// The core has ended, or says something else.
    pub fn memory(
        &mut self,
        class: u32,
        requested: &Requested,
        offset_bytes: u64,
    ) -> Result<std::result::Result<Given, u32>> {
        let reply = self.0.ask(&format!(
            "memory {class:x} {:x} {:x} {:x} {:x} {:x} {offset_bytes:x}",
            requested.size_bytes,
            requested.flags,
            requested.attr,
            requested.attr2,
            requested.alignment_bytes
        ))?;
        let words: Vec<u64> = reply
            .split(' ')
            .map(|word| u64::from_str_radix(word, 16))
            .collect::<std::result::Result<_, _>>()
            .with_context(|| format!("RM's core says {reply:?}"))?;
        let [status, size_bytes, alignment_bytes, taken_bytes] = words[..] else {
            anyhow::bail!("RM's core says {reply:?}");
        };
        Ok(match u32::try_from(status)? {
            0 => Ok(Given {
                size_bytes,
                alignment_bytes,
                taken_bytes,
            }),
            status => Err(status),
        })
    }
}
