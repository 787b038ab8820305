//! The output stream of one partition: reads the probe side, waits for the build side, and joins batch by batch.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::{Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};

use crate::exec::range_join::probe::deferred_build::DeferredBuild;
use crate::exec::range_join::probe::device_join::answer_on_devices;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::prepared::PreparedBuild;
use crate::exec::range_join::probe::probe_build::ProbeBuild;
use crate::exec::range_join::probe::rows::join_rows;
use crate::exec::range_join::probe::searchable::SearchableBuild;
use crate::exec::range_join::probe::spilled::probe_buffer::ProbeBuffer;
use crate::exec::range_join::probe::spilled::row_stream::join_spilled_rows;
use crate::exec::range_join::probe::spilled::side::SideInRuns;
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
    if let Some(join) = row_join.filter(|join| !join.returns_probe_rows()) {
        return match &*build {
            SearchableBuild::InMemory(side) => {
                Ok(join_rows(partition, join, Arc::clone(side), input))
            }
            SearchableBuild::SpilledRows(side) => {
                Ok(join_spilled_rows(partition, join, Arc::clone(side), input))
            }
            SearchableBuild::OnDevices(_) | SearchableBuild::InRuns(_) => {
                internal_err!("the build side of a range join that returns rows has no rows")
            }
        };
    }
    if let SearchableBuild::OnDevices(join) = &*build {
        return Ok(answer_on_devices(partition, Arc::clone(join), input));
    }
    let cpu_stream = CpuStream {
        partition,
        build,
        input,
        remainder: None,
        last_found: SearchHints::default(),
        joined: VecDeque::new(),
        buffer: None,
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
        SearchableBuild::InRuns(_) | SearchableBuild::SpilledRows(_) => return false,
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

/// A partition that is joined on the CPU.
struct CpuStream {
    partition: Arc<ProbePartition>,
    build: Arc<SearchableBuild>,
    input: BatchStream,
    /// The rows of a batch that did not fit into the last buffer.
    remainder: Option<RecordBatch>,
    last_found: SearchHints,
    /// Joined batches, in the order of the input.
    joined: VecDeque<RecordBatch>,
    /// Registers the memory of buffered batches and of `joined`, if the build side is spilled.
    buffer: Option<Arc<ProbeBuffer>>,
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
            self.buffer = None;
            let Some(batch) = self.next_input().await? else {
                return Ok(None);
            };
            match &*self.build {
                SearchableBuild::InMemory(side) => {
                    let last_found = &mut self.last_found;
                    let joined = self.partition.join(&batch, side, last_found).await?;
                    self.joined.extend(joined);
                }
                SearchableBuild::OnDevices(_) => {
                    return internal_err!("a build side on devices has a stream of its own");
                }
                SearchableBuild::SpilledRows(_) => {
                    return internal_err!("a build side of spilled rows has a stream of its own");
                }
                SearchableBuild::InRuns(side) => {
                    let side = Arc::clone(side);
                    self.join_runs(batch, &side).await?;
                }
            }
        }
    }

    /// The remainder of a batch, or the next batch.
    async fn next_input(&mut self) -> Result<Option<RecordBatch>> {
        match self.remainder.take() {
            Some(remainder) => Ok(Some(remainder)),
            None => next_with_rows(&mut self.input).await,
        }
    }

    /// Joins this batch and as many that follow it as the buffer has room for.
    async fn join_runs(&mut self, first: RecordBatch, side: &Arc<SideInRuns>) -> Result<()> {
        let buffer = Arc::new(side.new_buffer());
        self.buffer = Some(Arc::clone(&buffer));
        let (mut batches, mut next) = (vec![], Some(first));
        while let Some(batch) = next {
            let (batch, remainder) = side.split_to_buffer(&batch);
            self.remainder = remainder;
            buffer.add(side.buffered_bytes(&batch));
            batches.push(batch);
            next = if buffer.has_room() {
                self.next_input().await?
            } else {
                None
            };
        }
        let partition = Arc::clone(&self.partition);
        self.joined = side.join(partition, batches, buffer).await?;
        Ok(())
    }
}
