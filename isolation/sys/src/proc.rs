//! What `/proc` says of a process or a thread. A process is named by its number, or `self`.
//!
//! A program's name can hold anything, parentheses, line breaks and bytes that are no text among it. A process can end at every
//! moment; what is read of it then fails as [`has_gone`] tells.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};

use nix::errno::Errno;

/// No file read here is as long: the longest is the status of a process in 65536 groups, with 700 KB.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// What is read of a command line. Its owner makes it as long as its address space: 128 TiB without a capability (`PR_SET_MM_MAP`).
const COMMAND_LINE_MAX_BYTES: u64 = 128 << 10;

/// `/proc/PID/stat`, as far as it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// The program's short name.
    pub name: String,
    /// `R` for one that runs or could, `Z` for one that has ended and was not waited for.
    pub state: char,
    /// Its process group.
    pub group: i32,
    /// When it was started, in ticks since the host's start: tells it from a later process of the same number.
    pub start_ticks: u64,
}

impl Stat {
    /// Reads it.
    ///
    /// # Errors
    /// The system's, or `InvalidData`.
    pub fn of(process: impl Display) -> io::Result<Self> {
        Self::parse(&text(process, "stat")?).ok_or_else(|| ErrorKind::InvalidData.into())
    }

    /// The fields are counted behind the name's last parenthesis; the first there is the third.
    fn parse(stat: &str) -> Option<Self> {
        let (head, fields) = stat.rsplit_once(") ")?;
        let (_, name) = head.split_once(" (")?;
        let mut fields = fields.split_ascii_whitespace();
        Some(Self {
            name: name.to_owned(),
            state: fields.next()?.chars().next()?,
            group: fields.nth(1)?.parse().ok()?,
            start_ticks: fields.nth(22 - 6)?.parse().ok()?,
        })
    }

    /// Whether it has ended; its parent need not have waited for it.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// [`Stat::start_ticks`] of a process that is there.
#[must_use]
pub fn start_ticks(process: impl Display) -> Option<u64> {
    Some(Stat::of(process).ok()?.start_ticks)
}

/// A field of `/proc/PID/status`; `None` where the kernel has none of this name.
///
/// # Errors
/// The system's.
pub fn status_field(process: impl Display, name: &str) -> io::Result<Option<String>> {
    Ok(field_in(&text(process, "status")?, name).map(str::to_owned))
}

fn field_in<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| line.strip_prefix(name)?.strip_prefix(':');
    status.lines().find_map(value).map(str::trim)
}

/// The beginning of `/proc/PID/cmdline`, at most [`COMMAND_LINE_MAX_BYTES`]; empty for a process within exec or past its end.
///
/// # Errors
/// The system's.
pub fn command_line(process: impl Display) -> io::Result<Vec<u8>> {
    capped(process, "cmdline", COMMAND_LINE_MAX_BYTES)
}

/// The control group of a process below the root of this controller's tree, with a `/` first; that of version 2 is the one
/// of controller ``.
///
/// # Errors
/// The system's.
pub fn group_of(process: impl Display, controller: &str) -> io::Result<Option<String>> {
    Ok(group_in(&groups_of(process)?, controller).map(str::to_owned))
}

/// `/proc/PID/cgroup`: the control groups of a process. One that a tenant made may have a name of any bytes.
///
/// # Errors
/// The system's.
pub fn groups_of(process: impl Display) -> io::Result<String> {
    text(process, "cgroup")
}

/// [`group_of`] by [`groups_of`].
#[must_use]
pub fn group_in<'a>(cgroup: &'a str, controller: &str) -> Option<&'a str> {
    cgroup.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let has = controllers.split(',').any(|other| other == controller);
        has.then_some(path)
    })
}

/// The threads of a process; of one that ends meanwhile, those that were listed before.
///
/// # Errors
/// The system's.
pub fn threads(process: impl Display) -> io::Result<Vec<i32>> {
    let mut threads = Vec::new();
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let name = match thread {
            Err(error) if has_gone(&error) => break,
            thread => thread?.file_name(),
        };
        threads.extend(name.to_str().and_then(|tid| tid.parse::<i32>().ok()));
    }
    Ok(threads)
}

/// Whether an error says that the process has ended: before its file was opened, or before it was read.
#[must_use]
pub fn has_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32)
}

fn text(process: impl Display, file: &str) -> io::Result<String> {
    let bytes = capped(process, file, FILE_MAX_BYTES)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn capped(process: impl Display, file: &str, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(format!("/proc/{process}/{file}"))?
        .take(max_bytes)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_read_past_a_name_with_parentheses() {
        let stat = "77 (a) b ) c) S 1 70 60 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 9 9\n";
        let expected = Stat {
            name: "a) b ) c".to_owned(),
            state: 'S',
            group: 70,
            start_ticks: 123_456,
        };
        assert_eq!(Stat::parse(stat), Some(expected));
        assert_eq!(Stat::parse("77 (a S 1 70"), None);
        assert_eq!(Stat::parse("77 (a) S 1 70"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn a_process_of_any_name_is_read_until_it_was_waited_for() {
        let folder = std::env::temp_dir().join(format!("cgpu-proc-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let program = folder.join(std::ffi::OsStr::from_bytes(b"a) Z\n1 (\xff"));
        // By another process: a file that this one writes is busy in whatever another test forks meanwhile.
        let copied = Command::new("cp").arg("/bin/sleep").arg(&program).status();
        assert!(copied.unwrap().success());
        let mut child = Command::new(&program).arg("60").spawn().unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let pid = child.id();
        let before = Stat::of(pid).unwrap();
        assert_eq!(before.name, "a) Z\n1 (\u{fffd}");
        assert!(!before.has_ended());
        assert_eq!(threads(pid).unwrap(), [pid.cast_signed()]);
        let parent = status_field(pid, "PPid").unwrap().unwrap();
        assert_eq!(parent, std::process::id().to_string());
        assert_eq!(start_ticks(pid), Some(before.start_ticks));

        child.kill().unwrap();
        while !Stat::of(pid).unwrap().has_ended() {
            std::thread::yield_now();
        }
        assert_eq!(start_ticks(pid), Some(before.start_ticks));
        child.wait().unwrap();
        assert!(has_gone(&Stat::of(pid).unwrap_err()));
        assert!(has_gone(&status_field(pid, "PPid").unwrap_err()));
        assert!(has_gone(&group_of(pid, "").unwrap_err()));
        assert!(has_gone(&threads(pid).unwrap_err()));
        assert_eq!(start_ticks(pid), None);
    }

    #[test]
    fn of_a_command_line_without_end_the_beginning_is_read() {
        let child = Command::new("python3")
            .args(["-c", include_str!("proc/long_command_line.py")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else {
            println!("SKIP: no python3, by which a process makes its command line long");
            return;
        };
        let mut ready = [0; 6];
        let mut output = child.stdout.take().unwrap();
        if output.read_exact(&mut ready).is_err() {
            assert_eq!(child.wait().unwrap().code(), Some(77));
            println!("SKIP: this kernel has no PR_SET_MM_MAP");
            return;
        }
        let line = command_line(child.id()).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(line.len(), 128 << 10);
        assert!(command_line("self").unwrap().contains(&0));
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let status = "Name:\tNSpid:\\n7\nPid:\t5\nNSpid:\t5\t1\n";
        assert_eq!(field_in(status, "NSpid"), Some("5\t1"));
        assert_eq!(field_in(status, "NS"), None);
    }

    #[test]
    fn a_group_is_that_of_its_controller() {
        let text = "3:cpu,cpuacct:/a:b\n2:name=systemd:/s\n0::/u\n";
        assert_eq!(group_in(text, "cpuacct"), Some("/a:b"));
        assert_eq!(group_in(text, ""), Some("/u"));
        assert_eq!(group_in(text, "memory"), None);
        assert_eq!(group_in("", ""), None);
    }
}
