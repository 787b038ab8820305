//! Memory for the build side of a range join: what the session's pool has granted, and how much of it is in use.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::common::Result;
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};

/// The consumer's name in the pool's reports.
const NAME: &str = "rmq range join";

/// A pool within the session's: what was once granted stays at hand until it is given back, so that work which fits what was
/// held for it can't fail half-way because others were faster.
#[derive(Debug)]
pub(crate) struct RetainingPool {
    granted: MemoryReservation,
    used: Mutex<Used>,
}

/// How much of what was granted is in use.
#[derive(Debug, Default)]
struct Used {
    bytes: usize,
    /// Whether what is not is kept at hand no more.
    gives_back: bool,
}

impl RetainingPool {
    /// No memory yet. Of a build side that can be written to disk, a fair pool expects that, and gives it its share.
    pub(crate) fn new(pool: &Arc<dyn MemoryPool>, can_spill: bool) -> Arc<Self> {
        let consumer = MemoryConsumer::new(NAME).with_can_spill(can_spill);
        Arc::new(Self {
            granted: consumer.register(pool),
            used: Mutex::default(),
        })
    }

    /// An empty reservation of this memory.
    pub(crate) fn reservation(self: &Arc<Self>) -> MemoryReservation {
        let pool = Arc::clone(self) as Arc<dyn MemoryPool>;
        MemoryConsumer::new(NAME).register(&pool)
    }

    /// An empty reservation of the session's pool, outside of this memory.
    pub(crate) fn beside(&self) -> MemoryReservation {
        self.granted.new_empty()
    }

    /// Bytes granted, used or not.
    pub(crate) fn granted(&self) -> usize {
        self.granted.size()
    }

    /// Has so many bytes granted, used ones among them.
    ///
    /// # Errors
    /// The pool's, if it has no more; then all is as before.
    pub(crate) fn hold(&self, bytes: usize) -> Result<()> {
        let _used = self.used();
        self.grant(bytes)
    }

    /// Gives back what is granted over so many bytes and not used.
    pub(crate) fn keep(&self, bytes: usize) {
        let used = self.used();
        self.keep_granted(bytes.max(used.bytes));
    }

    /// Gives back what is not used, and from now on all that is not used any more.
    pub(crate) fn keep_nothing(&self) {
        let mut used = self.used();
        used.gives_back = true;
        self.keep_granted(used.bytes);
    }

    fn keep_granted(&self, bytes: usize) {
        self.granted
            .shrink(self.granted.size().saturating_sub(bytes));
    }

    fn grant(&self, bytes: usize) -> Result<()> {
        match bytes.checked_sub(self.granted.size()) {
            None | Some(0) => Ok(()),
            Some(missing) => self.granted.try_grow(missing),
        }
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for RetainingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (used, granted) = (self.used().bytes, self.granted.size());
        write!(f, "{NAME}(used: {used}, granted: {granted})")
    }
}

impl MemoryPool for RetainingPool {
    fn name(&self) -> &'static str {
        NAME
    }

    fn grow(&self, _reservation: &MemoryReservation, additional: usize) {
        let mut used = self.used();
        used.bytes += additional;
        let missing = used.bytes.saturating_sub(self.granted.size());
        self.granted.grow(missing);
    }

    fn shrink(&self, _reservation: &MemoryReservation, shrink: usize) {
        let mut used = self.used();
        used.bytes -= shrink;
        if used.gives_back {
            self.keep_granted(used.bytes);
        }
    }

    fn try_grow(&self, _reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let mut used = self.used();
        self.grant(used.bytes + additional)?;
        used.bytes += additional;
        Ok(())
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
    fn what_is_held_can_be_used_though_others_took_the_rest() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(100));
        let room = RetainingPool::new(&pool, true);
        room.hold(60).unwrap();
        let other = MemoryConsumer::new("other").register(&pool);
        other.try_grow(40).unwrap();
        let ours = room.reservation();
        ours.try_grow(60).unwrap();
        assert!(ours.try_grow(1).is_err() && room.hold(61).is_err());
        assert_eq!((room.reserved(), pool.reserved()), (60, 100));
        ours.shrink(50);
        assert_eq!((room.reserved(), pool.reserved()), (10, 100));
        room.keep(20);
        assert_eq!((room.granted(), pool.reserved()), (20, 60));
        room.keep(0);
        assert_eq!((room.granted(), pool.reserved()), (10, 50));
        room.hold(20).unwrap();
        ours.try_grow(5).unwrap();
        room.keep_nothing();
        assert_eq!((room.granted(), pool.reserved()), (15, 55));
        ours.shrink(5);
        assert_eq!((room.granted(), pool.reserved()), (10, 50));
        drop((ours, room));
        assert_eq!(pool.reserved(), 40);
    }
}
