//! A tenant seen from the test: a thread that does what it is asked.

use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::time::Duration;

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::time::{TimeVal, TimeValLike};

use nvabi::bytes::{put_u32, put_u64};
use nvabi::class::{self, Kind};
use nvabi::layout::{channel_group_params, channel_params};

use crate::agent::{Ask, Reply, Storm, StormReport};
use crate::rm;

/// No answer within this time is a hang.
const PATIENCE: Duration = Duration::from_secs(60);
/// The parameters' place in a tenant's scratch pages.
const PARAMS: u64 = 4096;

/// One thread of the tenant.
pub(crate) struct Tenant {
    socket: OwnedFd,
    scratch: u64,
}

/// A started process; killed and waited for at the end.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Called {
    /// The ioctl's value or errno.
    pub(crate) ret: Result<i64, i32>,
    /// The struct afterwards.
    pub(crate) arg: Vec<u8>,
    /// The parameters afterwards.
    pub(crate) params: Vec<u8>,
}

impl Called {
    pub(crate) fn status(&self) -> u32 {
        assert_eq!(self.ret, Ok(0));
        rm::status(&self.arg)
    }
}

impl Tenant {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        let patience = TimeVal::seconds(PATIENCE.as_secs().cast_signed());
        setsockopt(&socket, ReceiveTimeout, &patience).unwrap();
        let mut tenant = Self { socket, scratch: 0 };
        tenant.scratch = tenant.pages(8, false);
        tenant
    }

    fn ask_with(&self, ask: &Ask) -> (Reply, Option<OwnedFd>) {
        let text = serde_json::to_vec(ask).unwrap();
        sys::fd_passing::send(self.socket.as_fd(), &text, &[]).unwrap();
        let mut buffer = vec![0; 256 * 1024];
        let (count, fds) = sys::fd_passing::receive(self.socket.as_fd(), &mut buffer).unwrap();
        assert!(count > 0, "the tenant has ended at {ask:?}");
        let reply = serde_json::from_slice(&buffer[..count]).unwrap();
        (reply, fds.into_iter().next())
    }

    pub(crate) fn ask(&self, ask: &Ask) -> Result<i64, i32> {
        match self.ask_with(ask).0 {
            Reply::Value(value) => value,
            other => panic!("{other:?}"),
        }
    }

    /// Sends a request whose answer never comes, since the process is killed meanwhile.
    pub(crate) fn ask_only(&self, ask: &Ask) {
        let text = serde_json::to_vec(ask).unwrap();
        sys::fd_passing::send(self.socket.as_fd(), &text, &[]).unwrap();
    }

    /// The answer to a request of [`Tenant::ask_only`].
    pub(crate) fn answer(&self) -> Result<i64, i32> {
        let mut buffer = vec![0; 4096];
        let (count, _) = sys::fd_passing::receive(self.socket.as_fd(), &mut buffer).unwrap();
        match serde_json::from_slice(&buffer[..count]).unwrap() {
            Reply::Value(value) => value,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn ok(&self, ask: &Ask) -> i64 {
        self.ask(ask)
            .unwrap_or_else(|errno| panic!("errno {errno} at {ask:?}"))
    }

    fn number(&self, ask: &Ask) -> i32 {
        i32::try_from(self.ok(ask)).unwrap()
    }

    pub(crate) fn open(&self, path: &std::path::Path) -> i32 {
        let path = path.to_str().unwrap().to_owned();
        self.number(&Ask::Open { path })
    }

    pub(crate) fn dup(&self, fd: i32) -> i32 {
        self.number(&Ask::Dup { fd })
    }

    pub(crate) fn close(&self, fd: i32) {
        self.ok(&Ask::Close { fd });
    }

    pub(crate) fn receive_fd(&self, socket: i32) -> i32 {
        self.number(&Ask::ReceiveFd { socket })
    }

    pub(crate) fn pages(&self, count: usize, read_only_guard: bool) -> u64 {
        let ask = Ask::Pages {
            count,
            read_only_guard,
        };
        self.ok(&ask).cast_unsigned()
    }

    pub(crate) fn bytes(&self, ask: &Ask) -> Vec<u8> {
        match self.ask_with(ask).0 {
            Reply::Bytes(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn read(&self, address: u64, count: usize) -> Vec<u8> {
        self.bytes(&Ask::Read { address, count })
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        let bytes = bytes.to_vec();
        self.ok(&Ask::Write { address, bytes });
    }

    pub(crate) fn ioctl(&self, fd: i32, cmd: impl Into<u64>, address: u64) -> Result<i64, i32> {
        let cmd = cmd.into();
        self.ask(&Ask::Ioctl { fd, cmd, address })
    }

    /// Where [`Tenant::call`] puts the struct.
    pub(crate) fn arg_address(&self) -> u64 {
        self.scratch
    }

    /// Where [`Tenant::call`] puts the parameters.
    pub(crate) fn params_address(&self) -> u64 {
        self.scratch + PARAMS
    }

    /// Makes a call with this struct and these parameters.
    pub(crate) fn call(&self, fd: i32, cmd: impl Into<u64>, arg: &[u8], params: &[u8]) -> Called {
        self.write(self.arg_address(), arg);
        self.write(self.params_address(), params);
        let ret = self.ioctl(fd, cmd, self.arg_address());
        Called {
            ret,
            arg: self.read(self.arg_address(), arg.len()),
            params: self.read(self.params_address(), params.len()),
        }
    }

    /// A new client; its handle.
    pub(crate) fn client(&self, fd: i32) -> u32 {
        let called = self.call(fd, rm::ALLOC, &rm::alloc(0, 0, 0, rm::ROOT, 0), &[]);
        assert_eq!(called.status(), rm::OK);
        rm::new_handle(&called.arg)
    }

    /// The granted card; its handle.
    pub(crate) fn device(&self, fd: i32, client: u32) -> u32 {
        let arg = rm::alloc(client, client, 0, rm::DEVICE, self.params_address());
        let called = self.call(fd, rm::ALLOC, &arg, &[0; 56]);
        assert_eq!(called.status(), rm::OK);
        rm::new_handle(&called.arg)
    }

    /// Allocates card memory; `handle` 0 lets the driver choose.
    pub(crate) fn memory(
        &self,
        fd: i32,
        client: u32,
        device: u32,
        handle: u32,
        size: u64,
    ) -> Called {
        let arg = rm::alloc(client, device, handle, rm::VIDMEM, self.params_address());
        self.call(fd, rm::ALLOC, &arg, &rm::memory_params(size))
    }

    /// An object with parameters that name an engine; its status and handle. A channel has its USERD in memory of the host's, made beside it.
    pub(crate) fn on_engine(
        &self,
        fd: i32,
        (client, parent): (u32, u32),
        class: u32,
        engine: u32,
    ) -> (u32, u32) {
        let name = (client, parent);
        let is_channel = class::of(class).is_some_and(|row| row.kind == Kind::Channel);
        let memory = is_channel.then(|| self.userd(fd, name));
        self.on_engine_with(fd, name, (class, memory), engine)
    }

    /// Memory of the host's for a channel's USERD.
    pub(crate) fn userd(&self, fd: i32, (client, parent): (u32, u32)) -> u32 {
        let (kind, address) = (class::NV01_MEMORY_SYSTEM, self.params_address());
        let arg = rm::alloc(client, parent, 0, kind, address);
        let called = self.call(fd, rm::ALLOC, &arg, &rm::userd_params());
        assert_eq!(called.status(), rm::OK);
        rm::new_handle(&called.arg)
    }

    /// [`Tenant::on_engine`], with memory for its USERD that is there.
    pub(crate) fn on_engine_with(
        &self,
        fd: i32,
        (client, parent): (u32, u32),
        (class, userd): (u32, Option<u32>),
        engine: u32,
    ) -> (u32, u32) {
        let mut params = vec![0; 512];
        if let Some(memory) = userd {
            put_u32(&mut params, channel_params::H_USERD_MEMORY, memory);
        }
        let arg = rm::alloc(client, parent, 0, class, self.params_address());
        for at in [
            channel_group_params::ENGINE_TYPE,
            channel_params::ENGINE_TYPE,
        ] {
            put_u32(&mut params, at, engine);
        }
        let called = self.call(fd, rm::ALLOC, &arg, &params);
        (called.status(), rm::new_handle(&called.arg))
    }

    /// A control of an object; its status and parameters.
    pub(crate) fn control(
        &self,
        fd: i32,
        (client, object): (u32, u32),
        cmd: u32,
        params: &[u8],
    ) -> (u32, Vec<u8>) {
        let bytes = u32::try_from(params.len()).unwrap();
        let arg = rm::control(client, object, cmd, self.params_address(), bytes);
        let called = self.call(fd, rm::CONTROL, &arg, params);
        (called.status(), called.params)
    }

    pub(crate) fn free(&self, fd: i32, client: u32, device: u32, handle: u32) -> u32 {
        self.call(fd, rm::FREE, &rm::free(client, device, handle), &[])
            .status()
    }

    /// A further thread of the same process.
    /// Frees a range of an address space of nvidia-uvm's.
    pub(crate) fn free_range(&self, uvm: i32, base: u64) {
        let row = nvabi::uvm::UVM_FREE;
        let mut arg = vec![0; row.size.of(nvabi::Release::R570) as usize];
        put_u64(&mut arg, nvabi::uvm::map_external::BASE, base);
        assert_eq!(self.call(uvm, row.cmd, &arg, &[]).ret, Ok(0));
    }

    pub(crate) fn thread(&self) -> Self {
        Self::new(self.ask_with(&Ask::Thread).1.unwrap())
    }

    /// A further process; it ends when the returned tenant is dropped.
    pub(crate) fn process(&self, inherit: &[i32]) -> (Self, i32) {
        let inherit = inherit.to_vec();
        let (reply, socket) = self.ask_with(&Ask::Process { inherit });
        let Reply::Value(Ok(pid)) = reply else {
            panic!("{reply:?}")
        };
        (Self::new(socket.unwrap()), i32::try_from(pid).unwrap())
    }

    pub(crate) fn storm(&self, storm: Storm) -> StormReport {
        match self.ask_with(&Ask::Storm(storm)).0 {
            Reply::Storm(report) => report,
            other => panic!("{other:?}"),
        }
    }
}
