//! RM's ids of cards, by their places in the host.

use std::path::Path;

use supervisor::topology::functions;

/// RM's ids of these cards, each with its UUID: on Linux a card has its id by its place (osinit.c, `nv_generate_id_from_pci_info`). A card that the
/// driver has not initialised yet has no UUID there; its id comes by with CARD_INFO.
pub(crate) fn gpu_ids(folder: &Path, uuids: &[String]) -> Vec<(String, u32)> {
    let functions = functions(folder, uuids).into_iter();
    functions
        .filter_map(|(function, uuid)| Some((uuid, gpu_id(&function)?)))
        .collect()
}

/// Of a function in the kernel's spelling, `<domain>:<bus>:<device>.<function>`.
fn gpu_id(function: &str) -> Option<u32> {
    let (place, _function) = function.split_once('.')?;
    let mut parts = place
        .split(':')
        .map(|part| u32::from_str_radix(part, 16).ok());
    let mut next = || parts.next().flatten();
    let id = verdict::cards::gpu_id(next()?, next()?, next()?)?;
    parts.next().is_none().then_some(id)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_cards_id_is_its_place() {
        let folder = tempfile::tempdir().unwrap();
        for (at, uuid) in ["GPU-1", "GPU-2"].into_iter().enumerate() {
            let card = folder.path().join(format!("0000:0{at}:00.0"));
            fs::create_dir(&card).unwrap();
            fs::write(card.join("information"), format!("GPU UUID: \t {uuid}\n")).unwrap();
        }
        assert_eq!(
            gpu_ids(folder.path(), &["GPU-2".to_owned()]),
            [("GPU-2".to_owned(), 0x100)]
        );
        assert_eq!(gpu_id("0001:a3:1f.0"), Some(0x0001_a31f));
        for wrong in [
            "10000:01:00.0",
            "0000:01:00",
            "0000:01.0",
            "0:0:0:0.0",
            "x:0:0.0",
        ] {
            assert_eq!(gpu_id(wrong), None, "{wrong}");
        }
    }
}
