//! A call's way from its command to its verdict, and the filters against it.

mod answers;
mod filters;

use arbitrary::Unstructured;
use nvabi::bytes::{put_u32, put_u64, u32_at, u64_at};
use nvabi::capability::Capabilities;
use nvabi::class::{self, Kind};
use nvabi::control as ctl;
use nvabi::errno::{EFAULT, EINVAL, ENOTTY};
use nvabi::escape::{self, KEY_MASK, key};
use nvabi::layout::{nvos21, nvos32, nvos54, nvos64};
use nvabi::{Release, uvm};
use verdict::blocks::{self, Block, Extent, MAX_BLOCK_BYTES};
use verdict::policy::{CardFigures, Managed, RegisteredMemory, SameUser};
use verdict::{Effect, Op, Policy, Refusal, Surface, Verdict, decide_under, op};

/// Controls that decide something, and a few that do not; the rest of the space is reached by chance.
const CONTROLS: [u32; 40] = [
    ctl::NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS,
    ctl::NV0000_CTRL_CMD_GPU_GET_PROBED_IDS,
    ctl::NV0000_CTRL_CMD_GPU_GET_ID_INFO,
    ctl::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2,
    ctl::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD,
    ctl::NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD,
    ctl::NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO,
    ctl::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD,
    ctl::NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD,
    ctl::NV0080_CTRL_CMD_GPU_GET_CLASSLIST,
    ctl::NV0080_CTRL_CMD_GPU_GET_NUM_SUBDEVICES,
    ctl::NV2080_CTRL_CMD_GPU_GET_GID_INFO,
    ctl::NV2080_CTRL_CMD_GPU_GET_PIDS,
    ctl::NV2080_CTRL_CMD_GPU_GET_PID_INFO,
    ctl::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS,
    ctl::NV2080_CTRL_CMD_GR_GET_INFO,
    ctl::NV2080_CTRL_CMD_FB_GET_INFO,
    ctl::NV2080_CTRL_CMD_FB_GET_INFO_V2,
    ctl::NV2080_CTRL_CMD_FB_GET_FB_REGION_INFO,
    ctl::NV2080_CTRL_CMD_BUS_GET_PCI_INFO,
    ctl::NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2,
    ctl::NVA06C_CTRL_CMD_SET_TIMESLICE,
    ctl::NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN,
    0x101,
    0x41_0110,
    0x2080_0123,
    0x80_1701,
    0x80_170d,
    0x2080_0802,
    0x2080_1802,
    0x80_0287,
    0x2080_0110,
    0x127,
    // Of graphics and video.
    ctl::NV0080_CTRL_CMD_GR_GET_CAPS,
    ctl::NV2080_CTRL_CMD_GR_CTXSW_ZCULL_BIND,
    ctl::NV2080_CTRL_CMD_GPU_GET_ENGINES_V2,
    ctl::NVA06F_CTRL_CMD_BIND,
    // With pointers that are not carried.
    0x2080_0122,
    0x83de_0315,
    0x83de_0316,
];

/// Those of [`CONTROLS`] that must never be executed: their parameters hold pointers that nobody follows.
const UNCARRIED: [u32; 3] = [0x2080_0122, 0x83de_0315, 0x83de_0316];

/// The body.
pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    // Input that is too short for a choice ends the run.
    if let Ok(call) = Call::read(&mut input) {
        call.check(&mut input).unwrap_or_default();
    }
}

/// A call with its blocks, as a broker would carry it.
pub(crate) struct Made {
    pub(crate) surface: Surface,
    pub(crate) cmd: u32,
    pub(crate) segments: Vec<Vec<u8>>,
}

/// Makes a call for others to carry out: known or not, admitted or not.
pub(crate) fn made(release: Release, input: &mut Unstructured<'_>) -> arbitrary::Result<Made> {
    let call = Call {
        release,
        ..Call::read(input)?
    };
    let segments = match op(call.surface, call.cmd, release) {
        Ok(op) => {
            let argument = call.argument(&op, input)?;
            fetch(&op, &argument, release, input)?.unwrap_or_else(|_refusal| vec![argument])
        }
        Err(_unknown) => {
            let bytes = input.int_in_range(0..=64)?;
            vec![filled(bytes, input)?]
        }
    };
    Ok(Made {
        surface: call.surface,
        cmd: call.cmd,
        segments,
    })
}

struct Call {
    surface: Surface,
    cmd: u32,
    high: u32,
    release: Release,
    policy: Policy,
}

impl Call {
    fn read(input: &mut Unstructured<'_>) -> arbitrary::Result<Self> {
        let release = *input.choose(&Release::ALL)?;
        let surface =
            *input.choose(&[Surface::Ctl, Surface::Card, Surface::Uvm, Surface::UvmTools])?;
        let cmd = match (input.int_in_range(0..=9_u8)?, surface) {
            (0, _) => input.arbitrary()?,
            (1, _) => {
                let nr =
                    *input.choose(&[escape::NV_ESC_CARD_INFO, escape::NV_ESC_ATTACH_GPUS_TO_FD])?;
                let bytes = input.int_in_range(0..=130_u32)? * *input.choose(&[72, 4, 1])?;
                0xc000_4600 | u32::from(nr) | ((bytes & 0x3fff) << 16)
            }
            (_, Surface::Uvm | Surface::UvmTools) => input.choose(uvm::ALL)?.cmd,
            (_, Surface::Ctl | Surface::Card) => input.choose(escape::ALL)?.cmd(release),
        };
        // The driver does not look at type and direction.
        let cmd = match surface {
            Surface::Ctl | Surface::Card if input.ratio(1, 3)? => {
                key(cmd) | (input.arbitrary::<u32>()? & !KEY_MASK)
            }
            _ => cmd,
        };
        let high = if input.ratio(1, 3)? {
            input.arbitrary()?
        } else {
            0
        };
        Ok(Self {
            surface,
            cmd,
            high,
            release,
            policy: Policy {
                managed: *input.choose(&[Managed::Deny, Managed::Charge, Managed::Allow])?,
                same_user: *input.choose(&[SameUser::Refuse, SameUser::Narrow])?,
                card_figures: *input.choose(&[CardFigures::Refuse, CardFigures::Show])?,
                registered_memory: *input
                    .choose(&[RegisteredMemory::Refuse, RegisteredMemory::Allow])?,
                capabilities: Capabilities {
                    graphics: input.arbitrary()?,
                    video: input.arbitrary()?,
                },
            },
        })
    }

    fn check(&self, input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
        self.check_rules();
        let op = match op(self.surface, self.cmd, self.release) {
            Ok(op) => op,
            Err(refusal) => {
                assert_eq!(refusal, Refusal::Errno(EINVAL));
                self.check_other_calls(input)?;
                return Ok(());
            }
        };
        self.check_size(&op);
        let argument = self.argument(&op, input)?;
        let (segments, verdict) = match fetch(&op, &argument, self.release, input)? {
            Ok(segments) => {
                let slices: Vec<&[u8]> = segments.iter().map(Vec::as_slice).collect();
                let verdict = decide_under(&op, &slices, self.release, &self.policy);
                (segments, verdict)
            }
            Err(refusal) => (vec![argument], Verdict::Refuse(refusal)),
        };
        self.check_coverage(&op, &verdict);
        match &verdict {
            Verdict::Refuse(refusal) => self.check_refusal(&op, *refusal),
            Verdict::Execute(effect) => {
                self.check_pointers(&op, &segments);
                self.check_effect(&op, effect, &segments);
                self.check_narrowing(&op, &segments);
                if let Some(shown) = effect.view() {
                    answers::check(shown, &segments, self.release, input)?;
                }
            }
        }
        // A caller that fetched less than it was told to must find a refusal, not a panic.
        let cut: Vec<&[u8]> = segments
            .iter()
            .map(|segment| {
                let most = segment.len();
                let end = input.int_in_range(0..=most).unwrap_or(most);
                segment.get(..end).unwrap_or_default()
            })
            .collect();
        if let Verdict::Refuse(refusal) = decide_under(&op, &cut, self.release, &self.policy) {
            self.check_refusal(&op, refusal);
        }
        Ok(())
    }

    /// The struct, with fields that lead somewhere.
    fn argument(&self, op: &Op, input: &mut Unstructured<'_>) -> arbitrary::Result<Vec<u8>> {
        let mut argument = filled(op.struct_bytes(self.release), input)?;
        let Op::Escape(row) = op else {
            return Ok(argument);
        };
        if input.ratio(1, 16)? {
            return Ok(argument);
        }
        match **row {
            escape::NV_ESC_RM_ALLOC | escape::NV_ESC_RM_ALLOC_LONG => {
                put_u32(
                    &mut argument,
                    nvos21::H_CLASS,
                    input.choose(class::ALL)?.number,
                );
                put_pointer(&mut argument, nvos21::P_PARAMS, input)?;
                if **row == escape::NV_ESC_RM_ALLOC_LONG {
                    put_pointer(&mut argument, nvos64::P_RIGHTS, input)?;
                    let flags = if input.ratio(1, 8)? {
                        input.arbitrary()?
                    } else {
                        0
                    };
                    put_u32(&mut argument, nvos64::FLAGS, flags);
                }
            }
            escape::NV_ESC_RM_CONTROL => {
                let cmd = *input.choose(&CONTROLS)?;
                put_u32(&mut argument, nvos54::CMD, cmd);
                let flags = if input.ratio(1, 8)? {
                    input.arbitrary()?
                } else {
                    0
                };
                put_u32(&mut argument, nvos54::FLAGS, flags);
                put_pointer(&mut argument, nvos54::P_PARAMS, input)?;
                let bytes = match ctl::row(cmd, self.release) {
                    Some(row) if !input.ratio(1, 8)? => row.params_bytes,
                    _ => input.int_in_range(0..=2048)?,
                };
                put_u32(&mut argument, nvos54::PARAMS_SIZE, bytes);
            }
            escape::NV_ESC_RM_VID_HEAP_CONTROL => {
                put_u32(&mut argument, nvos32::FUNCTION, input.int_in_range(0..=30)?);
            }
            escape::NV_ESC_RM_ALLOC_MEMORY => {
                put_u32(
                    &mut argument,
                    nvos21::H_CLASS,
                    input.choose(class::ALL)?.number,
                );
            }
            _ => {}
        }
        Ok(argument)
    }

    fn check_size(&self, op: &Op) {
        let bytes = op.struct_bytes(self.release);
        assert!(bytes > 0, "{} has no struct", op.name());
        match op {
            Op::Uvm(_) => assert_eq!(self.surface, Surface::Uvm),
            Op::Escape(_) | Op::CardInfo { .. } | Op::AttachGpus { .. } => {
                assert!(matches!(self.surface, Surface::Ctl | Surface::Card));
                // The driver copies what the command says: more or less than we copied would be another struct.
                let reply = usize::try_from((self.cmd >> 16) & 0x3fff).expect("14 bits");
                assert_eq!(bytes, reply, "{}", op.name());
            }
        }
        if let Some(at) = op.status_at(self.release) {
            assert!(at + 4 <= bytes, "{}: a status at {at}", op.name());
        }
        if let Some(at) = op.descriptor().map(nvabi::call::Descriptor::at) {
            assert!(at + 4 <= bytes, "{}: a descriptor at {at}", op.name());
        }
    }

    fn check_refusal(&self, op: &Op, refusal: Refusal) {
        match refusal {
            Refusal::Errno(errno) => {
                assert!([EINVAL, EFAULT, ENOTTY].contains(&errno), "errno {errno}");
            }
            Refusal::Status { status, at } => {
                assert_ne!(status, 0, "{}: refused with success", op.name());
                assert!(
                    at + 4 <= op.struct_bytes(self.release),
                    "{}: a status at {at}",
                    op.name()
                );
            }
        }
    }

    /// Every pointer of an admitted call is carried, or zero, or names nothing; every size is the layout's.
    fn check_pointers(&self, op: &Op, segments: &[Vec<u8>]) {
        let Op::Escape(row) = op else { return };
        let argument = &segments[0];
        let pointer = |at| u64_at(argument, at).expect("within the struct");
        let carried = segments.get(1).map(Vec::len);
        match **row {
            escape::NV_ESC_RM_ALLOC | escape::NV_ESC_RM_ALLOC_LONG => {
                let number = u32_at(argument, nvos21::H_CLASS).expect("within the struct");
                let class = class::row_of(number, self.release).expect("an admitted class");
                let bytes = usize::try_from(class.params.of(self.release)).expect("small");
                if pointer(nvos21::P_PARAMS) != 0 && bytes > 0 {
                    let carried = carried.expect("carried parameters");
                    if class.params.of(self.release) == class::PARAMS_WINDOW {
                        assert!(carried <= bytes);
                    } else {
                        assert_eq!(carried, bytes, "{}", class.name);
                    }
                } else if segments.len() > 1 {
                    panic!("{}: segments without parameters", class.name);
                }
                if **row == escape::NV_ESC_RM_ALLOC_LONG {
                    let flags = u32_at(argument, nvos64::FLAGS).expect("within the struct");
                    assert_eq!(flags & nvos64::FLAG_SERIALISED, 0);
                    if pointer(nvos64::P_RIGHTS) != 0 {
                        assert_eq!(segments.get(2).map(Vec::len), Some(4), "access mask");
                    }
                }
            }
            escape::NV_ESC_RM_CONTROL => {
                let word = |at| u32_at(argument, at).expect("within the struct");
                let cmd = word(nvos54::CMD);
                assert!(!UNCARRIED.contains(&cmd), "{cmd:#x} was admitted");
                let control = ctl::row(cmd, self.release).expect("an admitted control");
                assert_eq!(word(nvos54::FLAGS) & nvos54::FORBIDDEN_FLAGS, 0);
                assert_eq!(word(nvos54::PARAMS_SIZE), control.params_bytes);
                let bytes = usize::try_from(control.params_bytes).expect("small");
                assert_eq!(carried.unwrap_or_default(), bytes, "{}", control.name);
                let mut following = segments.iter().skip(2);
                for nested in control.nested {
                    let params = &segments[1];
                    let at = usize::from(nested.pointer_at);
                    let address = u64_at(params, at).expect("a pointer within the parameters");
                    let bytes = nested.length.bytes(params).expect("a count");
                    if address != 0 && bytes != 0 {
                        let block = following.next().expect("a carried block");
                        assert_eq!(block.len(), bytes, "{}", control.name);
                    }
                }
                assert!(following.next().is_none(), "a block that nothing points to");
            }
            _ => assert_eq!(segments.len(), 1, "{}", op.name()),
        }
    }

    fn check_effect(&self, op: &Op, effect: &Effect, segments: &[Vec<u8>]) {
        let field = |(segment, at): (u8, usize), bytes: usize| {
            segments
                .get(usize::from(segment))
                .and_then(|segment| segment.get(at..at + bytes))
                .unwrap_or_else(|| panic!("{}: no field at {segment}:{at}", op.name()))
        };
        match effect {
            Effect::Memory(memory) => {
                let requested = memory.size_at.map_or(0, |at| {
                    u64::from_le_bytes(field(at, 8).try_into().expect("8 bytes"))
                });
                assert!(
                    op.new_handle(&segments[0]).is_some(),
                    "{}: no handle",
                    op.name()
                );
                assert!(
                    memory.reserve_bytes >= requested,
                    "less set aside than asked"
                );
                assert!(memory.reserve_bytes >= 1);
                let class = class::row_of(memory.class, self.release).expect("a known class");
                let kinds: &[Kind] = match memory.whose {
                    verdict::Whose::Card => &[Kind::Vidmem],
                    verdict::Whose::Host | verdict::Whose::HostInOnePiece => {
                        &[Kind::Sysmem, Kind::OsDescriptor]
                    }
                };
                assert!(kinds.contains(&class.kind), "{:?}", class.kind);
            }
            Effect::Object { class, .. } => {
                assert!(!matches!(
                    class.kind,
                    Kind::Root | Kind::Vidmem | Kind::Fabric
                ));
                assert!(class.since <= self.release);
            }
            Effect::MapExternal { cards, .. } => {
                assert!(cards.len() * uvm::map_external::PER_GPU_BYTES <= segments[0].len());
            }
            Effect::ChannelClients { clients } => assert!(clients.len() <= 64),
            Effect::Schedule(verdict::Schedule::Channels { channels, .. }) => {
                assert!(channels.len() <= 64);
            }
            Effect::Export(export) => {
                field((export.file.segment, export.file.at), 4);
                let slots =
                    u32::from(export.first) + u32::try_from(export.objects.len()).expect("few");
                assert!(slots <= u32::from(u16::MAX), "{export:?}");
            }
            Effect::Import(import) => {
                field((import.file.segment, import.file.at), 4);
                field((1, import.handles_at), usize::from(import.count) * 4);
                if let Some(at) = import.types_at {
                    field((1, at), usize::from(import.count));
                }
            }
            Effect::NamesCards { ids, .. } if matches!(op, Op::AttachGpus { .. }) => {
                assert!(ids.len() * 4 <= op.struct_bytes(self.release) && !ids.contains(&0));
            }
            Effect::NamesCards { ids, .. } => assert!(ids.len() <= 64),
            Effect::ExportInfo { file } => {
                field((file.segment, file.at), 4);
            }
            Effect::Managed { .. } => panic!("{}: managed memory is made by mmap", op.name()),
            Effect::None
            | Effect::Client
            | Effect::MapDma { .. }
            | Effect::UnmapDma { .. }
            | Effect::CpuMapping { .. }
            | Effect::RegisterCard { .. }
            | Effect::Register { .. }
            | Effect::Unregister(_)
            | Effect::Schedule(_)
            | Effect::OsEvent { .. }
            | Effect::Pool { .. }
            | Effect::Answered { .. }
            | Effect::Free { .. }
            | Effect::Dup { .. }
            | Effect::Range { .. }
            | Effect::RangeGroup(_)
            | Effect::Pages(_)
            | Effect::Unmap { .. }
            | Effect::FreeRange { .. }
            | Effect::View(_) => {}
        }
    }

    /// What is in a struct while the driver looks is inside it, and makes a call that is admitted as it is.
    fn check_narrowing(&self, op: &Op, segments: &[Vec<u8>]) {
        let slices: Vec<&[u8]> = segments.iter().map(Vec::as_slice).collect();
        if let Some(found) = blocks::descriptor(op, &slices) {
            let holder = segments.get(usize::from(found.segment)).map_or(0, Vec::len);
            assert!(found.at + 4 <= holder, "{}: {found:?}", op.name());
        }
        let mut narrowings = verdict::cleared(op, &slices, None);
        narrowings.extend(verdict::own_space(op, &slices));
        narrowings.extend(verdict::narrow(op, &slices));
        for narrowing in narrowings {
            let holder = segments
                .get(usize::from(narrowing.segment))
                .map_or(0, Vec::len);
            assert!(narrowing.at < holder, "{}: {narrowing:?}", op.name());
        }
    }
}

/// Copies the blocks of a call as the broker does, out of the input instead of out of a tenant.
fn fetch(
    op: &Op,
    argument: &[u8],
    release: Release,
    input: &mut Unstructured<'_>,
) -> arbitrary::Result<Result<Vec<Vec<u8>>, Refusal>> {
    let mut segments = vec![argument.to_vec()];
    let block = match blocks::params(op, argument, release) {
        Ok(None) => return Ok(Ok(segments)),
        Ok(Some(block)) => block,
        Err(refusal) => return Ok(Err(refusal)),
    };
    check_block(&block, 0, argument);
    let mut params = filled(block.bytes, input)?;
    if block.extent == Extent::Window {
        params.truncate(input.int_in_range(0..=block.bytes)?);
    }
    if input.ratio(2, 3)? {
        put_u32(&mut params, 0, input.int_in_range(0..=80)?);
        put_pointer(&mut params, 8, input)?;
    }
    let nested = match blocks::nested(op, argument, &params, release) {
        Ok(nested) => nested,
        Err(refusal) => return Ok(Err(refusal)),
    };
    assert!(nested.len() <= 3, "{nested:?}");
    for block in &nested {
        check_block(
            block,
            block.segment,
            if block.segment == 0 {
                argument
            } else {
                &params
            },
        );
    }
    segments.push(params);
    for block in nested {
        segments.push(filled(block.bytes, input)?);
    }
    Ok(Ok(segments))
}

fn check_block(block: &Block, segment: u8, holder: &[u8]) {
    assert_eq!(block.segment, segment);
    assert!((1..=MAX_BLOCK_BYTES).contains(&block.bytes), "{block:?}");
    assert_ne!(block.address, 0, "{block:?}");
    assert_eq!(
        u64_at(holder, block.pointer_at),
        Some(block.address),
        "{block:?}"
    );
}

/// A block of this length: its head from the input, the rest a pattern of the head.
fn filled(bytes: usize, input: &mut Unstructured<'_>) -> arbitrary::Result<Vec<u8>> {
    const HEAD_BYTES: usize = 192;
    let mut head = vec![0; bytes.min(HEAD_BYTES)];
    let given = head.len().min(input.len());
    input.fill_buffer(&mut head[..given])?;
    let mut block: Vec<u8> = head.iter().copied().cycle().take(bytes).collect();
    block.resize(bytes, 0);
    Ok(block)
}

fn put_pointer(block: &mut [u8], at: usize, input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let address = match input.int_in_range(0..=7_u8)? {
        0 | 1 => 0,
        2 => input.arbitrary()?,
        _ => 0x7f00_0000_1000,
    };
    put_u64(block, at, address);
    Ok(())
}
