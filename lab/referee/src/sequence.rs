//! Sequences of calls: their text, and how they are drawn.

use std::collections::HashMap;
use std::fmt;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A handle in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handle {
    /// What a call has made, by its id.
    Made(u32),
    /// This number.
    Number(u32),
}

impl fmt::Display for Handle {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Made(id) => write!(to, "#{id}"),
            Self::Number(number) => write!(to, "{number:#x}"),
        }
    }
}

/// A class of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Below a client.
    Device,
    /// Below a device.
    Subdevice,
    /// Below a device; can be copied, to below anything of a card, and mapped.
    Memory,
    /// Below anything of a card.
    Plain,
}

impl fmt::Display for Class {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Device => "device",
            Self::Subdevice => "subdevice",
            Self::Memory => "memory",
            Self::Plain => "plain",
        })
    }
}

/// What a call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the driver's own names for what a call holds")]
pub enum What {
    /// A client.
    Client,
    /// An object.
    Alloc {
        client: Handle,
        parent: Handle,
        handle: Handle,
        class: Class,
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
    /// A mapping for the CPU.
    Map {
        client: Handle,
        device: Handle,
        memory: Handle,
    },
    /// The end of one.
    Unmap {
        client: Handle,
        device: Handle,
        memory: Handle,
        mapping: Handle,
    },
}

impl What {
    /// The call that has made the client whose file the driver asks for.
    fn client(&self) -> Option<u32> {
        let (Self::Alloc { client, .. }
        | Self::Dup { to: client, .. }
        | Self::Share { client, .. }
        | Self::Free { client, .. }
        | Self::Map { client, .. }
        | Self::Unmap { client, .. }) = self
        else {
            return None;
        };
        match client {
            Handle::Made(id) => Some(*id),
            Handle::Number(_) => None,
        }
    }
}

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Its number, which it keeps when calls before it are taken out.
    pub id: u32,
    /// The process that makes it.
    pub pid: u32,
    /// The control file that it is made on.
    pub file: u32,
    /// What it asks for.
    pub what: What,
}

impl fmt::Display for Call {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id,
            pid,
            file,
            what,
        } = self;
        match what {
            What::Client => write!(to, "{id} client {pid}/{file}"),
            What::Alloc {
                client,
                parent,
                handle,
                class,
            } => write!(
                to,
                "{id} alloc {pid}/{file} {client} {parent} {handle} {class}"
            ),
            What::Dup {
                from,
                object,
                to: into,
                parent,
                handle,
            } => write!(
                to,
                "{id} dup {pid}/{file} {from} {object} {into} {parent} {handle}"
            ),
            What::Share {
                client,
                object,
                kind,
                target,
                rights,
                action,
            } => write!(
                to,
                "{id} share {pid}/{file} {client} {object} {kind} {target} {rights} {action}"
            ),
            What::Free { client, object } => write!(to, "{id} free {pid}/{file} {client} {object}"),
            What::Map {
                client,
                device,
                memory,
            } => write!(to, "{id} map {pid}/{file} {client} {device} {memory}"),
            What::Unmap {
                client,
                device,
                memory,
                mapping,
            } => write!(
                to,
                "{id} unmap {pid}/{file} {client} {device} {memory} {mapping}"
            ),
        }
    }
}

/// Calls in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sequence<C = Call>(pub Vec<C>);

impl<C: fmt::Display> fmt::Display for Sequence<C> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|call| writeln!(to, "{call}"))
    }
}

impl Sequence {
    /// The sequence of a number of a seed.
    #[must_use]
    pub fn drawn(seed: u64, number: u64) -> Self {
        let mut draw = Draw {
            theme: Theme::Everything,
            random: Random::of(seed, number),
            calls: Vec::new(),
            clients: Vec::new(),
            files: HashMap::new(),
            objects: Vec::new(),
            mappings: Vec::new(),
        };
        draw.theme = draw
            .random
            .weighted(&[
                (60, Theme::Everything),
                (15, Theme::Depth),
                (25, Theme::Rights),
            ])
            .unwrap_or(Theme::Everything);
        draw.opening();
        let calls = 8 + draw.random.below(56);
        while draw.calls.len() < calls {
            draw.call();
        }
        Self(draw.calls)
    }
}

/// Handles that calls choose, so few that they meet.
const CHOSEN: u32 = 0x5c00_0000;
/// Where the handles begin that RM makes up.
const MADE_UP: u32 = 0xcaf0_0000;
const NO_CLIENT: Handle = Handle::Number(0xdead_0000);

/// An object that a call was made for.
#[derive(Debug, Clone, Copy)]
struct Drawn {
    /// The calls that have made its client, it, and its parent where that is not the client.
    client: u32,
    id: u32,
    parent: Option<u32>,
    class: Class,
    /// Nothing that the draw knows of speaks against it.
    is_likely: bool,
}

/// What a sequence dwells on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Theme {
    Everything,
    /// Objects below objects below objects.
    Depth,
    /// Rights that are taken, given and inherited.
    Rights,
}

struct Draw {
    theme: Theme,
    random: Random,
    calls: Vec<Call>,
    /// The clients that are not freed.
    clients: Vec<u32>,
    /// The file of every client.
    files: HashMap<u32, u32>,
    objects: Vec<Drawn>,
    mappings: Vec<(u32, What)>,
}

/// What is drawn from.
#[derive(Debug)]
pub(crate) struct Random(Xoshiro256PlusPlus);

impl Random {
    /// That of a number of a seed.
    pub(crate) fn of(seed: u64, number: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(
            seed ^ number.rotate_left(32),
        ))
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound.max(1)).unwrap_or(u64::MAX);
        usize::try_from(self.0.next_u64() % bound).unwrap_or(0)
    }

    /// True so often of a hundred times.
    pub(crate) fn percent(&mut self, of_hundred: usize) -> bool {
        self.below(100) < of_hundred
    }

    pub(crate) fn one<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        let at = self.below(of.len());
        of.get(at).copied()
    }

    pub(crate) fn weighted<T: Copy>(&mut self, of: &[(usize, T)]) -> Option<T> {
        let all = of.iter().map(|(weight, _)| weight).sum();
        let mut at = self.below(all);
        of.iter()
            .find(|(weight, _)| {
                let is_it = at < *weight;
                at = at.saturating_sub(*weight);
                is_it
            })
            .map(|(_, one)| *one)
    }

    pub(crate) fn small(&mut self, bound: u32) -> u32 {
        u32::try_from(self.below(usize::try_from(bound).unwrap_or(1))).unwrap_or(0)
    }
}

impl Draw {
    fn add(&mut self, what: What) -> u32 {
        let id = u32::try_from(self.calls.len() + 1).unwrap_or(u32::MAX);
        let pid = self
            .random
            .weighted(&[(60, 100), (25, 101), (15, 102)])
            .unwrap_or(100);
        let own = what
            .client()
            .and_then(|client| self.files.get(&client).copied());
        let file = match own {
            Some(own) if self.random.percent(95) => own,
            Some(_) | None => self.random.weighted(&[(75, 1), (25, 2)]).unwrap_or(1),
        };
        self.calls.push(Call {
            id,
            pid,
            file,
            what,
        });
        id
    }

    /// Two clients with a device and memory each, more often than not.
    fn opening(&mut self) {
        if self.random.percent(10) {
            return;
        }
        for _ in 0..2 {
            self.client();
        }
        for client in self.clients.clone() {
            let handle = Handle::Number(0);
            let device = self.new_object(client, None, handle, Class::Device);
            self.new_object(client, Some(device), handle, Class::Memory);
        }
    }

    fn new_object(
        &mut self,
        client: u32,
        parent: Option<u32>,
        handle: Handle,
        class: Class,
    ) -> u32 {
        let id = self.add(What::Alloc {
            client: Handle::Made(client),
            parent: Handle::Made(parent.unwrap_or(client)),
            handle,
            class,
        });
        self.objects.push(Drawn {
            client,
            id,
            parent,
            class,
            is_likely: true,
        });
        id
    }

    fn call(&mut self) {
        match (self.theme, self.random.below(100)) {
            (Theme::Depth, 0..65) => return self.alloc(),
            (Theme::Rights, 0..45) => return self.share(),
            _everything => {}
        }
        match self.random.below(100) {
            0..3 => self.client(),
            3..35 => self.alloc(),
            35..52 => self.dup(),
            52..75 => self.share(),
            75..81 => self.free(),
            81..91 => self.map(),
            _ => self.unmap(),
        }
    }

    fn client(&mut self) {
        let id = self.add(What::Client);
        self.clients.push(id);
        self.files
            .extend(self.calls.last().map(|call| (id, call.file)));
    }

    /// A client that a call was made for, or none. Most often one of the first two, whose objects meet.
    fn some_client(&mut self) -> (Option<u32>, Handle) {
        let drawn = match self.random.below(100) {
            0..2 => None,
            2..50 => self.clients.first().copied(),
            50..75 => self.clients.get(1).copied(),
            _ => self.random.one(&self.clients.clone()),
        };
        match drawn {
            Some(id) => (Some(id), Handle::Made(id)),
            None => (None, NO_CLIENT),
        }
    }

    fn objects_of(&self, client: Option<u32>, is_needed: impl Fn(&Drawn) -> bool) -> Vec<u32> {
        self.objects
            .iter()
            .filter(|object| Some(object.client) == client && is_needed(object))
            .map(|object| object.id)
            .collect()
    }

    fn drawn(&self, handle: Handle) -> Option<Drawn> {
        let found = |id| self.objects.iter().find(|object| object.id == id).copied();
        match handle {
            Handle::Made(id) => found(id),
            Handle::Number(_) => None,
        }
    }

    /// An object of a client, most often of the wanted classes.
    fn some_object(&mut self, client: Option<u32>, is_needed: impl Fn(Class) -> bool) -> Handle {
        let needed = self.objects_of(client, |it| it.is_likely && is_needed(it.class));
        let all = self.objects_of(client, |_| true);
        let others: Vec<u32> = self.objects.iter().map(|object| object.id).collect();
        let drawn = match self.random.below(200) {
            0..180 if self.theme == Theme::Depth => needed.last().copied(),
            // The newest lead down, and the first are come back to.
            0..60 => needed.last().copied(),
            60..110 => needed.first().copied(),
            110..170 => self.random.one(&needed),
            170..182 => self.random.one(&all),
            182..192 => client,
            192..196 => self.random.one(&others),
            _ => None,
        };
        match drawn {
            Some(id) => Handle::Made(id),
            None if self.random.percent(50) => self.some_number(),
            None => self.random.one(&all).map_or(NO_CLIENT, Handle::Made),
        }
    }

    fn some_number(&mut self) -> Handle {
        Handle::Number(match self.random.below(4) {
            0 => 0,
            1 => 0xbad,
            2 => CHOSEN + self.random.small(8),
            _ => MADE_UP + self.random.small(8),
        })
    }

    /// A handle for a new object, and whether it is likely to be free.
    fn new_handle(&mut self, client: Handle) -> (Handle, bool) {
        match self.random.below(100) {
            0..70 => (Handle::Number(0), true),
            70..83 => (Handle::Number(CHOSEN + self.random.small(24)), true),
            83..90 => (Handle::Number(MADE_UP + self.random.small(24)), true),
            90..95 => (client, false),
            _ => {
                let all: Vec<u32> = self.objects.iter().map(|object| object.id).collect();
                let taken = self
                    .random
                    .one(&all)
                    .map_or(Handle::Number(0), Handle::Made);
                (taken, false)
            }
        }
    }

    fn alloc(&mut self) {
        let (id, client) = self.some_client();
        let class = self
            .random
            .weighted(&[
                (12, Class::Device),
                (12, Class::Subdevice),
                (36, Class::Memory),
                (40, Class::Plain),
            ])
            .unwrap_or(Class::Memory);
        let parent = match class {
            Class::Device if self.random.percent(80) => client,
            Class::Device if self.random.percent(50) => Handle::Number(0),
            Class::Subdevice | Class::Memory => {
                self.some_object(id, |class| class == Class::Device)
            }
            Class::Device | Class::Plain => self.some_object(id, |_| true),
        };
        let (handle, is_free) = self.new_handle(client);
        let made = self.add(What::Alloc {
            client,
            parent,
            handle,
            class,
        });
        let is_below_device = self
            .drawn(parent)
            .is_some_and(|parent| parent.class == Class::Device);
        let is_likely = is_free && (class != Class::Memory || is_below_device);
        self.record(id, made, parent, class, is_likely);
    }

    /// Remembers an object that a call may have made.
    fn record(
        &mut self,
        client: Option<u32>,
        id: u32,
        parent: Handle,
        class: Class,
        is_free: bool,
    ) {
        let Some(client) = client else { return };
        let above = self.drawn(parent);
        let is_below_client = parent == Handle::Made(client) || parent == Handle::Number(0);
        let is_right = match (class, above) {
            (Class::Device, _) => is_below_client,
            (Class::Subdevice, Some(parent)) => parent.class == Class::Device,
            (Class::Memory | Class::Plain, Some(_)) => true,
            (_, None) => false,
        };
        self.objects.push(Drawn {
            client,
            id,
            parent: above.map(|parent| parent.id),
            class,
            is_likely: is_right && is_free && above.is_none_or(|parent| parent.is_likely),
        });
    }

    fn dup(&mut self) {
        let ((from_id, from), (to_id, to)) = (self.some_client(), self.some_client());
        let object = self.some_object(from_id, |class| class == Class::Memory);
        let parent = match self.random.percent(88) {
            true => {
                let needed = match self.random.percent(85) {
                    true => Class::Device,
                    false => Class::Subdevice,
                };
                let likely = self.objects_of(to_id, |it| it.is_likely && it.class == needed);
                self.random.one(&likely).map_or(to, Handle::Made)
            }
            false => self.some_object(to_id, |_| true),
        };
        let (handle, is_free) = self.new_handle(to);
        let made = self.add(What::Dup {
            from,
            object,
            to,
            parent,
            handle,
        });
        self.record(to_id, made, parent, Class::Memory, is_free);
    }

    fn share(&mut self) {
        let (id, client) = self.some_client();
        let object = match self
            .random
            .percent(if self.theme == Theme::Rights { 30 } else { 15 })
        {
            true => client,
            false => self.some_object(id, |_| true),
        };
        // NONE, ALL, CLIENT, PID and two that are none. Users, MIG and the fabric's client are RM's affair.
        let kind = self
            .random
            .weighted(&[(6, 0), (20, 1), (38, 3), (33, 4), (2, 8), (1, 77)])
            .unwrap_or(4);
        let target = match self
            .random
            .percent(if self.theme == Theme::Rights { 60 } else { 35 })
        {
            true => client,
            false => self.some_client().1,
        };
        let rights = self
            .random
            .weighted(&[(60, 1), (12, 4), (20, 5), (8, 0)])
            .unwrap_or(1);
        let action = u8::try_from(self.random.below(8)).unwrap_or(0);
        self.add(What::Share {
            client,
            object,
            kind,
            target,
            rights,
            action,
        });
    }

    fn free(&mut self) {
        let (id, client) = self.some_client();
        let object = match self.random.percent(6) {
            true => client,
            false => self.some_object(id, |_| true),
        };
        self.add(What::Free { client, object });
        // What is freed is named now and then all the same.
        if self.random.percent(85) {
            self.forget(id, object);
        }
    }

    fn forget(&mut self, client: Option<u32>, object: Handle) {
        let Handle::Made(gone) = object else { return };
        if client == Some(gone) {
            self.clients.retain(|client| *client != gone);
            self.objects.retain(|object| object.client != gone);
            return;
        }
        let mut all = vec![gone];
        while let Some(next) = all.pop() {
            self.objects.retain(|object| object.id != next);
            all.extend(
                self.objects
                    .iter()
                    .filter(|object| object.parent == Some(next))
                    .map(|object| object.id),
            );
        }
    }

    fn map(&mut self) {
        let (id, client) = self.some_client();
        let memory = self.some_object(id, |class| class == Class::Memory);
        let is_device = |class| matches!(class, Class::Device | Class::Subdevice);
        let device = match self.random.below(100) {
            0..92 => self.some_object(id, is_device),
            92..96 => client,
            _ => memory,
        };
        let what = What::Map {
            client,
            device,
            memory,
        };
        let made = self.add(what);
        self.mappings.push((made, what));
    }

    fn unmap(&mut self) {
        let Some((
            made,
            What::Map {
                client,
                device,
                memory,
            },
        )) = self.random.one(&self.mappings.clone())
        else {
            return self.map();
        };
        let mapping = match self.random.percent(85) {
            true => Handle::Made(made),
            false => Handle::Number(0x0123_4000),
        };
        let id = match client {
            Handle::Made(id) => Some(id),
            Handle::Number(_) => None,
        };
        let memory = match self.random.percent(90) {
            true => memory,
            false => self.some_object(id, |_| true),
        };
        let device = match self.random.percent(85) {
            true => device,
            false => self.some_object(id, |_| true),
        };
        self.add(What::Unmap {
            client,
            device,
            memory,
            mapping,
        });
    }
}
