//! Range joins both of whose sides are several times the memory, so that they are divided by hashes of the equality
//! keys unless they come in order, compared with DataFusion's own plans, or joins in unlimited memory.

use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::datatypes::Int64Type;
use datafusion::datasource::MemTable;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, collect};
use datafusion::prelude::SessionContext;

use rmq_testing::is_usual;

use crate::range_join::{answer, lines, metric};
use crate::spilling::{ForRangeJoins, in_order, planned, share};
use crate::support::{run, session_of_pool, set};

/// Rows of the build side.
const BUILD_ROWS: usize = 24_000;

/// Rows of the probe side. Each time that memory is full of them, all runs are built again.
const PROBE_ROWS: usize = 6000;

/// The equality keys.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Symbols {
    Uniform,
    Zipf,
    /// An eighth of the rows of each side has one.
    OneHeavy,
}

/// Tables `p` and `q` of a session without the extension.
async fn tables(symbols: Symbols, has_time_order: bool) -> SessionContext {
    let ctx = SessionContext::new_with_config(in_order(1));
    let symbol = |factor: u32| match symbols {
        Symbols::Uniform => format!("value * {factor} % 400"),
        Symbols::Zipf => format!("(value * {factor} % 400) * (value * {factor} % 400) / 400"),
        Symbols::OneHeavy => {
            format!("CASE WHEN value % 8 = 0 THEN 401 ELSE value * {factor} % 400 END")
        }
    };
    let (k, a) = if has_time_order {
        ("value", "value * 3 / 2")
    } else {
        ("value * 7919 % 24001", "value * 104729 % 24001")
    };
    for sql in [
        format!(
            "CREATE TABLE p AS SELECT value AS id, concat('s', nullif({}, 3)) AS e, nullif({}, 3) AS g, {k} AS k, \
             value / 50 AS t, nullif(value * 13 % 1009 - 500, 0) AS n, concat('text ', value % 977) AS s \
             FROM range(0, {BUILD_ROWS})",
            symbol(31),
            symbol(31)
        ),
        format!(
            "CREATE TABLE q AS SELECT value AS id, concat('s', nullif({}, 5)) AS e, nullif({}, 5) AS g, {a} AS a, \
             {a} + value * 17 % 600 AS b, value % 700 - 350 AS n FROM range(0, {PROBE_ROWS})",
            symbol(7),
            symbol(7)
        ),
    ] {
        run(&ctx, &sql).await.expect("a table");
    }
    ctx
}

/// A session with so much memory for range joins, and these partitions of `q`. It keeps nothing.
async fn limited(tables: &SessionContext, bytes: usize, partitions: usize) -> SessionContext {
    let ctx = session_of_pool(in_order(partitions), ForRangeJoins::new(bytes));
    set(&ctx, "rmq.keep_indexes", "false");
    set(&ctx, "rmq.range_joins", "always");
    set(&ctx, "rmq.join_mode", "shared");
    share(tables, &ctx).await;
    let rows = run(tables, "SELECT * FROM q").await.expect("q");
    let share = rows.num_rows() / partitions;
    let part = |i: usize| {
        let rows = rows.slice(i * share, share);
        let batches = (0..share).step_by(1000);
        batches
            .map(|start| rows.slice(start, 1000.min(share - start)))
            .collect()
    };
    let table = MemTable::try_new(rows.schema(), (0..partitions).map(part).collect());
    ctx.deregister_table("q").expect("q");
    ctx.register_table("q", Arc::new(table.expect("batches of one schema")))
        .expect("q");
    ctx
}

async fn executed(
    ctx: &SessionContext,
    sql: &str,
) -> Result<(Vec<RecordBatch>, Arc<dyn ExecutionPlan>)> {
    let plan = planned(ctx, sql).await?;
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
    Ok((batches, plan))
}

/// Runs a query with more and more memory until it suffices.
async fn executed_in_little(
    tables: &SessionContext,
    bytes: usize,
    partitions: usize,
    sql: &str,
) -> (SessionContext, Vec<RecordBatch>, Arc<dyn ExecutionPlan>) {
    for bytes in [1, 2, 3, 4, 6].map(|times| times * bytes) {
        let ctx = limited(tables, bytes, partitions).await;
        match executed(&ctx, sql).await {
            Ok((found, plan)) => return (ctx, found, plan),
            Err(error) => {
                let root = error.find_root();
                let is_exhausted = matches!(root, DataFusionError::ResourcesExhausted(_));
                assert!(is_exhausted, "{sql}: {error}");
                println!("{bytes} bytes, {partitions} partitions: {sql}: {error}");
                assert_nothing_left(&ctx, sql).await;
            }
        }
    }
    panic!("{} bytes do not suffice: {sql}", 6 * bytes);
}

/// Waits until nothing is left in memory or on disk.
async fn assert_nothing_left(ctx: &SessionContext, what: &str) {
    let runtime = ctx.runtime_env();
    let mut waited = 0;
    loop {
        let reserved = runtime.memory_pool.reserved();
        let files = runtime.disk_manager.spilling_progress().active_files_count;
        if reserved == 0 && files == 0 {
            return;
        }
        assert!(waited < 1000, "{reserved} bytes, {files} files: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
        waited += 1;
    }
}

/// Queries that return aggregates, each as `DataFusion` plans it by itself, and those that it has no plan for. These
/// keep the order of `q`.
const AGGREGATES: [(&str, Option<&str>); 6] = [
    (
        "SELECT q.id, min(p.n), q.n FROM q LEFT JOIN p ON p.g = q.g AND p.k BETWEEN q.a AND q.b GROUP BY q.id, q.n",
        Some(
            "SELECT q.id, (SELECT min(p.n) FROM p WHERE p.g = q.g AND p.k BETWEEN q.a AND q.b) AS m, q.n FROM q",
        ),
    ),
    (
        "SELECT q.id, count(p.id), sum(p.n), avg(p.n), max(p.s), first_value(p.id ORDER BY p.k) FROM q LEFT JOIN p \
         ON p.e = q.e AND p.k > q.a AND p.k <= q.b GROUP BY q.id",
        Some(
            "SELECT q.id, x.* FROM q CROSS JOIN LATERAL (SELECT count(*) AS c, sum(p.n) AS n, avg(p.n) AS a, \
             max(p.s) AS s, first_value(p.id ORDER BY p.k) AS f FROM p WHERE p.e = q.e AND p.k > q.a AND p.k <= q.b) x",
        ),
    ),
    (
        "SELECT q.id, count(p.n), last_value(p.s ORDER BY p.k), max(p.n) FROM q JOIN p \
         ON p.e = q.e AND p.g = q.g AND p.k BETWEEN q.a AND q.b GROUP BY q.id",
        None,
    ),
    (
        "SELECT q.id, q.n, min(p.s), sum(p.id) FROM q LEFT JOIN p ON p.g = q.g AND p.k BETWEEN q.a AND q.b \
         GROUP BY q.id, q.n",
        None,
    ),
    (
        "SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE p.g = q.g AND p.k BETWEEN q.a AND q.b AND p.n > q.n)",
        None,
    ),
    (
        "SELECT q.id FROM q WHERE q.id % 5 = 0 OR NOT EXISTS (SELECT 1 FROM p WHERE p.e = q.e AND p.k BETWEEN q.a AND q.b)",
        None,
    ),
];

/// The joins that return rows, with further conditions.
fn row_joins() -> Vec<String> {
    let joins = ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"].map(|join| {
        format!("SELECT q.id, p.id, p.s FROM q {join} p ON p.g = q.g AND p.k BETWEEN q.a AND q.b AND p.n > q.n")
    });
    let semi = ["RIGHT SEMI JOIN", "RIGHT ANTI JOIN"].map(|join| {
        format!("SELECT p.id, p.s FROM q {join} p ON p.e = q.e AND p.k BETWEEN q.a AND q.b")
    });
    let mark = "SELECT p.id FROM p WHERE p.n % 3 = 0 OR EXISTS (SELECT 1 FROM q WHERE p.g = q.g AND p.k BETWEEN q.a AND q.b)";
    joins.into_iter().chain(semi).chain([mark.into()]).collect()
}

/// Whether both sides were divided: all rows of both are written again.
fn is_divided(plan: &Arc<dyn ExecutionPlan>) -> bool {
    metric(plan, "spilled_rows") > metric(plan, "build_rows") + metric(plan, "probe_rows")
}

async fn compare(symbols: Symbols, has_time_order: bool, bytes: usize) -> Result<()> {
    let tables = tables(symbols, has_time_order).await;
    let in_memory = SessionContext::new_with_config(in_order(1));
    datafusion_rmq::register(&in_memory);
    share(&tables, &in_memory).await;
    // DataFusion compares all rows of a symbol, which takes long where one has many.
    let (oracle, partitions) = match symbols {
        Symbols::Uniform => (&tables, [1, 4].as_slice()),
        Symbols::Zipf | Symbols::OneHeavy => (&in_memory, [4].as_slice()),
    };
    let aggregates = AGGREGATES.map(|(naive, sql)| (naive.to_string(), sql));
    let rows = row_joins().into_iter().map(|sql| (sql, None));
    let all = aggregates.into_iter().chain(rows).enumerate();
    // The usual run takes all queries once, and a third of them where only the distribution of symbols is another.
    let takes_all = !is_usual() || symbols == Symbols::Uniform && !has_time_order;
    for (i, (naive, sql)) in all.filter(|(i, _)| takes_all || i % 3 == 0) {
        let is_ordered = sql.is_some();
        let sql = sql.unwrap_or(&naive);
        let what = format!("{symbols:?}, time order {has_time_order}: {sql}");
        let (expected, _) = answer(oracle, &naive)
            .await
            .unwrap_or_else(|e| panic!("{what}: {e}"));
        let partitions = partitions.iter().skip(i % partitions.len());
        for &partitions in partitions.take(if is_usual() { 1 } else { usize::MAX }) {
            let (small, found, plan) = executed_in_little(&tables, bytes, partitions, sql).await;
            assert!(lines(&found) == expected, "{what}");
            assert!(metric(&plan, "spill_count") > 0, "{what}");
            assert_eq!(is_divided(&plan), !has_time_order, "{what}");
            if is_ordered && partitions == 1 {
                let ids = found
                    .iter()
                    .flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values());
                assert!(ids.is_sorted(), "{what}");
            }
            drop(plan);
            assert_nothing_left(&small, &what).await;
        }
    }
    // Which of tied rows is chosen is not defined, but the same as in memory.
    let tied = "SELECT q.id, (SELECT first_value(p.id ORDER BY p.t) FROM p WHERE p.g = q.g AND p.t <= q.b / 50) AS f, \
                (SELECT last_value(p.id ORDER BY p.n) FROM p WHERE p.g = q.g AND p.t <= q.b / 50) AS l FROM q";
    for &partitions in partitions {
        let (_, found, _) = executed_in_little(&tables, bytes, partitions, tied).await;
        assert!(
            lines(&found) == answer(&in_memory, tied).await?.0,
            "{symbols:?}: {tied}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn sides_in_no_order_are_divided() -> Result<()> {
    compare(Symbols::Uniform, false, 160 << 10).await
}

#[tokio::test(flavor = "multi_thread")]
async fn sides_with_few_frequent_symbols_are_divided() -> Result<()> {
    compare(Symbols::Zipf, false, 160 << 10).await
}

/// The rows of one symbol exceed the memory: they are built piece by piece.
#[tokio::test(flavor = "multi_thread")]
async fn a_symbol_may_have_more_rows_than_memory_holds() -> Result<()> {
    compare(Symbols::OneHeavy, false, 96 << 10).await
}

#[tokio::test(flavor = "multi_thread")]
async fn sides_in_time_order_are_not_divided() -> Result<()> {
    compare(Symbols::Uniform, true, 160 << 10).await
}

/// A query that is dropped while sides are divided, or parts are probed, leaves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_query_leaves_nothing() {
    let tables = tables(Symbols::Uniform, false).await;
    let small = limited(&tables, 160 << 10, 2).await;
    let build_rows = BUILD_ROWS;
    let mut dropped = 0;
    for rows in [
        1,
        2 * build_rows - 9000,
        2 * build_rows + 9000,
        2 * build_rows + 30_000,
        100_000,
    ] {
        for sql in [AGGREGATES[3].0, &row_joins()[3]] {
            let plan = planned(&small, sql).await.expect(sql);
            let query = tokio::spawn(collect(Arc::clone(&plan), small.task_ctx()));
            while !query.is_finished() && metric(&plan, "spilled_rows") < rows {
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
            query.abort();
            dropped += usize::from(query.await.is_err_and(|e| e.is_cancelled()));
            drop(plan);
            assert_nothing_left(&small, sql).await;
        }
    }
    println!("{dropped} dropped");
    assert!(dropped > 2);
}

/// Probe rows of partitions that are read by turns: no partition waits for another to be read.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_are_read_one_after_another() -> Result<()> {
    let tables = tables(Symbols::Uniform, false).await;
    let small = limited(&tables, 160 << 10, 4).await;
    let sql = AGGREGATES[0].1.expect("a subquery");
    for (naive, sql) in [(AGGREGATES[0].0, sql), (&row_joins()[3], &row_joins()[3])] {
        let plan = planned(&small, sql).await?;
        let (context, mut found) = (small.task_ctx(), vec![]);
        for partition in 0..plan.output_partitioning().partition_count() {
            let stream = plan.execute(partition, Arc::clone(&context))?;
            found.extend(datafusion::physical_plan::common::collect(stream).await?);
        }
        assert!(is_divided(&plan));
        assert!(lines(&found) == answer(&tables, naive).await?.0, "{sql}");
    }
    Ok(())
}

/// Aggregates that read all rows of a window, and nearest rows, need all rows of a symbol in memory, and no more.
#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_merged_is_divided() -> Result<()> {
    let window = "p.g = q.g AND p.k BETWEEN q.a AND q.b";
    let queries = [
        format!("SELECT q.id, (SELECT median(p.n) FROM p WHERE {window}) AS m, (SELECT count(p.n, p.s) FROM p WHERE {window}) AS c FROM q"),
        format!("SELECT q.id, (SELECT array_agg(p.id ORDER BY p.k) FROM p WHERE {window}) AS m FROM q"),
        "SELECT q.id, x.k, x.s FROM q CROSS JOIN LATERAL (SELECT p.k, p.s FROM p WHERE p.g = q.g AND p.k <= q.b \
         ORDER BY p.k DESC LIMIT 3) x"
            .into(),
        "SELECT q.id, x.k FROM q LEFT JOIN LATERAL (SELECT p.k FROM p WHERE p.g = q.g AND p.k <= q.b AND p.n > q.n \
         ORDER BY p.k DESC LIMIT 3) x ON true"
            .into(),
        "SELECT q.id, x.id, x.n FROM q LEFT JOIN LATERAL (SELECT p.id, p.n FROM p WHERE p.g = q.g AND p.k <= q.b \
         AND p.s <> 'text 5' ORDER BY p.n DESC, p.k LIMIT 3) x ON true"
            .into(),
        "SELECT q.id, x.id FROM q CROSS JOIN LATERAL (SELECT p.id FROM p WHERE p.g = q.g \
         ORDER BY abs(p.k - q.a), p.id DESC LIMIT 3) x"
            .into(),
    ];
    for (symbols, has_time_order) in [
        (Symbols::Uniform, false),
        (Symbols::Uniform, true),
        (Symbols::OneHeavy, false),
    ] {
        let tables = tables(symbols, has_time_order).await;
        let in_memory = SessionContext::new_with_config(in_order(1));
        datafusion_rmq::register(&in_memory);
        share(&tables, &in_memory).await;
        let small = limited(&tables, 256 << 10, 2).await;
        for sql in &queries {
            let found = executed(&small, sql).await;
            if symbols == Symbols::OneHeavy {
                let error = found.expect_err(sql).to_string();
                assert!(
                    error.contains("do not fit into memory at once"),
                    "{sql}: {error}"
                );
            } else {
                let (found, plan) = found.unwrap_or_else(|e| panic!("{sql}: {e}"));
                assert!(lines(&found) == answer(&in_memory, sql).await?.0, "{sql}");
                assert!(is_divided(&plan), "{sql}");
            }
            assert_nothing_left(&small, sql).await;
        }
    }
    Ok(())
}
