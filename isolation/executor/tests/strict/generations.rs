//! A card of each generation through the broker and the executor: each of its engines is given a channel, work and a fence by a program in
//! the container, and what a container has not is refused.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use driver::{Binding, Driver};
use nvabi::Release;
use nvabi::capability::Capabilities;
use rmclient::{Client, Nodes};
use rmprogram::{CardMemory, Engine, EngineChannel, EngineClass, Space, Uvm};
use sys::seccomp::Wait;

use crate::fixture::{CONTEXTS, Fixture, MIB, NODES, WORD};
use crate::{Test, launch, until};

pub(crate) const TESTS: &[Test] = &[
    ("generations::pascal", || works("pascal")),
    ("generations::volta", || works("volta")),
    ("generations::turing", || works("turing")),
    ("generations::ga100", || works("ga100")),
    ("generations::ga10x", || works("ga10x")),
    ("generations::ada", || works("ada")),
    ("generations::hopper", || works("hopper")),
    ("generations::gb100", || works("gb100")),
    ("generations::blackwell", || works("blackwell")),
    (
        "generations::compute_and_copies_need_no_capability",
        compute_and_copies_need_no_capability,
    ),
    (
        "generations::engines_of_capabilities_that_are_not_had_are_no_class_and_compute_works",
        engines_of_capabilities_that_are_not_had_are_no_class_and_compute_works,
    ),
];

const ARCHITECTURES: [&str; 9] = [
    "pascal",
    "volta",
    "turing",
    "ga100",
    "ga10x",
    "ada",
    "hopper",
    "gb100",
    "blackwell",
];

/// A tenant that gives engines work: those of its card's list, and those of the class numbers in `WORD`.
pub(crate) const WORKER: &str = "worker";
/// More than any work takes that ends at all.
const PATIENCE: Duration = Duration::from_secs(20);
/// The area of a channel.
const AREA_BYTES: u64 = 2 * MIB;

/// In the worker's process: a message for each class with what came of it, once its channel is there and once it is freed, with a pause each.
pub(crate) fn worker() -> io::Result<()> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    launch::confine(&socket, Wait::Interruptible)?;
    let step = |word: String| {
        sys::fd_passing::send(socket.as_fd(), word.as_bytes(), &[]).unwrap();
        sys::fd_passing::receive(socket.as_fd(), &mut [0; 8]).unwrap();
    };
    let client = Client::connect(&Nodes::in_dir(std::env::var_os(NODES).unwrap())).unwrap();
    let cards = client.cards().unwrap();
    let card = &cards[0];
    let uvm = Uvm::open(&client).unwrap();
    let uuid = card.uuid().unwrap();
    uvm.register(uuid).unwrap();
    let handle = card.va_space().unwrap();
    uvm.register_va_space(uuid, handle).unwrap();
    let space = Space {
        uvm: &uvm,
        uuid,
        handle,
    };
    let mut classes = EngineClass::all(card).unwrap();
    let more = std::env::var(WORD).unwrap();
    let more = more
        .split_whitespace()
        .map(|number| number.parse().unwrap())
        .filter_map(|number| EngineClass::of(number, client.release()));
    classes.extend(more);
    step("listed".to_owned());
    for (place, class) in (1..).zip(classes) {
        match EngineChannel::make(card, space, class, place, PATIENCE) {
            Ok(mut channel) => {
                let done = channel.work();
                step(format!("{} made {done:?}", class.number));
                channel.free().unwrap();
                step(format!("{} freed", class.number));
            }
            Err(error) => {
                let status = error.status().map(|status| status.0);
                step(format!("{} refused {status:?}", class.number));
            }
        }
    }
    step("end".to_owned());
    Ok(())
}

/// The worker's messages, each with a look at the stage.
fn messages(fixture: &Fixture, more: &str, mut look: impl FnMut(&str)) {
    let (mut child, socket) = fixture.process(WORKER, more);
    loop {
        let mut buffer = [0; 512];
        let (count, _) = sys::fd_passing::receive(socket.as_fd(), &mut buffer).unwrap();
        let message = std::str::from_utf8(&buffer[..count]).unwrap();
        assert_ne!(message, "", "the worker has ended");
        look(message);
        if message == "end" {
            // The files' end is strict mode's: what they had is freed by calls of the executor's.
            fixture.bind(Binding::Executor);
        }
        sys::fd_passing::send(socket.as_fd(), b"go on", &[]).unwrap();
        if message == "end" {
            break;
        }
    }
    assert!(child.wait().unwrap().success());
    until("all that it had is given up", || {
        fixture.reconcile();
        fixture.used_bytes() == 0 && fixture.executor().held().unwrap().is_empty()
    });
    fixture.kernel.close_files();
    fixture.assert_exact(0);
}

/// What a channel of a class takes: its area, what it is itself, and its group's context.
fn taken(class: EngineClass) -> u64 {
    let context = match class.engine {
        Engine::Compute | Engine::ThreeD | Engine::TwoD | Engine::InlineToMemory => {
            CONTEXTS.channel_group
        }
        Engine::Copy | Engine::Decoder | Engine::Encoder | Engine::Jpeg | Engine::OpticalFlow => {
            CONTEXTS.other_group
        }
    };
    AREA_BYTES + CONTEXTS.channel + context
}

fn class_of(message: &str) -> EngineClass {
    let number = message.split(' ').next().unwrap().parse().unwrap();
    EngineClass::of(number, Release::R570).unwrap()
}

/// Every engine of a card of the architecture does its work, is charged while it is there, and leaves nothing.
fn works(architecture: &str) {
    let fixture = Fixture::of_generation(architecture, Capabilities::ALL);
    let mut seen = Vec::new();
    messages(&fixture, "", |message| {
        if let Some((_, reply)) = message.split_once(" made ") {
            let class = class_of(message);
            assert_eq!(reply, "Ok(())", "{}", class.name);
            fixture.assert_exact(taken(class));
            seen.push(class.engine);
        } else {
            fixture.assert_exact(0);
            assert!(!message.contains("refused"), "{message}");
        }
    });
    let encodes = !["ga100", "hopper", "gb100"].contains(&architecture);
    let is_new = !["pascal", "volta", "turing"].contains(&architecture);
    for (engine, expect) in [
        (Engine::Compute, true),
        (Engine::ThreeD, true),
        (Engine::TwoD, true),
        (Engine::InlineToMemory, true),
        (Engine::Copy, true),
        (Engine::Decoder, true),
        (Engine::Encoder, encodes),
        (Engine::Jpeg, is_new && architecture != "ga10x"),
        (Engine::OpticalFlow, is_new),
    ] {
        assert_eq!(seen.contains(&engine), expect, "{engine:?}");
    }
}

/// And nothing else of engines is in the card's list.
fn compute_and_copies_need_no_capability() {
    for architecture in ARCHITECTURES {
        let fixture = Fixture::of_generation(architecture, Capabilities::default());
        let mut seen = Vec::new();
        messages(&fixture, "", |message| {
            if let Some((_, reply)) = message.split_once(" made ") {
                assert_eq!(reply, "Ok(())", "{architecture} {message}");
                seen.push(class_of(message).engine);
            }
            assert!(!message.contains("refused"), "{architecture} {message}");
        });
        assert_eq!(seen, [Engine::Compute, Engine::Copy], "{architecture}");
    }
}

/// Also of a class that the card has and its list does not show.
fn engines_of_capabilities_that_are_not_had_are_no_class_and_compute_works() {
    // Of Ada: 3D, 2D, inline-to-memory, and the four video engines.
    const GRAPHICS: [u32; 3] = [0xc997, 0x902d, 0xa140];
    const VIDEO: [u32; 4] = [0xc9b0, 0xc9b7, 0xc9d1, 0xc9fa];
    let numbers = GRAPHICS.iter().chain(&VIDEO);
    let more: Vec<String> = numbers.map(u32::to_string).collect();
    for (graphics, video) in [(false, false), (true, false), (false, true)] {
        let capabilities = Capabilities { graphics, video };
        let fixture = Fixture::of_generation("ada", capabilities);
        let (mut made, mut refused) = (Vec::new(), Vec::new());
        messages(&fixture, &more.join(" "), |message| {
            if let Some((_, reply)) = message.split_once(" refused ") {
                // Of a video engine the channel's group is refused before anything can be made on it.
                let number = class_of(message).number;
                let status = match VIDEO.contains(&number) {
                    true => nvabi::status::NV_ERR_INVALID_ARGUMENT,
                    false => nvabi::status::NV_ERR_INVALID_CLASS,
                };
                assert_eq!(reply, format!("Some({status})"), "{number:#x}");
                refused.push(number);
            } else if let Some((_, reply)) = message.split_once(" made ") {
                assert_eq!(reply, "Ok(())", "{message}");
                made.push(class_of(message).number);
            }
        });
        let is_had = |number: &u32| match (GRAPHICS.contains(number), VIDEO.contains(number)) {
            (true, _) => graphics,
            (_, true) => video,
            (false, false) => true,
        };
        assert!(made.iter().all(is_had), "{made:x?}");
        assert!(
            made.contains(&0xc9c0) && made.contains(&0xc7b5),
            "{made:x?}"
        );
        let expect = GRAPHICS.iter().chain(&VIDEO);
        let expect: Vec<u32> = expect.copied().filter(|number| !is_had(number)).collect();
        assert_eq!(refused, expect, "{capabilities:?}");
    }
}
