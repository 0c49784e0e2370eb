//! The memory of a call: its struct, its parameters, and what these point to.
//!
//! Rows say where parameters lie and how long they are. What has no row is kept as well, since such a call is what somebody will want to
//! write a row for: of a control its own word says how long the parameters are, of a class or of a UVM call a window is read.

use nvabi::bytes::{u32_at, u64_at};
use nvabi::call::Params;
use nvabi::layout::{nvos21, nvos54};
use nvabi::{Release, class, control};
use serde::{Deserialize, Serialize};

use super::call::{On, escape_row};

/// Of parameters and of each list.
const MOST_BYTES: usize = 16 << 10;

/// Blocks of a call in hexadecimal: struct, parameters, lists. What could not be read is shorter than it should be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bytes {
    /// Before the call.
    pub(crate) requested: Vec<String>,
    /// After it; empty where nothing has changed.
    pub(crate) answered: Vec<String>,
}

/// A place in the caller's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
}

/// The places of an ioctl's blocks beside its struct; `read` reads the caller's memory.
pub(crate) fn places(
    on: On,
    cmd: u32,
    arg: &[u8],
    release: Option<Release>,
    read: impl Fn(Place) -> Vec<u8>,
) -> Vec<Place> {
    let place = |address: Option<u64>, bytes: usize| {
        let address = address.filter(|address| *address != 0 && bytes != 0)?;
        let bytes = bytes.min(MOST_BYTES);
        Some(Place { address, bytes })
    };
    let row = match on {
        On::Ctl | On::Card => escape_row(cmd).map(|(row, _)| row),
        On::Uvm => None,
    };
    match row.and_then(|row| row.params) {
        Some(Params::Class) => {
            let number = u32_at(arg, nvos21::H_CLASS);
            let class = class::ALL.iter().find(|row| Some(row.number) == number);
            let bytes = class.map_or(class::PARAMS_WINDOW, |row| {
                row.params.of(release.unwrap_or(row.since))
            });
            let params = place(
                u64_at(arg, nvos21::P_PARAMS),
                usize::try_from(bytes).unwrap_or(0),
            );
            params.into_iter().collect()
        }
        Some(Params::Control) => {
            let bytes = u32_at(arg, nvos54::PARAMS_SIZE).unwrap_or(0);
            let Some(params) = place(
                u64_at(arg, nvos54::P_PARAMS),
                usize::try_from(bytes).unwrap_or(0),
            ) else {
                return Vec::new();
            };
            let cmd = u32_at(arg, nvos54::CMD);
            let known = cmd
                .zip(release)
                .and_then(|(cmd, of)| control::known(cmd, of));
            let nested = known.map_or(&[][..], |row| row.nested);
            if nested.is_empty() {
                return vec![params];
            }
            let block = read(params);
            let lists = nested.iter().filter_map(|nested| {
                let address = u64_at(&block, usize::from(nested.pointer_at));
                place(address, nested.length.bytes(&block)?)
            });
            std::iter::once(params).chain(lists).collect()
        }
        None => Vec::new(),
    }
}

/// As text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _never_fails = write!(text, "{byte:02x}");
        text
    })
}
