//! Reads the columns of a relation into memory.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err, internal_err, resources_err};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::physical_plan::execution_plan::reset_plan_states;
use futures::StreamExt;

use crate::exec::common::blocking::blocking;
use crate::exec::range_lookup::scan::RelationScan;
use crate::kept::catalog::IndexCatalog;
use datafusion_rmq_logical::common::options::ByteSize;
use rmq_arrow::index::sort_keys::Chunks;

/// Columns in memory, each as a sequence of arrays.
#[derive(Debug)]
pub(crate) struct LoadedColumns {
    columns: HashMap<String, Vec<ArrayRef>>,
    /// Reserves the memory of the columns; `None` for a table in memory, which is not copied.
    memory: Option<Arc<ColumnMemory>>,
}

/// The memory of columns that are read, within a limit.
#[derive(Debug)]
pub(crate) struct ColumnMemory {
    relation: String,
    limit: ByteSize,
    reservation: MemoryReservation,
}

impl ColumnMemory {
    /// Nothing yet, of columns of this relation.
    pub(crate) fn new(relation: &str, limit: ByteSize, context: &TaskContext) -> Self {
        let consumer = MemoryConsumer::new(format!("rmq columns of {relation}"));
        Self {
            relation: relation.to_string(),
            limit,
            reservation: consumer.register(context.memory_pool()),
        }
    }

    /// Registers an array that has been read.
    ///
    /// # Errors
    /// "Resources exhausted" if the columns exceed the limit or the session's memory pool.
    pub(crate) fn add(&self, array: &ArrayRef) -> Result<()> {
        self.add_bytes(array.get_array_memory_size())
    }

    /// Registers bytes that are read.
    ///
    /// # Errors
    /// As [`Self::add`]. Nothing is registered then.
    pub(crate) fn add_bytes(&self, bytes: usize) -> Result<()> {
        let (relation, limit) = (&self.relation, self.limit);
        self.reservation.try_grow(bytes)?;
        if self.reservation.size() > limit.0 {
            self.remove_bytes(bytes);
            return resources_err!(
                "the columns of {relation} that the query needs take more than rmq.index_memory_limit = '{limit}'; raise it, for \
                 example SET rmq.index_memory_limit = '{}G'",
                ((2 * limit.0) >> 30) + 1
            );
        }
        Ok(())
    }

    /// Releases bytes that were registered.
    pub(crate) fn remove_bytes(&self, bytes: usize) {
        self.reservation.shrink(bytes);
    }
}

impl LoadedColumns {
    /// Columns that have been read, by name.
    pub(crate) fn new(columns: HashMap<String, Vec<ArrayRef>>, memory: &Arc<ColumnMemory>) -> Self {
        Self {
            columns,
            memory: Some(Arc::clone(memory)),
        }
    }

    /// Adds a column that is one array, whose memory is registered with that of the others.
    pub(crate) fn insert(&mut self, column: &str, array: ArrayRef) {
        self.columns.insert(column.to_string(), vec![array]);
    }

    /// Puts the arrays of a column of this type together to one, and returns it with the memory of all columns. `None`
    /// for a table in memory. `catalog` has indexes that may give way.
    ///
    /// # Errors
    /// If memory is short, the query is cancelled, or one array can't have so many values.
    pub(crate) async fn put_together(
        &mut self,
        column: &str,
        data_type: &DataType,
        catalog: &IndexCatalog,
    ) -> Result<Option<(ArrayRef, Arc<ColumnMemory>)>> {
        let Some(memory) = self.memory.clone() else {
            return Ok(None);
        };
        let chunks = self.chunks(column)?;
        // Both exist for a moment.
        catalog.grow(&memory.reservation, chunks.bytes())?;
        let sizes = chunks.arrays.iter().map(Array::get_array_memory_size);
        let before = chunks.bytes() + sizes.sum::<usize>();
        let data_type = data_type.clone();
        let whole = blocking(move |_| chunks.together(&data_type)).await?;
        self.insert(column, Arc::clone(&whole));
        memory.remove_bytes(before);
        memory.reservation.grow(whole.get_array_memory_size());
        Ok(Some((whole, memory)))
    }

    /// The arrays of a column.
    pub(crate) fn chunks(&self, column: &str) -> Result<Chunks> {
        match self.columns.get(column) {
            Some(arrays) => Ok(Chunks {
                arrays: arrays.clone(),
                owned_elsewhere: self.memory.is_none(),
            }),
            None => internal_err!("the column {column} was not loaded"),
        }
    }
}

/// Reads columns from a scan, partition after partition. A table in memory is not copied.
///
/// # Errors
/// Those of the scan; an execution error if it has not the rows that its version states; "Resources exhausted" if the
/// columns exceed the limit or the session's memory pool.
pub(crate) async fn load_columns(
    relation: &str,
    scan: &RelationScan,
    columns: &BTreeSet<&str>,
    memory: &Arc<ColumnMemory>,
    context: &Arc<TaskContext>,
) -> Result<LoadedColumns> {
    let planned = match scan {
        RelationScan::Memory {
            columns: in_memory, ..
        } => {
            let loaded = in_memory.iter();
            let loaded = loaded.filter(|(name, _)| columns.contains(name.as_str()));
            return Ok(LoadedColumns {
                columns: loaded
                    .map(|(n, chunks)| (n.clone(), chunks.clone()))
                    .collect(),
                memory: None,
            });
        }
        RelationScan::Plan(planned) => planned,
    };
    // Operators keep the state of a run. An earlier run, or one that was dropped, may have left its own.
    let scan = reset_plan_states(Arc::clone(&planned.plan))?;
    let mut rows = 0;
    let schema = scan.schema();
    let indices = columns
        .iter()
        .map(|c| Ok((*c, schema.index_of(c)?)))
        .collect::<Result<Vec<_>>>()?;
    let mut loaded: HashMap<String, Vec<ArrayRef>> =
        columns.iter().map(|c| ((*c).to_string(), vec![])).collect();
    for partition in 0..scan.properties().output_partitioning().partition_count() {
        let mut batches = scan.execute(partition, Arc::clone(context))?;
        while let Some(batch) = batches.next().await.transpose()? {
            let before = planned.skipped.saturating_sub(rows).min(batch.num_rows());
            rows += batch.num_rows();
            let batch = match before {
                0 => batch,
                all if all == batch.num_rows() => continue,
                _ => batch.slice(before, batch.num_rows() - before),
            };
            for (column, i) in &indices {
                let array = batch.column(*i);
                memory.add(array)?;
                if let Some(chunks) = loaded.get_mut(*column) {
                    chunks.push(Arc::clone(array));
                }
            }
        }
    }
    if let Some(stated) = planned.rows
        && rows as u64 != stated
    {
        return exec_err!(
            "the scan of {relation} has returned {rows} rows, where its version states {stated}: see datafusion_rmq::VersionedTable"
        );
    }
    Ok(LoadedColumns::new(loaded, memory))
}
