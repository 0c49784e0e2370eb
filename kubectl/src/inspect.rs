//! `kubectl cgpu inspect`: the cards of a cluster's nodes, and who has them.

use std::collections::BTreeMap;

use dra::{CORES, DRIVER, MEMORY};
use fit::cards::{Card, Given, Offer, offers, taken};
use fit::lean;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::ResourceSlice;
use serde::Serialize;

use crate::api::{Cluster, Error, is_name};
use crate::options::InspectOptions;
use crate::text;

/// The document's version.
const JSON_VERSION: u32 = 1;

/// `kubectl cgpu inspect -o json`.
#[derive(Debug, Serialize)]
pub(crate) struct Seen {
    version: u32,
    nodes: Vec<NodeSeen>,
    /// Nodes that the limit left out; `cluster` counts them.
    nodes_left_out: usize,
    cluster: Totals,
}

#[derive(Debug, Serialize)]
struct NodeSeen {
    name: String,
    /// The scheduler places nothing here until all of the node's slices are there.
    is_whole: bool,
    cards: Vec<CardSeen>,
    totals: Totals,
}

#[derive(Debug, Serialize)]
struct CardSeen {
    device: String,
    index: Option<i64>,
    uuid: String,
    product: Option<String>,
    is_shared: bool,
    memory_given_bytes: u64,
    memory_bytes: u64,
    cores_given_percent: u64,
    containers: u64,
    containers_max: u64,
    state: String,
    shares: Vec<ShareSeen>,
}

#[derive(Debug, Serialize)]
struct ShareSeen {
    namespace: String,
    claim: String,
    request: String,
    pods: Vec<String>,
    memory_bytes: u64,
    cores_percent: u64,
}

#[derive(Debug, Default, Clone, Serialize)]
struct Totals {
    nodes: usize,
    cards: usize,
    /// Cards with a taint.
    cards_tainted: usize,
    memory_given_bytes: u64,
    memory_bytes: u64,
    cores_given_percent: u64,
    shares: usize,
}

/// Reads the cluster.
///
/// # Errors
/// The server's; there is no such node.
pub(crate) async fn look(cluster: &Cluster, options: &InspectOptions) -> Result<Seen, Error> {
    let node = options.node.as_deref();
    let offers = read(cluster, node).await?;
    if let Some(name) = node
        && offers.is_empty()
    {
        let found = cluster.one::<Node>("node", name).await?;
        return Err(Error::NotFound(match found {
            Some(_) => format!(
                "node {} publishes no card of cgpu: is its agent running?",
                text::name(name)
            ),
            None => format!("there is no node {}", text::name(name)),
        }));
    }
    Ok(see(&offers, options.limit))
}

/// What nodes offer, and what is given of it; of one node, or of all.
///
/// # Errors
/// The server's.
pub(crate) async fn read(
    cluster: &Cluster,
    node: Option<&str>,
) -> Result<BTreeMap<String, Offer>, Error> {
    let mut fields = format!("spec.driver={DRIVER}");
    if let Some(name) = node {
        if !is_name(name) {
            let shown = text::name(name);
            return Err(Error::NotFound(format!("there is no node {shown}")));
        }
        fields += &format!(",spec.nodeName={name}");
    }
    let slices = cluster
        .all("resourceslices", Some(&fields), Some::<ResourceSlice>)
        .await?;
    // Each claim is reduced to its shares as it is read: a cluster may have a hundred thousand.
    let shares = |claim: lean::Claim| taken(&claim.into());
    let claims = cluster.all("resourceclaims", None, shares).await?;
    Ok(offers(slices, &Given::of_all(claims)))
}

fn see(offers: &BTreeMap<String, Offer>, limit: usize) -> Seen {
    let shown = if limit == 0 { usize::MAX } else { limit };
    let mut cluster = Totals::default();
    let mut nodes = Vec::new();
    for (name, offer) in offers {
        let totals = Totals::of(offer);
        cluster.add(&totals);
        if nodes.len() < shown {
            nodes.push(NodeSeen {
                name: name.clone(),
                is_whole: offer.is_whole(),
                cards: offer.cards.iter().map(CardSeen::of).collect(),
                totals,
            });
        }
    }
    // By number: slices have them in the order in which they are placed on.
    for node in &mut nodes {
        node.cards
            .sort_by(|a, b| (a.index, &a.device).cmp(&(b.index, &b.device)));
    }
    Seen {
        version: JSON_VERSION,
        nodes_left_out: offers.len() - nodes.len(),
        nodes,
        cluster,
    }
}

impl Totals {
    fn of(offer: &Offer) -> Self {
        let mut totals = Self {
            nodes: 1,
            cards: offer.cards.len(),
            ..Self::default()
        };
        for card in &offer.cards {
            totals.cards_tainted += usize::from(!card.taints().is_empty());
            totals.memory_given_bytes =
                totals.memory_given_bytes.saturating_add(card.given(MEMORY));
            totals.memory_bytes = totals.memory_bytes.saturating_add(card.total(MEMORY));
            totals.cores_given_percent =
                totals.cores_given_percent.saturating_add(card.given(CORES));
            totals.shares += card.shares.len();
        }
        totals
    }

    fn add(&mut self, other: &Self) {
        self.nodes += other.nodes;
        self.cards += other.cards;
        self.cards_tainted += other.cards_tainted;
        self.memory_given_bytes = self
            .memory_given_bytes
            .saturating_add(other.memory_given_bytes);
        self.memory_bytes = self.memory_bytes.saturating_add(other.memory_bytes);
        self.cores_given_percent = self
            .cores_given_percent
            .saturating_add(other.cores_given_percent);
        self.shares += other.shares;
    }
}

impl CardSeen {
    fn of(card: &Card) -> Self {
        let (containers, containers_max) = card.places();
        let shares = card.shares.iter().map(|share| ShareSeen {
            namespace: share.namespace.clone(),
            claim: share.claim.clone(),
            request: share.request.clone(),
            pods: share.pods.clone(),
            memory_bytes: share.memory(card),
            cores_percent: share.amount(CORES, card),
        });
        Self {
            device: card.device.name.clone(),
            index: card.index(),
            uuid: card.uuid().to_owned(),
            product: card.text("productName").map(str::to_owned),
            is_shared: card.is_shared(),
            memory_given_bytes: card.given(MEMORY),
            memory_bytes: card.total(MEMORY),
            cores_given_percent: card.given(CORES),
            containers,
            containers_max,
            state: card.state(),
            shares: shares.collect(),
        }
    }
}

/// `GPU-5e020b7d` of a UUID: what is the same of no two cards of a node.
pub(crate) fn short(uuid: &str) -> String {
    let mut parts = uuid.splitn(3, '-');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(kind), Some(first), Some(rest)) if rest.len() > 12 => {
            text::name(&format!("{kind}-{first}"))
        }
        _ => text::name(uuid),
    }
}

/// The same as tables.
pub(crate) fn text(seen: &Seen, details: bool) -> String {
    if seen.cluster.cards == 0 {
        return "No node publishes a card of cgpu: is the agent running? See `kubectl get resourceslices`.\n".to_owned();
    }
    let mut text = text::table(&cards(seen));
    if details {
        text.push('\n');
        let rows = pods(seen);
        if rows.len() > 1 {
            text.push_str(&text::table(&rows));
        } else {
            text.push_str("No pod has a card.\n");
        }
    }
    if seen.nodes_left_out > 0 {
        let more = format!(
            "\nand {} more nodes, which the last line counts; --limit 0 shows them\n",
            seen.nodes_left_out
        );
        text.push_str(&more);
    }
    for node in seen.nodes.iter().filter(|node| !node.is_whole) {
        let name = text::name(&node.name);
        text.push_str(&format!("\nNode {name}: not all of its slices are there; nothing is placed on it until they are.\n"));
    }
    text
}

fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

fn cards(seen: &Seen) -> Vec<Vec<String>> {
    let mut rows = vec![row(&[
        "NODE",
        "CARD",
        "UUID",
        "PRODUCT",
        "MEMORY GiB",
        "COMPUTE",
        "CONTAINERS",
        "STATE",
    ])];
    for node in &seen.nodes {
        let name = text::name(&node.name);
        for card in &node.cards {
            let product = card.product.as_deref().unwrap_or("-");
            rows.push(vec![
                name.clone(),
                card.index
                    .map_or_else(|| text::name(&card.device), |index| index.to_string()),
                short(&card.uuid),
                text::clean(product, 40),
                memory(card.memory_given_bytes, card.memory_bytes),
                format!("{} %", card.cores_given_percent),
                format!("{}/{}", card.containers, card.containers_max),
                text::message(&card.state),
            ]);
        }
        if node.cards.len() > 1 {
            rows.push(node.totals.row(&name));
        }
    }
    if seen.cluster.nodes > 1 {
        rows.push(seen.cluster.row("all nodes"));
    }
    rows
}

fn memory(given: u64, total: u64) -> String {
    format!("{}/{}", text::gib(given), text::gib(total))
}

impl Totals {
    fn row(&self, name: &str) -> Vec<String> {
        let part = u128::from(self.memory_given_bytes) * 100 / u128::from(self.memory_bytes.max(1));
        let cards = u64::try_from(self.cards).unwrap_or(u64::MAX).max(1);
        let state = if self.cards_tainted > 0 {
            format!("{} of {} cards tainted", self.cards_tainted, self.cards)
        } else {
            "ok".to_owned()
        };
        vec![
            name.to_owned(),
            "all".to_owned(),
            format!("{} cards", self.cards),
            "-".to_owned(),
            format!(
                "{} ({part} %)",
                memory(self.memory_given_bytes, self.memory_bytes)
            ),
            format!("{} %", self.cores_given_percent / cards),
            self.shares.to_string(),
            state,
        ]
    }
}

/// Pods of a shared claim that are named in a table.
const PODS_SHOWN: usize = 4;

/// The pods of a claim in one cell.
pub(crate) fn users(namespace: &str, pods: &[String]) -> String {
    let named = pods.iter().take(PODS_SHOWN);
    let named: Vec<String> = named
        .map(|pod| text::name(&format!("{namespace}/{pod}")))
        .collect();
    match (named.is_empty(), pods.len().saturating_sub(PODS_SHOWN)) {
        (true, _) => format!("{}/- (no pod)", text::name(namespace)),
        (false, 0) => named.join(", "),
        (false, more) => format!("{}, and {more} more", named.join(", ")),
    }
}

fn pods(seen: &Seen) -> Vec<Vec<String>> {
    let mut rows = vec![row(&[
        "NODE",
        "CARD",
        "POD",
        "CLAIM",
        "REQUEST",
        "MEMORY GiB",
        "COMPUTE",
    ])];
    for node in &seen.nodes {
        for card in &node.cards {
            for share in &card.shares {
                rows.push(vec![
                    text::name(&node.name),
                    card.index
                        .map_or_else(|| text::name(&card.device), |index| index.to_string()),
                    users(&share.namespace, &share.pods),
                    text::name(&share.claim),
                    text::name(&share.request),
                    text::gib(share.memory_bytes),
                    format!("{} %", share.cores_percent),
                ]);
            }
        }
    }
    rows
}
