//! From the command line to an exit status.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use crate::api::{Cluster, Error};
use crate::options::{Command, Format, INSPECT_NAME, InspectAlone, Options, OutputOptions};
use crate::{explain, inspect};

/// Runs the plugin with these arguments, the program's name first: by it the plugin is `kubectl inspect cgpu` too.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let name = args.first().map(Path::new).and_then(Path::file_name);
    let command = if name.is_some_and(|name| name == INSPECT_NAME) {
        InspectAlone::try_parse_from(&args).map(|alone| Command::Inspect(alone.inspect))
    } else {
        Options::try_parse_from(&args).map(|options| options.command)
    };
    let command = match command {
        Ok(command) => command,
        Err(error) => {
            // Nobody is there to be told of a closed pipe.
            let _closed = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let answer = match runtime {
        Ok(runtime) => runtime.block_on(run(&command)),
        Err(error) => Err(Error::Local(format!("start the event loop: {error}"))),
    };
    match answer {
        Ok(text) => {
            let mut out = std::io::stdout();
            match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
                Err(_full) => ExitCode::FAILURE,
            }
        }
        Err(error) => {
            let text = format!("kubectl cgpu: {error}\n");
            let _closed = std::io::stderr().write_all(text.as_bytes());
            ExitCode::from(error.status())
        }
    }
}

async fn run(command: &Command) -> Result<String, Error> {
    match command {
        Command::Inspect(options) => {
            let cluster = Cluster::connect(&options.cluster).await?;
            let seen = inspect::look(&cluster, options).await?;
            let text = |seen: &_| inspect::text(seen, options.details);
            print(&seen, &options.output, text)
        }
        Command::Explain(options) => {
            let cluster = Cluster::connect(&options.cluster).await?;
            let explained = explain::look(&cluster, options).await?;
            print(&explained, &options.output, explain::text)
        }
    }
}

fn print<T: serde::Serialize>(
    document: &T,
    output: &OutputOptions,
    text: impl FnOnce(&T) -> String,
) -> Result<String, Error> {
    match output.output {
        Some(Format::Json) => {
            let json = serde_json::to_string_pretty(document);
            let json =
                json.map_err(|error| Error::Local(format!("write the document: {error}")))?;
            Ok(json + "\n")
        }
        None => Ok(text(document)),
    }
}
