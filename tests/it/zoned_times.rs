//! Days and months that are added to times around the changes of clocks, beside a scan that looks at the clocks minute
//! by minute: frames that end at such a distance, and joins of all kinds with few and many rows.
//!
//! `RMQ_TEST_SEED` repeats a run; `RMQ_CASES` makes it longer.

use chrono::{DateTime, Days, Months, NaiveDateTime, Offset, TimeDelta, TimeZone};
use datafusion::arrow::array::timezone::Tz;
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::range_join::lines;
use crate::support::run;
use rmq_testing::{Random, cases_with_queries};

/// A distance as SQL, and its months, days and minutes.
type Distance = (&'static str, u32, u64, i64);

const DISTANCES: [Distance; 5] = [
    ("1 day", 0, 1, 0),
    ("2 days", 0, 2, 0),
    ("1 day 30 minutes", 0, 1, 30),
    ("1 month", 1, 0, 0),
    ("7 months 1 day", 7, 1, 0),
];

/// What the clocks of a zone show at a minute since the epoch.
fn shown_at(minute: i64, zone: Option<Tz>) -> NaiveDateTime {
    let utc = DateTime::from_timestamp(minute * 60, 0).expect("a minute of these years");
    let utc = utc.naive_utc();
    let offset = zone.map_or(0, |zone| {
        zone.offset_from_utc_datetime(&utc).fix().local_minus_utc()
    });
    utc + TimeDelta::seconds(offset.into())
}

/// The first minute at which the clocks show what a distance makes of a time, or a later time.
fn moved(
    minute: i64,
    (_, months, days, minutes): Distance,
    forward: bool,
    zone: Option<Tz>,
) -> i64 {
    let shown = shown_at(minute, zone);
    let (months, days) = (Months::new(months), Days::new(days));
    let shown = if forward {
        shown
            .checked_add_months(months)
            .and_then(|t| t.checked_add_days(days))
    } else {
        shown
            .checked_sub_months(months)
            .and_then(|t| t.checked_sub_days(days))
    };
    let shown = shown.expect("a time of these years");
    let near = shown.and_utc().timestamp() / 60;
    let first = (near - 200..).find(|minute| shown_at(*minute, zone) >= shown);
    first.expect("clocks go on") + if forward { minutes } else { -minutes }
}

/// Minutes around the changes of 2026, a day and a month before and after them.
fn minutes(random: &mut Random, count: usize) -> Vec<Option<i64>> {
    let changes = ["2026-03-29T01:00:00Z", "2026-10-25T01:00:00Z"];
    let changes = changes.map(|time| {
        DateTime::parse_from_rfc3339(time)
            .expect("a time")
            .timestamp()
            / 60
    });
    let step = [1, 15][random.below(2)];
    let minute = |_| {
        let days = [0, 0, 1, -1, 2, 30, -31][random.below(7)];
        let near = random.below(360 / step) as i64 * step as i64 - 180;
        (random.below(12) > 0).then(|| changes[random.below(2)] + days * 1440 + near)
    };
    (0..count).map(minute).collect()
}

/// A table of numbered times.
async fn create(ctx: &SessionContext, name: &str, minutes: &[Option<i64>], zone: Option<&str>) {
    let rows = minutes.iter().enumerate().map(|(id, minute)| {
        let seconds = minute.map_or("NULL".to_string(), |minute| (minute * 60).to_string());
        format!("({id}, {seconds})")
    });
    let times = match zone {
        Some(zone) => format!(
            "arrow_cast(arrow_cast(column2::BIGINT, 'Timestamp(Second, Some(\"UTC\"))'), 'Timestamp(Second, Some(\"{zone}\"))')"
        ),
        None => "arrow_cast(column2::BIGINT, 'Timestamp(Second, None)')".to_string(),
    };
    let rows = rows.collect::<Vec<_>>().join(", ");
    let table =
        format!("CREATE TABLE {name} AS SELECT column1 AS id, {times} AS ts FROM (VALUES {rows})");
    run(ctx, &table).await.expect(&table);
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_of_days_and_months_are_those_of_a_scan() {
    for seed in cases_with_queries("frames of days and months", &[], 300, 10) {
        let random = &mut Random::of_case(seed);
        let name = [Some("Europe/Berlin"), Some("Europe/Berlin"), None][random.below(3)];
        let zone = name.map(|name| name.parse::<Tz>().expect("a zone"));
        let count = [2, 30, 150][random.below(3)];
        let keys = minutes(random, count);
        let config = SessionConfig::new().with_batch_size([3, 20, 8192][random.below(3)]);
        let ctx = SessionContext::new_with_config(config);
        datafusion_rmq::register(&ctx);
        create(&ctx, "t", &keys, name).await;
        for _ in 0..10 {
            // The ends in the direction of the order: `None` is no end, a distance of zero the row.
            let mut end = || -> Option<(i64, Distance)> {
                let distance = DISTANCES[random.below(5)];
                [
                    Some((-1, distance)),
                    Some((1, distance)),
                    Some((0, distance)),
                    None,
                ][random.below(4)]
            };
            let (mut start, mut stop) = (end(), end());
            let position = |(side, (_, months, days, minutes)): (i64, Distance)| {
                (side * i64::from(months), side * days as i64, side * minutes)
            };
            if let (Some(one), Some(other)) = (start, stop)
                && position(one) > position(other)
            {
                (start, stop) = (stop, start);
            }
            let (is_descending, nulls_first) = (random.below(2) == 0, random.below(2) == 0);
            let shown = |end: Option<(i64, Distance)>, side: &str| match end {
                None => format!("UNBOUNDED {side}"),
                Some((0, _)) => "CURRENT ROW".to_string(),
                Some((-1, (distance, ..))) => format!("INTERVAL '{distance}' PRECEDING"),
                Some((_, (distance, ..))) => format!("INTERVAL '{distance}' FOLLOWING"),
            };
            let sql = format!(
                "SELECT id, count(*) OVER w, sum(id) OVER w, min(id) OVER w FROM t WINDOW w AS
                 (ORDER BY ts {} NULLS {} RANGE BETWEEN {} AND {})",
                if is_descending { "DESC" } else { "ASC" },
                if nulls_first { "FIRST" } else { "LAST" },
                shown(start, "PRECEDING"),
                shown(stop, "FOLLOWING"),
            );
            let limit = |of: i64, end: Option<(i64, Distance)>| {
                let (side, distance) = end?;
                Some(match side {
                    0 => of,
                    side => moved(of, distance, (side > 0) != is_descending, zone),
                })
            };
            type Ends = (Option<i64>, Option<i64>);
            let is_in_frame = |of: Option<Ends>, key: Option<i64>| match (of, key) {
                (None, None) => true,
                // One of both is before all others, or after them.
                (None, Some(_)) if nulls_first => stop.is_none(),
                (None, Some(_)) => start.is_none(),
                (Some(_), None) if nulls_first => start.is_none(),
                (Some(_), None) => stop.is_none(),
                (Some((first, last)), Some(key)) => {
                    let (low, high) = if is_descending {
                        (last, first)
                    } else {
                        (first, last)
                    };
                    low.is_none_or(|low| low <= key) && high.is_none_or(|high| key <= high)
                }
            };
            let expected = keys.iter().enumerate().map(|(row, of)| {
                let of = of.map(|of| (limit(of, start), limit(of, stop)));
                let rows = keys.iter().enumerate();
                let found = rows.filter(|(_, key)| is_in_frame(of, **key));
                let found: Vec<i64> = found.map(|(found, _)| found as i64).collect();
                let shown = |of: Option<i64>| of.map_or("NULL".to_string(), |of| of.to_string());
                let sum = found.iter().copied().reduce(|a, b| a + b);
                let least = found.iter().copied().min();
                format!(
                    "{row} | {} | {} | {}",
                    found.len(),
                    shown(sum),
                    shown(least)
                )
            });
            let mut expected: Vec<String> = expected.collect();
            expected.sort();
            let found = run(&ctx, &sql).await;
            let found = found.unwrap_or_else(|error| panic!("seed {seed}: {sql}: {error}"));
            assert_eq!(lines(&[found]), expected, "seed {seed}: {sql}: {keys:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn joins_by_days_and_months_are_those_of_a_scan() {
    const JOINS: [&str; 9] = [
        "SELECT l.id, r.id FROM l JOIN r ON $range",
        "SELECT l.id, r.id FROM l JOIN r ON $range AND r.id <> l.id",
        "SELECT l.id, r.id FROM l FULL JOIN r ON $range",
        "SELECT l.id, r.id FROM l LEFT JOIN r ON $range",
        "SELECT l.id, 0 FROM l WHERE EXISTS (SELECT 1 FROM r WHERE $range)",
        "SELECT l.id, 0 FROM l LEFT ANTI JOIN r ON $range",
        "SELECT l.id, 0 FROM l WHERE l.id % 7 IN (SELECT r.id % 7 FROM r WHERE $range)",
        "SELECT l.id, 0 FROM l WHERE l.id % 7 NOT IN (SELECT r.id % 7 FROM r WHERE $range)",
        "SELECT l.id, (SELECT count(*) FROM r WHERE $range) FROM l",
    ];
    let zone: Tz = "Europe/Berlin".parse().expect("a zone");
    for seed in cases_with_queries("joins by days and months", &[], 180, JOINS.len()) {
        let random = &mut Random::of_case(seed);
        let ctx = SessionContext::new();
        datafusion_rmq::register(&ctx);
        let counts = [1, 8, 60, 300];
        let (left, right) = (counts[random.below(4)], counts[random.below(4)]);
        let (left, right) = (minutes(random, left), minutes(random, right));
        create(&ctx, "l", &left, Some("Europe/Berlin")).await;
        create(&ctx, "r", &right, Some("Europe/Berlin")).await;
        for (kind, join) in JOINS.iter().enumerate() {
            let distance = DISTANCES[random.below(5)];
            let sum = [
                format!("l.ts + INTERVAL '{}'", distance.0),
                format!("INTERVAL '{}' + l.ts", distance.0),
            ];
            let range = [
                format!("r.ts BETWEEN l.ts AND {}", sum[random.below(2)]),
                format!("r.ts >= l.ts AND {} >= r.ts", sum[random.below(2)]),
            ];
            let sql = join.replace("$range", &range[random.below(2)]);
            let last = left
                .iter()
                .map(|of| of.map(|of| moved(of, distance, true, Some(zone))));
            let last: Vec<Option<i64>> = last.collect();
            let is_in_range = |l: usize, r: usize| match (left[l], last[l], right[r]) {
                (Some(of), Some(last), Some(key)) => {
                    of <= key && key <= last && (kind != 1 || l != r)
                }
                _ => false,
            };
            let rows = |l: usize| (0..right.len()).filter(move |r| is_in_range(l, *r));
            let mut expected: Vec<String> = vec![];
            for l in 0..left.len() {
                let found: Vec<usize> = rows(l).collect();
                let is_member = found.iter().any(|r| r % 7 == l % 7);
                match kind {
                    4 if found.is_empty() => {}
                    5 if !found.is_empty() => {}
                    6 if !is_member => {}
                    7 if is_member => {}
                    4..=7 => expected.push(format!("{l} | 0")),
                    8 => expected.push(format!("{l} | {}", found.len())),
                    2 | 3 if found.is_empty() => expected.push(format!("{l} | NULL")),
                    _ => expected.extend(found.iter().map(|r| format!("{l} | {r}"))),
                }
            }
            if kind == 2 {
                let alone =
                    (0..right.len()).filter(|r| !(0..left.len()).any(|l| is_in_range(l, *r)));
                expected.extend(alone.map(|r| format!("NULL | {r}")));
            }
            expected.sort();
            let found = run(&ctx, &sql).await;
            let found = found.unwrap_or_else(|error| panic!("seed {seed}: {sql}: {error}"));
            assert_eq!(lines(&[found]), expected, "seed {seed}: {sql}");
        }
    }
}
