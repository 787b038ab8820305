//! The part of a spill run that is in memory, for all partitions that probe it.
//!
//! Partitions that probe the same part do so at the same time. A partition that needs another part waits until these
//! have ended their turns, and then replaces it. No turn lasts until a consumer has taken its rows, so partitions can't
//! block each other, in whatever order they are read. A partition that has not finished with the part that was replaced
//! goes on with the new one first ([`RunCache::current`]), instead of reading the old one again.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::common::{Result, internal_err};
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::probe::spilled::run_loader::RunLoader;
use crate::exec::range_join::spill::reader::RunReader;

/// The spill runs of a build side, and the part of one that is in memory.
pub(crate) struct RunCache {
    pub(crate) loader: RunLoader,
    loaded: Arc<RwLock<Loaded>>,
    /// The part that is in memory, or wanted next.
    current: Mutex<Option<PartPosition>>,
}

/// What is in memory. A partition holds it while it probes the part.
pub(crate) struct Loaded {
    /// Memory for building a run, or a part of it.
    build_bytes: usize,
    /// Reads the rows after the part. The lock is for sharing: only the partition that replaces the part uses it.
    reader: Mutex<Option<RunReader>>,
    part: Option<RunPart>,
}

/// Consecutive rows of a run, sorted.
pub(crate) struct RunPart {
    pub(crate) run: usize,
    /// The rows of the run.
    pub(crate) rows: Range<usize>,
    pub(crate) side: Arc<BuildSide>,
}

/// A part of a run that is wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartPosition {
    pub(crate) run: usize,
    /// The first row of the part.
    pub(crate) start: usize,
    /// The row that the part must end before. It ends earlier if memory requires it.
    pub(crate) end: usize,
}

impl fmt::Debug for RunCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunCache").finish_non_exhaustive()
    }
}

impl Loaded {
    /// The part, if it is the wanted one.
    pub(crate) fn part(&self, wanted: PartPosition) -> Option<&RunPart> {
        let PartPosition { run, start, end } = wanted;
        self.part
            .as_ref()
            .filter(|part| part.run == run && part.rows.start == start && part.rows.end <= end)
    }
}

impl RunCache {
    /// Nothing is in memory yet. Parts are built in this much.
    pub(crate) fn new(loader: RunLoader, build_bytes: usize) -> Self {
        let nothing = Loaded {
            build_bytes,
            reader: Mutex::default(),
            part: None,
        };
        Self {
            loader,
            loaded: Arc::new(RwLock::new(nothing)),
            current: Mutex::default(),
        }
    }

    /// The part that is in memory, or that a partition waits to replace it by. It may be another one by the time that
    /// it is loaded.
    pub(crate) fn current(&self) -> Option<PartPosition> {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_current(&self, part: PartPosition) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(part);
    }

    /// Gets a part into memory, where it stays as long as the result is kept.
    pub(crate) async fn load(&self, wanted: PartPosition) -> Result<OwnedRwLockReadGuard<Loaded>> {
        let loaded = Arc::clone(&self.loaded).read_owned().await;
        if loaded.part(wanted).is_some() {
            return Ok(loaded);
        }
        drop(loaded);
        self.set_current(wanted);
        let mut loaded = Arc::clone(&self.loaded).write_owned().await;
        if loaded.part(wanted).is_none() {
            self.replace(&mut loaded, wanted).await?;
        }
        Ok(loaded.downgrade())
    }

    async fn replace(&self, loaded: &mut Loaded, wanted: PartPosition) -> Result<()> {
        let PartPosition { run, start, end } = wanted;
        // There is memory for one part at a time.
        let last = loaded.part.take().map(|part| (part.run, part.rows.end));
        let known = loaded.reader.get_mut();
        let reader = known.unwrap_or_else(PoisonError::into_inner).take();
        let mut reader = match reader.filter(|_| last == Some((run, start))) {
            Some(reader) => reader,
            None => {
                let mut reader = self.loader.runs()[run].read()?;
                reader.skip(start).await?;
                reader
            }
        };
        let build_bytes = &mut loaded.build_bytes;
        let part = self
            .loader
            .load(&mut reader, build_bytes, end - start)
            .await?;
        let Some((side, _)) = part else {
            return internal_err!("spill run {run} ends before row {start}");
        };
        let rows = start..start + side.total_rows;
        self.set_current(PartPosition {
            end: rows.end,
            ..wanted
        });
        loaded.part = Some(RunPart { run, rows, side });
        loaded.reader = Mutex::new(Some(reader));
        Ok(())
    }
}
