//! Joins of a plan that is divided into tasks, of which each reads the slice of the build side that its windows reach.
//!
//! ```text
//!   probe side, by time:   ├─ task 1 ─┼─ task 2 ─┼─ task 3 ─┤      each task reads its files first,
//!   build side, by time:  ├── slice 1 ──┤                          then what their windows reach of the build side:
//!                                    ├── slice 2 ──┤               no row of either side is sent
//!                                               ├── slice 3 ──┤
//! ```
//!
//! That is worth it if a slice is smaller than what a task would be sent. How large it is, is estimated by the
//! extremes of the probe side's columns, between which rows are taken to be evenly distributed.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, ScalarValue, Statistics};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{LexOrdering, PhysicalExprRef, PhysicalSortExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::ensure_requirements::EnsureRequirements;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::exec::common::ordered_rows::OrderedRowsExec;
use crate::exec::common::plan_key::ScanPlan;
use crate::exec::common::statistics::{expected_rows, expected_scanned_rows, statistics};
use crate::exec::range_join::exec::RangeJoinExec;
use crate::exec::range_join::mode::JoinMode;
use crate::exec::range_join::probe::probe_ahead::MAX_SHARE;
use crate::exec::range_join::probe::probe_input::MAX_ROWS_AHEAD;
use crate::exec::range_join::reach::build_extent::extremes;
use crate::exec::range_join::reach::intervals::{Intervals, number};
use crate::exec::range_join::reach::nearest_rows::GREATEST_SHARE;
use crate::exec::range_join::reach::probe_keys::{are_worth_reading, can_be_read};
use crate::exec::range_join::reach::seekers::Seeking;
use crate::exec::range_join::reach::statistics_reach::is_told_by_row_groups;
use datafusion_rmq_logical::common::options::{PruningChoice, RmqOptions};
use datafusion_rmq_logical::logical_plan::range_join::RangeJoinSpec;
use rmq_engine::Comparison;

/// A probe side whose files are in the order of a column of its bounds.
struct Ordered {
    probe: Arc<dyn ExecutionPlan>,
    /// The most parts that follow one another.
    parts: usize,
}

impl RangeJoinExec {
    /// The part of the build rows that each of `tasks` tasks reaches, about, if each reads the build side by itself;
    /// `None` if that can't be told, or it is so much that they would read all of them.
    ///
    /// # Errors
    /// Those of the operators.
    pub fn slice_of_task(&self, tasks: usize, config: &ConfigOptions) -> Result<Option<f64>> {
        let build = self.build.downcast_ref::<OrderedRowsExec>();
        let build = build.map_or(&self.build, OrderedRowsExec::hidden);
        let reads_files = || ScanPlan::of_any_files(build).is_some_and(|plan| plan.reads_files());
        let is_read =
            self.parts.mode == JoinMode::Collected && !self.needs_one_task() && reads_files();
        let spec = self.reach_spec();
        if !is_read || spec.bounds.is_empty() || !self.reads_less(config)? {
            return Ok(None);
        }
        let ordered = in_order_of_bounds(&self.probe, &spec);
        let parts = ordered.map_or(1, |ordered| ordered.parts.min(tasks));
        let options = RmqOptions::of(config);
        let fits = fits(&self.probe, tasks, options.pruning_memory.0);
        let slice = match self.sought() {
            Some(sought) => {
                let seeking = Seeking::try_new(&spec, sought, &build.schema())?;
                let bounds = seeking.around_bounds();
                let slice = expected_slice(&self.probe, build, &spec.key, &bounds, parts);
                let slice = slice.map(|slice| slice + GREATEST_SHARE);
                slice.filter(|share| {
                    let rows = expected_rows(&self.probe).zip(expected_scanned_rows(build));
                    let is_worth_it = |(probe, build): (usize, usize)| {
                        options.pruning == PruningChoice::Always
                            || are_worth_reading(probe / tasks, build, *share)
                    };
                    let reads_keys = || can_be_read(&seeking, &self.probe);
                    fits || rows.is_some_and(is_worth_it) && reads_keys()
                })
            }
            None => {
                let is_known = fits || is_told_by_row_groups(&spec.bounds, &self.probe);
                let slice = || expected_slice(&self.probe, build, &spec.key, &spec.bounds, parts);
                is_known.then(slice).flatten()
            }
        };
        let is_little =
            |share: &f64| options.pruning == PruningChoice::Always || *share <= MAX_SHARE;
        Ok(slice.filter(is_little))
    }

    /// The same collected join, each of whose tasks reads by itself what its windows reach of the build side. The files
    /// of the probe side are in the order of a column of the bounds, if that can be had, so that each reaches little.
    ///
    /// # Errors
    /// Those of the operators.
    pub fn in_slices(&self, config: &ConfigOptions) -> Result<Self> {
        let rows = match self.build.downcast_ref::<OrderedRowsExec>() {
            Some(rows) => rows.in_slices(),
            None => {
                let build = EnsureRequirements::new().optimize(Arc::clone(&self.build), config)?;
                let is_one = build.output_partitioning().partition_count() == 1;
                let gathered = || Arc::new(CoalescePartitionsExec::new(Arc::clone(&build))) as _;
                let build = if is_one { build } else { gathered() };
                OrderedRowsExec::of_one_partition(build).in_slices()
            }
        };
        let ordered = in_order_of_bounds(&self.probe, &self.reach_spec());
        let probe = ordered.map_or_else(|| Arc::clone(&self.probe), |ordered| ordered.probe);
        self.remade(probe, Arc::new(rows), self.parts.clone())
    }
}

/// Whether a task reads all of its probe rows ahead.
fn fits(probe: &Arc<dyn ExecutionPlan>, tasks: usize, bytes: usize) -> bool {
    let Some(known) = statistics(probe) else {
        return false;
    };
    let (rows, size) = (
        known.num_rows.get_value(),
        known.total_byte_size.get_value(),
    );
    rows.is_some_and(|rows| rows / tasks <= MAX_ROWS_AHEAD)
        && size.is_none_or(|size| size / tasks <= bytes)
}

/// The part of the build rows that the windows of one of `parts` equal parts of the probe side reach.
fn expected_slice(
    probe: &Arc<dyn ExecutionPlan>,
    build: &Arc<dyn ExecutionPlan>,
    key: &PhysicalExprRef,
    bounds: &[(Comparison, PhysicalExprRef)],
    parts: usize,
) -> Option<f64> {
    let key_type = key.data_type(&build.schema()).ok()?;
    let known = statistics(build)?;
    let (min, max) = extremes(&known, key)?;
    let ends = ends_of_columns(statistics(probe)?.as_ref(), &probe.schema())?;
    let bounds = bounds.iter().map(|(comparison, bound)| {
        let values = bound.evaluate(&ends).ok()?.into_array(2).ok()?;
        Some((*comparison, values))
    });
    let bounds: Vec<_> = bounds.collect::<Option<_>>()?;
    let share = |first: usize, rows: usize| {
        let sliced = bounds.iter();
        let sliced: Vec<_> = sliced
            .map(|(comparison, values)| (*comparison, values.slice(first, rows)))
            .collect();
        let mut reached = Intervals::of_type(&key_type).ok()?;
        let has_window = reached.add(&sliced).ok()?;
        let is_known = has_window.into_iter().all(|has_window| has_window);
        // With all gaps: a task reads these, too, if its windows are next to one another.
        is_known.then(|| reached.share(&min, &max, 1.0)).flatten()
    };
    let (all, window) = (share(0, 2)?, share(0, 1)?.max(share(1, 1)?));
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    Some(window + (all - window) / parts as f64)
}

/// Two rows: the least value of each column and the greatest, NULL where they are not known.
fn ends_of_columns(statistics: &Statistics, schema: &Schema) -> Option<RecordBatch> {
    let columns = schema.fields().iter().zip(&statistics.column_statistics);
    let columns = columns.map(|(field, known)| {
        let data_type = field.data_type();
        let ends = [&known.min_value, &known.max_value].map(|end| match end.get_value() {
            Some(end) => end.cast_to(data_type).ok(),
            None => ScalarValue::try_from(data_type).ok(),
        });
        let ends = ends.into_iter().collect::<Option<Vec<_>>>()?;
        ScalarValue::iter_to_array(ends).ok()
    });
    let columns: Vec<ArrayRef> = columns.collect::<Option<_>>()?;
    let fields = schema.fields().iter();
    let fields = fields.map(|field| field.as_ref().clone().with_nullable(true));
    let schema: SchemaRef = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    RecordBatch::try_new(schema, columns).ok()
}

/// The probe side with its files in the order of a column of the bounds, by the extremes in their statistics. `None` if
/// they have none, or overlap, or are in the order of another column, or the probe side is no scan of files.
fn in_order_of_bounds(
    probe: &Arc<dyn ExecutionPlan>,
    spec: &RangeJoinSpec<PhysicalExprRef>,
) -> Option<Ordered> {
    let scanned = ScanPlan::of_any_files(probe)?;
    let files = scanned.only_files()?;
    let mut bounds = spec.bounds.iter();
    let column = bounds.find_map(|(_, bound)| collect_columns(bound).into_iter().next())?;
    let column: PhysicalExprRef = Arc::new(column);
    let column = scanned
        .over_scan(&column)?
        .downcast_ref::<Column>()?
        .index();
    // The order of the rows in each file. An order that is kept without being stated is that of the files.
    let mut stated = files.output_ordering.iter().map(LexOrdering::first);
    let is_of_column = |order: &&PhysicalSortExpr| {
        let first = order.expr.downcast_ref::<Column>();
        first.is_some_and(|first| first.index() == column)
    };
    let order = stated.find(is_of_column);
    if order.is_none() && files.preserve_order || files.output_partitioning.is_some() {
        return None;
    }
    let all: Vec<_> = files.file_groups.iter().flat_map(FileGroup::iter).collect();
    let mut sorted = sorted_by(column, &all)?;
    if order.is_some_and(|order| order.options.descending) {
        sorted.reverse();
    }
    let parts = match order {
        Some(_) => usize::MAX,
        None => sorted.chunk_by(|a, b| a.path() == b.path()).count(),
    };
    let is_sorted = sorted.iter().zip(&all).all(|(a, b)| std::ptr::eq(*a, *b));
    if is_sorted {
        let probe = Arc::clone(probe);
        return Some(Ordered { probe, parts });
    }
    let (number, groups) = (sorted.len(), files.file_groups.len());
    let groups = (0..groups).map(|group| {
        let [begin, end] = [group, group + 1].map(|i| i * number / groups);
        FileGroup::new(sorted[begin..end].iter().copied().cloned().collect())
    });
    let groups: Vec<_> = groups.collect();
    let replaced = Arc::clone(probe).transform_up(|plan| {
        let scan = plan.downcast_ref::<DataSourceExec>();
        let Some(scan) = scan.filter(|scan| scan.data_source().is::<FileScanConfig>()) else {
            return Ok(Transformed::no(plan));
        };
        let mut sorted = files.clone();
        sorted.file_groups.clone_from(&groups);
        let scan = scan.clone().with_data_source(Arc::new(sorted));
        Ok(Transformed::yes(Arc::new(scan)))
    });
    let probe = replaced.data().ok()?;
    Some(Ordered { probe, parts })
}

/// Files, or parts of files, in ascending order of a column; `None` if that is not known, or they overlap.
fn sorted_by<'a>(column: usize, files: &[&'a PartitionedFile]) -> Option<Vec<&'a PartitionedFile>> {
    let extremes = files.iter().map(|file| {
        let known = file.statistics.as_ref()?.column_statistics.get(column)?;
        let min = number(known.min_value.get_value()?)?;
        let max = number(known.max_value.get_value()?)?;
        Some((min, max, *file))
    });
    let mut sorted: Vec<_> = extremes.collect::<Option<_>>()?;
    let begin = |file: &PartitionedFile| file.range.as_ref().map(|range| range.start);
    sorted
        .sort_by(|(a, _, file), (b, _, other)| a.total_cmp(b).then(begin(file).cmp(&begin(other))));
    let mut pairs = sorted.windows(2);
    let follow = |pair: &[(f64, f64, &PartitionedFile)]| {
        let ((_, end, file), (begin, _, next)) = (pair[0], pair[1]);
        end <= begin || file.path() == next.path()
    };
    let is_disjoint = pairs.all(follow);
    is_disjoint.then(|| sorted.into_iter().map(|(_, _, file)| file).collect())
}
