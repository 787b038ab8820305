//! Aggregates over the rows whose value crosses a threshold: their number, and the first or last of them.
//!
//! ```text
//!   count(*) FILTER (WHERE p.v < q.x)                                 count(* where p.v < q.x)
//!   count(*) FILTER (WHERE p.v BETWEEN q.x AND q.y)                   two such counts, less the number of all values
//!   min(p.ts) over a condition that has p.v < q.x beside its range    first(p.ts where p.v < q.x)
//! ```

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion_common::{Result, ScalarValue};
use datafusion_expr::expr::AggregateFunction;
use datafusion_expr::{AggregateUDF, Expr, ExprSchemable, SortExpr, lit, when};
use datafusion_functions_aggregate::count::Count;
use datafusion_functions_aggregate::min_max::Min;
use datafusion_functions_aggregate::sum::{Sum, sum_udaf};

use crate::conditions::infallible::is_infallible;
use crate::conditions::rejection::{Match, reject};
use crate::expr::total_order::TotalOrderUdaf;
use crate::logical_plan::range_join::AggregateKind;
use crate::rules::aggregate_decomposition::{
    AggregateDecomposition, AggregateInput, DecomposedAggregate, aggregate, extreme_of,
    is_row_count,
};
use crate::rules::condition_parts::check_repeats;
use crate::rules::threshold::{Limits, Threshold};
use rmq_engine::RangeEnd;

/// An aggregate that counts the rows for which a condition holds.
struct ConditionalCount<'a> {
    condition: &'a Expr,
    /// What a sum adds for other rows; `None` for a count.
    sum: Option<Otherwise>,
}

enum Otherwise {
    Zero,
    Null,
}

impl<'a> ConditionalCount<'a> {
    fn from_call(call: &'a AggregateFunction) -> Option<Self> {
        let params = &call.params;
        let inner = call.func.inner();
        let [argument] = params.args.as_slice() else {
            return None;
        };
        match (argument, params.filter.as_deref()) {
            (Expr::Literal(value, _), Some(condition)) if inner.is::<Count>() => {
                let sum = None;
                (!value.is_null()).then_some(Self { condition, sum })
            }
            (Expr::Case(case), None) if case.expr.is_none() => {
                let [(condition, then)] = case.when_then_expr.as_slice() else {
                    return None;
                };
                let otherwise = match case.else_expr.as_deref() {
                    None => Otherwise::Null,
                    Some(Expr::Literal(value, _)) if value.is_null() => Otherwise::Null,
                    Some(Expr::Literal(ScalarValue::Int64(Some(0)), _)) => Otherwise::Zero,
                    Some(_) => return None,
                };
                let sum = match (then.as_ref(), otherwise) {
                    (Expr::Literal(value, _), Otherwise::Null)
                        if inner.is::<Count>() && !value.is_null() =>
                    {
                        None
                    }
                    (Expr::Literal(ScalarValue::Int64(Some(1)), _), otherwise)
                        if inner.is::<Sum>() =>
                    {
                        Some(otherwise)
                    }
                    _ => return None,
                };
                Some(Self { condition, sum })
            }
            _ => None,
        }
    }
}

impl AggregateDecomposition<'_> {
    /// Decomposes the number of rows that a comparison of both sides holds for: `count(*) FILTER (WHERE p.v < q.x)`,
    /// `sum(CASE WHEN p.v < q.x THEN 1 ELSE 0 END)`. `None` for other calls.
    pub fn conditional_count(
        &mut self,
        call: &AggregateFunction,
    ) -> Match<Option<DecomposedAggregate>> {
        let Some(counted) = ConditionalCount::from_call(call) else {
            return Ok(None);
        };
        let found = Limits::of_condition(counted.condition, self.probe, self.build)?;
        let Some(limits) = found else {
            return Ok(None);
        };
        // The limits are evaluated also for rows without a match, for which no comparison holds.
        for threshold in [&limits.first].into_iter().chain(&limits.second) {
            self.check_unmatched(&threshold.value)?;
            if !is_infallible(&threshold.limit, self.probe)? {
                return Ok(None);
            }
        }
        let count = self.rows_within(&limits)?;
        let value = match counted.sum {
            None => return self.counted(count.clone(), count).map(Some),
            // A sum is NULL where it has no row, and without ELSE also where the condition holds for none.
            Some(Otherwise::Null) => when(count.clone().gt(lit(0_i64)), count).end()?,
            Some(Otherwise::Zero) if !matches!(self.input, AggregateInput::Join(_)) => {
                when(self.count_rows().gt(lit(0_i64)), count).end()?
            }
            Some(Otherwise::Zero) => count,
        };
        let sum = aggregate(sum_udaf(), value.clone());
        Ok(Some(self.decomposed(value, sum)))
    }

    /// Decomposes `count(*)`, or `count(p.id)`, over the rows within limits.
    pub fn count_within(
        &mut self,
        limits: &Limits,
        call: &AggregateFunction,
    ) -> Match<DecomposedAggregate> {
        if is_row_count(call) {
            let count = self.rows_within(limits)?;
            return self.counted_rows(count);
        }
        let mut are_known = vec![];
        for argument in &call.params.args {
            check_repeats(argument)?;
            if argument.nullable(self.build)? {
                are_known.push(argument.clone().is_not_null());
            }
        }
        let count = self.rows_within(&limits.clone().of_rows(are_known)?)?;
        self.counted(count.clone(), count)
    }

    /// The number of rows within limits.
    ///
    /// Each value that is not NULL meets one of two opposite comparisons, or both, unless the lower limit is above the
    /// upper one or a limit is NULL: then the two counts together are at most as many as there are values.
    pub fn rows_within(&mut self, limits: &Limits) -> Match<Expr> {
        let first = self.rows_crossing(&limits.first)?;
        let Some(second) = &limits.second else {
            return Ok(first);
        };
        let second = self.rows_crossing(second)?;
        let value = self.with_late_errors(limits.first.value.clone())?;
        let all = self.add(AggregateKind::Count, vec![value], DataType::Int64);
        let within = first + second - all;
        Ok(when(within.clone().gt(lit(0_i64)), within).otherwise(lit(0_i64))?)
    }

    fn rows_crossing(&mut self, threshold: &Threshold) -> Match<Expr> {
        let function = AggregateKind::CountCrossing {
            comparison: threshold.comparison,
            threshold: self.threshold_index(threshold),
        };
        let value = self.with_late_errors(threshold.value.clone())?;
        Ok(self.add(function, vec![value], DataType::Int64))
    }

    /// The index of a threshold among those of the range join.
    fn threshold_index(&mut self, threshold: &Threshold) -> usize {
        let limit = &threshold.limit;
        let known = self.thresholds.iter().position(|known| known == limit);
        known.unwrap_or_else(|| {
            self.thresholds.push(limit.clone());
            self.thresholds.len() - 1
        })
    }

    /// Decomposes a minimum or maximum of the range key over the rows that cross a threshold.
    pub fn extreme_at_crossing(
        &mut self,
        threshold: &Threshold,
        call: &AggregateFunction,
    ) -> Match<DecomposedAggregate> {
        let found = self.at_crossing(threshold, call)?;
        let is_float = |e: &Expr| Ok(e.get_type(self.build)?.is_floating());
        let floats = call.params.args.iter().map(is_float);
        let udaf = match extreme_of(call) {
            Some(extreme) if floats.collect::<Result<Vec<_>>>()?.contains(&true) => {
                Arc::new(AggregateUDF::from(TotalOrderUdaf::new(extreme)))
            }
            _ => Arc::clone(&call.func),
        };
        Ok(self.decomposed(found.clone(), aggregate(udaf, found)))
    }

    /// The column of a minimum or maximum of the range key over the rows that cross a threshold.
    pub fn at_crossing(&mut self, threshold: &Threshold, call: &AggregateFunction) -> Match<Expr> {
        let [key] = call.params.args.as_slice() else {
            return reject(format!("{} has not one argument", call.func.name()));
        };
        check_repeats(key)?;
        let end = if call.func.inner().is::<Min>() {
            RangeEnd::First
        } else {
            RangeEnd::Last
        };
        self.add_at_crossing(threshold, end, key.clone())
    }

    /// Adds `value` of the first or last row that crosses a threshold.
    fn add_at_crossing(
        &mut self,
        threshold: &Threshold,
        end: RangeEnd,
        value: Expr,
    ) -> Match<Expr> {
        let function = AggregateKind::AtCrossing {
            end,
            comparison: threshold.comparison,
            threshold: self.threshold_index(threshold),
        };
        let data_type = value.get_type(self.build)?;
        let searched = self.with_late_errors(threshold.value.clone())?;
        Ok(self.add(function, vec![value, searched], data_type))
    }

    /// A column of the row that comes first by `order` of those that cross a threshold: of equal ones the leftmost if
    /// the order is ascending, else the rightmost.
    pub fn of_crossing_row(
        &mut self,
        column: Expr,
        order: &SortExpr,
        threshold: &Threshold,
    ) -> Match<Expr> {
        if !self.compares_as_range_key(&order.expr)? {
            return reject(format!("{} is not the range key", order.expr));
        }
        self.check_joins(&column.get_type(self.build)?)?;
        let end = if order.asc {
            RangeEnd::First
        } else {
            RangeEnd::Last
        };
        self.add_at_crossing(threshold, end, column)
    }
}
