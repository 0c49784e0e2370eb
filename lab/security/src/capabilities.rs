//! What a container without `NVIDIA_DRIVER_CAPABILITIES` gets of graphics and video.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use nvabi::capability::{Capabilities, Needs};
use nvabi::control::{NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2, NV2080_CTRL_CMD_GPU_GET_ENGINES_V2};
use nvabi::layout::{channel_group_params, engine_type};
use nvabi::{Release, bytes, class, control};
use serde_json::{Value, json};

use crate::Fixture;
use crate::seat::{PARAMS_AT, Seat, Target};
use crate::tally::Tally;

/// The subcommand of a program that asks for everything by its environment.
pub(crate) const ASKING: &str = "asking-for-all";
const REPORT: &str = "requested-for-all.json";

/// Every class, control and engine of video and graphics, and the lists of classes and engines; and the same by a program whose environment
/// asks for all of them, which no container's own programs can.
pub(crate) fn ungranted_capabilities(fixture: &mut Fixture) -> Result<Value> {
    let mut seat = Seat::take()?;
    let mut facts = tried(&mut seat)?;
    let own = std::env::current_exe().context("find this program")?;
    let status = Command::new(own)
        .arg(ASKING)
        .args(["--quota", &fixture.quota_bytes.to_string(), "--out"])
        .arg(&fixture.out)
        .env("NVIDIA_DRIVER_CAPABILITIES", "all")
        .stdin(Stdio::null())
        .status()
        .context("start a program that asks")?;
    ensure!(status.success(), "a program that asks: {status}");
    let report = std::fs::read_to_string(fixture.out.join(REPORT)).context("read its report")?;
    facts["requested"] = serde_json::from_str(&report).context("understand its report")?;
    facts["tally"] = Tally::default().json();
    fixture.keep(seat);
    Ok(facts)
}

/// The program of [`ASKING`].
pub(crate) fn asking(fixture: &Fixture) -> Result<()> {
    let facts = tried(&mut Seat::take()?)?;
    crate::tell(&fixture.out, REPORT, &facts)
}

fn tried(seat: &mut Seat) -> Result<Value> {
    let mut classes = Tally::default();
    for class in class::ALL.iter().filter(|row| row.needs != Needs::Nothing) {
        classes.count(seat.make(seat.device, class.number, &[]), 0);
    }
    let mut controls = Tally::default();
    for (cmd, _) in control::rows() {
        // Which driver it is makes no difference: one of these sizes is right.
        for row in Release::ALL.map(|release| control::row(cmd, release)) {
            let Some(row) = row.filter(|row| row.needs != Needs::Nothing) else {
                continue;
            };
            let object = match cmd >> 16 {
                0x0080 => seat.device,
                0x2080 => seat.subdevice,
                _ => seat.client,
            };
            let params = vec![0; row.params_bytes as usize];
            let target = seat.own(object);
            controls.count(seat.control(target, cmd, 0, &params), 0);
        }
    }
    let mut channels = Tally::default();
    for engine in (0..0x54).filter(|engine| engine_type::is_video(*engine)) {
        let mut params = [0; 20];
        bytes::put_u32(&mut params, channel_group_params::ENGINE_TYPE, engine);
        channels.count(
            seat.make(seat.device, class::KEPLER_CHANNEL_GROUP_A, &params),
            0,
        );
    }
    let device = seat.own(seat.device);
    let classes_listed = listed(seat, device, NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2)?;
    let subdevice = seat.own(seat.subdevice);
    let engines = listed(seat, subdevice, NV2080_CTRL_CMD_GPU_GET_ENGINES_V2)?;
    let is_refused = |number: &&u32| {
        let row = class::of(**number);
        row.is_some_and(|row| !row.needs.met_by(Capabilities::default()))
    };
    let refused: Vec<u32> = classes_listed.iter().filter(is_refused).copied().collect();
    let video = engines
        .iter()
        .filter(|engine| engine_type::is_video(**engine));
    Ok(json!({
        "classes": classes.json(),
        "controls": controls.json(),
        "channels": channels.json(),
        "listed": classes_listed.len(),
        "listed_without_right": refused,
        "engines": engines.len(),
        "video_engines": video.count(),
    }))
}

/// The answer to a control of `{u32 count; u32 entries}`.
fn listed(seat: &mut Seat, target: Target, cmd: u32) -> Result<Vec<u32>> {
    for row in Release::ALL
        .iter()
        .filter_map(|release| control::row(cmd, *release))
    {
        let size = row.params_bytes as usize;
        if !seat.control(target, cmd, 0, &vec![0; size]).is_done() {
            continue;
        }
        let params = seat.pages.read(PARAMS_AT, size).context("read the list")?;
        let count = bytes::u32_at(&params, 0).unwrap_or(0) as usize;
        let words = params.chunks_exact(4).skip(1).take(count);
        return Ok(words.filter_map(|word| bytes::u32_at(word, 0)).collect());
    }
    anyhow::bail!("no list of {cmd:#x}")
}
