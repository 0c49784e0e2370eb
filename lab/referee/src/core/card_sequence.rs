//! Calls that RM can judge with a card below it: objects of the card, which handles name them, who may have them, and mappings.
//!
//! What firmware answers is left out, and so are channels, whose memory would be used.

use nvabi::class;
use nvabi::layout::engine_type;

use super::sequence::{CONTROL_FILES, MORE_CONTROL_FILES, Made, Request, Requested};
use crate::sequence::{Handle, Random, Sequence};

const CHOSEN: u32 = 0x5c00_0000;
/// The first file that nothing but mappings is made by, a card's.
const MAPPED: u32 = 8;
/// `NVOS32_ATTR_LOCATION` of NVOS32's attributes: the card's, the host's.
const ON_CARD: u32 = 0;
const ON_HOST: u32 = 1 << 25;
const HOPPER_USERMODE_A: u32 = 0xc661;
const TURING_USERMODE_A: u32 = 0xc461;

/// What an object is, as far as calls are drawn by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Device,
    Subdevice,
    Memory,
    HostMemory,
    Virtual,
    VirtualRange,
    Space,
    Group,
    Other,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    id: u32,
    client: u32,
    of: Of,
}

impl Sequence<Requested> {
    /// The sequence of a number of a seed, for a core with a card.
    #[must_use]
    pub fn for_card(seed: u64, number: u64) -> Self {
        let mut draw = Draw {
            random: Random::of(seed, number),
            calls: Vec::new(),
            clients: Vec::new(),
            objects: Vec::new(),
            mapped: 0,
            mapped_objects: Vec::new(),
        };
        draw.opening();
        if draw.random.percent(60) {
            draw.opening();
        }
        let calls = draw.calls.len() + 4 + draw.random.below(36);
        while draw.calls.len() < calls {
            draw.call();
        }
        Self(draw.calls)
    }
}

struct Draw {
    random: Random,
    calls: Vec<Requested>,
    /// The call of each client, its file and its process.
    clients: Vec<(u32, u32, u32)>,
    objects: Vec<Known>,
    mapped: u32,
    mapped_objects: Vec<u32>,
}

impl Draw {
    fn add(&mut self, of: Option<(u32, u32, u32)>, request: Request) -> u32 {
        let (file, pid) = match of {
            Some((_, file, pid)) if self.random.percent(92) => (file, pid),
            _other => self.somebody(),
        };
        self.add_by(file, pid, request)
    }

    fn add_by(&mut self, file: u32, pid: u32, request: Request) -> u32 {
        let id = u32::try_from(self.calls.len() + 1).unwrap_or(u32::MAX);
        self.calls.push(Requested {
            id,
            pid,
            is_admin: false,
            file,
            request,
        });
        id
    }

    /// A file and a process.
    fn somebody(&mut self) -> (u32, u32) {
        let file = 1 + self.random.small(CONTROL_FILES);
        (file, 100 + self.random.small(3))
    }

    /// A client with a device and a sub-device, more often than not.
    fn opening(&mut self) {
        let (file, pid) = self.somebody();
        let request = Request::Client {
            needed: Handle::Number(0),
            class: class::NV01_ROOT_CLIENT,
            has_params: false,
        };
        let id = self.add_by(file, pid, request);
        let client = (id, file, pid);
        self.clients.push(client);
        let root = Handle::Made(id);
        let device = self.make(client, root, Of::Device, Made::Device { instance: 0 });
        if self.random.percent(85) {
            let parent = Handle::Made(device);
            self.make(client, parent, Of::Subdevice, Made::Subdevice { id: 0 });
        }
    }

    fn make(&mut self, client: (u32, u32, u32), parent: Handle, of: Of, made: Made) -> u32 {
        let handle = self.new_handle();
        let id = self.add(
            Some(client),
            Request::Make {
                client: Handle::Made(client.0),
                parent,
                handle,
                made,
            },
        );
        self.objects.push(Known {
            id,
            client: client.0,
            of,
        });
        id
    }

    fn new_handle(&mut self) -> Handle {
        Handle::Number(match self.random.below(100) {
            0..80 => 0,
            _chosen => CHOSEN + self.random.small(24),
        })
    }

    fn some_client(&mut self) -> Option<(u32, u32, u32)> {
        self.random.one(&self.clients)
    }

    /// An object of a client of some kind, most often; else any of its objects, or none.
    fn some(&mut self, client: (u32, u32, u32), needed: impl Fn(Of) -> bool) -> Handle {
        let own = |it: &&Known| it.client == client.0;
        let all: Vec<u32> = self.objects.iter().filter(own).map(|it| it.id).collect();
        let fitting = self.objects.iter().filter(own).filter(|it| needed(it.of));
        let fitting: Vec<u32> = fitting.map(|it| it.id).collect();
        let drawn = match self.random.below(100) {
            0..85 => self.random.one(&fitting),
            85..94 => self.random.one(&all),
            94..97 => Some(client.0),
            _none => None,
        };
        drawn.map_or(Handle::Number(0xbad), Handle::Made)
    }

    fn call(&mut self) {
        let Some(client) = self.some_client() else {
            return self.opening();
        };
        match self.random.below(100) {
            0..4 => self.opening(),
            4..10 => self.device(client),
            10..28 => self.memory(client),
            28..35 => self.virtual_memory(client),
            35..42 => self.space(client),
            42..50 => self.group(client),
            50..58 => self.other(client),
            58..72 => self.dup(),
            72..80 => self.share(client),
            80..86 => self.map(client),
            86..93 => self.map_dma(client),
            _ => self.free(client),
        }
    }

    fn device(&mut self, client: (u32, u32, u32)) {
        let root = Handle::Made(client.0);
        if self.random.percent(40) {
            let instance = self.random.weighted(&[(9, 0), (1, 1)]).unwrap_or(0);
            let parent = match self.random.percent(85) {
                true => root,
                false => self.some(client, |_| true),
            };
            self.make(client, parent, Of::Device, Made::Device { instance });
        } else {
            let id = self.random.weighted(&[(9, 0), (1, 1)]).unwrap_or(0);
            let parent = self.some(client, |of| of == Of::Device);
            self.make(client, parent, Of::Subdevice, Made::Subdevice { id });
        }
    }

    fn memory(&mut self, client: (u32, u32, u32)) {
        let parent = self.some(client, |of| matches!(of, Of::Device | Of::Subdevice));
        let (class, attr) = match self.random.below(10) {
            0..6 => (class::NV01_MEMORY_LOCAL_USER, ON_CARD),
            6..9 => (class::NV01_MEMORY_SYSTEM, ON_HOST),
            _else => match self.random.percent(50) {
                true => (class::NV01_MEMORY_LOCAL_USER, ON_HOST),
                false => (class::NV01_MEMORY_SYSTEM, ON_CARD),
            },
        };
        let size_bytes = match self.random.below(5) {
            0 => 4096,
            1 => 1 + u64::from(self.random.small(1 << 20)),
            2 => 2 << 20,
            3 => 0,
            _some => 0x1_0000 * u64::from(1 + self.random.small(64)),
        };
        let made = Made::Memory {
            class,
            size_bytes,
            flags: 0,
            attr,
            space: Handle::Number(0),
        };
        let of = match class {
            class::NV01_MEMORY_SYSTEM => Of::HostMemory,
            _of_the_card => Of::Memory,
        };
        self.make(client, parent, of, made);
    }

    fn virtual_memory(&mut self, client: (u32, u32, u32)) {
        let parent = self.some(client, |of| of == Of::Device);
        let (of, class) = match self.random.percent(50) {
            true => (Of::Virtual, class::NV01_MEMORY_VIRTUAL),
            false => (Of::VirtualRange, class::NV50_MEMORY_VIRTUAL),
        };
        let space = self.some_space(client);
        self.make(client, parent, of, Made::Virtual { class, space });
    }

    fn space(&mut self, client: (u32, u32, u32)) {
        let parent = self.some(client, |of| of == Of::Device);
        self.make(client, parent, Of::Space, Made::Space);
    }

    fn group(&mut self, client: (u32, u32, u32)) {
        let space = self.some_space(client);
        if self.random.percent(60) {
            let parent = self.some(client, |of| of == Of::Device);
            let engine = self.random.weighted(&[
                (70, engine_type::GR0),
                (20, engine_type::COPY0 + 2),
                (5, engine_type::NULL),
                (5, 0x77),
            ]);
            let engine = engine.unwrap_or(engine_type::GR0);
            self.make(client, parent, Of::Group, Made::Group { engine, space });
        } else {
            let parent = self.some(client, |of| of == Of::Group);
            self.make(client, parent, Of::Other, Made::ContextShare { space });
        }
    }

    fn some_space(&mut self, client: (u32, u32, u32)) -> Handle {
        match self.random.percent(60) {
            true => self.some(client, |of| of == Of::Space),
            false => Handle::Number(0),
        }
    }

    fn other(&mut self, client: (u32, u32, u32)) {
        let class = self.random.one(&[
            TURING_USERMODE_A,
            HOPPER_USERMODE_A,
            class::GF100_SUBDEVICE_MASTER,
            class::NV2081_BINAPI,
            class::NV50_THIRD_PARTY_P2P,
            class::RM_USER_SHARED_DATA,
        ]);
        let parent = self.some(client, |of| of == Of::Subdevice);
        let class = class.unwrap_or(TURING_USERMODE_A);
        let word = match class {
            class::NV50_THIRD_PARTY_P2P => self.random.small(4),
            _zeros => 0,
        };
        self.make(client, parent, Of::Other, Made::Other { class, word });
    }

    fn dup(&mut self) {
        let (Some(from), Some(to)) = (self.some_client(), self.some_client()) else {
            return;
        };
        let is_needed = |of| !matches!(of, Of::Device | Of::Subdevice);
        let object = self.some(from, is_needed);
        let of = self.objects.iter().find(|it| Handle::Made(it.id) == object);
        let of = of.map_or(Of::Other, |it| it.of);
        let parent = self.some(to, |of| matches!(of, Of::Device | Of::Subdevice));
        let handle = self.new_handle();
        let id = self.add(
            Some(to),
            Request::Dup {
                from: Handle::Made(from.0),
                object,
                to: Handle::Made(to.0),
                parent,
                handle,
            },
        );
        if of == Of::VirtualRange {
            // The same part of an address space.
            self.mapped_objects.push(id);
        }
        self.objects.push(Known {
            id,
            client: to.0,
            of,
        });
    }

    fn share(&mut self, client: (u32, u32, u32)) {
        let target = self.some_client().unwrap_or(client);
        let request = Request::Share {
            client: Handle::Made(client.0),
            object: self.some(client, |_| true),
            kind: self
                .random
                .weighted(&[(20, 1), (40, 3), (40, 4)])
                .unwrap_or(4),
            target: Handle::Made(target.0),
            rights: 1,
            action: u8::try_from(self.random.below(4)).unwrap_or(0),
        };
        self.add(Some(client), request);
    }

    fn map(&mut self, client: (u32, u32, u32)) {
        let device = self.some(client, |of| matches!(of, Of::Device | Of::Subdevice));
        let is_of_host = self.random.percent(40);
        let needed = match is_of_host {
            true => Of::HostMemory,
            false => Of::Memory,
        };
        // Nothing but memory: what there is behind other objects are a real card's registers. None twice: to RM two mappings of the same
        // bytes have one address, and what ends one may find the other.
        let own = self.objects.iter().filter(|it| it.client == client.0);
        let fitting = own.filter(|it| it.of == needed && !self.mapped_objects.contains(&it.id));
        let memory: Vec<u32> = fitting.map(|it| it.id).collect();
        let memory = self.random.one(&memory);
        self.mapped_objects.extend(memory);
        let memory = memory.map_or(Handle::Number(0xbad), Handle::Made);
        let of = self.objects.iter().find(|it| Handle::Made(it.id) == memory);
        // Which file is the right one is not RM's core's affair.
        let first = match of.is_some_and(|it| it.of == Of::HostMemory) {
            true => MORE_CONTROL_FILES,
            false => MAPPED,
        };
        self.mapped += 1;
        let request = Request::Map {
            client: Handle::Made(client.0),
            device,
            memory,
            by: first + self.mapped % 20,
        };
        self.add(Some(client), request);
    }

    fn map_dma(&mut self, client: (u32, u32, u32)) {
        let is_memory = |of| matches!(of, Of::Memory | Of::HostMemory);
        let mut by = self.some(client, |of| matches!(of, Of::Virtual | Of::VirtualRange));
        let of = self.objects.iter().find(|it| Handle::Made(it.id) == by);
        // By a part of an address space one mapping: the next would be put at the same place, which the simulator does not play.
        if let Some(range) = of.filter(|it| it.of == Of::VirtualRange) {
            match self.mapped_objects.contains(&range.id) {
                true => by = Handle::Number(0xbad),
                false => self.mapped_objects.push(range.id),
            }
        }
        let request = Request::MapDma {
            client: Handle::Made(client.0),
            device: self.some(client, |of| matches!(of, Of::Device | Of::Subdevice)),
            by,
            memory: self.some(client, is_memory),
            length_bytes: self
                .random
                .weighted(&[(70, 4096), (20, 1 << 16), (5, 0), (5, u64::MAX)])
                .unwrap_or(4096),
        };
        self.add(Some(client), request);
    }

    fn free(&mut self, client: (u32, u32, u32)) {
        let object = match self.random.percent(8) {
            true => Handle::Made(client.0),
            false => self.some(client, |_| true),
        };
        let request = Request::Free {
            client: Handle::Made(client.0),
            object,
        };
        self.add(Some(client), request);
        if object == Handle::Made(client.0) {
            self.clients.retain(|it| *it != client);
        } else {
            self.objects.retain(|it| Handle::Made(it.id) != object);
        }
    }
}
