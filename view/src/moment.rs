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

#[cfg(test)]
mod tests {
    use super::moment;

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
