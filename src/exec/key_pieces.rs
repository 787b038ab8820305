//! A build side in pieces: each is read, built and asked in turn, and what they say is merged.
//!
//! Rows of the probe side are gathered, so that many are answered for one reading of a piece. Still, the pieces are read
//! again for each gathering: the work grows with the rows of both sides, as that of DataFusion's nested loops does.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryReservation;
use futures::TryStreamExt;
use tokio::sync::Mutex;

use super::key_answers::BuildSide;
use super::key_build::build;
use super::key_collect::{Collected, RowOrder, Size};
use super::key_merge::{Merged, Merging};
use super::key_metrics::BuildMetrics;
use super::key_room::Room;
use super::key_side::Building;
use super::key_spill::{Bound, Piece, Pieces, Spill};
use super::key_stream::Probing;
use crate::index::LastFound;

/// A build side that lies on disk.
#[derive(Debug)]
pub(super) struct SpilledSide {
    pieces: Vec<Piece>,
    spill: Arc<Spill>,
    merging: Merging,
    schema: SchemaRef,
    room: Arc<Room>,
    /// Memory that is kept between pieces.
    kept: usize,
    metrics: BuildMetrics,
    threads: usize,
    /// Bytes of probe rows and their answers that a partition gathers.
    pub(super) gather: usize,
    /// About how many bytes the answers to a row of the probe side take.
    answer_bytes: usize,
    /// One piece is in memory at a time. Whoever asks pieces has this from the first to the last.
    loading: Mutex<Loading>,
}

#[derive(Debug)]
struct Loading {
    /// Memory for what is built at a time.
    room: usize,
    /// The piece that was asked last, if it was built as a whole.
    last: Option<(usize, BuildSide)>,
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
    pub(super) fn try_new(pieces: Pieces, spill: Arc<Spill>, building: &Building) -> Result<Self> {
        let (columns, fields) = (&building.columns, building.schema.fields());
        let key = columns.key(fields).as_ref().clone().with_name("key");
        let all_fields = fields.iter().cloned().chain([Arc::new(key)]);
        building.room.keep(pieces.kept_room());
        let merging = Merging::try_new(columns, &building.schema)?;
        // Each is of one column, and the columns of a row are as wide as the row.
        let asked = merging.columns.aggregates.len();
        let answer_bytes = pieces.row_bytes() * asked.div_ceil(columns.values(fields).len().max(1));
        Ok(Self {
            merging,
            answer_bytes,
            schema: Arc::new(Schema::new(all_fields.collect::<Vec<_>>())),
            gather: pieces.room / 4 / building.probe.partitions.max(1),
            loading: Mutex::new(Loading {
                room: pieces.piece_room(),
                last: None,
            }),
            kept: pieces.kept_room(),
            pieces: pieces.list,
            spill,
            room: Arc::clone(&building.room),
            metrics: building.metrics.of_a_piece(),
            threads: building.options.threads(),
        })
    }

    /// About how many bytes a batch of the probe side takes with its answers; the rows and the answers stand twice in memory when they
    /// are put together.
    pub(super) fn bytes_answered(&self, batch: &RecordBatch) -> usize {
        let Size { rows, bytes } = Size::of(batch);
        2 * (bytes + rows * self.answer_bytes)
    }

    /// The first rows of a batch, as many as may be gathered, and the others.
    pub(super) fn split(&self, batch: &RecordBatch) -> (RecordBatch, Option<RecordBatch>) {
        let rows = batch.num_rows();
        let row_bytes = self.bytes_answered(batch).div_ceil(rows.max(1));
        let fits = (self.gather / row_bytes.max(1)).max(FEW);
        if rows <= fits {
            return (batch.clone(), None);
        }
        (batch.slice(0, fits), Some(batch.slice(fits, rows - fits)))
    }

    /// An empty reservation for gathered rows.
    pub(super) fn reservation(&self) -> MemoryReservation {
        self.room.beside()
    }

    /// The batches with the aggregates.
    pub(super) async fn answer(
        self: Arc<Self>,
        probing: Arc<Probing>,
        batches: Vec<RecordBatch>,
        memory: Arc<MemoryReservation>,
    ) -> Result<VecDeque<RecordBatch>> {
        let mut asking = Asking {
            batches: vec![],
            memory,
        };
        for batch in batches {
            let bounds = self.bounds(&probing, &batch);
            let merged = Merged::new(&self.merging, batch.num_rows());
            asking.batches.push(Asked {
                batch,
                bounds,
                merged,
            });
        }
        let mut loading = self.loading.lock().await;
        // What is in memory first.
        let last = loading.last.as_ref().map(|(i, _)| *i);
        let others = (0..self.pieces.len()).filter(|i| Some(*i) != last);
        for i in last.into_iter().chain(others) {
            let piece = &self.pieces[i];
            let wanted: Vec<Wanted> = asking.batches.iter().map(|a| a.wanted(piece)).collect();
            if wanted.iter().all(|w| matches!(w, Wanted::Nothing)) {
                continue;
            }
            if let Some((_, side)) = loading.last.as_ref().filter(|(last, _)| *last == i) {
                self.ask(&probing, &mut asking, &wanted, side, piece.first_row)
                    .await?;
                continue;
            }
            loading.last = None;
            let mut reading = Reading::new(self.spill.read(piece)?, piece.first_row);
            while let Some((side, first_row)) = self.load(&mut reading, &mut loading.room).await? {
                self.ask(&probing, &mut asking, &wanted, &side, first_row)
                    .await?;
                if reading.is_done() && first_row == piece.first_row {
                    loading.last = Some((i, side));
                }
            }
        }
        self.room.keep(self.kept);
        drop(loading);
        let mut joined = VecDeque::new();
        for asked in asking.batches {
            let (matched, answers) = asked.merged.finish(&probing.spec.aggregates);
            joined.extend(probing.joined(&asked.batch, &matched, answers)?);
        }
        Ok(joined)
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
    async fn load(
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
            let memory = self.room.reservation();
            memory.try_grow(taken.bytes)?;
            // In case that building has not the memory it takes.
            let kept = self.room.reservation();
            kept.try_grow(taken.bytes)?;
            let collected = Collected {
                schema: Arc::clone(&self.schema),
                batches: self.with_key(&batches)?,
                memory,
            };
            let columns = &self.merging.columns;
            match build(columns, collected, &self.metrics, self.threads, None).await {
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

    /// The batches as [`Merging`] wants them.
    fn with_key(&self, batches: &[RecordBatch]) -> Result<Vec<RecordBatch>> {
        let batches = batches.iter().map(|batch| {
            let key = Arc::clone(self.merging.columns.key(batch.columns()));
            let columns: Vec<ArrayRef> = batch.columns().iter().cloned().chain([key]).collect();
            Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
        });
        batches.collect()
    }

    /// Asks a piece, or a part of it.
    async fn ask(
        &self,
        probing: &Probing,
        asking: &mut Asking,
        wanted: &[Wanted],
        side: &BuildSide,
        first_row: RowOrder,
    ) -> Result<()> {
        for (asked, wanted) in asking.batches.iter_mut().zip(wanted) {
            let (batch, rows) = match wanted {
                Wanted::Nothing => continue,
                Wanted::All => (asked.batch.clone(), None),
                Wanted::Rows(rows) => (take_record_batch(&asked.batch, rows)?, Some(rows)),
            };
            let ranges = probing.ranges(&batch, side, &mut LastFound::default())?;
            side.make_ready(&ranges).await?;
            let answers = probing.answers(&ranges, side)?.0;
            asked
                .merged
                .add(&self.merging, first_row, rows, &ranges, answers)?;
            // Others have their turn, and a query that was cancelled ends here.
            tokio::task::yield_now().await;
        }
        asking.register();
        Ok(())
    }
}

/// Whether memory was wanting.
pub(super) fn is_exhausted(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

/// Gathered batches of the probe side.
struct Asking {
    batches: Vec<Asked>,
    memory: Arc<MemoryReservation>,
}

struct Asked {
    batch: RecordBatch,
    bounds: Vec<Bound>,
    merged: Merged,
}

/// Which rows of a batch a piece is asked for.
enum Wanted {
    All,
    Rows(UInt32Array),
    Nothing,
}

impl Asking {
    /// Registers what there is, whether or not it fits: it is there.
    fn register(&self) {
        let mut bytes = 0;
        for asked in &self.batches {
            bytes += Size::of(&asked.batch).bytes + asked.merged.bytes();
        }
        self.memory.resize(bytes);
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
struct Reading {
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
    fn is_done(&self) -> bool {
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
