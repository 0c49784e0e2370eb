//! What an experiment hands over: rows of measured against promised, and something to look at.

use serde::Serialize;

/// How much virtual time and how many seeds are spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// What fits into the test suite.
    Short,
    /// What is published.
    Full,
}

impl Effort {
    /// One of two values.
    pub fn pick<T>(self, short: T, full: T) -> T {
        match self {
            Self::Short => short,
            Self::Full => full,
        }
    }
}

/// What is promised of a number.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
}

impl Target {
    fn holds(self, measured: f64) -> bool {
        match self {
            Self::AtMost(limit) => measured <= limit,
            Self::AtLeast(limit) => measured >= limit,
        }
    }
}

/// What an earlier, independent model of the same situation gave.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Model {
    /// The least of its values.
    pub from: f64,
    /// The largest of its values.
    pub to: f64,
    /// How far beyond them this model may lie and still agree.
    pub tolerance: f64,
}

impl Model {
    fn agrees(self, measured: f64) -> bool {
        (self.from - self.tolerance..=self.to + self.tolerance).contains(&measured)
    }
}

/// One measured number.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Of what, in words.
    pub what: String,
    /// Of [`Self::measured`] and all that it is compared with.
    pub unit: &'static str,
    /// By plan and governor.
    pub measured: f64,
    /// The same quantity where the driver's own scheduler decides, in the same run; `None` where it has no meaning there.
    pub native: Option<f64>,
    /// `None` where nothing is promised.
    pub target: Option<Target>,
    /// `None` where the earlier model says nothing.
    pub model: Option<Model>,
}

impl Row {
    /// A number, and nothing that it must be.
    pub fn new(what: impl Into<String>, unit: &'static str, measured: f64) -> Self {
        Self {
            what: what.into(),
            unit,
            measured,
            native: None,
            target: None,
            model: None,
        }
    }

    /// It must not be more.
    #[must_use]
    pub fn at_most(mut self, limit: f64) -> Self {
        self.target = Some(Target::AtMost(limit));
        self
    }

    /// It must not be less.
    #[must_use]
    pub fn at_least(mut self, limit: f64) -> Self {
        self.target = Some(Target::AtLeast(limit));
        self
    }

    /// What the driver's own scheduler makes of it.
    #[must_use]
    pub fn native(mut self, value: f64) -> Self {
        self.native = Some(value);
        self
    }

    /// What the earlier model gave, and how near this one should lie.
    #[must_use]
    pub fn model(mut self, from: f64, to: f64, tolerance: f64) -> Self {
        self.model = Some(Model {
            from,
            to,
            tolerance,
        });
        self
    }

    /// Whether what is promised holds; `None` where nothing is.
    #[must_use]
    pub fn holds(&self) -> Option<bool> {
        self.target.map(|target| target.holds(self.measured))
    }

    /// Whether the earlier model gave the same; `None` where it says nothing.
    #[must_use]
    pub fn agrees(&self) -> Option<bool> {
        self.model.map(|model| model.agrees(self.measured))
    }
}

/// Points that belong together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// (x, y).
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// Named points.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: name.into(),
            points,
        }
    }
}

/// What one experiment looks like.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plot {
    /// Name of the file, without its ending.
    pub file: &'static str,
    /// Above it.
    pub title: String,
    /// Below it.
    pub x: &'static str,
    /// Beside it.
    pub y: &'static str,
    /// What is drawn.
    pub series: Vec<Series>,
}

/// What one experiment found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Findings {
    /// `E1`, `chaos` …
    pub name: &'static str,
    /// What it is about.
    pub title: &'static str,
    /// Virtual seconds that passed in all its runs.
    pub virtual_s: f64,
    /// Distinct seeds of its runs.
    pub seeds: u64,
    /// The numbers.
    pub rows: Vec<Row>,
    /// What to look at.
    pub plots: Vec<Plot>,
}

impl Findings {
    /// Nothing found yet.
    #[must_use]
    pub fn new(name: &'static str, title: &'static str) -> Self {
        Self {
            name,
            title,
            virtual_s: 0.0,
            seeds: 0,
            rows: Vec::new(),
            plots: Vec::new(),
        }
    }

    /// Rows whose promise does not hold.
    pub fn missed(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.holds() == Some(false))
    }
}

/// Headings of [`cells`].
pub const HEADINGS: [&str; 8] = [
    "experiment",
    "what",
    "unit",
    "measured",
    "native",
    "target",
    "model",
    "",
];

/// A row for a table: measured beside native, promised and modelled, and whether it holds.
#[must_use]
pub fn cells(experiment: &str, row: &Row) -> Vec<String> {
    let verdict = match (row.holds(), row.agrees()) {
        (Some(false), _) => "MISSED",
        (Some(true), Some(false)) => "holds, model differs",
        (Some(true), _) => "holds",
        (None, Some(true)) => "as modelled",
        (None, Some(false)) => "model differs",
        (None, None) => "",
    };
    vec![
        experiment.to_owned(),
        row.what.clone(),
        row.unit.to_owned(),
        number(row.measured),
        row.native.map(number).unwrap_or_default(),
        match row.target {
            Some(Target::AtMost(limit)) => format!("≤ {}", number(limit)),
            Some(Target::AtLeast(limit)) => format!("≥ {}", number(limit)),
            None => String::new(),
        },
        match row.model {
            Some(model) if model.from < model.to => {
                format!("{}–{}", number(model.from), number(model.to))
            }
            Some(model) => number(model.from),
            None => String::new(),
        },
        verdict.to_owned(),
    ]
}

/// Three significant digits where there is something behind the point.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_target_is_reported_and_a_held_one_with_another_model_too() {
        let row = Row::new("loss", "point", 1.5).at_most(1.0);
        assert_eq!(row.holds(), Some(false));
        assert_eq!(cells("E5", &row)[7], "MISSED");
        let row = Row::new("loss", "point", 1.5)
            .at_most(2.0)
            .model(0.2, 0.4, 0.5);
        assert_eq!(cells("E5", &row)[6], "0.200–0.400");
        assert_eq!(cells("E5", &row)[7], "holds, model differs");
        let row = Row::new("sum", "%", 99.2).model(99.2, 99.2, 0.5);
        assert_eq!(cells("E2b", &row)[7], "as modelled");
    }
}
