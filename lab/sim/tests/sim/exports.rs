//! Exported memory, within a container and between containers, under every release: what keeps it, and whose it is.
use std::fs::File;

use crate::tenant::{Opened, Tenant, ada, open};
use driver::FileKind;
use driver::wire::WireFd;
use nvabi::bytes::{put, put_u32, u16_at, u32_at};
use nvabi::layout::nvos54;
use nvabi::status::{
    NV_ERR_INVALID_DEVICE, NV_ERR_INVALID_PARAMETER, NV_ERR_OBJECT_NOT_FOUND, NV_ERR_OUT_OF_RANGE,
    NV_ERR_STATE_IN_USE,
};
use nvabi::{control, escape};

const MIB: u64 = 1 << 20;
const EXPORT: u32 = control::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD;
const IMPORT: u32 = control::NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD;
const INFO: u32 = control::NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO;
const MAKE_FILE: u32 = control::NV0000_CTRL_CMD_OS_UNIX_CREATE_EXPORT_OBJECT_FD;
const EXPORT_MANY: u32 = control::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD;
const IMPORT_MANY: u32 = control::NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD;
/// The descriptor's number in every tenant.
const NUMBER: i32 = 9;

/// A control file as one tenant has it: the same open file may have another identity for another broker.
struct TransferFile {
    file: Opened,
}

impl TransferFile {
    /// A tenant gets a descriptor of an open file.
    fn of(tenant: &mut Tenant, file: &File) -> Self {
        tenant.sendable.insert(NUMBER, file.try_clone().unwrap());
        Self {
            file: open(FileKind::Ctl),
        }
    }

    /// A control that names the file at an offset of its parameters.
    fn control(&self, tenant: &Tenant, cmd: u32, at: u32, params: &mut Vec<u8>) -> Result<(), u32> {
        let mut block = tenant.block(&escape::NV_ESC_RM_CONTROL);
        for (at, word) in [
            (nvos54::H_CLIENT, tenant.root),
            (nvos54::H_OBJECT, tenant.root),
            (nvos54::CMD, cmd),
            (nvos54::PARAMS_SIZE, u32::try_from(params.len()).unwrap()),
        ] {
            put_u32(&mut block, at, word);
        }
        let slot = WireFd {
            segment: 1,
            at,
            number: NUMBER,
            file: Some((self.file.id, self.file.kind)),
            private: None,
            sent: true,
        };
        let mut back = tenant.call(
            tenant.ctl,
            &escape::NV_ESC_RM_CONTROL,
            vec![block, params.clone()],
            nvos54::STATUS,
            &[slot],
        )?;
        *params = back.segments.swap_remove(1);
        Ok(())
    }

    fn export(&self, tenant: &Tenant, device: u32, memory: u32) -> Result<(), u32> {
        self.control(
            tenant,
            EXPORT,
            16,
            &mut words(&[1, device, device, memory, 9, 0]),
        )
    }

    /// The handle that the driver made for it.
    fn import(&self, tenant: &Tenant, device: u32) -> Result<u32, u32> {
        let mut params = words(&[9, 1, device, device, 0]);
        self.control(tenant, IMPORT, 0, &mut params)?;
        Ok(u32_at(&params, 16).unwrap())
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn transfer_file_file() -> File {
    tempfile::tempfile().unwrap()
}

const RELEASES: [&str; 5] = [
    "535.261.03",
    "550.163.01",
    "570.195.03",
    "580.105.08",
    "595.45.04",
];

#[test]
fn an_export_keeps_memory_until_its_file_is_closed_and_every_import_does() {
    for version in RELEASES {
        let machine = ada(version, 64, 1);
        let mut one = Tenant::of_process(&machine, "ns/one", 1);
        let mut two = Tenant::of_process(&machine, "ns/one", 2);
        let (device, _sub) = one.device(0);
        let (other, _sub) = two.device(0);
        let used = || machine.account()[0].used_bytes;
        let file = transfer_file_file();
        // Two processes of one container have one identity for the file.
        let transfer_file = TransferFile::of(&mut one, &file);
        two.sendable.insert(NUMBER, file.try_clone().unwrap());

        let (memory, _bytes) = one.vidmem(device, MIB).unwrap();
        let nobody = transfer_file.import(&two, other);
        assert_eq!(nobody, Err(NV_ERR_INVALID_PARAMETER), "{version}");
        transfer_file.export(&one, device, memory).unwrap();
        let twice = transfer_file.export(&one, device, memory);
        assert_eq!(twice, Err(NV_ERR_STATE_IN_USE), "{version}");
        one.free(memory).unwrap();
        assert_eq!(used(), MIB, "{version}");
        let import = transfer_file.import(&two, other).unwrap();
        let again = transfer_file.import(&two, other).unwrap();
        assert_eq!(used(), MIB, "{version}: counted once");
        one.session.closed(transfer_file.file.id);
        two.free(import).unwrap();
        assert_eq!(used(), MIB, "{version}");
        two.free(again).unwrap();
        assert_eq!(used(), 0, "{version}");
    }
}

#[test]
fn another_container_imports_from_the_same_file_and_the_memory_stays_the_exporters() {
    let machine = ada("570.195.03", 64, 2);
    let mut importer = Tenant::new(&machine, "ns/importer");
    let (there, _sub) = importer.device(0);
    let (second_card, _sub) = importer.device(1);
    let file = transfer_file_file();
    let theirs = TransferFile::of(&mut importer, &file);
    let account = || machine.account().remove(0).sessions;
    let import = {
        let mut exporter = Tenant::new(&machine, "ns/exporter");
        let (device, _sub) = exporter.device(0);
        let own = TransferFile::of(&mut exporter, &file);
        let (memory, bytes) = exporter.vidmem(device, MIB).unwrap();
        let contents = exporter.map(device, memory, bytes).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&contents, b"shared", 0).unwrap();
        own.export(&exporter, device, memory).unwrap();
        // Another open file of the same inode carries nothing.
        let mut elsewhere = Tenant::new(&machine, "ns/importer");
        let other = TransferFile::of(&mut elsewhere, &transfer_file_file());
        let (device_there, _sub) = elsewhere.device(0);
        assert_eq!(
            other.import(&elsewhere, device_there),
            Err(NV_ERR_INVALID_PARAMETER)
        );
        assert_eq!(
            theirs.import(&importer, second_card),
            Err(NV_ERR_INVALID_DEVICE)
        );
        let import = theirs.import(&importer, there).unwrap();
        let sums = |tenant: &Tenant| tenant.session.sums()[0].memory_bytes;
        assert_eq!((sums(&exporter), sums(&importer)), (MIB, 0));
        import
    };
    // The exporter has gone with its session: what the other one has lives on, in the exporter's account.
    assert_eq!(account(), [("ns/exporter".to_owned(), MIB)]);
    let contents = importer.map(there, import, MIB).unwrap();
    let mut read = [0; 6];
    std::os::unix::fs::FileExt::read_exact_at(&contents, &mut read, 0).unwrap();
    assert_eq!(&read, b"shared");
    // As long as the importer has the file open, it can import once more.
    importer.free(import).unwrap();
    assert_eq!(account(), [("ns/exporter".to_owned(), MIB)]);
    let again = theirs.import(&importer, there).unwrap();
    importer.session.closed(theirs.file.id);
    assert_eq!(account(), [("ns/exporter".to_owned(), MIB)]);
    importer.free(again).unwrap();
    assert_eq!(account(), []);
}

/// `EXPORT_OBJECTS_TO_FD` and its import by the offsets of ctrl0000unix.h.
fn many(device: u32, most: u16, objects: &[u32], index: u16) -> Vec<u8> {
    let mut params = vec![0; 2128];
    put_u32(&mut params, 4, device);
    put(&mut params, 8, &most.to_le_bytes());
    put(&mut params, 10, b"metadata");
    put(&mut params, 76, &words(objects));
    let count = u16::try_from(objects.len()).unwrap();
    put(&mut params, 2124, &count.to_le_bytes());
    put(&mut params, 2126, &index.to_le_bytes());
    params
}

fn import_of(parent: u32, requested: &[u32], index: u16) -> Vec<u8> {
    let mut params = vec![0; 652];
    put_u32(&mut params, 4, parent);
    put(&mut params, 8, &words(requested));
    let count = u16::try_from(requested.len()).unwrap();
    put(&mut params, 648, &count.to_le_bytes());
    put(&mut params, 650, &index.to_le_bytes());
    params
}

#[test]
fn a_file_carries_many_objects_by_their_places_under_every_release() {
    for version in RELEASES {
        let machine = ada(version, 64, 1);
        let mut one = Tenant::new(&machine, "ns/one");
        let (device, _sub) = one.device(0);
        let transfer_file = TransferFile::of(&mut one, &transfer_file_file());
        let used = || machine.account()[0].used_bytes;
        let first = one.vidmem(device, MIB).unwrap().0;
        let second = one.vidmem(device, 2 * MIB).unwrap().0;
        let host = one
            .memory(device, nvabi::class::NV01_MEMORY_SYSTEM, MIB)
            .unwrap()
            .0;
        let call = |cmd, mut params: Vec<u8>| {
            transfer_file
                .control(&one, cmd, 0, &mut params)
                .map(|()| params)
        };
        call(EXPORT_MANY, many(device, 4, &[first, second], 0)).unwrap();
        call(EXPORT_MANY, many(device, 4, &[host], 3)).unwrap();
        let beyond = call(EXPORT_MANY, many(device, 4, &[first, second], 3));
        assert_eq!(beyond, Err(NV_ERR_OUT_OF_RANGE), "{version}");
        let size = control::row(INFO, one.release).unwrap().params_bytes;
        let info = call(INFO, vec![0; size as usize]).unwrap();
        let most_at = if version.starts_with("535") { 8 } else { 12 };
        assert_eq!(
            (
                u32_at(&info, 4),
                u16_at(&info, most_at),
                &info[most_at + 2..most_at + 10]
            ),
            (Some(0), Some(4), b"metadata".as_slice()),
            "{version}"
        );
        for handle in [first, second, host] {
            one.free(handle).unwrap();
        }
        assert_eq!(used(), 3 * MIB, "{version}");
        // The hole at 2 is nothing; what came before it is taken back.
        let hole = call(IMPORT_MANY, import_of(device, &[0x700, 0x701, 0x702], 0));
        assert_eq!(hole, Err(NV_ERR_OBJECT_NOT_FOUND), "{version}");
        let answer = call(IMPORT_MANY, import_of(device, &[0x700, 0, 0, 0x703], 0)).unwrap();
        assert_eq!(&answer[520..524], [1, 0, 0, 2], "{version}");
        one.session.closed(transfer_file.file.id);
        assert_eq!(used(), MIB, "{version}: the second was not imported");
        one.free(0x700).unwrap();
        assert_eq!(used(), 0, "{version}");
    }
}

/// As RM does, which asks nobody whose file it is (`cliresCtrlCmdOsUnixExportObjectsToFd_IMPL`, os.c).
#[test]
fn what_is_in_a_place_is_replaced_by_anybody_and_a_file_becomes_one_for_exports_once() {
    for version in RELEASES {
        let machine = ada(version, 64, 1);
        let mut one = Tenant::new(&machine, "ns/one");
        let mut two = Tenant::new(&machine, "ns/two");
        let (device, _sub) = one.device(0);
        let (other, _sub) = two.device(0);
        let file = transfer_file_file();
        let (ours, theirs) = (
            TransferFile::of(&mut one, &file),
            TransferFile::of(&mut two, &file),
        );
        let make = |of: &TransferFile, tenant: &Tenant, device: u32| {
            let mut params = vec![0; 76];
            put_u32(&mut params, 0, device);
            put(&mut params, 4, &2_u16.to_le_bytes());
            of.control(tenant, MAKE_FILE, 72, &mut params)
        };
        make(&ours, &one, device).unwrap();
        for again in [make(&ours, &one, device), make(&theirs, &two, other)] {
            assert_eq!(again, Err(NV_ERR_STATE_IN_USE), "{version}");
        }
        let first = one.vidmem(device, MIB).unwrap().0;
        let second = two.vidmem(other, 2 * MIB).unwrap().0;
        let put_at_0 = |of: &TransferFile, tenant: &Tenant, device, object| {
            of.control(tenant, EXPORT_MANY, 0, &mut many(device, 2, &[object], 0))
        };
        put_at_0(&ours, &one, device, first).unwrap();
        one.free(first).unwrap();
        put_at_0(&theirs, &two, other, second).unwrap();
        two.free(second).unwrap();
        let used = || machine.account()[0].used_bytes;
        assert_eq!(used(), 2 * MIB, "{version}: the first is gone");
        put_at_0(&ours, &one, device, 0).unwrap();
        assert_eq!(used(), 0, "{version}: taken back");
    }
}
