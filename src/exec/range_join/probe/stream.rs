//! The output stream of one partition: reads the probe side, waits for the build side, and joins batch by batch.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{FutureExt, Stream, StreamExt, TryStreamExt, stream};

use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::probe::build_state::{BuildState, PreparedBuild};
use crate::exec::range_join::probe::compare_or_build::DeferredBuild;
use crate::exec::range_join::probe::device_join::answer_on_devices;
use crate::exec::range_join::probe::key_errors::KeyErrors;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::probe_build::{Prepared, ProbeBuild};
use crate::exec::range_join::probe::probe_input::{BatchStream, ProbeInput, next_with_rows};
use crate::exec::range_join::probe::rows::join_rows;
use crate::exec::range_join::probe::segments::SegmentedSide;
use crate::exec::range_join::probe::slices::stream::join_slices;
use crate::exec::range_join::probe::spilled::stream::join_spilled;
use crate::logical_plan::range_join::Unmatched;
use rmq_engine::SearchHints;

/// Joins a partition of the probe side. `build` is read once the first probe row has arrived.
pub(crate) fn join_stream(
    partition: ProbePartition,
    input: Arc<ProbeInput>,
    build: ProbeBuild,
) -> SendableRecordBatchStream {
    let (schema, fetch) = (Arc::clone(&partition.schema), partition.fetch);
    let batches = start(Arc::new(partition), input, build);
    let batches = stream::once(batches).try_flatten();
    let batches = match fetch {
        Some(rows) => first_rows(batches.boxed(), rows),
        None => batches.boxed(),
    };
    Box::pin(RecordBatchStreamAdapter::new(schema, batches.fuse()))
}

/// The first rows of a stream, which is dropped with the last of them.
fn first_rows(batches: BatchStream, rows: usize) -> BatchStream {
    let batches = Some(batches).filter(|_| rows > 0);
    let first = stream::try_unfold((batches, rows), |(batches, rows)| async move {
        let Some(mut batches) = batches else {
            return Ok(None);
        };
        let batch = batches.try_next().await?;
        Ok(batch.map(|batch| {
            let batch = batch.slice(0, rows.min(batch.num_rows()));
            let rows = rows - batch.num_rows();
            let batches = Some(batches).filter(|_| rows > 0);
            (batch, (batches, rows))
        }))
    });
    first.boxed()
}

/// Waits for the first row and for the build side, and chooses the kind of join.
async fn start(
    partition: Arc<ProbePartition>,
    input: Arc<ProbeInput>,
    build: ProbeBuild,
) -> Result<BatchStream> {
    let row_join = partition.row_join.as_ref();
    // The last partition may have to return build rows.
    let marks_rows = row_join.is_some_and(|join| join.marks_build_rows());
    if !input.has_rows().await? && !marks_rows {
        build.discard()?;
        return Ok(stream::empty().boxed());
    }
    let prepared = build.prepare().await?;
    let input = input.take().await?;
    match &*prepared {
        Prepared::Whole(prepared) => {
            let (read, rest) = input.into_parts();
            join_prepared(partition, prepared, read, rest).await
        }
        Prepared::Sliced(slices) => {
            let slices = Arc::clone(slices);
            let joined = join_slices(partition, slices, input, |partition, slice, read, rest| {
                async move { join_prepared(partition, &slice, read, rest).await }.boxed()
            });
            Ok(joined)
        }
    }
}

/// Joins the rows that have been read of a partition, and the rest, with a build side or a slice of it.
async fn join_prepared(
    partition: Arc<ProbePartition>,
    prepared: &PreparedBuild,
    mut read: Vec<RecordBatch>,
    mut input: BatchStream,
) -> Result<BatchStream> {
    if let Some(errors) = &prepared.key_errors {
        for batch in &read {
            errors.check(&partition, batch).await?;
        }
        input = checked(Arc::clone(&partition), Arc::clone(errors), input);
    }
    let build = Arc::clone(&prepared.state);
    if let BuildState::Deferred(deferred, _) = &*build
        && ends_within_nested_loop(deferred, &mut read, &mut input).await?
        && let Some(joined) = join_by_nested_loop(&partition, deferred, &read).await?
    {
        return Ok(joined);
    }
    let build = build.built().await?;
    if build.is_empty() && !returns_unmatched(&partition) {
        if prepared.key_errors.is_some() {
            while next_with_rows(&mut input).await?.is_some() {}
        }
        // The rest of the probe side is not read. Operators below it free what they keep when their streams are
        // dropped.
        return Ok(stream::empty().boxed());
    }
    if partition.partitions > 1 {
        run_again_later().await;
    }
    let input = stream::iter(read.into_iter().map(Ok)).chain(input).boxed();
    Ok(match (&*build, partition.returned_rows()) {
        (BuildState::Sorted(side), Some(join)) => {
            let side = SegmentedSide::of_one(Arc::clone(side));
            join_rows(partition, join, Arc::new(side), input)
        }
        (BuildState::Sorted(side), None) => join_sorted(partition, Arc::clone(side), input),
        (BuildState::Segments(side), Some(join)) => {
            join_rows(partition, join, Arc::clone(side), input)
        }
        (BuildState::Segments(side), None) => join_segments(partition, Arc::clone(side), input),
        (BuildState::OnDevices(join), None) => {
            answer_on_devices(partition, Arc::clone(join), input)
        }
        (BuildState::Spilled(side), _) => join_spilled(partition, Arc::clone(side), input),
        (state, _) => return internal_err!("a range join can't be answered by {state:?}"),
    })
}

/// The input, without batches that meet errors of the range key.
fn checked(
    partition: Arc<ProbePartition>,
    errors: Arc<KeyErrors>,
    input: BatchStream,
) -> BatchStream {
    let checked = input.and_then(move |batch| {
        let (partition, errors) = (Arc::clone(&partition), Arc::clone(&errors));
        async move {
            errors.check(&partition, &batch).await?;
            Ok(batch)
        }
    });
    checked.boxed()
}

/// Goes to the end of the thread's queue, from which other threads take tasks. Tokio keeps the task that was woken
/// last, one that waited for the same build side, for the thread that has woken it, and none takes it from there; so it
/// would begin only once this one waits.
async fn run_again_later() {
    let mut is_again = false;
    poll_fn(|context| {
        if std::mem::replace(&mut is_again, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Whether rows without a match are returned.
fn returns_unmatched(partition: &ProbePartition) -> bool {
    match partition.returned_rows() {
        Some(join) => join.keeps_probe_rows(),
        None => partition.spec.unmatched != Unmatched::Drop,
    }
}

/// Joins all rows of a small partition by a nested loop; `None` if that is not possible.
async fn join_by_nested_loop(
    partition: &Arc<ProbePartition>,
    deferred: &DeferredBuild,
    read: &[RecordBatch],
) -> Result<Option<BatchStream>> {
    let compared = Arc::clone(partition);
    let Some(join) = partition.returned_rows() else {
        let joined = deferred.compare(compared, read).await?;
        let partition = Arc::clone(partition);
        return Ok(joined.map(|joined| recorded(partition, joined).boxed()));
    };
    let side = deferred.build_matching(compared, read).await?;
    Ok(side.map(|side| {
        let read = read.to_vec();
        let input = stream::iter(read.into_iter().map(Ok)).boxed();
        let side = Arc::new(SegmentedSide::of_one(Arc::new(side)));
        join_rows(Arc::clone(partition), join, side, input)
    }))
}

/// Whether a partition ends before it has too many rows for a nested loop. Appends the batches that are read to `read`.
async fn ends_within_nested_loop(
    deferred: &DeferredBuild,
    read: &mut Vec<RecordBatch>,
    input: &mut BatchStream,
) -> Result<bool> {
    let mut rows: usize = read.iter().map(RecordBatch::num_rows).sum();
    while deferred.may_compare(rows) {
        match next_with_rows(input).await? {
            Some(batch) => {
                rows += batch.num_rows();
                read.push(batch);
            }
            None => return Ok(true),
        }
    }
    Ok(false)
}

/// Joined batches, counted in the metrics as they are returned.
fn recorded(
    partition: Arc<ProbePartition>,
    joined: impl IntoIterator<Item = RecordBatch, IntoIter: Send + 'static>,
) -> impl Stream<Item = Result<RecordBatch>> + Send {
    let joined = joined.into_iter().filter(|batch| batch.num_rows() > 0);
    stream::iter(joined.map(move |batch| Ok(partition.metrics.baseline.record(batch))))
}

/// Joins a partition with a build side in memory, batch by batch.
fn join_sorted(
    partition: Arc<ProbePartition>,
    side: Arc<BuildSide>,
    input: BatchStream,
) -> BatchStream {
    let start = (partition, side, input, SearchHints::default());
    let joined = stream::try_unfold(
        start,
        |(partition, side, mut input, mut hints)| async move {
            let Some(batch) = next_with_rows(&mut input).await? else {
                return Ok(None);
            };
            let joined = partition.join(&batch, &side, &mut hints).await?;
            let joined = recorded(Arc::clone(&partition), joined);
            Ok::<_, DataFusionError>(Some((joined, (partition, side, input, hints))))
        },
    );
    joined.try_flatten().boxed()
}

/// Joins a partition with a build side in several segments, batch by batch.
fn join_segments(
    partition: Arc<ProbePartition>,
    side: Arc<SegmentedSide>,
    input: BatchStream,
) -> BatchStream {
    let hints = side.segments.iter().map(|_| SearchHints::default());
    let start = (input, hints.collect());
    let joined = stream::try_unfold(start, move |(mut input, hints)| {
        let (partition, side) = (Arc::clone(&partition), Arc::clone(&side));
        async move {
            let Some(batch) = next_with_rows(&mut input).await? else {
                return Ok(None);
            };
            let (joined, hints) = side.join(&partition, batch, hints).await?;
            Ok::<_, DataFusionError>(Some((recorded(partition, joined), (input, hints))))
        }
    });
    joined.try_flatten().boxed()
}
