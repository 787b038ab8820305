//! From `NearestRows` to its operator, a range join that returns rows.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::catalog::Session;
use datafusion::common::{Column, DFSchema, JoinSide, JoinType, Result, plan_datafusion_err};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{Expr, LogicalPlan, SortExpr, UserDefinedLogicalNodeCore};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};
use datafusion::physical_planner::PhysicalPlanner;

use crate::exec::range_join::engine_choice::RangeJoinEngine;
use crate::exec::range_join::exec::RangeJoinExec;
use crate::exec::range_join::interval_bounds::with_fast_bounds;
use crate::exec::range_join::mode::JoinMode;
use crate::exec::range_join::pair_distance::PairDistance;
use crate::exec::range_join::parts::RangeJoinParts;
use crate::exec::range_join::row_join::RowJoin;
use crate::exec::range_join::row_threshold::RowThreshold;
use crate::optimizer::physical::join_filter::best_threshold;
use datafusion_rmq_logical::expr::order_key::{order_key, order_key_from};
use datafusion_rmq_logical::logical_plan::nearest_rows::NearestRows;
use datafusion_rmq_logical::logical_plan::range_join::Unmatched;

/// Plans a join of nearest rows over its planned sides, the probe side and the build side.
pub(crate) fn plan_nearest_rows(
    node: &NearestRows,
    (probe, build): (Arc<dyn ExecutionPlan>, Arc<dyn ExecutionPlan>),
    planner: &dyn PhysicalPlanner,
    session: &dyn Session,
    planning_ctx: &PhysicalPlanningContext,
) -> Result<Arc<dyn ExecutionPlan>> {
    let expressions = Expressions {
        node,
        planner,
        session,
        planning_ctx,
    };
    let physical = |expr: &Expr, schema: &DFSchema| expressions.physical(expr, schema);
    let condition = node.condition();
    let spec = condition.spec.try_map(
        |expr| physical(expr, node.probe().schema()),
        |expr| physical(expr, node.build().schema()),
    )?;
    let residual = condition.residual.as_ref();
    let residual = residual.map(|all| expressions.filter(all)).transpose()?;
    let (mut label, threshold) = expressions.threshold(&probe.schema(), &build.schema())?;
    label.push("returns=rows".to_string());
    let all = |side, plan: &Arc<dyn ExecutionPlan>| {
        (0..plan.schema().fields().len()).map(move |index| ColumnIndex { index, side })
    };
    let columns = all(JoinSide::Left, &probe).chain(all(JoinSide::Right, &build));
    let columns: Vec<ColumnIndex> = columns.collect();
    let join_type = match condition.spec.unmatched {
        Unmatched::Keep => JoinType::Left,
        Unmatched::Drop | Unmatched::Only => JoinType::Inner,
    };
    let schema = Arc::new(node.schema().as_arrow().clone());
    let row_join = RowJoin::try_new(
        join_type,
        residual.as_ref(),
        threshold.as_ref(),
        &columns,
        schema,
    )?;
    let distance = expressions.distance()?;
    let order = match distance {
        Some(_) => order_key_from(true, &condition.order_by),
        None => order_key(&condition.order_by),
    };
    let order = order.map(|key| physical(&key, node.build().schema()));
    let row_join = row_join.with_limit(condition.limit, distance.as_ref(), order.transpose()?)?;
    let spec = with_fast_bounds(spec, &probe.schema());
    let mode = JoinMode::planned(session.config_options());
    let parts = RangeJoinParts::planned(spec, Some(row_join), label, mode);
    let joined = RangeJoinExec::try_new(probe, build, parts, RangeJoinEngine::cpu())?;
    let joined: Arc<dyn ExecutionPlan> = Arc::new(joined);
    Ok(match node.output_filter() {
        Some(filter) => {
            let filter = physical(filter, node.schema())?;
            Arc::new(FilterExec::try_new(filter, joined)?)
        }
        None => joined,
    })
}

/// Makes a node's expressions physical ones.
struct Expressions<'a> {
    node: &'a NearestRows,
    planner: &'a dyn PhysicalPlanner,
    session: &'a dyn Session,
    planning_ctx: &'a PhysicalPlanningContext,
}

impl Expressions<'_> {
    fn physical(&self, expr: &Expr, schema: &DFSchema) -> Result<Arc<dyn PhysicalExpr>> {
        let planner = self.planner;
        planner.create_physical_expr(expr, schema, self.session, self.planning_ctx)
    }

    /// A condition on pairs.
    fn filter(&self, condition: &Expr) -> Result<JoinFilter> {
        let (schema, columns) = columns_of(condition, self.node.probe(), self.node.build())?;
        let expr = self.physical(condition, &schema)?;
        let schema = Arc::new(schema.as_arrow().clone());
        Ok(JoinFilter::new(expr, columns, schema))
    }

    /// The parts of the operator's label, and the conjunct that an index answers. The index finds rows in the order of
    /// the range key.
    fn threshold(
        &self,
        probe: &Schema,
        build: &Schema,
    ) -> Result<(Vec<String>, Option<RowThreshold>)> {
        let condition = self.node.condition();
        let residual = condition.residual.as_ref();
        let mut conjuncts = residual.map(split_conjunction).unwrap_or_default();
        let filters = conjuncts.iter().map(|conjunct| self.filter(conjunct));
        let filters: Vec<JoinFilter> = filters.collect::<Result<_>>()?;
        let has_key_order = condition.order_by.is_empty() && condition.distance.is_none();
        let best = has_key_order.then(|| best_threshold(&filters, probe, build));
        let Some((number, threshold)) = best.transpose()?.flatten() else {
            return Ok((condition.shown(None, residual), None));
        };
        let shown = conjuncts.remove(number);
        let rest = conjunction(conjuncts.into_iter().cloned());
        let label = condition.shown(Some(shown), rest.as_ref());
        let rest = rest.map(|rest| self.filter(&rest)).transpose()?;
        Ok((label, Some(RowThreshold { rest, ..threshold })))
    }

    /// The distance that orders rows, if one does.
    fn distance(&self) -> Result<Option<PairDistance>> {
        let Some(distance) = &self.node.condition().distance else {
            return Ok(None);
        };
        let by = SortExpr::new(distance.by.clone(), true, false);
        Ok(Some(PairDistance {
            point: self.physical(&distance.point, self.node.probe().schema())?,
            by: self.filter(&order_key(&[by]).unwrap_or_default())?,
            grows: self.filter(&distance.grows)?,
        }))
    }
}

/// The columns of a condition on pairs: their schema, and where they come from.
fn columns_of(
    condition: &Expr,
    probe: &LogicalPlan,
    build: &LogicalPlan,
) -> Result<(DFSchema, Vec<ColumnIndex>)> {
    let mut columns: Vec<&Column> = condition.column_refs().into_iter().collect();
    columns.sort();
    let (mut fields, mut indices) = (vec![], vec![]);
    for column in columns {
        let sides = [(JoinSide::Left, probe), (JoinSide::Right, build)];
        let mut found = sides.into_iter().filter_map(|(side, plan)| {
            let index = plan.schema().maybe_index_of_column(column)?;
            Some((
                plan.schema().qualified_field(index),
                ColumnIndex { index, side },
            ))
        });
        let Some(((qualifier, field), index)) = found.next() else {
            return Err(plan_datafusion_err!(
                "the condition {condition} of a range join has the column {column} of no side"
            ));
        };
        fields.push((qualifier.cloned(), Arc::clone(field)));
        indices.push(index);
    }
    let schema = DFSchema::new_with_metadata(fields, HashMap::new())?;
    Ok((schema, indices))
}
