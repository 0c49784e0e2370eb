//! A program over one call, as the kernel runs it. It has no code in common with [`crate::walk`], which tests compare with it.

use crate::Instruction;
use crate::word::WORDS;

/// A call as a filter sees it (`struct seccomp_data`, with the instruction pointer 0).
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// The system call's number.
    pub nr: u32,
    /// The table that the number is of.
    pub arch: u32,
    /// Its arguments.
    pub args: [u64; 6],
}

impl Call {
    /// The word at an offset.
    fn word(&self, offset: u32) -> Option<u32> {
        let at = usize::try_from(offset / 4).ok()?;
        let half = |value: u64, shift: u32| u32::try_from((value >> shift) & 0xffff_ffff).ok();
        match at {
            _ if !offset.is_multiple_of(4) => None,
            0 => Some(self.nr),
            1 => Some(self.arch),
            2 | 3 => Some(0),
            4..WORDS => half(
                *self.args.get((at - 4) / 2)?,
                if at % 2 == 0 { 0 } else { 32 },
            ),
            _ => None,
        }
    }
}

/// What a program returns; `None` for one that the kernel would not have loaded, or with an operation that no filter has.
#[must_use]
pub fn run(program: &[Instruction], call: Call) -> Option<u32> {
    let (mut at, mut a, mut x, mut scratch) = (0_usize, 0_u32, 0_u32, [0_u32; 16]);
    loop {
        let Instruction { code, jt, jf, k } = *program.get(at)?;
        at = at.checked_add(1)?;
        let place = usize::try_from(k).ok()?;
        let operand = if code & 0x08 == 0 { k } else { x };
        let jump = |taken: bool| usize::from(if taken { jt } else { jf });
        let skipped = match code {
            0x05 => place,
            0x15 | 0x1d => jump(a == operand),
            0x25 | 0x2d => jump(a > operand),
            0x35 | 0x3d => jump(a >= operand),
            0x45 | 0x4d => jump(a & operand != 0),
            _ => 0,
        };
        at = at.checked_add(skipped)?;
        match code {
            0x20 => a = call.word(k)?,
            0x00 => a = k,
            0x01 => x = k,
            0x02 => *scratch.get_mut(place)? = a,
            0x60 => a = *scratch.get(place)?,
            0x07 => x = a,
            0x87 => a = x,
            0x54 | 0x5c => a &= operand,
            0x04 | 0x0c => a = a.wrapping_add(operand),
            0x44 | 0x4c => a |= operand,
            0x06 => return Some(k),
            0x16 => return Some(a),
            code if code & 0x07 == 0x05 => {}
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ALLOW, KILL_PROCESS, NOTIFY, arg_high, arg_low, if_equal, load, ret, skip};

    /// `AUDIT_ARCH_X86_64`
    const X86_64: u32 = 0xc000_003e;

    const CALL: Call = Call {
        nr: 16,
        arch: X86_64,
        args: [0, 0x2_0000_0001, 0, 0, 0, 3 << 32],
    };

    #[test]
    fn a_program_sees_both_halves_of_every_argument() {
        for (offset, value) in [
            (crate::NR, 16),
            (crate::ARCH, X86_64),
            (12, 0),
            (arg_low(1), 1),
            (arg_high(1), 2),
            (arg_low(5), 0),
            (arg_high(5), 3),
        ] {
            let program = [
                load(offset),
                if_equal(value, 0, 2),
                skip(2),
                ret(ALLOW),
                ret(KILL_PROCESS),
                ret(NOTIFY),
            ];
            assert_eq!(run(&program, CALL), Some(NOTIFY), "{offset}");
        }
    }

    #[test]
    fn what_the_kernel_would_not_load_returns_nothing() {
        for program in [
            vec![],
            vec![load(2), ret(ALLOW)],
            vec![load(64), ret(ALLOW)],
            vec![skip(u32::MAX)],
            vec![
                Instruction {
                    code: 0x28,
                    ..ret(0)
                },
                ret(ALLOW),
            ],
        ] {
            assert_eq!(run(&program, CALL), None);
        }
    }
}
