//! The device plugin, as a kubelet meets it that can only count.

use cluster::{Interface, ResourceName};
use serde_json::json;
use tokio_stream::StreamExt;

use crate::fixture::plugins::{Called, PluginKubelet, count};
use crate::fixture::{Driver, Fixture, soon, uuid};

const RESOURCE: &str = "aliyun.com/gpu-mem";

fn start(fixture: &Fixture) -> Driver {
    let mut settings = fixture.settings(None);
    settings.interface = Interface::DevicePlugin(ResourceName::new(RESOURCE).unwrap());
    Driver::start(settings, fixture.host())
}

fn ids(card: u32, numbers: std::ops::Range<u32>) -> Vec<String> {
    let card = uuid(card);
    numbers.map(|number| format!("{card}::{number}")).collect()
}

/// A pod that the API server knows.
fn pod(fixture: &Fixture, name: &str, node: &str, phase: &str) {
    fixture.api.put(
        &format!("/api/v1/namespaces/team-a/pods/{name}"),
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "team-a", "uid": format!("uid-of-{name}")},
            "spec": {"nodeName": node, "containers": []}, "status": {"phase": phase},
        }),
    );
}

/// The uid of the record that a container's variable points to.
fn uid_in(variable: &(String, String)) -> String {
    let (name, pointer) = variable;
    assert!(name.starts_with("CGPU_CLAIM_"), "{name}");
    let pointer: cards::claims::Pointer = pointer.parse().unwrap();
    pointer.claim.to_string()
}

async fn with(fixture: &Fixture) -> (Driver, PluginKubelet, Called) {
    let kubelet = PluginKubelet::start(&fixture.path("kubelet"));
    let driver = start(fixture);
    let plugin = kubelet.plugin().await;
    (driver, kubelet, plugin)
}

#[tokio::test]
async fn a_pod_is_let_in_when_the_kubelet_names_it_and_nobody_before() {
    let fixture = Fixture::new().await;
    let (driver, kubelet, mut plugin) = with(&fixture).await;
    let registered = kubelet.registered().remove(0);
    assert_eq!(
        (
            registered.version.as_str(),
            registered.resource_name.as_str()
        ),
        ("v1beta1", RESOURCE)
    );
    let options = registered.options.unwrap();
    assert!(options.pre_start_required && options.get_preferred_allocation_available);
    let mut devices = plugin.devices().await;
    let list = devices.next().await.unwrap().unwrap().devices;
    assert_eq!(count(&list), (48, 0), "two cards of 24 GiB");

    let four = ids(0, 0..4);
    let variable = plugin.allocate(&four).await.unwrap();
    let uid = uid_in(&variable);
    let record = fixture.record(&uid).unwrap();
    assert_eq!(record["pods"], json!([]));
    assert_eq!(
        record["requests"]["memory"]["shares"][0]["memory_bytes"],
        4_u64 << 30
    );
    assert_eq!(
        plugin.allocate(&four).await.unwrap(),
        variable,
        "asked again"
    );

    // The kubelet knows no such container yet, or a pod that is another node's, or one that has ended.
    let why = plugin.pre_start(&four).await.unwrap_err();
    assert!(why.contains("names no pod of this node"), "{why}");
    for (node, phase) in [("n2", "Running"), ("n1", "Succeeded")] {
        pod(&fixture, "p", node, phase);
        kubelet.set_pods(RESOURCE, &[("p", "c", &four)]);
        plugin.pre_start(&four).await.unwrap_err();
    }
    assert_eq!(fixture.record(&uid).unwrap()["pods"], json!([]));
    pod(&fixture, "p", "n1", "Pending");
    plugin.pre_start(&four).await.unwrap();
    plugin.pre_start(&four).await.unwrap();
    assert_eq!(
        fixture.record(&uid).unwrap()["pods"],
        json!([{"uid": "uid-of-p", "name": "p"}])
    );
    // Other units are another record, whoever has them.
    let why = plugin.pre_start(&ids(0, 0..3)).await.unwrap_err();
    assert!(why.contains("names no pod of this node"), "{why}");

    // The pod has ended, which nobody says.
    kubelet.set_pods(RESOURCE, &[]);
    soon("the record is released", || fixture.record(&uid).is_none()).await;
    driver.end().await;
}

#[tokio::test]
async fn what_does_not_fit_one_card_or_the_card_is_refused_and_nothing_is_reserved() {
    let fixture = Fixture::new().await;
    let (driver, kubelet, mut plugin) = with(&fixture).await;
    let mut both = ids(0, 0..3);
    both.extend(ids(1, 0..2));
    let why = plugin.allocate(&both).await.unwrap_err();
    assert!(why.contains("one card") && why.contains(&uuid(1)), "{why}");
    let why = plugin.allocate(&ids(7, 0..1)).await.unwrap_err();
    assert!(why.contains("is not on this node"), "{why}");
    let why = plugin.allocate(&["gpu".to_owned()]).await.unwrap_err();
    assert!(why.contains("no unit"), "{why}");
    // More units than the card has gibibytes: a kubelet that was told of a larger card.
    let why = plugin.allocate(&ids(0, 0..25)).await.unwrap_err();
    assert!(why.contains("GiB") && why.contains(RESOURCE), "{why}");
    assert!(std::fs::read_dir(fixture.path("state/claims")).map_or(0, Iterator::count) == 0);

    // A pod that was not admitted after all: the kubelet gives its units away again, at once, and says nothing.
    let init = ids(0, 0..4);
    let void = uid_in(&plugin.allocate(&init).await.unwrap());
    let next = uid_in(&plugin.allocate(&ids(0, 3..24)).await.unwrap());
    assert!(fixture.record(&void).is_none() && fixture.record(&next).is_some());
    // Units that were not given away again may be named soon.
    plugin.allocate(&ids(0, 0..3)).await.unwrap();
    assert!(fixture.record(&next).is_some());

    // Units of a container that is there.
    plugin.allocate(&init).await.unwrap();
    kubelet.set_pods(RESOURCE, &[("p", "init", &init)]);
    let why = plugin.allocate(&ids(0, 0..2)).await.unwrap_err();
    assert!(why.contains("container init of pod team-a/p"), "{why}");
    plugin.allocate(&init).await.unwrap();
    plugin.allocate(&ids(0, 3..5)).await.unwrap_err();
    plugin.allocate(&ids(0, 4..5)).await.unwrap();
    // A kubelet that does not say who has what is given nothing.
    std::fs::remove_dir_all(fixture.path("kubelet/pod-resources")).unwrap();
    let why = plugin.allocate(&ids(1, 0..1)).await.unwrap_err();
    assert!(why.contains("pod-resources"), "{why}");

    let chosen = plugin
        .preferred(&[ids(0, 5..8), ids(1, 0..9)].concat(), 4)
        .await;
    assert_eq!(chosen, ids(1, 0..4));
    driver.end().await;
}

#[tokio::test]
async fn a_card_that_is_lost_has_units_that_nobody_gets() {
    let fixture = Fixture::new().await;
    let (driver, _kubelet, mut plugin) = with(&fixture).await;
    let mut devices = plugin.devices().await;
    assert_eq!(
        count(&devices.next().await.unwrap().unwrap().devices),
        (48, 0)
    );
    let health = cards::CardHealth {
        version: cards::health::VERSION,
        uuid: cards::GpuUuid::new(uuid(1)).unwrap(),
        reason: "Xid 79: GPU has fallen off the bus".to_owned(),
        since_unix_ms: 1_700_000_000_000,
    };
    cards::health::report(&fixture.path("state"), &health).unwrap();
    assert_eq!(
        count(&devices.next().await.unwrap().unwrap().devices),
        (24, 24)
    );
    driver.end().await;
}

#[tokio::test]
async fn kubelet_and_agent_start_again_and_records_stay_as_long_as_their_containers() {
    let fixture = Fixture::new().await;
    let (driver, kubelet, mut plugin) = with(&fixture).await;
    let two = ids(1, 3..5);
    let uid = uid_in(&plugin.allocate(&two).await.unwrap());
    pod(&fixture, "p", "n1", "Running");
    kubelet.set_pods(RESOURCE, &[("p", "c", &two)]);
    plugin.pre_start(&two).await.unwrap();
    // A kubelet that starts again has emptied the folder.
    drop(kubelet);
    std::fs::remove_dir_all(fixture.path("kubelet/device-plugins")).unwrap();
    let kubelet = PluginKubelet::start(&fixture.path("kubelet"));
    kubelet.set_pods(RESOURCE, &[("p", "c", &two)]);
    drop(kubelet.plugin().await);
    // An agent that is killed leaves its socket behind, and what it knew is on the disk.
    driver.kill().await;
    let before = kubelet.registered().len();
    let driver = start(&fixture);
    soon("the next agent's registration", || {
        kubelet.registered().len() > before
    })
    .await;
    let mut plugin = kubelet.plugin().await;
    plugin.pre_start(&two).await.unwrap();
    assert_eq!(fixture.record(&uid).unwrap()["pods"][0]["name"], "p");
    // A reboot has emptied the state.
    std::fs::remove_file(fixture.path("state/claims").join(format!("{uid}.json"))).unwrap();
    plugin.pre_start(&two).await.unwrap();
    assert_eq!(fixture.record(&uid).unwrap()["pods"][0]["uid"], "uid-of-p");
    driver.end().await;

    // Claims are served instead: what the plugin had reserved is free.
    let driver = fixture.start();
    soon("the record is released", || fixture.record(&uid).is_none()).await;
    driver.end().await;
}
