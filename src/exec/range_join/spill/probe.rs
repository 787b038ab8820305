//! A build side in pieces: each is read, built and asked in turn, and what they say is merged.
//!
//! Rows of the probe side are gathered, so that many are answered for one reading of a piece, those of all partitions together
//! (`key_shared_scan.rs`). Still, the pieces are read again for each gathering: the work grows with the rows of both sides, as that of
//! DataFusion's nested loops does.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use futures::TryStreamExt;

use crate::exec::range_join::build::build::build;
use crate::exec::range_join::build::collect::{Collected, RowOrder, Size};
use crate::exec::range_join::build::side::BuildSide;
use crate::exec::range_join::metrics::BuildMetrics;
use crate::exec::range_join::probe::side::Building;
use crate::exec::range_join::probe::stream::Probing;
use crate::exec::range_join::spill::merge::{Merged, Merging};
use crate::exec::range_join::spill::retaining_pool::RetainingPool;
use crate::exec::range_join::spill::shared_scan::SharedScan;
use crate::exec::range_join::spill::write::{Bound, Piece, Spill, SpillRuns};
use rmq_engine::LastFound;

/// A build side that lies on disk.
#[derive(Debug)]
pub(crate) struct SpilledSide {
    pieces: Vec<Piece>,
    spill: Arc<Spill>,
    merging: Merging,
    schema: SchemaRef,
    room: Arc<RetainingPool>,
    /// Memory that is kept between pieces.
    kept: usize,
    metrics: BuildMetrics,
    threads: usize,
    /// Bytes of probe rows and their answers that all partitions together gather.
    gather: usize,
    /// What a partition may gather whatever the others have gathered.
    share: usize,
    /// What all partitions have gathered.
    gathered: AtomicUsize,
    /// About how many bytes the answers to a row of the probe side take.
    answer_bytes: usize,
    scan: SharedScan,
}

/// Rows of the probe side that a partition has gathered, with their answers, and the memory that registers them.
#[derive(Debug)]
pub(crate) struct Gathered {
    side: Arc<SpilledSide>,
    memory: MemoryReservation,
    bytes: AtomicUsize,
}

impl Gathered {
    /// Adds bytes, registered whether or not they fit: they are there.
    pub(crate) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.side.gathered.fetch_add(bytes, Ordering::Relaxed);
        self.memory.grow(bytes);
    }

    /// Whether the partition had better gather more before it asks.
    pub(crate) fn has_room(&self) -> bool {
        let side = &self.side;
        self.bytes.load(Ordering::Relaxed) < side.share
            || side.gathered.load(Ordering::Relaxed) < side.gather
    }

    /// Registers what there is now.
    pub(crate) fn register(&self, bytes: usize) {
        self.memory.resize(bytes);
    }
}

impl Drop for Gathered {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        self.side.gathered.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Fewer rows than these are not divided.
const FEW: usize = 64;

/// A batch in two, unless it is small.
fn halves(batch: &RecordBatch) -> Option<[RecordBatch; 2]> {
    let rows = batch.num_rows();
    (rows >= FEW).then(|| {
        let half = rows / 2;
        [batch.slice(0, half), batch.slice(half, rows - half)]
    })
}

impl SpilledSide {
    /// For a build side that was written as these pieces.
    pub(crate) fn try_new(
        pieces: SpillRuns,
        spill: Arc<Spill>,
        building: &Building,
    ) -> Result<Self> {
        let (columns, fields) = (&building.columns, building.schema.fields());
        let key = columns.key(fields).as_ref().clone().with_name("key");
        let all_fields = fields.iter().cloned().chain([Arc::new(key)]);
        building.room.keep(pieces.retained_bytes());
        let merging = Merging::try_new(columns, &building.schema)?;
        // Each is of one column, and the columns of a row are as wide as the row.
        let asked = merging.columns.aggregates.len();
        let answer_bytes = pieces.row_bytes() * asked.div_ceil(columns.values(fields).len().max(1));
        let gather = pieces.room / 4;
        Ok(Self {
            merging,
            answer_bytes,
            schema: Arc::new(Schema::new(all_fields.collect::<Vec<_>>())),
            gather,
            share: gather / building.probe.partitions.max(1),
            gathered: AtomicUsize::new(0),
            scan: SharedScan::new(pieces.piece_room()),
            kept: pieces.retained_bytes(),
            pieces: pieces.list,
            spill,
            room: Arc::clone(&building.room),
            metrics: building.metrics.of_a_piece(),
            threads: building.options.threads(),
        })
    }

    /// About how many bytes a batch of the probe side takes with its answers; the rows and the answers stand twice in memory when they
    /// are put together.
    pub(crate) fn bytes_answered(&self, batch: &RecordBatch) -> usize {
        let Size { rows, bytes } = Size::of(batch);
        2 * (bytes + rows * self.answer_bytes)
    }

    /// The first rows of a batch, as many as may be gathered, and the others.
    pub(crate) fn split(&self, batch: &RecordBatch) -> (RecordBatch, Option<RecordBatch>) {
        let rows = batch.num_rows();
        let row_bytes = self.bytes_answered(batch).div_ceil(rows.max(1));
        let fits = (self.share / row_bytes.max(1)).max(FEW);
        if rows <= fits {
            return (batch.clone(), None);
        }
        (batch.slice(0, fits), Some(batch.slice(fits, rows - fits)))
    }

    /// No rows yet.
    pub(crate) fn gathering(self: &Arc<Self>) -> Gathered {
        Gathered {
            side: Arc::clone(self),
            memory: self.room.beside(),
            bytes: AtomicUsize::new(0),
        }
    }

    /// The batches with the aggregates.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        probing: Arc<Probing>,
        batches: Vec<RecordBatch>,
        gathered: Arc<Gathered>,
    ) -> Result<VecDeque<RecordBatch>> {
        let batches = batches.into_iter().map(|batch| {
            probing.metrics.probe_rows.add(batch.num_rows());
            Asked {
                bounds: self.bounds(&probing, &batch),
                merged: Merged::new(&self.merging, batch.num_rows()),
                batch,
            }
        });
        let asking = Asking {
            side: Arc::clone(self),
            probing: Arc::clone(&probing),
            batches: batches.collect(),
            gathered,
        };
        let asked = SharedScan::ask(self, asking).await?;
        let mut joined = VecDeque::new();
        for asked in asked.batches {
            let (matched, answers) = asked.merged.finish(&probing.spec.aggregates);
            joined.extend(probing.joined(&asked.batch, &matched, answers)?);
        }
        Ok(joined)
    }

    pub(crate) fn scan(&self) -> &SharedScan {
        &self.scan
    }

    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Begins to read a piece.
    pub(crate) fn read(&self, piece: &Piece) -> Result<Reading> {
        Ok(Reading::new(self.spill.read(piece)?, piece.first_row))
    }

    /// Gives back memory that is not kept between pieces.
    pub(crate) fn give_back(&self) {
        self.room.keep(self.kept);
    }

    /// The bounds of a batch, for leaving out pieces. After an error none is left out: it may be none, where the equality keys
    /// match nothing.
    fn bounds(&self, probing: &Probing, batch: &RecordBatch) -> Vec<Bound> {
        let bounds = probing.spec.bounds.iter().map(|(comparison, bound)| {
            let bounds = bound.evaluate(batch)?.into_array(batch.num_rows())?;
            self.spill.order.bound(*comparison, &bounds)
        });
        let bounds = bounds.collect::<Result<Option<Vec<_>>>>();
        bounds.ok().flatten().unwrap_or_default()
    }

    /// Builds as many of the rows that come next as there is memory for. With where the first of them stands.
    pub(crate) async fn load(
        &self,
        reading: &mut Reading,
        room: &mut usize,
    ) -> Result<Option<(BuildSide, RowOrder)>> {
        loop {
            let (mut batches, mut taken) = (vec![], Size::default());
            while let Some(batch) = reading.next().await? {
                let larger = taken + Size::of(&batch);
                let fits = batches.is_empty() || larger.to_build() <= *room;
                match fits.then(|| self.room.hold(larger.to_build())) {
                    Some(Ok(())) => {}
                    Some(Err(error)) if batches.is_empty() => {
                        reading.put_back(halves(&batch).ok_or(error)?);
                        continue;
                    }
                    _ => {
                        reading.put_back([batch]);
                        break;
                    }
                }
                taken = larger;
                batches.push(batch);
            }
            if batches.is_empty() {
                return Ok(None);
            }
            match self.build(&batches, taken).await {
                Ok(side) => {
                    let first_row = reading.row;
                    reading.row = first_row.after(taken.rows);
                    return Ok(Some((side, first_row)));
                }
                Err(error) if is_exhausted(&error) => {
                    *room = taken.to_build() / 2;
                    match batches.as_slice() {
                        [one] => reading.put_back(halves(one).ok_or(error)?),
                        _ => reading.put_back(batches),
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Builds batches of this size.
    async fn build(&self, batches: &[RecordBatch], size: Size) -> Result<BuildSide> {
        let memory = self.room.reservation();
        memory.try_grow(size.bytes)?;
        // In case that building has not the memory it takes.
        let kept = self.room.reservation();
        kept.try_grow(size.bytes)?;
        let collected = Collected {
            schema: Arc::clone(&self.schema),
            batches: self.with_key(batches)?,
            memory,
        };
        let columns = &self.merging.columns;
        build(columns, collected, &self.metrics, self.threads, None).await
    }

    /// The batches as [`Merging`] wants them.
    fn with_key(&self, batches: &[RecordBatch]) -> Result<Vec<RecordBatch>> {
        let batches = batches.iter().map(|batch| {
            let key = Arc::clone(self.merging.columns.key(batch.columns()));
            let columns: Vec<ArrayRef> = batch.columns().iter().cloned().chain([key]).collect();
            Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
        });
        batches.collect()
    }
}

/// Whether memory was wanting.
pub(crate) fn is_exhausted(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

/// Gathered batches of a partition, and what the pieces that were asked so far say of them.
pub(crate) struct Asking {
    side: Arc<SpilledSide>,
    probing: Arc<Probing>,
    batches: Vec<Asked>,
    gathered: Arc<Gathered>,
}

struct Asked {
    batch: RecordBatch,
    bounds: Vec<Bound>,
    merged: Merged,
}

/// Which rows of a batch a piece is asked for.
pub(crate) enum Wanted {
    All,
    Rows(UInt32Array),
    Nothing,
}

impl Asking {
    /// Which rows of each batch a piece is asked for; `None` if no row can match any of it.
    pub(crate) fn wanted(&self, piece: &Piece) -> Option<Vec<Wanted>> {
        let wanted: Vec<Wanted> = self.batches.iter().map(|a| a.wanted(piece)).collect();
        let matches = |wanted: &Wanted| !matches!(wanted, Wanted::Nothing);
        wanted.iter().any(matches).then_some(wanted)
    }

    /// Asks a piece, or a part of it, whose first row stands there.
    pub(crate) async fn ask(
        &mut self,
        wanted: &[Wanted],
        side: &BuildSide,
        first_row: RowOrder,
    ) -> Result<()> {
        for (asked, wanted) in self.batches.iter_mut().zip(wanted) {
            let (batch, rows) = match wanted {
                Wanted::Nothing => continue,
                Wanted::All => (asked.batch.clone(), None),
                Wanted::Rows(rows) => (take_record_batch(&asked.batch, rows)?, Some(rows)),
            };
            let ranges = self
                .probing
                .ranges(&batch, side, &mut LastFound::default())?;
            side.make_ready(&ranges).await?;
            let answers = self.probing.answers(&ranges, side)?.0;
            let merging = &self.side.merging;
            asked
                .merged
                .add(merging, first_row, rows, &ranges, answers)?;
            // Others have their turn, and a query that was cancelled ends here.
            tokio::task::yield_now().await;
        }
        let batches = self.batches.iter();
        let bytes = batches.map(|a| Size::of(&a.batch).bytes + a.merged.bytes());
        self.gathered.register(bytes.sum());
        Ok(())
    }
}

impl Asked {
    fn wanted(&self, piece: &Piece) -> Wanted {
        let rows = (0..self.batch.num_rows()).filter(|row| piece.may_match(&self.bounds, *row));
        let rows: UInt32Array = rows.filter_map(|row| u32::try_from(row).ok()).collect();
        match rows.len() {
            0 => Wanted::Nothing,
            all if all == self.batch.num_rows() => Wanted::All,
            _ => Wanted::Rows(rows),
        }
    }
}

/// A piece that is being read.
pub(crate) struct Reading {
    stream: SendableRecordBatchStream,
    /// What was read and is to come again.
    back: VecDeque<RecordBatch>,
    /// Where those stand that come next.
    row: RowOrder,
    ended: bool,
}

impl Reading {
    fn new(stream: SendableRecordBatchStream, row: RowOrder) -> Self {
        Self {
            stream,
            back: VecDeque::new(),
            row,
            ended: false,
        }
    }

    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        if let Some(batch) = self.back.pop_front() {
            return Ok(Some(batch));
        }
        let batch = if self.ended {
            None
        } else {
            self.stream.try_next().await?
        };
        self.ended = batch.is_none();
        Ok(batch)
    }

    /// Whether nothing is to come.
    pub(crate) fn is_done(&self) -> bool {
        self.ended && self.back.is_empty()
    }

    fn put_back(
        &mut self,
        batches: impl IntoIterator<Item = RecordBatch, IntoIter: DoubleEndedIterator>,
    ) {
        for batch in batches.into_iter().rev() {
            self.back.push_front(batch);
        }
    }
}
