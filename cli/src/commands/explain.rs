//! `cgpu explain`: why a request is placed where it is, or refused, card by card. It changes nothing.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use host_config::Config;
use view::explain::Explanation;
use view::host_driver::{ANSWER, HostDriver};
use view::names::find;

use super::request_options::RequestOptions;
use super::{Form, not_understood};
use crate::render::{self, Look};

/// The two forms.
pub(super) const USAGE: &str =
    "cgpu explain [OPTIONS] <CONTAINER>\n       cgpu explain [OPTIONS] --memory <MEMORY>";

/// Below the help of `cgpu explain`.
pub(super) const EXAMPLES: &str = "\
What is said holds for now: memory and time are what the cards have left at this moment. A container is judged as if it had no
vGPU yet, by the request of its spec.

Exit code: 0 if the request fits, 1 if not, 2 for a value that is not allowed anywhere.

Examples:
  cgpu explain --memory 4Gi
  cgpu explain --memory 50% --cards 2 --compute 30
  cgpu explain web";

/// The options of `cgpu explain`.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Judge the request of this container, as `cgpu ps` shows it.
    #[arg(conflicts_with = "memory", required_unless_present = "memory")]
    container: Option<String>,
    /// Judge a request for this much memory: 4Gi, split equally over the cards, or a part of each card, 25%.
    #[arg(long, allow_hyphen_values = true)]
    memory: Option<String>,
    #[command(flatten)]
    request: RequestOptions,
    #[command(flatten)]
    form: Form,
}

pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let config = Config::load()?;
    let explained = match (&options.memory, &options.container) {
        (Some(memory), _) => {
            let request = options.request.read(&config, memory)?;
            vgpu::explain::request(&config, &request, None)?
        }
        (None, Some(name)) => {
            if !options.request.is_empty() {
                return Err(not_understood(
                    "a container has a request of its own: give --memory with these options, and no container",
                ));
            }
            of_container(&config, name)?
        }
        (None, None) => bail!("name a container, or a request with --memory"),
    };
    let document = Explanation::from(&explained);
    let document = match HostDriver::of(&config).trouble(&config, ANSWER) {
        None => document,
        Some(why) => document.unanswered(&why),
    };
    let is_placed = document.refusal.is_none();
    options.form.print(&document, |document| {
        render::explain::render(document, Look::of_output())
    })?;
    Ok(ExitCode::from(u8::from(!is_placed)))
}

fn of_container(config: &Config, name: &str) -> anyhow::Result<cards::placement::Explained> {
    let container = vgpu::Container::new(config.clone(), find(config, name)?);
    let key = container.key();
    let Some(request) = vgpu::explain::request_of(&container)? else {
        bail!(
            "{} has no spec with a request, as commands of `cgpu run` have none: give its options instead, as `cgpu explain --memory 4Gi`",
            container.called()
        );
    };
    Ok(vgpu::explain::request(config, &request, Some(key))?)
}
