//! Fault injection for tests: makes a chosen driver call fail.

use std::sync::atomic::{AtomicU64, Ordering};

/// A kind of driver call that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// An allocation of device memory or pinned memory.
    Allocation,
    /// A copy to or from the device.
    Copy,
    /// A kernel launch or a memset.
    Launch,
    /// A wait for the device.
    Wait,
}

impl Fault {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Allocation, Self::Copy, Self::Launch, Self::Wait];
}

/// For each kind of call, a countdown to the call that fails; 0 if none does.
#[derive(Debug, Default)]
pub struct Faults([AtomicU64; Fault::ALL.len()]);

impl Faults {
    /// Makes the `nth` call from now on fail, counted from 1; 0 disarms. Returns whether an earlier fault was still
    /// armed.
    pub fn arm(&self, fault: Fault, nth: u64) -> bool {
        self.0[fault as usize].swap(nth, Ordering::Relaxed) != 0
    }

    /// Counts one call; returns whether it must fail.
    pub fn should_fail(&self, fault: Fault) -> bool {
        let left = &self.0[fault as usize];
        left.load(Ordering::Relaxed) != 0
            && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            }) == Ok(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_call_fails_once() {
        let faults = Faults::default();
        assert!(!faults.should_fail(Fault::Copy));
        assert!(!faults.arm(Fault::Copy, 9));
        assert!(faults.arm(Fault::Copy, 3));
        let failed: Vec<bool> = (0..6).map(|_| faults.should_fail(Fault::Copy)).collect();
        assert_eq!(failed, [false, false, true, false, false, false]);
        assert!(!faults.should_fail(Fault::Launch));
    }
}
