//! Whatever peers' records say, and in whatever order things happen: nothing panics, no gate stays closed, and brokers that read the same agree.

use crate::fixture::{Faults, Fixture, MS, S, fixed, terms};
use compute::{CLOSED_MAX_NS, Event};
use plan::share_record::{Next, RecoveryChannel};
use plan::{Claim, Gang, GateState, Policy, Priority, ShareRecord, Terms};
use proptest::prelude::*;

/// What may happen to a card.
#[derive(Debug, Clone)]
enum Happening {
    Join(Terms, u32),
    Kill(prop::sample::Index),
    Restart(prop::sample::Index),
    Stop(prop::sample::Index),
    Terms(prop::sample::Index, Terms),
    Group(prop::sample::Index, u32),
    NoGroups(prop::sample::Index),
    Scribble(Vec<u8>),
    ShareRecord(Box<ShareRecord>),
    Wake(prop::sample::Index, Event),
    Slow(u64),
    Lose(u64),
}

fn any_terms() -> impl Strategy<Value = Terms> {
    prop_oneof![
        (1_u32..=100).prop_map(fixed),
        Just(terms(Policy::FairShare, None, 1, Priority::Normal)),
        (1_u32..=1_000).prop_map(|weight| terms(Policy::Weighted, None, weight, Priority::Normal)),
        (1_u32..=100).prop_map(|floor| terms(Policy::Soft, Some(floor), 1, Priority::Normal)),
        Just(terms(Policy::Preemptive, None, 1, Priority::High)),
        Just(terms(Policy::Preemptive, None, 1, Priority::Low)),
        Just(Terms::NATIVE),
    ]
}

fn any_claim() -> impl Strategy<Value = Claim> {
    let place = prop::option::of(0_u32..1_000_000);
    let gang = prop::option::of((any::<u64>(), 2_u32..=u32::MAX));
    (any_terms(), 0_u32..=4_096, place, gang).prop_map(|(terms, groups, place_ppm, gang)| Claim {
        terms,
        groups,
        gang: gang.map(|(id, size)| Gang { id, size }),
        place_ppm,
    })
}

fn any_time() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 9 * S..20 * S, Just(0), Just(u64::MAX)]
}

prop_compose! {
    fn any_record()(
        name in "[a-c]",
        join_ns in any_time(),
        now in prop::option::of(any_claim()),
        next in prop::option::of((any_time(), any_claim())),
        busy_until_ns in prop::option::of(any_time()),
        closed in any::<bool>(),
        channels in prop::collection::vec((any::<u32>(), any::<u32>()), 0..256),
    ) -> ShareRecord {
        let mut record = ShareRecord::new(&format!("evil/{name}"), 1, 1, join_ns);
        record.now = now;
        record.next = next.map(|(at_ns, claim)| Next { at_ns, claim });
        record.busy_until_ns = busy_until_ns;
        record.gate = if closed { GateState::Closed } else { GateState::Open };
        record.recovery.channels = channels
            .into_iter()
            .map(|(client, handle)| RecoveryChannel { client, handle })
            .collect();
        record
    }
}

fn any_happening() -> impl Strategy<Value = Happening> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        3 => (any_terms(), 0_u32..3).prop_map(|(terms, groups)| Happening::Join(terms, groups)),
        2 => index().prop_map(Happening::Kill),
        2 => index().prop_map(Happening::Restart),
        1 => index().prop_map(Happening::Stop),
        2 => (index(), any_terms()).prop_map(|(at, terms)| Happening::Terms(at, terms)),
        2 => (index(), 0_u32..80).prop_map(|(at, channels)| Happening::Group(at, channels)),
        1 => index().prop_map(Happening::NoGroups),
        1 => prop::collection::vec(any::<u8>(), 0..200).prop_map(Happening::Scribble),
        3 => any_record().prop_map(|record| Happening::ShareRecord(Box::new(record))),
        1 => (index(), prop_oneof![
            Just(Event::Woke), Just(Event::ObjectsChanged), Just(Event::TermsChanged), Just(Event::PeersChanged), Just(Event::Started),
            Just(Event::Answered(Ok(None).into())), Just(Event::Answered(Err(compute::KnobError::Gone).into())),
        ]).prop_map(|(at, event)| Happening::Wake(at, event)),
        1 => prop_oneof![Just(0), Just(60 * MS), Just(8 * MS)].prop_map(Happening::Slow),
        1 => prop_oneof![Just(0_u64), Just(100)].prop_map(Happening::Lose),
    ]
}

fn happen(fixture: &mut Fixture, happening: &Happening) {
    let count = fixture.tenants.len();
    let lives = |fixture: &Fixture, at: usize| fixture.tenants[at].governor.is_some();
    match happening {
        Happening::Join(terms, groups) if count < 6 => {
            fixture.join(&format!("t{count}"), *terms, *groups);
        }
        Happening::Scribble(bytes) => fixture.cards[0].scribble("evil/x", bytes),
        Happening::ShareRecord(record) => {
            if let Ok(bytes) = record.encode(2) {
                fixture.cards[0].scribble(&record.key, bytes.as_slice());
            }
        }
        Happening::Slow(ns) => fixture.faults.takes_ns = (*ns > 0).then_some(*ns),
        Happening::Lose(permille) => fixture.faults.lost_permille = *permille,
        _ if count == 0 => {}
        Happening::Kill(at) => {
            let at = at.index(count);
            if lives(fixture, at) {
                fixture.kill(at);
            }
        }
        Happening::Restart(at) => {
            let at = at.index(count);
            if !lives(fixture, at) {
                fixture.start(at);
            }
        }
        Happening::Stop(at) => {
            let at = at.index(count);
            if lives(fixture, at) {
                fixture.tell(at, Event::Stopping);
            }
        }
        Happening::Terms(at, terms) => {
            let at = at.index(count);
            fixture.tenants[at].terms = *terms;
            if lives(fixture, at) {
                fixture.tell(at, Event::TermsChanged);
            }
        }
        Happening::Group(at, channels) => {
            let at = at.index(count);
            if lives(fixture, at) && fixture.tenants[at].objects[0].groups.len() < 8 {
                fixture.add_group(at, 0, *channels);
            }
        }
        Happening::NoGroups(at) => {
            let at = at.index(count);
            if lives(fixture, at) {
                fixture.remove_groups(at, 0);
            }
        }
        Happening::Wake(at, event) => {
            let at = at.index(count);
            if lives(fixture, at) {
                fixture.tell(at, event.clone());
            }
        }
        Happening::Join(..) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_happens_leaves_a_gate_closed(
        seed in any::<u64>(),
        script in prop::collection::vec((any_happening(), 0_u64..400), 1..30),
    ) {
        let mut fixture = Fixture::new(seed, 1);
        fixture.rules[0].max_tenants = 10;
        for (happening, pause_ms) in &script {
            happen(&mut fixture, happening);
            fixture.run_ms(*pause_ms);
        }
        // The driver behaves again, and the dead have successors.
        fixture.faults = Faults::default();
        for at in 0..fixture.tenants.len() {
            if fixture.tenants[at].governor.is_none() {
                fixture.start(at);
            }
        }
        let from_ns = fixture.now_ns;
        fixture.run_ms(5_000);
        for at in 0..fixture.tenants.len() {
            let closed_ns = fixture.longest_closed_ns(at, 0, from_ns);
            prop_assert!(closed_ns < CLOSED_MAX_NS, "{}: {closed_ns}", fixture.tenants[at].key);
            // Two calls a window of at least 62.5 ms each, for up to 8 groups of up to 80 channels in 64s, and what 100 settings cost.
            prop_assert!(fixture.gate_calls(at, from_ns) <= 2 * 80 * 10 + 40);
        }
        // And once the hostile records are gone, everybody has what he was promised, beside the others.
        for name in ["a", "b", "c", "x"] {
            let key = format!("evil/{name}");
            fixture.cards[0].scribble(&key, &[]);
        }
        fixture.run_ms(3_000);
        let from_ns = fixture.now_ns;
        fixture.run_ms(2_000);
        // One that was told to stop while a call was under way has stopped by now.
        let shares = (0..fixture.tenants.len())
            .filter(|at| !fixture.tenants[*at].done)
            .map(|at| (at, fixture.status(at, 0)))
            .collect::<Vec<_>>();
        for (at, status) in &shares {
            let at = *at;
            if status.window_ns == 0 || status.enforcement_level != Some(plan::EnforcementLevel::Gate) {
                continue;
            }
            // Two brokers that read the same records have the same layout.
            for (_, other) in &shares {
                prop_assert!(other.window_ns == 0 || other.window_ns == status.window_ns);
            }
            let permille = fixture.permille(at, 0, from_ns, fixture.now_ns);
            if status.terms.policy == Policy::Fixed && shares.iter().all(|(_, other)| other.terms.priority != Priority::High) {
                let entitled = u64::from(status.entitlement_ppm / 1_000);
                prop_assert!(permille <= entitled + entitled / 50 + 30, "{}: {permille} of {entitled}", fixture.tenants[at].key);
            }
        }
    }

    #[test]
    fn everything_opens_when_everybody_stops(
        seed in any::<u64>(),
        script in prop::collection::vec((any_happening(), 0_u64..300), 1..12),
    ) {
        let mut fixture = Fixture::new(seed, 1);
        for (happening, pause_ms) in &script {
            happen(&mut fixture, happening);
            fixture.run_ms(*pause_ms);
        }
        fixture.faults = Faults::default();
        for at in 0..fixture.tenants.len() {
            if fixture.tenants[at].governor.is_none() && !fixture.tenants[at].done {
                fixture.start(at);
                fixture.run_ms(1);
            }
            if fixture.tenants[at].governor.is_some() {
                fixture.tell(at, Event::Stopping);
            }
        }
        fixture.run_ms(2_500);
        for tenant in &fixture.tenants {
            prop_assert!(tenant.done, "{}", tenant.key);
            for channel in tenant.objects[0].groups.iter().flat_map(|group| &group.channels) {
                prop_assert!(fixture.lines[&(tenant.key.clone(), 0, *channel)].runs());
            }
        }
        prop_assert!(fixture.cards[0].dead().is_empty());
    }
}
