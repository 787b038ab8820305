//! How many rows queries have read of what is not kept, because each needed only a part.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most sides that are remembered; the one that was read first is forgotten.
const MAX_SIDES: usize = 256;

/// Rows that have been read of each side, by its key.
#[derive(Debug, Default)]
pub(crate) struct PrunedReads(Mutex<Vec<SideReads>>);

#[derive(Debug)]
struct SideReads {
    key: Arc<dyn Any + Send + Sync>,
    rows: usize,
}

impl SideReads {
    fn has_key<K: Any + PartialEq>(&self, key: &K) -> bool {
        self.key.downcast_ref() == Some(key)
    }
}

impl PrunedReads {
    /// Rows that have been read of the side with this key.
    pub(crate) fn rows<K: Any + PartialEq>(&self, key: &K) -> usize {
        let sides = self.lock();
        let known = sides.iter().find(|side| side.has_key(key));
        known.map_or(0, |side| side.rows)
    }

    /// Adds rows that have been read of the side with this key.
    pub(crate) fn add<K: Any + PartialEq + Send + Sync>(&self, key: Arc<K>, rows: usize) {
        let mut sides = self.lock();
        let known = sides.iter_mut().find(|side| side.has_key(key.as_ref()));
        if let Some(side) = known {
            side.rows = side.rows.saturating_add(rows);
            return;
        }
        if sides.len() == MAX_SIDES {
            sides.remove(0);
        }
        sides.push(SideReads { key, rows });
    }

    /// Forgets the side with this key.
    pub(crate) fn forget<K: Any + PartialEq>(&self, key: &K) {
        self.lock().retain(|side| !side.has_key(key));
    }

    /// A poisoned lock is safe to use: no panic leaves the list incomplete.
    fn lock(&self) -> MutexGuard<'_, Vec<SideReads>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
