//! The cards of this host, without asking NVML each second.

use std::time::{Duration, Instant};

use cards::Inventory;
use host_config::Config;

use crate::host_driver::HostDriver;

/// NVML is asked so often which cards there are: it is loaded for each question, which costs tens of milliseconds.
const AGE: Duration = Duration::from_secs(60);

/// The last answer for real cards. Simulated ones are in a file, which is read each time.
#[derive(Debug, Default)]
pub struct Inventories {
    real: Option<(Instant, Inventory)>,
}

impl Inventories {
    /// The cards behind this driver.
    ///
    /// # Errors
    /// A driver that cannot say its cards.
    pub fn of(&mut self, driver: HostDriver, config: &Config) -> anyhow::Result<Option<Inventory>> {
        if let (HostDriver::Kernel, Some((at, inventory))) = (driver, &self.real)
            && at.elapsed() < AGE
        {
            return Ok(Some(inventory.clone()));
        }
        let inventory = driver.inventory(config)?;
        if driver == HostDriver::Kernel {
            self.real = inventory
                .clone()
                .map(|inventory| (Instant::now(), inventory));
        }
        Ok(inventory)
    }
}
