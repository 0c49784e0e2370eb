//! Real kubelets on containerds of version 2: pods run, and the machine is as it was.

use std::fs;
use std::panic::resume_unwind;
use std::sync::mpsc::{self, Receiver, Sender};

use anyhow::{Context, Result};
use integration::cluster::{
    ControlPlane, Extent, Kubectl, KubeletNode, Nth, on_control_plane, remove,
};
use integration::packages::Suite;
use integration::skip;
use serde_json::{Value, json};

/// Parameters of the machine that a kubelet sets.
fn parameters() -> Result<Vec<String>> {
    let names = [
        "vm/overcommit_memory",
        "kernel/panic",
        "kernel/panic_on_oops",
    ];
    let read = |name| fs::read_to_string(format!("/proc/sys/{name}"));
    names.iter().map(|name| Ok(read(name)?)).collect()
}

/// Serves until the other side lets go. The inner error is a reason to skip.
fn serve(
    plane: &ControlPlane,
    which: Nth,
    started: &Sender<Result<String, String>>,
    end: &Receiver<()>,
) -> Result<()> {
    let worker = match KubeletNode::start(plane, which, Suite::Newer)? {
        Ok(worker) => worker,
        Err(reason) => {
            started.send(Err(reason))?;
            return Ok(());
        }
    };
    started.send(Ok(worker.rig.image.name.clone()))?;
    // An error is the end of the test.
    if end.recv().is_ok() {
        worker.finish()?;
    }
    Ok(())
}

fn run_pod(kubectl: &Kubectl, node: &str, image: &str) -> Result<()> {
    kubectl.create(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": node},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "c", "image": image, "imagePullPolicy": "Never",
                "command": ["sh", "-c", "ls /var/run/secrets/kubernetes.io/serviceaccount; exec sleep 100000"],
            }],
        },
    }))?;
    let runs = |pod: &Value| pod["status"]["phase"] == "Running";
    let pod = kubectl.wait("the pod to run", &["pod", node], runs)?;
    assert_eq!(pod["spec"]["nodeName"], node);
    let log = kubectl.run(&["logs", node])?.success()?.stdout;
    assert!(log.contains("token"), "its own token: {log}");
    let exec = kubectl.run(&["exec", node, "--", "sh", "-c", "exit 7"])?;
    assert_eq!(exec.code, Some(7), "{exec:?}");
    Ok(())
}

#[test]
fn two_kubelets_run_pods_and_leave_the_machine_as_it_was() -> Result<()> {
    let test = "two_kubelets_run_pods_and_leave_the_machine_as_it_was";
    let before = parameters()?;
    // A thread that stays in the machine's mount namespace: this one does not.
    let (ended, end) = mpsc::channel::<()>();
    let outside = std::thread::spawn(move || {
        // An error: nothing is sent.
        end.recv().unwrap_err();
        parameters()
    });
    on_control_plane(test, Extent::Whole, |plane| {
        let served = two_of(plane)?;
        if let Some(reason) = served {
            skip!(test, "{reason}");
        }
        Ok(())
    })?;
    drop(ended);
    let after = outside
        .join()
        .unwrap_or_else(|panic| resume_unwind(panic))?;
    assert_eq!(after, before);
    Ok(())
}

/// A pod on each of two nodes, or a reason to skip.
fn two_of(plane: &ControlPlane) -> Result<Option<String>> {
    std::thread::scope(|scope| -> Result<Option<String>> {
        let (started, start) = mpsc::channel();
        let mut workers = Vec::new();
        for which in [Nth::First, Nth::Second] {
            let started = started.clone();
            let (ends, end) = mpsc::channel();
            let thread = scope.spawn(move || serve(plane, which, &started, &end));
            workers.push((ends, thread));
        }
        drop(started);
        let mut images = Vec::new();
        while let Ok(reply) = start.recv() {
            match reply {
                Ok(image) => images.push(image),
                Err(reason) => return Ok(Some(reason)),
            }
            if images.len() == workers.len() {
                break;
            }
        }
        if images.len() == workers.len() {
            let kubectl = plane.kubectl();
            for name in ["k1", "k2"] {
                run_pod(&kubectl, name, images.first().context("an image")?)?;
            }
            remove(&kubectl, &["pod", "k1", "k2"])?;
        }
        for (ends, thread) in workers {
            // One that did not start has no other side.
            let _is_there = ends.send(());
            let ended = thread.join();
            ended.unwrap_or_else(|panic| resume_unwind(panic))?;
        }
        Ok(None)
    })
}
