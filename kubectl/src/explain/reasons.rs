//! What is said of claims and requests, for people.

use fit::lack;
use fit::needs::Needs;

use super::judge::ClaimFound;
use crate::text;

/// A claim without cgpu's handler is the commonest mistake, and nothing else in the cluster names it: the pod runs.
pub(super) const NO_HANDLER: &str = "runtimeClassName is not set: its containers see no card; make the pod again with runtimeClassName: cgpu";

/// Why cards that each serve a request do not serve the claims: there are too few of them, or a constraint keeps them apart.
pub(super) fn not_together(open: &[&Needs]) -> String {
    let constraints = open.iter().flat_map(|needs| &needs.constraints);
    let named: Vec<String> = constraints
        .filter_map(|constraint| {
            let matching = constraint
                .match_attribute
                .as_ref()
                .map(|attribute| ("matchAttribute", attribute));
            let distinct = constraint
                .distinct_attribute
                .as_ref()
                .map(|attribute| ("distinctAttribute", attribute));
            let (kind, attribute) = matching.or(distinct)?;
            Some(format!("{kind}: {}", text::name(attribute)))
        })
        .collect();
    let reason = "each request fits a card, but not all of them together";
    if named.is_empty() {
        return reason.to_owned();
    }
    format!(
        "{reason}: the claims have {}, and a card without that attribute meets none",
        named.join(", ")
    )
}

/// Why there is no claim.
pub(super) fn missing(found: &ClaimFound) -> String {
    match (&found.claim_name, &found.template) {
        (Some(name), _) => format!("there is no ResourceClaim {}", text::name(name)),
        // Names that cluster/policies/classic.yaml writes.
        (None, Some(template)) if template.starts_with("cgpu-") && !found.has_template => format!(
            "there is no ResourceClaimTemplate {} yet: the controller of classic pods (cgpu-agent --classic-templates) makes it; is it running?",
            text::name(template)
        ),
        (None, Some(template)) => {
            format!("there is no ResourceClaimTemplate {}", text::name(template))
        }
        (None, None) => "the pod names neither a claim nor a template".to_owned(),
    }
}

/// Keys that `cluster/policies/classic.yaml` translates.
pub(super) fn is_classic(key: &str) -> bool {
    key.starts_with("aliyun.com/gpu")
        || key.starts_with("nvidia.com/gpumem")
        || key == "nvidia.com/gpucores"
}

pub(super) fn described(needs: &Needs) -> Vec<String> {
    let mut lines: Vec<String> = needs
        .requests
        .iter()
        .flatten()
        .map(|need| {
            let count = need.cards().map_or_else(
                || "all cards".to_owned(),
                |count| {
                    if count == 1 {
                        "1 card".to_owned()
                    } else {
                        format!("{count} cards")
                    }
                },
            );
            let amounts = need.capacities.iter().map(|(name, amount)| {
                format!("{} {}", lack::called(name), lack::amount(name, *amount))
            });
            let amounts: Vec<String> = amounts.collect();
            let each = if amounts.is_empty() {
                "what the class gives where nothing is named".to_owned()
            } else {
                amounts.join(", ")
            };
            format!(
                "{}: {count}, class {}: {each}",
                text::name(&need.request),
                text::name(&need.class)
            )
        })
        .collect();
    lines.extend(
        needs
            .foreign
            .iter()
            .map(|request| format!("{}: of another driver, not looked at", text::name(request))),
    );
    lines
}

/// Names, of many the first.
pub(super) fn listed<'a>(names: impl ExactSizeIterator<Item = &'a String>) -> String {
    const SHOWN: usize = 4;
    let more = names.len().saturating_sub(SHOWN);
    let named: Vec<String> = names.take(SHOWN).map(|name| text::name(name)).collect();
    let named = named.join(", ");
    if more > 0 {
        format!("{named} and {more} more")
    } else {
        named
    }
}
