use std::process::Command;

use nvabi::bytes::put_u32;
use nvabi::layout::{nvos21, nvos54};
use nvabi::{Release, control, escape, uvm};
use proptest::prelude::*;

use super::call::On;
use super::*;

const RELEASE: Release = Release::R580;

fn control_call(cmd: u32) -> What {
    let mut arg = vec![0; 32];
    put_u32(&mut arg, nvos54::CMD, cmd);
    What::ioctl(On::Ctl, escape::NV_ESC_RM_CONTROL.cmd(RELEASE), &arg)
}

fn allocation(class: u32) -> What {
    let mut arg = vec![0; 48];
    put_u32(&mut arg, nvos21::H_CLASS, class);
    What::ioctl(On::Ctl, escape::NV_ESC_RM_ALLOC_LONG.cmd(RELEASE), &arg)
}

fn answered(what: What, answer: Answer) -> Call {
    Call {
        thread: 1,
        what,
        answer,
        us: 0,
    }
}

/// What a small program asks, with some calls that are made more than once.
fn program() -> Vec<What> {
    let uvm = |row: &uvm::Uvm| What::ioctl(On::Uvm, row.cmd, &[]);
    vec![
        What::Open {
            path: "/dev/nvidiactl".to_owned(),
        },
        allocation(0x41),
        control_call(control::NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION),
        allocation(0x80),
        allocation(0x2080),
        control_call(control::NV2080_CTRL_CMD_FB_GET_INFO_V2),
        uvm(&uvm::UVM_INITIALIZE),
        allocation(0x40),
        control_call(control::NV2080_CTRL_CMD_FB_GET_INFO_V2),
        uvm(&uvm::UVM_MAP_EXTERNAL_ALLOCATION),
        What::Map { on: On::Card },
    ]
}

#[test]
fn the_first_refusal_is_named_wherever_it_is() {
    let native: Vec<Call> = program()
        .into_iter()
        .map(|what| answered(what, Answer::Status(0)))
        .collect();
    assert_eq!(differences(&native, &native), []);
    for refused in 0..native.len() {
        let mut here = native.clone();
        here[refused].answer = Answer::Status(0x56);
        let found = differences(&native, &here);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].step, refused + 1);
        assert_eq!(found[0].call, native[refused].what.to_string());
        assert_eq!(found[0].natively, "NV_OK (0x0)");
        assert_eq!(found[0].here, "NV_ERR_NOT_SUPPORTED (0x56)");
        // What a program is refused natively too is no difference.
        assert_eq!(differences(&here, &here), []);
    }
}

#[test]
fn calls_are_named_as_the_driver_names_them() {
    let names: Vec<String> = program().iter().map(ToString::to_string).collect();
    assert_eq!(names[1], "NV_ESC_RM_ALLOC_LONG NV01_ROOT_CLIENT (0x41)");
    assert_eq!(
        names[5],
        "NV_ESC_RM_CONTROL NV2080_CTRL_CMD_FB_GET_INFO_V2 (0x20801303)"
    );
    assert_eq!(names[9], "UVM_MAP_EXTERNAL_ALLOCATION");
    assert_eq!(names[10], "mmap of Card");
}

#[test]
fn what_has_no_row_is_listed_once_with_its_number() {
    let strange = [
        control_call(0x2080_ffff),
        control_call(0x2080_ffff),
        allocation(0xdead),
        What::ioctl(On::Uvm, 99, &[]),
        What::ioctl(On::Card, 0xc010_46fe, &[]),
    ];
    let calls: Vec<Call> = program()
        .into_iter()
        .chain(strange)
        .map(|what| answered(what, Answer::Errno(22)))
        .collect();
    let found: Vec<_> = unknown(&calls)
        .into_iter()
        .map(|it| (it.kind, it.call, it.times, it.answer))
        .collect();
    let row = |kind, call: &str, times| {
        (
            kind,
            call.to_owned(),
            times,
            "EINVAL: Invalid argument".to_owned(),
        )
    };
    let expected = [
        row("control", "NV_ESC_RM_CONTROL 0x2080ffff", 2),
        row("class", "NV_ESC_RM_ALLOC_LONG 0xdead", 1),
        row("ioctl of nvidia-uvm", "UVM call 0x63", 1),
        row("ioctl of nvidia", "ioctl 254 of 16 bytes", 1),
    ];
    assert_eq!(found, expected);
}

#[test]
fn files_are_told_by_their_names() {
    for (path, on) in [
        ("/dev/nvidiactl", Some(On::Ctl)),
        ("/run/x/nvidia12", Some(On::Card)),
        ("/dev/nvidia-uvm", Some(On::Uvm)),
        ("/memfd:cgpu-sim-uvm (deleted)", Some(On::Uvm)),
        ("/dev/nvidia-uvm-tools", None),
        ("/dev/nvidia", None),
        ("/dev/nvidia-modeset", None),
        ("/dev/null", None),
        ("", None),
    ] {
        assert_eq!(On::named(path), on, "{path}");
    }
}

proptest! {
    /// No order in which threads mix their calls makes a difference, and a program that goes on after a refusal loses none.
    #[test]
    fn threads_may_mix_their_calls(order in Just(program()).prop_shuffle(), refused in 0_usize..11) {
        let native: Vec<Call> = program()
            .into_iter()
            .map(|what| answered(what, Answer::Status(0)))
            .collect();
        let mut here: Vec<Call> = order
            .into_iter()
            .map(|what| answered(what, Answer::Status(0)))
            .collect();
        prop_assert_eq!(differences(&native, &here), []);
        here[refused].answer = Answer::Errno(1);
        let found = differences(&native, &here);
        prop_assert_eq!(found.len(), 1);
        prop_assert_eq!(found[0].step, refused + 1);
    }

    #[test]
    fn any_call_has_a_name(on in 0..3_usize, number: u32, arg in proptest::collection::vec(any::<u8>(), 0..64)) {
        let on = [On::Ctl, On::Card, On::Uvm][on];
        let what = What::ioctl(on, number, &arg);
        prop_assert!(!what.to_string().is_empty());
        let _status = what.status(number, &arg, Some(RELEASE));
    }
}

/// A program that is not traced is an error, and not waited for.
#[test]
fn a_program_is_followed_to_its_end() {
    // The recorder starts its own program again, which a test's is not: a shell does what the program would.
    let held = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    };
    let refused = record(&mut held("exit 3"), None).unwrap_err();
    assert!(
        refused.to_string().contains("cannot be traced"),
        "{refused}"
    );
}
