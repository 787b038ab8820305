//! Constants of the side of an outer join that has NULLs.
//!
//! ```text
//!   SELECT DISTINCT x.c FROM q LEFT JOIN (SELECT p.k, 7 AS c FROM p) AS x ON x.k = q.k
//!
//!   HashJoinExec: join_type=Left            ProjectionExec: …, CASE WHEN c IS NOT NULL OR k IS NULL THEN c END AS c
//!     q                               ──▶     HashJoinExec: join_type=Left
//!     ProjectionExec: k, 7 AS c                 …
//! ```
//!
//! DataFusion takes such a column for a constant above the join, too. It then leaves out its order, and takes rows for
//! grouped by it that are not. The CASE is the column itself, and not a constant, since it reads a column that is none.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{JoinType, Result};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, binary, case, is_not_null, is_null};
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::optimizer::physical::physical_rule::physical_rule;

physical_rule!(
    /// Above outer joins, no column that may be NULL for want of a match is a constant.
    HideOuterConstants,
    "hide_outer_constants",
    |plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions| Ok(plan.transform_up(hidden)?.data)
);

fn hidden(join: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let outer = [JoinType::Left, JoinType::Right, JoinType::Full];
    let join_type = join_type(join.as_ref());
    let Some(join_type) = join_type.filter(|join_type| outer.contains(join_type)) else {
        return Ok(Transformed::no(join));
    };
    let left = join.children()[0].schema().fields().len();
    let schema = join.schema();
    let constants = join.equivalence_properties().constants();
    let constants: Vec<usize> = constants
        .iter()
        .filter_map(|constant| Some(constant.expr.downcast_ref::<Column>()?.index()))
        .collect();
    let is_hidden = |column: usize| {
        let may_lack_match = match join_type {
            JoinType::Left => column >= left,
            JoinType::Right => column < left,
            _ => true,
        };
        // A projection drops what further a column of the schema says.
        may_lack_match && constants.contains(&column) && schema.field(column).metadata().is_empty()
    };
    let column =
        |i: usize| -> Arc<dyn PhysicalExpr> { Arc::new(Column::new(schema.field(i).name(), i)) };
    let columns = 0..schema.fields().len();
    let Some(other) = columns.clone().find(|i| !constants.contains(i)) else {
        return Ok(Transformed::no(join));
    };
    if !columns.clone().any(is_hidden) {
        return Ok(Transformed::no(join));
    }
    let exprs = columns.map(|i| {
        let expr = if is_hidden(i) {
            let is_value = is_not_null(column(i))?;
            let or_other = binary(is_value, Operator::Or, is_null(column(other))?, &schema)?;
            case(None, vec![(or_other, column(i))], None)?
        } else {
            column(i)
        };
        Ok((expr, schema.field(i).name().clone()))
    });
    let exprs = exprs.collect::<Result<Vec<_>>>()?;
    let projection = ProjectionExec::try_new(exprs, Arc::clone(&join))?;
    Ok(Transformed::yes(Arc::new(projection)))
}

/// The type of one of DataFusion's joins that has the columns of both sides.
fn join_type(plan: &dyn ExecutionPlan) -> Option<JoinType> {
    let columns: usize = plan
        .children()
        .iter()
        .map(|side| side.schema().fields().len())
        .sum();
    if columns != plan.schema().fields().len() {
        return None;
    }
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        Some(*join.join_type())
    } else if let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() {
        Some(*join.join_type())
    } else {
        let join = plan.downcast_ref::<SortMergeJoinExec>()?;
        Some(join.join_type())
    }
}
