//! Moments as people read them.

/// RFC 3339 with milliseconds, in UTC.
#[must_use]
pub fn moment(at_unix_ms: u64) -> String {
    const DAY_S: u64 = 86_400;
    let (seconds, millis) = (at_unix_ms / 1000, at_unix_ms % 1000);
    let (days, second) = (seconds / DAY_S, seconds % DAY_S);
    let (year, month, day) = date(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{millis:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// The date so many days after 1 January 1970, counted in eras of 400 years that begin with a March: every leap day is then the
/// last of its year.
fn date(days: u64) -> (u64, u64, u64) {
    const ERA_DAYS: u64 = 146_097;
    const TO_EPOCH: u64 = 719_468;
    let days = days + TO_EPOCH;
    let (era, day_of_era) = (days / ERA_DAYS, days % ERA_DAYS);
    let leaps = day_of_era / 1460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leaps) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months from March on are 31, 30, 31, 30, 31 days, again and again: 153 in five.
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

/// The moment of an RFC 3339 text, milliseconds since 1970, with any offset; a time of the day may have decimals.
#[must_use]
pub fn parse_moment(text: &str) -> Option<u64> {
    let (date, rest) = text.split_at_checked(10)?;
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let (time, offset) = rest.split_at(rest.find(['Z', 'z', '+', '-'])?);
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let (time, decimals) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
    if hour > 23 || minute > 59 || second > 60 || !decimals.bytes().all(|it| it.is_ascii_digit()) {
        return None;
    }
    let millis: u64 = format!("{decimals:0<3}").get(..3)?.parse().ok()?;
    let offset_s = match offset.strip_prefix(['Z', 'z']) {
        Some("") => 0,
        Some(_) => return None,
        None => {
            let [hours, minutes] = numbers(offset.get(1..)?, ':', [2, 2])?;
            let seconds = i64::try_from(hours * 3600 + minutes * 60).ok()?;
            if offset.starts_with('-') {
                -seconds
            } else {
                seconds
            }
        }
    };
    let day_s = i64::try_from(hour * 3600 + minute * 60 + second).ok()?;
    let days = i64::try_from(days_to(year, month, day)?).ok()?;
    let seconds = days * 86_400 + day_s - offset_s;
    u64::try_from(seconds)
        .ok()?
        .checked_mul(1000)?
        .checked_add(millis)
}

/// Numbers of so many digits each, with something between them.
fn numbers<const N: usize>(text: &str, between: char, digits: [usize; N]) -> Option<[u64; N]> {
    let parts: Vec<&str> = text.split(between).collect();
    let parts: [&str; N] = parts.try_into().ok()?;
    let mut read = [0; N];
    for ((part, digits), read) in parts.into_iter().zip(digits).zip(&mut read) {
        if part.len() != digits || !part.bytes().all(|it| it.is_ascii_digit()) {
            return None;
        }
        *read = part.parse().ok()?;
    }
    Some(read)
}

/// How many days after 1 January 1970 a date is, from then on.
fn days_to(year: u64, month: u64, day: u64) -> Option<u64> {
    const LEAST: u64 = 1970;
    if year < LEAST {
        return None;
    }
    // A year has 365 days at least, so that the date is this one or a later one.
    let from = (year - LEAST) * 365;
    (from..=from + 3000).find(|days| date(*days) == (year, month, day))
}

#[cfg(test)]
mod tests {
    use super::{moment, parse_moment};

    #[test]
    fn a_moment_is_read_as_it_is_written() {
        for (text, at_unix_ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2026-11-22T07:16:24.991Z", 1_795_331_784_991),
            ("2026-11-22t08:16:24.9910001+01:00", 1_795_331_784_991),
            ("2026-11-22 02:16:24.9-05:00", 1_795_331_784_900),
            ("2000-02-29T00:00:00Z", 951_782_400_000),
            ("9999-12-31T23:59:59Z", 253_402_300_799_000),
        ] {
            assert_eq!(parse_moment(text), Some(at_unix_ms), "{text}");
        }
        for text in [
            "",
            "now",
            "2026-11-22",
            "2026-11-22T07:16:24",
            "2026-11-31T07:16:24Z",
            "2026-11-22T24:16:24Z",
            "2026-11-22T07:16:24Zx",
            "2026-11-22T07:16:24.x1Z",
            "2026-11-22T07:16Z",
            "1969-12-31T23:59:59Z",
            "26-11-22T007:16:24Z",
            "2026-11-22Tä7:16:24Z",
        ] {
            assert_eq!(parse_moment(text), None, "{text}");
        }
    }

    #[test]
    fn moments_are_those_of_the_calendar() {
        for (at_unix_ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_799_999, "2000-02-29T23:59:59.999Z"),
            (1_709_164_800_000, "2024-02-29T00:00:00.000Z"),
            (1_735_689_599_001, "2024-12-31T23:59:59.001Z"),
            (1_795_331_784_991, "2026-11-22T07:16:24.991Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(moment(at_unix_ms), text);
        }
    }
}
