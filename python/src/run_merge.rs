//! The merge of ordered partitions that take turns by whole batches, without a comparison for each row and without a
//! copy.
//!
//! The join functions order their rows by a column that numbers those of the left frame. It is one partition, whose
//! batches are dealt to several, so each has runs of consecutive numbers, as long as a batch. `DataFusion`'s merge
//! compares row by row, and copies all columns. This one finds by a binary search how many rows of the batch that comes
//! first are before all other partitions, and returns them as a slice.
//!
//! ```text
//!   SortPreservingMergeExec: [__row ASC]              RunMergeExec: column=__row
//!     RangeJoinExec: …                        ──▶       RangeJoinExec: …
//!       RepartitionExec: RoundRobinBatch(2)               RepartitionExec: RoundRobinBatch(2)
//!         DataSourceExec: __left                            DataSourceExec: __left
//! ```

use std::fmt;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{DataType, UInt64Type};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{OrderingRequirements, PhysicalExprRef};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::{
    CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions,
};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::{RecordBatchReceiverStream, RecordBatchStreamAdapter};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning,
    PlanProperties,
};
use futures::{StreamExt, stream};

/// Batches that a partition may be ahead of the merge.
const AHEAD: usize = 2;

/// Puts the merge of runs in the place of `DataFusion`'s.
#[derive(Debug)]
pub struct MergeRuns;

impl PhysicalOptimizerRule for MergeRuns {
    fn name(&self) -> &'static str {
        "merge_runs"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let merged = plan.transform_up(|plan| {
            Ok(match RunMergeExec::of(&plan) {
                Some(merge) => Transformed::yes(Arc::new(merge) as _),
                None => Transformed::no(plan),
            })
        });
        merged.data()
    }
}

/// Merges ordered partitions by their runs.
#[derive(Debug)]
struct RunMergeExec {
    /// The operator in whose place it is.
    merge: Arc<dyn ExecutionPlan>,
    /// The column by which rows are ordered.
    column: Column,
}

impl RunMergeExec {
    /// The merge of runs in the place of an operator that merges partitions by a number of rows, in order.
    fn of(plan: &Arc<dyn ExecutionPlan>) -> Option<Self> {
        let merge = plan.downcast_ref::<SortPreservingMergeExec>()?;
        let [sort] = merge.expr().as_ref() else {
            return None;
        };
        let column = sort.expr.downcast_ref::<Column>()?;
        let schema = merge.schema();
        let field = schema.field(column.index());
        let is_number = field.data_type() == &DataType::UInt64 && !field.is_nullable();
        let is_whole = merge.fetch().is_none() && !sort.options.descending;
        (is_number && is_whole && has_runs(merge.input())).then(|| Self {
            merge: Arc::clone(plan),
            column: column.clone(),
        })
    }

    fn input(&self) -> &Arc<dyn ExecutionPlan> {
        // A merge has one.
        self.merge.children()[0]
    }
}

/// Whether the partitions of an ordered plan have its batches whole, as they came from one partition.
fn has_runs(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if plan.output_partitioning().partition_count() == 1 {
        return true;
    }
    // Otherwise each may have some rows of each batch.
    let is_dealt = match plan.downcast_ref::<RepartitionExec>() {
        Some(dealt) => matches!(dealt.partitioning(), Partitioning::RoundRobinBatch(_)),
        None => !plan.is::<SortExec>(),
    };
    let keeps = plan.maintains_input_order();
    let mut ordered = plan.children().into_iter().zip(keeps);
    is_dealt && ordered.any(|(child, keeps)| keeps && has_runs(child))
}

impl DisplayAs for RunMergeExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        match t {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "RunMergeExec: column={}", self.column)
            }
            DisplayFormatType::TreeRender => writeln!(f, "column={}", self.column.name()),
        }
    }
}

impl ExecutionPlan for RunMergeExec {
    fn name(&self) -> &'static str {
        "RunMergeExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.merge.properties()
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        self.merge.required_input_ordering()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.merge.children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&PhysicalExprRef) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.merge.apply_expressions(f)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self {
            merge: Arc::clone(&self.merge).replace_children(children, options)?,
            column: self.column.clone(),
        }))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        self.replace_children(children, options)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if partition > 0 {
            return internal_err!("a merge has one partition");
        }
        let input = self.input();
        let partitions = 0..input.output_partitioning().partition_count();
        let partitions = partitions.map(|partition| {
            let mut running = input.execute(partition, Arc::clone(&context))?;
            // All of them run while the merge takes from one.
            let mut ahead = RecordBatchReceiverStream::builder(input.schema(), AHEAD);
            let sender = ahead.tx();
            ahead.spawn(async move {
                while let Some(batch) = running.next().await {
                    if sender.send(batch).await.is_err() {
                        break;
                    }
                }
                Ok(())
            });
            Ok(Partition {
                batches: ahead.build(),
                rest: None,
            })
        });
        let merge = Merge {
            partitions: partitions.collect::<Result<_>>()?,
            column: self.column.index(),
        };
        let runs = stream::try_unfold(merge, async |mut merge| {
            let run = merge.next_run().await?;
            Ok(run.map(|run| (run, merge)))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), runs)))
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.merge.child_stats_requests(partition)
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        self.merge.statistics_from_inputs(inputs, args)
    }
}

struct Partition {
    batches: SendableRecordBatchStream,
    /// Rows that the merge has not returned. `None` before the first batch and after the last.
    rest: Option<RecordBatch>,
}

struct Merge {
    partitions: Vec<Partition>,
    column: usize,
}

impl Merge {
    /// The rows of the partition that comes first which are before all rows of the others.
    async fn next_run(&mut self) -> Result<Option<RecordBatch>> {
        for partition in &mut self.partitions {
            while partition.rest.is_none()
                && let Some(batch) = partition.batches.next().await
            {
                partition.rest = Some(batch?).filter(|batch| batch.num_rows() > 0);
            }
        }
        self.partitions.retain(|partition| partition.rest.is_some());
        let mut first: Option<(u64, usize)> = None;
        let mut limit = u64::MAX;
        for (i, partition) in self.partitions.iter().enumerate() {
            let Some(rest) = &partition.rest else {
                continue;
            };
            let number = numbers(rest, self.column)[0];
            match first {
                Some((least, _)) if least <= number => limit = limit.min(number),
                _ => {
                    limit = first.map_or(limit, |(least, _)| least);
                    first = Some((number, i));
                }
            }
        }
        let Some((_, first)) = first else {
            return Ok(None);
        };
        let rest = &mut self.partitions[first].rest;
        let Some(batch) = rest.take() else {
            return Ok(None);
        };
        // At least one row: the first is at most the limit.
        let rows = numbers(&batch, self.column).partition_point(|number| *number <= limit);
        *rest =
            Some(batch.slice(rows, batch.num_rows() - rows)).filter(|batch| batch.num_rows() > 0);
        Ok(Some(batch.slice(0, rows)))
    }
}

fn numbers(batch: &RecordBatch, column: usize) -> &[u64] {
    batch.column(column).as_primitive::<UInt64Type>().values()
}
