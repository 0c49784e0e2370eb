//! The profile: which driver and which cards are simulated.

use std::path::Path;

use cards::{Modes, Programs};
use driver::ImplicitBytes;
use nvabi::{DriverVersion, Release};
use runlist::{Costs, LONGEST_SLICE_US, Slices};
use serde::Deserialize;

use crate::Error;
use crate::architecture::Architecture;

/// Most cards that the driver knows (`NV_MAX_DEVICES`).
const MAX_CARDS: u32 = 32;
/// Links of the machine; as many as a card of the newest generations has, and fewer than any release has room for.
const MAX_LINKS: usize = 18;
/// `NV0000_SYNC_GPU_BOOST_MAX_GROUPS` (ctrl0000syncgpuboost.h).
const MAX_BOOST_GROUPS: usize = 16;
/// A tebibyte: more than any card has.
const MAX_MEMORY_MIB: u64 = 1 << 20;
/// A longer name does not fit into NAME_STRING with its end (ctrl2080gpu.h).
const MAX_NAME_BYTES: usize = 63;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileText {
    driver: DriverText,
    #[serde(default)]
    implicit: ImplicitText,
    #[serde(default)]
    scheduler: SchedulerText,
    card: Vec<CardText>,
    #[serde(default)]
    nvlink: Vec<NvLinkText>,
    #[serde(default)]
    boost_group: Vec<BoostGroupText>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NvLinkText {
    cards: Vec<u32>,
    #[serde(default = "one")]
    count: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BoostGroupText {
    cards: Vec<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DriverText {
    version: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ImplicitText {
    channel_group_bytes: u64,
    other_group_bytes: u64,
    channel_bytes: u64,
    va_space_bytes: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SchedulerText {
    rpc_us: u32,
    save_ns: u64,
    restore_ns: u64,
    boundary_ns: u64,
    wake_ns: u64,
    gap_ns: u64,
    default_slice_us: u64,
    slices: Slices,
}

impl Default for SchedulerText {
    fn default() -> Self {
        let costs = Costs::default();
        Self {
            rpc_us: 50,
            save_ns: costs.save_ns,
            restore_ns: costs.restore_ns,
            boundary_ns: costs.boundary_ns,
            wake_ns: costs.wake_ns,
            gap_ns: costs.gap_ns,
            default_slice_us: costs.default_slice_ns / 1000,
            slices: Slices::Quantised,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CardText {
    name: String,
    memory_mib: u64,
    architecture: Architecture,
    uuid: Option<String>,
    #[serde(default = "one")]
    count: u32,
    #[serde(default)]
    kernel_duration_us: u32,
    #[serde(default)]
    video_frame_us: u32,
    block_us: Option<u32>,
    #[serde(default = "default_multiprocessors")]
    multiprocessors: u32,
    #[serde(default)]
    copy_mib_per_s: u32,
    #[serde(default)]
    mig: bool,
    #[serde(default)]
    compute_mode: Programs,
    #[serde(default)]
    confidential: bool,
    #[serde(default)]
    system_memory: bool,
    context_bytes: Option<u64>,
}

fn default_multiprocessors() -> u32 {
    8
}

fn one() -> u32 {
    1
}

/// What is simulated.
#[derive(Debug, Clone)]
pub struct Profile {
    /// The driver version that is played, as its clients read it.
    pub driver_version: String,
    /// Its layouts.
    pub release: Release,
    /// What the driver takes for objects that nobody gives a size.
    pub implicit: ImplicitBytes,
    /// How the cards' time is divided, and what that costs.
    pub scheduler: SchedulerProfile,
    /// The cards, by index.
    pub cards: Vec<CardProfile>,
    /// The links between them, in the order in which each card counts its own.
    pub links: Vec<NvLink>,
    /// Cards whose clocks are tied together, by index.
    pub boost_groups: Vec<Vec<u32>>,
}

/// A link of a card's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NvLink {
    /// The card, by index.
    pub from: u32,
    /// The card at the other end; `None`: a switch.
    pub to: Option<u32>,
}

/// How the cards' schedulers behave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerProfile {
    /// What switching costs, and how slices are kept.
    pub costs: Costs,
    /// How long a call to the scheduler is under way before it has an effect, µs: one at a time on a card.
    pub rpc_us: u32,
}

/// How long kernels run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelTime {
    /// Every one so long, µs; 0: no time at all, without the scheduler.
    Fixed {
        /// µs
        us: u32,
    },
    /// As long as the thread blocks of its grid take, of which every multiprocessor runs one at a time.
    OfBlocks {
        /// µs of one block.
        us: u32,
    },
}

/// One card.
#[derive(Debug, Clone)]
pub struct CardProfile {
    /// What NAME_STRING says.
    pub name: String,
    /// The 16 bytes behind `GPU-…`.
    pub uuid: [u8; 16],
    /// All of its memory.
    pub memory_bytes: u64,
    /// What it is.
    pub architecture: Architecture,
    /// How long kernels run.
    pub kernels: KernelTime,
    /// Multiprocessors (SMs), which run the blocks of a grid.
    pub multiprocessors: u32,
    /// What copies move in a second, MiB; 0: they take no time.
    pub copy_mib_per_s: u32,
    /// How long a video engine has to do with one frame, µs; 0: no time.
    pub video_frame_us: u32,
    /// How the card's operator has set it. Nothing is placed on a card that cannot be shared: the driver plays no MIG instance, and refuses
    /// no second process.
    pub modes: Modes,
    /// What a context takes, bytes, where that is another figure than the driver declares for all cards.
    pub context_bytes: Option<u64>,
}

/// Profiles that are known by their name, where there is no file of that name.
const SHIPPED: [(&str, &str); 5] = [
    (
        "generations",
        include_str!("../../../configs/sim/generations.toml"),
    ),
    ("mixed", include_str!("../../../configs/sim/mixed.toml")),
    (
        "old-driver",
        include_str!("../../../configs/sim/old-driver.toml"),
    ),
    ("shares", include_str!("../../../configs/sim/shares.toml")),
    ("two-ada", include_str!("../../../configs/sim/two-ada.toml")),
];

impl Profile {
    /// Reads a profile: a file, or one of those that come with the program.
    ///
    /// # Errors
    /// Unreadable, of another shape, or a value out of range; each names the key and what is allowed.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let read = std::fs::read_to_string(path);
        let shipped = SHIPPED
            .into_iter()
            .find(|(name, _)| path.as_os_str() == *name);
        match (read, shipped) {
            (Ok(text), _) => Self::parse(path, &text),
            (Err(error), Some((_, text))) if error.kind() == std::io::ErrorKind::NotFound => {
                Self::parse(path, text)
            }
            (Err(source), _) => Err(Error::ProfileUnreadable {
                path: path.to_owned(),
                shipped: SHIPPED.map(|(name, _)| name).join(", "),
                source,
            }),
        }
    }

    /// As [`Profile::read`], from text; the path is for messages.
    ///
    /// # Errors
    /// As [`Profile::read`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, Error> {
        let text = toml::from_str(text).map_err(|error: toml::de::Error| Error::ProfileSyntax {
            path: path.to_owned(),
            reason: error.to_string().trim_end().to_owned(),
        })?;
        Self::of(text).map_err(
            |Wrong {
                 key,
                 value,
                 allowed,
             }| Error::ProfileValue {
                path: path.to_owned(),
                key,
                value,
                allowed,
            },
        )
    }

    fn of(text: ProfileText) -> Result<Self, Wrong> {
        let release = release_of(&text.driver)?;
        let scheduler =
            SchedulerProfile::of(&text.scheduler).map_err(|wrong| wrong.within("scheduler"))?;
        let cards = cards_of(&text.card, release)?;
        Ok(Self {
            links: links_of(&text.nvlink, cards.len())?,
            boost_groups: boost_groups_of(text.boost_group, cards.len())?,
            implicit: implicit_of(&text.implicit, &cards)?,
            driver_version: text.driver.version,
            release,
            scheduler,
            cards,
        })
    }
}

fn release_of(text: &DriverText) -> Result<Release, Wrong> {
    let version = text.version.parse::<DriverVersion>().ok();
    version
        .and_then(|version| Release::of(version).ok())
        .ok_or_else(|| {
            let allowed = format!("must be of a known branch: {}", nvabi::Known);
            Wrong::new("driver.version", format!("{:?}", text.version), allowed)
        })
}

/// All cards, each row of the profile as often as it counts.
fn cards_of(rows: &[CardText], release: Release) -> Result<Vec<CardProfile>, Wrong> {
    let mut cards: Vec<CardProfile> = Vec::new();
    for (at, text) in rows.iter().enumerate() {
        let within = |wrong: Wrong| wrong.within(&format!("card[{at}]"));
        if text.count == 0 || text.count > MAX_CARDS {
            return Err(within(Wrong::new("count", text.count, "must be 1 to 32")));
        }
        for _copy in 0..text.count {
            let card = CardProfile::of(text, cards.len()).map_err(within)?;
            is_driven(text.architecture, release).map_err(within)?;
            if cards.iter().any(|other| other.uuid == card.uuid) {
                return Err(within(Wrong::new(
                    "uuid",
                    uuid_text(&card.uuid),
                    "must differ from that of every other card",
                )));
            }
            cards.push(card);
        }
    }
    if cards.is_empty() || u32::try_from(cards.len()).is_ok_and(|count| count > MAX_CARDS) {
        let count = format!("{} cards", cards.len());
        return Err(Wrong::new("card", count, "must be 1 to 32 cards"));
    }
    Ok(cards)
}

/// Whether drivers of a release have an architecture.
fn is_driven(architecture: Architecture, release: Release) -> Result<(), Wrong> {
    let wrong = |allowed| {
        let name = format!("{architecture:?}").to_lowercase();
        Err(Wrong::new("architecture", name, allowed))
    };
    if architecture.since() > release {
        return wrong("needs driver.version 570.86.15 or later");
    }
    if architecture.until().is_some_and(|last| last < release) {
        return wrong("needs driver.version of branch 580 or before: later drivers have left it");
    }
    Ok(())
}

fn is_card(index: u32, count: usize) -> bool {
    usize::try_from(index).is_ok_and(|index| index < count)
}

/// The links of a machine with that many cards.
fn links_of(rows: &[NvLinkText], cards: usize) -> Result<Vec<NvLink>, Wrong> {
    let mut links = Vec::new();
    for (at, text) in rows.iter().enumerate() {
        let (from, to) = match text.cards[..] {
            [from] => (from, None),
            [from, to] if from != to => (from, Some(to)),
            [..] => (u32::MAX, None),
        };
        if !std::iter::once(from)
            .chain(to)
            .all(|card| is_card(card, cards))
        {
            return Err(Wrong::new(
                format!("nvlink[{at}].cards"),
                format!("{:?}", text.cards),
                "must be two cards by number, or one that has a link to a switch",
            ));
        }
        if links.len() + text.count as usize > MAX_LINKS {
            return Err(Wrong::new(
                format!("nvlink[{at}].count"),
                text.count,
                "must not make more than 18 links",
            ));
        }
        links.extend((0..text.count).map(|_| NvLink { from, to }));
    }
    Ok(links)
}

/// The boost groups of a machine with that many cards.
fn boost_groups_of(rows: Vec<BoostGroupText>, cards: usize) -> Result<Vec<Vec<u32>>, Wrong> {
    for (at, group) in rows.iter().enumerate() {
        if !group.cards.iter().all(|card| is_card(*card, cards)) {
            return Err(Wrong::new(
                format!("boost_group[{at}].cards"),
                format!("{:?}", group.cards),
                "must be cards by number",
            ));
        }
    }
    if rows.len() > MAX_BOOST_GROUPS {
        let count = format!("{} groups", rows.len());
        return Err(Wrong::new(
            "boost_group",
            count,
            "must be at most 16 groups",
        ));
    }
    Ok(rows.into_iter().map(|group| group.cards).collect())
}

fn implicit_of(text: &ImplicitText, cards: &[CardProfile]) -> Result<ImplicitBytes, Wrong> {
    let memories = cards.iter().map(|card| card.memory_bytes);
    let least = memories.min().unwrap_or(0);
    for (name, bytes) in [
        ("channel_group_bytes", text.channel_group_bytes),
        ("other_group_bytes", text.other_group_bytes),
        ("channel_bytes", text.channel_bytes),
        ("va_space_bytes", text.va_space_bytes),
    ] {
        if bytes > least {
            let allowed = "must not pass the memory of the smallest card";
            return Err(Wrong::new(name, bytes, allowed).within("implicit"));
        }
    }
    Ok(ImplicitBytes {
        channel_group: text.channel_group_bytes,
        other_group: text.other_group_bytes,
        channel: text.channel_bytes,
        va_space: text.va_space_bytes,
    })
}

/// A value that is out of range.
struct Wrong {
    /// With its tables.
    key: String,
    value: String,
    allowed: String,
}

impl Wrong {
    fn new(key: impl Into<String>, value: impl ToString, allowed: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            value: value.to_string(),
            allowed: allowed.into(),
        }
    }

    /// The key with the table that it is in.
    fn within(self, table: &str) -> Self {
        Self {
            key: format!("{table}.{}", self.key),
            ..self
        }
    }
}

/// Most that a step of a switch may take: a slice of the longest round.
const MAX_COST_NS: u64 = 50_000_000;
const MAX_RPC_US: u32 = 1_000_000;
/// 2 GPCs of TPCs of 2 each, at most 32 a GPC.
const MULTIPROCESSORS_STEP: u32 = 4;
const MAX_MULTIPROCESSORS: u32 = 128;
/// A minute.
const MAX_BLOCK_US: u32 = 60_000_000;

impl SchedulerProfile {
    fn of(text: &SchedulerText) -> Result<Self, Wrong> {
        for (name, cost_ns) in [
            ("save_ns", text.save_ns),
            ("restore_ns", text.restore_ns),
            ("boundary_ns", text.boundary_ns),
            ("wake_ns", text.wake_ns),
            ("gap_ns", text.gap_ns),
        ] {
            if cost_ns > MAX_COST_NS {
                return Err(Wrong::new(name, cost_ns, "must be 0 to 50000000"));
            }
        }
        if text.rpc_us > MAX_RPC_US {
            return Err(Wrong::new("rpc_us", text.rpc_us, "must be 0 to 1000000"));
        }
        if !(1..=LONGEST_SLICE_US).contains(&text.default_slice_us) {
            return Err(Wrong::new(
                "default_slice_us",
                text.default_slice_us,
                "must be 1 to 8355840",
            ));
        }
        Ok(Self {
            costs: Costs {
                save_ns: text.save_ns,
                restore_ns: text.restore_ns,
                boundary_ns: text.boundary_ns,
                wake_ns: text.wake_ns,
                gap_ns: text.gap_ns,
                default_slice_ns: text.default_slice_us * 1000,
                slices: text.slices,
                ..Costs::default()
            },
            rpc_us: text.rpc_us,
        })
    }
}

impl CardProfile {
    fn of(text: &CardText, index: usize) -> Result<Self, Wrong> {
        let printable = text
            .name
            .bytes()
            .all(|byte| byte == b' ' || byte.is_ascii_graphic());
        if text.name.is_empty() || text.name.len() > MAX_NAME_BYTES || !printable {
            return Err(Wrong::new(
                "name",
                format!("{:?}", text.name),
                "must be 1 to 63 printable ASCII characters",
            ));
        }
        if text.memory_mib == 0 || text.memory_mib > MAX_MEMORY_MIB {
            return Err(Wrong::new(
                "memory_mib",
                text.memory_mib,
                "must be 1 to 1048576",
            ));
        }
        let kernels = kernels_of(text)?;
        if !(MULTIPROCESSORS_STEP..=MAX_MULTIPROCESSORS).contains(&text.multiprocessors)
            || !text.multiprocessors.is_multiple_of(MULTIPROCESSORS_STEP)
        {
            return Err(Wrong::new(
                "multiprocessors",
                text.multiprocessors,
                "must be 4 to 128, in steps of 4",
            ));
        }
        let memory_bytes = text.memory_mib << 20;
        if let Some(bytes) = text.context_bytes.filter(|bytes| *bytes > memory_bytes) {
            return Err(Wrong::new(
                "context_bytes",
                bytes,
                "must not pass the card's memory",
            ));
        }
        if text.video_frame_us > MAX_BLOCK_US {
            return Err(Wrong::new(
                "video_frame_us",
                text.video_frame_us,
                "must be 0 to 60000000",
            ));
        }
        let uuid = uuid_of(text, index)?;
        Ok(Self {
            name: text.name.clone(),
            uuid,
            memory_bytes,
            architecture: text.architecture,
            kernels,
            multiprocessors: text.multiprocessors,
            copy_mib_per_s: text.copy_mib_per_s,
            video_frame_us: text.video_frame_us,
            modes: Modes {
                mig: text.mig,
                compute: text.compute_mode,
                confidential: text.confidential,
                system_memory: text.system_memory,
                lost_since_unix_ms: None,
            },
            context_bytes: text.context_bytes,
        })
    }
}

/// How long a card's kernels run.
fn kernels_of(text: &CardText) -> Result<KernelTime, Wrong> {
    match (text.block_us, text.kernel_duration_us) {
        (None, us) => Ok(KernelTime::Fixed { us }),
        (Some(us), 0) if (1..=MAX_BLOCK_US).contains(&us) => Ok(KernelTime::OfBlocks { us }),
        (Some(us), 0) => Err(Wrong::new("block_us", us, "must be 1 to 60000000")),
        (Some(us), _fixed) => Err(Wrong::new(
            "block_us",
            us,
            "cannot stand beside kernel_duration_us",
        )),
    }
}

/// The UUID of the card that has that many before it.
fn uuid_of(text: &CardText, index: usize) -> Result<[u8; 16], Wrong> {
    match &text.uuid {
        None => Ok(made_uuid(&text.name, index)),
        Some(uuid) if text.count == 1 => parsed_uuid(uuid).ok_or_else(|| {
            Wrong::new(
                "uuid",
                format!("{uuid:?}"),
                "must be GPU- and a UUID, e.g. GPU-8d8a6b0f-31c1-4a2c-9a40-0a2b5b1f0001",
            )
        }),
        Some(uuid) => Err(Wrong::new(
            "uuid",
            format!("{uuid:?}"),
            "cannot stand beside a count above 1",
        )),
    }
}

/// `GPU-` and the 8-4-4-4-12 form.
pub(crate) fn uuid_text(bytes: &[u8; 16]) -> String {
    let mut text = "GPU-".to_owned();
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

fn parsed_uuid(text: &str) -> Option<[u8; 16]> {
    let digits = text.strip_prefix("GPU-")?.replace('-', "");
    let bytes: [u8; 16] = u128::from_str_radix(&digits, 16).ok()?.to_be_bytes();
    (uuid_text(&bytes) == text.to_ascii_lowercase().replacen("gpu-", "GPU-", 1)).then_some(bytes)
}

/// A version 8 UUID (RFC 9562: contents of one's own) that depends on name and index only: FNV-1a over both, mixed until
/// neighbours differ in their first digits, which is what people look at.
fn made_uuid(name: &str, index: usize) -> [u8; 16] {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    // 2^128 over the golden ratio, odd.
    const MIXER: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    let hash = name
        .bytes()
        .chain([0])
        .chain(index.to_string().bytes())
        .fold(BASIS, |hash, byte| {
            (hash ^ u128::from(byte)).wrapping_mul(PRIME)
        });
    let mixed = (0..3).fold(hash, |hash, _round| {
        (hash ^ (hash >> 67)).wrapping_mul(MIXER)
    });
    let mut bytes = (mixed ^ (mixed >> 67)).to_be_bytes();
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Profile, Error> {
        Profile::parse(Path::new("p.toml"), text)
    }

    const TWO: &str = "[driver]\nversion = \"570.195.03\"\n[[card]]\nname = \"Simulated RTX 4090\"\nmemory_mib = 24576\narchitecture = \"ada\"\ncount = 2\n";

    #[test]
    fn cards_are_counted_and_named_deterministically() {
        let profile = parse(TWO).unwrap();
        let uuids: Vec<String> = profile
            .cards
            .iter()
            .map(|card| uuid_text(&card.uuid))
            .collect();
        assert_eq!(uuids.len(), 2);
        assert_ne!(uuids[0].split('-').nth(1), uuids[1].split('-').nth(1));
        assert_eq!(
            uuids,
            parse(TWO)
                .unwrap()
                .cards
                .iter()
                .map(|card| uuid_text(&card.uuid))
                .collect::<Vec<_>>()
        );
        assert_eq!(
            cards::GpuUuid::new(uuids[0].clone()).unwrap().as_str(),
            uuids[0]
        );
        assert_eq!(profile.cards[1].memory_bytes, 24 << 30);
    }

    #[test]
    fn a_given_uuid_is_kept_and_checked() {
        let with = |uuid: &str| parse(&TWO.replace("count = 2", &format!("uuid = \"{uuid}\"")));
        let uuid = "GPU-8d8a6b0f-31c1-4a2c-9a40-0a2b5b1f0001";
        assert_eq!(uuid_text(&with(uuid).unwrap().cards[0].uuid), uuid);
        for wrong in [
            "8d8a6b0f",
            "GPU-8d8a6b0f31c14a2c9a400a2b5b1f0001",
            "GPU-zz8a6b0f-31c1-4a2c-9a40-0a2b5b1f0001",
        ] {
            assert!(
                with(wrong).unwrap_err().to_string().contains("uuid"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn every_wrong_value_is_named_with_what_is_allowed() {
        for (from, to, expect) in [
            ("570.195.03", "471.1", "driver.version"),
            ("24576", "0", "card[0].memory_mib = 0: must be 1 to 1048576"),
            (
                "count = 2",
                "count = 33",
                "card[0].count = 33: must be 1 to 32",
            ),
            ("count = 2", "counts = 2", "unknown field `counts`"),
            ("\"ada\"", "\"maxwell\"", "unknown variant `maxwell`"),
            (
                "count = 2",
                "video_frame_us = 60000001",
                "card[0].video_frame_us = 60000001: must be 0 to 60000000",
            ),
            (
                "count = 2",
                "compute_mode = \"exclusive\"",
                "unknown variant `exclusive`",
            ),
            ("Simulated RTX 4090", "", "card[0].name"),
            (
                "count = 2",
                "block_us = 0",
                "card[0].block_us = 0: must be 1 to 60000000",
            ),
            (
                "count = 2",
                "block_us = 5\nkernel_duration_us = 7",
                "card[0].block_us = 5: cannot stand beside kernel_duration_us",
            ),
            (
                "count = 2",
                "multiprocessors = 6",
                "card[0].multiprocessors = 6: must be 4 to 128, in steps of 4",
            ),
            (
                "count = 2",
                "context_bytes = 25769803777",
                "card[0].context_bytes = 25769803777: must not pass the card's memory",
            ),
            (
                "[[card]]",
                "[scheduler]\nrestore_ns = 50000001\n[[card]]",
                "scheduler.restore_ns = 50000001: must be 0 to 50000000",
            ),
            (
                "[[card]]",
                "[[nvlink]]\ncards = [0, 2]\n[[card]]",
                "nvlink[0].cards = [0, 2]: must be two cards by number",
            ),
            (
                "[[card]]",
                "[[nvlink]]\ncards = [0, 1]\ncount = 19\n[[card]]",
                "nvlink[0].count = 19: must not make more than 18 links",
            ),
            (
                "[[card]]",
                "[[boost_group]]\ncards = [2]\n[[card]]",
                "boost_group[0].cards = [2]: must be cards by number",
            ),
            (
                "[[card]]",
                "[scheduler]\nslices = \"long\"\n[[card]]",
                "unknown variant `long`",
            ),
            (
                "[[card]]",
                "[scheduler]\ndefault_slice_us = 0\n[[card]]",
                "scheduler.default_slice_us = 0: must be 1 to 8355840",
            ),
            (
                "[[card]]",
                "[implicit]\nchannel_bytes = 99999999999\n[[card]]",
                "implicit.channel_bytes = 99999999999",
            ),
        ] {
            let error = parse(&TWO.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        }
        let old = TWO
            .replace("570.195.03", "550.163.01")
            .replace("\"ada\"", "\"blackwell\"");
        assert!(parse(&old).unwrap_err().to_string().contains("570.86.15"));
        for (version, named, is_driven) in [
            ("535.261.03", "pascal", true),
            ("580.105.08", "volta", true),
            ("590.48.01", "pascal", false),
            ("595.45.04", "volta", false),
            ("595.45.04", "turing", true),
        ] {
            let text = TWO
                .replace("570.195.03", version)
                .replace("\"ada\"", &format!("{named:?}"));
            let expect =
                format!("card[0].architecture = {named}: needs driver.version of branch 580");
            match parse(&text) {
                Ok(_) => assert!(is_driven, "{version} {named}"),
                Err(error) => assert!(!is_driven && error.to_string().contains(&expect), "{error}"),
            }
        }
    }
}
