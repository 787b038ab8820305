//! Range joins whose build side is in files and larger than memory: they read it slice by slice, for some probe rows
//! after the others, and write nothing to disk. Compared with joins that read all rows in sufficient memory, and random
//! ones with DataFusion's own plans over the same files.
//!
//! `RMQ_TEST_SEED` repeats a run, `RMQ_TEST_CASE` one query; `RMQ_CASES` makes it longer.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray, Float64Array, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{Int64Type, SchemaRef};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::parquet::file::properties::EnabledStatistics;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::physical_plan::{ExecutionPlan, collect, execute_stream_partitioned};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::{StreamExt, TryStreamExt};
use tempfile::TempDir;

use crate::pruning::{Layout, SMALL, register};
use crate::range_join::{answer, lines, metric};
use crate::spilling::{ForRangeJoins, planned};
use crate::support::{released, set, with_extension};
use rmq_testing::{Random, cases_with_queries, is_usual};

/// The number of queries of the random test, unless `RMQ_CASES` overrides it.
const CASES: usize = 32;

/// Seeds of cases that once failed.
const FAILED: [u64; 0] = [];

/// The rows of the build side.
const ROWS: usize = 50_000;

/// Memory in which about a tenth of these can be sorted.
const MEMORY: usize = 1 << 20;

/// Settings with which small files are divided, too.
fn config() -> SessionConfig {
    SessionConfig::new()
        .with_target_partitions(2)
        .with_repartition_file_min_size(0)
}

/// A session with the extension that keeps nothing, whose range joins have this much memory.
fn limited(bytes: usize) -> SessionContext {
    limited_with(config(), ForRangeJoins::new(bytes))
}

fn limited_with(config: SessionConfig, pool: Arc<dyn MemoryPool>) -> SessionContext {
    let ctx = with_extension(crate::support::context_of_pool(config, pool));
    set(&ctx, "rmq.keep_indexes", "false");
    set(&ctx, "rmq.range_joins", "always");
    // So few rows are otherwise read at once.
    set(&ctx, "rmq.pruning", "always");
    ctx
}

/// A session whose range joins read all rows and have all memory.
fn plain() -> SessionContext {
    let ctx = with_extension(SessionContext::new_with_config(config()));
    set(&ctx, "rmq.keep_indexes", "false");
    set(&ctx, "rmq.pruning", "never");
    ctx
}

fn column(rows: usize, value: impl Fn(i64) -> Option<i64>) -> ArrayRef {
    Arc::new((0..rows as i64).map(value).collect::<Int64Array>())
}

/// Rows whose keys ascend: `k`, symbols `s`, values `v`.
fn build_rows(rows: usize, key: impl Fn(i64) -> Option<i64>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable([
        ("k", column(rows, key), true),
        ("s", column(rows, |i| Some(i % 7)), true),
        ("v", column(rows, |i| Some(i * 7919 % 10_007)), true),
    ])
    .expect("columns of one length")
}

/// Windows that begin at these keys: `id`, the key `a`, symbols `s`.
fn probe_rows(keys: &[Option<i64>]) -> RecordBatch {
    let key = |i: i64| keys[usize::try_from(i).expect("a row number")];
    RecordBatch::try_from_iter_with_nullable([
        ("id", column(keys.len(), Some), true),
        ("a", column(keys.len(), key), true),
        ("s", column(keys.len(), |i| Some(i * 3 % 7)), true),
    ])
    .expect("columns of one length")
}

/// Files of the tables `p` and `q`.
struct Files(TempDir);

impl Files {
    fn new(p: &RecordBatch, q: &RecordBatch) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for (table, rows) in [("p", p), ("q", q)] {
            let folder = folder.path().join(table);
            std::fs::create_dir(&folder).expect("a new folder");
            let half = rows.num_rows().div_ceil(2);
            for (name, first) in [("a", 0), ("b", half)] {
                let rows = rows.slice(first, half.min(rows.num_rows() - first));
                let path = folder.join(format!("{name}.parquet"));
                SMALL.write(&path, &rows).expect("a file");
            }
        }
        Self(folder)
    }

    /// Keys at even distances, and windows at even distances over all of these.
    fn in_order() -> Self {
        Self::new(
            &build_rows(ROWS, |i| Some(i * 10)),
            &probe_rows(&ascending(3_000)),
        )
    }

    /// Writes the rows of `p` again, in this layout.
    fn lay_out(&self, p: &RecordBatch, layout: Layout) {
        let half = p.num_rows() / 2;
        for (name, first) in [("a", 0), ("b", half)] {
            let path = self.0.path().join(format!("p/{name}.parquet"));
            layout.write(&path, &p.slice(first, half)).expect("a file");
        }
    }

    async fn register(&self, ctx: &SessionContext) {
        for table in ["p", "q"] {
            register(ctx, table, &self.0.path().join(table)).await;
        }
    }

    /// Runs a query in a session, and compares it with one that reads all rows. Returns what the join has done.
    async fn compare(&self, ctx: &SessionContext, sql: &str) -> Done {
        let plain = plain();
        self.register(&plain).await;
        self.register(ctx).await;
        let (expected, _) = answer(&plain, sql).await.expect(sql);
        assert!(!expected.is_empty(), "{sql}");
        let before = ctx.runtime_env().memory_pool.reserved();
        let (found, done) = run(ctx, sql).await.expect(sql);
        assert!(found == expected, "{done:?}: {sql}");
        assert_eq!(ctx.runtime_env().memory_pool.reserved(), before, "{sql}");
        done
    }
}

/// The lower bounds of windows at even distances over all keys.
fn ascending(rows: i64) -> Vec<Option<i64>> {
    (0..rows)
        .map(|i| Some(i * 10 * ROWS as i64 / rows))
        .collect()
}

/// The same from the last to the first.
fn descending(rows: i64) -> Vec<Option<i64>> {
    ascending(rows).into_iter().rev().collect()
}

/// The same in no order.
fn shuffled(mut keys: Vec<Option<i64>>) -> Vec<Option<i64>> {
    let random = &mut Random::of_case(7);
    for i in (1..keys.len()).rev() {
        keys.swap(i, random.below(i + 1));
    }
    keys
}

/// What a join has done.
#[derive(Debug)]
struct Done {
    slices: usize,
    scanned: usize,
    spill_files: usize,
}

/// The sorted rows of a query, and what its join has done.
async fn run(ctx: &SessionContext, sql: &str) -> Result<(Vec<String>, Done)> {
    let plan = planned(ctx, sql).await?;
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
    Ok((lines(&batches), done(&plan)))
}

fn done(plan: &Arc<dyn ExecutionPlan>) -> Done {
    Done {
        slices: metric(plan, "slices"),
        scanned: metric(plan, "rows_scanned"),
        spill_files: metric(plan, "spill_count"),
    }
}

/// A query of each form with closed windows.
const FORMS: [&str; 9] = [
    "SELECT q.id, min(p.v), count(*) FROM q JOIN p ON p.k BETWEEN q.a - 100 AND q.a GROUP BY q.id",
    "SELECT q.id, max(p.v) FROM q LEFT JOIN p ON p.s = q.s AND p.k BETWEEN q.a - 20 AND q.a GROUP BY q.id",
    "SELECT q.id, array_agg(p.k ORDER BY p.k) FROM q JOIN p ON p.s = q.s AND p.k > q.a AND p.k < q.a + 200 GROUP BY q.id",
    "SELECT q.id, p.v FROM q JOIN p ON p.s = q.s AND p.k BETWEEN q.a - 100 AND q.a",
    "SELECT q.id, p.v FROM q LEFT JOIN p ON p.s = q.s AND p.k BETWEEN q.a AND q.a + 30 AND p.v > 1000",
    "SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE p.s = q.s AND p.k > q.a AND p.k < q.a + 50)",
    "SELECT q.id FROM q WHERE NOT EXISTS (SELECT 1 FROM p WHERE p.s = q.s AND p.k > q.a AND p.k < q.a + 50)",
    "SELECT q.id FROM q WHERE q.s IN (SELECT p.s FROM p WHERE p.k > q.a AND p.k < q.a + 50)",
    "SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE p.k BETWEEN q.a AND q.a + 100 AND p.v < q.s * 200)",
];

/// Nearest rows within both ends of a window. From disk they are an error without an equality key.
const NEAREST: [&str; 2] = [
    "SELECT q.id, x.v FROM q CROSS JOIN LATERAL (SELECT p.v FROM p WHERE p.s = q.s AND p.k BETWEEN q.a AND q.a + 300 ORDER BY p.k DESC LIMIT 2) x",
    "SELECT q.id, x.v FROM q LEFT JOIN LATERAL (SELECT p.v FROM p WHERE p.k BETWEEN q.a - 300 AND q.a ORDER BY p.k DESC LIMIT 1) x ON true",
];

#[tokio::test(flavor = "multi_thread")]
async fn each_form_reads_the_table_once_and_writes_nothing() {
    let files = Files::in_order();
    for sql in FORMS.iter().chain(&NEAREST) {
        let done = files.compare(&limited(MEMORY), sql).await;
        assert!(done.slices >= 5 && done.spill_files == 0, "{done:?}: {sql}");
        assert!(done.scanned <= ROWS * 6 / 5, "{done:?}: {sql}");
    }
}

/// Row groups of which a slice needs a part, in files that tell nothing of parts of them: what is read beside a slice
/// waits for the next ones.
#[tokio::test(flavor = "multi_thread")]
async fn row_groups_that_slices_share_are_read_once() {
    let rows = build_rows(ROWS, |i| Some(i * 10));
    let orders = [ascending(3_000), descending(3_000)];
    let orders = orders.map(|keys| {
        let files = Files::new(&rows, &probe_rows(&keys));
        files.lay_out(&rows, IN_LARGE_GROUPS);
        files
    });
    for (number, sql) in FORMS.iter().chain(&NEAREST).enumerate() {
        let (files, partitions) = (&orders[number % 2], 1 + number / 2 % 2);
        let config = config().with_target_partitions(partitions);
        let ctx = limited_with(config, ForRangeJoins::new(MEMORY * partitions));
        let done = files.compare(&ctx, sql).await;
        assert!(done.slices >= 7 && done.spill_files == 0, "{done:?}: {sql}");
        // One or two are read again: those that partitions share, or read before symbols that come later. Were what is
        // read not kept, it would be three quarters.
        assert!(done.scanned <= ROWS * 13 / 10, "{done:?}: {sql}");
    }
}

/// About as large as a slice with half of the memory, and at other places.
const IN_LARGE_GROUPS: Layout = Layout {
    in_group: 6_000,
    in_page: 6_000,
    statistics: EnabledStatistics::Chunk,
    has_bloom_filters: false,
};

/// Row groups that overlap each other are read again for each part of them.
#[tokio::test(flavor = "multi_thread")]
async fn row_groups_that_overlap_are_read_as_often_as_slices_need() {
    // Each row group has keys of a tenth of the table.
    let key = |i: i64| Some((i / 5_000 * 5_000 + i * 3_571 % 5_000) * 10);
    let rows = build_rows(ROWS, key);
    let files = Files::new(&rows, &probe_rows(&ascending(3_000)));
    let layout = Layout {
        in_group: 1_000,
        ..IN_LARGE_GROUPS
    };
    files.lay_out(&rows, layout);
    for sql in FORMS {
        let done = files.compare(&limited(MEMORY), sql).await;
        assert!(done.slices > 10, "{done:?}: {sql}");
    }
}

/// Some symbols that later windows have, the rows that have been read have not.
#[tokio::test(flavor = "multi_thread")]
async fn equality_keys_that_come_later_are_read() {
    let rows = build_rows(ROWS, |i| Some(i * 10));
    let keys = ascending(3_000);
    let q = RecordBatch::try_from_iter_with_nullable([
        ("id", column(keys.len(), Some), true),
        (
            "a",
            column(keys.len(), |i| {
                keys[usize::try_from(i).expect("a row number")]
            }),
            true,
        ),
        // At first one symbol, then ever more.
        (
            "s",
            column(keys.len(), |i| Some(i % (1 + i / 400).min(7))),
            true,
        ),
    ]);
    let files = Files::new(&rows, &q.expect("columns of one length"));
    let config = config().with_target_partitions(1).with_batch_size(50);
    for sql in FORMS {
        let ctx = limited_with(config.clone(), ForRangeJoins::new(MEMORY / 2));
        let done = files.compare(&ctx, sql).await;
        assert!(done.slices >= 5 && done.spill_files == 0, "{done:?}: {sql}");
    }
}

/// The rows that a query without slices would have spilled.
#[tokio::test(flavor = "multi_thread")]
async fn without_slices_rows_are_spilled() {
    let files = Files::in_order();
    let ctx = limited(MEMORY);
    set(&ctx, "rmq.pruning", "never");
    let done = files.compare(&ctx, FORMS[0]).await;
    assert!(done.slices == 0 && done.spill_files > 0, "{done:?}");
}

/// All operators take their memory of one pool, and there is no disk.
#[tokio::test(flavor = "multi_thread")]
async fn no_disk_is_needed() {
    let files = Files::in_order();
    let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
    let runtime = RuntimeEnvBuilder::new()
        .with_disk_manager_builder(disk)
        .with_memory_pool(Arc::new(GreedyMemoryPool::new(MEMORY)))
        .build_arc()
        .expect("a runtime");
    let ctx = with_extension(SessionContext::new_with_config_rt(config(), runtime));
    set(&ctx, "rmq.range_joins", "always");
    set(&ctx, "rmq.pruning", "always");
    let sql = "SELECT count(*), sum(m) FROM (SELECT q.id, min(p.v) AS m FROM q JOIN p ON p.k BETWEEN q.a - 100 AND q.a GROUP BY q.id)";
    let plan = "SELECT count(*), sum(v) FROM (SELECT p.v FROM q JOIN p ON p.s = q.s AND p.k BETWEEN q.a - 100 AND q.a)";
    for sql in [plan, sql] {
        let done = files.compare(&ctx, sql).await;
        assert!(done.slices > 2, "{done:?}: {sql}");
    }
    set(&ctx, "rmq.pruning", "never");
    let error = run(&ctx, plan).await.expect_err("too little memory");
    assert!(
        error.to_string().contains("DiskManager is disabled"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_side_in_no_order_is_joined_with_all_rows() {
    let files = Files::new(
        &build_rows(ROWS, |i| Some(i * 10)),
        &probe_rows(&shuffled(ascending(3_000))),
    );
    for sql in FORMS {
        let done = files.compare(&limited(MEMORY), sql).await;
        assert_eq!(done.slices, 0, "{done:?}: {sql}");
    }
}

/// Partitions with batches of an ordered table read slices of their own, and all of them every row about once.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_that_are_dealt_batches_read_their_parts() {
    let done = dealt(100).await;
    assert!(done.slices > 0 && done.spill_files == 0, "{done:?}");
    assert!(done.scanned <= ROWS * 6 / 5, "{done:?}");
}

/// Partitions that have every fourth window would each read the whole table.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_that_reach_the_same_rows_are_joined_with_all_rows() {
    let done = dealt(1).await;
    assert!(done.spill_files > 0, "{done:?}");
    assert!(done.scanned <= ROWS * 5 / 2, "{done:?}");
}

/// Compares a query over four partitions that are dealt ordered windows, so many at a time.
async fn dealt(at_once: usize) -> Done {
    let files = Files::in_order();
    let rows = probe_rows(&ascending(3_000));
    let partitions = (0..4).map(|first| {
        let batches = (first * at_once..rows.num_rows()).step_by(4 * at_once);
        batches.map(|row| rows.slice(row, at_once)).collect()
    });
    let table = MemTable::try_new(rows.schema(), partitions.collect());
    let table = Arc::new(table.expect("batches of one schema"));
    let (plain, ctx) = (plain(), limited(MEMORY));
    ctx.register_table("dealt", table).expect("a table");
    files.register(&plain).await;
    files.register(&ctx).await;
    let (expected, _) = answer(&plain, FORMS[0]).await.expect("rows");
    let sql = FORMS[0].replace("FROM q", "FROM dealt q");
    let (found, done) = run(&ctx, &sql).await.expect("rows");
    assert!(found == expected, "{done:?}");
    done
}

/// The first rows, which are read ahead, are in order, and those after them are not.
#[tokio::test(flavor = "multi_thread")]
async fn slices_read_about_eight_times_the_table_at_most() {
    let mut keys: Vec<_> = ascending(3_000);
    let rest = keys.split_off(1_200);
    for _ in 0..6 {
        keys.extend(shuffled(rest.clone()));
    }
    let files = Files::new(&build_rows(ROWS, |i| Some(i * 10)), &probe_rows(&keys));
    let config = config().with_target_partitions(1).with_batch_size(500);
    // Of each kind of form one, as what is read does not depend on it.
    for sql in FORMS.iter().step_by(3) {
        let ctx = limited_with(config.clone(), ForRangeJoins::new(MEMORY));
        set(&ctx, "rmq.pruning_memory", "8K");
        let done = files.compare(&ctx, sql).await;
        assert!(done.slices > 0 && done.spill_files > 0, "{done:?}: {sql}");
        // What slices have read, and a slice.
        assert!(done.scanned <= 17 * ROWS / 2, "{done:?}: {sql}");
    }
}

/// Most keys are within a hundredth of the time, where slices take more memory than expected.
#[tokio::test(flavor = "multi_thread")]
async fn slices_that_do_not_fit_are_halved() {
    let key = |i: i64| {
        Some(if i % 10 == 0 {
            i * 10
        } else {
            250_000 + i / 10
        })
    };
    let sorted = |key: &dyn Fn(i64) -> Option<i64>| {
        let mut keys: Vec<_> = (0..ROWS as i64).map(key).collect();
        keys.sort_unstable();
        keys
    };
    let keys = sorted(&key);
    let p = build_rows(ROWS, |i| keys[usize::try_from(i).expect("a row number")]);
    let q: Vec<_> = (0..1_000).map(|i| Some(249_000 + i * 7)).collect();
    let mut around: Vec<_> = ascending(1_000).into_iter().chain(q).collect();
    around.sort_unstable();
    let files = Files::new(&p, &probe_rows(&around));
    for sql in FORMS {
        let done = files.compare(&limited(MEMORY), sql).await;
        assert!(done.slices > 0 && done.scanned > ROWS, "{done:?}: {sql}");
    }
    // No memory holds the rows of one window.
    let all = Files::new(
        &build_rows(ROWS, |i| {
            Some(if i < 1000 { i * 10 } else { 250_000 + i / 1000 })
        }),
        &probe_rows(&around),
    );
    let done = all.compare(&limited(MEMORY), FORMS[0]).await;
    assert!(done.spill_files > 0, "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_without_windows_and_matches_are_returned() {
    let mut keys = ascending(3_000);
    for (i, key) in keys.iter_mut().enumerate() {
        match i % 50 {
            0 => *key = None,
            1 => *key = Some(-900_000),
            2 => *key = Some(900_000),
            _ => {}
        }
    }
    let key = |i: i64| (i % 11 > 0).then_some(i * 10);
    let files = Files::new(&build_rows(ROWS, key), &probe_rows(&keys));
    for sql in FORMS {
        let done = files.compare(&limited(MEMORY), sql).await;
        assert!(done.slices > 0 && done.spill_files == 0, "{done:?}: {sql}");
    }
}

/// A bound that fails for a row that comes late: the rest is joined with all rows, and the error is the join's.
#[tokio::test(flavor = "multi_thread")]
async fn a_bound_that_fails_is_an_error_of_the_join() {
    let files = Files::in_order();
    let ctx = limited(MEMORY);
    set(&ctx, "rmq.pruning_memory", "8K");
    files.register(&ctx).await;
    let fails = "SELECT q.id, p.v FROM q JOIN p ON p.s = q.s AND p.k BETWEEN q.a AND q.a + 100 / (q.id - 2000)";
    let error = run(&ctx, fails).await.expect_err("a division by zero");
    assert!(error.to_string().contains("ivide by zero"), "{error}");
    let never = fails.replace(
        "p.s = q.s AND",
        "p.s = q.s + CASE WHEN q.id = 2000 THEN 10 ELSE 0 END AND",
    );
    let (found, done) = run(&ctx, &never).await.expect("a row without a partner");
    assert!(!found.is_empty() && done.slices > 0, "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn budgets_leave_the_answer_as_it_is() {
    let files = Files::in_order();
    for (budget, is_sliced) in [("0", false), ("1", true), ("3K", true), ("100G", true)] {
        let ctx = limited(MEMORY);
        set(&ctx, "rmq.pruning_memory", budget);
        let done = files.compare(&ctx, FORMS[0]).await;
        assert_eq!(done.slices > 0, is_sliced, "{budget}: {done:?}");
        assert_eq!(done.spill_files == 0, is_sliced, "{budget}: {done:?}");
    }
}

/// Rows with aggregates are in the order of the probe side, also where slices end and all rows are read.
#[tokio::test(flavor = "multi_thread")]
async fn the_order_of_probe_rows_stays() {
    let mut keys = ascending(3_000);
    let p = build_rows(ROWS, |i| Some(i * 10));
    let sql =
        "SELECT q.id, (SELECT min(p.v) FROM p WHERE p.k BETWEEN q.a - 100 AND q.a) AS m FROM q";
    for spills in [false, true] {
        if spills {
            let rest = keys.split_off(1_200);
            for _ in 0..6 {
                keys.extend(shuffled(rest.clone()));
            }
        }
        let files = Files::new(&p, &probe_rows(&keys));
        let config = config().with_target_partitions(1).with_batch_size(500);
        let ctx = limited_with(config, ForRangeJoins::new(MEMORY));
        set(&ctx, "rmq.pruning_memory", "8K");
        files.register(&ctx).await;
        let plan = planned(&ctx, sql).await.expect(sql);
        let rows = collect(Arc::clone(&plan), ctx.task_ctx()).await.expect(sql);
        let ids = rows
            .iter()
            .map(|batch| batch.column(0).as_primitive::<Int64Type>());
        let ids: Vec<i64> = ids.flat_map(|ids| ids.values().to_vec()).collect();
        assert!(ids.into_iter().eq(0..keys.len() as i64));
        let done = done(&plan);
        assert!(
            done.slices > 0 && (done.spill_files > 0) == spills,
            "{done:?}"
        );
    }
}

/// A partition that nobody polls, or that is dropped, keeps no other from going on.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_do_not_wait_for_each_other() {
    let files = Files::in_order();
    let ctx = limited(MEMORY);
    set(&ctx, "rmq.pruning_memory", "8K");
    files.register(&ctx).await;
    let sql = "SELECT q.id, p.v FROM q JOIN p ON p.s = q.s AND p.k BETWEEN q.a - 100 AND q.a";
    let expected = run(&ctx, sql).await.expect(sql).0;
    for begun in [false, true] {
        let plan = planned(&ctx, sql).await.expect(sql);
        let mut streams = execute_stream_partitioned(Arc::clone(&plan), ctx.task_ctx()).expect(sql);
        assert_eq!(streams.len(), 2);
        let (second, mut first) = (streams.remove(1), streams.remove(0));
        let mut batches = vec![];
        if begun {
            batches.push(first.next().await.expect("rows").expect("rows"));
        }
        batches.extend(second.try_collect::<Vec<_>>().await.expect(sql));
        batches.extend(first.try_collect::<Vec<_>>().await.expect(sql));
        assert!(lines(&batches) == expected, "{begun}");
        assert!(done(&plan).slices > 8, "{:?}", done(&plan));
    }
    let (limited, _) = run(&ctx, &format!("{sql} LIMIT 7")).await.expect(sql);
    assert_eq!(limited.len(), 7);
    for wait in [0, 5, 20, 60] {
        let plan = planned(&ctx, sql).await.expect(sql);
        let running = collect(plan, ctx.task_ctx());
        let wait = std::time::Duration::from_millis(wait);
        let _ = tokio::time::timeout(wait, running).await;
    }
    let pool = Arc::clone(&ctx.runtime_env().memory_pool);
    released(&pool).await;
}

/// Slices of a file that was replaced would be of two versions.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changes_between_slices_is_an_error() {
    let files = Files::in_order();
    let ctx = limited_with(
        config().with_target_partitions(1),
        ForRangeJoins::new(MEMORY),
    );
    files.register(&ctx).await;
    let sql = "SELECT q.id, p.v FROM q JOIN p ON p.s = q.s AND p.k BETWEEN q.a - 100 AND q.a";
    let plan = planned(&ctx, sql).await.expect(sql);
    let mut rows = execute_stream_partitioned(plan, ctx.task_ctx())
        .expect(sql)
        .remove(0);
    rows.next().await.expect("a batch").expect("a batch");
    let other = build_rows(ROWS / 2, |i| Some(i * 10));
    SMALL
        .write(&files.0.path().join("p/a.parquet"), &other)
        .expect("a file");
    let error = rows
        .try_collect::<Vec<_>>()
        .await
        .expect_err("a changed file");
    assert!(
        error.to_string().contains("changed while a query"),
        "{error}"
    );
}

/// Random windows over files of random layouts, in order, nearly so, and not.
#[tokio::test(flavor = "multi_thread")]
async fn random_windows_over_random_files() {
    let seeds = cases_with_queries("slices", &FAILED, CASES, 1);
    let (mut asked, mut sliced, mut written) = (0, 0, 0);
    for seed in seeds {
        let random = &mut Random::of_case(seed);
        let (rows, windows) = (5000 + random.below(15_000), 1 + random.below(300));
        let (gap, jitter) = (1 + random.below(20), 1 + random.below(3000));
        let key_of = |random: &mut Random, row: usize, apart: usize| {
            let key = (row * apart + random.below(jitter)) as i64;
            (random.below(20) > 0).then_some(key)
        };
        let mut keys: Vec<_> = (0..rows).map(|row| key_of(random, row, gap)).collect();
        let apart = (rows * gap).div_ceil(windows);
        let mut begins: Vec<_> = (0..windows).map(|row| key_of(random, row, apart)).collect();
        if random.below(3) > 0 {
            keys.sort_unstable();
        }
        match random.below(4) {
            0 => {}
            1 => begins = shuffled(begins),
            2 => begins.sort_unstable_by_key(|begin| std::cmp::Reverse(*begin)),
            _ => begins.sort_unstable(),
        }
        let p = build_rows(rows, |i| keys[usize::try_from(i).expect("a row number")]);
        let files = Files::new(&p, &probe_rows(&begins));
        let layout = Layout {
            // Parquet's writer takes one group after the other off a batch, by recursion.
            in_group: 10 + random.below(500),
            statistics: [EnabledStatistics::Chunk, EnabledStatistics::Page][random.below(2)],
            ..Layout::draw(random)
        };
        layout
            .write(
                &files.0.path().join("p/a.parquet"),
                &p.slice(0, rows.div_ceil(2)),
            )
            .expect("a file");
        let config = config()
            .with_target_partitions(1 + random.below(4))
            .with_batch_size([3, 50, 8192][random.below(3)]);
        let memory = 100 * rows / (1 + random.below(8));
        let ctx = limited_with(config, ForRangeJoins::new(memory + 50_000));
        set(&ctx, "rmq.pruning", "always");
        set(
            &ctx,
            "rmq.pruning_memory",
            ["1", "5K", "64M"][random.below(3)],
        );
        let width = 1 + random.below(300);
        let sql = FORMS[random.below(FORMS.len())].replace("q.a", &format!("(q.a + {width})"));
        let plain = SessionContext::new();
        files.register(&plain).await;
        files.register(&ctx).await;
        let (expected, _) = answer(&plain, &sql).await.expect(&sql);
        let (found, done) = match run(&ctx, &sql).await {
            Ok(done) => done,
            Err(error) => {
                set(&ctx, "rmq.pruning", "never");
                let whole = run(&ctx, &sql).await;
                assert!(whole.is_err(), "seed {seed}: {sql}: {error}");
                continue;
            }
        };
        assert_eq!(found, expected, "seed {seed}: {done:?}: {sql}");
        asked += 1;
        sliced += usize::from(done.slices > 0);
        written += usize::from(done.slices > 0 && done.spill_files > 0);
    }
    println!("{sliced} of {asked} were sliced, {written} of these then spilled");
    assert!(sliced * 24 > asked || !is_usual(), "{sliced} of {asked}");
}

/// A probe side without an end is not read ahead.
#[tokio::test(flavor = "multi_thread")]
async fn endless_windows_stream() {
    let files = Files::in_order();
    let ctx = limited(MEMORY);
    files.register(&ctx).await;
    let rows = probe_rows(&ascending(3_000));
    let endless = StreamingTable::try_new(rows.schema(), vec![Arc::new(Endless(rows))]);
    let endless = endless.expect("a table").with_infinite_table(true);
    ctx.register_table("e", Arc::new(endless)).expect("a table");
    let sql = "SELECT e.id, (SELECT min(p.v) FROM p WHERE p.k BETWEEN e.a - 100 AND e.a) AS m FROM e LIMIT 5000";
    let (found, done) = run(&ctx, sql).await.expect(sql);
    assert_eq!((found.len(), done.slices, done.scanned), (5000, 0, 0));
}

/// The same batch again and again.
#[derive(Debug)]
struct Endless(RecordBatch);

impl PartitionStream for Endless {
    fn schema(&self) -> &SchemaRef {
        self.0.schema_ref()
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let batches = futures::stream::repeat(self.0.clone()).map(Ok);
        let batches = RecordBatchStreamAdapter::new(self.0.schema(), batches);
        Box::pin(batches)
    }
}

/// Windows by their statistics: the probe side is not read ahead to its end.
#[tokio::test(flavor = "multi_thread")]
async fn statistics_of_the_probe_side_prune() {
    let mut begins: Vec<_> = (0..2000).map(|i| Some(60_000 + i * 7919 % 5000)).collect();
    begins[77] = None;
    let files = Files::new(&build_rows(ROWS, |i| Some(i * 10)), &probe_rows(&begins));
    let session = |budget| {
        let ctx = limited_with(config(), Arc::new(GreedyMemoryPool::new(1 << 30)));
        set(&ctx, "rmq.pruning", "always");
        set(&ctx, "rmq.pruning_memory", budget);
        ctx
    };
    let reached = 500 + 2 * 2 * 500;
    for (sql, is_pruned) in [
        (FORMS[0].to_string(), true),
        (FORMS[3].to_string(), true),
        (FORMS[0].replace("q.a - 100", "(q.a::INT - 100)"), true),
        (FORMS[0].replace("AND q.a", "AND (5 + q.a)"), true),
        (
            FORMS[1].replace("AND q.a", "AND q.a + 9223372036854775807"),
            true,
        ),
        // Neither bound grows with a column, or the sum may not fit.
        (
            FORMS[0].replace("q.a - 100 AND q.a", "q.a * 2 - q.a - 100 AND abs(q.a)"),
            false,
        ),
        (
            FORMS[1].replace("q.a", "(q.a + 9223372036854775807)"),
            false,
        ),
        // A filter leaves the row groups as they are.
        (
            FORMS[0].replace("FROM q", "FROM (SELECT * FROM q WHERE id % 5 < 4) q"),
            true,
        ),
    ] {
        let done = files.compare(&session("1"), &sql).await;
        assert_eq!(done.scanned > 0, is_pruned, "{done:?}: {sql}");
        if sql.contains("9223372036854775807") {
            continue;
        }
        assert!(done.scanned <= reached + 500, "{done:?}: {sql}");
    }
    let whole = files.compare(&session("0"), FORMS[0]).await;
    assert_eq!(whole.scanned, 0, "a budget of 0 prunes nothing");
}

/// Statistics do not count NaN, which is a bound like any other.
#[tokio::test(flavor = "multi_thread")]
async fn statistics_of_floats_prune_nothing() {
    let floats = |rows: usize, value: fn(usize) -> f64| -> ArrayRef {
        let values = (0..rows).map(|i| Some(if i == 7 { f64::NAN } else { value(i) }));
        Arc::new(values.collect::<Float64Array>())
    };
    let table = |rows: usize, names: [&str; 2], value: fn(usize) -> f64| {
        let ids = column(rows, Some);
        let columns = [(names[0], ids), (names[1], floats(rows, value))];
        RecordBatch::try_from_iter(columns).expect("columns of one length")
    };
    let p = table(5000, ["v", "k"], |i| i as f64);
    let q = table(500, ["id", "a"], |i| 100.0 + (i % 10) as f64);
    let files = Files::new(&p, &q);
    let ctx = limited(1 << 30);
    set(&ctx, "rmq.pruning", "always");
    set(&ctx, "rmq.pruning_memory", "1");
    let sql = "SELECT q.id, count(*) FROM q JOIN p ON p.k BETWEEN q.a AND q.a + 1 GROUP BY q.id";
    let done = files.compare(&ctx, sql).await;
    assert_eq!(done.scanned, 0);
}
