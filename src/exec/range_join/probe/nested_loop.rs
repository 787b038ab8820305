//! Few rows of the probe side, many of the build side, these in no order: what matches is picked by comparing, as sorting all
//! would take longer.
//!
//! How many rows the probe side has is seen only when it ends. So the build side is collected first, as for any join, and each
//! partition looks whether its rows are few; the first that has more has the build side sorted, for all that come after it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::{Array, ArrayRef, BooleanArray, Int32Array, RecordBatch};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{concat, concat_batches, filter, filter_record_batch};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;

use crate::common::dictionaries::has_few_keys;
use crate::common::ranges::Ranges;
use crate::exec::common::blocking::{Waiting, blocking};
use crate::exec::common::once_per_run::Run;
use crate::exec::range_join::build::build::{build_now, ties_matter};
use crate::exec::range_join::build::collect::{BuildColumns, Collected, Size};
use crate::exec::range_join::build::side::BuildSide;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::exec::range_join::probe::side::{Building, Side};
use crate::exec::range_join::probe::stream::{Batches, Probing, evaluate_where_needed, next_rows};
use crate::exec::range_join::spill::probe::is_exhausted;
use crate::exec::range_join::spill::write::Spill;
use crate::sorted::groups::{Groups, NO_GROUP};
use crate::sorted::order_keys::OrderKeys;
use rmq_engine::LastFound;

/// Up to so many rows, those of all partitions together, are compared with all rows of the build side: some 1 ns a pair, where
/// sorting takes some 50 ns a row.
const FEW: usize = 16;

/// A build side of at most so many rows is sorted in no time.
const SMALL: usize = 1 << 16;

/// A build side that is in memory and not sorted yet.
#[derive(Debug)]
pub(crate) struct DeferredBuild {
    unsorted: Arc<Unsorted>,
    sorted: Run<Side>,
}

/// What it takes to sort it.
#[derive(Debug)]
struct Unsorted {
    building: Building,
    spill: Option<Arc<Spill>>,
    /// How many rows of the probe side were to be compared so far.
    asked: AtomicUsize,
    /// The rows as they came, until they are sorted.
    rows: Mutex<Option<Held>>,
}

#[derive(Debug)]
struct Held {
    batches: Vec<RecordBatch>,
    /// Registers their memory, unless that is done where they are being sorted.
    memory: Option<MemoryReservation>,
}

impl DeferredBuild {
    /// Whether it is worth to wait and see how many rows the probe side has.
    pub(crate) fn pays(columns: &BuildColumns, batches: &[RecordBatch]) -> Result<bool> {
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let (Some(first), false) = (batches.first(), columns.prevailing || rows <= SMALL) else {
            return Ok(false);
        };
        if columns.equal > 0 {
            // Grouping moves all rows even where they come in the order of the range key.
            return Ok(true);
        }
        let key = columns.key(first.columns());
        let pairs = key.len() - 1;
        let ascend = OrderKeys::are_at_most(&key.slice(0, pairs), &key.slice(1, pairs))?;
        let falls = pairs - ascend.count_set_bits();
        Ok(falls > pairs / 16)
    }

    pub(crate) fn new(building: Building, rows: Collected, spill: Option<Arc<Spill>>) -> Self {
        Self {
            unsorted: Arc::new(Unsorted {
                building,
                spill,
                asked: AtomicUsize::new(0),
                rows: Mutex::new(Some(Held {
                    batches: rows.batches,
                    memory: Some(rows.memory),
                })),
            }),
            sorted: Run::default(),
        }
    }

    /// Whether a partition of the probe side, of which some batches were read, ends with few rows. Those that are read to tell are
    /// added.
    pub(crate) async fn are_few(
        &self,
        read: &mut Vec<RecordBatch>,
        probe: &mut Batches,
    ) -> Result<bool> {
        let Unsorted { asked, .. } = &*self.unsorted;
        let mut rows: usize = read.iter().map(RecordBatch::num_rows).sum();
        while asked.load(Ordering::Relaxed) + rows <= FEW && self.unsorted.rows().is_some() {
            match next_rows(probe).await? {
                Some(batch) => {
                    rows += batch.num_rows();
                    read.push(batch);
                }
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    /// All rows of a partition with the aggregates; `None` if they are not few, or comparing takes too much memory.
    pub(crate) async fn pick(
        &self,
        probing: Arc<Probing>,
        batches: &[RecordBatch],
    ) -> Result<Option<Vec<RecordBatch>>> {
        let Unsorted {
            building, asked, ..
        } = &*self.unsorted;
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        if asked.fetch_add(rows, Ordering::Relaxed) + rows > FEW {
            return Ok(None);
        }
        let held = self.unsorted.rows().as_ref().map(|h| h.batches.clone());
        let (Some(build), Some(first)) = (held, batches.first()) else {
            return Ok(None);
        };
        // Where there are too few keys for the values of several batches, Arrow fails, or panics.
        let schema = first.schema();
        let mut fields = schema.fields().iter();
        if fields.any(|field| has_few_keys(field.data_type())) {
            return Ok(None);
        }
        let Ok(batch) = concat_batches(&schema, batches) else {
            return Ok(None);
        };
        let picking = Picking {
            batch,
            columns: building.columns.clone(),
            schema: Arc::clone(&building.schema),
            threads: building.options.threads(),
            memory: building.room.reservation(),
            probing,
            build,
        };
        match blocking(move |waiting| picking.run(&waiting)).await {
            Err(error) if is_exhausted(&error) => Ok(None),
            picked => picked.map(Some),
        }
    }

    /// The build side as it is for many rows.
    pub(crate) async fn sorted(&self) -> Result<Arc<Side>> {
        let unsorted = Arc::clone(&self.unsorted);
        self.sorted.get(|| unsorted.sort()).await
    }
}

impl Unsorted {
    /// The build side, sorted. The rows stay here until that is done, for those who compare theirs with them.
    async fn sort(self: Arc<Self>) -> Result<Side> {
        let held = self.rows().as_mut().map(|held| {
            let memory = held.memory.take();
            (held.batches.clone(), memory)
        });
        let (batches, memory) = held.unwrap_or_default();
        let rows = Collected {
            schema: Arc::clone(&self.building.schema),
            batches,
            memory: memory.unwrap_or_else(|| self.building.room.reservation()),
        };
        let side = self.building.sort(rows, self.spill.clone()).await?;
        *self.rows() = None;
        Ok(side)
    }

    fn rows(&self) -> MutexGuard<'_, Option<Held>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Few rows of the probe side and all of the build side.
struct Picking {
    probing: Arc<Probing>,
    batch: RecordBatch,
    columns: BuildColumns,
    schema: Arc<Schema>,
    build: Vec<RecordBatch>,
    threads: usize,
    memory: MemoryReservation,
}

impl Picking {
    fn run(self, waiting: &Waiting) -> Result<Vec<RecordBatch>> {
        let search_timer = self.probing.metrics.search_time.timer();
        let matches = self.matches(waiting)?;
        search_timer.done();
        let _timer = self.probing.metrics.query_time.timer();
        self.probing.metrics.note_picked(self.batch.num_rows());
        if ties_matter(&self.columns) {
            return self.sorted(&matches, waiting);
        }
        self.probing.metrics.probe_rows.add(self.batch.num_rows());
        let mut answers: Vec<Vec<ArrayRef>> = vec![vec![]; self.columns.aggregates.len()];
        let mut are_matched = vec![];
        for matches in &matches {
            let (count, found) = self.alone(matches, waiting)?;
            are_matched.push(count > 0);
            for (answers, found) in answers.iter_mut().zip(found) {
                answers.push(found);
            }
        }
        let answers = answers.iter().map(|answers| {
            let rows: Vec<&dyn Array> = answers.iter().map(AsRef::as_ref).collect();
            Ok(concat(&rows)?)
        });
        let answers = answers.collect::<Result<_>>()?;
        self.probing.joined(&self.batch, &are_matched, answers)
    }

    /// For each row of the probe side, which rows of the build side match it, batch by batch.
    fn matches(&self, waiting: &Waiting) -> Result<Vec<Vec<BooleanBuffer>>> {
        let rows = self.batch.num_rows();
        let build_rows: usize = self.build.iter().map(RecordBatch::num_rows).sum();
        self.memory.try_grow(rows * build_rows.div_ceil(8))?;
        let mut matches = self.equal(waiting)?;
        for (comparison, bound) in &self.probing.spec.bounds {
            let are_left = || {
                let any = |rows: &Vec<BooleanBuffer>| rows.iter().any(BooleanBuffer::has_true);
                matches.iter().map(any).collect()
            };
            let bounds = evaluate_where_needed(bound, &self.batch, are_left)?;
            let (bounds, nulls) = OrderKeys::of(&bounds)?;
            // A batch at a time: keys of some types are copies.
            for (i, batch) in self.build.iter().enumerate() {
                waiting.check()?;
                let values = self.columns.key(batch.columns());
                let mut keys = OrderKeys::try_new(values.data_type())?;
                let bytes = keys.append(values)?;
                self.memory.try_grow(bytes)?;
                for (row, matches) in matches.iter_mut().enumerate() {
                    let is_null = nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
                    let matches = &mut matches[i];
                    *matches = if is_null {
                        BooleanBuffer::new_unset(matches.len())
                    } else {
                        &*matches & &keys.compared(*comparison, &bounds, row)?
                    };
                }
                drop(keys);
                self.memory.shrink(bytes);
            }
        }
        Ok(matches)
    }

    /// The same by the equality keys alone, but for rows without a range key.
    fn equal(&self, waiting: &Waiting) -> Result<Vec<Vec<BooleanBuffer>>> {
        let rows = self.batch.num_rows();
        let equal = self.probing.equality_keys(&self.batch)?;
        let types = self.schema.fields().iter().map(|f| f.data_type().clone());
        let types: Vec<DataType> = types.collect();
        let mut groups = Groups::try_new(self.columns.equal(&types))?;
        let mut of_rows = vec![NO_GROUP; rows];
        groups.add(&equal, &mut of_rows)?;
        let mut matches = vec![vec![]; rows];
        for batch in &self.build {
            waiting.check()?;
            let arrays = batch.columns();
            let valid = self.columns.key(arrays).logical_nulls();
            let groups = match self.columns.equal(arrays) {
                [] => None,
                equal => Some(groups.find(equal)?),
            };
            for (matches, group) in matches.iter_mut().zip(&of_rows) {
                let same = match &groups {
                    None => BooleanBuffer::new_set(batch.num_rows()),
                    Some(_) if *group == NO_GROUP => BooleanBuffer::new_unset(batch.num_rows()),
                    Some(groups) => {
                        BooleanBuffer::collect_bool(groups.len(), |i| groups[i] == *group)
                    }
                };
                matches.push(match &valid {
                    None => same,
                    Some(valid) => &same & valid.inner(),
                });
            }
        }
        Ok(matches)
    }

    /// How many rows match one row, and the aggregates over them. In which order they stand makes no difference, so no key is needed
    /// but one that all share.
    fn alone(
        &self,
        matches: &[BooleanBuffer],
        waiting: &Waiting,
    ) -> Result<(usize, Vec<ArrayRef>)> {
        let fields = self.columns.values(self.schema.fields()).iter().cloned();
        let key = Arc::new(Field::new("key", DataType::Int32, false));
        let schema = Arc::new(Schema::new(
            std::iter::once(key).chain(fields).collect::<Vec<_>>(),
        ));
        let longest = matches.iter().map(BooleanBuffer::len).max();
        let keys = Int32Array::from(vec![0; longest.unwrap_or(0)]);
        let (mut batches, mut count) = (vec![], 0);
        for (batch, matches) in self.build.iter().zip(matches) {
            waiting.check()?;
            let rows = matches.count_set_bits();
            if rows == 0 {
                continue;
            }
            let mask = BooleanArray::new(matches.clone(), None);
            let mut arrays: Vec<ArrayRef> = vec![Arc::new(keys.slice(0, rows))];
            for values in self.columns.values(batch.columns()) {
                arrays.push(filter(values, &mask)?);
            }
            batches.push(RecordBatch::try_new(Arc::clone(&schema), arrays)?);
            count += rows;
        }
        let columns = self.columns.clone().of_one_group();
        let side = self.build(columns, schema, batches, waiting)?;
        let last = i64::try_from(count).unwrap_or(i64::MAX) - 1;
        let (answers, _) = side.answer(&Ranges::new(vec![0], vec![last]))?;
        Ok((count, answers))
    }

    fn build(
        &self,
        columns: BuildColumns,
        schema: Arc<Schema>,
        batches: Vec<RecordBatch>,
        waiting: &Waiting,
    ) -> Result<BuildSide> {
        let memory = self.memory.new_empty();
        for batch in &batches {
            memory.try_grow(Size::of(batch).bytes)?;
        }
        let collected = Collected {
            schema,
            batches,
            memory,
        };
        // What is measured of the build side is measured of all its rows.
        let metrics = BuildMetrics::new(&ExecutionPlanMetricsSet::new());
        build_now(
            columns,
            collected,
            metrics,
            self.threads,
            None,
            waiting.clone(),
        )
    }

    /// The rows with the aggregates, found among all that match any of them, sorted as they would be among others.
    fn sorted(
        &self,
        matches: &[Vec<BooleanBuffer>],
        waiting: &Waiting,
    ) -> Result<Vec<RecordBatch>> {
        let mut batches = vec![];
        for (i, batch) in self.build.iter().enumerate() {
            waiting.check()?;
            let any = matches.iter().map(|matches| matches[i].clone());
            if let Some(any) = any.reduce(|some, others| &some | &others) {
                let mask = BooleanArray::new(any, None);
                batches.push(filter_record_batch(batch, &mask)?);
            }
        }
        let side = self.build(
            self.columns.clone(),
            Arc::clone(&self.schema),
            batches,
            waiting,
        )?;
        let mut last_found = LastFound::default();
        self.probing.answer_now(&self.batch, &side, &mut last_found)
    }
}
