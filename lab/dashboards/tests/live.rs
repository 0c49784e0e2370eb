//! Every panel and every rule on a real Prometheus that scrapes a real agent. With `CGPU_SCREENSHOTS` in the environment, what
//! `pictures/draw` needs is left in the folder of that name.

mod host;
#[path = "live/pictures.rs"]
mod pictures;
mod prometheus;
#[path = "live/scrape.rs"]
mod scrape;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use dashboards::{expression, files};
use host::{Host, get};
use integration::programs::Programs;
use integration::skip;
use scrape::{Scrape, encoded};
use serde_json::Value;
use view::metrics::text::{Dialect, TextForm, render};
use view::metrics::{CardMetrics, Exporter, Figures, Metrics};

/// From the first scrape on. A rate needs two scrapes, and a share some seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// What simulated cards do not have.
const BY_NVML: [&str; 6] = [
    "cgpu_card_clock_hertz",
    "cgpu_card_memory_used_bytes",
    "cgpu_card_memory_utilization_ratio",
    "cgpu_card_power_watts",
    "cgpu_card_temperature_celsius",
    "cgpu_card_utilization_ratio",
];

/// A host with one real card and no container, as the agent renders it.
fn real_card() -> Result<String> {
    let card = CardMetrics {
        uuid: "GPU-real".to_owned(),
        minor: 0,
        index: 0,
        pci: "00000000:01:00.0".to_owned(),
        model: "NVIDIA L4".to_owned(),
        driver_version: "570.195.03".to_owned(),
        mode: "shareable",
        unhealthy: None,
        containers: 0,
        memory_bytes: 24 << 30,
        granted_bytes: 0,
        reserved_ppm: 0,
        left_ppm: 1_000_000,
        figures: Figures {
            temperature_celsius: Some(41),
            power_milliwatts: Some(72_500),
            utilization_percent: Some(55),
            memory_utilization_percent: Some(12),
            sm_clock_mhz: Some(2040),
            memory_clock_mhz: Some(10_501),
            memory_used_bytes: Some(1 << 30),
            memory_free_bytes: Some(23 << 30),
        },
    };
    let metrics = Metrics {
        exporter: Exporter {
            version: "0.1.0".to_owned(),
            ..Exporter::default()
        },
        containers: Vec::new(),
        cards: vec![card],
    };
    render(&metrics, TextForm::Prometheus, &[Dialect::Cgpu])
}

/// Serves a text on loopback until the process ends, and returns where.
fn serve(text: String) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 4096];
            let request = stream.read(&mut head);
            let answer =
                format!("HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n{text}");
            // Prometheus comes again.
            drop(request.and_then(|_| stream.write_all(answer.as_bytes())));
        }
    });
    Ok(address)
}

/// One expression of a panel or a variable, and where it is.
struct Question {
    place: String,
    path: String,
}

/// What readers choose: everything, or one of each.
fn filled(expression: &str, chosen: &[(&str, &str)]) -> String {
    let mut text = expression.replace("$__rate_interval", "20s");
    for (name, value) in chosen {
        text = text.replace(&format!("\"${name}\""), &format!("\"{value}\""));
    }
    text
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

fn questions(chosen: &[(&str, &str)], is_served: &dyn Fn(&str) -> bool) -> Result<Vec<Question>> {
    let mut all = Vec::new();
    for (name, text) in files()? {
        let dashboard: Value = serde_json::from_str(&text)?;
        for panel in list(&dashboard, "panels") {
            for target in list(panel, "targets") {
                let text = target["expr"].as_str().context("an expression")?;
                if !expression::metrics(text)
                    .iter()
                    .all(|metric| is_served(metric))
                {
                    continue;
                }
                let text = filled(text, chosen);
                ensure!(!text.contains('$'), "{text}: a variable without a value");
                all.push(Question {
                    place: format!("{name}, {}: {text}", panel["title"]),
                    path: format!("/api/v1/query?query={}", encoded(&text)),
                });
            }
        }
        for variable in list(&dashboard["templating"], "list") {
            let Some(text) = variable["definition"].as_str() else {
                continue;
            };
            let text = filled(text, chosen);
            let (series, label) = text
                .strip_prefix("label_values(")
                .and_then(|text| text.strip_suffix(')')?.rsplit_once(", "))
                .context("a list of values")?;
            all.push(Question {
                place: format!("{name}, variable {}: {text}", variable["name"]),
                path: format!("/api/v1/label/{label}/values?match[]={}", encoded(series)),
            });
        }
    }
    Ok(all)
}

/// Asks until every question has an answer with something in it.
fn answered(scrape: &Scrape, mut left: Vec<Question>, until: Instant) -> Result<()> {
    loop {
        let mut empty = Vec::new();
        for question in left {
            let data = scrape.api(&question.path).context(question.place.clone())?;
            let result = data.as_array().or_else(|| data["result"].as_array());
            let is_number = |value: &Value| value.as_str().is_some_and(|text| text != "NaN");
            let has_any = result.context("a list")?.iter().any(|one| match one {
                // A label's value; or a sample: the moment and the value.
                Value::String(text) => !text.is_empty(),
                sample => is_number(&sample["value"][1]),
            });
            if !has_any {
                empty.push(question);
            }
        }
        if empty.is_empty() {
            return Ok(());
        }
        if Instant::now() > until {
            let places: Vec<&str> = empty.iter().map(|one| one.place.as_str()).collect();
            bail!("empty:\n{}\n{}", places.join("\n"), scrape.tail());
        }
        left = empty;
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// The alerts that fire now; a rule that cannot be evaluated is an error.
fn firing(scrape: &Scrape) -> Result<BTreeSet<String>> {
    let data = scrape.api("/api/v1/rules")?;
    let mut names = BTreeSet::new();
    for group in list(&data, "groups") {
        for rule in list(group, "rules") {
            ensure!(
                matches!(rule["health"].as_str(), Some("ok" | "unknown")),
                "{rule}"
            );
            if rule["state"] == "firing" {
                names.extend(rule["name"].as_str().map(str::to_owned));
            }
        }
    }
    Ok(names)
}

fn promtool(text: &str) -> Result<()> {
    let mut command = Command::new(prometheus::program("promtool")?);
    let mut promtool = command
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut input = promtool.stdin.take().context("its input")?;
    input.write_all(text.as_bytes())?;
    drop(input);
    let output = promtool.wait_with_output()?;
    let reply = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        output.status.success() && reply.is_empty(),
        "{reply}\n{text}"
    );
    Ok(())
}

#[test]
fn no_panel_is_empty_and_alerts_fire_where_a_real_agent_is_scraped() -> Result<()> {
    const TEST: &str = "no_panel_is_empty_and_alerts_fire_where_a_real_agent_is_scraped";
    if let Some(reason) = skip::lacks_root() {
        skip!(TEST, "{reason}");
    }
    if let Err(absent) = prometheus::program("prometheus") {
        skip!(TEST, "no prometheus (package prometheus): {absent:#}");
    }
    let real = serve(real_card()?)?;
    let host = Host::start(Programs::for_tests()?)?;
    let scrape = Scrape::start(&host, &real)?;
    let metrics = get(&host.agent_address, "/metrics")?;
    let own: String = metrics
        .split_inclusive('\n')
        .filter(|line| line.contains("cgpu_"))
        .collect();
    promtool(&own)?;
    let has_own_groups = metrics.contains("\ncgpu_process_cpu_seconds_total{");
    if !has_own_groups {
        skip::record(
            TEST,
            "no control group counts what brokers use: two panels are not tried",
        );
    }
    let is_served = |metric: &str| has_own_groups || !metric.starts_with("cgpu_process_");
    let everything = ["instance", "card", "namespace", "pod", "name"].map(|name| (name, ".*"));
    if let Some(folder) = std::env::var_os("CGPU_SCREENSHOTS") {
        pictures::leave(&scrape, &everything, folder.as_ref())?;
    }
    let until = Instant::now() + PATIENCE;
    answered(&scrape, questions(&everything, &is_served)?, until)?;
    let cards = host.document("cards")?;
    let card = cards["cards"][0]["uuid"].as_str().context("a card")?;
    let one = [
        ("instance", host.agent_address.as_str()),
        ("card", card),
        ("namespace", "team-a"),
        ("pod", "train-0"),
        ("name", ".*"),
    ];
    let is_simulated = |metric: &str| is_served(metric) && !BY_NVML.contains(&metric);
    answered(&scrape, questions(&one, &is_simulated)?, until)?;
    for ratio in ["cgpu:pod_memory_used:ratio", "cgpu:pod_compute_used:ratio"] {
        let question = Question {
            place: ratio.to_owned(),
            path: format!("/api/v1/query?query={}", encoded(ratio)),
        };
        answered(&scrape, vec![question], until)?;
    }
    // What happens now is more than at the scrape before.
    host.xid()?;
    let expected = ["CgpuAllocationsRefused", "CgpuXid"].map(str::to_owned);
    let mut seen = firing(&scrape)?;
    while !expected.iter().all(|name| seen.contains(name)) {
        ensure!(
            Instant::now() < until,
            "only {seen:?} fire\n{}\n{}",
            get(&host.agent_address, "/metrics")?,
            host.tail()
        );
        std::thread::sleep(Duration::from_millis(500));
        seen = firing(&scrape)?;
    }
    // Nothing else is wrong. On a machine whose processors are busy with other tests, a share may be held late.
    seen.retain(|name| !expected.contains(name) && name != "CgpuShareNotHeld");
    ensure!(seen.is_empty(), "{seen:?} fire");
    Ok(())
}
