//! The driver's status codes by name.

use std::fmt;

/// An `NV_STATUS` code (`nvstatuscodes.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Status(pub u32);

impl Status {
    /// `NV_OK`
    pub const OK: Self = Self(nvabi::status::NV_OK);
    /// `NV_ERR_NO_MEMORY`
    pub const NO_MEMORY: Self = Self(nvabi::status::NV_ERR_NO_MEMORY);

    /// The driver's name; `None` for a code that no call here can meet.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        nvabi::status::all()
            .find(|(_, code)| *code == self.0)
            .map(|(name, _)| *name)
    }

    /// The code of a name that [`Status::name`] gives.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let found = nvabi::status::all().find(|(known, _)| *known == name);
        found.map(|(_, code)| Self(*code))
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({:#x})", self.0),
            None => write!(f, "status {:#x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_one_name_and_is_shown_with_it() {
        for (name, code) in nvabi::status::all() {
            assert_eq!(Status::named(name), Some(Status(*code)));
            assert_eq!(Status(*code).name(), Some(*name));
        }
        assert_eq!(Status::NO_MEMORY.to_string(), "NV_ERR_NO_MEMORY (0x51)");
        assert_eq!(
            Status(nvabi::status::NV_ERR_INVALID_CLIENT).name(),
            Some("NV_ERR_INVALID_CLIENT")
        );
        assert_eq!(Status(0x1234).to_string(), "status 0x1234");
    }
}
