//! Memory that several threads fill at scattered positions.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use bytemuck::Pod;

/// A value that threads store in [`SharedSlots`].
pub trait SlotValue: Pod {
    /// The atomic form of the value in the same memory.
    #[doc(hidden)]
    type Slot: Sync;

    #[doc(hidden)]
    fn store(self, slot: &Self::Slot);
}

impl SlotValue for u8 {
    type Slot = AtomicU8;

    #[inline]
    fn store(self, slot: &AtomicU8) {
        slot.store(self, Ordering::Relaxed);
    }
}

impl SlotValue for u32 {
    type Slot = AtomicU32;

    #[inline]
    fn store(self, slot: &AtomicU32) {
        slot.store(self, Ordering::Relaxed);
    }
}

impl SlotValue for u64 {
    type Slot = AtomicU64;

    #[inline]
    fn store(self, slot: &AtomicU64) {
        slot.store(self, Ordering::Relaxed);
    }
}

impl SlotValue for u128 {
    type Slot = [AtomicU64; 2];

    #[inline]
    fn store(self, slot: &[AtomicU64; 2]) {
        let halves: [u64; 2] = bytemuck::cast(self);
        slot[0].store(halves[0], Ordering::Relaxed);
        slot[1].store(halves[1], Ordering::Relaxed);
    }
}

/// A slice that several threads write at once, each at positions of its own. A position that two threads write holds
/// either value.
///
/// A store is a plain move on x86-64 and aarch64, so this costs nothing against exclusive slices.
pub struct SharedSlots<'a, T: SlotValue>(&'a [T::Slot]);

#[expect(
    clippy::expl_impl_clone_on_copy,
    reason = "deriving it would require slots that can be copied"
)]
impl<T: SlotValue> Clone for SharedSlots<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: SlotValue> Copy for SharedSlots<'_, T> {}

impl<'a, T: SlotValue> SharedSlots<'a, T> {
    /// Shares a slice for as long as it is borrowed.
    pub fn new(slice: &'a mut [T]) -> Self {
        const {
            assert!(size_of::<T>() == size_of::<T::Slot>());
            assert!(align_of::<T>() >= align_of::<T::Slot>());
        }
        let slots = std::ptr::from_mut(slice) as *const [T::Slot];
        // SAFETY: the slots have the size of the values and no greater alignment, any bits are valid in both, and the
        // slice is borrowed exclusively for `'a`, so that all accesses are through the slots.
        Self(unsafe { &*slots })
    }

    /// Stores each value at its position. Positions outside of the slice are skipped: rows that are left out have such.
    #[inline]
    pub fn scatter(&self, values: &[T], positions: &[u32]) {
        for (value, position) in values.iter().zip(positions) {
            self.store(*position as usize, *value);
        }
    }

    /// Stores a value at a position, unless it is outside of the slice.
    #[inline]
    pub fn store(&self, position: usize, value: T) {
        if let Some(slot) = self.0.get(position) {
            value.store(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: SlotValue + PartialEq + std::fmt::Debug>(of: impl Fn(u32) -> T + Sync) {
        let mut slots = vec![of(0); 1000];
        let shared = SharedSlots::new(&mut slots);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let of = &of;
                scope.spawn(move || {
                    // 7 is coprime to 1000, so each position occurs once; 1000 and above are skipped.
                    let rows = (0..1000).filter(|row| row % 4 == thread);
                    let positions: Vec<u32> = rows.map(|row| row * 7 % 1000).collect();
                    let values: Vec<T> = positions.iter().map(|p| of(p + 1)).collect();
                    shared.scatter(&values, &positions);
                    shared.scatter(&values, &vec![1000 + thread; 250]);
                    shared.store(usize::MAX, of(5));
                });
            }
        });
        let expected: Vec<T> = (1..=1000).map(of).collect();
        assert_eq!(slots, expected);
    }

    #[test]
    fn threads_store_values_of_all_widths() {
        check(|i| i);
        check(|i| u64::from(i) << 40);
        check(|i| u128::from(i) << 100 | u128::from(i));
    }
}
