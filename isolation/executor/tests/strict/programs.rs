//! What real programs ask, by their tables (`rmprogram::program`), from inside a slice.

use std::io;
use std::os::fd::AsFd;

use driver::{Binding, Driver};
use nvabi::Release;
use rmclient::Nodes;
use rmprogram::program::{Answer, Expected, Program};
use sys::seccomp::Wait;

use crate::fixture::{Fixture, MIB, NODES, WORD};
use crate::{Test, launch, until};

pub(crate) const TESTS: &[Test] = &[
    ("no_step_of_cu_init_is_refused", || plays("cuInit", 0)),
    ("no_step_of_cu_ctx_create_is_refused", || {
        plays("cuCtxCreate", 0);
    }),
    ("no_step_of_cu_mem_alloc_is_refused", || {
        plays("cuMemAlloc", 0);
    }),
    ("no_step_of_cu_memcpy_is_refused", || plays("cuMemcpy", 0)),
    ("no_step_of_cu_mem_map_is_refused", || plays("cuMemMap", 0)),
    ("no_step_of_cu_mem_host_register_is_refused", || {
        plays("cuMemHostRegister", 0);
    }),
    ("no_step_of_sharing_memory_is_refused", || plays("ipc", 0)),
    ("what_nccl_is_refused_is_in_its_table", || {
        plays("nccl", 5);
    }),
    ("what_nvml_is_refused_is_in_its_table", || {
        plays("nvml", 5);
    }),
    ("every_program_has_a_test", every_program_has_a_test),
];

/// A tenant that plays the table of the name in `WORD`.
pub(crate) const PLAYER: &str = "player";

/// In the player's process: an answer a message, in the order of the steps.
pub(crate) fn player() -> io::Result<()> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    launch::confine(&socket, Wait::Interruptible)?;
    let nodes = Nodes::in_dir(std::env::var_os(NODES).unwrap());
    // The program's numbers of files are not, by luck, the executor's of the same files.
    let _further = std::fs::File::open("/dev/null")?;
    let program = Program::named(&std::env::var(WORD).unwrap());
    let answers = program.unwrap().unwrap().play(&nodes, Release::R570);
    for answer in answers.unwrap() {
        sys::fd_passing::send(socket.as_fd(), answer.to_string().as_bytes(), &[])?;
    }
    // What the program still has is looked at before it ends.
    sys::fd_passing::receive(socket.as_fd(), &mut [0; 8])?;
    Ok(())
}

/// None of the tables is left out above.
fn every_program_has_a_test() {
    let source = include_str!("programs.rs");
    for name in Program::names() {
        assert!(source.contains(&format!("plays(\"{name}\", ")), "{name}");
    }
}

/// Plays a program: each step is answered as its table says, of a hundred steps no more than so many are refused, the ledger has what the cards
/// count, and nothing is left of it.
fn plays(name: &str, refused_percent: usize) {
    let program = Program::named(name).unwrap().unwrap();
    let fixture = Fixture::narrowing(256 * MIB, Binding::None);
    let (mut child, socket) = fixture.process(PLAYER, name);
    let mut wrong = Vec::new();
    let mut refused = 0;
    for step in program.steps() {
        let mut buffer = [0; 256];
        let (count, _) = sys::fd_passing::receive(socket.as_fd(), &mut buffer).unwrap();
        let answer = std::str::from_utf8(&buffer[..count]).unwrap();
        let expected = match &step.expected {
            Expected::Done => Answer::Done,
            Expected::Native { status, .. } => Answer::Refused(*status),
            Expected::Refused { status, .. } => {
                refused += 1;
                Answer::Refused(*status)
            }
        };
        if answer != expected.to_string() {
            let (line, what) = (step.line, &step.what);
            wrong.push(format!(
                "{name}.tsv:{line}: {what}: {answer}, not {expected}"
            ));
        }
    }
    fixture.assert_exact(fixture.kernel.held_bytes());
    // The files' end is strict mode's: what they had is freed by calls of the executor's.
    fixture.bind(Binding::Executor);
    sys::fd_passing::send(socket.as_fd(), b"go on", &[]).unwrap();
    assert!(child.wait().unwrap().success());
    until("all that it had is given up", || {
        fixture.reconcile();
        fixture.used_bytes() == 0 && fixture.executor().held().unwrap().is_empty()
    });
    // Nobody has its files open any more, and what they carried ends with them.
    fixture.kernel.close_files();
    fixture.assert_exact(0);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let steps = program.steps().len();
    assert!(
        100 * refused <= refused_percent * steps,
        "{refused} of {steps}"
    );
}
