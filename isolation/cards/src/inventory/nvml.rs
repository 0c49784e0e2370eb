//! The only place of this crate that speaks to NVML; `libnvidia-ml.so.1` is loaded when it is called.

use std::path::Path;

use nvml_wrapper::enum_wrappers::device::ComputeMode;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::{Card, Inventory};
use crate::Error;
use crate::events::now_unix_ms;
use crate::identity::GpuUuid;
use crate::modes::{Modes, Programs};

/// `NVML_DEVICE_MIG_ENABLE`
const MIG_ENABLED: u32 = 1;

pub(super) fn inventory(
    former: Option<Inventory>,
    _state_dir: &Path,
    _loaded_driver_version: &str,
) -> Result<Inventory, Error> {
    let nvml = Nvml::init().map_err(failed("be loaded (libnvidia-ml.so.1)"))?;
    inventory_of(&nvml, former)
}

fn failed(operation: &'static str) -> impl FnOnce(NvmlError) -> Error {
    move |source| Error::Nvml { operation, source }
}

/// One card that is not answered for takes no other along: it is the former answer's card of that place.
fn inventory_of(nvml: &Nvml, former: Option<Inventory>) -> Result<Inventory, Error> {
    let driver_version = nvml
        .sys_driver_version()
        .map_err(failed("say the driver's version"))?;
    let count = nvml.device_count().map_err(failed("count the cards"))?;
    let mut cards = Vec::new();
    let mut silent = Vec::new();
    for index in 0..count {
        match card_of(nvml, index) {
            Ok(card) => cards.push(card),
            Err(error) => silent.push((index, error)),
        }
    }
    let former = former.map_or_else(Vec::new, |former| former.cards);
    for (index, error) in silent {
        // Places change where a card is taken out or the driver is loaded anew.
        let is_there = |known: &Card| cards.iter().any(|card| card.uuid == known.uuid);
        let known = former.iter().find(|card| card.index == index);
        let Some(known) = known.filter(|known| !is_there(known)) else {
            return Err(error);
        };
        let mut card = known.clone();
        // Any other error is of a moment, or NVML's own: what was known stands.
        let is_lost = matches!(
            error,
            Error::Nvml {
                source: NvmlError::GpuLost,
                ..
            }
        );
        if is_lost {
            card.modes
                .lost_since_unix_ms
                .get_or_insert_with(now_unix_ms);
        }
        cards.push(card);
    }
    cards.sort_by_key(|card| card.index);
    Ok(Inventory {
        driver_version,
        cards,
    })
}

fn card_of(nvml: &Nvml, index: u32) -> Result<Card, Error> {
    let device = nvml.device_by_index(index).map_err(failed("open a card"))?;
    Ok(Card {
        uuid: GpuUuid::new(device.uuid().map_err(failed("say a card's UUID"))?)?,
        name: device.name().map_err(failed("say a card's name"))?,
        memory_bytes: device
            .memory_info()
            .map_err(failed("say a card's memory"))?
            .total,
        minor: device
            .minor_number()
            .map_err(failed("say a card's device number"))?,
        index,
        pci: device
            .pci_info()
            .map_err(failed("say a card's PCI address"))?
            .bus_id,
        modes: modes(&device)?,
    })
}

fn modes(device: &Device<'_>) -> Result<Modes, Error> {
    let mig = known(device.mig_mode()).map_err(failed("report a card's MIG mode"))?;
    let compute = known(device.compute_mode()).map_err(failed("report a card's compute mode"))?;
    let confidential =
        known(device.is_cc_enabled()).map_err(failed("report confidential computing"))?;
    Ok(Modes {
        mig: mig.is_some_and(|mode| mode.current == MIG_ENABLED),
        compute: match compute {
            None | Some(ComputeMode::Default) => Programs::Any,
            Some(ComputeMode::Prohibited) => Programs::Prohibited,
            Some(ComputeMode::ExclusiveProcess | ComputeMode::ExclusiveThread) => {
                Programs::ExclusiveProcess
            }
        },
        confidential: confidential == Some(true),
        system_memory: false,
        lost_since_unix_ms: None,
    })
}

/// A card without a mode does not support the question, and a library that is older than the mode does not have the function.
fn known<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    #[test]
    fn modes_are_read_from_nvml() {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("libnvidia-ml.so.1");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../limits/tests/fake_nvml.c");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-DVERSION=\"570.195.03\"", "-o"])
            .arg(&library)
            .arg(format!("-DSTATE_DIR=\"{}\"", dir.path().display()))
            .arg(source)
            .status();
        match compiled {
            Err(error) => {
                println!("SKIP: no C compiler ({error})");
                return;
            }
            Ok(status) => assert!(status.success(), "the played library does not compile"),
        }
        let words = ["", "mig", "exclusive", "prohibited", "default"];
        let text: Vec<String> = words
            .iter()
            .enumerate()
            .map(|(index, word)| format!("GPU-{index} {word}\n"))
            .collect();
        std::fs::write(dir.path().join("cards"), text.concat()).unwrap();
        let nvml = Nvml::builder()
            .lib_path(library.as_os_str())
            .init()
            .unwrap();
        let found = || -> Vec<Modes> {
            let found = inventory_of(&nvml, None).unwrap();
            found.cards.iter().map(|card| card.modes).collect()
        };
        let of = |mig, compute| Modes {
            mig,
            compute,
            ..Modes::default()
        };
        let expected = [
            of(false, Programs::Any),
            of(true, Programs::Any),
            of(false, Programs::ExclusiveProcess),
            of(false, Programs::Prohibited),
            of(false, Programs::Any),
        ];
        assert_eq!(found(), expected);
        // The host's, not a card's.
        std::fs::write(dir.path().join("confidential"), "").unwrap();
        assert!(found().iter().all(|modes| modes.confidential));

        // One that has fallen off the bus is the card that it was, and the others are as they are.
        let before = inventory_of(&nvml, None).unwrap();
        let with_lost = text.concat().replace("GPU-1 mig", "GPU-1 lost");
        std::fs::write(dir.path().join("cards"), &with_lost).unwrap();
        let after = inventory_of(&nvml, Some(before.clone())).unwrap();
        let lost: Vec<_> = after
            .cards
            .iter()
            .map(|card| card.lost().is_some())
            .collect();
        assert_eq!(lost, [false, true, false, false, false]);
        let named = |inventory: &Inventory| -> Vec<_> {
            let cards = inventory.cards.iter();
            cards.map(|card| (card.index, card.uuid.clone())).collect()
        };
        assert_eq!(named(&after), named(&before));
        // As long as it is lost, it is so since then.
        assert_eq!(inventory_of(&nvml, Some(after.clone())).unwrap(), after);
        let lost = after.clone();
        // It answers again.
        std::fs::write(dir.path().join("cards"), text.concat()).unwrap();
        assert_eq!(inventory_of(&nvml, Some(after)).unwrap(), before);
        // An error of another kind is no loss, and does not take one back.
        let strange = with_lost.replace("GPU-1 lost", "GPU-1 strange");
        std::fs::write(dir.path().join("cards"), strange).unwrap();
        assert_eq!(inventory_of(&nvml, Some(before.clone())).unwrap(), before);
        assert_eq!(inventory_of(&nvml, Some(lost.clone())).unwrap(), lost);
        // Nobody knows which card it was.
        std::fs::write(dir.path().join("cards"), &with_lost).unwrap();
        inventory_of(&nvml, None).unwrap_err();
    }
}
