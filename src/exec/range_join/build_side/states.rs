//! The states of accumulators as a column, one struct per row.

use std::sync::Arc;

use arrow::array::{ArrayRef, StructArray, new_empty_array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Fields};
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;

use crate::logical_plan::accumulator_call::AccumulatorCall;

/// A function with the fields of its states.
#[derive(Debug)]
pub(crate) struct StateFunction {
    pub(crate) function: AggregateFunctionExpr,
    fields: Fields,
}

impl StateFunction {
    /// The function of `call` over columns of these types.
    pub(crate) fn try_new(call: &AccumulatorCall, types: &[DataType]) -> Result<Self> {
        let function = call.physical(types)?;
        match call.state_type(types)? {
            DataType::Struct(fields) => Ok(Self { function, fields }),
            other => exec_err!("the state of {} is a {other}", call.text),
        }
    }

    /// A column without rows.
    pub(crate) fn column(&self, capacity: usize) -> StateColumn<'_> {
        StateColumn {
            function: self,
            columns: vec![Vec::with_capacity(capacity); self.fields.len()],
            valid: Vec::with_capacity(capacity),
            bytes: 0,
        }
    }
}

/// States that are collected.
pub(crate) struct StateColumn<'a> {
    function: &'a StateFunction,
    columns: Vec<Vec<ScalarValue>>,
    valid: Vec<bool>,
    bytes: usize,
}

impl StateColumn<'_> {
    /// Appends a state, or NULL.
    pub(crate) fn push(&mut self, state: Option<&[ScalarValue]>) -> Result<()> {
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
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The array of all states.
    pub(crate) fn finish(self) -> Result<ArrayRef> {
        let StateFunction { function, fields } = self.function;
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
