//! A build side on disk of which rows are returned.
//!
//! Each partition buffers probe rows and takes them through all runs that may match, in turns ([`RunCache`]). A turn
//! ends when it has produced as many rows as a partition may buffer, at the end of a probe row: memory is bounded by
//! that and by the pairs of one row with one part of a run. As runs come one after another, pairs are in no order.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::builder::BuildSideBuilder;
use crate::exec::range_join::build_side::matched_rows::MatchedRows;
use crate::exec::range_join::probe::spilled::probe_buffer::{ProbeBuffer, ProbeBufferLimit};
use crate::exec::range_join::probe::spilled::run_cache::RunCache;
use crate::exec::range_join::probe::spilled::run_loader::RunLoader;
use crate::exec::range_join::spill::key_extent::KeyOrder;
use crate::exec::range_join::spill::retaining_pool::RetainingPool;
use crate::exec::range_join::spill::run::BuildRuns;

/// The spilled rows of a join that returns rows.
#[derive(Debug)]
pub(crate) struct SpilledRows {
    pub(crate) key_order: Arc<KeyOrder>,
    pub(crate) cache: RunCache,
    pub(crate) columns: BuildColumns,
    schema: SchemaRef,
    /// The average bytes of a row.
    row_bytes: usize,
    /// Which rows of each run have matched, by their place in the run; empty if the join does not want to know.
    pub(crate) matched: Vec<MatchedRows>,
    /// The number of partitions that have marked all their matches.
    finished_partitions: AtomicUsize,
    probe_partitions: usize,
    memory: Arc<RetainingPool>,
    buffer_limit: Arc<ProbeBufferLimit>,
}

impl SpilledRows {
    /// The rows that `builder` has spilled in these runs, to be probed by this many partitions.
    pub(crate) fn try_new(
        runs: BuildRuns,
        builder: &BuildSideBuilder,
        probe_partitions: usize,
    ) -> Result<Self> {
        let columns = builder.columns.clone();
        builder.memory.retain(runs.retained_bytes());
        let mut matched = vec![];
        if columns.marks_rows {
            for run in &runs.runs {
                let memory = builder.memory.session_reservation();
                memory.try_grow(MatchedRows::bytes(run.rows))?;
                matched.push(MatchedRows::new(run.rows, memory));
            }
        }
        let buffer_bytes = runs.peak_granted_bytes / 4;
        let run_build_bytes = runs.run_build_bytes();
        let row_bytes = runs.row_bytes();
        let key_order = Arc::clone(&runs.key_order);
        let loader = RunLoader::with_row_numbers(runs, builder);
        Ok(Self {
            key_order,
            cache: RunCache::new(loader, run_build_bytes),
            columns,
            schema: Arc::clone(&builder.schema),
            row_bytes,
            matched,
            finished_partitions: AtomicUsize::new(0),
            probe_partitions,
            memory: Arc::clone(&builder.memory),
            buffer_limit: Arc::new(ProbeBufferLimit::new(buffer_bytes, probe_partitions)),
        })
    }

    /// The average bytes of a row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The types of the columns of which rows are returned.
    pub(crate) fn row_types(&self) -> Vec<DataType> {
        let fields = self.columns.values(self.schema.fields());
        let types = self.columns.row_columns.iter();
        types
            .map(|column| fields[*column].data_type().clone())
            .collect()
    }

    /// The bytes of probe rows, and again of the rows that a turn returns, that a partition may hold.
    pub(crate) fn partition_bytes(&self) -> usize {
        self.buffer_limit.per_partition()
    }

    /// An empty buffer of probe rows.
    pub(crate) fn new_buffer(&self) -> ProbeBuffer {
        ProbeBuffer::new(Arc::clone(&self.buffer_limit), self.reservation())
    }

    /// An empty reservation.
    pub(crate) fn reservation(&self) -> MemoryReservation {
        self.memory.session_reservation()
    }

    /// Records that a partition has marked all its matches. Returns whether it is the last one, which sees the marks of
    /// all others.
    pub(crate) fn finish_partition(&self) -> bool {
        self.finished_partitions.fetch_add(1, Ordering::AcqRel) + 1 == self.probe_partitions
    }
}
