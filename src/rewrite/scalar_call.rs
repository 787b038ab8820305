//! `range_min('table.column', l, r)` in any expression: the call becomes a column that a range join below
//! the expression's node adds.

use std::sync::Arc;

use arrow::datatypes::FieldRef;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion, TreeNodeRewriter};
use datafusion::common::{Column, DFSchema, DFSchemaRef, JoinType, Result, not_impl_err, plan_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_rewriter::{NamePreserver, SavedName};
use datafusion::logical_expr::{
    EmptyRelation, Expr, ExprSchemable, Extension, Filter, Join, LogicalPlan, Projection,
    ScalarUDF, Union, Values,
};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use super::conditional::guard_bounds;
use super::order::check_states_order;
use crate::functions::column_text;
use crate::functions::{IndexSlot, LookupUdf, RangeUdf};
use crate::plan::{Lookup, PrepareIndexes, RangeCall, RangeJoin, Source, TableColumn};

/// Takes the scalar calls of range functions out of their expressions.
///
/// It must see them before anything else does (literal bounds would be folded, an ORDER BY in the first argument
/// dropped), and again after subqueries have been decorrelated, for bounds that were columns of an outer query.
#[derive(Debug, Default)]
pub struct RangeCallToJoin;

impl OptimizerRule for RangeCallToJoin {
    fn name(&self) -> &'static str {
        "rmq_range_call_to_join"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let mut has_calls = false;
        plan.apply_expressions(|expr| {
            has_calls |= has_range_call(expr)?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        if !has_calls {
            return Ok(Transformed::no(plan));
        }
        let preserver = NamePreserver::new(&plan);
        let prepared = plan.map_expressions(|expr| {
            let name = save_name(&preserver, &expr);
            let inlined = inline_subqueries(expr)?;
            let prepared = inlined.transform_data(guard_bounds)?;
            if !prepared.transformed {
                return Ok(prepared);
            }
            Ok(prepared.update_data(|e| name.restore(e)))
        })?;
        match prepared.data {
            LogicalPlan::Join(join) => rewrite_join(join, config),
            LogicalPlan::Values(values) => rewrite_values(values, config),
            plan => rewrite_single_input(plan, config),
        }
    }
}

/// A correlated subquery without FROM, `(SELECT range_min('t.v', q.l, q.r))`, is its expression. DataFusion leaves it
/// correlated, which no operator can run.
fn inline_subqueries(expr: Expr) -> Result<Transformed<Expr>> {
    expr.transform_up(|expr| {
        let Expr::ScalarSubquery(subquery) = &expr else {
            return Ok(Transformed::no(expr));
        };
        let LogicalPlan::Projection(projection) = subquery.subquery.as_ref() else {
            return Ok(Transformed::no(expr));
        };
        let LogicalPlan::EmptyRelation(EmptyRelation {
            produce_one_row: true,
            ..
        }) = projection.input.as_ref()
        else {
            return Ok(Transformed::no(expr));
        };
        match projection.expr.as_slice() {
            [one] if has_range_call(one)? && one.contains_outer() => {
                let one = one.clone().unalias_nested().data;
                one.transform_up(|e| {
                    Ok(match e {
                        Expr::OuterReferenceColumn(_, column) => {
                            Transformed::yes(Expr::Column(column))
                        }
                        e => Transformed::no(e),
                    })
                })
            }
            _ => Ok(Transformed::no(expr)),
        }
    })
}

/// Whether a range function is called in `expr`, its subqueries without FROM included.
fn has_range_call(expr: &Expr) -> Result<bool> {
    expr.exists(|e| match e {
        Expr::ScalarSubquery(subquery) => match subquery.subquery.as_ref() {
            LogicalPlan::Projection(p) if matches!(*p.input, LogicalPlan::EmptyRelation(_)) => p
                .expr
                .iter()
                .try_fold(false, |found, e| Ok(found || has_range_call(e)?)),
            _ => Ok(false),
        },
        e => Ok(range_udf(e).is_some()),
    })
}

/// The function, if `expr` is a call of one.
pub(super) fn range_udf(expr: &Expr) -> Option<(&RangeUdf, &ScalarFunction)> {
    match expr {
        Expr::ScalarFunction(call) => call
            .func
            .inner()
            .downcast_ref::<RangeUdf>()
            .map(|udf| (udf, call)),
        _ => None,
    }
}

/// The name to restore after rewriting `expr`. Grouping sets are no column: their members' names come back with
/// [`restore_columns`].
fn save_name(preserver: &NamePreserver, expr: &Expr) -> SavedName {
    match expr {
        Expr::GroupingSet(_) => SavedName::None,
        expr => preserver.save(expr),
    }
}

/// A node with one input: a range join goes between the two.
fn rewrite_single_input(
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let inputs = plan.inputs();
    let [input] = inputs.as_slice() else {
        return not_impl_err!(
            "range functions in {} are not supported; compute them in a subquery below it",
            plan.display()
        );
    };
    let input = (*input).clone();
    let mut calls = Calls::new(config, input.schema());
    let preserver = NamePreserver::new(&plan);
    let schema = Arc::clone(plan.schema());
    let replaced = plan.map_expressions(|expr| {
        let name = save_name(&preserver, &expr);
        Ok(expr.rewrite(&mut calls)?.update_data(|e| name.restore(e)))
    })?;
    if calls.found.is_empty() {
        return Ok(replaced);
    }
    let input = calls.join_below(input)?;
    let expressions = replaced.data.expressions();
    let plan = replaced.data.with_new_exprs(expressions, vec![input])?;
    Ok(Transformed::yes(restore_columns(plan, &schema)?))
}

/// A join's condition: each call goes below the side whose columns its bounds need. Where a call needs
/// both sides, the condition moves above an inner join; for others the call stays an expression.
fn rewrite_join(join: Join, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let schema = Arc::clone(&join.schema);
    let both = Arc::new(join.left.schema().join(join.right.schema())?);
    let mut left = Calls::new(config, join.left.schema());
    let mut right = Calls::new(config, join.right.schema());
    let mut take = |expr: Expr| -> Result<Expr> {
        let expr = expr.rewrite(&mut left)?.data;
        Ok(expr.rewrite(&mut right)?.data)
    };
    let on = join
        .on
        .into_iter()
        .map(|(l, r)| Ok((take(l)?, take(r)?)))
        .collect::<Result<Vec<_>>>()?;
    let filter = join.filter.map(&mut take).transpose()?;
    let found = !left.found.is_empty() || !right.found.is_empty();

    let mut across = Calls::new(config, &both);
    let needs_both = match &filter {
        Some(filter) => filter.clone().rewrite(&mut across)?.transformed,
        None => false,
    };
    if !found && !needs_both {
        // What is left waits for a subquery to be decorrelated.
        let join = Join { on, filter, ..join };
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    }
    let left = Arc::new(left.join_below(Arc::unwrap_or_clone(join.left))?);
    let right = Arc::new(right.join_below(Arc::unwrap_or_clone(join.right))?);
    // An inner join's condition may as well stand above it. That of another join must not: there the call
    // stays an expression.
    let (left, on_join, above) = match filter {
        Some(filter) if needs_both && join.join_type == JoinType::Inner => {
            (left, None, Some(filter))
        }
        Some(filter) if needs_both => {
            let (left, filter) = look_up(left, filter)?;
            (left, Some(filter), None)
        }
        filter => (left, filter, None),
    };
    let mut plan = LogicalPlan::Join(Join::try_new(
        left,
        right,
        on,
        on_join,
        join.join_type,
        join.join_constraint,
        join.null_equality,
        join.null_aware,
    )?);
    if let Some(condition) = above {
        let mut calls = Calls::new(config, plan.schema());
        let condition = condition.rewrite(&mut calls)?.data;
        let input = calls.join_below(plan)?;
        plan = LogicalPlan::Filter(Filter::try_new(condition, Arc::new(input))?);
    }
    Ok(Transformed::yes(restore_columns(plan, &schema)?))
}

/// The calls in `condition` as expressions over indexes that are made ready below, in `input`.
fn look_up(input: Arc<LogicalPlan>, condition: Expr) -> Result<(Arc<LogicalPlan>, Expr)> {
    let mut lookups = vec![];
    let condition = condition.transform_up(|expr| {
        let Some((udf, call)) = range_udf(&expr) else {
            return Ok(Transformed::no(expr));
        };
        let function = udf.function();
        let (source, field) = source(udf, &call.args[0])?;
        let slot = IndexSlot::default();
        let data_type = function.result_type(field.data_type());
        let lookup = ScalarUDF::from(LookupUdf::new(function, data_type, slot.clone()));
        lookups.push(Lookup {
            function,
            source,
            slot,
        });
        Ok(Transformed::yes(lookup.call(call.args[1..].to_vec())))
    })?;
    let node = Arc::new(PrepareIndexes::new(Arc::unwrap_or_clone(input), lookups));
    Ok((
        Arc::new(LogicalPlan::Extension(Extension { node })),
        condition.data,
    ))
}

/// Literal rows have no input: each becomes a projection of the one row that holds the answers.
fn rewrite_values(
    values: Values,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let one_row = LogicalPlan::EmptyRelation(EmptyRelation {
        produce_one_row: true,
        schema: Arc::new(DFSchema::empty()),
    });
    let mut calls = Calls::new(config, one_row.schema());
    let rows = values
        .values
        .clone()
        .into_iter()
        .map(|row| {
            row.into_iter()
                .map(|e| Ok(e.rewrite(&mut calls)?.data))
                .collect()
        })
        .collect::<Result<Vec<Vec<_>>>>()?;
    if calls.found.is_empty() {
        return Ok(Transformed::no(LogicalPlan::Values(values)));
    }
    let answers = Arc::new(calls.join_below(one_row.clone())?);
    let projections = rows.into_iter().map(|row| {
        let columns = row
            .into_iter()
            .zip(values.schema.iter())
            .map(|(expr, (q, field))| {
                let typed = expr.cast_to(field.data_type(), answers.schema())?;
                Ok(typed.alias_qualified(q.cloned(), field.name()))
            });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        Ok(LogicalPlan::Projection(Projection::try_new(
            columns,
            Arc::clone(&answers),
        )?))
    });
    let mut projections = projections.collect::<Result<Vec<_>>>()?;
    let plan = if projections.len() == 1 {
        projections.remove(0)
    } else {
        let inputs = projections.into_iter().map(Arc::new).collect();
        LogicalPlan::Union(Union {
            inputs,
            schema: Arc::clone(&values.schema),
        })
    };
    Ok(Transformed::yes(plan))
}

/// The plan with the columns of `schema` and no others: what a range join added is dropped where the node passes it
/// on, and what a node named after a call is named so again.
fn restore_columns(plan: LogicalPlan, schema: &DFSchema) -> Result<LogicalPlan> {
    let now = plan.schema();
    let same = now.fields().len() == schema.fields().len()
        && now
            .iter()
            .zip(schema.iter())
            .all(|((q, f), (old_q, old_f))| q == old_q && f.name() == old_f.name());
    if same {
        return Ok(plan);
    }
    let columns = if now.fields().len() == schema.fields().len() {
        let renamed = now.iter().zip(schema.iter()).map(|(new, (old_q, old_f))| {
            let column = Expr::Column(Column::from(new));
            column.alias_qualified(old_q.cloned(), old_f.name())
        });
        renamed.collect()
    } else {
        schema
            .iter()
            .map(|old| Expr::Column(Column::from(old)))
            .collect()
    };
    Ok(LogicalPlan::Projection(Projection::try_new(
        columns,
        Arc::new(plan),
    )?))
}

/// The calls found in expressions over one input, each replaced by the column that its answer will be.
struct Calls<'a> {
    config: &'a dyn OptimizerConfig,
    schema: DFSchemaRef,
    /// The same call twice is answered once.
    found: Vec<Found>,
}

struct Found {
    /// The call as it stood in its expression, inner calls already replaced.
    written: ScalarFunction,
    call: RangeCall,
    /// 0 if the bounds need the input alone, else one more than the calls whose answers they need.
    layer: usize,
}

impl<'a> Calls<'a> {
    fn new(config: &'a dyn OptimizerConfig, schema: &DFSchemaRef) -> Self {
        Self {
            config,
            schema: Arc::clone(schema),
            found: vec![],
        }
    }

    /// `input` with the answers as further columns.
    fn join_below(self, input: LogicalPlan) -> Result<LogicalPlan> {
        let mut plan = input;
        let mut rest = self.found;
        for layer in 0.. {
            if rest.is_empty() {
                break;
            }
            let (now, later): (Vec<_>, _) = rest.into_iter().partition(|f| f.layer == layer);
            let calls = now.into_iter().map(|f| f.call).collect();
            let node = Arc::new(RangeJoin::try_new(plan, calls)?);
            plan = LogicalPlan::Extension(Extension { node });
            rest = later;
        }
        Ok(plan)
    }

    /// The layer of a call with this bound, or `None` if the bound needs more than this input.
    fn layer(&self, bound: &Expr) -> Option<usize> {
        if bound.contains_outer() {
            return None;
        }
        let layers = bound.column_refs().into_iter().map(|column| {
            let answer = self.found.iter().find(|f| f.call.output == column.name);
            match answer {
                Some(found) => Some(found.layer + 1),
                None => self.schema.has_column(column).then_some(0),
            }
        });
        layers
            .into_iter()
            .try_fold(0, |most, layer| Some(most.max(layer?)))
    }

    /// The column that stands for a call, or `None` if its bounds need more than this input.
    fn take(&mut self, udf: &RangeUdf, call: &ScalarFunction) -> Result<Option<Column>> {
        let name = udf.function().range_name();
        let [column, left, right] = call.args.as_slice() else {
            return plan_err!(
                "{name} takes 3 arguments, but {} were given",
                call.args.len()
            );
        };
        let (source, column_field) = source(udf, column)?;
        let mut layer = 0;
        for bound in [left, right] {
            if bound.exists(|e| Ok(matches!(e, Expr::LambdaVariable(_))))? {
                return plan_err!(
                    "{name}: the bound {bound} depends on a lambda's variable, which range functions do not support; unnest the array"
                );
            }
            match self.layer(bound) {
                Some(needed) => layer = layer.max(needed),
                None => return Ok(None),
            }
        }
        if let Some(same) = self.found.iter().find(|f| f.written == *call) {
            return Ok(Some(Column::new_unqualified(&same.call.output)));
        }
        let output = self.config.alias_generator().next("__rmq");
        let call_taken = RangeCall {
            function: udf.function(),
            source,
            left: left.clone(),
            right: right.clone(),
            output: output.clone(),
            data_type: udf.function().result_type(column_field.data_type()),
        };
        self.found.push(Found {
            written: call.clone(),
            call: call_taken,
            layer,
        });
        Ok(Some(Column::new_unqualified(output)))
    }
}

impl TreeNodeRewriter for Calls<'_> {
    type Node = Expr;

    fn f_up(&mut self, expr: Expr) -> Result<Transformed<Expr>> {
        let Some((udf, call)) = range_udf(&expr) else {
            return Ok(Transformed::no(expr));
        };
        Ok(match self.take(udf, call)? {
            Some(column) => Transformed::yes(Expr::Column(column)),
            None => Transformed::no(expr),
        })
    }
}

/// What the first argument of a call stands for.
fn source(udf: &RangeUdf, column: &Expr) -> Result<(Source, FieldRef)> {
    let name = udf.function().range_name();
    match column {
        Expr::Literal(literal, _) => {
            let column = udf.names().parse(name, column_text(name, literal)?)?;
            let provider = udf.names().table(name, &column.table_reference())?;
            if let Some(view) = provider.get_logical_plan() {
                check_states_order(name, &format!("the view {}", column.table), &view)?;
            }
            let field = udf.names().field(name, &column)?;
            Ok((Source::Table(TableColumn(column)), field))
        }
        Expr::ScalarSubquery(subquery) if subquery.outer_ref_columns.is_empty() => {
            let plan = &subquery.subquery;
            if plan.schema().fields().len() != 1 {
                return plan_err!(
                    "{name}: the subquery must have one column, but it has {}",
                    plan.schema().fields().len()
                );
            }
            check_states_order(name, "the subquery", plan)?;
            Ok((
                Source::Query(Arc::clone(plan)),
                Arc::clone(plan.schema().field(0)),
            ))
        }
        Expr::ScalarSubquery(_) => plan_err!(
            "{name}: the subquery that gives the column must not depend on the outer query"
        ),
        Expr::Placeholder(parameter) => plan_err!(
            "{name}: the column can't be the parameter {}, as planning needs to know it; bind the parameter before planning, or \
             write the column's name",
            parameter.id
        ),
        other => plan_err!(
            "{name}: the first argument must be a string literal that names a table's column ('prices.close') or a subquery, not \
             {other}; for a column of the query itself use the window form {}({other}, l, r) OVER (ORDER BY …)",
            udf.function().frame_name()
        ),
    }
}
