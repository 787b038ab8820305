//! The stream of one partition: finds what matches each probe row, asks for the aggregates, adds them.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, UInt64Array, new_null_array,
};
use arrow::compute::{filter, filter_record_batch, take};
use arrow::datatypes::SchemaRef;
use datafusion::common::{Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::metrics::RecordOutput;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};

use crate::common::dictionaries::fit;
use crate::common::ranges::Ranges;
use crate::exec::range_join::build::side::BuildSide;
use crate::exec::range_join::metrics::ProbeMetrics;
use crate::exec::range_join::probe::on_devices::on_devices;
use crate::exec::range_join::probe::prevailing::Prevailing;
use crate::exec::range_join::probe::side::Side;
use crate::exec::range_join::spill::probe::{Gathered, SpilledSide};
use crate::logical_plan::range_join::{RangeJoinSpec, Unmatched};
use rmq_engine::{CandidateRanges, LastFound};

/// What one partition needs to answer its batches.
#[derive(Debug)]
pub(crate) struct Probing {
    pub(crate) schema: SchemaRef,
    pub(crate) spec: Arc<RangeJoinSpec<PhysicalExprRef>>,
    pub(crate) metrics: ProbeMetrics,
    pub(crate) pool: Arc<dyn MemoryPool>,
}

impl Probing {
    /// The probe side with the aggregates, batch by batch. The build side is waited for when the first row is there.
    pub(crate) fn stream(
        self,
        probe: SendableRecordBatchStream,
        build: impl Future<Output = Result<Arc<Side>>> + Send + 'static,
    ) -> SendableRecordBatchStream {
        let schema = Arc::clone(&self.schema);
        let batches = start(Arc::new(self), probe.fuse().boxed(), build);
        let batches = stream::once(batches).try_flatten();
        Box::pin(RecordBatchStreamAdapter::new(schema, batches.fuse()))
    }

    /// A batch of the probe side with the aggregates, on a thread that may wait.
    pub(crate) fn answer_now(
        &self,
        batch: &RecordBatch,
        build: &BuildSide,
        last_found: &mut LastFound,
    ) -> Result<Vec<RecordBatch>> {
        let (batch, ranges) = self.matching(batch, build, last_found)?;
        build.make_ready_now(&ranges)?;
        let (answers, _) = self.answers(&ranges, build)?;
        self.with_answers(&batch, &answers)
    }

    /// The rows of a batch that come out, and which positions of the build side match each.
    fn matching(
        &self,
        batch: &RecordBatch,
        build: &BuildSide,
        last_found: &mut LastFound,
    ) -> Result<(RecordBatch, Ranges)> {
        self.metrics.probe_rows.add(batch.num_rows());
        if self.spec.unmatched == Unmatched::Drop && build.rows().len() == 0 {
            // A join evaluates nothing for pairs that there are none of.
            return Ok((batch.slice(0, 0), Ranges::new(vec![], vec![])));
        }
        let ranges = self.ranges(batch, build, last_found)?;
        if self.spec.unmatched == Unmatched::Drop && ranges.iter().any(|(l, r)| l > r) {
            let matches: BooleanArray = ranges.iter().map(|(l, r)| Some(l <= r)).collect();
            let batch = filter_record_batch(batch, &matches)?;
            return Ok((batch, ranges.iter().filter(|(l, r)| l <= r).collect()));
        }
        Ok((batch.clone(), ranges))
    }

    /// Which positions of the build side match each row of a batch.
    pub(crate) fn ranges(
        &self,
        batch: &RecordBatch,
        build: &BuildSide,
        last_found: &mut LastFound,
    ) -> Result<Ranges> {
        let _timer = self.metrics.baseline.elapsed_compute().timer();
        let _timer = self.metrics.search_time.timer();
        let mut segments = self.segments(batch, build)?;
        let mut prevailing = (self.spec.prevailing).then(|| Prevailing::among(segments.clone()));
        for (i, (comparison, bound)) in self.spec.bounds.iter().enumerate() {
            let groups = prevailing.as_ref().map_or(&segments, Prevailing::groups);
            let bounds = evaluate_where_needed(bound, batch, || groups.can_match())?;
            let number = (i, *comparison);
            build
                .rows()
                .narrow(&mut segments, number, &bounds, last_found)?;
            if let Some(prevailing) = &mut prevailing {
                prevailing.add(*comparison, bounds)?;
            }
        }
        if let Some(prevailing) = prevailing {
            let number = self.spec.bounds.len();
            prevailing.extend(&mut segments, build.rows(), number, last_found)?;
        }
        Ok(segments.into())
    }

    /// Among which positions of the build side the matches of each row are.
    pub(crate) fn segments(
        &self,
        batch: &RecordBatch,
        build: &BuildSide,
    ) -> Result<CandidateRanges> {
        let equal = self.equality_keys(batch)?;
        build.rows().start(batch.num_rows(), &equal)
    }

    /// The equality keys of a batch.
    pub(crate) fn equality_keys(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        let equal = self.spec.on.iter();
        let equal = equal.map(|(probe, _)| probe.evaluate(batch)?.into_array(batch.num_rows()));
        equal.collect()
    }

    /// What the build side says of ranges, and whether the CPU answered in the place of devices.
    pub(crate) fn answers(
        &self,
        ranges: &Ranges,
        build: &BuildSide,
    ) -> Result<(Vec<ArrayRef>, bool)> {
        let _timer = self.metrics.baseline.elapsed_compute().timer();
        let _timer = self.metrics.query_time.timer();
        build.answer(ranges)
    }

    /// A batch with its answers, of which those rows stay that matched, or all.
    pub(crate) fn joined(
        &self,
        batch: &RecordBatch,
        matched: &[bool],
        mut answers: Vec<ArrayRef>,
    ) -> Result<Vec<RecordBatch>> {
        let mut batch = batch.clone();
        if self.spec.unmatched == Unmatched::Drop && matched.contains(&false) {
            let matched: BooleanArray = matched.iter().map(|matched| Some(*matched)).collect();
            batch = filter_record_batch(&batch, &matched)?;
            for answer in &mut answers {
                *answer = filter(answer, &matched)?;
            }
        }
        self.with_answers(&batch, &answers)
    }

    /// A batch with its answers; several where dictionaries of these have not the keys for all.
    fn with_answers(&self, batch: &RecordBatch, answers: &[ArrayRef]) -> Result<Vec<RecordBatch>> {
        let fields = &self.schema.fields()[batch.num_columns()..];
        let types: Vec<_> = fields.iter().map(|field| field.data_type()).collect();
        let parts = fit(answers, &types, batch.num_rows())?.into_iter();
        let parts = parts.map(|(rows, answers)| {
            let batch = batch.slice(rows.start, rows.len());
            let columns = batch.columns().iter().cloned().chain(answers).collect();
            let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            let schema = Arc::clone(&self.schema);
            Ok(RecordBatch::try_new_with_options(
                schema, columns, &options,
            )?)
        });
        parts.collect()
    }
}

/// Waits for the first row, and for the build side, which says who answers.
async fn start(
    probing: Arc<Probing>,
    mut probe: Batches,
    build: impl Future<Output = Result<Arc<Side>>>,
) -> Result<Batches> {
    let Some(first) = next_rows(&mut probe).await? else {
        return Ok(stream::empty().boxed());
    };
    let mut read = vec![first];
    let mut side = build.await?;
    if let Side::DeferredBuild(uncertain) = &*side {
        if uncertain.are_few(&mut read, &mut probe).await?
            && let Some(picked) = uncertain.pick(Arc::clone(&probing), &read).await?
        {
            let picked = picked.into_iter().filter(|picked| picked.num_rows() > 0);
            let picked = picked.map(|p| Ok(p.record_output(&probing.metrics.baseline)));
            return Ok(stream::iter(picked.collect::<Vec<_>>()).boxed());
        }
        let sorted = uncertain.sorted().await?;
        side = sorted;
    }
    let probe = stream::iter(read.into_iter().map(Ok)).chain(probe).boxed();
    if let Side::Whole(whole) = &*side
        && whole.on_devices().is_some()
    {
        return Ok(on_devices(probing, side, probe));
    }
    let answering = Answering {
        probing,
        side,
        probe,
        rest: None,
        last_found: LastFound::default(),
        answered: VecDeque::new(),
        gathered: None,
    };
    let batches = stream::try_unfold(answering, |mut this| async {
        let batch = this.next().await?;
        Ok(batch.map(|batch| (batch, this)))
    });
    Ok(batches.boxed())
}

/// The next batch that has rows.
pub(crate) async fn next_rows(probe: &mut Batches) -> Result<Option<RecordBatch>> {
    while let Some(batch) = probe.try_next().await? {
        if batch.num_rows() > 0 {
            return Ok(Some(batch));
        }
    }
    Ok(None)
}

/// Batches of one partition.
pub(crate) type Batches = BoxStream<'static, Result<RecordBatch>>;

/// A partition that the CPU answers.
struct Answering {
    probing: Arc<Probing>,
    side: Arc<Side>,
    probe: Batches,
    /// Rows of a batch whose first rows were gathered.
    rest: Option<RecordBatch>,
    last_found: LastFound,
    /// Batches with their answers, in their order.
    answered: VecDeque<RecordBatch>,
    /// Registers gathered batches.
    gathered: Option<Arc<Gathered>>,
}

impl Answering {
    /// The rest of a batch, or the next one.
    async fn next_rows(&mut self) -> Result<Option<RecordBatch>> {
        match self.rest.take() {
            Some(rest) => Ok(Some(rest)),
            None => next_rows(&mut self.probe).await,
        }
    }

    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            while let Some(batch) = self.answered.pop_front() {
                if batch.num_rows() > 0 {
                    return Ok(Some(batch.record_output(&self.probing.metrics.baseline)));
                }
            }
            self.gathered = None;
            let Some(batch) = self.next_rows().await? else {
                return Ok(None);
            };
            match &*self.side {
                Side::Whole(side) => {
                    let probing = &self.probing;
                    let found = probing.matching(&batch, side, &mut self.last_found);
                    let (batch, ranges) = found?;
                    side.make_ready(&ranges).await?;
                    let (answers, _) = probing.answers(&ranges, side)?;
                    let answered = probing.with_answers(&batch, &answers)?;
                    self.answered.extend(answered);
                }
                Side::Spilled(side) => {
                    let side = Arc::clone(side);
                    self.gather(batch, &side).await?;
                }
                Side::DeferredBuild(_) => {
                    return internal_err!("a build side is asked before it is sorted");
                }
            }
        }
    }

    /// Answers this batch and some that come after it.
    async fn gather(&mut self, first: RecordBatch, side: &Arc<SpilledSide>) -> Result<()> {
        let gathered = Arc::new(side.gathering());
        self.gathered = Some(Arc::clone(&gathered));
        let (mut batches, mut next) = (vec![], Some(first));
        while let Some(batch) = next {
            let (batch, rest) = side.split(&batch);
            self.rest = rest;
            gathered.add(side.bytes_answered(&batch));
            batches.push(batch);
            next = if gathered.has_room() {
                self.next_rows().await?
            } else {
                None
            };
        }
        let probing = Arc::clone(&self.probing);
        self.answered = side.answer(probing, batches, gathered).await?;
        Ok(())
    }
}

/// The bounds of a batch. A join of pairs evaluates its condition where the equality keys match, so that it meets no error
/// elsewhere; nor does this: after an error only the rows count that can still match.
pub(crate) fn evaluate_where_needed(
    bound: &PhysicalExprRef,
    batch: &RecordBatch,
    can_match: impl FnOnce() -> Vec<bool>,
) -> Result<ArrayRef> {
    let rows = batch.num_rows();
    let all = bound
        .evaluate(batch)
        .and_then(|bounds| bounds.into_array(rows));
    if all.is_ok() {
        return all;
    }
    let can_match = can_match();
    if !can_match.contains(&false) {
        return all;
    }
    if !can_match.contains(&true) {
        return Ok(new_null_array(&bound.data_type(&batch.schema())?, rows));
    }
    let mut needed = 0_u64;
    let places = can_match.iter().map(|can| {
        let place = can.then_some(needed);
        needed += u64::from(*can);
        place
    });
    let places: UInt64Array = places.collect();
    let batch = filter_record_batch(batch, &BooleanArray::from(can_match))?;
    let bounds = bound.evaluate(&batch)?.into_array(batch.num_rows())?;
    Ok(take(&bounds, &places, None)?)
}
