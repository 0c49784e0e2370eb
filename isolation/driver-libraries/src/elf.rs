//! What a library says of itself: its machine, and the name that programs ask for (`DT_SONAME`).

use std::fs::File;
use std::io::Read;

use arch::Arch;
use elf::ElfStream;
use elf::abi::{DT_SONAME, ELFCLASS32, ELFMAGIC, EM_386, ET_DYN};
use elf::endian::AnyEndian;

use crate::error::Error;
use crate::tree::Found;

/// The names in a library of the driver take a few KiB; CUDA's, with all its functions, tens.
const NAMES_MAX_BYTES: u64 = 4 << 20;

/// For which programs a library is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Machine {
    /// This machine's own.
    Native,
    /// The 32-bit programs of x86.
    X86,
    Other,
}

/// What a library says of itself.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) machine: Machine,
    pub(crate) soname: Option<String>,
}

/// Reads the headers and the table of names, and nothing else of the file.
///
/// # Errors
/// A file that cannot be read, or is no shared library.
pub(crate) fn read(library: &Found) -> Result<Reply, Error> {
    let file = library.read()?;
    reply(file).map_err(|problem| Error::Elf {
        path: library.path().to_owned(),
        problem,
    })
}

/// Whether a file's first bytes say that it is of the 32-bit programs of x86. No more is read of a file that anybody may have written.
pub(crate) fn is_for_32_bits(library: &Found) -> bool {
    const CLASS_AT: usize = 4;
    const MACHINE_AT: usize = 18;
    let mut head = [0; MACHINE_AT + 2];
    let read = library.read().ok();
    let read = read.is_some_and(|mut file| file.read_exact(&mut head).is_ok());
    read && head.starts_with(&ELFMAGIC)
        && head[CLASS_AT] == ELFCLASS32
        && head[MACHINE_AT..] == EM_386.to_le_bytes()
}

fn reply(file: File) -> Result<Reply, String> {
    let text = |error: elf::ParseError| error.to_string();
    let mut stream = ElfStream::<AnyEndian, _>::open_stream(file).map_err(text)?;
    if stream.ehdr.e_type != ET_DYN {
        return Err("it is not a shared library".to_owned());
    }
    let native = Arch::NATIVE.libraries().elf_machine;
    let machine = match stream.ehdr.e_machine {
        machine if machine == native => Machine::Native,
        EM_386 => Machine::X86,
        _ => Machine::Other,
    };
    let at = stream
        .dynamic()
        .map_err(text)?
        .and_then(|table| table.iter().find(|entry| entry.d_tag == DT_SONAME))
        .map(|entry| entry.d_val());
    let Some(at) = at else {
        return Ok(Reply {
            machine,
            soname: None,
        });
    };
    let names = *stream
        .section_header_by_name(".dynstr")
        .map_err(text)?
        .ok_or("it has no table of names")?;
    if names.sh_size > NAMES_MAX_BYTES {
        return Err(format!("its table of names has {} bytes", names.sh_size));
    }
    let at = usize::try_from(at).map_err(|error| error.to_string())?;
    let table = stream.section_data_as_strtab(&names).map_err(text)?;
    let soname = table.get(at).map_err(text)?;
    // It becomes a file's name beside the library.
    if soname.is_empty() || soname.contains('/') || soname.starts_with('.') {
        return Err(format!("it calls itself {:?}", crate::error::cut(soname)));
    }
    Ok(Reply {
        machine,
        soname: Some(soname.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_machine_s_own_libc_reports_its_name() {
        let libc = [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/libc.so.6",
            "/lib/aarch64-linux-gnu/libc.so.6",
        ];
        let Some(file) = libc.iter().find_map(|path| File::open(path).ok()) else {
            println!("SKIP: no libc where it is looked for");
            return;
        };
        assert_eq!(
            reply(file),
            Ok(Reply {
                machine: Machine::Native,
                soname: Some("libc.so.6".to_owned())
            })
        );
    }

    #[test]
    fn what_is_no_library_is_refused() {
        for bytes in [
            &b""[..],
            b"GROUP ( libc.so.6 )",
            b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0",
            &[0xff; 4096],
        ] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            assert!(reply(file).is_err(), "{bytes:?}");
        }
        let program = File::open("/proc/self/exe").unwrap();
        // A program is position-independent too, and has no name of its own.
        assert!(!matches!(
            reply(program),
            Ok(Reply {
                soname: Some(_),
                ..
            })
        ));
    }
}
