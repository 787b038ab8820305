//! All that an engine keeps for one device.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::device::Device;
use super::lane::Slot;
use super::memory::Budget;
use super::module::Modules;
use super::pinned::Pinned;
use super::tuning::SLOTS;
use crate::EngineError;

/// A device at work.
#[derive(Debug)]
pub struct Gpu {
    pub device: Arc<Device>,
    pub budget: Arc<Budget>,
    pub modules: Modules,
    pub pinned: Arc<Pinned>,
    slots: Mutex<Slots>,
    slot_free: Condvar,
    /// Batches that are being answered.
    busy: AtomicUsize,
}

#[derive(Debug, Default)]
struct Slots {
    free: Vec<Slot>,
    /// Free or not.
    made: usize,
}

impl Gpu {
    /// Opens a device whose indexes take at most `limit` bytes, if that is said.
    pub fn open(ordinal: usize, limit: Option<usize>) -> Result<Self, EngineError> {
        let device = Arc::new(Device::open(ordinal)?);
        let (free, _) = device.memory()?;
        Ok(Self {
            budget: Arc::new(Budget::new(limit.unwrap_or(free / 10 * 9))),
            modules: Modules::new(&device),
            pinned: Arc::new(Pinned::new(&device)),
            device,
            slots: Mutex::default(),
            slot_free: Condvar::new(),
            busy: AtomicUsize::new(0),
        })
    }

    /// How much it has to do.
    pub fn busy(&self) -> usize {
        self.busy.load(Ordering::Relaxed)
    }

    /// Does one batch's work with a slot, which it waits for where all are in use.
    pub fn with_slot<R>(
        &self,
        work: impl FnOnce(&mut Slot) -> Result<R, EngineError>,
    ) -> Result<R, EngineError> {
        self.busy.fetch_add(1, Ordering::Relaxed);
        let _busy = Defer(|| {
            self.busy.fetch_sub(1, Ordering::Relaxed);
        });
        let mut slot = self.take_slot()?;
        let result = work(&mut slot);
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if result.is_ok() {
            slots.free.push(slot);
        } else {
            // It may hold work half done.
            slots.made -= 1;
            drop(slots);
            drop(slot);
        }
        self.slot_free.notify_one();
        result
    }

    fn take_slot(&self) -> Result<Slot, EngineError> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(slot) = slots.free.pop() {
                return Ok(slot);
            }
            if slots.made < SLOTS {
                slots.made += 1;
                drop(slots);
                return Slot::new(&self.device).inspect_err(|_| {
                    let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
                    slots.made -= 1;
                    self.slot_free.notify_one();
                });
            }
            slots = self
                .slot_free
                .wait(slots)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Runs at the end of a scope.
struct Defer<F: FnMut()>(F);

impl<F: FnMut()> Drop for Defer<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
