//! `frame_min(value, l, r) OVER (…)`: rejects clauses that have no meaning for the window form, and gives the form by
//! keys the ORDER BY expression.
//!
//! ```text
//!   frame_min(v, l, r) FILTER (WHERE v > 0) OVER (ORDER BY ts)     planning error
//!   frame_min(v, l, r) OVER (ORDER BY ts)                          unchanged
//!   range_frame_min(v, ts - x, ts) OVER (ORDER BY ts)              range_frame_min(v, ts - x, ts, ts) OVER (ORDER BY ts)
//! ```
//!
//! DataFusion passes neither the frame clause, the modifiers nor ORDER BY to a window function, so a rule does. It is
//! an analyzer rule, because a session can be configured to skip optimizer rules that fail.

use datafusion_common::config::ConfigOptions;
use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchema, Result, plan_err};
use datafusion_dependent_join::is_correlated;
use datafusion_expr::expr::{NullTreatment, WindowFunction, WindowFunctionDefinition};
use datafusion_expr::expr_rewriter::NamePreserver;
use datafusion_expr::type_coercion::binary::comparison_coercion;
use datafusion_expr::utils::merge_schema;
use datafusion_expr::{
    Expr, ExprSchemable, LogicalPlan, WindowFrame, WindowFrameBound, WindowUDFImpl as _,
};
use datafusion_optimizer::AnalyzerRule;

use crate::common::sql_text::sql_text;
use crate::conditions::lossless_casts::widens;
use crate::expr::frame_udf::{FrameBounds, FrameUdf};
use crate::expr::range_calls::range_udf;
use rmq_arrow::common::ordered_type::{check_ordered, value_type};

/// Rejects an explicit frame, FILTER, DISTINCT and IGNORE NULLS in calls of `frame_min` and its like, and adds the
/// ORDER BY expression to those of `range_frame_min` and its like.
#[derive(Debug, Default)]
pub struct CheckFrameCalls;

impl AnalyzerRule for CheckFrameCalls {
    fn name(&self) -> &'static str {
        "rmq_check_frame_calls"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        let plan = plan.transform_up_with_subqueries(|node| {
            node.apply_expressions(|expr| expr.apply(check_column))?;
            if !matches!(node, LogicalPlan::Window(_)) {
                return Ok(Transformed::no(node));
            }
            let schema = merge_schema(&node.inputs());
            let names = NamePreserver::new(&node);
            node.map_expressions(|expr| {
                let name = names.save(&expr);
                let checked = expr.transform_up(|expr| checked(expr, &schema))?;
                Ok(checked.update_data(|expr| name.restore(expr)))
            })
        })?;
        Ok(plan.data)
    }
}

/// Whether an expression is a call of a range or a frame function.
#[must_use]
pub fn is_range_or_frame_call(expr: &Expr) -> bool {
    match expr {
        Expr::WindowFunction(call) => frame_udf(call).is_some(),
        expr => range_udf(expr).is_some(),
    }
}

fn frame_udf(call: &WindowFunction) -> Option<&FrameUdf> {
    match &call.fun {
        WindowFunctionDefinition::WindowUDF(udf) => udf.inner().downcast_ref(),
        WindowFunctionDefinition::AggregateUDF(_) => None,
    }
}

/// Rejects a call of `range_min` and its like whose column depends on the outer query, which DataFusion does with other
/// words.
fn check_column(expr: &Expr) -> Result<TreeNodeRecursion> {
    if let Some((_, call)) = range_udf(expr)
        && let Some(Expr::ScalarSubquery(subquery)) = call.args.first()
        && is_correlated(&subquery.subquery)?
    {
        let name = call.name();
        return plan_err!(
            "{name}: the subquery that gives the column must not depend on the outer query; for the rows of each outer row \
             write SELECT (SELECT min(…) FROM … WHERE … BETWEEN … AND …)"
        );
    }
    Ok(TreeNodeRecursion::Continue)
}

/// A call of a window function that may be one of ours, checked and with its ORDER BY expression.
fn checked(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let Expr::WindowFunction(call) = &expr else {
        return Ok(Transformed::no(expr));
    };
    let Some(frame) = frame_udf(call) else {
        return Ok(Transformed::no(expr));
    };
    check_clauses(frame, call)?;
    if frame.bounds() == FrameBounds::Positions {
        return Ok(Transformed::no(expr));
    }
    let args = args_with_key(frame, call, schema)?;
    if args == call.params.args {
        return Ok(Transformed::no(expr));
    }
    let mut call = call.clone();
    call.params.args = args;
    Ok(Transformed::yes(Expr::WindowFunction(call)))
}

/// The arguments of a call by keys, and the ORDER BY expression, which the bounds have the type of.
fn args_with_key(frame: &FrameUdf, call: &WindowFunction, schema: &DFSchema) -> Result<Vec<Expr>> {
    let name = frame.name();
    let [order] = call.params.order_by.as_slice() else {
        return plan_err!(
            "{name} finds rows by the ORDER BY expression of its window, which has {}: give it one, as in {name}(v, ts - \
             INTERVAL '1 hour', ts) OVER (ORDER BY ts)",
            call.params.order_by.len()
        );
    };
    let mut args = call.params.args.clone();
    let given = args.len();
    args.truncate(frame.argument_count());
    let key_type = order.expr.get_type(schema)?;
    let mut common = value_type(&key_type);
    for bound in &args[1..3] {
        let bound_type = value_type(&bound.get_type(schema)?);
        match comparison_coercion(&common, &bound_type) {
            Some(wider) if widens(&common, &wider) && widens(&bound_type, &wider) => common = wider,
            _ => {
                return plan_err!(
                    "{name}: the bound {} is a {bound_type} and the ORDER BY expression {} a {key_type}; cast one of them",
                    sql_text(bound),
                    sql_text(&order.expr)
                );
            }
        }
    }
    check_ordered(name, "the ORDER BY expression", &common)?;
    for bound in &mut args[1..3] {
        *bound = std::mem::take(bound).cast_to(&common, schema)?;
    }
    args.push(order.expr.clone().cast_to(&common, schema)?);
    // Of a plan that has been analyzed before it is there.
    if given != frame.argument_count() && args != call.params.args {
        frame.check_argument_count(given)?;
    }
    Ok(args)
}

fn check_clauses(frame: &FrameUdf, call: &WindowFunction) -> Result<()> {
    let name = frame.name();
    let params = &call.params;
    if params.distinct {
        return plan_err!("{name} does not take DISTINCT");
    }
    if params.filter.is_some() {
        return plan_err!(
            "{name} does not take FILTER, which would renumber the rows; make the values that should not count NULL: {name}(CASE \
             WHEN … THEN value END, l, r)"
        );
    }
    if params.null_treatment == Some(NullTreatment::IgnoreNulls) {
        return plan_err!(
            "{name} does not take IGNORE NULLS; it skips NULLs always, and they keep their positions"
        );
    }
    if !is_default_frame(&params.window_frame, params.order_by.is_empty()) {
        return plan_err!(
            "{name} takes its frame from its arguments, the first and the last {}; remove the frame clause {}",
            match frame.bounds() {
                FrameBounds::Positions => "position",
                FrameBounds::Keys => "value of the ORDER BY expression",
            },
            params.window_frame
        );
    }
    Ok(())
}

/// Whether this can be the frame of a query without a frame clause: all rows without ORDER BY; with it, the rows up to
/// the current one (RANGE, or ROWS if DataFusion knows that the order is strict).
fn is_default_frame(frame: &WindowFrame, unordered: bool) -> bool {
    let to_end = frame.end_bound.is_unbounded();
    let to_current = frame.end_bound == WindowFrameBound::CurrentRow;
    frame.start_bound.is_unbounded() && (to_current || (to_end && unordered))
}
