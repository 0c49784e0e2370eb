use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use super::*;

fn info_of(fd: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))
}

fn descriptor(fd: &impl AsRawFd) -> Descriptor {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Descriptor::of(Path::new(&link)).unwrap()
}

fn sockets() -> (OwnedFd, OwnedFd) {
    let (family, kind) = (AddressFamily::Unix, SockType::Stream);
    socketpair(family, kind, None, SockFlag::SOCK_CLOEXEC).unwrap()
}

/// Watched once for each of so many numbers: each makes the text longer by a line.
fn watching(numbers: usize) -> (Epoll, Vec<OwnedFd>) {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    let event = EventFd::new().unwrap();
    let numbers = (0..numbers).map(|_| event.as_fd().try_clone_to_owned().unwrap());
    let numbers: Vec<OwnedFd> = numbers.collect();
    for number in &numbers {
        let nothing = EpollEvent::new(EpollFlags::empty(), 0);
        epoll.add(number, nothing).unwrap();
    }
    (epoll, numbers)
}

#[test]
fn a_descriptor_is_what_its_link_names() {
    let file = File::open("/dev/null").unwrap();
    let (socket, _peer) = sockets();
    let (epoll, _watched) = watching(0);
    assert_eq!(descriptor(&file), Descriptor::File);
    assert_eq!(descriptor(&socket), Descriptor::Socket);
    assert_eq!(descriptor(&epoll.0), Descriptor::Another);
    for (name, is) in [
        (&b"/dev/nvidiactl (deleted)"[..], Descriptor::File),
        (b"/memfd:anon_inode:[io_uring] (deleted)", Descriptor::File),
        (b"socket:[7]", Descriptor::Socket),
        (b"anon_inode:[io_uring]", Descriptor::Another),
        (b"anon_inode:inotify", Descriptor::Another),
        (b"pipe:[7]", Descriptor::Another),
        (b"", Descriptor::Unknown),
        (b"pidfd:[7]", Descriptor::Unknown),
    ] {
        assert_eq!(Descriptor::by_name(name), is);
    }
    let none = Descriptor::of(Path::new("/proc/self/fd/1000000"));
    assert!(has_gone(&none.unwrap_err()));
}

/// A broker has CAP_SYS_PTRACE alone in effect, and a tenant is another user.
#[test]
fn another_user_s_links_are_read_by_one_capability_more() {
    use crate::privilege::fake::{as_broker, tenant};
    use caps::Capability::CAP_SYS_PTRACE;
    let Some(mut child) = tenant() else {
        return;
    };
    let stdin = format!("/proc/{}/fd/0", child.id());
    let look = move || privilege::with(|| Descriptor::of(Path::new(&stdin)).unwrap());
    let permitted = [CAP_SYS_PTRACE, privilege::NEEDED];
    assert_eq!(as_broker(&permitted, look.clone()), Descriptor::Another);
    assert_eq!(as_broker(&[CAP_SYS_PTRACE], look), Descriptor::Unknown);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_socket_carries_what_is_in_its_queue() {
    let nowhere = Path::new("/nowhere");
    for what in [Descriptor::File, Descriptor::Another] {
        assert_eq!(what.carries(nowhere).unwrap(), Carries::None, "{what:?}");
    }
    for (info, carries) in [
        ("pos:\t0\nscm_fds: 0\n", false),
        ("pos:\t0\nscm_fds: 1\n", true),
        ("pos:\t0\nino:\t7\n", false),
        ("SqMask:\t0x7\nUserFiles:\t1\n", false),
    ] {
        assert_eq!(carries_files(info), carries, "{info}");
    }
}

/// Of a descriptor whose link is closed to the broker.
#[test]
fn a_long_text_is_a_socket_s_unless_it_lists_what_is_watched() {
    let folder = tempfile::tempdir().unwrap();
    let info = folder.path().join("info");
    let line = "tfd:        5 events:       19 data:                5  pos:0 ino:5 sdev:f\n";
    for (line, carries) in [(line, Carries::None), ("lock:\t1: POSIX\n", Carries::Files)] {
        fs::write(&info, format!("pos:\t0\n{}", line.repeat(5000))).unwrap();
        assert_eq!(Descriptor::Unknown.carries(&info).unwrap(), carries);
        assert_eq!(Descriptor::Socket.carries(&info).unwrap(), Carries::Files);
    }
}

/// Locks are listed before what is in the queue.
#[test]
fn a_socket_whose_text_is_cut_counts_as_one_that_carries_files() {
    let (socket, _peer) = sockets();
    let carries = || Descriptor::Socket.carries(&info_of(&socket)).unwrap();
    assert_eq!(carries(), Carries::None);
    for start in 0..2000 {
        let lock = nix::libc::flock {
            l_type: i16::try_from(nix::libc::F_WRLCK).unwrap(),
            l_whence: i16::try_from(nix::libc::SEEK_SET).unwrap(),
            l_start: 2 * start,
            l_len: 1,
            l_pid: 0,
        };
        if let Err(errno) = fcntl(&socket, FcntlArg::F_SETLK(&lock)) {
            println!("SKIP: no locks of sockets: {errno}");
            return;
        }
    }
    assert_eq!(carries(), Carries::Files);
}

/// The kernel makes a text of any length before anybody reads the first byte of it.
#[test]
fn what_an_epoll_instance_watches_is_not_read() {
    let read_bytes = || {
        let counted = fs::read_to_string("/proc/thread-self/io").ok()?;
        field(&counted, "rchar:")?.parse::<usize>().ok()
    };
    if read_bytes().is_none() {
        println!("SKIP: the kernel does not count what is read");
        return;
    }
    let (epoll, _watched) = watching(700);
    let text = fs::read(info_of(&epoll.0)).unwrap();
    assert!(text.len() > 32 * 1024);
    let mut tenant = Command::new("sleep")
        .arg("1000")
        .stdin(Stdio::from(epoll.0.try_clone().unwrap()))
        .spawn()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let listed = format!("{}\n", tenant.id());
    fs::write(folder.path().join("cgroup.procs"), listed).unwrap();
    let file = File::open("/dev/null").unwrap().into();
    let held = OpenFile::new(FileId(1), FileKind::Ctl, file);
    let before = read_bytes().unwrap();
    let found = look_for_holders(vec![Arc::new(held)], Some(folder.path()), Look::Forth, &[]);
    let read = read_bytes().unwrap() - before;
    tenant.kill().unwrap();
    tenant.wait().unwrap();
    assert_eq!(unheld(found.unwrap()).len(), 1);
    assert!(read < text.len() / 2, "{read} bytes were read");
}
