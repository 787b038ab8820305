//! Aggregates whose value for a group of one row is an expression over that row.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::utils::normalize_float_zero;
use datafusion::functions_aggregate::array_agg::ArrayAgg;
use datafusion::functions_aggregate::first_last::{FirstValue, LastValue};
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::functions_aggregate::sum::Sum;
use datafusion::functions_nested::make_array::make_array_udf;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{Column, binary, cast, lit};
use datafusion::physical_expr::{PhysicalExprRef, ScalarFunctionExpr};
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::exec::unique_groups::ascending::can_ascend;
use datafusion_rmq_logical::expr::total_order::TotalOrderUdaf;
use rmq_arrow::common::ordered_type::{is_ordered, value_type};

/// The output of an aggregate whose groups are single rows.
#[derive(Debug)]
pub(crate) struct SingletonGroups {
    /// The aggregate's input.
    pub(crate) input: Arc<dyn ExecutionPlan>,
    /// Indexes of the input columns that are grouped by and whose values can be checked for duplicates.
    pub(crate) keys: Vec<usize>,
    /// The output columns as expressions over the input, grouping columns first.
    pub(crate) values: Vec<PhysicalExprRef>,
    /// The number of grouping columns.
    grouped_by: usize,
    /// The output schema.
    pub(crate) schema: SchemaRef,
}

impl SingletonGroups {
    /// Matches an aggregate in one step, or in two (partial and final).
    pub(crate) fn match_aggregate(plan: &Arc<dyn ExecutionPlan>) -> Option<Self> {
        let last = plan.downcast_ref::<AggregateExec>()?;
        let first = first_step(last)?;
        let is_limited = last.limit_options().or(first.limit_options()).is_some();
        let is_filtered = first.filter_expr().iter().any(Option::is_some);
        let groups = first.group_expr();
        if is_limited || is_filtered || !groups.is_single() || groups.is_true_no_grouping() {
            return None;
        }
        let (input, schema) = (first.input(), plan.schema());
        if input.boundedness().is_unbounded() {
            return None;
        }
        let rows = input.schema();
        let keys = groups.expr().iter().filter_map(|(group, _)| {
            let column = group.downcast_ref::<Column>()?.index();
            can_ascend(rows.fields().get(column)?.data_type()).then_some(column)
        });
        let keys: Vec<usize> = keys.collect();
        let mut values = groups.input_exprs();
        let grouped_by = values.len();
        for aggregate in first.aggr_expr() {
            values.push(value_of_singleton(aggregate, &rows)?);
        }
        let types = values.iter().map(|value| value.data_type(&rows).ok());
        let same = types.eq(schema.fields().iter().map(|f| Some(f.data_type().clone())));
        (same && !keys.is_empty()).then(|| Self {
            input: Arc::clone(input),
            keys,
            values,
            grouped_by,
            schema,
        })
    }

    /// Projects the rows of an input batch to the output.
    pub(crate) fn groups(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let rows = batch.num_rows();
        let columns = self.values.iter();
        let columns = columns.map(|value| value.evaluate(batch)?.into_array(rows));
        let mut columns: Vec<ArrayRef> = columns.collect::<Result<_>>()?;
        // Zeros of both signs are one group, which DataFusion returns as positive zero.
        for column in &mut columns[..self.grouped_by] {
            *column = normalize_float_zero(column);
        }
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
    }
}

/// The step of an aggregate that reads the input.
fn first_step(last: &AggregateExec) -> Option<&AggregateExec> {
    match last.mode() {
        AggregateMode::Single | AggregateMode::SinglePartitioned => Some(last),
        AggregateMode::Final | AggregateMode::FinalPartitioned => {
            let mut below = last.input();
            loop {
                if let Some(first) = below.downcast_ref::<AggregateExec>() {
                    return (first.mode() == &AggregateMode::Partial).then_some(first);
                }
                let exchanges = below.is::<RepartitionExec>()
                    || (below.is::<CoalescePartitionsExec>() && below.fetch().is_none());
                below = below.children().first().copied().filter(|_| exchanges)?;
            }
        }
        AggregateMode::Partial | AggregateMode::PartialReduce => None,
    }
}

/// An aggregate's value for a group of one row, as an expression over that row.
fn value_of_singleton(aggregate: &AggregateFunctionExpr, rows: &Schema) -> Option<PhysicalExprRef> {
    use DataType as T;
    let [value] = <[_; 1]>::try_from(aggregate.expressions()).ok()?;
    let data_type = value.data_type(rows).ok()?;
    let function = aggregate.fun().inner();
    if function.is::<Sum>() {
        let sum = aggregate.field();
        return match (&data_type, sum.data_type()) {
            // The same value with more digits.
            (T::Decimal128(digits, scale), T::Decimal128(more, same))
            | (T::Decimal256(digits, scale), T::Decimal256(more, same))
                if digits < more && scale == same =>
            {
                cast(value, rows, sum.data_type().clone()).ok()
            }
            // The sum of one negative zero is positive zero.
            (T::Float64, _) => binary(value, Operator::Plus, lit(0.0_f64), rows).ok(),
            _ => (!data_type.is_floating()).then_some(value),
        };
    }
    // DataFusion's grouped MIN and MAX of floats do not return infinities, so floats are left to it.
    if function.is::<ArrayAgg>() {
        let is_plain = aggregate.order_bys().is_empty()
            && !aggregate.is_distinct()
            && !aggregate.ignore_nulls();
        let arguments = vec![value];
        let list = is_plain.then(|| {
            let options = Arc::new(ConfigOptions::default());
            ScalarFunctionExpr::try_new(make_array_udf(), arguments, rows, options)
        });
        return Some(Arc::new(list?.ok()?));
    }
    let is_one = ((function.is::<Min>() || function.is::<Max>())
        && is_ordered(&data_type)
        && !value_type(&data_type).is_floating())
        || function.is::<TotalOrderUdaf>()
        || ((function.is::<FirstValue>() || function.is::<LastValue>())
            && !aggregate.ignore_nulls());
    is_one.then_some(value)
}
