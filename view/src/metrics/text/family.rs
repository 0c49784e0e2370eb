//! A metric with its samples, as the library writes it.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use crate::metrics::Histogram;

/// Names and values, in the order in which they are written.
pub(super) type Labels = Vec<(&'static str, String)>;

/// A sample's value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Whole(u64),
    Part(f64),
    Histogram(Histogram),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Part(value)
    }
}

/// What kind of metric it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Gauge,
    Counter,
    Histogram,
}

impl Kind {
    fn of_library(self) -> MetricType {
        match self {
            Self::Gauge => MetricType::Gauge,
            Self::Counter => MetricType::Counter,
            Self::Histogram => MetricType::Histogram,
        }
    }
}

/// All samples of one metric.
#[derive(Debug)]
pub(super) struct Family {
    /// Without a counter's `_total`.
    name: &'static str,
    help: &'static str,
    kind: Kind,
    samples: Vec<(Labels, Value)>,
}

impl Family {
    /// Samples come in the order of their labels. Of two with the same labels the first one stays: a series has one value.
    pub(super) fn new(
        (name, help): (&'static str, &'static str),
        kind: Kind,
        samples: Vec<(Labels, Value)>,
    ) -> Self {
        let mut family = Self {
            name,
            help,
            kind,
            samples,
        };
        family.order();
        family
    }

    /// Takes the samples of another family of this name.
    pub(super) fn join(&mut self, other: Self) {
        self.samples.extend(other.samples);
        self.order();
    }

    fn order(&mut self) {
        self.samples
            .sort_by(|(left, _), (right, _)| left.cmp(right));
        self.samples
            .dedup_by(|(later, _), (earlier, _)| later == earlier);
    }
}

/// A metric of which nothing is known is left out. Labels are escaped by the library.
impl Collector for Family {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if self.samples.is_empty() {
            return Ok(());
        }
        let help = format!("{}.", self.help);
        let mut metric =
            encoder.encode_descriptor(self.name, &help, None, self.kind.of_library())?;
        for (labels, value) in &self.samples {
            // With none the library would write `{}`.
            if labels.is_empty() {
                value.write(self.kind, &mut metric)?;
            } else {
                value.write(self.kind, &mut metric.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

impl Value {
    fn write(&self, kind: Kind, sample: &mut MetricEncoder<'_>) -> Result<(), fmt::Error> {
        match (kind, self) {
            (Kind::Counter, Self::Whole(value)) => {
                sample.encode_counter::<NoLabelSet, _, u64>(value, None)
            }
            (Kind::Counter, Self::Part(value)) => {
                sample.encode_counter::<NoLabelSet, _, u64>(value, None)
            }
            (_, Self::Whole(value)) => sample.encode_gauge(value),
            (_, Self::Part(value)) => sample.encode_gauge(value),
            (_, Self::Histogram(of)) => {
                let count = of.buckets.iter().map(|(_, count)| count).sum();
                sample.encode_histogram::<NoLabelSet>(of.sum_seconds, count, &of.buckets, None)
            }
        }
    }
}
