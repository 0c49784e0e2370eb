//! `containerd.linux.runc.CreateOptions` and `CheckpointOptions`: what clients of containerd 1.6 and 1.7 send for every runtime that is
//! not called `io.containerd.runc.…`, as for `ctr run --no-pivot`, `--uidmap` or `ctr tasks checkpoint --exit`
//! (runtime/linux/runctypes/runc.proto, fields by their numbers). No generated code has them any more.

use containerd_shim_protos::shim::oci::{CheckpointOptions, Options};
use protobuf::well_known_types::empty::Empty;
use protobuf::{Message, UnknownFields, UnknownValueRef};

use crate::error::{Error, Result};

/// Options of a container.
pub(super) const CREATE_TYPE: &str = "containerd.linux.runc.CreateOptions";
/// Options of a checkpoint.
pub(super) const CHECKPOINT_TYPE: &str = "containerd.linux.runc.CheckpointOptions";

/// The same as runc's options of today; the rest of the old ones belongs to checkpoints and is not used for a start.
pub(super) fn create(bytes: &[u8]) -> Result<Options> {
    let fields = Fields::parse(bytes, "old runc options")?;
    Ok(Options {
        no_pivot_root: fields.number(1) != 0,
        no_new_keyring: fields.number(8) != 0,
        shim_cgroup: fields.text(9),
        io_uid: fields.number(10),
        io_gid: fields.number(11),
        criu_work_path: fields.text(12),
        criu_image_path: fields.text(13),
        ..Options::default()
    })
}

/// The same as a checkpoint's options of today: only the last two fields had other numbers.
pub(super) fn checkpoint(bytes: &[u8]) -> Result<CheckpointOptions> {
    let fields = Fields::parse(bytes, "old checkpoint options")?;
    Ok(CheckpointOptions {
        exit: fields.number(1) != 0,
        open_tcp: fields.number(2) != 0,
        external_unix_sockets: fields.number(3) != 0,
        terminal: fields.number(4) != 0,
        file_locks: fields.number(5) != 0,
        empty_namespaces: fields.texts(6),
        cgroups_mode: fields.text(7),
        work_path: fields.text(8),
        image_path: fields.text(9),
        ..CheckpointOptions::default()
    })
}

/// A message of which no field is known.
pub(super) struct Fields(Empty);

impl Fields {
    pub(super) fn parse(bytes: &[u8], what: &'static str) -> Result<Self> {
        let message = Empty::parse_from_bytes(bytes);
        message
            .map(Self)
            .map_err(|source| Error::Protobuf { what, source })
    }

    fn number(&self, field: u32) -> u32 {
        match self.0.special_fields.unknown_fields().get(field) {
            Some(UnknownValueRef::Varint(number)) => u32::try_from(number).unwrap_or(u32::MAX),
            _ => 0,
        }
    }

    /// The last one of this number; none where that has no length.
    pub(super) fn bytes(&self, field: u32) -> &[u8] {
        match self.0.special_fields.unknown_fields().get(field) {
            Some(UnknownValueRef::LengthDelimited(bytes)) => bytes,
            _ => &[],
        }
    }

    fn text(&self, field: u32) -> String {
        text_of(self.0.special_fields.unknown_fields(), field).unwrap_or_default()
    }

    fn texts(&self, field: u32) -> Vec<String> {
        let all = self.0.special_fields.unknown_fields().iter();
        all.filter(|(number, _)| *number == field)
            .filter_map(|(_, value)| as_text(value))
            .collect()
    }
}

/// A field that the generated code does not know, as text.
pub(super) fn text_of(fields: &UnknownFields, field: u32) -> Option<String> {
    as_text(fields.get(field)?)
}

fn as_text(value: UnknownValueRef<'_>) -> Option<String> {
    match value {
        UnknownValueRef::LengthDelimited(bytes) => String::from_utf8(bytes.to_vec()).ok(),
        UnknownValueRef::Fixed32(_) | UnknownValueRef::Fixed64(_) | UnknownValueRef::Varint(_) => {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(numbers: &[(u32, u64)], texts: &[(u32, &str)]) -> Vec<u8> {
        let mut message = Empty::new();
        let fields = message.special_fields.mut_unknown_fields();
        for (field, number) in numbers {
            fields.add_varint(*field, *number);
        }
        for (field, text) in texts {
            fields.add_length_delimited(*field, text.as_bytes().to_vec());
        }
        message.write_to_bytes().unwrap()
    }

    #[test]
    fn options_of_a_container_are_read_by_number() {
        let bytes = message(
            &[(1, 1), (10, 1000), (11, 2000)],
            &[(9, "/shims"), (12, "/w")],
        );
        let read = create(&bytes).unwrap();
        assert!(read.no_pivot_root && !read.no_new_keyring);
        assert_eq!((read.io_uid, read.io_gid), (1000, 2000));
        assert_eq!(
            (read.shim_cgroup.as_str(), read.criu_work_path.as_str()),
            ("/shims", "/w")
        );
        create(&[0xff]).unwrap_err();
    }

    #[test]
    fn options_of_a_checkpoint_are_read_by_number() {
        let texts = [
            (6, "network"),
            (6, "uts"),
            (7, "soft"),
            (8, "/w"),
            (9, "/i"),
        ];
        let read = checkpoint(&message(&[(1, 1), (5, 1)], &texts)).unwrap();
        let expected = CheckpointOptions {
            exit: true,
            file_locks: true,
            empty_namespaces: vec!["network".into(), "uts".into()],
            cgroups_mode: "soft".into(),
            work_path: "/w".into(),
            image_path: "/i".into(),
            ..CheckpointOptions::default()
        };
        assert_eq!(read, expected);
    }
}
