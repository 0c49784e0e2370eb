use super::*;

fn row(text: &str) -> Result<Program, TableError> {
    Program::parse("x", &format!("# a comment\n{HEADING}\n{text}"))
}

#[test]
fn an_error_names_the_line_the_value_and_what_is_allowed() {
    for (text, value) in [
        ("opens\t-\tnvidiactl\t-\t-\tT1\t-", "opens"),
        ("open\t-\tnvidiactl", "open\t-\tnvidiactl"),
        ("escape\ta\tNV_ESC_X\t-\t-\tT1\t-", "NV_ESC_X"),
        ("uvm\ta\tUVM_X\t-\t-\tT1\t-", "UVM_X"),
        ("alloc\ta\t@x\t-\t-\tT1\t-", "@x"),
        ("control\ta\t0x1:0x10001\t-\t-\tT1\t-", "0x1:0x10001"),
        ("free\ta\tb\t-\t-\tT1\t-", "b"),
        ("uvm\ta\tUVM_FREE\tbase\t-\tT1\t-", "base"),
        ("uvm\ta\tUVM_FREE\tbase=x\t-\tT1\t-", "x"),
        ("uvm\ta\tUVM_FREE\t0z=1\t-\tT1\t-", "0z"),
        ("uvm\ta\tUVM_FREE\t0=1..513\t-\tT1\t-", "1..513"),
        ("uvm\ta\tUVM_FREE\tlist9:0=1\t-\tT1\t-", "list9:0=1"),
        ("uvm\ta\tUVM_FREE\t-\ta b@\tT1\t-", ""),
        ("uvm\ta\tUVM_FREE\t-\ta-\tT1\t-", "a-"),
        (
            "uvm\ta\tUVM_FREE\t-\t-\tT1\trefused NV_ERR_X: a; b",
            "refused NV_ERR_X: a; b",
        ),
        (
            "uvm\ta\tUVM_FREE\t-\t-\tT1\trefused NV_ERR_GENERIC: a",
            "refused NV_ERR_GENERIC: a",
        ),
    ] {
        let error = row(text).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("x.tsv:3: {value:?}: ")),
            "{error}"
        );
    }
    let none = Program::parse("x", "").unwrap_err().to_string();
    assert_eq!(none, "x.tsv:1: \"\": a table begins with its heading");
}

#[test]
fn values_have_places_widths_distances_and_names() {
    let program = row(
        "control\td\tNV2080_CTRL_CMD_GR_GET_INFO\t0=2 list1:0/8=12..13 8q=$a\tb@16u c\tT2\tnative NV_ERR_GENERIC: f (f.c)",
    );
    let step = &program.unwrap().steps[0];
    let [count, list, wide] = step.fills.as_slice() else {
        panic!("{step:?}");
    };
    assert_eq!((count.block, list.block), (0, 1));
    assert_eq!(list.values, [Value::Number(12), Value::Number(13)]);
    let at = |offset, width, stride| Place::At {
        offset,
        width,
        stride,
    };
    assert_eq!(list.place, at(0, Width::Four, 8));
    assert_eq!(wide.place, at(8, Width::Eight, 8));
    assert_eq!(step.makes[0].place, Some(at(16, Width::Sixteen, 16)));
    assert_eq!(step.makes[1].place, None);
    assert!(matches!(
        step.expected,
        Expected::Native {
            status: Status(0xffff),
            ..
        }
    ));
}
