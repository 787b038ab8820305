//! Sorted keys on devices, and the search for ranges of keys in them.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::batch_buffers::{BatchBuffers, Offsets, capacity, reserve_device, reserve_pinned};
use super::driver::module::Function;
use super::driver::stream::argument;
use super::gpu::Gpu;
use super::kernels::BOUNDS;
use super::key::CudaKey;
use super::memory::device_memory::DeviceMemory;
use super::memory::upload::upload;
use super::replicas::{Replica, build_on_each, run_on_one};
use super::tuning::{BATCH, MAX_UPLOAD_THREADS};
use crate::{EngineError, KeyBound, KeyRanges, KeySearch, SortedKeys};

/// Bytes of a row position on the device.
const POSITION_BYTES: usize = size_of::<u32>();

/// Sorted keys of which each device has a replica.
pub struct CudaKeySearch<K> {
    rows: u32,
    /// None if there are no keys.
    replicas: Vec<KeysReplica>,
    key: PhantomData<K>,
}

/// The keys on one device.
struct KeysReplica {
    keys: DeviceMemory,
    rows: u32,
    kernel: Function,
    gpu: Arc<Gpu>,
}

impl<K: CudaKey> CudaKeySearch<K> {
    /// Uploads the keys to every device that has room for them.
    ///
    /// # Errors
    /// [`EngineError::TooLong`] from 2^32 keys on, [`EngineError::Stopped`], and if all devices fail the error of the
    /// first one.
    pub fn build(
        gpus: &[Arc<Gpu>],
        keys: SortedKeys<'_, K>,
        threads: usize,
        stop: &AtomicBool,
    ) -> Result<Self, EngineError> {
        let rows = u32::try_from(keys.len).map_err(|_| EngineError::TooLong { rows: keys.len })?;
        let gpus = if rows == 0 { &[] } else { gpus };
        let replicas = build_on_each(gpus, "a list of sorted keys", |gpu| {
            KeysReplica::build(gpu, keys, rows, threads, stop)
        })?;
        Ok(Self {
            rows,
            replicas,
            key: PhantomData,
        })
    }
}

impl Replica for KeysReplica {
    fn gpu(&self) -> &Gpu {
        &self.gpu
    }
}

/// Flags of `BoundKind` in `kernels/bounds.cu`: which bounds a batch has, and which of them are inclusive.
const HAS_LOW: u32 = 1;
const LOW_IS_INSIDE: u32 = 2;
const HAS_HIGH: u32 = 4;
const HIGH_IS_INSIDE: u32 = 8;

impl KeysReplica {
    fn build<K: CudaKey>(
        gpu: &Arc<Gpu>,
        keys: SortedKeys<'_, K>,
        rows: u32,
        threads: usize,
        stop: &AtomicBool,
    ) -> Result<Self, EngineError> {
        let name = format!("bounds_{}", K::NAME);
        let kernel = gpu.modules.function(BOUNDS, &name)?;
        let bytes = keys.len.saturating_mul(size_of::<K>());
        let memory = DeviceMemory::within(&gpu.budget, &gpu.device, bytes)?;
        let check_stopped = |_: &_, _| {
            if stop.load(Ordering::Relaxed) {
                return Err(EngineError::Stopped);
            }
            Ok(())
        };
        // SAFETY: the memory is new and as long as the keys.
        unsafe {
            upload(
                &gpu.pinned,
                keys.len,
                keys.fill,
                memory.address(),
                threads.min(MAX_UPLOAD_THREADS),
                check_stopped,
            )?;
        };
        Ok(Self {
            keys: memory,
            rows,
            kernel,
            gpu: Arc::clone(gpu),
        })
    }

    /// Searches the ranges of a batch, chunk by chunk with two buffers in turn.
    fn search<K: CudaKey>(
        &self,
        ranges: KeyRanges<'_, K>,
        left: &mut [i64],
        right: &mut [i64],
    ) -> Result<(), EngineError> {
        let total = left.len();
        self.gpu.with_buffers(|buffers| {
            // The queries in flight on each of the buffers.
            let mut in_flight: [Option<Range<usize>>; 2] = [None, None];
            for (i, first) in (0..total).step_by(BATCH).enumerate() {
                let queries = first..total.min(first + BATCH);
                let buffers = &mut buffers[i % 2];
                if let Some(previous) = in_flight[i % 2].take() {
                    receive(buffers, &mut left[previous.clone()], &mut right[previous])?;
                }
                let chunk = ranges.part(queries.clone());
                // SAFETY: the buffers are idle. The keys outlive the work: on an error `with_buffers` drops the
                // buffers, which waits.
                unsafe { self.send(buffers, chunk, queries.len())? };
                in_flight[i % 2] = Some(queries);
            }
            for (buffers, queries) in buffers.iter_mut().zip(in_flight) {
                if let Some(queries) = queries {
                    receive(buffers, &mut left[queries.clone()], &mut right[queries])?;
                }
            }
            Ok(())
        })
    }

    /// Enqueues the search of `m` ranges, at most [`BATCH`]: the copy of the ranges, the kernel, and the copy of the
    /// results.
    ///
    /// # Errors
    /// Those of the device. The buffers' stream may then have unfinished work.
    ///
    /// # Safety
    /// The buffers are idle. The keys stay valid until [`receive`] returns or the buffers are dropped. `ranges` has `m`
    /// queries, whose segments are within the keys.
    unsafe fn send<K: CudaKey>(
        &self,
        buffers: &mut BatchBuffers,
        ranges: KeyRanges<'_, K>,
        m: usize,
    ) -> Result<(), EngineError> {
        debug_assert!(m <= BATCH);
        let BatchBuffers {
            stream,
            queries,
            answers,
            memory,
            pinned,
        } = buffers;
        let (capacity, key_bytes) = (capacity(m), size_of::<K>());
        let mut offsets = Offsets::default();
        let begin_offset = offsets.add(capacity * POSITION_BYTES);
        let end_offset = offsets.add(capacity * POSITION_BYTES);
        let low_offset = offsets.add(capacity * key_bytes);
        let high_offset = offsets.add(capacity * key_bytes);
        let left_offset = offsets.add(capacity * POSITION_BYTES);
        let right_offset = offsets.add(capacity * POSITION_BYTES);

        let staging = reserve_pinned(queries, left_offset, pinned)?;
        let answers = reserve_pinned(answers, 2 * capacity * POSITION_BYTES, pinned)?;
        let memory = reserve_device(memory, offsets.end, pinned)?;
        let address = |offset: usize| memory.address() + offset as u64;

        // The offset and bytes of each input; no bytes if the batch does not have it.
        let mut inputs = [
            (begin_offset, 0),
            (end_offset, 0),
            (low_offset, 0),
            (high_offset, 0),
        ];
        if let Some((begin, end)) = ranges.segments {
            for ((offset, bytes), positions) in inputs[..2].iter_mut().zip([begin, end]) {
                staging.slice_mut(*offset, m).copy_from_slice(positions);
                *bytes = m * POSITION_BYTES;
            }
        }
        let mut kind = 0;
        let bounds = [
            (ranges.low, HAS_LOW, LOW_IS_INSIDE),
            (ranges.high, HAS_HIGH, HIGH_IS_INSIDE),
        ];
        for ((offset, bytes), (bound, present, inclusive)) in inputs[2..].iter_mut().zip(bounds) {
            let Some(KeyBound { keys, inside }) = bound else {
                continue;
            };
            staging.slice_mut(*offset, m).copy_from_slice(keys);
            *bytes = m * key_bytes;
            kind |= present | if inside { inclusive } else { 0 };
        }
        let mut addresses = [0; 4];
        for (to, (offset, bytes)) in addresses.iter_mut().zip(inputs) {
            if bytes > 0 {
                *to = address(offset);
                // SAFETY: the input is within the block and the device's memory. Both belong to the buffers, whose
                // stream is waited for before they are used again.
                unsafe { stream.copy_to_device(*to, staging.start().add(offset), bytes)? };
            }
        }
        let [begin, end, low, high] = addresses;
        let (keys, queries) = (self.keys.address(), m as u32);
        let (left, right) = (address(left_offset), address(right_offset));
        let arguments: [*mut c_void; 10] = [
            argument(&keys),
            argument(&self.rows),
            argument(&queries),
            argument(&begin),
            argument(&end),
            argument(&low),
            argument(&high),
            argument(&kind),
            argument(&left),
            argument(&right),
        ];
        // SAFETY: the arguments are those of the `bounds` kernels, with memory for `m` queries; the caller guarantees
        // that segments are within the keys. The block has room for both sides.
        unsafe {
            stream.launch(self.kernel, m as u64, arguments)?;
            let bytes = m * POSITION_BYTES;
            stream.copy_to_host(answers.start(), left, bytes)?;
            let to_right = answers.start().add(capacity * POSITION_BYTES);
            stream.copy_to_host(to_right, right, bytes)
        }
    }
}

/// Waits for the search that [`KeysReplica::send`] enqueued, and writes its results.
fn receive(
    buffers: &mut BatchBuffers,
    left: &mut [i64],
    right: &mut [i64],
) -> Result<(), EngineError> {
    buffers.stream.wait()?;
    let Some(answers) = &mut buffers.answers else {
        return Ok(());
    };
    for (side, to) in [left, right].into_iter().enumerate() {
        let offset = side * capacity(to.len()) * POSITION_BYTES;
        let found = answers.slice_mut::<u32>(offset, to.len());
        for (to, from) in to.iter_mut().zip(found) {
            *to = i64::from(*from);
        }
    }
    Ok(())
}

impl<K: CudaKey> KeySearch<K> for CudaKeySearch<K> {
    fn device_bytes(&self) -> usize {
        self.replicas.first().map_or(0, |one| one.keys.bytes())
    }

    fn search(
        &self,
        ranges: KeyRanges<'_, K>,
        left: &mut [i64],
        right: &mut [i64],
    ) -> Result<(), EngineError> {
        if right.len() != left.len() {
            return Err(EngineError::Lengths {
                what: "the slice for right ends",
                expected: left.len(),
                found: right.len(),
            });
        }
        ranges.check(left.len(), self.rows)?;
        if self.rows == 0 {
            left.fill(1);
            right.fill(0);
            return Ok(());
        }
        run_on_one(&self.replicas, "the keys", |replica| {
            replica.search(ranges, left, right)
        })
    }
}

impl<K> fmt::Debug for CudaKeySearch<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.replicas.iter();
        let devices: Vec<_> = devices.map(|one| one.gpu.device.ordinal()).collect();
        f.debug_struct("CudaKeySearch")
            .field("keys", &self.rows)
            .field("devices", &devices)
            .finish_non_exhaustive()
    }
}
