//! Cards and containers at one moment: what `cgpu top` shows.

use host_config::Config;
use serde::{Deserialize, Serialize};

use crate::JSON_VERSION;
use crate::cards::CardRow;
use crate::host_driver::HostDriver;
use crate::ps::{PsCard, PsVgpu};

/// What `cgpu top --json` prints, one a period.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Top {
    /// [`JSON_VERSION`]
    pub version: u32,
    /// When it was asked, milliseconds since 1970.
    pub at_unix_ms: u64,
    /// Who is behind the cards.
    pub driver: HostDriver,
    /// That driver's version; absent without a driver.
    pub driver_version: Option<String>,
    /// By index.
    pub cards: Vec<CardRow>,
    /// By namespace and container.
    pub vgpus: Vec<PsVgpu>,
    /// Containers whose state cannot be read, and why: they are not among the others.
    #[serde(skip)]
    pub unread: Vec<String>,
}

/// What the containers of a card use of it together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Use {
    /// Memory that they hold, bytes; of those whose brokers have answered. Absent where none has.
    pub memory_bytes: Option<u64>,
    /// Of its time in the last second or so, parts of a million; of those of whom that is known. Absent where it is of none.
    pub time_ppm: Option<u64>,
    /// What they are entitled to, parts of a million.
    pub entitled_ppm: u64,
}

impl Top {
    /// Asks the driver, the state folder and the brokers.
    ///
    /// # Errors
    /// A driver that cannot say its cards; a state folder or reservations that cannot be read.
    pub fn collect(config: &Config) -> anyhow::Result<Self> {
        let at_unix_ms = cards::events::now_unix_ms();
        let cards = crate::cards::collect(config)?;
        let ps = crate::ps::collect(config)?;
        Ok(Self {
            version: JSON_VERSION,
            at_unix_ms,
            driver: cards.driver,
            driver_version: cards.driver_version,
            cards: cards.cards,
            vgpus: ps.vgpus,
            unread: ps.unread,
        })
    }

    /// What is used of a card, as far as brokers have answered.
    #[must_use]
    pub fn use_of(&self, uuid: &str) -> Use {
        let slices = self.vgpus.iter().flat_map(|vgpu| &vgpu.cards);
        let of_card: Vec<&PsCard> = slices.filter(|slice| slice.uuid == uuid).collect();
        let all = |value: fn(&PsCard) -> Option<u64>| {
            let mut known = of_card.iter().filter_map(|slice| value(slice)).peekable();
            let is_known = of_card.is_empty() || known.peek().is_some();
            is_known.then(|| known.fold(0, u64::saturating_add))
        };
        Use {
            memory_bytes: all(|slice| slice.used_bytes),
            time_ppm: all(|slice| slice.share.used_ppm),
            entitled_ppm: all(|slice| slice.share.entitlement_ppm).unwrap_or(0),
        }
    }
}
