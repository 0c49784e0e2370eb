//! A table's text.

use nvabi::{class, control, escape, uvm};
use rmclient::{Form, Status};

use super::{MOST_STEPS, Program};

/// The first line that is no comment.
pub(super) const HEADING: &str = "do\ton\twhat\tparameters\tmakes\tsource\tanswer";
/// Most values of one parameter.
const MOST_VALUES: u64 = 512;
/// Longest parameters of a control that is given by its number, bytes.
const MOST_BYTES: u32 = 64 << 10;

/// What is wrong with a table.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TableError {
    /// A value that is none.
    #[error("{program}.tsv:{line}: {value:?}: {allowed}")]
    Value {
        /// The table.
        program: String,
        /// The line, from 1.
        line: usize,
        /// What is there.
        value: String,
        /// What may be there.
        allowed: &'static str,
    },
    /// No table has this name.
    #[error("{name}.tsv: there is no such table, or it comes after itself")]
    NoProgram {
        /// The name.
        name: String,
    },
}

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Opens a node.
    Open,
    /// Closes a file.
    Close,
    /// Has memory of its own, page by page; no call is made.
    Buffer,
    /// Makes an ioctl of `nvidia.ko`.
    Escape,
    /// Makes an ioctl of `nvidia-uvm.ko`.
    Uvm,
    /// Allocates an object below another one, or a client on a file.
    Alloc(Form),
    /// Makes a control on an object.
    Control,
    /// Takes another handle for an object.
    Dup,
    /// Frees an object.
    Free,
}

/// What a table says of a step's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// It is done.
    Done,
    /// The driver itself answers so on such a card.
    Native {
        /// Its status.
        status: Status,
        /// Where this was read.
        why: String,
    },
    /// The slice refuses it.
    Refused {
        /// The status that the program sees.
        status: Status,
        /// Where the driver's own answer was read, and what follows for the program.
        why: String,
    },
}

/// One row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Its line in the table, from 1.
    pub line: usize,
    /// What it does.
    pub action: Action,
    /// The file or object that it is done on.
    pub on: Option<String>,
    /// The call, class, control or node.
    pub what: String,
    /// Where it is known from.
    pub source: String,
    /// What is answered.
    pub expected: Expected,
    pub(super) fills: Vec<Fill>,
    pub(super) makes: Vec<Make>,
}

/// Values of a block: 0 is the struct or the parameters, 1 and further those that the parameters point to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fill {
    pub(super) block: usize,
    pub(super) place: Place,
    pub(super) values: Vec<Value>,
}

/// Where a value stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// An offset; further values follow at a distance.
    At {
        offset: usize,
        width: Width,
        stride: usize,
    },
    /// A field of the call's struct.
    Field(String),
}

/// How wide a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    /// `b`
    One,
    /// `w`
    Two,
    /// nothing
    Four,
    /// `q`
    Eight,
    /// `u`: a UUID
    Sixteen,
    /// `h`: the handle of an object
    Handle,
}

impl Width {
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Four | Self::Handle => 4,
            Self::Eight => 8,
            Self::Sixteen => 16,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Number(u64),
    Name(String),
}

/// What a step leaves for later ones; without a place the file or object itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Make {
    pub(super) name: String,
    pub(super) place: Option<Place>,
}

type Wrong = (String, &'static str);

fn wrong(value: &str, allowed: &'static str) -> Wrong {
    (value.to_owned(), allowed)
}

impl Program {
    /// Reads a table.
    ///
    /// # Errors
    /// [`TableError::Value`] names the line, the value, and what is allowed there.
    pub fn parse(name: &str, text: &str) -> Result<Self, TableError> {
        let failed = |line: usize, (value, allowed): Wrong| TableError::Value {
            program: name.to_owned(),
            line,
            value,
            allowed,
        };
        let mut lines = (1..)
            .zip(text.lines())
            .filter(|(_, line)| !line.starts_with('#'));
        match lines.next() {
            Some((_, HEADING)) => {}
            Some((line, other)) => {
                let heading = "the columns are do, on, what, parameters, makes, source, answer";
                return Err(failed(line, wrong(other, heading)));
            }
            None => return Err(failed(1, wrong("", "a table begins with its heading"))),
        }
        let mut program = Self {
            name: name.to_owned(),
            after: None,
            steps: Vec::new(),
        };
        for (number, line) in lines {
            let at = |error| failed(number, error);
            if program.steps.len() == MOST_STEPS {
                return Err(at(wrong(line, "a table has at most 1024 steps")));
            }
            let columns: Vec<&str> = line.split('\t').collect();
            let [verb, on, what, parameters, makes, source, answer] = columns.as_slice() else {
                return Err(at(wrong(line, "a row has 7 columns between tabs")));
            };
            if *verb == "after" {
                program.after = Some((*what).to_owned());
                continue;
            }
            let action = action(verb).map_err(at)?;
            known(action, what).map_err(at)?;
            program.steps.push(Step {
                line: number,
                action,
                on: optional(on).map(str::to_owned),
                what: (*what).to_owned(),
                source: (*source).to_owned(),
                expected: expected(answer).map_err(at)?,
                fills: each(parameters, fill).map_err(at)?,
                makes: each(makes, make).map_err(at)?,
            });
        }
        Ok(program)
    }
}

fn optional(text: &str) -> Option<&str> {
    Some(text).filter(|text| *text != "-")
}

fn each<T>(column: &str, read: fn(&str) -> Result<T, Wrong>) -> Result<Vec<T>, Wrong> {
    optional(column)
        .into_iter()
        .flat_map(|column| column.split(' '))
        .map(read)
        .collect()
}

fn action(verb: &str) -> Result<Action, Wrong> {
    Ok(match verb {
        "open" => Action::Open,
        "close" => Action::Close,
        "buffer" => Action::Buffer,
        "escape" => Action::Escape,
        "uvm" => Action::Uvm,
        "alloc" => Action::Alloc(Form::Long),
        "alloc-short" => Action::Alloc(Form::Short),
        "control" => Action::Control,
        "dup" => Action::Dup,
        "free" => Action::Free,
        _unknown => {
            let allowed =
                "after, open, close, buffer, escape, uvm, alloc, alloc-short, control, dup or free";
            return Err(wrong(verb, allowed));
        }
    })
}

/// Whether the driver has such a call in some release.
fn known(action: Action, what: &str) -> Result<(), Wrong> {
    let (is_known, allowed) = match action {
        Action::Escape => (
            escape::ALL.iter().any(|row| row.name == what)
                || ["NV_ESC_CARD_INFO", "NV_ESC_ATTACH_GPUS_TO_FD"].contains(&what),
            "an ioctl of nvidia.ko by its name",
        ),
        Action::Uvm => (
            uvm::ALL.iter().any(|row| row.name == what),
            "an ioctl of nvidia-uvm.ko by its name",
        ),
        Action::Alloc(_) => (
            Role::named(what).is_some() || class::ALL.iter().any(|row| row.name == what),
            "a class by its name, or @channel, @compute, @copy or @usermode",
        ),
        Action::Control => (
            control::ALL.iter().any(|spec| spec.name == what) || by_number(what).is_some(),
            "a control by its name, or one that cgpu does not know as NUMBER:BYTES",
        ),
        Action::Buffer => (number(what).is_some(), "a length in bytes"),
        Action::Open => (!what.contains('/'), "a node of /dev by its name"),
        Action::Close | Action::Free => (what == "-", "nothing but -"),
        Action::Dup => (what.starts_with('$'), "an object as $NAME"),
    };
    is_known.then_some(()).ok_or_else(|| wrong(what, allowed))
}

/// A control that has no row: its number, and how long its parameters are.
pub(super) fn by_number(what: &str) -> Option<(u32, u32)> {
    let (cmd, bytes) = what.split_once(':')?;
    let narrow = |text| u32::try_from(number(text)?).ok();
    Some((
        narrow(cmd)?,
        narrow(bytes).filter(|bytes| *bytes <= MOST_BYTES)?,
    ))
}

pub(super) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// `[listN:]PLACE=VALUE,…`
fn fill(text: &str) -> Result<Fill, Wrong> {
    let allowed = "PLACE=VALUE,… or listN:PLACE=VALUE,…";
    let (place, values) = text.split_once('=').ok_or_else(|| wrong(text, allowed))?;
    let (block, place) = match place.split_once(':') {
        Some((list, place)) => {
            let list = list.strip_prefix("list").and_then(|list| list.parse().ok());
            let list = list.filter(|list| (1..=8).contains(list));
            (list.ok_or_else(|| wrong(text, "list1 to list8"))?, place)
        }
        None => (0, place),
    };
    let mut found = Vec::new();
    for value in values.split(',') {
        value_of(value, &mut found)?;
    }
    Ok(Fill {
        block,
        place: place_of(place)?,
        values: found,
    })
}

fn value_of(text: &str, into: &mut Vec<Value>) -> Result<(), Wrong> {
    let allowed = "a number, FIRST..LAST (at most 512 numbers) or $NAME";
    let refused = || wrong(text, allowed);
    if let Some(name) = text.strip_prefix('$') {
        into.push(Value::Name(name.to_owned()));
    } else if let Some((first, last)) = text.split_once("..") {
        let (first, last) = number(first).zip(number(last)).ok_or_else(refused)?;
        if last
            .checked_sub(first)
            .is_none_or(|more| more >= MOST_VALUES)
        {
            return Err(refused());
        }
        into.extend((first..=last).map(Value::Number));
    } else {
        into.push(Value::Number(number(text).ok_or_else(refused)?));
    }
    Ok(())
}

/// `OFFSET[WIDTH][/DISTANCE]`, or a field.
fn place_of(text: &str) -> Result<Place, Wrong> {
    let allowed =
        "a field, or OFFSET, then b, w, q, u or h for a width other than 4 bytes, then /DISTANCE";
    let refused = || wrong(text, allowed);
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        let is_field = !text.is_empty() && text.chars().all(|it| it.is_ascii_alphanumeric());
        return is_field
            .then(|| Place::Field(text.to_owned()))
            .ok_or_else(refused);
    }
    let (place, stride) = match text.split_once('/') {
        Some((place, stride)) => (place, Some(stride.parse().map_err(|_not_one| refused())?)),
        None => (text, None),
    };
    let digits = place.trim_end_matches(|it: char| it.is_ascii_alphabetic());
    let width = match place.strip_prefix(digits) {
        Some("b") => Width::One,
        Some("w") => Width::Two,
        Some("") => Width::Four,
        Some("q") => Width::Eight,
        Some("u") => Width::Sixteen,
        Some("h") => Width::Handle,
        Some(_) | None => return Err(refused()),
    };
    Ok(Place::At {
        offset: digits.parse().map_err(|_not_one| refused())?,
        width,
        stride: stride.unwrap_or_else(|| width.bytes()),
    })
}

/// `NAME` or `NAME@PLACE`
fn make(text: &str) -> Result<Make, Wrong> {
    let (name, place) = match text.split_once('@') {
        Some((name, place)) => (name, Some(place_of(place)?)),
        None => (text, None),
    };
    let is_name = !name.is_empty() && name.chars().all(|it| it.is_ascii_alphanumeric());
    match is_name {
        true => Ok(Make {
            name: name.to_owned(),
            place,
        }),
        false => Err(wrong(text, "NAME, or NAME@PLACE")),
    }
}

/// `-`, `native STATUS: why` or `refused STATUS: why`
fn expected(text: &str) -> Result<Expected, Wrong> {
    let allowed = "-, native STATUS: SOURCE, or refused STATUS: SOURCE; CONSEQUENCE";
    let refused = || wrong(text, allowed);
    if text == "-" {
        return Ok(Expected::Done);
    }
    let (kind, rest) = text.split_once(' ').ok_or_else(refused)?;
    let (status, why) = rest.split_once(": ").ok_or_else(refused)?;
    let status = Status::named(status).ok_or_else(refused)?;
    let why = why.to_owned();
    match kind {
        "native" => Ok(Expected::Native { status, why }),
        "refused" if why.contains("; ") => Ok(Expected::Refused { status, why }),
        _neither => Err(refused()),
    }
}

/// A class that each architecture has one of its own for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Channel,
    Compute,
    Copy,
    Usermode,
}

impl Role {
    pub(super) fn named(what: &str) -> Option<Self> {
        match what {
            "@channel" => Some(Self::Channel),
            "@compute" => Some(Self::Compute),
            "@copy" => Some(Self::Copy),
            "@usermode" => Some(Self::Usermode),
            _a_class => None,
        }
    }
}

#[cfg(test)]
mod tests;
