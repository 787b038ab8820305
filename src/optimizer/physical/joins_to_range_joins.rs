//! The rule that replaces DataFusion's joins over a range.
//!
//! ```text
//!   SELECT * FROM q JOIN p ON p.sym = q.sym AND p.ts BETWEEN q.a AND q.b AND p.v > q.v
//!
//!   HashJoinExec: on=[sym], filter=…     ──▶     RangeJoinExec: type=Inner, on=[(sym, sym)], range=ts in [a, b], filter=v > v, returns=rows
//!     q                                            q          probe side
//!     p                                            p          build side
//! ```
//!
//! Joins of all types match, so EXISTS and IN do, too, which DataFusion has turned into semi, anti and mark joins.
//! `HashJoinExec` and `SortMergeJoinExec` compare each pair of rows with equal keys, `NestedLoopJoinExec` each pair; a
//! range join only those in the range. `PiecewiseMergeJoinExec` sorts both sides, one of them on one thread.
//!
//! A merge join returns rows in an order, a range join need not. Operators above state the order they need only when
//! requirements are enforced, after this rule, which then also sees to what the range join keeps.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{JoinSide, JoinType, Result, ScalarValue};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal};
use datafusion::physical_expr::{PhysicalExprRef, ScalarFunctionExpr};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::joins::utils::{ColumnIndex, build_join_schema};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{ExecutionPlan, displayable};

use crate::exec::range_join::engine_choice::RangeJoinEngine;
use crate::exec::range_join::exec::RangeJoinExec;
use crate::exec::range_join::interval_bounds::with_fast_bounds;
use crate::exec::range_join::mode::JoinMode;
use crate::exec::range_join::parts::RangeJoinParts;
use crate::exec::range_join::row_join::RowJoin;
use crate::optimizer::cost::equal_rows::{Sides, equal_pairs};
use crate::optimizer::physical::filtered_join::Join;
use crate::optimizer::physical::join_filter::RangeCondition;
use crate::optimizer::physical::no_range::compares_sides;
use crate::optimizer::physical::physical_rule::physical_rule;
use crate::optimizer::physical::searched_side::{Oriented, choose_side};
use datafusion_rmq_logical::common::options::{RangeJoinChoice, RmqOptions};
use datafusion_rmq_logical::common::sql_text::numbered_text;
use datafusion_rmq_logical::conditions::rejection::{Match, reject};
use datafusion_rmq_logical::expr::index_lookup::IndexLookupUdf;
use datafusion_rmq_logical::logical_plan::range_join::{
    AggregateKind, KeyInterval, RangeAggregate, RangeJoinSpec, Unmatched, operator,
};

physical_rule!(
    /// Replaces joins over a range by range joins that return rows, where DataFusion's join would compare many pairs.
    /// Does nothing if `rmq.rewrite` is false or `rmq.range_joins` is 'never'.
    ///
    /// It must run before the rule that repartitions the inputs of joins.
    JoinToRangeJoin,
    "rmq_join_to_range_join",
    join_to_range_join
);

fn join_to_range_join(
    plan: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    let options = RmqOptions::of(config);
    if !options.rewrite || options.range_joins == RangeJoinChoice::Never {
        return Ok(plan);
    }
    let mode = JoinMode::planned(config);
    let replaced = plan.transform_up(|plan| {
        let Some(join) = Join::from_plan(&plan)? else {
            return Ok(Transformed::no(plan));
        };
        match join.try_match(options.range_joins, mode) {
            Ok(found) => Ok(Transformed::yes(found)),
            Err(reason) => {
                let join = displayable(plan.as_ref()).one_line().to_string();
                log::debug!("{} stays as it is: {reason}", join.trim_end());
                Ok(Transformed::no(plan))
            }
        }
    });
    replaced.data()
}

/// Why a join is no range join; `None` if it is no join with a filter.
pub(crate) fn why_stays(plan: &Arc<dyn ExecutionPlan>, choice: RangeJoinChoice) -> Option<String> {
    let join = Join::from_plan(plan).ok()??;
    Some(join.try_match(choice, JoinMode::Shared).err()?.to_string())
}

/// Whether a join compares its sides by `<`, `<=`, `>` or `>=`, and not by a range.
pub(crate) fn compares_without_range(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let Ok(Some(join)) = Join::from_plan(plan) else {
        return false;
    };
    let filter = join.filter.as_ref();
    let range = RangeCondition::find(filter, &join.left.schema(), &join.right.schema());
    matches!(range, Ok(None)) && compares_sides(filter)
}

/// About how many pairs a join compares by its filter, those of rows with equal keys, if something tells.
pub(crate) fn compared_pairs(plan: &Arc<dyn ExecutionPlan>) -> Option<u128> {
    let join = Join::from_plan(plan).ok()??;
    let sides = Sides {
        on: join.on,
        probe: join.left,
        build: join.right,
    };
    equal_pairs(&sides).ok()?
}

impl Join<'_> {
    /// The range join, in this mode, that replaces this join.
    fn try_match(&self, choice: RangeJoinChoice, mode: JoinMode) -> Match<Arc<dyn ExecutionPlan>> {
        if self.is_null_aware {
            return reject("NULLs are special to it");
        }
        if self.plan.fetch().is_some() {
            return reject("it has a limit of its own");
        }
        if is_volatile(self.filter.expression()) {
            return reject(
                "its filter is another each time: compute random numbers in a subquery below it",
            );
        }
        if self.filter.expression().exists(|e| Ok(looks_up_index(e)))? {
            return reject("its filter calls a range function");
        }
        choose_side(self, choice)?.into_plan(mode)
    }
}

/// Whether an expression looks up an index, which is there while the join's own inputs are read.
fn looks_up_index(expr: &PhysicalExprRef) -> bool {
    let call = expr.downcast_ref::<ScalarFunctionExpr>();
    call.is_some_and(|call| {
        call.fun()
            .inner()
            .downcast_ref::<IndexLookupUdf>()
            .is_some()
    })
}

impl Oriented<'_> {
    fn into_plan(self, mode: JoinMode) -> Match<Arc<dyn ExecutionPlan>> {
        let (label, columns) = (self.label()?, self.columns());
        let Self {
            join,
            probe,
            build,
            on,
            condition,
            join_type,
            ..
        } = self;
        let schema = join.plan.schema();
        let mut spec = RangeJoinSpec {
            unmatched: match join_type {
                JoinType::LeftSemi => Unmatched::Drop,
                JoinType::LeftAnti => Unmatched::Only,
                _ => Unmatched::Keep,
            },
            on,
            key: condition.key,
            bounds: condition.bounds,
            prevailing: false,
            thresholds: vec![],
            aggregates: vec![],
            metadata: schema.metadata().clone().into_iter().collect(),
        };
        let (residual, threshold) = (condition.residual.as_ref(), condition.threshold.as_ref());
        let row_join = RowJoin::try_new(join_type, residual, threshold, &columns, schema)?;
        let (probe, build) = (Arc::clone(probe), Arc::clone(build));
        let returns_probe_rows = row_join.returns_probe_rows();
        let probe_columns = probe.schema().fields().len();
        if join_type == JoinType::LeftMark {
            spec.aggregates.push(RangeAggregate {
                function: AggregateKind::CountRows,
                arguments: vec![],
                output: "matches".to_string(),
                data_type: DataType::Int64,
                call: None,
            });
        }
        let spec = with_fast_bounds(spec, &probe.schema());
        let parts = RangeJoinParts::planned(spec, Some(row_join), label, mode);
        let joined = RangeJoinExec::try_new(probe, build, parts, RangeJoinEngine::cpu())?;
        let joined: Arc<dyn ExecutionPlan> = Arc::new(joined);
        if !returns_probe_rows {
            return Ok(joined);
        }
        let is_all =
            |(i, column): (usize, &ColumnIndex)| column.side == JoinSide::Left && column.index == i;
        if columns.len() == probe_columns && columns.iter().enumerate().all(is_all) {
            return Ok(joined);
        }
        let fields = join.plan.schema();
        let exprs = columns.iter().zip(fields.fields()).map(|(column, field)| {
            let expr: PhysicalExprRef = if column.side == JoinSide::Left {
                Arc::new(Column::new(field.name(), column.index))
            } else {
                let count = Arc::new(Column::new("matches", probe_columns));
                let zero = Arc::new(Literal::new(ScalarValue::Int64(Some(0))));
                Arc::new(BinaryExpr::new(count, Operator::Gt, zero))
            };
            (expr, field.name().clone())
        });
        let exprs = exprs.collect::<Vec<_>>();
        Ok(Arc::new(ProjectionExec::try_new(exprs, joined)?))
    }

    /// The columns of the output. Which side one is of depends on which side is the probe side.
    fn columns(&self) -> Vec<ColumnIndex> {
        let join = self.join;
        let (left, right) = (join.left.schema(), join.right.schema());
        let (_, mut columns) = build_join_schema(&left, &right, &join.join_type);
        if self.is_flipped {
            for column in &mut columns {
                column.side = column.side.negate();
            }
        }
        match join.projection {
            Some(projection) => projection.iter().map(|i| columns[*i].clone()).collect(),
            None => columns,
        }
    }

    /// The join as EXPLAIN shows it.
    fn label(&self) -> Result<Vec<String>> {
        let mut parts = vec![format!("type={}", self.join_type)];
        if !self.on.is_empty() {
            let on = self.on.iter();
            let on = on.map(|(probe, build)| {
                format!("({}, {})", numbered_text(probe), numbered_text(build))
            });
            parts.push(format!("on=[{}]", on.collect::<Vec<_>>().join(", ")));
        }
        let RangeCondition {
            key,
            bounds,
            threshold,
            ..
        } = &self.condition;
        let bounds = bounds.iter().map(|(c, bound)| (*c, numbered_text(bound)));
        let (key, bounds) = (numbered_text(key), bounds.collect::<Vec<_>>());
        parts.push(format!("range={key} in {}", KeyInterval(&bounds)));
        if let Some(threshold) = threshold {
            let (value, limit) = (
                numbered_text(&threshold.value),
                numbered_text(&threshold.limit),
            );
            let op = operator(threshold.comparison);
            parts.push(format!("threshold={value} {op} {limit}"));
        }
        if let Some(filter) = self.filter() {
            let rows = self.filtered_rows()?;
            let rows = rows.map_or_else(String::new, |rows| format!(", ~{rows:.0} a range"));
            let filter = numbered_text(filter.expression());
            parts.push(format!("filter={filter} (row by row{rows})"));
        }
        let returned = match self.join_type {
            JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => "probe rows",
            JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => "build rows",
            _ => "rows",
        };
        parts.push(format!("returns={returned}"));
        Ok(parts)
    }
}
