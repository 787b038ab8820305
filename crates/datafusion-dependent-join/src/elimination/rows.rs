//! The domain below nodes that make rows of their own, and rows by their number.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion_common::{Column, ScalarValue};
use datafusion_expr::expr::Sort as SortExpr;
use datafusion_expr::utils::conjunction;
use datafusion_expr::{
    Expr, ExprFunctionExt, LogicalPlan, Projection, Union, Unnest, Window, cast, lit,
};
use datafusion_functions::core::expr_fn::coalesce;
use datafusion_functions_window::expr_fn::row_number;

use crate::elimination::{Elimination, filtered};
use crate::exprs::columns;
use crate::refusal::{Found, refuse};
use crate::unions::union_of;

impl Elimination<'_> {
    pub(super) fn push_union(&self, union: &Union) -> Found<LogicalPlan> {
        let inputs = union.inputs.iter().map(|input| self.push(input));
        let inputs = inputs.collect::<Found<_>>()?;
        let domain = self.domain_names().into_iter();
        let names = union.schema.columns().into_iter();
        let names: Vec<_> = names.chain(domain.map(Column::new_unqualified)).collect();
        Ok(union_of(inputs, &names)?)
    }

    pub(super) fn push_unnest(&self, unnest: &Unnest) -> Found<LogicalPlan> {
        let input = self.push(&unnest.input)?;
        let domain = self.domain_of(&input);
        if unnest
            .exec_columns
            .iter()
            .any(|column| domain.contains(column))
        {
            return refuse("it unnests an outer column");
        }
        let node = Unnest::try_new(
            Arc::new(input),
            unnest.exec_columns.clone(),
            unnest.options.clone(),
        )?;
        let node = LogicalPlan::Unnest(node);
        let exprs = columns(unnest.schema.columns());
        let domain = self.domain_of(&node);
        self.with_names(node, exprs, domain, &unnest.schema)
    }

    /// The rows of a plan after the first `skip` ones by `order` of those with equal `keys`, and of these the first
    /// `fetch` ones. Both may differ by row; NULL is no limit.
    pub(super) fn numbered(
        &self,
        input: LogicalPlan,
        keys: Vec<Expr>,
        order: Vec<SortExpr>,
        skip: Option<Expr>,
        fetch: Option<Expr>,
    ) -> Found<LogicalPlan> {
        // Among rows with equal keys, a key orders nothing. DataFusion loses rows if it is in both.
        let order = order.into_iter().filter(|by| !keys.contains(&by.expr));
        let mut order: Vec<SortExpr> = order.collect();
        let all = columns(input.schema().columns());
        if order.is_empty() {
            // Any order will do, but DataFusion's operator for the first rows of each group panics without one.
            let other = all.iter().find(|column| !keys.contains(column));
            order.extend(other.map(|column| column.clone().sort(true, false)));
        }
        let row_number = row_number().partition_by(keys).order_by(order).build()?;
        let window = Window::try_new(vec![row_number], Arc::new(input))?;
        let Some(number) = window.schema.columns().pop() else {
            return refuse("a window has no columns");
        };
        let name = Column::new_unqualified(self.fresh("row_number"));
        let number = Expr::Column(number).alias(name.name.clone());
        let exprs = all.iter().cloned().chain([number]).collect();
        let window = Arc::new(LogicalPlan::Window(window));
        let numbers = LogicalPlan::Projection(Projection::try_new(exprs, window)?);
        let number = Expr::Column(name);
        let (after, up_to) = match (constant(skip.as_ref()), constant(fetch.as_ref())) {
            (Some(skip), Some(fetch)) => {
                let last = fetch.map(|fetch| skip.unwrap_or(0).saturating_add(fetch));
                let after = skip.map(|skip| number.clone().gt(lit(skip)));
                (after, last.map(|last| number.lt_eq(lit(last))))
            }
            _ => {
                let rows = |rows: Expr| cast(rows, DataType::Int64);
                let skip = skip.map(|skip| coalesce(vec![rows(skip), lit(0_i64)]));
                let number = match &skip {
                    Some(skip) => rows(number) - skip.clone(),
                    None => rows(number),
                };
                let after = skip.map(|_| number.clone().gt(lit(0_i64)));
                let up_to = fetch.map(|fetch| number.gt(rows(fetch)).is_not_true());
                (after, up_to)
            }
        };
        let rows = match conjunction(after.into_iter().chain(up_to)) {
            Some(condition) => filtered(numbers, condition)?,
            None => numbers,
        };
        Ok(LogicalPlan::Projection(Projection::try_new(
            all,
            Arc::new(rows),
        )?))
    }
}

/// A constant number of rows, if there is one, as `row_number()` has it. None if it differs by row.
fn constant(rows: Option<&Expr>) -> Option<Option<u64>> {
    match rows {
        None => Some(None),
        Some(Expr::Literal(rows, _)) => match rows.cast_to(&DataType::UInt64) {
            Ok(ScalarValue::UInt64(rows)) => Some(rows),
            _ => None,
        },
        Some(_) => None,
    }
}
