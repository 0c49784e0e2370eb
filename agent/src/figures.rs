//! What NVML reports of real cards: temperature, power, utilization, clocks, and memory in use.
//!
//! The library stays loaded while the agent runs, since loading it costs tens of milliseconds and wakes cards that sleep. The
//! driver's modules cannot be unloaded meanwhile: the agent is stopped for a change of the driver.

use std::collections::BTreeMap;

use anyhow::Context;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use view::metrics::Figures;

/// `libnvidia-ml.so.1`, loaded when it is asked first.
#[derive(Debug, Default)]
pub(crate) struct Library {
    loaded: Option<Nvml>,
}

impl Library {
    /// The figures by UUID; none on a host without the library. After an error the library is loaded anew.
    ///
    /// # Errors
    /// NVML does not answer, for example after a change of the driver.
    pub(crate) fn figures(&mut self) -> anyhow::Result<BTreeMap<String, Figures>> {
        if self.loaded.is_none() {
            self.loaded = match Nvml::init() {
                Ok(nvml) => Some(nvml),
                Err(NvmlError::LibloadingError(_)) => return Ok(BTreeMap::new()),
                Err(error) => return Err(error).context("load NVML"),
            };
        }
        let Some(nvml) = &self.loaded else {
            return Ok(BTreeMap::new());
        };
        let figures = figures_of(nvml).context("ask NVML for the cards");
        if figures.is_err() {
            self.loaded = None;
        }
        figures
    }
}

/// A card that does not answer has no figures. The library answers nobody where no card does.
fn figures_of(nvml: &Nvml) -> Result<BTreeMap<String, Figures>, NvmlError> {
    let card = |index| {
        let device = nvml.device_by_index(index)?;
        Ok((device.uuid()?, of_card(&device)))
    };
    let (mut figures, mut silent) = (BTreeMap::new(), None);
    for index in 0..nvml.device_count()? {
        match card(index) {
            Ok((uuid, of_card)) => drop(figures.insert(uuid, of_card)),
            Err(error) => silent = Some(error),
        }
    }
    match silent {
        Some(error) if figures.is_empty() => Err(error),
        _ => Ok(figures),
    }
}

/// A figure that a card does not have is absent.
fn of_card(device: &Device<'_>) -> Figures {
    let utilization = device.utilization_rates().ok();
    let memory = device.memory_info().ok();
    Figures {
        temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        power_milliwatts: device.power_usage().ok(),
        utilization_percent: utilization.as_ref().map(|rates| rates.gpu),
        memory_utilization_percent: utilization.as_ref().map(|rates| rates.memory),
        sm_clock_mhz: device.clock_info(Clock::SM).ok(),
        memory_clock_mhz: device.clock_info(Clock::Memory).ok(),
        memory_used_bytes: memory.as_ref().map(|memory| memory.used),
        memory_free_bytes: memory.as_ref().map(|memory| memory.free),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    #[test]
    fn figures_are_read_from_nvml_and_those_that_a_card_lacks_are_absent() {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("libnvidia-ml.so.1");
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../isolation/limits/tests/fake_nvml.c");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-DVERSION=\"570.195.03\"", "-o"])
            .arg(&library)
            .arg(format!("-DSTATE_DIR=\"{}\"", dir.path().display()))
            .arg(source)
            .status();
        match compiled {
            Err(error) => {
                println!(
                    "SKIP: figures_are_read_from_nvml_and_those_that_a_card_lacks_are_absent: no C compiler ({error})"
                );
                return;
            }
            Ok(status) => assert!(status.success(), "the library does not compile"),
        }
        std::fs::write(dir.path().join("cards"), "GPU-1 default\nGPU-2\n").unwrap();
        let nvml = Nvml::builder().lib_path(library.as_os_str()).init();
        let mut library = Library {
            loaded: Some(nvml.unwrap()),
        };
        let figures = library.figures().unwrap();
        let known = Figures {
            temperature_celsius: Some(41),
            power_milliwatts: Some(72_500),
            utilization_percent: Some(55),
            memory_utilization_percent: Some(12),
            sm_clock_mhz: Some(2040),
            memory_clock_mhz: Some(10_501),
            memory_used_bytes: Some(0),
            memory_free_bytes: Some(24 << 30),
        };
        assert_eq!(figures["GPU-1"], known);
        let little = Figures {
            memory_used_bytes: Some(0),
            memory_free_bytes: Some(24 << 30),
            ..Figures::default()
        };
        assert_eq!(figures["GPU-2"], little);
        // One that has fallen off the bus takes no other's along.
        std::fs::write(dir.path().join("cards"), "GPU-1 lost\nGPU-2\n").unwrap();
        let figures = library.figures().unwrap();
        assert_eq!(figures.keys().collect::<Vec<_>>(), ["GPU-2"]);
        assert!(library.loaded.is_some());
        std::fs::remove_file(dir.path().join("cards")).unwrap();
        library.figures().unwrap_err();
        assert!(library.loaded.is_none(), "it is loaded anew");
    }
}
