//! Groups over range joins that are single rows, and groups that are not: compared with the same queries without range
//! joins. Also errors, cancellation, memory, and partitions that are not read.
//!
//! `RMQ_TEST_SEED` repeats a run, `RMQ_TEST_CASE` the queries of one pair of tables; `RMQ_CASES` makes it longer.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, UInt64Array};
use datafusion::arrow::compute::{cast, concat, take};
use datafusion::arrow::datatypes::{DataType, SchemaRef, TimeUnit};
use datafusion::catalog::TableProvider;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::common::resources_datafusion_err;
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryLimit, MemoryPool, MemoryReservation,
};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::{StreamExt, TryStreamExt, stream};

use crate::range_join::{lines, register_partitions};
use crate::support::{run, session_of_pool, set};
use rmq_testing::{Random, cases, is_usual};

/// The default number of random tables; `RMQ_CASES` sets another.
const CASES: usize = 40;

/// Seeds of cases that failed in the past.
const FAILED: [u64; 0] = [];

/// For each `UniqueGroupsExec` of a plan, whether every group was a single row; `None` if it was not executed.
pub fn found(plan: &Arc<dyn ExecutionPlan>) -> Vec<Option<bool>> {
    let mut all: Vec<_> = plan.children().into_iter().flat_map(found).collect();
    if plan.name() == "UniqueGroupsExec" {
        let metrics = plan.metrics().expect("it has metrics");
        let unique = metrics.sum(|m| m.value().name() == "unique_groups");
        all.push(unique.map(|count| count.as_usize() == 1));
    }
    all
}

/// The output rows of a plan's operators with this name.
fn rows_of(plan: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    let below = plan.children().into_iter().map(|p| rows_of(p, name));
    let own = plan.metrics().filter(|_| plan.name() == name);
    own.and_then(|m| m.output_rows()).unwrap_or(0) + below.sum::<usize>()
}

pub async fn planned(ctx: &SessionContext, sql: &str) -> Result<Arc<dyn ExecutionPlan>> {
    ctx.sql(sql).await?.create_physical_plan().await
}

/// The sorted rows, and the executed plan.
pub async fn answer(
    ctx: &SessionContext,
    sql: &str,
) -> Result<(Vec<String>, Arc<dyn ExecutionPlan>)> {
    let plan = planned(ctx, sql).await?;
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
    Ok((lines(&batches), plan))
}

/// The sorted rows where range joins are switched off.
pub async fn plain_answer(ctx: &SessionContext, sql: &str) -> Vec<String> {
    set(ctx, "rmq.rewrite", "false");
    let (rows, plan) = answer(ctx, sql).await.expect(sql);
    set(ctx, "rmq.rewrite", "true");
    assert_eq!(found(&plan), [], "{sql}");
    rows
}

/// A partition that is read as a stream: no rule or operator sees its batches beforehand.
#[derive(Debug)]
struct Streamed {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

impl PartitionStream for Streamed {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let batches = stream::iter(self.batches.clone()).map(Ok);
        Box::pin(RecordBatchStreamAdapter::new(
            Arc::clone(&self.schema),
            batches,
        ))
    }
}

/// Registers the rows and partitions of a table in memory as a table of streams, which may have the same name.
fn register_streamed(ctx: &SessionContext, table: &str, name: &str) {
    let provider = ctx.deregister_table(table).expect("the session has tables");
    let provider = provider.expect("the table is registered");
    let memory = provider
        .downcast_ref::<MemTable>()
        .expect("a table in memory");
    let schema = memory.schema();
    let partitions = memory.batches.iter().map(|batches| {
        let batches = batches.try_read().expect("nobody writes").clone();
        let schema = Arc::clone(&schema);
        Arc::new(Streamed { schema, batches }) as _
    });
    let streamed = StreamingTable::try_new(Arc::clone(&schema), partitions.collect());
    let streamed = Arc::new(streamed.expect("partitions of one schema"));
    if name != table {
        ctx.register_table(table, Arc::clone(&provider))
            .expect("it was removed");
    }
    ctx.register_table(name, streamed)
        .expect("the table is new");
}

/// The kind of ids of the probe side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ids {
    Ascending,
    /// Ascending in each batch, the batches in any order.
    Blocks,
    Shuffled,
    /// Each id twice in succession.
    Pairs,
    /// All ids, and then all again.
    Repeated,
    Null,
}

/// Makes `n` distinct ascending ids of a random type: small ones, ones near the type's limits, or ones with gaps.
fn ids(random: &mut Random, n: usize) -> ArrayRef {
    if random.below(4) == 0 {
        let first = [0, u64::MAX - n as u64][random.below(2)];
        return Arc::new((0..n as u64).map(|i| first + i).collect::<UInt64Array>());
    }
    let first = [0, i64::MIN, i64::MAX - 9 * n as i64 - 9, -(n as i64)][random.below(4)];
    let mut id = first;
    let wide = (0..n).map(|_| {
        id += 1 + random.below(8) as i64;
        id
    });
    let wide: ArrayRef = Arc::new(wide.collect::<Int64Array>());
    let narrow: ArrayRef = Arc::new((0..n as i64).map(|i| i - 30).collect::<Int64Array>());
    let times: ArrayRef = Arc::new((0..n as i64).map(|i| i * 1000).collect::<Int64Array>());
    let utc = Some(Arc::from("+00:00"));
    let (of, data_type) = match random.below(10) {
        0 => (narrow, DataType::Int8),
        1 => (narrow, DataType::Int16),
        2 => (narrow, DataType::Int32),
        3 => (times, DataType::UInt32),
        4 => (times, DataType::Date64),
        5 => (times, DataType::Time64(TimeUnit::Nanosecond)),
        6 => (wide, DataType::Timestamp(TimeUnit::Nanosecond, utc)),
        7 => (times, DataType::Timestamp(TimeUnit::Second, None)),
        8 => (times, DataType::Duration(TimeUnit::Microsecond)),
        _ => (wide, DataType::Int64),
    };
    cast(&of, &data_type).expect("the values fit the type")
}

/// A session with two random tables, and the kind of ids of `q`.
fn tables(random: &mut Random) -> (SessionContext, Ids) {
    let config = SessionConfig::new()
        .with_target_partitions(1 + random.below(4))
        .with_batch_size([3, 16, 8192][random.below(3)]);
    let ctx = SessionContext::new_with_config(config);
    datafusion_rmq::register(&ctx);
    if random.below(2) == 0 {
        // Partitioned hash joins for any size.
        for name in ["", "_rows"] {
            let name = format!("datafusion.optimizer.hash_join_single_partition_threshold{name}");
            set(&ctx, &name, "0");
        }
    }
    let like = [
        Ids::Ascending,
        Ids::Ascending,
        Ids::Blocks,
        Ids::Shuffled,
        Ids::Pairs,
        Ids::Repeated,
        Ids::Null,
    ][random.below(7)];
    let n = 4 + random.below(60);
    let id = ids(random, n);
    let (a, b) = (n / 3, n / 2);
    let order: Vec<Option<u64>> = match like {
        Ids::Ascending => (0..n as u64).map(Some).collect(),
        Ids::Blocks => (a..b)
            .chain(0..a)
            .chain(b..n)
            .map(|i| Some(i as u64))
            .collect(),
        Ids::Shuffled => {
            let mut order: Vec<_> = (0..n as u64).map(Some).collect();
            for i in 1..n {
                order.swap(i, random.below(i + 1));
            }
            order
        }
        Ids::Pairs => (0..n as u64).flat_map(|i| [Some(i); 2]).collect(),
        Ids::Repeated => (0..n as u64).chain(0..n as u64).map(Some).collect(),
        Ids::Null => (0..n as u64)
            .map(|i| (i != n as u64 / 2).then_some(i))
            .collect(),
    };
    let rows = order.len();
    let id = take(&id, &UInt64Array::from(order), None).expect("indexes of ids");
    let mut small = |n: usize, below: usize| -> ArrayRef {
        let values = (0..n).map(|_| (random.below(9) > 0).then(|| random.below(below) as i64));
        Arc::new(values.collect::<Int64Array>())
    };
    let (low, high, group, own) = (
        small(rows, 40),
        small(rows, 40),
        small(rows, 3),
        small(rows, 9),
    );
    let built = 30;
    let (k, v, decimals) = (small(built, 40), small(built, 20), small(built, 50));
    let decimals = cast(&decimals, &DataType::Decimal128(12, 2)).expect("they have few digits");
    let floats = [f64::INFINITY, f64::NEG_INFINITY, 0.5, -7.0];
    let floats: Float64Array = (0..rows).map(|i| Some(floats[i % 4])).collect();
    let zeros: Float64Array = (0..rows).map(|i| Some([-0.0, 0.0, 1.5][i % 3])).collect();
    let eighths: Float64Array = (0..built).map(|i| Some(i as f64 / 8.0 + 0.5)).collect();
    let probe: Vec<(&str, ArrayRef)> = vec![
        ("id", id),
        ("a", low),
        ("b", high),
        ("g", group),
        ("n", own),
        ("f", Arc::new(floats)),
        ("z", Arc::new(zeros)),
    ];
    let build: Vec<(&str, ArrayRef)> = vec![
        ("k", k),
        ("v", v),
        ("d", decimals),
        ("f", Arc::new(eighths)),
    ];
    let blocks = match like {
        Ids::Blocks => [b - a, a],
        _ => [rows / 4, rows / 3],
    };
    register_partitions(&ctx, "q", &probe, &blocks);
    if random.below(2) == 0 {
        register_streamed(&ctx, "q", "q");
    }
    register_partitions(&ctx, "p", &build, &[built / 2, 3]);
    (ctx, like)
}

/// A query, whether it groups by the id, and whether by the id alone, all of whose rows a left join gives.
fn query(random: &mut Random) -> (String, bool, bool) {
    let aggregates = [
        "min(p.v) AS m",
        "max(p.v) AS m, count(*) AS n, count(p.v), sum(p.v)",
        "avg(p.v) AS m",
        "sum(p.d) AS m, avg(p.d), min(p.f), max(p.f)",
        "sum(p.f) AS m, avg(p.f), count(p.f)",
        "first_value(p.v ORDER BY p.k, p.v) AS m",
        "first_value(p.k ORDER BY p.k) AS m, last_value(p.k ORDER BY p.k)",
        "min(q.f) AS m, max(q.n), min(p.v)",
        "min(p.v) FILTER (WHERE p.k > 9) AS m",
    ];
    let aggregates = aggregates[random.below(aggregates.len())];
    let left = random.below(3) > 0;
    let join = if left { "LEFT JOIN" } else { "JOIN" };
    let filter = ["", "", "", " WHERE q.g > 0"][random.below(4)];
    let groups = [
        "q.id",
        "q.id",
        "q.id",
        "q.g, q.id",
        "q.id, q.n",
        "q.z, q.id",
        "q.g",
        "ROLLUP (q.id)",
    ];
    let groups = groups[random.below(groups.len())];
    let having = ["", "", "", " HAVING min(p.v) > 5"][random.below(4)];
    let of =
        format!("FROM q {join} p ON p.k BETWEEN q.a AND q.b{filter} GROUP BY {groups}{having}");
    let inner = format!("SELECT {aggregates} {of}");
    let with_id = format!(
        "SELECT q.id, {aggregates} FROM q {join} p ON p.k BETWEEN q.a AND q.b GROUP BY q.id"
    );
    let all = left && filter.is_empty() && groups == "q.id";
    let by_id = groups.contains("q.id");
    let (sql, of_inner) = match random.below(12) {
        0 => (format!("{inner} ORDER BY 1 NULLS FIRST"), true),
        1 => (format!("SELECT count(*) FROM ({inner} LIMIT 3)"), true),
        2 => (
            format!("SELECT m, count(*) FROM ({inner}) GROUP BY m"),
            true,
        ),
        3 => (
            format!("SELECT id, count(*), count(m) FROM ({with_id}) GROUP BY id"),
            false,
        ),
        4 => (
            format!("SELECT x.id, x.m, q.g FROM ({with_id}) x JOIN q ON q.id = x.id"),
            false,
        ),
        5 => (
            format!("SELECT x.id, x.m, y.m FROM ({with_id}) x JOIN ({with_id}) y ON y.id = x.id"),
            false,
        ),
        6 => (
            format!(
                "SELECT id, m, row_number() OVER (PARTITION BY id ORDER BY m) FROM ({with_id})"
            ),
            false,
        ),
        7 => (format!("{with_id} UNION ALL {with_id}"), false),
        8 => (
            format!("SELECT id, count(*) FROM ({with_id} UNION ALL {with_id}) GROUP BY id"),
            false,
        ),
        9 => (format!("SELECT DISTINCT m FROM ({inner}) ORDER BY m"), true),
        10 => (
            format!("SELECT id, m FROM ({with_id}) ORDER BY id DESC NULLS LAST, m LIMIT 5"),
            false,
        ),
        _ => (inner, true),
    };
    if of_inner {
        (sql, by_id, all)
    } else {
        (sql, true, left)
    }
}

#[test]
fn single_row_groups_and_others_agree_with_datafusion() {
    let cases = cases("unique groups", &FAILED, CASES);
    let asked = cases.len() * 12;
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    // The numbers of operators with single-row groups only, of other such operators, and of plans without one.
    let (mut unique, mut several, mut without) = (0, 0, 0);
    for case in cases {
        let mut random = Random::of_case(case);
        let (ctx, like) = tables(&mut random);
        for _ in 0..12 {
            let (sql, by_id, all_rows) = query(&mut random);
            let expected = runtime.block_on(plain_answer(&ctx, &sql));
            let given = runtime.block_on(answer(&ctx, &sql));
            let (given, plan) = given.unwrap_or_else(|e| panic!("{like:?}: {sql}: {e}"));
            let text = displayable(plan.as_ref()).indent(false).to_string();
            assert_eq!(given, expected, "{like:?}: {sql}\n{text}");
            let found = found(&plan);
            without += usize::from(found.is_empty());
            for found in found.into_iter().flatten() {
                let may_be = match like {
                    // A round-robin repartition combines small batches, in the order of arrival.
                    Ids::Ascending => found || !by_id || text.contains("RoundRobinBatch"),
                    // Another column may distinguish rows with the same id.
                    Ids::Pairs | Ids::Repeated | Ids::Null => !found || !all_rows,
                    Ids::Blocks | Ids::Shuffled => true,
                };
                assert!(may_be, "{like:?}: unique is {found}: {sql}\n{text}");
                if found {
                    unique += 1;
                } else {
                    several += 1;
                }
            }
        }
    }
    println!("unique groups: {unique} unique, {several} not, {without} without the operator");
    let all_came = unique * 10 > asked && several * 10 > asked && without > 0;
    assert!(all_came || !is_usual());
}

/// A memory pool that limits only the consumers of `UniqueGroupsExec`.
#[derive(Debug)]
struct ForUniqueGroups {
    limit: usize,
    used: AtomicUsize,
}

impl fmt::Display for ForUniqueGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unique groups: {} bytes", self.limit)
    }
}

impl ForUniqueGroups {
    fn counts(reservation: &MemoryReservation) -> bool {
        reservation.consumer().name() == "rmq unique groups"
    }
}

impl MemoryPool for ForUniqueGroups {
    fn name(&self) -> &str {
        "unique groups"
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        if Self::counts(reservation) {
            self.used.fetch_add(additional, Ordering::Relaxed);
        }
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        if Self::counts(reservation) {
            self.used.fetch_sub(shrink, Ordering::Relaxed);
        }
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        if Self::counts(reservation) && self.reserved() + additional > self.limit {
            return Err(resources_datafusion_err!("{additional} bytes: {self}"));
        }
        self.grow(reservation, additional);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.limit)
    }
}

/// A session with a table `q` of 20,000 ascending ids in four partitions, a table `t` of the same rows that are not in
/// memory, a table `r` of the same ids in no order, a table `s` with some ids twice, and `p`. It keeps nothing.
async fn large(pool: Arc<dyn MemoryPool>) -> SessionContext {
    let config = SessionConfig::new()
        .with_target_partitions(4)
        .with_batch_size(500);
    let ctx = session_of_pool(config, pool);
    set(&ctx, "rmq.keep_indexes", "false");
    let numbers =
        |values: std::ops::Range<i64>| Arc::new(values.collect::<Int64Array>()) as ArrayRef;
    let id = numbers(0..20_000);
    let parts = [5000, 5000, 5000];
    let floats = cast(&id, &DataType::Float64).expect("numbers");
    let columns = [("id", Arc::clone(&id)), ("k", id), ("f", floats)];
    register_partitions(&ctx, "q", &columns, &parts);
    register_streamed(&ctx, "q", "t");
    let mixed: Int64Array = (0..20_000).map(|i| i * 7919 % 20_000).collect();
    let mixed: ArrayRef = Arc::new(mixed);
    let columns = [("id", Arc::clone(&mixed)), ("k", mixed)];
    register_partitions(&ctx, "r", &columns, &parts);
    // Some ids twice, in different partitions.
    let twice = concat(&[&numbers(0..15_000), &numbers(0..5_000)]).expect("two arrays");
    let columns = [("id", Arc::clone(&twice)), ("k", twice)];
    register_partitions(&ctx, "s", &columns, &parts);
    let k: ArrayRef = Arc::new((0..400).map(|i| i * 50).collect::<Int64Array>());
    let types = [
        ("v", DataType::Int64),
        ("f", DataType::Float64),
        ("d", DataType::Decimal128(12, 2)),
        ("s", DataType::Utf8),
    ];
    let values = types.map(|(name, t)| (name, cast(&k, &t).expect("numbers")));
    let columns: Vec<_> = [("k", k)].into_iter().chain(values).collect();
    register_partitions(&ctx, "p", &columns, &[100]);
    ctx
}

fn unlimited() -> Arc<GreedyMemoryPool> {
    Arc::new(GreedyMemoryPool::new(1 << 30))
}

fn lowest(probe: &str) -> String {
    format!(
        "SELECT q.id, min(p.v) FROM {probe} q LEFT JOIN p ON p.k BETWEEN q.k AND q.k + 70 GROUP BY q.id"
    )
}

/// Waits until all memory is freed. A sort or an index build in progress runs to its end.
async fn until_free(pool: &dyn MemoryPool) {
    let mut waited = Duration::ZERO;
    while pool.reserved() > 0 {
        assert!(waited < Duration::from_secs(5), "{} bytes", pool.reserved());
        tokio::time::sleep(Duration::from_millis(5)).await;
        waited += Duration::from_millis(5);
    }
}

/// All rows of a plan, sorted.
async fn all_rows(plan: &Arc<dyn ExecutionPlan>, ctx: &SessionContext) -> Vec<String> {
    lines(
        &collect(Arc::clone(plan), ctx.task_ctx())
            .await
            .expect("an answer"),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_analyze_says_what_was_found() {
    let ctx = large(unlimited()).await;
    for (table, unique, replayed) in [
        ("q", true, 0),
        ("t", true, 0),
        ("r", false, 20_000),
        ("s", false, 20_000),
    ] {
        let sql = lowest(table);
        let (rows, plan) = answer(&ctx, &sql).await.expect(&sql);
        assert_eq!(rows, plain_answer(&ctx, &sql).await, "{table}");
        assert_eq!(found(&plan), [Some(unique)], "{table}");
        assert_eq!(rows_of(&plan, "UniqueGroupsExec"), rows.len(), "{table}");
        assert_eq!(rows_of(&plan, "ReplayExec"), replayed, "{table}");
        assert_eq!(rows_of(&plan, "AggregateExec") == 0, unique, "{table}");
        let explained = run(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
        let explained = lines(&[explained.expect("a plan")]).join("\n");
        let says = format!("unique_groups={}", u8::from(unique));
        assert!(explained.contains(&says), "{says}: {explained}");
    }
}

#[tokio::test]
async fn without_memory_the_aggregate_runs() {
    for limit in [0, 1, 20_000, 200_000] {
        let pool = Arc::new(ForUniqueGroups {
            limit,
            used: AtomicUsize::new(0),
        });
        let ctx = large(Arc::clone(&pool) as _).await;
        let (rows, plan) = answer(&ctx, &lowest("t")).await.expect("an answer");
        assert_eq!(rows, plain_answer(&ctx, &lowest("t")).await);
        assert_eq!(found(&plan), [Some(false)], "{limit} bytes");
        assert_eq!(rows_of(&plan, "ReplayExec"), 20_000);
        assert_eq!(pool.reserved(), 0, "{limit} bytes");
        // Rows of a table in memory are not held.
        let (held_rows, plan) = answer(&ctx, &lowest("q")).await.expect("an answer");
        assert_eq!(held_rows, rows);
        assert_eq!(found(&plan), [Some(true)], "{limit} bytes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn little_memory_gives_the_same_rows_or_an_error() {
    let expected = plain_answer(&large(unlimited()).await, &lowest("q")).await;
    let mut answered = 0;
    for kilobytes in [200, 400, 800, 1600, 3200, 6400, 25600] {
        for fair in [false, true] {
            let bytes = kilobytes << 10;
            let pool: Arc<dyn MemoryPool> = if fair {
                Arc::new(FairSpillPool::new(bytes))
            } else {
                Arc::new(GreedyMemoryPool::new(bytes))
            };
            let ctx = large(Arc::clone(&pool)).await;
            for table in ["q", "t", "s"] {
                match answer(&ctx, &lowest(table)).await {
                    Ok((rows, _)) if table != "s" => {
                        assert_eq!(rows, expected, "{bytes} bytes");
                        answered += 1;
                    }
                    Ok((rows, _)) => assert_eq!(rows.len(), 15_000, "{bytes} bytes"),
                    Err(error) => {
                        let message = error.to_string();
                        assert!(message.contains("Resources exhausted"), "{message}");
                    }
                }
                until_free(pool.as_ref()).await;
            }
        }
    }
    assert!(answered >= 4, "{answered}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_read_frees_its_memory() {
    let pool = unlimited();
    let ctx = large(Arc::clone(&pool) as _).await;
    for micros in [0, 200, 1000, 3000, 6000, 12_000] {
        for table in ["q", "t", "r", "s"] {
            let sql = lowest(table);
            let plan = planned(&ctx, &sql).await.expect("a plan");
            let query = collect(plan, ctx.task_ctx());
            let _ = tokio::time::timeout(Duration::from_micros(micros), query).await;
            until_free(pool.as_ref()).await;
        }
    }
}

#[tokio::test]
async fn an_error_of_the_input_reaches_all_partitions() {
    let ctx = large(unlimited()).await;
    for table in ["t", "r"] {
        let sql = lowest(&format!(
            "(SELECT id, k + 7 / (id - 12345) AS k FROM {table})"
        ));
        let plan = planned(&ctx, &sql).await.expect("a plan");
        assert_eq!(found(&plan).len(), 1);
        let partitions = plan.output_partitioning().partition_count();
        assert_eq!(partitions, 4);
        let task = ctx.task_ctx();
        let streams =
            (0..partitions).map(|i| plan.execute(i, Arc::clone(&task)).expect("a stream"));
        for stream in streams.collect::<Vec<_>>() {
            let rows = stream.try_collect::<Vec<_>>();
            let rows = tokio::time::timeout(Duration::from_secs(60), rows);
            let error = rows.await.expect("no partition waits forever");
            let error = error.expect_err("12345 is among the ids").to_string();
            assert!(error.contains("Divide by zero"), "{error}");
        }
    }
}

#[tokio::test]
async fn partitions_may_be_read_separately_or_not_at_all() {
    let ctx = large(unlimited()).await;
    for table in ["q", "t", "r"] {
        let sql = lowest(table);
        let expected = plain_answer(&ctx, &sql).await;
        let plan = planned(&ctx, &sql).await.expect("a plan");
        let task = ctx.task_ctx();
        let mut streams: Vec<_> = (0..4)
            .map(|i| plan.execute(i, Arc::clone(&task)).expect("a stream"))
            .collect();
        let mut rows = vec![];
        // The second stream is dropped without a poll; the last one is read first.
        drop(streams.remove(1));
        for stream in streams.into_iter().rev() {
            let read =
                tokio::time::timeout(Duration::from_secs(60), stream.try_collect::<Vec<_>>());
            let read = read.await.expect("no partition waits forever");
            let read = lines(&read.expect("rows"));
            assert!(!read.is_empty() && read.len() < 10_000, "{}", read.len());
            rows.extend(read);
        }
        assert!(rows.len() > 10_000 && rows.len() < 20_000);
        rows.sort_unstable();
        rows.dedup();
        assert!(rows.iter().all(|row| expected.binary_search(row).is_ok()));
    }
    // Also in runs that execute only one partition each.
    for table in ["q", "t"] {
        let plan = planned(&ctx, &lowest(table)).await.expect("a plan");
        let mut rows = vec![];
        for partition in 0..4 {
            let stream = plan.execute(partition, ctx.task_ctx()).expect("a stream");
            rows.extend(lines(&stream.try_collect::<Vec<_>>().await.expect("rows")));
        }
        rows.sort_unstable();
        assert_eq!(rows, plain_answer(&ctx, &lowest(table)).await);
    }
}

#[tokio::test]
async fn a_plan_can_run_again() {
    let ctx = large(unlimited()).await;
    for table in ["q", "t"] {
        let plan = planned(&ctx, &lowest(table)).await.expect("a plan");
        let first = all_rows(&plan, &ctx).await;
        assert_eq!(first.len(), 20_000);
        assert_eq!(all_rows(&plan, &ctx).await, first);
        let task = ctx.task_ctx();
        for _ in 0..2 {
            let again = collect(Arc::clone(&plan), Arc::clone(&task)).await;
            assert_eq!(lines(&again.expect("rows")), first);
        }
    }
}

#[tokio::test]
async fn the_rule_is_idempotent() {
    let ctx = large(unlimited()).await;
    datafusion_rmq::register(&ctx);
    let state = ctx.state();
    let rules = state.physical_optimizers();
    let ours = rules.iter().filter(|r| r.name() == "rmq_use_unique_groups");
    let ours: Vec<_> = ours.collect();
    assert_eq!(ours.len(), 1);
    assert!(std::ptr::eq(ours[0], rules.last().expect("rules")));
    let plan = planned(&ctx, &lowest("q")).await.expect("a plan");
    let shown = |plan: &Arc<dyn ExecutionPlan>| displayable(plan.as_ref()).indent(true).to_string();
    let options = state.config_options();
    let mut again = Arc::clone(&plan);
    // DataFusion's rules may run after it.
    for rule in rules {
        let changed = rule.optimize(again, options);
        again = changed.unwrap_or_else(|e| panic!("{}: {e}", rule.name()));
    }
    assert_eq!(found(&again).len(), 1, "{}", shown(&again));
    assert_eq!(all_rows(&again, &ctx).await, all_rows(&plan, &ctx).await);
    let once_more = ours[0].optimize(Arc::clone(&plan), options);
    assert_eq!(shown(&once_more.expect("a plan")), shown(&plan));
}

#[tokio::test]
async fn plans_that_rely_on_hash_partitions_are_unchanged() {
    let ctx = large(unlimited()).await;
    for name in ["", "_rows"] {
        let name = format!("datafusion.optimizer.hash_join_single_partition_threshold{name}");
        set(&ctx, &name, "0");
    }
    let grouped = lowest("q").replace("min(p.v)", "min(p.v) AS m");
    let grouped = grouped.as_str();
    for (sql, operators) in [
        (format!("SELECT m, count(*) FROM ({grouped}) GROUP BY m"), 1),
        (format!("SELECT id, max(m) FROM ({grouped}) GROUP BY id"), 0),
        (
            format!("SELECT x.id, x.m, y.m FROM ({grouped}) x JOIN ({grouped}) y ON y.id = x.id"),
            0,
        ),
        (
            format!("SELECT x.id, x.m, y.m FROM ({grouped}) x JOIN ({grouped}) y ON y.id = x.m"),
            1,
        ),
        (
            format!("SELECT id, row_number() OVER (PARTITION BY id) FROM ({grouped})"),
            0,
        ),
        (
            format!("SELECT * FROM ({grouped}) ORDER BY id + m LIMIT 3"),
            1,
        ),
        // The aggregate itself keeps three groups.
        (format!("SELECT m FROM ({grouped}) ORDER BY m LIMIT 3"), 0),
    ] {
        let (rows, plan) = answer(&ctx, &sql).await.expect(&sql);
        let shown = displayable(plan.as_ref()).indent(false).to_string();
        assert_eq!(found(&plan).len(), operators, "{sql}\n{shown}");
        assert_eq!(rows, plain_answer(&ctx, &sql).await, "{sql}");
    }
}

#[tokio::test]
async fn aggregates_of_single_rows_agree_with_datafusion() {
    let ctx = large(unlimited()).await;
    for (aggregate, is_known) in [
        ("min(p.v)", true),
        ("max(p.s)", true),
        ("min(p.f)", true),
        ("count(*)", true),
        ("count(p.v)", true),
        ("sum(p.v)", true),
        ("sum(p.d)", true),
        ("sum(p.f)", true),
        ("avg(p.f)", true),
        ("avg(p.v)", true),
        ("avg(p.d)", true),
        ("first_value(p.v ORDER BY p.k)", true),
        ("last_value(p.v ORDER BY p.k DESC)", true),
        ("first_value(p.k ORDER BY p.v, p.k)", true),
        ("max(q.k)", true),
        // DataFusion's MIN of floats with GROUP BY does not return infinity.
        ("min(q.f)", false),
    ] {
        for join in ["JOIN", "LEFT JOIN"] {
            let sql = format!(
                "SELECT q.id, {aggregate} FROM q {join} p ON p.k BETWEEN q.k AND q.k + 70 GROUP BY q.id"
            );
            let (rows, plan) = answer(&ctx, &sql).await.expect(&sql);
            // Nothing is joined where nothing of p is read.
            let is_joined = (aggregate, join) != ("max(q.k)", "LEFT JOIN");
            let known: &[_] = if is_known && is_joined {
                &[Some(true)]
            } else {
                &[]
            };
            let shown = displayable(plan.as_ref()).indent(false).to_string();
            assert_eq!(found(&plan), known, "{sql}\n{shown}");
            assert_eq!(rows, plain_answer(&ctx, &sql).await, "{sql}");
        }
    }
}
