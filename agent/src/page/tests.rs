use view::metrics::{Figures, Reported};
use view::ps::PsCard;
use view::share::Share;

use super::*;

const HOSTILE: &str =
    "</td><script>alert(1)</script><img src=x onerror='x'>\" \u{202e}\u{1b}]0;x\u{7}&";

fn card(name: &str, number: u32) -> CardMetrics {
    CardMetrics {
        uuid: format!("GPU-{number}"),
        minor: number,
        index: number,
        pci: name.to_owned(),
        model: name.to_owned(),
        driver_version: name.to_owned(),
        mode: "shareable",
        unhealthy: Some(name.to_owned()),
        containers: 1,
        memory_bytes: 24 << 30,
        granted_bytes: 6 << 30,
        reserved_ppm: 300_000,
        left_ppm: 700_000,
        figures: Figures {
            temperature_celsius: Some(41),
            ..Figures::default()
        },
    }
}

fn container(name: &str) -> ContainerMetrics {
    ContainerMetrics {
        namespace: name.to_owned(),
        container: name.to_owned(),
        name: name.to_owned(),
        pod: None,
        created_at_unix_ms: 1,
        is_up: Some(false),
        mode: "sim",
        backend: "broker",
        weaknesses: 0,
        frontend: "run",
        driver_version: name.to_owned(),
        own: Default::default(),
        slices: vec![slice(Some(1 << 30))],
        reported: None,
    }
}

fn slice(used_bytes: Option<u64>) -> SliceMetrics {
    SliceMetrics {
        row: PsCard {
            uuid: "GPU-0".to_owned(),
            minor: 0,
            quota_bytes: 2 << 30,
            used_bytes,
            peak_bytes: Some(3 << 29),
            refused: Some(7),
            share: Share {
                policy: Some(HOSTILE.to_owned()),
                entitlement_ppm: Some(300_000),
                used_ppm: Some(150_000),
                throttled_ns: Some(61_500_000_000),
                ..Share::default()
            },
        },
        quota_bytes: Some(2 << 30),
    }
}

fn metrics(containers: Vec<ContainerMetrics>, cards: Vec<CardMetrics>) -> Metrics {
    Metrics {
        exporter: Exporter {
            version: "0.1.0".to_owned(),
            node: HOSTILE.to_owned(),
            starts_refused: vec![("full".to_owned(), 2), ("host".to_owned(), 0)],
            events: vec![("card_lost", 1)],
            ..Exporter::default()
        },
        containers,
        cards,
    }
}

#[test]
fn hostile_names_are_text_everywhere() {
    let metrics = metrics(vec![container(HOSTILE)], vec![card(HOSTILE, 0)]);
    let html = render(&metrics, &vec![("containers", HOSTILE.to_owned())]);
    for markup in [
        "<script",
        "<img",
        "onerror='",
        "\u{202e}",
        "\u{1b}",
        "\u{7}",
    ] {
        assert!(!html.contains(markup), "{markup:?} in {html}");
    }
    // Node in title and heading; model, address and reason; name, namespace and policy; why something is missing.
    assert_eq!(html.matches("&lt;script&gt;").count(), 9, "{html}");
    // What the policy would refuse is not there.
    for refused in [" style=", " onclick", "javascript:", "http:", "https:"] {
        assert!(!html.contains(refused), "{refused}");
    }
}

#[test]
fn a_container_s_figures_are_shown_with_their_bars() {
    let html = render(
        &metrics(vec![container("web")], vec![card("L4", 0)]),
        &Vec::new(),
    );
    for part in [
        "<bdi>web</bdi>",
        "1 GiB of 2 GiB<svg",
        "<rect class=fill width=500 height=8 /><rect class=peak x=750 ",
        "15 % of 30 %",
        "<rect class=under width=300 height=8 /><rect class=fill width=150 ",
        "1 min 1 s",
        ">7</td>",
        "broker does not answer",
        "6 GiB of 24 GiB",
        "41 °C",
        "Starts refused: 2 full. Happened on this host: 1 card lost.",
    ] {
        assert!(html.contains(part), "{part} is not in {html}");
    }
}

#[test]
fn what_is_not_known_is_a_dash_and_no_figure() {
    let mut one = container("web");
    one.slices = vec![SliceMetrics {
        row: PsCard {
            peak_bytes: None,
            refused: None,
            share: Share::default(),
            ..slice(None).row
        },
        quota_bytes: None,
    }];
    let html = render(&metrics(vec![one], Vec::new()), &Vec::new());
    assert!(
        html.contains("– of –<svg") && !html.contains("<rect") && !html.contains("– of – <"),
        "{html}"
    );
    let empty = render(&Metrics::default(), &Vec::new());
    assert!(empty.contains("None has a part of a GPU."), "{empty}");
}

#[test]
fn the_page_has_a_largest_size_whatever_there_is() {
    let long = "<".repeat(10_000);
    let containers = (0..2_000).map(|_| container(&long)).collect();
    let cards = (0..200).map(|number| card(&long, number)).collect();
    let html = render(&metrics(containers, cards), &Vec::new());
    assert!(html.contains("And 1600 more.") && html.contains("And 136 more."));
    assert!(html.len() < 2 << 20, "{}", html.len());
    // As a host may have it.
    let containers = (0..150).map(|_| container("training-job-17")).collect();
    let html = render(&metrics(containers, vec![card("L4", 0)]), &Vec::new());
    assert!(html.len() < 256 << 10, "{}", html.len());
}

#[test]
fn sizes_and_times_are_short() {
    for (bytes, text) in [
        (0, "0 MiB"),
        (64 << 20, "64 MiB"),
        (1 << 30, "1 GiB"),
        ((1 << 30) + 1, "1.1 GiB"),
        (3 << 29, "1.5 GiB"),
        (24 << 30, "24 GiB"),
    ] {
        assert_eq!(size(bytes), text);
    }
    assert!(size(u64::MAX).ends_with(" GiB"));
    for (ms, text) in [
        (1_250, "1.2 s"),
        (61_000, "1 min 1 s"),
        (7_260_000, "2 h 1 min"),
    ] {
        assert_eq!(seconds(ms), text);
    }
    assert_eq!(part(Some(u64::MAX), 1), Some(1000));
    assert_eq!((part(Some(1), 0), part(None, 1)), (None, None));
}

#[test]
fn what_goes_wrong_is_reported_as_by_ps() {
    let with = |health_text: &str| ContainerMetrics {
        is_up: Some(true),
        reported: Some(Reported {
            health_text: health_text.to_owned(),
            ..Reported::default()
        }),
        ..container("one")
    };
    assert_eq!(state(&with("ok")), "<span class=good>ok</span>");
    let bad = state(&with(&format!("no supervisor, {HOSTILE}")));
    assert!(bad.starts_with("<span class=bad>no supervisor, "), "{bad}");
    assert!(!bad.contains("<script"), "{bad}");
}
