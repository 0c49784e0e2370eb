//! What a call names, in the ledger: a call that names what is not there reaches no driver.
//!
//! The look is made under the lock that the call is executed under ([`crate::order`]), so that nothing of the client is freed between the two.

use driver::Binding;
use journal::state::State;
use ledger::{ClientHandle, Object, ObjectHandle, ObjectKind};
use nvabi::bytes::{u16_at, u32_at};
use nvabi::class::{self, Kind};
use nvabi::layout::{nvos33, nvos55, nvos57, share_policy};
use nvabi::{escape, status, uvm};
use verdict::names::{self, Must, Named};
use verdict::{Effect, Op, REGISTERED_FOR_A_BYTE};

use super::reserve::card_of_object;
use super::{Account, Denied, JudgedCall, Why};

/// What can be mapped of an object whose size the ledger does not have: a doorbell has 64 KiB, and virtual memory nobody maps.
const MOST_UNSIZED_BYTES: u64 = 2 << 20;

impl Account {
    /// Looks for each handle that a call names.
    ///
    /// # Errors
    /// RM's own answer to the first that is missing, to a mapping of more than there is, and to one whose device is the object itself.
    pub fn find_named(
        &self,
        state: &State,
        binding: Binding,
        call: &JudgedCall<'_>,
    ) -> Result<(), Denied> {
        let (op, views) = (call.op, call.views());
        let asks = driver_asks_whose(op, &views);
        for named in names::named(op, &views, self.release) {
            let missing = match is_there(state, binding, &named, asks) {
                Found::Yes => continue,
                Found::NoClient => status::NV_ERR_INVALID_CLIENT,
                Found::NoObject => named.if_missing,
                // Whoever frees the object may name what is left of it.
                Found::Name if op.escape() == Some(escape::Id::Free) => continue,
                Found::Name => status::NV_ERR_RESOURCE_LOST,
                // As `resMapTo_IMPL` (rs_resource.c) and `rmresGetMemInterMapParams_IMPL` (rmapi/resource.c) answer.
                Found::Unfit => status::NV_ERR_INVALID_OBJECT_HANDLE,
            };
            let why = Why::NotThere {
                field: named.field,
                client: named.client,
                object: named.object.unwrap_or(named.client),
            };
            return Err(self.denied(call, missing, why));
        }
        if let Some(why) = misplaced_space(state, op, &views) {
            return Err(self.denied(call, status::NV_ERR_INVALID_OBJECT_PARENT, why));
        }
        if let Some(why) = maps_beyond(state, call.effect) {
            return Err(self.denied(call, status::NV_ERR_INVALID_LIMIT, why));
        }
        match maps_itself(op, &views) {
            Some((client, object)) => {
                let status = status_of_mapping_itself(state, client, object);
                let why = Why::MapsItself { client, object };
                Err(self.denied(call, status, why))
            }
            None => self.check_cards(state, call),
        }
    }
}

/// Why a duplicate of an address space is refused that is not below the card that the space is on. Below a client, or an object of one, RM makes
/// the copy as if there were a device above it (`vaspaceapiCopyConstruct_IMPL`, vaspace_api.c, in all releases), and does not come back from that
/// (`lab/referee`); below another card the copy has the first one's page tables all the same. So has that of a group or of a context share, with
/// what is made below it (`kchangrpapiCopyConstruct_IMPL` compares no card). No program asks for any of these.
fn misplaced_space(state: &State, op: &Op, views: &[&[u8]]) -> Option<Why> {
    let arg = views
        .first()
        .filter(|_| op.escape() == Some(escape::Id::DupObject))?;
    let name = |client, object| Some((u32_at(arg, client)?, u32_at(arg, object)?));
    let of = name(nvos55::H_CLIENT_SRC, nvos55::H_OBJECT_SRC)?;
    let (client, object) = name(nvos55::H_CLIENT, nvos55::H_PARENT)?;
    let source = state.ledger.object(ClientHandle(of.0), ObjectHandle(of.1));
    let is_of_a_card = |kind| {
        use ObjectKind::{ChannelGroup, ContextShare, VaSpace};
        [VaSpace, ChannelGroup, ContextShare].contains(&kind)
    };
    source.filter(|source| is_of_a_card(source.kind))?;
    match card_of_object(state, (client, object)) {
        None => Some(Why::NoCardAbove { client, object }),
        below => (card_of_object(state, of) != below).then_some(Why::OtherCard { client, object }),
    }
}

/// Why a MAP_MEMORY_DMA is refused that passes the object's end. RM takes page tables of the card for all of the length before it
/// compares (`serverInterMap_Prologue`, rmapi/mapping.c, in all releases), and keeps them in the card's pool where it refuses the call
/// (`gvaspaceReserveMempool_IMPL`, mem_mgr/gpu_vaspace.c): 2 GiB for 1 TiB of a page.
fn maps_beyond(state: &State, effect: &Effect) -> Option<Why> {
    let Effect::MapDma {
        client,
        memory,
        offset,
        bytes,
        ..
    } = effect
    else {
        return None;
    };
    let handle = ObjectHandle(*memory);
    // It has been looked for.
    let object = state.ledger.object(ClientHandle(*client), handle)?;
    let most_bytes = most_mapped(state, object);
    let end = offset.checked_add(*bytes);
    let is_within = end.is_some_and(|end| end <= most_bytes);
    (!is_within).then_some(Why::MapsBeyond {
        client: *client,
        object: *memory,
        offset: *offset,
        bytes: *bytes,
        most_bytes,
    })
}

/// No less than an object has to map.
pub(super) fn most_mapped(state: &State, object: &Object) -> u64 {
    let allocation = object.allocation.and_then(|id| state.ledger.allocation(id));
    let Some(allocation) = allocation else {
        return MOST_UNSIZED_BYTES;
    };
    if object.class == class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR {
        allocation.bytes.saturating_mul(REGISTERED_FOR_A_BYTE)
    } else {
        allocation.bytes
    }
}

/// The client and the object of a MAP_MEMORY whose device is that object: drivers from 570 on refuse the call and take the mapping from a list
/// that it was never put in (`refAddMapping` and `refRemoveMapping`, rs_resource.c). No program asks for that.
fn maps_itself(op: &Op, views: &[&[u8]]) -> Option<(u32, u32)> {
    let Op::Escape(row) = op else {
        return None;
    };
    let arg = views
        .first()
        .filter(|_| **row == escape::NV_ESC_RM_MAP_MEMORY)?;
    let object = u32_at(arg, nvos33::H_MEMORY)?;
    let is_itself = u32_at(arg, nvos33::H_DEVICE)? == object;
    is_itself.then_some((u32_at(arg, nvos33::H_CLIENT)?, object))
}

/// As the driver answers: a client and a sub-device may be named as a device and cannot be mapped, anything else may not be named (`serverMap_Prologue`,
/// mapping_cpu.c).
fn status_of_mapping_itself(state: &State, client: u32, object: u32) -> u32 {
    let found = state
        .ledger
        .object(ClientHandle(client), ObjectHandle(object));
    let is_subdevice = found.is_some_and(|found| found.kind == ObjectKind::Subdevice);
    if object == client || is_subdevice {
        status::NV_ERR_NOT_SUPPORTED
    } else {
        status::NV_ERR_INVALID_OBJECT_PARENT
    }
}

impl Account {
    /// Looks for the object of a call that the broker answers by itself.
    ///
    /// # Errors
    /// As [`Account::find_named`]; not supported where the object is of another class than the control.
    pub fn answer(&self, state: &State, call: &JudgedCall<'_>) -> Result<(), Denied> {
        // Whoever executes: what is not known yet is not answered for.
        self.find_named(state, Binding::None, call)?;
        let Effect::Answered {
            object: (client, object),
            class,
        } = *call.effect
        else {
            return Ok(());
        };
        let found = state
            .ledger
            .object(ClientHandle(client), ObjectHandle(object));
        match found {
            Some(found) if found.class == class => Ok(()),
            Some(_) | None => {
                let field = "hObject";
                let why = Why::NotThere {
                    field,
                    client,
                    object,
                };
                Err(self.denied(call, status::NV_ERR_NOT_SUPPORTED, why))
            }
        }
    }
}

enum Found {
    Yes,
    NoClient,
    NoObject,
    /// The object can be no party to such a call, or goes with others unseen.
    Unfit,
    /// The object has gone with what it depended on, and the driver has its name still: it refuses some calls that name it with
    /// [`status::NV_ERR_RESOURCE_LOST`], and looks into nothing for others. None reaches it.
    Name,
}

/// Whether the driver asks whose file the client of a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    Yes,
    No,
}

/// A share with a client is made on whatever client the call names (`_serverShareResourceAccessClient`, rs_server.c; RM's own code of 535 to 595
/// shows it in `lab/referee`): anybody could change to whom another container's objects are open. The client of UVM_REGISTER_GPU is asked for the
/// caller's part of a divided card in the kernel's own name (`nvGpuOpsGetGpuInfo`, nv_gpu_ops.c).
fn driver_asks_whose(op: &Op, views: &[&[u8]]) -> Asks {
    let kind_at = nvos57::POLICY + share_policy::TYPE;
    let kind = views.first().and_then(|arg| u16_at(arg, kind_at));
    let is_a_share = op.escape() == Some(escape::Id::Share) && kind == Some(share_policy::CLIENT);
    let registers = matches!(op, Op::Uvm(row) if row.id == uvm::Id::RegisterGpu);
    match is_a_share || registers {
        true => Asks::No,
        false => Asks::Yes,
    }
}

fn is_there(state: &State, binding: Binding, named: &Named, asks: Asks) -> Found {
    let client = ClientHandle(named.client);
    // Nobody in the container has a client whose file is given up, and its handle may be another container's before the journal hears of its end.
    if asks == Asks::No && !state.has_client(named.client) {
        return Found::NoClient;
    }
    if state.ledger.owner_file(client).is_none() {
        // In compat mode the kernel makes root clients in the caller, and what is not known yet may be the container's: the driver asks
        // whose file it is. What a driver does not look into must be known all the same.
        return match binding {
            Binding::Caller if named.must == Must::BeThere => Found::Yes,
            Binding::Caller | Binding::Executor | Binding::None => Found::NoClient,
        };
    }
    let Some(object) = named.object.filter(|object| *object != named.client) else {
        return match named.must {
            Must::BeThere | Must::BeDestination => Found::Yes,
            Must::Map | Must::BeMapped => Found::Unfit,
        };
    };
    let found = state.ledger.object(client, ObjectHandle(object));
    let Some(object) = found else {
        return Found::NoObject;
    };
    match named.must {
        _ if object.kind == ObjectKind::Invalidated => Found::Name,
        Must::BeThere => Found::Yes,
        Must::BeDestination if ends_by_itself_alone(object.kind) => Found::Yes,
        Must::BeDestination => Found::NoObject,
        Must::Map if is_virtual(object) => Found::Yes,
        Must::BeMapped if object.kind == ObjectKind::Memory || is_doorbell(object) => Found::Yes,
        Must::Map | Must::BeMapped => Found::Unfit,
    }
}

/// Of virtual memory the ledger has what takes it with it, as the driver has.
fn is_virtual(object: &Object) -> bool {
    class::of(object.class).is_some_and(|row| row.kind == Kind::Virtual)
}

/// Bytes of the host's or a card's. What else RM calls memory is address space, registers or the driver's own (`UserModeApi` and
/// `GpuUserSharedData` are of class `Memory`), and none of these may be where a call takes an object for a place to write.
pub(super) fn is_memory(object: &Object) -> bool {
    object.kind == ObjectKind::Memory && !is_virtual(object)
}

/// The one thing that is mapped and is no memory to the ledger. Only its parent takes it with it.
pub(super) fn is_doorbell(object: &Object) -> bool {
    class::of(object.class).is_some_and(|row| row.kind == Kind::Usermode)
}

/// What the driver ends with nothing but itself, its parent or its client: what the ledger has of these, the driver has.
fn ends_by_itself_alone(kind: ObjectKind) -> bool {
    match kind {
        ObjectKind::Device | ObjectKind::Subdevice => true,
        ObjectKind::Client
        | ObjectKind::Memory
        | ObjectKind::VaSpace
        | ObjectKind::ChannelGroup
        | ObjectKind::Channel
        | ObjectKind::ContextShare
        | ObjectKind::Invalidated
        | ObjectKind::PeerSession
        | ObjectKind::Event
        | ObjectKind::SharedData
        | ObjectKind::Debugger
        | ObjectKind::Other => false,
    }
}

#[cfg(test)]
mod tests {
    use ledger::{FileId, Ledger, Operation, ProcessId};
    use nvabi::Release;
    use nvabi::bytes::{put, put_u32};

    use super::*;
    use driver::{FileId as DriverFile, FileKind};
    use journal::state::{Closing, Numbering, Op as Change};

    /// Whether a share of a client's object is let through in compat mode.
    fn is_let_through(state: &State, kind: u16, client: u32) -> bool {
        let op = Op::Escape(&escape::NV_ESC_RM_SHARE);
        let mut arg = [0; 24];
        put_u32(&mut arg, nvos57::H_CLIENT, client);
        put_u32(&mut arg, nvos57::H_OBJECT, client);
        put(
            &mut arg,
            nvos57::POLICY + share_policy::TYPE,
            &kind.to_le_bytes(),
        );
        let views: [&[u8]; 1] = [&arg];
        let named = names::named(&op, &views, Release::R570);
        assert!(!named.is_empty());
        let asks = driver_asks_whose(&op, &views);
        named.iter().all(|named| {
            let found = is_there(state, Binding::Caller, named, asks);
            matches!(found, Found::Yes)
        })
    }

    #[test]
    fn a_share_with_a_client_is_of_a_client_that_is_known() {
        const OWN: u32 = 0xc1d0_0001;
        const OTHER: u32 = 0xc1d0_0002;
        let mut state = State::new(Ledger::new(&[]), Numbering::default());
        let file = DriverFile(1);
        state.apply(Change::FileSeen(file, FileKind::Ctl)).unwrap();
        let seen = state.ledger.apply(Operation::SeeClient {
            file: FileId(file.0),
            client: ClientHandle(OWN),
            process: ProcessId(0),
        });
        seen.unwrap();
        assert!(is_let_through(&state, share_policy::CLIENT, OWN));
        assert!(!is_let_through(&state, share_policy::CLIENT, OTHER));
        // Of these the driver asks whose file the client is.
        assert!(is_let_through(&state, share_policy::PID, OTHER));
        let closing = Change::FileClosing(file, Closing::Begun);
        state.apply(closing).unwrap();
        assert!(!is_let_through(&state, share_policy::CLIENT, OWN));
        assert!(is_let_through(&state, share_policy::PID, OWN));
    }
}
