//! What the driver takes without a size: free memory after each step of making a channel.

use nvabi::bytes::{put_u32, u64_at};
use serde_json::json;

use super::channel::Ring;
use super::{Bench, End, found};

/// `NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE`, `NV2080_CTRL_CMD_FLCN_GET_CTX_BUFFER_SIZE`: {hChannel 0, totalBufferSize 8:8}.
const SIZES: [(u32, &str); 2] = [
    (0x2080_1218, "GR_GET_CTX_BUFFER_SIZE"),
    (0x2080_3125, "FLCN_GET_CTX_BUFFER_SIZE"),
];

pub(super) fn probe(bench: &Bench) -> anyhow::Result<End> {
    let client = bench.client()?;
    let cards = client.cards()?;
    let Some(card) = cards.first() else {
        return Ok(End::NotRun("no card has a node here".to_owned()));
    };
    // Twice: what the first context of a process costs once shows in the first row only.
    for round in ["first", "second"] {
        let ring = Ring::open(&client, card)?;
        let mut steps = serde_json::Map::new();
        for pair in ring.free_bytes.windows(2) {
            if let [(_, before), (step, after)] = pair {
                let taken = i128::from(*before) - i128::from(*after);
                steps.insert((*step).to_owned(), json!(i64::try_from(taken).ok()));
            }
        }
        found(format!("bytes taken by each step, {round} group"), steps);
        for (cmd, name) in SIZES {
            let mut params = [0u8; 16];
            put_u32(&mut params, 0, ring.channel.0);
            let requested = client.control(card.subdevice(), cmd, &mut params, Vec::new());
            found(
                format!("{name}, {round} group"),
                match requested {
                    Ok(()) => json!(u64_at(&params, 8)),
                    Err(error) => super::answer::<()>(&Err(error)),
                },
            );
        }
        found(
            format!("channel class, {round} group"),
            format!("{:#x}", ring.channel_class),
        );
    }
    Ok(End::Done)
}
