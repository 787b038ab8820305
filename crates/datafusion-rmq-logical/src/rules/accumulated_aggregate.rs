//! Leaves aggregates that have no index, prefix sum or the like to the accumulators of their functions.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion_common::{Column, Result};
use datafusion_expr::expr::{AggregateFunction, AggregateFunctionParams, NullTreatment};
use datafusion_expr::{AggregateUDF, Expr, ExprSchemable, when};
use datafusion_functions_aggregate::approx_distinct::ApproxDistinct;
use datafusion_functions_aggregate::approx_median::ApproxMedian;
use datafusion_functions_aggregate::approx_percentile_cont::ApproxPercentileCont;
use datafusion_functions_aggregate::array_agg::array_agg_udaf;
use datafusion_functions_aggregate::average::Avg;
use datafusion_functions_aggregate::first_last::{FirstValue, LastValue};
use datafusion_functions_aggregate::nth_value::NthValueAgg;

use crate::common::options::RmqOptions;
use crate::common::sql_text::sql_text;
use crate::conditions::infallible::is_infallible;
use crate::conditions::rejection::{Match, reject};
use crate::expr::decimal_average::decimal_digits;
use crate::expr::order_statistic::order_statistic_of;
use crate::logical_plan::accumulator_call::{AccumulatorCall, AccumulatorOrder, AccumulatorOutput};
use crate::logical_plan::group_statistics::GroupStatistic;
use crate::logical_plan::range_join::{RangeAggregate, Unmatched};
use crate::rules::aggregate_decomposition::{
    AggregateDecomposition, AggregateInput, DecomposedAggregate, aggregate,
};
use crate::rules::common::constant::constant;
use crate::rules::common::names::unused_name;
use crate::rules::condition_parts::check_repeats;
use crate::rules::merge_states::MergeStatesUdaf;
use rmq_arrow::common::dictionaries::has_few_keys;

impl AggregateDecomposition<'_> {
    /// Leaves an aggregate to the accumulator of its function, which sees the rows of each range.
    pub fn accumulate(&mut self, call: &AggregateFunction) -> Match<DecomposedAggregate> {
        self.check_sides(call)?;
        let text = Expr::AggregateFunction(call.clone()).to_string();
        let call = &self.without_filter(call)?;
        let params = &call.params;
        let (mut arguments, mut literals, mut order_by) = (vec![], vec![], vec![]);
        // An argument is evaluated only where FILTER holds, in case that it fails elsewhere.
        let filtered = |expr: &Expr| -> Result<Expr> {
            match &params.filter {
                Some(filter) if !is_infallible(expr, self.build)? => {
                    when(filter.as_ref().clone(), expr.clone()).end()
                }
                _ => Ok(expr.clone()),
            }
        };
        for argument in &params.args {
            check_repeats(argument)?;
            let literal = constant(argument)?;
            if literal.is_none() {
                arguments.push(self.accumulated(&filtered(argument)?)?);
            }
            literals.push(literal);
        }
        for argument in &arguments {
            let scale = decimal_digits(&argument.get_type(self.build)?);
            if call.func.inner().is::<Avg>() && scale.is_some_and(|(_, scale)| scale < 0) {
                return reject("DataFusion has no average of decimals of negative scale");
            }
        }
        if literals.is_empty() {
            return reject(format!("{} has no arguments", call.func.name()));
        }
        let expr = Expr::AggregateFunction(call.clone());
        let refuse = |what: &str| reject(format!("{} {what}", sql_text(&expr)));
        for sort in &params.order_by {
            let by = self.accumulated(&filtered(&sort.expr)?)?;
            let argument = arguments.iter().position(|argument| *argument == by);
            let argument = argument.unwrap_or_else(|| {
                arguments.push(by);
                arguments.len() - 1
            });
            order_by.push(AccumulatorOrder {
                argument,
                ascending: sort.asc,
                nulls_first: sort.nulls_first,
            });
        }
        if let Some(filter) = &params.filter {
            arguments.push(self.accumulated(filter)?);
        }
        let data_type = expr.get_type(self.build)?;
        self.check_joins(&data_type)?;
        if has_few_keys(&data_type) {
            return refuse(&format!("is a {data_type}, which has few keys"));
        }
        let types = arguments
            .iter()
            .map(|argument| argument.get_type(self.build));
        let types = types.collect::<Result<Vec<_>>>()?;
        let mut accumulator = AccumulatorCall {
            function: Arc::clone(&call.func),
            literals,
            order_by,
            is_filtered: params.filter.is_some(),
            is_distinct: params.distinct,
            ignores_nulls: params.null_treatment == Some(NullTreatment::IgnoreNulls),
            output: AccumulatorOutput::Value,
            text,
        };
        // What the function refuses is refused here.
        let function = accumulator.physical(&types)?;
        let mut first = function.create_accumulator()?;
        if function.field().data_type() != &data_type {
            return refuse("has another type when it is executed");
        }
        let unmatched = match self.input {
            AggregateInput::Join(unmatched) => unmatched,
            AggregateInput::Narrowed => Unmatched::Drop,
            AggregateInput::Subquery => {
                let column = self.add_call(Arc::new(accumulator), arguments, data_type);
                return Ok(self.decomposed(column.clone(), column));
            }
        };
        // The operator above GROUP BY must be in the same process as the range join.
        let is_shared = RmqOptions::of(&self.config.options()).shares_build_sides();
        let statistic = accumulator
            .order_statistic()
            .filter(|of| of.is_known_for(&types[0]));
        if is_shared && statistic.is_some() {
            return Ok(self.statistic_of_groups(accumulator, arguments, types));
        }
        accumulator.output = AccumulatorOutput::State;
        let accumulator = Arc::new(accumulator);
        let state = first.state()?;
        if let Some(reason) = accumulator.why_no_state(&types, &state)? {
            return refuse(reason);
        }
        let state_type = accumulator.state_type(&types)?;
        let merge = MergeStatesUdaf::try_new(&accumulator, types, unmatched)?;
        let column = self.add_call(accumulator, arguments, state_type);
        let merge = Arc::new(AggregateUDF::from(merge));
        Ok(self.decomposed(column.clone(), aggregate(merge, column)))
    }

    /// An order statistic of the ranges that a group has.
    fn statistic_of_groups(
        &mut self,
        mut call: AccumulatorCall,
        arguments: Vec<Expr>,
        types: Vec<DataType>,
    ) -> DecomposedAggregate {
        let output = unused_name(self.config, self.probe, &call.text);
        call.output = AccumulatorOutput::Range;
        let call = Arc::new(call);
        let range_type = AccumulatorCall::range_type();
        let range = self.add_call(Arc::clone(&call), arguments, range_type);
        let mut decomposed = self.decomposed(range.clone(), aggregate(array_agg_udaf(), range));
        if let Expr::Column(ranges) = &decomposed.group_value {
            let (ranges, output) = (ranges.name.clone(), output.clone());
            self.statistics.push(GroupStatistic {
                ranges,
                output,
                call,
                types,
            });
        }
        decomposed.group_value = Expr::Column(Column::new_unqualified(output));
        decomposed
    }

    /// An order statistic without FILTER, which leaves NULLs out as well: `CASE WHEN … THEN x END` instead of `x`.
    fn without_filter(&self, call: &AggregateFunction) -> Result<AggregateFunction> {
        let mut call = call.clone();
        let AggregateFunctionParams {
            args,
            filter,
            order_by,
            distinct,
            ..
        } = &mut call.params;
        let (Some(condition), Some((value, rest))) = (filter.as_ref(), args.split_first()) else {
            return Ok(call);
        };
        let percentile = match rest {
            [] => None,
            [percentile] => constant(percentile)?,
            _ => return Ok(call),
        };
        let of_function = order_statistic_of(&call.func, *distinct, percentile.as_ref(), false);
        let value_type = value.get_type(self.build)?;
        let is_known = of_function.is_some_and(|of| of.is_known_for(&value_type));
        if !is_known || constant(value)?.is_some() {
            return Ok(call);
        }
        let value = value.clone();
        let filtered = when(condition.as_ref().clone(), value.clone()).end()?;
        for sort in order_by.iter_mut().filter(|sort| sort.expr == value) {
            sort.expr = filtered.clone();
        }
        args[0] = filtered;
        *filter = None;
        Ok(call)
    }

    /// Checks an argument of an accumulator.
    fn accumulated(&self, argument: &Expr) -> Match<Expr> {
        check_repeats(argument)?;
        let data_type = argument.get_type(self.build)?;
        self.check_joins(&data_type)?;
        if has_few_keys(&data_type) {
            return reject(format!(
                "{} is a {data_type}, which has few keys",
                sql_text(argument)
            ));
        }
        self.checked(argument.clone())
    }
}

/// Whether what an accumulator returns, its state or a range of rows, takes the same few bytes for any number of rows,
/// in any order.
pub fn has_small_states(aggregate: &RangeAggregate<Expr>) -> bool {
    if aggregate.is_range() {
        return true;
    }
    let (DataType::Struct(fields), Some(call)) = (&aggregate.data_type, &aggregate.call) else {
        return false;
    };
    let function = call.function.inner();
    if function.is::<ApproxDistinct>()
        || function.is::<ApproxMedian>()
        || function.is::<ApproxPercentileCont>()
    {
        return true;
    }
    let is_of_a_row = !call.order_by.is_empty()
        || function.is::<FirstValue>()
        || function.is::<LastValue>()
        || function.is::<NthValueAgg>();
    let has_width =
        |data_type: &DataType| data_type.is_primitive() || *data_type == DataType::Boolean;
    !is_of_a_row && fields.iter().all(|field| has_width(field.data_type()))
}
