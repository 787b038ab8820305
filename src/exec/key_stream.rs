//! The stream of one partition: finds what matches each probe row, asks for the aggregates, adds them.

use std::future::Future;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, UInt64Array};
use arrow::compute::{filter_record_batch, take};
use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::metrics::RecordOutput;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{StreamExt, TryStreamExt};

use super::key_build::BuildSide;
use super::key_metrics::ProbeMetrics;
use super::key_prevailing::Prevailing;
use crate::index::Segments;
use crate::plan::{KeyJoinSpec, Unmatched};

/// What one partition needs to answer its batches.
#[derive(Debug)]
pub(super) struct Probing {
    pub(super) schema: SchemaRef,
    pub(super) spec: Arc<KeyJoinSpec<PhysicalExprRef>>,
    pub(super) metrics: ProbeMetrics,
}

impl Probing {
    /// The probe side with the aggregates, batch by batch. The build side is waited for when the first row is there.
    pub(super) fn stream(
        self,
        probe: SendableRecordBatchStream,
        build: impl Future<Output = Result<Arc<BuildSide>>> + Send + 'static,
    ) -> SendableRecordBatchStream {
        let schema = Arc::clone(&self.schema);
        let start = (self, probe, Waiting::For(Box::pin(build)));
        let batches = futures::stream::try_unfold(start, |(this, mut probe, mut build)| async {
            loop {
                let Some(batch) = probe.try_next().await? else {
                    return Ok(None);
                };
                if batch.num_rows() == 0 {
                    continue;
                }
                let side = match build {
                    Waiting::For(side) => side.await?,
                    Waiting::Done(side) => side,
                };
                let batch = this.answer(&batch, &side)?;
                build = Waiting::Done(side);
                if batch.num_rows() > 0 {
                    return Ok(Some((batch, (this, probe, build))));
                }
            }
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, batches.fuse()))
    }

    fn answer(&self, batch: &RecordBatch, build: &BuildSide) -> Result<RecordBatch> {
        let compute = self.metrics.baseline.elapsed_compute().clone();
        let _timer = compute.timer();
        let rows = batch.num_rows();
        self.metrics.probe_rows.add(rows);
        if self.spec.unmatched == Unmatched::Drop && build.rows().len() == 0 {
            // A join evaluates nothing for pairs that there are none of.
            return Ok(RecordBatch::new_empty(Arc::clone(&self.schema)));
        }
        let evaluate = |e: &PhysicalExprRef| e.evaluate(batch)?.into_array(rows);
        let equal: Vec<ArrayRef> = self
            .spec
            .on
            .iter()
            .map(|(probe, _)| evaluate(probe))
            .collect::<Result<_>>()?;
        let search_timer = self.metrics.search_time.timer();
        let mut segments = build.rows().start(rows, &equal)?;
        let mut prevailing = (self.spec.prevailing).then(|| Prevailing::among(segments.clone()));
        for (comparison, bound) in &self.spec.bounds {
            let can_match = prevailing.as_ref().map_or(&segments, Prevailing::groups);
            let bounds = evaluate_where_needed(bound, batch, can_match)?;
            build.rows().narrow(&mut segments, *comparison, &bounds)?;
            if let Some(prevailing) = &mut prevailing {
                prevailing.add(*comparison, bounds)?;
            }
        }
        if let Some(prevailing) = prevailing {
            prevailing.extend(&mut segments, build.rows())?;
        }
        let mut ranges = segments.ranges();
        search_timer.done();

        let mut batch = batch.clone();
        if self.spec.unmatched == Unmatched::Drop && ranges.iter().any(|(l, r)| l > r) {
            let matches: BooleanArray = ranges.iter().map(|(l, r)| Some(l <= r)).collect();
            batch = filter_record_batch(&batch, &matches)?;
            ranges = ranges.iter().filter(|(l, r)| l <= r).collect();
        }
        let query_timer = self.metrics.query_time.timer();
        let answers = build.answer(&ranges)?;
        query_timer.done();
        let columns = batch.columns().iter().cloned().chain(answers).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?;
        Ok(batch.record_output(&self.metrics.baseline))
    }
}

/// The bounds of a batch. A join of pairs evaluates its condition where the equality keys match, so that it meets no error
/// elsewhere; nor does this: after an error only the rows count that can still match.
fn evaluate_where_needed(
    bound: &PhysicalExprRef,
    batch: &RecordBatch,
    segments: &Segments,
) -> Result<ArrayRef> {
    let rows = batch.num_rows();
    let all = bound
        .evaluate(batch)
        .and_then(|bounds| bounds.into_array(rows));
    if all.is_ok() || !segments.are_empty().any(|empty| empty) {
        return all;
    }
    let mut needed = 0_u64;
    let places = segments.are_empty().map(|empty| {
        let place = (!empty).then_some(needed);
        needed += u64::from(!empty);
        place
    });
    let places: UInt64Array = places.collect();
    let mask: BooleanArray = segments.are_empty().map(|empty| Some(!empty)).collect();
    let batch = filter_record_batch(batch, &mask)?;
    let bounds = bound.evaluate(&batch)?.into_array(batch.num_rows())?;
    Ok(take(&bounds, &places, None)?)
}

/// The build side, or what makes it.
enum Waiting<F> {
    For(std::pin::Pin<Box<F>>),
    Done(Arc<BuildSide>),
}
