//! The build side of a range join on disk: pieces of it, each in a file, which are read again one after another.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::utils::normalize_float_zero;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::execution::spill_file::SpillFile;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::SpillManager;

use crate::exec::common::blocking::{Waiting, blocking};
use crate::exec::range_join::build::collect::{RowOrder, Size};
use crate::exec::range_join::metrics::BuildMetrics;
use crate::index::sort_keys::value_type;
use rmq_engine::Comparison;

/// Bytes of a batch in a file: what memory must suffice for at the least.
const BATCH_BYTES: usize = 128 << 10;

/// Batches are cut to no fewer rows, as each costs something of its own.
const BATCH_ROWS: usize = 1024;

/// Memory that is tried for a piece, where next to nothing was granted when the pieces were written.
const LEAST_ROOM: usize = 4 << 20;

/// Writes pieces, and reads them.
#[derive(Debug)]
pub(crate) struct Spill {
    manager: SpillManager,
    metrics: BuildMetrics,
    /// Where the range key stands among the columns.
    key: usize,
    pub(crate) order: Arc<KeyOrder>,
}

/// What was written.
#[derive(Debug, Default)]
pub(crate) struct SpillRuns {
    pub(crate) list: Vec<Piece>,
    /// Of all pieces.
    size: Size,
    /// The most memory that was granted while they were collected.
    pub(crate) room: usize,
}

/// Rows of the build side that came one after another.
pub(crate) struct Piece {
    file: Arc<dyn SpillFile>,
    /// Where its first row stands; the others stand behind it.
    pub(crate) first_row: RowOrder,
    /// The smallest and the greatest range key, unless all are NULL.
    keys: Option<(KeyBytes, KeyBytes)>,
}

type KeyBytes = Box<[u8]>;

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Piece")
            .field("first_row", &self.first_row)
            .finish_non_exhaustive()
    }
}

impl Spill {
    /// Spilling of batches of this schema, if the session's memory is limited and it may write to disk.
    pub(crate) fn new(
        schema: &SchemaRef,
        key: usize,
        metrics: &BuildMetrics,
        context: &TaskContext,
    ) -> Result<Option<Arc<Self>>> {
        let unlimited = matches!(context.memory_pool().memory_limit(), MemoryLimit::Infinite);
        let runtime = context.runtime_env();
        if unlimited || !runtime.disk_manager.tmp_files_enabled() {
            return Ok(None);
        }
        let manager = SpillManager::new(runtime, metrics.spill.clone(), Arc::clone(schema))
            .with_compression_type(context.session_config().spill_compression());
        Ok(Some(Arc::new(Self {
            manager,
            metrics: metrics.clone(),
            key,
            order: Arc::new(KeyOrder::try_new(schema.field(key).data_type())?),
        })))
    }

    /// Writes batches as one piece or several. Their rows stand one after another, this one first.
    pub(crate) async fn write(
        self: &Arc<Self>,
        batches: Vec<RecordBatch>,
        first_row: RowOrder,
        pieces: &mut SpillRuns,
    ) -> Result<()> {
        let (this, room) = (Arc::clone(self), pieces.piece_room());
        let size = batches.iter().map(Size::of);
        let size = size.fold(Size::default(), |all, batch| all + batch);
        let work = move |waiting| this.write_now(batches, room, first_row, &waiting);
        pieces.list.extend(blocking(work).await?);
        pieces.size = pieces.size + size;
        Ok(())
    }

    fn write_now(
        &self,
        batches: Vec<RecordBatch>,
        room: usize,
        mut first_row: RowOrder,
        waiting: &Waiting,
    ) -> Result<Vec<Piece>> {
        // Read again, rows may take a little more.
        let room = room - room / 8;
        let mut written = vec![];
        let (mut piece, mut size) = (vec![], Size::default());
        for batch in batches {
            for part in parts(&batch) {
                let more = Size::of(&part);
                if !piece.is_empty() && (size + more).to_build() > room {
                    written.push(self.write_piece(&piece, first_row, waiting)?);
                    first_row = first_row.after(size.rows);
                    piece.clear();
                    size = Size::default();
                }
                piece.push(part);
                size = size + more;
            }
        }
        if !piece.is_empty() {
            written.push(self.write_piece(&piece, first_row, waiting)?);
        }
        Ok(written)
    }

    fn write_piece(
        &self,
        batches: &[RecordBatch],
        first_row: RowOrder,
        waiting: &Waiting,
    ) -> Result<Piece> {
        let mut file = self
            .manager
            .create_in_progress_file("writing the build side of a range join")?;
        let mut keys = None;
        for batch in batches {
            waiting.check()?;
            file.append_batch(batch)?;
            keys = merge(keys, self.order.extent(batch.column(self.key))?);
        }
        let file = file
            .finish()?
            .ok_or_else(|| internal_datafusion_err!("a piece of a range join has no rows"))?;
        Ok(Piece {
            file,
            first_row,
            keys,
        })
    }

    /// The batches of a piece, as they were written.
    pub(crate) fn read(&self, piece: &Piece) -> Result<SendableRecordBatchStream> {
        self.metrics.pieces_read.add(1);
        self.manager
            .read_spill_as_stream(Arc::clone(&piece.file), None)
    }
}

impl SpillRuns {
    /// None yet; they are collected where so much memory was granted.
    pub(crate) fn with_room(room: usize) -> Self {
        Self {
            room,
            ..Self::default()
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.size.rows
    }

    /// About how many bytes a row takes.
    pub(crate) fn row_bytes(&self) -> usize {
        self.size.bytes.div_ceil(self.rows().max(1))
    }

    pub(crate) fn are_none(&self) -> bool {
        self.list.is_empty()
    }

    /// Memory that is kept while there are pieces: half of what there was, so that one can always be built, and others have
    /// the rest.
    pub(crate) fn retained_bytes(&self) -> usize {
        self.room / 2
    }

    /// Memory for a piece that has been read and is being built.
    pub(crate) fn piece_room(&self) -> usize {
        self.retained_bytes().max(LEAST_ROOM)
    }
}

/// A batch in parts of a size that memory always has room for.
fn parts(batch: &RecordBatch) -> impl Iterator<Item = RecordBatch> {
    let Size { rows, bytes } = Size::of(batch);
    let step = (rows * BATCH_BYTES / bytes.max(1)).max(BATCH_ROWS);
    let starts = (0..rows).step_by(step);
    starts.map(move |start| batch.slice(start, step.min(rows - start)))
}

/// The order of range keys, for telling which pieces a bound leaves out.
#[derive(Debug)]
pub(crate) struct KeyOrder {
    converter: RowConverter,
    data_type: DataType,
}

/// What the range key is compared with, by row of the probe side.
#[derive(Debug)]
pub(crate) struct Bound {
    comparison: Comparison,
    rows: Rows,
    nulls: Option<NullBuffer>,
}

impl KeyOrder {
    fn try_new(data_type: &DataType) -> Result<Self> {
        let data_type = value_type(data_type);
        let converter = RowConverter::new(vec![SortField::new(data_type.clone())])?;
        Ok(Self {
            converter,
            data_type,
        })
    }

    /// The smallest and the greatest of some keys.
    fn extent(&self, keys: &ArrayRef) -> Result<Option<(KeyBytes, KeyBytes)>> {
        let nulls = keys.logical_nulls();
        let rows = self.converter.convert_columns(&[plain_key(keys)?])?;
        let valid = (0..keys.len()).filter(|i| nulls.as_ref().is_none_or(|n| n.is_valid(*i)));
        let (mut least, mut greatest) = (None, None);
        for key in valid.map(|i| rows.row(i).data()) {
            least = Some(least.map_or(key, |least: &[u8]| least.min(key)));
            greatest = Some(greatest.map_or(key, |greatest: &[u8]| greatest.max(key)));
        }
        Ok(least.zip(greatest).map(|(l, g)| (l.into(), g.into())))
    }

    /// Bounds in this order, unless they are of another type.
    pub(crate) fn bound(&self, comparison: Comparison, bounds: &ArrayRef) -> Result<Option<Bound>> {
        if value_type(bounds.data_type()) != self.data_type {
            return Ok(None);
        }
        Ok(Some(Bound {
            comparison,
            rows: self.converter.convert_columns(&[plain_key(bounds)?])?,
            nulls: bounds.logical_nulls(),
        }))
    }
}

impl Piece {
    /// Whether a row of the probe side may match rows of this piece.
    pub(crate) fn may_match(&self, bounds: &[Bound], row: usize) -> bool {
        let Some((least, greatest)) = &self.keys else {
            return false;
        };
        bounds.iter().all(|bound| {
            if bound.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
                return false;
            }
            let at = bound.rows.row(row).data();
            match bound.comparison {
                Comparison::Above => **greatest > *at,
                Comparison::AtLeast => **greatest >= *at,
                Comparison::Below => **least < *at,
                Comparison::AtMost => **least <= *at,
            }
        })
    }
}

/// Keys as they are compared: not in a dictionary, and zeros of both signs equal.
pub(crate) fn plain_key(keys: &ArrayRef) -> Result<ArrayRef> {
    Ok(cast(
        &normalize_float_zero(keys),
        &value_type(keys.data_type()),
    )?)
}

type Extent = Option<(KeyBytes, KeyBytes)>;

fn merge(one: Extent, other: Extent) -> Extent {
    match (one, other) {
        (Some((l, g)), Some((least, greatest))) => Some((l.min(least), g.max(greatest))),
        (one, other) => one.or(other),
    }
}
