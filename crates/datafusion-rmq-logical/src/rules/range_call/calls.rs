//! Replaces calls of range functions by columns of a [`RangeLookup`], or by expressions over an index of a
//! [`PrepareIndexes`].

use std::fmt::Display;
use std::sync::Arc;

use arrow::datatypes::FieldRef;
use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion, TreeNodeRewriter};
use datafusion_common::{Column, DFSchema, DFSchemaRef, Result, plan_err};
use datafusion_dependent_join::{from_outer, is_correlated, refers_to_outer};
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::{EmptyRelation, Expr, LogicalPlan, ScalarUDF};
use datafusion_optimizer::OptimizerConfig;

use crate::common::column_ref::ColumnRef;
use crate::expr::index_lookup::{IndexLookupUdf, IndexSlot};
use crate::expr::range_calls::{calls_range_function, range_udf};
use crate::expr::range_udf::{RangeUdf, column_text};
use crate::logical_plan::prepare_indexes::{IndexLookup, PrepareIndexes};
use crate::logical_plan::range_lookup::{RangeCall, RangeLookup, Source, TableColumn};
use crate::logical_plan::stated_order::check_states_order;
use crate::rules::common::conditional::is_in_or_exists;
use crate::rules::common::names::unused_name;
use crate::rules::common::plans::{extension, with_columns};

/// Replaces a correlated subquery without FROM, `(SELECT range_min('t.v', q.l, q.r))`, by its expression. DataFusion
/// does not decorrelate it, and no operator can run it.
pub fn inline_subqueries(expr: Expr) -> Result<Transformed<Expr>> {
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
            [one] if calls_range_function(one)? && one.contains_outer() => {
                let one = one.clone().unalias_nested().data;
                Ok(Transformed::yes(from_outer(one)?))
            }
            _ => Ok(Transformed::no(expr)),
        }
    })
}

/// The calls found in expressions over one input. As a rewriter, replaces each call by the column that will have its
/// result.
pub struct Calls<'a> {
    config: &'a dyn OptimizerConfig,
    schema: DFSchemaRef,
    /// Calls without duplicates.
    found: Vec<Found>,
    /// Bounds with subqueries that DataFusion allows in projections but not in this crate's nodes.
    projected: Vec<Projected>,
}

struct Projected {
    bound: Expr,
    name: String,
    /// The layer of the call that it is a bound of.
    layer: usize,
}

struct Found {
    /// The original call, in which inner calls are already replaced.
    written: ScalarFunction,
    call: RangeCall,
    /// 0 if the bounds need only the input, otherwise one more than the highest layer whose results they need.
    layer: usize,
}

impl<'a> Calls<'a> {
    pub fn new(config: &'a dyn OptimizerConfig, schema: &DFSchemaRef) -> Self {
        Self {
            config,
            schema: Arc::clone(schema),
            found: vec![],
            projected: vec![],
        }
    }

    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Puts one [`RangeLookup`] per layer above `input`.
    pub fn add_lookups(self, input: LogicalPlan) -> Result<LogicalPlan> {
        let mut plan = input;
        let (mut calls, mut bounds) = (self.found, self.projected);
        for layer in 0.. {
            if calls.is_empty() {
                break;
            }
            let now: Vec<Projected> = bounds.extract_if(.., |b| b.layer == layer).collect();
            if !now.is_empty() {
                plan = with_columns(plan, now.into_iter().map(|b| b.bound.alias(b.name)))?;
            }
            let now = calls.extract_if(.., |f| f.layer == layer).map(|f| f.call);
            plan = extension(RangeLookup::try_new(plan, now.collect())?);
        }
        Ok(plan)
    }

    /// Returns `bound`, or a column that a projection computes if the bound has a correlated subquery, IN or EXISTS. It
    /// may need the results of layers before this one.
    fn project(&mut self, bound: &Expr, layer: usize) -> Result<Expr> {
        let needs_projection = bound.exists(|e| {
            Ok(match e {
                Expr::ScalarSubquery(subquery) => is_correlated(&subquery.subquery)?,
                other => is_in_or_exists(other),
            })
        })?;
        if !needs_projection {
            return Ok(bound.clone());
        }
        let name = self.unused_name("bound");
        self.projected.push(Projected {
            bound: bound.clone(),
            name: name.clone(),
            layer,
        });
        Ok(Expr::Column(Column::new_unqualified(name)))
    }

    /// Generates a name that no column of the input has.
    fn unused_name(&self, description: impl Display) -> String {
        unused_name(self.config, &self.schema, description)
    }

    /// The layer of a call with this bound, or `None` if the bound has columns of another input.
    fn layer(&self, bound: &Expr) -> Option<usize> {
        if refers_to_outer(bound, &self.schema).unwrap_or(true) {
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

    /// Records a call and returns the column of its result, or `None` if its bounds have columns of another input.
    fn take(&mut self, udf: &RangeUdf, call: &ScalarFunction) -> Result<Option<Column>> {
        let name = udf.function().range_name();
        let [column, left, right, threshold @ ..] = call.args.as_slice() else {
            return plan_err!(
                "{name} takes {} arguments, but {} were given",
                udf.function().argument_count(),
                call.args.len()
            );
        };
        let threshold = threshold.first();
        if has_parameter(column)? {
            // The call is kept until the statement is executed, when the parameter is bound.
            return Ok(None);
        }
        let (source, column_field) = source(udf, column)?;
        let mut layer = 0;
        let arguments = || [left, right].into_iter().chain(threshold);
        for bound in arguments() {
            if bound.exists(|e| Ok(matches!(e, Expr::LambdaVariable(_))))? {
                return plan_err!(
                    "{name}: the argument {bound} depends on a lambda's variable, which range functions do not support; unnest the array"
                );
            }
            match self.layer(bound) {
                Some(needed) => layer = layer.max(needed),
                None => return Ok(None),
            }
        }
        // Equal volatile bounds need not have equal values.
        let repeats = !arguments().any(Expr::is_volatile);
        let same = self.found.iter().find(|f| {
            repeats
                && f.written.func == call.func
                && f.written.args[1..] == call.args[1..]
                && f.call.source.is_same(&source)
        });
        if let Some(same) = same {
            return Ok(Some(Column::new_unqualified(&same.call.output)));
        }
        let (left, right) = (self.project(left, layer)?, self.project(right, layer)?);
        let threshold = threshold.map(|x| self.project(x, layer)).transpose()?;
        let output = self.unused_name(format_args!("{name}({source})"));
        let call_taken = RangeCall {
            function: udf.function(),
            source,
            left,
            right,
            threshold,
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

/// Whether a subquery has a parameter, `$1`.
fn has_parameter(column: &Expr) -> Result<bool> {
    let Expr::ScalarSubquery(subquery) = column else {
        return Ok(false);
    };
    let mut found = false;
    subquery.subquery.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            found |= expr.exists(|e| Ok(matches!(e, Expr::Placeholder(_))))?;
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(found)
}

/// Rejects a view whose range functions read the view itself, directly or through other views. `path` has the views on
/// the way.
fn check_no_cycle(
    udf: &RangeUdf,
    name: &ColumnRef,
    view: &LogicalPlan,
    path: &mut Vec<ColumnRef>,
) -> Result<()> {
    let this = ColumnRef {
        column: String::new(),
        ..name.clone()
    };
    if path.contains(&this) {
        return plan_err!(
            "{}: the view {} reads its own rows, through its range functions",
            udf.function().range_name(),
            name.table
        );
    }
    path.push(this);
    view.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|e| {
                if let Some((udf, call)) = range_udf(e)
                    && let Some(Expr::Literal(text, _)) = call.args.first()
                {
                    let function = udf.function().range_name();
                    let name = udf.names().parse(function, column_text(function, text)?)?;
                    let provider = udf.names().table(function, &name.table_reference())?;
                    if let Some(view) = provider.get_logical_plan() {
                        check_no_cycle(udf, &name, &view, path)?;
                    }
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    path.pop();
    Ok(())
}

/// Resolves the first argument of a call.
fn source(udf: &RangeUdf, column: &Expr) -> Result<(Source, FieldRef)> {
    let name = udf.function().range_name();
    match column {
        Expr::Literal(literal, _) => {
            let column = udf.names().parse(name, column_text(name, literal)?)?;
            let provider = udf.names().table(name, &column.table_reference())?;
            if let Some(view) = provider.get_logical_plan() {
                check_no_cycle(udf, &column, &view, &mut vec![])?;
                check_states_order(name, &format!("the view {}", column.table), &view)?;
            }
            let field = udf.names().field(name, &column)?;
            Ok((Source::Table(TableColumn(column)), field))
        }
        Expr::ScalarSubquery(subquery) if !is_correlated(&subquery.subquery)? => {
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
        other if other.column_refs().is_empty() => plan_err!(
            "{name}: the first argument must be a string literal that names a table's column ('prices.close') or a subquery, not \
             {other}"
        ),
        other => plan_err!(
            "{name}: the first argument must be a string literal that names a table's column ('prices.close') or a subquery, not \
             {other}; for a column of the query itself use the window form {}({other}, l, r) OVER (ORDER BY …)",
            udf.function().frame_name()
        ),
    }
}

/// Replaces the calls in a join's `condition` by expressions over indexes, which a [`PrepareIndexes`] above `input`
/// builds. `schema` has the columns of both sides. Returns the new input and the new condition.
pub fn look_up(
    input: Arc<LogicalPlan>,
    condition: Expr,
    schema: &DFSchema,
    config: &dyn OptimizerConfig,
) -> Result<(Arc<LogicalPlan>, Expr)> {
    let mut lookups = vec![];
    let run = unused_name(config, schema, "run");
    let condition = condition.transform_up(|expr| {
        let Some((udf, call)) = range_udf(&expr) else {
            return Ok(Transformed::no(expr));
        };
        let function = udf.function();
        let (source, field) = source(udf, &call.args[0])?;
        let slot = IndexSlot::default();
        let data_type = function.result_type(field.data_type());
        let lookup = ScalarUDF::from(IndexLookupUdf::new(function, data_type, slot.clone()));
        lookups.push(IndexLookup {
            function,
            source,
            slot,
        });
        let run = Expr::Column(Column::new_unqualified(&run));
        let arguments = std::iter::once(run).chain(call.args[1..].iter().cloned());
        Ok(Transformed::yes(lookup.call(arguments.collect())))
    })?;
    let input = PrepareIndexes::try_new(Arc::unwrap_or_clone(input), lookups, run)?;
    Ok((Arc::new(extension(input)), condition.data))
}
