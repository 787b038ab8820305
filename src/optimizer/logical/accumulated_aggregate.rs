//! Leaves aggregates that have no index, prefix sum or the like to the accumulators of their functions.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_aggregate::approx_distinct::ApproxDistinct;
use datafusion::functions_aggregate::approx_median::ApproxMedian;
use datafusion::functions_aggregate::approx_percentile_cont::ApproxPercentileCont;
use datafusion::functions_aggregate::average::Avg;
use datafusion::functions_aggregate::first_last::{FirstValue, LastValue};
use datafusion::functions_aggregate::nth_value::NthValueAgg;
use datafusion::logical_expr::expr::{AggregateFunction, NullTreatment};
use datafusion::logical_expr::{AggregateUDF, Expr, ExprSchemable, when};

use crate::common::dictionaries::has_few_keys;
use crate::common::sql_text::sql_text;
use crate::expr::decimal_average::decimal_digits;
use crate::logical_plan::accumulator_call::{AccumulatorCall, AccumulatorOrder};
use crate::logical_plan::range_join::{RangeAggregate, Unmatched};
use crate::optimizer::infallible::is_infallible;
use crate::optimizer::logical::aggregate_decomposition::{
    AggregateDecomposition, AggregateInput, DecomposedAggregate, aggregate,
};
use crate::optimizer::logical::common::constant::constant;
use crate::optimizer::logical::condition_parts::check_repeats;
use crate::optimizer::logical::merge_states::MergeStatesUdaf;
use crate::optimizer::rejection::{Match, reject};

impl AggregateDecomposition<'_> {
    /// Leaves an aggregate to the accumulator of its function, which sees the rows of each range.
    pub(crate) fn accumulate(&mut self, call: &AggregateFunction) -> Match<DecomposedAggregate> {
        let params = &call.params;
        self.check_sides(call)?;
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
        let accumulator = Arc::new(AccumulatorCall {
            function: Arc::clone(&call.func),
            literals,
            order_by,
            is_filtered: params.filter.is_some(),
            is_distinct: params.distinct,
            ignores_nulls: params.null_treatment == Some(NullTreatment::IgnoreNulls),
            returns_state: self.input != AggregateInput::Subquery,
            text: expr.to_string(),
        });
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
                let column = self.add_call(accumulator, arguments, data_type);
                return Ok(self.decomposed(column.clone(), column));
            }
        };
        let state_type = accumulator.state_type(&types)?;
        let DataType::Struct(fields) = &state_type else {
            return refuse("has no state");
        };
        let state = first.state()?;
        if !state
            .iter()
            .map(ScalarValue::data_type)
            .eq(fields.iter().map(|field| field.data_type().clone()))
        {
            return refuse("has another state than it says");
        }
        let merge = MergeStatesUdaf::try_new(&accumulator, types, unmatched)?;
        let column = self.add_call(accumulator, arguments, state_type);
        let merge = Arc::new(AggregateUDF::from(merge));
        Ok(self.decomposed(column.clone(), aggregate(merge, column)))
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

/// Whether the states that an accumulator returns take the same few bytes for any number of rows, in any order.
pub(crate) fn has_small_states(aggregate: &RangeAggregate<Expr>) -> bool {
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
