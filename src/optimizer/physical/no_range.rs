//! Why a join's filter has no range.

use std::sync::Arc;

use datafusion::common::JoinSide;
use datafusion::common::tree_node::TreeNode;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, CaseExpr};
use datafusion::physical_expr::utils::{collect_columns, split_conjunction};
use datafusion::physical_expr::{PhysicalExprRef, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::utils::JoinFilter;

use crate::optimizer::physical::join_filter::{compared_sides, has_ranges};
use datafusion_rmq_logical::conditions::condition::comparison;
use datafusion_rmq_logical::conditions::rejection::{mixes_ends, mixes_sides};
use datafusion_rmq_logical::conditions::written::written_physical;

/// What to write instead of an OR.
const WRITE_UNION: &str =
    "write UNION ALL of a join ON a and a join ON b AND (a) IS NOT TRUE for ON a OR b";

/// Why the range of a filter, whose left side is the probe side, has rows that don't meet it: it has all alternatives
/// of an OR. `None` if there is no such OR.
pub(crate) fn why_wide_range(
    filter: &JoinFilter,
    left: &Arc<dyn ExecutionPlan>,
    right: &Arc<dyn ExecutionPlan>,
) -> Option<String> {
    let conjuncts = split_conjunction(filter.expression());
    let alternatives = conjuncts.into_iter().find(|conjunct| {
        let binary = conjunct.downcast_ref::<BinaryExpr>();
        binary.is_some_and(|binary| *binary.op() == Operator::Or) && has_ranges(conjunct, filter)
    })?;
    let text = written_physical(alternatives, filter, left, right);
    Some(format!(
        "{text} is an OR, whose one range has the rows between the alternatives, too: {WRITE_UNION}"
    ))
}

/// Why a filter, whose left side is the probe side, has no range.
pub(crate) fn why_no_range(
    filter: &JoinFilter,
    left: &Arc<dyn ExecutionPlan>,
    right: &Arc<dyn ExecutionPlan>,
) -> String {
    let mut alternatives = None;
    for conjunct in split_conjunction(filter.expression()) {
        let Some(binary) = conjunct.downcast_ref::<BinaryExpr>() else {
            continue;
        };
        let text = || written_physical(conjunct, filter, left, right);
        let is_comparison = comparison(*binary.op()).is_some();
        if is_comparison && compared_sides(conjunct, filter).is_some() {
            return format!(
                "{} may fail, or has operands of types without a common order: compare columns of one type, such as \
                 that of a table made by CREATE TABLE … AS SELECT, into which the values are converted once",
                text()
            );
        }
        if is_comparison && is_of_both(conjunct, filter) {
            return if chooses_of_both(conjunct, filter) {
                mixes_ends(&text())
            } else {
                mixes_sides(&text())
            };
        }
        if *binary.op() == Operator::Or && is_of_both(conjunct, filter) {
            alternatives = Some(text());
        }
    }
    if let Some(text) = alternatives {
        return format!("{text} is an OR, and a range join has one range: {WRITE_UNION}");
    }
    "there is no range between the two sides: none of its conditions compares them by <, <=, > or >=".to_string()
}

/// Whether a condition of a filter compares its two sides by `<`, `<=`, `>` or `>=`, or is an OR over both.
pub(crate) fn compares_sides(filter: &JoinFilter) -> bool {
    let conjuncts = split_conjunction(filter.expression()).into_iter();
    conjuncts
        .filter(|conjunct| is_of_both(conjunct, filter))
        .filter_map(|conjunct| conjunct.downcast_ref::<BinaryExpr>())
        .any(|binary| comparison(*binary.op()).is_some() || *binary.op() == Operator::Or)
}

/// Whether an expression takes one of two values, of either side: by `greatest`, `least` or CASE.
fn chooses_of_both(expr: &PhysicalExprRef, filter: &JoinFilter) -> bool {
    let chooses = |part: &PhysicalExprRef| {
        let function = part.downcast_ref::<ScalarFunctionExpr>();
        let names = ["greatest", "least"];
        part.is::<CaseExpr>() || function.is_some_and(|call| names.contains(&call.name()))
    };
    let found = expr.exists(|part| Ok(chooses(part) && is_of_both(part, filter)));
    found.unwrap_or(false)
}

fn is_of_both(expr: &PhysicalExprRef, filter: &JoinFilter) -> bool {
    let mut sides = [JoinSide::Left, JoinSide::Right].into_iter();
    sides.all(|side| has_side(expr, filter, side))
}

/// Whether an expression has a column of this side.
fn has_side(expr: &PhysicalExprRef, filter: &JoinFilter, side: JoinSide) -> bool {
    let columns = collect_columns(expr);
    let sides = filter.column_indices();
    columns
        .iter()
        .any(|column| sides.get(column.index()).is_some_and(|c| c.side == side))
}
