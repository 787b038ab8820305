//! Decomposes `FIRST_VALUE` and `LAST_VALUE`, and finds the columns of the row that comes first.

use datafusion_common::Result;
use datafusion_expr::expr::AggregateFunction;
use datafusion_expr::{Expr, ExprSchemable, SortExpr, lit};
use datafusion_functions_aggregate::first_last::FirstValue;

use crate::common::sql_text::sql_text;
use crate::conditions::rejection::{Match, reject};
use crate::expr::order_key::{OrderKeyUdf, order_key_from};
use crate::logical_plan::range_join::AggregateKind;
use crate::rules::aggregate_decomposition::{
    AggregateDecomposition, AggregateInput, DecomposedAggregate,
};
use crate::rules::condition_parts::check_repeats;
use rmq_arrow::common::ordered_type::{is_ordered, value_type};
use rmq_engine::Extreme;

impl AggregateDecomposition<'_> {
    /// Decomposes `FIRST_VALUE` or `LAST_VALUE`.
    pub fn first_or_last(
        &mut self,
        call: &AggregateFunction,
        argument: &Expr,
    ) -> Match<DecomposedAggregate> {
        if call.params.filter.is_some() {
            return reject(format!("{} has a filter", call.func.name()));
        }
        let value = self.checked(argument.clone())?;
        let is_first = call.func.inner().is::<FirstValue>();
        let (by, order) = match call.params.order_by.as_slice() {
            [] => return reject(format!("{} has no ORDER BY", call.func.name())),
            [order] => {
                check_repeats(&order.expr)?;
                (self.checked(order.expr.clone())?, order.clone())
            }
            orders => {
                let by = self.order_key(orders)?;
                (by.clone(), by.sort(true, false))
            }
        };
        let (value_kind, by_type) = (value.get_type(self.build)?, by.get_type(self.build)?);
        self.check_joins(&value_kind)?;
        self.check_joins(&by_type)?;
        // LAST_VALUE is FIRST_VALUE in the opposite order.
        let (ascending, nulls_first) = if is_first {
            (order.asc, order.nulls_first)
        } else {
            (!order.asc, !order.nulls_first)
        };
        let (found, found_by) = if self.is_range_key(&by)? {
            let function = if ascending {
                AggregateKind::First
            } else {
                AggregateKind::Last
            };
            let found = self.add(function, vec![value], value_kind);
            (found, self.add(function, vec![by], by_type))
        } else {
            if !is_ordered(&by_type) {
                return reject(format!(
                    "{} is a {by_type}, which has no order",
                    sql_text(&by)
                ));
            }
            let extreme = if ascending {
                Extreme::Min
            } else {
                Extreme::Max
            };
            let function = AggregateKind::AtExtreme {
                extreme,
                nulls_first,
            };
            let found = self.add(function, vec![value, by.clone()], value_kind);
            (found, self.add(function, vec![by.clone(), by], by_type))
        };
        let mut merge = call.clone();
        merge.params.args = vec![found.clone()];
        merge.params.order_by = vec![SortExpr {
            expr: found_by,
            ..order
        }];
        if self.input == AggregateInput::Narrowed {
            let has_rows = self.count_rows().gt(lit(0_i64));
            merge.params.filter = Some(Box::new(has_rows));
        }
        Ok(self.decomposed(found, Expr::AggregateFunction(merge)))
    }

    /// The bytes in the order of several expressions, the first of them first.
    fn order_key(&self, orders: &[SortExpr]) -> Match<Expr> {
        let mut checked = vec![];
        for order in orders {
            check_repeats(&order.expr)?;
            let by = self.checked(order.expr.clone())?;
            let by_type = by.get_type(self.build)?;
            // Zeros of both signs are equal in the bytes.
            if !OrderKeyUdf::supports(&by_type) || value_type(&by_type).is_floating() {
                return reject(format!(
                    "{} is a {by_type}, by which ties of another expression are not ordered",
                    sql_text(&by)
                ));
            }
            checked.push(SortExpr {
                expr: by,
                ..order.clone()
            });
        }
        match order_key_from(true, &checked) {
            Some(key) => Ok(key),
            None => reject("there is no ORDER BY"),
        }
    }

    /// Whether an expression orders rows as the range key does. Floats are excluded, because zeros of both signs are
    /// equal keys but ordered values.
    fn is_range_key(&self, by: &Expr) -> Result<bool> {
        let is_float = value_type(&by.get_type(self.build)?).is_floating();
        Ok(!is_float && self.compares_as_range_key(by)?)
    }

    /// A column of the row that comes first by `order`: of equal ones the leftmost if the order is ascending. The
    /// rightmost if it is descending and by the range key, where zeros of both signs are equal.
    pub fn of_first_row(&mut self, column: Expr, order: &SortExpr) -> Match<Expr> {
        let by = &order.expr;
        check_repeats(by)?;
        let data_type = column.get_type(self.build)?;
        self.check_joins(&data_type)?;
        if self.compares_as_range_key(by)? {
            let function = if order.asc {
                AggregateKind::First
            } else {
                AggregateKind::Rightmost
            };
            return Ok(self.add(function, vec![column], data_type));
        }
        let by = self.checked(by.clone())?;
        let by_type = by.get_type(self.build)?;
        if !is_ordered(&by_type) {
            return reject(format!(
                "{} is a {by_type}, which has no order",
                sql_text(&by)
            ));
        }
        let function = AggregateKind::AtExtreme {
            extreme: if order.asc {
                Extreme::Min
            } else {
                Extreme::Max
            },
            nulls_first: order.nulls_first,
        };
        Ok(self.add(function, vec![column, by], data_type))
    }
}
