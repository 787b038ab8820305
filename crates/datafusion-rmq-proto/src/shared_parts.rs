//! What operators of a plan share with one another, and plans of a process with later ones.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use datafusion::common::Result;
use datafusion_rmq::SharedIndexes;
use datafusion_rmq::parts::{IndexSlot, SharedRelation, WeakIndexSlot, WeakRelation};

/// The indexes of a process, and the parts of the plans that exist which several of their operators share.
#[derive(Debug, Default)]
pub(crate) struct SharedParts {
    indexes: SharedIndexes,
    relations: Mutex<HashMap<u64, WeakRelation>>,
    slots: Mutex<HashMap<u64, WeakIndexSlot>>,
}

impl SharedParts {
    /// No parts yet, and these indexes.
    pub(crate) fn new(indexes: SharedIndexes) -> Self {
        Self {
            indexes,
            ..Self::default()
        }
    }

    /// The indexes that are kept between queries, and the devices.
    pub(crate) fn indexes(&self) -> &SharedIndexes {
        &self.indexes
    }

    /// The relation of this id, which `make` makes unless an operator of the plan has it.
    pub(crate) fn relation(
        &self,
        id: u64,
        make: impl FnOnce() -> Result<SharedRelation>,
    ) -> Result<SharedRelation> {
        if let Some(known) = lock(&self.relations)
            .get(&id)
            .and_then(WeakRelation::upgrade)
        {
            return Ok(known);
        }
        // Its plan may have relations of its own.
        let relation = make()?;
        let mut relations = lock(&self.relations);
        relations.retain(|_, relation| relation.upgrade().is_some());
        // Another task of the same query may have made it meanwhile.
        let known = relations.get(&id).and_then(WeakRelation::upgrade);
        Ok(known.unwrap_or_else(|| {
            relations.insert(id, relation.downgrade());
            relation
        }))
    }

    /// The slot of this id.
    pub(crate) fn slot(&self, id: u64) -> IndexSlot {
        let mut slots = lock(&self.slots);
        if let Some(known) = slots.get(&id).and_then(WeakIndexSlot::upgrade) {
            return known;
        }
        slots.retain(|_, slot| slot.upgrade().is_some());
        let made = IndexSlot::default();
        slots.insert(id, made.downgrade());
        made
    }
}

fn lock<K: Eq + Hash, V>(parts: &Mutex<HashMap<K, V>>) -> MutexGuard<'_, HashMap<K, V>> {
    parts.lock().unwrap_or_else(PoisonError::into_inner)
}
