//! A memory pool that retains the memory it was granted, for the build side of a range join.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::common::{DataFusionError, Result, resources_err};
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};

/// The consumer's name in the pool's reports.
pub(crate) const CONSUMER_NAME: &str = "rmq range join";

/// A memory pool on top of the session's that retains what it was granted until it is released. Work that fits into
/// memory which was granted beforehand cannot fail because another operator took that memory in the meantime.
#[derive(Debug)]
pub(crate) struct RetainingPool {
    /// The session's.
    pool: Arc<dyn MemoryPool>,
    /// The most bytes that may be granted.
    share: usize,
    used: Mutex<Used>,
    /// Held while the session's pool is asked for more, in which other memory may be released meanwhile, also of this
    /// pool: `used` is not.
    growing: Mutex<()>,
}

/// How much of the granted memory is in use.
#[derive(Debug)]
struct Used {
    granted: Arc<MemoryReservation>,
    bytes: usize,
    /// The most bytes that were in use.
    peak_bytes: usize,
    /// Whether memory is released to the session's pool as soon as it is no longer used.
    releases_unused: bool,
}

impl RetainingPool {
    /// A pool without memory, which takes at most `share` bytes of the session's. `can_spill` tells a fair pool to
    /// count this consumer among those that share its memory.
    pub(crate) fn new(pool: &Arc<dyn MemoryPool>, can_spill: bool, share: usize) -> Arc<Self> {
        let consumer = MemoryConsumer::new(CONSUMER_NAME).with_can_spill(can_spill);
        Arc::new(Self {
            pool: Arc::clone(pool),
            share,
            used: Mutex::new(Used {
                granted: Arc::new(consumer.register(pool)),
                bytes: 0,
                peak_bytes: 0,
                releases_unused: false,
            }),
            growing: Mutex::default(),
        })
    }

    /// An empty reservation of this pool.
    pub(crate) fn reservation(self: &Arc<Self>) -> MemoryReservation {
        let pool = Arc::clone(self) as Arc<dyn MemoryPool>;
        MemoryConsumer::new(CONSUMER_NAME).register(&pool)
    }

    /// An empty reservation of the session's pool, which this pool does not retain.
    pub(crate) fn session_reservation(&self) -> MemoryReservation {
        self.granted().new_empty()
    }

    /// The most bytes that may be granted.
    pub(crate) fn share(&self) -> usize {
        self.share
    }

    /// Bytes that the session's pool has granted, used or not.
    pub(crate) fn granted_bytes(&self) -> usize {
        self.granted().size()
    }

    /// The most bytes that were in use.
    pub(crate) fn peak_bytes(&self) -> usize {
        self.used().peak_bytes
    }

    /// Makes sure that at least `bytes` are granted, including those in use.
    ///
    /// # Errors
    /// An error if the session's pool has no more, or they are more than the share; then nothing changes.
    pub(crate) fn ensure_granted(&self, bytes: usize) -> Result<()> {
        let _growing = self.growing();
        self.grow_to(bytes)
    }

    /// Releases unused memory above `bytes`.
    pub(crate) fn retain(&self, bytes: usize) {
        self.used().shrink_to(bytes);
    }

    /// Releases all unused memory, now and from now on. Rows that are sorted are not spilled any more: a fair pool does
    /// not count them among the consumers that share its memory, however long they are kept.
    pub(crate) fn stop_retaining(&self) {
        let _growing = self.growing();
        let (granted, bytes) = {
            let mut used = self.used();
            used.releases_unused = true;
            used.shrink_to(0);
            if !used.granted.consumer().can_spill() {
                return;
            }
            let granted = MemoryConsumer::new(CONSUMER_NAME).register(&self.pool);
            used.granted = Arc::new(granted);
            (Arc::clone(&used.granted), used.bytes)
        };
        granted.grow(bytes);
        // Some may have been released meanwhile.
        self.used().shrink_to(0);
    }

    fn granted(&self) -> Arc<MemoryReservation> {
        Arc::clone(&self.used().granted)
    }

    fn grow_to(&self, bytes: usize) -> Result<()> {
        let share = self.share;
        if bytes > share {
            return resources_err!(
                "A partition of a range join needs {bytes} bytes, and its share of the session's memory is {share}"
            );
        }
        let granted = self.granted();
        match bytes.checked_sub(granted.size()) {
            None | Some(0) => Ok(()),
            Some(missing) => granted.try_grow(missing),
        }
    }

    fn growing(&self) -> MutexGuard<'_, ()> {
        self.growing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Used {
    fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.bytes);
    }

    /// Releases memory above `bytes` that is not in use.
    fn shrink_to(&self, bytes: usize) {
        let above = self.granted.size().saturating_sub(bytes.max(self.bytes));
        self.granted.shrink(above);
    }
}

/// Whether an error says that a memory pool had no more memory.
pub(crate) fn is_out_of_memory(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

impl fmt::Display for RetainingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.used();
        let (used, granted) = (used.bytes, used.granted.size());
        write!(f, "{CONSUMER_NAME}(used: {used}, granted: {granted})")
    }
}

impl MemoryPool for RetainingPool {
    fn name(&self) -> &'static str {
        CONSUMER_NAME
    }

    fn grow(&self, _reservation: &MemoryReservation, additional: usize) {
        let _growing = self.growing();
        let (granted, missing) = {
            let mut used = self.used();
            used.add(additional);
            let missing = used.bytes.saturating_sub(used.granted.size());
            (Arc::clone(&used.granted), missing)
        };
        granted.grow(missing);
    }

    fn shrink(&self, _reservation: &MemoryReservation, shrink: usize) {
        let mut used = self.used();
        used.bytes -= shrink;
        if used.releases_unused {
            used.shrink_to(0);
        }
    }

    fn try_grow(&self, _reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let _growing = self.growing();
        loop {
            let needed = {
                let mut used = self.used();
                let needed = used.bytes + additional;
                if needed <= used.granted.size().min(self.share) {
                    used.add(additional);
                    return Ok(());
                }
                needed
            };
            self.grow_to(needed)?;
        }
    }

    fn reserved(&self) -> usize {
        self.used().bytes
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Unknown
    }
}

#[cfg(test)]
mod tests {
    use datafusion::execution::memory_pool::GreedyMemoryPool;

    use super::*;

    #[test]
    fn granted_memory_is_usable_after_others_take_the_rest() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(100));
        let retaining = RetainingPool::new(&pool, true, 70);
        retaining.ensure_granted(60).unwrap();
        let other = MemoryConsumer::new("other").register(&pool);
        other.try_grow(40).unwrap();
        let ours = retaining.reservation();
        ours.try_grow(60).unwrap();
        assert!(ours.try_grow(1).is_err() && retaining.ensure_granted(61).is_err());
        other.shrink(20);
        assert!(retaining.ensure_granted(71).is_err() && retaining.ensure_granted(70).is_ok());
        retaining.retain(60);
        other.grow(20);
        assert_eq!((retaining.reserved(), pool.reserved()), (60, 100));
        ours.shrink(50);
        assert_eq!((retaining.reserved(), pool.reserved()), (10, 100));
        retaining.retain(20);
        assert_eq!((retaining.granted_bytes(), pool.reserved()), (20, 60));
        retaining.retain(0);
        assert_eq!((retaining.granted_bytes(), pool.reserved()), (10, 50));
        retaining.ensure_granted(20).unwrap();
        ours.try_grow(5).unwrap();
        retaining.stop_retaining();
        assert_eq!((retaining.granted_bytes(), pool.reserved()), (15, 55));
        ours.shrink(5);
        assert_eq!((retaining.granted_bytes(), pool.reserved()), (10, 50));
        drop((ours, retaining));
        assert_eq!(pool.reserved(), 40);
    }

    /// The session's pool may release memory of this pool while it is asked for more.
    #[test]
    fn memory_may_be_released_while_the_pool_grows() {
        /// Drops a reservation when it has no memory left.
        #[derive(Debug)]
        struct Releasing(GreedyMemoryPool, Mutex<Option<MemoryReservation>>);

        impl fmt::Display for Releasing {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl MemoryPool for Releasing {
            fn name(&self) -> &'static str {
                "releasing"
            }

            fn grow(&self, reservation: &MemoryReservation, additional: usize) {
                self.0.grow(reservation, additional);
            }

            fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
                self.0.shrink(reservation, shrink);
            }

            fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
                let grown = self.0.try_grow(reservation, additional);
                if grown.is_ok() {
                    return grown;
                }
                let kept = self.1.lock().unwrap().take();
                drop(kept);
                self.0.try_grow(reservation, additional)
            }

            fn reserved(&self) -> usize {
                self.0.reserved()
            }
        }

        let releasing = Arc::new(Releasing(GreedyMemoryPool::new(100), Mutex::default()));
        let pool: Arc<dyn MemoryPool> = Arc::clone(&releasing) as _;
        let retaining = RetainingPool::new(&pool, true, 200);
        let kept = retaining.reservation();
        kept.try_grow(60).unwrap();
        retaining.stop_retaining();
        *releasing.1.lock().unwrap() = Some(kept);
        let memory = retaining.reservation();
        memory.try_grow(90).unwrap();
        assert_eq!((retaining.reserved(), pool.reserved()), (90, 90));
        memory.try_grow(20).unwrap_err();
        retaining.ensure_granted(100).unwrap();
        assert_eq!(pool.reserved(), 100);
    }
}
