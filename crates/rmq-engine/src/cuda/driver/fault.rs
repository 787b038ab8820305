//! Faults made on purpose, to see that the engine survives them.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Memory of the device, or pinned memory, is refused.
    Allocation,
    /// A copy to or from the device fails.
    Copy,
    /// A kernel is not launched.
    Launch,
    /// Waiting for the device ends in an error.
    Wait,
}

impl Fault {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Allocation, Self::Copy, Self::Launch, Self::Wait];
}

/// How many more calls of each kind succeed and the one that fails; 0 where none is to.
#[derive(Debug, Default)]
pub struct Faults([AtomicU64; Fault::ALL.len()]);

impl Faults {
    /// Lets the `nth` call from now on fail, counted from 1; returns whether an earlier fault was still to come.
    pub fn arm(&self, fault: Fault, nth: u64) -> bool {
        self.0[fault as usize].swap(nth, Ordering::Relaxed) != 0
    }

    /// Whether this call is to fail.
    pub fn strikes(&self, fault: Fault) -> bool {
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
        assert!(!faults.strikes(Fault::Copy));
        assert!(!faults.arm(Fault::Copy, 9));
        assert!(faults.arm(Fault::Copy, 3));
        let struck: Vec<bool> = (0..6).map(|_| faults.strikes(Fault::Copy)).collect();
        assert_eq!(struck, [false, false, true, false, false, false]);
        assert!(!faults.strikes(Fault::Launch));
    }
}
