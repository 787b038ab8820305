//! Kept build sides in files, where the next process finds them (`rmq.index_directory`).
//!
//! ```text
//!   one file for the sorted rows    the equality keys and the number of rows of each group │ the range key of each row │
//!                                   the input row at each position, unless rows came sorted
//!   one file for each value         the value at each position; those of rows whose keys are NULL come last
//! ```
//!
//! A build side that is read takes the path of rows that come sorted, so nothing that is built of rows has a format of
//! its own, and rows that are not sorted are found out. Values that have no file are read from the table, as those are
//! that no query has needed before.
//!
//! Files are written after the query has its build side, by a thread of its own that nothing waits for.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array, new_empty_array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, UInt32Type};
use datafusion::common::{Result, exec_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_expr::PhysicalExprRef;

use crate::exec::common::plan_identity::{add_expression, add_expressions};
use crate::exec::range_join::aggregate_table::{Structure, Structures};
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::column::{Built, CollectedColumn, PreparedColumn};
use crate::exec::range_join::build_side::kept_side::{JoinValues, RowsKey, Segment, Value};
use crate::exec::range_join::build_side::side::{Movement, SortedSide};
use crate::exec::range_join::build_side::sort_and_index::SortAndIndex;
use crate::exec::range_join::spill::retaining_pool::is_out_of_memory;
use crate::kept::identity::Identity;
use crate::kept::index_file::{IndexFile, OpenIndexFile};
use crate::kept::version::Version;
use rmq_arrow::common::array_bytes::{arrays_bytes, compact, compact_if_sparse};
use rmq_arrow::common::dictionaries::{has_few_keys, select};
use rmq_arrow::common::ordered_type::value_type;
use rmq_arrow::common::workers::Workers;
use rmq_arrow::index::sort_keys::Chunks;
use rmq_arrow::range_agg::values::Values;
use rmq_arrow::sorted::group_sort::SortContext;
use rmq_arrow::sorted::permutation::RowPermutation;
use rmq_arrow::sorted::sort_rows::{RowsPart, sort_rows};

/// The files of the rows of one version with one key.
#[derive(Debug)]
pub(crate) struct SideFiles {
    directory: PathBuf,
    /// What the rows and their keys are, whatever the version of their table.
    identity: Identity,
    version: Identity,
}

impl SideFiles {
    /// The files of rows with this key and version. `None` if another process can't tell that it has the same rows.
    pub(super) fn of(directory: &str, key: &RowsKey, version: &Version) -> Option<Self> {
        let (mut identity, mut of_version) = (Identity::default(), Identity::default());
        key.plan.add_to(&mut identity, &mut of_version)?;
        add_expressions(&key.keys, &mut identity)?;
        identity.add_number(key.batch_rows as u64);
        version.add_to(&mut identity, &mut of_version)?;
        Some(Self {
            directory: Path::new(directory).to_path_buf(),
            identity,
            version: of_version,
        })
    }

    /// The file of the sorted rows. Those whose batches were moved before they were numbered have a file of their own.
    fn sorted(&self, is_restored: bool) -> IndexFile {
        let mut identity = self.identity.clone();
        identity.add_number(is_restored.into());
        IndexFile::new(&self.directory, identity, self.version.clone())
    }

    /// The file of a value of these; `None` if another process can't tell what it is.
    fn value(&self, is_restored: bool, value: &PhysicalExprRef) -> Option<IndexFile> {
        let mut identity = self.identity.clone();
        identity.add_number(is_restored.into());
        add_expression(value, &mut identity)?;
        Some(IndexFile::new(
            &self.directory,
            identity,
            self.version.clone(),
        ))
    }
}

/// A build side that has been found, whose rows are not read yet.
#[derive(Debug)]
pub(crate) struct PersistedSide {
    file: OpenIndexFile,
    is_restored: bool,
}

impl PersistedSide {
    /// Opens the file of rows that were not moved before they were numbered, or may have been.
    pub(super) fn open(files: &SideFiles, may_be_restored: bool) -> Option<Self> {
        let mut restored = [false, true].into_iter();
        restored.find_map(|is_restored| {
            let may_use = !is_restored || may_be_restored;
            let file = may_use.then(|| files.sorted(is_restored))?.open()?;
            Some(Self { file, is_restored })
        })
    }

    /// The number of rows.
    pub(crate) fn rows(&self) -> usize {
        usize::try_from(self.file.rows()).unwrap_or(usize::MAX)
    }

    /// Reads the rows. `types` are those of the columns. `None` if the file is not as it was written. Blocks.
    ///
    /// # Errors
    /// If memory is short or the query is cancelled.
    pub(super) fn read(
        self,
        types: &[DataType],
        indexer: &SortAndIndex,
        memory: &MemoryReservation,
    ) -> Result<Option<SortedSide>> {
        let total_rows = self.rows();
        // Until what is made of them is registered.
        let read_memory = memory.new_empty();
        read_memory.try_grow(self.file.bytes())?;
        let check = || indexer.waiting.check();
        let workers = indexer.workers(&check);
        let side = self.file.read(workers, |arrays| {
            let saved = SavedRows {
                columns: &indexer.columns,
                types,
                arrays,
                total_rows,
                is_restored: self.is_restored,
            };
            match saved.side(memory, workers) {
                // The file is not to blame.
                Err(error) if is_out_of_memory(&error) => Ok(Err(error)),
                side => side.map(Ok),
            }
        });
        side?.transpose()
    }
}

/// Reads and prepares these values of sorted rows, which have these types, as far as they have files. Blocks.
///
/// # Errors
/// If memory is short or the query is cancelled.
pub(super) fn read_values(
    files: &SideFiles,
    values: Vec<(usize, &Value, Structures)>,
    types: &[DataType],
    side: &SortedSide,
    indexer: &SortAndIndex,
    memory: &MemoryReservation,
) -> Result<Vec<(usize, PreparedColumn)>> {
    let check = || indexer.waiting.check();
    let workers = indexer.workers(&check);
    let mut prepared = vec![];
    for (i, value, needs) in values {
        let file = files.value(side.is_restored, &value.expr);
        let Some(file) = file.and_then(|file| file.open()) else {
            continue;
        };
        let column_memory = memory.new_empty();
        column_memory.try_grow(file.bytes())?;
        let data_type = &indexer.columns.values(types)[i];
        let values = file.read(workers, |arrays| match arrays.as_slice() {
            [values] if values.len() == side.total_rows && values.data_type() == data_type => {
                Ok(Arc::clone(values))
            }
            _ => exec_err!("it has other values"),
        })?;
        if let Some(values) = values {
            let column = prepare(&values, &needs, side, indexer, Arc::new(column_memory))?;
            prepared.push((i, column));
        }
    }
    Ok(prepared)
}

/// Prepares values that are at their positions, whose memory `memory` registers.
fn prepare(
    values: &ArrayRef,
    needs: &Structures,
    side: &SortedSide,
    indexer: &SortAndIndex,
    memory: Arc<MemoryReservation>,
) -> Result<PreparedColumn> {
    let needs_rows = needs.contains(Structure::Rows);
    let others = needs.iter().filter(|needed| *needed != Structure::Rows);
    // Rows that can match nothing have positions only where single rows are taken.
    let len = side.rows.len();
    let column = CollectedColumn {
        chunks: Chunks::borrowed(vec![values.slice(0, len)]),
        data_type: values.data_type().clone(),
        memory: Arc::clone(&memory),
    };
    let columns = std::iter::once((column, others.collect()));
    let identity = RowPermutation::identity(len);
    let prepared = indexer.prepare_columns(columns, &identity, &side.permutation_memory)?;
    let mut prepared = prepared.into_iter().next().unwrap_or_default();
    if needs_rows {
        let rows = Built::Values(Arc::new(Values::by_position(Arc::clone(values))));
        prepared.push(Structure::Rows, rows, vec![memory]);
    }
    Ok(prepared)
}

/// The arrays of the file of sorted rows.
struct SavedRows<'a> {
    columns: &'a BuildColumns,
    types: &'a [DataType],
    arrays: Vec<ArrayRef>,
    total_rows: usize,
    is_restored: bool,
}

impl SavedRows<'_> {
    /// The sorted rows.
    fn side(self, memory: &MemoryReservation, workers: Workers) -> Result<SortedSide> {
        let num_keys = self.columns.num_equality_keys;
        let (equal, rest) = self.arrays.split_at_checked(num_keys).unwrap_or_default();
        let types = self.columns.equality_keys(self.types).iter();
        let are_typed = types
            .zip(equal)
            .all(|(data_type, array)| value_type(data_type) == value_type(array.data_type()));
        let key_type = value_type(self.columns.range_key(self.types));
        let [counts, keys, order] = rest else {
            return exec_err!("it has {} arrays", self.arrays.len());
        };
        let (Some(counts), Some(order)) = (
            counts.as_primitive_opt::<UInt32Type>(),
            order.as_primitive_opt::<UInt32Type>(),
        ) else {
            return exec_err!("its numbers have other types");
        };
        if !are_typed || keys.data_type() != &key_type {
            return exec_err!("its keys have other types");
        }
        let (len, total_rows) = (keys.len(), self.total_rows);
        let is_identity = order.is_empty() && len == total_rows;
        let is_within = |rows: Range<usize>| {
            let mut rows = order.values()[rows].iter();
            Ok(rows.all(|row| (*row as usize) < total_rows))
        };
        let are_within = workers.map(workers.ranges(order.len(), 1), is_within)?;
        let is_order =
            len <= total_rows && order.len() == len && are_within.iter().all(|within| *within);
        if !is_identity && !is_order || u32::try_from(total_rows).is_err() {
            return exec_err!("{} of its {total_rows} rows have positions", order.len());
        }
        let (rows_memory, permutation_memory) = (memory.new_empty(), memory.new_empty());
        let part = RowsPart::of_groups(equal, counts.values(), keys)?;
        rows_memory.try_grow(part.bytes())?;
        let context = SortContext {
            memory: &permutation_memory,
            workers,
        };
        let (rows, permutation) = sort_rows(vec![part], context)?;
        if !permutation.is_identity() {
            return exec_err!("its rows are not sorted");
        }
        rows_memory.try_resize(rows.bytes())?;
        let movement = if is_identity {
            Movement::Known(permutation)
        } else {
            Movement::Saved {
                order: order.values().clone(),
                permutation: OnceLock::new(),
            }
        };
        permutation_memory.try_resize(order.len() * size_of::<u32>())?;
        Ok(SortedSide {
            rows,
            rows_memory,
            movement: Some(movement),
            permutation_memory,
            total_rows,
            is_restored: self.is_restored,
        })
    }
}

/// Writes the files of a build side, or of values that were added to it.
#[derive(Debug)]
pub(crate) struct SideWriter {
    pub(super) files: Arc<SideFiles>,
    pub(super) values: JoinValues,
    pub(super) segment: Arc<Segment>,
    /// The rows in the order in which they are numbered.
    pub(super) batches: Vec<RecordBatch>,
    /// The numbers of the values that were added; `None` to write all of them, and the sorted rows.
    pub(super) added: Option<Vec<usize>>,
    /// An empty reservation.
    pub(super) memory: MemoryReservation,
}

impl SideWriter {
    /// Writes on a thread of its own. A failure is logged.
    pub(super) fn spawn(self) {
        let disk = Arc::clone(self.segment.disk());
        let directory = self.files.directory.display().to_string();
        disk.spawn("a build side".to_string(), directory, move || self.write());
    }

    fn write(&self) -> Result<()> {
        let workers = Workers::new(1, &|| Ok(()));
        let sorted = self.segment.sorted();
        let permutation = sorted.permutation(workers)?;
        self.memory.try_grow(
            self.batches
                .iter()
                .map(|batch| arrays_bytes(batch.columns()))
                .sum(),
        )?;
        let rows = sorted.total_rows as u64;
        if self.added.is_none() {
            let file = self.files.sorted(sorted.is_restored);
            file.write(rows, &self.sorted_rows(sorted, permutation, workers)?)?;
        }
        let JoinValues {
            columns,
            types,
            values,
        } = &self.values;
        let needs = columns.structures(values.len());
        for (number, value) in values.iter().enumerate() {
            let data_type = &columns.values(types)[number];
            let is_added = self
                .added
                .as_ref()
                .is_none_or(|added| added.contains(&number));
            // The values of several batches may not fit into one array.
            if !is_added || needs[number].is_empty() || has_few_keys(data_type) {
                continue;
            }
            let Some(file) = self.files.value(sorted.is_restored, &value.expr) else {
                continue;
            };
            let chunks = self.batches.iter();
            let chunks = chunks.map(|batch| Arc::clone(&columns.values(batch.columns())[number]));
            let values =
                self.sorted_values(&chunks.collect::<Vec<_>>(), data_type, permutation, workers)?;
            if let Some(values) = values {
                file.write(rows, &[values])?;
            }
        }
        Ok(())
    }

    /// The arrays of the file of sorted rows.
    fn sorted_rows(
        &self,
        sorted: &SortedSide,
        permutation: &RowPermutation,
        workers: Workers,
    ) -> Result<Vec<ArrayRef>> {
        let memory = &sorted.permutation_memory;
        memory.try_grow(permutation.order_bytes())?;
        // Nothing if all rows are at their positions.
        let order: &[u32] = permutation.order(workers)?.map_or(&[], |order| order);
        let groups = sorted.rows.starts().windows(2);
        let groups = groups.filter(|group| group[0] < group[1]);
        let (firsts, counts): (Vec<usize>, Vec<usize>) =
            groups.map(|group| (group[0], group[1] - group[0])).unzip();
        let counts = counts
            .into_iter()
            .map(u32::try_from)
            .collect::<Result<Vec<u32>, _>>();
        let Ok(counts) = counts else {
            return exec_err!("a group has too many rows");
        };
        let starts = self.batches.iter().scan(0, |next, batch| {
            let start = *next;
            *next += batch.num_rows();
            Some(start)
        });
        let starts: Vec<usize> = starts.collect();
        let firsts = firsts.into_iter().map(|position| {
            let row = order.get(position).map_or(position, |row| *row as usize);
            let batch = starts.partition_point(|start| *start <= row) - 1;
            Some((batch, row - starts[batch]))
        });
        let firsts: Vec<_> = firsts.collect();
        let JoinValues { columns, types, .. } = &self.values;
        let mut arrays = vec![];
        for (i, data_type) in columns.equality_keys(types).iter().enumerate() {
            let keys = self.batches.iter().map(|batch| batch.column(i).as_ref());
            let keys: Vec<&dyn Array> = keys.collect();
            arrays.push(if keys.is_empty() {
                new_empty_array(data_type)
            } else {
                // Views would be written with the strings of all rows.
                compact(&select(&keys, &firsts)?)
            });
        }
        arrays.push(Arc::new(UInt32Array::from(counts)));
        let key_type = value_type(columns.range_key(types));
        let keys = self.batches.iter().map(|batch| {
            let keys = columns.range_key(batch.columns());
            if keys.data_type() == &key_type {
                Ok(Arc::clone(keys))
            } else {
                Ok(cast(keys, &key_type)?)
            }
        });
        let keys: Vec<ArrayRef> = keys.collect::<Result<_>>()?;
        let Some(keys) = self.sorted_values(&keys, &key_type, permutation, workers)? else {
            return exec_err!("the range keys do not fit into one array");
        };
        arrays.push(keys.slice(0, sorted.rows.len()));
        arrays.push(Arc::new(UInt32Array::from(order.to_vec())));
        Ok(arrays)
    }

    /// A column with each value at its position; `None` if it does not fit into one array.
    fn sorted_values(
        &self,
        chunks: &[ArrayRef],
        data_type: &DataType,
        permutation: &RowPermutation,
        workers: Workers,
    ) -> Result<Option<ArrayRef>> {
        let memory = self.memory.new_empty();
        // The chunks concatenated, the sorted column, and its bytes as they are written.
        memory.try_grow(3 * arrays_bytes(chunks))?;
        self.segment
            .sorted()
            .permutation_memory
            .try_grow(permutation.order_bytes())?;
        let values = Values::sorted(chunks, data_type, permutation, workers)?;
        Ok(values.whole().cloned().map(compact_if_sparse))
    }
}
