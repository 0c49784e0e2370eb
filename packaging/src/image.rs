//! The node's image: the files of some packages with the libraries that their programs load, as an OCI image layout in one tar.
//!
//! ```text
//!   oci-layout, index.json ─► manifest ─► config, layers (blobs/sha256/…)
//!   manifest.json ──────────────────────► config, layers      for a docker that knows no OCI layout (before 25)
//! ```
//!
//! `docker load`, `podman load`, `nerdctl load` and `ctr images import` take it.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use oci_spec::image::{
    ANNOTATION_CREATED, ANNOTATION_DESCRIPTION, ANNOTATION_LICENSES, ANNOTATION_REF_NAME,
    ANNOTATION_REVISION, ANNOTATION_SOURCE, ANNOTATION_TITLE, ANNOTATION_VERSION, Arch,
    ConfigBuilder, Descriptor, DescriptorBuilder, History, HistoryBuilder, ImageConfiguration,
    ImageConfigurationBuilder, ImageIndexBuilder, ImageManifestBuilder, MediaType,
    OciLayoutBuilder, Os, PlatformBuilder, RootFsBuilder, SCHEMA_VERSION,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::generated::{MAINTAINER, SOURCE};
use crate::layer::{Content, Entry, Layer, header, sha256};
use crate::table::{Image, Package};
use crate::tree::Tree;
use crate::{Build, libraries, tool};

/// What containerd and podman call the image.
const CONTAINERD_NAME: &str = "io.containerd.image.name";
/// Of the project, of the GNU C library and of GCC's support library.
const LICENCES: &str =
    "Apache-2.0 AND LGPL-2.1-or-later AND GPL-3.0-or-later WITH GCC-exception-3.1";
/// Folders that programs write to: path and mode.
const FOLDERS: [(&str, u32); 3] = [("tmp", 0o1777), ("run", 0o755), ("var/lib", 0o755)];

/// Writes the image of these packages' trees; returns the file.
pub(crate) fn write(
    build: &Build,
    image: &Image,
    trees: &[(&Package, Tree)],
    into: &Path,
) -> Result<PathBuf> {
    let mut layers = vec![libraries_layer(build, image, trees)?];
    for (package, tree) in trees {
        let mut content = Content::default();
        for file in &tree.files {
            let from = tree.root.join(file.path.trim_start_matches('/'));
            content.add(&file.path, Entry::File(file.mode, from));
        }
        layers.push(content.pack(build, &format!("package {}", package.name))?);
    }
    let name = build.image_name(&image.name);
    let mut blobs = BTreeMap::new();
    let config = add(
        &mut blobs,
        MediaType::ImageConfig,
        canonical(&configuration(build, image, &layers)?)?,
    )?;
    let mut descriptors = Vec::new();
    for layer in layers {
        descriptors.push(add(&mut blobs, MediaType::ImageLayerGzip, layer.bytes)?);
    }
    let docker = json!([{
        "Config": blob_path(config.digest().as_ref()),
        "RepoTags": [name],
        "Layers": descriptors.iter().map(|layer| blob_path(layer.digest().as_ref())).collect::<Vec<_>>(),
    }]);
    let manifest = ImageManifestBuilder::default()
        .schema_version(SCHEMA_VERSION)
        .media_type(MediaType::ImageManifest)
        .config(config)
        .layers(descriptors)
        .build()?;
    let mut manifest = add(&mut blobs, MediaType::ImageManifest, canonical(&manifest)?)?;
    let platform = PlatformBuilder::default()
        .architecture(Arch::Amd64)
        .os(Os::Linux)
        .build()?;
    manifest.set_platform(Some(platform));
    manifest.set_annotations(Some(HashMap::from([
        (ANNOTATION_REF_NAME.to_owned(), name.clone()),
        (CONTAINERD_NAME.to_owned(), name),
    ])));
    let index = ImageIndexBuilder::default()
        .schema_version(SCHEMA_VERSION)
        .media_type(MediaType::ImageIndex)
        .manifests([manifest])
        .build()?;
    let layout = OciLayoutBuilder::default()
        .image_layout_version("1.0.0")
        .build()?;
    blobs.insert("oci-layout".to_owned(), canonical(&layout)?);
    blobs.insert("index.json".to_owned(), canonical(&index)?);
    blobs.insert("manifest.json".to_owned(), canonical(&docker)?);
    let file = into.join(format!(
        "{}_{}_amd64.oci.tar",
        image.name,
        build.full_version()
    ));
    fs::write(&file, pack(build, &blobs)?)?;
    Ok(file)
}

/// The loader, the libraries and their licences, and folders to write to.
fn libraries_layer(build: &Build, image: &Image, trees: &[(&Package, Tree)]) -> Result<Layer> {
    let programs: Vec<PathBuf> = trees
        .iter()
        .flat_map(|(_, tree)| tree.files.iter().map(move |file| (tree, file)))
        .filter(|(_, file)| file.mode & 0o111 != 0)
        .map(|(tree, file)| tree.root.join(file.path.trim_start_matches('/')))
        .collect();
    let mut content = Content::default();
    for (path, from) in libraries::find(build, &programs, &image.libraries)? {
        let mode = if path.contains(".so") { 0o755 } else { 0o644 };
        content.add(&path, Entry::File(mode, from));
    }
    for (path, mode) in FOLDERS {
        content.add(path, Entry::Folder(mode));
    }
    content.pack(build, "the C library")
}

fn configuration(build: &Build, image: &Image, layers: &[Layer]) -> Result<ImageConfiguration> {
    let created = tool::time(build.epoch)?;
    let created = created.as_str();
    let version = build.full_version();
    let labels: HashMap<String, String> = [
        (ANNOTATION_TITLE, image.name.as_str()),
        (ANNOTATION_DESCRIPTION, image.summary.as_str()),
        (ANNOTATION_SOURCE, SOURCE),
        (ANNOTATION_VERSION, version.as_str()),
        (ANNOTATION_REVISION, build.commit.as_str()),
        (ANNOTATION_LICENSES, LICENCES),
        (ANNOTATION_CREATED, created),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    let config = ConfigBuilder::default()
        // By number: there is no list of users.
        .user("0:0")
        .env(["PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned()])
        .cmd(image.command.clone())
        .working_dir("/")
        .labels(labels)
        .build()?;
    let history = layers.iter().map(|layer| {
        let entry = HistoryBuilder::default()
            .created(created)
            .created_by("cargo xtask package")
            .comment(layer.title.as_str())
            .build()?;
        Ok(entry)
    });
    let diff_ids: Vec<String> = layers.iter().map(|layer| layer.diff_id.clone()).collect();
    Ok(ImageConfigurationBuilder::default()
        .created(created)
        .author(MAINTAINER)
        .architecture(Arch::Amd64)
        .os(Os::Linux)
        .config(config)
        .rootfs(
            RootFsBuilder::default()
                .typ("layers")
                .diff_ids(diff_ids)
                .build()?,
        )
        .history(history.collect::<Result<Vec<History>>>()?)
        .build()?)
}

fn blob_path(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}

fn add(
    blobs: &mut BTreeMap<String, Vec<u8>>,
    kind: MediaType,
    bytes: Vec<u8>,
) -> Result<Descriptor> {
    let digest = sha256(&bytes);
    let descriptor = DescriptorBuilder::default()
        .media_type(kind)
        .digest(digest.parse::<oci_spec::image::Digest>()?)
        .size(bytes.len() as u64)
        .build()?;
    blobs.insert(blob_path(&digest), bytes);
    Ok(descriptor)
}

/// JSON with sorted keys: labels and annotations are hash maps.
fn canonical(document: &impl Serialize) -> Result<Vec<u8>> {
    let mut value: Value = serde_json::to_value(document)?;
    value.sort_all_objects();
    Ok(serde_json::to_vec(&value)?)
}

fn pack(build: &Build, files: &BTreeMap<String, Vec<u8>>) -> Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    for folder in ["blobs/", "blobs/sha256/"] {
        let mut header = header(build.epoch);
        header.set_entry_type(tar::EntryType::Directory);
        header.set_mode(0o755);
        tar.append_data(&mut header, folder, std::io::empty())?;
    }
    for (path, bytes) in files {
        let mut header = header(build.epoch);
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, path, bytes.as_slice())?;
    }
    Ok(tar.into_inner()?)
}
