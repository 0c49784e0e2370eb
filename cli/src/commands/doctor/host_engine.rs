//! Whether somebody listens where DCGM's host engine does.

use std::fs;

/// nv-hostengine's, unless it is started with another one.
const PORT: u16 = 5555;

/// `TCP_LISTEN` of the kernel's tables.
const LISTENS: &str = "0A";

pub(super) fn listens() -> bool {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let mut tables = tables
        .into_iter()
        .filter_map(|table| fs::read_to_string(table).ok());
    tables.any(|table| has_listener(&table, PORT))
}

fn has_listener(table: &str, port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let is_at_port = fields.next().is_some_and(|local| local.ends_with(&suffix));
        is_at_port && fields.nth(1) == Some(LISTENS)
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_listener_is_found_by_its_port() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let table = || fs::read_to_string("/proc/net/tcp").unwrap();
        assert!(has_listener(&table(), port));
        // One end of a connection does not listen.
        let line = "  0: 0100007F:15B3 0100007F:1F90 01 00000000:00000000";
        assert!(!has_listener(&format!("heading\n{line}\n"), PORT));
        assert!(has_listener(
            &format!("heading\n{}\n", line.replace(" 01 ", " 0A ")),
            PORT
        ));
    }
}
