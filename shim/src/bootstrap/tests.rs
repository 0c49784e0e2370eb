use containerd_shim_protos::bootstrap_api::LogLevel;
use protobuf::EnumOrUnknown;

use super::*;
use crate::command_line::Action;

fn invocation() -> Invocation {
    Invocation {
        action: Action::Start,
        namespace: "ns".into(),
        id: "id".into(),
        address: "/run/c.sock".into(),
        bundle: None,
        verbosity: Verbosity::Normal,
    }
}

#[test]
fn options_on_standard_input_get_a_bare_address() {
    let any = Any {
        type_url: "containerd.runc.v1.Options".into(),
        value: b"ns".to_vec(),
        ..Any::default()
    };
    for input in [
        Vec::new(),
        any.write_to_bytes().unwrap(),
        b"\xff\xff".to_vec(),
    ] {
        let read = call(&input, &invocation());
        assert!(matches!(read, Call::Flags(_)), "{input:?}");
        assert_eq!(reply(&read, "unix:///s".into()).unwrap(), b"unix:///s");
    }
}

#[test]
fn parameters_for_this_container_get_a_version_3_result() {
    let params = BootstrapParams {
        instance_id: "id".into(),
        namespace: "ns".into(),
        ..Default::default()
    };
    let read = call(&params.write_to_bytes().unwrap(), &invocation());
    let result =
        BootstrapResult::parse_from_bytes(&reply(&read, "unix:///s".into()).unwrap()).unwrap();
    assert_eq!(
        (
            result.version,
            result.address.as_str(),
            result.protocol.as_str()
        ),
        (3, "unix:///s", "ttrpc")
    );
}

#[test]
fn parameters_stand_in_for_flags_that_are_not_given() {
    let params = BootstrapParams {
        instance_id: "id".into(),
        namespace: "ns".into(),
        containerd_grpc_address: "/run/c.sock".into(),
        log_level: EnumOrUnknown::new(LogLevel::LOG_LEVEL_TRACE),
        ..Default::default()
    };
    let bare = Invocation {
        namespace: String::new(),
        id: String::new(),
        address: String::new(),
        ..invocation()
    };
    let bytes = params.write_to_bytes().unwrap();
    let Call::Params(read) = call(&bytes, &bare) else {
        panic!("parameters without flags are parameters");
    };
    let completed = bare.clone().completed(Some(&read)).unwrap();
    let debug = Invocation {
        verbosity: Verbosity::Debug,
        ..invocation()
    };
    assert_eq!(completed, debug);
    let error = bare.completed(None).unwrap_err().to_string();
    assert!(error.contains("-namespace is missing"), "{error}");
    let other = Invocation {
        id: "another".into(),
        ..invocation()
    };
    assert!(matches!(call(&bytes, &other), Call::Flags(_)));
}

#[test]
fn options_are_found_among_the_extensions() {
    use containerd_shim_protos::bootstrap_api::Extension;
    use protobuf::MessageField;
    let extension = |kind: &str, value: &[u8]| Extension {
        value: MessageField::some(Any {
            type_url: kind.into(),
            value: value.to_vec(),
            ..Any::default()
        }),
        ..Default::default()
    };
    let runc = "types.containerd.io/containerd.runc.v1.Options";
    let params = BootstrapParams {
        extensions: vec![
            extension("containerd.io/cri.v1.PodSandboxConfig", b"\xff"),
            // Field 6, the program's name.
            extension(runc, b"\x32\x04crun"),
        ],
        ..Default::default()
    };
    let read = options(&Call::Params(Box::new(params))).unwrap();
    assert_eq!(read.binary_name.as_deref(), Some("crun"));
}

#[test]
fn a_socket_is_bound_once_and_replaced_from_the_dead() {
    let _alone = sys::sync::lock(&crate::runtime::CHILDREN);
    let dir = tempfile::tempdir().unwrap();
    let sockets = dir.path().join("d");
    let socket = sockets.join("s");
    let first = bind(&sockets, "s").unwrap().unwrap();
    assert!(
        bind(&sockets, "s").unwrap().is_none(),
        "a live server is found"
    );
    std::fs::write(
        dir.path().join("address"),
        format!("unix://{}", socket.display()),
    )
    .unwrap();
    remove_dead_socket(dir.path()).unwrap();
    assert!(socket.exists(), "a live server keeps its socket");
    drop(first);
    remove_dead_socket(dir.path()).unwrap();
    assert_eq!(
        std::fs::read_dir(&sockets).unwrap().count(),
        0,
        "a dead one does not"
    );
    drop(UnixListener::bind(&socket).unwrap());
    let taken = bind(&sockets, "s").unwrap();
    assert!(taken.is_some(), "a dead one is replaced, whosever it was");
}

#[test]
fn another_shim_of_the_group_is_no_server_of_ours() {
    let _alone = sys::sync::lock(&crate::runtime::CHILDREN);
    let dir = tempfile::tempdir().unwrap();
    let foreign = UnixListener::bind(dir.path().join("s")).unwrap();
    let error = bind(dir.path(), "s").unwrap_err().to_string();
    assert!(error.contains("another runtime's shim"), "{error}");
    assert!(
        UnixStream::connect(dir.path().join("s")).is_ok(),
        "it is left alone"
    );
    drop(foreign);
}

/// Each by `filepath.Join` and SHA-256 of Go.
#[test]
fn a_socket_is_named_as_containerd_names_it() {
    for (parts, path) in [
        (["/run/c.sock", "k8s.io", "id"], "/run/c.sock/k8s.io/id"),
        (["/run//./c.sock/", "ns", "a/../b"], "/run/c.sock/ns/b"),
        (["/a", "..", "../../b"], "/b"),
        (["a", "..", "../b"], "../b"),
        (["", "ns", "id"], "ns/id"),
        (["a", "..", ""], "."),
        (["", "", ""], ""),
    ] {
        assert_eq!(joined(&parts), path, "{parts:?}");
    }
    // printf %s /run/containerd/containerd.sock/default/web | sha256sum
    assert_eq!(
        socket_name("/run/containerd/containerd.sock", "default", "web"),
        "2cde4450fa38c74f53603e01d2afd903b315a27a596f12a151414cd59897d883"
    );
}
