//! What rules of DataFusion 55 that push filters, projections and orders down may not move below an operator, as they
//! would confuse its columns or move past its limit.
//!
//! ```text
//!   FilterExec: id@1 IS NULL                      FilterExec: id@1 IS NULL
//!     ProjectionExec: id@0 as id, id@2 as id  ──▶   GuardExec
//!       HashJoinExec: Left                            ProjectionExec: id@0 as id, id@2 as id
//!                                                       HashJoinExec: Left
//! ```
//!
//! A column of a filter is found in an input by its name: the first one with the name, or the last one of a projection.
//! A filter on a column whose name another one has, too, stays above. So do filters and orders above a limit: a scan
//! would filter before it, or begin at its other end. `min(k), max(v + 1)` would skip all rows that do not lower
//! `min(k)`, and `ORDER BY a + b, b LIMIT 1` those by other columns. Guards are put into a plan before such a rule
//! runs, and taken out behind it.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{JoinType, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::filter_pushdown::{
    ChildFilterDescription, FilterDescription, FilterPushdownPhase,
};
use datafusion::physical_plan::joins::{HashJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::projection::{ProjectionExec, try_embed_projection};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};

use crate::exec::common::plan_methods::{no_expressions, replace_input, rows_of_input};

/// What stays above an operator.
#[derive(Debug, Clone)]
pub(crate) enum Guard {
    /// Filters on other columns than these.
    Filters { but: HashSet<usize> },
    /// Projections. A filter below may leave columns out for them.
    Projections,
    /// Orders.
    Orders,
}

/// Runs a rule on a plan whose operators have guards.
///
/// # Errors
/// Those of the rule and the operators.
pub(crate) fn optimize_guarded(
    rule: &dyn PhysicalOptimizerRule,
    guard: fn(&Arc<dyn ExecutionPlan>) -> Option<Guard>,
    plan: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    let guarded = plan.transform_up(|plan| {
        let plan = match skips_rows_of_others(&plan).or_else(|| skips_rows_by_others(&plan)) {
            Some(input) => {
                let guard = Guard::Filters {
                    but: HashSet::new(),
                };
                let input = Arc::new(GuardExec { input, guard });
                let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
                Transformed::yes(plan.replace_children(vec![input], options)?)
            }
            None => Transformed::no(plan),
        };
        plan.transform_data(|plan| {
            Ok(match guard(&plan) {
                Some(guard) => Transformed::yes(Arc::new(GuardExec { input: plan, guard }) as _),
                None => Transformed::no(plan),
            })
        })
    })?;
    let optimized = rule.optimize(guarded.data, config)?;
    if !guarded.transformed {
        return Ok(optimized);
    }
    let bare = optimized.transform_up(|plan| {
        Ok(match plan.downcast_ref::<GuardExec>() {
            Some(guard) => Transformed::yes(Arc::clone(&guard.input)),
            None => Transformed::no(plan),
        })
    })?;
    Ok(bare.data)
}

/// The input of an aggregate without groups that would skip the rows which change no minimum or maximum of a column,
/// although it has one of an expression, too.
fn skips_rows_of_others(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    let aggregate = plan.downcast_ref::<AggregateExec>()?;
    if aggregate.dynamic_expressions_produced().is_empty() {
        return None;
    }
    let mut arguments = aggregate.aggr_expr().iter().map(|a| a.expressions());
    let has_others = arguments.any(|arguments| !arguments.iter().all(|a| a.is::<Column>()));
    has_others.then(|| Arc::clone(aggregate.input()))
}

/// The input of a sort with a limit, by an expression and a part of it. Where columns have other places further below,
/// DataFusion replaces the part first and no longer finds the whole, which would read what is in the former places.
fn skips_rows_by_others(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    let sort = plan
        .downcast_ref::<SortExec>()
        .filter(|sort| sort.fetch().is_some())?;
    let mut expressions = sort.expr().iter().map(|key| &key.expr);
    let is_part = |part: &PhysicalExprRef| {
        let mut wholes = sort.expr().iter().map(|key| &key.expr);
        wholes.any(|whole| {
            // The search itself does not fail.
            whole != part && whole.exists(|node| Ok(node == part)).unwrap_or(true)
        })
    };
    let has_parts = expressions.any(is_part);
    has_parts.then(|| Arc::clone(sort.input()))
}

/// The guard against filters that an operator would evaluate for another column, or before its limit.
pub(crate) fn against_filters(plan: &Arc<dyn ExecutionPlan>) -> Option<Guard> {
    if plan.fetch().is_some() {
        let but = HashSet::new();
        return Some(Guard::Filters { but });
    }
    let schema = plan.schema();
    let mut counts = HashMap::new();
    for field in schema.fields() {
        *counts.entry(field.name()).or_insert(0) += 1;
    }
    let is_found = |index: &usize| {
        let name = schema.field(*index).name();
        counts[name] == 1 && !is_another_below(plan, *index, name)
    };
    let but: HashSet<usize> = (0..schema.fields().len()).filter(is_found).collect();
    (but.len() < schema.fields().len()).then_some(Guard::Filters { but })
}

/// Whether a column of an operator is another one than that with its name in an input to which filters on it go.
fn is_another_below(plan: &Arc<dyn ExecutionPlan>, index: usize, name: &str) -> bool {
    let is_named = |expr: &PhysicalExprRef| {
        let column = expr.downcast_ref::<Column>();
        column.is_some_and(|column| column.name() == name)
    };
    if plan.is::<UnionExec>() {
        let inputs = plan.children();
        return inputs
            .iter()
            .any(|i| i.schema().field(index).name() != name);
    }
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        let group = aggregate.group_expr().expr().get(index);
        return group.is_some_and(|(group, _)| {
            aggregate.input().schema().index_of(name).is_ok() && !is_named(group)
        });
    }
    // Filters on an equality key of a semi join go to both sides.
    plan.downcast_ref::<HashJoinExec>().is_some_and(|join| {
        let is_semi = matches!(join.join_type(), JoinType::LeftSemi | JoinType::RightSemi);
        let inputs = [join.left(), join.right()];
        let is_key = |(l, r): &(PhysicalExprRef, PhysicalExprRef)| is_named(l) && is_named(r);
        is_semi
            && inputs.iter().all(|i| i.schema().index_of(name).is_ok())
            && !join.on().iter().any(is_key)
    })
}

/// The guard against projections below which a condition would read other columns: that of a sort-merge join, whose
/// columns stay where they were, and that of a filter with a projection of its own.
pub(crate) fn against_projections(plan: &Arc<dyn ExecutionPlan>) -> Option<Guard> {
    let join = plan.downcast_ref::<SortMergeJoinExec>();
    let filter = plan.downcast_ref::<FilterExec>();
    let is_confused = join.is_some_and(|join| join.filter().is_some())
        || filter.is_some_and(|filter| filter.projection().is_some());
    is_confused.then_some(Guard::Projections)
}

/// The guard against orders, by which a scan would begin with other rows than those up to its limit.
pub(crate) fn against_orders(plan: &Arc<dyn ExecutionPlan>) -> Option<Guard> {
    plan.fetch().map(|_| Guard::Orders)
}

/// Returns the rows of its input. It is in a plan only while a rule runs. DataFusion moves no order below it.
#[derive(Debug, Clone)]
struct GuardExec {
    input: Arc<dyn ExecutionPlan>,
    guard: Guard,
}

impl DisplayAs for GuardExec {
    fn fmt_as(&self, _t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("GuardExec")
    }
}

impl ExecutionPlan for GuardExec {
    fn name(&self) -> &'static str {
        "GuardExec"
    }

    rows_of_input!();

    no_expressions!();

    replace_input!(|guard, input| Self {
        input,
        ..Self::clone(&guard)
    });

    fn gather_filters_for_pushdown(
        &self,
        _phase: FilterPushdownPhase,
        parent_filters: Vec<PhysicalExprRef>,
        _config: &ConfigOptions,
    ) -> Result<FilterDescription> {
        let columns = match &self.guard {
            Guard::Filters { but } => but.clone(),
            Guard::Projections | Guard::Orders => HashSet::new(),
        };
        let input = ChildFilterDescription::from_child_with_allowed_indices(
            &parent_filters,
            columns,
            &self.input,
        )?;
        Ok(FilterDescription::new().with_child(input))
    }

    fn try_swapping_with_projection(
        &self,
        projection: &ProjectionExec,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        match (&self.guard, self.input.downcast_ref::<FilterExec>()) {
            (Guard::Projections, Some(filter)) => try_embed_projection(projection, filter),
            _ => Ok(None),
        }
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }
}
