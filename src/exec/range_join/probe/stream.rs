//! The output stream of one partition: reads the probe side, waits for the build side, and joins batch by batch.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::{Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};

use crate::exec::range_join::build::side::BuildSide;
use crate::exec::range_join::probe::deferred_build::DeferredBuild;
use crate::exec::range_join::probe::device_join::answer_on_devices;
use crate::exec::range_join::probe::on_devices::join_on_devices;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::prepared::PreparedBuild;
use crate::exec::range_join::probe::probe_build::ProbeBuild;
use crate::exec::range_join::probe::rows::join_rows;
use crate::exec::range_join::probe::searchable::SearchableBuild;
use crate::exec::range_join::probe::spilled::stream::join_spilled;
use crate::logical_plan::range_join::Unmatched;
use rmq_engine::SearchHints;

/// Batches of one partition.
type BatchStream = BoxStream<'static, Result<RecordBatch>>;

/// Joins a partition of the probe side. `build` is read once the first probe row has arrived.
pub(crate) fn join_stream(
    partition: ProbePartition,
    input: SendableRecordBatchStream,
    build: ProbeBuild,
) -> SendableRecordBatchStream {
    let (schema, fetch) = (Arc::clone(&partition.schema), partition.fetch);
    let batches = start(Arc::new(partition), input.fuse().boxed(), build);
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
    mut input: BatchStream,
    build: ProbeBuild,
) -> Result<BatchStream> {
    let row_join = partition.row_join.clone();
    let mut read = match next_with_rows(&mut input).await? {
        Some(first) => vec![first],
        // The last partition may have to return build rows.
        None if row_join
            .as_ref()
            .is_some_and(|join| join.marks_build_rows()) =>
        {
            vec![]
        }
        None => {
            build.discard()?;
            return Ok(stream::empty().boxed());
        }
    };
    let build = match &*build.prepare().await? {
        PreparedBuild::Searchable(build) => Arc::clone(build),
        PreparedBuild::Deferred(deferred) => {
            let is_small = ends_within_nested_loop(deferred, &mut read, &mut input).await?;
            if let Some(join) = row_join.clone().filter(|join| !join.returns_probe_rows()) {
                if is_small
                    && let Some(side) = deferred
                        .build_matching(Arc::clone(&partition), &read)
                        .await?
                {
                    let input = stream::iter(read.into_iter().map(Ok)).boxed();
                    return Ok(join_rows(partition, join, Arc::new(side), input));
                }
            } else if is_small
                && let Some(joined) = deferred.compare(Arc::clone(&partition), &read).await?
            {
                let joined = joined.into_iter().filter(|batch| batch.num_rows() > 0);
                let joined = joined.map(|b| Ok(partition.metrics.baseline.record(b)));
                return Ok(stream::iter(joined.collect::<Vec<_>>()).boxed());
            }
            deferred.sorted().await?
        }
    };
    if returns_nothing(&partition, &build) {
        // The rest of the probe side is not read. Operators below it free what they keep when their streams are
        // dropped.
        return Ok(stream::empty().boxed());
    }
    let input = stream::iter(read.into_iter().map(Ok)).chain(input).boxed();
    if let SearchableBuild::Spilled(side) = &*build {
        return Ok(join_spilled(partition, Arc::clone(side), input));
    }
    if let Some(join) = row_join.filter(|join| !join.returns_probe_rows()) {
        let SearchableBuild::InMemory(side) = &*build else {
            return internal_err!("the build side of a range join that returns rows has no rows");
        };
        return Ok(join_rows(partition, join, Arc::clone(side), input));
    }
    if let SearchableBuild::InMemory(side) = &*build
        && side.device().is_some()
    {
        return Ok(join_on_devices(partition, Arc::clone(side), input));
    }
    if let SearchableBuild::OnDevices(join) = &*build {
        return Ok(answer_on_devices(partition, Arc::clone(join), input));
    }
    let SearchableBuild::InMemory(side) = &*build else {
        return internal_err!("a build side that is not in memory has a stream of its own");
    };
    let cpu_stream = CpuStream {
        partition,
        side: Arc::clone(side),
        input,
        last_found: SearchHints::default(),
        joined: VecDeque::new(),
    };
    let batches = stream::try_unfold(cpu_stream, |mut this| async {
        let batch = this.next().await?;
        Ok(batch.map(|batch| (batch, this)))
    });
    Ok(batches.boxed())
}

/// Whether no row is returned, whatever the probe side has, because the build side has no rows.
fn returns_nothing(partition: &ProbePartition, build: &SearchableBuild) -> bool {
    let rows = match build {
        // Rows whose keys are NULL match nothing, but may be returned.
        SearchableBuild::InMemory(side) => match &side.matched {
            Some(matched) => matched.rows(),
            None => side.rows().len(),
        },
        SearchableBuild::OnDevices(join) => join.rows(),
        SearchableBuild::Spilled(_) => return false,
    };
    let returns_unmatched = match &partition.row_join {
        Some(join) if !join.returns_probe_rows() => join.keeps_probe_rows(),
        _ => partition.spec.unmatched != Unmatched::Drop,
    };
    rows == 0 && !returns_unmatched
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

/// The next batch that has rows.
async fn next_with_rows(input: &mut BatchStream) -> Result<Option<RecordBatch>> {
    while let Some(batch) = input.try_next().await? {
        if batch.num_rows() > 0 {
            return Ok(Some(batch));
        }
    }
    Ok(None)
}

/// A partition that is joined on the CPU with a build side in memory.
struct CpuStream {
    partition: Arc<ProbePartition>,
    side: Arc<BuildSide>,
    input: BatchStream,
    last_found: SearchHints,
    /// Joined batches, in the order of the input.
    joined: VecDeque<RecordBatch>,
}

impl CpuStream {
    /// The next joined batch.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            while let Some(batch) = self.joined.pop_front() {
                if batch.num_rows() > 0 {
                    return Ok(Some(self.partition.metrics.baseline.record(batch)));
                }
            }
            let Some(batch) = next_with_rows(&mut self.input).await? else {
                return Ok(None);
            };
            let last_found = &mut self.last_found;
            let joined = self.partition.join(&batch, &self.side, last_found).await?;
            self.joined.extend(joined);
        }
    }
}
