//! A batch of probe rows as it is read for a device.

use super::chunks::{BitmapChunks, SliceChunks, bits_of};
use crate::cuda::key::CudaKey;
use crate::{Column, Encoding, EngineError, ProbeBound, RangeJoinProbe};

/// A batch as it is read for the device.
#[derive(Debug)]
pub struct ProbeBatch<'a, K> {
    pub rows: usize,
    pub ids: Option<SliceChunks<'a, u32>>,
    pub columns: Vec<ProbeColumn<'a, K>>,
    pub bounds: &'a [ProbeBound],
    pub prevailing: bool,
}

/// A column that bounds are made of.
#[derive(Debug)]
pub struct ProbeColumn<'a, K> {
    /// The stored bits.
    pub bits: SliceChunks<'a, K>,
    /// None if no value is NULL.
    pub valid: Option<BitmapChunks<'a>>,
    pub encoding: Encoding<K>,
}

impl<'a, K: CudaKey> ProbeBatch<'a, K> {
    /// Reads a checked batch whose columns have this width.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] if a bound has another width.
    pub fn try_new(probe: &'a RangeJoinProbe<'_>) -> Result<Self, EngineError> {
        let columns = probe.columns.iter().map(|column| {
            let chunks = K::chunks(column).ok_or_else(|| {
                let bits = 8 * size_of::<K>();
                EngineError::Invalid(format!(
                    "a bound of a range does not have {bits} bits, as the keys"
                ))
            })?;
            Ok(ProbeColumn {
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
            columns: columns.collect::<Result<_, EngineError>>()?,
            bounds: &probe.bounds,
            prevailing: probe.prevailing,
        })
    }

    /// Whether a bound may be moved beyond its type.
    pub fn may_overflow(&self) -> bool {
        self.bounds.iter().any(|bound| bound.shift != 0)
    }
}
