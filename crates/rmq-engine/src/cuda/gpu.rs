//! An open device with its memory budget, loaded kernels and buffers.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::batch_buffers::BatchBuffers;
use super::bus;
use super::driver::device::Device;
use super::driver::module::Modules;
use super::memory::device_memory::Budget;
use super::memory::pinned::PinnedPool;
use super::tuning::{BATCH, MAX_IN_FLIGHT};
use crate::EngineError;

/// A device of an engine.
#[derive(Debug)]
pub struct Gpu {
    pub device: Arc<Device>,
    pub budget: Arc<Budget>,
    pub modules: Modules,
    pub pinned: Arc<PinnedPool>,
    /// Nanoseconds per byte on the way to the device or back; none if that could not be measured.
    pub bus_byte: Option<f64>,
    buffers: Mutex<BufferPool>,
    buffers_released: Condvar,
    in_flight: AtomicUsize,
}

/// Two buffers, which a batch uses in turn.
type DoubleBuffer = [BatchBuffers; 2];

#[derive(Debug, Default)]
struct BufferPool {
    free: Vec<DoubleBuffer>,
    /// Free or in use.
    allocated: usize,
}

impl Gpu {
    /// Opens a device and measures the bus to it. Its indexes take at most `limit` bytes, by default 90 % of the memory
    /// that is free now.
    ///
    /// # Errors
    /// Those of [`Device::open`] and [`Device::memory`].
    pub fn open(ordinal: usize, limit: Option<usize>) -> Result<Self, EngineError> {
        let device = Arc::new(Device::open(ordinal)?);
        let (free, _) = device.memory()?;
        let pinned = Arc::new(PinnedPool::new(&device));
        let bus_byte = bus::measure(&device, &pinned).ok();
        Ok(Self {
            budget: Arc::new(Budget::new(limit.unwrap_or(free / 10 * 9))),
            modules: Modules::new(&device),
            pinned,
            bus_byte,
            device,
            buffers: Mutex::default(),
            buffers_released: Condvar::new(),
            in_flight: AtomicUsize::new(0),
        })
    }

    /// The number of batches that are being answered or wait for buffers.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Answers a batch of `total` queries in chunks of at most [`BATCH`], which use two buffers in turn: while the
    /// device works on one chunk, the host prepares the next. Waits if [`MAX_IN_FLIGHT`] batches are in flight.
    ///
    /// `send` enqueues the work of a chunk on the stream of buffers, which are idle. Once that is done, `receive` gets
    /// the same buffers and what `send` returned.
    ///
    /// # Errors
    /// The first one of `send`, of `receive`, or of the device. All work on the streams has ended then, too.
    pub fn in_chunks<T>(
        &self,
        total: usize,
        mut send: impl FnMut(&mut BatchBuffers, Range<usize>) -> Result<T, EngineError>,
        mut receive: impl FnMut(&mut BatchBuffers, T) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let mut finish = |buffers: &mut BatchBuffers, pending: Option<T>| {
            let Some(pending) = pending else {
                return Ok(());
            };
            buffers.stream.wait()?;
            receive(buffers, pending)
        };
        self.with_buffers(|buffers| {
            let mut in_flight = [None, None];
            for (i, first) in (0..total).step_by(BATCH).enumerate() {
                let (buffers, pending) = (&mut buffers[i % 2], &mut in_flight[i % 2]);
                finish(buffers, pending.take())?;
                *pending = Some(send(buffers, first..total.min(first + BATCH))?);
            }
            let mut buffers = buffers.iter_mut().zip(in_flight);
            buffers.try_for_each(|(buffers, pending)| finish(buffers, pending))
        })
    }

    /// Answers one batch with buffers of the pool. On an error all work on their streams has ended.
    fn with_buffers(
        &self,
        work: impl FnOnce(&mut DoubleBuffer) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let _in_flight = Defer(|| {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
        });
        let mut buffers = self.take_buffers()?;
        let result = work(&mut buffers);
        let mut pool = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if result.is_ok() {
            pool.free.push(buffers);
        } else {
            // The streams may have unfinished work, for which the drop waits.
            pool.allocated -= 1;
            drop(pool);
            drop(buffers);
        }
        self.buffers_released.notify_one();
        result
    }

    fn take_buffers(&self) -> Result<DoubleBuffer, EngineError> {
        let mut pool = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(buffers) = pool.free.pop() {
                return Ok(buffers);
            }
            if pool.allocated < MAX_IN_FLIGHT {
                pool.allocated += 1;
                drop(pool);
                return self.new_buffers().inspect_err(|_| {
                    let mut pool = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
                    pool.allocated -= 1;
                    self.buffers_released.notify_one();
                });
            }
            pool = self
                .buffers_released
                .wait(pool)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn new_buffers(&self) -> Result<DoubleBuffer, EngineError> {
        Ok([
            BatchBuffers::new(&self.pinned)?,
            BatchBuffers::new(&self.pinned)?,
        ])
    }
}

/// Calls a function at the end of a scope.
struct Defer<F: FnMut()>(F);

impl<F: FnMut()> Drop for Defer<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
