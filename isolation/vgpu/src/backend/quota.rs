//! The quotas that a broker holds its container to.

use cards::Grant;
use control::{NewQuota, Quotas, Request, client};

use super::Held;
use crate::error::{Error, unconfirmed};
use crate::state::ContainerDir;

/// Tells the broker its quotas.
pub(super) fn tell(dir: &ContainerDir, grant: &Grant) -> Result<Vec<Held>, Error> {
    let failed = |problem: String| Error::BrokerRefused {
        key: dir.called(&grant.key),
        problem,
    };
    let cards = grant.cards.iter().map(|slice| NewQuota {
        uuid: slice.uuid.to_string(),
        quota_bytes: slice.quota_bytes,
    });
    let request = Request::SetQuota {
        cards: cards.collect(),
    };
    let answer: Quotas = client::ask(&dir.control_socket(), &request)
        .map_err(|error| failed(unconfirmed(&error)))?;
    let agrees = grant.cards.iter().all(|slice| {
        answer
            .cards
            .iter()
            .any(|card| card.uuid == slice.uuid.as_str() && card.quota_bytes == slice.quota_bytes)
    });
    if agrees {
        Ok(answer
            .cards
            .into_iter()
            .map(|card| Held {
                uuid: card.uuid,
                used_bytes: card.used_bytes,
            })
            .collect())
    } else {
        Err(failed(
            "it answers with other quotas than it was told; run the command again".to_owned(),
        ))
    }
}
