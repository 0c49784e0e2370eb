//! What only the kernel hears of, and what its broker has to know all the same.

use driver::{Binding, Driver, FileId};
use journal::counters::Counter;
use nvabi::bytes::{put, put_u32, put_u64, u32_at};
use nvabi::uvm::{self, Uvm, map_external};
use nvabi::{Release, escape};
use verdict::filter::Native;

use crate::fixture::{Fixture, MIB};
use crate::tenant::Tenant;
use crate::{Test, rm, until};

pub(crate) const TESTS: &[Test] = &[
    (
        "what_only_the_kernel_hears_of_leaves_the_broker_as_it_was",
        what_only_the_kernel_hears_of_leaves_the_broker_as_it_was,
    ),
    (
        "a_range_ends_with_every_mapping_in_it",
        a_range_ends_with_every_mapping_in_it,
    ),
    (
        "an_address_space_that_a_second_file_keeps_open_is_emptied_when_the_first_is_closed",
        an_address_space_that_a_second_file_keeps_open_is_emptied_when_the_first_is_closed,
    ),
    (
        "the_second_file_is_the_tenants_alone",
        the_second_file_is_the_tenants_alone,
    ),
];

const R: Release = Release::R570;
const BASE: u64 = 0x7f00_0000_0000;

/// All that a broker knows, and whom it has asked.
#[derive(Debug, PartialEq, Eq)]
struct Known {
    state: String,
    files: Vec<FileId>,
    executors: usize,
    calls: u64,
}

impl Known {
    fn of(fixture: &Fixture) -> Self {
        let container = &fixture.container;
        Self {
            state: format!("{:?}", *container.journal.change()),
            files: container.files.held().iter().map(|file| file.id).collect(),
            executors: fixture.executor().held().unwrap().len(),
            calls: container.counters.value(Counter::Total),
        }
    }
}

fn what_only_the_kernel_hears_of_leaves_the_broker_as_it_was() {
    let fixture = Fixture::new(64 * MIB, Binding::None);
    let (tenant, _process) = fixture.tenant();
    let space = AddressSpace::new(&fixture, &tenant);
    let open = |name| tenant.open(&fixture.nodes().join(name));
    until("the last call is settled", || {
        let state = fixture.container.journal.change();
        (0..64).all(|call_slot| state.open_in(call_slot).is_none())
    });
    let before = Known::of(&fixture);
    let native = Native::of(R);
    let mut made = 0;
    for row in escape::ALL.iter().filter(|row| row.key(R).is_some()) {
        let bytes = row.size.of(R) as usize;
        for fd in [space.ctl, open("nvidiactl"), open("nvidia0")] {
            if native.has(row.cmd(R)) {
                let _whatever_it_reports = tenant.call(fd, row.cmd(R), &vec![0; bytes], &[]);
                made += 1;
            }
        }
    }
    for row in uvm::ALL.iter().filter(|row| native.has(row.cmd)) {
        let bytes = row.size.of(R) as usize;
        if bytes != 0 {
            for fd in [space.uvm, open("nvidia-uvm")] {
                let _whatever_it_reports = tenant.call(fd, row.cmd, &vec![0; bytes], &[]);
                made += 1;
            }
        }
    }
    // Every row that the filter lets pass, on each kind of file.
    assert_eq!(made, 17);
    assert_eq!(Known::of(&fixture), before);
}

/// Memory outlives its handles in a range that has several mappings, none of them where it begins; freeing the range frees all.
fn a_range_ends_with_every_mapping_in_it() {
    let fixture = Fixture::new(64 * MIB, Binding::None);
    let (tenant, _process) = fixture.tenant();
    let space = AddressSpace::new(&fixture, &tenant);
    space.call(&uvm::UVM_CREATE_EXTERNAL_RANGE, &range(0, 32 * MIB, 24));
    let maps = [(4, 2), (8, 4), (16, 8)];
    for (at, mib) in maps {
        let called = tenant.memory(space.ctl, space.client, space.device, 0, mib * MIB);
        let memory = rm::new_handle(&called.arg);
        space.map(at * MIB, mib * MIB, memory);
        let freed = tenant.free(space.ctl, space.client, space.device, memory);
        assert_eq!(freed, rm::OK);
    }
    fixture.assert_exact(14 * MIB);
    space.call(&uvm::UVM_FREE, &range(0, 32 * MIB, 24));
    fixture.assert_exact(0);
}

/// The driver has the first file open as long as the second one is (uvm.c, `uvm_api_mm_initialize`), which a broker knows nothing of.
fn an_address_space_that_a_second_file_keeps_open_is_emptied_when_the_first_is_closed() {
    for binding in [Binding::Executor, Binding::Caller] {
        let fixture = Fixture::new(64 * MIB, Binding::None);
        let (tenant, _process) = fixture.tenant();
        let space = AddressSpace::new(&fixture, &tenant);
        space.call(&uvm::UVM_CREATE_EXTERNAL_RANGE, &range(0, 8 * MIB, 24));
        let called = tenant.memory(space.ctl, space.client, space.device, 0, 8 * MIB);
        let memory = rm::new_handle(&called.arg);
        space.map(0, 8 * MIB, memory);
        let freed = tenant.free(space.ctl, space.client, space.device, memory);
        assert_eq!(freed, rm::OK);
        fixture.assert_exact(8 * MIB);
        fixture.bind(binding);
        tenant.close(space.uvm);
        until("the file is given up", || {
            fixture.reconcile();
            fixture.used_bytes() == 0
        });
        assert_eq!(fixture.kernel.held_bytes(), 0, "{binding:?}");
    }
}

/// A duplicate would keep all of the process's memory after its end, and its channels running.
fn the_second_file_is_the_tenants_alone() {
    let fixture = Fixture::new(64 * MIB, Binding::None);
    let (tenant, process) = fixture.tenant();
    let space = AddressSpace::new(&fixture, &tenant);
    let pid = process.0.id().cast_signed();
    let held = |number| fixture.container.files.of_process(pid, number).unwrap();
    assert!(held(space.uvm).is_some());
    assert!(held(space.mm).is_none());
    let known = fixture.executor().held().unwrap().len();
    assert_eq!(known, 3, "nvidiactl, nvidia0 and the first nvidia-uvm");
}

/// A tenant's client, and its address space of the card.
pub(crate) struct AddressSpace<'a> {
    tenant: &'a Tenant,
    uuid: [u8; 16],
    pub(crate) ctl: i32,
    pub(crate) uvm: i32,
    mm: i32,
    pub(crate) client: u32,
    pub(crate) device: u32,
}

impl<'a> AddressSpace<'a> {
    pub(crate) fn new(fixture: &Fixture, tenant: &'a Tenant) -> Self {
        const VASPACE: u32 = 0x90f1;
        let ctl = tenant.open(&fixture.nodes().join("nvidiactl"));
        let uvm = tenant.open(&fixture.nodes().join("nvidia-uvm"));
        let mm = tenant.open(&fixture.nodes().join("nvidia-uvm"));
        let client = tenant.client(ctl);
        let device = tenant.device(ctl, client);
        let arg = rm::alloc(client, device, 0, VASPACE, tenant.params_address());
        let called = tenant.call(ctl, rm::ALLOC, &arg, &[0; 48]);
        assert_eq!(called.status(), rm::OK);
        let va_space = rm::new_handle(&called.arg);
        let uuid = broker::account::uuid_bytes(&fixture.kernel.sim().cards()[0].uuid).unwrap();
        let space = Self {
            tenant,
            uuid,
            ctl,
            uvm,
            mm,
            client,
            device,
        };
        space.call(&uvm::UVM_INITIALIZE, &[0; 16]);
        let mut arg = [0; 8];
        put(&mut arg, uvm::MM_INITIALIZE_FD, &uvm.to_le_bytes());
        space.call_on(mm, &uvm::UVM_MM_INITIALIZE, &arg);
        let mut arg = [0; 40];
        put(&mut arg, 0, &uuid);
        put_u32(&mut arg, 28, client);
        space.call(&uvm::UVM_REGISTER_GPU, &arg);
        let mut arg = [0; 32];
        put(&mut arg, 0, &uuid);
        put_u32(&mut arg, 20, client);
        put_u32(&mut arg, 24, va_space);
        space.call(&uvm::UVM_REGISTER_GPU_VASPACE, &arg);
        space
    }

    /// Makes a call of UVM's, which succeeds.
    pub(crate) fn call(&self, row: &Uvm, arg: &[u8]) {
        self.call_on(self.uvm, row, arg);
    }

    fn call_on(&self, file: i32, row: &Uvm, arg: &[u8]) {
        let called = self.tenant.call(file, row.cmd, arg, &[]);
        assert_eq!(called.ret, Ok(0), "{}", row.name);
        let status = u32_at(&called.arg, row.status.of(R) as usize);
        assert_eq!(status, Some(rm::OK), "{}", row.name);
    }

    /// Maps all of some memory at a place of a range.
    pub(crate) fn map(&self, at: u64, bytes: u64, memory: u32) {
        let mut arg = range(
            at,
            bytes,
            uvm::UVM_MAP_EXTERNAL_ALLOCATION.size.of(R) as usize,
        );
        put(&mut arg, map_external::PER_GPU, &self.uuid);
        put_u64(&mut arg, map_external::COUNT.of(R) as usize, 1);
        put_u32(&mut arg, map_external::H_CLIENT.of(R) as usize, self.client);
        put_u32(&mut arg, map_external::H_MEMORY.of(R) as usize, memory);
        self.call(&uvm::UVM_MAP_EXTERNAL_ALLOCATION, &arg);
    }
}

/// A struct of this many bytes that begins with a range, counted from [`BASE`].
pub(crate) fn range(at: u64, bytes: u64, of: usize) -> Vec<u8> {
    let mut arg = vec![0; of];
    put_u64(&mut arg, 0, BASE + at);
    put_u64(&mut arg, 8, bytes);
    arg
}
