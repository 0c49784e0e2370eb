//! Random lives of claims, agents and containers, against the test's own account: no memory is given twice, and none is lost.
//!
//! `CGPU_CLAIM_STEPS` and `CGPU_CLAIM_SEED` say how many steps, and which; `cargo xtask long claims` takes ten thousand.

use std::collections::BTreeMap;
use std::fs;

use cards::claims::{ClaimUid, Claims, Pointer};
use cards::grant::{self, CardGrant, DriverSpec, Frontend};
use cards::lock::{Attempt, FileLock, StateLock};
use cards::reservations::{Defaults, Reservations};
use cards::store::DiskStore;
use cards::{
    Backend, CardKind, CardRules, ContainerKey, FrontendKind, GpuUuid, Grant, Inventory, Isolation,
};
use hyper::Method;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde_json::Value;

use crate::fixture::api::Fault;
use crate::fixture::kubelet::Kubelet;
use crate::fixture::{Driver, Fixture, claim, claim_path, share, soon, uid, uuid};

const CARD_MIB: u64 = 24 << 10;
const CLAIMS: u64 = 12;

/// A claim as the API has it, or had it when it was prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    card: usize,
    mib: u64,
    /// A claim of the same name is another one later.
    number: u32,
}

/// A container that has a share; its frontend lives while the lock is held.
struct Held {
    part: Part,
    key: ContainerKey,
    _frontend: FileLock,
}

struct World {
    fixture: Fixture,
    driver: Option<Driver>,
    kubelet: Option<Kubelet>,
    random: Xoshiro256PlusPlus,
    made: u32,
    /// In the API, by name.
    api: BTreeMap<u64, Part>,
    /// Prepared, by name.
    prepared: BTreeMap<u64, Part>,
    held: Vec<Held>,
    refused: u32,
}

impl World {
    fn below(&mut self, most: u64) -> u64 {
        self.random.next_u64() % most
    }

    fn name(of: u64) -> String {
        format!("c{of}")
    }

    /// What is taken of a card: by containers, and by prepared claims that none of them has.
    fn taken_mib(&self, card: usize) -> u64 {
        let held = self.held.iter().map(|held| held.part);
        let waiting = self.prepared.values().copied();
        let waiting = waiting.filter(|part| !self.held.iter().any(|held| held.part == *part));
        let parts = held.chain(waiting).filter(|part| part.card == card);
        parts.map(|part| part.mib).sum()
    }

    async fn up(&mut self) {
        let driver = self.fixture.start();
        self.kubelet = Some(self.fixture.kubelet().await);
        self.driver = Some(driver);
        // It gives back what has no claim any more.
        let gone = |world: &Self| -> Vec<u64> {
            let is_gone = |(name, part): &(&u64, &Part)| world.api.get(name) != Some(part);
            world
                .prepared
                .iter()
                .filter(is_gone)
                .map(|(name, _)| *name)
                .collect()
        };
        for name in gone(self) {
            let number = self.prepared[&name].number;
            soon("a claim that is gone", || {
                self.fixture.record(&uid(number)).is_none()
            })
            .await;
            self.prepared.remove(&name);
        }
    }

    /// The scheduler allocates, also what its account of the node's other containers does not fit.
    fn allocate(&mut self) {
        let name = self.below(CLAIMS);
        if self.api.contains_key(&name) {
            return;
        }
        self.made += 1;
        let part = Part {
            card: usize::from(self.below(2) == 1),
            mib: 1 + self.below(12 << 10),
            number: self.made,
        };
        let card = u32::try_from(part.card).unwrap();
        let object = claim(
            part.number,
            &Self::name(name),
            card,
            &format!("{}Mi", part.mib),
        );
        self.fixture.claim(&Self::name(name), object);
        self.api.insert(name, part);
    }

    async fn prepare(&mut self) {
        let name = self.below(CLAIMS);
        let Some(part) = self.api.get(&name).copied() else {
            return;
        };
        let Some(kubelet) = &self.kubelet else {
            return;
        };
        // A kubelet gives back what it has prepared before it prepares another claim of that name.
        if self
            .prepared
            .get(&name)
            .is_some_and(|former| *former != part)
        {
            return;
        }
        // What a container has of it is counted by that one.
        let is_held = self.held.iter().any(|held| held.part == part);
        let fits = self.prepared.contains_key(&name)
            || is_held
            || self.taken_mib(part.card) + part.mib <= CARD_MIB;
        let error = kubelet
            .prepare_one(&Self::name(name), &uid(part.number))
            .await;
        assert_eq!(error.is_empty(), fits, "{part:?}: {error}");
        if fits {
            self.prepared.insert(name, part);
        } else {
            self.refused += 1;
        }
    }

    /// The API server refuses: nothing is prepared, and nothing is lost.
    async fn prepare_blindly(&mut self) {
        let name = self.below(CLAIMS);
        let Some(part) = self.api.get(&name).copied() else {
            return;
        };
        let Some(kubelet) = &self.kubelet else {
            return;
        };
        if self.prepared.contains_key(&name) {
            return;
        }
        let path = claim_path(&Self::name(name));
        self.fixture
            .api
            .fail(Method::GET, &path, Fault::Status(403));
        let error = kubelet
            .prepare_one(&Self::name(name), &uid(part.number))
            .await;
        // A look at a former claim of this name may have met the fault in its place.
        if error.is_empty() {
            self.prepared.insert(name, part);
        }
    }

    async fn unprepare(&mut self) {
        let name = self.below(CLAIMS);
        let Some(kubelet) = &self.kubelet else {
            return;
        };
        // One that was never prepared is fine.
        let number = self
            .prepared
            .get(&name)
            .map_or(u32::MAX, |part| part.number);
        let error = kubelet.unprepare(&Self::name(name), &uid(number)).await;
        assert_eq!(error, "");
        self.prepared.remove(&name);
    }

    /// One that a pod has cannot be deleted while its node is there; while no agent runs, by force.
    fn delete(&mut self) {
        let name = self.below(CLAIMS);
        if self.prepared.contains_key(&name) && self.driver.is_some() {
            return;
        }
        if self.api.remove(&name).is_some() {
            self.fixture.api.remove(&claim_path(&Self::name(name)));
        }
    }

    fn reservations<T>(&self, body: impl FnOnce(&Reservations<'_>) -> T) -> T {
        let state = self.fixture.path("state");
        let lock = StateLock::take(&state).unwrap();
        body(&Reservations::open(&lock, &state, &DiskStore))
    }

    fn cards(&self) -> Vec<cards::Card> {
        Inventory::simulated(&self.fixture.path("state"))
            .unwrap()
            .cards
    }

    /// What a frontend does, as far as reservations see it.
    fn take(&mut self) {
        let name = self.below(CLAIMS);
        let Some(part) = self.prepared.get(&name).copied() else {
            return;
        };
        let is_held = self.held.iter().any(|held| held.part == part);
        let pointer = Pointer {
            claim: ClaimUid::new(uid(part.number)).unwrap(),
            request: "vgpu".to_owned(),
            share: share(part.number),
        };
        let card = GpuUuid::new(uuid(u32::try_from(part.card).unwrap())).unwrap();
        let key = ContainerKey::new("k8s.io", format!("t{}", self.random.next_u32())).unwrap();
        let folder = self.fixture.path("state/vgpus").join(key.relative_dir());
        fs::create_dir_all(&folder).unwrap();
        let Attempt::Taken(frontend) = FileLock::attempt(&folder.join("frontend.lock")).unwrap()
        else {
            panic!("a new folder's lock");
        };
        let grant = Grant {
            version: grant::VERSION,
            key: key.clone(),
            driver: DriverSpec::Kernel,
            driver_version: String::new(),
            layouts: None,
            cards: vec![CardGrant {
                uuid: card.clone(),
                minor: 0,
                quota_bytes: part.mib << 20,
            }],
            compute: cards::ComputeTerms::default(),
            claims: vec![pointer.clone()],
            backend: Backend::Broker,
            backend_reason: String::new(),
            isolation: Isolation::default(),
            frontend: Frontend {
                kind: FrontendKind::Shim,
                pid: 1,
            },
            bundle: None,
            created_at_unix_ms: 0,
        };
        let defaults = Defaults {
            rules: CardRules::default(),
            kind: CardKind::Simulated,
        };
        let cards = self.cards();
        let taken = self.reservations(|reservations| {
            let parts = [(card, part.mib << 20)];
            reservations.candidates_for(&[pointer], &parts, &cards, &defaults)?;
            reservations.add(&grant)
        });
        assert_eq!(taken.is_ok(), !is_held, "{taken:?}");
        if taken.is_ok() {
            self.held.push(Held {
                part,
                key,
                _frontend: frontend,
            });
        } else {
            drop(frontend);
            fs::remove_dir_all(&folder).unwrap();
        }
    }

    /// In order, or by the next reclaim: its frontend was killed.
    fn end(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.below(u64::try_from(self.held.len()).unwrap());
        let held = self.held.swap_remove(usize::try_from(at).unwrap());
        self.reservations(|reservations| reservations.remove(&held.key))
            .unwrap();
        fs::remove_dir_all(
            self.fixture
                .path("state/vgpus")
                .join(held.key.relative_dir()),
        )
        .unwrap();
    }

    fn check(&self, step: &str) {
        let records = Claims::of(&self.fixture.path("state")).all().unwrap();
        let mut numbers: Vec<String> = records
            .iter()
            .map(|record| record.claim.uid.to_string())
            .collect();
        let mut expected: Vec<String> = self
            .prepared
            .values()
            .map(|part| uid(part.number))
            .collect();
        numbers.sort();
        expected.sort();
        assert_eq!(numbers, expected, "after {step}");
        let defaults = Defaults {
            rules: CardRules::default(),
            kind: CardKind::Simulated,
        };
        let cards = self.cards();
        let left = self
            .reservations(|reservations| reservations.candidates(&cards, &defaults))
            .unwrap();
        for (card, candidate) in left.iter().enumerate() {
            let taken = self.taken_mib(card);
            assert!(
                taken <= CARD_MIB,
                "after {step}: card {card} has given {taken} MiB"
            );
            assert_eq!(
                candidate.free_bytes >> 20,
                CARD_MIB - taken,
                "after {step}: card {card}"
            );
        }
    }

    async fn step(&mut self) -> &'static str {
        match self.below(100) {
            0..20 => {
                self.allocate();
                "an allocation"
            }
            20..45 => {
                self.prepare().await;
                "a prepare"
            }
            45..48 => {
                self.prepare_blindly().await;
                "a prepare without an API server"
            }
            48..60 => {
                self.unprepare().await;
                "an unprepare"
            }
            60..68 => {
                self.delete();
                "a deletion"
            }
            68..82 => {
                self.take();
                "a container's start"
            }
            82..95 => {
                self.end();
                "a container's end"
            }
            95..97 => {
                self.kubelet = None;
                let in_order = self.below(2) == 0;
                match self.driver.take() {
                    Some(driver) if in_order => driver.end().await,
                    Some(driver) => driver.kill().await,
                    None => {}
                }
                "the agent's end"
            }
            _ if self.driver.is_none() => {
                self.up().await;
                "the agent's start"
            }
            _ => "nothing",
        }
    }
}

fn from_environment(name: &str, usual: u64) -> u64 {
    let value: Option<Value> = std::env::var(name)
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok());
    value.and_then(|value| value.as_u64()).unwrap_or(usual)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_no_memory_is_given_twice_and_none_is_lost() {
    let steps = from_environment("CGPU_CLAIM_STEPS", 600);
    let seed = from_environment("CGPU_CLAIM_SEED", 20_261_126);
    let mut world = World {
        fixture: Fixture::new().await,
        driver: None,
        kubelet: None,
        random: Xoshiro256PlusPlus::seed_from_u64(seed),
        made: 0,
        api: BTreeMap::new(),
        prepared: BTreeMap::new(),
        held: Vec::new(),
        refused: 0,
    };
    world.up().await;
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for _ in 0..steps {
        let step = world.step().await;
        world.check(step);
        *counts.entry(step).or_default() += 1;
    }
    let mut summary = format!(
        "seed {seed}: {steps} steps, {} claims, {} prepares refused, 0 double grants\n",
        world.made, world.refused
    );
    for (step, count) in &counts {
        summary += &format!("  {step}: {count}\n");
    }
    println!("{summary}");
    if let Some(file) = std::env::var_os("CGPU_CLAIM_SUMMARY") {
        fs::write(file, &summary).unwrap();
    }
    assert!(world.refused > 0, "nothing was ever full");
}
