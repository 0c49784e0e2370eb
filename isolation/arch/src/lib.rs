//! What differs between the machine architectures that cgpu knows, one row each; no other crate asks the compiler which it is
//! built for.
//!
//! The driver's own interface does not differ: its structs have the same layout on every 64-bit little-endian machine, and an
//! ioctl's number is made in the same way (`asm-generic/ioctl.h`). The kernel's numbers of system calls do, and so do the names
//! that seccomp, ELF and distributions give to a machine.
//!
//! Sources: `arch/x86/entry/syscalls/syscall_64.tbl`, `include/uapi/asm-generic/unistd.h` and `include/uapi/linux/audit.h` of Linux
//! 6.12; `dl-cache.h` and `cacheflags.h` of glibc 2.36; the file lists of Debian's and Fedora's `glibc` and Alpine's `musl`. A test compares
//! the numbers with the C library's, on the machine it runs on.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![deny(clippy::indexing_slicing, clippy::expect_used, clippy::panic)]
#![deny(clippy::wildcard_enum_match_arm)]

mod syscall;

pub use syscall::Syscall;

/// A machine architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arch {
    /// `x86_64`, also called amd64.
    X86_64,
    /// `aarch64`, also called arm64.
    Aarch64,
}

/// The names that an ELF file and a dynamic linker have for an architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Libraries {
    /// `e_machine` of its programs and libraries.
    pub elf_machine: u16,
    /// `flags` of an entry of `ld.so.cache` for its programs: `FLAG_ELF_LIBC6` with the machine's own bits.
    pub linker_cache_flags: u32,
    /// Folders that glibc searches with no configuration, in the order of how telling a libc in them is: Debian's, Red Hat's,
    /// everybody else's.
    pub folders: [&'static str; 6],
    /// musl's loader.
    pub musl_loader: &'static str,
}

impl Arch {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// The one that this program is built for.
    #[cfg(target_arch = "x86_64")]
    pub const NATIVE: Self = Self::X86_64;
    /// The one that this program is built for.
    #[cfg(target_arch = "aarch64")]
    pub const NATIVE: Self = Self::Aarch64;

    /// `AUDIT_ARCH_…`: which table a system call's number is of, as seccomp says it.
    #[must_use]
    pub const fn audit(self) -> u32 {
        match self {
            Self::X86_64 => 0xc000_003e,
            Self::Aarch64 => 0xc000_00b7,
        }
    }

    /// The bit that numbers of a second table have which seccomp says to be of this architecture: x32's.
    #[must_use]
    pub const fn foreign_bit(self) -> Option<u32> {
        match self {
            Self::X86_64 => Some(0x4000_0000),
            Self::Aarch64 => None,
        }
    }

    /// The name in `linux.seccomp.architectures` of an OCI spec.
    #[must_use]
    pub const fn oci_name(self) -> &'static str {
        match self {
            Self::X86_64 => "SCMP_ARCH_X86_64",
            Self::Aarch64 => "SCMP_ARCH_AARCH64",
        }
    }

    /// The names there of every table of system calls that programs of this machine may call by, its own first.
    #[must_use]
    pub const fn oci_tables(self) -> &'static [&'static str] {
        match self {
            Self::X86_64 => &["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
            Self::Aarch64 => &["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"],
        }
    }

    /// Bytes of the largest page that a kernel of this architecture can be built with. Linux takes one of 4, 16 and 64 KiB on arm64.
    #[must_use]
    pub const fn largest_page_bytes(self) -> u64 {
        match self {
            Self::X86_64 => 4 << 10,
            Self::Aarch64 => 64 << 10,
        }
    }

    /// Bits of the addresses that a program gets unless it asks for more: four levels of page tables on x86-64, whose upper half is
    /// the kernel's, and as many on arm64, whose kernel has tables of its own (`Documentation/arch/arm64/memory.rst`).
    #[must_use]
    pub const fn user_address_bits(self) -> u32 {
        match self {
            Self::X86_64 => 47,
            Self::Aarch64 => 48,
        }
    }

    /// Its programs and libraries.
    #[must_use]
    pub const fn libraries(self) -> Libraries {
        match self {
            Self::X86_64 => Libraries {
                elf_machine: 62,
                linker_cache_flags: 0x0303,
                folders: [
                    "/usr/lib/x86_64-linux-gnu",
                    "/lib/x86_64-linux-gnu",
                    "/usr/lib64",
                    "/lib64",
                    "/usr/lib",
                    "/lib",
                ],
                musl_loader: "/lib/ld-musl-x86_64.so.1",
            },
            Self::Aarch64 => Libraries {
                elf_machine: 183,
                linker_cache_flags: 0x0a03,
                folders: [
                    "/usr/lib/aarch64-linux-gnu",
                    "/lib/aarch64-linux-gnu",
                    "/usr/lib64",
                    "/lib64",
                    "/usr/lib",
                    "/lib",
                ],
                musl_loader: "/lib/ld-musl-aarch64.so.1",
            },
        }
    }
}

impl std::fmt::Display for Arch {
    /// As its users write it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::X86_64 => "x86-64",
            Self::Aarch64 => "arm64",
        })
    }
}
