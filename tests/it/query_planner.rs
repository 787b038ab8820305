//! Sessions that keep a query planner of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::error::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_rmq::{SessionStateBuilderExt, register, register_keeping_query_planner};

use crate::support::{bigint, error, run};

/// A query planner that is not this crate's. It counts the plans that it makes.
#[derive(Debug, Default)]
struct ForeignPlanner {
    plans: AtomicUsize,
}

#[async_trait]
impl QueryPlanner for ForeignPlanner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.plans.fetch_add(1, Ordering::Relaxed);
        datafusion_rmq::plan(plan, session, &[]).await
    }
}

/// A builder of a session with that planner.
fn builder(planner: &Arc<ForeignPlanner>) -> SessionStateBuilder {
    SessionStateBuilder::new_with_default_features()
        .with_config(SessionConfig::new().with_target_partitions(2))
        .with_query_planner(Arc::clone(planner) as _)
}

/// Checks range functions, a range join in plain SQL, and the refusal of a DELETE.
async fn check(ctx: &SessionContext, planner: &ForeignPlanner) {
    for sql in [
        "CREATE TABLE t AS VALUES (5), (3), (8), (1)",
        "CREATE TABLE w AS VALUES (0, 2), (1, 3)",
    ] {
        run(ctx, sql).await.expect(sql);
    }
    let plans = planner.plans.load(Ordering::Relaxed);
    let sum = "SELECT sum(range_min('t.column1', column1, column2)) FROM w";
    assert_eq!(bigint(ctx, sum).await, Some(4));
    // Calls in the ON of an outer join stay expressions, over an index that an operator builds.
    let outer = "SELECT count(b.column1) FROM w a LEFT JOIN w b ON range_argmin('t.column1', a.column1, b.column2) = 3";
    assert_eq!(bigint(ctx, outer).await, Some(2));
    let join = "SELECT w.column1, min(t.column1) AS low FROM w JOIN t ON t.column1 BETWEEN w.column1 + 2 AND w.column2 + 2 GROUP BY w.column1";
    let explained = run(ctx, &format!("EXPLAIN {join}")).await.expect(join);
    let explained = format!("{:?}", explained.column(1));
    assert!(explained.contains("RangeJoinExec: "), "{explained}");
    assert_eq!(
        bigint(ctx, &format!("SELECT sum(low) FROM ({join})")).await,
        Some(6)
    );
    assert!(planner.plans.load(Ordering::Relaxed) > plans);
    let delete = "DELETE FROM t WHERE column1 IN (SELECT column1 FROM w)";
    let refused = error(ctx, delete).await;
    assert!(
        refused.contains("DataFusion passes a table only conditions"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_session_being_built_keeps_its_query_planner() {
    let planner = Arc::new(ForeignPlanner::default());
    let state = builder(&planner).with_rmq_keeping_query_planner().build();
    check(&SessionContext::new_with_state(state), &planner).await;
}

#[tokio::test]
async fn an_existing_session_keeps_its_query_planner() {
    let planner = Arc::new(ForeignPlanner::default());
    let ctx = SessionContext::new_with_state(builder(&planner).build());
    register_keeping_query_planner(&ctx);
    check(&ctx, &planner).await;
}

#[tokio::test]
async fn planning_needs_a_registration() {
    let ctx = SessionContext::new_with_state(builder(&Arc::default()).build());
    let missing = error(&ctx, "SELECT 1").await;
    assert!(missing.contains("datafusion_rmq::register"), "{missing}");
}

/// The kept planner is this crate's own, from the first registration. It uses the indexes of the second, which
/// `rmq_indexes()` lists.
#[tokio::test]
async fn a_second_registration_replaces_the_indexes_of_the_first() {
    let ctx = SessionContext::new();
    register(&ctx);
    register_keeping_query_planner(&ctx);
    run(&ctx, "CREATE TABLE t AS VALUES (5), (3), (8), (1)")
        .await
        .expect("a table");
    let minimum = "SELECT range_min('t.column1', 1, 2)";
    assert_eq!(bigint(&ctx, minimum).await, Some(3));
    let indexes = "SELECT count(*) FROM rmq_indexes()";
    assert_eq!(bigint(&ctx, indexes).await, Some(1));
}

#[tokio::test]
async fn a_copy_of_the_configuration_does_not_keep_indexes() {
    let runtime = Arc::new(RuntimeEnv::default());
    let ctx = SessionContext::new_with_config_rt(SessionConfig::new(), Arc::clone(&runtime));
    register(&ctx);
    run(&ctx, "CREATE TABLE t AS VALUES (5), (3), (8), (1)")
        .await
        .expect("a table");
    let minimum = "SELECT range_min('t.column1', 1, 2)";
    assert_eq!(bigint(&ctx, minimum).await, Some(3));
    assert!(runtime.memory_pool.reserved() > 0);
    let copy = ctx.copied_config();
    drop(ctx);
    assert_eq!(runtime.memory_pool.reserved(), 0);
    drop(copy);
}
