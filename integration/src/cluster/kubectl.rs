//! `kubectl` under one identity.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::command::{LIMIT, Outcome, capture, wait_until};
use crate::pods::PrivateNetwork;

/// `kubectl`, and whose it is.
#[derive(Debug, Clone)]
pub struct Kubectl {
    pub(super) program: PathBuf,
    pub(super) network: Arc<PrivateNetwork>,
    pub(super) config: PathBuf,
    /// For its cache of what the server serves, and for objects on their way.
    pub(super) folder: PathBuf,
}

impl Kubectl {
    /// The kubeconfig file that it uses, for other clients of the same identity: they have to be in the control plane's network.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// A command, not yet run.
    ///
    /// # Errors
    /// The network was given up.
    pub fn command(&self, args: &[&str]) -> Result<Command> {
        let mut command = self.network.command(&self.program)?;
        command
            .args(args)
            .env("KUBECONFIG", &self.config)
            .env("HOME", &self.folder)
            .env_remove("KUBERNETES_SERVICE_HOST");
        Ok(command)
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// It cannot be started, or does not end.
    pub fn run(&self, args: &[&str]) -> Result<Outcome> {
        capture(&mut self.command(args)?, LIMIT)
    }

    /// `kubectl get ARGS` as JSON.
    ///
    /// # Errors
    /// The server refuses it.
    pub fn get(&self, args: &[&str]) -> Result<Value> {
        let mut all = vec!["get", "-o", "json"];
        all.extend(args);
        self.run(&all)?.success()?.json()
    }

    /// `kubectl VERB OPTIONS -f` with an object.
    ///
    /// # Errors
    /// It cannot be written, or `kubectl` does not end.
    pub fn send(&self, verb: &str, options: &[&str], object: &Value) -> Result<Outcome> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(format!("object-{number}.json"));
        fs::write(&path, serde_json::to_vec(object)?)
            .with_context(|| format!("writing {}", path.display()))?;
        let shown = path.to_string_lossy();
        let mut args = vec![verb];
        args.extend(options);
        args.extend(["-f", &shown]);
        let reply = self.run(&args);
        fs::remove_file(&path)?;
        reply
    }

    /// Creates an object.
    ///
    /// # Errors
    /// The server refuses it.
    pub fn create(&self, object: &Value) -> Result<()> {
        self.send("create", &[], object)?.success()?;
        Ok(())
    }

    /// Waits until the object that `args` name is as `probe` has it; says what it was at last.
    ///
    /// # Errors
    /// It is not within the usual limit, or there is no such object.
    pub fn wait(
        &self,
        what: &str,
        args: &[&str],
        mut probe: impl FnMut(&Value) -> bool,
    ) -> Result<Value> {
        let mut last = Value::Null;
        let waited = wait_until(what, LIMIT, || {
            last = self.get(args)?;
            Ok(probe(&last))
        });
        waited.with_context(|| format!("at last: {last}"))?;
        Ok(last)
    }
}
