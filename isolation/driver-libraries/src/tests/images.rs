//! Images of every kind: where their linker looks, their linker cache, and those that lie.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::fake_container::{spec, targets};
use crate::fake::{FakeHost, Layout, link};
use crate::fake::{linker_cache_paths, linker_cache_with};
use crate::image::Image;

fn folder(host: &FakeHost, files: &[&str]) -> PathBuf {
    Image::of(&spec(""), &host.bundle(files)).library_folder()
}

#[test]
fn libraries_go_where_the_image_s_own_linker_looks() {
    let host = FakeHost::empty();
    for (image, files, expected) in [
        (
            "Debian",
            &[
                "/usr/lib/x86_64-linux-gnu/libc.so.6",
                "/usr/lib64/ld-linux-x86-64.so.2",
            ][..],
            "/usr/lib/x86_64-linux-gnu",
        ),
        (
            "Ubuntu 18.04",
            &[
                "/lib/x86_64-linux-gnu/libc.so.6",
                "/usr/lib/x86_64-linux-gnu/libz.so.1",
            ],
            "/lib/x86_64-linux-gnu",
        ),
        (
            "Rocky",
            &["/usr/lib64/libc.so.6", "/usr/lib/libc.so.6"],
            "/usr/lib64",
        ),
        ("CentOS 6", &["/lib64/libc.so.6"], "/lib64"),
        ("Arch", &["/usr/lib/libc.so.6"], "/usr/lib"),
        (
            "Alpine",
            &["/lib/ld-musl-x86_64.so.1", "/usr/lib/libcrypto.so.3"],
            "/usr/lib",
        ),
        (
            "distroless",
            &["/lib/x86_64-linux-gnu/libc.so.6"],
            "/lib/x86_64-linux-gnu",
        ),
        ("scratch", &[], "/usr/lib/x86_64-linux-gnu"),
    ] {
        if cfg!(target_arch = "x86_64") {
            assert_eq!(folder(&host, files), Path::new(expected), "{image}");
        }
    }
    let bundle = host.bundle(&[
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
        "/usr/lib/i386-linux-gnu/libc.so.6",
    ]);
    let both = Image::of(&spec(""), &bundle);
    if cfg!(target_arch = "x86_64") {
        assert_eq!(
            both.library_folder_32().as_deref(),
            Some(Path::new("/usr/lib/i386-linux-gnu"))
        );
    }
    // Arch: one folder, by two names.
    let bundle = host.bundle(&["/usr/lib/libc.so.6"]);
    link("lib", &bundle.join("rootfs/usr/lib64"));
    let arch = Image::of(&spec(""), &bundle);
    assert_eq!(arch.library_folder_32(), None);
    assert_eq!(
        Image::of(&spec(""), Path::new("/nonexistent")).library_folder_32(),
        None
    );
}

#[test]
fn links_of_an_image_stay_in_it() {
    if cfg!(not(target_arch = "x86_64")) {
        println!("SKIP: the folders are x86-64's");
        return;
    }
    let host = FakeHost::empty();
    let bundle = host.bundle(&["/usr/lib64/libc.so.6"]);
    let rootfs = bundle.join("rootfs");
    let found = || Image::of(&spec(""), &bundle).library_folder();
    // To the host's own libc, over the image's root: in the image there is nothing.
    for target in [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "../../../../../../../lib/x86_64-linux-gnu/libc.so.6",
        "/proc/self/exe",
        "libc.so.6",
    ] {
        link(target, &rootfs.join("usr/lib/x86_64-linux-gnu/libc.so.6"));
        assert_eq!(found(), Path::new("/usr/lib64"), "{target}");
    }
    // Merged folders, by absolute and by relative links, are the image's own.
    link("/usr/lib64", &rootfs.join("lib64"));
    fs::remove_dir_all(rootfs.join("usr/lib")).unwrap();
    link("lib64", &rootfs.join("usr/lib"));
    assert_eq!(found(), Path::new("/usr/lib64"));
}

fn cached(host: &FakeHost, names: &[&str]) -> PathBuf {
    let bundle = host.bundle(&["/usr/lib/x86_64-linux-gnu/libc.so.6"]);
    fs::write(
        bundle.join("rootfs/etc/ld.so.cache"),
        linker_cache_with(names),
    )
    .unwrap();
    bundle
}

fn listed(bundle: &Path) -> Vec<String> {
    linker_cache_paths(&bundle.join("rootfs"))
}

fn tell(host: &FakeHost, bundle: &Path) {
    let driver_libraries = host.prepare(&host.grant(&[0]), "utility", bundle).unwrap();
    driver_libraries.tell_linker(&spec("utility"), bundle);
}

#[test]
fn the_image_s_linker_cache_names_the_libraries_once() {
    let Some(host) = FakeHost::new(Layout::Debian) else {
        return;
    };
    let bundle = cached(&host, &["libc.so.6", "libnvidia-ml.so.1"]);
    let cache = bundle.join("rootfs/etc/ld.so.cache");
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o640)).unwrap();
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(&cache, Some(1234), Some(5678)).unwrap();
    }
    let before = fs::metadata(&cache).unwrap();
    tell(&host, &bundle);
    // Ours first: an image's own library of that name is another driver's.
    let expected = [
        "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.195.03",
        "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
        "/image/libnvidia-ml.so.1",
        "/image/libc.so.6",
    ];
    assert_eq!(listed(&bundle), expected);
    let after = fs::metadata(&cache).unwrap();
    assert_eq!(
        (after.mode(), after.uid(), after.gid()),
        (before.mode(), before.uid(), before.gid())
    );
    tell(&host, &bundle);
    assert_eq!(listed(&bundle), expected);
    assert_eq!(fs::read_dir(bundle.join("rootfs/etc")).unwrap().count(), 1);
}

#[test]
fn nothing_outside_an_image_is_written_and_nothing_strange_in_it_is_read() {
    let Some(host) = FakeHost::new(Layout::Debian) else {
        return;
    };
    let bundle = cached(&host, &["libc.so.6"]);
    let etc = bundle.join("rootfs/etc");
    let outside = host.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let bytes = fs::read(etc.join("ld.so.cache")).unwrap();
    fs::write(outside.join("ld.so.cache"), &bytes).unwrap();
    let unchanged = || {
        assert_eq!(fs::read(outside.join("ld.so.cache")).unwrap(), bytes);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    };
    // The file is a link.
    link(
        outside.join("ld.so.cache").to_str().unwrap(),
        &etc.join("ld.so.cache"),
    );
    tell(&host, &bundle);
    unchanged();
    // A pipe, which nobody ever writes.
    fs::remove_file(etc.join("ld.so.cache")).unwrap();
    nix::unistd::mkfifo(&etc.join("ld.so.cache"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    tell(&host, &bundle);
    // Nonsense, and nothing.
    fs::remove_file(etc.join("ld.so.cache")).unwrap();
    fs::write(etc.join("ld.so.cache"), "nonsense").unwrap();
    tell(&host, &bundle);
    assert_eq!(fs::read(etc.join("ld.so.cache")).unwrap(), b"nonsense");
    fs::remove_file(etc.join("ld.so.cache")).unwrap();
    tell(&host, &bundle);
    assert_eq!(fs::read_dir(&etc).unwrap().count(), 0);
    // The folder is a link.
    fs::remove_dir_all(&etc).unwrap();
    for target in [outside.to_str().unwrap(), "../../outside", "/proc/self/cwd"] {
        link(target, &etc);
        tell(&host, &bundle);
        unchanged();
    }
}

#[test]
fn an_image_of_another_family_has_all_names_in_its_own_folder() {
    let Some(host) = FakeHost::new(Layout::Debian) else {
        return;
    };
    let bundle = host.bundle(&["/usr/lib64/libc.so.6"]);
    let driver_libraries = host.prepare(&host.grant(&[0]), "compute", &bundle).unwrap();
    assert!(
        targets(&driver_libraries)
            .iter()
            .all(|target| target.starts_with("/usr/lib64/lib"))
    );
}
