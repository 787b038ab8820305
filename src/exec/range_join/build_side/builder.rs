//! The steps of building a build side: its input is collected, and sorted and indexed on devices or the CPU, or
//! spilled.

use std::sync::Arc;
use std::time::Instant;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::{DataFusionError, Result, exec_err, internal_err};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};

use crate::exec::common::blocking::{Waiting, blocking};
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::collect_or_spill::{Collected, CollectedRows, collect};
use crate::exec::range_join::build_side::kept::BuildSideKeeper;
use crate::exec::range_join::build_side::kept_segments::KeptSegments;
use crate::exec::range_join::build_side::kept_side::{Segment, SegmentedRows};
use crate::exec::range_join::build_side::persisted::PersistedSide;
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::build_side::sort_and_index::SortAndIndex;
use crate::exec::range_join::devices::JoinDevices;
use crate::exec::range_join::engine_choice::{KeptOn, RangeJoinEngine};
use crate::exec::range_join::metrics::BuildMetrics;
use crate::exec::range_join::spill::retaining_pool::RetainingPool;
use crate::exec::range_join::spill::row_position::RowPosition;
use crate::exec::range_join::spill::run::BuildRuns;
use crate::exec::range_join::spill::store::SpillStore;
use datafusion_rmq_logical::common::options::RmqOptions;
use rmq_arrow::index::devices::Target;

/// What building one build side needs.
#[derive(Debug)]
pub(crate) struct BuildSideBuilder {
    pub(crate) columns: BuildColumns,
    /// The schema of `columns`.
    pub(crate) schema: SchemaRef,
    pub(crate) metrics: BuildMetrics,
    pub(crate) options: RmqOptions,
    pub(crate) memory: Arc<RetainingPool>,
    store: Option<Arc<SpillStore>>,
    engine: RangeJoinEngine,
    runtime: Arc<RuntimeEnv>,
    /// Whether the probe side ends.
    is_probe_bounded: bool,
    /// Keeps the build side for later queries, if it may be kept.
    pub(super) keeper: Option<Arc<BuildSideKeeper>>,
    /// The rows, if they are kept, to which values are added.
    kept: Option<Arc<Segment>>,
}

impl BuildSideBuilder {
    /// A builder for an input of this schema, one of `builds` that run at the same time and share threads and memory.
    pub(crate) fn try_new(
        columns: BuildColumns,
        input_schema: &Schema,
        metrics: BuildMetrics,
        context: &TaskContext,
        engine: RangeJoinEngine,
        is_probe_bounded: bool,
        builds: usize,
    ) -> Result<Self> {
        let schema = columns.schema(input_schema)?;
        // Rows of all runs are returned in no order, but a probe side without an end may have been promised its own.
        let may_spill = columns.may_spill() && (is_probe_bounded || !columns.returns_rows);
        let store = if may_spill {
            SpillStore::try_new(&schema, columns.num_equality_keys, &metrics, context)?
        } else {
            None
        };
        let mut options = RmqOptions::of(context.session_config().options());
        if options.build_threads == 0 {
            options.build_threads = context.session_config().target_partitions();
        }
        options.build_threads = (options.build_threads / builds).max(1);
        let pool = context.memory_pool();
        // Otherwise the first builds would leave nothing for the last, which may need little.
        let share = match pool.memory_limit() {
            MemoryLimit::Finite(bytes) if builds > 1 && store.is_some() => bytes / builds,
            _ => usize::MAX,
        };
        Ok(Self {
            columns,
            schema,
            metrics,
            options,
            memory: RetainingPool::new(pool, store.is_some(), share),
            store,
            engine,
            runtime: context.runtime_env(),
            is_probe_bounded,
            keeper: None,
            kept: None,
        })
    }

    /// The same builder, whose build side is kept for later queries. `kept` are the rows, if that has been done.
    pub(crate) fn with_keeper(
        self,
        keeper: Option<Arc<BuildSideKeeper>>,
        kept: Option<Arc<Segment>>,
    ) -> Self {
        Self {
            keeper,
            kept,
            ..self
        }
    }

    /// The same builder, which spills nothing and takes at most so many bytes of the pool.
    pub(crate) fn in_memory(self, pool: &Arc<dyn MemoryPool>, bytes: usize) -> Self {
        Self {
            memory: RetainingPool::new(pool, false, bytes),
            store: None,
            ..self
        }
    }

    /// Whether the rows are sorted, and only values are read.
    pub(crate) fn adds_values(&self) -> bool {
        self.kept.is_some()
    }

    /// Whether all `rows` should be sorted for later queries, even if this one reaches few of them: see
    /// [`BuildSideKeeper::is_worth_keeping`].
    pub(crate) fn is_worth_keeping(&self, rows: usize) -> bool {
        let mut keeper = self.keeper.iter();
        keeper.any(|keeper| keeper.is_worth_keeping(rows))
    }

    /// The same builder, of rows that are not all: these are not kept. `rows` have been read for them.
    pub(crate) fn of_part(self, rows: usize) -> Self {
        if let Some(keeper) = &self.keeper {
            keeper.add_read(rows);
        }
        self.with_keeper(None, None)
    }

    /// Collects the partitions of the input: the rows, or the runs of all rows if memory does not suffice for them.
    pub(crate) async fn collect(
        &self,
        partitions: Vec<SendableRecordBatchStream>,
    ) -> Result<Collected> {
        let started = Instant::now();
        let (columns, schema) = (&self.columns, &self.schema);
        let store = self.store.clone();
        let collected = collect(columns, schema, partitions, &self.memory, store).await;
        self.metrics.build_time.add_elapsed(started);
        let collected = collected.map_err(|error| self.explain_out_of_memory(error))?;
        let spilled_rows = collected.runs.as_ref().map_or(0, BuildRuns::rows);
        self.metrics.build_rows.add(spilled_rows);
        Ok(collected)
    }

    /// The devices for this many rows, if they suit them.
    pub(crate) async fn select_devices(&self, rows: usize) -> Result<Option<JoinDevices>> {
        if self.adds_values() {
            // To rows that the CPU has sorted.
            return Ok(None);
        }
        let kept = KeptOn::default();
        self.engine.select_devices(rows, kept, &self.options).await
    }

    /// Reads rows of a kept build side; `None` if memory can't hold them, or if their range key fails for some, as rows
    /// with errors are not kept.
    pub(super) async fn collect_all(
        &self,
        inputs: Vec<SendableRecordBatchStream>,
    ) -> Result<Option<CollectedRows>> {
        let Collected { rows, runs, failed } = self.collect(inputs).await?;
        Ok((runs.is_none() && failed.is_empty()).then_some(rows))
    }

    /// Records why the CPU builds and probes the rows, for EXPLAIN ANALYZE.
    pub(crate) fn record_cpu(&self, why: &str) {
        self.engine.record_cpu(why);
    }

    /// Sorts and indexes rows on the CPU, or adds their values to rows that are sorted. Keeps them for later queries.
    pub(crate) async fn sort_and_index(&self, rows: CollectedRows) -> Result<BuildSide> {
        let Some(keeper) = &self.keeper else {
            let indexer = self.indexer();
            return blocking(move |waiting| indexer(waiting).run_alone(rows)).await;
        };
        let kept = match &self.kept {
            // Otherwise these may be other rows.
            Some(kept) if keeper.is_unchanged().await => Some(Arc::clone(kept)),
            _ => None,
        };
        let is_new = kept.is_none();
        let missing = kept.as_ref().map(|kept| keeper.missing(kept));
        let saved = keeper.persists().then(|| {
            let memory = rows.memory.new_empty();
            (rows.batches.clone(), memory)
        });
        let (side, segment) = self.build_segment(keeper, kept, rows).await?;
        let is_kept = if is_new {
            let kept = SegmentedRows::one(Arc::clone(&segment));
            keeper.keep(kept, Target::Cpu).await
        } else {
            keeper.shrink();
            true
        };
        if let Some((batches, memory)) = saved.filter(|_| is_kept) {
            let added: Option<Vec<usize>> =
                missing.map(|missing| missing.into_iter().map(|(i, _)| i).collect());
            let indexer = self.indexer()(Waiting::forever());
            let is_restored = segment.sorted().is_restored;
            let (batches, _) = indexer.in_sorting_order(batches, is_restored)?;
            keeper.persist(&segment, batches, added.as_deref(), memory);
        }
        Ok(side)
    }

    /// Reads a build side that another process has written, and keeps it; `None` if it is not as it was written.
    pub(crate) async fn load(
        &self,
        keeper: &Arc<BuildSideKeeper>,
        persisted: PersistedSide,
    ) -> Result<Option<Arc<Segment>>> {
        let started = Instant::now();
        let (indexer, memory) = (self.indexer(), self.memory.reservation());
        let keeper = Arc::clone(keeper);
        let work = move |waiting| keeper.load(persisted, &indexer(waiting), &memory);
        let loaded = blocking(work).await;
        self.metrics.record_build(started);
        self.memory.stop_retaining();
        loaded
    }

    /// Sorts and indexes rows, or adds their values to those that are kept.
    async fn build_segment(
        &self,
        keeper: &Arc<BuildSideKeeper>,
        kept: Option<Arc<Segment>>,
        rows: CollectedRows,
    ) -> Result<(BuildSide, Arc<Segment>)> {
        let (indexer, keeper) = (self.indexer(), Arc::clone(keeper));
        let work = move |waiting| {
            let indexer = indexer(waiting);
            let memory = rows.memory.new_empty();
            let segment = match kept {
                Some(kept) => {
                    let missing = keeper.missing(&kept);
                    let prepared = indexer.add_values(rows, kept.sorted(), &missing)?;
                    keeper.add(&kept, prepared);
                    kept
                }
                None => {
                    let (sorted, prepared) = indexer.run(rows)?;
                    let segment = Arc::new(Segment::new(sorted));
                    keeper.add(&segment, prepared.into_iter().enumerate());
                    segment
                }
            };
            let side = keeper.side(&segment, &indexer, &memory)?;
            Ok((side, segment))
        };
        blocking(work).await
    }

    /// The build side of rows that are kept and lack no value; `None` if one has to be read.
    pub(crate) async fn complete_side(&self) -> Result<Option<BuildSide>> {
        let Some((keeper, kept)) = self.keeper.as_ref().zip(self.kept.as_ref()) else {
            return Ok(None);
        };
        self.complete_segment(keeper, kept).await
    }

    async fn complete_segment(
        &self,
        keeper: &Arc<BuildSideKeeper>,
        kept: &Arc<Segment>,
    ) -> Result<Option<BuildSide>> {
        if !keeper.missing(kept).is_empty() && !keeper.persists() {
            return Ok(None);
        }
        let (indexer, memory) = (self.indexer(), self.memory.reservation());
        let (keeper, kept) = (Arc::clone(keeper), Arc::clone(kept));
        let work = move |waiting| {
            let indexer = indexer(waiting);
            keeper.load_values(&kept, &indexer, &memory)?;
            if !keeper.missing(&kept).is_empty() {
                return Ok(None);
            }
            keeper.side(&kept, &indexer, &memory).map(Some)
        };
        blocking(work).await
    }

    /// The segments of a build side: those that are kept, with the values that they lack, and a new one of the rows
    /// that have been appended. Keeps them for later queries; `None` if all rows have to be built anew.
    pub(crate) async fn build_segments(
        &self,
        kept: KeptSegments<Segment>,
    ) -> Result<Option<Vec<Arc<BuildSide>>>> {
        let (mut sides, mut segments) = (vec![], vec![]);
        for (number, part) in kept.parts.iter().enumerate() {
            let complete = match &part.kept {
                Some(segment) => self.complete_segment(&part.keeper, segment).await?,
                None => None,
            };
            let (side, segment) = match (complete, &part.kept) {
                (Some(side), Some(segment)) => (side, Arc::clone(segment)),
                (_, known) => {
                    let Some(rows) = self.collect_all(kept.read(number)?).await? else {
                        return Ok(None);
                    };
                    // Otherwise these may be values of other rows.
                    if known.is_some() && !kept.keeper.is_unchanged().await {
                        return exec_err!(
                            "a file of a range join has changed while the query was running; run the query again"
                        );
                    }
                    let started = Instant::now();
                    let built = self
                        .build_segment(&part.keeper, known.clone(), rows)
                        .await?;
                    self.metrics.record_build(started);
                    built
                }
            };
            sides.push(self.finish(side));
            segments.push(segment);
        }
        let bytes = sides.iter().map(|side| side.registered_bytes()).sum();
        self.metrics.build_mem_used.set_max(bytes);
        kept.keep(segments).await;
        Ok(Some(sides))
    }

    /// Makes what sorts and indexes rows, given what it waits for.
    fn indexer(&self) -> impl FnOnce(Waiting) -> SortAndIndex + Send + 'static {
        let (columns, metrics) = (self.columns.clone(), self.metrics.clone());
        let threads = self.options.threads();
        let devices = Some(self.engine.copy_devices(&self.options));
        move |waiting| SortAndIndex {
            columns,
            metrics,
            threads,
            devices,
            waiting,
        }
    }

    /// Ends the build: releases memory that was granted for more.
    pub(crate) fn finish(&self, side: BuildSide) -> Arc<BuildSide> {
        self.memory.stop_retaining();
        Arc::new(side)
    }

    /// A copy of rows, registered once more, to be spilled if building runs out of memory; `None` if rows can't be.
    pub(crate) fn copy_to_spill(&self, rows: &CollectedRows) -> Result<Option<CollectedRows>> {
        if self.store.is_none() {
            return Ok(None);
        }
        let memory = self.memory.reservation();
        memory.try_grow(rows.memory.size())?;
        Ok(Some(CollectedRows {
            schema: Arc::clone(&rows.schema),
            batches: rows.batches.clone(),
            memory,
        }))
    }

    /// Writes rows to disk.
    pub(crate) async fn spill(&self, rows: CollectedRows) -> Result<BuildRuns> {
        let Some(store) = &self.store else {
            return internal_err!("a range join without a disk is to spill rows");
        };
        let mut runs = store.new_runs(self.memory.granted_bytes());
        let first_row = RowPosition::default();
        store.write(rows.batches, first_row, &mut runs).await?;
        drop(rows.memory);
        Ok(runs)
    }

    /// Adds to an out-of-memory error why nothing was spilled.
    pub(crate) fn explain_out_of_memory(&self, error: DataFusionError) -> DataFusionError {
        let DataFusionError::ResourcesExhausted(message) = error.find_root() else {
            return error;
        };
        let why = if self.store.is_some() {
            return error;
        } else if let Some(call) = self.columns.accumulated() {
            let call = &call.text;
            format!("The build side of a range join with {call} is not written to disk")
        } else if self.columns.returns_in_order {
            "The build side of a range join that returns the nearest rows is not written to disk"
                .to_string()
        } else if self.columns.returns_rows && !self.is_probe_bounded {
            "The build side of a range join that returns rows of an endless input is not written to disk".to_string()
        } else if !self.runtime.disk_manager.tmp_files_enabled() {
            "The build side of a range join can't be written to disk, as the DiskManager is disabled".to_string()
        } else {
            return error;
        };
        DataFusionError::ResourcesExhausted(format!("{message}. {why}"))
    }
}
