//! Window functions over frames that slide, compared with DataFusion's own operators: ROWS and RANGE, peers, NULL keys,
//! descending orders, keys at the ends of their types, several functions of one OVER, FILTER.
//!
//! `RMQ_TEST_SEED` repeats a run, `RMQ_TEST_CASE` the queries of one table; `RMQ_CASES` makes it longer.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, Date32Array, Float64Array, Int64Array, RecordBatch, StringArray,
    TimestampMillisecondArray, UInt64Array,
};
use datafusion::arrow::datatypes::Int64Type;
use datafusion::common::Result;
use datafusion::physical_plan::{collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::range_join::lines;
use crate::support::{register, run};
use rmq_testing::{Random, cases_with_queries, is_usual};

/// The number of queries of the random test, unless `RMQ_CASES` overrides it.
const CASES: usize = 100;

/// Seeds of cases that once failed.
const FAILED: [u64; 0] = [];

/// Queries over the same table.
const QUERIES: usize = 10;

/// Groups, values, and keys of several types with few or many peers, NULLs or none.
fn columns(random: &mut Random, rows: usize) -> Vec<(&'static str, ArrayRef)> {
    let spread = [2, 20, 500][random.below(3)];
    let groups = [1, 3, 40][random.below(3)];
    let mut values = || -> Vec<Option<i64>> {
        let nulls = [0, 3, 12][random.below(3)];
        let value = |_| {
            let value = random.below(spread) as i64 - 1;
            (nulls == 0 || random.below(nulls) > 0).then_some(value)
        };
        (0..rows).map(value).collect()
    };
    let numbers = |values: Vec<Option<i64>>| values.into_iter();
    let extremes = numbers(values()).map(|v| match v {
        Some(0) => Some(i64::MIN + 1),
        Some(1) => Some(i64::MAX - 1),
        other => other,
    });
    let floats = numbers(values()).map(|v| match v {
        Some(-1) => Some(-0.5),
        other => other.map(|v| v as f64 / 2.0),
    });
    vec![
        (
            "id",
            Arc::new(Int64Array::from_iter_values(0..rows as i64)) as ArrayRef,
        ),
        (
            "g",
            Arc::new(Int64Array::from_iter_values(
                (0..rows as i64).map(|i| (i * 7) % groups),
            )),
        ),
        ("h", Arc::new(Int64Array::from(values()))),
        ("v", Arc::new(Int64Array::from(values()))),
        ("f", Arc::new(floats.collect::<Float64Array>())),
        (
            "s",
            Arc::new(
                numbers(values())
                    .map(|v| v.map(|v| format!("s{v}")))
                    .collect::<StringArray>(),
            ),
        ),
        ("i", Arc::new(Int64Array::from(values()))),
        ("x", Arc::new(extremes.collect::<Int64Array>())),
        (
            "u",
            Arc::new(
                numbers(values())
                    .map(|v| v.map(|v| v.unsigned_abs()))
                    .collect::<UInt64Array>(),
            ),
        ),
        (
            "k",
            Arc::new(
                numbers(values())
                    .map(|v| v.map(|v| v as f64 / 4.0))
                    .collect::<Float64Array>(),
            ),
        ),
        (
            "t",
            Arc::new(
                numbers(values())
                    .map(|v| v.map(|v| v * 500))
                    .collect::<TimestampMillisecondArray>(),
            ),
        ),
        (
            "d",
            Arc::new(
                numbers(values())
                    .map(|v| v.map(|v| v as i32))
                    .collect::<Date32Array>(),
            ),
        ),
    ]
}

/// A frame that slides, with an ORDER BY that leaves no ties where these matter.
fn window(random: &mut Random) -> String {
    let partition = ["", "PARTITION BY g", "PARTITION BY g, h", "PARTITION BY h"][random.below(4)];
    let order = ["", "DESC", "NULLS FIRST", "DESC NULLS LAST"][random.below(4)];
    let key = ["i", "x", "u", "k", "t", "d"][random.below(6)];
    let least = match key {
        "t" => "to_timestamp_millis(-1000)",
        "d" => "DATE '1969-12-01'",
        _ => "-7",
    };
    let is_rows = random.below(2) == 0;
    let length = |length: i64| match key {
        _ if is_rows => length.to_string(),
        "t" => format!("INTERVAL '{} milliseconds'", length * 350),
        "d" => format!("INTERVAL '{length} days'"),
        "k" => format!("{length}.5"),
        _ => length.to_string(),
    };
    let lengths = [0, 1, 3, 30, 1000];
    let (first, second) = (lengths[random.below(5)], lengths[random.below(5)]);
    let (one, other) = (length(first), length(second));
    let (short, long) = (length(first.min(second)), length(first.max(second)));
    let frame = match random.below(9) {
        0 | 1 => format!("BETWEEN {one} PRECEDING AND CURRENT ROW"),
        2 => format!("BETWEEN {one} PRECEDING AND {other} FOLLOWING"),
        3 => "BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING".to_string(),
        4 => format!("BETWEEN {one} FOLLOWING AND UNBOUNDED FOLLOWING"),
        5 => format!("BETWEEN CURRENT ROW AND {one} FOLLOWING"),
        6 if is_rows => format!("BETWEEN {long} PRECEDING AND {short} PRECEDING"),
        // DataFusion takes a frame before the row for final while peers of its end may follow: of NULLs, and of zeros
        // that are the least number.
        6 if !["u", "x"].contains(&key) => {
            return format!(
                "({partition} ORDER BY coalesce({key}, {least}) {order} RANGE BETWEEN {long} PRECEDING AND {short} PRECEDING)"
            );
        }
        7 => format!("BETWEEN {short} FOLLOWING AND {long} FOLLOWING"),
        _ => "BETWEEN CURRENT ROW AND CURRENT ROW".to_string(),
    };
    if is_rows {
        format!("({partition} ORDER BY {key} {order}, id ROWS {frame})")
    } else {
        let key = match key {
            // DataFusion takes rows with a NULL key for those of a key whose bound is beyond its type.
            "x" => "coalesce(x, 0)",
            // It takes a bound below zero for zero, in descending orders too.
            "u" => "arrow_cast(u + 2000, 'UInt64')",
            other => other,
        };
        format!("({partition} ORDER BY {key} {order} RANGE {frame})")
    }
}

/// A function, and the same in words that DataFusion has for all frames.
fn call(random: &mut Random) -> (String, String) {
    let value = ["v", "f", "s", "t", "d", "u", "i + 1"][random.below(7)];
    let same = |call: String| {
        let call = format!("{call} OVER w");
        (call.clone(), call)
    };
    match random.below(12) {
        10 | 11 => {
            let calls = [
                "median(f)",
                "median(v)",
                "percentile_cont(f, 0.75)",
                "percentile_cont(v, 0.999)",
                "count(DISTINCT v)",
                "count(DISTINCT s)",
            ];
            same(calls[random.below(calls.len())].to_string())
        }
        9 => {
            // DataFusion's, beside others.
            let calls = ["rank()", "min(v) FILTER (WHERE v > 1)", "dense_rank()"];
            same(calls[random.below(3)].to_string())
        }
        0..=2 => same(format!("min({value})")),
        3 => same(format!("max({value})")),
        4 => same(["count(*)", "count(v)", "count(s)"][random.below(3)].to_string()),
        5 => same(
            ["sum(v)", "sum(u)", "sum(f)", "sum(v::DECIMAL(12, 2))"][random.below(4)].to_string(),
        ),
        6 => same(["avg(f)", "avg(v)"][random.below(2)].to_string()),
        7 => {
            let number = ["first_value", "last_value"][random.below(2)];
            same(format!("{number}(g)"))
        }
        _ => (
            "bool_or(v > 2) OVER w".to_string(),
            "max((v > 2)::INT) OVER w = 1".to_string(),
        ),
    }
}

fn query(random: &mut Random) -> (String, String) {
    let calls: Vec<_> = (0..1 + random.below(3)).map(|_| call(random)).collect();
    let window = window(random);
    // Of peers with several values of g any may come first.
    let has_ties = window.contains("RANGE") && !window.contains("PARTITION BY g");
    let calls = calls.into_iter().map(|(ours, theirs)| match has_ties {
        true => [ours, theirs]
            .map(|call| {
                call.replace("first_value", "min")
                    .replace("last_value", "max")
            })
            .into(),
        false => (ours, theirs),
    });
    let calls: Vec<(String, String)> = calls.collect();
    let sql = |calls: Vec<&String>| {
        let calls: Vec<_> = calls
            .iter()
            .enumerate()
            .map(|(i, c)| format!("{c} AS c{i}"))
            .collect();
        format!(
            "SELECT id, {} FROM t WINDOW w AS {window}",
            calls.join(", ")
        )
    };
    let (ours, theirs) = (calls.iter().map(|c| &c.0), calls.iter().map(|c| &c.1));
    (sql(ours.collect()), sql(theirs.collect()))
}

/// A table in a session with the rule, and in one without.
fn sessions(random: &mut Random) -> (SessionContext, SessionContext) {
    let rows = [0, 1, 60, 400][random.below(4)];
    let table = columns(random, rows);
    let batches = [vec![], vec![rows / 3, rows / 4], vec![rows / 2]];
    let batches = &batches[random.below(3)];
    let config = SessionConfig::new()
        .with_target_partitions([1, 4][random.below(2)])
        .with_batch_size([7, 50, 8192][random.below(3)]);
    let session = || {
        let ctx = SessionContext::new_with_config(config.clone());
        register(&ctx, "t", &table, batches);
        ctx
    };
    let (with, without) = (session(), session());
    datafusion_rmq::register(&with);
    (with, without)
}

async fn executed(ctx: &SessionContext, sql: &str) -> Result<(Vec<String>, bool)> {
    let plan = ctx.sql(sql).await?.create_physical_plan().await?;
    let text = displayable(plan.as_ref()).indent(false).to_string();
    let batches = collect(plan, ctx.task_ctx()).await?;
    Ok((lines(&batches), text.contains("WindowFrameExec")))
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_are_those_of_datafusion() {
    let seeds = cases_with_queries("window frames", &FAILED, CASES, QUERIES);
    let (mut asked, mut replaced, mut failed) = (0, 0, 0);
    for seed in seeds {
        let random = &mut Random::of_case(seed);
        let (with, without) = sessions(random);
        for _ in 0..QUERIES {
            let (sql, other) = query(random);
            asked += 1;
            let found = executed(&with, &sql).await;
            match (found, executed(&without, &other).await) {
                (Ok((found, is_replaced)), Ok((expected, _))) => {
                    assert_eq!(found, expected, "seed {seed}: {sql}");
                    replaced += usize::from(is_replaced);
                }
                (_, Err(_)) => failed += 1,
                (Err(error), _) => panic!("seed {seed}: {sql}: {error}"),
            }
        }
    }
    println!("window frames: {replaced} of {asked} are ranges, {failed} are errors of DataFusion");
    assert!(
        !is_usual() || (replaced * 10 > asked * 9 && failed * 50 < asked),
        "{replaced} and {failed} of {asked}"
    );
}

/// Medians and percentiles of frames that only grow, whose rows DataFusion sorts for each row, and of all lengths.
#[tokio::test(flavor = "multi_thread")]
async fn statistics_of_long_frames_are_those_of_datafusion() {
    let random = &mut Random::new("statistics of long frames");
    let (with, without) = sessions(random);
    let table = "CREATE TABLE long AS SELECT value AS id, value % 3 AS g, value * 7919 % 1009 AS k,
        CASE WHEN value % 13 > 0 THEN (value * 7907 % 2003)::DOUBLE / 3 END AS v FROM range(0, 3000)";
    for ctx in [&with, &without] {
        run(ctx, table).await.expect(table);
    }
    let frames = [
        "ORDER BY k, id",
        "PARTITION BY g ORDER BY k DESC, id",
        "ORDER BY k RANGE BETWEEN UNBOUNDED PRECEDING AND 10 PRECEDING",
        "PARTITION BY g ORDER BY id ROWS BETWEEN 500 PRECEDING AND 20 FOLLOWING",
        "ORDER BY k RANGE BETWEEN 300 PRECEDING AND 100 PRECEDING",
        "ORDER BY k ROWS BETWEEN 5 PRECEDING AND CURRENT ROW",
    ];
    for frame in frames {
        for call in ["median(v)", "percentile_cont(v, 0.9)", "count(DISTINCT v)"] {
            let sql = format!("SELECT id, {call} OVER ({frame}) AS m FROM long");
            let (found, is_replaced) = executed(&with, &sql).await.expect(&sql);
            let (expected, _) = executed(&without, &sql).await.expect(&sql);
            assert_eq!(found, expected, "{sql}");
            // Its set of values only grows.
            let is_datafusions = call.starts_with("count") && !frame.contains("BETWEEN");
            assert_eq!(is_replaced, !is_datafusions, "{sql}");
        }
    }
}

#[tokio::test]
async fn rows_come_in_the_order_of_the_window() {
    let config = SessionConfig::new().with_batch_size(100);
    let ctx = SessionContext::new_with_config(config);
    datafusion_rmq::register(&ctx);
    let table = "CREATE TABLE t AS SELECT value AS id, value * 7919 % 1009 AS k, value % 3 AS g FROM generate_series(1, 2000)";
    ctx.sql(table).await.unwrap().collect().await.unwrap();
    let sql = "SELECT g, k, sum(k) OVER (PARTITION BY g ORDER BY k RANGE BETWEEN 100 PRECEDING AND 5 FOLLOWING) FROM t ORDER BY g, k";
    let plan = ctx
        .sql(sql)
        .await
        .unwrap()
        .create_physical_plan()
        .await
        .unwrap();
    let text = displayable(plan.as_ref()).indent(false).to_string();
    assert!(text.contains("WindowFrameExec"), "{text}");
    assert_eq!(text.matches("SortExec").count(), 1, "{text}");
    let batches = collect(plan, ctx.task_ctx()).await.unwrap();
    let column = |batch: &RecordBatch, i: usize| {
        batch
            .column(i)
            .as_primitive::<Int64Type>()
            .values()
            .to_vec()
    };
    let rows = |i| {
        batches
            .iter()
            .flat_map(|batch| column(batch, i))
            .collect::<Vec<_>>()
    };
    let (groups, keys, sums) = (rows(0), rows(1), rows(2));
    let found: Vec<_> = groups.iter().zip(&keys).zip(&sums).collect();
    assert_eq!(found.len(), 2000);
    assert!(found.is_sorted_by_key(|((g, k), _)| (*g, *k)));
    for ((group, key), sum) in found {
        let rows = groups
            .iter()
            .zip(&keys)
            .filter(|(g, k)| *g == group && (*key - 100..=*key + 5).contains(k));
        assert_eq!(rows.map(|(_, k)| k).sum::<i64>(), *sum, "{group}, {key}");
    }
}

/// First and last values that are not NULL, also of frames that only grow, which DataFusion reads for each row.
#[tokio::test(flavor = "multi_thread")]
async fn values_that_are_not_null_are_those_of_datafusion() {
    let frames = [
        "",
        "ROWS BETWEEN UNBOUNDED PRECEDING AND 3 PRECEDING",
        "ROWS BETWEEN UNBOUNDED PRECEDING AND 2 FOLLOWING",
        "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
        "ROWS BETWEEN 4 PRECEDING AND 1 PRECEDING",
        "ROWS BETWEEN 1 FOLLOWING AND 5 FOLLOWING",
        "RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
    ];
    for seed in cases_with_queries("values that are not NULL", &[], 60, 10) {
        let random = &mut Random::of_case(seed);
        let (with, without) = sessions(random);
        for _ in 0..10 {
            let frame = frames[random.below(frames.len())];
            let partition = ["PARTITION BY g", ""][random.below(2)];
            let (key, order) = (
                ["t", "k", "i"][random.below(3)],
                ["", "DESC"][random.below(2)],
            );
            let value = ["v", "f", "s", "t", "d", "u"][random.below(6)];
            let name = ["first_value", "last_value"][random.below(2)];
            let nulls = ["IGNORE NULLS", "IGNORE NULLS", "RESPECT NULLS"][random.below(3)];
            let sql = format!(
                "SELECT id, {name}({value}) {nulls} OVER ({partition} ORDER BY {key} {order}, id {frame}) AS c FROM t"
            );
            let (found, is_replaced) = executed(&with, &sql).await.expect(&sql);
            let (expected, _) = executed(&without, &sql).await.expect(&sql);
            assert_eq!(found, expected, "seed {seed}: {sql}");
            // Of frames that only grow, DataFusion knows the first value, and the last one that may be NULL.
            let only_grows = frame.contains("UNBOUNDED P") || frame.is_empty();
            let is_ours = !only_grows || (nulls == "IGNORE NULLS" && name == "last_value");
            assert_eq!(is_replaced, is_ours, "seed {seed}: {sql}");
        }
    }
}

/// A bound of a frame: a distance from the row in the direction of the order, or no bound.
type Bound = Option<i128>;

fn shown(bound: Bound, side: &str) -> String {
    match bound {
        None => format!("UNBOUNDED {side}"),
        Some(0) => "CURRENT ROW".to_string(),
        Some(by) if by < 0 => format!("{} PRECEDING", -by),
        Some(by) => format!("{by} FOLLOWING"),
    }
}

/// Keys at the ends of their types, and NULLs, beside a plain scan of all rows: DataFusion's own frames have others.
#[tokio::test(flavor = "multi_thread")]
async fn frames_of_extreme_keys_are_those_of_a_scan() {
    let types: [(&str, i128, i128); 6] = [
        ("SMALLINT", i16::MIN.into(), i16::MAX.into()),
        ("BIGINT", i64::MIN.into(), i64::MAX.into()),
        ("TINYINT UNSIGNED", 0, u8::MAX.into()),
        ("BIGINT UNSIGNED", 0, u64::MAX.into()),
        ("DECIMAL(5, 0)", -99_999, 99_999),
        ("DECIMAL(38, 0)", 1 - 10_i128.pow(38), 10_i128.pow(38) - 1),
    ];
    for seed in cases_with_queries("frames of extreme keys", &[], 120, 10) {
        let random = &mut Random::of_case(seed);
        let (data_type, least, greatest) = types[random.below(6)];
        let count = [1, 7, 60][random.below(3)];
        let mut key = || {
            let near = random.below(6) as i128;
            [
                None,
                Some(least + near),
                Some(greatest - near),
                Some(near + 40),
            ][random.below(4)]
        };
        let keys: Vec<Option<i128>> = (0..count).map(|_| key()).collect();
        let value = |row: usize| (row * 7 % 10) as i64;
        let rows = keys.iter().enumerate().map(|(row, key)| {
            let key = key.map_or("NULL".to_string(), |key| format!("'{key}'"));
            format!("({row}, {}, {key})", value(row))
        });
        let config = SessionConfig::new().with_batch_size([3, 20, 8192][random.below(3)]);
        let ctx = SessionContext::new_with_config(config);
        datafusion_rmq::register(&ctx);
        let table = format!(
            "CREATE TABLE t AS SELECT column1 AS id, column2 AS v, CAST(column3 AS {data_type}) AS k FROM (VALUES {})",
            rows.collect::<Vec<_>>().join(", ")
        );
        run(&ctx, &table).await.expect(&table);
        for _ in 0..10 {
            let distances = [0, 1, 3, 7];
            let bound = |random: &mut Random| match random.below(5) {
                0 => None,
                1 | 2 => Some(-distances[random.below(4)]),
                _ => Some(distances[random.below(4)]),
            };
            let (mut start, mut end): (Bound, Bound) = (bound(random), bound(random));
            if let (Some(a), Some(b)) = (start, end) {
                (start, end) = (Some(a.min(b)), Some(a.max(b)));
            }
            let is_descending = random.below(2) == 0;
            let nulls_first = random.below(2) == 0;
            let is_filtered = random.below(3) == 0;
            let filter = if is_filtered {
                " FILTER (WHERE v > 3)"
            } else {
                ""
            };
            let sql = format!(
                "SELECT id, count(*){filter} OVER w AS n, sum(id){filter} OVER w AS s, min(v){filter} OVER w AS m FROM t \
                 WINDOW w AS (ORDER BY k {} NULLS {} RANGE BETWEEN {} AND {}) ORDER BY id",
                if is_descending { "DESC" } else { "ASC" },
                if nulls_first { "FIRST" } else { "LAST" },
                shown(start, "PRECEDING"),
                shown(end, "FOLLOWING"),
            );
            let is_in_frame = |of: Option<i128>, key: Option<i128>| match (of, key) {
                (None, None) => true,
                // One of both is before all others, or after them.
                (None, Some(_)) if nulls_first => end.is_none(),
                (None, Some(_)) => start.is_none(),
                (Some(_), None) if nulls_first => start.is_none(),
                (Some(_), None) => end.is_none(),
                (Some(of), Some(key)) => {
                    let distance = if is_descending {
                        of.saturating_sub(key)
                    } else {
                        key.saturating_sub(of)
                    };
                    start.is_none_or(|start| start <= distance)
                        && end.is_none_or(|end| distance <= end)
                }
            };
            let expected = keys.iter().enumerate().map(|(row, of)| {
                let found = keys.iter().enumerate();
                let found = found.filter(|(_, key)| is_in_frame(*of, **key));
                let found = found.map(|(found, _)| found);
                let found = found.filter(|found| !is_filtered || value(*found) > 3);
                let found: Vec<usize> = found.collect();
                let number = |n: Option<i64>| n.map_or("NULL".to_string(), |n| n.to_string());
                let sum = found.iter().map(|found| *found as i64).reduce(|a, b| a + b);
                let least = found.iter().map(|found| value(*found)).min();
                format!(
                    "{row} | {} | {} | {}",
                    found.len(),
                    number(sum),
                    number(least)
                )
            });
            let batches = ctx.sql(&sql).await.expect(&sql).collect().await;
            let batches = batches.unwrap_or_else(|error| panic!("seed {seed}: {sql}: {error}"));
            let found = rows_of(&batches);
            let expected: Vec<String> = expected.collect();
            assert_eq!(found, expected, "seed {seed}: {table}: {sql}");
        }
    }
}

/// The rows in their order, NULL as such.
fn rows_of(batches: &[RecordBatch]) -> Vec<String> {
    let rows = batches.iter().flat_map(|batch| {
        (0..batch.num_rows()).map(move |row| {
            let values = batch.columns().iter().map(|column| {
                let value = column.as_primitive::<Int64Type>();
                if value.is_valid(row) {
                    value.value(row).to_string()
                } else {
                    "NULL".to_string()
                }
            });
            values.collect::<Vec<_>>().join(" | ")
        })
    });
    rows.collect()
}

/// Frames whose bounds are values of the ORDER BY expression, beside a join of the table with itself.
#[tokio::test(flavor = "multi_thread")]
async fn frames_by_keys_are_joins() {
    for seed in cases_with_queries("frames by keys", &[], 60, 10) {
        let random = &mut Random::of_case(seed);
        let (with, without) = sessions(random);
        for _ in 0..10 {
            let (key, distance) = [
                ("i", "h"),
                ("k", "f"),
                ("k", "i"),
                ("t", "INTERVAL '2 seconds'"),
                ("d", "h::INT"),
                ("u", "3"),
            ][random.below(6)];
            let low = [format!("{key} - {distance}"), key.to_string()];
            let low = &low[random.below(2)];
            let high = [format!("{key} + {distance}"), key.to_string()];
            let high = &high[random.below(2)];
            let order = ["", "DESC", "NULLS FIRST", "DESC NULLS LAST"][random.below(4)];
            let by = ["g", "h"][random.below(2)];
            let extreme = ["min", "max"][random.below(2)];
            let value = ["v", "f", "s", "t"][random.below(4)];
            let sql = format!(
                "SELECT id, range_frame_{extreme}({value}, {low}, {high}) OVER (PARTITION BY {by} ORDER BY {key} {order}) FROM t"
            );
            let of_row = |bound: &str| format!("(SELECT id, {by}, {bound} AS bound FROM t)");
            let other = format!(
                "SELECT a.id, {extreme}(x.{value}) FROM {} a JOIN {} b ON a.id = b.id LEFT JOIN t x \
                 ON (x.{by} IS NOT DISTINCT FROM a.{by}) AND x.{key} >= a.bound AND x.{key} <= b.bound GROUP BY a.id",
                of_row(low),
                of_row(high)
            );
            let found = executed(&with, &sql).await;
            let found = found.unwrap_or_else(|error| panic!("seed {seed}: {sql}: {error}"));
            let expected = executed(&without, &other).await;
            let expected = expected.unwrap_or_else(|error| panic!("seed {seed}: {other}: {error}"));
            assert_eq!(found.0, expected.0, "seed {seed}: {sql}");
        }
    }
}
