//! The Task service in this process, with a GPU side that refuses, fails or is slow, and the real runc.

#[path = "harness/fake_gpu.rs"]
mod fake_gpu;
mod harness;
#[path = "harness/refusal.rs"]
mod refusal;
#[path = "harness/world.rs"]
mod world;

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use containerd_shim_protos::api;
use containerd_shim_protos::shim::oci::Options;
use containerd_shim_protos::shim_async::Task;
use protobuf::well_known_types::any::Any;
use protobuf::{EnumOrUnknown, Message, MessageField};
use shim::runtime::{GpuFault, Supervisor};
use shim::task::{Event, Target};
use shim::wire::TaskService;
use tokio::sync::{Notify, mpsc};
use ttrpc::Code;

use fake_gpu::{Fake, Shares, Verifies};
use harness::{NAMESPACE, need_runc, process, runc_state};
use refusal::code;
use world::{context, world};

struct Fixture {
    dir: tempfile::TempDir,
    task: TaskService,
    events: mpsc::UnboundedReceiver<Event>,
    gpu: Arc<Fake>,
}

impl Fixture {
    fn new(gpu: Fake) -> Self {
        let reaper = world().1.clone();
        let gpu = Arc::new(gpu);
        let (sender, events) = mpsc::unbounded_channel();
        let supervisor = Supervisor::new(NAMESPACE.clone(), reaper, Arc::clone(&gpu) as _, sender);
        Self {
            dir: tempfile::tempdir().expect("a temporary folder"),
            task: TaskService::new(Arc::new(supervisor), Arc::new(Notify::new())),
            events,
            gpu,
        }
    }

    /// A bundle whose root the shim has to mount.
    fn bundle(&self, id: &str, script: &str) -> PathBuf {
        let bundle = harness::bundle(self.dir.path(), id, script, false);
        fs::rename(
            bundle.join("rootfs"),
            self.dir.path().join(format!("{id}-snapshot")),
        )
        .expect("a snapshot");
        bundle
    }

    async fn create(&self, id: &str) -> ttrpc::Result<u32> {
        self.create_with(id, "runc").await
    }

    async fn create_with(&self, id: &str, runc: &str) -> ttrpc::Result<u32> {
        let options = Options {
            binary_name: runc.to_owned(),
            ..Options::default()
        };
        let mount = containerd_shim_protos::types::mount::Mount {
            type_: "bind".into(),
            source: self
                .dir
                .path()
                .join(format!("{id}-snapshot"))
                .display()
                .to_string(),
            options: vec!["rbind".into()],
            ..Default::default()
        };
        let request = api::CreateTaskRequest {
            id: id.into(),
            bundle: self.dir.path().join(id).display().to_string(),
            rootfs: vec![mount],
            options: MessageField::some(Any {
                type_url: "containerd.runc.v1.Options".into(),
                value: options.write_to_bytes().expect("options"),
                ..Any::default()
            }),
            ..Default::default()
        };
        self.task
            .create(&context(), request)
            .await
            .map(|response| response.pid)
    }

    async fn start(&self, id: &str, exec: &str) -> ttrpc::Result<u32> {
        let request = api::StartRequest {
            id: id.into(),
            exec_id: exec.into(),
            ..Default::default()
        };
        self.task
            .start(&context(), request)
            .await
            .map(|response| response.pid)
    }

    async fn run(&self, id: &str) {
        self.create(id).await.expect("create");
        self.start(id, "").await.expect("start");
    }

    async fn wait(&self, id: &str, exec: &str) -> ttrpc::Result<u32> {
        let request = api::WaitRequest {
            id: id.into(),
            exec_id: exec.into(),
            ..Default::default()
        };
        let context = context();
        let waited = self.task.wait(&context, request);
        let waited = tokio::time::timeout(Duration::from_secs(10), waited).await;
        waited
            .expect("an end in time")
            .map(|response| response.exit_status)
    }

    async fn kill(&self, id: &str) -> ttrpc::Result<api::Empty> {
        let request = api::KillRequest {
            id: id.into(),
            signal: 9,
            ..Default::default()
        };
        self.task.kill(&context(), request).await
    }

    async fn delete(&self, id: &str, exec: &str) -> ttrpc::Result<u32> {
        let request = api::DeleteRequest {
            id: id.into(),
            exec_id: exec.into(),
            ..Default::default()
        };
        self.task
            .delete(&context(), request)
            .await
            .map(|response| response.exit_status)
    }

    async fn state(
        &self,
        id: &str,
        exec: &str,
    ) -> ttrpc::Result<(EnumOrUnknown<api::Status>, u32)> {
        let request = api::StateRequest {
            id: id.into(),
            exec_id: exec.into(),
            ..Default::default()
        };
        self.task
            .state(&context(), request)
            .await
            .map(|response| (response.status, response.pid))
    }

    async fn exec(&self, id: &str, exec: &str, script: &str, (stdin, stdout): (&str, &str)) {
        let value = process(&["/bin/sh", "-c", script], false)
            .to_string()
            .into_bytes();
        let request = api::ExecProcessRequest {
            id: id.into(),
            exec_id: exec.into(),
            stdin: stdin.into(),
            stdout: stdout.into(),
            spec: MessageField::some(Any {
                value,
                ..Any::default()
            }),
            ..Default::default()
        };
        drop(self.task.exec(&context(), request).await.expect("exec"));
    }

    /// Neither runc nor a mount of `id`, and nobody holds its share.
    fn assert_nothing_left(&self, id: &str) {
        assert!(!runc_state(id).exists());
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
        assert!(!mounts.contains(&self.dir.path().join(id).display().to_string()));
        assert_eq!(Arc::strong_count(&self.gpu.shares), 1, "a share is held");
    }

    /// Ends and deletes a container that runs.
    async fn finish(&self, id: &str) {
        drop(self.kill(id).await.expect("kill"));
        assert_eq!(self.wait(id, "").await.expect("wait"), 137);
        assert_eq!(self.delete(id, "").await.expect("delete"), 137);
    }

    fn fifo(&self, name: &str) -> String {
        let path = self.dir.path().join(name);
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        path.display().to_string()
    }
}

#[test]
fn a_refusal_reaches_the_caller_and_nothing_is_left() {
    need_runc!();
    world().0.block_on(async {
        for (fault, expected) in [
            (GpuFault::Request, Code::INVALID_ARGUMENT),
            (GpuFault::Precondition, Code::FAILED_PRECONDITION),
        ] {
            let fixture = Fixture::new(Fake {
                refuses: Some(fault),
                ..Fake::default()
            });
            let bundle = fixture.bundle("refused", "true");
            let spec = fs::read(bundle.join("config.json")).expect("the spec");
            let refused = code(fixture.create("refused").await);
            assert_eq!(refused, (expected, "no card has 9000 MiB free".to_owned()));
            assert_eq!(code(fixture.state("refused", "").await).0, Code::NOT_FOUND);
            assert_eq!(
                fs::read(bundle.join("config.json")).expect("the spec"),
                spec
            );
            assert_eq!(fixture.gpu.shares.released.load(Ordering::SeqCst), 0);
            fixture.assert_nothing_left("refused");
        }
    });
}

#[test]
fn a_share_is_released_once_when_runc_fails_after_it() {
    need_runc!();
    world().0.block_on(async {
        let fixture = Fixture::new(Fake::default());
        let bundle = fixture.bundle("undone", "true");
        let spec = fs::read_to_string(bundle.join("config.json")).expect("the spec");
        fs::write(
            bundle.join("config.json"),
            spec.replace("/bin/sh", "/bin/absent"),
        )
        .expect("the spec");
        let (unknown, text) = code(fixture.create("undone").await);
        assert!(
            unknown == Code::UNKNOWN && text.starts_with("OCI runtime create failed: "),
            "{text}"
        );
        let counts = [&fixture.gpu.created, &fixture.gpu.shares.released]
            .map(|count| count.load(Ordering::SeqCst));
        assert_eq!(counts, [1, 1]);
        fixture.assert_nothing_left("undone");
    });
}

#[test]
fn a_release_that_fails_is_reported_and_delete_repeats_it() {
    need_runc!();
    world().0.block_on(async {
        let mut fixture = Fixture::new(Fake {
            shares: Arc::new(Shares {
                releases_that_fail: AtomicUsize::new(2),
                ..Shares::default()
            }),
            ..Fake::default()
        });
        drop(fixture.bundle("owed", "exit 3"));
        fixture.run("owed").await;
        assert_eq!(fixture.wait("owed", "").await.expect("wait"), 3);
        assert_eq!(fixture.wait("owed", "").await.expect("wait again"), 3);
        assert_eq!(code(fixture.kill("owed").await).0, Code::NOT_FOUND);
        for attempt in 1..=2 {
            let reported = code(fixture.delete("owed", "").await);
            assert_eq!(
                reported,
                (
                    Code::FAILED_PRECONDITION,
                    "cannot write the reservations of card 0".to_owned()
                )
            );
            assert_eq!(fixture.gpu.shares.released.load(Ordering::SeqCst), attempt);
            let (state, _) = fixture.state("owed", "").await.expect("it is there");
            assert_eq!(state, EnumOrUnknown::new(api::Status::STOPPED));
        }
        assert_eq!(
            fixture.delete("owed", "").await.expect("the third delete"),
            3
        );
        assert_eq!(fixture.gpu.shares.released.load(Ordering::SeqCst), 3);
        fixture.assert_nothing_left("owed");
        let mut deletes = 0;
        while let Ok(event) = fixture.events.try_recv() {
            deletes += usize::from(matches!(event, Event::Delete { .. }));
        }
        assert_eq!(deletes, 1);
    });
}

#[test]
fn a_slow_card_holds_up_no_neighbour() {
    need_runc!();
    world().0.block_on(async {
        let (go, gate) = std::sync::mpsc::channel();
        let fixture = Fixture::new(Fake {
            gate: Some(Mutex::new(gate)),
            ..Fake::default()
        });
        drop((
            fixture.bundle("near", "sleep 1000"),
            fixture.bundle("slow", "exit 4"),
        ));
        fixture.run("near").await;
        let neighbour = async {
            fixture.gpu.entered.notified().await;
            let (state, _) = fixture.state("slow", "").await.expect("it is being made");
            assert_eq!(state, EnumOrUnknown::new(api::Status::CREATED));
            assert_eq!(
                code(fixture.kill("slow").await).0,
                Code::FAILED_PRECONDITION
            );
            let (state, _) = fixture.state("near", "").await.expect("state");
            assert_eq!(state, EnumOrUnknown::new(api::Status::RUNNING));
            fixture.finish("near").await;
            assert_eq!(
                fixture.gpu.created.load(Ordering::SeqCst),
                1,
                "the other is still being made"
            );
            go.send(()).expect("the gate");
        };
        let (created, ()) = tokio::join!(fixture.create("slow"), neighbour);
        created.expect("create");
        fixture.start("slow", "").await.expect("start");
        assert_eq!(fixture.wait("slow", "").await.expect("wait"), 4);
        assert_eq!(fixture.delete("slow", "").await.expect("delete"), 4);
        fixture.assert_nothing_left("slow");
    });
}

#[test]
fn what_is_requested_of_an_exec_before_its_start_is_kept() {
    need_runc!();
    world().0.block_on(async {
        let fixture = Fixture::new(Fake::default());
        drop(fixture.bundle("early", "sleep 1000"));
        fixture.run("early").await;
        let stdin = fixture.fifo("early.in");
        fixture.exec("early", "cat", "cat", (&stdin, "")).await;
        let close = api::CloseIORequest {
            id: "early".into(),
            exec_id: "cat".into(),
            stdin: true,
            ..Default::default()
        };
        drop(
            fixture
                .task
                .close_io(&context(), close)
                .await
                .expect("close"),
        );
        fixture.start("early", "cat").await.expect("start");
        assert_eq!(
            fixture
                .wait("early", "cat")
                .await
                .expect("its input has ended"),
            0
        );

        for exec in ["", "cat"] {
            let resize = api::ResizePtyRequest {
                id: "early".into(),
                exec_id: exec.into(),
                width: 80,
                height: 24,
                ..Default::default()
            };
            let resized = fixture.task.resize_pty(&context(), resize).await;
            drop(resized.expect("there is no terminal, and nothing to set"));
        }

        fixture
            .exec("early", "unread", "true", ("", "/absent/fifo"))
            .await;
        assert_eq!(
            code(fixture.start("early", "unread").await).0,
            Code::UNKNOWN
        );
        let state = fixture
            .state("early", "unread")
            .await
            .expect("it is still known");
        assert_eq!(state, (EnumOrUnknown::new(api::Status::CREATED), 0));
        fixture
            .delete("early", "unread")
            .await
            .expect("it can be deleted");
        assert_eq!(
            code(fixture.wait("early", "unread").await).0,
            Code::NOT_FOUND
        );
        fixture.finish("early").await;
    });
}

#[test]
fn the_end_of_init_is_reported_after_those_of_its_execs() {
    need_runc!();
    world().0.block_on(async {
        let mut fixture = Fixture::new(Fake::default());
        drop(fixture.bundle("last", "sleep 1000"));
        fixture.run("last").await;
        let stdout = fixture.fifo("last.out");
        // Its output fills the FIFO, which nobody reads until init is known to have ended.
        let mut reader = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&stdout)
            .expect("the FIFO");
        fixture
            .exec("last", "e", "seq 1 100000; sleep 1000", ("", &stdout))
            .await;
        fixture.start("last", "e").await.expect("start of the exec");
        tokio::task::spawn_blocking(move || {
            reader.read_exact(&mut [0]).expect("output");
            reader
        })
        .await
        .map(|reader| async {
            drop(fixture.kill("last").await.expect("kill"));
            while fixture.state("last", "").await.expect("state").0
                != EnumOrUnknown::new(api::Status::STOPPED)
            {
                tokio::task::yield_now().await;
            }
            // Gone from here on: the thread reads to the end of the process.
            drop(std::thread::spawn(move || {
                std::io::copy(&mut { reader }, &mut std::io::sink())
            }));
        })
        .expect("no panic")
        .await;
        assert_eq!(fixture.wait("last", "").await.expect("wait"), 137);
        let mut ends = Vec::new();
        while let Ok(event) = fixture.events.try_recv() {
            if let Event::Exit { target, .. } = event {
                ends.push(target);
            }
        }
        assert!(
            matches!(ends.as_slice(), [Target::Exec(_), Target::Init]),
            "{ends:?}"
        );
        assert_eq!(fixture.delete("last", "").await.expect("delete"), 137);
    });
}

#[test]
fn a_container_that_cannot_be_held_is_killed_and_nothing_of_it_is_left() {
    need_runc!();
    world().0.block_on(async {
        let fixture = Fixture::new(Fake {
            shares: Arc::new(Shares {
                verifies: Verifies::Fails,
                ..Shares::default()
            }),
            ..Fake::default()
        });
        let id = "unheld";
        let bundle = fixture.bundle(id, "echo never runs");
        let refused = fixture.create(id).await.unwrap_err();
        assert!(
            refused.to_string().contains("memory limit is not set"),
            "{refused}"
        );
        assert!(!runc_state(id).exists());
        assert_eq!(
            fs::read_dir(bundle.join("rootfs"))
                .expect("the root")
                .count(),
            0
        );
        assert_eq!(fixture.gpu.shares.released.load(Ordering::SeqCst), 1);
        // What stands of a limit that was set in part is undone while the control group is still there.
        assert_eq!(
            *fixture.gpu.shares.reported.lock().expect("what was told"),
            ["verify_filter", "teardown"]
        );
        fixture.start(id, "").await.unwrap_err();
    });
}

#[test]
fn a_container_is_held_before_start_and_let_go_before_runc_deletes_it() {
    need_runc!();
    world().0.block_on(async {
        let fixture = Fixture::new(Fake::default());
        let id = "held";
        drop(fixture.bundle(id, "exit 3"));
        fixture.create(id).await.expect("create");
        assert_eq!(
            *fixture.gpu.shares.reported.lock().expect("what was told"),
            ["verify_filter"]
        );
        fixture.start(id, "").await.expect("start");
        assert_eq!(fixture.wait(id, "").await.expect("an end"), 3);
        assert_eq!(fixture.delete(id, "").await.expect("delete"), 3);
        assert_eq!(
            *fixture.gpu.shares.reported.lock().expect("what was told"),
            ["verify_filter", "teardown"]
        );
    });
}

#[test]
fn an_update_takes_no_device_away_from_a_container_with_a_share() {
    need_runc!();
    world().0.block_on(async {
        let fixture = Fixture::new(Fake::default());
        drop(fixture.bundle("updated", "sleep 1000"));
        let (runc, seen) = (fixture.dir.path().join("runc"), fixture.dir.path().join("seen"));
        let script = format!(
            "#!/bin/sh\ncase \" $* \" in *\" update \"*) cat > {}; exit 0;; esac\nexec runc \"$@\"\n",
            seen.display()
        );
        // Another process writes it: one that is started meanwhile would hold it open, and it could not be run.
        let written = std::process::Command::new("sh")
            .args(["-c", "printf %s \"$1\" > \"$2\" && chmod 755 \"$2\"", "sh", &script])
            .arg(&runc)
            .status();
        assert!(written.expect("a shell").success());
        let runc = runc.display().to_string();
        let _init = fixture.create_with("updated", &runc).await.expect("create");
        fixture.start("updated", "").await.expect("start");
        let resources = serde_json::json!({"devices": [{"allow": false, "access": "rwm"}], "cpu": {"shares": 512}});
        let request = api::UpdateTaskRequest {
            id: "updated".into(),
            resources: MessageField::some(Any {
                value: resources.to_string().into_bytes(),
                ..Any::default()
            }),
            ..Default::default()
        };
        drop(fixture.task.update(&context(), request).await.expect("update"));
        let seen: serde_json::Value =
            serde_json::from_slice(&fs::read(&seen).expect("what runc read")).expect("JSON");
        assert_eq!(seen, serde_json::json!({"cpu": {"shares": 512}}));
        fixture.finish("updated").await;
        fixture.assert_nothing_left("updated");
    });
}
