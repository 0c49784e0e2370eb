//! The record's layout in bytes, little endian:
//!
//! | at | what |
//! |---|---|
//! | 0 | `cgpuslot` |
//! | 8 | version u32, 0 u32: these two lines are the same in every version |
//! | 16 | seq u64 |
//! | 24 | fields in the order of [`ShareRecord`], then 0 |
//! | 4080 | FNV-1a of all before, u64 |
//! | 4088 | seq u64 again |

use super::{
    CHANNELS_MAX, CLIENTS_MAX, Claim, GROUPS_MAX, GateState, KEY_MAX_BYTES, Next, Recovery,
    RecoveryChannel, RecoveryClient, SIZE_BYTES, ShareRecord, ShareRecordError, VERSION,
};
use crate::WHOLE_PPM;
use crate::enforcement_level::EnforcementLevel;
use crate::layout::Gang;
use crate::policy::Policy;
use crate::terms::{Priority, Terms};

const MAGIC: [u8; 8] = *b"cgpuslot";
/// Where the checksum stands.
const SUM_AT: usize = SIZE_BYTES - 16;

const _: () = assert!(
    24 + 2 + KEY_MAX_BYTES + 5 * 8 + 2 * 64 + 64 + CLIENTS_MAX * 24 + CHANNELS_MAX * 8 + 2 * 8
        <= SUM_AT,
    "a full record must fit"
);

pub(super) fn encode(
    record: &ShareRecord,
    seq: u64,
) -> Result<Box<[u8; SIZE_BYTES]>, ShareRecordError> {
    check(record)?;
    let mut out: Vec<u8> = Vec::with_capacity(SIZE_BYTES);
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.extend(0_u32.to_le_bytes());
    out.extend(seq.to_le_bytes());
    out.extend(short(record.key.len()).to_le_bytes());
    out.extend(record.key.as_bytes());
    out.extend(record.generation.to_le_bytes());
    out.extend(record.pid.to_le_bytes());
    out.extend(record.start_time.to_le_bytes());
    out.extend(record.join_ns.to_le_bytes());
    put_claim(&mut out, record.now.as_ref());
    out.extend(record.next.map_or(0, |next| next.at_ns).to_le_bytes());
    put_claim(&mut out, record.next.as_ref().map(|next| &next.claim));
    out.push(record.gate as u8);
    out.extend(record.gate_since_ns.to_le_bytes());
    for value in [record.busy_until_ns, record.used_ns] {
        out.push(u8::from(value.is_some()));
        out.extend(value.unwrap_or(0).to_le_bytes());
    }
    out.push(
        record
            .enforcement_level
            .map_or(u8::MAX, EnforcementLevel::code),
    );
    out.extend(record.latency_ns.to_le_bytes());
    let recovery = &record.recovery;
    out.extend(recovery.init_pid.to_le_bytes());
    out.extend(recovery.init_start_time.to_le_bytes());
    out.extend(short(recovery.clients.len()).to_le_bytes());
    for client in &recovery.clients {
        out.extend(client.client.to_le_bytes());
        out.extend(client.subdevice.to_le_bytes());
        out.extend(client.pid.to_le_bytes());
        out.extend(client.start_time.to_le_bytes());
        out.extend(client.fd.to_le_bytes());
    }
    out.extend(short(recovery.channels.len()).to_le_bytes());
    for channel in &recovery.channels {
        out.extend(channel.client.to_le_bytes());
        out.extend(channel.handle.to_le_bytes());
    }
    // Zeros in a record of a broker that did not know these.
    out.extend(record.used_at_ns.to_le_bytes());
    out.extend(record.bias_ns.to_le_bytes());
    out.resize(SUM_AT, 0);
    let sum = checksum(&out);
    out.extend(sum.to_le_bytes());
    out.extend(seq.to_le_bytes());
    let mut bytes = Box::new([0; SIZE_BYTES]);
    bytes.copy_from_slice(&out);
    Ok(bytes)
}

pub(super) fn decode(bytes: &[u8]) -> Result<(ShareRecord, u64), ShareRecordError> {
    if bytes.len() != SIZE_BYTES {
        return Err(ShareRecordError::Size { bytes: bytes.len() });
    }
    let mut from = Reader { bytes };
    if from.take::<8>()? != MAGIC {
        return Err(ShareRecordError::Foreign);
    }
    let version = from.u32()?;
    if version != VERSION {
        return Err(ShareRecordError::Version { found: version });
    }
    let reserved = from.u32()?;
    let seq = from.u64()?;
    let (body, tail) = bytes.split_at(SUM_AT);
    let mut tail = Reader { bytes: tail };
    if tail.u64()? != checksum(body) || tail.u64()? != seq || seq % 2 != 0 {
        return Err(ShareRecordError::Torn);
    }
    if reserved != 0 {
        return Err(field("reserved", u64::from(reserved)));
    }
    let key_bytes = from.count("key length", KEY_MAX_BYTES)?;
    let key = std::str::from_utf8(from.slice(key_bytes)?)
        .ok()
        .filter(|key| !key.is_empty())
        .ok_or(ShareRecordError::Name)?
        .to_owned();
    let record = ShareRecord {
        key,
        generation: from.u64()?,
        pid: from.u32()?,
        start_time: from.u64()?,
        join_ns: from.u64()?,
        now: from.claim()?,
        next: {
            let at_ns = from.u64()?;
            from.claim()?.map(|claim| Next { at_ns, claim })
        },
        gate: match from.u8()? {
            0 => GateState::Open,
            1 => GateState::Closed,
            2 => GateState::Unknown,
            other => return Err(field("gate", u64::from(other))),
        },
        gate_since_ns: from.u64()?,
        busy_until_ns: from.optional("busy_until")?,
        used_ns: from.optional("used")?,
        enforcement_level: match from.u8()? {
            u8::MAX => None,
            code => Some(
                EnforcementLevel::of_code(code)
                    .ok_or_else(|| field("enforcement_level", u64::from(code)))?,
            ),
        },
        latency_ns: from.u64()?,
        recovery: from.recovery()?,
        used_at_ns: from.u64()?,
        bias_ns: i64::from_le_bytes(from.take()?),
    };
    Ok((record, seq))
}

/// What an owner must not publish.
fn check(record: &ShareRecord) -> Result<(), ShareRecordError> {
    let most = |name: &'static str, count: usize, most: usize| {
        if count > most {
            Err(field(name, u64::try_from(count).unwrap_or(u64::MAX)))
        } else {
            Ok(())
        }
    };
    if record.key.is_empty() {
        return Err(ShareRecordError::Name);
    }
    most("key length", record.key.len(), KEY_MAX_BYTES)?;
    most("clients", record.recovery.clients.len(), CLIENTS_MAX)?;
    most("channels", record.recovery.channels.len(), CHANNELS_MAX)?;
    let next = record.next.as_ref().map(|next| &next.claim);
    for claim in record.now.as_ref().into_iter().chain(next) {
        check_claim(claim)?;
    }
    Ok(())
}

fn check_claim(claim: &Claim) -> Result<(), ShareRecordError> {
    claim.terms.validate().map_err(ShareRecordError::Terms)?;
    if claim.groups > GROUPS_MAX {
        return Err(field("groups", u64::from(claim.groups)));
    }
    match claim.place_ppm {
        Some(place) if place >= WHOLE_PPM => return Err(field("place", u64::from(place))),
        _ => {}
    }
    match claim.gang {
        Some(gang) if gang.size < 2 => Err(field("gang size", u64::from(gang.size))),
        _ => Ok(()),
    }
}

/// 28 bytes: there or not, policy, priority, percent (0: none), weight, groups, place (all ones: none), gang size (0: none), id.
fn put_claim(out: &mut Vec<u8>, claim: Option<&Claim>) {
    let Some(claim) = claim else {
        out.extend([0; 28]);
        return;
    };
    out.push(1);
    out.push(claim.terms.policy as u8);
    out.push(claim.terms.priority as u8);
    out.push(u8::try_from(claim.terms.percent.unwrap_or(0)).unwrap_or(u8::MAX));
    out.extend(claim.terms.weight.to_le_bytes());
    out.extend(claim.groups.to_le_bytes());
    out.extend(claim.place_ppm.unwrap_or(u32::MAX).to_le_bytes());
    out.extend(claim.gang.map_or(0, |gang| gang.size).to_le_bytes());
    out.extend(claim.gang.map_or(0, |gang| gang.id).to_le_bytes());
}

fn short(count: usize) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

fn field(field: &'static str, value: u64) -> ShareRecordError {
    ShareRecordError::Field { field, value }
}

/// FNV-1a by words: this is about torn records, not about forged ones.
fn checksum(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().fold(0xcbf2_9ce4_8422_2325, |sum, word| {
        (sum ^ u64::from_le_bytes(*word)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// What is left of the bytes.
struct Reader<'b> {
    bytes: &'b [u8],
}

impl<'b> Reader<'b> {
    fn slice(&mut self, count: usize) -> Result<&'b [u8], ShareRecordError> {
        let (head, rest) = self
            .bytes
            .split_at_checked(count)
            .ok_or(ShareRecordError::Size { bytes: count })?;
        self.bytes = rest;
        Ok(head)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], ShareRecordError> {
        let (head, rest) = self
            .bytes
            .split_first_chunk::<N>()
            .ok_or(ShareRecordError::Size { bytes: N })?;
        self.bytes = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, ShareRecordError> {
        Ok(u8::from_le_bytes(self.take()?))
    }

    fn u32(&mut self) -> Result<u32, ShareRecordError> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn u64(&mut self) -> Result<u64, ShareRecordError> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    fn count(&mut self, name: &'static str, most: usize) -> Result<usize, ShareRecordError> {
        let count = usize::from(u16::from_le_bytes(self.take()?));
        if count > most {
            return Err(field(name, u64::try_from(count).unwrap_or(u64::MAX)));
        }
        Ok(count)
    }

    fn optional(&mut self, name: &'static str) -> Result<Option<u64>, ShareRecordError> {
        let (there, value) = (self.u8()?, self.u64()?);
        match there {
            0 => Ok(None),
            1 => Ok(Some(value)),
            other => Err(field(name, u64::from(other))),
        }
    }

    fn claim(&mut self) -> Result<Option<Claim>, ShareRecordError> {
        let [there, policy, priority, percent] = self.take()?;
        let (weight, groups, place) = (self.u32()?, self.u32()?, self.u32()?);
        let (size, id) = (self.u32()?, self.u64()?);
        match there {
            0 => return Ok(None),
            1 => {}
            other => return Err(field("claim", u64::from(other))),
        }
        let claim = Claim {
            terms: Terms {
                policy: Policy::of_number(u32::from(policy))
                    .ok_or_else(|| field("policy", u64::from(policy)))?,
                percent: (percent > 0).then_some(u32::from(percent)),
                weight,
                priority: Priority::ALL
                    .into_iter()
                    .find(|known| *known as u8 == priority)
                    .ok_or_else(|| field("priority", u64::from(priority)))?,
            },
            groups,
            gang: (size > 0).then_some(Gang { id, size }),
            place_ppm: (place != u32::MAX).then_some(place),
        };
        check_claim(&claim)?;
        Ok(Some(claim))
    }

    fn recovery(&mut self) -> Result<Recovery, ShareRecordError> {
        let (init_pid, init_start_time) = (self.u32()?, self.u64()?);
        let clients = (0..self.count("clients", CLIENTS_MAX)?)
            .map(|_| {
                Ok(RecoveryClient {
                    client: self.u32()?,
                    subdevice: self.u32()?,
                    pid: self.u32()?,
                    start_time: self.u64()?,
                    fd: self.u32()?,
                })
            })
            .collect::<Result<_, ShareRecordError>>()?;
        let channels = (0..self.count("channels", CHANNELS_MAX)?)
            .map(|_| {
                Ok(RecoveryChannel {
                    client: self.u32()?,
                    handle: self.u32()?,
                })
            })
            .collect::<Result<_, ShareRecordError>>()?;
        Ok(Recovery {
            init_pid,
            init_start_time,
            clients,
            channels,
        })
    }
}
