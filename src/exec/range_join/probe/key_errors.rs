//! Errors of the range key, which are raised where DataFusion's join would meet them: for build rows that have the
//! equality keys of a probe row.
//!
//! ```text
//!   q JOIN p ON p.sym = q.sym AND p.text::TIMESTAMP <= q.ts AND p.v > q.v
//!     p   'a', '2020-01-01', 1      a sorted row
//!         'a', 'n/a', 2             fails: an error for each probe row of 'a', here as its first comparison meets it
//!         'b', '', 3                fails: no error unless there is a probe row of 'b'
//! ```
//!
//! With a further condition, it is evaluated for these pairs. It has the comparisons of the key, in their order, and so
//! fails unless one before them is false. A pair that meets it is an error as well.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array};
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::joins::utils::JoinFilter;

use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::failed_rows::FailedRows;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::row_join::RowJoin;
use rmq_arrow::common::row_number::row_number;
use rmq_arrow::range_agg::values::Values;
use rmq_arrow::sorted::groups::Groups;

/// The build rows for which the range key fails, by their equality keys.
#[derive(Debug)]
pub(crate) struct KeyErrors {
    groups: Groups,
    /// The rows of each group.
    rows: Vec<Vec<u32>>,
    /// The columns that single rows are taken of.
    row_columns: Vec<Arc<Values>>,
    errors: ArrayRef,
    _memory: MemoryReservation,
}

impl KeyErrors {
    /// The errors of rows with these columns, of these types.
    ///
    /// # Errors
    /// Those of [`FailedRows::into_parts`]. If memory is short.
    pub(crate) fn try_new(
        failed: FailedRows,
        columns: &BuildColumns,
        types: &[DataType],
    ) -> Result<Self> {
        let (parts, errors, memory) = failed.into_parts()?;
        let mut groups = Groups::try_new(columns.equality_keys(types))?;
        let (mut rows, mut first): (Vec<Vec<u32>>, _) = (vec![], 0);
        for part in &parts {
            let keys = columns.equality_keys(part);
            let mut of_rows = vec![0; columns.range_key(part).len()];
            groups.add(keys, &mut of_rows)?;
            rows.resize(groups.len().max(1), vec![]);
            for (row, group) in of_rows.iter().enumerate() {
                // NULL is in no group.
                if let Some(rows) = rows.get_mut(*group as usize) {
                    rows.push(row_number(first + row)?);
                }
            }
            first += of_rows.len();
        }
        memory.try_grow(groups.bytes() + size_of::<u32>() * first)?;
        let row_columns = columns.row_columns.iter().map(|i| {
            let parts = parts.iter();
            let parts = parts.map(|part| Arc::clone(&columns.values(part)[*i]));
            Arc::new(Values::of_parts(parts.collect()))
        });
        Ok(Self {
            groups,
            rows,
            row_columns: row_columns.collect(),
            errors,
            _memory: memory,
        })
    }

    /// Raises the error that a batch of the probe side meets, if any.
    pub(crate) async fn check(
        &self,
        partition: &ProbePartition,
        batch: &RecordBatch,
    ) -> Result<()> {
        let equality_keys = partition.equality_keys(batch)?;
        let groups = self.groups.find(&equality_keys, batch.num_rows())?;
        let residual = partition.residual();
        let (mut rows, mut failed) = (vec![], vec![]);
        for (row, group) in groups.iter().enumerate() {
            for position in self.rows.get(*group as usize).into_iter().flatten() {
                let Some(residual) = residual else {
                    return self.raise(*position);
                };
                rows.push(row_number(row)?);
                failed.push(*position);
                if rows.len() >= partition.batch_size {
                    let pairs = (std::mem::take(&mut rows), std::mem::take(&mut failed));
                    self.check_pairs(residual, batch, pairs)?;
                    // Lets other tasks run, and lets a cancelled query end.
                    tokio::task::coop::consume_budget().await;
                }
            }
        }
        match residual {
            Some(residual) => self.check_pairs(residual, batch, (rows, failed)),
            None => Ok(()),
        }
    }

    /// Raises the error of one of these pairs of probe rows and failed rows, if the further condition comes to it.
    fn check_pairs(
        &self,
        residual: &JoinFilter,
        batch: &RecordBatch,
        (rows, failed): (Vec<u32>, Vec<u32>),
    ) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let (rows, failed) = (UInt32Array::from(rows), UInt32Array::from(failed));
        let met = RowJoin::meet_residual(residual, batch, &self.row_columns, (&rows, &failed))?;
        match met.values().set_indices().next() {
            Some(pair) => self.raise(failed.value(pair)),
            None => Ok(()),
        }
    }

    fn raise(&self, failed: u32) -> Result<()> {
        exec_err!("{}", self.errors.as_string::<i32>().value(failed as usize))
    }
}
