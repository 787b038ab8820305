//! The states of accumulators as columns, one row for each state.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, StructArray, new_empty_array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Fields};
use datafusion_common::{Result, ScalarValue, exec_err};
use datafusion_expr::Accumulator;
use datafusion_functions_aggregate::approx_distinct::ApproxDistinct;
use datafusion_functions_aggregate::bit_and_or_xor::{bit_and_udaf, bit_or_udaf, bit_xor_udaf};
use datafusion_functions_aggregate::bool_and_or::{BoolAnd, BoolOr};
use datafusion_functions_aggregate::correlation::Correlation;
use datafusion_functions_aggregate::stddev::{Stddev, StddevPop};
use datafusion_functions_aggregate::variance::{VariancePopulation, VarianceSample};
use datafusion_physical_expr::aggregate::AggregateFunctionExpr;

/// A function with the fields of its states.
#[derive(Debug)]
pub struct StateFunction {
    /// The function, over columns.
    pub function: AggregateFunctionExpr,
    fields: Fields,
    /// Whether accumulators merge several states at once.
    merges_several: bool,
}

impl StateFunction {
    /// The fields are named by their number.
    ///
    /// # Errors
    /// Those of the function.
    pub fn try_new(function: AggregateFunctionExpr) -> Result<Self> {
        let fields = function.state_fields()?;
        let fields = fields
            .iter()
            .enumerate()
            .map(|(i, field)| Field::new(i.to_string(), field.data_type().clone(), true));
        let fields = fields.collect();
        Ok(Self {
            merges_several: merges_several(&function),
            function,
            fields,
        })
    }

    /// The fields of a state.
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// The type of a state: a struct.
    pub fn state_type(&self) -> DataType {
        DataType::Struct(self.fields.clone())
    }

    /// Shows an accumulator states, field by field, in their order.
    ///
    /// # Errors
    /// The accumulator's.
    pub fn merge(&self, accumulator: &mut dyn Accumulator, states: &[ArrayRef]) -> Result<()> {
        if self.merges_several {
            return accumulator.merge_batch(states);
        }
        for row in 0..states.first().map_or(0, Array::len) {
            let state = states.iter().map(|field| field.slice(row, 1));
            accumulator.merge_batch(&state.collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// A column without rows.
    pub fn column(&self, capacity: usize) -> StateColumn<'_> {
        StateColumn {
            function: self,
            columns: vec![Vec::with_capacity(capacity); self.fields.len()],
            valid: Vec::with_capacity(capacity),
            bytes: 0,
        }
    }
}

/// Whether an accumulator of the function can be shown several states at once. Where a function has another kind of
/// accumulators for groups, DataFusion shows this one a state at a time, and some take the first of several
/// (`percentile_cont`).
fn merges_several(function: &AggregateFunctionExpr) -> bool {
    let (function, is_grouped) = (function.fun(), function.groups_accumulator_supported());
    let inner = function.inner();
    !is_grouped
        || inner.is::<VarianceSample>()
        || inner.is::<VariancePopulation>()
        || inner.is::<Stddev>()
        || inner.is::<StddevPop>()
        || inner.is::<Correlation>()
        || inner.is::<BoolAnd>()
        || inner.is::<BoolOr>()
        || inner.is::<ApproxDistinct>()
        || [bit_and_udaf(), bit_or_udaf(), bit_xor_udaf()]
            .iter()
            .any(|bits| **bits == *function)
}

/// States that are collected.
pub struct StateColumn<'a> {
    function: &'a StateFunction,
    columns: Vec<Vec<ScalarValue>>,
    valid: Vec<bool>,
    bytes: usize,
}

impl StateColumn<'_> {
    /// Appends a state, or NULL.
    pub fn push(&mut self, state: Option<&[ScalarValue]>) -> Result<()> {
        if state.is_some_and(|state| state.len() != self.columns.len()) {
            return exec_err!(
                "{} has another state than it says",
                self.function.function.name()
            );
        }
        self.valid.push(state.is_some());
        let fields = &self.function.fields;
        for (i, (column, field)) in self.columns.iter_mut().zip(fields).enumerate() {
            let value = match state {
                Some(state) => state[i].clone(),
                None => ScalarValue::try_from(field.data_type())?,
            };
            self.bytes += value.size();
            column.push(value);
        }
        Ok(())
    }

    /// About how many bytes the states take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The array of all states.
    pub fn finish(self) -> Result<ArrayRef> {
        let StateFunction {
            function, fields, ..
        } = self.function;
        let columns = self.columns.into_iter().zip(fields).map(|(values, field)| {
            let expected = field.data_type();
            if values.is_empty() {
                return Ok(new_empty_array(expected));
            }
            let column = ScalarValue::iter_to_array(values)?;
            if column.data_type() != expected {
                let (name, found) = (function.name(), column.data_type());
                return exec_err!("the state of {name} has a {found} instead of a {expected}");
            }
            Ok(column)
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let (rows, valid) = (self.valid.len(), NullBuffer::from(self.valid));
        let states = StructArray::try_new_with_length(fields.clone(), columns, Some(valid), rows)?;
        Ok(Arc::new(states))
    }
}
