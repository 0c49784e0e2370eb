//! The page for people: cards and containers of one moment as one HTML document.
//!
//! Without scripts: the browser is asked to load it again. Whatever others have named is escaped, and everything is bounded.

mod escape;

use std::fmt::Write;

use view::metrics::{CardMetrics, ContainerMetrics, Exporter, Metrics, SliceMetrics};
use view::ps::OK;
use view::share::percent_of;
use view::size::human;

use self::escape::escaped;

/// The page's only source beside itself: nothing in it is executed, and nobody puts it into a frame.
pub(crate) const POLICY: &str = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// `/style.css`
pub(crate) const STYLE: &str = include_str!("page/style.css");
/// How often a browser loads the page, seconds.
pub(crate) const REFRESH: &str = "3";

/// Slices that are listed: more than a host with 8 cards and the most containers on each has.
const ROWS_MAX: usize = 400;
/// Cards that are shown.
const CARDS_MAX: usize = 64;

/// What could not be found out, for the page's head.
pub(crate) type Missing = Vec<(&'static str, String)>;

/// The document.
pub(crate) fn render(metrics: &Metrics, missing: &Missing) -> String {
    let mut html = String::with_capacity(16 << 10);
    head(&mut html, &metrics.exporter);
    for (what, why) in missing {
        push(
            &mut html,
            format_args!(
                "<p class=trouble>No figures of {what}: {}</p>\n",
                escaped(why)
            ),
        );
    }
    gpus(&mut html, metrics);
    containers(&mut html, metrics);
    foot(&mut html, &metrics.exporter);
    html
}

/// A string takes everything.
fn push(html: &mut String, text: std::fmt::Arguments<'_>) {
    html.write_fmt(text).unwrap_or_default();
}

fn head(html: &mut String, exporter: &Exporter) {
    let node = escaped(&exporter.node);
    let at = view::moment(cards::events::now_unix_ms());
    let (day, time) = at.split_once('T').unwrap_or((&at, ""));
    let second = time.split('.').next().unwrap_or_default();
    push(
        html,
        format_args!(
            "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n\
             <meta name=viewport content=\"width=device-width, initial-scale=1\">\n\
             <title>cgpu on {node}</title>\n<link rel=stylesheet href=style.css>\n</head>\n<body>\n\
             <header><h1>cgpu on <bdi>{node}</bdi></h1><p>{day} {second} UTC</p>\
             <p class=end><a href=\"?\">live</a> · <a href=\"?pause\">pause</a></p></header>\n<main>\n"
        ),
    );
}

/// What containers use of a card together; `None`: nobody has reported anything.
fn used(metrics: &Metrics, uuid: &str, figure: fn(&SliceMetrics) -> Option<u64>) -> Option<u64> {
    let slices = metrics.containers.iter().flat_map(|one| &one.slices);
    let of_card = slices.filter(|slice| slice.row.uuid == uuid);
    of_card
        .filter_map(figure)
        .reduce(|sum, one| sum.saturating_add(one))
}

fn gpus(html: &mut String, metrics: &Metrics) {
    html.push_str("<h2>GPUs</h2>\n");
    if metrics.cards.is_empty() {
        html.push_str("<p>None.</p>\n");
        return;
    }
    html.push_str("<div class=gpus>\n");
    for card in metrics.cards.iter().take(CARDS_MAX) {
        gpu(html, card, metrics);
    }
    html.push_str("</div>\n");
    omitted(html, metrics.cards.len(), CARDS_MAX);
}

fn gpu(html: &mut String, card: &CardMetrics, metrics: &Metrics) {
    let memory = used(metrics, &card.uuid, |slice| slice.row.used_bytes);
    let time = used(metrics, &card.uuid, |slice| slice.row.share.used_ppm);
    let health = match (&card.unhealthy, card.mode) {
        (Some(why), _) => format!(
            "<span class=bad>unhealthy</span></h3><div class=bad>{}</div>",
            escaped(why)
        ),
        (None, "shareable") => "<span class=good>healthy</span></h3>".to_owned(),
        (None, _) => "<span class=bad>cannot be shared</span></h3>".to_owned(),
    };
    push(
        html,
        format_args!(
            "<div class=gpu><h3><span>GPU {} <bdi>{}</bdi></span>{health}\n<div class=small>{} · {}</div>\n\
             <dl><dt>Memory used</dt><dd>{}</dd><dt>Granted</dt><dd>{} of {}</dd><dd class=bar>{}</dd>\
             <dt>Time used</dt><dd>{}</dd><dt>Reserved</dt><dd>{}</dd><dd class=bar>{}</dd>\
             <dt>Containers</dt><dd>{}</dd></dl>{}</div>\n",
            card.minor,
            escaped(&card.model),
            escaped(&card.uuid),
            escaped(&card.pci),
            memory.map_or_else(dash, size),
            size(card.granted_bytes),
            size(card.memory_bytes),
            bar(
                part(memory, card.memory_bytes),
                part(Some(card.granted_bytes), card.memory_bytes),
                None
            ),
            time.map_or_else(dash, percent_of),
            percent_of(card.reserved_ppm.into()),
            bar(
                part(time, MILLION),
                part(Some(card.reserved_ppm.into()), MILLION),
                None
            ),
            card.containers,
            hardware(card),
        ),
    );
}

/// What NVML reports of a real card.
fn hardware(card: &CardMetrics) -> String {
    let figures = &card.figures;
    let watts = figures.power_milliwatts.map(|milliwatts| milliwatts / 1000);
    let known = [
        figures
            .temperature_celsius
            .map(|celsius| format!("{celsius} °C")),
        watts.map(|watts| format!("{watts} W")),
        figures
            .utilization_percent
            .map(|percent| format!("{percent} % busy")),
        figures.sm_clock_mhz.map(|mhz| format!("{mhz} MHz")),
    ];
    let known: Vec<String> = known.into_iter().flatten().collect();
    match known.is_empty() {
        true => String::new(),
        false => format!("<div class=small>{}</div>", known.join(" · ")),
    }
}

fn containers(html: &mut String, metrics: &Metrics) {
    html.push_str("<h2>Containers</h2>\n");
    let slices = || {
        let all = metrics.containers.iter();
        all.flat_map(|one| one.slices.iter().map(move |slice| (one, slice)))
    };
    if slices().next().is_none() {
        html.push_str("<p>None has a part of a GPU.</p>\n");
        return;
    }
    html.push_str(
        "<table><thead><tr><th>Container</th><th>GPU</th><th>Memory: used of quota</th><th>Time: had of entitled</th>\
         <th class=number>Throttled</th><th class=number>Refused</th><th>State</th></tr></thead><tbody>\n",
    );
    for (one, slice) in slices().take(ROWS_MAX) {
        container(html, one, slice);
    }
    html.push_str("</tbody></table>\n");
    omitted(html, slices().count(), ROWS_MAX);
}

fn omitted(html: &mut String, there: usize, shown: usize) {
    if let Some(more) = there.checked_sub(shown).filter(|more| *more > 0) {
        push(html, format_args!("<p>And {more} more.</p>\n"));
    }
}

fn container(html: &mut String, one: &ContainerMetrics, slice: &SliceMetrics) {
    let (name, place) = match &one.pod {
        Some(pod) => (
            format!("{}/{}", pod.name, pod.container),
            pod.namespace.to_string(),
        ),
        None => (one.name.clone(), one.namespace.clone()),
    };
    let throttled = slice
        .row
        .share
        .throttled_ns
        .map(|ns| seconds(ns / 1_000_000));
    let refused = slice.row.refused;
    push(
        html,
        format_args!(
            "<tr><td class=name><strong><bdi>{}</bdi></strong> <span class=small><bdi>{}</bdi></span></td>\
             <td data-label=GPU>{}</td><td class=meter data-label=Memory>{}</td><td class=meter data-label=Time>{}</td>\
             <td class=number data-label=Throttled>{}</td><td class=\"number{}\" data-label=Refused>{}</td><td class=state>{}</td></tr>\n",
            escaped(&name),
            escaped(&place),
            slice.row.minor,
            memory(slice),
            time(slice),
            throttled.unwrap_or_else(dash),
            if refused.unwrap_or(0) > 0 { " bad" } else { "" },
            refused.map_or_else(dash, |count| count.to_string()),
            state(one),
        ),
    );
}

/// Used of the quota, and where the most was.
fn memory(slice: &SliceMetrics) -> String {
    let (used, quota) = (slice.row.used_bytes, slice.quota_bytes);
    let text = format!(
        "{} of {}",
        used.map_or_else(dash, size),
        quota.map_or_else(dash, |quota| match quota {
            // Backend `share`.
            0 => "the whole GPU".to_owned(),
            quota => size(quota),
        })
    );
    let quota = quota.unwrap_or(0);
    let peak = part(slice.row.peak_bytes, quota);
    format!("{text}{}", bar(part(used, quota), None, peak))
}

/// Had and entitled, both as parts of the card.
fn time(slice: &SliceMetrics) -> String {
    let share = &slice.row.share;
    let terms = escaped(&share.text());
    if share.used_ppm.or(share.entitlement_ppm).is_none() {
        return format!("<span class=small>{terms}</span>");
    }
    let text = format!(
        "{} of {} <span class=small>{}</span>",
        share.used_ppm.map_or_else(dash, percent_of),
        share.entitlement_ppm.map_or_else(dash, percent_of),
        terms
    );
    let (had, entitled) = (
        part(share.used_ppm, MILLION),
        part(share.entitlement_ppm, MILLION),
    );
    format!("{text}{}", bar(had, entitled, None))
}

fn state(one: &ContainerMetrics) -> String {
    let mut bad = Vec::new();
    if one.is_up == Some(false) {
        bad.push("broker does not answer".to_owned());
    }
    let health = one.reported.as_ref().map(|reported| &reported.health_text);
    bad.extend(health.filter(|text| *text != OK).map(|text| escaped(text)));
    if one.weaknesses > 0 || one.backend == "share" {
        bad.push("not isolated".to_owned());
    }
    match bad.is_empty() {
        true => "<span class=good>ok</span>".to_owned(),
        false => format!("<span class=bad>{}</span>", bad.join(", ")),
    }
}

fn foot(html: &mut String, exporter: &Exporter) {
    let some = |counts: Vec<String>| match counts.is_empty() {
        true => "none".to_owned(),
        false => counts.join(", "),
    };
    let refused = exporter
        .starts_refused
        .iter()
        .filter(|(_, count)| *count > 0);
    let refused = refused.map(|(reason, count)| format!("{count} {}", escaped(reason)));
    let events = exporter.events.iter().filter(|(_, count)| *count > 0);
    let events = events.map(|(kind, count)| format!("{count} {}", kind.replace('_', " ")));
    push(
        html,
        format_args!(
            "</main>\n<footer><p>Starts refused: {}. Happened on this host: {}.</p>\
             <p>cgpu-agent {} · <a href=metrics>metrics</a></p></footer>\n</body>\n</html>\n",
            some(refused.collect()),
            some(events.collect()),
            escaped(&exporter.version),
        ),
    );
}

const MILLION: u64 = 1_000_000;

/// A part in thousandths, 1000 at most; `None` of nothing.
fn part(of: Option<u64>, whole: u64) -> Option<u64> {
    let thousandths = u128::from(of?) * 1000 / u128::from((whole > 0).then_some(whole)?);
    Some(u64::try_from(thousandths).unwrap_or(1000).min(1000))
}

/// A bar of thousandths: what is used over what is granted, and a thin line at the most there was. It says nothing that the text
/// beside it does not say.
fn bar(used: Option<u64>, granted: Option<u64>, peak: Option<u64>) -> String {
    let filled = |part: Option<u64>, class: &str| {
        let drawn = part.filter(|part| *part > 0);
        drawn.map_or_else(String::new, |width| {
            format!("<rect class={class} width={width} height=8 />")
        })
    };
    let peak = peak
        .filter(|peak| *peak > 0)
        .map_or_else(String::new, |at| {
            format!("<rect class=peak x={} width=4 height=8 />", at.min(996))
        });
    let class = if used >= Some(980) && granted.is_none() {
        "over"
    } else {
        "fill"
    };
    format!(
        "<svg viewBox=\"0 0 1000 8\" preserveAspectRatio=none aria-hidden=true>{}{}{peak}</svg>",
        filled(granted, "under"),
        filled(used, class),
    )
}

fn dash() -> String {
    "–".to_owned()
}

/// As tables have it, but large ones in GiB: `1.5 GiB`.
fn size(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    if bytes < GIB {
        return human(bytes);
    }
    let tenths = (u128::from(bytes) * 10).div_ceil(u128::from(GIB));
    match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole} GiB"),
        (whole, tenth) => format!("{whole}.{tenth} GiB"),
    }
}

fn seconds(ms: u64) -> String {
    match ms {
        0..60_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        60_000..3_600_000 => format!("{} min {} s", ms / 60_000, ms / 1000 % 60),
        _ => format!("{} h {} min", ms / 3_600_000, ms / 60_000 % 60),
    }
}

#[cfg(test)]
mod tests;
