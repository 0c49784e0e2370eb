//! How files of a source tree are compiled for user space.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use integration::command::capture;

use crate::source::Tree;

/// A file takes about a second.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
/// Folders below the tree with the headers that the sources look for.
const INCLUDED: &[&str] = &[
    "src/nvidia/kernel/inc",
    "src/nvidia/interface",
    "src/common/sdk/nvidia/inc",
    "src/common/sdk/nvidia/inc/hw",
    "src/nvidia/arch/nvalloc/common/inc",
    "src/nvidia/arch/nvalloc/common/inc/gsp",
    "src/nvidia/arch/nvalloc/common/inc/deprecated",
    "src/nvidia/arch/nvalloc/unix/include",
    "src/nvidia/inc",
    "src/nvidia/inc/os",
    "src/common/shared/inc",
    "src/common/shared/msgq/inc",
    "src/common/inc",
    "src/common/uproc/os/libos-v2.0.0/include",
    "src/common/uproc/os/common/include",
    "src/common/inc/swref",
    "src/common/inc/swref/published",
    "src/nvidia/generated",
    "src/common/nvswitch/kernel/inc",
    "src/common/nvswitch/interface",
    "src/common/nvswitch/common/inc",
    "src/common/inc/displayport",
    "src/common/nvlink/interface",
    "src/common/nvlink/inband/interface",
    "src/nvidia/src/mm/uvm/interface",
    "src/nvidia/inc/libraries",
    "src/nvidia/src/libraries",
    "src/nvidia/inc/kernel",
];
/// As the tree's own Makefile has them for the kernel.
const DEFINED: &[&str] = &[
    "_LANGUAGE_C",
    "__NO_CTYPE",
    "NVRM",
    "LOCK_VAL_ENABLED=0",
    "PORT_ATOMIC_64_BIT_SUPPORTED=1",
    "PORT_IS_KERNEL_BUILD=1",
    "PORT_IS_CHECKED_BUILD=0",
    "PORT_MODULE_example=0",
    "PORT_MODULE_mmio=0",
    "PORT_MODULE_time=0",
    "PORT_MODULE_atomic=1",
    "PORT_MODULE_core=1",
    "PORT_MODULE_cpu=1",
    "PORT_MODULE_crypto=1",
    "PORT_MODULE_debug=1",
    "PORT_MODULE_memory=1",
    "PORT_MODULE_safe=1",
    "PORT_MODULE_string=1",
    "PORT_MODULE_sync=1",
    "PORT_MODULE_thread=1",
    "PORT_MODULE_util=1",
    "RS_COMPATABILITY_MODE=1",
    "RS_PROVIDES_API_STATE=0",
    "NV_CONTAINERS_NO_TEMPLATES",
    "NV_PRINTF_STRINGS_ALLOWED=1",
    "NV_ASSERT_FAILED_USES_STRINGS=1",
    "PORT_ASSERT_FAILED_USES_STRINGS=1",
];

/// What is the same for all files of a program.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flags(Vec<String>);

impl Flags {
    /// The tree's own, at a level of optimisation, with what else is defined and where else headers are.
    pub(crate) fn new<'a>(
        tree: &Tree,
        level: &str,
        defined: impl IntoIterator<Item = &'a str>,
        included: &[impl AsRef<Path>],
    ) -> Self {
        let mut flags: Vec<String> = [
            "-std=gnu11",
            level,
            "-w",
            "-fno-strict-aliasing",
            "-include",
        ]
        .map(str::to_owned)
        .into();
        let at = |part: &str| tree.folder.join(part).display().to_string();
        flags.push(at("src/common/sdk/nvidia/inc/cpuopsys.h"));
        flags.extend(
            DEFINED
                .iter()
                .copied()
                .chain(defined)
                .map(|name| format!("-D{name}")),
        );
        flags.extend(INCLUDED.iter().map(|folder| format!("-I{}", at(folder))));
        flags.extend(
            included
                .iter()
                .map(|folder| format!("-I{}", folder.as_ref().display())),
        );
        Self(flags)
    }

    /// The same with one more.
    pub(crate) fn with(mut self, flag: &str) -> Self {
        self.0.push(flag.to_owned());
        self
    }

    /// What a program is stamped with that is made with them.
    pub(crate) fn stamp(&self) -> String {
        self.0.join("\n")
    }

    /// Compiles a file.
    pub(crate) fn compile(&self, file: &Path, to: &Path) -> Result<()> {
        let mut gcc = Command::new("gcc");
        gcc.args(&self.0).arg("-c").arg(file).arg("-o").arg(to);
        capture(&mut gcc, LIMIT)?.success()?;
        Ok(())
    }
}
