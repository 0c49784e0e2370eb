//! Stands in where NVML is not built in.

use std::path::Path;

use super::Inventory;
use crate::Error;

pub(super) fn inventory(
    _former: Option<Inventory>,
    state_dir: &Path,
    loaded_driver_version: &str,
) -> Result<Inventory, Error> {
    Err(Error::NoNvml {
        path: Inventory::saved_path(state_dir),
        driver_version: loaded_driver_version.to_owned(),
    })
}
