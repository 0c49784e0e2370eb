//! Tables for people. Their shape is no contract; scripts read the JSON.

#[cfg(feature = "host")]
pub mod cards;
#[cfg(feature = "host")]
pub mod doctor;
#[cfg(feature = "host")]
pub mod explain;
#[cfg(feature = "host")]
pub mod inspect;
#[cfg(feature = "host")]
pub mod ps;
pub mod smi;

use comfy_table::{ContentArrangement, Table, presets};

/// An empty table in the house's form, with these headings.
pub(crate) fn table<'a>(headings: impl IntoIterator<Item = &'a str>) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::ASCII_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(headings);
    table
}

/// `-` for what is not known.
pub(crate) fn or_dash(text: Option<impl ToString>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| text.to_string())
}
