//! `-help`, `-v` and `-info`.

use std::process::{Command, Stdio};

use containerd_shim_protos::types::introspection::{RuntimeInfo, RuntimeVersion};
use protobuf::well_known_types::any::Any;
use protobuf::{Message, MessageField};

use crate::bootstrap::standard_input;
use crate::error::{Error, Result};
use crate::wire::runc_options;

/// The runtime's name as engines configure it.
const NAME: &str = "io.containerd.cgpu.v2";

/// The name under which containerd's client registers runc's JSON.
const FEATURES_TYPE: &str = "types.containerd.io/opencontainers/runtime-spec/1/features/Features";

/// For a person who has found the program.
pub(crate) fn help() -> Vec<u8> {
    format!(
        "The containerd shim that gives containers a vGPU: runtime {NAME}. containerd and docker start it; `cgpu install`\n\
         registers it with them. Without any registration:\n\n  \
         ctr run --runtime {NAME} --annotation cgpu.io/memory=4Gi IMAGE ID\n\n\
         Usage: containerd-shim-cgpu-v2 [-namespace NAME] [-id ID] [-address SOCKET] [-bundle FOLDER] [-debug] [start|delete]\n"
    )
    .into_bytes()
}

/// A line of the form that containerd's own shim prints.
pub(crate) fn version() -> Vec<u8> {
    format!(
        "containerd-shim-cgpu-v2:\n  Version:  {}\n",
        env!("CARGO_PKG_VERSION")
    )
    .into_bytes()
}

/// What containerd 2 asks each runtime for; the runtime's options are on standard input.
pub(crate) fn info() -> Result<Vec<u8>> {
    let input = standard_input()?;
    let any = Any::parse_from_bytes(&input).map_err(|source| Error::Protobuf {
        what: "the options",
        source,
    })?;
    let options = runc_options(Some(&any))?;
    let version = RuntimeVersion {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Default::default()
    };
    let info = RuntimeInfo {
        name: NAME.to_owned(),
        version: MessageField::some(version),
        options: (!any.type_url.is_empty()).then_some(any).into(),
        features: features(options.binary_name.as_deref().unwrap_or("runc")).into(),
        ..Default::default()
    };
    info.write_to_bytes().map_err(|source| Error::Protobuf {
        what: "the runtime's description",
        source,
    })
}

/// What runc can do, in its own words. A runc that is absent or does not say (before 1.1) has none.
fn features(runc: &str) -> Option<Any> {
    let output = Command::new(runc)
        .arg("features")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let reply = serde_json::from_slice::<serde::de::IgnoredAny>(&output.stdout);
    reply.ok().map(|_json| Any {
        type_url: FEATURES_TYPE.to_owned(),
        value: output.stdout,
        ..Any::default()
    })
}
