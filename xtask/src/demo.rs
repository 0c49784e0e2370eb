//! `cargo xtask demo`: real containers under a private containerd share two simulated cards.
//!
//! What is printed is what the commands said. What was expected is decided here, beforehand; the table at the end
//! sets both side by side.

use std::cell::Cell;
use std::process::{ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use integration::command::{Outcome, progress};
use integration::containerd::CGPU;
use integration::engines::Engines;
use integration::image::{self, Image};
use integration::packages::{Suite, ensure_installed};
use integration::programs::{Profile, Programs};
use integration::python;
use integration::rig::Rig;
use integration::skip;
use serde_json::Value;

use crate::table::{self, Row};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// No tinygrad: nothing is fetched from PyPI.
    #[arg(long)]
    quick: bool,
    /// With the programs as shipped, which take minutes to build.
    #[arg(long)]
    release: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let began = Instant::now();
    if let Some(reason) = skip::lacks_root() {
        bail!("the demo {reason}: it starts a containerd");
    }
    ensure_installed(&[("python3", "python3"), ("setpriv", "util-linux")])?;
    let engines = Engines::fetch(Suite::Host).context("fetching containerd and runc")?;
    // A development build shares the dependencies that this program itself was built with.
    let programs = if options.release {
        Programs::build(Profile::Release)?
    } else {
        Programs::build_for_demo()?
    };
    let tinygrad = if options.quick {
        None
    } else {
        Some(image::tinygrad(Some(&programs)).context("building the image with tinygrad")?)
    };
    progress("starting two simulated cards and a private containerd");
    let rig = Rig::start(&programs, &engines)?;
    if let Some(image) = &tinygrad {
        progress("importing the image with tinygrad");
        rig.containerd.import(image)?;
    }
    let mut step = Step {
        rig,
        rows: Vec::new(),
        execs: Cell::new(0),
    };
    step.introduce(&engines)?;
    step.two_containers_on_one_card()?;
    match &tinygrad {
        Some(image) => step.tinygrad_at_its_quota(image)?,
        None => println!("\n(2) left out by --quick"),
    }
    step.two_cards()?;
    step.what_does_not_fit()?;
    step.host_view()?;
    step.release()?;
    let Step { rig, mut rows, .. } = step;
    progress("stopping everything and looking for leftovers");
    let cleaned = match rig.finish() {
        Ok(()) => "nothing".to_owned(),
        Err(error) => format!("{error:#}"),
    };
    rows.push(Row::new("left on the machine", "nothing", cleaned));

    Ok(table::print_expected(&rows, began.elapsed()))
}

/// The running node and what was seen on it so far.
struct Step {
    rig: Rig,
    rows: Vec<Row>,
    /// Each exec of a container needs a name of its own.
    execs: Cell<u32>,
}

impl Step {
    fn expect(&mut self, fact: &str, expected: impl Into<String>, seen: impl Into<String>) {
        self.rows.push(Row::new(fact, expected, seen));
    }

    /// Prints a `ctr` command as one would type it, and what it says.
    fn ctr(&self, args: &[&str]) -> Result<Outcome> {
        let shown: Vec<String> = args
            .iter()
            .map(|argument| {
                if *argument == python::CHECK {
                    "\"$(cat integration/payloads/tinygrad_check.py)\"".to_owned()
                } else if argument.contains(' ') {
                    format!("'{argument}'")
                } else {
                    (*argument).to_owned()
                }
            })
            .collect();
        println!("\n$ ctr {}", shown.join(" "));
        let reply = self.rig.containerd.ctr(args)?;
        show(&reply);
        Ok(reply)
    }

    /// `cgpu` on the host.
    fn cgpu(&self, args: &[&str]) -> Result<Outcome> {
        println!("\n$ cgpu {}", args.join(" "));
        let reply = self.rig.node.cgpu(args)?;
        show(&reply);
        Ok(reply)
    }

    fn start(&self, id: &str, annotations: &[&str]) -> Result<Outcome> {
        let mut args = vec!["run", "-d", "--runtime", CGPU];
        for annotation in annotations {
            args.extend(["--annotation", annotation]);
        }
        args.extend([self.rig.image.name.as_str(), id, "sleep", "100000"]);
        self.ctr(&args)
    }

    fn exec(&self, id: &str, program: &[&str]) -> Result<Outcome> {
        let name = format!("e{}", self.execs.replace(self.execs.get() + 1));
        let mut args = vec!["tasks", "exec", "--exec-id", name.as_str(), id];
        args.extend(program);
        self.ctr(&args)
    }

    /// `cgpu smi` in a container, for people; and the same as data.
    fn smi(&self, id: &str) -> Result<Value> {
        self.exec(id, &["cgpu", "smi"])?.success()?;
        self.rig.smi(id)
    }

    fn introduce(&self, engines: &Engines) -> Result<()> {
        println!(
            "\nEverything below runs on a private node in {}.",
            self.rig.node.root().display()
        );
        println!(
            "`ctr` stands for {} -a {} -n {}",
            engines.program("ctr")?.display(),
            self.rig.containerd.socket().display(),
            self.rig.containerd.namespace()
        );
        println!(
            "`cgpu` on the host reads CGPU_CONFIG={}",
            self.rig.node.config().display()
        );
        self.ctr(&["version"])?.success()?;
        self.cgpu(&["cards"])?.success()?;
        Ok(())
    }

    fn two_containers_on_one_card(&mut self) -> Result<()> {
        println!("\n\n(1) Two containers on one card, 4 GiB and 8 GiB: each sees exactly its own.");
        for (id, memory, gib) in [
            ("small", "cgpu.io/memory=4Gi", 4),
            ("large", "cgpu.io/memory=8Gi", 8),
        ] {
            self.start(id, &[memory])?.success()?;
            let smi = self.smi(id)?;
            self.expect(
                &format!("(1) memory that `{id}` sees"),
                mib(gib * GIB),
                totals(&smi),
            );
        }
        let cards = [
            card(&self.rig.smi("small")?, 0),
            card(&self.rig.smi("large")?, 0),
        ];
        self.expect("(1) both are on one card", "yes", yes(cards[0] == cards[1]));
        let over = self.exec("small", &["cgpu-burn", "alloc", "4097Mi"])?;
        self.expect(
            "(1) 4097 MiB in `small`",
            "refused, out of memory",
            refusal(&over),
        );
        Ok(())
    }

    fn tinygrad_at_its_quota(&mut self, image: &Image) -> Result<()> {
        println!(
            "\n\n(2) tinygrad {} as PyPI has it, in a container of 2 GiB, while `large` allocates and frees.",
            python::TINYGRAD
        );
        let churn = [
            "tasks",
            "exec",
            "--exec-id",
            "churn",
            "large",
            "cgpu-burn",
            "--json",
            "churn",
            "--seconds",
            "15",
        ];
        println!("\n$ ctr {} &", churn.join(" "));
        let neighbour = self
            .rig
            .containerd
            .ctr_command(&churn)?
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let tiny = self.ctr(&[
            "run",
            "--rm",
            "--runtime",
            CGPU,
            "--annotation",
            "cgpu.io/memory=2Gi",
            "--env",
            python::SELECT,
            &image.name,
            "tiny",
            "python3",
            "-c",
            python::CHECK,
            "64",
        ])?;
        let neighbour = neighbour.wait_with_output()?;
        let churned: Value = serde_json::from_slice(&neighbour.stdout)
            .with_context(|| String::from_utf8_lossy(&neighbour.stderr).into_owned())?;
        println!("\nmeanwhile in `large`: {churned}");
        let reply: Value = tiny.json().unwrap_or(Value::Null);
        self.expect(
            "(2) tinygrad: 4 MiB in and out",
            "identical",
            if reply["identical"] == true {
                "identical".to_owned()
            } else {
                reply.to_string()
            },
        );
        let held = reply["held_bytes"].as_u64().unwrap_or_default();
        let is_free = (2 * GIB - 256 * MIB..2 * GIB).contains(&held);
        self.expect(
            "(2) tinygrad: held when it was refused",
            "1792 to 2048 MiB",
            if is_free {
                "1792 to 2048 MiB".to_owned()
            } else {
                mib(held)
            },
        );
        let error = reply["error"].as_str().unwrap_or("none");
        self.expect(
            "(2) tinygrad: at the quota",
            "MemoryError",
            error.split(':').next().unwrap_or_default(),
        );
        let allocations = churned["allocations"].as_u64().unwrap_or_default();
        let unexpected = churned["unexpected"]
            .as_object()
            .map_or(1, serde_json::Map::len);
        self.expect(
            "(2) the neighbour meanwhile",
            "allocated, nothing unexpected",
            if allocations > 0 && unexpected == 0 {
                "allocated, nothing unexpected".to_owned()
            } else {
                churned.to_string()
            },
        );
        Ok(())
    }

    fn two_cards(&mut self) -> Result<()> {
        println!("\n\n(3) One container over two cards: 8 GiB = 4 GiB on each.");
        self.start("wide", &["cgpu.io/memory=8Gi", "cgpu.io/cards=2"])?
            .success()?;
        let smi = self.smi("wide")?;
        self.expect(
            "(3) memory that `wide` sees",
            format!("{0} + {0}", mib(4 * GIB)),
            totals(&smi),
        );
        self.expect(
            "(3) on two different cards",
            "yes",
            yes(card(&smi, 0) != card(&smi, 1)),
        );
        Ok(())
    }

    fn what_does_not_fit(&mut self) -> Result<()> {
        println!("\n\n(4) A request that does not fit is refused with what each card has left.");
        let cards = self.rig.smi("wide")?;
        let reply = self.start("greedy", &["cgpu.io/memory=22Gi"])?;
        self.expect(
            "(4) 22 GiB",
            "refused",
            if reply.succeeded() {
                "started"
            } else {
                "refused"
            },
        );
        // One card holds 4 + 8 + 4, the other 4, of 24 each.
        let text = format!("{}{}", reply.stdout, reply.stderr);
        for index in 0..2 {
            let uuid = card(&cards, index);
            self.expect(
                &format!("(4) the error names card {index}"),
                "yes",
                yes(text.contains(&uuid)),
            );
        }
        for left in [8, 20] {
            let spelt = [
                format!("{left} GiB"),
                format!("{left}Gi"),
                format!("{} MiB", left * 1024),
            ];
            let named = spelt.iter().any(|spelt| text.contains(spelt));
            self.expect(
                &format!("(4) the error says {left} GiB are left"),
                "yes",
                yes(named),
            );
        }
        self.ctr(&["containers", "rm", "greedy"])?;
        Ok(())
    }

    fn host_view(&mut self) -> Result<()> {
        println!("\n\n(5) The host's view.");
        let reply = self.cgpu(&["ps"])?.success()?;
        let all = ["small", "large", "wide"]
            .iter()
            .all(|id| reply.stdout.contains(id));
        self.expect("(5) `cgpu ps` lists small, large, wide", "yes", yes(all));
        self.expect(
            "(5) and not what was refused",
            "yes",
            yes(!reply.stdout.contains("greedy")),
        );
        Ok(())
    }

    fn release(&mut self) -> Result<()> {
        println!("\n\n(6) Deletion returns everything.");
        for id in ["small", "large", "wide"] {
            self.ctr(&["tasks", "rm", "--force", id])?.success()?;
            self.ctr(&["containers", "rm", id])?.success()?;
        }
        self.cgpu(&["ps"])?.success()?;
        let grants = self.rig.node.grants();
        self.expect(
            "(6) grants after deletion",
            "none",
            if grants.is_empty() {
                "none".to_owned()
            } else {
                grants.join(", ")
            },
        );
        self.start("all", &["cgpu.io/memory=48Gi", "cgpu.io/cards=2"])?
            .success()?;
        let smi = self.smi("all")?;
        self.expect(
            "(6) both whole cards can be had again",
            format!("{0} + {0}", mib(24 * GIB)),
            totals(&smi),
        );
        self.ctr(&["tasks", "rm", "--force", "all"])?.success()?;
        self.ctr(&["containers", "rm", "all"])?.success()?;
        Ok(())
    }
}

fn show(reply: &Outcome) {
    for text in [&reply.stdout, &reply.stderr] {
        if !text.trim().is_empty() {
            println!("{}", text.trim_end());
        }
    }
    if let Some(code) = reply.code.filter(|code| *code != 0) {
        println!("(exit code {code})");
    }
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes / MIB)
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

fn refusal(reply: &Outcome) -> String {
    match reply.code {
        Some(3) => "refused, out of memory".to_owned(),
        code => format!("exit code {code:?}"),
    }
}

fn totals(smi: &Value) -> String {
    let cards = smi["cards"].as_array().cloned().unwrap_or_default();
    let totals: Vec<String> = cards
        .iter()
        .map(|card| mib(card["memory_total_bytes"].as_u64().unwrap_or_default()))
        .collect();
    totals.join(" + ")
}

fn card(smi: &Value, index: usize) -> String {
    smi["cards"][index]["uuid"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}
