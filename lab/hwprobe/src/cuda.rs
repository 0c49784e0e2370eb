//! `cgpu-cuda`: the smallest program that uses CUDA as programs do, without its toolkit. It loads the driver's library, makes a context,
//! allocates memory of each kind, copies, runs a kernel given as text (PTX), and says of each step how it ended.
//!
//! It needs a real card: the library is licensed for no other.

mod library;

use std::ffi::CStr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use serde_json::{Value, json};

use library::{Cuda, Device, Error, Memory};

/// Adds 1 to each entry: for every card since Turing, by any driver since 418.
const PTX: &CStr = c".version 6.4
.target sm_75
.address_size 64
.visible .entry add_one(.param .u64 entries, .param .u32 count)
{
    .reg .pred %past;
    .reg .b32 %r<6>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [entries];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %past, %r5, %r1;
    @%past bra done;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd2, %rd2, %rd3;
    ld.global.u32 %r1, [%rd2];
    add.u32 %r1, %r1, 1;
    st.global.u32 [%rd2], %r1;
done:
    ret;
}
";

const MIB: usize = 1 << 20;
/// Entries that the kernel adds to.
const COUNT: u32 = 1 << 20;

#[derive(Debug, Parser)]
#[command(
    name = "cgpu-cuda",
    version,
    about = "Use a GPU through CUDA's driver library, step by step; print how each step ended as one JSON object a line"
)]
struct Arguments {
    /// The library.
    #[arg(long, default_value = "libcuda.so.1")]
    library: PathBuf,
}

/// Whether every step went well.
struct Steps {
    failed: bool,
}

impl Steps {
    /// Makes a step and says how it ended. What it yields is what later steps need.
    fn step<T>(
        &mut self,
        name: &str,
        step: impl FnOnce() -> Result<(T, Value), Error>,
    ) -> Option<T> {
        let began = Instant::now();
        let (yielded, reply) = match step() {
            Ok((yielded, found)) => (Some(yielded), json!({"ok": found})),
            Err(error) => {
                self.failed = true;
                (None, json!({"error": error.to_string()}))
            }
        };
        let us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        line(&json!({"step": name, "answer": reply, "us": us}));
        yielded
    }
}

#[expect(clippy::print_stdout, reason = "the program's output")]
fn line(value: &Value) {
    println!("{value}");
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut steps = Steps { failed: false };
    run(&arguments, &mut steps);
    if steps.failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// `None` after a step that all others need; a step that fails otherwise does not end the rest.
fn run(arguments: &Arguments, steps: &mut Steps) -> Option<()> {
    let plain = |value: Result<(), Error>| value.map(|()| ((), Value::Null));
    let cuda = steps.step("load", || {
        Ok((Cuda::load(&arguments.library)?, Value::Null))
    })?;
    steps.step("cuInit", || plain(cuda.init()))?;
    steps.step("cuDriverGetVersion", || {
        let version = cuda.version()?;
        Ok(((), json!(version)))
    });
    steps.step("cuDeviceGetCount", || {
        let count = cuda.devices()?;
        Ok(((), json!(count)))
    });
    let device = steps.step("cuDeviceGet", || Ok((cuda.device(0)?, Value::Null)))?;
    steps.step("cuDeviceTotalMem", || {
        let bytes = cuda.total_bytes(device)?;
        Ok(((), json!(bytes)))
    });
    steps.step("cuCtxCreate (the primary context)", || {
        plain(cuda.use_primary_context(device))
    })?;
    steps.step("cuMemGetInfo", || {
        let (free, total) = cuda.free_and_total_bytes()?;
        Ok(((), json!({"free": free, "total": total})))
    });
    let memory = steps.step("cuMemAlloc", || {
        Ok((cuda.allocate(COUNT as usize * 4)?, Value::Null))
    });
    if let Some(memory) = memory {
        in_memory(&cuda, memory, steps);
        steps.step("cuMemFree", || plain(cuda.free(memory)));
    }
    steps.step("cuMemHostAlloc", || plain(cuda.pin_and_free(16 * MIB)));
    steps.step("cuMemHostRegister", || {
        plain(cuda.register_and_unregister(&mut vec![0; 16 * MIB]))
    });
    steps.step("cuMemAllocManaged", || {
        let memory = cuda.allocate_managed(16 * MIB)?;
        plain(cuda.free(memory))
    });
    steps.step("cuMemCreate and cuMemMap", || plain(mapped(&cuda, device)));
    steps.step("cuDevicePrimaryCtxRelease", || {
        plain(cuda.release_primary_context(device))
    });
    Some(())
}

/// Copies there, a kernel, copies back.
fn in_memory(cuda: &Cuda, memory: Memory, steps: &mut Steps) {
    let entries: Vec<u8> = (0..COUNT).flat_map(u32::to_le_bytes).collect();
    let plain = |value: Result<(), Error>| value.map(|()| ((), Value::Null));
    steps.step("cuMemcpyHtoD", || plain(cuda.copy_to(memory, &entries)));
    let kernel = steps.step("cuModuleLoadData (PTX)", || {
        Ok((cuda.kernel(PTX, c"add_one")?, Value::Null))
    });
    let ran = kernel.and_then(|kernel| {
        steps.step("cuLaunchKernel and cuCtxSynchronize", || {
            plain(cuda.launch(kernel, memory, COUNT))
        })
    });
    let mut back = vec![0; entries.len()];
    let copied = steps.step("cuMemcpyDtoH", || plain(cuda.copy_from(memory, &mut back)));
    if ran.and(copied).is_some() {
        let needed = (1..=COUNT).flat_map(u32::to_le_bytes);
        steps.step("every entry is one more", || {
            if back.iter().copied().eq(needed) {
                Ok(((), Value::Null))
            } else {
                Err(Error::Library(
                    "entries are not what the kernel makes of them".to_owned(),
                ))
            }
        });
    }
}

/// Two pieces in one range, as an allocator with growing ranges maps them.
fn mapped(cuda: &Cuda, device: Device) -> Result<(), Error> {
    let piece = cuda.granularity(device)?;
    let range = cuda.reserve(2 * piece)?;
    let pieces = [cuda.create(device, piece)?, cuda.create(device, piece)?];
    for (offset, handle) in (0..).step_by(piece).zip(pieces) {
        cuda.map(device, range, offset, handle, piece)?;
    }
    cuda.unmap(range)?;
    for handle in pieces {
        cuda.release(handle)?;
    }
    cuda.free_range(range)
}
