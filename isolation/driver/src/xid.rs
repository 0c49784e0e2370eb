//! Lines of the kernel's log in which NVIDIA's driver says that something went wrong on a card. Pure.
//!
//! ```text
//! 4,1305,77103281,-;NVRM: Xid (PCI:0000:01:00): 31, pid=1234, name=python, Ch 00000008, intr 00000000. MMU Fault: …
//! 4,1311,77109000,-;NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.
//! ```
//!
//! The first is a record of `/dev/kmsg` (`Documentation/ABI/testing/dev-kmsg`: priority, sequence, microseconds, flags) with the
//! text that NVIDIA's "Xid Errors" describes. Two writers of the log are not the driver. A program that writes to `/dev/kmsg` needs
//! root on the host, and its record has no facility of the kernel's. netfilter's LOG writes with the kernel's facility behind a
//! prefix that whoever has CAP_NET_ADMIN chooses (`net/netfilter/nf_log_syslog.c`): its record ends with the packet's fields, and
//! a line that does is not the driver's.

/// A record of the kernel's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Rises by one with every record.
    pub sequence: u64,
    /// When, microseconds of the machine's running time.
    pub at_us: u64,
    /// Its text.
    pub text: &'a str,
}

/// What a line says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// An Xid.
    Xid {
        /// `0000:01:00`; a function (`.0`) is left out, as the driver does mostly.
        pci: String,
        /// Which.
        number: u32,
        /// The process that the driver names, in the host's numbers.
        pid: Option<i32>,
        /// What follows the number.
        detail: String,
    },
    /// A card has fallen off the bus.
    CardLost {
        /// As above.
        pci: String,
    },
}

/// A detail is cut here: the driver's own are shorter.
const MOST_DETAIL_BYTES: usize = 512;

/// Reads one record; `None` for what the kernel itself has not written.
#[must_use]
pub fn record(bytes: &str) -> Option<Record<'_>> {
    let (head, rest) = bytes.split_once(';')?;
    let mut fields = head.split(',');
    let priority: u32 = fields.next()?.parse().ok()?;
    let sequence = fields.next()?.parse().ok()?;
    let at_us = fields.next()?.parse().ok()?;
    // The facility is above the three bits of the level; the kernel's is 0.
    let is_kernels = priority >> 3 == 0;
    let text = rest.lines().next().unwrap_or_default();
    is_kernels.then_some(Record {
        sequence,
        at_us,
        text,
    })
}

/// Reads the text of a record; `None` for any other line.
#[must_use]
pub fn line(text: &str) -> Option<Line> {
    let rest = text.strip_prefix("NVRM: ")?;
    if let Some(rest) = rest.strip_prefix("Xid (") {
        let (pci, rest) = rest.split_once("): ")?;
        let (number, detail) = rest.split_once(',').unwrap_or((rest, ""));
        if ends_with_a_packet(detail) {
            return None;
        }
        return Some(Line::Xid {
            pci: address(pci.strip_prefix("PCI:").unwrap_or(pci))?,
            number: number.trim().parse().ok()?,
            pid: pid(detail),
            detail: cut(detail.trim()),
        });
    }
    let rest = rest
        .strip_prefix("GPU at PCI:")
        .or_else(|| rest.strip_prefix("GPU at "))
        .or_else(|| rest.strip_prefix("GPU "))?;
    let (pci, rest) = rest.split_once(": ")?;
    let pci = address(pci.strip_prefix("PCI:").unwrap_or(pci))?;
    // The whole rest: what netfilter logs goes on behind its prefix.
    (rest.trim_end().trim_end_matches('.') == "GPU has fallen off the bus")
        .then_some(Line::CardLost { pci })
}

/// Whether netfilter wrote this: `IN=eth0 OUT= MAC=… SRC=… DST=… LEN=…`, for every family, behind the prefix.
///
/// Only what follows the last `, ` counts. The driver writes its own text there, behind the name of the process, which a tenant
/// chooses: a program that calls itself `IN= OUT=` must not hide its Xids. netfilter writes no `, `, and a prefix with one
/// is before the fields. The names of interfaces may end with a comma, so any of the fields is enough.
fn ends_with_a_packet(detail: &str) -> bool {
    const FIELDS: [&str; 10] = [
        "IN=",
        "OUT=",
        "MAC=",
        "MACSRC=",
        "SRC=",
        "DST=",
        "LEN=",
        "PROTO=",
        "HTYPE=",
        "MACPROTO=",
    ];
    let last = detail.rsplit(", ").next().unwrap_or(detail);
    last.split_ascii_whitespace()
        .any(|word| FIELDS.iter().any(|field| word.starts_with(field)))
}

/// `0000:01:00` of `0000:01:00`, `0000:01:00.0` and NVML's `00000000:01:00.0`.
#[must_use]
pub fn address(text: &str) -> Option<String> {
    let mut parts = text.trim().splitn(3, ':');
    let part = |part: Option<&str>| u32::from_str_radix(part?, 16).ok();
    let domain = part(parts.next())?;
    let bus = part(parts.next())?;
    let device = parts.next()?;
    let device = part(Some(device.split('.').next().unwrap_or(device)))?;
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}"))
}

fn pid(detail: &str) -> Option<i32> {
    let (_, rest) = detail.split_once("pid=")?;
    let digits = rest
        .split(|byte: char| !byte.is_ascii_digit())
        .next()
        .unwrap_or_default();
    digits.parse().ok()
}

fn cut(text: &str) -> String {
    let mut end = text.len().min(MOST_DETAIL_BYTES);
    while !text.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    text.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xids_of_all_ages_are_read() {
        for (text, pci, number, pid) in [
            (
                "NVRM: Xid (PCI:0000:01:00): 31, pid=1234, name=python, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS",
                "0000:01:00",
                31,
                Some(1234),
            ),
            (
                "NVRM: Xid (PCI:0000:89:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
                "0000:89:00",
                79,
                None,
            ),
            (
                "NVRM: Xid (PCI:0000:0a:00): 13, Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0): Out Of Range Address",
                "0000:0a:00",
                13,
                None,
            ),
            (
                "NVRM: Xid (0000:01:00): 43, Ch 00000010",
                "0000:01:00",
                43,
                None,
            ),
            (
                "NVRM: Xid (PCI:0000:01:00.0): 119, pid=7, Timeout after 6s",
                "0000:01:00",
                119,
                Some(7),
            ),
        ] {
            let Some(Line::Xid {
                pci: found,
                number: of,
                pid: by,
                ..
            }) = line(text)
            else {
                panic!("{text}");
            };
            assert_eq!((found.as_str(), of, by), (pci, number, pid), "{text}");
        }
    }

    #[test]
    fn a_lost_card_is_read_and_other_lines_are_not() {
        let lost = Some(Line::CardLost {
            pci: "0000:01:00".to_owned(),
        });
        for text in [
            "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.",
            "NVRM: GPU at PCI:0000:01:00: GPU has fallen off the bus.",
        ] {
            assert_eq!(line(text), lost, "{text}");
        }
        for text in [
            "NVRM: GPU at PCI:0000:01:00: GPU-ba9df1b7-0000-0000-0000-000000000000",
            "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.195.03",
            "usb 1-1: NVRM: Xid (PCI:0000:01:00): 31",
            "NVRM: Xid (PCI:0000:01:00): lots",
            "NVRM: Xid (PCI:zz): 31, ",
            "NVRM: Xid",
            "",
        ] {
            assert_eq!(line(text), None, "{text}");
        }
    }

    #[test]
    fn a_packet_that_netfilter_logs_is_no_xid() {
        const PACKETS: [&str; 4] = [
            "IN=eth0 OUT= MAC=02:42:ac:11:00:02:02:42 SRC=10.0.0.1 DST=10.0.0.2 LEN=84 TOS=0x00 PROTO=ICMP TYPE=8",
            "IN= OUT=lo SRC=127.0.0.1 DST=127.0.0.1 LEN=40 PROTO=TCP SPT=1 DPT=2",
            "IN=a, OUT=b, ARP HTYPE=1 PTYPE=0x0800 OPCODE=1",
            "IN=a, OUT=b, MACSRC=02:42:ac:11:00:02 MACDST=ff:ff:ff:ff:ff:ff MACPROTO=0800",
        ];
        for prefix in [
            "NVRM: Xid (PCI:0000:01:00): 79",
            "NVRM: Xid (PCI:0000:01:00): 79, ",
            "NVRM: Xid (PCI:0000:01:00): 79,",
            "NVRM: Xid (PCI:0000:01:00): 79, pid=1, name=x, GPU has fallen off the bus. ",
            "NVRM: Xid (PCI:0000:01:00): 119, pid=1, name=x, Timeout,",
            "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus. ",
            "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.",
        ] {
            for packet in PACKETS {
                assert_eq!(line(&format!("{prefix}{packet}")), None, "{prefix}{packet}");
            }
        }
    }

    #[test]
    fn the_name_of_a_process_hides_no_xid() {
        for name in ["IN= OUT=", "SRC=1 LEN=2", "a, IN=b"] {
            let text = format!(
                "NVRM: Xid (PCI:0000:01:00): 31, pid=7, name={name}, Ch 00000008, intr 00000000. MMU Fault"
            );
            assert!(
                matches!(line(&text), Some(Line::Xid { number: 31, .. })),
                "{text}"
            );
        }
    }

    #[test]
    fn only_the_kernel_s_own_records_count() {
        let kernels = "4,1305,77103281,-;NVRM: Xid (PCI:0000:01:00): 31, pid=1\n SUBSYSTEM=pci\n";
        assert_eq!(
            record(kernels),
            Some(Record {
                sequence: 1305,
                at_us: 77_103_281,
                text: "NVRM: Xid (PCI:0000:01:00): 31, pid=1"
            })
        );
        // Written by a program of the host: facility 1 (user).
        assert_eq!(
            record("12,1306,77103281,-;NVRM: Xid (PCI:0000:01:00): 31"),
            None
        );
        for text in ["", ";", "a,b;c", "4;x", "99999999999,1;x"] {
            assert_eq!(record(text), None, "{text}");
        }
    }

    #[test]
    fn addresses_of_both_spellings_are_one() {
        assert_eq!(address("00000000:01:00.0").as_deref(), Some("0000:01:00"));
        assert_eq!(address("0000:C1:00").as_deref(), Some("0000:c1:00"));
        assert_eq!(address("01:00"), None);
    }

    proptest::proptest! {
        #[test]
        fn no_line_is_too_strange(text in ".{0,600}") {
            let _any = (record(&text), line(&text), line(&format!("NVRM: Xid ({text}")));
        }
    }
}
