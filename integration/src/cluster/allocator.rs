//! The scheduler's own allocator without a server: a small program of Go's around Kubernetes' module of it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::go::{Effort, GoProgram};

const PROGRAM: GoProgram = GoProgram {
    name: "allocator",
    packages: &["."],
    tags: "",
    module: include_str!("../../kubernetes/allocator/go.mod"),
    sums: include_str!("../../kubernetes/allocator/go.sum"),
    source: include_str!("../../kubernetes/allocator/main.go"),
    effort: Effort::USUAL,
};

/// The allocator of Kubernetes 1.36, with the gates that are on by default there.
pub struct Allocator {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// What the scheduler knows when it looks at one node for one pod.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// ResourceSlices.
    pub slices: &'a [Value],
    /// DeviceClasses.
    pub classes: &'a [Value],
    /// ResourceClaims that have allocations.
    pub allocated: &'a [Value],
    /// The node's name.
    pub node: &'a str,
}

impl Allocator {
    /// Builds the program once, about a minute on two cores, and starts it.
    ///
    /// # Errors
    /// A reason to skip aloud: no Go, or no module proxy.
    pub fn start() -> Result<Self> {
        let mut child = Command::new(PROGRAM.fetch()?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the allocator")?;
        let input = child.stdin.take().context("no standard input")?;
        let output = child.stdout.take().context("no standard output")?;
        Ok(Self {
            child,
            input,
            output: BufReader::new(output),
        })
    }

    /// The allocation of each of a pod's claims; `None`: they do not fit the node.
    ///
    /// # Errors
    /// The allocator's own, or it has ended.
    pub fn allocate(
        &mut self,
        situation: Situation<'_>,
        claims: &[Value],
    ) -> Result<Option<Vec<Value>>> {
        let question = json!({
            "slices": situation.slices, "classes": situation.classes, "allocated": situation.allocated,
            "claims": claims, "node": situation.node,
        });
        writeln!(self.input, "{question}").context("asking the allocator")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let answer: Value = serde_json::from_str(&line).context("the allocator's answer")?;
        ensure!(answer["error"].is_null(), "{}", answer["error"]);
        Ok(answer["allocations"]
            .as_array()
            .filter(|allocations| !allocations.is_empty())
            .cloned())
    }
}

impl Drop for Allocator {
    fn drop(&mut self) {
        // It keeps nothing that a kill could lose.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
