//! The output stream of one partition: reads the probe side, and waits for the build side.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{StreamExt, TryStreamExt, stream};

use crate::exec::range_join::probe::join_prepared::join_prepared;
use crate::exec::range_join::probe::partition::ProbePartition;
use crate::exec::range_join::probe::probe_build::{ProbeBuild, RunBuild};
use crate::exec::range_join::probe::probe_input::{BatchStream, ProbeInput};
use crate::exec::range_join::probe::slices::stream::join_slices;

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
    let build = build.prepare().await?;
    let input = input.take().await?;
    match &*build {
        RunBuild::Sliced(slices) => Ok(join_slices(partition, Arc::clone(slices), input)),
        RunBuild::Prepared(prepared) => {
            let (read, rest) = input.into_parts();
            let rest = match &prepared.read_before {
                Some(before) => before.still_there_after(rest),
                None => rest,
            };
            join_prepared(partition, prepared, read, rest).await
        }
    }
}
