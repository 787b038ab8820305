//! A range function that is evaluated as an expression, of an index that an operator below has prepared. It is needed
//! where a call can't become a column of an input: in the ON of an outer join, with bounds from both sides.
//!
//! The expression belongs to the plan, and several runs of the plan at once each have an index of their own. An
//! expression does not see the task context, which identifies a run for operators. So the operator appends the id of
//! the run to its rows, and the expression takes it as an argument.

use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use arrow::array::{ArrayRef, AsArray, DictionaryArray, Int8Array, UInt64Array, new_empty_array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, UInt64Type};
use datafusion_common::{Result, exec_err, internal_datafusion_err, internal_err};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility};

use crate::common::unique_id::unique_id;
use rmq_arrow::common::range_function::RangeFunction;
use rmq_arrow::index::key_index::Answer;

/// The id of a run of a plan, as a column, unique among those of all processes that execute parts of the plan. The rows
/// of the run share its memory, whose reference count tells whether the run has ended.
#[derive(Debug, Clone)]
pub struct RunId(UInt64Array);

impl Default for RunId {
    /// A new id.
    fn default() -> Self {
        Self(vec![unique_id()].into())
    }
}

impl RunId {
    /// The type of a column of run ids: a dictionary, whose values are shared when rows are copied.
    pub fn data_type() -> DataType {
        DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::UInt64))
    }

    /// A column of `rows` rows with this id.
    pub fn column(&self, rows: usize) -> Result<ArrayRef> {
        let keys = Int8Array::from(vec![0; rows]);
        let values = Arc::new(self.0.clone());
        Ok(Arc::new(DictionaryArray::try_new(keys, values)?))
    }

    /// The number of references: of batches, slots and operators.
    fn references(&self) -> usize {
        self.0.values().inner().strong_count()
    }
}

/// An index that an operator has made ready for a run.
pub trait RunIndex: Debug + Send + Sync {
    /// The type of the column's values.
    fn value_type(&self) -> &DataType;

    /// Answers calls of a range function under this name: one for each row of the arrays of its arguments.
    ///
    /// # Errors
    /// Those of arguments, and of the index.
    fn call(
        &self,
        function: RangeFunction,
        name: &str,
        bounds: (&ArrayRef, &ArrayRef),
        last: &[ArrayRef],
    ) -> Result<Answer>;
}

/// Where an operator stores the index of each run, and an expression finds it. Two slots are equal if they are the same
/// object.
#[derive(Debug, Clone)]
pub struct IndexSlot(Arc<Slot>);

type Indexes = Vec<(RunId, Arc<dyn RunIndex>)>;

#[derive(Debug)]
struct Slot {
    id: u64,
    indexes: Mutex<Indexes>,
}

/// An [`IndexSlot`] that does not keep its indexes.
#[doc(hidden)]
#[derive(Debug, Clone)]
pub struct WeakIndexSlot(Weak<Slot>);

impl WeakIndexSlot {
    /// The slot, if it is still in use.
    #[must_use]
    pub fn upgrade(&self) -> Option<IndexSlot> {
        self.0.upgrade().map(IndexSlot)
    }
}

impl Default for IndexSlot {
    fn default() -> Self {
        Self(Arc::new(Slot {
            id: unique_id(),
            indexes: Mutex::default(),
        }))
    }
}

impl IndexSlot {
    /// Tells the slot from those of other plans, also where it is sent to another process.
    #[doc(hidden)]
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// The same slot, which is not kept.
    #[doc(hidden)]
    #[must_use]
    pub fn downgrade(&self) -> WeakIndexSlot {
        WeakIndexSlot(Arc::downgrade(&self.0))
    }

    fn indexes(&self) -> MutexGuard<'_, Indexes> {
        self.0
            .indexes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the index of a run. Drops the indexes of ended runs: those whose id only the operator's slots, `slots` in
    /// number, refer to.
    pub fn put(&self, run: &RunId, index: Arc<dyn RunIndex>, slots: usize) {
        let mut indexes = self.indexes();
        indexes.retain(|(run, _)| run.references() > slots);
        // Each partition stores the same index.
        if indexes.iter().all(|(known, _)| known.0 != run.0) {
            indexes.push((run.clone(), index));
        }
    }

    fn get(&self, id: u64) -> Option<Arc<dyn RunIndex>> {
        let indexes = self.indexes();
        let of_run = indexes.iter().find(|(run, _)| run.0.value(0) == id);
        of_run.map(|(_, index)| Arc::clone(index))
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

/// A range function whose arguments are the id of the run, the bounds and, if it has one, the argument after these.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct IndexLookupUdf {
    function: RangeFunction,
    /// The type of the result.
    pub data_type: DataType,
    slot: IndexSlot,
    signature: Signature,
}

impl IndexLookupUdf {
    /// A function of the index in `slot`. It is volatile, so that no rule folds it, or moves it to an operator that
    /// runs before the index is prepared.
    #[must_use]
    pub fn new(function: RangeFunction, data_type: DataType, slot: IndexSlot) -> Self {
        Self {
            function,
            data_type,
            slot,
            signature: Signature::any(function.argument_count(), Volatility::Volatile),
        }
    }

    /// The function that it computes.
    #[must_use]
    pub fn function(&self) -> RangeFunction {
        self.function
    }

    /// The slot of the index.
    #[must_use]
    pub fn slot(&self) -> &IndexSlot {
        &self.slot
    }

    /// Returns the same function of the index in another slot.
    pub fn with_slot(&self, slot: IndexSlot) -> Self {
        Self::new(self.function, self.data_type.clone(), slot)
    }
}

impl ScalarUDFImpl for IndexLookupUdf {
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
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let [run, left, right, last @ ..] = arrays.as_slice() else {
            return internal_err!("{name} has a run and two bounds, not {}", arrays.len());
        };
        let run = cast(&run.slice(0, 1), &DataType::UInt64)?;
        let Some(ready) = self.slot.get(run.as_primitive::<UInt64Type>().value(0)) else {
            return exec_err!("{name}: the operator that makes its index ready has not run");
        };
        if self.function.result_type(ready.value_type()) != self.data_type {
            return exec_err!(
                "{name}: the column's type changed since the query was planned; run the query again"
            );
        }
        let answer = ready.call(self.function, name, (left, right), last)?;
        let array = answer.values.or(answer.positions);
        let array = array.ok_or_else(|| internal_datafusion_err!("{name} has no answer"))?;
        if array.len() == args.number_rows {
            return Ok(ColumnarValue::Array(array));
        }
        // All arguments are constants, so the single result is that of all rows.
        let one = datafusion_common::ScalarValue::try_from_array(&array, 0)?;
        Ok(ColumnarValue::Scalar(one))
    }
}
