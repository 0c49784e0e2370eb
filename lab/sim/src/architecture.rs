//! What a card of an architecture offers: one row an architecture.
//!
//! Sources, all in the open kernel modules 570.195.03: classes and how many engines have them from the lists of g_gpu_class_list.c
//! (`gpuGetClassDescriptorList_TU102` and its like), of which those that no tenant may allocate are left out; architecture numbers from
//! ctrl2080mc.h and kernel-open/nvidia-uvm/ctrl2080mc.h; SM versions from ctrl2080gr.h; device ids from g_nv_name_released.h.
//!
//! Pascal and Volta have no list there, since only the proprietary modules drive them: their channel and copy classes are those of
//! uvm_hal.c, the others are the headers' (cl*.h) by their names, and how many engines there are is a guess.

use nvabi::Release;
use serde::Deserialize;

/// The architectures that can be simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// Pascal, GP104 and its like; not GP100.
    Pascal,
    /// Volta, GV100.
    Volta,
    /// Turing, TU102 and its like.
    Turing,
    /// Ampere of data centres, GA100.
    Ga100,
    /// Ampere, GA102 and its like.
    Ga10x,
    /// Ada, AD102 and its like.
    Ada,
    /// Hopper, GH100.
    Hopper,
    /// Blackwell of data centres, GB100.
    Gb100,
    /// Blackwell, GB202 and its like.
    Blackwell,
}

/// The layout of a launch's descriptor (QMD).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QmdVersion {
    /// Of Pascal, Volta and Turing: its grid alone is read.
    V2,
    /// Ampere, Ada, and Hopper, which has a newer one too (clcbc0qmd.h).
    V3,
    V5,
}

/// Units with an engine of their own on a runlist of its own, beside graphics and copies: falcons, as RM calls them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Unit {
    Nvdec,
    Nvenc,
    Nvjpg,
    Ofa,
    Sec2,
}

/// One engine of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Engine {
    /// Graphics and compute.
    Graphics,
    Copy(u32),
    Falcon(Unit, u32),
}

/// What carries out the methods of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Methods {
    Compute,
    ThreeD,
    TwoD,
    InlineToMemory,
    Copy,
    Falcon(Unit),
}

/// An architecture.
struct Row {
    /// The first release whose tables have its classes, and the last one that drives it.
    since: Release,
    until: Option<Release>,
    mc_architecture: u32,
    sm_version: u32,
    pci_device_id: u16,
    chip: &'static str,
    qmd: QmdVersion,
    /// Whether channels run on without doorbells, and USERD is RM's own.
    is_before_usermode: bool,
    /// Whether each runlist has channels of its own (`bUsePerRunlistChram`, g_kernel_fifo_nvoc.c): the engine of a channel decides which
    /// classes it may have, and RM has no USERD of its own. GA100 and Hopper have that with SR-IOV alone, which is not played.
    per_runlist_channels: bool,
    /// Channels and doorbell pages.
    host: &'static [u32],
    compute: u32,
    three_d: u32,
    inline_to_memory: u32,
    /// The class, and how many engines have it.
    copy: (u32, u32),
    falcons: &'static [(Unit, u32, u32)],
    /// Of no engine: multicast since Hopper.
    others: &'static [u32],
}

/// Classes that every card has: memory, that of the fabric too (`gpuGetNoEngClassList_GA102` and its like, g_gpu_class_list.c),
/// address spaces, groups, events, the debugger, the page of figures that the driver shows to everybody, and what third parties reach memory by.
const COMMON: &[u32] = &[
    0x3e, 0x40, 0x70, 0x71, 0x79, 0xde, 0xf8, 0x503c, 0x50a0, 0x83de, 0x9067, 0x90e6, 0x90f1,
    0xa06c,
];
/// `FERMI_TWOD_A`, of all of them.
const TWO_D: u32 = 0x902d;
/// A class that has no place in a card's list, and that every card has all the same (resource_list.h).
const UNLISTED: u32 = nvabi::class::NV2081_BINAPI;
/// `KEPLER_INLINE_TO_MEMORY_B`, `BLACKWELL_INLINE_TO_MEMORY_A`
const INLINE_A140: u32 = 0xa140;
const INLINE_CD40: u32 = 0xcd40;
/// `HOPPER_SEC2_WORK_LAUNCH_A`
const SEC2: (Unit, u32, u32) = (Unit::Sec2, 0xcba2, 1);
const R: Release = Release::R535;

const PASCAL: Row = Row {
    since: R,
    until: Some(Release::R580),
    mc_architecture: 0x130,
    sm_version: 0x601,
    pci_device_id: 0x1b80,
    chip: "GP104",
    qmd: QmdVersion::V2,
    is_before_usermode: true,
    per_runlist_channels: false,
    host: &[0xc06f],
    compute: 0xc1c0,
    three_d: 0xc197,
    inline_to_memory: INLINE_A140,
    copy: (0xc1b5, 4),
    falcons: &[(Unit::Nvdec, 0xc1b0, 1), (Unit::Nvenc, 0xc1b7, 2)],
    others: &[],
};

const VOLTA: Row = Row {
    mc_architecture: 0x140,
    sm_version: 0x700,
    pci_device_id: 0x1db4,
    chip: "GV100",
    is_before_usermode: false,
    host: &[0xc36f, 0xc361],
    compute: 0xc3c0,
    three_d: 0xc397,
    copy: (0xc3b5, 9),
    falcons: &[(Unit::Nvdec, 0xc3b0, 1), (Unit::Nvenc, 0xc3b7, 3)],
    ..PASCAL
};

const TURING: Row = Row {
    until: None,
    mc_architecture: 0x160,
    sm_version: 0x705,
    pci_device_id: 0x1e07,
    chip: "TU102",
    host: &[0xc46f, 0xc36f, 0xc461, 0xc361],
    compute: 0xc5c0,
    three_d: 0xc597,
    copy: (0xc5b5, 5),
    falcons: &[(Unit::Nvdec, 0xc4b0, 1), (Unit::Nvenc, 0xc4b7, 1)],
    ..VOLTA
};

// The doorbell page 0xc561 of Ampere and later has no row in the tables, and is left out.
const GA100: Row = Row {
    mc_architecture: 0x170,
    sm_version: 0x800,
    pci_device_id: 0x20b0,
    chip: "GA100",
    qmd: QmdVersion::V3,
    host: &[0xc56f, 0xc46f, 0xc36f, 0xc461, 0xc361],
    compute: 0xc6c0,
    three_d: 0xc697,
    copy: (0xc6b5, 10),
    falcons: &[
        (Unit::Nvdec, 0xc6b0, 5),
        (Unit::Nvjpg, 0xc4d1, 1),
        (Unit::Ofa, 0xc6fa, 1),
    ],
    ..TURING
};

const GA10X: Row = Row {
    sm_version: 0x806,
    pci_device_id: 0x2204,
    chip: "GA102",
    compute: 0xc7c0,
    three_d: 0xc797,
    copy: (0xc7b5, 5),
    falcons: &[
        (Unit::Nvdec, 0xc7b0, 2),
        (Unit::Nvenc, 0xc7b7, 1),
        (Unit::Ofa, 0xc7fa, 1),
    ],
    ..GA100
};

const ADA: Row = Row {
    mc_architecture: 0x190,
    sm_version: 0x809,
    pci_device_id: 0x2684,
    chip: "AD102",
    compute: 0xc9c0,
    three_d: 0xc997,
    falcons: &[
        (Unit::Nvdec, 0xc9b0, 4),
        (Unit::Nvenc, 0xc9b7, 3),
        (Unit::Nvjpg, 0xc9d1, 4),
        (Unit::Ofa, 0xc9fa, 1),
    ],
    ..GA10X
};

const HOPPER: Row = Row {
    mc_architecture: 0x180,
    sm_version: 0x900,
    pci_device_id: 0x2330,
    chip: "GH100",
    host: &[0xc86f, 0xc56f, 0xc46f, 0xc36f, 0xc661, 0xc461, 0xc361],
    compute: 0xcbc0,
    three_d: 0xcb97,
    copy: (0xc8b5, 10),
    falcons: &[
        (Unit::Nvdec, 0xb8b0, 8),
        (Unit::Nvjpg, 0xb8d1, 8),
        (Unit::Ofa, 0xb8fa, 1),
        SEC2,
    ],
    others: &[0xfd],
    ..GA100
};

const GB100: Row = Row {
    since: Release::R570,
    mc_architecture: 0x1a0,
    sm_version: 0xa00,
    pci_device_id: 0x2901,
    chip: "GB100",
    qmd: QmdVersion::V5,
    per_runlist_channels: true,
    host: &[
        0xc96f, 0xc86f, 0xc56f, 0xc46f, 0xc36f, 0xc661, 0xc461, 0xc361,
    ],
    compute: 0xcdc0,
    three_d: 0xcd97,
    inline_to_memory: INLINE_CD40,
    copy: (0xc9b5, 20),
    falcons: &[
        (Unit::Nvdec, 0xcdb0, 8),
        (Unit::Nvjpg, 0xcdd1, 8),
        (Unit::Ofa, 0xcdfa, 2),
        SEC2,
    ],
    ..HOPPER
};

const BLACKWELL: Row = Row {
    mc_architecture: 0x1b0,
    sm_version: 0xa04,
    pci_device_id: 0x2b85,
    chip: "GB202",
    host: &[
        0xca6f, 0xc96f, 0xc86f, 0xc56f, 0xc46f, 0xc36f, 0xc761, 0xc661, 0xc461, 0xc361,
    ],
    compute: 0xcec0,
    three_d: 0xce97,
    copy: (0xcab5, 8),
    falcons: &[
        (Unit::Nvdec, 0xcfb0, 4),
        (Unit::Nvenc, 0xcfb7, 4),
        (Unit::Nvjpg, 0xcfd1, 4),
        (Unit::Ofa, 0xcffa, 1),
        SEC2,
    ],
    ..GB100
};

impl Architecture {
    const fn row(self) -> &'static Row {
        match self {
            Self::Pascal => &PASCAL,
            Self::Volta => &VOLTA,
            Self::Turing => &TURING,
            Self::Ga100 => &GA100,
            Self::Ga10x => &GA10X,
            Self::Ada => &ADA,
            Self::Hopper => &HOPPER,
            Self::Gb100 => &GB100,
            Self::Blackwell => &BLACKWELL,
        }
    }

    /// The first release whose tables have its classes.
    pub(crate) fn since(self) -> Release {
        self.row().since
    }

    /// The last release that drives it; `None`: the newest known does.
    pub(crate) fn until(self) -> Option<Release> {
        self.row().until
    }

    fn own_classes(self) -> impl Iterator<Item = u32> {
        let row = self.row();
        let graphics = [
            row.compute,
            row.three_d,
            TWO_D,
            row.inline_to_memory,
            row.copy.0,
        ];
        let falcons = row.falcons.iter().map(|(_unit, class, _count)| *class);
        let others = row.host.iter().chain(row.others).copied();
        others.chain(graphics).chain(falcons)
    }

    /// The class list, in the order that GPU_GET_CLASSLIST gives it.
    pub(crate) fn classes(self) -> Vec<u32> {
        COMMON.iter().copied().chain(self.own_classes()).collect()
    }

    /// Whether a class that belongs to cards exists on this one.
    pub(crate) fn has(self, class: u32) -> bool {
        class == UNLISTED || COMMON.contains(&class) || self.own_classes().any(|own| own == class)
    }

    /// What carries out the methods of a class, where the card has it.
    pub(crate) fn methods_of(self, class: u32) -> Option<Methods> {
        let row = self.row();
        let of_engines = [
            (row.compute, Methods::Compute),
            (row.three_d, Methods::ThreeD),
            (TWO_D, Methods::TwoD),
            (row.inline_to_memory, Methods::InlineToMemory),
            (row.copy.0, Methods::Copy),
        ];
        let falcons = row
            .falcons
            .iter()
            .map(|(unit, class, _count)| (*class, Methods::Falcon(*unit)));
        of_engines
            .into_iter()
            .chain(falcons)
            .find_map(|(known, methods)| (known == class).then_some(methods))
    }

    /// Copy engines.
    pub(crate) fn copies(self) -> u32 {
        self.row().copy.1
    }

    /// All engines, in the order of their `NV2080_ENGINE_TYPE_*`s' families.
    pub(crate) fn engines(self) -> Vec<Engine> {
        let falcons = self.row().falcons.iter().flat_map(|(unit, _class, count)| {
            (0..*count).map(|instance| Engine::Falcon(*unit, instance))
        });
        std::iter::once(Engine::Graphics)
            .chain((0..self.copies()).map(Engine::Copy))
            .chain(falcons)
            .collect()
    }

    /// `NV2080_CTRL_MC_ARCH_INFO_ARCHITECTURE_*` (ctrl2080mc.h).
    pub(crate) fn mc_architecture(self) -> u32 {
        self.row().mc_architecture
    }

    /// `SM_VERSION` of GR_GET_INFO (ctrl2080gr.h).
    pub(crate) fn sm_version(self) -> u32 {
        self.row().sm_version
    }

    /// A PCI device id of the family.
    pub(crate) fn pci_device_id(self) -> u16 {
        self.row().pci_device_id
    }

    /// What GPU_GET_SHORT_NAME_STRING calls the chip.
    pub(crate) fn chip(self) -> &'static str {
        self.row().chip
    }

    /// Whether it has pages of 256 GiB: the newest data centre's have.
    pub(crate) fn has_256g_pages(self) -> bool {
        matches!(self, Self::Gb100)
    }

    pub(crate) fn qmd(self) -> QmdVersion {
        self.row().qmd
    }

    /// Whether it has no doorbell: a store to `GPPut` of a USERD that RM keeps is all of a submission (nv_gpu_ops.c, `isDeviceVoltaPlus`).
    pub(crate) fn is_before_usermode(self) -> bool {
        self.row().is_before_usermode
    }

    /// Whether the engine of a channel is settled when it is made, and USERD is the client's.
    pub(crate) fn has_per_runlist_channels(self) -> bool {
        self.row().per_runlist_channels
    }

    /// Whether a group must say its engine: what each runlist's own channels come with (`bIsPerRunlistChramSupportedInHw`,
    /// g_kernel_fifo_nvoc.c).
    pub(crate) fn compares_engines_of_channels(self) -> bool {
        match self {
            Self::Pascal | Self::Volta | Self::Turing => false,
            Self::Ga100
            | Self::Ga10x
            | Self::Ada
            | Self::Hopper
            | Self::Gb100
            | Self::Blackwell => true,
        }
    }
}

/// `NV2080_ENGINE_TYPE_*` of the first engine of a run, how many it has, and its first instance (cl2080_notification.h).
const COPY_TYPES: [(u32, u32, u32); 2] = [(0x09, 10, 0), (0x34, 10, 10)];
const FALCON_TYPES: [(Unit, u32, u32, u32); 7] = [
    (Unit::Nvdec, 0x13, 8, 0),
    (Unit::Nvenc, 0x1b, 3, 0),
    (Unit::Nvenc, 0x3f, 1, 3),
    (Unit::Nvjpg, 0x2b, 8, 0),
    (Unit::Ofa, 0x33, 1, 0),
    (Unit::Ofa, 0x3e, 1, 1),
    (Unit::Sec2, 0x26, 1, 0),
];
/// `NV2080_ENGINE_TYPE_GRAPHICS`. The further ones exist with MIG alone.
const GRAPHICS_TYPE: u32 = 1;

impl Engine {
    /// The engine of an `NV2080_ENGINE_TYPE_*`.
    pub(crate) fn of_type(number: u32) -> Option<Self> {
        let within = |(first, count, from): (u32, u32, u32)| {
            let at = number.checked_sub(first).filter(|at| *at < count)?;
            Some(from + at)
        };
        if number == GRAPHICS_TYPE {
            return Some(Self::Graphics);
        }
        let copy = COPY_TYPES.into_iter().find_map(within).map(Self::Copy);
        copy.or_else(|| {
            FALCON_TYPES
                .into_iter()
                .find_map(|(unit, first, count, from)| {
                    within((first, count, from)).map(|instance| Self::Falcon(unit, instance))
                })
        })
    }

    /// Whether it is a copy engine on the runlist of graphics (a GRCE). A card has the first two or four there; here it is the second, and the first is one by
    /// itself, so that programs of both kinds find theirs under a low number.
    pub(crate) fn is_beside_graphics(self) -> bool {
        self == Self::Copy(1)
    }

    /// Its `NV2080_ENGINE_TYPE_*`.
    pub(crate) fn number(self) -> Option<u32> {
        let within = |instance: u32, (first, count, from): (u32, u32, u32)| {
            let at = instance.checked_sub(from).filter(|at| *at < count)?;
            Some(first + at)
        };
        match self {
            Self::Graphics => Some(GRAPHICS_TYPE),
            Self::Copy(instance) => COPY_TYPES.into_iter().find_map(|run| within(instance, run)),
            Self::Falcon(unit, instance) => FALCON_TYPES
                .into_iter()
                .filter(|(of, ..)| *of == unit)
                .find_map(|(_, first, count, from)| within(instance, (first, count, from))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Architecture; 9] = [
        Architecture::Pascal,
        Architecture::Volta,
        Architecture::Turing,
        Architecture::Ga100,
        Architecture::Ga10x,
        Architecture::Ada,
        Architecture::Hopper,
        Architecture::Gb100,
        Architecture::Blackwell,
    ];

    #[test]
    fn every_engine_of_every_card_has_a_number_of_its_own() {
        for architecture in ALL {
            let engines = architecture.engines();
            for engine in &engines {
                let number = engine.number().unwrap();
                assert_eq!(Engine::of_type(number), Some(*engine), "{number:#x}");
            }
        }
        for no_engine in [0, 2, 8, 0x1e, 0x2a, 0x40] {
            assert_eq!(Engine::of_type(no_engine), None);
        }
    }

    #[test]
    fn every_class_of_a_card_has_a_row_in_its_first_and_its_last_release() {
        for architecture in ALL {
            let last = architecture.until().unwrap_or(Release::R595);
            for class in architecture.own_classes() {
                for release in [architecture.since(), last] {
                    let row = nvabi::class::row_of(class, release);
                    // Cards of today list channels and pages of Volta too, whose rows end with it.
                    assert!(
                        row.is_some() || class >> 8 == 0xc3,
                        "{class:#x} {release:?}"
                    );
                }
            }
        }
    }
}
