//! Errors as ttrpc statuses. containerd and docker act on the code, people read the text.

use std::error::Error as _;

use ttrpc::Code;

use crate::error::Error;
use crate::runtime::GpuFault;
use crate::task::Denied;

/// The error with its code, and all its causes as text.
pub(super) fn status(error: &Error) -> ttrpc::Error {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(&format!(": {next}"));
        cause = next.source();
    }
    ttrpc::Error::RpcStatus(ttrpc::get_status(code(error), text))
}

fn code(error: &Error) -> Code {
    match error {
        Error::NoContainer(_) | Error::NoCgroup(_) => Code::NOT_FOUND,
        Error::ContainerExists(_) => Code::ALREADY_EXISTS,
        Error::Denied(denied) => match denied {
            Denied::NoExec(_) | Denied::AlreadyExited(_) => Code::NOT_FOUND,
            Denied::ExecExists(_) => Code::ALREADY_EXISTS,
            Denied::Busy { .. }
            | Denied::AlreadyStarted(_)
            | Denied::NotStarted(_)
            | Denied::InitEnded
            | Denied::StillRunning(_)
            | Denied::WrongPace { .. }
            | Denied::Deleting => Code::FAILED_PRECONDITION,
        },
        Error::Gpu(gpu) => match gpu.fault {
            GpuFault::Request => Code::INVALID_ARGUMENT,
            GpuFault::Precondition => Code::FAILED_PRECONDITION,
        },
        Error::Name(_)
        | Error::Invalid { .. }
        | Error::Options { .. }
        | Error::Json { .. }
        | Error::RequestJson { .. }
        | Error::Protobuf { .. }
        | Error::CommandLine(_) => Code::INVALID_ARGUMENT,
        Error::NoTerminal(_) | Error::NoCheckpoint(_) => Code::FAILED_PRECONDITION,
        Error::Busy(_) => Code::UNAVAILABLE,
        Error::FifoUnread { .. } => Code::DEADLINE_EXCEEDED,
        Error::File { .. }
        | Error::System { .. }
        | Error::Runc { .. }
        | Error::Helper { .. }
        | Error::NoConsole
        | Error::Ttrpc { .. } => Code::UNKNOWN,
        Error::Lost(_) => Code::INTERNAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{ContainerId, Target};

    fn rpc(error: &Error) -> (Code, String) {
        match status(error) {
            ttrpc::Error::RpcStatus(status) => (status.code(), status.message),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn engines_see_the_code_they_act_on_and_runcs_own_words() {
        let id = ContainerId::new("c").unwrap();
        assert_eq!(rpc(&Error::NoContainer(id)).0, Code::NOT_FOUND);
        assert_eq!(
            rpc(&Denied::AlreadyExited(Target::Init).into()).0,
            Code::NOT_FOUND
        );
        assert_eq!(
            rpc(&Denied::StillRunning(Target::Init).into()).0,
            Code::FAILED_PRECONDITION
        );
        let message =
            "runc create failed: exec: \"nope\": executable file not found in $PATH".to_owned();
        let (code, text) = rpc(&Error::Runc {
            verb: "create",
            message: message.clone(),
        });
        assert_eq!(
            (code, text),
            (
                Code::UNKNOWN,
                format!("OCI runtime create failed: {message}")
            )
        );
    }

    #[test]
    fn causes_are_part_of_the_text() {
        let source = std::io::Error::from_raw_os_error(2);
        let error = Error::File {
            doing: "open",
            path: "/x".into(),
            source,
        };
        assert_eq!(
            rpc(&error).1,
            "cannot open /x: No such file or directory (os error 2)"
        );
    }
}
