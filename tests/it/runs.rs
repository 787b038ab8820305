//! One plan executed several times, also concurrently and in one task context: each run returns the rows of a single
//! run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::TryStreamExt;
use futures::future::join_all;

use crate::range_join::{lines, register_partitions};
use crate::support::{session_of_pool, set};
use rmq_testing::{Random, cases};

/// A table that counts its scans.
#[derive(Debug)]
struct Counted {
    schema: SchemaRef,
    columns: fn(usize) -> Vec<ArrayRef>,
    reads: AtomicUsize,
}

impl Counted {
    /// Registers a table of one partition. `columns` makes the columns of each scan from its number.
    fn register(
        ctx: &SessionContext,
        name: &str,
        names: &[&str],
        columns: fn(usize) -> Vec<ArrayRef>,
    ) -> Arc<Self> {
        let fields = names.iter().map(|n| Field::new(*n, DataType::Int64, true));
        let this = Arc::new(Self {
            schema: Arc::new(Schema::new(fields.collect::<Vec<_>>())),
            columns,
            reads: AtomicUsize::new(0),
        });
        let partitions = vec![Arc::clone(&this) as Arc<dyn PartitionStream>];
        let table = StreamingTable::try_new(Arc::clone(&this.schema), partitions);
        ctx.register_table(name, Arc::new(table.expect("one schema")))
            .expect(name);
        this
    }

    fn reads(&self) -> usize {
        self.reads.load(Ordering::SeqCst)
    }
}

impl PartitionStream for Counted {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let read = self.reads.fetch_add(1, Ordering::SeqCst);
        let schema = Arc::clone(&self.schema);
        let batch = RecordBatch::try_new(Arc::clone(&schema), (self.columns)(read));
        let batches = futures::stream::iter([batch.map_err(DataFusionError::from)]);
        Box::pin(RecordBatchStreamAdapter::new(schema, batches))
    }
}

fn integers(values: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values))
}

/// A configuration with this many partitions, which scans do not rearrange.
fn config(partitions: usize) -> SessionConfig {
    SessionConfig::new()
        .with_target_partitions(partitions)
        .with_round_robin_repartition(false)
}

fn many_rows(_read: usize) -> Vec<ArrayRef> {
    let k = (0..70_000).map(|i| i * 7919 % 100_003);
    vec![integers(k), integers((0..70_000).map(|i| i % 1009))]
}

fn few_rows(_read: usize) -> Vec<ArrayRef> {
    vec![integers((0..900).rev()), integers(0..900)]
}

const PER_ROW: &str =
    "SELECT q.id, (SELECT min(p.v) FROM p WHERE p.k BETWEEN q.id AND q.id + 100) AS m FROM q";

const PER_GROUP: &str =
    "SELECT q.id, min(p.v) AS m FROM q JOIN p ON p.k BETWEEN q.id AND q.id + 100 GROUP BY q.id";

async fn planned(ctx: &SessionContext, sql: &str, partitions: usize) -> Arc<dyn ExecutionPlan> {
    let frame = ctx.sql(sql).await.expect(sql);
    let plan = frame.create_physical_plan().await.expect(sql);
    assert_eq!(
        plan.output_partitioning().partition_count(),
        partitions,
        "{sql}"
    );
    plan
}

async fn part(
    plan: &Arc<dyn ExecutionPlan>,
    partition: usize,
    context: &Arc<TaskContext>,
) -> Result<Vec<RecordBatch>> {
    let batches = plan.execute(partition, Arc::clone(context))?;
    batches.try_collect().await
}

/// Registers the table `q` with three partitions, and `p`, which counts its scans.
fn tables(ctx: &SessionContext, p: fn(usize) -> Vec<ArrayRef>, q: i64) -> Arc<Counted> {
    datafusion_rmq::register(ctx);
    let third = q as usize / 3;
    register_partitions(ctx, "q", &[("id", integers(0..q))], &[third, third]);
    Counted::register(ctx, "p", &["k", "v"], p)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn runs_of_one_plan_in_one_context_may_interleave() {
    for seed in cases("interleaved runs", &[], 24) {
        let random = &mut Random::of_case(seed);
        let p = [few_rows, many_rows][usize::from(random.below(8) == 0)];
        let rows = [600, 9][random.below(2)];
        let ctx = SessionContext::new_with_config(config(3));
        let p = tables(&ctx, p, rows);
        let plan = planned(&ctx, PER_ROW, 3).await;
        let expected = collect(Arc::clone(&plan), ctx.task_ctx())
            .await
            .expect("rows");
        let expected = lines(&expected);
        assert_eq!((expected.len(), p.reads()), (rows as usize, 1));

        let runs = 1 + random.below(4);
        let mut tasks: Vec<_> = (0..runs * 3).map(|i| (i / 3, i % 3)).collect();
        for i in (1..tasks.len()).rev() {
            tasks.swap(i, random.below(i + 1));
        }
        let context = ctx.task_ctx();
        let tasks = tasks.into_iter().map(|(run, partition)| {
            let (plan, context) = (Arc::clone(&plan), Arc::clone(&context));
            let task = tokio::spawn(async move { part(&plan, partition, &context).await });
            (run, task)
        });
        let mut given = vec![vec![]; runs];
        for (run, task) in tasks.collect::<Vec<_>>() {
            let ended = tokio::time::timeout(Duration::from_secs(60), task).await;
            let batches = ended.expect("no run waits for another").expect("no panic");
            given[run].extend(batches.expect("rows"));
        }
        for given in given {
            assert_eq!(lines(&given), expected);
        }
        let reads = p.reads() - 1;
        assert!(reads >= 1 && reads <= 3 * runs, "{reads} for {runs} runs");
        assert!(runs > 1 || reads == 1, "{reads} for one run");
    }
}

#[tokio::test]
async fn partitions_one_after_another_are_one_run() {
    let ctx = SessionContext::new_with_config(config(3));
    let p = tables(&ctx, few_rows, 600);
    let plan = planned(&ctx, PER_ROW, 3).await;
    let context = ctx.task_ctx();
    for run in 1..4 {
        for partition in 0..3 {
            let batches = part(&plan, partition, &context).await.expect("rows");
            assert_eq!(lines(&batches).len(), 200);
        }
        assert_eq!(p.reads(), run);
    }
}

/// Whether the other partitions will still be executed is unknown, so the state kept for them must not grow.
#[tokio::test]
async fn a_partition_executed_again_and_again_keeps_no_memory() {
    for sql in [PER_ROW, PER_GROUP] {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 30));
        let ctx = session_of_pool(config(3), Arc::clone(&pool));
        set(&ctx, "rmq.keep_indexes", "false");
        tables(&ctx, few_rows, 600);
        let plan = planned(&ctx, sql, 3).await;
        let context = ctx.task_ctx();
        let mut first = None;
        for _ in 0..20 {
            part(&plan, 1, &context).await.expect("rows");
            let now = pool.reserved();
            let first = *first.get_or_insert(now);
            assert!(now <= first, "{now} bytes are kept, {first} at first");
        }
        drop(plan);
        assert_eq!(pool.reserved(), 0);
    }
}

/// If one run returns its rows as groups and another, for lack of memory, does not, their partitions do not fit
/// together. Such runs must end in an error.
#[tokio::test]
async fn partitions_of_several_runs_make_up_all_groups_or_end_in_an_error() {
    const ROWS: i64 = 20_000;
    let (mut right, mut refused) = (0, 0);
    let mut limit = 130_000;
    while limit < 7_000_000 {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(limit));
        let ctx = session_of_pool(config(2), Arc::clone(&pool));
        let q = [("id", integers(0..ROWS))];
        register_partitions(&ctx, "q", &q, &[ROWS as usize / 2]);
        Counted::register(&ctx, "p", &["k", "v"], |_| {
            vec![integers((0..100).map(|k| k * 1000)), integers(0..100)]
        });
        let sql = "SELECT q.id, min(p.v) AS m FROM q LEFT JOIN p ON p.k BETWEEN q.id AND q.id + 1000 GROUP BY q.id";
        let plan = planned(&ctx, sql, 2).await;
        let context = ctx.task_ctx();
        // Each in its own task, because DataFusion's operators panic when they are executed twice.
        let mut streams = vec![];
        for partition in [0, 0, 1, 1] {
            let stream = plan.execute(partition, Arc::clone(&context));
            let mut stream = stream.expect("a stream");
            let begun = tokio::spawn(async move {
                let first = stream.try_next().await?;
                Ok::<_, DataFusionError>((first, stream))
            });
            streams.push(begun.await);
        }
        let given = streams.into_iter().map(|begun| {
            tokio::spawn(async move {
                let (first, rest) = begun
                    .map_err(|panic| panic.to_string())?
                    .map_err(|e| e.to_string())?;
                let rest: Vec<RecordBatch> = rest.try_collect().await.map_err(|e| e.to_string())?;
                Ok::<_, String>(first.into_iter().chain(rest).collect::<Vec<_>>())
            })
        });
        let given = futures::future::join_all(given.collect::<Vec<_>>()).await;
        let given: Vec<_> = given
            .into_iter()
            .map(|ended| ended.unwrap_or_else(|panic| Err(panic.to_string())))
            .collect();
        for (one, other) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
            let mut batches = vec![];
            let mut errors = vec![];
            for i in [one, other] {
                match &given[i] {
                    Ok(given) => batches.extend(given.iter().cloned()),
                    Err(error) => errors.push(error),
                }
            }
            if errors.is_empty() {
                let ids: Vec<String> = lines(&batches);
                let mut ids: Vec<i64> = ids
                    .iter()
                    .map(|l| l.split(' ').next().unwrap().parse().unwrap())
                    .collect();
                ids.sort_unstable();
                let expected: Vec<i64> = (0..ROWS).collect();
                assert!(
                    ids == expected,
                    "{} groups with {limit} bytes: partitions {one} and {other}",
                    ids.len()
                );
                right += 1;
            }
            refused += errors
                .iter()
                .filter(|e| e.contains("executed again in one task context"))
                .count();
        }
        limit += limit / 8;
    }
    // The rows of a table in memory become groups one by one, so memory decides nothing; rows of other sources may be
    // refused.
    assert!(right > 0, "{right} right, {refused} refused");
}

/// A call over both sides of an outer join is an expression, which must find the index of its run.
#[tokio::test]
async fn runs_at_once_each_look_up_their_own_version() {
    let config = config(1).with_batch_size(4);
    let ctx = SessionContext::new_with_config(config);
    datafusion_rmq::register(&ctx);
    // Each scan returns its number.
    Counted::register(&ctx, "live", &["v"], |read| {
        vec![integers(vec![read as i64; 100])]
    });
    register_partitions(&ctx, "a", &[("l", integers(0..10))], &[]);
    register_partitions(&ctx, "b", &[("r", integers(50..70))], &[]);
    for join in ["LEFT", "FULL"] {
        for read in [0, 1] {
            let sql = format!(
                "SELECT a.l, b.r FROM a {join} JOIN b ON range_min('live.v', a.l, b.r) % 2 = {read}"
            );
            let plan = planned(&ctx, &sql, 1).await;
            let reset = |plan| reset_plan_states(plan).expect("another run");
            let mut early = reset(Arc::clone(&plan))
                .execute(0, ctx.task_ctx())
                .expect("a stream");
            let first = early.try_next().await.expect("rows").expect("a batch");
            assert!(first.num_rows() < 100, "the join is not at its end");
            let late = collect(reset(plan), ctx.task_ctx()).await.expect("rows");
            let rest: Vec<_> = early.try_collect().await.expect("rows");
            let early: Vec<_> = std::iter::once(first).chain(rest).collect();
            let matches = |batches: &[RecordBatch]| {
                let lines = lines(batches);
                lines.iter().filter(|line| !line.contains("NULL")).count()
            };
            let mut found = [matches(&early), matches(&late)];
            found.sort_unstable();
            assert_eq!(found, [0, 200], "{sql}");
        }
    }
}

/// An index of one run must not evict those of another run that has not stored all of its own yet.
#[tokio::test(flavor = "multi_thread")]
async fn runs_at_once_have_all_their_indexes() {
    let ctx = SessionContext::new_with_config(config(1));
    datafusion_rmq::register(&ctx);
    Counted::register(&ctx, "live", &["v", "w"], |read| {
        vec![integers(vec![read as i64; 100]), integers(0..100)]
    });
    register_partitions(&ctx, "a", &[("l", integers(0..10))], &[]);
    register_partitions(&ctx, "b", &[("r", integers(50..70))], &[]);
    let sql = "SELECT a.l, b.r FROM a LEFT JOIN b ON range_min('live.v', a.l, b.r) >= 0 AND range_max('live.w', a.l, b.r) = b.r \
               AND range_min('live.w', a.l, b.r) = a.l";
    let plan = planned(&ctx, sql, 1).await;
    for _ in 0..20 {
        let runs = (0..8).map(|_| {
            let plan = reset_plan_states(Arc::clone(&plan)).expect("another run");
            tokio::spawn(collect(plan, ctx.task_ctx()))
        });
        for run in join_all(runs).await {
            let rows = run.expect("no panic").expect(sql);
            assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 200);
        }
    }
}
