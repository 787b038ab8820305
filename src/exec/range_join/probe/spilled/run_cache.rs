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
use tokio::sync::{
    OwnedRwLockMappedWriteGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock,
};

use crate::exec::common::once_per_run::lock;
use crate::exec::range_join::build_side::side::BuildSide;
use crate::exec::range_join::probe::spilled::run_loader::RunLoader;
use crate::exec::range_join::probe::spilled::run_set::RunSet;
use crate::exec::range_join::spill::reader::RunReader;
use crate::exec::range_join::spill::row_position::RowPosition;

/// The spill runs of a build side, and the part of one that is in memory.
pub(crate) struct RunCache {
    loader: RunLoader,
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
    /// The number of the run.
    pub(crate) run: usize,
    /// The rows of the run.
    pub(crate) rows: Range<usize>,
    pub(crate) side: Arc<BuildSide>,
    pub(crate) first_row: RowPosition,
}

/// A part of a run that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// Frees the part. Returns what reads the rows after it, with their run and the first of them.
    fn free(&mut self) -> Option<((usize, usize), RunReader)> {
        let follows = self.part.take().map(|part| (part.run, part.rows.end));
        let reader = self.reader.get_mut();
        follows.zip(reader.unwrap_or_else(PoisonError::into_inner).take())
    }

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
        *lock(&self.current)
    }

    /// Frees the part in memory. As long as the result is kept, which is the memory for building a run, there is none.
    pub(crate) async fn without_part(&self) -> OwnedRwLockMappedWriteGuard<Loaded, usize> {
        let mut loaded = Arc::clone(&self.loaded).write_owned().await;
        loaded.free();
        OwnedRwLockWriteGuard::map(loaded, |loaded| &mut loaded.build_bytes)
    }

    /// Gets a part of one of these runs into memory, where it stays as long as the result is kept. `None` if another
    /// part than `current` has been loaded, or is wanted, since the part was chosen: that one may serve as well.
    pub(crate) async fn load(
        &self,
        runs: &RunSet,
        wanted: PartPosition,
        current: Option<PartPosition>,
    ) -> Result<Option<OwnedRwLockReadGuard<Loaded>>> {
        let loaded = Arc::clone(&self.loaded).read_owned().await;
        if loaded.part(wanted).is_some() {
            return Ok(Some(loaded));
        }
        drop(loaded);
        {
            let mut known = lock(&self.current);
            if *known != current {
                return Ok(None);
            }
            *known = Some(wanted);
        }
        let mut loaded = Arc::clone(&self.loaded).write_owned().await;
        if loaded.part(wanted).is_none() {
            self.replace(&mut loaded, runs, wanted).await?;
        }
        Ok(Some(loaded.downgrade()))
    }

    async fn replace(
        &self,
        loaded: &mut Loaded,
        runs: &RunSet,
        wanted: PartPosition,
    ) -> Result<()> {
        let PartPosition { run, start, end } = wanted;
        *lock(&self.current) = Some(wanted);
        // There is memory for one part at a time.
        let reader = loaded
            .free()
            .filter(|(follows, _)| *follows == (run, start));
        self.loader.release_memory();
        let mut reader = match reader {
            Some((_, reader)) => reader,
            None => {
                let mut reader = runs.run(run).read()?;
                reader.skip(start).await?;
                reader
            }
        };
        let build_bytes = &mut loaded.build_bytes;
        let part = self
            .loader
            .load(&mut reader, build_bytes, end - start)
            .await?;
        let Some((side, first_row)) = part else {
            return internal_err!("spill run {run} ends before row {start}");
        };
        let rows = start..start + side.total_rows();
        *lock(&self.current) = Some(PartPosition {
            end: rows.end,
            ..wanted
        });
        loaded.part = Some(RunPart {
            run,
            rows,
            side,
            first_row,
        });
        loaded.reader = Mutex::new(Some(reader));
        Ok(())
    }
}
