//! What real programs ask, by their tables (`rmclient::program`), from inside a slice.

use std::io;
use std::os::fd::AsFd;

use nvabi::Release;
use rmclient::Nodes;
use rmclient::program::{Answer, Expected, Program};
use sys::seccomp::Wait;

use crate::stage::{MIB, NODES, Stage, WORD};
use crate::{Test, launch};

pub(crate) const TESTS: &[Test] = &[
    ("no_step_of_cu_init_is_refused", || plays("cuInit", 0)),
    ("no_step_of_cu_ctx_create_is_refused", || {
        plays("cuCtxCreate", 0);
    }),
];

/// A tenant that plays the table of the name that it is told.
pub(crate) const PLAYER: &str = "player";

/// In the player's process: an answer a message, in the order of the steps.
pub(crate) fn player() -> io::Result<()> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    launch::confine(&socket, Wait::Interruptible)?;
    let nodes = Nodes::in_dir(std::env::var_os(NODES).unwrap());
    let program = Program::named(&std::env::var(WORD).unwrap());
    let answers = program.unwrap().unwrap().play(&nodes, Release::R570);
    for answer in answers.unwrap() {
        sys::fd_passing::send(socket.as_fd(), answer.to_string().as_bytes(), &[])?;
    }
    Ok(())
}

/// Plays a program: each step is answered as its table says, and of a hundred steps no more than so many are refused.
fn plays(name: &str, refused_percent: usize) {
    let program = Program::named(name).unwrap().unwrap();
    let stage = Stage::narrowing(256 * MIB);
    let (mut child, socket) = stage.process(PLAYER, name);
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
    assert!(child.wait().unwrap().success());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let steps = program.steps().len();
    assert!(
        100 * refused <= refused_percent * steps,
        "{refused} of {steps}"
    );
}
