use super::*;
use nvabi::bytes::put_u32;
use nvabi::uvm as u;
use nvabi::{control, lists};

/// The handles in controls' parameters, from the drivers' headers.
fn objects() -> impl Iterator<Item = lists::Reference<'static>> {
    lists::references(lists::REFERENCES).filter(|row| ["object", "client"].contains(&row.kind))
}

#[test]
fn every_forwarded_call_has_a_row() {
    let admitted: Vec<u32> = control::rows().map(|(cmd, _)| cmd).collect();
    let mut with_handles = 0;
    for object in objects().filter(|object| admitted.contains(&object.cmd)) {
        let row = CONTROLS.iter().find(|(of, _)| *of == object.cmd);
        let has = row.is_some_and(|(_, handles)| handles.iter().any(|it| it.field == object.field));
        assert!(has, "{object:?}");
        with_handles += 1;
    }
    let handles = CONTROLS.iter().flat_map(|(_, handles)| *handles);
    let listed = handles.filter(|it| it.segment == 1).count();
    assert_eq!(listed, with_handles, "a row that no header has");
}

#[test]
fn handles_lie_in_their_blocks() {
    for release in Release::ALL {
        let end = |handle: &Handle| handle.at.of(release) + 4;
        for row in esc::ALL.iter().filter(|row| row.size.of(release) > 0) {
            let mut handles = of_escape(row.id).iter();
            assert!(
                handles.all(|it| end(it) <= row.size.of(release)),
                "{}",
                row.name
            );
        }
        for row in u::ALL.iter().filter(|row| row.size.of(release) > 0) {
            let handles = of_uvm(row.id);
            // UNREGISTER_CHANNEL's is not looked at.
            let checked = |it: &&Handle| !matches!(it.by, By::Driver(_));
            let mut checked = handles.iter().filter(checked);
            assert!(
                checked.all(|it| end(it) <= row.size.of(release)),
                "{}",
                row.name
            );
        }
        for class in class::ALL {
            let mut handles = of_class(class).iter();
            assert!(
                handles.all(|it| end(it) <= class.params.of(release)),
                "{}",
                class.name
            );
        }
        for (cmd, handles) in CONTROLS {
            if let Some(control) = control::row(*cmd, release) {
                let lies = |it: &Handle| match usize::from(it.segment) {
                    1 => end(it) <= control.params_bytes,
                    list => list - 2 < control.nested.len(),
                };
                assert!(handles.iter().all(lies), "{cmd:#x}");
            }
        }
    }
}

#[test]
fn a_duplicates_destination_is_named_and_its_source_left_to_the_account() {
    let mut arg = vec![0; 28];
    for (at, word) in [(0, 1), (4, 2), (8, 3), (12, 4), (16, 5)] {
        put_u32(&mut arg, at, word);
    }
    let op = Op::Escape(&esc::NV_ESC_RM_DUP_OBJECT);
    let named = named(&op, &[&arg], Release::R580);
    let seen: Vec<_> = named
        .iter()
        .map(|it| (it.client, it.object, it.must))
        .collect();
    assert_eq!(
        seen,
        [(1, None, Must::BeThere), (1, Some(2), Must::BeDestination)]
    );
}

#[test]
fn what_names_nothing_is_not_looked_for() {
    let op = Op::Escape(&esc::NV_ESC_RM_ALLOC);
    let mut arg = vec![0; 32];
    put_u32(&mut arg, nvos21::H_ROOT, 1);
    put_u32(&mut arg, nvos21::H_CLASS, 0xc86f);
    let mut params = vec![0; 368];
    let fields = |params: &[u8], arg: &[u8]| -> Vec<&str> {
        let named = named(&op, &[arg, params], Release::R570);
        named.iter().map(|it| it.field).collect()
    };
    assert_eq!(fields(&params, &arg), ["hClient", "hObjectParent"]);
    put_u32(&mut params, 28, 9);
    assert_eq!(
        fields(&params, &arg),
        ["hClient", "hObjectParent", "hVASpace"]
    );
    put_u32(&mut arg, nvos21::H_CLASS, 0x41);
    assert!(fields(&params, &arg).is_empty());
}
