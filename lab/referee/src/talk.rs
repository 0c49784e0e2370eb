//! A program of RM's that answers lines with lines.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};

/// A running program; it ends with its input.
#[derive(Debug)]
pub(crate) struct Talk {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Talk {
    pub(crate) fn start(program: &Path) -> Result<Self> {
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let to = child.stdin.take().context("the program's input")?;
        let from = child.stdout.take().context("the program's output")?;
        Ok(Self {
            child,
            to: Some(to),
            from: BufReader::new(from),
        })
    }

    /// Says one line or several.
    pub(crate) fn send(&mut self, lines: &str) -> Result<()> {
        let to = self.to.as_mut().context("the program's input")?;
        to.write_all(lines.as_bytes())
            .and_then(|()| to.write_all(b"\n"))
            .and_then(|()| to.flush())
            .context("asking RM")
    }

    /// The next line.
    pub(crate) fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            bail!("RM has ended");
        }
        Ok(line.trim_end().to_owned())
    }

    /// Says a line and hears one.
    pub(crate) fn ask(&mut self, line: &str) -> Result<String> {
        self.send(line)?;
        self.hear()
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.to = None;
        drop(self.child.wait());
    }
}
