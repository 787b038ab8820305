//! Range joins of a small probe side with a large, unsorted build side, which compare all pairs in a nested loop.
//!
//! `RMQ_TEST_SEED` repeats a run, `RMQ_TEST_CASE` the queries of one pair of tables; `RMQ_CASES` makes it longer.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, DictionaryArray, Int8Array, Int64Array, RecordBatch, StringViewArray,
};
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::range_join::{Tables, answer, is_refusal, lines, metric};
use crate::support::{bigint, engine, run, set};
use rmq_testing::{Random, cases_with_queries, is_usual};

/// The number of queries, unless `RMQ_CASES` overrides it.
const CASES: usize = 24;

/// Seeds of cases that once failed.
const FAILED: [u64; 0] = [];

/// Queries over the same pair of tables.
const QUERIES: usize = 8;

/// The rows of `q`, in a plan that does not know how few they are.
const UNKNOWN: &str = "(SELECT q.* FROM range(0, 99) r JOIN q ON r.value = q.id) q";

/// More rows than are sorted without waiting for the size of the probe side.
const MANY: usize = 66_000;

/// The sorted rows, and the number of probe rows that were joined by a nested loop.
async fn run_counted(ctx: &SessionContext, sql: &str) -> Result<(Vec<String>, usize)> {
    let plan = ctx.sql(sql).await?.create_physical_plan().await?;
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
    Ok((lines(&batches), metric(&plan, "nested_loop_rows")))
}

#[tokio::test(flavor = "multi_thread")]
async fn nested_loops_return_the_same_as_datafusion() {
    let seeds = cases_with_queries("few rows", &FAILED, CASES, QUERIES);
    let (mut asked, mut compared) = (0, 0);
    for seed in seeds {
        let random = &mut Random::of_case(seed);
        let rows = (MANY + random.below(1000), random.below(19));
        let batch_size = [1000, 8192][random.below(2)];
        let tables = Tables::sized(random, rows, batch_size);
        // The second query would find sorted rows.
        set(&tables.with, "rmq.keep_indexes", "false");
        for query in 0..QUERIES {
            // A join of all pairs takes too long.
            let (with, without) = loop {
                let (with, without) = match query % 2 {
                    0 => tables.correlated(random),
                    _ => {
                        // If the plan knew how few they are, the join would be left to DataFusion.
                        let mut sql = tables.grouped_join(random);
                        for join in ["JOIN", "LEFT JOIN"] {
                            let q = format!("FROM q {join}");
                            let unknown = format!("FROM {UNKNOWN} {join}");
                            sql = sql.replace(&q, &unknown);
                        }
                        (sql.clone(), sql)
                    }
                };
                if !without.contains("FROM p) q") && !without.contains("% 4 = 0) o") {
                    break (with, without);
                }
            };
            let Ok((expected, _)) = answer(&tables.without, &without).await else {
                continue;
            };
            let (found, picked) = match run_counted(&tables.with, &with).await {
                Ok(found) => found,
                Err(error) if with != without && is_refusal(&error) => continue,
                Err(error) => panic!("tables of seed {seed}: {with}: {error}"),
            };
            assert_eq!(found, expected, "tables of seed {seed}: {with}");
            asked += 1;
            compared += usize::from(picked > 0);
        }
    }
    println!("nested loops: in {compared} of {asked} queries");
    // A build side for devices is always sorted.
    let on_cpu = engine().is_none_or(|engine| engine == "cpu");
    assert!(
        !(on_cpu && is_usual()) || compared * 16 > asked,
        "{compared} of {asked}"
    );
}

/// A probe side `q` in partitions of these sizes, and an unsorted build side `p`.
async fn partitions(sizes: &[i64]) -> SessionContext {
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(4));
    datafusion_rmq::register(&ctx);
    let p = format!(
        "CREATE TABLE p AS SELECT value * 7919 % 100003 AS k, value % 1000 AS v FROM range(0, {MANY})"
    );
    run(&ctx, &p).await.expect("a table");
    let mut first = 0;
    let parts = sizes.iter().map(|size| {
        let ids = Int64Array::from_iter_values(first..first + size);
        first += size;
        vec![RecordBatch::try_from_iter([("id", Arc::new(ids) as _)]).expect("a column")]
    });
    let parts: Vec<_> = parts.collect();
    let table = MemTable::try_new(parts[0][0].schema(), parts).expect("batches of one schema");
    ctx.register_table("q", Arc::new(table))
        .expect("a new name");
    ctx
}

/// Each partition checks its own size; the limit applies to all of them together.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_with_many_rows_sort_the_build_side() {
    for (sizes, most) in [
        (vec![5, 5, 6], 16),
        (vec![4, 4, 4, 5], 16),
        (vec![3, 5000, 4], 7),
        (vec![17], 0),
        (vec![5000, 3000], 0),
    ] {
        let ctx = partitions(&sizes).await;
        let of = |low: &str| {
            format!(
                "SELECT id, (SELECT min(v) FROM p WHERE k BETWEEN {low} AND id * 10 + 7) AS m FROM q"
            )
        };
        let (found, picked) = run_counted(&ctx, &of("id * 10")).await.expect("an answer");
        assert!(picked <= most, "{picked} rows of {sizes:?}");
        assert!(picked > 0 || most == 0, "no row of {sizes:?}");
        // The same over a sorted table, which needs no nested loop.
        let sorted = "CREATE TABLE sorted AS SELECT * FROM p ORDER BY k";
        run(&ctx, sorted).await.expect("a table");
        let expected = of("id * 10").replace("FROM p", "FROM sorted");
        let expected = run(&ctx, &expected).await.expect("an answer");
        assert_eq!(found, lines(&[expected]), "{sizes:?}");
    }
}

/// Rows that few rows are compared with again are sorted and kept.
#[tokio::test(flavor = "multi_thread")]
async fn the_second_query_keeps_the_rows() {
    let ctx = partitions(&[5]).await;
    set(&ctx, "rmq.engine", "cpu");
    let of = |add: i64| {
        format!(
            "SELECT id, (SELECT min(v) FROM p WHERE k BETWEEN id AND id * 10 + {add}) AS m FROM q"
        )
    };
    let mut compared = vec![];
    for add in [70, 80, 90] {
        let (found, rows) = run_counted(&ctx, &of(add)).await.expect("an answer");
        let expected = (0..5_i64).map(|id| {
            let keys = (0..MANY as i64).map(|i| (i * 7919 % 100_003, i % 1000));
            let within = keys.filter(|(k, _)| (id..=id * 10 + add).contains(k));
            let least = within.map(|(_, v)| v).min().expect("a match");
            format!("{id} | {least}")
        });
        assert_eq!(found, expected.collect::<Vec<_>>());
        compared.push(rows);
    }
    assert_eq!(compared, [5, 0, 0]);
}

/// Dictionaries of two batches with more values together than keys must not be concatenated.
#[tokio::test(flavor = "multi_thread")]
async fn dictionaries_with_narrow_keys_are_not_concatenated() {
    let ctx = partitions(&[1]).await;
    let batch = |first: i64| {
        let ids = Int64Array::from_iter_values(first..first + 5);
        let words =
            StringViewArray::from_iter_values((first..first + 100).map(|i| format!("word {i}")));
        let keys = Int8Array::from_iter_values(95..100);
        let words = DictionaryArray::new(keys, Arc::new(words));
        let columns: [(&str, ArrayRef); 2] = [("id", Arc::new(ids)), ("word", Arc::new(words))];
        RecordBatch::try_from_iter(columns).expect("columns of one length")
    };
    let batches = vec![batch(0), batch(1000)];
    let table =
        MemTable::try_new(batches[0].schema(), vec![batches]).expect("batches of one schema");
    ctx.register_table("words", Arc::new(table))
        .expect("a new name");
    let sql = "SELECT id, CAST(word AS VARCHAR) AS word, (SELECT count(*) FROM p WHERE k BETWEEN id AND id + 999) AS n FROM words";
    let (found, _) = run_counted(&ctx, sql).await.expect("an answer");
    let keys: Vec<i64> = (0..MANY as i64).map(|i| i * 7919 % 100_003).collect();
    let expected = (0..5).chain(1000..1005).map(|id: i64| {
        let matches = keys.iter().filter(|k| (id..id + 1000).contains(*k));
        format!("{id} | word {} | {}", id + 95, matches.count())
    });
    let mut expected: Vec<String> = expected.collect();
    expected.sort();
    assert_eq!(found, expected);
}

/// A bound that fails for a row that can't match is no error, nor is a NULL bound.
#[tokio::test(flavor = "multi_thread")]
async fn bounds_are_evaluated_only_for_rows_that_can_match() {
    let ctx = partitions(&[9]).await;
    let condition = "v = id AND v <> 20 AND k >= 100 / (id - 20) AND k < nullif(id, 15) * 5000";
    let sql = format!(
        "SELECT id, (SELECT count(*) FROM p WHERE {condition}) AS n FROM (SELECT id * 5 AS id FROM q) q"
    );
    let (found, picked) = run_counted(&ctx, &sql).await.expect("no division by zero");
    assert_eq!(picked, 9);
    let mut expected = vec![];
    for id in (0..45).step_by(5) {
        let count = match id {
            // No row has this value; a NULL bound matches nothing.
            15 | 20 => "SELECT 0".to_string(),
            _ => format!(
                "SELECT count(*) FROM p WHERE {}",
                condition.replace("id", &id.to_string())
            ),
        };
        let count = bigint(&ctx, &count).await.expect("a count");
        expected.push(format!("{id}|{count}"));
    }
    let counts: Vec<String> = found.iter().map(|line| line.replace(' ', "")).collect();
    expected.sort_unstable();
    assert_eq!(counts, expected);
}
