//! A container from start to deletion under a real containerd.

use anyhow::Result;
use integration::containerd::{Containerd, RUNC};
use integration::image;
use integration::node::Node;
use integration::packages::{Engines, Suite};
use integration::skip;

#[test]
fn plain_runc_host() -> Result<()> {
    let engines = match Engines::fetch(Suite::Host) {
        Ok(engines) => engines,
        Err(error) => skip!("plain_runc_host", "{error:#}"),
    };
    plain(&engines)
}

#[test]
fn plain_runc_newer() -> Result<()> {
    let engines = match Engines::fetch(Suite::Newer) {
        Ok(engines) => engines,
        Err(error) => skip!("plain_runc_newer", "{error:#}"),
    };
    plain(&engines)
}

fn plain(engines: &Engines) -> Result<()> {
    let image = image::busybox(None)?;
    let node = Node::bare()?;
    let mut containerd = Containerd::start(&node, engines)?;
    containerd.import(&image)?;
    let runtime = ["--runtime", RUNC];
    let said = containerd.run_once(&image, "c1", &runtime, &["sh", "-c", "echo hello; exit 7"])?;
    assert_eq!(
        (said.code, said.stdout.as_str()),
        (Some(7), "hello\n"),
        "{said:?}"
    );
    containerd
        .run_detached(&image, "c2", &runtime, &["sleep", "1000"])?
        .success()?;
    let said = containerd.exec("c2", &["echo", "there"])?.success()?;
    assert_eq!(said.stdout, "there\n");
    containerd.remove("c2")?;
    containerd.stop()?;
    node.finish()
}
