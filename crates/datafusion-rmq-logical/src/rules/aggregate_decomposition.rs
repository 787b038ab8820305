//! Decomposes aggregates over joined rows: into aggregates over the build rows that match one probe row, which the
//! range join computes, and aggregates that merge these over the probe rows of a group.
//!
//! ```text
//!   aggregate        range join's columns    value for one row       aggregates over a group    value for a group
//!   min(p.v)         m = min(p.v)            m                       min(m)                     its result
//!   count(*)         n = count(*)            n                       sum(n)                     its result, 0 if NULL
//!   sum(p.v)         s = sum(p.v)            s                       sum(s)                     its result
//!   count(*) FILTER  n = count(* where       n                       sum(n)                     its result, 0 if NULL
//!     (p.v < q.x)      p.v < q.x)
//!   avg(p.v)         s, n = count(p.v)       s / n                   sum(s), sum(n)             their quotient
//!   first_value(p.v  f = first(p.v),         f                       first_value(f ORDER BY g)  its result
//!     ORDER BY p.k)    g = first(p.k)
//!   median(p.v)      its value                                       array_agg(r)               its median
//!                      r = the rows                                                               (GroupStatistics)
//!   any other        a = its state                                   merge(a)                   its result
//! ```
//!
//! The row of NULLs that a left join returns for a probe row without a match counts in `count(*)`.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion_common::{Column, DFSchema, Result};
use datafusion_expr::expr::{AggregateFunction, AggregateFunctionParams, NullTreatment};
use datafusion_expr::{AggregateUDF, Expr, ExprSchemable, lit, when};
use datafusion_functions_aggregate::average::Avg;
use datafusion_functions_aggregate::count::Count;
use datafusion_functions_aggregate::first_last::{FirstValue, LastValue};
use datafusion_functions_aggregate::min_max::{Max, Min};
use datafusion_functions_aggregate::sum::{Sum, sum_udaf};
use datafusion_optimizer::OptimizerConfig;

use crate::common::sql_text::sql_text;
use crate::conditions::lossless_casts::{widens, without_lossless_casts};
use crate::conditions::rejection::{Match, reject};
use crate::expr::late_error::{RaiseUdf, error_or_null, is_error};
use crate::expr::total_order::TotalOrderUdaf;
use crate::logical_plan::accumulator_call::AccumulatorCall;
use crate::logical_plan::group_statistics::GroupStatistic;
use crate::logical_plan::range_join::{AggregateKind, RangeAggregate, Unmatched};
use crate::rules::common::names::{description, is_unused_name, unused_name};
use crate::rules::condition_parts::{Condition, check_repeats, is_of};
use rmq_arrow::common::ordered_type::{is_ordered, value_type};
use rmq_arrow::range_agg::prefix_sums::Sums;
use rmq_engine::Extreme;

/// Decomposes the aggregates of one query. `aggregates` collects those that the range join must compute, without
/// duplicates.
pub struct AggregateDecomposition<'a> {
    pub config: &'a dyn OptimizerConfig,
    pub probe: &'a DFSchema,
    pub build: &'a DFSchema,
    pub key: &'a Expr,
    pub input: AggregateInput,
    pub aggregates: Vec<RangeAggregate<Expr>>,
    /// The thresholds that these compare values with, over the probe side, without duplicates.
    pub thresholds: Vec<Expr>,
    /// The order statistics of groups, which are computed above the aggregates that merge others.
    pub statistics: Vec<GroupStatistic>,
}

/// The rows that are aggregated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AggregateInput {
    /// The rows of a join.
    Join(Unmatched),
    /// The rows of a join that meet a condition of the aggregate. A row of the probe side may have none of them.
    Narrowed,
    /// The rows of a correlated subquery.
    Subquery,
}

/// Which extreme a call of MIN or MAX is.
pub fn extreme_of(call: &AggregateFunction) -> Option<Extreme> {
    let inner = call.func.inner();
    if inner.is::<Min>() {
        return Some(Extreme::Min);
    }
    inner.is::<Max>().then_some(Extreme::Max)
}

/// Whether a call counts all rows, or those of `build` where a value is not NULL: `count(*)`, `count(p.id)`.
pub fn counts_rows(call: &AggregateFunction, build: &DFSchema) -> bool {
    is_row_count(call)
        || call.params.args.iter().all(|arg| is_of(arg, build)) && is_plain_count(call)
}

/// Whether a call counts all rows: `count(*)`.
pub fn is_row_count(call: &AggregateFunction) -> bool {
    let args = call.params.args.as_slice();
    matches!(args, [Expr::Literal(value, _)] if !value.is_null()) && is_plain_count(call)
}

fn is_plain_count(call: &AggregateFunction) -> bool {
    let params = &call.params;
    call.func.inner().is::<Count>()
        && params.args.len() == 1
        && params.filter.is_none()
        && !params.distinct
        && params.order_by.is_empty()
        && params.null_treatment != Some(NullTreatment::IgnoreNulls)
}

/// A decomposed aggregate, in terms of the range join's columns.
pub struct DecomposedAggregate {
    /// The value for one row of the probe side.
    pub row_value: Expr,
    /// Aggregates over the range join's rows of a group, each with an unused name.
    pub group_aggregates: Vec<Expr>,
    /// The value for the group, over the columns of these aggregates.
    pub group_value: Expr,
}

impl<'a> AggregateDecomposition<'a> {
    /// None decomposed yet, over the range key of `condition`.
    pub fn new(
        (probe, build): (&'a DFSchema, &'a DFSchema),
        condition: &'a Condition,
        input: AggregateInput,
        config: &'a dyn OptimizerConfig,
    ) -> Self {
        Self {
            config,
            probe,
            build,
            key: &condition.key,
            input,
            aggregates: vec![],
            thresholds: vec![],
            statistics: vec![],
        }
    }

    /// Decomposes an aggregate function over the joined rows.
    pub fn decompose(&mut self, call: &AggregateFunction) -> Match<DecomposedAggregate> {
        self.decompose_known(call)
            .or_else(|_| self.accumulate(call))
    }

    /// Whether accumulators compute all aggregates, each of which reads the rows of the ranges. Errors of their
    /// arguments do not count.
    pub fn only_accumulates(&self) -> bool {
        let is_error = |a: &&RangeAggregate<Expr>| a.arguments.iter().any(is_error);
        let mut aggregates = self.aggregates.iter().filter(|a| !is_error(a)).peekable();
        aggregates.peek().is_some() && aggregates.all(|a| a.function == AggregateKind::Accumulate)
    }

    /// Decomposes an aggregate that has an index, a prefix sum or the like.
    fn decompose_known(&mut self, call: &AggregateFunction) -> Match<DecomposedAggregate> {
        let inner = call.func.inner();
        let params = &call.params;
        for expr in params.args.iter().chain(params.filter.as_deref()) {
            check_repeats(expr)?;
        }
        if params.null_treatment == Some(NullTreatment::IgnoreNulls) {
            return reject(format!("{} has IGNORE NULLS", call.func.name()));
        }
        let extreme = extreme_of(call);
        // DISTINCT does not change an extreme.
        if params.distinct && extreme.is_none() {
            return reject(format!("{} has DISTINCT", call.func.name()));
        }
        if let (Some(_), [argument]) = (extreme, params.args.as_slice())
            && matches!(self.input, AggregateInput::Join(_))
            && is_of(argument, self.probe)
            && params.filter.as_ref().is_none_or(|f| is_of(f, self.probe))
        {
            // An extreme of the probe side's columns: the probe rows that match are all kept.
            let merge = Expr::AggregateFunction(call.clone());
            return Ok(self.decomposed(argument.clone(), merge));
        }
        let ordered = inner.is::<FirstValue>() || inner.is::<LastValue>();
        if !params.order_by.is_empty() && !ordered {
            return reject(format!("{} has ORDER BY", call.func.name()));
        }
        if let Some(counted) = self.conditional_count(call)? {
            return Ok(counted);
        }
        match params.args.as_slice() {
            [argument] if extreme.is_some() => self.extreme(call, extreme, argument),
            [argument] if inner.is::<Count>() => self.count(call, argument),
            [argument] if inner.is::<Sum>() => self.sum(call, argument),
            [argument] if inner.is::<Avg>() => self.average(call, argument),
            [argument] if ordered => self.first_or_last(call, argument),
            _ => reject(format!(
                "{} is none of the aggregates known",
                call.func.name()
            )),
        }
    }

    fn extreme(
        &mut self,
        call: &AggregateFunction,
        extreme: Option<Extreme>,
        argument: &Expr,
    ) -> Match<DecomposedAggregate> {
        let argument = self.filtered(argument, call)?;
        let data_type = argument.get_type(self.build)?;
        let Some(extreme) = extreme.filter(|_| is_ordered(&data_type)) else {
            return reject(format!(
                "{} is a {data_type}, which has no order",
                sql_text(&argument)
            ));
        };
        let data_type = value_type(&data_type);
        let udaf = if data_type.is_floating() {
            Arc::new(AggregateUDF::from(TotalOrderUdaf::new(extreme)))
        } else {
            Arc::clone(&call.func)
        };
        let found = self.add(AggregateKind::Extreme(extreme), vec![argument], data_type);
        Ok(self.decomposed(found.clone(), aggregate(udaf, found)))
    }

    fn count(&mut self, call: &AggregateFunction, argument: &Expr) -> Match<DecomposedAggregate> {
        if is_row_count(call) {
            let count = self.add(AggregateKind::CountRows, vec![], DataType::Int64);
            return self.counted_rows(count);
        }
        let argument = self.filtered(argument, call)?;
        self.check_joins(&argument.get_type(self.build)?)?;
        let count = self.add(AggregateKind::Count, vec![argument], DataType::Int64);
        self.counted(count.clone(), count)
    }

    /// Decomposes `count(*)`: `count` is the number of matching rows.
    pub fn counted_rows(&self, count: Expr) -> Match<DecomposedAggregate> {
        let merge = if self.input == AggregateInput::Join(Unmatched::Keep) {
            // Without a match, a left join returns one row.
            when(count.clone().eq(lit(0_i64)), lit(1_i64)).otherwise(count.clone())?
        } else {
            count.clone()
        };
        self.counted(count, merge)
    }

    /// Decomposes a count: `merge` is added up over a group.
    pub fn counted(&self, count: Expr, merge: Expr) -> Match<DecomposedAggregate> {
        let mut decomposed = self.decomposed(count, aggregate(sum_udaf(), merge));
        // The sum of no counts is NULL, but a count is 0. (`coalesce` would need another pass of DataFusion's
        // optimizer.)
        let sum = decomposed.group_value;
        decomposed.group_value = when(sum.clone().is_not_null(), sum).otherwise(lit(0_i64))?;
        Ok(decomposed)
    }

    fn sum(&mut self, call: &AggregateFunction, argument: &Expr) -> Match<DecomposedAggregate> {
        let argument = self.filtered(argument, call)?;
        let data_type = argument.get_type(self.build)?;
        if !Sums::supports(&data_type) {
            return reject(format!(
                "a range join has no sum of {}, a {data_type}",
                sql_text(&argument)
            ));
        }
        // DataFusion's sum of decimals has more digits than its argument, and so has its sum of these sums: both wrap
        // around alike. Sums of floats are rounded once per probe row, and again by DataFusion if a group has several.
        let sum = self.add(AggregateKind::Sum, vec![argument], data_type);
        Ok(self.decomposed(sum.clone(), aggregate(Arc::clone(&call.func), sum)))
    }

    /// Whether an expression compares as the range key does, which may have been cast for the comparison.
    pub fn compares_as_range_key(&self, by: &Expr) -> Result<bool> {
        let by_type = by.get_type(self.build)?;
        Ok(
            without_lossless_casts(self.key, self.build)?
                == without_lossless_casts(by, self.build)?
                && widens(&by_type, &self.key.get_type(self.build)?),
        )
    }

    /// The number of matching rows.
    pub fn count_rows(&mut self) -> Expr {
        self.add(AggregateKind::CountRows, vec![], DataType::Int64)
    }

    /// Adds an aggregate over the matching rows, unless it is there already, and returns its value: its column, or an
    /// error that an argument has in one of these rows.
    pub fn add(
        &mut self,
        function: AggregateKind,
        arguments: Vec<Expr>,
        data_type: DataType,
    ) -> Expr {
        self.add_aggregate(function, arguments, data_type, None)
    }

    /// As [`Self::add`], an aggregate that an accumulator computes.
    pub fn add_call(
        &mut self,
        call: Arc<AccumulatorCall>,
        arguments: Vec<Expr>,
        data_type: DataType,
    ) -> Expr {
        self.add_aggregate(AggregateKind::Accumulate, arguments, data_type, Some(call))
    }

    fn add_aggregate(
        &mut self,
        function: AggregateKind,
        arguments: Vec<Expr>,
        data_type: DataType,
        call: Option<Arc<AccumulatorCall>>,
    ) -> Expr {
        let errors: Vec<Expr> = arguments.iter().filter_map(error_or_null).collect();
        let least = AggregateKind::Extreme(Extreme::Min);
        let errors = errors
            .into_iter()
            .map(|error| self.add_column(least, vec![error], DataType::Utf8, None));
        let errors: Vec<Expr> = errors.collect();
        let column = self.add_column(function, arguments, data_type, call);
        errors
            .into_iter()
            .fold(column, |value, error| RaiseUdf::call(error, value))
    }

    fn add_column(
        &mut self,
        function: AggregateKind,
        arguments: Vec<Expr>,
        data_type: DataType,
        call: Option<Arc<AccumulatorCall>>,
    ) -> Expr {
        let known = self
            .aggregates
            .iter()
            .filter(|_| function != AggregateKind::Accumulate)
            .find(|a| a.function == function && a.arguments == arguments);
        let output = match known {
            Some(known) => known.output.clone(),
            None => {
                let mut aggregate = RangeAggregate {
                    function,
                    arguments,
                    output: String::new(),
                    data_type,
                    call,
                };
                aggregate.output = unused_name(self.config, self.probe, &aggregate);
                let output = aggregate.output.clone();
                self.aggregates.push(aggregate);
                output
            }
        };
        Expr::Column(Column::new_unqualified(output))
    }

    /// An aggregate that one column of the range join and one aggregate over it compute.
    pub fn decomposed(&self, row_value: Expr, aggregate: Expr) -> DecomposedAggregate {
        let columns = row_value.column_refs();
        let of_rows = columns.iter().find(|column| is_unused_name(&column.name));
        let described = of_rows.map_or("aggregate", |column| description(&column.name));
        let name = unused_name(self.config, self.probe, described);
        DecomposedAggregate {
            row_value,
            group_aggregates: vec![aggregate.alias(&name)],
            group_value: Expr::Column(Column::new_unqualified(name)),
        }
    }
}

/// The call of an aggregate function with one argument.
pub fn aggregate(udaf: Arc<AggregateUDF>, argument: Expr) -> Expr {
    Expr::AggregateFunction(AggregateFunction {
        func: udaf,
        params: AggregateFunctionParams {
            args: vec![argument],
            distinct: false,
            filter: None,
            order_by: vec![],
            null_treatment: None,
        },
    })
}
