//! A message within another, under its type's name: the package and the message, without an address before them.

use protobuf::Message;
use protobuf::well_known_types::any::Any;

use crate::error::{Error, Result};

/// Encodes a message of a package; `what` names it in the error.
pub(super) fn pack<M: Message>(what: &'static str, package: &str, message: &M) -> Result<Any> {
    let value = message.write_to_bytes();
    Ok(Any {
        type_url: format!("{package}.{}", M::NAME),
        value: value.map_err(|source| Error::Protobuf { what, source })?,
        ..Any::default()
    })
}
