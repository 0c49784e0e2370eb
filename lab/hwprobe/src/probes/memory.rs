//! Allocations and what the driver says of them. FB_GET_INFO's sizes are KiB.

use nvabi::bytes::{put_u32, put_u64, u32_at, u64_at};
use nvabi::layout::memory_params;
use nvabi::{class, control};
use rmclient::{Card, Form};
use rmprogram::CardMemory;
use serde_json::{Map, Value, json};

use super::{Bench, End, answer, found};

/// FB_GET_INFO's indices that a slice rewrites, and their neighbours (ctrl2080fb.h).
const INDICES: [(u32, &str); 15] = [
    (0x05, "BAR1_SIZE"),
    (0x07, "RAM_SIZE"),
    (0x08, "TOTAL_RAM_SIZE"),
    (0x09, "HEAP_SIZE"),
    (0x0a, "MAPPABLE_HEAP_SIZE"),
    (0x0b, "BUS_WIDTH"),
    (0x0d, "RAM_TYPE"),
    (0x12, "LARGEST_FREE_REGION_SIZE_KB"),
    (0x15, "HEAP_START"),
    (0x16, "HEAP_FREE"),
    (0x1d, "BAR1_AVAIL_SIZE"),
    (0x1f, "BAR1_MAX_CONTIGUOUS_AVAIL_SIZE"),
    (0x20, "USABLE_RAM_SIZE"),
    (0x33, "PROTECTED_MEM_SIZE_TOTAL_KB"),
    (0x34, "PROTECTED_MEM_SIZE_FREE_KB"),
];

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

pub(super) fn probe(bench: &Bench) -> anyhow::Result<End> {
    let client = bench.client()?;
    found("driver version", client.version().to_string());
    for card in client.cards()? {
        let info = card.info();
        found(
            format!("card {}", info.minor),
            json!({
                "name": card.name().ok(),
                "uuid": card.uuid().map(|uuid| uuid.to_string()).ok(),
                "gpu_id": format!("{:#x}", info.gpu_id),
            }),
        );
    }
    let cards = client.cards()?;
    let Some(card) = cards.first() else {
        return Ok(End::NotRun("no card has a node here".to_owned()));
    };
    for (index, name) in INDICES {
        found(
            format!("FB_GET_INFO {name} ({index:#04x})"),
            index_of(card, index),
        );
    }
    found(
        "FB_GET_INFO by the older call",
        match card.memory_by_v1() {
            Ok(memory) => {
                json!({"total_bytes": memory.total_bytes, "free_bytes": memory.free_bytes})
            }
            Err(error) => json!(error.to_string()),
        },
    );
    for requested in [
        1,
        4 * KIB,
        64 * KIB,
        64 * KIB + 1,
        MIB,
        2 * MIB - 1,
        2 * MIB,
        2 * MIB + 1,
        32 * MIB + 1,
        512 * MIB + 1,
    ] {
        found(
            format!("allocation of {requested} bytes"),
            allocation(card, requested),
        );
    }
    let total = card.memory()?.total_bytes;
    let beyond = card.allocate(Form::Long, total + 64 * MIB);
    found("allocation beyond the card", answer(&beyond));
    sums(card)?;
    freed(card)?;
    Ok(End::Done)
}

fn index_of(card: &Card<'_>, index: u32) -> Value {
    let cmd = control::NV2080_CTRL_CMD_FB_GET_INFO_V2;
    let client = card.client();
    let requested = client.params(cmd).and_then(|mut params| {
        put_u32(&mut params, 0, 1);
        put_u32(&mut params, 4, index);
        client.control(card.subdevice(), cmd, &mut params, Vec::new())?;
        Ok(u32_at(&params, 8))
    });
    match requested {
        Ok(value) => json!(value),
        Err(error) => json!(error.to_string()),
    }
}

/// What comes back of one allocation: its size, where it lies, and how much free memory it took.
fn allocation(card: &Card<'_>, requested: u64) -> Value {
    let client = card.client();
    let class = class::NV01_MEMORY_LOCAL_USER;
    let length =
        class::row_of(class, client.release()).map_or(0, |row| row.params.of(client.release()));
    let mut params = vec![0; usize::try_from(length).unwrap_or(0)];
    put_u32(&mut params, 0, client.root().0);
    put_u32(&mut params, memory_params::ATTR, 3 << 27);
    put_u64(&mut params, memory_params::SIZE, requested);
    let free = |_when| card.memory().map(|memory| memory.free_bytes).unwrap_or(0);
    let before = free("before");
    let made = client.allocate(Form::Long, card.device(), class, &mut params);
    let after = free("after");
    let mut answer = Map::new();
    answer.insert("answer".to_owned(), super::answer(&made));
    if let Ok(handle) = made {
        answer.insert(
            "size".to_owned(),
            json!(u64_at(&params, memory_params::SIZE)),
        );
        // NV_MEMORY_ALLOCATION_PARAMS: alignment 72, offset 80, limit 88.
        answer.insert("alignment".to_owned(), json!(u64_at(&params, 72)));
        answer.insert(
            "offset".to_owned(),
            json!(u64_at(&params, 80).map(|offset| format!("{offset:#x}"))),
        );
        answer.insert("limit".to_owned(), json!(u64_at(&params, 88)));
        answer.insert(
            "free_memory_taken".to_owned(),
            json!(before.saturating_sub(after)),
        );
        let freed = card.free(handle);
        if freed.is_err() {
            answer.insert("free".to_owned(), super::answer(&freed));
        }
    }
    Value::Object(answer)
}

/// What the driver counts for this process, against what it holds.
fn sums(card: &Card<'_>) -> anyhow::Result<()> {
    let own = std::process::id();
    let mine = || -> Option<u64> {
        let processes = card.processes().ok()?;
        processes
            .iter()
            .find(|process| process.pid == own)?
            .used_bytes
    };
    let empty = mine();
    let allocation = card.allocate(Form::Long, 96 * MIB)?;
    let held = mine();
    let duplicate = card.duplicate(allocation.handle);
    let twice = mine();
    card.free(allocation.handle)?;
    let by_duplicate = mine();
    if let Ok(duplicate) = duplicate {
        card.free(duplicate)?;
    }
    found(
        "the driver's sum for this process, bytes",
        json!({
            "empty": empty,
            "with 96 MiB": held,
            "and a duplicate of it": twice,
            "first handle freed": by_duplicate,
            "all freed": mine(),
            "processes listed": card.processes().map(|all| all.len()).ok(),
        }),
    );
    Ok(())
}

/// Whether freed memory is free at once.
fn freed(card: &Card<'_>) -> anyhow::Result<()> {
    let before = card.memory()?.free_bytes;
    let allocation = card.allocate(Form::Long, 256 * MIB)?;
    card.free(allocation.handle)?;
    let began = std::time::Instant::now();
    let mut waited = None;
    while began.elapsed().as_millis() < 2_000 {
        if card.memory()?.free_bytes >= before {
            waited = Some(began.elapsed().as_secs_f64() * 1e3);
            break;
        }
    }
    found(
        "milliseconds until 256 MiB freed are free again",
        json!(waited),
    );
    Ok(())
}
