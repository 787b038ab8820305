//! A batch of probe rows as it is read for a device.

use super::chunks::{BitmapChunks, SliceChunks, bits_of};
use crate::cuda::key::CudaKey;
use crate::{Column, Comparison, Encoding, EngineError, RangeJoinProbe};

/// A batch as it is read for the device.
#[derive(Debug)]
pub struct ProbeBatch<'a, K> {
    pub rows: usize,
    pub ids: Option<SliceChunks<'a, u32>>,
    pub bounds: Vec<ProbeBound<'a, K>>,
    pub prevailing: bool,
}

/// A bound of each row.
#[derive(Debug)]
pub struct ProbeBound<'a, K> {
    pub comparison: Comparison,
    /// The stored bits.
    pub bits: SliceChunks<'a, K>,
    /// None if no bound is NULL.
    pub valid: Option<BitmapChunks<'a>>,
    pub encoding: Encoding<K>,
}

impl<'a, K: CudaKey> ProbeBatch<'a, K> {
    /// Reads a checked batch whose bounds have this width.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] if a bound has another width.
    pub fn try_new(probe: &'a RangeJoinProbe<'_>) -> Result<Self, EngineError> {
        let bounds = probe.bounds.iter().map(|(comparison, bound)| {
            let chunks = K::chunks(bound).ok_or_else(|| {
                let bits = 8 * size_of::<K>();
                EngineError::Invalid(format!(
                    "a bound of a range does not have {bits} bits, as the keys"
                ))
            })?;
            Ok(ProbeBound {
                comparison: *comparison,
                bits: bits_of(chunks),
                valid: BitmapChunks::of_column(chunks),
                encoding: chunks
                    .first()
                    .map_or_else(Encoding::unsigned, Column::encoding),
            })
        });
        let ids = probe.groups.as_ref();
        Ok(Self {
            rows: probe.rows,
            ids: ids.map(|ids| SliceChunks::new(ids.iter().copied())),
            bounds: bounds.collect::<Result<_, EngineError>>()?,
            prevailing: probe.prevailing,
        })
    }
}
