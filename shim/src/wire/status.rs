//! Errors as ttrpc statuses. containerd and docker act on the code, people read the text.

use ttrpc::Code;

use crate::error::Error;
use crate::runtime::GpuFault;
use crate::task::Denied;

/// The error with its code, and all its causes as text.
///
/// containerd 1.6 makes an error of a code that it knows anew, by `status.Errorf(code, text)`
/// (`errdefs.ToGRPC`): what it reads as a verb would reach people as `80 %!o(MISSING)f`. One of no such code is passed on as it is,
/// and in those stand runc's own words, which engines look into.
pub(super) fn status(error: &Error) -> ttrpc::Error {
    let mut text = sys::chain(error);
    let code = code(error);
    if code != Code::UNKNOWN {
        text = without_verbs(&text);
    }
    ttrpc::Error::RpcStatus(ttrpc::get_status(code, text))
}

/// A per cent sign behind a number becomes the word, any other one its number in the alphabet.
fn without_verbs(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        if character != '%' {
            plain.push(character);
            continue;
        }
        let is_unit = plain
            .trim_end_matches(' ')
            .ends_with(|of: char| of.is_ascii_digit())
            && !rest.peek().is_some_and(char::is_ascii_alphanumeric);
        if !is_unit {
            plain.push_str("\\x25");
        } else if plain.ends_with(' ') {
            plain.push_str("percent");
        } else {
            plain.push_str(" percent");
        }
    }
    plain
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
            | Denied::Ended(_)
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
        Error::NoCheckpoint(_) | Error::Unverified(_) | Error::ForeignShim(_) => {
            Code::FAILED_PRECONDITION
        }
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
    fn engines_see_the_code_they_act_on_and_runcs_own_arguments() {
        let id = ContainerId::new("c").unwrap();
        assert_eq!(rpc(&Error::NoContainer(id)).0, Code::NOT_FOUND);
        assert_eq!(
            rpc(&Denied::AlreadyExited(Target::Init).into()).0,
            Code::NOT_FOUND
        );
        for denied in [
            Denied::StillRunning(Target::Init),
            // It exists still: as containerd has it, only a signal does not find it.
            Denied::Ended(Target::Init),
        ] {
            assert_eq!(rpc(&denied.into()).0, Code::FAILED_PRECONDITION);
        }
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
    fn no_engine_can_take_an_error_for_a_format() {
        let refused = |text: &str| {
            let error = Error::Gpu(crate::runtime::GpuError {
                fault: GpuFault::Precondition,
                text: text.to_owned(),
            });
            rpc(&error).1
        };
        for (text, reported) in [
            (
                "80 % of its time, 70 % left",
                "80 percent of its time, 70 percent left",
            ),
            (
                "cgpu.io/compute = \"120%\"",
                "cgpu.io/compute = \"120 percent\"",
            ),
            (
                "/log%20it, 1%20, %s %",
                "/log\\x2520it, 1\\x2520, \\x25s \\x25",
            ),
            ("ends with 5%", "ends with 5 percent"),
        ] {
            assert_eq!(refused(text), reported);
        }
        // Passed on as it is, and looked into.
        let message = "exec: \"/no%20such\": stat /no%20such: no such file or directory".to_owned();
        let error = Error::Runc {
            verb: "create",
            message: message.clone(),
        };
        assert!(rpc(&error).1.ends_with(&message));
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
