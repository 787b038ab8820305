//! Aggregates whose value over a group of one row stands in that row.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::Result;
use datafusion::common::utils::normalize_float_zero;
use datafusion::functions_aggregate::first_last::{FirstValue, LastValue};
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::functions_aggregate::sum::Sum;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{Column, binary, cast, lit};
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::common::ordered_type::{is_ordered, value_type};
use crate::exec::unique_groups::ascending::can_ascend;
use crate::expr::total_order::TotalOrderUdaf;

/// What an aggregate gives where each row is a group.
#[derive(Debug)]
pub(crate) struct GroupsOfOne {
    /// The rows.
    pub(crate) input: Arc<dyn ExecutionPlan>,
    /// The columns of the rows that are grouped by and that can tell groups apart.
    pub(crate) keys: Vec<usize>,
    /// The groups' columns, in those of the rows.
    pub(crate) values: Vec<PhysicalExprRef>,
    /// How many of them are what is grouped by; the aggregates come after these.
    grouped_by: usize,
    /// The groups' schema.
    pub(crate) schema: SchemaRef,
}

impl GroupsOfOne {
    /// What `plan` gives, if it is an aggregate of this kind, in whatever number of steps.
    pub(crate) fn of(plan: &Arc<dyn ExecutionPlan>) -> Option<Self> {
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
            let place = group.downcast_ref::<Column>()?.index();
            can_ascend(rows.fields().get(place)?.data_type()).then_some(place)
        });
        let keys: Vec<usize> = keys.collect();
        let mut values = groups.input_exprs();
        let grouped_by = values.len();
        for aggregate in first.aggr_expr() {
            values.push(value_of_one(aggregate, &rows)?);
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

    /// The rows of a batch as groups.
    pub(crate) fn groups(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let rows = batch.num_rows();
        let columns = self.values.iter();
        let columns = columns.map(|value| value.evaluate(batch)?.into_array(rows));
        let mut columns: Vec<ArrayRef> = columns.collect::<Result<_>>()?;
        // Zeros of both signs are one group, and DataFusion gives that as the positive one.
        for column in &mut columns[..self.grouped_by] {
            *column = normalize_float_zero(column);
        }
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
    }
}

/// The step of an aggregate that reads the rows.
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

/// What an aggregate makes of a group of one row.
fn value_of_one(aggregate: &AggregateFunctionExpr, rows: &Schema) -> Option<PhysicalExprRef> {
    use DataType as T;
    let [value] = <[_; 1]>::try_from(aggregate.expressions()).ok()?;
    let data_type = value.data_type(rows).ok()?;
    let function = aggregate.fun().inner();
    if function.is::<Sum>() {
        let sum = aggregate.field();
        return match (&data_type, sum.data_type()) {
            // Of the same value with more digits.
            (T::Decimal128(digits, scale), T::Decimal128(more, same))
            | (T::Decimal256(digits, scale), T::Decimal256(more, same))
                if digits < more && scale == same =>
            {
                cast(value, rows, sum.data_type().clone()).ok()
            }
            // The sum of a negative zero and nothing is zero.
            (T::Float64, _) => binary(value, Operator::Plus, lit(0.0_f64), rows).ok(),
            _ => (!data_type.is_floating()).then_some(value),
        };
    }
    // In DataFusion's MIN and MAX of floats, infinity is none where there are groups.
    let is_one = ((function.is::<Min>() || function.is::<Max>())
        && is_ordered(&data_type)
        && !value_type(&data_type).is_floating())
        || function.is::<TotalOrderUdaf>()
        || ((function.is::<FirstValue>() || function.is::<LastValue>())
            && !aggregate.ignore_nulls());
    is_one.then_some(value)
}
