//! Packages and the image: one executable, so that they are made once for all of these tests.

mod common;
mod forms;
mod image;
mod listing;
mod parts;
mod units;
