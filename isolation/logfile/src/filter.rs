//! What is logged: the variable `CGPU_LOG`, of commands and services alike.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

/// The variable's name.
pub const VARIABLE: &str = "CGPU_LOG";

/// The filter that `CGPU_LOG` names, else that of the level; and what is wrong with the variable, for a warning once there is a log.
#[must_use]
pub fn of_environment(level: LevelFilter) -> (EnvFilter, Option<String>) {
    match std::env::var_os(VARIABLE) {
        Some(text) => of_text(&text.to_string_lossy(), level),
        None => (EnvFilter::new(level.to_string()), None),
    }
}

fn of_text(text: &str, level: LevelFilter) -> (EnvFilter, Option<String>) {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    // A word alone would be the name of a place in the code, of which there is none.
    let mut levels = parts.map(|part| part.rsplit_once('=').map_or(part, |(_, level)| level));
    let is_level = |text: &str| text.parse::<LevelFilter>().is_ok();
    match text.parse::<EnvFilter>() {
        Ok(filter) if levels.all(is_level) => (filter, None),
        _ => {
            let problem = format!(
                "{VARIABLE} = {text:?} is not allowed: error, warn, info, debug, trace or off, or such levels by crate (warn,vgpu=debug); {level} holds"
            );
            (EnvFilter::new(level.to_string()), Some(problem))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_level_is_reported_and_the_default_holds() {
        for right in ["debug", "WARN", "warn,vgpu=debug", "off", ""] {
            let (_, problem) = of_text(right, LevelFilter::INFO);
            assert_eq!(problem, None, "{right}");
        }
        for wrong in ["warning", "loud", "vgpu=loud", "warn,=="] {
            let (filter, problem) = of_text(wrong, LevelFilter::INFO);
            assert_eq!(filter.to_string(), "info");
            let problem = problem.unwrap_or_default();
            assert!(
                problem.contains(wrong) && problem.contains("trace"),
                "{problem}"
            );
        }
    }
}
