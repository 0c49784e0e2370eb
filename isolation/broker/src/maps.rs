//! A process's table of mappings, as `/proc` has it.
//!
//! Read line by line, since a tenant decides how long it is, and as bytes, since a tenant decides what its files are called. The
//! table of a process whose first thread has ended is empty: then another thread's is read, which is the same.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::Path;

use ledger::Span;
use nix::errno::Errno;

/// One mapping of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Area {
    pub(crate) span: Span,
    pub(crate) is_shared: bool,
    pub(crate) offset: u64,
    /// Major and minor number, and inode.
    pub(crate) file: (u64, u64, u64),
}

/// What there is of a process's mappings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    /// The process has ended, or has no memory any more.
    Gone,
    /// So many bytes of it.
    Read(u64),
}

/// A line has at most 4096 bytes of path, each of which the kernel may write as four; longer ones are cut.
const MOST_LINE_BYTES: u64 = 32 * 1024;

/// Threads that end while they are looked at are looked for again so often.
const ROUNDS: usize = 4;

/// Says every mapping of a file that a process has.
///
/// # Errors
/// The table cannot be read: nothing is known of the process then.
pub(crate) fn read(pid: i32, mut each: impl FnMut(Area)) -> io::Result<Table> {
    let bytes = of_any_thread(pid, |path| read_one(path, &mut each))?;
    Ok(bytes.map_or(Table::Gone, Table::Read))
}

/// The table of a process, to be read in parts; `None`: the process has ended, or has no memory any more.
///
/// # Errors
/// As [`read`].
pub(crate) fn open(pid: i32) -> io::Result<Option<Parts>> {
    of_any_thread(pid, |path| {
        let file = match File::open(path) {
            Err(error) if has_gone(&error) => return Ok(None),
            file => file?,
        };
        let mut table = buffered(file);
        match table.fill_buf() {
            Ok([]) => Ok(None),
            Ok(_) => Ok(Some(Parts(table))),
            Err(error) if has_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    })
}

/// What the first thread of a process has of which `of` knows anything, the process's own before others; `None`: there is none.
fn of_any_thread<T>(
    pid: i32,
    mut of: impl FnMut(&str) -> io::Result<Option<T>>,
) -> io::Result<Option<T>> {
    for _ in 0..ROUNDS {
        if let Some(found) = of(&format!("/proc/{pid}/maps"))? {
            return Ok(Some(found));
        }
        let threads = match sys::proc::threads(pid) {
            Err(error) if has_gone(&error) => return Ok(None),
            threads => threads?,
        };
        let mut are_all_there = true;
        for tid in threads.into_iter().filter(|tid| *tid != pid) {
            let thread = format!("/proc/{pid}/task/{tid}");
            if let Some(found) = of(&format!("{thread}/maps"))? {
                return Ok(Some(found));
            }
            are_all_there &= Path::new(&thread).exists();
        }
        // One that has ended since it was listed may have started another.
        if are_all_there {
            return Ok(None);
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// A table of mappings that is read in parts. Each is of its own moment, as each of the kernel's pieces of a table is: a mapping that is there all
/// the time is in one of them.
#[derive(Debug)]
pub(crate) struct Parts(BufReader<File>);

/// How far a table was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// The part's length.
    pub(crate) bytes: u64,
    pub(crate) end: Option<TableEnd>,
}

/// How a table ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableEnd {
    /// All of it was read.
    Whole,
    /// Nobody has the memory any more: it may have broken off.
    Gone,
}

impl Parts {
    /// Says the mappings of files in the next lines, so many at most.
    ///
    /// # Errors
    /// As [`read`].
    pub(crate) fn next(&mut self, lines: usize, mut each: impl FnMut(Area)) -> io::Result<Part> {
        let (bytes, is_last) = read_lines(&mut self.0, lines, &mut each)?;
        let is_there = || matches!(self.0.get_ref().read_at(&mut [0], 0), Ok(1));
        let end = is_last.then(|| match is_there() {
            true => TableEnd::Whole,
            false => TableEnd::Gone,
        });
        Ok(Part { bytes, end })
    }
}

/// A descriptor that is closed, a process that has ended, or a group that was removed.
pub(crate) fn has_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || matches!(
            error.raw_os_error().map(Errno::from_raw),
            Some(Errno::EBADF | Errno::ESRCH | Errno::ENODEV)
        )
}

/// The length of a table; `None` for an empty one and one of nobody.
fn read_one(path: &str, each: &mut impl FnMut(Area)) -> io::Result<Option<u64>> {
    match File::open(path) {
        Ok(file) => read_table(&file, each),
        Err(error) if has_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The same of an open table, from its beginning; one of a process that has ended is one of nobody.
///
/// # Errors
/// The table cannot be read.
pub(crate) fn read_table(mut file: &File, each: &mut impl FnMut(Area)) -> io::Result<Option<u64>> {
    file.rewind()?;
    let (bytes, _at_its_end) = read_lines(&mut buffered(file), usize::MAX, each)?;
    Ok((bytes > 0).then_some(bytes))
}

fn buffered<T: Read>(table: T) -> BufReader<T> {
    BufReader::with_capacity(64 * 1024, table)
}

/// The length of so many lines at most, and whether the table ends with them.
fn read_lines(
    table: &mut BufReader<impl Read>,
    lines: usize,
    each: &mut impl FnMut(Area),
) -> io::Result<(u64, bool)> {
    let (mut bytes, mut line) = (0_u64, Vec::new());
    for _ in 0..lines {
        line.clear();
        let read = match table.take(MOST_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(read) => read,
            // It ends while it is read.
            Err(error) if has_gone(&error) => 0,
            Err(error) => return Err(error),
        };
        if read == 0 {
            return Ok((bytes, true));
        }
        bytes = bytes.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
        if let Some(area) = area(&line) {
            each(area);
        }
    }
    Ok((bytes, false))
}

/// `from-end access offset major:minor inode path`; `None` for a mapping of no file.
fn area(line: &[u8]) -> Option<Area> {
    let mut fields = line
        .split(|byte| *byte == b' ')
        .filter(|field| !field.is_empty())
        .map_while(|field| std::str::from_utf8(field.trim_ascii_end()).ok());
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
    let (from, end) = fields.next()?.split_once('-')?;
    let (from, end) = (hexadecimal(from)?, hexadecimal(end)?);
    let access = fields.next()?;
    let offset = hexadecimal(fields.next()?)?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let file = (
        hexadecimal(major)?,
        hexadecimal(minor)?,
        fields.next()?.parse().ok()?,
    );
    (file.2 != 0).then_some(Area {
        span: Span::new(from, end.checked_sub(from)?)?,
        is_shared: access.ends_with('s'),
        offset,
        file,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn areas_of(pid: i32, inode: u64) -> Vec<Area> {
        let mut areas = Vec::new();
        let table = read(pid, |area| areas.push(area)).unwrap();
        assert!(matches!(table, Table::Read(bytes) if bytes > 0));
        areas.retain(|area| area.file.2 == inode);
        areas
    }

    #[test]
    fn a_file_is_seen_whatever_its_name() {
        let folder = tempfile::tempdir().unwrap();
        for name in [&b"plain"[..], b"sp ace", b"new\nline", b"\xff\xfe not text"] {
            let path = folder.path().join(std::ffi::OsStr::from_bytes(name));
            let file = File::options()
                .create_new(true)
                .read(true)
                .write(true)
                .open(path)
                .unwrap();
            let inode = file.metadata().unwrap().ino();
            let mapping = syscalls::mapping::Mapping::at_its_offset(&file, 8192).unwrap();
            let me = std::process::id().cast_signed();
            let areas = areas_of(me, inode);
            assert_eq!(areas.len(), 1, "{name:?}");
            assert!(areas[0].is_shared);
            assert_eq!(areas[0].offset, mapping.address());
            assert_eq!(areas[0].span, Span::new(mapping.address(), 8192).unwrap());
        }
    }

    #[test]
    fn lines_that_name_no_file_are_none() {
        for line in [
            &b"7f00-7f10 rw-p 00000000 00:00 0 "[..],
            b"7f00-7f10 rw-p 00000000 00:00 0                  [stack]\n",
            b"",
            b"\n",
            b"7f10-7f00 rw-s 00000000 00:01 7 /x\n",
            b"x-y rw-s 00000000 00:01 7 /x\n",
        ] {
            assert_eq!(area(line), None, "{line:?}");
        }
        let seen = area(b"7f00-7f10 rw-s 00007f00 fd:0a 7\n").unwrap();
        assert_eq!((seen.file, seen.offset), ((0xfd, 10, 7), 0x7f00));
    }

    #[test]
    fn nobody_has_no_table() {
        assert_eq!(read(i32::MAX, |_| ()).unwrap(), Table::Gone);
    }

    #[test]
    fn a_table_in_parts_is_the_whole_one_and_one_that_breaks_off_is_known() {
        use std::io::Write;
        use std::process::{Command, Stdio};
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        child.stdin.as_mut().unwrap().write_all(b"a\n").unwrap();
        let mut line = [0; 2];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut line)
            .unwrap();
        // It has written it, and maps nothing more.
        let mut whole = Vec::new();
        let Table::Read(bytes) = read(pid, |area| whole.push(area)).unwrap() else {
            panic!("it is there")
        };
        for lines in [1, 3, 1000] {
            let (mut areas, mut sum) = (Vec::new(), 0);
            let mut parts = open(pid).unwrap().unwrap();
            let end = loop {
                let part = parts.next(lines, |area| areas.push(area)).unwrap();
                sum += part.bytes;
                if let Some(end) = part.end {
                    break end;
                }
            };
            assert_eq!((end, sum), (TableEnd::Whole, bytes), "{lines}");
            assert_eq!(areas, whole, "{lines}");
        }
        let mut parts = open(pid).unwrap().unwrap();
        assert_eq!(parts.next(1, |_| ()).unwrap().end, None);
        child.kill().unwrap();
        child.wait().unwrap();
        let rest = parts.next(usize::MAX, |_| ()).unwrap();
        assert_eq!(rest.end, Some(TableEnd::Gone));
        assert!(open(pid).unwrap().is_none());
    }
}
