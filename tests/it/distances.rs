//! Rows closest to a point, on both sides of it: ORDER BY a distance and LIMIT, compared with DataFusion's own row
//! numbers.
//!
//! `RMQ_TEST_SEED` repeats a run, `RMQ_TEST_CASE` the queries of one pair of tables; `RMQ_CASES` makes it longer.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, Date32Array, Float32Array, Float64Array, Int32Array, Int64Array,
    TimestampMillisecondArray, TimestampSecondArray, UInt64Array,
};
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::range_join::answer;
use crate::support::{draw_join_mode, in_datafusion, register, set};
use rmq_testing::{Random, cases_with_queries, is_usual};

/// The number of queries of the random test, unless `RMQ_CASES` overrides it.
const CASES: usize = 225;

/// Seeds of cases that once failed.
const FAILED: [u64; 1] = [17413544051691212450];

/// Queries over the same pair of tables. Few, so that one pair without close rows matters little.
const QUERIES: usize = 3;

fn columns(random: &mut Random, rows: usize) -> Vec<(&'static str, ArrayRef)> {
    let mut values = |scale: i64| -> Vec<Option<i64>> {
        let (few, nulls) = ([6, 60, 4_000][random.below(3)], [0, 3, 20][random.below(3)]);
        let value = |_| {
            let value = (random.below(few) as i64 - few as i64 / 2) * scale;
            (nulls == 0 || random.below(nulls) > 0).then_some(value)
        };
        (0..rows).map(value).collect()
    };
    // Differences of the greatest and the least of these wrap around, but none of them is the least number.
    let far = |values: Vec<Option<i64>>, far: i64| -> Vec<Option<i64>> {
        let far = |v: i64| match v {
            -3 => -far - 1,
            2 => far + 2,
            v => v,
        };
        values.into_iter().map(|v| v.map(far)).collect()
    };
    let float = |v: i64| match v {
        1 => f64::NAN,
        2 => f64::INFINITY,
        -2 => f64::NEG_INFINITY,
        v => v as f64 / 4.0,
    };
    let ints = far(values(1), 1 << 62);
    let shorts = far(values(1), 1 << 30).into_iter();
    let shorts = shorts.map(|v| v.map(|v| v as i32));
    let floats = values(1).into_iter().map(|v| v.map(float));
    let reals = values(1).into_iter();
    let reals = reals.map(|v| v.map(|v| float(v) as f32));
    // The difference of any two wraps around one way.
    let unsigned = |v: i64| match v {
        -3 => u64::MAX,
        v => (v + 2_000) as u64,
    };
    let unsigned = values(1).into_iter().map(|v| v.map(unsigned));
    let unsigned: UInt64Array = unsigned.collect();
    let days = values(1).into_iter().map(|v| v.map(|v| v as i32));
    vec![
        (
            "n",
            Arc::new(Int64Array::from_iter_values(0..rows as i64)) as ArrayRef,
        ),
        (
            "g",
            Arc::new(Int64Array::from_iter_values(
                (0..rows as i64).map(|i| i % 3),
            )),
        ),
        ("i", Arc::new(Int64Array::from(ints))),
        ("j", Arc::new(shorts.collect::<Int32Array>())),
        ("f", Arc::new(floats.collect::<Float64Array>())),
        ("r", Arc::new(reals.collect::<Float32Array>())),
        ("u", Arc::new(unsigned)),
        ("s", Arc::new(TimestampSecondArray::from(values(1)))),
        ("m", Arc::new(TimestampMillisecondArray::from(values(37)))),
        ("d", Arc::new(days.collect::<Date32Array>())),
    ]
}

/// A condition, and the distance of a column.
fn condition(random: &mut Random) -> (String, String) {
    let (a, b) = [
        ("p.i", "q.i"),
        ("p.j", "q.j"),
        ("p.j", "q.i"),
        ("p.f", "q.f"),
        ("p.f", "q.j"),
        ("p.s", "q.s"),
        ("p.m", "q.m"),
        ("p.m", "q.m"),
        ("p.d", "q.d"),
        ("p.r", "q.r"),
        ("p.u", "q.u"),
    ][random.below(11)];
    let is_time = ["p.s", "p.m"].contains(&a);
    // The difference of two zeros is one of either sign.
    let distance = match match a {
        "p.f" | "p.r" => 3,
        // The greater one of two that wrap around is no distance.
        "p.u" => [0, 3, 4][random.below(3)],
        _ => random.below(5),
    } {
        0 => format!("CASE WHEN {a} > {b} THEN {a} - {b} ELSE {b} - {a} END"),
        1 => format!("greatest({a} - {b}, {b} - {a})"),
        2 if is_time => format!("abs(extract(epoch FROM ({b} - {a})))"),
        3 => format!("abs({b} - {a})"),
        _ => format!("abs({a} - {b})"),
    };
    let mut parts = vec![];
    parts.extend(match random.below(6) {
        0 => Some(format!("{a} <= {b}")),
        1 if is_time => Some(format!(
            "{a} BETWEEN {b} - INTERVAL '1 minute' AND {b} + INTERVAL '5 seconds'"
        )),
        2 if a == "p.r" => Some("p.r BETWEEN q.r - 3.5 AND q.r + 2.5".into()),
        2 if a == "p.f" && b == "q.f" => Some("p.f > q.f - 3 AND p.f < q.f + 2".into()),
        _ => None,
    });
    parts.extend(match random.below(3) {
        0 => None,
        _ => Some("p.g = q.g".to_string()),
    });
    parts.extend(match random.below(6) {
        0 => Some("(p.n + q.n) % 4 <> 0".to_string()),
        1 => Some("p.n <> q.n AND p.n > 3".to_string()),
        _ => None,
    });
    if parts.is_empty() {
        parts.push("p.n >= 0".to_string());
    }
    (parts.join(" AND "), distance)
}

/// A query, and the same by row numbers.
fn query(random: &mut Random) -> (String, String) {
    let (on, distance) = condition(random);
    let ties = [
        "",
        "",
        ", p.n",
        ", p.n DESC",
        ", p.f DESC, p.n",
        ", p.s NULLS FIRST, p.n DESC",
    ];
    let ties = ties[random.below(ties.len())];
    let (skip, fetch) = (
        [0, 0, 0, 1, 5][random.below(5)],
        [1, 1, 2, 9, 150][random.below(5)],
    );
    // Without a further order, which of several rows at one distance is open.
    let is_open = ties.is_empty();
    let shown = if is_open && distance.contains("p.u") {
        // Of two rows at one distance of unsigned integers, the greater one's difference wraps around.
        "CASE WHEN x.u > q.u THEN x.u - q.u ELSE q.u - x.u END".to_string()
    } else if is_open {
        distance.replace("p.", "x.")
    } else {
        "x.n".to_string()
    };
    let numbered = |skip: usize, fetch: usize| {
        format!(
            "SELECT q.n AS id, p.*, row_number() OVER (PARTITION BY q.n ORDER BY {distance}{ties} \
             ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS rn \
             FROM q JOIN p ON {on} QUALIFY rn > {skip} AND rn <= {}",
            skip + fetch
        )
    };
    let lateral = format!(
        "LATERAL (SELECT p.* FROM p WHERE {on} ORDER BY {distance}{ties} LIMIT {fetch} OFFSET {skip}) x"
    );
    match random.below(4) {
        0 if !is_open => (
            format!(
                "SELECT q.n, (SELECT p.n FROM p WHERE {on} ORDER BY {distance}{ties} LIMIT 1) AS m FROM q"
            ),
            format!(
                "SELECT q.n, x.n FROM q LEFT JOIN ({}) x ON x.id = q.n",
                numbered(0, 1)
            ),
        ),
        1 => (
            format!("SELECT q.n, {shown} FROM q LEFT JOIN {lateral} ON true"),
            format!(
                "SELECT q.n, {shown} FROM q LEFT JOIN ({}) x ON x.id = q.n",
                numbered(skip, fetch)
            ),
        ),
        _ => (
            format!("SELECT q.n, {shown} FROM q CROSS JOIN {lateral}"),
            format!(
                "SELECT q.n, {shown} FROM q JOIN ({}) x ON x.id = q.n",
                numbered(skip, fetch)
            ),
        ),
    }
}

/// Two tables, in a session with the extension's rules and in one without them.
fn sessions(random: &mut Random) -> (SessionContext, SessionContext) {
    let (p, q) = (
        [0, 1, 60, 60, 300][random.below(5)],
        [0, 5, 60, 60][random.below(4)],
    );
    let (p, q) = (columns(random, p), columns(random, q));
    let config = SessionConfig::new()
        .with_target_partitions([1, 4][random.below(2)])
        .with_batch_size([1, 7, 8192][random.below(3)]);
    let rows = p[0].1.len();
    let splits = [vec![], vec![rows / 3, rows / 4]];
    let splits = &splits[random.below(2)];
    let session = |config| {
        let ctx = SessionContext::new_with_config(config);
        datafusion_rmq::register(&ctx);
        register(&ctx, "p", &p, splits);
        register(&ctx, "q", &q, &[]);
        ctx
    };
    let in_large_batches = config.clone().with_batch_size(8192);
    let (with, without) = (session(config), session(in_large_batches));
    set(&without, "rmq.rewrite", "false");
    draw_join_mode(&with, random);
    (with, without)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_closest_rows_are_those_of_row_numbers() {
    let seeds = cases_with_queries("distances", &FAILED, CASES, QUERIES);
    let (mut asked, mut refused, mut with_rows) = (0, 0, 0);
    for seed in seeds {
        let random = &mut Random::of_case(seed);
        let (with, without) = sessions(random);
        for _ in 0..QUERIES {
            let (sql, other) = query(random);
            let (expected, is_joined) = match answer(&without, &in_datafusion(&other)).await {
                // DataFusion loses the order of a distance of keys that a filter compares.
                Err(e) if e.to_string().contains("SanityCheckPlan") => {
                    refused += 1;
                    continue;
                }
                expected => expected.unwrap_or_else(|e| panic!("seed {seed}: {other}: {e}")),
            };
            assert!(!is_joined, "seed {seed}: {other}");
            let found = answer(&with, &sql).await;
            let (found, has_range_join) =
                found.unwrap_or_else(|e| panic!("seed {seed}: {sql}: {e}"));
            assert!(has_range_join, "seed {seed}: {sql}");
            assert_eq!(found, expected, "seed {seed}: {sql}");
            asked += 1;
            with_rows += usize::from(found.len() > 5);
        }
    }
    println!("{with_rows} of {asked} have rows, {refused} refused");
    assert!(
        !is_usual() || with_rows * 3 > asked && refused * 5 < asked,
        "{with_rows} of {asked}, {refused} refused"
    );
}
