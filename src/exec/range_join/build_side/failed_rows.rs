//! Build rows for which the range key fails: they have no place in the order of the others.

use arrow::array::{Array, ArrayRef, RecordBatch, StringArray, UInt64Array};
use arrow::compute::{concat, take_arrays};
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::execution::memory_pool::MemoryReservation;

use datafusion_rmq_logical::expr::late_error::FailedRow;
use rmq_arrow::common::array_bytes::{array_bytes, arrays_bytes};

/// Rows for which the range key fails, with the columns of `BuildColumns`, and their errors.
#[derive(Debug)]
pub(crate) struct FailedRows {
    /// The columns of some rows each.
    columns: Vec<Vec<ArrayRef>>,
    errors: Vec<StringArray>,
    memory: MemoryReservation,
}

impl FailedRows {
    /// None, which are registered with `memory` as they are added.
    pub(crate) fn new(memory: MemoryReservation) -> Self {
        Self {
            columns: vec![],
            errors: vec![],
            memory,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// Adds these rows of a batch.
    ///
    /// # Errors
    /// If memory is short.
    pub(crate) fn add(&mut self, batch: &RecordBatch, failed: Vec<FailedRow>) -> Result<()> {
        let rows: UInt64Array = failed.iter().map(|failed| failed.row as u64).collect();
        let columns = take_arrays(batch.columns(), &rows, None)?;
        let errors = failed.into_iter().map(|failed| Some(failed.error));
        let errors: StringArray = errors.collect();
        let bytes = arrays_bytes(&columns) + array_bytes(&errors);
        self.memory.try_grow(bytes)?;
        self.columns.push(columns);
        self.errors.push(errors);
        Ok(())
    }

    /// The columns of the rows, and the error of each.
    ///
    /// # Errors
    /// Arrow's, if the texts of all errors are too long for an array.
    pub(crate) fn into_parts(self) -> Result<(Vec<Vec<ArrayRef>>, ArrayRef, MemoryReservation)> {
        let errors = self.errors.iter().map(|errors| errors as &dyn Array);
        let errors = concat(&errors.collect::<Vec<_>>())?;
        Ok((self.columns, errors, self.memory))
    }

    /// The first error.
    pub(crate) fn error(&self) -> Option<DataFusionError> {
        let errors = self.errors.first()?;
        Some(exec_datafusion_err!("{}", errors.value(0)))
    }
}
