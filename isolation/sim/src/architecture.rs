//! What a card of an architecture offers.

use nvabi::Release;
use serde::Deserialize;

/// The architectures that can be simulated.
///
/// GA100 and Hopper are absent: the open client that the simulator is tested with does not drive them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// Ampere, GA102 and its like.
    Ga10x,
    /// Ada, AD102 and its like.
    Ada,
    /// Blackwell, GB202 and its like.
    Blackwell,
}

/// The layout of a launch's descriptor (QMD).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QmdVersion {
    V3,
    V5,
}

/// Classes that every card has: memory, that of the fabric too (`gpuGetNoEngClassList_GA102` and its like, g_gpu_class_list.c),
/// address spaces, groups, events, the debugger, the page of figures that the driver shows to everybody, and what third parties reach memory by.
const COMMON: &[u32] = &[
    0x3e, 0x40, 0x70, 0x71, 0x79, 0xde, 0xf8, 0x503c, 0x50a0, 0x83de, 0x9067, 0x90e6, 0x90f1,
    0xa06c,
];
/// A class that has no place in a card's list, and that every card has all the same (resource_list.h).
const UNLISTED: u32 = nvabi::class::NV2081_BINAPI;

impl Architecture {
    /// The first release whose tables have its classes.
    pub(crate) fn since(self) -> Release {
        match self {
            Self::Ga10x | Self::Ada => Release::R535,
            Self::Blackwell => Release::R570,
        }
    }

    fn own_classes(self) -> &'static [u32] {
        match self {
            Self::Ga10x => &[0xc461, 0xc56f, 0xc7b5, 0xc7c0],
            Self::Ada => &[0xc461, 0xc56f, 0xc7b5, 0xc9c0],
            // Multicast since Hopper (`gpuGetNoEngClassList_GB202`).
            Self::Blackwell => &[0xfd, 0xc661, 0xc761, 0xc96f, 0xcab5, 0xcec0],
        }
    }

    /// The class list, in the order that GPU_GET_CLASSLIST gives it.
    pub(crate) fn classes(self) -> Vec<u32> {
        COMMON.iter().chain(self.own_classes()).copied().collect()
    }

    /// Whether a class that belongs to cards exists on this one.
    pub(crate) fn has(self, class: u32) -> bool {
        class == UNLISTED || COMMON.contains(&class) || self.own_classes().contains(&class)
    }

    /// `NV2080_CTRL_MC_ARCH_INFO_ARCHITECTURE_*` (ctrl2080mc.h).
    pub(crate) fn mc_architecture(self) -> u32 {
        match self {
            Self::Ga10x => 0x170,
            Self::Ada => 0x190,
            Self::Blackwell => 0x1b0,
        }
    }

    /// `SM_VERSION` of GR_GET_INFO (ctrl0080gr.h).
    pub(crate) fn sm_version(self) -> u32 {
        match self {
            Self::Ga10x => 0x806,
            Self::Ada => 0x809,
            Self::Blackwell => 0xa04,
        }
    }

    /// A PCI device id of the family.
    pub(crate) fn pci_device_id(self) -> u16 {
        match self {
            Self::Ga10x => 0x2204,
            Self::Ada => 0x2684,
            Self::Blackwell => 0x2b85,
        }
    }

    /// What GPU_GET_SHORT_NAME_STRING calls the chip.
    pub(crate) fn chip(self) -> &'static str {
        match self {
            Self::Ga10x => "GA102",
            Self::Ada => "AD102",
            Self::Blackwell => "GB202",
        }
    }

    /// Whether it has pages of 256 GiB: of the simulated ones none, of Blackwell only GB100 and its like.
    #[expect(clippy::unused_self, reason = "reads as a fact of the architecture")]
    pub(crate) fn has_256g_pages(self) -> bool {
        false
    }

    pub(crate) fn qmd(self) -> QmdVersion {
        match self {
            Self::Ga10x | Self::Ada => QmdVersion::V3,
            Self::Blackwell => QmdVersion::V5,
        }
    }
}
