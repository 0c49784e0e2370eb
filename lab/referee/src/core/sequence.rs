//! Calls that RM can judge without a card: their text, and how they are drawn.

use std::fmt;

use nvabi::control::{self, Control};
use nvabi::{Release, class};

use crate::sequence::{Handle, Random, Sequence};

/// What a call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the driver's own names for what a call holds")]
pub enum Request {
    /// A client. `needed` is the handle that it is to have, or 0.
    Client {
        needed: Handle,
        class: u32,
        has_params: bool,
    },
    /// An object, by the short or the long call.
    Alloc {
        client: Handle,
        parent: Handle,
        handle: Handle,
        class: u32,
        has_params: bool,
        is_long: bool,
    },
    /// An object of a card, with the parameters that matter.
    Make {
        client: Handle,
        parent: Handle,
        handle: Handle,
        made: Made,
    },
    /// An event of `source`, an object of the client `of`.
    Event {
        client: Handle,
        parent: Handle,
        handle: Handle,
        of: Handle,
        source: Handle,
        number: u32,
    },
    /// Another handle for an object.
    Dup {
        from: Handle,
        object: Handle,
        to: Handle,
        parent: Handle,
        handle: Handle,
    },
    /// A share policy.
    Share {
        client: Handle,
        object: Handle,
        kind: u16,
        target: Handle,
        rights: u32,
        action: u8,
    },
    /// The end of an object, or of a client.
    Free { client: Handle, object: Handle },
    /// A mapping for the CPU, by a file that nothing is mapped by yet; 0: by none.
    Map {
        client: Handle,
        device: Handle,
        memory: Handle,
        by: u32,
    },
    /// The end of one.
    Unmap {
        client: Handle,
        device: Handle,
        memory: Handle,
    },
    /// A mapping into an address space.
    MapDma {
        client: Handle,
        device: Handle,
        by: Handle,
        memory: Handle,
        length_bytes: u64,
    },
    /// A control, whose parameters begin with `word`.
    Control {
        client: Handle,
        object: Handle,
        cmd: u32,
        size: Size,
        word: Handle,
        flags: u32,
    },
    /// A descriptor is made an event's, or is one no longer.
    OsEvent {
        client: Handle,
        number: u32,
        is_made: bool,
    },
    /// A card's file is to act for a control file.
    Register { control: u32 },
    /// The last descriptor of a file is closed.
    Close,
}

/// An object of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the driver's own names for what a call holds")]
pub enum Made {
    /// NV01_DEVICE_0
    Device { instance: u32 },
    /// NV20_SUBDEVICE_0
    Subdevice { id: u32 },
    /// Memory of a card, of the host, or of none.
    Memory {
        class: u32,
        size_bytes: u64,
        flags: u32,
        attr: u32,
        space: Handle,
    },
    /// Of an address space: NV01_MEMORY_VIRTUAL, all of it, or NV50_MEMORY_VIRTUAL, a part.
    Virtual { class: u32, space: Handle },
    /// FERMI_VASPACE_A
    Space,
    /// KEPLER_CHANNEL_GROUP_A
    Group { engine: u32, space: Handle },
    /// FERMI_CONTEXT_SHARE_A
    ContextShare { space: Handle },
    /// An object whose parameters begin with a word, and are zeros.
    Other { class: u32, word: u32 },
}

impl fmt::Display for Made {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device { instance } => write!(to, "device {instance}"),
            Self::Subdevice { id } => write!(to, "subdevice {id}"),
            Self::Memory {
                class,
                size_bytes,
                flags,
                attr,
                space,
            } => write!(
                to,
                "memory {class:#x} {size_bytes:#x} {flags:#x} {attr:#x} {space}"
            ),
            Self::Virtual { class, space } => write!(to, "virtual {class:#x} {space}"),
            Self::Space => to.write_str("space"),
            Self::Group { engine, space } => write!(to, "group {engine:#x} {space}"),
            Self::ContextShare { space } => write!(to, "context-share {space}"),
            Self::Other { class, word } => write!(to, "{class:#x} {word}"),
        }
    }
}

/// How long a control says that its parameters are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// As they are.
    Right,
    /// So many bytes more.
    More(u32),
    /// As they are, with no address.
    Nowhere,
    /// An address and no bytes.
    Nothing,
}

impl fmt::Display for Size {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Right => to.write_str("right"),
            Self::More(bytes) => write!(to, "+{bytes}"),
            Self::Nowhere => to.write_str("nowhere"),
            Self::Nothing => to.write_str("nothing"),
        }
    }
}

/// A kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `/dev/nvidiactl`
    Control,
    /// `/dev/nvidia0`
    Card,
}

/// The kind of each file, by number.
pub(super) const fn kind_of(file: u32) -> Kind {
    if file <= CONTROL_FILES || file >= MORE_CONTROL_FILES {
        Kind::Control
    } else {
        Kind::Card
    }
}

/// The first files are control files, and two behind them are a card's.
pub(super) const CONTROL_FILES: u32 = 2;

/// From here on they are control files again, by which memory of the host is mapped.
pub(super) const MORE_CONTROL_FILES: u32 = 32;

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requested {
    /// Its number, which it keeps when calls before it are taken out.
    pub id: u32,
    /// The process that makes it. Each is of a user of its own.
    pub pid: u32,
    /// The caller is an administrator.
    pub is_admin: bool,
    /// The file that it is made on.
    pub file: u32,
    /// What it asks for.
    pub request: Request,
}

impl fmt::Display for Requested {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id,
            pid,
            is_admin,
            file,
            request,
        } = self;
        let who = format!("{pid}{}/{file}", if *is_admin { "*" } else { "" });
        match request {
            Request::Client {
                needed,
                class,
                has_params,
            } => write!(
                to,
                "{id} client {who} {needed} {class:#x}{}",
                without(*has_params)
            ),
            Request::Alloc {
                client,
                parent,
                handle,
                class,
                has_params,
                is_long,
            } => write!(
                to,
                "{id} alloc {who} {client} {parent} {handle} {class:#x}{}{}",
                without(*has_params),
                if *is_long { " long" } else { "" }
            ),
            Request::Make {
                client,
                parent,
                handle,
                made,
            } => write!(to, "{id} make {who} {client} {parent} {handle} {made}"),
            Request::Event {
                client,
                parent,
                handle,
                of,
                source,
                number,
            } => write!(
                to,
                "{id} event {who} {client} {parent} {handle} of {of} {source} by {number}"
            ),
            Request::Dup {
                from,
                object,
                to: into,
                parent,
                handle,
            } => write!(
                to,
                "{id} dup {who} {from} {object} {into} {parent} {handle}"
            ),
            Request::Share {
                client,
                object,
                kind,
                target,
                rights,
                action,
            } => write!(
                to,
                "{id} share {who} {client} {object} {kind} {target} {rights} {action}"
            ),
            Request::Free { client, object } => write!(to, "{id} free {who} {client} {object}"),
            Request::Map {
                client,
                device,
                memory,
                by,
            } => write!(to, "{id} map {who} {client} {device} {memory} {by}"),
            Request::Unmap {
                client,
                device,
                memory,
            } => write!(to, "{id} unmap {who} {client} {device} {memory}"),
            Request::MapDma {
                client,
                device,
                by,
                memory,
                length_bytes,
            } => write!(
                to,
                "{id} map-dma {who} {client} {device} {by} {memory} {length_bytes:#x}"
            ),
            Request::Control {
                client,
                object,
                cmd,
                size,
                word,
                flags,
            } => write!(
                to,
                "{id} control {who} {client} {object} {cmd:#x} {size} {word} {flags}"
            ),
            Request::OsEvent {
                client,
                number,
                is_made,
            } => write!(
                to,
                "{id} {} {who} {client} {number}",
                if *is_made { "osevent" } else { "noevent" }
            ),
            Request::Register { control } => write!(to, "{id} register {who} {control}"),
            Request::Close => write!(to, "{id} close {who}"),
        }
    }
}

const fn without(has_params: bool) -> &'static str {
    if has_params { "" } else { " without" }
}

impl Sequence<Requested> {
    /// The sequence of a number of a seed, for a driver version.
    #[must_use]
    pub fn for_core(release: Release, seed: u64, number: u64) -> Self {
        let mut draw = Draw {
            release,
            random: Random::of(seed, number),
            calls: Vec::new(),
            clients: Vec::new(),
            objects: Vec::new(),
        };
        for _ in 0..draw.random.below(3) {
            draw.client();
        }
        let calls = 6 + draw.random.below(42);
        while draw.calls.len() < calls {
            draw.call();
        }
        Self(draw.calls)
    }
}

fn request_ends_client(request: &Request) -> bool {
    matches!(request, Request::Free { client, object } if client == object)
}

const NO_CLIENT: Handle = Handle::Number(0xdead_0000);
/// Handles that calls choose for objects and for clients, so few that they meet.
const CHOSEN: u32 = 0x5c00_0000;
const CHOSEN_CLIENT: u32 = 0xc1d0_7000;
/// Of classes that no driver has.
const NO_CLASSES: &[u32] = &[0x0003, 0x1234, 0xdead, 0xffff, 0x0001_0041, u32::MAX];
/// Of controls that no driver has, and of those that are nothing by rule.
const NO_CONTROLS: &[u32] = &[
    0x0000_7fff,
    0x0000_0ffe,
    0x2080_fffe,
    0x0080_fffe,
    0xffff_fffe,
    0x1234_0101,
    0,
    0x2080_0000,
    0x00de_0000,
];

/// Once RM has answered them it keeps the answer, and gives it to whoever names a client, whosever that is and whatever the object
/// (`rmapiControlCacheGet`, rmapi_cache.c); the first is made into the second.
const KEPT_ANSWERS: &[u32] = &[
    control::NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION,
    control::NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION_V2,
    control::NV0000_CTRL_CMD_GPU_GET_MEMOP_ENABLE,
];

struct Draw {
    release: Release,
    random: Random,
    calls: Vec<Requested>,
    /// The call of each client that is not freed, and its file.
    clients: Vec<(u32, u32)>,
    /// The call of each object, and its client's.
    objects: Vec<(u32, u32)>,
}

impl Draw {
    fn add(&mut self, file: u32, request: Request) -> u32 {
        let id = u32::try_from(self.calls.len() + 1).unwrap_or(u32::MAX);
        let pid = self
            .random
            .weighted(&[(60, 100), (25, 101), (15, 102)])
            .unwrap_or(100);
        self.calls.push(Requested {
            id,
            pid,
            is_admin: self.random.percent(10),
            file,
            request,
        });
        id
    }

    fn control_file(&mut self) -> u32 {
        self.random.weighted(&[(75, 1), (25, 2)]).unwrap_or(1)
    }

    /// The file to name a client on: most often its own.
    fn file_for(&mut self, client: Option<(u32, u32)>) -> u32 {
        match client {
            Some((_, own)) if self.random.percent(92) => own,
            _other if self.random.percent(80) => self.control_file(),
            _other => CONTROL_FILES + 1 + self.random.small(2),
        }
    }

    fn some_client(&mut self) -> (Option<(u32, u32)>, Handle) {
        let drawn = match self.random.below(100) {
            0..4 => None,
            4..55 => self.clients.first().copied(),
            _ => self.random.one(&self.clients),
        };
        match drawn {
            Some((id, _)) => (drawn, Handle::Made(id)),
            None if self.random.percent(50) => (None, self.chosen_client()),
            None => (None, NO_CLIENT),
        }
    }

    fn chosen_client(&mut self) -> Handle {
        Handle::Number(CHOSEN_CLIENT + self.random.small(3))
    }

    /// An object of a client that is none of the client's own.
    fn some_object(&mut self, client: Option<(u32, u32)>) -> Handle {
        let own: Vec<u32> = self
            .objects
            .iter()
            .filter(|(_, of)| client.is_some_and(|(id, _)| id == *of))
            .map(|(id, _)| *id)
            .collect();
        let all: Vec<u32> = self.objects.iter().map(|(id, _)| *id).collect();
        let drawn = match self.random.below(100) {
            0..35 => own.last().copied(),
            35..75 => self.random.one(&own),
            75..85 => self.random.one(&all),
            _ => None,
        };
        match drawn {
            Some(id) => Handle::Made(id),
            None => Handle::Number(match self.random.below(3) {
                0 => 0xbad,
                1 => CHOSEN + self.random.small(8),
                _ => 0xcaf0_0000 + self.random.small(6),
            }),
        }
    }

    /// The client itself so often of a hundred times, or an object of it, or nothing.
    fn target(&mut self, client: Option<(u32, u32)>, handle: Handle, root: usize) -> Handle {
        if self.random.percent(root) {
            handle
        } else if self.random.percent(6) {
            Handle::Number(0)
        } else {
            self.some_object(client)
        }
    }

    fn new_handle(&mut self, client: Handle) -> Handle {
        match self.random.below(100) {
            0..66 => Handle::Number(0),
            66..84 => Handle::Number(CHOSEN + self.random.small(12)),
            84..90 => Handle::Number(0xcaf0_0000 + self.random.small(12)),
            // Before 550 the status of the parent is written over, by one or another of a class's locks.
            90..95 if self.release >= Release::R550 => client,
            _ => self.some_object(None),
        }
    }

    fn call(&mut self) {
        let most = if self.clients.is_empty() { 60 } else { 5 };
        match self.random.below(100) {
            drawn if drawn < most => self.client(),
            5..27 => self.alloc(),
            27..40 => self.event(),
            40..46 => self.dup(),
            46..55 => self.share(),
            55..62 => self.free(),
            62..66 => self.map(),
            66..87 => self.control(),
            87..94 => self.os_event(),
            94..97 => self.register(),
            _ => self.close(),
        }
    }

    fn client(&mut self) {
        let needed = match self.random.below(100) {
            0..85 => Handle::Number(0),
            85..95 => self.chosen_client(),
            _ => self.some_client().1,
        };
        let request = Request::Client {
            needed,
            class: self
                .random
                .one(&[class::NV01_ROOT_CLIENT, 0, 1])
                .unwrap_or(0),
            has_params: self.random.percent(30),
        };
        let file = match self.random.percent(97) {
            true => self.control_file(),
            false => CONTROL_FILES + 1,
        };
        let id = self.add(file, request);
        self.clients.push((id, file));
    }

    fn alloc(&mut self) {
        let (of, client) = self.some_client();
        // Classes of cards that the open modules do not drive are in no table of theirs.
        let known: Vec<u32> = class::ALL
            .iter()
            .filter(|row| row.until.is_none())
            .filter(|class| class.kind != class::Kind::Root && class.kind != class::Kind::Event)
            .map(|class| class.number)
            .collect();
        let number = match self.random.below(100) {
            0..30 => class::MPS_COMPUTE,
            30..42 => class::NV_CONFIDENTIAL_COMPUTE,
            42..50 => self.random.one(NO_CLASSES).unwrap_or(0),
            _ => self.random.one(&known).unwrap_or(0),
        };
        let parent = match number {
            // Without a card there is no device: what is asked before that alone is judged.
            class::NV01_DEVICE_0 => self.some_object(of),
            _ => self.target(of, client, 60),
        };
        let request = Request::Alloc {
            client,
            parent,
            handle: self.new_handle(client),
            class: number,
            has_params: self.random.percent(85),
            is_long: self.random.percent(30),
        };
        let file = self.file_for(of);
        let id = self.add(file, request);
        self.record(of, id);
    }

    fn record(&mut self, client: Option<(u32, u32)>, id: u32) {
        self.objects.extend(client.map(|(client, _)| (id, client)));
    }

    fn event(&mut self) {
        let (of, client) = self.some_client();
        let number = self.number();
        if self.random.percent(50) {
            let file = self.file_for(of);
            self.add(
                file,
                Request::OsEvent {
                    client,
                    number,
                    is_made: true,
                },
            );
        }
        let notifier = match self.random.below(100) {
            0..40 => Handle::Number(0),
            40..80 => client,
            _ => self.some_client().1,
        };
        let source = match notifier {
            Handle::Number(0) => client,
            other => other,
        };
        let request = Request::Event {
            client,
            parent: self.target(of, client, 60),
            handle: self.new_handle(client),
            of: notifier,
            source: self.target(of, source, 75),
            number,
        };
        let file = self.file_for(of);
        let id = self.add(file, request);
        self.record(of, id);
    }

    fn number(&mut self) -> u32 {
        5 + self.random.small(3)
    }

    fn dup(&mut self) {
        let ((from_of, from), (to_of, to)) = (self.some_client(), self.some_client());
        let request = Request::Dup {
            from,
            object: self.target(from_of, from, 15),
            to,
            parent: self.target(to_of, to, 80),
            handle: self.new_handle(to),
        };
        let file = self.file_for(to_of);
        let id = self.add(file, request);
        self.record(to_of, id);
    }

    fn share(&mut self) {
        let (of, client) = self.some_client();
        let target = match self.random.percent(40) {
            true => client,
            false => self.some_client().1,
        };
        let request = Request::Share {
            client,
            object: self.target(of, client, 35),
            kind: self
                .random
                .weighted(&[(6, 0), (18, 1), (12, 2), (30, 3), (28, 4), (2, 8), (2, 77)])
                .unwrap_or(4),
            target,
            rights: self
                .random
                .weighted(&[(60, 1), (12, 4), (20, 5), (8, 0)])
                .unwrap_or(1),
            action: u8::try_from(self.random.below(8)).unwrap_or(0),
        };
        let file = self.file_for(of);
        self.add(file, request);
    }

    fn free(&mut self) {
        let (of, client) = self.some_client();
        let request = Request::Free {
            client,
            object: self.target(of, client, 12),
        };
        let file = self.file_for(of);
        self.add(file, request);
        if request_ends_client(&request) && self.random.percent(85) {
            self.clients.retain(|client| Some(*client) != of);
        }
    }

    fn map(&mut self) {
        let (of, client) = self.some_client();
        let (device, memory) = (self.target(of, client, 40), self.target(of, client, 15));
        let request = match self.random.percent(60) {
            true => Request::Map {
                client,
                device,
                memory,
                by: 0,
            },
            false => Request::Unmap {
                client,
                device,
                memory,
            },
        };
        let file = self.file_for(of);
        self.add(file, request);
    }

    fn control(&mut self) {
        let (of, client) = self.some_client();
        let release = self.release;
        let known: Vec<Control> = control::rows()
            .filter(|(cmd, _)| {
                !KEPT_ANSWERS.contains(cmd) && cmd >> 16 != class::NV_CONFIDENTIAL_COMPUTE
            })
            .filter_map(|(cmd, _)| control::row(cmd, release))
            .collect();
        let of_clients: Vec<u32> = known
            .iter()
            .map(|control| control.cmd)
            .filter(|cmd| cmd >> 16 == 0)
            .collect();
        let cmd = match self.random.below(100) {
            0..62 => self.random.one(&of_clients),
            62..85 => self.random.one(&known).map(|control| control.cmd),
            _ => self.random.one(NO_CONTROLS),
        };
        // Lists are copied before anything is looked for, and deprecated calls have an order of their own: they are asked rightly and with none.
        let cmd = cmd.unwrap_or(0);
        let has_lists = control::known(cmd, release).is_some_and(|known| !known.nested.is_empty());
        let word = match self.random.below(100) {
            _any if has_lists => Handle::Number(0),
            0..50 => Handle::Number(0),
            50..70 => client,
            70..80 => Handle::Number(u32::MAX),
            80..90 => Handle::Number(0xbad),
            _ => self.some_object(of),
        };
        let size = self.random.weighted(&[
            (82, Size::Right),
            (6, Size::More(4)),
            (4, Size::More(1)),
            (4, Size::Nowhere),
            (4, Size::Nothing),
        ]);
        let request = Request::Control {
            client,
            object: self.target(of, client, 72),
            cmd,
            size: size.filter(|_| !has_lists).unwrap_or(Size::Right),
            word,
            flags: self
                .random
                .weighted(&[(94, 0), (2, 1), (2, 2), (2, 8)])
                .unwrap_or(0),
        };
        let file = self.file_for(of);
        self.add(file, request);
    }

    fn os_event(&mut self) {
        let (of, client) = self.some_client();
        let request = Request::OsEvent {
            client,
            number: self.number(),
            is_made: self.random.percent(70),
        };
        let file = self.file_for(of);
        self.add(file, request);
    }

    fn register(&mut self) {
        let request = Request::Register {
            control: 1 + self.random.small(4),
        };
        let file = 1 + self.random.small(4);
        self.add(file, request);
    }

    fn close(&mut self) {
        let file = match self.random.percent(50) {
            true => self.control_file(),
            false => CONTROL_FILES + 1 + self.random.small(2),
        };
        self.add(file, Request::Close);
        // They are named now and then all the same.
        if self.random.percent(85) {
            self.clients.retain(|(_, of)| *of != file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_seed_and_a_number_draw_the_same_calls_each_time(seed: u64, number: u64) {
            let draw = || Sequence::for_core(Release::R580, seed, number);
            prop_assert_eq!(draw(), draw());
            let ids: Vec<u32> = draw().0.iter().map(|call| call.id).collect();
            prop_assert!(ids.windows(2).all(|pair| matches!(pair, [a, b] if a < b)));
        }

        #[test]
        fn no_device_is_drawn_below_a_client(seed: u64, number: u64) {
            for call in Sequence::for_core(Release::R580, seed, number).0 {
                if let Request::Alloc { client, parent, class: class::NV01_DEVICE_0, .. } = call.request {
                    prop_assert!(parent != client && parent != Handle::Number(0));
                }
            }
        }
    }
}
