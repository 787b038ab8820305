//! The steps that a query planner adds to DataFusion's: for the nodes of this crate, and for DELETE and UPDATE statements.

use std::borrow::Cow;
use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_planner::ExtensionPlanner;

use crate::logical_plan::prepare_indexes::with_fresh_slots;
use crate::planner::dml_checks::with_checked_statements;
use crate::planner::join_choices::JoinChoices;
use crate::planner::range_join_planner::RangeJoinPlanner;
use crate::planner::range_lookup_planner::RangeLookupPlanner;
use crate::planner::registration::Registration;

/// Plans the nodes of this crate in one query, for a session with a query planner of its own.
///
/// [`with_rmq`](crate::session::SessionStateBuilderExt::with_rmq) and [`register`](crate::session::register) install a query planner that does this. A session that
/// keeps its own planner registers with
/// [`with_rmq_keeping_query_planner`](crate::session::SessionStateBuilderExt::with_rmq_keeping_query_planner) or
/// [`register_keeping_query_planner`](crate::session::register_keeping_query_planner), and its planner takes these steps for each query:
///
/// 1. [`begin`](Self::begin) checks and prepares the optimized logical plan. It refuses DELETE and UPDATE statements of which DataFusion would
///    drop conditions, and gives a prepared statement that is planned again indexes of its own.
/// 2. A [`PhysicalPlanner`](datafusion::physical_planner::PhysicalPlanner) with the [extension planners](Self::extension_planners) plans the
///    [prepared logical plan](Self::logical_plan).
/// 3. [`with_hash_joins`](Self::with_hash_joins) may return another logical plan, with which it begins again.
/// 4. [`finish`](Self::finish) plans the scans of the tables that range functions name. It comes last, because one scan per table reads the
///    columns of all calls, so that a query sees one version of each table.
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
/// # use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
/// # use datafusion::prelude::SessionContext;
/// use datafusion_rmq::{QueryPlanning, SessionStateBuilderExt};
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
///         let mut plan = plan.clone();
///         loop {
///             let rmq = QueryPlanning::begin(&plan, session)?;
///             let mut planners = rmq.extension_planners();
///             // planners.push(Arc::new(MyExtensionPlanner));
///             let physical = DefaultPhysicalPlanner::with_extension_planners(planners)
///                 .create_physical_plan(rmq.logical_plan(), session)
///                 .await?;
///             if let Some(other) = rmq.with_hash_joins(session)? {
///                 plan = other;
///                 continue;
///             }
///             rmq.finish(session).await?;
///             return Ok(physical);
///         }
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
pub struct QueryPlanning<'a> {
    logical_plan: Cow<'a, LogicalPlan>,
    lookups: Arc<RangeLookupPlanner>,
    joins: Arc<RangeJoinPlanner>,
}

impl<'a> QueryPlanning<'a> {
    /// Checks and prepares an optimized logical plan. A plan without nodes of this crate and without DELETE and UPDATE is borrowed, not copied.
    ///
    /// # Errors
    /// A planning error if this crate is not registered with the session, if a DELETE or UPDATE has a condition that DataFusion would drop,
    /// or if such a statement needs an operator of this crate.
    pub fn begin(logical_plan: &'a LogicalPlan, session: &dyn Session) -> Result<Self> {
        Self::with(&Registration::of(session)?, logical_plan, session)
    }

    /// As [`Self::begin`], with a registration that need not be the session's.
    pub(crate) fn with(
        registration: &Registration,
        logical_plan: &'a LogicalPlan,
        session: &dyn Session,
    ) -> Result<Self> {
        let logical_plan = match with_checked_statements(logical_plan)? {
            Cow::Borrowed(plan) => with_fresh_slots(plan)?,
            Cow::Owned(plan) => Cow::Owned(with_fresh_slots(&plan)?.into_owned()),
        };
        let names = registration.names.with_config(session.config_options());
        let indexes = &registration.indexes;
        Ok(Self {
            logical_plan,
            lookups: Arc::new(RangeLookupPlanner::new(names, Arc::clone(indexes))),
            joins: Arc::new(RangeJoinPlanner {
                indexes: Arc::clone(indexes),
                choices: JoinChoices::default(),
            }),
        })
    }

    /// The plan to be planned in place of the one given to [`Self::begin`].
    #[must_use]
    pub fn logical_plan(&self) -> &LogicalPlan {
        &self.logical_plan
    }

    /// The planners of `RangeJoin`, `NearestRows`, `JoinChoice`, `RangeLookup` and `PrepareIndexes` nodes, for this query only. They return `None` for any other node.
    #[must_use]
    pub fn extension_planners(&self) -> Vec<Arc<dyn ExtensionPlanner + Send + Sync>> {
        vec![Arc::clone(&self.joins) as _, Arc::clone(&self.lookups) as _]
    }

    /// The logical plan to begin again with, in place of the physical plan made so far, if some of its range joins should be slower than the joins they
    /// replace: aggregates over joins of which few rows have equal keys, as far as statistics or a sample tell. A planner that does not ask keeps them.
    ///
    /// # Errors
    /// Any error of optimizing the joins as they were written.
    pub fn with_hash_joins(&self, session: &dyn Session) -> Result<Option<LogicalPlan>> {
        self.joins.choices.replace(&self.logical_plan, session)
    }

    /// Completes the physical plan, which cannot be executed before.
    ///
    /// # Errors
    /// Any error of planning the scan of a table that a range function names.
    pub async fn finish(self, session: &dyn Session) -> Result<()> {
        for relation in self.lookups.take_relations() {
            relation.plan_scan(session).await?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for QueryPlanning<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueryPlanning")
            .field("logical_plan", &self.logical_plan)
            .finish_non_exhaustive()
    }
}
