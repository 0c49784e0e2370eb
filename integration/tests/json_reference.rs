//! docs/guide/json.md: what programs read, from the declarations that it is written by.
//!
//! The page is made of the fields, types and comments of `view`'s documents, and compared with what is committed. A type whose form on paper
//! is not known here fails the test, so that no field is missing or described as something else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use integration::cache::repository;
use integration::walk::UPDATE;
use serde_json::Value;
use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, ExprLit, Field, Fields, Item, Lit, Meta, Token, Type, UseTree};

const PAGE: &str = "docs/guide/json.md";

/// Commands, and where the type of their document is; in this order on the page.
const DOCUMENTS: [(&str, &str, &str); 14] = [
    ("cgpu ps --json", "view/src/ps.rs", "Ps"),
    ("cgpu cards --json", "view/src/cards.rs", "Cards"),
    ("cgpu inspect --json", "view/src/inspect.rs", "Inspect"),
    ("cgpu events --json", "view/src/events.rs", "Line"),
    ("cgpu explain --json", "view/src/explain.rs", "Explanation"),
    ("cgpu smi --json", "view/src/smi.rs", "Smi"),
    ("cgpu top --json", "view/src/top.rs", "Top"),
    ("cgpu set --json", "cli/src/commands/set.rs", "Changed"),
    (
        "cgpu set --card --json",
        "cli/src/commands/set.rs",
        "ChangedRules",
    ),
    (
        "cgpu upgrade --json",
        "cli/src/commands/upgrade.rs",
        "Report",
    ),
    (
        "cgpu install --json",
        "cli/src/commands/install/report.rs",
        "Report",
    ),
    (
        "cgpu uninstall --json",
        "cli/src/commands/install/report.rs",
        "Report",
    ),
    ("cgpu doctor --json", "view/src/doctor.rs", "Doctor"),
    ("cgpu version --json", "view/src/version.rs", "Document"),
];

/// Where such types are declared, and the name of each crate in imports.
const SOURCES: [(&str, &str); 7] = [
    ("view/src", "view"),
    ("cli/src", "cli"),
    ("isolation/cards/src", "cards"),
    ("isolation/control/src", "control"),
    ("isolation/plan/src", "plan"),
    ("isolation/vgpu/src", "vgpu"),
    ("isolation/host-config/src", "host_config"),
];

/// Types that are a plain value in JSON, and which.
const VALUES: [(&str, &str); 11] = [
    ("String", "string"),
    ("str", "string"),
    ("PathBuf", "string"),
    ("Name", "string"),
    ("GpuUuid", "string"),
    // Names of what leads out of a slice: `docs/guide/isolation.md`.
    ("Weakness", "string"),
    ("bool", "boolean"),
    ("i32", "number"),
    ("u32", "number"),
    ("u64", "number"),
    ("usize", "number"),
];

/// Behind the document of this command are the kinds of events.
const OF_EVENTS: &str = "cgpu events --json";

/// Where kinds of events are declared: an enum, and constants of which each is one.
const KIND_ENUM: (&str, &str) = ("isolation/control/src/health.rs", "EventKind");
const KIND_CONSTANTS: [(&str, Option<&str>); 2] = [
    ("isolation/vgpu/src/events.rs", None),
    ("isolation/cards/src/events.rs", Some("NEAR_MISS")),
];

const HEAD: &str = "# JSON\n\n\
    What `--json` prints is for programs: fields are added, and none changes its meaning or goes without another `version`. This page is made from the \
    declarations (`integration/tests/json_reference.rs`). Where a text says that something is absent, its value is `null` or the field is not there.\n\n\
    `cgpu events` prints a document a line, `cgpu top` one a period, all others one. Exit codes are in [operations](operations.md).\n";

/// A type that is serialized, and where it is declared.
struct Declared {
    of: &'static str,
    file: PathBuf,
    item: Item,
}

/// All of [`SOURCES`] by name.
struct Sources {
    types: BTreeMap<String, Vec<Declared>>,
    /// The crate that a file imports a name from.
    imports: BTreeMap<(PathBuf, String), String>,
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            rust_files(&path, found)?;
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
    Ok(())
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Struct(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        _ => &[],
    }
}

fn is_serialized(item: &Item) -> bool {
    attributes(item).iter().any(|attribute| {
        let paths = Punctuated::<syn::Path, Token![,]>::parse_terminated;
        attribute.path().is_ident("derive")
            && attribute.parse_args_with(paths).is_ok_and(|derived| {
                let mut names = derived.iter().filter_map(|path| path.segments.last());
                names.any(|name| name.ident == "Serialize")
            })
    })
}

/// What a `use` names, each with its first segment.
fn imported(tree: &UseTree, first: Option<&str>, add: &mut dyn FnMut(&str, &str)) {
    match tree {
        UseTree::Path(path) => {
            let name = path.ident.to_string();
            imported(&path.tree, Some(first.unwrap_or(&name)), add);
        }
        UseTree::Name(name) => add(first.unwrap_or_default(), &name.ident.to_string()),
        UseTree::Group(group) => {
            for tree in &group.items {
                imported(tree, first, add);
            }
        }
        UseTree::Rename(_) | UseTree::Glob(_) => {}
    }
}

impl Sources {
    fn read() -> Result<Self> {
        let mut sources = Self {
            types: BTreeMap::new(),
            imports: BTreeMap::new(),
        };
        for (folder, name) in SOURCES {
            let mut files = Vec::new();
            rust_files(&repository().join(folder), &mut files)?;
            for file in files {
                let text = fs::read_to_string(&file)?;
                let parsed = syn::parse_file(&text).with_context(|| file.display().to_string())?;
                for item in parsed.items {
                    if let Item::Use(used) = &item {
                        imported(&used.tree, None, &mut |from, ident| {
                            let from = if from == "crate" { name } else { from };
                            let key = (file.clone(), ident.to_owned());
                            sources.imports.insert(key, from.to_owned());
                        });
                    }
                    let ident = match &item {
                        Item::Struct(item) => &item.ident,
                        Item::Enum(item) => &item.ident,
                        _ => continue,
                    };
                    if is_serialized(&item) {
                        let declared = Declared {
                            of: name,
                            file: file.clone(),
                            item: item.clone(),
                        };
                        sources
                            .types
                            .entry(ident.to_string())
                            .or_default()
                            .push(declared);
                    }
                }
            }
        }
        Ok(sources)
    }

    /// The type of this name as `file` means it: its own, or the one that it imports.
    fn find(&self, ident: &str, file: &Path, of: &str) -> Result<&Declared> {
        let all = self.types.get(ident).map_or(&[][..], Vec::as_slice);
        if let Some(own) = all.iter().find(|declared| declared.file == file) {
            return Ok(own);
        }
        let key = (file.to_owned(), ident.to_owned());
        let from = self.imports.get(&key).map_or(of, String::as_str);
        let of_crate = all.iter().filter(|declared| declared.of == from);
        let of_crate: Vec<&Declared> = of_crate.collect();
        // A crate may hand on another's.
        let everywhere: Vec<&Declared> = all.iter().collect();
        match (of_crate.as_slice(), everywhere.as_slice()) {
            ([one], _) | ([], [one]) => Ok(one),
            ([], []) => bail!(
                "{ident} of {}: no such type is serialized; if it is a plain value, add it to VALUES",
                file.display()
            ),
            _ => bail!("{ident} of {}: there are several", file.display()),
        }
    }
}

/// What serde's attributes say.
#[derive(Default)]
struct Serde {
    words: Vec<(String, Option<String>)>,
}

impl Serde {
    fn of(attributes: &[Attribute]) -> Result<Self> {
        let mut words = Vec::new();
        for attribute in attributes {
            if !attribute.path().is_ident("serde") {
                continue;
            }
            let metas = attribute
                .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
                .context("serde's words")?;
            for meta in metas {
                let name = meta.path().require_ident()?.to_string();
                let value = match &meta {
                    Meta::NameValue(pair) => text_of(&pair.value),
                    Meta::Path(_) | Meta::List(_) => None,
                };
                words.push((name, value));
            }
        }
        Ok(Self { words })
    }

    fn value(&self, name: &str) -> Option<&str> {
        let found = self.words.iter().find(|(word, _)| word == name)?;
        found.1.as_deref()
    }

    fn has(&self, name: &str) -> bool {
        self.words.iter().any(|(word, _)| word == name)
    }
}

fn text_of(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => Some(text.value()),
        _ => None,
    }
}

/// The comment in front of a declaration, as one line of a table.
fn comment(attributes: &[Attribute]) -> String {
    let lines = attributes
        .iter()
        .filter_map(|attribute| match &attribute.meta {
            Meta::NameValue(pair) if attribute.path().is_ident("doc") => text_of(&pair.value),
            _ => None,
        });
    let lines: Vec<String> = lines.map(|line| line.trim().to_owned()).collect();
    let text = lines.join(" ");
    let text = text.replace(
        "[`JSON_VERSION`]",
        "1; raised when a field changes its meaning or goes",
    );
    text.replace("[`", "`")
        .replace("`]", "`")
        .replace('|', "\\|")
}

/// `DriverUnreachable` by serde's rule.
fn renamed(variant: &str, rule: Option<&str>) -> Result<String> {
    let between = match rule {
        Some("snake_case") => "_",
        Some("kebab-case") => "-",
        Some("lowercase") => "",
        None => return Ok(variant.to_owned()),
        Some(other) => bail!("serde's rule {other} is not known here"),
    };
    let mut name = String::new();
    for letter in variant.chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push_str(between);
        }
        name.extend(letter.to_lowercase());
    }
    Ok(name)
}

/// A field as the page has it.
struct Row {
    name: String,
    form: String,
    meaning: String,
}

/// The page, and which types it has by now: where each is.
struct Page<'a> {
    sources: &'a Sources,
    text: String,
    places: BTreeMap<(PathBuf, String), String>,
}

/// The last segment of a type's path, and its first argument.
fn last(of: &Type) -> Result<(String, Option<Type>)> {
    match of {
        Type::Reference(reference) => last(&reference.elem),
        Type::Path(path) => {
            let segment = path.path.segments.last().context("a path")?;
            let argument = match &segment.arguments {
                syn::PathArguments::AngleBracketed(list) => {
                    list.args.iter().find_map(|one| match one {
                        syn::GenericArgument::Type(of) => Some(of.clone()),
                        _ => None,
                    })
                }
                _ => None,
            };
            Ok((segment.ident.to_string(), argument))
        }
        _ => bail!("a type that is no path"),
    }
}

impl Page<'_> {
    /// What a value of this type is in JSON. Objects are described behind it: they are added to `below`.
    fn form(
        &self,
        of: &Type,
        declared: &Declared,
        place: &str,
        below: &mut Vec<(String, String, PathBuf)>,
    ) -> Result<String> {
        let (ident, argument) = last(of)?;
        let inner = |kind: &str| {
            argument
                .as_ref()
                .with_context(|| format!("{kind} of what?"))
        };
        match ident.as_str() {
            "Option" => return self.form(inner("Option")?, declared, place, below),
            "Box" => return self.form(inner("Box")?, declared, place, below),
            "Vec" => {
                let place = format!("{place}[]");
                let form = self.form(inner("Vec")?, declared, &place, below)?;
                return Ok(format!("list of: {form}"));
            }
            _ => {}
        }
        if let Some((_, value)) = VALUES.iter().find(|(name, _)| *name == ident) {
            return Ok((*value).to_owned());
        }
        let found = self.sources.find(&ident, &declared.file, declared.of)?;
        match &found.item {
            Item::Enum(item) if !Serde::of(&item.attrs)?.has("tag") => {
                let rule = Serde::of(&item.attrs)?;
                let mut words = Vec::new();
                for variant in &item.variants {
                    ensure!(
                        matches!(variant.fields, Fields::Unit),
                        "{ident} has values of its own"
                    );
                    let own = Serde::of(&variant.attrs)?;
                    let name = match own.value("rename") {
                        Some(name) => name.to_owned(),
                        None => renamed(&variant.ident.to_string(), rule.value("rename_all"))?,
                    };
                    words.push(format!(
                        "`{name}` ({})",
                        comment(&variant.attrs).trim_end_matches('.')
                    ));
                }
                Ok(words.join(", "))
            }
            _ => {
                let key = (found.file.clone(), ident.clone());
                if let Some(place) = self.places.get(&key) {
                    return Ok(format!("object, as {place}"));
                }
                below.push((place.to_owned(), ident, found.file.clone()));
                Ok("object, below".to_owned())
            }
        }
    }

    /// The fields of a struct, with those that are flattened into it.
    fn rows(
        &self,
        declared: &Declared,
        place: &str,
        below: &mut Vec<(String, String, PathBuf)>,
    ) -> Result<Vec<Row>> {
        let rule = Serde::of(attributes(&declared.item))?;
        ensure!(
            !rule.has("rename_all") || rule.has("tag"),
            "{place}: fields are renamed"
        );
        match &declared.item {
            Item::Enum(item) if rule.has("tag") => {
                let tag = rule.value("tag").context("a tag")?;
                let mut words = Vec::new();
                let mut rows = Vec::new();
                for variant in &item.variants {
                    let name = renamed(&variant.ident.to_string(), rule.value("rename_all"))?;
                    let meaning = comment(&variant.attrs);
                    words.push(format!("`{name}` ({})", meaning.trim_end_matches('.')));
                    let own = self.rows_of(&variant.fields, declared, place, below)?;
                    rows.extend(own.into_iter().map(|row| Row {
                        form: format!("{}; only with `{name}`", row.form),
                        ..row
                    }));
                }
                let first = Row {
                    name: tag.to_owned(),
                    form: words.join(", "),
                    meaning: "Which.".to_owned(),
                };
                rows.insert(0, first);
                Ok(rows)
            }
            Item::Struct(item) => self.rows_of(&item.fields, declared, place, below),
            // One of several objects: a field of one is not in the others.
            Item::Enum(item) if rule.has("untagged") => {
                let mut rows = Vec::new();
                for variant in &item.variants {
                    let own = match &variant.fields {
                        Fields::Unnamed(fields) => {
                            let field = fields.unnamed.first().context("a field")?;
                            let (ident, _) = last(&field.ty)?;
                            let inner = self.sources.find(&ident, &declared.file, declared.of)?;
                            self.rows(inner, place, below)?
                        }
                        fields => self.rows_of(fields, declared, place, below)?,
                    };
                    rows.extend(own.into_iter().map(|row| Row {
                        form: format!("{}; may be left out", row.form),
                        ..row
                    }));
                }
                Ok(rows)
            }
            _ => bail!("{place} has a form that is not known here"),
        }
    }

    fn rows_of(
        &self,
        fields: &Fields,
        declared: &Declared,
        place: &str,
        below: &mut Vec<(String, String, PathBuf)>,
    ) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for field in fields {
            let Field {
                attrs, ident, ty, ..
            } = field;
            let serde = Serde::of(attrs)?;
            if serde.has("skip") {
                continue;
            }
            let name = ident
                .as_ref()
                .context("a field without a name")?
                .to_string();
            if serde.has("flatten") {
                let (ident, _) = last(ty)?;
                let inner = self.sources.find(&ident, &declared.file, declared.of)?;
                rows.extend(self.rows(inner, place, below)?);
                continue;
            }
            let name = serde.value("rename").unwrap_or(&name).to_owned();
            let inner = match place {
                "" => name.clone(),
                place => format!("{place}.{name}"),
            };
            let (outer, _) = last(ty)?;
            let form = self
                .form(ty, declared, &inner, below)
                .with_context(|| format!("{inner} of {}", declared.file.display()))?;
            let absence = match (outer == "Option", serde.has("skip_serializing_if")) {
                (_, true) => "; may be left out",
                (true, false) => ", or `null`",
                (false, false) => "",
            };
            let mut meaning = comment(attrs);
            if meaning.is_empty() && name == "version" {
                meaning = "1; raised when a field changes its meaning or goes".to_owned();
            }
            ensure!(
                !meaning.is_empty(),
                "{inner} of {} has no comment",
                declared.file.display()
            );
            rows.push(Row {
                name,
                form: format!("{form}{absence}"),
                meaning,
            });
        }
        Ok(rows)
    }

    fn document(&mut self, command: &str, file: &str, ident: &str) -> Result<()> {
        write!(self.text, "\n## `{command}`\n")?;
        let file = repository().join(file);
        let mut waiting = vec![(String::new(), ident.to_owned(), file)];
        while !waiting.is_empty() {
            let (place, ident, file) = waiting.remove(0);
            let here = match place.as_str() {
                "" => format!("`{command}`"),
                place => format!("`{place}` of `{command}`"),
            };
            let known = self.places.insert((file.clone(), ident.clone()), here);
            if let Some(former) = known {
                if place.is_empty() {
                    write!(self.text, "\nAn object, as {former}.\n")?;
                }
                continue;
            }
            let declared = self.sources.find(&ident, &file, "")?;
            let mut below = Vec::new();
            let rows = self.rows(declared, &place, &mut below)?;
            let about = comment(attributes(&declared.item));
            if place.is_empty() {
                writeln!(self.text)?;
            } else {
                write!(self.text, "\n`{place}`: {about}\n\n")?;
            }
            self.text
                .push_str("| field | value | meaning |\n|---|---|---|\n");
            for Row {
                name,
                form,
                meaning,
            } in rows
            {
                writeln!(self.text, "| `{name}` | {form} | {meaning} |")?;
            }
            waiting.extend(below);
        }
        Ok(())
    }
}

/// The kinds of events and what each means, from their declarations.
fn kinds() -> Result<Vec<(String, String)>> {
    let mut kinds = Vec::new();
    let parsed = |file: &str| -> Result<syn::File> {
        Ok(syn::parse_file(&fs::read_to_string(
            repository().join(file),
        )?)?)
    };
    let (file, ident) = KIND_ENUM;
    for item in parsed(file)?.items {
        if let Item::Enum(item) = item
            && item.ident == ident
        {
            for variant in item.variants {
                let name = renamed(&variant.ident.to_string(), Some("snake_case"))?;
                kinds.push((name, comment(&variant.attrs)));
            }
        }
    }
    for (file, only) in KIND_CONSTANTS {
        for item in parsed(file)?.items {
            if let Item::Const(item) = item
                && matches!(item.vis, syn::Visibility::Public(_))
                && only.is_none_or(|only| item.ident == only)
                && let Some(name) = text_of(&item.expr)
            {
                kinds.push((name, comment(&item.attrs)));
            }
        }
    }
    Ok(kinds)
}

/// The names of all fields of the page.
fn fields(page: &str) -> BTreeSet<&str> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| Some(row.split_once('`')?.0))
        .collect()
}

/// What a program has printed has no field that the page leaves out.
fn described(document: &Value, fields: &BTreeSet<&str>) -> Result<()> {
    match document {
        Value::Object(object) => {
            for (name, value) in object {
                ensure!(
                    fields.contains(name.as_str()),
                    "{PAGE} has no field `{name}`"
                );
                described(value, fields)?;
            }
            Ok(())
        }
        Value::Array(list) => list.iter().try_for_each(|one| described(one, fields)),
        _ => Ok(()),
    }
}

#[test]
fn the_json_page_is_what_programs_get() -> Result<()> {
    let sources = Sources::read()?;
    let mut page = Page {
        sources: &sources,
        text: HEAD.to_owned(),
        places: BTreeMap::new(),
    };
    for (command, file, ident) in DOCUMENTS {
        page.document(command, file, ident)
            .with_context(|| command.to_owned())?;
        if command == OF_EVENTS {
            let text = &mut page.text;
            text.push_str("\nKinds; programs pass over one that they do not know:\n\n| kind | means |\n|---|---|\n");
            for (kind, meaning) in kinds()? {
                ensure!(!meaning.is_empty(), "the kind {kind} has no comment");
                writeln!(text, "| `{kind}` | {meaning} |")?;
            }
        }
    }
    let path = repository().join(PAGE);
    if std::env::var_os(UPDATE).is_some() {
        fs::write(&path, &page.text)?;
    }
    let fields = fields(&page.text);
    let mut documents = Vec::new();
    for entry in fs::read_dir(repository().join("view/tests/snapshots"))? {
        documents.push(serde_json::from_slice(&fs::read(entry?.path())?)?);
    }
    ensure!(!documents.is_empty(), "no documents of programs");
    for document in &documents {
        described(document, &fields)?;
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    ensure!(
        committed == page.text,
        "{PAGE} has not what is declared: make it anew with {UPDATE}=1 cargo test -p cgpu-integration --test json_reference"
    );
    Ok(())
}
