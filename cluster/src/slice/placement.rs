//! The order of a node's cards, by its label `ack.node.gpu.placement`.

use cards::placement::Policy;

/// The label.
pub(crate) const LABEL: &str = "ack.node.gpu.placement";

/// What a label's value means; `Ok(None)`: the node has none, and the policy of its file holds.
///
/// # Errors
/// The value, cut, where it is no policy: that of the file holds.
pub(crate) fn of_label(value: Option<&str>) -> Result<Option<Policy>, String> {
    match value {
        None => Ok(None),
        Some("binpack") => Ok(Some(Policy::Binpack)),
        Some("spread") => Ok(Some(Policy::Spread)),
        // The API takes 63 characters.
        Some(other) => Err(other.chars().take(63).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_nobody_knows_leaves_the_file_s_policy() {
        assert_eq!(of_label(None), Ok(None));
        assert_eq!(of_label(Some("spread")), Ok(Some(Policy::Spread)));
        assert_eq!(of_label(Some("binpack")), Ok(Some(Policy::Binpack)));
        for value in ["", "Spread", "binpack "] {
            assert_eq!(of_label(Some(value)), Err(value.to_owned()));
        }
    }
}
