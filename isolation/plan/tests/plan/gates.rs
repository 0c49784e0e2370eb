use plan::{Edge, EdgeKind, GateSchedule, Segment, layout};
use proptest::prelude::*;

use crate::any::admitted;

#[test]
fn a_segment_over_the_windows_end_is_one_segment() {
    let gate = GateSchedule::Cyclic(vec![Segment {
        offset_ns: 80,
        length_ns: 40,
    }]);
    for (at, open) in [
        (0, true),
        (19, true),
        (20, false),
        (79, false),
        (80, true),
        (119, true),
        (120, false),
    ] {
        assert_eq!(gate.is_open(100, at), open, "{at}");
    }
    assert_eq!(
        gate.next_edge(100, 80),
        Some(Edge {
            at_ns: 120,
            kind: EdgeKind::Close
        })
    );
    assert_eq!(
        gate.next_edge(100, 120),
        Some(Edge {
            at_ns: 180,
            kind: EdgeKind::Open
        })
    );
    assert_eq!(
        gate.next_edge(100, 119),
        Some(Edge {
            at_ns: 120,
            kind: EdgeKind::Close
        })
    );
    assert_eq!(gate.segment_at(100, 110), Some((80, 120)));
    assert_eq!(gate.segment_at(100, 10), Some((0, 20)));
    assert_eq!(GateSchedule::Open.next_edge(100, 0), None);
}

proptest! {
    #[test]
    fn edges_are_where_gates_change_and_open_times_add_up((rules, tenants) in admitted(60), start in 0..1u64 << 50) {
        let layout = layout(&rules, &rules.costs, &tenants);
        for share in &layout.shares {
            let window_ns = layout.window_ns;
            if share.gate.segments().is_empty() {
                prop_assert_eq!(share.gate.next_edge(window_ns, start), None);
                continue;
            }
            let mut at = start;
            let mut open_ns = 0;
            while at < start + window_ns {
                let edge = share.gate.next_edge(window_ns, at).unwrap();
                prop_assert!(edge.at_ns > at && edge.at_ns <= at + window_ns);
                let open = share.gate.is_open(window_ns, at);
                prop_assert_eq!(share.gate.is_open(window_ns, edge.at_ns - 1), open);
                prop_assert_eq!(share.gate.is_open(window_ns, edge.at_ns), edge.kind == EdgeKind::Open);
                if open {
                    open_ns += edge.at_ns.min(start + window_ns) - at;
                }
                at = edge.at_ns;
            }
            prop_assert_eq!(open_ns, share.gate.open_ns(window_ns));
        }
    }
}

proptest::proptest! {
    #[test]
    fn the_time_between_two_is_the_sum_of_its_moments(
        offset_ns in 0_u64..100,
        length_ns in 1_u64..100,
        from_ns in 0_u64..500,
        elapsed_ns in 0_u64..500,
    ) {
        let gate = GateSchedule::Cyclic(vec![Segment { offset_ns, length_ns }]);
        let to_ns = from_ns + elapsed_ns;
        let open = (from_ns..to_ns).filter(|at_ns| gate.is_open(100, *at_ns)).count() as u64;
        proptest::prop_assert_eq!(gate.open_between_ns(100, from_ns, to_ns), open);
    }
}
