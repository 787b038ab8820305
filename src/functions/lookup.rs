//! A range function that is evaluated as an expression, of an index that an operator below has made ready. It serves the one
//! place where a call can't become a column of an input: the ON of an outer join, with bounds from both sides.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::new_empty_array;
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err, internal_datafusion_err, internal_err};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};

use super::RangeFunction;
use super::bounds::Ranges;
use crate::index::ReadyIndex;

/// Where the operator puts the index and the expression finds it. Two slots are equal if they are one.
#[derive(Debug, Clone, Default)]
pub struct IndexSlot(Arc<Mutex<Option<ReadyIndex>>>);

impl IndexSlot {
    pub(crate) fn put(&self, index: ReadyIndex) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(index);
    }

    fn get(&self) -> Option<ReadyIndex> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl PartialEq for IndexSlot {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for IndexSlot {}

impl Hash for IndexSlot {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

/// A range function of two arguments, the bounds.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct LookupUdf {
    function: RangeFunction,
    data_type: DataType,
    slot: IndexSlot,
    signature: Signature,
}

impl LookupUdf {
    /// Volatile, so that nothing evaluates it before the index is there: no folding, no moving to another operator.
    pub(crate) fn new(function: RangeFunction, data_type: DataType, slot: IndexSlot) -> Self {
        Self {
            function,
            data_type,
            slot,
            signature: Signature::any(2, Volatility::Volatile),
        }
    }

    pub(crate) fn slot(&self) -> &IndexSlot {
        &self.slot
    }

    /// The same function of the index in another slot.
    pub(crate) fn with_slot(&self, slot: IndexSlot) -> Self {
        Self::new(self.function, self.data_type.clone(), slot)
    }
}

impl ScalarUDFImpl for LookupUdf {
    fn name(&self) -> &str {
        self.function.range_name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(self.data_type.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let name = self.name();
        if args.number_rows == 0 {
            return Ok(ColumnarValue::Array(new_empty_array(&self.data_type)));
        }
        let Some(ready) = self.slot.get() else {
            return exec_err!("{name}: the operator that makes its index ready has not run");
        };
        let position = self.function.position;
        if self.function.result_type(ready.held.index.value_type()) != self.data_type {
            return exec_err!(
                "{name}: the column's type changed since the query was planned; run the query again"
            );
        }
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let [left, right] = arrays.as_slice() else {
            return internal_err!("{name} has two bounds, not {}", arrays.len());
        };
        let answer = ready.answer(&[Ranges::try_new(left, right)?], !position, position)?;
        let array = if position {
            answer.positions
        } else {
            answer.values
        };
        let array = array.ok_or_else(|| internal_datafusion_err!("{name} has no answer"))?;
        if array.len() == args.number_rows {
            return Ok(ColumnarValue::Array(array));
        }
        // Both bounds are constant: one answer serves all rows.
        let one = datafusion::common::ScalarValue::try_from_array(&array, 0)?;
        Ok(ColumnarValue::Scalar(one))
    }
}
