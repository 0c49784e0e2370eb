//! The same slice through every engine a user may have.

use anyhow::Result;
use integration::containerd::{Containerd, RUNC};
use integration::docker::Docker;
use integration::nerdctl::Nerdctl;
use integration::node::Node;
use integration::packages::{Engines, Suite};
use integration::{image, skip};

fn docker_plain(suite: Suite) -> Result<()> {
    let engines = match Engines::fetch(suite) {
        Ok(engines) => engines,
        Err(error) => skip!("docker_plain", "{error:#}"),
    };
    let image = image::busybox(None)?;
    let node = Node::bare()?;
    let mut containerd = Containerd::start(&node, &engines)?;
    let mut docker = Docker::start(&node, &containerd)?;
    docker.load(&image)?;
    let said = docker
        .docker(&["run", "--rm", "--network=none", &image.name, "echo", "hi"])?
        .success()?;
    assert_eq!(said.stdout, "hi\n");
    docker.stop()?;
    containerd.stop()?;
    node.finish()
}
#[test]
fn docker_host() -> Result<()> {
    docker_plain(Suite::Host)
}
#[test]
fn docker_newer() -> Result<()> {
    docker_plain(Suite::Newer)
}

#[test]
fn nerdctl_host() -> Result<()> {
    let engines = Engines::fetch(Suite::Newer)?;
    let image = image::busybox(None)?;
    let node = Node::bare()?;
    let mut containerd = Containerd::start(&node, &engines)?;
    let nerdctl = Nerdctl::new(&node, &containerd)?;
    nerdctl.load(&image)?;
    let said = nerdctl
        .nerdctl(&[
            "run",
            "--rm",
            "--network=none",
            "--runtime",
            RUNC,
            &image.name,
            "echo",
            "hi",
        ])?
        .success()?;
    assert_eq!(said.stdout, "hi\n");
    containerd.stop()?;
    node.finish()
}
#[test]
fn tiny() -> Result<()> {
    let engines = Engines::fetch(Suite::Host)?;
    let image = image::tinygrad(None)?;
    let node = Node::bare()?;
    let mut containerd = Containerd::start(&node, &engines)?;
    containerd.import(&image)?;
    let said = containerd
        .run_once(
            &image,
            "c1",
            &["--runtime", RUNC],
            &["python3", "-c", "import tinygrad; print(1)"],
        )?
        .success()?;
    assert_eq!(said.stdout, "1\n");
    containerd.stop()?;
    node.finish()
}
