//! The memory of the processes that files of nvidia-uvm were initialised in, or mapped by.
//!
//! The driver takes mappings of a file in that memory alone (`uvm_mmap`, uvm.c), and a second file keeps it when its process has become another
//! program or has ended (`uvm_api_mm_initialize`): the table of the process's mappings is another one's then, and what was mapped is there still.
//! Descriptors of `/proc/PID/maps` and `/proc/PID/mem` go on naming the memory that was the process's when they were opened (fs/proc). A read of
//! the former needs a process of that number besides, one of the latter says whether anybody has the memory.
//!
//! Which call has initialised a file only the driver knows, which executes it in the caller, and of which file it was only the kernel, which reads
//! the descriptor's number a second time. So the memory of all that tried is kept, for the container and not for a file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use driver::FileId;
use nix::errno::Errno;
use sys::sync::lock;

use crate::maps::{self, Area};
use crate::privilege;

/// So many calls of one process may try to initialise a file; those of memory that is gone do not count. Whether two were made in one memory
/// nobody says: what a process becomes by `execve` has its number, and may have the same addresses.
const MOST_OF_A_PROCESS: usize = 32;

/// The memory of one process.
#[derive(Debug)]
pub(crate) struct Memory {
    /// The process.
    pub(crate) tgid: i32,
    /// When it was started, in ticks.
    started: Option<u64>,
    /// The file that its descriptor named.
    pub(crate) file: FileId,
    /// Read by one at a time.
    table: Mutex<File>,
    /// `None` where this process may not open other users': the table alone says what there is, as long as there is a process of that number.
    memory: Option<File>,
}

/// What there is of a process's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// It was read: so many bytes of its table.
    Read(u64),
    /// Somebody has it, and its table cannot be read any more.
    OutOfSight,
    /// Nobody has it.
    Gone,
}

/// That of all processes of a container which have tried to initialise a file, or have mapped one.
#[derive(Debug, Default)]
pub(crate) struct Initialised(Mutex<Vec<Arc<Memory>>>);

impl Memory {
    /// That of a process, by any thread of it that has not ended.
    fn of((tid, tgid): (i32, i32), file: FileId) -> io::Result<Self> {
        let open = |id: i32| {
            let table = File::open(format!("/proc/{id}/maps"))?;
            // It is its user's alone.
            let memory = match privilege::with(|| File::open(format!("/proc/{id}/mem"))) {
                Ok(memory) => Some(memory),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
                Err(error) => return Err(error),
            };
            Ok(Self {
                tgid,
                started: sys::proc::start_ticks(tgid),
                file,
                table: Mutex::new(table),
                memory,
            })
        };
        // The process's own number is there as long as any of its threads, and has no memory once the first of them has ended.
        match open(tgid) {
            Ok(memory) if memory.is_there() && memory.has_table() => Ok(memory),
            Ok(_) | Err(_) => open(tid),
        }
    }

    /// Says every mapping of a file.
    ///
    /// # Errors
    /// The table cannot be read: nothing is known of it.
    pub(crate) fn mapped(&self, mut each: impl FnMut(Area)) -> io::Result<Kept> {
        if !self.is_there() {
            return Ok(Kept::Gone);
        }
        let bytes = maps::read_table(&lock(&self.table), &mut each)?;
        // One whose process ends meanwhile breaks off.
        Ok(match bytes.filter(|_| self.has_table()) {
            Some(bytes) => Kept::Read(bytes),
            None if self.memory.is_some() => Kept::OutOfSight,
            None => Kept::Gone,
        })
    }

    /// When its process was started, in ticks.
    pub(crate) fn started(&self) -> Option<u64> {
        self.started
    }

    /// Whether its process is there no more, whatever it has become before.
    pub(crate) fn is_left(&self) -> bool {
        self.started.is_none() || sys::proc::start_ticks(self.tgid) != self.started
    }

    fn has_table(&self) -> bool {
        matches!(lock(&self.table).read_at(&mut [0], 0), Ok(1))
    }

    /// Nothing is mapped at address 0 or may be: the read fails where there is memory, and ends where there is none.
    fn is_there(&self) -> bool {
        match &self.memory {
            Some(memory) => !matches!(memory.read_at(&mut [0], 0), Ok(0)),
            None => self.has_table(),
        }
    }
}

impl Initialised {
    /// Before a thread initialises the file, or maps it, which is asked once its memory is open: nothing is kept of one that does not wait for its
    /// answer any more, since its number may be a stranger's. `most` may be kept.
    ///
    /// # Errors
    /// `ENOMEM` where there are too many; the system's.
    pub(crate) fn add(
        &self,
        by: (i32, i32),
        file: FileId,
        (most, is_waiting): (usize, &dyn Fn() -> bool),
    ) -> io::Result<()> {
        let memory = Memory::of(by, file)?;
        if !is_waiting() {
            return Ok(());
        }
        let memory = Arc::new(memory);
        if self.push(&memory, most) {
            return Ok(());
        }
        self.there();
        match self.push(&memory, most) {
            true => Ok(()),
            false => Err(Errno::ENOMEM.into()),
        }
    }

    fn push(&self, memory: &Arc<Memory>, most: usize) -> bool {
        let mut all = lock(&self.0);
        let of_process = all.iter().filter(|it| it.tgid == memory.tgid).count();
        let fits = all.len() < most && of_process < MOST_OF_A_PROCESS;
        if fits {
            all.push(Arc::clone(memory));
        }
        fits
    }

    /// Whether any memory that a process has or had is kept, and in sight.
    pub(crate) fn has_in_sight(&self, tgid: i32) -> bool {
        let mut all = self.all().into_iter();
        all.any(|memory| memory.tgid == tgid && memory.is_there() && memory.has_table())
    }

    /// Whether any is kept: what is charged to the process stays so while it is out of sight.
    pub(crate) fn has(&self, tgid: i32) -> bool {
        let mut all = self.all().into_iter();
        all.any(|memory| memory.tgid == tgid && memory.is_there())
    }

    /// Whether a process may have memory beside that which it has now: several of its number are there. Two that were kept of one memory count
    /// as two, since nobody tells them apart.
    pub(crate) fn has_several(&self, tgid: i32) -> bool {
        let all = self.all().into_iter();
        let mut there = all.filter(|memory| memory.tgid == tgid && memory.is_there());
        there.next().is_some() && there.next().is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// All that anybody has; what nobody has is forgotten.
    pub(crate) fn there(&self) -> Vec<Arc<Memory>> {
        // A tenant can hold up whoever asks: none waits for that to add its own.
        let (there, gone): (Vec<_>, Vec<_>) = self.all().into_iter().partition(|it| it.is_there());
        let is_gone = |memory: &Arc<Memory>| gone.iter().any(|it| Arc::ptr_eq(it, memory));
        if !gone.is_empty() {
            lock(&self.0).retain(|memory| !is_gone(memory));
        }
        there
    }

    fn all(&self) -> Vec<Arc<Memory>> {
        lock(&self.0).clone()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    use super::*;

    const FILE: FileId = FileId(7);

    fn add(kept: &Initialised, pid: i32) -> io::Result<()> {
        kept.add((pid, pid), FILE, (MOST_OF_A_PROCESS + 1, &|| true))
    }

    /// What there is of the only one, or of the first.
    fn read(kept: &Initialised, each: impl FnMut(Area)) -> Option<Kept> {
        let there = kept.there();
        there.first().map(|memory| memory.mapped(each).unwrap())
    }

    /// A tenant is another user, and a broker has CAP_SYS_PTRACE alone in effect.
    #[test]
    fn another_user_s_memory_is_kept() {
        use crate::privilege::fake::{as_broker, tenant};
        use caps::Capability::CAP_SYS_PTRACE;
        let Some(mut child) = tenant() else {
            return;
        };
        let pid = child.id().cast_signed();
        let add = move || {
            let kept = Initialised::default();
            add(&kept, pid).unwrap();
            kept
        };
        let kept = as_broker(&[CAP_SYS_PTRACE, privilege::NEEDED], add);
        let by_table_alone = as_broker(&[CAP_SYS_PTRACE], add);
        assert!(lock(&kept.0)[0].memory.is_some());
        assert!(lock(&by_table_alone.0)[0].memory.is_none());
        for kept in [&kept, &by_table_alone] {
            let read = read(kept, |_| ());
            assert!(
                matches!(read, Some(Kept::Read(bytes)) if bytes > 0),
                "{read:?}"
            );
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for kept in [&kept, &by_table_alone] {
            assert_eq!(read(kept, |_| ()), None);
        }
    }

    #[test]
    fn a_process_that_becomes_another_program_leaves_its_memory() {
        let mut child = Command::new("/bin/sh")
            .args(["-c", "echo a; read line; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let kept = Initialised::default();
        for _ in 0..MOST_OF_A_PROCESS {
            add(&kept, pid).unwrap();
        }
        let error = add(&kept, pid).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(nvabi::errno::ENOMEM));
        let program = std::fs::metadata(format!("/proc/{pid}/exe")).unwrap().ino();
        let mut areas = 0;
        let seen = read(&kept, |area| areas += usize::from(area.file.2 == program));
        assert!(
            matches!(seen, Some(Kept::Read(bytes)) if bytes > 0),
            "{seen:?}"
        );
        assert!(areas > 0);
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"\nb\n").unwrap();
        line.clear();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "b\n");
        // The process is there, and its table has another program's mappings.
        assert!(!kept.has(pid) && !kept.has_in_sight(pid));
        assert_eq!(read(&kept, |_| ()), None);
        add(&kept, pid).unwrap();
        assert!(
            kept.has_in_sight(pid),
            "those of memory that is gone do not count"
        );
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(read(&kept, |_| ()), None);
        assert!(add(&kept, pid).is_err());
    }
}
