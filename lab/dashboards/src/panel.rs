//! Panels and their places.

use serde_json::{Value, json};

/// Columns of a dashboard.
const COLUMNS: u32 = 24;

/// What a panel shows.
pub(crate) struct Panel {
    pub(crate) title: &'static str,
    /// For whoever sees it first.
    pub(crate) description: &'static str,
    pub(crate) kind: Kind,
    /// As Grafana names it.
    pub(crate) unit: &'static str,
    pub(crate) queries: Vec<Query>,
}

/// How it shows it.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    /// A heading.
    Row,
    /// A number; from the second one on, where there is one, it is shown in red.
    Stat(Option<u32>),
    Lines,
    /// Lines on top of each other.
    Stack,
    /// Parts of a whole, 0 to 1.
    Bars,
    Table,
    /// 1 and 0, in these words.
    States([&'static str; 2]),
}

/// An expression, and what a series of it is called.
pub(crate) struct Query {
    pub(crate) expression: String,
    pub(crate) legend: &'static str,
}

/// A query.
pub(crate) fn query(legend: &'static str, expression: impl Into<String>) -> Query {
    Query {
        expression: expression.into(),
        legend,
    }
}

/// One number; `bad_from`: from where on it is red.
pub(crate) fn stat(
    title: &'static str,
    description: &'static str,
    (unit, bad_from): (&'static str, Option<u32>),
    expression: String,
) -> Panel {
    Panel {
        title,
        description,
        kind: Kind::Stat(bad_from),
        unit,
        queries: vec![query("", expression)],
    }
}

/// A heading.
pub(crate) fn row(title: &'static str) -> Panel {
    Panel {
        title,
        description: "",
        kind: Kind::Row,
        unit: "",
        queries: Vec::new(),
    }
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Row => "row",
            Self::Stat(_) => "stat",
            Self::Lines | Self::Stack => "timeseries",
            Self::Bars => "bargauge",
            Self::Table => "table",
            Self::States(_) => "state-timeline",
        }
    }

    /// Width and height.
    fn size(self) -> (u32, u32) {
        match self {
            Self::Row => (COLUMNS, 1),
            Self::Stat(_) => (4, 4),
            Self::Lines | Self::Stack | Self::Bars => (12, 8),
            Self::Table => (COLUMNS, 8),
            Self::States(_) => (COLUMNS, 5),
        }
    }

    /// Whether it shows this moment alone.
    fn is_instant(self) -> bool {
        matches!(self, Self::Stat(_) | Self::Bars | Self::Table)
    }

    fn options(self) -> Value {
        let last = json!({"calcs": ["lastNotNull"], "fields": "", "values": false});
        match self {
            Self::Row => json!({}),
            Self::Stat(_) => json!({
                "reduceOptions": last, "colorMode": "value", "graphMode": "none", "textMode": "value",
                "justifyMode": "auto", "orientation": "auto", "wideLayout": true,
                "showPercentChange": false, "percentChangeColorMode": "standard",
            }),
            Self::Bars => json!({
                "reduceOptions": last, "orientation": "horizontal", "displayMode": "basic", "showUnfilled": true,
                "valueMode": "color", "namePlacement": "auto", "sizing": "auto",
                "minVizWidth": 8, "minVizHeight": 16, "maxVizHeight": 300,
                "legend": {"showLegend": false, "displayMode": "list", "placement": "bottom", "calcs": []},
            }),
            Self::Lines | Self::Stack => json!({
                "legend": {
                    "showLegend": true, "displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"],
                },
                "tooltip": {"mode": "multi", "sort": "desc"},
            }),
            Self::Table => json!({"frameIndex": 0, "showHeader": true, "cellHeight": "sm"}),
            Self::States(_) => json!({
                "mergeValues": true, "showValue": "auto", "rowHeight": 0.8,
                "legend": {"showLegend": true, "displayMode": "list", "placement": "bottom", "calcs": []},
                "tooltip": {"mode": "single", "sort": "none"},
            }),
        }
    }

    fn defaults(self, unit: &str) -> Value {
        let steps = |last: Option<(&str, Value)>| {
            let mut steps = vec![json!({"color": "green", "value": null})];
            steps.extend(last.map(|(color, value)| json!({"color": color, "value": value})));
            json!({"mode": "absolute", "steps": steps})
        };
        match self {
            Self::Row => json!({}),
            Self::Stat(bad_from) => {
                let bad = bad_from.map(|value| ("red", json!(value)));
                json!({"unit": unit, "thresholds": steps(bad)})
            }
            Self::Bars => json!({
                "unit": unit, "min": 0, "max": 1, "thresholds": steps(Some(("orange", json!(0.95)))),
            }),
            Self::Lines => json!({
                "unit": unit, "min": 0,
                "custom": {"lineWidth": 1, "fillOpacity": 0, "showPoints": "never"},
            }),
            Self::Stack => json!({
                "unit": unit, "min": 0,
                "custom": {
                    "lineWidth": 1, "fillOpacity": 30, "showPoints": "never",
                    "stacking": {"mode": "normal", "group": "A"},
                },
            }),
            Self::Table => json!({
                "unit": unit, "custom": {"align": "auto", "filterable": true, "inspect": false},
            }),
            Self::States([yes, no]) => json!({
                "custom": {"fillOpacity": 70, "lineWidth": 0},
                "mappings": [{"type": "value", "options": {
                    "0": {"text": no, "color": "red", "index": 0},
                    "1": {"text": yes, "color": "green", "index": 1},
                }}],
            }),
        }
    }

    /// A table has one line for what its queries report of one thing, without what every sample carries.
    fn transformations(self) -> Value {
        match self {
            Self::Table => json!([
                {"id": "merge", "options": {}},
                {"id": "organize", "options": {"excludeByName": {"Time": true, "__name__": true, "job": true}}},
            ]),
            _ => json!([]),
        }
    }
}

impl Panel {
    fn json(&self, id: u32, (x, y): (u32, u32)) -> Value {
        let (width, height) = self.kind.size();
        let place = json!({"x": x, "y": y, "w": width, "h": height});
        if self.kind == Kind::Row {
            return json!({
                "id": id, "type": "row", "title": self.title, "collapsed": false, "gridPos": place, "panels": [],
            });
        }
        let datasource = json!({"type": "prometheus", "uid": "${datasource}"});
        let targets = self.queries.iter().zip('A'..='Z').map(|(query, letter)| {
            json!({
                "refId": letter.to_string(),
                "datasource": datasource,
                "expr": query.expression,
                "legendFormat": query.legend,
                "format": if self.kind == Kind::Table { "table" } else { "time_series" },
                "instant": self.kind.is_instant(),
                "range": !self.kind.is_instant(),
            })
        });
        json!({
            "id": id,
            "type": self.kind.name(),
            "title": self.title,
            "description": self.description,
            "datasource": datasource,
            "gridPos": place,
            "fieldConfig": {"defaults": self.kind.defaults(self.unit), "overrides": self.overrides()},
            "options": self.kind.options(),
            "transformations": self.kind.transformations(),
            "targets": targets.collect::<Vec<_>>(),
        })
    }

    /// Columns of a table are named and have the unit of their query: `memory (bytes)`.
    fn overrides(&self) -> Value {
        if self.kind != Kind::Table {
            return json!([]);
        }
        let columns = self.queries.iter().zip('A'..='Z').map(|(query, letter)| {
            let (name, unit) = query
                .legend
                .trim_end_matches(')')
                .split_once(" (")
                .unwrap_or((query.legend, "none"));
            json!({
                "matcher": {"id": "byName", "options": format!("Value #{letter}")},
                "properties": [{"id": "displayName", "value": name}, {"id": "unit", "value": unit}],
            })
        });
        columns.collect()
    }
}

/// Panels from left to right, and below each other where a line is full. They are numbered from 1.
pub(crate) fn placed(panels: &[Panel]) -> Vec<Value> {
    let (mut x, mut y, mut line_height) = (0, 0, 0);
    let mut all = Vec::new();
    for (id, panel) in (1..).zip(panels) {
        let (width, height) = panel.kind.size();
        if x + width > COLUMNS {
            (x, y, line_height) = (0, y + line_height, 0);
        }
        all.push(panel.json(id, (x, y)));
        x += width;
        line_height = line_height.max(height);
    }
    all
}
