//! The choice.

use arch::Arch;
use cards::{DriverSpec, Inventory};
use nvabi::Release;
use proptest::prelude::*;
use verdict::filter::{Coverage, FilterSpec};

use super::*;

/// A backend that is offered or not, and does nothing.
#[derive(Debug, Clone, Copy)]
struct Fake {
    kind: Kind,
    strength: Strength,
    offered: bool,
}

impl Backend for Fake {
    fn kind(&self) -> Kind {
        self.kind
    }
    fn strength(&self) -> Strength {
        self.strength
    }
    fn offered(&self, _host: &Host) -> Result<(), WhyNot> {
        if self.offered {
            Ok(())
        } else {
            Err(WhyNot::CgroupV1 {
                root: "/fake".into(),
            })
        }
    }
    fn prepare(&self, _dir: &ContainerDir, _grant: &Grant) -> Result<Option<Starting>, Error> {
        Ok(None)
    }
    fn verify_filter(&self, _dir: &ContainerDir, _grant: &Grant, _init: i32) -> Result<(), Error> {
        Ok(())
    }
    fn resize(&self, _dir: &ContainerDir, _grant: &Grant) -> Result<Vec<Held>, Error> {
        Ok(Vec::new())
    }
    fn teardown(&self, _dir: &ContainerDir) -> Result<(), Error> {
        Ok(())
    }
    fn end(&self, _dir: &ContainerDir, _ending: &Ending<'_>) -> Result<(), Error> {
        Ok(())
    }
}

fn host(driver: DriverSpec, version: &str) -> Host {
    let coverage = match driver {
        DriverSpec::Kernel => Coverage::Production,
        DriverSpec::Sim { .. } => Coverage::Simulated,
    };
    Host {
        driver,
        inventory: Inventory {
            driver_version: version.to_owned(),
            cards: Vec::new(),
        },
        filter: Release::of(version.parse().unwrap())
            .map(|release| FilterSpec {
                release,
                coverage,
                arch: Arch::NATIVE,
            })
            .map_err(Into::into),
        layouts: None,
        uvm: None,
        device_files: nvabi::proc_files::DeviceFiles::default(),
    }
}

fn simulated() -> Host {
    let socket = "/run/cgpu/sim/sim.sock".into();
    host(DriverSpec::Sim { socket }, "570.195.03")
}

fn config(kind: BackendKind, min_strength: Strength) -> Config {
    let mut config = Config::default();
    config.backend.kind = kind;
    config.backend.min_strength = min_strength;
    // No NVML of the host's is asked.
    config.backend.limits_program = Some("/nonexistent/cgpu-limits".into());
    config
}

fn chosen(config: &Config, host: &Host, needed: Needed) -> Result<(Kind, String), String> {
    choose(config, host, needed, Runtime::Own)
        .map(|choice| (choice.backend.kind(), choice.reason))
        .map_err(|error| chain(&error))
}

proptest! {
    #[test]
    fn the_strongest_that_is_offered_is_taken_and_nothing_below_the_least(
        offers in proptest::array::uniform3(any::<bool>()),
        min in prop::sample::select(vec![Strength::None, Strength::Hard, Strength::Exact]),
    ) {
        let all = [
            (Kind::Broker, Strength::Exact),
            (Kind::DriverLimit, Strength::Hard),
            (Kind::Share, Strength::None),
        ];
        let fake: Vec<Fake> = all
            .iter()
            .zip(offers)
            .map(|(&(kind, strength), offered)| Fake { kind, strength, offered })
            .collect();
        let expected = fake.iter().find(|backend| backend.offered && backend.strength >= min);
        let backends = fake.iter().map(|backend| -> Box<dyn Backend> { Box::new(*backend) });
        match (pick(backends.collect(), &simulated(), min, "requested"), expected) {
            (Ok(choice), Some(expected)) => {
                prop_assert_eq!(choice.backend.kind(), expected.kind);
                // Whatever is stronger is named with what it lacks.
                for stronger in fake.iter().filter(|other| other.strength > expected.strength) {
                    let named = format!("{} is not offered", stronger.kind);
                    prop_assert!(choice.reason.contains(&named), "{}", choice.reason);
                }
            }
            (Err(Error::NoBackend { lacks }), None) => {
                for (kind, _) in all {
                    prop_assert!(lacks.contains(kind.name()), "{}", lacks);
                }
            }
            (got, expected) => prop_assert!(false, "{got:?} where {expected:?}"),
        }
    }
}

#[test]
fn simulated_cards_have_a_broker_or_nothing() {
    let host = simulated();
    let auto = config(BackendKind::Auto, Strength::Hard);
    assert_eq!(
        chosen(&auto, &host, Needed::Quota).unwrap(),
        (Kind::Broker, "auto".to_owned())
    );
    for (kind, min) in [
        (BackendKind::DriverLimit, Strength::Hard),
        (BackendKind::Share, Strength::None),
    ] {
        let error = chosen(&config(kind, min), &host, Needed::Quota).unwrap_err();
        assert!(error.contains("the cards are simulated"), "{error}");
        assert!(error.contains(kind.name()), "{error}");
    }
    let shared = config(BackendKind::Auto, Strength::None);
    let error = chosen(&shared, &host, Needed::Sharing).unwrap_err();
    assert!(error.contains("the cards are simulated"), "{error}");
}

#[test]
fn a_driver_that_is_not_known_has_no_broker_and_the_error_reports_what_each_lacks() {
    let host = host(DriverSpec::Kernel, "999.10.01");
    let error = chosen(
        &config(BackendKind::Auto, Strength::Hard),
        &host,
        Needed::Quota,
    )
    .unwrap_err();
    for part in [
        "broker is not offered (driver 999.10.01",
        "driver-limit is not offered (",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let error = chosen(
        &config(BackendKind::Auto, Strength::Exact),
        &host,
        Needed::Quota,
    )
    .unwrap_err();
    assert!(
        error.contains("strength hard, and backend.min_strength is exact"),
        "{error}"
    );
    // Alone, its own reason is told.
    let error = chosen(
        &config(BackendKind::Broker, Strength::Hard),
        &host,
        Needed::Quota,
    )
    .unwrap_err();
    assert!(
        error.starts_with("cannot hold containers to their memory: driver 999.10.01"),
        "{error}"
    );
}

#[test]
fn sharing_is_had_only_where_the_host_allows_it_and_is_requested() {
    let host = host(DriverSpec::Kernel, "570.195.03");
    let allowed = config(BackendKind::Auto, Strength::None);
    let (kind, reason) = chosen(&allowed, &host, Needed::Sharing).unwrap();
    assert_eq!(kind, Kind::Share);
    assert!(reason.contains("policy native without a quota"), "{reason}");
    assert_eq!(
        chosen(&allowed, &host, Needed::Quota).unwrap().0,
        Kind::Broker
    );
    let node = config(BackendKind::Share, Strength::None);
    assert_eq!(
        chosen(&node, &host, Needed::Quota).unwrap(),
        (Kind::Share, "backend.kind is share".to_owned())
    );
    for refusing in [
        config(BackendKind::Auto, Strength::Hard),
        config(BackendKind::Broker, Strength::None),
        config(BackendKind::DriverLimit, Strength::None),
    ] {
        let error = chosen(&refusing, &host, Needed::Sharing).unwrap_err();
        assert!(error.contains("set cgpu.io/memory"), "{error}");
    }
}

#[test]
fn a_container_that_cannot_be_looked_at_is_not_known_to_be_dead() {
    for name in [process::FILE, init::FILE, driver_limit::FILE] {
        let folder = tempfile::tempdir().unwrap();
        let dir = ContainerDir::at(folder.path());
        assert!(!is_live(&dir).unwrap(), "{name}");
        std::fs::write(dir.file(name), "broken").unwrap();
        assert!(!is_live(&dir).unwrap(), "{name}");
        // As with EMFILE or ENOMEM: what is there cannot be read.
        std::fs::remove_file(dir.file(name)).unwrap();
        std::fs::create_dir(dir.file(name)).unwrap();
        is_live(&dir).unwrap_err();
    }
}
