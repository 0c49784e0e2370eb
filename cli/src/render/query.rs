//! `cgpu smi --query-gpu` and `--query-compute-apps`: fields by the names that nvidia-smi gives them, as comma-separated values.
//!
//! A field that a value may break out of is quoted (RFC 4180), which nvidia-smi does not do: a process chooses its name.

mod documented;

use std::str::FromStr;

use view::moment;
use view::smi::{Smi, SmiCard, SmiProcess};

use super::columns::Cell;

/// What is asked of a line.
struct Row<'a> {
    smi: &'a Smi,
    card: &'a SmiCard,
    process: Option<&'a SmiProcess>,
    at_unix_ms: u64,
}

/// One column.
struct Field {
    /// The first is its heading.
    names: &'static [&'static str],
    /// Empty where it has none.
    unit: &'static str,
    /// `None`: not known here.
    value: fn(&Row<'_>) -> Option<String>,
}

const fn field(
    names: &'static [&'static str],
    unit: &'static str,
    value: fn(&Row<'_>) -> Option<String>,
) -> Field {
    Field { names, unit, value }
}

const GPU_FIELDS: [Field; 11] = [
    field(&["timestamp"], "", |row| Some(moment(row.at_unix_ms))),
    field(&["driver_version"], "", |row| {
        Some(row.smi.driver_version.clone())
    }),
    field(&["count"], "", |row| Some(row.smi.cards.len().to_string())),
    field(&["index"], "", |row| Some(row.card.index.to_string())),
    field(&["name", "gpu_name"], "", |row| Some(row.card.name.clone())),
    field(&["uuid", "gpu_uuid"], "", |row| Some(row.card.uuid.clone())),
    field(&["pci.bus_id", "gpu_bus_id"], "", |row| {
        Some(row.card.bus_id.clone())
    }),
    field(&["memory.total"], "MiB", |row| {
        Some(whole_mib(row.card.memory_total_bytes))
    }),
    field(&["memory.used"], "MiB", |row| {
        Some(begun_mib(row.card.memory_used_bytes))
    }),
    field(&["memory.free"], "MiB", |row| {
        Some(whole_mib(row.card.memory_free_bytes))
    }),
    field(&["utilization.gpu"], "%", |row| {
        Some(row.card.utilization_percent?.to_string())
    }),
];

const APP_FIELDS: [Field; 7] = [
    field(&["timestamp"], "", |row| Some(moment(row.at_unix_ms))),
    field(&["gpu_name"], "", |row| Some(row.card.name.clone())),
    field(&["gpu_bus_id"], "", |row| Some(row.card.bus_id.clone())),
    field(&["gpu_uuid"], "", |row| Some(row.card.uuid.clone())),
    field(&["pid"], "", |row| Some(row.process?.pid.to_string())),
    field(&["process_name", "name"], "", |row| {
        row.process?.name.clone()
    }),
    field(&["used_gpu_memory", "used_memory"], "MiB", |row| {
        row.process?.used_bytes.map(begun_mib)
    }),
];

/// Total and free never promise more than there is.
fn whole_mib(bytes: u64) -> String {
    (bytes >> 20).to_string()
}

fn begun_mib(bytes: u64) -> String {
    bytes.div_ceil(1 << 20).to_string()
}

/// A column of a query.
#[derive(Debug, Clone)]
struct Column {
    heading: String,
    unit: &'static str,
    /// `None`: nvidia-smi has such a field, and a slice has not.
    value: Option<fn(&Row<'_>) -> Option<String>>,
}

/// Fields of cards.
#[derive(Debug, Clone)]
pub struct GpuFields(Vec<Column>);

/// Fields of processes.
#[derive(Debug, Clone)]
pub struct AppFields(Vec<Column>);

impl FromStr for GpuFields {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        columns(text, &GPU_FIELDS, documented::unit_of).map(Self)
    }
}

impl FromStr for AppFields {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let unit_of = |name: &str| (name == documented::APPS).then_some("");
        columns(text, &APP_FIELDS, unit_of).map(Self)
    }
}

/// `documented`: the unit of a field that nvidia-smi has beside these.
fn columns(
    text: &str,
    all: &'static [Field],
    documented: impl Fn(&str) -> Option<&'static str>,
) -> Result<Vec<Column>, String> {
    let column = |name: &str| {
        let known = all.iter().find(|field| field.names.contains(&name));
        let known = known.map(|field| (field.unit, Some(field.value)));
        let found = known.or_else(|| Some((documented(name)?, None)));
        let (unit, value) = found.ok_or_else(|| {
            let names: Vec<&str> = all.iter().flat_map(|field| field.names).copied().collect();
            format!(
                "there is no field {name:?}; fields are {}; all others of nvidia-smi are [N/A]",
                names.join(", ")
            )
        })?;
        Ok(Column {
            heading: name.to_owned(),
            unit,
            value,
        })
    };
    text.split(',').map(|name| column(name.trim())).collect()
}

/// `csv`, and what is left out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Csv {
    /// Whether the first line has the fields' names.
    pub has_header: bool,
    has_units: bool,
}

impl FromStr for Csv {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (mut csv, mut is_csv) = (
            Self {
                has_header: true,
                has_units: true,
            },
            false,
        );
        for word in text.split(',') {
            match word.trim() {
                "csv" => is_csv = true,
                "noheader" => csv.has_header = false,
                "nounits" => csv.has_units = false,
                _ => is_csv = false,
            }
            if !is_csv {
                break;
            }
        }
        is_csv
            .then_some(csv)
            .ok_or_else(|| "it is csv, and behind it ,noheader and ,nounits".to_owned())
    }
}

/// A line a card.
#[must_use]
pub fn of_cards(smi: &Smi, fields: &GpuFields, csv: Csv, at_unix_ms: u64) -> String {
    let rows = smi.cards.iter().map(|card| Row {
        smi,
        card,
        process: None,
        at_unix_ms,
    });
    lines(rows, &fields.0, csv)
}

/// A line a process and card.
#[must_use]
pub fn of_processes(smi: &Smi, fields: &AppFields, csv: Csv, at_unix_ms: u64) -> String {
    let rows = smi.cards.iter().flat_map(|card| {
        card.processes.iter().map(move |process| Row {
            smi,
            card,
            process: Some(process),
            at_unix_ms,
        })
    });
    lines(rows, &fields.0, csv)
}

fn lines<'a>(rows: impl Iterator<Item = Row<'a>>, columns: &[Column], csv: Csv) -> String {
    let header = || {
        let headings = columns.iter().map(|column| match column.unit {
            "" => column.heading.clone(),
            unit => format!("{} [{unit}]", column.heading),
        });
        headings.collect::<Vec<_>>().join(", ")
    };
    let line = |row: Row<'a>| {
        let values = columns.iter().map(|column| {
            let value = column.value.and_then(|value| value(&row));
            match (value, column.unit) {
                (None, _) => "[N/A]".to_owned(),
                (Some(value), unit) if csv.has_units && !unit.is_empty() => {
                    format!("{value} {unit}")
                }
                (Some(value), _) => quoted(&value),
            }
        });
        values.collect::<Vec<_>>().join(", ")
    };
    let header = csv.has_header.then(header);
    let all: Vec<String> = header.into_iter().chain(rows.map(line)).collect();
    all.join("\n")
}

fn quoted(value: &str) -> String {
    let value = Cell::from(value).into_text();
    if value.contains([',', '"']) {
        format!("\"{}\"", value.replace('"', "\"\""))
    } else {
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn smi() -> Smi {
        let text = include_str!("../../../view/tests/snapshots/smi.json");
        serde_json::from_str(text).unwrap()
    }

    fn csv(text: &str) -> Csv {
        text.parse().unwrap()
    }

    #[test]
    fn cards_are_listed_as_nvidia_smi_does() {
        let every = "index, uuid,name,memory.total,memory.used,memory.free,utilization.gpu,driver_version,pci.bus_id,count,timestamp";
        let fields: GpuFields = every.parse().unwrap();
        assert_eq!(
            of_cards(&smi(), &fields, csv("csv"), 0),
            "index, uuid, name, memory.total [MiB], memory.used [MiB], memory.free [MiB], utilization.gpu [%], driver_version, pci.bus_id, count, timestamp\n\
             0, GPU-00010203-0405-0607-0809-0a0b0c0d0e0f, Simulated RTX 4090, 4096 MiB, 64 MiB, 4032 MiB, [N/A], 570.195.03, 00000000:01:00.0, 1, 1970-01-01T00:00:00.000Z"
        );
        let fields: GpuFields = "gpu_name,memory.total".parse().unwrap();
        let bare = of_cards(&smi(), &fields, csv("csv,noheader,nounits"), 0);
        assert_eq!(bare, "Simulated RTX 4090, 4096");
        let mut busy = smi();
        busy.cards[0].utilization_percent = Some(37);
        let fields: GpuFields = "utilization.gpu".parse().unwrap();
        assert_eq!(of_cards(&busy, &fields, csv("csv,noheader"), 0), "37 %");
    }

    #[test]
    fn processes_are_listed_and_their_names_stay_in_their_field() {
        let mut smi = smi();
        let fields: AppFields = "pid,process_name,used_memory,gpu_uuid".parse().unwrap();
        let bare = |smi: &Smi| of_processes(smi, &fields, csv("csv,noheader"), 0);
        let uuid = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f";
        assert_eq!(bare(&smi), format!("42, [N/A], 64 MiB, {uuid}"));
        smi.cards[0].processes[0].name = Some("a\n\u{1b}[2J\", 1 MiB".to_owned());
        assert_eq!(
            bare(&smi),
            format!("42, \"a  [2J\"\", 1 MiB\", 64 MiB, {uuid}")
        );
        smi.cards[0].processes.clear();
        assert_eq!(bare(&smi), "");
    }

    #[test]
    fn what_a_slice_does_not_have_of_nvidia_smi_is_not_available() {
        let fields: GpuFields = "index,compute_cap,utilization.memory,temperature.gpu"
            .parse()
            .unwrap();
        assert_eq!(
            of_cards(&smi(), &fields, csv("csv"), 0),
            "index, compute_cap, utilization.memory [%], temperature.gpu\n0, [N/A], [N/A], [N/A]"
        );
        let fields: AppFields = "pid,gpu_serial".parse().unwrap();
        assert_eq!(
            of_processes(&smi(), &fields, csv("csv,noheader"), 0),
            "42, [N/A]"
        );
        "temperature.gpu".parse::<AppFields>().unwrap_err();
    }

    #[test]
    fn an_unknown_field_is_answered_with_those_that_there_are() {
        let error = "index,power.drawn".parse::<GpuFields>().unwrap_err();
        assert!(
            error.contains("no field \"power.drawn\"; fields are timestamp, driver_version"),
            "{error}"
        );
        let error = "".parse::<AppFields>().unwrap_err();
        assert!(error.contains("used_memory"), "{error}");
        for text in ["", "xml", "csv,header", "noheader", "csv,"] {
            text.parse::<Csv>().unwrap_err();
        }
    }
}
