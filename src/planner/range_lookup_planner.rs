//! From `RangeLookup` and `PrepareIndexes` to their operators.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::catalog::default_table_source::DefaultTableSource;
use datafusion::common::{Result, internal_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, UserDefinedLogicalNode};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion::physical_planner::{ExtensionPlanner, PhysicalPlanner};

use crate::exec::common::statistics::expected_rows;
use crate::exec::range_join::mode::JoinMode;
use crate::exec::range_lookup::call::PhysicalCall;
use crate::exec::range_lookup::exec::RangeLookupExec;
use crate::exec::range_lookup::prepare::{PhysicalLookup, PrepareIndexesExec};
use crate::exec::range_lookup::relation::Relation;
use crate::exec::range_lookup::required::IndexUse;
use crate::exec::range_lookup::source::RelationSource;
use crate::kept::catalog::IndexCatalog;
use datafusion_rmq_logical::common::column_ref::{ColumnRef, Names};
use datafusion_rmq_logical::logical_plan::prepare_indexes::{PrepareIndexes, with_fresh_slots};
use datafusion_rmq_logical::logical_plan::range_lookup::{RangeLookup, Source, TableColumn};
use datafusion_rmq_logical::logical_plan::stated_order::{check_states_order, ends_in_order_by};
use rmq_arrow::common::range_function::RangeFunction;

/// Plans the range lookups of one query. All calls on one table share a [`Relation`], so that they read one version of
/// it.
pub(crate) struct RangeLookupPlanner {
    names: Names,
    indexes: Arc<IndexCatalog>,
    /// The relations that the query's calls read, each table and each subquery once.
    relations: Mutex<Vec<(Source, Arc<Relation>)>>,
}

impl RangeLookupPlanner {
    pub(crate) fn new(names: Names, indexes: Arc<IndexCatalog>) -> Self {
        Self {
            names,
            indexes,
            relations: Mutex::default(),
        }
    }

    /// The relations of the nodes planned so far. Their scans can be planned once all nodes have stated which columns
    /// they need.
    pub(crate) fn take_relations(&self) -> Vec<Arc<Relation>> {
        let mut relations = self
            .relations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *relations)
            .into_iter()
            .map(|(_, relation)| relation)
            .collect()
    }

    fn known(&self, key: &Source) -> Option<Arc<Relation>> {
        let relations = self
            .relations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        relations
            .iter()
            .find(|(k, _)| k.is_same(key))
            .map(|(_, r)| Arc::clone(r))
    }

    /// Adds a relation under this key, unless another node has added one meanwhile. Returns the one that was added
    /// first.
    fn add(&self, key: Source, new: Relation) -> Arc<Relation> {
        let mut relations = self
            .relations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((_, relation)) = relations.iter().find(|(k, _)| k.is_same(&key)) {
            return Arc::clone(relation);
        }
        let relation = Arc::new(new);
        relations.push((key, Arc::clone(&relation)));
        relation
    }

    /// The relation that a call reads, from which an index is required now, and the name of the column.
    async fn required(
        &self,
        planner: &dyn PhysicalPlanner,
        function: RangeFunction,
        source: &Source,
        demand: IndexUse,
        session: &dyn Session,
    ) -> Result<(Arc<Relation>, String)> {
        let (relation, column) = self.relation(planner, function, source, session).await?;
        let kind = function.index_kind();
        relation.require(&column, kind, demand, session).await?;
        Ok((relation, column))
    }

    /// The relation that a call reads, and the name of the column.
    async fn relation(
        &self,
        planner: &dyn PhysicalPlanner,
        function: RangeFunction,
        source: &Source,
        session: &dyn Session,
    ) -> Result<(Arc<Relation>, String)> {
        let function = function.range_name();
        let column = match source {
            Source::Table(column) => &column.0,
            Source::Query(plan) => {
                let column = plan.schema().field(0).name().clone();
                if let Some(relation) = self.known(source) {
                    return Ok((relation, column));
                }
                let rows = self.query(planner, plan, session).await?;
                let relation = Relation::new(source, rows, &self.indexes).await;
                return Ok((self.add(source.clone(), relation), column));
            }
        };
        // One relation serves all columns of a table.
        let key = Source::Table(TableColumn(ColumnRef {
            column: String::new(),
            ..column.clone()
        }));
        if let Some(relation) = self.known(&key) {
            return Ok((relation, column.column.clone()));
        }
        let table = column.table_reference();
        let provider = self.names.find_table(function, &table).await?;
        let rows = match provider.get_logical_plan() {
            None => RelationSource::Table {
                name: column.clone(),
                provider,
            },
            Some(view) => {
                check_states_order(function, &format!("the view {}", column.table), &view)?;
                let provider = Arc::new(DefaultTableSource::new(Arc::clone(&provider)));
                let scan = LogicalPlanBuilder::scan(&*column.table, provider, None)?.build()?;
                self.query(planner, &scan, session).await?
            }
        };
        let relation = Relation::new(source, rows, &self.indexes).await;
        Ok((self.add(key, relation), column.column.clone()))
    }

    /// Optimizes and plans a relation that is a query, separately from the outer query: there its ORDER BY holds.
    async fn query(
        &self,
        planner: &dyn PhysicalPlanner,
        plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<RelationSource> {
        let optimized = session.optimize(plan)?;
        let optimized = with_fresh_slots(&optimized)?;
        let plan = match session.as_any().downcast_ref::<SessionState>() {
            Some(state) => {
                let mut state = state.clone();
                let options = state.config_mut().options_mut();
                if !ends_in_order_by(plan) {
                    options.execution.target_partitions = 1;
                }
                // Dynamic filters keep the bounds of a first execution, and the scan may be executed again.
                options.optimizer.enable_dynamic_filter_pushdown = false;
                options.optimizer.enable_topk_dynamic_filter_pushdown = false;
                options.optimizer.enable_join_dynamic_filter_pushdown = false;
                options.optimizer.enable_aggregate_dynamic_filter_pushdown = false;
                planner.create_physical_plan(&optimized, &state).await?
            }
            None => planner.create_physical_plan(&optimized, session).await?,
        };
        let partitions = plan.output_partitioning().partition_count();
        if partitions != 1 {
            return internal_err!(
                "a relation in a stated order has {partitions} partitions, not one"
            );
        }
        Ok(RelationSource::Query(plan))
    }
}

#[async_trait]
impl ExtensionPlanner for RangeLookupPlanner {
    async fn plan_extension(
        &self,
        planner: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        logical_inputs: &[&LogicalPlan],
        physical_inputs: &[Arc<dyn ExecutionPlan>],
        session: &dyn Session,
        planning_ctx: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let ([logical], [input]) = (logical_inputs, physical_inputs) else {
            return Ok(None);
        };
        let ranges = expected_rows(input);
        if let Some(node) = node.as_any().downcast_ref::<PrepareIndexes>() {
            let demand = IndexUse {
                ranges,
                in_expression: true,
                needs_rows: true,
            };
            let mut lookups = vec![];
            for lookup in node.lookups() {
                let (function, slot) = (lookup.function, lookup.slot.clone());
                let column = self.required(planner, function, &lookup.source, demand, session);
                let (relation, column) = column.await?;
                lookups.push(PhysicalLookup {
                    function,
                    relation,
                    column,
                    slot,
                });
            }
            let mode = JoinMode::planned(session.config_options());
            let is_collected = mode == JoinMode::Collected;
            let input = Arc::clone(input);
            let prepare = PrepareIndexesExec::try_new(input, lookups, node.run(), is_collected)?;
            return Ok(Some(Arc::new(prepare)));
        }
        let Some(node) = node.as_any().downcast_ref::<RangeLookup>() else {
            return Ok(None);
        };
        let physical = |bound: &Expr| {
            planner.create_physical_expr(bound, logical.schema(), session, planning_ctx)
        };
        let mut calls = vec![];
        for call in node.calls() {
            let demand = IndexUse {
                ranges,
                in_expression: false,
                needs_rows: call.function.needs_rows(),
            };
            let column = self.required(planner, call.function, &call.source, demand, session);
            let (relation, column) = column.await?;
            let inputs = [&call.left, &call.right].into_iter();
            calls.push(PhysicalCall {
                function: call.function,
                relation,
                column,
                left: physical(&call.left)?,
                right: physical(&call.right)?,
                threshold: call.threshold.as_ref().map(physical).transpose()?,
                output: call.output.clone(),
                data_type: call.data_type.clone(),
                volatile: inputs.chain(&call.threshold).any(Expr::is_volatile),
            });
        }
        let lookup = RangeLookupExec::try_new(Arc::clone(input), calls)?;
        Ok(Some(Arc::new(lookup)))
    }
}
