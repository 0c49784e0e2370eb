//! What a call needs of the account is reserved before the driver hears of it.

use journal::Change;
use journal::limits::{MOST_OS_EVENTS, MOST_POOLS};
use journal::reservation::Reservation;
use journal::state::State;
use ledger::{
    CardSlot, ClientHandle, Demand, ObjectHandle, ObjectKind, PinFor, PinToken, Purpose,
    ReservationToken, Span,
};
use nvabi::bytes::u32_at;
use nvabi::class::{Class, Kind, Plain};
use nvabi::layout::context_dma;
use nvabi::status;
use nvabi::uvm::map_external;
use verdict::{Effect, Memory, Schedule, Switch, Whose, page_size};

use super::translation::{object_kind, status_of};
use super::{Account, Denied, JudgedCall, Why, names};

impl Account {
    /// Reserves what a call needs.
    ///
    /// # Errors
    /// The driver's own refusal: no memory for what is over quota, an invalid client for another tenant's.
    #[expect(
        clippy::too_many_lines,
        reason = "a table: one arm for each effect, and what it needs"
    )]
    pub fn reserve(
        &self,
        change: &mut Change<'_>,
        call: &JudgedCall<'_>,
    ) -> Result<Reservation, Denied> {
        let refused = |refusal: ledger::Refusal| self.denied_by_ledger(call, refusal);
        match call.effect {
            Effect::None
            | Effect::MapDma { .. }
            | Effect::CpuMapping { .. }
            | Effect::RangeGroup(_)
            | Effect::Pages(_)
            | Effect::View(_)
            | Effect::Schedule(
                Schedule::SetTimeslice { .. }
                | Schedule::GetTimeslice { .. }
                | Schedule::Runlist { .. }
                | Schedule::Preempt,
            )
            | Effect::ExportInfo { .. }
            // Never comes to a driver.
            | Effect::Answered { .. } => Ok(Reservation::Nothing),
            Effect::UnmapDma { .. } => self.check_unmapping(call).map(|()| Reservation::Nothing),
            Effect::Client => {
                let token = change.reserve(ObjectKind::Client, None).map_err(refused)?;
                Ok(Reservation::Client { token })
            }
            Effect::Object {
                class,
                client,
                parent,
                device_instance,
            } => self.reserve_object(change, call, (class, *client, *parent), *device_instance),
            Effect::Memory(memory) => self.reserve_memory(change, call, memory),
            Effect::Dup {
                client,
                parent,
                source_client,
                source_object,
            } => {
                let source = (*source_client, *source_object);
                self.reserve_duplicate(change, call, (*client, *parent), source)
            }
            Effect::MapExternal {
                base,
                length,
                client,
                memory,
                cards,
            } => {
                let memory = (ClientHandle(*client), ObjectHandle(*memory));
                let cards = self.mapped_cards(call, cards)?;
                self.check_cut(change, call, (*base, *length), &cards)?;
                let pin = self.pin_mapped(change, call, memory, &cards)?;
                let (base, length) = (*base, *length);
                Ok(Reservation::MapExternal { base, length, cards, pin })
            }
            Effect::Free { client, object } => self.reserve_free(change, call, (*client, *object)),
            Effect::Range { base, length, .. } => self.reserve_range(change, call, (*base, *length)),
            Effect::Unmap { base, length, card } => {
                let card = self.slot_of_uuid(card);
                let (base, length) = (*base, *length);
                self.check_cut(change, call, (base, length), card.as_slice())?;
                Ok(Reservation::Unmap { base, length, card })
            }
            Effect::RegisterCard { card, .. } => match self.slot_of_uuid(card) {
                Some(_granted) => Ok(Reservation::Nothing),
                None => Err(self.denied(call, status::NV_ERR_GPU_UUID_NOT_FOUND, Why::NoDevice)),
            },
            Effect::Register {
                card,
                client,
                object,
                what,
            } => {
                let object = (ClientHandle(*client), ObjectHandle(*object));
                self.reserve_registration(change, call, (card, *what), object)
            }
            Effect::Unregister(which) => Ok(Reservation::Unregister {
                which: self.unregistered(*which),
            }),
            Effect::FreeRange { base } => Ok(Reservation::FreeRange { base: *base }),
            Effect::Pool { base, length } => self.reserve_pool(change, call, (*base, *length)),
            Effect::ChannelClients { clients } => {
                self.reserve_clients(change, call, clients.iter())
            }
            Effect::Schedule(Schedule::Channels { channels, .. }) => {
                let clients = channels.iter().map(|(client, _)| client);
                self.reserve_clients(change, call, clients)
            }
            Effect::OsEvent {
                client,
                number,
                switch,
            } => self.reserve_event(change, call, (*client, *number), *switch),
            Effect::NamesCards { ids, absent } => self.reserve_cards(change, call, ids, *absent),
            Effect::Export(export) => self.reserve_exports(change, call, export),
            Effect::Import(import) => self.reserve_imports(change, call, import),
            // Not an ioctl's: see `managed`.
            Effect::Managed { .. } => {
                Err(self.denied(call, status::NV_ERR_NOT_SUPPORTED, Why::NotAnIoctl))
            }
        }
    }

    fn reserve_object(
        &self,
        change: &mut Change<'_>,
        call: &JudgedCall<'_>,
        (class, client, parent): (&Class, u32, u32),
        device_instance: Option<u32>,
    ) -> Result<Reservation, Denied> {
        let device = match device_instance {
            Some(instance) => {
                let slot = change.numbering.slot_of_instance.get(&instance).copied();
                let foreign = || {
                    let why = Why::ForeignDevice(instance);
                    self.denied(call, status::NV_ERR_INVALID_CLASS, why)
                };
                Some(slot.ok_or_else(foreign)?)
            }
            None => None,
        };
        self.check_context_dma(change, call, (class, client))?;
        let card = device.or_else(|| card_of_object(change, (client, parent)));
        let demand = card.and_then(|card| {
            let place = (client, parent);
            let bytes = self.implicit_bytes(change, card, (class, place), call.segments);
            (bytes > 0).then_some(Demand {
                card,
                bytes,
                purpose: Purpose::Context,
            })
        });
        let kind = object_kind(class.kind);
        let token = self.reserve_bytes(change, call, kind, demand)?;
        Ok(Reservation::Object {
            client,
            parent,
            class: class.number,
            kind,
            device,
            token,
        })
    }

    /// A context DMA is over memory: RM writes by its address alone (`kchannelGetNotifierInfo`), and a doorbell's is an offset of a register.
    ///
    /// A notifier in a card's memory takes a place of its own in the window by which the CPU reaches the card (context_dma.c,
    /// `kbusMapFbApertureSingle`), beside what is mapped there by calls that are counted.
    fn check_context_dma(
        &self,
        state: &State,
        call: &JudgedCall<'_>,
        (class, client): (&Class, u32),
    ) -> Result<(), Denied> {
        let params = call.segments.get(1).map(|params| params.bytes.as_slice());
        let params = params.unwrap_or_default();
        if class.kind != Kind::Plain(Plain::ContextDma) {
            return Ok(());
        }
        let memory = u32_at(params, context_dma::H_MEMORY).unwrap_or_default();
        let object = state
            .ledger
            .object(ClientHandle(client), ObjectHandle(memory));
        let Some(object) = object.filter(|object| names::is_memory(object)) else {
            let why = Why::NoMemory {
                client,
                object: memory,
            };
            return Err(self.denied(call, status::NV_ERR_INVALID_OBJECT, why));
        };
        let allocation = object.allocation.and_then(|id| state.ledger.allocation(id));
        let is_on_card = allocation.is_some_and(|on| on.card != CardSlot::HOST);
        if is_on_card && context_dma::is_mapped_for_the_kernel(params) {
            let why = Why::NotifierOnCard { client, memory };
            return Err(self.denied(call, status::NV_ERR_NOT_SUPPORTED, why));
        }
        Ok(())
    }

    fn reserve_memory(
        &self,
        change: &mut Change<'_>,
        call: &JudgedCall<'_>,
        memory: &Memory,
    ) -> Result<Reservation, Denied> {
        let no_device = || self.denied(call, status::NV_ERR_INVALID_OBJECT_PARENT, Why::NoDevice);
        let demand = Demand {
            card: card_of(change, memory).ok_or_else(no_device)?,
            bytes: memory.reserve_bytes,
            purpose: Purpose::Memory,
        };
        let token = self.reserve_bytes(change, call, ObjectKind::Memory, Some(demand))?;
        Ok(Reservation::Memory {
            memory: *memory,
            token,
        })
    }

    fn reserve_bytes(
        &self,
        change: &mut Change<'_>,
        call: &JudgedCall<'_>,
        kind: ObjectKind,
        demand: Option<Demand>,
    ) -> Result<ReservationToken, Denied> {
        if let Some(demand) = demand {
            self.fits_beside_page_tables(change, demand.card, demand.bytes)
                .map_err(|refusal| self.denied_by_ledger(call, refusal))?;
        }
        change
            .reserve(kind, demand)
            .map_err(|refusal| self.denied_by_ledger(call, refusal))
    }

    fn reserve_duplicate(
        &self,
        change: &mut Change<'_>,
        call: &JudgedCall<'_>,
        (client, parent): (u32, u32),
        (source_client, source): (u32, u32),
    ) -> Result<Reservation, Denied> {
        let source = (ClientHandle(source_client), ObjectHandle(source));
        let pin = change
            .pin(source, PinFor::Duplicate)
            .map_err(|refusal| self.denied_by_ledger(call, refusal))?;
        Ok(Reservation::Duplicate {
            client,
            parent,
            pin,
        })
    }

    fn reserve_range(
        &self,
        change: &mut Change<'_>,
        call: &JudgedCall<'_>,
        (base, length): (u64, u64),
    ) -> Result<Reservation, Denied> {
        let token = change
            .ledger
            .check_range()
            .and_then(|demand| change.reserve(ObjectKind::Other, Some(demand)))
            .map_err(|refusal| self.denied_by_ledger(call, refusal))?;
        Ok(Reservation::Range {
            base,
            length,
            token,
        })
    }

    /// The cards that memory is to be mapped on.
    fn mapped_cards(
        &self,
        call: &JudgedCall<'_>,
        cards: &[[u8; 16]],
    ) -> Result<Vec<CardSlot>, Denied> {
        let cards: Option<Vec<CardSlot>> =
            cards.iter().map(|uuid| self.slot_of_uuid(uuid)).collect();
        cards.ok_or_else(|| self.denied(call, status::NV_ERR_INVALID_DEVICE, Why::NoDevice))
    }

    /// Whether what was mapped there may be in one piece more then, on each of these cards: the driver splits it.
    fn check_cut(
        &self,
        state: &State,
        call: &JudgedCall<'_>,
        (base, length): (u64, u64),
        cards: &[CardSlot],
    ) -> Result<(), Denied> {
        let file = ledger::FileId(call.origin.file.0);
        Span::new(base, length)
            .map_or(Ok(()), |span| state.ledger.check_cut(file, span, cards))
            .map_err(|refusal| self.denied_by_ledger(call, refusal))
    }

    /// A pin that keeps memory charged for as long as it is mapped. The page of the card's figures could be written where it is mapped for an
    /// engine (gpu_user_shared_data.c).
    fn pin_mapped(
        &self,
        change: &mut Change<'_>,
        call: &JudgedCall<'_>,
        memory: (ClientHandle, ObjectHandle),
        cards: &[CardSlot],
    ) -> Result<PinToken, Denied> {
        let found = change.ledger.object(memory.0, memory.1);
        let may_be_mapped = found.is_none_or(|object| {
            names::is_memory(object)
                || names::is_doorbell(object) && keeps_its_kind(call, cards.len())
        });
        if !may_be_mapped {
            let (client, object) = (memory.0.0, memory.1.0);
            let why = Why::NoMemory { client, object };
            return Err(self.denied(call, status::NV_ERR_INVALID_OBJECT_HANDLE, why));
        }
        let purpose = PinFor::Map {
            cards: u32::try_from(cards.len()).unwrap_or(u32::MAX),
        };
        change
            .pin(memory, purpose)
            .map_err(|refusal| self.denied_by_ledger(call, refusal))
    }

    fn reserve_pool(
        &self,
        change: &mut Change<'_>,
        call: &JudgedCall<'_>,
        (base, length): (u64, u64),
    ) -> Result<Reservation, Denied> {
        if change.pool_count() >= MOST_POOLS {
            let status = status::NV_ERR_INSUFFICIENT_RESOURCES;
            return Err(self.denied(call, status, Why::TooManyPools));
        }
        let demand = Demand {
            card: CardSlot::HOST,
            bytes: page_size::taken_of_host(length, Whose::Host),
            purpose: Purpose::Memory,
        };
        let token = change
            .reserve(ObjectKind::Other, Some(demand))
            .map_err(|refusal| self.denied_by_ledger(call, refusal))?;
        Ok(Reservation::Pool {
            base,
            length,
            token,
        })
    }

    fn reserve_event(
        &self,
        state: &State,
        call: &JudgedCall<'_>,
        (client, number): (u32, u32),
        switch: Switch,
    ) -> Result<Reservation, Denied> {
        if !state.has_client(client) {
            return Err(self.denied(call, status::NV_ERR_INVALID_CLIENT, Why::ForeignEvent));
        }
        match switch {
            Switch::Off => Ok(Reservation::FreeOsEvent { client, number }),
            Switch::On => {
                let is_new = !state.has_os_event(client, number);
                if is_new && state.os_event_count() >= MOST_OS_EVENTS {
                    let status = status::NV_ERR_INSUFFICIENT_RESOURCES;
                    return Err(self.denied(call, status, Why::TooManyEvents));
                }
                Ok(Reservation::OsEvent { client, number })
            }
        }
    }

    /// Channels of other tenants' clients are refused as the driver refuses an unknown client.
    fn reserve_clients<'c>(
        &self,
        state: &State,
        call: &JudgedCall<'_>,
        mut clients: impl Iterator<Item = &'c u32>,
    ) -> Result<Reservation, Denied> {
        match clients.all(|client| state.has_client(*client)) {
            true => Ok(Reservation::Nothing),
            false => Err(self.denied(call, status::NV_ERR_INVALID_CLIENT, Why::ForeignChannels)),
        }
    }

    /// Not what a channel needs that stays ([`Account::hold_named`]). NVIDIA's own library frees the channel first (nvidia-push-init.c,
    /// `nvPushFreeChannel`).
    fn reserve_free(
        &self,
        change: &Change<'_>,
        call: &JudgedCall<'_>,
        (client, object): (u32, u32),
    ) -> Result<Reservation, Denied> {
        let name = (ClientHandle(client), ObjectHandle(object));
        match change.channel_that_outlives(name) {
            None => Ok(Reservation::Free { client, object }),
            Some(ObjectHandle(channel)) => {
                let why = Why::NeededByChannel {
                    client,
                    object,
                    channel,
                };
                Err(self.denied(call, status::NV_ERR_STATE_IN_USE, why))
            }
        }
    }

    /// Other cards are refused as the driver answers where there is no such card: by errno where the struct has no status.
    fn reserve_cards(
        &self,
        state: &State,
        call: &JudgedCall<'_>,
        ids: &[u32],
        absent: u32,
    ) -> Result<Reservation, Denied> {
        let known = &state.numbering.slot_of_gpu_id;
        match ids.iter().find(|id| !known.contains_key(id)) {
            None => Ok(Reservation::Nothing),
            Some(id) => Err(self.denied(call, absent, Why::ForeignCard(*id))),
        }
    }

    /// A refusal by a status.
    pub(super) fn denied(&self, call: &JudgedCall<'_>, status: u32, why: Why) -> Denied {
        Denied {
            refusal: call.op.refuse(status, self.release),
            why,
        }
    }

    /// The ledger's refusal, as the driver would say it.
    pub(super) fn denied_by_ledger(
        &self,
        call: &JudgedCall<'_>,
        refusal: ledger::Refusal,
    ) -> Denied {
        let status = status_of(&refusal);
        self.denied(call, status, Why::Ledger(refusal))
    }
}

/// What an allocation is charged to.
pub(super) fn card_of(state: &State, memory: &Memory) -> Option<CardSlot> {
    match memory.whose {
        Whose::Host | Whose::HostInOnePiece => Some(CardSlot::HOST),
        Whose::Card => card_of_object(state, (memory.client, memory.parent)),
    }
}

pub(super) fn card_of_object(state: &State, (client, object): (u32, u32)) -> Option<CardSlot> {
    let ledger = &state.ledger;
    ledger.card_of(ClientHandle(client), ObjectHandle(object))
}

/// Whether a UVM_MAP_EXTERNAL_ALLOCATION leaves the format of the memory to RM on each card: with another one RM maps a doorbell as memory
/// (`nvGpuOpsGetPteKind`, nv_gpu_ops.c), at an address that is an offset of a register.
fn keeps_its_kind(call: &JudgedCall<'_>, cards: usize) -> bool {
    let arg = call.segments.first().map(|arg| arg.bytes.as_slice());
    let entries = arg.and_then(|arg| arg.get(map_external::PER_GPU..));
    let mut entries = entries
        .unwrap_or_default()
        .chunks_exact(map_external::PER_GPU_BYTES)
        .take(cards);
    let defaults = [map_external::FORMAT, map_external::COMPRESSION];
    entries.all(|entry| defaults.iter().all(|at| u32_at(entry, *at) == Some(0)))
}
