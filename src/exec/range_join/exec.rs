//! `RangeJoinExec`: joins each probe row with the build rows that have the same equality keys and a range key within
//! the row's bounds, and returns aggregates over them instead of the pairs.
//!
//! ```text
//!   SELECT q.id, min(p.v), count(*) FROM q JOIN p ON p.sym = q.sym AND p.ts BETWEEN q.a AND q.b GROUP BY q.id
//!
//!   AggregateExec: gby=[id]                   AggregateExec: gby=[id]            merges the rows of equal ids
//!     HashJoinExec: on=[sym],          ──▶      RangeJoinExec: type=Inner, on=[sym],
//!         filter=ts BETWEEN a AND b                 range=p.ts in [q.a, q.b], aggs=[min(p.v), count(*)]
//!       q         one row per pair                q                              probe side
//!       p                                         p                              build side
//! ```
//!
//! A join that returns rows, and EXISTS and IN, become a `RangeJoinExec` by a physical rule (`JoinToRangeJoin`).
//!
//! A correlated scalar subquery or a lateral join with an aggregate becomes a `RangeJoinExec` without the
//! `AggregateExec`.
//!
//! # Algorithm
//!
//! With `N` build rows and `Q` probe rows:
//!
//! 1. Collect the partitions of the build side concurrently (`build_side::collect`).
//! 2. Sort the rows by equality keys and range key, rows with equal keys in input order (`build_side::sort_and_index`):
//!    O(N log N); O(N) if they arrive sorted.
//! 3. Prepare each value column for its aggregates (`build_side::column`): prefix sums for counts and sums, a
//!    range-minimum index for minima, maxima and the rows at them, the values themselves for first and last values, the
//!    sorted column for any other aggregate: O(N). On the CPU an index is lazy: it is built when the queried ranges are
//!    long enough to justify it.
//! 4. For each batch of the probe side, find the range of sorted rows that matches each row: a lookup of the equality
//!    keys, then a search per bound (`probe::partition`): O(Q log N).
//! 5. Compute the aggregates of each range (`build_side::aggregate`), each in constant time, or in O(log N) by an
//!    index, and append them to the batch: O(Q log N). Aggregates that have neither read the rows of each range
//!    (`build_side::accumulator`).
//!
//! The total is O((N + Q) log N + output), however many pairs match. Steps 1 to 3 run once per execution and are shared
//! by all partitions of the probe side, or not at all where an earlier query has kept what they make
//! (`build_side::kept`); the output keeps the order and the partitions of the probe side.
//!
//! # Variants
//!
//! - A join that returns rows (`row_join`) takes the pairs of each range instead of step 5, one batch at a time, and
//!   evaluates a further condition on them (`probe::rows`): O(pairs). One that needs to know only whether a row has a
//!   match looks for the first one (`probe::first_match`). If the output depends on which build rows have matched,
//!   these are marked, and the partition that ends last returns build rows, in no defined order. Where only the nearest
//!   rows are wanted, ranges are clipped, or read from one end on (`probe::nearest`).
//! - On devices, steps 2 to 5 run there: rows go up as they came, and coalesced batches of the probe side in one trip
//!   each (`build_side::device_side`, `probe::device_join`). The CPU runs joins that devices lack
//!   (`device_aggregates`), and replaces a device that fails unless `rmq.engine = 'cuda'`.
//! - Where the build side is in files and the probe side ends within a budget, the probe side is read first, and of the
//!   build side only what its windows reach (`reach`, `probe::probe_ahead`). Where the build side is elsewhere, a small
//!   probe side is read between steps 1 and 2, and only build rows that its windows reach are sorted.
//! - Build rows for which the range key fails have no place in the order. They are put aside, and each batch of the
//!   probe side is looked up among them first: one with their equality keys is an error (`probe::key_errors`).
//!
//! - Where `mode=Collected`, the build side arrives in one partition, so that a plan can be divided into tasks; where
//!   `mode=Partitioned`, both inputs are partitioned by hashes of the equality keys, and steps 1 to 5 run for
//!   each partition by itself (`mode`).
//!
//! # Memory
//!
//! Everything is registered with the session's `MemoryPool`. Steps 2 and 3 need up to about three times the memory of
//! the build side; then its keys, the values or indexes that the aggregates need, and what they scan are kept. If the
//! pool is limited and has no more memory, and the disk manager allows it, the build side is written to disk in runs
//! that can each be built in the memory that was granted (`spill`). Every run is then read, built and probed in turn,
//! with the buffered rows of all partitions, and the partial aggregates are merged, or rows are returned run by run
//! (`probe::spilled`). Where the sides come in no order, both are divided by hashes of the equality keys first, so that
//! each run is built once. A build side with aggregates whose values depend on the order of all rows of a range is
//! spilled only if it can be divided so, and the rows with some equality keys must fit into memory.

use std::sync::{Arc, OnceLock};

use arrow::compute::SortOptions;
use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, plan_err};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalExprRef, PhysicalSortExpr};
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::projection::EmbeddedProjection;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};

use crate::exec::common::added_columns::properties_with;
use crate::exec::common::once_per_run::{OncePerRun, PerContext};
use crate::exec::common::ordered_rows::has_all_rows;
use crate::exec::common::plan_key::is_repeatable;
use crate::exec::common::row_positions::{why_no_positions, with_positions};
use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::origin::BuildOrigin;
use crate::exec::range_join::build_side::range_sources::RangeSources;
use crate::exec::range_join::engine_choice::RangeJoinEngine;
use crate::exec::range_join::mode::{JoinMode, why_shared};
use crate::exec::range_join::parts::RangeJoinParts;
use crate::exec::range_join::probe::probe_ahead::is_worthwhile;
use crate::exec::range_join::probe::probe_build::JoinRun;
use crate::exec::range_join::probe::segments::SegmentedSide;
use crate::exec::range_join::reach::pruned_plan::may_prune;
use crate::exec::range_join::reach::sought::{Sought, from_point};
use crate::exec::range_join::reach::window_reach::{has_reach, is_known_to_scans};
use crate::exec::range_join::row_join::RowJoin;
use crate::exec::range_join::row_properties::row_properties;
use crate::kept::catalog::{IndexCatalog, SharedIndexes};
use datafusion_rmq_logical::common::options::{PruningChoice, RmqOptions, SessionRole};
use datafusion_rmq_logical::logical_plan::range_join::{RangeAggregate, RangeJoinSpec};

/// Returns the rows of the probe side, each with aggregates over the build rows that match it, or the rows that match,
/// or the rows of one side by whether they match. Keeps the partitions of the probe side, and its order unless rows of
/// the build side are returned. The build side is collected, sorted and indexed once, on disk if it exceeds the memory:
/// O((N + Q) log N) for N build rows and Q probe rows.
#[derive(Debug)]
pub struct RangeJoinExec {
    pub(super) probe: Arc<dyn ExecutionPlan>,
    pub(super) build: Arc<dyn ExecutionPlan>,
    /// The keys, bounds and aggregates, what is made of pairs, and how the sides are divided.
    pub(super) parts: RangeJoinParts,
    pub(super) engine: RangeJoinEngine,
    pub(super) properties: Arc<PlanProperties>,
    pub(super) metrics: ExecutionPlanMetricsSet,
    /// What the partitions of an execution share.
    pub(super) run: Arc<OncePerRun<JoinRun>>,
    /// Whether the scan of the build side prunes by what windows reach, once that has been asked.
    pub(super) may_prune: OnceLock<bool>,
    /// Where the build side comes from, in plans of EXPLAIN.
    pub(super) origin: Option<BuildOrigin>,
    /// What aggregates the ranges that it returns, which another operator of the plan shares.
    pub(super) range_sources: Option<Arc<PerContext<RangeSources>>>,
}

impl RangeJoinExec {
    /// The join of these inputs. One that makes something of single pairs runs on the CPU.
    pub(crate) fn try_new(
        probe: Arc<dyn ExecutionPlan>,
        build: Arc<dyn ExecutionPlan>,
        parts: RangeJoinParts,
        engine: RangeJoinEngine,
    ) -> Result<Self> {
        let spec = &parts.spec;
        let outputs = spec.aggregates.iter().map(RangeAggregate::field);
        let metadata = spec.metadata.clone().into_iter().collect();
        let properties = match &parts.row_join {
            Some(join) if !join.returns_probe_rows() => row_properties(&probe, &build, join)?,
            _ => properties_with(probe.as_ref(), outputs, metadata)?,
        };
        Ok(Self {
            probe,
            build,
            parts,
            engine,
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
            run: Arc::default(),
            may_prune: OnceLock::new(),
            origin: None,
            range_sources: None,
        })
    }

    /// The same join, which shares what aggregates the ranges that it returns with the operator above GROUP BY.
    pub(crate) fn with_range_sources(self, sources: Arc<PerContext<RangeSources>>) -> Self {
        Self {
            range_sources: Some(sources),
            ..self
        }
    }

    /// Returns the same join in another mode. The inputs of a partitioned join must be partitioned by hashes of the
    /// equality keys into as many partitions each, those of a collected join must have one partition where it requires
    /// that, as `EnsureRequirements` of DataFusion sees to. Collected joins whose result depends on the order of build
    /// rows are better planned in that mode: `EnsureRequirements` puts partitions into one in any order. Build rows of
    /// partitioned ones get a column that has their position, by which `EnsureRequirements` sorts them.
    ///
    /// # Errors
    /// A planning error that says why the join can't be partitioned: it has no equality keys, or these are of different
    /// types, or its result depends on the order of build rows with equal keys and these have no position, or a key is
    /// volatile, or its probe side has no end.
    pub fn with_mode(&self, mode: JoinMode) -> Result<Self> {
        if mode == JoinMode::Partitioned
            && let Some(reason) = self.why_shared()?
        {
            let label = self.label();
            return plan_err!("the range join {label} can't be partitioned: {reason}");
        }
        let mut parts = RangeJoinParts {
            mode,
            is_undivided: self.parts.is_undivided && mode == self.parts.mode,
            ..self.parts.clone()
        };
        if mode != JoinMode::Partitioned || !self.needs_positions() {
            return self.with_parts(parts);
        }
        parts.position = Some(self.build.schema().fields().len());
        self.remade(Arc::clone(&self.probe), with_positions(&self.build)?, parts)
    }

    /// Whether build rows must get positions before they are partitioned.
    fn needs_positions(&self) -> bool {
        self.parts.position.is_none() && self.row_order_matters()
    }

    /// The same join, which shows whether its build side is among those that the catalog keeps, and what it has done
    /// once it has run. `keeps` tells whether queries of the session keep build sides.
    pub(crate) fn with_origin(
        &self,
        catalog: &IndexCatalog,
        keeps: bool,
        config: &ConfigOptions,
    ) -> Result<Self> {
        let (columns, row_join) = (self.build_columns(), self.parts.row_join.as_deref());
        let is_bounded = !self.probe.boundedness().is_unbounded();
        let merges = keeps && SegmentedSide::may_answer(&columns, row_join, is_bounded);
        let threshold = row_join.and_then(RowJoin::threshold);
        let is_repeated = threshold.is_none_or(|threshold| is_repeatable(&*threshold.value));
        let origin = match self.parts.mode {
            JoinMode::Shared | JoinMode::Collected if is_repeated => {
                let on = self.engine.candidates(RmqOptions::of(config).engine);
                BuildOrigin::planned(catalog, &self.build, &columns, merges, on, config)
            }
            _ => BuildOrigin::Built,
        };
        // A build side that is sent to several tasks is read by others.
        let is_divided = RmqOptions::of(config).role == SessionRole::DividesPlans;
        let is_read = !is_divided || has_all_rows(&self.build);
        let origin = match origin {
            BuildOrigin::Built if is_read && self.reads_less(config)? => BuildOrigin::Pruned,
            other => other,
        };
        Ok(Self {
            origin: Some(origin),
            ..self.with_parts(self.parts.clone())?
        })
    }

    /// Whether the probe side may be read ahead, so that of the build side only what its windows reach is read or
    /// sorted. Not if another process has sent the plan, unless it is a whole task: another one may read the other
    /// partitions.
    ///
    /// # Errors
    /// Those of the operators.
    pub(super) fn reads_ahead(&self, config: &ConfigOptions) -> Result<bool> {
        let options = RmqOptions::of(config);
        let is_shared = matches!(self.parts.mode, JoinMode::Shared | JoinMode::Collected);
        let marks_rows = self
            .parts
            .row_join
            .as_ref()
            .is_some_and(|join| join.marks_build_rows());
        let reads_ahead = options.pruning != PruningChoice::Never
            && options.pruning_memory.0 > 0
            && is_shared
            && !marks_rows
            && (options.role == SessionRole::RunsTasks || !self.run.is_one_run())
            && !self.probe.boundedness().is_unbounded()
            && has_reach(&self.reach_spec())
            // Rows that are in no window are only sought in files.
            && (self.has_window() || self.prunes_scan(config)?);
        Ok(reads_ahead)
    }

    /// Whether the scan of the build side prunes by what windows reach. Otherwise the rows are compared with that.
    ///
    /// # Errors
    /// Those of the operators.
    pub(super) fn prunes_scan(&self, config: &ConfigOptions) -> Result<bool> {
        if let Some(may_prune) = self.may_prune.get() {
            return Ok(*may_prune);
        }
        let spec = self.reach_spec();
        let may_prune = is_known_to_scans(&spec, &self.build.schema())
            && (self.has_window() || self.sought().is_some())
            && may_prune(&self.build, &spec.key, config)?;
        Ok(*self.may_prune.get_or_init(|| may_prune))
    }

    /// The join whose bounds tell what is reached: if it has none, but a point to which rows are nearest, that one.
    pub(super) fn reach_spec(&self) -> Arc<RangeJoinSpec<PhysicalExprRef>> {
        let from_point = from_point(&self.parts.spec, self.parts.row_join.as_deref());
        from_point.map_or_else(|| Arc::clone(&self.parts.spec), Arc::new)
    }

    /// Whether all rows that count are in windows.
    fn has_window(&self) -> bool {
        !self.parts.spec.prevailing && !self.parts.spec.bounds.is_empty()
    }

    /// The rows that are nearest to bounds, if only these count of open windows, or beside windows.
    pub(super) fn sought(&self) -> Option<Sought> {
        Sought::of(
            &self.parts.spec,
            self.parts.row_join.as_deref(),
            &self.build.schema(),
        )
    }

    /// Whether a run that finds no kept rows may read less than all.
    pub(super) fn reads_less(&self, config: &ConfigOptions) -> Result<bool> {
        let choice = RmqOptions::of(config).pruning;
        let reads_ahead = self.reads_ahead(config)? && self.prunes_scan(config)?;
        Ok(reads_ahead && is_worthwhile(choice, &self.build))
    }

    /// The same partitioned join, whose sides have one partition each and must keep it.
    pub(crate) fn undivided(&self) -> Result<Self> {
        self.with_parts(RangeJoinParts {
            is_undivided: true,
            ..self.parts.clone()
        })
    }

    /// The same join with other parts.
    fn with_parts(&self, parts: RangeJoinParts) -> Result<Self> {
        self.remade(Arc::clone(&self.probe), Arc::clone(&self.build), parts)
    }

    /// The same join with other inputs and parts.
    pub(super) fn remade(
        &self,
        probe: Arc<dyn ExecutionPlan>,
        build: Arc<dyn ExecutionPlan>,
        parts: RangeJoinParts,
    ) -> Result<Self> {
        Ok(Self {
            run: Arc::new(self.run.renewed()),
            origin: self.origin,
            range_sources: self.range_sources.clone(),
            ..Self::try_new(probe, build, parts, self.engine.clone())?
        })
    }

    /// Whether each probe row is returned exactly once.
    pub(super) fn returns_each_probe_row(&self) -> bool {
        matches!(self.cardinality_effect(), CardinalityEffect::Equal)
    }

    /// The columns of the output that are columns of the probe side, with their indexes there, if an output row is lost
    /// exactly if its probe row is.
    pub(super) fn columns_for_filters(&self) -> Vec<(usize, usize)> {
        let probe_columns = self.probe.schema().fields().len();
        match self.returned_rows() {
            None => (0..probe_columns).map(|index| (index, index)).collect(),
            // Build rows are returned by whether any probe row matches.
            Some(join) if join.marks_build_rows() => vec![],
            Some(join) => {
                // None where a column tells whether a row has matched.
                let columns = join.column_indices(probe_columns).unwrap_or_default();
                let columns = columns.into_iter().enumerate();
                columns
                    .filter(|(_, index)| *index < probe_columns)
                    .collect()
            }
        }
    }

    /// Why the sides can't be partitioned by the equality keys, if they can't.
    ///
    /// # Errors
    /// Those of the types of the keys.
    pub fn why_shared(&self) -> Result<Option<String>> {
        let reason = self.why_undivided()?;
        if reason.is_some() || !self.needs_positions() {
            return Ok(reason);
        }
        let because = |reason| {
            format!("its result depends on the order of rows with equal keys, and {reason}")
        };
        Ok(why_no_positions(&self.build).map(because))
    }

    /// Why both sides can't be divided by hashes of the equality keys even by an operator that keeps the order of rows,
    /// if they can't.
    fn why_undivided(&self) -> Result<Option<String>> {
        let schemas = (&*self.probe.schema(), &*self.build.schema());
        let is_probe_bounded = !self.probe.boundedness().is_unbounded();
        why_shared(&self.parts.spec, schemas, is_probe_bounded)
    }

    /// Whether both sides may be divided by hashes of the equality keys by an operator that keeps the order of rows.
    pub(super) fn may_divide(&self) -> Result<bool> {
        Ok(self.why_undivided()?.is_none())
    }

    /// The order in which each partition of the build side must be, if it must.
    pub(super) fn build_order(&self) -> Option<LexOrdering> {
        let position = self
            .parts
            .position
            .filter(|_| self.parts.mode == JoinMode::Partitioned)?;
        let schema = self.build.schema();
        let column = Column::new(schema.fields().get(position)?.name(), position);
        let ascending = SortOptions::default();
        LexOrdering::new([PhysicalSortExpr::new(Arc::new(column), ascending)])
    }

    /// Whether the build side is in that order.
    pub(super) fn is_build_ordered(&self) -> Result<bool> {
        let known = self.build.equivalence_properties();
        let order = self.build_order();
        order.map_or(Ok(false), |order| known.ordering_satisfy(order))
    }

    /// How the build side is divided among the partitions of the probe side.
    #[must_use]
    pub fn mode(&self) -> JoinMode {
        self.parts.mode
    }

    /// Whether an engine that divides a plan into tasks must execute the join in one of them. Then both inputs must
    /// have a single partition. Shared joins do not say what they need.
    #[must_use]
    pub fn needs_one_task(&self) -> bool {
        match self.parts.mode {
            JoinMode::Shared => false,
            JoinMode::Collected => {
                let row_join = self.parts.row_join.as_ref();
                row_join.is_some_and(|join| join.marks_build_rows())
                    || self.row_order_matters() && !has_all_rows(&self.build)
            }
            JoinMode::Partitioned => self.parts.is_undivided,
        }
    }

    /// What is made of single pairs, if rows and not only aggregates are returned.
    pub(crate) fn returned_rows(&self) -> Option<&Arc<RowJoin>> {
        let row_join = self.parts.row_join.as_ref();
        row_join.filter(|join| !join.returns_probe_rows())
    }

    /// The side whose rows are kept.
    #[must_use]
    pub fn probe(&self) -> &Arc<dyn ExecutionPlan> {
        &self.probe
    }

    /// The side whose rows are aggregated.
    #[must_use]
    pub fn build(&self) -> &Arc<dyn ExecutionPlan> {
        &self.build
    }

    /// The keys, bounds and aggregates.
    #[must_use]
    pub fn spec(&self) -> &RangeJoinSpec<PhysicalExprRef> {
        &self.parts.spec
    }

    /// The keys, bounds and aggregates as EXPLAIN shows them, in the query's column names.
    #[must_use]
    pub fn label(&self) -> String {
        self.parts.label.join(", ")
    }

    /// The probe side and the build side.
    pub(crate) fn inputs(&self) -> [&Arc<dyn ExecutionPlan>; 2] {
        [&self.probe, &self.build]
    }

    /// Whether the join makes something of single pairs of rows: it returns rows, or has a further condition on them.
    /// The spec alone does not describe such a join.
    #[must_use]
    pub fn is_row_join(&self) -> bool {
        self.parts.row_join.is_some()
    }

    /// Whether it returns rows of the build side, not only aggregates over them.
    pub(crate) fn returns_rows(&self) -> bool {
        self.returned_rows().is_some()
    }

    /// Whether the result depends on the order of build rows with equal keys.
    pub(crate) fn row_order_matters(&self) -> bool {
        self.build_columns().row_order_matters()
    }

    /// The columns of the build side that the join reads.
    pub(super) fn build_columns(&self) -> BuildColumns {
        BuildColumns::new(
            &self.parts.spec,
            self.parts.row_join.as_deref(),
            &self.build.schema(),
        )
    }
}

impl RangeJoinParts {
    /// The parts of a planned join, which shows `label` in EXPLAIN.
    pub(crate) fn planned(
        spec: RangeJoinSpec<PhysicalExprRef>,
        row_join: Option<RowJoin>,
        label: Vec<String>,
        mode: JoinMode,
    ) -> Self {
        Self {
            spec: Arc::new(spec),
            row_join: row_join.map(Arc::new),
            label,
            mode,
            is_undivided: false,
            position: None,
            fetch: None,
            probe_rows: None,
        }
    }

    /// The parts of `join`.
    #[must_use]
    pub fn of(join: &RangeJoinExec) -> Self {
        join.parts.clone()
    }

    /// The join of these inputs, which is executed once, in a session with `target_partitions` partitions. It chooses
    /// the engine when the build rows have been collected, by the options of the session that executes it, among the
    /// devices of `indexes`.
    ///
    /// # Errors
    /// If an expression does not fit its input.
    pub fn join(
        self,
        (probe, build): (Arc<dyn ExecutionPlan>, Arc<dyn ExecutionPlan>),
        indexes: &SharedIndexes,
        target_partitions: usize,
    ) -> Result<RangeJoinExec> {
        let engine = match &self.row_join {
            Some(_) => RangeJoinEngine::cpu(),
            None => RangeJoinEngine::unplanned(
                Arc::clone(&indexes.0),
                &self.spec,
                &build.schema(),
                self.probe_rows,
                target_partitions,
            )?,
        };
        Ok(RangeJoinExec {
            run: Arc::new(OncePerRun::of_one_run()),
            ..RangeJoinExec::try_new(probe, build, self, engine)?
        })
    }
}

impl EmbeddedProjection for RangeJoinExec {
    fn with_projection(&self, projection: Option<Vec<usize>>) -> Result<Self> {
        let mut parts = self.parts.clone();
        if let (Some(join), Some(columns)) = (&parts.row_join, projection) {
            parts.row_join = Some(Arc::new(join.project(&columns)?));
        }
        self.with_parts(parts)
    }
}
