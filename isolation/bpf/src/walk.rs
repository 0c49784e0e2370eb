//! Following programs for many calls at once.
//!
//! What is not known of a call stays open, both ways of an undecided comparison are followed, and each remembers what it took
//! for true. What cannot be followed exactly (a sum of two unknown numbers, say) is taken for possible.

use crate::word::{State, Ways};
use crate::{ALLOW, Instruction, LOG, NOTIFY, TRACE};

/// How many steps all ways of many calls may have together. Filters have some thousand instructions.
const STEPS_MAX: usize = 1 << 20;

/// The scratch memory of a program (`BPF_MEMWORDS`).
const SCRATCH: usize = 16;

/// What a register holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Number(u32),
    /// Bits of a word of the call.
    Bits {
        word: u32,
        mask: u32,
    },
    Unknown,
}

/// A point on the way through the filters.
#[derive(Debug, Clone)]
struct Point {
    filter: usize,
    pc: usize,
    a: Held,
    x: Held,
    scratch: [Held; SCRATCH],
    notified: bool,
}

impl Point {
    fn start_of(filter: usize, notified: bool) -> Self {
        Self {
            filter,
            pc: 0,
            a: Held::Number(0),
            x: Held::Number(0),
            scratch: [Held::Number(0); SCRATCH],
            notified,
        }
    }
}

/// Too many ways, or an instruction that no filter of the kernel's has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooComplex;

/// Where many calls begin.
#[derive(Debug, Clone)]
pub struct Start<'a> {
    filters: &'a [Vec<Instruction>],
    point: Point,
}

/// How the ways of many calls end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ends {
    /// Some are let through.
    pub passes: bool,
    /// Some wait for a listener's answer.
    pub notifies: bool,
}

/// What the kernel does with a call, from `linux/seccomp.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// ALLOW and LOG; TRACE, which a tracer in the container could answer.
    LetThrough,
    Notified,
    Denied,
}

fn answer(value: u32) -> Answer {
    match value & 0xffff_0000 {
        ALLOW | LOG | TRACE => Answer::LetThrough,
        NOTIFY => Answer::Notified,
        // ERRNO, TRAP, KILL_THREAD and KILL_PROCESS; what the kernel does not know kills.
        _ => Answer::Denied,
    }
}

/// What one instruction leads to.
enum Next {
    /// The instruction behind it.
    On,
    Jump(usize),
    Branch {
        word: u32,
        ways: Ways,
        taken: usize,
        not_taken: usize,
    },
    /// Both, and nothing is learnt.
    Either(usize, usize),
    Return(Held),
}

impl<'a> Start<'a> {
    /// Before the first instruction of the first filter.
    #[must_use]
    pub fn beginning(filters: &'a [Vec<Instruction>]) -> Self {
        Self {
            filters,
            point: Point::start_of(0, false),
        }
    }

    /// The way that all these calls have in common: up to the first comparison that is not decided.
    ///
    /// # Errors
    /// [`TooComplex`]
    pub fn of(filters: &'a [Vec<Instruction>], calls: &State) -> Result<Self, TooComplex> {
        let mut start = Self::beginning(filters);
        loop {
            let before = start.point.clone();
            match start.step(calls)? {
                Next::On => {}
                Next::Jump(pc) => start.point.pc = pc,
                Next::Branch {
                    ways: Ways::Taken,
                    taken,
                    ..
                } => start.point.pc = taken,
                Next::Branch {
                    ways: Ways::NotTaken,
                    not_taken,
                    ..
                } => start.point.pc = not_taken,
                Next::Branch {
                    ways: Ways::Both { .. } | Ways::None,
                    ..
                }
                | Next::Either(..)
                | Next::Return(_) => {
                    start.point = before;
                    return Ok(start);
                }
            }
        }
    }

    /// Follows every way that some of these calls can go.
    ///
    /// # Errors
    /// [`TooComplex`]
    pub fn walk(self, calls: &State) -> Result<Ends, TooComplex> {
        let mut ends = Ends::default();
        let mut open = vec![(self, calls.clone())];
        let mut steps = 0;
        while let Some((mut at, mut state)) = open.pop() {
            loop {
                steps += 1;
                if steps > STEPS_MAX {
                    return Err(TooComplex);
                }
                match at.step(&state)? {
                    Next::On => {}
                    Next::Jump(pc) => at.point.pc = pc,
                    Next::Either(one, other) => {
                        let mut second = at.clone();
                        second.point.pc = other;
                        open.push((second, state.clone()));
                        at.point.pc = one;
                    }
                    Next::Branch {
                        word,
                        ways,
                        taken,
                        not_taken,
                    } => match ways {
                        Ways::Taken => at.point.pc = taken,
                        Ways::NotTaken => at.point.pc = not_taken,
                        Ways::Both {
                            taken: yes,
                            not_taken: no,
                        } => {
                            let mut second = at.clone();
                            second.point.pc = not_taken;
                            open.push((second, state.with(word, no)));
                            at.point.pc = taken;
                            state = state.with(word, yes);
                        }
                        Ways::None => break,
                    },
                    Next::Return(Held::Number(value)) => match answer(value) {
                        Answer::Denied => break,
                        Answer::Notified => at.next_filter(true),
                        Answer::LetThrough => at.next_filter(false),
                    },
                    // Any answer.
                    Next::Return(_) => at.next_filter(false),
                }
                if at.point.filter >= at.filters.len() {
                    ends.notifies |= at.point.notified;
                    ends.passes |= !at.point.notified;
                    break;
                }
            }
        }
        Ok(ends)
    }

    fn next_filter(&mut self, notified: bool) {
        self.point = Point::start_of(self.point.filter + 1, self.point.notified || notified);
    }

    /// One instruction; the point is behind it afterwards.
    fn step(&mut self, state: &State) -> Result<Next, TooComplex> {
        let code = self.filters.get(self.point.filter);
        let insn = code
            .and_then(|code| code.get(self.point.pc))
            .copied()
            .ok_or(TooComplex)?;
        self.point.pc += 1;
        let next = self.point.pc;
        let to = |offset: u32| next.saturating_add(usize::try_from(offset).unwrap_or(usize::MAX));
        let (yes, no) = (to(insn.jt.into()), to(insn.jf.into()));
        let place = usize::try_from(insn.k).unwrap_or(usize::MAX);
        let point = &mut self.point;
        let by_x = insn.code & 0x08 != 0;
        let operand = if by_x { point.x } else { Held::Number(insn.k) };
        match insn.code {
            // Loads: a word of the call, a number, scratch, the call's length.
            0x20 => point.a = load(state, insn.k).ok_or(TooComplex)?,
            0x00 => point.a = Held::Number(insn.k),
            0x01 => point.x = Held::Number(insn.k),
            0x60 => point.a = *point.scratch.get(place).ok_or(TooComplex)?,
            0x61 => point.x = *point.scratch.get(place).ok_or(TooComplex)?,
            0x80 => point.a = Held::Number(LENGTH),
            0x81 => point.x = Held::Number(LENGTH),
            0x02 => *point.scratch.get_mut(place).ok_or(TooComplex)? = point.a,
            0x03 => *point.scratch.get_mut(place).ok_or(TooComplex)? = point.x,
            0x07 => point.x = point.a,
            0x87 => point.a = point.x,
            // Arithmetic.
            0x84 => {
                point.a = number(point.a).map_or(Held::Unknown, |a| Held::Number(a.wrapping_neg()))
            }
            code if code & 0x07 == 0x04 => {
                point.a = computed(code & 0xf0, point.a, operand, state)?;
            }
            // Jumps.
            0x05 => return Ok(Next::Jump(to(insn.k))),
            code if code & 0x07 == 0x05 => {
                return compared(code & 0xf0, point.a, operand, state, (yes, no));
            }
            0x06 => return Ok(Next::Return(Held::Number(insn.k))),
            0x16 => return Ok(Next::Return(point.a)),
            _ => return Err(TooComplex),
        }
        Ok(Next::On)
    }
}

/// `sizeof(struct seccomp_data)`
const LENGTH: u32 = 64;

fn load(state: &State, offset: u32) -> Option<Held> {
    state.word(offset)?;
    Some(bits(state, offset, u32::MAX))
}

fn bits(state: &State, word: u32, mask: u32) -> Held {
    match state.word(word).and_then(|known| known.known(mask)) {
        Some(number) => Held::Number(number),
        None => Held::Bits { word, mask },
    }
}

fn number(held: Held) -> Option<u32> {
    match held {
        Held::Number(number) => Some(number),
        Held::Bits { .. } | Held::Unknown => None,
    }
}

fn computed(operation: u16, a: Held, operand: Held, state: &State) -> Result<Held, TooComplex> {
    const AND: u16 = 0x50;
    let (left, right) = match (a, operand) {
        (Held::Number(left), Held::Number(right)) => (left, right),
        (Held::Bits { word, mask }, Held::Number(number))
        | (Held::Number(number), Held::Bits { word, mask })
            if operation == AND =>
        {
            return Ok(bits(state, word, mask & number));
        }
        _ => return Ok(Held::Unknown),
    };
    let number = match operation {
        0x00 => left.wrapping_add(right),
        0x10 => left.wrapping_sub(right),
        0x20 => left.wrapping_mul(right),
        // A division by nothing ends a program with 0, which kills.
        0x30 => match left.checked_div(right) {
            Some(quotient) => quotient,
            None => return Err(TooComplex),
        },
        0x40 => left | right,
        AND => left & right,
        0x60 | 0x70 if right >= u32::BITS => return Ok(Held::Unknown),
        0x60 => left.wrapping_shl(right),
        0x70 => left.wrapping_shr(right),
        0xa0 => left ^ right,
        _ => return Err(TooComplex),
    };
    Ok(Held::Number(number))
}

fn compared(
    operation: u16,
    a: Held,
    operand: Held,
    state: &State,
    (yes, no): (usize, usize),
) -> Result<Next, TooComplex> {
    const EQUAL: u16 = 0x10;
    const GREATER: u16 = 0x20;
    const AT_LEAST: u16 = 0x30;
    const ANY_BIT: u16 = 0x40;
    if ![EQUAL, GREATER, AT_LEAST, ANY_BIT].contains(&operation) {
        return Err(TooComplex);
    }
    let (word, mask, value) = match (a, operand) {
        (Held::Number(left), Held::Number(right)) => {
            let taken = match operation {
                EQUAL => left == right,
                GREATER => left > right,
                AT_LEAST => left >= right,
                _ => left & right != 0,
            };
            return Ok(Next::Jump(if taken { yes } else { no }));
        }
        (Held::Bits { word, mask }, Held::Number(value)) => (word, mask, value),
        _ => return Ok(Next::Either(yes, no)),
    };
    let Some(known) = state.word(word) else {
        return Ok(Next::Either(yes, no));
    };
    let ways = match operation {
        EQUAL => known.equal(mask, value),
        AT_LEAST => known.at_least(mask, value),
        GREATER => match value.checked_add(1) {
            Some(value) => known.at_least(mask, value),
            None => return Ok(Next::Jump(no)),
        },
        _ => known.any_bit(mask & value),
    };
    Ok(Next::Branch {
        word,
        ways,
        taken: yes,
        not_taken: no,
    })
}
