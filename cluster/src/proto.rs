//! The kubelet's interfaces, generated from `proto/`.
#![expect(
    missing_docs,
    unused_qualifications,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::doc_markdown,
    reason = "generated"
)]
#![cfg_attr(not(test), expect(clippy::too_many_lines, reason = "generated"))]

/// How a plugin makes itself known.
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

/// What is asked of a DRA driver.
pub mod dra {
    /// As of Kubernetes 1.34.
    pub mod v1 {
        tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
    }
    /// Before.
    pub mod v1beta1 {
        tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1beta1");
    }
}

/// Two interfaces have the package `v1`: the health of devices, and which container has which.
pub mod v1 {
    tonic::include_proto!("v1");
}

/// What is asked of a device plugin.
pub mod device_plugin {
    /// All versions.
    pub mod v1beta1 {
        tonic::include_proto!("v1beta1");
    }
}

/// How devices are.
pub mod health {
    /// As of Kubernetes 1.37.
    pub use super::v1;
    /// Before.
    pub mod v1alpha1 {
        tonic::include_proto!("v1alpha1");
    }
}
