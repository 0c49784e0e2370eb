//! What structs look like in the headers, without comments, layout and the preprocessor.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context;
use sha2::{Digest, Sha256};

use super::probe;

/// The structs of a source tree by name, as words and signs.
pub(super) struct Texts {
    structs: BTreeMap<String, Vec<String>>,
    /// Other names of structs: `typedef A B;` and `#define B A`.
    aliases: BTreeMap<String, String>,
}

impl Texts {
    pub(super) fn read(tree: &Path) -> anyhow::Result<Self> {
        let mut texts = Self {
            structs: BTreeMap::new(),
            aliases: BTreeMap::new(),
        };
        for path in probe::files(tree)? {
            let text =
                std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            texts.add(&String::from_utf8_lossy(&text));
        }
        Ok(texts)
    }

    fn add(&mut self, text: &str) {
        let text = without_comments(text);
        let (directives, code): (Vec<&str>, Vec<&str>) = text
            .lines()
            .partition(|line| line.trim_start().starts_with('#'));
        for line in directives {
            let tokens: Vec<&str> = line.split_whitespace().collect();
            if let ["#define", name, of] = tokens[..]
                && (of.ends_with("_PARAMS") || of.ends_with("PARAMETERS"))
            {
                self.aliases.insert(name.to_owned(), of.to_owned());
            }
        }
        let tokens = tokens(&code.join("\n"));
        let mut at = 0;
        while let Some(place) = tokens.iter().skip(at).position(|token| token == "typedef") {
            at += place + 1;
            match &tokens[at..] {
                [of, name, end, ..] if end == ";" => {
                    self.aliases.insert(name.clone(), of.clone());
                }
                [kind, rest @ ..] if kind == "struct" || kind == "union" => {
                    let Some((body, name)) = body_and_name(rest) else {
                        continue;
                    };
                    self.structs.insert(name.clone(), body.to_vec());
                }
                _ => {}
            }
        }
    }

    /// The struct behind a name.
    fn named<'a>(&'a self, name: &str) -> Option<(&'a str, &'a [String])> {
        let found = |name: &str| self.structs.get_key_value(name);
        // An alias of an alias, and so on; a ring of them names nothing.
        let mut alias = self.aliases.get(name);
        let behind = (0..8).find_map(|_| {
            let (here, next) = (alias?, alias.and_then(|name| self.aliases.get(name)));
            alias = next;
            found(here)
        });
        let (name, tokens) = found(name).or(behind)?;
        Some((name, tokens))
    }

    /// The struct's own words and, by name, those of every struct that is in it.
    fn whole<'a>(&'a self, name: &str) -> Option<BTreeMap<&'a str, &'a [String]>> {
        let mut whole = BTreeMap::new();
        let mut next = vec![self.named(name)?];
        while let Some((name, tokens)) = next.pop() {
            if whole.insert(name, tokens).is_none() {
                next.extend(tokens.iter().filter_map(|token| self.named(token)));
            }
        }
        Some(whole)
    }

    /// The first 64 bits of a SHA-256 of the text; `None`: the headers have no such struct.
    pub(super) fn digest(&self, name: &str) -> Option<u64> {
        let whole = self.whole(name)?;
        let (first, _) = self.named(name)?;
        let mut digest = Sha256::new();
        // Its own text comes first, whatever it is called; those in it follow by name.
        let own = whole.get(first).into_iter();
        let others = whole.iter().filter(|(of, _)| **of != first);
        let texts = own.copied().chain(others.map(|(_, tokens)| *tokens));
        for tokens in texts {
            digest.update(tokens.join(" "));
            digest.update("\n");
        }
        let bytes = digest.finalize();
        Some(
            bytes
                .iter()
                .take(8)
                .fold(0, |number, byte| number << 8 | u64::from(*byte)),
        )
    }

    /// Those of `names` that have no pointer, no descriptor, no handle, no process and no card in them.
    pub(super) fn plain(&self, names: &BTreeSet<String>) -> BTreeSet<String> {
        let is_plain = |name: &&String| {
            self.whole(name).is_some_and(|whole| {
                whole
                    .values()
                    .all(|tokens| !tokens.iter().any(|it| names_something(it)))
            })
        };
        names.iter().filter(is_plain).cloned().collect()
    }
}

/// A pointer, a handle, a file descriptor, a client, a process or a card, by type or by name.
fn names_something(token: &str) -> bool {
    let small = token.to_ascii_lowercase();
    ["NvP64", "NvHandle", "*"].contains(&token)
        || small == "fd"
        || [
            "descriptor",
            "client",
            "pid",
            "process",
            "hobject",
            "gpuid",
            "gpuinstance",
            "deviceid",
            "deviceinstance",
            "deviceinfo",
            "uuid",
            "dbdf",
            "rmfd",
            "ctrlfd",
            "handle",
        ]
        .iter()
        .any(|part| small.contains(part))
}

/// Behind `typedef struct`: what is in the braces, and the name.
fn body_and_name(tokens: &[String]) -> Option<(&[String], &String)> {
    let opens = tokens.iter().take(2).position(|token| token == "{")?;
    let mut depth = 0_usize;
    for (place, token) in tokens.iter().enumerate().skip(opens) {
        match token.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            let body = tokens.get(opens + 1..place)?;
            let is_name = |token: &&String| token.starts_with(|c: char| c.is_ascii_alphabetic());
            // A forward declaration and a definition may have the name in front alone.
            let name = tokens
                .get(place + 1)
                .filter(is_name)
                .or_else(|| tokens.first())?;
            return Some((body, name));
        }
    }
    None
}

fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut token = String::new();
    for c in text.chars() {
        if c.is_ascii_alphanumeric() || c == '_' {
            token.push(c);
            continue;
        }
        if !token.is_empty() {
            tokens.push(std::mem::take(&mut token));
        }
        if !c.is_whitespace() {
            tokens.push(c.to_string());
        }
    }
    tokens.extend((!token.is_empty()).then_some(token));
    tokens
}

fn without_comments(text: &str) -> String {
    let mut left = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (before, from) = rest.split_at(at);
        left.push_str(before);
        rest = if let Some(comment) = from.strip_prefix("/*") {
            left.push(' ');
            comment.split_once("*/").map_or("", |(_, behind)| behind)
        } else if let Some(comment) = from.strip_prefix("//") {
            comment.find('\n').map_or("", |end| &comment[end..])
        } else {
            left.push('/');
            &from[1..]
        };
    }
    left.push_str(rest);
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Texts {
        let mut texts = Texts {
            structs: BTreeMap::new(),
            aliases: BTreeMap::new(),
        };
        texts.add(text);
        texts
    }

    const ONE: &str = "
        typedef struct INNER { NvU32 a; } INNER; // a word
        /* typedef struct OUTER { int wrong; } OUTER; */
        typedef struct OUTER
        {
            INNER inner[4];
            union { NvU64 x; } u;
        } OUTER;
        #define OTHER_PARAMS OUTER_PARAMS
        typedef OUTER OUTER_PARAMS;
    ";

    #[test]
    fn comments_and_spaces_do_not_count_and_structs_in_it_do() {
        let first = texts(ONE).digest("OUTER");
        assert!(first.is_some());
        let spaced = ONE.replace("NvU64 x;", "NvU64\n x; /* new */");
        assert_eq!(texts(&spaced).digest("OUTER"), first);
        assert_eq!(texts(ONE).digest("OTHER_PARAMS"), first);
        for (from, to) in [
            ("NvU32 a", "NvU32 b"),
            ("NvU64 x", "NvP64 x"),
            ("[4]", "[5]"),
        ] {
            assert_ne!(texts(&ONE.replace(from, to)).digest("OUTER"), first, "{to}");
        }
        assert_eq!(texts(ONE).digest("wrong"), None);
    }

    #[test]
    fn a_struct_is_plain_without_anything_that_names_something() {
        let names = BTreeSet::from(["OUTER".to_owned(), "ABSENT".to_owned()]);
        assert_eq!(texts(ONE).plain(&names).len(), 1);
        for worse in [
            "NvP64 x",
            "NvHandle x",
            "char *x",
            "NvS32 fd",
            "NvU32 pidOfIt",
            "NvU8 deviceUUID[16]",
            "NvU32 deviceInstance",
        ] {
            let text = ONE.replace("NvU32 a", worse);
            assert!(texts(&text).plain(&names).is_empty(), "{worse}");
        }
    }
}
