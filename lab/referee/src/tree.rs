//! The tree of objects as both players write it at the end of a sequence.

use sim::ObjectEntry;

/// `client ID`, and below it `HANDLE PARENT CLASS RIGHTS MAPPINGS` by handle; a client's own handle is `root`, since each side makes its own.
/// `clients` are the calls that have made them, and their handles; one without an object has ended.
pub(crate) fn lines(
    clients: &[(u32, u32)],
    objects: &[ObjectEntry],
    class: impl Fn(&ObjectEntry) -> String,
) -> Vec<String> {
    let mut lines = Vec::new();
    for (id, client) in clients {
        let mut of_client = objects
            .iter()
            .filter(|object| object.client == *client)
            .peekable();
        if of_client.peek().is_none() {
            continue;
        }
        lines.push(format!("client {id}"));
        let named = |handle: u32| match handle == *client {
            true => "root".to_owned(),
            false => format!("{handle:#x}"),
        };
        lines.extend(of_client.map(|object| {
            format!(
                "{} {} {} {} {}",
                named(object.handle),
                named(object.parent),
                class(object),
                object.rights,
                object.mappings
            )
        }));
    }
    lines
}
