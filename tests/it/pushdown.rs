//! What passes a range join on its way down: limits, filters, and the end of a query. Also its metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use datafusion::arrow::array::{AsArray, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use futures::StreamExt;

use crate::fake::Fake;
use crate::range_join::metric;
use crate::support::{cpu_session, run, set};

/// Batches of a probe side.
const BATCHES: usize = 200;

/// A table `q(id, sym, ts)` of [`BATCHES`] batches of 100 rows each that counts those read.
#[derive(Debug)]
struct Counted {
    schema: SchemaRef,
    read: Arc<AtomicUsize>,
}

impl Counted {
    fn register(ctx: &SessionContext) -> Arc<AtomicUsize> {
        let fields = ["id", "sym", "ts"].map(|name| Field::new(name, DataType::Int64, true));
        let schema = Arc::new(Schema::new(fields.to_vec()));
        let read = Arc::new(AtomicUsize::new(0));
        let partition = Self {
            schema: Arc::clone(&schema),
            read: Arc::clone(&read),
        };
        let table = StreamingTable::try_new(schema, vec![Arc::new(partition)]);
        ctx.register_table("q", Arc::new(table.expect("one schema")))
            .expect("the table is new");
        read
    }
}

impl PartitionStream for Counted {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (schema, read) = (Arc::clone(&self.schema), Arc::clone(&self.read));
        let batches = futures::stream::iter(0..BATCHES as i64).then(move |i| {
            read.fetch_add(1, Ordering::SeqCst);
            let ids = || i * 100..(i + 1) * 100;
            let columns = [
                Int64Array::from_iter_values(ids()),
                Int64Array::from_iter_values(ids().map(|id| id % 101)),
                Int64Array::from_iter_values(ids()),
            ];
            let columns = columns.map(|column| Arc::new(column) as _).to_vec();
            let batch = RecordBatch::try_new(Arc::clone(&schema), columns);
            async move {
                // A repartition reads ahead.
                tokio::time::sleep(Duration::from_millis(1)).await;
                Ok(batch?)
            }
        });
        Box::pin(RecordBatchStreamAdapter::new(
            Arc::clone(&self.schema),
            batches,
        ))
    }
}

/// A session with a probe side that counts its batches, and a build side `p` of these many rows.
async fn counting_session(build_rows: usize) -> (SessionContext, Arc<AtomicUsize>) {
    let ctx = cpu_session();
    set(&ctx, "rmq.range_joins", "always");
    // A repartition merges smaller batches before it passes them on.
    set(&ctx, "datafusion.execution.batch_size", "100");
    let read = Counted::register(&ctx);
    let table = format!(
        "CREATE TABLE p AS SELECT value % 101 AS sym, value AS ts, value AS v FROM range(0, {build_rows})"
    );
    run(&ctx, &table).await.expect("a table");
    (ctx, read)
}

/// The rows of a query, the batches that it read of the probe side, and the plan that was executed.
async fn executed(
    (ctx, read): &(SessionContext, Arc<AtomicUsize>),
    sql: &str,
) -> (usize, usize, String) {
    read.store(0, Ordering::SeqCst);
    let rows = run(ctx, sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    let plan = explain(ctx, sql).await;
    assert!(plan.contains("RangeJoinExec"), "{sql}\n{plan}");
    (rows.num_rows(), read.load(Ordering::SeqCst), plan)
}

/// The physical plan of a query.
async fn explain(ctx: &SessionContext, sql: &str) -> String {
    let rows = run(ctx, &format!("EXPLAIN FORMAT INDENT {sql}")).await;
    let rows = rows.unwrap_or_else(|e| panic!("{sql}: {e}"));
    let last = rows.num_rows() - 1;
    rows.column(1).as_string::<i32>().value(last).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_build_side_ends_a_join() {
    let empty = [
        "SELECT q.id, p.v FROM q JOIN p ON p.sym = q.sym AND p.ts BETWEEN q.ts - 5 AND q.ts",
        "SELECT q.id, p.v FROM q RIGHT JOIN p ON p.sym = q.sym AND p.ts BETWEEN q.ts - 5 AND q.ts",
        "SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE p.sym = q.sym AND p.ts BETWEEN q.ts - 5 AND q.ts)",
        "SELECT q.id, min(p.v) FROM q JOIN p ON p.sym = q.sym AND p.ts BETWEEN q.ts - 5 AND q.ts GROUP BY q.id",
    ];
    let kept = [
        "SELECT q.id, p.v FROM q LEFT JOIN p ON p.sym = q.sym AND p.ts BETWEEN q.ts - 5 AND q.ts",
        "SELECT q.id, p.v FROM q FULL JOIN p ON p.sym = q.sym AND p.ts BETWEEN q.ts - 5 AND q.ts",
        "SELECT q.id FROM q WHERE NOT EXISTS (SELECT 1 FROM p WHERE p.sym = q.sym AND p.ts BETWEEN q.ts - 5 AND q.ts)",
        "SELECT q.id, (SELECT min(p.v) FROM p WHERE p.sym = q.sym AND p.ts BETWEEN q.ts - 5 AND q.ts) FROM q",
    ];
    for mode in ["shared", "collected", "partitioned"] {
        let session = counting_session(0).await;
        set(&session.0, "rmq.join_mode", mode);
        // DataFusion would know that no row is returned.
        set(
            &session.0,
            "datafusion.execution.collect_statistics",
            "false",
        );
        for sql in empty {
            let (rows, read, plan) = executed(&session, sql).await;
            assert_eq!(rows, 0, "{sql}");
            assert!(
                read < BATCHES / 2,
                "{read} batches in mode {mode}: {sql}\n{plan}"
            );
        }
        for sql in kept {
            let (rows, read, _) = executed(&session, sql).await;
            assert_eq!((rows, read), (BATCHES * 100, BATCHES), "{sql}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_join_returns_build_rows_whose_keys_are_null() {
    let (ctx, _) = counting_session(0).await;
    let table = "CREATE OR REPLACE TABLE p AS SELECT column1 AS sym, column2 AS ts, column3 AS v \
                 FROM (VALUES (NULL, NULL, 1), (1, NULL, 2), (2, 3, 3)) WHERE column3 < 3";
    run(&ctx, table).await.expect(table);
    let sql =
        "SELECT q.id, p.v FROM q RIGHT JOIN p ON p.sym = q.sym AND p.ts BETWEEN q.ts - 5 AND q.ts";
    assert_eq!(run(&ctx, sql).await.expect(sql).num_rows(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_end_a_join_early() {
    let session = counting_session(10_000).await;
    set(&session.0, "datafusion.execution.target_partitions", "1");
    // Each row once: the limit goes to the probe side, and not to the build side.
    let sql = "SELECT q.id, (SELECT max(p.v) FROM p WHERE p.sym = q.sym AND p.ts <= q.ts) AS m FROM q LIMIT 150";
    let (rows, read, plan) = executed(&session, sql).await;
    assert_eq!(rows, 150, "{plan}");
    assert!(read < 10, "{read} batches\n{plan}");
    let below: Vec<&str> = plan
        .lines()
        .skip_while(|l| !l.contains("RangeJoinExec"))
        .collect();
    assert!(below[1].contains("fetch=150"), "{plan}");
    assert_eq!(plan.matches("150").count(), 1, "{plan}");
    let found = run(
        &session.0,
        &format!("SELECT count(*), sum(m - id) FROM ({sql})"),
    )
    .await;
    let found = found.expect(sql);
    let value = |i: usize| found.column(i).as_primitive::<Int64Type>().value(0);
    assert_eq!((value(0), value(1)), (150, 0));
    // Few rows match: the join need not fill a batch.
    let sql = "SELECT q.id, p.v FROM q JOIN p ON p.sym = q.sym AND p.ts BETWEEN q.ts AND q.ts + 1 AND (p.v + q.id) % 100 = 0 LIMIT 3";
    let (rows, read, plan) = executed(&session, sql).await;
    assert_eq!(rows, 3, "{plan}");
    assert!(read < 40, "{read} batches\n{plan}");
    assert!(plan.contains(", fetch=3"), "{plan}");
    for sql in [
        "SELECT q.id, p.v FROM q FULL JOIN p ON p.sym = q.sym AND p.ts BETWEEN q.ts - 8 AND q.ts LIMIT 5000 OFFSET 10",
        "SELECT p.v FROM p WHERE EXISTS (SELECT 1 FROM q WHERE p.sym = q.sym AND p.ts BETWEEN q.ts - 8 AND q.ts) LIMIT 5000 OFFSET 10",
        "SELECT q.id FROM q WHERE NOT EXISTS (SELECT 1 FROM p WHERE p.sym = q.sym AND p.ts BETWEEN q.ts - 8 AND q.ts) LIMIT 5000 OFFSET 10",
    ] {
        assert_eq!(executed(&session, sql).await.0, 5000, "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_of_the_nearest_rows_reach_the_scan_of_the_probe_side() {
    let (ctx, _) = counting_session(10_000).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("q.parquet");
    let file = file.display();
    for sql in [
        format!(
            "COPY (SELECT * FROM q ORDER BY sym) TO '{file}' OPTIONS ('format.max_row_group_size' '1000')"
        ),
        format!("CREATE EXTERNAL TABLE f STORED AS PARQUET LOCATION '{file}'"),
        format!("CREATE EXTERNAL TABLE r STORED AS PARQUET LOCATION '{file}'"),
    ] {
        run(&ctx, &sql)
            .await
            .unwrap_or_else(|e| panic!("{sql}: {e}"));
    }
    let filtered = [
        "SELECT q.id, (SELECT max(p.v) FROM p WHERE p.sym = q.sym AND p.ts <= q.ts) AS m FROM f AS q ORDER BY q.ts DESC LIMIT 5",
        "SELECT q.id, (SELECT count(*) FROM p WHERE p.sym = q.sym AND p.ts <= q.ts) AS m FROM f AS q ORDER BY q.id LIMIT 5",
        "SELECT q.id, p.v FROM f AS q JOIN p ON p.sym = q.sym AND p.ts BETWEEN q.ts - 3 AND q.ts + 3 ORDER BY q.ts LIMIT 5",
        "SELECT q.id, p.v FROM f AS q LEFT JOIN p ON p.sym = q.sym AND p.ts BETWEEN q.ts - 3 AND q.ts + 3 ORDER BY q.ts DESC LIMIT 5",
        "SELECT q.id FROM f AS q WHERE EXISTS (SELECT 1 FROM p WHERE p.sym = q.sym AND p.ts BETWEEN q.ts - 3 AND q.ts + 3) ORDER BY q.ts LIMIT 5",
        "SELECT q.id, range_min('p.v', q.id, q.id + 5) AS m FROM f AS q ORDER BY q.ts DESC LIMIT 5",
    ];
    // Rows of the other side without a match, and those that a filter would change.
    let unfiltered = [
        "SELECT q.id, r.id AS v FROM f AS q RIGHT JOIN r ON r.sym = q.sym AND r.ts BETWEEN q.ts - 3 AND q.ts + 3 ORDER BY q.ts NULLS FIRST LIMIT 5",
        "SELECT q.id, r.id AS v FROM f AS q FULL JOIN r ON r.sym = q.sym AND r.ts BETWEEN q.ts - 3 AND q.ts + 3 ORDER BY q.ts LIMIT 5",
        "SELECT q.id, (SELECT max(p.v) FROM p WHERE p.sym = q.sym AND p.ts <= q.ts) AS m FROM f AS q ORDER BY m NULLS FIRST, q.id LIMIT 5",
    ];
    let all = |sql: &str| sql.replace("LIMIT 5", "LIMIT 100000000");
    for (queries, is_filtered) in [(&filtered[..], true), (&unfiltered[..], false)] {
        for sql in queries {
            let plan = explain(&ctx, sql).await;
            assert!(
                plan.contains("RangeJoinExec") || plan.contains("RangeLookupExec"),
                "{plan}"
            );
            let below: String = plan
                .lines()
                .skip_while(|l| !l.contains("RangeJoinExec") && !l.contains("RangeLookupExec"))
                .collect();
            assert_eq!(
                below.contains("DynamicFilter"),
                is_filtered,
                "{sql}\n{plan}"
            );
            let sorted = run(&ctx, &all(sql)).await.expect(sql);
            let found = run(&ctx, sql).await.expect(sql);
            let ids = |batch: &RecordBatch| batch.column(0).slice(0, 5);
            assert_eq!(&ids(&found), &ids(&sorted), "{sql}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_stay_above_limits() {
    let (ctx, _) = counting_session(100).await;
    set(&ctx, "datafusion.execution.target_partitions", "1");
    set(
        &ctx,
        "datafusion.execution.parquet.pushdown_filters",
        "true",
    );
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("q.parquet");
    let file = file.display();
    for sql in [
        format!(
            "COPY (SELECT * FROM q ORDER BY id DESC) TO '{file}' OPTIONS ('format.max_row_group_size' '1000')"
        ),
        format!(
            "CREATE EXTERNAL TABLE f (id BIGINT, sym BIGINT, ts BIGINT) STORED AS PARQUET LOCATION '{file}' WITH ORDER (id DESC)"
        ),
    ] {
        run(&ctx, &sql)
            .await
            .unwrap_or_else(|e| panic!("{sql}: {e}"));
    }
    for column in [
        "(SELECT max(p.v) FROM p WHERE p.sym = q.sym AND p.ts <= q.ts)",
        "range_min('p.v', 0, q.sym)",
    ] {
        let sql = format!(
            "SELECT id, m FROM (SELECT q.id, q.ts, {column} AS m FROM f AS q ORDER BY q.id DESC LIMIT 5000) ORDER BY ts LIMIT 2"
        );
        let plan = explain(&ctx, &sql).await;
        let found = run(&ctx, &sql).await.expect(&sql);
        let ids = found
            .column(0)
            .as_primitive::<Int64Type>()
            .values()
            .to_vec();
        assert_eq!(ids, [15_000, 15_001], "{sql}\n{plan}");
        assert!(plan.contains("limit=5000"), "{plan}");
        assert!(!plan.contains("DynamicFilter"), "{plan}");
    }
}

/// Executes a query and returns its plan with metrics.
async fn measured(ctx: &SessionContext, sql: &str) -> (Arc<dyn ExecutionPlan>, Vec<RecordBatch>) {
    let plan = ctx.sql(sql).await.expect(sql);
    let plan = plan.create_physical_plan().await.expect(sql);
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await.expect(sql);
    (plan, batches)
}

#[tokio::test(flavor = "multi_thread")]
async fn time_on_devices_counts_and_bytes_are_those_of_rows() {
    let fake = Arc::new(Fake::default());
    *fake.delay.lock().unwrap() = Duration::from_millis(30);
    for engine in ["cpu", "cuda"] {
        let ctx = fake.session(&[("rmq.engine", engine)]);
        for sql in [
            "CREATE TABLE p AS SELECT value AS ts, value AS v FROM range(0, 1000)",
            "CREATE TABLE q AS SELECT value AS id, value % 900 AS ts FROM range(0, 20000)",
        ] {
            run(&ctx, sql).await.expect(sql);
        }
        set(&ctx, "datafusion.execution.batch_size", "100");
        let sql = "SELECT q.id, (SELECT min(p.v) FROM p WHERE p.ts BETWEEN q.ts - 10 AND q.ts) AS m FROM q";
        let (plan, _) = measured(&ctx, sql).await;
        let nanos = metric(&plan, "elapsed_compute");
        if engine == "cuda" {
            assert!(nanos > 30_000_000, "{nanos} ns");
        }
        assert!(nanos >= metric(&plan, "search_time") + metric(&plan, "query_time"));
        // Three columns of 8 bytes, and validity.
        let bytes = metric(&plan, "output_bytes");
        assert!(
            (3 * 8 * 20_000..=4 * 8 * 20_000).contains(&bytes),
            "{bytes} bytes"
        );
    }
}
