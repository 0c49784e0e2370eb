//! The kernel's driver.
