//! Lazy indexes: windows of few rows, of many, and of more and more, compared with the same query without range joins;
//! and the memory that is registered for them.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::StreamExt;

use crate::range_join::{answer, lines, metric};
use crate::support::{cpu_session, register, run, session_of_pool, set};

/// 6,000 rows of five symbols in small batches, by symbol and time or by time; 150 rows whose windows extend by `reach`
/// to either side.
async fn session(order: &str, data_type: &str, reach: &str) -> SessionContext {
    let ctx = cpu_session();
    set(&ctx, "datafusion.execution.batch_size", "256");
    let tables = [
        format!(
            "CREATE TABLE p AS SELECT value % 5 AS s, value AS k, value * 7919 % 20011 AS u, arrow_cast(CASE WHEN value % 7 > 0
             THEN value * 7919 % 1009 END, '{data_type}') AS v FROM range(0, 6000) ORDER BY {order}"
        ),
        format!(
            "CREATE TABLE q AS SELECT value AS id, value % 6 AS s, value * 40 AS k, {reach} AS w FROM range(0, 150)"
        ),
    ];
    for sql in &tables {
        run(&ctx, sql).await.expect(sql);
    }
    // A sorted build side stays in batches of this length, all of which each batch of windows scans.
    set(&ctx, "datafusion.execution.batch_size", "64");
    ctx
}

#[tokio::test(flavor = "multi_thread")]
async fn indexes_are_built_for_windows_of_many_rows() {
    let types = [
        "Int64",
        "Float64",
        "Float32",
        "Int16",
        "Boolean",
        "Utf8",
        "Dictionary(Int32, Utf8)",
        "Decimal128(30, 2)",
        "Decimal256(50, 1)",
        "Timestamp(Nanosecond, None)",
    ];
    // Windows of a few rows or none; of some hundred rows; of a few rows first and thousands last.
    let reaches = [("3", false), ("400", true), ("value * value / 20", true)];
    for data_type in types {
        for order in ["s, k", "k", "k * 7919 % 20011"] {
            for (reach, is_built) in reaches {
                let ctx = session(order, data_type, reach).await;
                let sql = "SELECT q.id, min(p.v), max(p.v), count(p.v), first_value(p.k ORDER BY p.u DESC)
                    FROM q LEFT JOIN p ON p.s = q.s AND p.k BETWEEN q.k - q.w AND q.k + q.w GROUP BY q.id";
                let what = format!("{data_type} by {order}, {reach}");
                let plan = ctx.sql(sql).await.expect(sql);
                let plan = plan.create_physical_plan().await.expect(sql);
                let found = collect(plan.clone(), ctx.task_ctx()).await.expect(&what);
                assert_eq!(metric(&plan, "index_bytes") > 0, is_built, "{what}");
                set(&ctx, "rmq.rewrite", "false");
                let (expected, was_rewritten) = answer(&ctx, sql).await.expect(sql);
                assert!(!was_rewritten);
                assert_eq!(lines(&found), expected, "{what}");
            }
        }
    }
}

/// A build side with these columns in batches of 4,096 rows, and a probe side of windows of `reach`; with the pool that
/// registers their memory.
fn pooled(
    bytes: usize,
    columns: Vec<(&str, ArrayRef)>,
    reach: i64,
) -> (SessionContext, Arc<GreedyMemoryPool>) {
    let pool = Arc::new(GreedyMemoryPool::new(bytes));
    let config = SessionConfig::new().with_target_partitions(1);
    let ctx = session_of_pool(config, Arc::clone(&pool) as _);
    set(&ctx, "rmq.engine", "cpu");
    set(&ctx, "rmq.keep_indexes", "false");
    let rows = columns[0].1.len() as i64;
    // Not evenly spaced, so that keys are searched.
    let keys: Int64Array = (0..rows).map(|i| i * 3 + i % 2).collect();
    let columns: Vec<_> = std::iter::once(("k", Arc::new(keys) as ArrayRef))
        .chain(columns)
        .collect();
    let batches = vec![4096; columns[0].1.len() / 4096];
    register(&ctx, "p", &columns, &batches);
    let from: Int64Array = (0..4000).map(|i| i * 7919 % (3 * rows)).collect();
    let to: Int64Array = from.iter().map(|a| a.map(|a| a + reach)).collect();
    let windows: [(&str, ArrayRef); 2] = [("a", Arc::new(from)), ("b", Arc::new(to))];
    register(&ctx, "q", &windows, &[1000; 3]);
    (ctx, pool)
}

const ROWS: usize = 400_000;

/// The bytes per build row that are registered after the first batch of windows.
async fn registered(column: ArrayRef, reach: i64) -> usize {
    let (ctx, pool) = pooled(1 << 30, vec![("v", column)], reach);
    let sql = "SELECT q.a, x.m FROM q CROSS JOIN LATERAL (SELECT min(p.v) AS m FROM p WHERE p.k BETWEEN q.a AND q.b) AS x";
    let frame = ctx.sql(sql).await.expect(sql);
    let mut rows = frame.execute_stream().await.expect(sql);
    rows.next().await.expect("a batch").expect(sql);
    let registered = pool.reserved() / ROWS;
    while let Some(batch) = rows.next().await {
        batch.expect(sql);
    }
    drop(rows);
    assert_eq!(pool.reserved(), 0);
    registered
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_an_index_does_not_need_is_released() {
    let numbers: Float64Array = (0..ROWS).map(|i| Some((i * 7919 % 1009) as f64)).collect();
    let some: Float64Array = (0..ROWS).map(|i| (i % 3 > 0).then_some(i as f64)).collect();
    let texts: StringArray = (0..ROWS)
        .map(|i| Some(format!("a rather long text {}", i % 10)))
        .collect();
    // Bytes per row: keys 8, values 8, a copy 8, the index less than 1; ranks 4.
    let (few, many) = (
        registered(Arc::new(numbers.clone()), 3).await,
        registered(Arc::new(numbers), 3000).await,
    );
    assert!((24..26).contains(&few), "{few}");
    assert!((16..18).contains(&many), "{many}");
    let nulls = registered(Arc::new(some), 3000).await;
    assert!((16..18).contains(&nulls), "{nulls}");
    let ranks = registered(Arc::new(texts), 3).await;
    assert!((12..14).contains(&ranks), "{ranks}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lazy_indexes_are_built_at_once_if_memory_is_short() {
    const COLUMNS: usize = 8;
    let names: Vec<String> = (0..COLUMNS).map(|i| format!("v{i}")).collect();
    let aggregates = names
        .iter()
        .map(|v| format!("min(p.{v}) AS min_{v}, max(p.{v}) AS max_{v}"));
    let sql = format!(
        "SELECT q.a, x.* FROM q CROSS JOIN LATERAL (SELECT {} FROM p WHERE p.k BETWEEN q.a AND q.b) AS x",
        aggregates.collect::<Vec<_>>().join(", ")
    );
    let mut answers = vec![];
    // Before the rows are sorted, three times their size and 32 bytes per row are granted. In the end 140 bytes per row
    // are registered, or 202 with the memory that lazy indexes may need later.
    for (bytes, is_built) in [(1 << 30, false), (ROWS * 255, true)] {
        let columns = names.iter().enumerate().map(|(i, name)| {
            let values: Int64Array = (0..ROWS)
                .map(|row| Some((row * (7919 + i) % 100_003) as i64))
                .collect();
            (name.as_str(), Arc::new(values) as ArrayRef)
        });
        let (ctx, _) = pooled(bytes, columns.collect(), 3);
        let plan = ctx.sql(&sql).await.expect(&sql);
        let plan = plan.create_physical_plan().await.expect(&sql);
        let found = collect(plan.clone(), ctx.task_ctx()).await.expect(&sql);
        assert_eq!(metric(&plan, "spill_count"), 0, "{bytes} bytes");
        assert_eq!(metric(&plan, "index_bytes") > 0, is_built, "{bytes} bytes");
        answers.push(lines(&found));
    }
    assert_eq!(answers[0].len(), 4000);
    assert!(answers[0] == answers[1]);
}
