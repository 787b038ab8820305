//! The ranks of rows, where they are asked: on the CPU, or on devices that have a copy of the matrix.

use std::sync::Arc;

use crate::cpu::wavelet_matrix::matrix::WaveletMatrix;
use crate::crossings::check_length;
use crate::engine::{Engine, RankIndex};
use crate::error::EngineError;

/// Ranges that are converted at once: they stay in the L1 cache until they are answered.
const BATCH: usize = 1024;

/// The CPU answers fewer ranges sooner than a batch is on its way to a device and back.
const MIN_ON_DEVICES: usize = 256;

/// A wavelet matrix, and its copy on devices.
#[derive(Debug)]
pub(super) struct RankedRows {
    pub(super) matrix: WaveletMatrix,
    on_devices: Option<Arc<dyn RankIndex>>,
}

impl RankedRows {
    pub(super) fn new(matrix: WaveletMatrix) -> Self {
        Self {
            matrix,
            on_devices: None,
        }
    }

    /// Has the devices of an engine answer, if it has any.
    pub(super) fn copy_to(
        &mut self,
        engine: &dyn Engine,
        threads: usize,
    ) -> Result<(), EngineError> {
        self.on_devices = engine.copy_ranks(self.matrix.levels(), threads)?;
        Ok(())
    }

    pub(super) fn device_bytes(&self) -> usize {
        let on_devices = self.on_devices.as_ref();
        on_devices.map_or(0, |on_devices| on_devices.device_bytes())
    }

    /// The answers of devices to this many ranges; `None` if the CPU is to answer, as after a failure.
    fn ask_devices(
        &self,
        ranges: usize,
        ask: impl FnOnce(&dyn RankIndex, &mut [u32]) -> Result<(), EngineError>,
    ) -> Result<Option<Vec<u32>>, EngineError> {
        let Some(devices) = self
            .on_devices
            .as_ref()
            .filter(|_| ranges >= MIN_ON_DEVICES)
        else {
            return Ok(None);
        };
        let mut answers = vec![0; ranges];
        match ask(devices.as_ref(), &mut answers) {
            Ok(()) => Ok(Some(answers)),
            Err(error @ EngineError::Lengths { .. }) => Err(error),
            // A device that fails has logged it.
            Err(_) => Ok(None),
        }
    }

    /// Writes how many rows of each range `left[i]..=right[i]` have a rank below the one that `rank` tells by its
    /// number and its first row.
    ///
    /// # Errors
    /// [`EngineError::Lengths`] if slices differ in length.
    pub(super) fn count_below(
        &self,
        left: &[i64],
        right: &[i64],
        rank: impl Fn(usize, usize) -> u32,
        counts: &mut [i64],
    ) -> Result<(), EngineError> {
        check_length("the slice for answers", left.len(), counts.len())?;
        let rows = self.matrix.len();
        let on_devices = self.ask_devices(left.len(), |devices, found| {
            let ranks = left.iter().enumerate();
            let ranks = ranks.map(|(i, left)| rank(i, clip(*left, rows)));
            devices.count_below(left, right, &ranks.collect::<Vec<_>>(), found)
        })?;
        if let Some(found) = on_devices {
            for (count, found) in counts.iter_mut().zip(found) {
                *count = i64::from(found);
            }
            return Ok(());
        }
        in_batches(rows, left, right, |first, starts, ends| {
            let (mut ranks, mut found) = ([0; BATCH], [0; BATCH]);
            let (ranks, found) = (&mut ranks[..starts.len()], &mut found[..starts.len()]);
            for (i, (out, start)) in ranks.iter_mut().zip(starts).enumerate() {
                *out = rank(first + i, *start);
            }
            self.matrix.count_below(starts, ends, ranks, found)?;
            for (count, found) in counts[first..].iter_mut().zip(found) {
                *count = i64::from(*found);
            }
            Ok(())
        })
    }

    /// Calls `write` with the number of each range and the rank of its row that has as many rows before it as `smaller`
    /// tells, if its rows are sorted by rank; [`WaveletMatrix::NONE`] if it has too few.
    ///
    /// # Errors
    /// As [`Self::count_below`].
    pub(super) fn nth_smallest(
        &self,
        left: &[i64],
        right: &[i64],
        smaller: impl Fn(usize) -> u32,
        mut write: impl FnMut(usize, u32),
    ) -> Result<(), EngineError> {
        let on_devices = self.ask_devices(left.len(), |devices, found| {
            let targets: Vec<u32> = (0..left.len()).map(&smaller).collect();
            devices.nth_smallest(left, right, &targets, found)
        })?;
        if let Some(found) = on_devices {
            found
                .into_iter()
                .enumerate()
                .for_each(|(i, rank)| write(i, rank));
            return Ok(());
        }
        in_batches(self.matrix.len(), left, right, |first, starts, ends| {
            let (mut targets, mut ranks) = ([0; BATCH], [0; BATCH]);
            let (targets, ranks) = (&mut targets[..starts.len()], &mut ranks[..starts.len()]);
            for (i, target) in targets.iter_mut().enumerate() {
                *target = smaller(first + i);
            }
            self.matrix.nth_smallest(starts, ends, targets, ranks)?;
            (first..).zip(ranks).for_each(|(i, rank)| write(i, *rank));
            Ok(())
        })
    }
}

/// A position as one of `rows` rows, or after these.
pub(super) fn clip(position: i64, rows: usize) -> usize {
    usize::try_from(position).unwrap_or(0).min(rows)
}

/// Calls `answer` with the number of the first range of each batch, and the starts and ends of half-open ranges of
/// `rows` rows.
pub(super) fn in_batches(
    rows: usize,
    left: &[i64],
    right: &[i64],
    mut answer: impl FnMut(usize, &[usize], &[usize]) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    check_length("the slice of right bounds", left.len(), right.len())?;
    let (mut starts, mut ends) = ([0; BATCH], [0; BATCH]);
    let batches = left.chunks(BATCH).zip(right.chunks(BATCH));
    for (number, (left, right)) in batches.enumerate() {
        for ((start, end), (left, right)) in
            starts.iter_mut().zip(&mut ends).zip(left.iter().zip(right))
        {
            (*start, *end) = (clip(*left, rows), clip(right.saturating_add(1), rows));
        }
        answer(BATCH * number, &starts[..left.len()], &ends[..left.len()])?;
    }
    Ok(())
}
