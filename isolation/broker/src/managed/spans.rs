//! Stretches of addresses, compared in time that grows with their number and not with its square.

use ledger::Span;

/// Stretches in order, of which no two overlap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Stretches(Vec<Span>);

impl Stretches {
    /// The same addresses as of these.
    pub(crate) fn of(mut spans: Vec<Span>) -> Self {
        spans.sort_unstable();
        let mut merged: Vec<Span> = Vec::with_capacity(spans.len());
        for span in spans {
            match merged.last_mut() {
                Some(before) if touches(*before, span) => {
                    *before = joined(*before, span).unwrap_or(*before);
                }
                _ => merged.push(span),
            }
        }
        Self(merged)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Span> {
        self.0.iter().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those that reach into a stretch, in order.
    fn within(&self, span: Span) -> impl Iterator<Item = Span> {
        let first = self.0.partition_point(|other| other.last() < span.base());
        let reaching = self.0.get(first..).unwrap_or_default().iter().copied();
        reaching.take_while(move |other| other.base() <= span.last())
    }

    /// Whether any of a stretch is among these.
    pub(crate) fn meets(&self, span: Span) -> bool {
        self.within(span).next().is_some()
    }

    /// Whether all of a stretch is among these.
    pub(crate) fn covers(&self, span: Span) -> bool {
        // No two of them touch.
        let first = self.within(span).next();
        first.is_some_and(|it| it.base() <= span.base() && it.last() >= span.last())
    }

    /// The parts of a stretch that are not among these. Every part that is looked at counts as a step.
    pub(crate) fn leave_of(&self, span: Span, steps: &mut u64) -> Vec<Span> {
        let mut rest = Vec::new();
        let mut next = Some(span.base());
        *steps = steps.saturating_add(1);
        for other in self.within(span) {
            *steps = steps.saturating_add(1);
            let Some(from) = next else {
                break;
            };
            rest.extend(between(from, other.base().checked_sub(1)));
            next = other.last().checked_add(1).map(|behind| behind.max(from));
        }
        rest.extend(next.and_then(|from| between(from, Some(span.last()))));
        rest
    }

    /// The parts of these stretches that are not among others.
    pub(crate) fn without(&self, others: &Self, steps: &mut u64) -> Self {
        // Parts of what does not overlap, in order.
        Self(
            self.iter()
                .flat_map(|span| others.leave_of(span, steps))
                .collect(),
        )
    }
}

fn touches(one: Span, next: Span) -> bool {
    one.last()
        .checked_add(1)
        .is_none_or(|behind| next.base() <= behind)
}

fn joined(one: Span, next: Span) -> Option<Span> {
    between(one.base(), Some(one.last().max(next.last())))
}

/// The stretch from one address to another, itself within.
fn between(from: u64, last: Option<u64>) -> Option<Span> {
    let bytes_but_one = last?.checked_sub(from)?;
    Span::new(from, bytes_but_one.checked_add(1)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(base: u64, bytes: u64) -> Span {
        Span::new(base, bytes).unwrap()
    }

    #[test]
    fn what_others_cover_is_taken_out_of_a_span() {
        let of = |others: &[Span]| Stretches::of(others.to_vec()).leave_of(span(10, 10), &mut 0);
        assert_eq!(of(&[]), [span(10, 10)]);
        assert_eq!(of(&[span(0, 10), span(20, 5)]), [span(10, 10)]);
        assert_eq!(of(&[span(12, 3)]), [span(10, 2), span(15, 5)]);
        assert_eq!(of(&[span(5, 8), span(18, 9)]), [span(13, 5)]);
        assert_eq!(of(&[span(10, 4), span(14, 6)]), []);
        assert_eq!(of(&[span(0, 100)]), []);
        let top = Stretches::of(vec![span(u64::MAX - 1, 2)]);
        let rest = top.leave_of(span(u64::MAX - 3, 4), &mut 0);
        assert_eq!(rest, [span(u64::MAX - 3, 2)]);
    }

    #[test]
    fn a_thousand_among_sixty_thousand_take_no_sixty_million_steps() {
        let many = Stretches::of((0..60_000).map(|at| span(at * 8192, 4096)).collect());
        assert_eq!(many.len(), 60_000);
        let few = Stretches::of((0..1_000).map(|at| span(at * 400_000, 4096)).collect());
        let mut steps = 0;
        few.without(&many, &mut steps);
        many.without(&few, &mut steps);
        assert!(steps < 3 * 61_000, "{steps}");
    }

    fn few() -> impl Strategy<Value = Vec<Span>> {
        prop::collection::vec((0_u64..60, 1_u64..8), 0..12)
            .prop_map(|all| all.into_iter().map(|(at, bytes)| span(at, bytes)).collect())
    }

    proptest! {
        #[test]
        fn sets_of_addresses_are_what_they_report(one in few(), other in few()) {
            let has = |spans: &[Span], at: u64| {
                spans.iter().any(|it| (it.base()..=it.last()).contains(&at))
            };
            let stretches = (Stretches::of(one.clone()), Stretches::of(other.clone()));
            let rest: Vec<Span> = stretches.0.without(&stretches.1, &mut 0).iter().collect();
            for at in 0..80 {
                let is_left = has(&one, at) && !has(&other, at);
                prop_assert_eq!(has(&rest, at), is_left, "{}", at);
                prop_assert_eq!(stretches.0.meets(span(at, 1)), has(&one, at));
                let covered = (at..at + 3).all(|at| has(&one, at));
                prop_assert_eq!(stretches.0.covers(span(at, 3)), covered);
            }
        }
    }
}
