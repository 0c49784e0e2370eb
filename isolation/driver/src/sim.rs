//! The simulated driver, seen from the broker.
