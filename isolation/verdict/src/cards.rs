//! Every control whose parameters name a card: by RM's id, device instance, UUID or place on a bus.
//!
//! A card that was not granted is, for its container, a card that is not there. Where the caller names one, it is answered as RM answers
//! an id that it does not know, and no driver hears of the call. Where the driver names one, it is left out of the answer ([`crate::view`]).
//! One row a control, in [`NAMING`]: of those whose [`Decision`](ctl::Decision) says that they name cards, which a test compares.
//!
//! Sources: the control headers for the fields, the functions that are named for the statuses (580.105.08; 535 to 595 do the same).

use nvabi::Release;
use nvabi::bytes::u32_at;
use nvabi::control as ctl;
use nvabi::layout::{atomics, attached_ids, p2p_caps, p2p_matrix};
use nvabi::status::{NV_ERR_INVALID_ARGUMENT, NV_ERR_OBJECT_NOT_FOUND};

/// What becomes of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The caller names cards there; each must be granted.
    Requested(Requested, Absent),
    /// The driver names cards there; those that are not granted are left out of the answer.
    Shown,
    /// The card of the object that is asked, or one that [`Outcome::Requested`] holds for.
    Own,
    /// RM reads nothing there.
    Unread,
}

/// Where ids of cards are in the parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requested {
    /// One id, at this offset.
    One(usize),
    /// As many as are counted at another offset.
    Counted {
        /// The first.
        at: usize,
        /// Their number.
        count_at: usize,
    },
    /// Up to the first invalid id; with [`ALL_IDS`] in front it is no list.
    UntilInvalid(usize),
    /// A place on a bus (`dbdf`), where the kind of the question is one about two cards.
    Peer,
}

/// How RM answers an id that it does not know: the status, and the function that says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Absent {
    /// The status.
    pub status: u32,
    /// File and function.
    pub source: &'static str,
}

/// A field that names cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The driver's name.
    pub name: &'static str,
    /// What becomes of it.
    pub outcome: Outcome,
}

/// `NV0000_CTRL_GPU_ATTACH_ALL_PROBED_IDS`, `NV0000_CTRL_GPU_DETACH_ALL_ATTACHED_IDS`
pub const ALL_IDS: u32 = 0xffff;

const fn requested(
    name: &'static str,
    requested: Requested,
    status: u32,
    source: &'static str,
) -> Field {
    let absent = Absent { status, source };
    Field {
        name,
        outcome: Outcome::Requested(requested, absent),
    }
}

const fn one(name: &'static str, status: u32, source: &'static str) -> Field {
    requested(name, Requested::One(0), status, source)
}

const fn shown(name: &'static str) -> Field {
    Field {
        name,
        outcome: Outcome::Shown,
    }
}

const fn own(name: &'static str) -> Field {
    Field {
        name,
        outcome: Outcome::Own,
    }
}

const P2P_CAPS: &[Field] = &[requested(
    "gpuIds",
    Requested::Counted {
        at: p2p_caps::IDS,
        count_at: p2p_caps::COUNT,
    },
    NV_ERR_INVALID_ARGUMENT,
    "client_resource.c, CliGetSystemP2pCaps",
)];

const fn group(name: &'static str, (at, count_at): (usize, usize)) -> Field {
    requested(
        name,
        Requested::Counted { at, count_at },
        NV_ERR_INVALID_ARGUMENT,
        "client_resource.c, cliresCtrlCmdSystemGetP2pCapsMatrix_IMPL",
    )
}

const ID_INFO: &[Field] = &[
    one(
        "gpuId",
        NV_ERR_INVALID_ARGUMENT,
        "gpu_mgr.c, gpumgrGetGpuIdInfoV2",
    ),
    own("deviceInstance"),
    own("boardId"),
    own("gpuInstance"),
];

const PROBED: &str = "client_resource.c, _cliresValidateGpuIdAgainstProbed";

/// The controls with such fields.
#[rustfmt::skip] // one control a line
pub const NAMING: &[(u32, &[Field])] = &[
    (ctl::NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS, P2P_CAPS),
    (ctl::NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_V2, P2P_CAPS),
    (ctl::NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_MATRIX, &[group("gpuIdGrpA", p2p_matrix::GROUPS[0]), group("gpuIdGrpB", p2p_matrix::GROUPS[1])]),
    (ctl::NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, &[shown("gpuIds")]),
    (ctl::NV0000_CTRL_CMD_GPU_GET_ID_INFO, ID_INFO),
    (ctl::NV0000_CTRL_CMD_GPU_GET_DEVICE_IDS, &[shown("deviceIds")]),
    (ctl::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, ID_INFO),
    (ctl::NV0000_CTRL_CMD_GPU_GET_PROBED_IDS, &[shown("gpuIds"), shown("excludedGpuIds")]),
    (ctl::NV0000_CTRL_CMD_GPU_ATTACH_IDS, &[requested("gpuIds", Requested::UntilInvalid(0), NV_ERR_INVALID_ARGUMENT, PROBED), own("failedId")]),
    (ctl::NV0000_CTRL_CMD_GPU_DETACH_IDS, &[
        requested("gpuIds", Requested::UntilInvalid(0), NV_ERR_INVALID_ARGUMENT, "client_resource.c, cliresCtrlCmdGpuDetachIds_IMPL"),
    ]),
    (ctl::NV0000_CTRL_CMD_GPU_GET_PCI_INFO, &[
        one("gpuId", NV_ERR_OBJECT_NOT_FOUND, "gpu_mgr.c, gpumgrGetProbedGpuDomainBusDevice"),
        own("domain"),
        own("bus"),
        own("slot"),
    ]),
    (ctl::NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID, &[
        one("gpuId", NV_ERR_OBJECT_NOT_FOUND, "client_resource.c, cliresCtrlCmdGpuGetUuidFromGpuId_IMPL"),
        own("gpuUuid"),
    ]),
    (ctl::NV0000_CTRL_CMD_GPU_QUERY_DRAIN_STATE, &[one("gpuId", NV_ERR_OBJECT_NOT_FOUND, "gpu_mgr.c, gpumgrQueryGpuDrainState")]),
    (ctl::NV0000_CTRL_CMD_GPU_GET_ACTIVE_DEVICE_IDS, &[shown("devices.gpuId")]),
    (ctl::NV0000_CTRL_CMD_GPU_ASYNC_ATTACH_ID, &[one("gpuId", NV_ERR_INVALID_ARGUMENT, PROBED)]),
    // `cliresCtrlCmdGpuWaitAttachId_IMPL` succeeds whatever it is asked.
    (ctl::NV0000_CTRL_CMD_GPU_WAIT_ATTACH_ID, &[Field { name: "gpuId", outcome: Outcome::Unread }]),
    (ctl::NV0000_CTRL_CMD_SYNC_GPU_BOOST_GROUP_INFO, &[shown("pBoostGroups.gpuIds")]),
    (ctl::NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO, &[shown("deviceInstance")]),
    (ctl::NV0000_CTRL_CMD_GPUACCT_GET_ACCOUNTING_STATE, &[
        one("gpuId", NV_ERR_INVALID_ARGUMENT, "client_resource.c, cliresCtrlCmdGpuAcctGetAccountingState_IMPL"),
    ]),
    (ctl::NV2080_CTRL_CMD_GPU_GET_CHIP_DETAILS, &[own("pciDevId")]),
    // The control of its serial number and parts.
    (0x2080_013f, &[own("serialNumber")]),
    (ctl::NV2080_CTRL_CMD_GPU_GET_ID, &[own("gpuId")]),
    (ctl::NV2080_CTRL_CMD_GPU_GET_GID_INFO, &[own("data")]),
    // Its device's type, not its place.
    (ctl::NV2080_CTRL_CMD_BUS_GET_PCI_INFO, &[own("pciDeviceId"), own("pciSubSystemId")]),
    // Indices that ask for domain, bus and device.
    (ctl::NV2080_CTRL_CMD_BUS_GET_INFO, &[own("busInfoList")]),
    (ctl::NV2080_CTRL_CMD_BUS_GET_INFO_V2, &[own("busInfoList")]),
    // Firmware answers both, so the status is a guess.
    (ctl::NV2080_CTRL_CMD_BUS_GET_PCIE_REQ_ATOMICS_CAPS, &[requested("dbdf", Requested::Peer, NV_ERR_INVALID_ARGUMENT, "ctrl2080bus.h")]),
    (ctl::NV2080_CTRL_CMD_BUS_GET_PCIE_SUPPORTED_GPU_ATOMICS, &[requested("dbdf", Requested::Peer, NV_ERR_INVALID_ARGUMENT, "ctrl2080bus.h")]),
    (ctl::NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS, &[shown("linkInfo.remoteDeviceInfo"), own("linkInfo.localDeviceInfo")]),
];

/// The cards that a control's parameters name, and the status where one of them is not granted; `None`: none can be named there.
///
/// A list is read as far as RM reads it, at most to the length of the longest that it takes.
#[must_use]
pub fn cards_in_question(cmd: u32, params: &[u8], release: Release) -> Option<(Vec<u32>, u32)> {
    let (_, fields) = NAMING.iter().find(|(of, _)| *of == cmd)?;
    let mut found = None;
    for field in *fields {
        let Outcome::Requested(requested, absent) = field.outcome else {
            continue;
        };
        let (ids, _) = found.get_or_insert((Vec::new(), absent.status));
        ids.extend(requested.ids(params, release));
    }
    found
}

impl Requested {
    fn ids(self, params: &[u8], release: Release) -> Vec<u32> {
        let list = |at: usize| {
            let places = (at..).step_by(4).take(attached_ids::MOST);
            places.map_while(|at| u32_at(params, at))
        };
        match self {
            Self::One(at) => list(at).take(1).collect(),
            Self::Counted { at, count_at } => {
                let count = u32_at(params, count_at).unwrap_or(0) as usize;
                list(at).take(count).collect()
            }
            Self::UntilInvalid(at) if u32_at(params, at) == Some(ALL_IDS) => Vec::new(),
            Self::UntilInvalid(at) => list(at)
                .take_while(|id| *id != attached_ids::NONE)
                .collect(),
            Self::Peer => {
                let is_requested = release >= Release::R560
                    && u32_at(params, atomics::KIND) == Some(atomics::BETWEEN_CARDS);
                let place = u32_at(params, atomics::PEER).filter(|_| is_requested);
                place
                    .map(|dbdf| gpu_id(dbdf >> 16, dbdf >> 8 & 0xff, dbdf >> 3 & 0x1f))
                    .into_iter()
                    .flatten()
                    .collect()
            }
        }
    }
}

/// RM's id of the card at a place on a bus (`gpuGenerate32BitId`, gpu.c); `None`: no card's place. Of the domain the id has its lower half.
#[must_use]
pub fn gpu_id(domain: u32, bus: u32, device: u32) -> Option<u32> {
    let fits = domain <= 0xffff && bus <= 0xff && device <= 0xff;
    fits.then_some(domain << 16 | bus << 8 | device)
}

#[cfg(test)]
mod tests {
    use nvabi::bytes::put_u32;
    use nvabi::capability::Capabilities;
    use nvabi::control::Decision;
    use nvabi::layout::boost_groups;
    use nvabi::{control, escape};

    use super::*;
    use crate::effect::View;
    use crate::{Effect, Op, Policy, Verdict, decide_under};

    fn decided(cmd: u32, params: &[u8], release: Release) -> Effect {
        let mut arg = vec![0; 32];
        put_u32(&mut arg, nvabi::layout::nvos54::CMD, cmd);
        let op = Op::Escape(&escape::NV_ESC_RM_CONTROL);
        let policy = Policy {
            capabilities: Capabilities::ALL,
            ..Policy::default()
        };
        match decide_under(&op, &[&arg, params], release, &policy) {
            Verdict::Execute(effect) => effect,
            Verdict::Refuse(refusal) => panic!("{cmd:#x}: {refusal:?}"),
        }
    }

    /// Whether its parameters name cards, by RM's id, device instance, UUID or place on a bus: asked about, or answered.
    fn names_cards(decision: Decision) -> bool {
        match decision {
            Decision::NamesCards
            | Decision::GpuIds
            | Decision::ActiveDevices
            | Decision::DeviceMask
            | Decision::BoostGroups
            | Decision::NvLinks
            | Decision::IdInfo
            | Decision::ExportInfo => true,
            Decision::Passed
            | Decision::Uncarried
            | Decision::NotATenants(_)
            | Decision::CardWide
            | Decision::FbInfo
            | Decision::FbInfoV2
            | Decision::GpuInfo
            | Decision::GpuInfoV2
            | Decision::ClassList
            | Decision::ClassListV2
            | Decision::FabricProbe
            | Decision::Pids
            | Decision::PidInfo
            | Decision::UtilSamples
            | Decision::ContextBytes
            | Decision::DisableChannels
            | Decision::SetTimeslice
            | Decision::GetTimeslice
            | Decision::Preempt
            | Decision::Runlist
            | Decision::PreemptionMode
            | Decision::ExportObject
            | Decision::ExportObjects
            | Decision::ImportObject
            | Decision::ImportObjects
            | Decision::SharePolicy
            | Decision::Engines
            | Decision::EnginesV2
            | Decision::Partners
            | Decision::BindEngine
            | Decision::FbRegions
            | Decision::NoSessions
            | Decision::NoSyncBoards
            | Decision::ZcullBind => false,
        }
    }

    #[test]
    fn every_control_that_names_cards_has_its_fields_here() {
        let names_cards = control::ALL
            .iter()
            .filter(|spec| names_cards(spec.decision));
        let mut expected: Vec<u32> = names_cards.map(|spec| spec.cmd).collect();
        let mut listed: Vec<u32> = NAMING.iter().map(|(cmd, _)| *cmd).collect();
        expected.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, expected);
        for (cmd, fields) in NAMING {
            assert!(!fields.is_empty(), "{cmd:#x}");
        }
    }

    /// What the driver names is rewritten, and what the caller names is looked for: by the table, not beside it.
    #[test]
    fn every_field_has_the_effect_that_its_outcome_needs() {
        for release in Release::ALL {
            for (cmd, fields) in NAMING {
                let Some(row) = control::row(*cmd, release) else {
                    continue;
                };
                let params = vec![0; row.params_bytes as usize];
                let effect = decided(*cmd, &params, release);
                let has = |needed: fn(Outcome) -> bool| fields.iter().any(|it| needed(it.outcome));
                let is_shown = matches!(
                    effect.view(),
                    Some(
                        View::GpuIds
                            | View::ActiveDevices
                            | View::DeviceMask
                            | View::BoostGroups
                            | View::NvLinks
                            | View::ExportedDevice
                    )
                );
                assert_eq!(
                    has(|outcome| outcome == Outcome::Shown),
                    is_shown,
                    "{cmd:#x}"
                );
                let is_requested = matches!(effect, Effect::NamesCards { .. });
                assert_eq!(
                    has(|outcome| matches!(outcome, Outcome::Requested(..))),
                    is_requested,
                    "{cmd:#x}"
                );
            }
        }
    }

    #[test]
    fn fields_are_in_the_parameters() {
        for release in Release::ALL {
            for (cmd, fields) in NAMING {
                let Some(row) = control::row(*cmd, release) else {
                    continue;
                };
                for field in *fields {
                    let Outcome::Requested(requested, _) = field.outcome else {
                        continue;
                    };
                    let last = match requested {
                        Requested::One(at) | Requested::UntilInvalid(at) => at,
                        Requested::Counted { at, count_at } => at.max(count_at),
                        // The other card is a field since 560.
                        Requested::Peer if release < Release::R560 => continue,
                        Requested::Peer => atomics::PEER,
                    };
                    assert!(last + 4 <= row.params_bytes as usize, "{cmd:#x}");
                }
            }
        }
        assert_eq!(
            boost_groups::IDS + 4 * boost_groups::MOST + 8,
            boost_groups::GROUP_BYTES
        );
    }

    #[test]
    fn a_list_is_read_as_far_as_the_driver_reads_it() {
        let ids = |cmd, words: &[u32], release| {
            let row = control::row(cmd, release).unwrap();
            let mut params = vec![0; row.params_bytes as usize];
            for (at, word) in (0..).step_by(4).zip(words) {
                put_u32(&mut params, at, *word);
            }
            cards_in_question(cmd, &params, release).unwrap().0
        };
        let attach = ctl::NV0000_CTRL_CMD_GPU_ATTACH_IDS;
        let none = attached_ids::NONE;
        assert_eq!(ids(attach, &[7, 8, none, 9], Release::R570), [7, 8]);
        assert_eq!(ids(attach, &[ALL_IDS, 8], Release::R570), [0; 0]);
        assert_eq!(ids(attach, &[8; 33], Release::R570), [8; 32]);
        let matrix = ctl::NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_MATRIX;
        assert_eq!(ids(matrix, &[1, 1, 5], Release::R570), [5, 0]);
        let atomics = ctl::NV2080_CTRL_CMD_BUS_GET_PCIE_SUPPORTED_GPU_ATOMICS;
        let peer = &[2, 0x0001_2308];
        assert_eq!(ids(atomics, peer, Release::R570), [0x0001_2301]);
        assert_eq!(ids(atomics, peer, Release::R555), [0; 0], "no such field");
        assert_eq!(ids(atomics, &[1, 0x0001_2308], Release::R570), [0; 0]);
    }

    #[test]
    fn a_place_beyond_the_ids_bits_is_no_cards() {
        assert_eq!(gpu_id(1, 2, 3), Some(0x0001_0203));
        for (domain, bus, device) in [(0x1_0000, 0, 0), (0, 0x100, 0), (0, 0, 0x100)] {
            assert_eq!(gpu_id(domain, bus, device), None);
        }
    }
}
