//! Range joins whose sides are partitioned by the equality keys, compared with `DataFusion`'s joins and with the shared
//! build side.

use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::{
    ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, StringViewArray,
};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{FairSpillPool, GreedyMemoryPool, MemoryPool};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_rmq::physical_plan::{JoinMode, RangeJoinExec};
use futures::{StreamExt, TryStreamExt};

use crate::fake::Fake;
use crate::range_join::{answer, lines, metric, register_partitions};
use crate::spilling::ForRangeJoins;
use crate::support::{run, session_of_pool, set};
use rmq_testing::Random;

/// A column of `rows` values among few, some NULL. Zeros of both signs and NaNs among floats.
fn keys(random: &mut Random, rows: usize, data_type: &DataType) -> ArrayRef {
    let numbers: Int64Array = (0..rows)
        .map(|_| (random.below(9) > 0).then(|| random.below(12) as i64))
        .collect();
    match data_type {
        DataType::Float64 => {
            let values = [0.0, -0.0, f64::NAN, -f64::NAN, 1.5, f64::INFINITY, -1.5];
            let values = numbers.iter().map(|v| v.map(|v| values[v as usize % 7]));
            Arc::new(values.collect::<Float64Array>())
        }
        DataType::Int64 => Arc::new(numbers),
        // Shorter and longer than what a view holds.
        data_type => {
            let text = |v: i64| "key of many bytes".repeat((v as usize + 1) % 3) + &v.to_string();
            let texts = numbers.iter().map(|v| v.map(text));
            cast(&texts.collect::<StringArray>(), data_type).expect("texts of another type")
        }
    }
}

/// The tables `q`, of 700 rows, and `p`, of 900, with keys of this type, in three partitions each.
pub fn tables(ctxs: &[&SessionContext], data_type: &DataType) {
    let random = &mut Random::from_seed(41);
    for (name, rows) in [("q", 700), ("p", 900)] {
        let mut numbers = |limit: usize| -> ArrayRef {
            let number = |_| (random.below(15) > 0).then(|| random.below(limit) as i64);
            Arc::new((0..rows).map(number).collect::<Int64Array>())
        };
        let (k, v) = (numbers(500), numbers(90));
        let texts = (0..rows).map(|row| Some(format!("text {row}")));
        let columns = [
            (
                "id",
                Arc::new(Int64Array::from_iter_values(0..rows)) as ArrayRef,
            ),
            ("g", keys(random, rows as usize, data_type)),
            ("h", keys(random, rows as usize, &DataType::Int64)),
            ("k", k),
            ("v", v),
            ("s", Arc::new(texts.collect::<StringViewArray>())),
        ];
        for ctx in ctxs {
            let rows = rows as usize;
            register_partitions(ctx, name, &columns, &[rows / 3, rows / 4]);
        }
    }
}

/// A session with range joins of partitioned sides.
fn session(partitions: usize, pool: Option<Arc<dyn MemoryPool>>) -> SessionContext {
    let config = SessionConfig::new()
        .with_target_partitions(partitions)
        .with_batch_size(100);
    let ctx = match pool {
        Some(pool) => session_of_pool(config, pool),
        None => {
            let ctx = SessionContext::new_with_config(config);
            datafusion_rmq::register(&ctx);
            ctx
        }
    };
    set(&ctx, "rmq.range_joins", "always");
    set(&ctx, "rmq.join_mode", "partitioned");
    ctx
}

/// Queries of all types of joins. `g` and `h` are equality keys.
pub fn queries(on: &str) -> Vec<String> {
    let mut queries = vec![];
    for residual in ["", " AND p.v > q.v", " AND (p.id + q.id) % 3 > 0"] {
        let on = format!("{on} AND p.k BETWEEN q.k AND q.k + 30{residual}");
        for join in ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"] {
            queries.push(format!("SELECT q.id, p.id, p.s FROM q {join} p ON {on}"));
        }
        for join in ["LEFT SEMI", "LEFT ANTI", "RIGHT SEMI", "RIGHT ANTI"] {
            queries.push(format!("SELECT id, g, s FROM q {join} JOIN p ON {on}"));
        }
        queries.push(format!(
            "SELECT q.id FROM q WHERE q.v = 3 OR EXISTS (SELECT 1 FROM p WHERE {on})"
        ));
        queries.push(format!(
            "SELECT p.id FROM p WHERE p.v = 3 OR EXISTS (SELECT 1 FROM q WHERE {on})"
        ));
    }
    for join in ["JOIN", "LEFT JOIN"] {
        queries.push(format!(
            "SELECT q.id, min(p.v), max(p.s), count(*), sum(p.v) FROM q {join} p ON {on} AND p.k BETWEEN q.k AND q.k + 60 GROUP BY q.id"
        ));
        queries.push(format!(
            "SELECT q.h, min(p.v), count(p.v), avg(p.v) FROM q {join} p ON {on} AND p.k > q.k GROUP BY q.h"
        ));
    }
    queries
}

pub async fn planned(ctx: &SessionContext, sql: &str) -> Arc<dyn ExecutionPlan> {
    let frame = ctx.sql(sql).await.expect(sql);
    frame.create_physical_plan().await.expect(sql)
}

fn text(plan: &Arc<dyn ExecutionPlan>) -> String {
    displayable(plan.as_ref()).indent(false).to_string()
}

/// The first range join of a plan.
pub fn range_join(plan: &Arc<dyn ExecutionPlan>) -> Option<&RangeJoinExec> {
    let mut children = plan.children().into_iter();
    plan.downcast_ref::<RangeJoinExec>()
        .or_else(|| children.find_map(range_join))
}

#[tokio::test(flavor = "multi_thread")]
async fn joins_of_all_types_return_what_datafusion_returns() {
    let mut several = 0;
    for (data_type, on) in [
        (DataType::Int64, "p.g = q.g"),
        (DataType::Float64, "p.g = q.g"),
        (DataType::Utf8View, "p.g = q.g AND p.h = q.h"),
        (
            DataType::Dictionary(Box::new(DataType::Int16), Box::new(DataType::Utf8)),
            "p.h = q.h AND p.g = q.g",
        ),
    ] {
        for partitions in [1, 3, 16] {
            let with = session(partitions, None);
            let without = SessionContext::new();
            tables(&[&with, &without], &data_type);
            for sql in queries(on) {
                let plan = planned(&with, &sql).await;
                let text = text(&plan);
                assert!(
                    text.contains(", mode=Partitioned, engine="),
                    "{sql}\n{text}"
                );
                let join = range_join(&plan).expect("a range join");
                let counts = [join.probe(), join.build()]
                    .map(|side| side.output_partitioning().partition_count());
                assert_eq!(counts, [partitions; 2], "{sql}\n{text}");
                several += usize::from(partitions > 1);
                let found = collect(plan, with.task_ctx()).await;
                let found = found.unwrap_or_else(|error| panic!("{sql}: {error}"));
                let (expected, _) = answer(&without, &sql).await.expect(&sql);
                assert_eq!(lines(&found), expected, "{data_type}, {partitions}: {sql}");
            }
        }
    }
    assert!(several > 100, "{several}");
}

#[tokio::test]
async fn both_sides_are_repartitioned_by_the_equality_keys() {
    let ctx = session(3, None);
    tables(&[&ctx], &DataType::Int64);
    let sql = "SELECT q.id, p.s FROM q LEFT JOIN p ON p.g = q.g AND p.k BETWEEN q.k AND q.k + 3";
    let modes = [
        ("partitioned", "true", true),
        ("partitioned", "false", false),
        ("shared", "true", false),
        ("auto", "true", false),
    ];
    for (mode, repartitions, is_partitioned) in modes {
        set(&ctx, "rmq.join_mode", mode);
        set(&ctx, "datafusion.optimizer.repartition_joins", repartitions);
        let plan = planned(&ctx, sql).await;
        let text = text(&plan);
        let hashes = text
            .matches("RepartitionExec: partitioning=Hash([g@")
            .count();
        let modes = text.matches("mode=Partitioned").count();
        assert_eq!(
            (hashes, modes),
            if is_partitioned { (2, 1) } else { (0, 0) },
            "{text}"
        );
        let join = range_join(&plan).expect("a range join");
        assert_eq!(join.mode() == JoinMode::Partitioned, is_partitioned);
        assert!(
            !is_partitioned
                || join
                    .properties()
                    .partitioning
                    .to_string()
                    .contains("Hash([g@"),
            "{}",
            join.properties().partitioning
        );
    }
}

/// Few keys, so that most rows have the same as others, in files of small row groups which are read in parts.
const TIES: &[&str] = &[
    "SET datafusion.execution.parquet.max_row_group_size = 50",
    "COPY (SELECT value AS id, value * 7919 % 5 AS g, value * 104729 % 13 AS k, value % 3 AS v FROM range(0, 700)) \
     TO '$f/p/a.parquet'",
    "COPY (SELECT value AS id, value * 7907 % 5 AS g, value * 104723 % 13 AS k, value % 3 AS v FROM range(700, 1000)) \
     TO '$f/p/b.parquet'",
    "COPY (SELECT value AS id, value % 5 AS g, value / 80 AS k, value % 3 AS v FROM range(0, 900)) TO '$f/sorted/a.parquet'",
    "COPY (SELECT value AS id, value % 5 AS g, 9 + value / 80 AS k, value % 3 AS v FROM range(900, 1100)) \
     TO '$f/sorted/b.parquet'",
    "COPY (SELECT value AS id, value * 7901 % 5 AS g, value * 104717 % 13 AS k, value % 3 AS v FROM range(0, 900)) \
     TO '$f/folders' STORED AS PARQUET PARTITIONED BY (v)",
    "CREATE EXTERNAL TABLE p STORED AS PARQUET LOCATION '$f/p/'",
    "CREATE EXTERNAL TABLE sorted STORED AS PARQUET WITH ORDER (k) LOCATION '$f/sorted/'",
    "CREATE EXTERNAL TABLE folders STORED AS PARQUET PARTITIONED BY (v) LOCATION '$f/folders/'",
    "CREATE TABLE q AS SELECT value AS id, value % 6 AS g, value * 31 % 14 AS k FROM range(0, 400)",
];

/// Rows of Parquet files take their position along, so that it is defined which of several with equal keys comes first.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_files_keep_their_order_in_partitions() {
    let folder = tempfile::tempdir().expect("a folder");
    for (i, partitions) in [1, 3, 8].into_iter().enumerate() {
        let ctx = session(partitions, None);
        set(&ctx, "datafusion.optimizer.repartition_file_min_size", "1");
        for sql in TIES.iter().filter(|sql| i == 0 || !sql.starts_with("COPY")) {
            let sql = sql.replace("$f", &folder.path().display().to_string());
            run(&ctx, &sql).await.expect(&sql);
        }
        for (table, filters) in [
            ("p", "false"),
            ("p", "true"),
            ("sorted", "false"),
            ("sorted", "true"),
            ("folders", "true"),
        ] {
            set(
                &ctx,
                "datafusion.execution.parquet.pushdown_filters",
                filters,
            );
            for rows in [
                "$t",
                "(SELECT k + 1 AS k, g, id, v FROM $t WHERE v > 0 AND id > 120)",
            ] {
                let p = rows.replace("$t", table) + " AS p";
                for sql in [
                    format!(
                        "SELECT q.id AS a, (SELECT p.id FROM {p} WHERE p.g = q.g AND p.k <= q.k ORDER BY p.k DESC LIMIT 1) AS b FROM q"
                    ),
                    format!(
                        "SELECT q.id, first_value(p.id ORDER BY p.k), last_value(p.id ORDER BY p.k) FROM q JOIN {p} ON p.g = q.g AND p.k >= q.k GROUP BY q.id"
                    ),
                    format!(
                        "SELECT q.id, x.id FROM q, LATERAL (SELECT p.id FROM {p} WHERE p.g = q.g AND p.k <= q.k ORDER BY p.v LIMIT 2) x"
                    ),
                    format!(
                        "SELECT q.id, x.id FROM q LEFT JOIN LATERAL (SELECT p.id FROM {p} WHERE p.g = q.g AND p.k > q.k ORDER BY p.k LIMIT 3) x ON true"
                    ),
                ] {
                    set(&ctx, "rmq.join_mode", "shared");
                    let (expected, _) = answer(&ctx, &sql).await.expect(&sql);
                    set(&ctx, "rmq.join_mode", "partitioned");
                    let plan = planned(&ctx, &sql).await;
                    let text = text(&plan);
                    assert!(text.contains("mode=Partitioned"), "{sql}\n{text}");
                    assert!(text.contains("RowPositionsExec"), "{sql}\n{text}");
                    let found = collect(plan, ctx.task_ctx()).await;
                    let found = found.unwrap_or_else(|e| panic!("{sql}: {e}\n{text}"));
                    assert!(lines(&found) == expected, "{partitions}: {sql}\n{text}");
                }
            }
        }
    }
}

/// What depends on the order of rows that have no position, or has no keys that both sides can be partitioned by,
/// shares the build side.
#[tokio::test(flavor = "multi_thread")]
async fn other_joins_share_their_build_side() {
    let ctx = session(3, None);
    tables(&[&ctx], &DataType::Int64);
    for sql in [
        "SELECT q.id, p.s FROM q LEFT JOIN p ON p.k BETWEEN q.k AND q.k + 3",
        "SELECT q.id, (SELECT p.s FROM p WHERE p.g = q.g AND p.k <= q.k ORDER BY p.k DESC LIMIT 1) FROM q",
        "SELECT q.id, first_value(p.s ORDER BY p.k) FROM q JOIN p ON p.g = q.g AND p.k >= q.k GROUP BY q.id",
        "SELECT q.id, x.s FROM q, LATERAL (SELECT p.s FROM p WHERE p.g = q.g AND p.k <= q.k ORDER BY p.k DESC LIMIT 2) x",
        "SELECT * FROM range_join('q', 'p', 'g', $$p.k BETWEEN q.k AND q.k + 3$$, 'min(s) AS m', 'include prevailing')",
    ] {
        let plan = planned(&ctx, sql).await;
        let text = text(&plan);
        assert!(
            text.contains("RangeJoinExec") && !text.contains("mode=Partitioned"),
            "{text}"
        );
        let found = lines(&collect(plan, ctx.task_ctx()).await.expect(sql));
        set(&ctx, "rmq.join_mode", "shared");
        assert_eq!(found, answer(&ctx, sql).await.expect(sql).0, "{sql}");
        set(&ctx, "rmq.join_mode", "partitioned");
    }
    // The join below a build side whose order matters keeps the order of its own probe side.
    let nested = "SELECT q.id, (SELECT x.s FROM range_join('p', 'q AS r', 'g', $$r.k > p.k$$, 'count(*) AS n') x \
                  WHERE x.g = q.g AND x.k + x.n <= q.k ORDER BY x.k DESC LIMIT 1) AS s FROM q";
    let text = text(&planned(&ctx, nested).await);
    assert!(
        text.matches("RangeJoinExec").count() == 2 && !text.contains("mode=Partitioned"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mode_of_an_operator_can_be_set() {
    let ctx = session(2, None);
    set(&ctx, "rmq.join_mode", "shared");
    tables(&[&ctx], &DataType::Int64);
    let sql = "SELECT q.id, p.s FROM q JOIN p ON p.g = q.g AND p.k BETWEEN q.k AND q.k + 3";
    let plan = planned(&ctx, sql).await;
    let join = range_join(&plan).expect("a range join");
    assert_eq!(join.mode(), JoinMode::Shared);
    let partitioned = join.with_mode(JoinMode::Partitioned).expect("has a key");
    assert_eq!(partitioned.mode(), JoinMode::Partitioned);
    let again: Arc<dyn ExecutionPlan> = Arc::new(partitioned);
    let children = again.children().into_iter().cloned().collect();
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    let again = again
        .replace_children(children, options)
        .expect("two inputs");
    let again = again.downcast_ref::<RangeJoinExec>().expect("a range join");
    assert_eq!(again.mode(), JoinMode::Partitioned);
    let shared = again.with_mode(JoinMode::Shared).expect("always");
    assert_eq!(shared.mode(), JoinMode::Shared);

    let sql = "SELECT q.id, p.s FROM q JOIN p ON p.k BETWEEN q.k AND q.k + 3";
    let plan = planned(&ctx, sql).await;
    let join = range_join(&plan).expect("a range join");
    let error = join.with_mode(JoinMode::Partitioned).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("can't be partitioned: it has no equality keys"),
        "{error}"
    );
}

/// Build sides that memory can't hold, beside each other in one pool.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_spill_each_by_itself() {
    let tables = [
        "CREATE TABLE p AS SELECT value % 40 AS g, nullif(value * 7919 % 100003, 5) AS k, value AS v, concat('text ', value) AS s FROM range(0, 60000)",
        "CREATE TABLE q AS SELECT value % 41 AS g, value * 50 AS k, value AS v FROM range(0, 1000)",
    ];
    let without = SessionContext::new();
    for table in tables {
        run(&without, table).await.expect(table);
    }
    let on = "p.g = q.g AND p.k BETWEEN q.k AND q.k + 90";
    let queries = [
        format!("SELECT count(*), sum(q.v), sum(p.v), min(p.s) FROM q FULL JOIN p ON {on}"),
        format!("SELECT q.v, p.s FROM q LEFT JOIN p ON {on} AND p.v > 20 * q.v"),
        format!("SELECT count(*), sum(p.v), min(p.s) FROM q RIGHT ANTI JOIN p ON {on}"),
        format!(
            "SELECT q.v, min(p.v), max(p.s), count(p.v) FROM q LEFT JOIN p ON {on} GROUP BY q.v"
        ),
    ];
    for partitions in [2, 16] {
        let fair = FairSpillPool::new(24 << 20);
        let pools: [Arc<dyn MemoryPool>; 3] = [
            ForRangeJoins::new(partitions << 18),
            Arc::new(GreedyMemoryPool::new(12 << 20)),
            Arc::new(fair),
        ];
        for (i, pool) in pools.into_iter().enumerate() {
            let ctx = session(partitions, Some(Arc::clone(&pool)));
            for table in tables {
                run(&ctx, table).await.expect(table);
            }
            for sql in &queries {
                let plan = planned(&ctx, sql).await;
                assert!(text(&plan).contains("mode=Partitioned"), "{sql}");
                let found = collect(Arc::clone(&plan), ctx.task_ctx()).await;
                let found = found.unwrap_or_else(|e| panic!("{partitions}, {pool}: {sql}: {e}"));
                let files = metric(&plan, "spill_count");
                println!("{partitions} partitions, pool {i}: {files} files");
                assert!(i > 0 || files > 0, "{sql}");
                assert!(
                    lines(&found) == answer(&without, sql).await.expect(sql).0,
                    "{pool}: {sql}"
                );
                drop(plan);
                assert_eq!(pool.reserved(), 0, "{pool}: {sql}");
            }
        }
    }
}

/// A partition of a table: batches, and then an error if it is the last one.
#[derive(Debug)]
struct Part {
    batches: Vec<RecordBatch>,
    fails: bool,
    schema: SchemaRef,
}

impl PartitionStream for Part {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let batches: Vec<Result<_>> = self.batches.iter().cloned().map(Ok).collect();
        let failure = DataFusionError::Execution("the third file is damaged".into());
        let failure = self.fails.then_some(Err(failure));
        let all = futures::stream::iter(batches.into_iter().chain(failure));
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), all))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_in_one_partition_of_the_build_side_ends_the_query() {
    for partitions in [1, 3, 16] {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 30));
        let ctx = session(partitions, Some(Arc::clone(&pool)));
        let table = "CREATE TABLE q AS SELECT value % 50 AS g, value AS k FROM range(0, 5000)";
        run(&ctx, table).await.expect(table);
        let field = |name| Field::new(name, DataType::Int64, true);
        let schema = Arc::new(Schema::new(vec![field("g"), field("k")]));
        let batch = || {
            let g: ArrayRef = Arc::new((0..400).map(|i| i % 50).collect::<Int64Array>());
            let k: ArrayRef = Arc::new((0..400).collect::<Int64Array>());
            RecordBatch::try_new(Arc::clone(&schema), vec![g, k]).expect("two columns")
        };
        let part = |i| {
            let part = Part {
                batches: (0..10).map(|_| batch()).collect(),
                fails: i == 2,
                schema: Arc::clone(&schema),
            };
            Arc::new(part) as Arc<dyn PartitionStream>
        };
        let parts = (0..4).map(part).collect();
        let table = StreamingTable::try_new(Arc::clone(&schema), parts).expect("a table");
        ctx.register_table("p", Arc::new(table)).expect("p");
        for sql in [
            "SELECT q.g, p.k FROM q FULL JOIN p ON p.g = q.g AND p.k BETWEEN q.k AND q.k + 3",
            "SELECT q.k, min(p.k) FROM q JOIN p ON p.g = q.g AND p.k BETWEEN q.k AND q.k + 3 GROUP BY q.k",
        ] {
            let plan = planned(&ctx, sql).await;
            assert!(text(&plan).contains("mode=Partitioned"), "{}", text(&plan));
            let ended = collect(plan, ctx.task_ctx());
            let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
            let error = ended
                .expect("no partition waits")
                .expect_err(sql)
                .to_string();
            assert!(error.contains("the third file is damaged"), "{error}");
            // Tasks of other partitions may still end.
            let mut waited = 0;
            while pool.reserved() > 0 {
                assert!(waited < 1000, "{} bytes left", pool.reserved());
                tokio::time::sleep(Duration::from_millis(5)).await;
                waited += 1;
            }
        }
    }
}

/// Each partition returns its rows, whatever becomes of the others.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_may_be_dropped_at_any_point() {
    let sql = "SELECT q.id, p.id FROM q FULL JOIN p ON p.g = q.g AND p.k BETWEEN q.k AND q.k + 30";
    let ctx = session(5, None);
    tables(&[&ctx], &DataType::Int64);
    let part = async |plan: &Arc<dyn ExecutionPlan>, partition| {
        let stream = plan.execute(partition, ctx.task_ctx()).expect(sql);
        lines(&stream.try_collect::<Vec<_>>().await.expect(sql))
    };
    let plan = planned(&ctx, sql).await;
    assert!(text(&plan).contains("mode=Partitioned"), "{}", text(&plan));
    let mut expected = vec![];
    for partition in 0..plan.output_partitioning().partition_count() {
        expected.push(part(&plan, partition).await);
    }
    assert_eq!(expected.len(), 5);
    for dropped in 0..5 {
        for polled in [false, true] {
            let plan = planned(&ctx, sql).await;
            let mut stream = plan.execute(dropped, ctx.task_ctx()).expect(sql);
            if polled {
                stream.next().await;
            }
            drop(stream);
            for partition in (0..5).filter(|partition| *partition != dropped) {
                let found = tokio::time::timeout(Duration::from_secs(60), part(&plan, partition));
                let found = found.await.expect("no partition waits for another");
                assert!(
                    found == expected[partition],
                    "{dropped}, {polled}: {partition}"
                );
            }
        }
    }
}

/// Most partitions have no row of the probe side, and end their part of the build side.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_without_a_probe_row_read_nothing() {
    for (join, kept) in [("JOIN", false), ("LEFT JOIN", false), ("RIGHT JOIN", true)] {
        let with = session(16, None);
        let without = SessionContext::new();
        for ctx in [&with, &without] {
            for table in [
                "CREATE TABLE p AS SELECT value % 100 AS g, value * 7919 % 10007 AS k FROM range(0, 70000)",
                "CREATE TABLE q AS SELECT 7 AS g, value AS k FROM range(0, 300)",
            ] {
                run(ctx, table).await.expect(table);
            }
        }
        let sql =
            format!("SELECT q.k, p.k FROM q {join} p ON p.g = q.g AND p.k BETWEEN q.k AND q.k + 9");
        let plan = planned(&with, &sql).await;
        let found = collect(Arc::clone(&plan), with.task_ctx())
            .await
            .expect(&sql);
        assert!(
            lines(&found) == answer(&without, &sql).await.expect(&sql).0,
            "{sql}"
        );
        let rows = metric(&plan, "build_rows");
        assert!(kept == (rows == 70_000), "{rows} rows: {sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_build_each_partition() {
    let cpu = session(1, None);
    let devices = Arc::new(Fake::default());
    let config = SessionConfig::new()
        .with_target_partitions(3)
        .with_batch_size(100);
    let with = devices.session_with(
        config,
        &[("rmq.engine", "cuda"), ("rmq.join_mode", "partitioned")],
    );
    tables(&[&cpu, &with], &DataType::Utf8);
    set(&cpu, "rmq.join_mode", "shared");
    let on = "p.g = q.g AND p.k BETWEEN q.k AND q.k + 60";
    for sql in [
        format!(
            "SELECT q.id, min(p.v), count(*), sum(p.v) FROM q LEFT JOIN p ON {on} GROUP BY q.id"
        ),
        format!("SELECT q.id, max(p.s), count(p.s) FROM q JOIN p ON {on} GROUP BY q.id"),
    ] {
        let plan = planned(&with, &sql).await;
        let text = text(&plan);
        assert!(text.contains("mode=Partitioned, engine=cuda"), "{text}");
        let found = collect(plan, with.task_ctx()).await.expect(&sql);
        assert_eq!(
            lines(&found),
            answer(&cpu, &sql).await.expect(&sql).0,
            "{sql}"
        );
    }
}
