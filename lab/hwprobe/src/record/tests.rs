use std::process::Command;

use nvabi::bytes::put_u32;
use nvabi::layout::{nvos21, nvos54};
use nvabi::{Release, control, escape, uvm};
use proptest::prelude::*;

use super::bytes::{self, Place};
use super::call::On;
use super::difference::OtherAnswer;
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
        bytes: None,
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
fn files_are_reported_by_their_names() {
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

fn with_params(what: What, requested: &str, answered: &str) -> Call {
    let blocks = |params: &str| vec!["00".to_owned(), params.to_owned()];
    let bytes = Bytes {
        requested: blocks(requested),
        answered: if requested == answered {
            Vec::new()
        } else {
            blocks(answered)
        },
    };
    Call {
        bytes: Some(bytes),
        ..answered_well(what)
    }
}

fn answered_well(what: What) -> Call {
    answered(what, Answer::Status(0))
}

#[test]
fn controls_that_are_answered_otherwise_are_named_with_the_first_byte_that_differs() {
    let figures = || control_call(control::NV2080_CTRL_CMD_FB_GET_INFO_V2);
    let other = || control_call(control::NV0000_CTRL_CMD_SYSTEM_GET_FEATURES);
    let native = [
        with_params(figures(), "00000000", "0000beef"),
        with_params(figures(), "0a", "0b"),
        with_params(other(), "01", "01"),
        with_params(allocation(0x40), "00", "01"),
    ];
    let mut here = native.clone();
    assert_eq!(other_answers(&native, &here), []);
    here[0] = with_params(figures(), "00000000", "0000be00");
    here[1] = with_params(figures(), "0a", "0c");
    here[2] = with_params(other(), "01", "02");
    // A handle or an address: allocations are not compared.
    here[3] = with_params(allocation(0x40), "00", "02");
    let found = other_answers(&native, &here);
    let row = |it: &OtherAnswer| (it.call.clone(), it.at, it.natively.clone(), it.here.clone());
    assert_eq!(
        found.iter().map(row).collect::<Vec<_>>(),
        [
            (figures().to_string(), 3, "ef".to_owned(), "00".to_owned()),
            (other().to_string(), 0, "01".to_owned(), "02".to_owned()),
        ]
    );
    // One that was refused is among the differences.
    here[2].answer = Answer::Status(0x56);
    assert_eq!(other_answers(&native, &here).len(), 1);
}

#[test]
fn parameters_and_lists_of_a_call_are_found_by_its_row_or_by_its_own_words() {
    const PARAMS: u64 = 0x7000;
    const LIST: u64 = 0x9000;
    let read = |place: Place| {
        let mut block = vec![0; place.bytes];
        if place.address == PARAMS && block.len() >= 16 {
            put_u32(&mut block, 0, 3);
            nvabi::bytes::put_u64(&mut block, 8, LIST);
        }
        block
    };
    let of_control = |cmd, bytes| {
        let mut arg = vec![0; 32];
        put_u32(&mut arg, nvos54::CMD, cmd);
        put_u32(&mut arg, nvos54::PARAMS_SIZE, bytes);
        nvabi::bytes::put_u64(&mut arg, nvos54::P_PARAMS, PARAMS);
        let cmd = escape::NV_ESC_RM_CONTROL.cmd(RELEASE);
        bytes::places(On::Ctl, cmd, &arg, Some(RELEASE), read)
    };
    let place = |address, bytes| Place { address, bytes };
    assert_eq!(
        of_control(control::NV2080_CTRL_CMD_GPU_GET_INFO, 16),
        [place(PARAMS, 16), place(LIST, 24)]
    );
    assert_eq!(of_control(0x2080_ffff, 40), [place(PARAMS, 40)]);
    assert_eq!(of_control(0x2080_ffff, 0), []);
    // A length that a program made up is no reason to read everything.
    assert_eq!(of_control(0x2080_ffff, u32::MAX)[0].bytes, 16 << 10);
    let of_class = |number| {
        let mut arg = vec![0; 48];
        put_u32(&mut arg, nvos21::H_CLASS, number);
        nvabi::bytes::put_u64(&mut arg, nvos21::P_PARAMS, PARAMS);
        let cmd = escape::NV_ESC_RM_ALLOC_LONG.cmd(RELEASE);
        bytes::places(On::Ctl, cmd, &arg, Some(RELEASE), read)
    };
    assert_eq!(of_class(0x40), [place(PARAMS, 128)]);
    assert_eq!(of_class(0xdead), [place(PARAMS, 512)]);
    assert_eq!(of_class(0xc461), []);
}
