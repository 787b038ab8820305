//! The build side of a range join by key: collected, sorted, indexed, and asked.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, new_empty_array};
use arrow::compute::{concat, take};
use arrow::datatypes::{DataType, Int64Type, Schema};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::blocking::{Waiting, blocking};
use super::key_collect::{BuildColumns, Collected};
use super::key_metrics::BuildMetrics;
use crate::engine::Extreme;
use crate::functions::bounds::Ranges;
use crate::index::{Chunks, ColumnIndex, Counts, SortedRows, Sums, Unsorted};
use crate::plan::KeyFunction;

/// The rows of the build side, ready to be asked.
#[derive(Debug)]
pub(super) struct BuildSide {
    rows: SortedRows,
    answers: Vec<Answering>,
    /// Registers the memory of all this.
    _memory: MemoryReservation,
}

/// What answers one aggregate.
#[derive(Debug)]
enum Answering {
    Extreme(Arc<ColumnIndex>),
    CountRows,
    Counts(Counts),
    Sums(Sums),
    First(ArrayRef),
    Last(ArrayRef),
    AtExtreme {
        values: ArrayRef,
        by: Arc<ColumnIndex>,
        /// Where NULLs are to be found, if they come first.
        nulls: Option<Counts>,
    },
}

/// Makes collected rows ready.
pub(super) async fn build(
    columns: &BuildColumns,
    collected: Collected,
    metrics: &BuildMetrics,
    threads: usize,
) -> Result<BuildSide> {
    let (columns, metrics) = (columns.clone(), metrics.clone());
    blocking(move |waiting| {
        let Collected {
            schema,
            batches,
            memory,
        } = collected;
        // A sort or an index that has begun can't be stopped; between them it is seen that nobody waits any more.
        let work = Work {
            columns,
            memory,
            metrics,
            threads,
            waiting,
        };
        work.build(&schema, batches)
    })
    .await
}

/// What the blocking part of the building needs.
struct Work {
    columns: BuildColumns,
    memory: MemoryReservation,
    metrics: BuildMetrics,
    threads: usize,
    waiting: Waiting,
}

impl Work {
    fn build(self, schema: &Schema, batches: Vec<RecordBatch>) -> Result<BuildSide> {
        let sort_timer = self.metrics.sort_time.timer();
        let types = schema.fields().iter().map(|f| f.data_type().clone());
        let types: Vec<DataType> = types.collect();
        let mut rows = Unsorted::try_new(self.columns.equal(&types), self.columns.key(&types))?;
        let mut keys_bytes = 0;
        for batch in &batches {
            self.waiting.check()?;
            let arrays = batch.columns();
            let before = rows.bytes();
            rows.add(self.columns.equal(arrays), self.columns.key(arrays))?;
            self.memory.try_grow(rows.bytes().saturating_sub(before))?;
            for array in &arrays[..arrays.len() - self.columns.values(arrays).len()] {
                keys_bytes += array.to_data().get_slice_memory_size()?;
            }
        }
        let values = self.columns.values(&types).iter().enumerate();
        let values = values.map(|(i, data_type)| {
            let chunks = batches.iter();
            let chunks = chunks.map(|b| Arc::clone(&self.columns.values(b.columns())[i]));
            (chunks.collect::<Vec<_>>(), data_type)
        });
        let values: Vec<_> = values.collect();
        drop(batches);
        self.memory.shrink(keys_bytes);
        self.metrics.build_rows.add(rows.len());
        let (before, sorting) = (rows.bytes(), rows.sorting_bytes());
        self.memory.try_grow(sorting)?;
        let rows = rows.sort();
        // Sorting ends with less than it has taken.
        let kept = rows.bytes().min(before + sorting);
        self.memory.shrink(before + sorting - kept);
        let was_sorted = rows.was_sorted();
        self.metrics.already_sorted.add(usize::from(was_sorted));
        let mut columns = vec![];
        for (chunks, data_type) in values {
            self.waiting.check()?;
            let column = self.join(chunks, data_type)?;
            columns.push(if was_sorted {
                column
            } else {
                let bytes = column.to_data().get_slice_memory_size()?;
                self.memory.try_grow(bytes)?;
                let sorted = rows.sorted(&column)?;
                drop(column);
                self.memory.shrink(bytes);
                sorted
            });
        }
        sort_timer.done();

        let index_timer = self.metrics.index_time.timer();
        let mut indexes = vec![];
        let mut answers = vec![];
        for (function, arguments) in &self.columns.aggregates {
            self.waiting.check()?;
            let argument = |i: usize| Arc::clone(&columns[arguments[i]]);
            answers.push(match function {
                KeyFunction::CountRows => Answering::CountRows,
                KeyFunction::Count => {
                    let counts = Counts::of(&argument(0));
                    self.memory.try_grow(counts.bytes())?;
                    Answering::Counts(counts)
                }
                KeyFunction::Sum => {
                    let sums = Sums::of(&argument(0))?;
                    self.memory.try_grow(sums.bytes())?;
                    Answering::Sums(sums)
                }
                KeyFunction::First => Answering::First(argument(0)),
                KeyFunction::Last => Answering::Last(argument(0)),
                KeyFunction::Extreme(extreme) => Answering::Extreme(self.index(
                    &mut indexes,
                    &columns,
                    arguments[0],
                    *extreme,
                )?),
                KeyFunction::AtExtreme {
                    extreme,
                    nulls_first,
                } => Answering::AtExtreme {
                    values: argument(0),
                    by: self.index(&mut indexes, &columns, arguments[1], *extreme)?,
                    nulls: nulls_first.then(|| Counts::of(&argument(1))),
                },
            });
        }
        index_timer.done();
        self.metrics.build_mem_used.set_max(self.memory.size());
        Ok(BuildSide {
            rows,
            answers,
            _memory: self.memory,
        })
    }

    /// The chunks of a column as one array.
    fn join(&self, chunks: Vec<ArrayRef>, data_type: &DataType) -> Result<ArrayRef> {
        match chunks.as_slice() {
            [] => Ok(new_empty_array(data_type)),
            [one] => Ok(Arc::clone(one)),
            many => {
                let mut bytes = 0;
                for chunk in many {
                    bytes += chunk.to_data().get_slice_memory_size()?;
                }
                // The chunks and the whole are there at once.
                self.memory.try_grow(bytes)?;
                let parts: Vec<&dyn Array> = many.iter().map(AsRef::as_ref).collect();
                let whole = concat(&parts)?;
                drop(chunks);
                self.memory.shrink(bytes);
                Ok(whole)
            }
        }
    }

    /// The index of a column, one for all aggregates that ask it.
    fn index(
        &self,
        indexes: &mut Vec<((usize, Extreme), Arc<ColumnIndex>)>,
        columns: &[ArrayRef],
        column: usize,
        extreme: Extreme,
    ) -> Result<Arc<ColumnIndex>> {
        let wanted = (column, extreme);
        if let Some((_, index)) = indexes.iter().find(|(known, _)| *known == wanted) {
            return Ok(Arc::clone(index));
        }
        let values = &columns[column];
        let chunks = Chunks {
            arrays: vec![Arc::clone(values)],
            held_by_table: true,
        };
        let estimate = ColumnIndex::estimate_on_cpu(&chunks, values.data_type());
        self.memory.try_grow(estimate)?;
        let index = ColumnIndex::on_cpu(&chunks, values.data_type(), extreme, self.threads)?;
        self.memory
            .try_resize(self.memory.size() - estimate + index.memory_bytes())?;
        self.metrics.index_bytes.add(index.index_bytes());
        let index = Arc::new(index);
        indexes.push((wanted, Arc::clone(&index)));
        Ok(index)
    }
}

impl BuildSide {
    /// The rows, to find positions in.
    pub(super) fn rows(&self) -> &SortedRows {
        &self.rows
    }

    /// What each aggregate is over these ranges.
    pub(super) fn answer(&self, ranges: &Ranges) -> Result<Vec<ArrayRef>> {
        self.answers
            .iter()
            .map(|a| self.answer_one(a, ranges))
            .collect()
    }

    fn answer_one(&self, answering: &Answering, ranges: &Ranges) -> Result<ArrayRef> {
        Ok(match answering {
            Answering::CountRows => {
                let counts = ranges.iter().map(|(l, r)| (r - l + 1).max(0));
                Arc::new(counts.collect::<Int64Array>())
            }
            Answering::Counts(counts) => Arc::new(counts.answer(ranges)),
            Answering::Sums(sums) => sums.answer(ranges),
            Answering::Extreme(index) => {
                let answer = index.answer(std::slice::from_ref(ranges), true, false, false)?;
                answer
                    .values
                    .ok_or_else(|| internal_datafusion_err!("an index gave no values"))?
            }
            Answering::First(values) => {
                let firsts = ranges.iter().map(|(l, r)| (l <= r).then_some(l));
                take(values, &firsts.collect::<Int64Array>(), None)?
            }
            Answering::Last(values) => {
                let lasts = ranges.iter().map(|range| self.last(range));
                take(values, &lasts.collect::<Int64Array>(), None)?
            }
            Answering::AtExtreme { values, by, nulls } => {
                let positions = by
                    .answer(std::slice::from_ref(ranges), false, true, false)?
                    .positions
                    .ok_or_else(|| internal_datafusion_err!("an index gave no positions"))?;
                let positions = positions.as_primitive::<Int64Type>().iter();
                let rows = positions.zip(ranges.iter()).map(|(found, range)| {
                    let null = nulls.as_ref().and_then(|nulls| nulls.first_null(range));
                    // Where all that decides is NULL, any row will do: the first.
                    null.or(found).or((range.0 <= range.1).then_some(range.0))
                });
                take(values, &rows.collect::<Int64Array>(), None)?
            }
        })
    }

    /// Of a range's rows with the greatest key, the first that came.
    fn last(&self, (left, right): (i64, i64)) -> Option<i64> {
        if left > right {
            return None;
        }
        let (left, right) = (usize::try_from(left).ok()?, usize::try_from(right).ok()?);
        i64::try_from(self.rows.first_equal(left, right)).ok()
    }
}
