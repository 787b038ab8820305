//! The memory of a batch's answers on the host.

use crate::cuda::memory::pinned::{DeviceValue, PinnedPool};
use std::sync::Arc;

use crate::{OutputBuffer, OutputValues, RangeJoinOutput};

/// What one answer is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerShape {
    /// Bytes of each value: 0, 4, 8 or 16.
    pub value_bytes: usize,
    /// Whether there is a bitmap.
    pub valid: bool,
}

impl AnswerShape {
    /// Allocates the answers to `rows` rows, in pinned memory if there is some. Validity is zeroed.
    pub fn allocate(self, rows: usize, pinned: Option<&Arc<PinnedPool>>) -> RangeJoinOutput {
        let values = match self.value_bytes {
            4 => OutputValues::W32(allocate(rows, pinned)),
            8 => OutputValues::W64(allocate(rows, pinned)),
            16 => OutputValues::W128(allocate(rows, pinned)),
            _ => OutputValues::None,
        };
        let valid = self.valid.then(|| {
            let mut valid = allocate::<u64>(rows.div_ceil(64), pinned);
            valid.fill(0);
            valid
        });
        RangeJoinOutput { values, valid }
    }
}

fn allocate<T: DeviceValue>(len: usize, pinned: Option<&Arc<PinnedPool>>) -> OutputBuffer<T> {
    pinned
        .and_then(|pinned| pinned.allocate(len).ok())
        .unwrap_or_else(|| vec![T::default(); len].into())
}

/// The destination of one array of answers.
#[derive(Debug, Clone, Copy)]
pub struct Destination {
    pub start: *mut u8,
    /// Whether the device may copy to it directly.
    pub pinned: bool,
}

/// The destinations of an answer's values and validity.
#[derive(Debug, Clone, Copy)]
pub struct Destinations {
    pub values: Option<Destination>,
    pub valid: Option<Destination>,
}

impl Destinations {
    /// Those of an output, which outlives what is copied to them.
    pub fn of_output(output: &mut RangeJoinOutput, pinned: &PinnedPool) -> Self {
        fn of<T>(slice: &mut [T], pinned: &PinnedPool) -> Destination {
            Destination {
                pinned: pinned.contains(slice),
                start: slice.as_mut_ptr().cast(),
            }
        }
        Self {
            values: match &mut output.values {
                OutputValues::None => None,
                OutputValues::W32(values) => Some(of(values, pinned)),
                OutputValues::W64(values) => Some(of(values, pinned)),
                OutputValues::W128(values) => Some(of(values, pinned)),
            },
            valid: output.valid.as_deref_mut().map(|valid| of(valid, pinned)),
        }
    }
}
