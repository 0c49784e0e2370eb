//! `-v` and `-info`.

use containerd_shim_protos::types::introspection::{RuntimeInfo, RuntimeVersion};
use protobuf::{Message, MessageField};

use crate::error::{Error, Result};

/// The runtime's name as engines configure it.
const NAME: &str = "io.containerd.cgpu.v2";

/// A line of the form that containerd's own shim prints.
pub(crate) fn version() -> Vec<u8> {
    format!(
        "containerd-shim-cgpu-v2:\n  Version:  {}\n",
        env!("CARGO_PKG_VERSION")
    )
    .into_bytes()
}

/// What containerd 2 asks each runtime for.
pub(crate) fn info() -> Result<Vec<u8>> {
    let version = RuntimeVersion {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Default::default()
    };
    let info = RuntimeInfo {
        name: NAME.to_owned(),
        version: MessageField::some(version),
        ..Default::default()
    };
    info.write_to_bytes().map_err(|source| Error::Protobuf {
        what: "the runtime's description",
        source,
    })
}
