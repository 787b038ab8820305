//! Random queries, as in the tests of datafusion-rmq-distributed. `RMQ_CASES` is the number of queries of a run,
//! `RMQ_TEST_SEED` repeats one, and `RMQ_TEST_CASE` the queries over one set of tables.

#[path = "../../../datafusion-rmq-distributed/tests/cluster/random/queries.rs"]
mod queries;
#[path = "../../../datafusion-rmq-distributed/tests/cluster/random/tables.rs"]
mod tables;

use datafusion_rmq::JoinModeChoice;
use rmq_testing::{Random, cases_with_queries, is_usual};

use crate::answers::most_tasks_of_joins;
use crate::files::{lines, run};
use crate::support::{local, on_executors, start};

use queries::{Query, is_defined};
use tables::Tables;

/// The number of queries, unless `RMQ_CASES` overrides it.
const CASES: usize = 60;

/// Queries over the same tables, in the same session.
const QUERIES: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn random_queries_return_what_one_node_returns() {
    let scheduler = start(3).await;
    let (mut asked, mut several, mut refused, mut failures) = (0, 0, 0, 0);
    for seed in cases_with_queries("random queries on Ballista", &[], CASES, QUERIES) {
        println!("RMQ_TEST_CASE={seed}");
        let random = &mut Random::from_seed(seed);
        let tables = Tables::draw(random);
        let mode = [
            JoinModeChoice::Auto,
            JoinModeChoice::Collected,
            JoinModeChoice::Partitioned,
        ][random.below(3)];
        let (one, ctx) = (local(), on_executors(&scheduler, mode));
        for ctx in [&one, &ctx] {
            tables.register(ctx).await;
            run(ctx, "SET rmq.range_joins = 'always'").await;
        }
        for _ in 0..QUERIES {
            let Query { sql, .. } = &Query::draw(random, &tables);
            let expected = lines(&one, sql).await;
            if expected.is_ok() && !is_defined(&one, sql).await.expect(sql) {
                continue;
            }
            asked += 1;
            let planned = async {
                let frame = datafusion_rmq::sql(&ctx, sql).await?;
                frame.create_physical_plan().await
            };
            if let Ok(plan) = planned.await {
                several += usize::from(most_tasks_of_joins(&ctx, &plan) > 1);
            }
            let problem = match (lines(&ctx, sql).await, expected) {
                (Ok(found), Ok(expected)) if found == expected => continue,
                (Err(_), Err(_)) => continue,
                (Ok(found), Ok(expected)) => {
                    format!("{} lines instead of {}", found.len(), expected.len())
                }
                (Ok(_), Err(error)) => format!("an error on one node only: {error}"),
                (Err(error), Ok(_)) if error.strip_backtrace().contains("Ballista 55") => {
                    refused += 1;
                    continue;
                }
                (Err(error), Ok(_)) => error.strip_backtrace(),
            };
            failures += 1;
            println!(
                "==== RMQ_TEST_CASE={seed}, mode {mode}\n{}\n{sql}\n{problem}",
                tables.label
            );
        }
    }
    println!("{asked} queries, {several} with joins in several tasks, {refused} refused");
    assert_eq!(failures, 0, "printed above");
    assert!(
        !is_usual() || several * 4 > asked,
        "{several} of {asked} in several tasks"
    );
    assert!(
        !is_usual() || refused * 4 < asked,
        "{refused} of {asked} refused"
    );
}
