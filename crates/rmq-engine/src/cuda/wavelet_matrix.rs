//! Copies of a wavelet matrix on devices, which answer order statistics of ranges.

use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;

use super::batch_buffers::{BatchBuffers, Offsets, capacity, reserve_device, reserve_pinned};
use super::driver::module::Function;
use super::driver::stream::argument;
use super::gpu::Gpu;
use super::kernels::WAVELET_MATRIX;
use super::memory::device_memory::DeviceMemory;
use super::memory::upload::{copy_of, upload};
use super::replicas::{Replica, build_on_each, run_on_one};
use super::rmq::clip_bounds;
use super::tuning::BATCH;
use crate::crossings::check_length;
use crate::{EngineError, RankIndex, RankLevels};

/// Bytes of a bound, of what is looked for, and of an answer.
const BYTES: usize = size_of::<u32>();

/// A wavelet matrix with a copy on each device.
pub struct CudaWaveletMatrix {
    rows: usize,
    /// Bytes on each device.
    bytes: usize,
    /// None without rows.
    copies: Vec<MatrixCopy>,
}

/// The matrix on one device.
struct MatrixCopy {
    /// Points into `memory`.
    matrix: Box<DeviceMatrix>,
    memory: DeviceMemory,
    nth_smallest: Function,
    count_below: Function,
    gpu: Arc<Gpu>,
}

/// The matrix as kernels get it (`kernels/wavelet_matrix.cu`).
#[repr(C)]
#[derive(Clone, Copy)]
struct DeviceMatrix {
    blocks: CUdeviceptr,
    zeros: CUdeviceptr,
    per_level: u32,
    levels: u32,
}

/// Ranges and what is looked for in them, in slices of one length.
#[derive(Clone, Copy)]
struct Queries<'a> {
    left: &'a [i64],
    right: &'a [i64],
    targets: &'a [u32],
}

impl CudaWaveletMatrix {
    /// Copies a matrix to every device that has room for it, with up to `threads` threads.
    ///
    /// # Errors
    /// If all devices fail, the error of the first one.
    pub fn copy(
        gpus: &[Arc<Gpu>],
        levels: RankLevels<'_>,
        threads: usize,
    ) -> Result<Self, EngineError> {
        let gpus = if levels.rows == 0 { &[] } else { gpus };
        let copies = build_on_each(gpus, "a wavelet matrix", |gpu| {
            MatrixCopy::new(gpu, levels, threads)
        })?;
        let bytes = copies.first().map_or(0, |copy| copy.memory.bytes());
        Ok(Self {
            rows: levels.rows,
            bytes,
            copies,
        })
    }

    /// Answers a batch with the kernel that `function` names; a column without rows with `none`.
    fn answer(
        &self,
        function: fn(&MatrixCopy) -> Function,
        queries: Queries<'_>,
        answers: &mut [u32],
        none: u32,
    ) -> Result<(), EngineError> {
        let expected = queries.left.len();
        check_length("the slice of right bounds", expected, queries.right.len())?;
        check_length("the slice of targets", expected, queries.targets.len())?;
        check_length("the slice for answers", expected, answers.len())?;
        if self.rows == 0 {
            answers.fill(none);
            return Ok(());
        }
        run_on_one(&self.copies, "the wavelet matrix", |copy| {
            copy.answer(function(copy), self.rows, queries, answers)
        })
    }
}

impl RankIndex for CudaWaveletMatrix {
    fn count_below(
        &self,
        left: &[i64],
        right: &[i64],
        ranks: &[u32],
        counts: &mut [u32],
    ) -> Result<(), EngineError> {
        let queries = Queries {
            left,
            right,
            targets: ranks,
        };
        self.answer(|copy| copy.count_below, queries, counts, 0)
    }

    fn nth_smallest(
        &self,
        left: &[i64],
        right: &[i64],
        smaller: &[u32],
        ranks: &mut [u32],
    ) -> Result<(), EngineError> {
        let queries = Queries {
            left,
            right,
            targets: smaller,
        };
        self.answer(|copy| copy.nth_smallest, queries, ranks, u32::MAX)
    }

    fn device_bytes(&self) -> usize {
        self.bytes
    }
}

impl Replica for MatrixCopy {
    fn gpu(&self) -> &Gpu {
        &self.gpu
    }
}

impl MatrixCopy {
    fn new(gpu: &Arc<Gpu>, levels: RankLevels<'_>, threads: usize) -> Result<Self, EngineError> {
        let function = |name| gpu.modules.function(WAVELET_MATRIX, name);
        let (nth_smallest, count_below) = (
            function("wavelet_nth_smallest")?,
            function("wavelet_count_below")?,
        );
        let RankLevels { blocks, zeros, .. } = levels;
        let per_level = blocks.len() / zeros.len();
        let levels = zeros.len();
        let (blocks, zeros): (&[u8], &[u8]) =
            (bytemuck::cast_slice(blocks), bytemuck::cast_slice(zeros));
        let mut offsets = Offsets::default();
        let blocks_offset = offsets.add(blocks.len());
        let zeros_offset = offsets.add(zeros.len());
        let memory = DeviceMemory::within(&gpu.budget, &gpu.device, offsets.end)?;
        let address = |offset: usize| memory.address() + offset as u64;
        for (bytes, offset) in [(blocks, blocks_offset), (zeros, zeros_offset)] {
            // SAFETY: the memory is new and has room for the bytes from the offset on. No work follows a slice.
            unsafe {
                upload(
                    &gpu.pinned,
                    bytes.len(),
                    copy_of(bytes),
                    address(offset),
                    threads,
                    |_, _| Ok(()),
                )?;
            }
        }
        let matrix = DeviceMatrix {
            blocks: address(blocks_offset),
            zeros: address(zeros_offset),
            // Of fewer than 2^32 rows.
            per_level: per_level as u32,
            levels: levels as u32,
        };
        Ok(Self {
            matrix: Box::new(matrix),
            memory,
            nth_smallest,
            count_below,
            gpu: Arc::clone(gpu),
        })
    }

    /// Answers a batch, whose slices have one length.
    fn answer(
        &self,
        function: Function,
        rows: usize,
        queries: Queries<'_>,
        answers: &mut [u32],
    ) -> Result<(), EngineError> {
        self.gpu.in_chunks(
            answers.len(),
            |buffers, chunk| {
                // SAFETY: the buffers are idle. The matrix outlives the work, for which `in_chunks` waits.
                unsafe { self.send(buffers, function, rows, queries.part(chunk.clone()))? };
                Ok(chunk)
            },
            |buffers, chunk| {
                let to = &mut answers[chunk];
                if let Some(block) = &mut buffers.answers {
                    to.copy_from_slice(block.slice_mut::<u32>(0, to.len()));
                }
                Ok(())
            },
        )
    }

    /// Enqueues at most [`BATCH`] queries: the copy of the queries, the kernel, and the copy of the answers.
    ///
    /// # Errors
    /// Those of the device. The buffers' stream may then have unfinished work.
    ///
    /// # Safety
    /// The buffers are idle. The matrix stays valid until the stream was waited for or dropped.
    unsafe fn send(
        &self,
        buffers: &mut BatchBuffers,
        function: Function,
        rows: usize,
        chunk: Queries<'_>,
    ) -> Result<(), EngineError> {
        let m = chunk.left.len();
        debug_assert!(m <= BATCH);
        let BatchBuffers {
            stream,
            queries,
            answers,
            memory,
            pinned,
        } = buffers;
        let capacity = capacity(m);
        let staging = reserve_pinned(queries, 3 * capacity * BYTES, pinned)?;
        let answers = reserve_pinned(answers, capacity * BYTES, pinned)?;
        let memory = reserve_device(memory, 4 * capacity * BYTES, pinned)?;
        let to = staging.slice_mut::<u32>(0, 3 * m);
        let (to_left, to) = to.split_at_mut(m);
        let (to_right, to_targets) = to.split_at_mut(m);
        clip_bounds::clip(chunk.left, chunk.right, rows as u64, to_left, to_right);
        to_targets.copy_from_slice(chunk.targets);
        let address = |part: usize| memory.address() + (part * m * BYTES) as u64;
        let [left, right, targets, found] = [0, 1, 2, 3].map(address);
        let count = m as u32;
        let arguments: [*mut c_void; 6] = [
            argument(&*self.matrix),
            argument(&count),
            argument(&left),
            argument(&right),
            argument(&targets),
            argument(&found),
        ];
        // SAFETY: the blocks and the memory belong to the buffers, whose stream is waited for before they are used
        // again, and have room for `m` queries and their answers. The arguments are those of both kernels.
        unsafe {
            stream.copy_to_device(left, staging.start(), 3 * m * BYTES)?;
            stream.launch(function, m as u64, arguments)?;
            stream.copy_to_host(answers.start(), found, m * BYTES)
        }
    }
}

impl Queries<'_> {
    fn part(&self, chunk: Range<usize>) -> Self {
        Self {
            left: &self.left[chunk.clone()],
            right: &self.right[chunk.clone()],
            targets: &self.targets[chunk],
        }
    }
}

impl fmt::Debug for CudaWaveletMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.copies.iter();
        let devices: Vec<_> = devices.map(|copy| copy.gpu.device.ordinal()).collect();
        f.debug_struct("CudaWaveletMatrix")
            .field("rows", &self.rows)
            .field("devices", &devices)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
