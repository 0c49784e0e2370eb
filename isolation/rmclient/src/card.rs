//! One card: what it is called, what it holds, and who holds it.

use std::fmt;

use nvabi::layout::{card_info, device_params, gid_info, id_info, pid_info, pid_memory, pids};
use nvabi::{bytes, class, control, escape};
use sys::ioctl::Block;

use crate::file::DriverFile;
use crate::{Client, Error, Form, Handle};

/// Where a card sits on the PCI bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Slot.
    pub slot: u8,
    /// Function.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:08X}:{:02X}:{:02X}.{:X}",
            self.domain, self.bus, self.slot, self.function
        )
    }
}

/// One entry of CARD_INFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CardInfo {
    /// RM's GPU id.
    pub gpu_id: u32,
    /// N of `nvidia<N>`.
    pub minor: u32,
    /// Where it sits.
    pub pci: PciAddress,
    /// PCI vendor, 0x10de.
    pub pci_vendor: u16,
    /// PCI device.
    pub pci_device: u16,
}

/// `nv_ioctl_card_info_t.pci_info.function`
const PCI_FUNCTION_AT: usize = 10;

impl CardInfo {
    /// `None` for an entry without a card.
    pub(crate) fn decode(entry: &[u8]) -> Option<Self> {
        if bytes::u8_at(entry, card_info::VALID)? == 0 {
            return None;
        }
        Some(Self {
            gpu_id: bytes::u32_at(entry, card_info::GPU_ID)?,
            minor: bytes::u32_at(entry, card_info::MINOR)?,
            pci: PciAddress {
                domain: bytes::u32_at(entry, card_info::PCI_DOMAIN)?,
                bus: bytes::u8_at(entry, card_info::PCI_BUS)?,
                slot: bytes::u8_at(entry, card_info::PCI_SLOT)?,
                function: bytes::u8_at(entry, PCI_FUNCTION_AT)?,
            },
            pci_vendor: bytes::u16_at(entry, card_info::PCI_VENDOR)?,
            pci_device: bytes::u16_at(entry, card_info::PCI_DEVICE)?,
        })
    }
}

/// A card's UUID, 16 bytes; its text is `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 0 | 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// The card's memory as FB_GET_INFO tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FbMemory {
    /// `TOTAL_RAM_SIZE`, bytes.
    pub total_bytes: u64,
    /// `HEAP_SIZE`, bytes.
    pub heap_bytes: u64,
    /// `HEAP_FREE`, bytes.
    pub free_bytes: u64,
}

impl FbMemory {
    /// What is in use: the heap less what is free of it.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.heap_bytes.saturating_sub(self.free_bytes)
    }
}

/// What one process holds of a card's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessMemory {
    /// The process, in the pid namespace of whoever executes the call.
    pub pid: u32,
    /// Bytes; `None` where the driver does not say.
    pub used_bytes: Option<u64>,
}

/// An open card.
#[derive(Debug)]
pub struct Card<'client> {
    client: &'client Client,
    info: CardInfo,
    /// Kept open: the driver keeps a card initialised while a node of it is open.
    _node: DriverFile,
    device: Handle,
    subdevice: Handle,
}

/// `gpuNameString` of `NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS`.
const NAME_AT: usize = 4;
/// `NV2080_GPU_MAX_NAME_STRING_LENGTH`
const NAME_LONGEST: usize = 64;

/// Cards that one CARD_INFO call asks for; the driver answers EINVAL when there are more.
const CARD_INFO_ENTRIES: u16 = 32;

impl Client {
    /// The cards that the driver lists, by minor number. Not every one need have a node here: see [`Error::is_absent`].
    ///
    /// # Errors
    /// [`Error::Ioctl`].
    pub fn card_infos(&self) -> Result<Vec<CardInfo>, Error> {
        let length = card_info::BYTES * usize::from(CARD_INFO_ENTRIES);
        let mut entries = vec![0u8; length];
        let cmd = 0xc000_0000
            | (u32::from(CARD_INFO_ENTRIES) * 72) << 16
            | u32::from(escape::NV_IOCTL_MAGIC) << 8
            | u32::from(escape::NV_ESC_CARD_INFO);
        self.ctl()
            .call("NV_ESC_CARD_INFO", cmd, &mut entries, &mut [])?;
        let mut cards: Vec<CardInfo> = entries
            .chunks_exact(card_info::BYTES)
            .filter_map(CardInfo::decode)
            .collect();
        cards.sort_by_key(|card| card.minor);
        Ok(cards)
    }

    /// Opens a card's node and allocates its device and subdevice.
    ///
    /// # Errors
    /// [`Error::is_absent`] for a card without a node here; otherwise the step that failed.
    pub fn card(&self, info: CardInfo) -> Result<Card<'_>, Error> {
        Card::open(self, info)
    }

    /// Opens every card that has a node here.
    ///
    /// # Errors
    /// As [`Client::card`], except that absent cards are left out.
    pub fn cards(&self) -> Result<Vec<Card<'_>>, Error> {
        let mut cards = Vec::new();
        for info in self.card_infos()? {
            match self.card(info) {
                Ok(card) => cards.push(card),
                Err(error) if error.is_absent() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(cards)
    }
}

impl<'client> Card<'client> {
    pub(crate) fn open(client: &'client Client, info: CardInfo) -> Result<Self, Error> {
        let node = open_node(client, info)?;
        let (device_instance, subdevice_instance) = instances(client, info)?;
        let mut params = [0u8; 56];
        bytes::put_u32(&mut params, device_params::DEVICE_ID, device_instance);
        bytes::put_u32(&mut params, device_params::H_CLIENT_SHARE, client.root().0);
        bytes::put_u32(
            &mut params,
            device_params::VA_MODE,
            device_params::VA_MODE_MULTIPLE,
        );
        let device = client.allocate(
            Form::Short,
            client.root(),
            class::NV01_DEVICE_0,
            &mut params,
        )?;
        let mut params = subdevice_instance.to_le_bytes();
        let subdevice =
            client.allocate(Form::Short, device, class::NV20_SUBDEVICE_0, &mut params)?;
        Ok(Self {
            client,
            info,
            _node: node,
            device,
            subdevice,
        })
    }

    /// Its entry of CARD_INFO.
    #[must_use]
    pub fn info(&self) -> CardInfo {
        self.info
    }

    /// The client that it was opened with.
    #[must_use]
    pub fn client(&self) -> &'client Client {
        self.client
    }

    /// The handle of its device object.
    #[must_use]
    pub fn device(&self) -> Handle {
        self.device
    }

    /// The handle of its subdevice object.
    #[must_use]
    pub fn subdevice(&self) -> Handle {
        self.subdevice
    }

    /// The product's name; a simulated card says so in it.
    ///
    /// # Errors
    /// The driver's status.
    pub fn name(&self) -> Result<String, Error> {
        let params = self.query(control::NV2080_CTRL_CMD_GPU_GET_NAME_STRING, |_zeroed| ())?;
        let name = bytes::text_at(&params, NAME_AT, NAME_LONGEST);
        Ok(String::from_utf8_lossy(name).into_owned())
    }

    /// The card's UUID.
    ///
    /// # Errors
    /// The driver's status.
    pub fn uuid(&self) -> Result<Uuid, Error> {
        let params = self.query(control::NV2080_CTRL_CMD_GPU_GET_GID_INFO, |params| {
            bytes::put_u32(params, gid_info::FLAGS, gid_info::FORMAT_BINARY);
            bytes::put_u32(params, gid_info::LENGTH, 16);
        })?;
        match bytes::array_at(&params, gid_info::DATA) {
            Some(uuid) => Ok(Uuid(uuid)),
            None => Err(Error::Malformed {
                call: "NV2080_CTRL_CMD_GPU_GET_GID_INFO",
                what: "no UUID",
            }),
        }
    }

    /// Total and free memory, by FB_GET_INFO_V2.
    ///
    /// # Errors
    /// The driver's status.
    pub fn memory(&self) -> Result<FbMemory, Error> {
        const LIST_AT: usize = 4;
        let params = self.query(control::NV2080_CTRL_CMD_FB_GET_INFO_V2, |params| {
            bytes::put_u32(params, 0, FB_INDICES_COUNT);
            if let Some(list) = params.get_mut(LIST_AT..) {
                ask(list);
            }
        })?;
        answers(params.get(LIST_AT..).unwrap_or(&[]))
    }

    /// Total and free memory, by the older FB_GET_INFO with its list behind a pointer.
    ///
    /// # Errors
    /// The driver's status.
    pub fn memory_by_v1(&self) -> Result<FbMemory, Error> {
        let cmd = control::NV2080_CTRL_CMD_FB_GET_INFO;
        let mut params = self.client.params(cmd)?;
        bytes::put_u32(&mut params, 0, FB_INDICES_COUNT);
        let mut list = [0u8; 8 * FB_INDICES.len()];
        ask(&mut list);
        let nested = vec![Block {
            parent: 1,
            pointer_at: 8,
            bytes: &mut list,
        }];
        self.client
            .control(self.subdevice, cmd, &mut params, nested)?;
        answers(&list)
    }

    /// The processes that hold objects on the card.
    ///
    /// # Errors
    /// The driver's status.
    pub fn processes(&self) -> Result<Vec<ProcessMemory>, Error> {
        let table = self.query(control::NV2080_CTRL_CMD_GPU_GET_PIDS, |params| {
            bytes::put_u32(params, pids::ID, class::NV20_SUBDEVICE_0);
        })?;
        let count = bytes::u32_at(&table, pids::COUNT).unwrap_or(0);
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(pids::MOST);
        let found: Vec<u32> = (0..count)
            .filter_map(|index| bytes::u32_at(&table, pids::TABLE + 4 * index))
            .collect();
        let mut processes = Vec::with_capacity(found.len());
        for some in found.chunks(pid_info::MOST as usize) {
            processes.extend(self.process_memory(some)?);
        }
        processes.sort_by_key(|process| process.pid);
        Ok(processes)
    }

    fn process_memory(&self, pids: &[u32]) -> Result<Vec<ProcessMemory>, Error> {
        let row = |index: usize| pid_info::LIST + pid_memory::BYTES * index;
        let params = self.query(control::NV2080_CTRL_CMD_GPU_GET_PID_INFO, |params| {
            bytes::put_u32(
                params,
                pid_info::COUNT,
                u32::try_from(pids.len()).unwrap_or(0),
            );
            for (index, pid) in pids.iter().enumerate() {
                let entry = row(index);
                bytes::put_u32(params, entry + pid_memory::PID, *pid);
                let memory = pid_memory::INDEX_VIDEO_MEMORY;
                bytes::put_u32(params, entry + pid_memory::INDEX, memory);
            }
        })?;
        // What has several handles, UVM's among them, is no longer private, and counted with the handle that owns it.
        let used = |index: usize| {
            let at = |field: usize| bytes::u64_at(&params, row(index) + field);
            let result = bytes::u32_at(&params, row(index) + pid_memory::RESULT)?;
            let used = at(pid_memory::PRIVATE)?.checked_add(at(pid_memory::SHARED_OWNED)?)?;
            (result == nvabi::status::NV_OK).then_some(used)
        };
        Ok(pids
            .iter()
            .enumerate()
            .map(|(index, pid)| ProcessMemory {
                pid: *pid,
                used_bytes: used(index),
            })
            .collect())
    }

    /// A control on the subdevice, whose parameters `fill` completes.
    fn query(&self, cmd: u32, fill: impl FnOnce(&mut [u8])) -> Result<Vec<u8>, Error> {
        let mut params = self.client.params(cmd)?;
        fill(&mut params);
        self.client
            .control(self.subdevice, cmd, &mut params, Vec::new())?;
        Ok(params)
    }

    /// A further open file of the card's node, bound to the client.
    ///
    /// # Errors
    /// As [`Client::card`].
    pub fn open_again(&self) -> Result<DriverFile, Error> {
        open_node(self.client, self.info)
    }
}

fn open_node(client: &Client, info: CardInfo) -> Result<DriverFile, Error> {
    let node = client.open(client.nodes().card(info.minor))?;
    let escape = escape::NV_ESC_REGISTER_FD;
    let mut arg = client.ctl().number().to_le_bytes();
    node.call(escape.name, escape.cmd(client.release()), &mut arg, &mut [])?;
    Ok(node)
}

/// Device and subdevice instance of a GPU id.
fn instances(client: &Client, info: CardInfo) -> Result<(u32, u32), Error> {
    let cmd = control::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2;
    let mut params = client.params(cmd)?;
    bytes::put_u32(&mut params, id_info::GPU_ID, info.gpu_id);
    client.control(client.root(), cmd, &mut params, Vec::new())?;
    match (
        bytes::u32_at(&params, id_info::DEVICE_INSTANCE),
        bytes::u32_at(&params, id_info::SUBDEVICE_INSTANCE),
    ) {
        (Some(device), Some(subdevice)) => Ok((device, subdevice)),
        _ => Err(Error::Malformed {
            call: "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2",
            what: "no instance",
        }),
    }
}

const FB_INDICES: [u32; 3] = [
    control::fb_info::TOTAL_RAM_SIZE,
    control::fb_info::HEAP_SIZE,
    control::fb_info::HEAP_FREE,
];
const FB_INDICES_COUNT: u32 = 3;

/// Writes the wanted indices into a list of `{u32 index; u32 data}`.
fn ask(list: &mut [u8]) {
    for (entry, index) in list.chunks_exact_mut(8).zip(FB_INDICES) {
        bytes::put_u32(entry, 0, index);
    }
}

/// Reads the values, which are KiB.
fn answers(list: &[u8]) -> Result<FbMemory, Error> {
    let value =
        |position: usize| bytes::u32_at(list, 8 * position + 4).map(|kib| u64::from(kib) * 1024);
    match (value(0), value(1), value(2)) {
        (Some(total_bytes), Some(heap_bytes), Some(free_bytes)) => Ok(FbMemory {
            total_bytes,
            heap_bytes,
            free_bytes,
        }),
        _ => Err(Error::Malformed {
            call: "NV2080_CTRL_CMD_FB_GET_INFO",
            what: "a list that is too short",
        }),
    }
}

#[cfg(test)]
mod tests;
