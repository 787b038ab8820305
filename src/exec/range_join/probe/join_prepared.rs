//! Joins the rows of one partition of the probe side, batch by batch, with a build side that has been read.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result, internal_err};
use futures::{Stream, StreamExt, TryStreamExt, stream};

use crate::exec::range_join::probe::build_state::{BuildState, PreparedBuild};
use crate::exec::range_join::probe::device_join::answer_on_devices;
use crate::exec::range_join::probe::key_errors::KeyErrors;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::probe_input::{BatchStream, next_with_rows};
use crate::exec::range_join::probe::rows::join_rows;
use crate::exec::range_join::probe::segments::SegmentedSide;
use crate::exec::range_join::probe::spilled::stream::join_spilled;
use datafusion_rmq_logical::logical_plan::range_join::Unmatched;

/// Joins the rows that have been read of a partition, and the rest, with a build side that is not sliced.
pub(super) async fn join_prepared(
    partition: Arc<ProbePartition>,
    prepared: &PreparedBuild,
    read: Vec<RecordBatch>,
    mut input: BatchStream,
) -> Result<BatchStream> {
    if let Some(errors) = &prepared.key_errors {
        for batch in &read {
            errors.check(&partition, batch).await?;
        }
        input = checked(Arc::clone(&partition), Arc::clone(errors), input);
    }
    let build = &prepared.state;
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
    Ok(match (build, partition.returned_rows()) {
        (BuildState::InMemory(side), Some(join)) => {
            join_rows(partition, join, Arc::clone(side), input)
        }
        (BuildState::InMemory(side), None) => join_batches(partition, Arc::clone(side), input),
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

/// Joined batches, counted in the metrics as they are returned.
fn recorded(
    partition: Arc<ProbePartition>,
    joined: impl IntoIterator<Item = RecordBatch, IntoIter: Send + 'static>,
) -> impl Stream<Item = Result<RecordBatch>> + Send {
    let joined = joined.into_iter().filter(|batch| batch.num_rows() > 0);
    stream::iter(joined.map(move |batch| Ok(partition.metrics.baseline.record(batch))))
}

/// Joins a partition with a build side in memory, batch by batch.
fn join_batches(
    partition: Arc<ProbePartition>,
    side: Arc<SegmentedSide>,
    input: BatchStream,
) -> BatchStream {
    let joined = stream::try_unfold(input, move |mut input| {
        let (partition, side) = (Arc::clone(&partition), Arc::clone(&side));
        async move {
            let Some(batch) = next_with_rows(&mut input).await? else {
                return Ok(None);
            };
            let joined = side.join(&partition, batch).await?;
            Ok::<_, DataFusionError>(Some((recorded(partition, joined), input)))
        }
    });
    joined.try_flatten().boxed()
}
