//! Conditions in reasons as the query writes them: without the casts that type coercion adds, and with the names of
//! tables, which physical plans have lost.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{Column, DFSchema, JoinSide, Result, TableReference};
use datafusion_expr::utils::split_conjunction;
use datafusion_expr::{Cast, Expr, ExprSchemable, LogicalPlan};
use datafusion_physical_expr::PhysicalExprRef;
use datafusion_physical_expr::expressions::{CastExpr, Column as PhysicalColumn};
use datafusion_physical_plan::ExecutionPlan;
use datafusion_physical_plan::joins::utils::JoinFilter;
use datafusion_physical_plan::projection::ProjectionExec;

use crate::common::sql_text::{physical_text, sql_text};
use rmq_arrow::common::ordered_type::value_type;

/// A condition between two sides.
pub fn written(expr: &Expr, one: &DFSchema, other: &DFSchema) -> String {
    let shown = one
        .join(other)
        .and_then(|both| without_coercions(expr.clone(), &both));
    sql_text(shown.as_ref().unwrap_or(expr))
}

fn without_coercions(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    let shown = expr.transform_down(|e| {
        Ok(match e {
            Expr::Cast(Cast { expr, field })
                if expr
                    .get_type(schema)
                    .is_ok_and(|from| is_coercion(&from, field.data_type())) =>
            {
                Transformed::yes(*expr)
            }
            other => Transformed::no(other),
        })
    });
    Ok(shown?.data)
}

/// Whether type coercion may have added a cast: one to a type of the same kind that is as wide or wider.
fn is_coercion(from: &DataType, to: &DataType) -> bool {
    let (from, to) = (value_type(from), value_type(to));
    let is_string =
        |t: &DataType| matches!(t, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    if from.is_integer() {
        return to.is_numeric();
    }
    if from.is_decimal() {
        return to.is_decimal() || to.is_floating();
    }
    let are = |is_kind: &dyn Fn(&DataType) -> bool| is_kind(&from) && is_kind(&to);
    are(&DataType::is_floating)
        || are(&is_string)
        || are(&|t| matches!(t, DataType::Timestamp(..)))
        || matches!(
            (&from, &to),
            (
                DataType::Date32 | DataType::Date64,
                DataType::Timestamp(..) | DataType::Date64
            )
        )
}

/// A condition of a join's filter, also without the columns that a projection below the join computes for it. The names
/// of tables are missing.
pub fn written_physical(
    conjunct: &PhysicalExprRef,
    filter: &JoinFilter,
    left: &Arc<dyn ExecutionPlan>,
    right: &Arc<dyn ExecutionPlan>,
) -> String {
    let shown = physical_without_coercions(conjunct, filter.schema()).and_then(|expr| {
        let computed = expr.transform_up(|e| {
            let Some(column) = e.downcast_ref::<PhysicalColumn>() else {
                return Ok(Transformed::no(e));
            };
            let found = filter.column_indices().get(column.index());
            let input = found.and_then(|found| match found.side {
                JoinSide::Left => Some((left, found.index)),
                JoinSide::Right => Some((right, found.index)),
                JoinSide::None => None,
            });
            let projection = input.and_then(|(input, index)| {
                let projection = input.downcast_ref::<ProjectionExec>()?;
                Some((projection, projection.expr().get(index)?))
            });
            Ok(match projection {
                Some((projection, computed)) if computed.alias.starts_with(PUSHED_DOWN) => {
                    let schema = projection.input().schema();
                    Transformed::yes(physical_without_coercions(&computed.expr, &schema)?)
                }
                _ => Transformed::no(e),
            })
        });
        Ok(computed?.data)
    });
    physical_text(shown.as_ref().unwrap_or(conjunct))
}

/// How `DataFusion` names the columns that it computes below a join.
const PUSHED_DOWN: &str = "join_proj_push_down_";

fn physical_without_coercions(expr: &PhysicalExprRef, schema: &Schema) -> Result<PhysicalExprRef> {
    let shown = Arc::clone(expr).transform_down(|e| {
        let inner = e.downcast_ref::<CastExpr>().and_then(|cast| {
            let from = cast.expr().data_type(schema).ok()?;
            is_coercion(&from, cast.cast_type()).then(|| Arc::clone(cast.expr()))
        });
        Ok(match inner {
            Some(inner) => Transformed::yes(inner),
            None => Transformed::no(e),
        })
    });
    Ok(shown?.data)
}

/// The conditions of the joins of a query with the names of tables, by the text without them.
#[derive(Debug, Default)]
pub struct Conditions {
    named: HashMap<String, Option<String>>,
    /// The tables that `DataFusion` has named anew, because they were those of a subquery.
    tables: HashMap<TableReference, TableReference>,
}

impl Conditions {
    /// Those of the joins of a plan, subqueries included.
    pub fn of(plan: &LogicalPlan) -> Self {
        let mut conditions = Self::default();
        let visited = plan.apply_with_subqueries(|node| {
            if let LogicalPlan::SubqueryAlias(alias) = node
                && ["__correlated_sq_", "__scalar_sq_"]
                    .iter()
                    .any(|made| alias.alias.table().starts_with(made))
                && let Some(table) = only_table(&alias.input)
            {
                conditions.tables.insert(alias.alias.clone(), table);
            }
            Ok(TreeNodeRecursion::Continue)
        });
        let visited = visited.and(plan.apply_with_subqueries(|node| {
            if let LogicalPlan::Join(join) = node
                && let Some(filter) = &join.filter
            {
                for conjunct in split_conjunction(filter) {
                    conditions.add(conjunct, join.left.schema(), join.right.schema())?;
                }
            }
            Ok(TreeNodeRecursion::Continue)
        }));
        if let Err(error) = visited {
            log::debug!("a plan is not visited: {error}");
        }
        conditions
    }

    fn add(&mut self, conjunct: &Expr, left: &DFSchema, right: &DFSchema) -> Result<()> {
        let shown = without_coercions(conjunct.clone(), &left.join(right)?)?;
        let shown = shown.transform_up(|e| {
            Ok(match e {
                Expr::Column(column) => {
                    let relation = column
                        .relation
                        .map(|r| self.tables.get(&r).cloned().unwrap_or(r));
                    Transformed::yes(Expr::Column(Column { relation, ..column }))
                }
                other => Transformed::no(other),
            })
        });
        let shown = shown?.data;
        let named = sql_text(&shown);
        let unnamed = shown.transform_up(|e| {
            Ok(match e {
                Expr::Column(column) if column.relation.is_some() => {
                    Transformed::yes(Expr::Column(Column::new_unqualified(column.name)))
                }
                other => Transformed::no(other),
            })
        });
        let known = self.named.entry(sql_text(&unnamed?.data));
        let known = known.or_insert_with(|| Some(named.clone()));
        // Conditions of several joins may differ by the names of tables only.
        known.take_if(|known| *known != named);
        Ok(())
    }

    /// A reason that begins with one of these conditions, with the names of its tables.
    pub fn named_in(&self, reason: String) -> String {
        let begun = self.named.iter();
        let begun = begun.filter(|(unnamed, _)| reason.starts_with(unnamed.as_str()));
        match begun.max_by_key(|(unnamed, _)| unnamed.len()) {
            Some((unnamed, Some(named))) => format!("{named}{}", &reason[unnamed.len()..]),
            _ => reason,
        }
    }
}

/// The table that a plan reads, if it is one.
fn only_table(plan: &LogicalPlan) -> Option<TableReference> {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => Some(alias.alias.clone()),
        LogicalPlan::TableScan(scan) => Some(scan.table_name.clone()),
        other => match other.inputs().as_slice() {
            [input] => only_table(input),
            _ => None,
        },
    }
}
