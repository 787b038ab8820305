//! Queries return what one node returns, ties included, with their joins in several tasks.

use std::sync::Arc;

use ballista_core::JobId;
use ballista_core::serde::{
    BallistaCodec, BallistaLogicalExtensionCodec, BallistaPhysicalExtensionCodec,
};
use ballista_scheduler::planner::{DefaultDistributedPlanner, DistributedPlanner};
use datafusion::common::tree_node::TreeNode;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, displayable};
use datafusion::prelude::SessionContext;
use datafusion_rmq::JoinModeChoice;
use datafusion_rmq::physical_plan::RangeJoinExec;
use datafusion_rmq_ballista::{SentExec, codec, sent_config};
use datafusion_rmq_proto::RmqCodec;

use crate::files::{lines, move_to_files, run};
use crate::queries::{QUERIES, TABLES};
use crate::support::{CLUSTER, Settings, local, on_executors, start_with};

/// The tables of the queries in files, in a session of one node.
async fn tables() -> SessionContext {
    let one = local();
    for table in TABLES {
        run(&one, table).await;
    }
    move_to_files(&one).await.expect("files");
    run(&one, "SET rmq.range_joins = 'always'").await;
    one
}

/// The same tables in a session that has executors.
async fn sent(one: &SessionContext, scheduler: &str, mode: JoinModeChoice) -> SessionContext {
    let ctx = on_executors(scheduler, mode);
    for name in ["p", "q"] {
        let table = one.table_provider(name).await.expect("a table");
        ctx.register_table(name, table).expect("a new table");
    }
    run(&ctx, "SET rmq.range_joins = 'always'").await;
    ctx
}

/// The plans of the stages in which a plan is executed.
fn stages(ctx: &SessionContext, plan: &Arc<dyn ExecutionPlan>) -> Vec<Arc<dyn ExecutionPlan>> {
    let Some(sent) = plan.downcast_ref::<SentExec>() else {
        return vec![];
    };
    // As the scheduler does.
    let config = sent_config(&ctx.copied_config());
    let stages = DefaultDistributedPlanner::new().plan_query_stages(
        &JobId::from("job"),
        Arc::clone(sent.plan()),
        config.options(),
    );
    let stages = stages.expect("stages").into_iter();
    stages
        .map(|stage| Arc::clone(stage.children()[0]))
        .collect()
}

/// The most partitions of a stage with a range join. An executor with one core executes each as a task.
pub fn most_tasks_of_joins(ctx: &SessionContext, plan: &Arc<dyn ExecutionPlan>) -> usize {
    let tasks = stages(ctx, plan).into_iter().map(|stage| {
        let has_join = stage.exists(|operator| Ok(operator.is::<RangeJoinExec>()));
        let partitions = stage.output_partitioning().partition_count();
        if has_join.expect("a search") {
            partitions
        } else {
            0
        }
    });
    tasks.max().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn executors_return_what_one_node_returns() {
    let one = tables().await;
    let (mut several, mut failures) = (0, vec![]);
    for mode in [JoinModeChoice::Collected, JoinModeChoice::Partitioned] {
        let ctx = sent(&one, &CLUSTER, mode).await;
        for (sql, _) in QUERIES {
            let expected = lines(&one, sql).await.expect(sql);
            let frame = datafusion_rmq::sql(&ctx, sql).await.expect(sql);
            let plan = match frame.create_physical_plan().await {
                Ok(plan) => plan,
                Err(error) => {
                    failures.push(format!("{mode}: {sql}: {error}"));
                    continue;
                }
            };
            let Some(whole) = plan.downcast_ref::<SentExec>() else {
                failures.push(format!("{mode}: {sql}: not sent"));
                continue;
            };
            several += usize::from(most_tasks_of_joins(&ctx, &plan) > 1);
            let text = displayable(whole.plan().as_ref()).indent(false).to_string();
            match lines(&ctx, sql).await {
                Ok(found) if found == expected => {}
                Ok(found) => failures.push(format!(
                    "{mode}: {sql}: {} lines for {}\n{text}",
                    found.len(),
                    expected.len()
                )),
                Err(error) => failures.push(format!("{mode}: {sql}: {error}\n{text}")),
            }
        }
    }
    println!("range joins in several tasks: {several}");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    assert!(several >= 15, "{several}");
}

/// Queries without an operator of ours, in a session whose mode the client replaces.
#[tokio::test(flavor = "multi_thread")]
async fn plain_queries_are_sent() {
    let one = tables().await;
    let ctx = sent(&one, &CLUSTER, JoinModeChoice::Shared).await;
    // Joins without equality keys stay DataFusion's.
    run(&ctx, "SET rmq.range_joins = 'never'").await;
    let mut failures = vec![];
    for sql in [
        "SELECT count(*) FROM p",
        "SELECT g, sum(k), count(DISTINCT s) FROM p GROUP BY g",
        "SELECT p.id, q.k FROM p JOIN q ON p.id = q.id WHERE p.v > 10 ORDER BY p.id LIMIT 20",
        "SELECT id FROM p UNION ALL SELECT id FROM q",
        "SELECT * FROM p WHERE k > (SELECT avg(k) FROM q)",
        "SELECT id, sum(k) OVER (PARTITION BY g ORDER BY id) FROM p",
        "SELECT p.id, q.id FROM p RIGHT JOIN q ON p.k < q.v",
        "SELECT p.id, q.id FROM p LEFT JOIN q ON p.k < q.v",
        "SELECT p.id FROM p WHERE NOT EXISTS (SELECT 1 FROM q WHERE q.k < p.v)",
        "SELECT p.id, q.id FROM p FULL JOIN q ON p.k < q.v AND p.id > 40",
        // The scheduler plans the join again, as the input of an exchange.
        "SELECT p.id, count([q.id]) FROM p LEFT JOIN q ON q.id > p.id GROUP BY p.id",
        "SELECT p.id, count(*), count(q.id) FROM p LEFT JOIN q ON q.id > p.id + 400 GROUP BY p.id",
        "SELECT count(*) FROM (SELECT g FROM p LIMIT 40) GROUP BY g > 100",
        "SELECT p.g FROM p WHERE p.v NOT IN (SELECT q.id FROM q)",
        "SELECT p.g FROM p WHERE p.id NOT IN (SELECT q.v FROM q)",
        "SELECT p.id, q.k FROM p LEFT JOIN q ON p.id = q.id",
        "SELECT p.g, count(q.k) FROM p FULL JOIN q ON p.id = q.id GROUP BY p.g",
        "SELECT count(*) FROM p WHERE p.id > 9 AND (p.v > 10 OR EXISTS (SELECT 1 FROM q WHERE q.k < p.v))",
        "SELECT p.g, count(*) FROM p WHERE NOT EXISTS (SELECT 1 FROM q WHERE q.k < p.v) GROUP BY p.g",
        "SELECT p.g, count(*) FROM p WHERE EXISTS (SELECT 1 FROM q WHERE q.k < p.v) GROUP BY p.g",
        "SELECT 1",
    ] {
        let expected = lines(&one, sql).await.expect(sql);
        let found = lines(&ctx, sql).await;
        let found = found.unwrap_or_else(|e| panic!("{sql}: {e}"));
        if found != expected {
            let frame = ctx.sql(sql).await.expect(sql);
            let plan = frame.create_physical_plan().await.expect(sql);
            let stages = stages(&ctx, &plan).into_iter();
            let stages = stages.map(|stage| displayable(stage.as_ref()).indent(false).to_string());
            let stages = stages.collect::<Vec<_>>().join("\n");
            failures.push(format!(
                "{sql}: {} lines for {}\n{stages}",
                found.len(),
                expected.len()
            ));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// Exchanges that keep an order are written without it.
#[tokio::test(flavor = "multi_thread")]
async fn orders_that_exchanges_keep_are_kept() {
    let one = tables().await;
    let ctx = sent(&one, &CLUSTER, JoinModeChoice::Auto).await;
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().display();
    for file in 0..3 {
        let copy = format!(
            "COPY (SELECT id, g, k FROM p WHERE id % 3 = {file} ORDER BY g, k, id) TO '{folder}/{file}.parquet'"
        );
        run(&one, &copy).await;
    }
    let table = format!(
        "CREATE EXTERNAL TABLE sorted (id BIGINT, g BIGINT, k BIGINT) STORED AS PARQUET WITH ORDER (g, k, id) \
         LOCATION '{folder}/'"
    );
    for ctx in [&one, &ctx] {
        run(ctx, &table).await;
        run(ctx, "SET datafusion.optimizer.prefer_existing_sort = true").await;
    }
    let sql = "SELECT id, count(*) OVER (PARTITION BY g ORDER BY k, id) FROM sorted";
    let expected = lines(&one, sql).await.expect(sql);
    let explained = lines(&one, &format!("EXPLAIN FORMAT INDENT {sql}")).await;
    let explained = explained.expect(sql).join("\n");
    assert!(explained.contains("preserve_order=true"), "{explained}");
    assert_eq!(lines(&ctx, sql).await.expect(sql), expected);
}

/// What Ballista would answer wrongly, whatever operators a query has.
#[tokio::test(flavor = "multi_thread")]
async fn queries_that_ballista_would_change_are_refused() {
    let one = tables().await;
    let ctx = sent(&one, &CLUSTER, JoinModeChoice::Auto).await;
    run(&ctx, "SET rmq.range_joins = 'never'").await;
    for sql in [
        "SELECT g, count(*) FROM (SELECT * FROM p ORDER BY id LIMIT 40) GROUP BY g",
        "SELECT p.g, count(*) FROM p WHERE p.v NOT IN (SELECT q.id FROM q) GROUP BY p.g",
        "SELECT p.id, count(*) FROM p FULL JOIN q ON q.id > p.id + 400 GROUP BY p.id",
    ] {
        let error = lines(&ctx, sql).await.expect_err(sql).to_string();
        assert!(error.contains("Ballista 55"), "{sql}: {error}");
    }
    // The codec refuses it.
    let sql = "SELECT first_value(v) IGNORE NULLS OVER (PARTITION BY g ORDER BY id) FROM p";
    run(&ctx, "SET rmq.rewrite = false").await;
    let error = lines(&ctx, sql).await.expect_err(sql).to_string();
    assert!(error.contains("IGNORE NULLS"), "{error}");
}

/// A scheduler, or executors, without the codec.
#[tokio::test(flavor = "multi_thread")]
async fn sides_without_the_codec_are_errors() {
    let one = tables().await;
    let without = || {
        BallistaCodec::new(
            Arc::new(BallistaLogicalExtensionCodec::default()),
            Arc::new(BallistaPhysicalExtensionCodec::default()),
        )
    };
    let with = || codec(&RmqCodec::default());
    let sql =
        "SELECT q.id, (SELECT min(p.v) FROM p WHERE p.g = q.g AND p.k BETWEEN q.k AND q.b) FROM q";
    for (scheduler, executors) in [(without(), with()), (with(), without())] {
        let scheduler = start_with(scheduler, &executors, vec![Settings::default(); 2]);
        let ctx = sent(&one, &scheduler, JoinModeChoice::Auto).await;
        let error = lines(&ctx, sql).await.expect_err("no codec").to_string();
        println!("{error}");
        assert!(error.contains("BallistaPhysicalPlanNode"), "{error}");
    }
}
