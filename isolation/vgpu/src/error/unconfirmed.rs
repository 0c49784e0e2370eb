//! What is known after a broker has not confirmed a change.

use control::AskError;

/// Why, and what holds now. A broker that does not answer may have made the change.
pub(crate) fn unconfirmed(error: &AskError) -> String {
    let holds = match error {
        AskError::Refused(_) => "everything stays as it was",
        AskError::Silent(_) | AskError::Unknown(_) => {
            "whether it was changed is not known: run the command again"
        }
    };
    format!("{error}; {holds}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_tells_that_nothing_was_changed() {
        let silent = unconfirmed(&AskError::Silent(std::io::ErrorKind::TimedOut.into()));
        assert!(silent.contains("is not known: run"), "{silent}");
        let refused = unconfirmed(&AskError::Refused("no".to_owned()));
        assert_eq!(refused, "no; everything stays as it was");
    }
}
