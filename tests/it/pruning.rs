//! Range joins that read only what their windows reach of files, compared with DataFusion's own plans over the same
//! files.
//!
//! `RMQ_TEST_SEED` repeats a run, `RMQ_TEST_CASE` the queries of one pair of tables; `RMQ_CASES` makes it longer.

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::arrow::array::{
    ArrayRef, AsArray, Float64Array, Int64Array, RecordBatch, StringArray, UInt64Array,
};
use datafusion::arrow::datatypes::Int64Type;
use datafusion::common::{Result, resources_err};
use datafusion::execution::memory_pool::{
    GreedyMemoryPool, MemoryLimit, MemoryPool, MemoryReservation,
};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::errors::ParquetError;
use datafusion::parquet::file::properties::{EnabledStatistics, WriterProperties};
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use tempfile::TempDir;

use crate::range_join::{Tables, answer, is_refusal, lines, metric};
use crate::support::{error, released, run, set, with_extension};
use rmq_testing::{Random, cases_with_queries, is_usual};

/// The number of queries of the random test, unless `RMQ_CASES` overrides it.
const CASES: usize = 480;

/// Seeds of cases that once failed.
const FAILED: [u64; 2] = [13695380281615739547, 3285858631686334940];

/// Queries over the same pair of tables.
const QUERIES: usize = 8;

/// How rows are written.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    pub in_group: usize,
    pub in_page: usize,
    pub statistics: EnabledStatistics,
    pub has_bloom_filters: bool,
}

impl Layout {
    pub fn draw(random: &mut Random) -> Self {
        Self {
            in_group: [1, 7, 40, 1000][random.below(4)],
            in_page: [1, 5, 1000][random.below(3)],
            statistics: [
                EnabledStatistics::None,
                EnabledStatistics::Chunk,
                EnabledStatistics::Page,
                EnabledStatistics::Page,
            ][random.below(4)],
            has_bloom_filters: random.below(2) == 0,
        }
    }

    pub fn write(self, path: &Path, batch: &RecordBatch) -> std::result::Result<(), ParquetError> {
        let properties = WriterProperties::builder()
            .set_max_row_group_row_count(Some(self.in_group))
            .set_data_page_row_count_limit(self.in_page)
            .set_write_batch_size(self.in_page.min(1024))
            .set_statistics_enabled(self.statistics)
            .set_bloom_filter_enabled(self.has_bloom_filters)
            .build();
        let file = File::create(path)?;
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties))?;
        writer.write(batch)?;
        writer.close()?;
        Ok(())
    }
}

/// Groups of small row groups and pages.
pub const SMALL: Layout = Layout {
    in_group: 500,
    in_page: 100,
    statistics: EnabledStatistics::Page,
    has_bloom_filters: false,
};

pub async fn register(ctx: &SessionContext, name: &str, folder: &Path) {
    ctx.deregister_table(name).expect("the name is valid");
    let folder = folder.to_string_lossy().into_owned();
    let registered = ctx.register_parquet(name, folder, ParquetReadOptions::default());
    registered.await.expect("a folder of Parquet files");
}

/// Puts a table of both sessions into files, in the order of a column or not. Returns whether Parquet has all of its
/// types, and DataFusion reads the values that were written.
async fn into_files(
    tables: &Tables,
    (name, column): (&str, &str),
    folder: &Path,
    random: &mut Random,
) -> bool {
    let order = [column, "id"][random.below(2)];
    let sql = format!("SELECT * FROM {name} ORDER BY {order}, id");
    let batch = run(&tables.without, &sql)
        .await
        .expect("the rows of a table");
    let files = 1 + random.below(3);
    let size = batch.num_rows().div_ceil(files).max(1);
    for file in 0..files {
        let first = (file * size).min(batch.num_rows());
        let rows = batch.slice(first, size.min(batch.num_rows() - first));
        let layout = Layout::draw(random);
        if layout
            .write(&folder.join(format!("{file}.parquet")), &rows)
            .is_err()
        {
            return false;
        }
    }
    let pushdown = ["true", "false"][random.below(2)];
    for ctx in [&tables.with, &tables.without] {
        set(
            ctx,
            "datafusion.execution.parquet.pushdown_filters",
            pushdown,
        );
        // Files without -0.0 would be read for 0.0 (docs/limits.md).
        let filters = "datafusion.optimizer.enable_join_dynamic_filter_pushdown";
        set(ctx, filters, "false");
        register(ctx, name, folder).await;
    }
    // In a file of NaN and one other value, each is read as the other value (docs/limits.md): rows are then not in
    // the order in which the first of equal keys is expected.
    let read = answer(&tables.without, &format!("SELECT * FROM {name}")).await;
    let (read, written) = (read.expect("the table is there").0, lines(&[batch]));
    let is_misread = read != written;
    assert!(
        !is_misread || written.iter().any(|row| row.contains("NaN")),
        "{read:?} instead of {written:?}"
    );
    !is_misread
}

/// The sorted rows, and how many rows came from a scan that prunes, if one did.
pub async fn pruned_answer(
    ctx: &SessionContext,
    sql: &str,
) -> datafusion::common::Result<(Vec<String>, bool)> {
    let plan = ctx.sql(sql).await?.create_physical_plan().await?;
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
    Ok((lines(&batches), is_pruned(&plan)))
}

/// Whether a range join of a plan that has run was pruned.
fn is_pruned(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let metrics = plan.metrics().filter(|_| plan.name() == "RangeJoinExec");
    let is_scanned = |name: &str| name == "rows_scanned";
    metrics.is_some_and(|all| all.iter().any(|metric| is_scanned(metric.value().name())))
        || plan.children().into_iter().any(is_pruned)
}

#[tokio::test(flavor = "multi_thread")]
async fn pruned_joins_return_what_datafusion_returns() {
    let seeds = cases_with_queries("pruned joins", &FAILED, CASES, QUERIES);
    let (mut asked, mut pruned) = (0, 0);
    for seed in seeds {
        let random = &mut Random::of_case(seed);
        let rows = (
            [0, 1, 30, 200][random.below(4)],
            [0, 1, 3, 20][random.below(4)],
        );
        let batch_size = [3, 16, 8192][random.below(3)];
        let tables = Tables::sized(random, rows, batch_size);
        let [folder, of_q] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        if !into_files(&tables, ("p", "k"), folder.path(), random).await {
            continue;
        }
        // What does not fit into the memory below is known by the statistics of these.
        if random.below(2) == 0 {
            into_files(&tables, ("q", "a"), of_q.path(), random).await;
        }
        set(&tables.with, "rmq.pruning", "always");
        set(
            &tables.with,
            "rmq.keep_indexes",
            ["true", "false"][random.below(2)],
        );
        set(&tables.with, "rmq.range_joins", "always");
        // Sometimes less than one batch.
        let memory = ["64M", "64M", "64M", "100"][random.below(4)];
        set(&tables.with, "rmq.pruning_memory", memory);
        for _ in 0..QUERIES {
            let (with, without) = match random.below(3) {
                0 => tables.correlated(random),
                1 => tables.nearest(random),
                _ => {
                    let sql = tables.grouped_join(random);
                    (sql.clone(), sql)
                }
            };
            let Ok((expected, _)) = answer(&tables.without, &without).await else {
                continue;
            };
            asked += 1;
            match pruned_answer(&tables.with, &with).await {
                Ok((found, was_pruned)) => {
                    assert_eq!(found, expected, "tables of seed {seed}: {with}");
                    pruned += usize::from(was_pruned);
                }
                Err(error) if with != without && is_refusal(&error) => {}
                Err(error) => panic!("tables of seed {seed}: {with}: {error}"),
            }
        }
    }
    println!("{pruned} of {asked} were pruned");
    assert!(pruned * 8 > asked || !is_usual(), "{pruned} of {asked}");
}

/// A folder with a table `p` of 100,000 rows by time and one with few windows `q`, and a session with both.
pub struct Files {
    folder: TempDir,
    pub ctx: SessionContext,
    /// Reads all rows, and keeps none.
    plain: SessionContext,
}

pub const ROWS: i64 = 100_000;

/// Rows of `p`: `k` is the time, `s` one of seven symbols, `v` a value.
fn rows_of_p(first: i64, count: i64) -> RecordBatch {
    let column = |value: fn(i64) -> i64| -> ArrayRef {
        Arc::new((first..first + count).map(value).collect::<Int64Array>())
    };
    let names = (first..first + count).map(|i| Some(format!("s{}", i % 7)));
    let names: ArrayRef = Arc::new(names.collect::<StringArray>());
    RecordBatch::try_from_iter_with_nullable([
        ("k", column(|i| i * 10), true),
        ("s", column(|i| i % 7), true),
        ("v", column(|i| i * 7919 % 10_007), true),
        ("t", names, true),
    ])
    .expect("columns of one length")
}

impl Files {
    pub async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let p = folder.path().join("p");
        std::fs::create_dir(&p).expect("a new folder");
        Self::write_rows(&p, 0);
        let session = || async {
            let config = SessionConfig::new().with_target_partitions(2);
            let ctx = with_extension(SessionContext::new_with_config(config));
            register(&ctx, "p", &p).await;
            let q = "CREATE TABLE q AS SELECT value AS id, 300000 + value * 50 AS a, value % 7 AS s FROM generate_series(0, 49)";
            run(&ctx, q).await.expect("a table");
            ctx
        };
        let (ctx, plain) = (session().await, session().await);
        set(&plain, "rmq.pruning", "never");
        set(&plain, "rmq.keep_indexes", "false");
        // Files that were just written may change without a trace: a side is kept once they are older.
        crate::kept::settle().await;
        Self { folder, ctx, plain }
    }

    /// The session, and the one that reads all rows.
    pub fn sessions(&self) -> [&SessionContext; 2] {
        [&self.ctx, &self.plain]
    }

    /// Writes the rows from this one on.
    fn write_rows(p: &Path, first: i64) {
        for (name, first) in [("a", first), ("b", first + ROWS / 2)] {
            let rows = rows_of_p(first, ROWS / 2);
            let path = p.join(format!("{name}.parquet"));
            SMALL.write(&path, &rows).expect("a file");
        }
    }

    /// Replaces the files of p by others with rows from this one on.
    pub fn replace(&self, first: i64) {
        Self::write_rows(&self.folder.path().join("p"), first);
    }

    /// Makes the session forget what it has kept of the table.
    pub async fn begin_anew(&self) {
        set(&self.ctx, "rmq.keep_indexes", "false");
        set(&self.ctx, "rmq.keep_indexes", "true");
        self.ctx.deregister_table("p").expect("the name is valid");
        register(&self.ctx, "p", &self.folder.path().join("p")).await;
    }

    /// Runs a query with pruning and without. Returns the rows that came from the scan, and those that were built.
    pub async fn compare(&self, sql: &str) -> (usize, usize) {
        let (expected, _) = answer(&self.plain, sql).await.expect(sql);
        assert!(!expected.is_empty(), "{sql}");
        let plan = self.ctx.sql(sql).await.expect(sql);
        let plan = plan.create_physical_plan().await.expect(sql);
        let found = collect(Arc::clone(&plan), self.ctx.task_ctx()).await;
        assert_eq!(lines(&found.expect(sql)), expected, "{sql}");
        (metric(&plan, "rows_scanned"), metric(&plan, "build_rows"))
    }
}

/// A query with a closed window for each row of q.
const WINDOWS: &str = "SELECT q.id, (SELECT min(p.v) FROM p WHERE p.s = q.s AND p.k BETWEEN q.a - 500 AND q.a) FROM q";

#[tokio::test(flavor = "multi_thread")]
async fn each_form_reads_what_its_windows_reach() {
    let files = Files::new().await;
    let few = 4 * 500;
    for sql in [
        WINDOWS,
        "SELECT q.id, min(p.v), count(*) FROM q JOIN p ON p.s = q.s AND p.k BETWEEN q.a - 500 AND q.a GROUP BY q.id",
        "SELECT q.id, p.v FROM q JOIN p ON p.s = q.s AND p.k BETWEEN q.a - 500 AND q.a",
        "SELECT q.id, p.v FROM q LEFT JOIN p ON p.s = q.s AND p.k BETWEEN q.a - 500 AND q.a",
        "SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE p.s = q.s AND p.k > q.a AND p.k < q.a + 100)",
        "SELECT q.id FROM q WHERE NOT EXISTS (SELECT 1 FROM p WHERE p.s = q.s AND p.k > q.a AND p.k < q.a + 60)",
        "SELECT q.id FROM q WHERE q.s IN (SELECT p.s FROM p WHERE p.k > q.a AND p.k < q.a + 100)",
        "SELECT q.id, x.v FROM q CROSS JOIN LATERAL (SELECT p.v FROM p WHERE p.s = q.s AND p.k BETWEEN q.a AND q.a + 300 ORDER BY p.k DESC LIMIT 2) x",
        "SELECT q.id, x.v FROM q CROSS JOIN LATERAL (SELECT p.v FROM p WHERE p.k BETWEEN q.a AND q.a + 300 AND p.v < q.a % 9000 ORDER BY p.k LIMIT 1) x",
        "SELECT q.id, (SELECT count(*) FROM p WHERE p.k >= q.a AND p.k < q.a + 300 AND p.v > 5000) FROM q",
        "SELECT q.id, (SELECT max(x.v) FROM (SELECT k, v FROM p WHERE s < 5 UNION ALL SELECT k, v FROM p WHERE s > 5) x WHERE x.k BETWEEN q.a AND q.a + 300) FROM q",
        // Columns that have each other's names.
        "SELECT q.id, (SELECT max(x.v) FROM (SELECT k, v FROM p UNION ALL SELECT v AS k, k AS v FROM (SELECT v, k FROM p)) x WHERE x.k BETWEEN q.a AND q.a + 300) FROM q",
    ] {
        let (scanned, built) = files.compare(sql).await;
        assert!(
            scanned > 0 && scanned <= 2 * few,
            "{scanned} scanned: {sql}"
        );
        assert!(built <= scanned, "{built} of {scanned} built: {sql}");
        files.begin_anew().await;
    }
}

/// A pool with memory for everything but rows that are read ahead, of which it takes so many bytes: as if another
/// query took the rest meanwhile.
#[derive(Debug)]
struct ShortOfProbeRows {
    left: AtomicUsize,
    refused: AtomicUsize,
    all: GreedyMemoryPool,
}

impl fmt::Display for ShortOfProbeRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("short of probe rows")
    }
}

impl MemoryPool for ShortOfProbeRows {
    fn name(&self) -> &str {
        "short of probe rows"
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.all.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.all.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        if reservation.consumer().name().starts_with("RangeJoinProbe") {
            let less = |left: usize| left.checked_sub(additional);
            let order = Ordering::Relaxed;
            if self.left.fetch_update(order, order, less).is_err() {
                self.refused.fetch_add(1, order);
                return resources_err!("no memory for {additional} bytes of probe rows");
            }
        }
        self.all.try_grow(reservation, additional)
    }

    fn reserved(&self) -> usize {
        self.all.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.all.memory_limit()
    }
}

/// Memory that runs out while probe rows are read ahead: those that have been read are joined, and the rest streams.
#[tokio::test(flavor = "multi_thread")]
async fn probe_rows_stream_where_memory_runs_out() {
    let files = Files::new().await;
    let q = "CREATE TABLE many AS SELECT value AS id, 300000 + value % 50 * 50 AS a, value % 7 AS s FROM generate_series(0, 9999)";
    run(&files.plain, q).await.expect("a table");
    for sql in [
        WINDOWS,
        "SELECT q.id, p.v FROM q LEFT JOIN p ON p.s = q.s AND p.k BETWEEN q.a - 500 AND q.a",
        "SELECT q.id, (SELECT max(p.k) FROM p WHERE p.s = q.s AND p.k <= q.a) FROM q",
    ] {
        let sql = sql.replace("FROM q", "FROM many q");
        let expected = answer(&files.plain, &sql).await.expect(&sql).0;
        assert!(expected.len() >= 10_000, "{sql}");
        for left in [0, 10_000, 100_000, 1 << 30] {
            let pool = Arc::new(ShortOfProbeRows {
                left: AtomicUsize::new(left),
                refused: AtomicUsize::new(0),
                all: GreedyMemoryPool::new(1 << 30),
            });
            let config = SessionConfig::new()
                .with_target_partitions(2)
                .with_batch_size(500);
            let ctx = with_extension(crate::support::context_of_pool(config, pool.clone()));
            set(&ctx, "rmq.pruning", "always");
            set(&ctx, "rmq.keep_indexes", "false");
            register(&ctx, "p", &files.folder.path().join("p")).await;
            let many = files.plain.table_provider("many").await.expect("a table");
            ctx.register_table("many", many).expect("a table");
            let plan = ctx.sql(&sql).await.expect(&sql);
            let plan = plan.create_physical_plan().await.expect(&sql);
            let found = collect(Arc::clone(&plan), ctx.task_ctx()).await;
            assert!(lines(&found.expect(&sql)) == expected, "{left}: {sql}");
            let is_short = left < 1 << 30;
            assert_eq!(
                pool.refused.load(Ordering::Relaxed) > 0,
                is_short,
                "{left}: {sql}"
            );
            let scanned = metric(&plan, "rows_scanned");
            assert_eq!(scanned == 0, is_short, "{scanned} scanned, {left}: {sql}");
            drop(plan);
            let pool: Arc<dyn MemoryPool> = pool;
            released(&pool).await;
        }
    }
}

/// A second way of knowing that rows are dropped for a reason: with a wrong reach, answers would be wrong.
#[tokio::test(flavor = "multi_thread")]
async fn what_no_window_reaches_is_dropped() {
    let files = Files::new().await;
    let (scanned, built) = files.compare(WINDOWS).await;
    // 50 windows of 51 times, which begin within 2450, with all of seven symbols.
    assert!((295..400).contains(&built), "{built} of {scanned}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_windows_read_nothing() {
    let files = Files::new().await;
    let none = WINDOWS.replace("q.a - 500", "q.a + 500");
    assert_eq!(files.compare(&none).await, (0, 0));
    let null = WINDOWS.replace("q.a - 500", "nullif(q.a, q.a)");
    assert_eq!(files.compare(&null).await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_over_all_of_the_time_read_and_keep_all() {
    let files = Files::new().await;
    let all = WINDOWS
        .replace("q.a - 500", "q.a - 900000 + q.id * 0")
        .replace("AND q.a)", "AND q.a + 800000)");
    assert_eq!(files.compare(&all).await, (0, ROWS as usize));
    let (_, built) = files.compare(&all).await;
    assert_eq!(built, 0, "the rows are kept");
}

/// To make out a window takes longer than to read and sort a row.
#[tokio::test(flavor = "multi_thread")]
async fn with_about_as_many_windows_as_rows_all_are_read() {
    let files = Files::new().await;
    for (rows, is_pruned) in [(ROWS / 3, true), (ROWS, false)] {
        for ctx in [&files.ctx, &files.plain] {
            let q = format!(
                "CREATE OR REPLACE TABLE many AS SELECT value AS id, 300000 + value % 50 * 50 AS a, value % 7 AS s FROM generate_series(1, {rows})"
            );
            run(ctx, &q).await.expect("a table");
        }
        let many = WINDOWS.replace("FROM q", "FROM many q");
        let (scanned, built) = files.compare(&many).await;
        let is_less = scanned > 0 && built < 400;
        assert_eq!(is_less, is_pruned, "{built} of {scanned}");
        assert!(is_less || (scanned, built) == (0, ROWS as usize));
        files.begin_anew().await;
    }
}

/// A probe side that is not read ahead has its windows between the extremes of its row groups.
#[tokio::test(flavor = "multi_thread")]
async fn row_groups_of_the_probe_side_tell_what_windows_reach() {
    let files = Files::new().await;
    let folder = tempfile::tempdir().expect("a folder");
    // Two stretches of the time, far apart, and a row group without a time.
    let times = |first: i64| (0..40).map(move |i| Some(first + i * 10));
    let times = times(900).chain([None; 40]).chain(times(990_000));
    let times: ArrayRef = Arc::new(times.collect::<Int64Array>());
    let ids: ArrayRef = Arc::new((0..120).collect::<Int64Array>());
    let rows = RecordBatch::try_from_iter([("id", ids), ("a", times)]).expect("two columns");
    let layout = Layout {
        in_group: 20,
        ..SMALL
    };
    for file in 0..2 {
        let path = folder.path().join(format!("{file}.parquet"));
        layout
            .write(&path, &rows.slice(file * 60, 60))
            .expect("a file");
    }
    for ctx in [&files.ctx, &files.plain] {
        register(ctx, "stretches", folder.path()).await;
    }
    set(&files.ctx, "rmq.pruning_memory", "1");
    for (filter, upper) in [
        ("", "q.a"),
        ("WHERE q.id % 3 > 0", "q.a + 50"),
        // Nothing is known of this bound.
        ("", "q.a + abs(q.a - q.a)"),
    ] {
        let sql = format!(
            "SELECT q.id, (SELECT min(p.v) FROM p WHERE p.k BETWEEN q.a - 500 AND {upper}) FROM stretches q {filter}"
        );
        let (scanned, built) = files.compare(&sql).await;
        let rows = if upper.contains("abs") {
            ROWS as usize
        } else {
            400
        };
        assert!(built > 0 && built <= rows, "{built} of {scanned}: {sql}");
        files.begin_anew().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn open_windows_are_pruned_at_their_end() {
    let files = Files::new().await;
    let open =
        "SELECT q.id, (SELECT min(p.v) FROM p WHERE p.s = q.s AND p.k >= q.a + 690000) FROM q";
    let (scanned, built) = files.compare(open).await;
    assert!(scanned < 2000 && built < 1200, "{built} of {scanned}");
}

/// Queries that together read as many rows as there are read no more than that before all are kept.
#[tokio::test(flavor = "multi_thread")]
async fn all_rows_are_kept_once_queries_have_read_as_many() {
    let files = Files::new().await;
    let (mut read, mut queries) = (0, 0);
    loop {
        let windows = WINDOWS.replace("q.a - 500", &format!("q.a - {}", 150_000 + queries));
        let (scanned, built) = files.compare(&windows).await;
        queries += 1;
        assert!(queries < 20, "{read} rows read");
        if scanned == 0 {
            assert_eq!(built, ROWS as usize, "after {queries} queries");
            break;
        }
        read += scanned;
    }
    assert!(
        read >= ROWS as usize && queries > 2,
        "{read} rows in {queries} queries"
    );
    assert_eq!(
        files.compare(WINDOWS).await,
        (0, 0),
        "a kept side answers first"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn budgets_and_limits_leave_the_answer_as_it_is() {
    let files = Files::new().await;
    for (memory, is_pruned) in [("0", false), ("1", false), ("100G", true)] {
        set(&files.ctx, "rmq.pruning_memory", memory);
        let (scanned, _) = files.compare(WINDOWS).await;
        assert_eq!(scanned > 0, is_pruned, "{memory}");
        files.begin_anew().await;
    }
    let limited = format!("SELECT count(*) FROM ({WINDOWS} LIMIT 3)");
    files.compare(&limited).await;
    let told = error(&files.ctx, "SET rmq.pruning_memory = 'much'").await;
    assert!(
        told.contains("rmq.pruning_memory = 'much': expected a whole number of bytes"),
        "{told}"
    );
    let told = error(&files.ctx, "SET rmq.pruning = 'yes'").await;
    assert!(
        told.contains("rmq.pruning = 'yes': expected 'auto', 'always' or 'never'"),
        "{told}"
    );
}

/// Statistics leave NaN out, and order texts that they cut short.
#[tokio::test(flavor = "multi_thread")]
async fn keys_whose_statistics_tell_less_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows = 3000;
    let long = |i: usize| format!("{}{:05}", "x".repeat(100), i);
    let texts: StringArray = (0..rows).map(|i| Some(long(i))).collect();
    let floats = (0..rows).map(|i| match i % 500 {
        7 => f64::NAN,
        8 => -f64::NAN,
        9 => -0.0,
        10 => 0.0,
        11 => f64::INFINITY,
        _ => i as f64,
    });
    let floats: Float64Array = floats.map(Some).collect();
    let ids: UInt64Array = (0..rows as u64).map(Some).collect();
    let batch = RecordBatch::try_from_iter([
        ("i", Arc::new(ids) as ArrayRef),
        ("f", Arc::new(floats) as ArrayRef),
        ("t", Arc::new(texts) as ArrayRef),
    ]);
    let layout = Layout {
        in_group: 100,
        in_page: 10,
        ..SMALL
    };
    let batch = batch.expect("columns of one length");
    layout
        .write(&folder.path().join("p.parquet"), &batch)
        .expect("a file");
    let (with, without) = (with_extension(SessionContext::new()), SessionContext::new());
    for ctx in [&with, &without] {
        register(ctx, "p", folder.path()).await;
        for sql in [
            "CREATE TABLE q AS SELECT value AS id, value * 1.0::DOUBLE AS f, concat(repeat('x', 100), lpad(value::VARCHAR, 5, '0')) AS t FROM generate_series(0, 9)",
            "CREATE TABLE n AS SELECT column1 AS id, column2::DOUBLE AS lo, column3::DOUBLE AS hi FROM (VALUES (1, 'NaN', 'NaN'), (2, '0.0', '0.0'), (3, '-0.0', '-0.0'), (4, '2900', 'inf'), (5, '2900', 'NaN'), (6, '-inf', '-0.0'), (7, 'inf', 'inf'))",
        ] {
            run(ctx, sql).await.expect(sql);
        }
    }
    set(&with, "rmq.pruning", "always");
    set(&with, "rmq.range_joins", "always");
    let mut pruned = 0;
    for sql in [
        "SELECT q.id, count(*) FROM q JOIN p ON p.t BETWEEN q.t AND concat(q.t, 'z') GROUP BY q.id",
        "SELECT q.id, count(*) FROM q JOIN p ON p.f BETWEEN q.f AND q.f + 3 GROUP BY q.id",
        "SELECT q.id, count(*) FROM q JOIN p ON p.f >= q.f + 2990 GROUP BY q.id",
        "SELECT q.id, count(*) FROM q JOIN p ON p.f <= q.f - 5 GROUP BY q.id",
        "SELECT n.id, count(*) FROM n JOIN p ON p.f BETWEEN n.lo AND n.hi GROUP BY n.id",
        "SELECT n.id, count(*) FROM n JOIN p ON p.f >= n.lo GROUP BY n.id",
    ] {
        let (expected, _) = answer(&without, sql).await.expect(sql);
        let (found, was_pruned) = pruned_answer(&with, sql).await.expect(sql);
        assert_eq!(found, expected, "{sql}");
        pruned += usize::from(was_pruned);
    }
    assert!(pruned >= 3, "{pruned}");
}

/// A file that lacks the range key, or has it in a narrower type, and partitions by folder.
#[tokio::test(flavor = "multi_thread")]
async fn files_of_other_schemas_and_folders_are_pruned() {
    let folder = tempfile::tempdir().expect("a folder");
    let all = rows_of_p(0, 4000);
    for day in 0..4 {
        let path = folder.path().join(format!("day={day}"));
        std::fs::create_dir(&path).expect("a new folder");
        let rows = all.slice(day * 1000, 1000);
        let rows = match day {
            // An older file, without the range key.
            3 => rows.project(&[1, 2]).expect("two columns"),
            _ => rows,
        };
        SMALL.write(&path.join("a.parquet"), &rows).expect("a file");
    }
    let (with, without) = (with_extension(SessionContext::new()), SessionContext::new());
    for ctx in [&with, &without] {
        let p = format!(
            "CREATE EXTERNAL TABLE p (k BIGINT, s BIGINT, v BIGINT, day INT) STORED AS PARQUET PARTITIONED BY (day) LOCATION '{}'",
            folder.path().display()
        );
        let q = "CREATE TABLE q AS SELECT value AS id, (9500 + value * 100)::BIGINT AS a, value % 7 AS s, (value % 4)::INT AS day FROM generate_series(0, 9)";
        for sql in [p.as_str(), q] {
            run(ctx, sql).await.expect(sql);
        }
    }
    set(&with, "rmq.pruning", "always");
    set(&with, "rmq.range_joins", "always");
    for sql in [
        "SELECT q.id, count(*), min(p.v) FROM q JOIN p ON p.s = q.s AND p.k BETWEEN q.a AND q.a + 900 GROUP BY q.id",
        "SELECT q.id, count(*), min(p.v) FROM q JOIN p ON p.day = q.day AND p.k BETWEEN q.a AND q.a + 900 GROUP BY q.id",
        "SELECT q.id, count(*), min(p.v) FROM q JOIN p ON p.s = q.s AND p.day BETWEEN q.day AND q.day + 1 GROUP BY q.id",
    ] {
        let (expected, _) = answer(&without, sql).await.expect(sql);
        let (found, was_pruned) = pruned_answer(&with, sql).await.expect(sql);
        assert_eq!(found, expected, "{sql}");
        assert!(was_pruned, "{sql}");
    }
}

/// EXPLAIN says that a join may be pruned, and EXPLAIN ANALYZE what it has read.
#[tokio::test(flavor = "multi_thread")]
async fn explain_tells_what_was_read() {
    let files = Files::new().await;
    let text = |batch: &RecordBatch| lines(std::slice::from_ref(batch)).join("\n");
    set(&files.ctx, "datafusion.explain.format", "indent");
    let told = run(&files.ctx, &format!("EXPLAIN {WINDOWS}"))
        .await
        .expect("a plan");
    assert!(text(&told).contains("index=pruned"), "{}", text(&told));
    let told = run(&files.ctx, &format!("EXPLAIN ANALYZE {WINDOWS}"))
        .await
        .expect("a plan");
    for part in [
        "index=pruned",
        "rows_scanned=",
        "rows_dropped=",
        "row_groups_pruned_statistics=",
    ] {
        assert!(text(&told).contains(part), "{part}: {}", text(&told));
    }
}

/// Probe rows that fill the memory stream as they would have.
#[tokio::test(flavor = "multi_thread")]
async fn memory_that_runs_out_ends_the_reading_ahead() {
    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
    let files = Files::new().await;
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(30 << 20));
    let config = SessionConfig::new().with_target_partitions(2);
    let ctx = with_extension(crate::support::context_of_pool(config, Arc::clone(&pool)));
    set(&ctx, "rmq.keep_indexes", "false");
    register(&ctx, "p", &files.folder.path().join("p")).await;
    set(&ctx, "rmq.keep_indexes", "false");
    let many = "SELECT count(*), sum(m) FROM (SELECT (SELECT min(p.v) FROM p WHERE p.s = q.s AND p.k BETWEEN q.a - 500 AND q.a) AS m FROM (SELECT value % 1000 + 300000 AS a, value % 7 AS s, repeat('x', 200) AS filler, value FROM generate_series(0, 299999)) q WHERE length(q.filler) = 200 AND q.value >= 0)";
    let batch = run(&ctx, many).await.expect("an answer");
    assert_eq!(
        batch.column(0).as_primitive::<Int64Type>().value(0),
        300_000
    );
    assert_eq!(pool.reserved(), 0, "everything was released");
}

/// A cancelled query leaves nothing of what it has read ahead.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_query_leaves_nothing() {
    let files = Files::new().await;
    let pool = Arc::clone(&files.ctx.runtime_env().memory_pool);
    set(&files.ctx, "rmq.keep_indexes", "false");
    for wait in [0, 1, 3, 10] {
        let plan = files.ctx.sql(WINDOWS).await.expect("a plan");
        let plan = plan.create_physical_plan().await.expect("a plan");
        let running = collect(plan, files.ctx.task_ctx());
        let wait = std::time::Duration::from_millis(wait);
        let _ = tokio::time::timeout(wait, running).await;
    }
    released(&pool).await;
}
