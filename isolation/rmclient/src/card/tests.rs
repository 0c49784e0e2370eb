use super::*;
use proptest::prelude::*;

#[test]
fn an_entry_without_a_card_is_none() {
    assert_eq!(CardInfo::decode(&[0; 72]), None);
    assert_eq!(CardInfo::decode(&[1; 8]), None);
}

#[test]
fn an_entry_is_read_by_its_offsets() {
    let mut entry = [0u8; 72];
    entry[0] = 1;
    bytes::put_u32(&mut entry, 4, 1);
    entry[8..11].copy_from_slice(&[0x65, 2, 3]);
    bytes::put_u32(&mut entry, 16, 0x6502);
    bytes::put_u32(&mut entry, 56, 4);
    let info = CardInfo::decode(&entry).unwrap();
    assert_eq!(info.pci.to_string(), "00000001:65:02.3");
    assert_eq!((info.gpu_id, info.minor), (0x6502, 4));
}

#[test]
fn a_uuid_prints_as_the_driver_prints_it() {
    let uuid = Uuid(core::array::from_fn(|index| u8::try_from(index).unwrap()));
    assert_eq!(uuid.to_string(), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
}

#[test]
fn memory_is_read_in_kib() {
    let mut list = [0u8; 24];
    ask(&mut list);
    for (entry, kib) in list.chunks_exact_mut(8).zip([4096u32, 4096, 1024]) {
        bytes::put_u32(entry, 4, kib);
    }
    let memory = answers(&list).unwrap();
    assert_eq!(memory.total_bytes, 4 << 20);
    assert_eq!(memory.used_bytes(), 3 << 20);
}

proptest! {
    #[test]
    fn no_answer_of_a_driver_panics(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let decoded = CardInfo::decode(&bytes);
        prop_assert!(decoded.is_none() || bytes.len() >= 60);
        prop_assert_eq!(answers(&bytes).is_ok(), bytes.len() >= 24);
    }
}
