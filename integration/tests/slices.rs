//! What a slice of a card is: its own total, a hard end at exactly that, and nothing felt by the neighbours.

use anyhow::{Context, Result};
use integration::command::{LIMIT, wait_until};
use integration::packages::Suite;
use integration::programs::NO_MEMORY;
use integration::python;
use integration::rig::{self, Rig};
use integration::{image, skip};
use serde_json::Value;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// What a tenant may lose to its context below its quota.
const TAX: u64 = 64 * MIB;

fn with(suite: Suite, test: &str, body: fn(&Rig) -> Result<()>) -> Result<()> {
    let rig = match rig::start(suite)? {
        Ok(rig) => rig,
        Err(reason) => skip!(test, "{reason}"),
    };
    body(&rig)?;
    rig.finish()
}

macro_rules! tests {
    ($($name:ident)*) => {
        $(#[test] fn $name() -> Result<()> { with(Suite::Host, stringify!($name), bodies::$name) })*
    };
}

tests! {
    two_containers_on_one_card_each_see_their_own_total
    a_full_slice_is_refused_and_its_neighbour_is_not
    every_path_to_memory_ends_at_the_quota
    all_processes_of_a_container_share_its_quota
    a_slice_over_two_cards_is_split_and_held_on_each
    a_request_that_does_not_fit_reports_what_is_left
    deletion_returns_everything
    memory_of_a_killed_process_comes_back
    a_container_that_asks_for_nothing_gets_nothing
    cgpu_environment_asks_like_an_annotation
    spread_and_binpack_choose_different_cards
    a_named_card_is_taken
    host_views_list_every_vgpu
    every_spelling_of_a_call_is_seen
    calls_happen_once_under_a_storm_of_signals
}

#[test]
fn two_containers_under_the_newer_containerd() -> Result<()> {
    with(
        Suite::Newer,
        "two_containers_under_the_newer_containerd",
        bodies::two_containers_on_one_card_each_see_their_own_total,
    )
}

fn cards(smi: &Value) -> Result<&Vec<Value>> {
    smi["cards"].as_array().context("cards in the document")
}

fn total(smi: &Value, card: usize) -> u64 {
    smi["cards"][card]["memory_total_bytes"]
        .as_u64()
        .unwrap_or_default()
}

fn used(smi: &Value, card: usize) -> u64 {
    smi["cards"][card]["memory_used_bytes"]
        .as_u64()
        .unwrap_or(u64::MAX)
}

fn uuid(smi: &Value, card: usize) -> String {
    smi["cards"][card]["uuid"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn fill(rig: &Rig, id: &str, card: &str) -> Result<u64> {
    let reply = rig
        .containerd
        .exec(
            id,
            &[
                "cgpu-burn",
                "--json",
                "fill",
                "--down-to",
                "64Ki",
                "--card",
                card,
            ],
        )?
        .success()?
        .json()?;
    reply["got_bytes"]
        .as_u64()
        .context("got_bytes in the report")
}

/// Never more than the quota, and all of it but what the context takes.
fn fills(got: u64, quota: u64) -> bool {
    (quota - TAX..=quota).contains(&got)
}

/// Starts a container whose init holds memory, and waits until it says so.
fn holding(rig: &Rig, id: &str, annotations: &[&str], size: &str) -> Result<()> {
    rig.detached(id, annotations, &["cgpu-burn", "hold", size])?
        .success()?;
    wait_until("the memory to be held", LIMIT, || {
        Ok(used(&rig.smi(id)?, 0) > 0)
    })
}

mod bodies {
    use super::*;

    pub(super) fn two_containers_on_one_card_each_see_their_own_total(rig: &Rig) -> Result<()> {
        rig.hold("a", &["cgpu.io/memory=4Gi"])?.success()?;
        rig.hold("b", &["cgpu.io/memory=8Gi"])?.success()?;
        let (a, b) = (rig.smi("a")?, rig.smi("b")?);
        assert_eq!((cards(&a)?.len(), total(&a, 0)), (1, 4 * GIB), "{a}");
        assert_eq!((cards(&b)?.len(), total(&b, 0)), (1, 8 * GIB), "{b}");
        assert_eq!(uuid(&a, 0), uuid(&b, 0), "binpack puts both on one card");
        assert_eq!((used(&a, 0), used(&b, 0)), (0, 0));
        // Only the card that was granted has a node.
        let nodes = rig
            .containerd
            .exec("a", &["sh", "-c", "ls /dev | grep -E 'nvidia[0-9]'"])?;
        assert_eq!(nodes.stdout.lines().count(), 1, "{}", nodes.stdout);
        rig.containerd.remove("a")?;
        rig.containerd.remove("b")
    }

    pub(super) fn a_full_slice_is_refused_and_its_neighbour_is_not(rig: &Rig) -> Result<()> {
        rig.hold("a", &["cgpu.io/memory=4Gi"])?.success()?;
        rig.hold("b", &["cgpu.io/memory=8Gi"])?.success()?;
        let got = fill(rig, "a", "0")?;
        assert!(fills(got, 4 * GIB), "{got}");
        // One byte more than the quota, in one piece, is NV_ERR_NO_MEMORY and nothing else.
        let reply = rig
            .containerd
            .exec("a", &["cgpu-burn", "--json", "alloc", "4294967297"])?;
        assert_eq!(reply.code, NO_MEMORY, "{reply:?}");
        assert_eq!(reply.json()?["status_code"], 0x51);
        // The neighbour gets all of its own while the first is full.
        rig.containerd.remove("a")?;
        holding(rig, "a", &["cgpu.io/memory=4Gi"], "4000Mi")?;
        let got = fill(rig, "b", "0")?;
        assert!(fills(got, 8 * GIB), "{got}");
        assert!(used(&rig.smi("a")?, 0) >= 4000 * MIB);
        assert_eq!(used(&rig.smi("b")?, 0), 0, "what a holds is not b's to see");
        rig.containerd.remove("a")?;
        rig.containerd.remove("b")
    }

    pub(super) fn every_path_to_memory_ends_at_the_quota(rig: &Rig) -> Result<()> {
        rig.hold("a", &["cgpu.io/memory=1Gi"])?.success()?;
        for path in ["short", "long", "heap"] {
            let over = [
                "cgpu-burn",
                "--json",
                "alloc",
                "1025Mi",
                "--chunk",
                "64Mi",
                "--path",
                path,
            ];
            let reply = rig.containerd.exec("a", &over)?;
            assert_eq!(reply.code, NO_MEMORY, "{path}: {reply:?}");
            let got = reply.json()?["got_bytes"].as_u64().unwrap_or_default();
            assert!((GIB - 128 * MIB..=GIB).contains(&got), "{path}: {got}");
        }
        rig.containerd.remove("a")
    }

    pub(super) fn all_processes_of_a_container_share_its_quota(rig: &Rig) -> Result<()> {
        holding(rig, "a", &["cgpu.io/memory=4Gi"], "3Gi")?;
        let reply = rig
            .containerd
            .exec("a", &["cgpu-burn", "alloc", "1100Mi"])?;
        assert_eq!(reply.code, NO_MEMORY, "{reply:?}");
        rig.containerd
            .exec("a", &["cgpu-burn", "alloc", "900Mi"])?
            .success()?;
        rig.containerd.remove("a")
    }

    pub(super) fn a_slice_over_two_cards_is_split_and_held_on_each(rig: &Rig) -> Result<()> {
        rig.hold("a", &["cgpu.io/memory=8Gi", "cgpu.io/cards=2"])?
            .success()?;
        let smi = rig.smi("a")?;
        assert_eq!(cards(&smi)?.len(), 2, "{smi}");
        assert_eq!((total(&smi, 0), total(&smi, 1)), (4 * GIB, 4 * GIB));
        assert_ne!(uuid(&smi, 0), uuid(&smi, 1));
        for card in ["0", "1"] {
            let got = fill(rig, "a", card)?;
            assert!(fills(got, 4 * GIB), "{got}");
        }
        rig.containerd.remove("a")
    }

    pub(super) fn a_request_that_does_not_fit_reports_what_is_left(rig: &Rig) -> Result<()> {
        rig.hold("a", &["cgpu.io/memory=20Gi"])?.success()?;
        rig.hold("b", &["cgpu.io/memory=18Gi"])?.success()?;
        let reply = rig.hold("c", &["cgpu.io/memory=7Gi"])?.failure()?;
        for left in [4096, 6144] {
            let spelt = [
                format!("{left} MiB"),
                format!("{} GiB", left / 1024),
                format!("{left}Mi"),
                format!("{}Gi", left / 1024),
            ];
            assert!(
                spelt.iter().any(|text| reply.contains(text)),
                "no {left} MiB in: {reply}"
            );
        }
        for id in ["a", "b"] {
            let card = uuid(&rig.smi(id)?, 0);
            assert!(reply.contains(&card), "no {card} in: {reply}");
        }
        rig.containerd.ctr(&["containers", "rm", "c"])?;
        // What is left can still be had, to the byte.
        rig.hold("d", &["cgpu.io/memory=6Gi"])?.success()?;
        rig.hold("e", &["cgpu.io/memory=4Gi"])?.success()?;
        for id in ["a", "b", "d", "e"] {
            rig.containerd.remove(id)?;
        }
        Ok(())
    }

    pub(super) fn deletion_returns_everything(rig: &Rig) -> Result<()> {
        for round in 0..3 {
            let id = format!("a{round}");
            holding(
                rig,
                &id,
                &["cgpu.io/memory=48Gi", "cgpu.io/cards=2"],
                "20Gi",
            )?;
            rig.containerd.remove(&id)?;
            assert_eq!(
                rig.node.grants(),
                Vec::<String>::new(),
                "after round {round}"
            );
        }
        Ok(())
    }

    pub(super) fn memory_of_a_killed_process_comes_back(rig: &Rig) -> Result<()> {
        rig.hold("a", &["cgpu.io/memory=4Gi"])?.success()?;
        let hold = "cgpu-burn hold 3Gi & echo $! >/tmp/pid; wait";
        let name = [
            "tasks",
            "exec",
            "-d",
            "--exec-id",
            "held",
            "a",
            "sh",
            "-c",
            hold,
        ];
        rig.containerd.ctr(&name)?.success()?;
        wait_until("the memory to be held", LIMIT, || {
            Ok(used(&rig.smi("a")?, 0) >= 3 * GIB)
        })?;
        rig.containerd
            .exec("a", &["sh", "-c", "kill -9 $(cat /tmp/pid)"])?
            .success()?;
        wait_until("the memory to come back", LIMIT, || {
            Ok(used(&rig.smi("a")?, 0) == 0)
        })?;
        rig.containerd
            .exec("a", &["cgpu-burn", "alloc", "3900Mi"])?
            .success()?;
        rig.containerd.remove("a")
    }

    pub(super) fn a_container_that_asks_for_nothing_gets_nothing(rig: &Rig) -> Result<()> {
        rig.hold("a", &[])?.success()?;
        let nodes = rig
            .containerd
            .exec("a", &["sh", "-c", "ls /dev | grep nvidia"])?;
        assert_eq!(nodes.stdout, "");
        assert_eq!(rig.node.grants(), Vec::<String>::new());
        let brokers: Vec<String> = rig
            .node
            .leftovers()
            .into_iter()
            .filter(|line| line.contains("cgpu-broker"))
            .collect();
        assert_eq!(brokers, Vec::<String>::new());
        rig.containerd.remove("a")
    }

    pub(super) fn cgpu_environment_asks_like_an_annotation(rig: &Rig) -> Result<()> {
        let options = [
            "--runtime",
            integration::containerd::CGPU,
            "--env",
            "ALIYUN_COM_GPU_MEM_CONTAINER=4",
            "--env",
            "ALIYUN_COM_GPU_MEM_DEV=24",
        ];
        rig.containerd
            .run_detached(&rig.image, "a", &options, &["sleep", "1000"])?
            .success()?;
        let smi = rig.smi("a")?;
        assert_eq!((cards(&smi)?.len(), total(&smi, 0)), (1, 4 * GIB), "{smi}");
        rig.containerd.remove("a")
    }

    pub(super) fn spread_and_binpack_choose_different_cards(rig: &Rig) -> Result<()> {
        rig.hold("a", &["cgpu.io/memory=4Gi"])?.success()?;
        rig.hold("b", &["cgpu.io/memory=4Gi", "cgpu.io/placement=binpack"])?
            .success()?;
        rig.hold("c", &["cgpu.io/memory=4Gi", "cgpu.io/placement=spread"])?
            .success()?;
        let [a, b, c] = ["a", "b", "c"].map(|id| rig.smi(id).map(|smi| uuid(&smi, 0)));
        let (a, b, c) = (a?, b?, c?);
        assert_eq!(a, b);
        assert_ne!(a, c);
        for id in ["a", "b", "c"] {
            rig.containerd.remove(id)?;
        }
        Ok(())
    }

    pub(super) fn a_named_card_is_taken(rig: &Rig) -> Result<()> {
        rig.hold("both", &["cgpu.io/memory=2Gi", "cgpu.io/cards=2"])?
            .success()?;
        let smi = rig.smi("both")?;
        for card in [uuid(&smi, 1), uuid(&smi, 0)] {
            let placement = format!("cgpu.io/cards={card}");
            rig.hold("named", &["cgpu.io/memory=1Gi", &placement])?
                .success()?;
            assert_eq!(uuid(&rig.smi("named")?, 0), card);
            rig.containerd.remove("named")?;
        }
        rig.containerd.remove("both")
    }

    pub(super) fn host_views_list_every_vgpu(rig: &Rig) -> Result<()> {
        rig.hold("first", &["cgpu.io/memory=4Gi"])?.success()?;
        rig.hold("second", &["cgpu.io/memory=8Gi", "cgpu.io/cards=2"])?
            .success()?;
        let ps = rig.node.cgpu(&["ps", "--json"])?.success()?;
        for part in [
            "first",
            "second",
            rig.containerd.namespace(),
            &(4 * GIB).to_string(),
        ] {
            assert!(ps.stdout.contains(part), "no {part} in {}", ps.stdout);
        }
        let cards = rig.node.cgpu(&["cards", "--json"])?.success()?;
        for id in ["first", "second"] {
            let card = uuid(&rig.smi(id)?, 0);
            assert!(
                cards.stdout.contains(&card),
                "no {card} in {}",
                cards.stdout
            );
        }
        let holds = &["cgpu-burn", "hold", "1Gi"];
        rig.detached("third", &["cgpu.io/memory=2Gi"], holds)?
            .success()?;
        let card = uuid(&rig.smi("third")?, 0);
        // The simulator's cards have no nodes on the host.
        wait_until("what the third holds", LIMIT, || {
            let smi = rig.node.cgpu(&["smi", "--json"])?.success()?.json()?;
            let at = super::cards(&smi)?
                .iter()
                .position(|row| row["uuid"] == card);
            let at = at.context("its card")?;
            let process = &smi["cards"][at]["processes"][0];
            Ok(total(&smi, at) == 24 * GIB
                && used(&smi, at) >= GIB
                && process["used_bytes"].as_u64() >= Some(GIB))
        })?;
        for id in ["first", "second", "third"] {
            rig.containerd.remove(id)?;
        }
        let ps = rig.node.cgpu(&["ps", "--json"])?.success()?;
        assert!(!ps.stdout.contains("first"), "{}", ps.stdout);
        Ok(())
    }

    pub(super) fn every_spelling_of_a_call_is_seen(rig: &Rig) -> Result<()> {
        rig.hold("a", &["cgpu.io/memory=1Gi"])?.success()?;
        rig.containerd
            .exec("a", &["cgpu-burn", "--json", "vectors"])?
            .success()?;
        rig.containerd.remove("a")
    }

    pub(super) fn calls_happen_once_under_a_storm_of_signals(rig: &Rig) -> Result<()> {
        rig.hold("a", &["cgpu.io/memory=1Gi"])?.success()?;
        rig.containerd
            .exec("a", &["cgpu-burn", "--json", "storm", "--seconds", "4"])?
            .success()?;
        assert_eq!(
            used(&rig.smi("a")?, 0),
            0,
            "nothing stays allocated after the storm"
        );
        rig.containerd.remove("a")
    }
}

#[test]
fn tinygrad_copies_both_ways_and_stops_at_its_quota() -> Result<()> {
    let rig = match rig::start(Suite::Host)? {
        Ok(rig) => rig,
        Err(reason) => skip!("tinygrad", "{reason}"),
    };
    let image = match image::tinygrad(Some(integration::programs::Programs::for_tests()?)) {
        Ok(image) => image,
        Err(error) => skip!("tinygrad", "{error:#}"),
    };
    rig.containerd.import(&image)?;
    let options = [
        "--runtime",
        integration::containerd::CGPU,
        "--annotation",
        "cgpu.io/memory=2Gi",
        "--env",
        python::SELECT,
    ];
    let reply = rig
        .containerd
        .run_once(
            &image,
            "tiny",
            &options,
            &["python3", "-c", python::CHECK, "64"],
        )?
        .success()?
        .json()?;
    assert_eq!(reply["identical"], true, "{reply}");
    let held = reply["held_bytes"].as_u64().unwrap_or_default();
    // tinygrad itself takes about 70 MiB for its rings and staging.
    assert!((2 * GIB - 256 * MIB..2 * GIB).contains(&held), "{reply}");
    assert!(
        reply["error"]
            .as_str()
            .is_some_and(|error| error.starts_with("MemoryError")),
        "{reply}"
    );
    rig.finish()
}
