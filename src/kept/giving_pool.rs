//! The memory pool of a session, in which what the session keeps between queries gives way to any operator.

use std::fmt;
use std::sync::{Arc, Weak};

use datafusion::common::Result;
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};

use crate::kept::catalog::IndexCatalog;

/// A pool on top of another one. Where that has too little memory, indexes that no query uses are evicted.
#[derive(Debug)]
pub(crate) struct GivingPool {
    pool: Arc<dyn MemoryPool>,
    /// The pool does not keep the catalog, whose indexes keep it.
    catalog: Weak<IndexCatalog>,
}

impl GivingPool {
    /// The pool in which what `catalog` keeps gives way, on top of `pool`; `None` if that has no limit.
    pub(crate) fn of(pool: &Arc<dyn MemoryPool>, catalog: &Arc<IndexCatalog>) -> Option<Arc<Self>> {
        // That of another catalog, if the session was registered before.
        let pool = pool.downcast_ref::<Self>().map_or(pool, |of| &of.pool);
        if let MemoryLimit::Infinite = pool.memory_limit() {
            return None;
        }
        Some(Arc::new(Self {
            pool: Arc::clone(pool),
            catalog: Arc::downgrade(catalog),
        }))
    }

    /// Whether what `catalog` keeps gives way in this pool.
    pub(crate) fn is_of(&self, catalog: &Arc<IndexCatalog>) -> bool {
        self.catalog.as_ptr() == Arc::as_ptr(catalog)
    }

    /// Whether what `catalog` keeps takes no memory of this pool from others: it has no limit, or is one in which that
    /// gives way.
    pub(crate) fn may_keep(pool: &Arc<dyn MemoryPool>, catalog: &Arc<IndexCatalog>) -> bool {
        let giving = pool.downcast_ref::<Self>();
        matches!(pool.memory_limit(), MemoryLimit::Infinite)
            || giving.is_some_and(|pool| pool.is_of(catalog))
    }

    /// The bytes of a pool that can be had where what no query uses gives way, as far as the pool tells.
    pub(crate) fn free_bytes(pool: &Arc<dyn MemoryPool>) -> usize {
        let giving = pool.downcast_ref::<Self>();
        let catalog = giving.and_then(|pool| pool.catalog.upgrade());
        free_bytes(pool.as_ref(), catalog.as_deref())
    }
}

/// The bytes that can be had where what `catalog` keeps gives way.
fn free_bytes(pool: &dyn MemoryPool, catalog: Option<&IndexCatalog>) -> usize {
    match pool.memory_limit() {
        MemoryLimit::Finite(limit) => {
            let idle = catalog.map_or(0, IndexCatalog::idle_bytes);
            limit.saturating_sub(pool.reserved().saturating_sub(idle))
        }
        MemoryLimit::Infinite | MemoryLimit::Unknown => usize::MAX,
    }
}

impl fmt::Display for GivingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pool.fmt(f)
    }
}

impl MemoryPool for GivingPool {
    fn name(&self) -> &str {
        self.pool.name()
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.pool.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.pool.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.pool.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.pool.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let grow = || self.pool.try_grow(reservation, additional);
        let grown = grow();
        if grown.is_ok() {
            return grown;
        }
        match self.catalog.upgrade() {
            Some(catalog) if additional <= free_bytes(self.pool.as_ref(), Some(&catalog)) => {
                catalog.give_way(grow)
            }
            _ => grown,
        }
    }

    fn reserved(&self) -> usize {
        self.pool.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.pool.memory_limit()
    }
}
