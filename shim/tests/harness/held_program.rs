//! A file system (FUSE) of one program, which is held where it is being read: a process that executes it does not move within
//! `execve`, before it has let go of its former program or after.
//!
//! Layouts: `include/uapi/linux/fuse.h` of Linux, protocol 7.31.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use nix::mount::{MntFlags, MsFlags, mount, umount2};

const DEVICE: &str = "/dev/fuse";
const NAME: &str = "program";
const NODE: u64 = 2;
const PAGE_BYTES: u64 = 4096;

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const RELEASE: u32 = 18;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// Where within `execve` its caller is held.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hold {
    /// While the kernel reads the program's first bytes: it has its former program's memory still.
    BeforeTheNewMemory,
    /// While the kernel clears the memory behind the program's data: the arguments are not there yet.
    BeforeTheArguments,
}

/// The program, held once. Dropped, it is let go and taken away.
pub(crate) struct HeldProgram {
    dir: PathBuf,
    held: Receiver<()>,
    server: Option<JoinHandle<()>>,
}

/// Why this machine cannot do it.
pub(crate) fn missing() -> Option<&'static str> {
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE);
    if !Path::new(DEVICE).exists() {
        Some("no /dev/fuse")
    } else if page.ok().flatten() != Some(4096) {
        Some("pages are not of 4096 bytes")
    } else {
        None
    }
}

impl HeldProgram {
    /// Serves a copy of `program` on the empty folder `dir`.
    pub(crate) fn serve(dir: &Path, program: &Path, hold: Hold) -> Self {
        let content = fs::read(program).expect("the program");
        let page = match hold {
            Hold::BeforeTheNewMemory => 0,
            Hold::BeforeTheArguments => end_of_data(&content) / PAGE_BYTES * PAGE_BYTES,
        };
        let device = File::options()
            .read(true)
            .write(true)
            .open(DEVICE)
            .expect("/dev/fuse");
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            device.as_raw_fd()
        );
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(
            Some("held-program"),
            dir,
            Some("fuse"),
            flags,
            Some(options.as_str()),
        )
        .expect("a mount");
        let (reported, held) = channel();
        let server = std::thread::spawn(move || {
            let mut device = device;
            let mut request = vec![0; 1 << 17];
            let mut tell = Some(reported);
            loop {
                match device.read(&mut request) {
                    Ok(count) => {
                        let request =
                            Request(request.get(..count).expect("no more than was asked"));
                        if request.is_read_of(page)
                            && let Some(reported) = tell.take()
                        {
                            // Never answered: the end of the file system lets it go.
                            let _unheard = reported.send(());
                            continue;
                        }
                        if let Some(answer) = request.answer(&content) {
                            // An answer to what was given up meanwhile is refused.
                            drop(device.write(&answer));
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    // What was given up before it was read.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(_unmounted) => return,
                }
            }
        });
        Self {
            dir: dir.to_owned(),
            held,
            server: Some(server),
        }
    }

    /// Where the program is found.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.join(NAME)
    }

    /// Waits until a process is held.
    pub(crate) fn wait_held(&self) {
        self.held.recv().expect("the file system serves");
    }
}

impl Drop for HeldProgram {
    fn drop(&mut self) {
        // By force: what waits for an answer gets an error.
        let forced = umount2(&self.dir, MntFlags::MNT_FORCE | MntFlags::MNT_DETACH);
        if forced.is_ok() {
            self.server.take().map(JoinHandle::join);
        }
    }
}

/// Where in the file the data ends behind which memory is cleared.
fn end_of_data(elf: &[u8]) -> u64 {
    let argument = |at: usize| u64::from_le_bytes(elf[at..at + 8].try_into().expect("eight bytes"));
    let half = |at: usize| u16::from_le_bytes(elf[at..at + 2].try_into().expect("two bytes"));
    assert!(elf.starts_with(b"\x7fELF\x02\x01"), "a 64-bit program");
    let table = usize::try_from(argument(0x20)).expect("an offset");
    let (size, count) = (usize::from(half(0x36)), usize::from(half(0x38)));
    let mut ends = (0..count).filter_map(|index| {
        let at = table + index * size;
        let loads = elf[at..at + 4] == [1, 0, 0, 0];
        let (offset, file, memory) = (argument(at + 8), argument(at + 32), argument(at + 40));
        (loads && memory > file && (offset + file) % PAGE_BYTES != 0).then_some(offset + file)
    });
    ends.next_back().expect("a program with cleared memory")
}

struct Request<'a>(&'a [u8]);

impl Request<'_> {
    fn half(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }

    fn argument(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }

    fn is_read_of(&self, offset: u64) -> bool {
        self.half(4) == READ
            && (self.argument(48)..self.argument(48) + u64::from(self.half(56))).contains(&offset)
    }

    /// The answer, with its header; `None` where none is expected.
    fn answer(&self, content: &[u8]) -> Option<Vec<u8>> {
        const NO_SUCH_FILE: i32 = 2;
        const UNKNOWN: i32 = 38;
        let size = u64::try_from(content.len()).expect("a length");
        let node = self.argument(16);
        let body = match self.half(4) {
            FORGET | BATCH_FORGET | INTERRUPT => return None,
            INIT => Ok(init()),
            LOOKUP if self.0.get(40..).is_some_and(|name| name == b"program\0") => {
                let mut entry = arguments(&[NODE, 0, 3600, 3600, 0]);
                entry.extend(attributes(NODE, size));
                Ok(entry)
            }
            LOOKUP => Err(NO_SUCH_FILE),
            GETATTR => {
                let mut answer = arguments(&[3600, 0]);
                answer.extend(attributes(node, size));
                Ok(answer)
            }
            OPEN => Ok(arguments(&[0, 0])),
            READ => {
                let from = usize::try_from(self.argument(48).min(size)).expect("an offset");
                let most = usize::try_from(self.half(56)).expect("a size");
                let to = content.len().min(from + most);
                Ok(content[from..to].to_vec())
            }
            RELEASE => Ok(Vec::new()),
            _ => Err(UNKNOWN),
        };
        let (error, body) = match body {
            Ok(body) => (0, body),
            Err(errno) => (-errno, Vec::new()),
        };
        let length = u32::try_from(16 + body.len()).expect("a short answer");
        let mut answer = length.to_ne_bytes().to_vec();
        answer.extend(error.to_ne_bytes());
        answer.extend(self.argument(8).to_ne_bytes());
        answer.extend(body);
        Some(answer)
    }
}

fn arguments(arguments: &[u64]) -> Vec<u8> {
    arguments
        .iter()
        .flat_map(|argument| argument.to_ne_bytes())
        .collect()
}

fn halves(halves: &[u32]) -> Vec<u8> {
    halves.iter().flat_map(|half| half.to_ne_bytes()).collect()
}

/// Read-ahead by one page, so that each is asked for when it is needed, but not at once by who needs it: it waits for the page, and can
/// be killed.
fn init() -> Vec<u8> {
    const ASYNC_READ: u32 = 1;
    let mut answer = halves(&[7, 31, 4096, ASYNC_READ, 0, 1 << 16]);
    answer.resize(64, 0);
    answer
}

/// `struct fuse_attr`: the root folder is node 1.
fn attributes(node: u64, size: u64) -> Vec<u8> {
    let mode = if node == NODE { 0o100_755 } else { 0o040_755 };
    let mut attributes = arguments(&[node, size, 0, 0, 0, 0]);
    attributes.extend(halves(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0]));
    attributes
}
