//! Sorted keys on devices, and the search for ranges of them.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::gpu::Gpu;
use super::key::CudaKey;
use super::lane::{Parts, QueryPipeline, room_for};
use super::memory::DeviceMemory;
use super::module::{Function, Module};
use super::pinned::Block;
use super::replicas::{self, on_each, on_one};
use super::stream::argument;
use super::tuning::BATCH;
use super::upload::upload;
use crate::{EngineError, KeyBound, KeyRanges, KeySearch, SortedKeys};

/// Sorted keys that each of some devices holds.
pub struct CudaSearch<K> {
    rows: u32,
    /// None of no keys.
    replicas: Vec<Replica>,
    key: PhantomData<K>,
}

/// The keys on one device.
struct Replica {
    keys: DeviceMemory,
    kernel: Function,
    gpu: Arc<Gpu>,
}

impl<K: CudaKey> CudaSearch<K> {
    /// Uploads the keys to every device that has room for them.
    pub fn build(
        gpus: &[Arc<Gpu>],
        keys: SortedKeys<'_, K>,
        threads: usize,
        stop: &AtomicBool,
    ) -> Result<Self, EngineError> {
        let rows = u32::try_from(keys.len).map_err(|_| EngineError::TooLong { rows: keys.len })?;
        let gpus = if rows == 0 { &[] } else { gpus };
        let replicas = on_each(gpus, "a list of sorted keys", |gpu| {
            Replica::build(gpu, keys, threads, stop)
        })?;
        Ok(Self {
            rows,
            replicas,
            key: PhantomData,
        })
    }
}

impl replicas::Replica for Replica {
    fn gpu(&self) -> &Gpu {
        &self.gpu
    }
}

impl Replica {
    fn build<K: CudaKey>(
        gpu: &Arc<Gpu>,
        keys: SortedKeys<'_, K>,
        threads: usize,
        stop: &AtomicBool,
    ) -> Result<Self, EngineError> {
        let name = format!("bounds_{}", K::NAME);
        let kernel = gpu.modules.function(Module::Bounds, &name)?;
        let bytes = keys.len.saturating_mul(size_of::<K>());
        let memory = DeviceMemory::within(&gpu.budget, &gpu.device, bytes)?;
        let go_on = |_: &_, _| {
            if stop.load(Ordering::Relaxed) {
                return Err(EngineError::Stopped);
            }
            Ok(())
        };
        // SAFETY: the memory is as long as the keys and new.
        unsafe { upload(gpu, keys.len, keys.fill, memory.address(), threads, go_on)? };
        Ok(Self {
            keys: memory,
            kernel,
            gpu: Arc::clone(gpu),
        })
    }

    /// Searches, part by part on two lanes.
    fn search<K: CudaKey>(
        &self,
        rows: u32,
        asked: KeyRanges<'_, K>,
        left: &mut [i64],
        right: &mut [i64],
    ) -> Result<(), EngineError> {
        let all = left.len();
        self.gpu.with_slot(|slot| {
            let mut under_way: [Option<Range<usize>>; 2] = [None, None];
            let mut finish = |lane: &mut QueryPipeline, queries: Option<Range<usize>>| match queries
            {
                Some(queries) => lane.found(&mut left[queries.clone()], &mut right[queries]),
                None => Ok(()),
            };
            for (i, first) in (0..all).step_by(BATCH).enumerate() {
                let queries = first..all.min(first + BATCH);
                let lane = &mut slot.lanes[i % 2];
                finish(lane, under_way[i % 2].take())?;
                // SAFETY: the lane was waited for; the keys stay, as after an error the slot is dropped, which waits.
                unsafe {
                    let part = asked.part(queries.clone());
                    lane.find(&self.gpu, self, rows, part, queries.len())?;
                }
                under_way[i % 2] = Some(queries);
            }
            for (lane, queries) in slot.lanes.iter_mut().zip(under_way) {
                finish(lane, queries)?;
            }
            Ok(())
        })
    }
}

/// Of `kind`, an argument of the kernel: which bounds there are, and which of them count.
const LOW: [u32; 2] = [1, 2];
const HIGH: [u32; 2] = [4, 8];

impl QueryPipeline {
    /// Sends `m` queries, at most [`BATCH`].
    ///
    /// # Safety
    /// The lane has been waited for. The device's keys stay until it is waited for again or dropped; `asked` has `m` queries, whose segments
    /// lie within the `rows` keys.
    unsafe fn find<K: CudaKey>(
        &mut self,
        gpu: &Gpu,
        sorted: &Replica,
        rows: u32,
        asked: KeyRanges<'_, K>,
        m: usize,
    ) -> Result<(), EngineError> {
        debug_assert!(m <= BATCH);
        let room = room(m);
        let (place_bytes, key_bytes) = (size_of::<u32>(), size_of::<K>());
        let mut parts = Parts::default();
        let at_begin = parts.add(room * place_bytes);
        let at_end = parts.add(room * place_bytes);
        let at_low = parts.add(room * key_bytes);
        let at_high = parts.add(room * key_bytes);
        let at_left = parts.add(room * place_bytes);
        let at_right = parts.add(room * place_bytes);

        let bounds = room_for(&mut self.bounds, at_left, Block::bytes, |n| {
            gpu.pinned.take(n)
        })?;
        let answers = room_for(
            &mut self.answers,
            2 * room * place_bytes,
            Block::bytes,
            |n| gpu.pinned.take(n),
        )?;
        let device = &self.device;
        let memory = room_for(&mut self.memory, parts.end, DeviceMemory::bytes, |n| {
            DeviceMemory::new(device, n)
        })?;
        let at = |part: usize| memory.address() + part as u64;
        // What is there of the four, with its bytes.
        let mut sent = [(at_begin, 0), (at_end, 0), (at_low, 0), (at_high, 0)];
        if let Some((begin, end)) = asked.segments {
            for ((part, bytes), places) in sent[..2].iter_mut().zip([begin, end]) {
                bounds.numbers(*part, m).copy_from_slice(places);
                *bytes = m * place_bytes;
            }
        }
        let mut kind = 0;
        let ends = [(asked.low, LOW), (asked.high, HIGH)];
        for ((part, bytes), (bound, [there, inside])) in sent[2..].iter_mut().zip(ends) {
            let Some(KeyBound {
                keys,
                inside: within,
            }) = bound
            else {
                continue;
            };
            bounds.numbers(*part, m).copy_from_slice(keys);
            *bytes = m * key_bytes;
            kind |= there | if within { inside } else { 0 };
        }
        let mut addresses = [0; 4];
        for (address, (part, bytes)) in addresses.iter_mut().zip(sent) {
            if bytes > 0 {
                *address = at(part);
                // SAFETY: the part lies in the block and in the device's memory, both this lane's, which is waited for before they
                // are used again.
                unsafe {
                    let from = bounds.start().add(part);
                    self.stream.copy_up(*address, from, bytes)?;
                }
            }
        }
        let [begin, end, low, high] = addresses;
        let (keys, queries) = (sorted.keys.address(), m as u32);
        let (left, right) = (at(at_left), at(at_right));
        let arguments: [*mut c_void; 10] = [
            argument(&keys),
            argument(&rows),
            argument(&queries),
            argument(&begin),
            argument(&end),
            argument(&low),
            argument(&high),
            argument(&kind),
            argument(&left),
            argument(&right),
        ];
        // SAFETY: the arguments are those of the `bounds` kernels, with memory for `m` queries; segments lie within the keys, as the
        // caller vouches. The block has room for both sides.
        unsafe {
            self.stream.launch(sorted.kernel, m as u64, arguments)?;
            let bytes = m * place_bytes;
            self.stream.copy_down(answers.start(), left, bytes)?;
            self.stream
                .copy_down(answers.start().add(room * place_bytes), right, bytes)
        }
    }

    /// Waits for the queries that were sent, and writes what was found.
    fn found(&mut self, left: &mut [i64], right: &mut [i64]) -> Result<(), EngineError> {
        self.stream.wait()?;
        let Some(answers) = &mut self.answers else {
            return Ok(());
        };
        for (side, to) in [left, right].into_iter().enumerate() {
            let from = side * room(to.len()) * size_of::<u32>();
            let found = answers.numbers::<u32>(from, to.len());
            for (to, from) in to.iter_mut().zip(found) {
                *to = i64::from(*from);
            }
        }
        Ok(())
    }
}

/// For how many queries memory is made: in steps, so that batches that differ a little don't make it anew.
fn room(queries: usize) -> usize {
    queries.next_power_of_two().max(1 << 12)
}

impl<K: CudaKey> KeySearch<K> for CudaSearch<K> {
    fn device_bytes(&self) -> usize {
        self.replicas.first().map_or(0, |one| one.keys.bytes())
    }

    fn search(
        &self,
        asked: KeyRanges<'_, K>,
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
        asked.check(left.len(), self.rows)?;
        if self.rows == 0 {
            left.fill(1);
            right.fill(0);
            return Ok(());
        }
        on_one(&self.replicas, "the keys", |replica| {
            replica.search(self.rows, asked, left, right)
        })
    }
}

impl<K> fmt::Debug for CudaSearch<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.replicas.iter();
        let devices: Vec<_> = devices.map(|one| one.gpu.device.ordinal()).collect();
        f.debug_struct("CudaSearch")
            .field("keys", &self.rows)
            .field("devices", &devices)
            .finish_non_exhaustive()
    }
}
