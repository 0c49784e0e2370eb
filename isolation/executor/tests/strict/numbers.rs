//! A card's device instance is the first free one when it is opened, and is given back when nobody has it open any more: what was learnt of
//! it may be another card's by now.

use driver::{Driver, FileKind};
use ledger::CardSlot;
use nvabi::bytes::{put_u32, u32_at};
use nvabi::layout::{card_info, device_params, id_info};
use nvabi::{control, status};

use crate::fixture::{Fixture, MIB};
use crate::tenant::Tenant;
use crate::{Test, rm, until};

pub(crate) const TESTS: &[Test] = &[
    (
        "a_device_is_of_the_card_that_has_its_number_now",
        a_device_is_of_the_card_that_has_its_number_now,
    ),
    (
        "a_number_that_was_learnt_of_two_cards_is_one_cards",
        a_number_that_was_learnt_of_two_cards_is_one_cards,
    ),
    (
        "a_device_is_for_who_has_that_cards_node_open_itself",
        a_device_is_for_who_has_that_cards_node_open_itself,
    ),
    (
        "a_file_whose_open_has_failed_keeps_no_card_open",
        a_file_whose_open_has_failed_keeps_no_card_open,
    ),
];

/// Of two cards.
const CARD_INFO: u32 = 0xc090_46c8;
const REGISTER_FD: u32 = 0xc004_46c9;
const NODES: [&str; 2] = ["nvidia0", "nvidia1"];

/// A tenant's client, and what it has of the cards' nodes.
struct Program<'a> {
    fixture: &'a Fixture,
    tenant: &'a Tenant,
    ctl: i32,
    client: u32,
}

impl<'a> Program<'a> {
    fn new(fixture: &'a Fixture, tenant: &'a Tenant) -> Self {
        let ctl = tenant.open(&fixture.nodes().join("nvidiactl"));
        let called = tenant.call(ctl, CARD_INFO, &[0; 2 * card_info::BYTES], &[]);
        assert_eq!(called.ret, Ok(0));
        Self {
            fixture,
            tenant,
            ctl,
            client: tenant.client(ctl),
        }
    }

    /// Opens the cards in this order, and makes a call on each: the executor has the files then.
    fn open(&self, cards: &[usize]) -> Vec<i32> {
        let nodes = self.fixture.nodes();
        let open = cards
            .iter()
            .map(|card| self.tenant.open(&nodes.join(NODES[*card])));
        let opened: Vec<i32> = open.collect();
        for node in &opened {
            let called = self
                .tenant
                .call(*node, REGISTER_FD, &self.ctl.to_le_bytes(), &[]);
            assert_eq!(called.ret, Ok(0));
        }
        opened
    }

    /// Closes them, and waits until nobody has them open any more.
    fn close(&self, nodes: Vec<i32>) {
        for node in nodes {
            self.tenant.close(node);
        }
        until("the executor has closed its duplicates", || {
            self.fixture.reconcile();
            let is_card = |kind: &FileKind| matches!(kind, FileKind::Card { .. });
            !self.fixture.kernel.open_files().iter().any(is_card)
        });
    }

    /// What GPU_GET_ID_INFO_V2 tells of a card.
    fn instance_of(&self, card: usize) -> u32 {
        let mut params = [0; 32];
        let gpu_id = self.fixture.kernel.sim().cards()[card].gpu_id;
        put_u32(&mut params, id_info::GPU_ID, gpu_id);
        let cmd = control::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2;
        let root = (self.client, self.client);
        let (status, params) = self.tenant.control(self.ctl, root, cmd, &params);
        assert_eq!(status, rm::OK);
        u32_at(&params, id_info::DEVICE_INSTANCE).unwrap()
    }

    /// A device by its number.
    fn device(&self, instance: u32) -> Result<u32, u32> {
        let address = self.tenant.params_address();
        let arg = rm::alloc(self.client, self.client, 0, rm::DEVICE, address);
        let mut params = [0; 56];
        put_u32(&mut params, device_params::DEVICE_ID, instance);
        let called = self.tenant.call(self.ctl, rm::ALLOC, &arg, &params);
        match called.status() {
            rm::OK => Ok(rm::new_handle(&called.arg)),
            refused => Err(refused),
        }
    }

    fn allocate(&self, device: u32, bytes: u64) {
        let memory = self.tenant.memory(self.ctl, self.client, device, 0, bytes);
        assert_eq!(memory.status(), rm::OK);
    }
}

/// What the ledger has of each card, and what the card itself counts.
fn used_bytes(fixture: &Fixture) -> [(u64, u64); 2] {
    let cards = fixture.kernel.sim().account().unwrap();
    let state = fixture.container.journal.change();
    [0, 1].map(|card: u8| {
        let charged = state.ledger.used(CardSlot(card));
        (charged, cards[usize::from(card)].used_bytes)
    })
}

fn a_device_is_of_the_card_that_has_its_number_now() {
    let fixture = Fixture::of_two_granted_cards(64 * MIB);
    let (tenant, _process) = fixture.tenant_without_card();
    let program = Program::new(&fixture, &tenant);
    let nodes = program.open(&[0, 1]);
    assert_eq!([0, 1].map(|card| program.instance_of(card)), [0, 1]);
    program.close(nodes);
    fixture.kernel.opened_anew(&[1, 0]);
    program.open(&[1, 0]);
    let [first, second] = [0, 1].map(|instance| program.device(instance).unwrap());
    program.allocate(first, 8 * MIB);
    assert_eq!(used_bytes(&fixture), [(0, 0), (8 * MIB, 8 * MIB)]);
    program.allocate(second, 16 * MIB);
    assert_eq!(
        used_bytes(&fixture),
        [(16 * MIB, 16 * MIB), (8 * MIB, 8 * MIB)]
    );
    assert_eq!(program.device(2), Err(status::NV_ERR_INVALID_CLASS));
}

/// Else every device is the first card's, and memory of one card is mapped on another.
fn a_number_that_was_learnt_of_two_cards_is_one_cards() {
    let fixture = Fixture::of_two_granted_cards(64 * MIB);
    let (tenant, _process) = fixture.tenant_without_card();
    let program = Program::new(&fixture, &tenant);
    let nodes = program.open(&[0, 1]);
    assert_eq!(program.instance_of(0), 0);
    program.close(nodes);
    fixture.kernel.opened_anew(&[1, 0]);
    program.open(&[1, 0]);
    assert_eq!(program.instance_of(0), 1);
    let state = || fixture.container.journal.change().numbering.clone();
    let learnt: Vec<_> = state().slot_of_instance.into_iter().collect();
    assert_eq!(learnt, [(1, CardSlot(0))], "0 is not its number any more");
    for (instance, bytes) in [(0, 8 * MIB), (1, 16 * MIB)] {
        let device = program.device(instance).unwrap();
        program.allocate(device, bytes);
    }
    assert_eq!(
        used_bytes(&fixture),
        [(16 * MIB, 16 * MIB), (8 * MIB, 8 * MIB)]
    );
}

/// The executor has it open for another process of the container.
fn a_device_is_for_who_has_that_cards_node_open_itself() {
    let fixture = Fixture::of_two_granted_cards(64 * MIB);
    let (tenant, _process) = fixture.tenant_without_card();
    let first = Program::new(&fixture, &tenant);
    first.open(&[0, 1]);
    assert_eq!([0, 1].map(|card| first.instance_of(card)), [0, 1]);
    first.device(1).unwrap();
    let (tenant, _process) = fixture.tenant_without_card();
    let second = Program::new(&fixture, &tenant);
    second.open(&[0]);
    second.device(0).unwrap();
    let denied = status::NV_ERR_INSUFFICIENT_PERMISSIONS;
    assert_eq!(second.device(1), Err(denied));
    assert_eq!(second.device(2), Err(status::NV_ERR_INVALID_CLASS));
    second.open(&[1]);
    second.device(1).unwrap();
}

/// One that was opened with O_NONBLOCK: the driver opens the card later, and has nowhere but here to report a failure.
fn a_file_whose_open_has_failed_keeps_no_card_open() {
    const EIO: i32 = 5;
    let fixture = Fixture::of_two_granted_cards(64 * MIB);
    let (tenant, _process) = fixture.tenant_without_card();
    let program = Program::new(&fixture, &tenant);
    program.open(&[0, 1]);
    assert_eq!([0, 1].map(|card| program.instance_of(card)), [0, 1]);
    fixture.kernel.set_open_result(-EIO);
    let denied = status::NV_ERR_INSUFFICIENT_PERMISSIONS;
    assert_eq!(
        [0, 1].map(|instance| program.device(instance)),
        [Err(denied); 2]
    );
    fixture.kernel.set_open_result(0);
    program.device(0).unwrap();
}
