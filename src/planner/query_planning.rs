//! The steps that planning a query adds to DataFusion's: for the nodes of this crate, and for DELETE and UPDATE
//! statements.

use std::borrow::Cow;
use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::common::display::StringifiedPlan;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::context::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::explain::ExplainExec;
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};

use crate::kept::giving_pool::GivingPool;
use crate::optimizer::physical::build_origins::ShowBuildOrigins;
use crate::optimizer::physical::quadratic_joins::NoteQuadraticJoins;
use crate::planner::create_index::{CreateIndexPlanner, expect_named, with_create_index};
use crate::planner::dml_checks::with_checked_statements;
use crate::planner::join_choices::JoinChoices;
use crate::planner::kept_scans::with_kept_scans;
use crate::planner::range_join_planner::RangeJoinPlanner;
use crate::planner::range_lookup_planner::RangeLookupPlanner;
use crate::planner::registration::Registration;
use datafusion_rmq_logical::common::sql_text::with_intervals;
use datafusion_rmq_logical::logical_plan::prepare_indexes::with_fresh_slots;

/// Makes the physical plan of an optimized logical plan, for a session with a query planner of its own.
///
/// [`with_rmq`](crate::session::SessionStateBuilderExt::with_rmq) and [`register`](crate::session::register) install a
/// query planner that does this. A session that keeps its own planner registers with
/// [`with_rmq_keeping_query_planner`](crate::session::SessionStateBuilderExt::with_rmq_keeping_query_planner) or
/// [`register_keeping_query_planner`](crate::session::register_keeping_query_planner), and its planner calls this.
/// `planners` are tried before those of this crate, by DataFusion's [`DefaultPhysicalPlanner`].
///
/// DELETE and UPDATE statements whose conditions DataFusion would drop are refused. Where statistics or a sample
/// tell that a range join should be slower than the join it replaces, the query is planned again with that join.
///
/// # Errors
/// A planning error if this crate is not registered with the session, if a DELETE or UPDATE has a condition that
/// DataFusion would drop, or if such a statement needs an operator of this crate. Any error of planning the query, or
/// the scan of a table that a range function names.
///
/// ```
/// # use std::sync::Arc;
/// # use async_trait::async_trait;
/// # use datafusion::catalog::Session;
/// # use datafusion::error::Result;
/// # use datafusion::execution::SessionStateBuilder;
/// # use datafusion::execution::context::QueryPlanner;
/// # use datafusion::logical_expr::LogicalPlan;
/// # use datafusion::physical_plan::ExecutionPlan;
/// # use datafusion::prelude::SessionContext;
/// use datafusion_rmq::SessionStateBuilderExt;
///
/// #[derive(Debug)]
/// struct MyPlanner;
///
/// #[async_trait]
/// impl QueryPlanner for MyPlanner {
///     async fn create_physical_plan(
///         &self,
///         plan: &LogicalPlan,
///         session: &dyn Session,
///     ) -> Result<Arc<dyn ExecutionPlan>> {
///         // In place of `&[]`: &[Arc::new(MyExtensionPlanner)]
///         datafusion_rmq::plan(plan, session, &[]).await
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let state = SessionStateBuilder::new_with_default_features()
///     .with_query_planner(Arc::new(MyPlanner))
///     .with_rmq_keeping_query_planner()
///     .build();
/// let ctx = SessionContext::new_with_state(state);
/// # ctx.sql("CREATE TABLE t AS VALUES (3), (1), (2)").await?.collect().await?;
/// # let rows = ctx.sql("SELECT range_min('t.column1', 1, 2) AS m").await?.collect().await?;
/// # assert_eq!(rows[0].num_rows(), 1);
/// # Ok(()) }
/// ```
pub async fn plan(
    logical_plan: &LogicalPlan,
    session: &dyn Session,
    planners: &[Arc<dyn ExtensionPlanner + Send + Sync>],
) -> Result<Arc<dyn ExecutionPlan>> {
    plan_with(&Registration::of(session)?, logical_plan, session, planners).await
}

/// As [`plan`], with a registration that need not be the session's.
pub(crate) async fn plan_with(
    registration: &Registration,
    logical_plan: &LogicalPlan,
    session: &dyn Session,
    planners: &[Arc<dyn ExtensionPlanner + Send + Sync>],
) -> Result<Arc<dyn ExecutionPlan>> {
    let noting = with_notes(registration, logical_plan, session);
    let noting = noting.as_ref().map(|state| state as &dyn Session);
    let planned = plan_statement(
        registration,
        logical_plan,
        noting.unwrap_or(session),
        planners,
    );
    planned.await.map(explained)
}

/// A session whose plans have a note above each join that compares every pair of rows, and range joins that tell
/// whether their build sides are kept, if the plan is for EXPLAIN or EXPLAIN ANALYZE.
fn with_notes(
    registration: &Registration,
    plan: &LogicalPlan,
    session: &dyn Session,
) -> Option<SessionState> {
    if !matches!(plan, LogicalPlan::Explain(_) | LogicalPlan::Analyze(_)) {
        return None;
    }
    let state = session.as_any().downcast_ref::<SessionState>()?;
    let pool = &state.runtime_env().memory_pool;
    let origins = ShowBuildOrigins {
        catalog: Arc::clone(&registration.indexes),
        keeps: GivingPool::may_keep(pool, &registration.indexes),
    };
    let noting = SessionStateBuilder::new_from_existing(state.clone())
        .with_session_id(state.session_id().to_string())
        .with_physical_optimizer_rule(Arc::new(origins))
        .with_physical_optimizer_rule(Arc::new(NoteQuadraticJoins::new(plan)));
    Some(noting.build())
}

/// An EXPLAIN whose intervals are as SQL writes them, or another plan as it is.
fn explained(plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let Some(explain) = plan.downcast_ref::<ExplainExec>() else {
        return plan;
    };
    let plans = explain.stringified_plans().iter();
    let plans = plans
        .map(|shown| StringifiedPlan::new(shown.plan_type.clone(), with_intervals(&shown.plan)));
    let (schema, plans) = (explain.schema(), plans.collect());
    Arc::new(ExplainExec::new(schema, plans, explain.verbose()))
}

/// As [`plan_with`], with the errors of DataFusion.
async fn plan_statement(
    registration: &Registration,
    logical_plan: &LogicalPlan,
    session: &dyn Session,
    planners: &[Arc<dyn ExtensionPlanner + Send + Sync>],
) -> Result<Arc<dyn ExecutionPlan>> {
    let mut logical_plan = with_create_index(logical_plan, registration, session).await?;
    expect_named(&logical_plan, registration, session).await;
    loop {
        let prepared = match with_checked_statements(&logical_plan)? {
            Cow::Borrowed(plan) => with_fresh_slots(plan)?,
            Cow::Owned(plan) => Cow::Owned(with_fresh_slots(&plan)?.into_owned()),
        };
        let prepared = with_kept_scans(prepared, &registration.indexes, session)?;
        let names = registration.names.with_config(session.config_options());
        let indexes = &registration.indexes;
        let lookups = Arc::new(RangeLookupPlanner::new(names, Arc::clone(indexes)));
        let joins = Arc::new(RangeJoinPlanner {
            indexes: Arc::clone(indexes),
            choices: JoinChoices::default(),
            range_sources: Arc::default(),
        });
        let mut planners = planners.to_vec();
        let created = Arc::new(CreateIndexPlanner {
            registration: registration.clone(),
        });
        planners.extend([
            Arc::clone(&joins) as _,
            Arc::clone(&lookups) as _,
            created as _,
        ]);
        let planner = DefaultPhysicalPlanner::with_extension_planners(planners);
        let plan = planner.create_physical_plan(&prepared, session).await?;
        if let Some(other_plan) = joins.choices.replace(&prepared, session)? {
            // It has fewer choices, so this ends.
            logical_plan = Cow::Owned(other_plan);
            continue;
        }
        // Last, because one scan per table reads the columns of all calls: a query sees one version of each table.
        for relation in lookups.take_relations() {
            relation.plan_scan(session).await?;
        }
        return Ok(plan);
    }
}
