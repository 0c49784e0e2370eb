//! A tenant that has a device of its card, as every test starts with that asks about one.

use crate::fixture::{Confined, Fixture};
use crate::rm;

/// `NV20_SUBDEVICE_0`
pub(crate) const SUBDEVICE: u32 = 0x2080;

/// A tenant with a client, a device and its subdevice.
pub(crate) struct Program {
    pub(crate) tenant: Confined,
    /// `nvidiactl`.
    pub(crate) fd: i32,
    pub(crate) client: u32,
    pub(crate) device: u32,
    pub(crate) subdevice: u32,
}

impl Program {
    pub(crate) fn new(fixture: &Fixture) -> Self {
        let tenant = fixture.tenant();
        let fd = tenant.0.open(&fixture.nodes().join("nvidiactl"));
        let client = tenant.0.client(fd);
        let device = tenant.0.device(fd, client);
        let arg = rm::alloc(client, device, 0, SUBDEVICE, tenant.0.params_address());
        let called = tenant.0.call(fd, rm::ALLOC, &arg, &[0; 4]);
        assert_eq!(called.status(), rm::OK);
        let subdevice = rm::new_handle(&called.arg);
        Self {
            tenant,
            fd,
            client,
            device,
            subdevice,
        }
    }
}
