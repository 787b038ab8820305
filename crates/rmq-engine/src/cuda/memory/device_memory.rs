//! Memory of a device, and the budget that limits what indexes take of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::sys::{self, CUdeviceptr};

use crate::EngineError;
use crate::cuda::driver::device::Device;

/// The bytes of a device's memory that indexes take, and their limit.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    used: AtomicUsize,
}

impl Budget {
    #[must_use]
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

    /// Reserves bytes until the reservation is dropped.
    ///
    /// # Errors
    /// The free bytes, if they are fewer.
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

/// Reserved bytes of a budget.
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

/// Uninitialised memory of a device. Before it is dropped, the streams that use it must have been waited for.
#[derive(Debug)]
pub struct DeviceMemory {
    device: Arc<Device>,
    address: CUdeviceptr,
    bytes: usize,
    _reservation: Option<Reservation>,
}

impl DeviceMemory {
    /// Allocates memory within a budget: for indexes.
    ///
    /// # Errors
    /// [`EngineError::DeviceMemory`] if the budget or the device has less, [`EngineError::Device`] if the device fails.
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
        Self::allocate(device, bytes, Some(reservation))
    }

    /// Allocates memory outside all budgets: for batches in flight.
    ///
    /// # Errors
    /// [`EngineError::DeviceMemory`] if the device has less, [`EngineError::Device`] if it fails.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Self, EngineError> {
        Self::allocate(device, bytes, None)
    }

    fn allocate(
        device: &Arc<Device>,
        bytes: usize,
        reservation: Option<Reservation>,
    ) -> Result<Self, EngineError> {
        let mut address = 0;
        // SAFETY: the pointer is valid for the call.
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

    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in this context, freed once.
        self.device
            .call_ignoring_errors(|| unsafe { sys::cuMemFree_v2(self.address) });
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
