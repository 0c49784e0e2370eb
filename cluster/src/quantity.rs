//! Kubernetes' quantities as its API has them; see [`dra::quantity`].

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// An amount of bytes, by the largest unit that divides it.
pub(crate) fn bytes(amount: u64) -> Quantity {
    Quantity(dra::quantity::bytes(amount))
}

/// A count, by the largest power of a thousand that divides it.
pub(crate) fn count(amount: u64) -> Quantity {
    Quantity(dra::quantity::count(amount))
}

/// The whole number that a quantity is, rounded up. `None`: it is no quantity, is negative, or does not fit.
pub(crate) fn whole(quantity: &Quantity) -> Option<u64> {
    dra::quantity::whole(&quantity.0)
}
