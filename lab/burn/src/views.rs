//! The card's memory, asked for in every way.

use rmclient::Card;
use rmprogram::CardHeap;
use serde_json::json;

use super::Outcome;
use crate::JSON_VERSION;
use crate::size::human;

/// Asks by FB_GET_INFO_V2, FB_GET_INFO and the heap call. Whoever rewrites one must rewrite all.
///
/// # Errors
/// A question that is not answered.
pub fn look(card: &Card<'_>) -> anyhow::Result<Outcome> {
    let (v2, v1, heap) = (card.memory()?, card.memory_by_v1()?, card.heap_info()?);
    let agree = v1 == v2
        && (heap.total_bytes, heap.free_bytes) == (v2.heap_bytes, v2.free_bytes)
        && heap.largest_bytes <= heap.free_bytes;
    Ok(Outcome {
        text: format!(
            "views: FB_GET_INFO_V2 {} free of {}, FB_GET_INFO {} of {}, VID_HEAP_CONTROL {} of {}: {}",
            human(v2.free_bytes),
            human(v2.total_bytes),
            human(v1.free_bytes),
            human(v1.total_bytes),
            human(heap.free_bytes),
            human(heap.total_bytes),
            if agree { "all agree" } else { "they differ" },
        ),
        json: json!({
            "version": JSON_VERSION,
            "load": "views",
            "fb_info_v2": {"total_bytes": v2.total_bytes, "heap_bytes": v2.heap_bytes, "free_bytes": v2.free_bytes},
            "fb_info_v1": {"total_bytes": v1.total_bytes, "heap_bytes": v1.heap_bytes, "free_bytes": v1.free_bytes},
            "heap_info": {"total_bytes": heap.total_bytes, "free_bytes": heap.free_bytes, "largest_bytes": heap.largest_bytes},
            "agree": agree,
        }),
        code: u8::from(!agree),
    })
}
