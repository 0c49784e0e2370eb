//! The kubelet's interfaces, from `proto/`, without a `protoc` on the machine.

use std::error::Error;

const FILES: [&str; 7] = [
    "proto/pluginregistration.proto",
    "proto/dra_v1.proto",
    "proto/dra_v1beta1.proto",
    "proto/health_v1.proto",
    "proto/health_v1alpha1.proto",
    "proto/deviceplugin_v1beta1.proto",
    "proto/podresources_v1.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    for file in FILES {
        println!("cargo::rerun-if-changed={file}");
    }
    tonic_prost_build::configure()
        // A client makes its own connection: the driver has none.
        .build_transport(false)
        .compile_fds(protox::compile(FILES, ["proto"])?)?;
    Ok(())
}
