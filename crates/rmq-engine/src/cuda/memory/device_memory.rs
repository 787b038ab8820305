//! Memory of a device, for indexes within a limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::sys::{self, CUdeviceptr};

use super::device::Device;
use crate::EngineError;

/// How many bytes of a device indexes take, and may.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    used: AtomicUsize,
}

impl Budget {
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            used: AtomicUsize::new(0),
        }
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes `bytes` of the budget until the reservation is dropped; `Err` is what was free.
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Result<Reservation, usize> {
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|used| *used <= self.limit)
            })
            .map(|_| Reservation {
                budget: Arc::clone(self),
                bytes,
            })
            .map_err(|used| self.limit - used)
    }
}

/// Bytes of a budget.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Memory of a device, not initialised. Whoever drops it has waited for the streams that use it.
#[derive(Debug)]
pub struct DeviceMemory {
    device: Arc<Device>,
    address: CUdeviceptr,
    bytes: usize,
    _reservation: Option<Reservation>,
}

impl DeviceMemory {
    /// Memory within a budget: for indexes.
    pub fn within(
        budget: &Arc<Budget>,
        device: &Arc<Device>,
        bytes: usize,
    ) -> Result<Self, EngineError> {
        let reservation = budget
            .reserve(bytes)
            .map_err(|free| EngineError::DeviceMemory {
                ordinal: device.ordinal(),
                needed: bytes,
                free,
                limit: budget.limit(),
            })?;
        Self::with(device, bytes, Some(reservation))
    }

    /// Memory beside all budgets: for what is under way.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Self, EngineError> {
        Self::with(device, bytes, None)
    }

    fn with(
        device: &Arc<Device>,
        bytes: usize,
        reservation: Option<Reservation>,
    ) -> Result<Self, EngineError> {
        let mut address = 0;
        // SAFETY: the pointer is good for the call.
        let enough = device.allocate("allocate memory", || unsafe {
            sys::cuMemAlloc_v2(&raw mut address, bytes.max(1))
        })?;
        if !enough {
            let (free, limit) = device.memory()?;
            return Err(EngineError::DeviceMemory {
                ordinal: device.ordinal(),
                needed: bytes,
                free,
                limit,
            });
        }
        Ok(Self {
            device: Arc::clone(device),
            address,
            bytes,
            _reservation: reservation,
        })
    }

    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in this context, freed once.
        self.device
            .quietly(|| unsafe { sys::cuMemFree_v2(self.address) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_never_exceeded_and_comes_back() {
        let budget = Arc::new(Budget::new(100));
        let most = budget.reserve(60).expect("it fits");
        assert_eq!(budget.reserve(50).err(), Some(40));
        assert_eq!(budget.reserve(usize::MAX).err(), Some(40));
        let rest = budget.reserve(40).expect("it fits");
        assert_eq!(budget.used(), 100);
        drop(most);
        assert_eq!(budget.used(), 40);
        drop(rest);
        assert_eq!(budget.used(), 0);
    }
}
