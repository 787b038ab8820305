//! Partitions of a plan that was written and read, executed at once, one after the other, and only some of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, collect_partitioned};
use datafusion::prelude::SessionContext;
use datafusion_rmq::{RmqOptions, SessionRole};
use datafusion_rmq_proto::{RmqCodec, portable};
use futures::TryStreamExt;

use crate::files::run;
use crate::support::{builder, copy};

/// Files of each table, so that a probe side has some partitions.
const FILES: usize = 4;

/// A session over `p` and `q` in files with statistics. `is_whole` if what reads a plan executes all of it.
async fn session(codec: &RmqCodec, folder: &std::path::Path, is_whole: bool) -> SessionContext {
    let mut builder = builder(codec);
    let config = builder.config().get_or_insert_default();
    let mut options = RmqOptions::of(config.options());
    options.role = if is_whole {
        SessionRole::RunsTasks
    } else {
        SessionRole::None
    };
    config.options_mut().extensions.insert(options);
    // Else a partition reads the files of others.
    config
        .options_mut()
        .execution
        .enable_file_stream_work_stealing = false;
    let ctx = SessionContext::new_with_state(builder.build());
    run(&ctx, "SET rmq.range_joins = 'always'").await;
    run(&ctx, "SET rmq.pruning = 'always'").await;
    for (name, rows, k) in [("p", 20_000, "i"), ("q", 400, "9000 + i")] {
        let path = folder.join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        for file in 0..FILES {
            let path = path.join(format!("{file}.parquet"));
            let copy = format!(
                "COPY (SELECT i AS id, i % 5 AS g, {k} AS k FROM generate_series({}, {}) AS t(i)) TO '{}' \
                 STORED AS PARQUET OPTIONS (max_row_group_size 500)",
                file * rows / FILES,
                (file + 1) * rows / FILES - 1,
                path.display()
            );
            if !path.exists() {
                run(&ctx, &copy).await;
            }
        }
        let path = path.display();
        let table = format!("CREATE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION '{path}/'");
        run(&ctx, &table).await;
    }
    ctx
}

/// The sorted rows.
fn rows(batches: &[RecordBatch]) -> Vec<String> {
    let text = pretty_format_batches(batches).expect("text").to_string();
    let mut lines: Vec<_> = text.lines().map(str::to_string).collect();
    lines.retain(|line| line.starts_with("| ") && !line.contains("id"));
    lines.sort();
    lines
}

async fn execute(
    plan: &Arc<dyn ExecutionPlan>,
    partition: usize,
    context: Arc<TaskContext>,
) -> Vec<RecordBatch> {
    let rows = plan.execute(partition, context).expect("a stream");
    rows.try_collect().await.expect("rows")
}

/// How many rows a join has read of its searched side, if that was pruned.
fn scanned(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    let metrics = plan
        .metrics()
        .and_then(|all| all.sum_by_name("rows_scanned"));
    let own = metrics.map(|value| value.as_usize());
    own.or_else(|| plan.children().into_iter().find_map(scanned))
}

#[tokio::test(flavor = "multi_thread")]
async fn any_partitions_of_a_task_return_their_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    for is_whole in [true, false] {
        let codec = RmqCodec::default();
        let ctx = session(&codec, folder.path(), is_whole).await;
        for sql in [
            "SELECT q.id, (SELECT count(*) FROM p WHERE p.g = q.g AND p.k BETWEEN q.k - 99 AND q.k) AS n FROM q",
            "SELECT q.id, p.id FROM q JOIN p ON p.k BETWEEN q.k - 3 AND q.k",
            "SELECT q.id, x.id FROM q, LATERAL (SELECT p.id FROM p WHERE p.k BETWEEN q.k - 40 AND q.k AND p.g = q.g ORDER BY p.k DESC LIMIT 2) x",
        ] {
            let plan = ctx.sql(sql).await.expect(sql).create_physical_plan().await;
            let plan = portable(plan.expect(sql)).expect(sql);
            let read = || copy(Arc::clone(&plan), &codec, &ctx.state()).expect(sql);
            let partitions = plan.output_partitioning().partition_count();
            assert!(partitions > 2, "{sql}");
            // The session's own plan.
            let whole = collect_partitioned(Arc::clone(&plan), ctx.task_ctx()).await;
            let expected = rows(&whole.expect(sql).concat());
            assert!(expected.len() >= 400, "{sql}: {}", expected.len());

            let at_once = read();
            let found = collect_partitioned(Arc::clone(&at_once), ctx.task_ctx()).await;
            assert_eq!(
                rows(&found.expect(sql).concat()),
                expected,
                "at once: {sql}"
            );
            let is_pruned = scanned(&at_once).is_some_and(|rows| rows < 3000);
            assert_eq!(is_pruned, is_whole, "{sql}");

            // Each with a context of its own.
            let (one_by_one, mut found) = (read(), vec![]);
            for partition in (0..partitions).rev() {
                found.extend(execute(&one_by_one, partition, ctx.task_ctx()).await);
            }
            assert_eq!(rows(&found), expected, "one by one: {sql}");

            // Each in a plan of its own, of which nothing else is executed.
            let mut found = vec![];
            for partition in 0..partitions {
                found.extend(execute(&read(), partition, ctx.task_ctx()).await);
            }
            assert_eq!(rows(&found), expected, "one of each: {sql}");

            // A partition whose stream is dropped, and one that is never executed.
            let some = read();
            drop(some.execute(0, ctx.task_ctx()).expect(sql));
            let last = rows(&execute(&some, partitions - 1, ctx.task_ctx()).await);
            let all: BTreeSet<_> = expected.iter().collect();
            assert!(last.iter().all(|row| all.contains(row)), "some: {sql}");
        }
    }
}
