//! Beside a load: clients whose channels come and go without pause, so that they end while the scheduler is about to act on them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::Context;
use rmclient::{Client, Nodes};
use rmprogram::{CardMemory, ComputeChannel, Space, Uvm};

/// Channels of each client, each in a group of its own.
const CHANNELS: u32 = 4;

/// Threads that make and free clients until they are told to end.
pub(super) struct Churn {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    rounds: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
}

impl Churn {
    pub(super) fn start(nodes: &Nodes, card: usize, threads: u32) -> anyhow::Result<Self> {
        let mut churn = Self {
            stop: Arc::default(),
            threads: Vec::new(),
            rounds: Arc::default(),
            refused: Arc::default(),
        };
        for _thread in 0..threads {
            let nodes = nodes.clone();
            let stop = Arc::clone(&churn.stop);
            let (rounds, refused) = (Arc::clone(&churn.rounds), Arc::clone(&churn.refused));
            let thread = std::thread::Builder::new().name("churn".to_owned());
            let thread = thread.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let made = once(&nodes, card);
                    let counted = if made.is_ok() { &rounds } else { &refused };
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            });
            churn.threads.push(thread.context("start a thread")?);
        }
        Ok(churn)
    }

    /// How many clients came and went, and how many did not get all of their channels.
    pub(super) fn end(self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            // One that has panicked is counted for what it did.
            drop(thread.join());
        }
        let count = |counted: &AtomicU64| counted.load(Ordering::Relaxed);
        (count(&self.rounds), count(&self.refused))
    }
}

/// A client with channels, all of which go with it.
fn once(nodes: &Nodes, card: usize) -> anyhow::Result<()> {
    let client = Client::connect(nodes)?;
    let cards = client.cards()?;
    let card = cards.get(card).context("there is no such card")?;
    let uvm = Uvm::open(&client)?;
    let uuid = card.uuid()?;
    uvm.register(uuid)?;
    let handle = card.va_space()?;
    uvm.register_va_space(uuid, handle)?;
    for place in 1..=CHANNELS {
        let space = Space {
            uvm: &uvm,
            uuid,
            handle,
        };
        ComputeChannel::make(card, space, place)?;
    }
    Ok(())
}
