//! The files of NVIDIA's driver that programs use, and what each is for.
//!
//! Names and purposes are those of the driver's README (appendix "Installed Components") and of NVIDIA's container
//! toolkit. Every library here carries the driver's own version as the end of its name.

use std::path::Path;

use spec::capabilities::Capability::{self, Compute, Display, Graphics, Ngx, Utility, Video};

/// A library of the driver.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Library {
    /// Without the version: `libcuda.so`.
    pub(crate) name: &'static str,
    pub(crate) of: &'static [Capability],
    /// Names beside its own and the one that it gives itself.
    pub(crate) links: &'static [&'static str],
    /// Without it, a container of its capability has nothing.
    pub(crate) need: Need,
}

/// Whether a driver may come without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Required,
    Optional,
}

const fn library(name: &'static str, of: &'static [Capability]) -> Library {
    Library {
        name,
        of,
        links: &[],
        need: Need::Optional,
    }
}

const GL: &[Capability] = &[Graphics, Display];

pub(crate) const LIBRARIES: [Library; 37] = [
    Library {
        name: "libcuda.so",
        of: &[Compute],
        links: &["libcuda.so"],
        need: Need::Required,
    },
    Library {
        name: "libnvidia-ml.so",
        of: &[Utility],
        links: &[],
        need: Need::Required,
    },
    library("libnvidia-cfg.so", &[Utility]),
    library("libnvidia-nscq.so", &[Utility]),
    library("libcudadebugger.so", &[Compute]),
    library("libnvidia-opencl.so", &[Compute]),
    library("libnvidia-ptxjitcompiler.so", &[Compute]),
    library("libnvidia-nvvm.so", &[Compute]),
    library("libnvidia-nvvm70.so", &[Compute]),
    library("libnvidia-tileiras.so", &[Compute]),
    library("libnvidia-compiler.so", &[Compute]),
    library("libnvidia-compiler-next.so", &[Compute]),
    library("libnvidia-allocator.so", &[Compute, Graphics, Display]),
    library("libnvidia-gpucomp.so", &[Compute, Graphics, Display]),
    library("libnvidia-pkcs11.so", &[Compute]),
    library("libnvidia-pkcs11-openssl3.so", &[Compute]),
    library("libnvidia-sandboxutils.so", &[Compute, Utility]),
    library("libnvcuvid.so", &[Video]),
    library("libnvidia-encode.so", &[Video]),
    Library {
        name: "libnvidia-opticalflow.so",
        of: &[Video],
        links: &["libnvidia-opticalflow.so"],
        need: Need::Optional,
    },
    library("libvdpau_nvidia.so", &[Video]),
    library("libnvidia-ngx.so", &[Ngx]),
    library("libEGL_nvidia.so", GL),
    library("libGLESv1_CM_nvidia.so", GL),
    library("libGLESv2_nvidia.so", GL),
    Library {
        name: "libGLX_nvidia.so",
        of: GL,
        links: &["libGLX_indirect.so.0"],
        need: Need::Optional,
    },
    library("libnvidia-eglcore.so", GL),
    library("libnvidia-glcore.so", GL),
    library("libnvidia-glsi.so", GL),
    library("libnvidia-glvkspirv.so", GL),
    library("libnvidia-tls.so", GL),
    library("libnvidia-rtcore.so", GL),
    library("libnvidia-fbc.so", GL),
    library("libnvidia-present.so", GL),
    library("libnvidia-api.so", GL),
    library("libnvoptix.so", GL),
    library("libnvidia-vksc-core.so", GL),
];

/// A program or a file of data, by its path below the driver's root; a program is found in any of [`PROGRAM_FOLDERS`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Other {
    pub(crate) name: &'static str,
    pub(crate) of: &'static [Capability],
}

/// Daemons are left out: they steer whole cards.
pub(crate) const PROGRAMS: [Other; 2] = [
    Other {
        name: "nvidia-smi",
        of: &[Utility],
    },
    Other {
        name: "nvidia-debugdump",
        of: &[Utility],
    },
];

pub(crate) const PROGRAM_FOLDERS: [&str; 3] = ["/usr/bin", "/usr/local/bin", "/opt/bin"];

/// What the vendor-neutral loaders of Vulkan and EGL read, and OptiX's denoiser.
pub(crate) const DATA: [Other; 7] = [
    Other {
        name: "/usr/share/vulkan/icd.d/nvidia_icd.json",
        of: GL,
    },
    Other {
        name: "/etc/vulkan/icd.d/nvidia_icd.json",
        of: GL,
    },
    Other {
        name: "/usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
        of: GL,
    },
    Other {
        name: "/etc/vulkan/implicit_layer.d/nvidia_layers.json",
        of: GL,
    },
    Other {
        name: "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        of: GL,
    },
    Other {
        name: "/usr/share/nvidia/nvoptix.bin",
        of: GL,
    },
    Other {
        name: "/etc/OpenCL/vendors/nvidia.icd",
        of: &[Compute],
    },
];

/// Sockets and pipes of NVIDIA's daemons on the host. They steer, or allocate on, whole cards.
const DAEMONS: [&str; 5] = [
    "/run/nvidia-persistenced",
    "/run/nvidia-fabricmanager",
    "/run/nvidia-imex",
    "/tmp/nvidia-mps",
    "/tmp/nvidia-log",
];

/// Daemons' programs, which a generated CDI spec names beside `nvidia-smi`.
const DAEMON_PROGRAMS: [&str; 4] = [
    "nvidia-persistenced",
    "nv-fabricmanager",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
];

/// The library that a file's name is of, and what follows `.so`: `libcuda.so.570.1` is (`libcuda.so`, `570.1`).
pub(crate) fn library_of(file_name: &str) -> Option<(&'static Library, &str)> {
    LIBRARIES.iter().find_map(|library| {
        let rest = file_name.strip_prefix(library.name)?;
        match rest.strip_prefix('.') {
            Some(version) => Some((library, version)),
            None => rest.is_empty().then_some((library, "")),
        }
    })
}

/// What a path of the driver is for; `None`: not known here.
pub(crate) fn purpose_of(path: &Path) -> Option<&'static [Capability]> {
    let name = path.file_name()?.to_str()?;
    let library = library_of(name).map(|(library, _)| library.of);
    let program = || {
        PROGRAMS
            .iter()
            .find(|one| one.name == name)
            .map(|one| one.of)
    };
    let data = || {
        DATA.iter()
            .find(|one| path == Path::new(one.name))
            .map(|one| one.of)
    };
    library.or_else(program).or_else(data)
}

/// Whether a path leads to a daemon of the host.
pub(crate) fn is_daemon_s(path: &Path) -> bool {
    let path = path.strip_prefix("/var").map_or_else(
        |_elsewhere| path.to_owned(),
        |below| Path::new("/").join(below),
    );
    DAEMONS.iter().any(|folder| path.starts_with(folder))
        || path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| DAEMON_PROGRAMS.contains(&name))
}

/// Whether the end of a library's name is a version of the driver, as `570.195.03`, and not of an interface, as `1`.
pub(crate) fn is_driver_version(text: &str) -> bool {
    text.contains('.') && text.parse::<nvabi::DriverVersion>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_from_those_that_begin_alike() {
        let of = |name| library_of(name).map(|(library, rest)| (library.name, rest));
        assert_eq!(
            of("libcuda.so.570.195.03"),
            Some(("libcuda.so", "570.195.03"))
        );
        assert_eq!(of("libcuda.so"), Some(("libcuda.so", "")));
        assert_eq!(of("libnvidia-nvvm.so.4"), Some(("libnvidia-nvvm.so", "4")));
        assert_eq!(
            of("libnvidia-nvvm70.so.4"),
            Some(("libnvidia-nvvm70.so", "4"))
        );
        for name in ["libcudart.so.12", "libcuda.sox", "xlibcuda.so", "libcuda"] {
            assert_eq!(of(name), None, "{name}");
        }
        let mut names: Vec<&str> = LIBRARIES.iter().map(|library| library.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), LIBRARIES.len());
    }

    #[test]
    fn daemons_of_the_host_are_known_by_folder_and_program() {
        for path in [
            "/run/nvidia-persistenced/socket",
            "/var/run/nvidia-fabricmanager/socket",
            "/tmp/nvidia-mps",
            "/usr/bin/nvidia-cuda-mps-server",
        ] {
            assert!(is_daemon_s(Path::new(path)), "{path}");
        }
        for path in [
            "/run/nvidia-persistencedx",
            "/usr/bin/nvidia-smi",
            "/var/lib/x",
        ] {
            assert!(!is_daemon_s(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn only_whole_versions_are_the_driver_s() {
        assert!(is_driver_version("570.195.03"));
        for text in ["1", "4", "", "so.1"] {
            assert!(!is_driver_version(text), "{text}");
        }
    }
}
