//! Columns on their way to a device, in one piece of its memory.

use std::fmt;

use super::chunks::{BitmapChunks, bits_of};
use super::group_ids::{DeviceId, GroupsOfRows};
use super::work::Work;
use crate::cuda::batch_buffers::Offsets;
use crate::cuda::key::CudaKey;
use crate::cuda::memory::device_memory::DeviceMemory;
use crate::cuda::memory::pinned::DeviceValue;
use crate::cuda::memory::upload::upload;
use crate::cuda::tuning::MAX_JOIN_UPLOAD_THREADS;
use crate::{Column, EngineError};

/// What is uploaded together, so that no thread waits for the end of one column.
#[derive(Default)]
pub struct Staging<'a> {
    parts: Vec<Part<'a>>,
    offsets: Offsets,
}

/// Writes bytes of a part from the given one on.
type Fill<'a> = Box<dyn Fn(usize, &mut [u8]) + Sync + 'a>;

struct Part<'a> {
    start: usize,
    bytes: usize,
    fill: Fill<'a>,
}

impl<'a> Staging<'a> {
    /// Adds `len` numbers that `fill` writes from the given one on; returns their offset.
    pub fn add<T: DeviceValue>(
        &mut self,
        len: usize,
        fill: impl Fn(usize, &mut [T]) + Sync + 'a,
    ) -> usize {
        let bytes = len * size_of::<T>();
        let start = self.offsets.add(bytes);
        // Parts are cut at multiples of 256 bytes, in memory that is aligned as well.
        let fill = move |first: usize, to: &mut [u8]| {
            fill(first / size_of::<T>(), bytemuck::cast_slice_mut(to));
        };
        self.parts.push(Part {
            start,
            bytes,
            fill: Box::new(fill),
        });
        start
    }

    /// Adds the bits of a column.
    pub fn add_column<K: CudaKey>(&mut self, chunks: &'a [Column<K>]) -> usize {
        let bits = bits_of(chunks);
        self.add(bits.len(), move |first, to: &mut [K]| bits.copy(first, to))
    }

    /// Adds the validity of a column of `rows` rows as words of 32 bits; `None` if it has no NULLs.
    pub fn add_validity<K: CudaKey>(
        &mut self,
        rows: usize,
        chunks: &'a [Column<K>],
    ) -> Option<usize> {
        let bitmap = BitmapChunks::of_column(chunks)?;
        Some(self.add(rows.div_ceil(32), move |first, to: &mut [u32]| {
            bitmap.copy(first * 32, to);
        }))
    }

    /// Adds the group of each row. `found_wrong` is called if an id is no group's and not that of a row of no group.
    pub fn add_groups<T: DeviceId + DeviceValue>(
        &mut self,
        groups: GroupsOfRows<'a>,
        found_wrong: impl Fn() + Sync + 'a,
    ) -> usize {
        self.add(groups.rows(), move |first, to: &mut [T]| {
            if !groups.write(first, to) {
                found_wrong();
            }
        })
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> usize {
        self.offsets.end
    }

    /// Uploads all parts with up to `threads` threads; returns the memory that parts are in at their offsets.
    ///
    /// # Errors
    /// [`EngineError::Stopped`], and those of the device.
    pub fn upload(&self, work: &Work<'_>, threads: usize) -> Result<DeviceMemory, EngineError> {
        let memory = work.allocate::<u8>(self.bytes() as u64)?;
        // SAFETY: the memory is new and as long as all parts.
        unsafe {
            upload(
                &work.gpu.pinned,
                self.bytes(),
                |first, to| self.fill(first, to),
                memory.address(),
                threads.min(MAX_JOIN_UPLOAD_THREADS),
                |_, _| work.check_stopped(),
            )?;
        };
        Ok(memory)
    }

    /// Writes the bytes of all parts from `first` on to all of `to`; those between parts stay as they are.
    fn fill(&self, first: usize, to: &mut [u8]) {
        let end = first + to.len();
        for part in &self.parts {
            let (from, until) = (part.start.max(first), (part.start + part.bytes).min(end));
            if from < until {
                (part.fill)(from - part.start, &mut to[from - first..until - first]);
            }
        }
    }
}

impl fmt::Debug for Staging<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staging")
            .field("parts", &self.parts.len())
            .field("bytes", &self.bytes())
            .finish()
    }
}
