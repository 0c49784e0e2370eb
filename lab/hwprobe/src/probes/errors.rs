//! What malformed calls are answered with: a refusal of ours must look the same.

use nvabi::{class, control};
use rmclient::{Form, Handle};
use rmprogram::{CardMemory, ClientDuplicates};

use super::{Bench, End, answer, found};

pub(super) fn probe(bench: &Bench) -> anyhow::Result<End> {
    let client = bench.client()?;
    let cards = client.cards()?;
    let Some(card) = cards.first() else {
        return Ok(End::NotRun("no card has a node here".to_owned()));
    };
    let mut block = [0u8; 512];
    found(
        "RM_ALLOC of class 0xdead",
        answer(&client.allocate(Form::Long, card.device(), 0xdead, &mut block)),
    );
    found(
        "RM_ALLOC of card memory below no parent",
        answer(&client.allocate(
            Form::Long,
            Handle(0xdead_beef),
            class::NV01_MEMORY_LOCAL_USER,
            &mut block,
        )),
    );
    found(
        "RM_ALLOC of LOCAL_PHYSICAL (0xc2)",
        answer(&client.allocate(Form::Long, card.device(), 0xc2, &mut block)),
    );
    found(
        "RM_ALLOC of card memory of size 0",
        answer(&card.allocate(Form::Long, 0)),
    );
    found(
        "RM_FREE of an unknown handle",
        answer(&client.free(card.device(), Handle(0x1234_5678))),
    );
    found(
        "RM_DUP_OBJECT from an unknown client",
        answer(&client.duplicate(card.device(), Handle(0xc1d0_ffff), Handle(1))),
    );
    let cmd = control::NV2080_CTRL_CMD_GPU_GET_NAME_STRING;
    let unknown = Handle(0xdead_beef);
    for (what, object, cmd, bytes) in [
        ("an unknown control", card.subdevice(), 0x2080_ffff_u32, 16),
        ("a control with too few bytes", card.subdevice(), cmd, 0),
        ("a control on an unknown object", unknown, cmd, 132),
    ] {
        let mut params = vec![0u8; bytes];
        let result = client.control(object, cmd, &mut params, Vec::new());
        found(format!("RM_CONTROL: {what}"), answer(&result));
    }
    for (cmd, name) in [
        (0x0080_170f_u32, "FIFO_SET_CHANNEL_PROPERTIES"),
        (0x2080_0194, "GPU_SET_COMPUTE_POLICY_CONFIG"),
        (0x0080_1711, "FIFO_STOP_RUNLIST"),
    ] {
        // Without an object of the right class nothing can be changed by it.
        let result = client.control(client.root(), cmd, &mut [0u8; 16], Vec::new());
        found(format!("RM_CONTROL {name} on the client"), answer(&result));
    }
    Ok(End::Done)
}
