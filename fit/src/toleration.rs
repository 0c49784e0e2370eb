//! Whether a toleration is for a taint. Kubernetes compares those of nodes and those of devices alike.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::resource::v1 as resource;

/// A toleration of a pod's, or of a claim's.
pub struct Toleration<'a> {
    key: Option<&'a str>,
    operator: Option<&'a str>,
    value: Option<&'a str>,
    effect: Option<&'a str>,
}

/// A taint of a node's, or of a device's.
pub struct Taint<'a> {
    key: &'a str,
    value: Option<&'a str>,
    effect: &'a str,
}

/// The types have the same fields.
macro_rules! of {
    ($toleration:ty, $taint:ty) => {
        impl<'a> From<&'a $toleration> for Toleration<'a> {
            fn from(toleration: &'a $toleration) -> Self {
                Self {
                    key: toleration.key.as_deref(),
                    operator: toleration.operator.as_deref(),
                    value: toleration.value.as_deref(),
                    effect: toleration.effect.as_deref(),
                }
            }
        }

        impl<'a> From<&'a $taint> for Taint<'a> {
            fn from(taint: &'a $taint) -> Self {
                Self {
                    key: &taint.key,
                    value: taint.value.as_deref(),
                    effect: &taint.effect,
                }
            }
        }
    };
}

of!(core::Toleration, core::Taint);
of!(resource::DeviceToleration, resource::DeviceTaint);

/// An empty effect is every effect, and an empty key with `Exists` every key.
pub fn tolerates<'a>(toleration: impl Into<Toleration<'a>>, taint: impl Into<Taint<'a>>) -> bool {
    let (toleration, taint) = (toleration.into(), taint.into());
    let key = toleration.key.unwrap_or_default();
    let effect = toleration.effect.unwrap_or_default();
    let is_exists = toleration.operator == Some("Exists");
    (effect.is_empty() || effect == taint.effect)
        && ((key.is_empty() && is_exists) || key == taint.key)
        && (is_exists || toleration.value.unwrap_or_default() == taint.value.unwrap_or_default())
}
