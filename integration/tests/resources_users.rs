//! Containers in a user namespace of their own: their root file system belongs to them, under our shim as under containerd's.

use anyhow::Result;
use integration::containerd::{CGPU, RUNC};
use integration::packages::Suite;
use integration::rig;

const MAPS: [&str; 4] = ["--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"];

/// Who the program is outside, who it and a file of the image are inside, and that it may write.
const ASKS: &str = "cat /proc/self/uid_map /proc/self/gid_map; id -u; ls -ln /bin/busybox | tr -s ' ' | cut -d' ' -f3,4; \
    touch /new && ls -ln /new | tr -s ' ' | cut -d' ' -f3,4";

fn same(suite: Suite, test: &str, more: &[&str]) -> Result<()> {
    let rig = match rig::start(suite)? {
        Ok(rig) => rig,
        Err(reason) => integration::skip!(test, "{reason}"),
    };
    let mut reply = Vec::new();
    for (id, kind) in [("ours", CGPU), ("theirs", RUNC)] {
        let mut options = vec!["--runtime", kind];
        options.extend(MAPS);
        options.extend(more);
        let outcome = rig
            .containerd
            .run_once(&rig.image, id, &options, &["sh", "-c", ASKS])?;
        reply.push(outcome.success()?.stdout);
    }
    assert_eq!(reply[0], reply[1], "ours, theirs");
    let lines: Vec<Vec<&str>> = reply[0]
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let map = vec!["0", "100000", "65536"];
    let root = vec!["0", "0"];
    assert_eq!(lines, [map.clone(), map, vec!["0"], root.clone(), root]);
    rig.finish()
}

/// containerd gives the files their owners by writing them.
#[test]
fn a_copied_root_belongs_to_the_container() -> Result<()> {
    same(Suite::Host, "a_copied_root_belongs_to_the_container", &[])
}

/// The snapshotter leaves it to the shim: `uidmap=` and `gidmap=` among the mount's options.
#[test]
fn a_mapped_root_belongs_to_the_container() -> Result<()> {
    let test = "a_mapped_root_belongs_to_the_container";
    same(Suite::Newer, test, &["--remap-labels"])
}

/// The container's root is nobody's on the host, and its calls are the broker's as any other's: the quota holds, and what it says of
/// itself is the slice.
#[test]
fn a_quota_holds_in_a_user_namespace() -> Result<()> {
    let rig = match rig::start(Suite::Host)? {
        Ok(rig) => rig,
        Err(reason) => integration::skip!("a_quota_holds_in_a_user_namespace", "{reason}"),
    };
    let run = |id: &str, command: &[&str]| {
        let mut options = vec!["--runtime", CGPU, "--annotation", "cgpu.io/memory=1Gi"];
        options.extend(MAPS);
        rig.containerd.run_once(&rig.image, id, &options, command)
    };
    let above = run("above", &["cgpu-burn", "alloc", "2Gi"])?;
    assert_eq!(above.code, Some(3), "{above:?}");
    run("within", &["cgpu-burn", "alloc", "512Mi"])?.success()?;
    run("views", &["cgpu-burn", "views"])?.success()?;
    let smi = run("smi", &["cgpu", "smi", "--json"])?.success()?.json()?;
    assert_eq!(smi["cards"][0]["memory_total_bytes"], 1u64 << 30, "{smi}");
    rig.finish()
}
