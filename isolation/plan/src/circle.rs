//! Room on the cyclic schedule: a window as a circle of a million parts.

use crate::WHOLE_PPM;
use crate::gate::{GateSchedule, Segment};

/// A part of the circle that does not reach over its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arc {
    pub(crate) start_ppm: u32,
    pub(crate) length_ppm: u32,
}

impl Arc {
    fn end_ppm(self) -> u32 {
        self.start_ppm + self.length_ppm
    }
}

/// What is free of it.
#[derive(Debug, Clone)]
pub(crate) struct Circle {
    /// Sorted, disjoint, not adjacent, none empty.
    free: Vec<Arc>,
}

impl Circle {
    pub(crate) fn new() -> Self {
        Self {
            free: vec![Arc {
                start_ppm: 0,
                length_ppm: WHOLE_PPM,
            }],
        }
    }

    pub(crate) fn free_ppm(&self) -> u32 {
        self.free.iter().map(|arc| arc.length_ppm).sum()
    }

    /// Takes exactly this place, over the end if need be; `None` if any of it is taken.
    pub(crate) fn take_at(&mut self, start_ppm: u32, length_ppm: u32) -> Option<Vec<Arc>> {
        if start_ppm >= WHOLE_PPM || length_ppm > WHOLE_PPM {
            return None;
        }
        let arcs = split_at_end(start_ppm, length_ppm);
        if !arcs.iter().all(|arc| self.has(*arc)) {
            return None;
        }
        for arc in &arcs {
            self.take(*arc);
        }
        Some(arcs)
    }

    /// Takes the first contiguous room of this length; else the room over the end; else several rooms, the largest first. Takes
    /// less only where less is free.
    pub(crate) fn place(&mut self, length_ppm: u32) -> Vec<Arc> {
        if length_ppm == 0 {
            return Vec::new();
        }
        if let Some(gap) = self.free.iter().find(|gap| gap.length_ppm >= length_ppm) {
            let arc = Arc {
                start_ppm: gap.start_ppm,
                length_ppm,
            };
            self.take(arc);
            return vec![arc];
        }
        if let Some(last) = self.free.last().copied()
            && last.end_ppm() == WHOLE_PPM
            && let Some(arcs) = self.take_at(last.start_ppm, length_ppm)
        {
            return arcs;
        }
        let mut gaps = self.free.clone();
        gaps.sort_by_key(|gap| (std::cmp::Reverse(gap.length_ppm), gap.start_ppm));
        let mut missing = length_ppm;
        let mut arcs = Vec::new();
        for gap in gaps {
            if missing == 0 {
                break;
            }
            let arc = Arc {
                start_ppm: gap.start_ppm,
                length_ppm: gap.length_ppm.min(missing),
            };
            self.take(arc);
            missing -= arc.length_ppm;
            arcs.push(arc);
        }
        arcs.sort();
        arcs
    }

    /// Whether this place is free.
    pub(crate) fn has_at(&self, start_ppm: u32, length_ppm: u32) -> bool {
        start_ppm < WHOLE_PPM
            && length_ppm <= WHOLE_PPM
            && split_at_end(start_ppm, length_ppm)
                .iter()
                .all(|arc| self.has(*arc))
    }

    /// Where its free rooms begin.
    pub(crate) fn gap_starts(&self) -> impl Iterator<Item = u32> {
        self.free.iter().map(|gap| gap.start_ppm)
    }

    fn has(&self, arc: Arc) -> bool {
        self.free
            .iter()
            .any(|gap| gap.start_ppm <= arc.start_ppm && arc.end_ppm() <= gap.end_ppm())
    }

    fn take(&mut self, arc: Arc) {
        let mut free = Vec::with_capacity(self.free.len() + 1);
        for gap in &self.free {
            let before_end = gap.end_ppm().min(arc.start_ppm);
            let after_start = gap.start_ppm.max(arc.end_ppm());
            if gap.start_ppm < before_end {
                free.push(Arc {
                    start_ppm: gap.start_ppm,
                    length_ppm: before_end - gap.start_ppm,
                });
            }
            if after_start < gap.end_ppm() {
                free.push(Arc {
                    start_ppm: after_start,
                    length_ppm: gap.end_ppm() - after_start,
                });
            }
        }
        self.free = free;
    }
}

fn split_at_end(start_ppm: u32, length_ppm: u32) -> Vec<Arc> {
    let before = length_ppm.min(WHOLE_PPM - start_ppm);
    let mut arcs = vec![Arc {
        start_ppm,
        length_ppm: before,
    }];
    if before < length_ppm {
        arcs.push(Arc {
            start_ppm: 0,
            length_ppm: length_ppm - before,
        });
    }
    arcs.retain(|arc| arc.length_ppm > 0);
    arcs
}

/// The gate that is open in these arcs. Both ends of an arc are rounded the same way as its neighbours', so that what abuts in
/// parts of a million abuts in nanoseconds.
pub(crate) fn gate(window_ns: u64, arcs: &[Arc]) -> GateSchedule {
    let at_ns = |ppm: u32| window_ns * u64::from(ppm) / u64::from(WHOLE_PPM);
    let mut arcs = arcs.to_vec();
    arcs.sort();
    // (begin, end) in nanoseconds; those that touch become one.
    let mut spans: Vec<(u64, u64)> = Vec::new();
    for arc in arcs {
        let (begin, end) = (at_ns(arc.start_ppm), at_ns(arc.end_ppm()));
        match spans.last_mut() {
            Some(last) if last.1 == begin => last.1 = end,
            _ if begin < end => spans.push((begin, end)),
            _ => {}
        }
    }
    match (spans.first().copied(), spans.last().copied()) {
        (None, _) | (_, None) => return GateSchedule::Closed,
        (Some((0, _)), Some((_, end))) if end == window_ns => {
            if spans.len() == 1 {
                return GateSchedule::Open;
            }
            let (_, head_end) = spans.remove(0);
            if let Some(tail) = spans.last_mut() {
                tail.1 += head_end;
            }
        }
        _ => {}
    }
    GateSchedule::Cyclic(
        spans
            .into_iter()
            .map(|(begin, end)| Segment {
                offset_ns: begin,
                length_ns: end - begin,
            })
            .collect(),
    )
}
