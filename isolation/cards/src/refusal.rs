//! Why a card, or its time, cannot be had: in words for the person who asked.

use std::fmt;

use plan::{PERCENT_PPM, RulesError, TermsError};

use crate::called::Holder;
use crate::identity::GpuUuid;
use crate::modes::Unshareable;

/// One MiB in bytes.
pub const MIB: u64 = 1 << 20;

/// Why nothing is placed on a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unusable {
    /// What was seen of a card that is not well, until somebody clears it.
    Unhealthy(String),
    /// What NVML answers for a card that it does not reach, as long as it does not.
    Lost(String),
    /// How it is set.
    Unshareable(Unshareable),
    /// What is reserved of it.
    Overcommitted(Overcommitted),
}

/// A card of which more memory is reserved than it has: it had more when this was reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overcommitted {
    /// What containers and claims have reserved.
    pub reserved_bytes: u64,
    /// Its memory.
    pub memory_bytes: u64,
}

impl fmt::Display for Overcommitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "has {}, and {} are reserved: nothing is placed on it until containers or claims there end or get less (`cgpu set CONTAINER --memory`)",
            Bytes(self.memory_bytes),
            Bytes(self.reserved_bytes)
        )
    }
}

/// `container` units of a card that counts as `device` units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Units for the container, at least 1.
    pub container: u64,
    /// Units of the whole card, at least 1.
    pub device: u64,
}

impl Share {
    /// `floor(card's MiB × container / device)`, in bytes: the formula that fits all samples that the vendor printed.
    #[must_use]
    pub fn of(self, card_memory_bytes: u64) -> u64 {
        let card_mib = u128::from(card_memory_bytes / MIB);
        let units = card_mib.saturating_mul(u128::from(self.container));
        let share_mib = units.checked_div(u128::from(self.device)).unwrap_or(units);
        u64::try_from(share_mib)
            .unwrap_or(u64::MAX)
            .saturating_mul(MIB)
    }
}

/// Percent where it was written so, else as the environment writes it.
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.device {
            100 => write!(f, "{} %", self.container),
            device => write!(f, "{}/{device}", self.container),
        }
    }
}

/// Why a request cannot be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nothing asked for.
    #[error("0 bytes of card memory are requested: at least 1 MiB on each card is needed")]
    NoMemory,
    /// No cards asked for.
    #[error("0 cards are requested: at least 1 is needed")]
    NoCards,
    /// More cards than there are.
    #[error("{requested} cards are requested, and {} has {exist}", if *.restricted { "the allowed list" } else { "this host" })]
    TooManyCards {
        /// How many were asked for.
        requested: u32,
        /// How many there are to choose from.
        exist: usize,
        /// Whether a list of allowed cards made them fewer.
        restricted: bool,
    },
    /// A name that no card has.
    #[error("no card {name} on this host, which has: {present}")]
    UnknownCard {
        /// The name.
        name: String,
        /// Those that there are.
        present: String,
    },
    /// A card named twice.
    #[error("card {name} is named twice")]
    NamedTwice {
        /// The second name.
        name: String,
    },
    /// A named card that another part of the request excludes.
    #[error("card {name} is not among the cards that the environment allows")]
    Excluded {
        /// The card.
        name: String,
    },
    /// A named card that is not well.
    #[error(
        "card {name} is unhealthy: {reason}; nothing is placed on it until `cgpu doctor --repair --card {name}` clears it"
    )]
    Unhealthy {
        /// The card.
        name: String,
        /// What was seen.
        reason: String,
    },
    /// A named card that NVML does not reach. There is nothing to clear.
    #[error(
        "card {name} is unhealthy: {reason}; nothing is placed on it until NVML answers for it again, which `cgpu cards` asks"
    )]
    Lost {
        /// The card.
        name: String,
        /// What NVML answers.
        reason: String,
    },
    /// A named card that is set so that containers cannot share it.
    #[error("card {name} {why}")]
    Unshareable {
        /// The card.
        name: String,
        /// How it is set, and what to do.
        why: Unshareable,
    },
    /// A named card of which more is reserved than it has.
    #[error("card {name} {why}")]
    Overcommitted {
        /// The card.
        name: String,
        /// How much.
        why: Overcommitted,
    },
    /// Equal parts would not be whole MiB.
    #[error("{} does not split over {cards} cards: {total_bytes} bytes / {cards} is not a whole number of MiB", Bytes(*total_bytes))]
    Indivisible {
        /// What was asked for in all.
        total_bytes: u64,
        /// Over how many cards.
        cards: u32,
    },
    /// More than a whole card.
    #[error("{} on one card is requested, more than any usable card has; free: {}", Bytes(*requested_bytes), listed(left))]
    AboveCard {
        /// What was asked for on each card.
        requested_bytes: u64,
        /// What each card has left.
        left: Vec<Left>,
    },
    /// Two dialects that differ by more than cGPU's rounding.
    #[error(
        "{} on a card is requested, and the environment's {}/{} of card {index} is {}: they contradict each other",
        Bytes(*requested_bytes), share.container, share.device, Bytes(share.of(*memory_bytes))
    )]
    Contradiction {
        /// What the caller asked for on each card.
        requested_bytes: u64,
        /// What the environment asks for.
        share: Share,
        /// The card on which they were compared.
        index: u32,
        /// Its memory.
        memory_bytes: u64,
    },
    /// Terms for compute time that none of the cards in question takes, for one reason.
    #[error(transparent)]
    Time(TimeRefusal),
    /// Not enough left.
    #[error("{needed} does not fit; free: {}", listed(left))]
    DoesNotFit {
        /// What was asked for, in words.
        needed: String,
        /// What each card has left.
        left: Vec<Left>,
    },
}

/// What a card has left, for the person who reads the refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// The card's index.
    pub index: u32,
    /// The card.
    pub uuid: GpuUuid,
    /// Its memory less all grants.
    pub free_bytes: u64,
    /// Its memory.
    pub memory_bytes: u64,
    /// Why nothing may be placed on it.
    pub unusable: Option<Unusable>,
    /// Why the terms for compute time do not fit on it; `None`: they do.
    pub time: Option<TimeRefusal>,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.unusable {
            None => {}
            Some(Unusable::Unhealthy(reason) | Unusable::Lost(reason)) => {
                return write!(
                    f,
                    "card {} ({}) none, it is unhealthy: {reason}",
                    self.index, self.uuid
                );
            }
            Some(Unusable::Unshareable(why)) => {
                return write!(f, "card {} ({}) none, it {why}", self.index, self.uuid);
            }
            Some(Unusable::Overcommitted(why)) => {
                return write!(f, "card {} ({}) none, it {why}", self.index, self.uuid);
            }
        }
        write!(
            f,
            "card {} ({}) {} of {}",
            self.index,
            self.uuid,
            Bytes(self.free_bytes),
            Bytes(self.memory_bytes)
        )?;
        match &self.time {
            None => Ok(()),
            Some(refusal) => write!(f, ", but its compute time does not fit: {refusal}"),
        }
    }
}

fn listed(left: &[Left]) -> String {
    left.iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Bytes as people write them: whole GiB as GiB, else MiB.
#[derive(Debug, Clone, Copy)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 > 0 && self.0.is_multiple_of(1 << 30) {
            write!(f, "{} GiB", self.0 >> 30)
        } else if self.0.is_multiple_of(MIB) {
            write!(f, "{} MiB", self.0 / MIB)
        } else {
            write!(f, "{} bytes", self.0)
        }
    }
}

/// Why a card's time cannot be promised so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimeRefusal {
    /// Terms that are wrong, or that the card's rules leave no meaning.
    #[error(transparent)]
    Terms(#[from] TermsError),
    /// Rules that no card can have.
    #[error("rules of the card: {0}")]
    Rules(#[from] RulesError),
    /// It does not fit beside those that are there.
    #[error("{}", Full(refusal, *left_ppm))]
    Full {
        /// Why not.
        refusal: plan::Refusal,
        /// What can still be reserved, parts of a million.
        left_ppm: u32,
    },
    /// Somebody who is there has terms that the card's rules leave no meaning: they were others when these were reserved.
    #[error("the terms of {holder} do not fit under the card's rules: {refusal}")]
    Unresolved {
        /// Whose terms.
        holder: Box<Holder>,
        /// Why not.
        refusal: Box<TimeRefusal>,
    },
}

/// Says what is left, where `plan` does not.
struct Full<'a>(&'a plan::Refusal, u32);

impl fmt::Display for Full<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(refusal, left_ppm) = self;
        match refusal {
            plan::Refusal::Reserved { .. } => refusal.fmt(f),
            plan::Refusal::NativeBesideSegments => write!(
                f,
                "{refusal} ({} % of its time can still be reserved; a container with policy preemptive, weighted or soft shares the rest)",
                left_ppm / PERCENT_PPM
            ),
            plan::Refusal::Rules(_)
            | plan::Refusal::Terms(_)
            | plan::Refusal::Full { .. }
            | plan::Refusal::HighBesideReserved => write!(
                f,
                "{refusal} ({} % of its time can still be reserved)",
                left_ppm / PERCENT_PPM
            ),
        }
    }
}

/// Others of a card because of whom a running container cannot have other terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InTheWay {
    /// Whether it asks to be native, beside segments; else for a segment, beside native containers.
    pub asks_native: bool,
    /// Those others.
    pub holders: Vec<Holder>,
    /// Terms that it could have instead, in words.
    pub fitting: Vec<String>,
}

/// Holders that are named; the others are counted.
const HOLDERS_NAMED: usize = 3;

impl fmt::Display for InTheWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rule, have, remedy) = if self.asks_native {
            (
                "a native container cannot stand beside reserved time (fixed or fair-share), since nothing would keep it out of that",
                "Reserved time here",
                "",
            )
        } else {
            (
                "reserved time (fixed or fair-share) cannot stand beside native containers, since nothing would keep them out of it",
                "Native here",
                ". Reserved time fits once those have other terms (`cgpu set CONTAINER --policy weighted`)",
            )
        };
        let named = self.holders.iter().take(HOLDERS_NAMED);
        let text = |holder: &Holder| match holder {
            Holder::Container(called) => called.to_string(),
            Holder::Claim(_) => holder.to_string(),
        };
        let named: Vec<String> = named.map(text).collect();
        write!(f, "{rule}. {have}: {}", named.join(", "))?;
        let more = self.holders.len().saturating_sub(HOLDERS_NAMED);
        if more > 0 {
            write!(f, " and {more} more")?;
        }
        if !self.fitting.is_empty() {
            write!(f, ". What fits now: {}", self.fitting.join(", "))?;
        }
        f.write_str(remedy)
    }
}

impl TimeRefusal {
    /// Whether another card with the same rules would refuse it too, however empty.
    #[must_use]
    pub fn is_of_terms(&self) -> bool {
        match self {
            Self::Terms(_) | Self::Rules(_) => true,
            Self::Full { .. } | Self::Unresolved { .. } => false,
        }
    }
}
