//! What is built over the sorted rows of a build side once its queries justify it.

use std::fmt::Display;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use datafusion::common::Result;

/// Something that is built on demand, or that there is none.
#[derive(Debug)]
pub(crate) struct OnDemand<T> {
    /// Rows that would have been read without it.
    counted_rows: AtomicUsize,
    /// `None` if it can't be built.
    built: OnceLock<Option<T>>,
    /// Held while it is built.
    building: Mutex<()>,
}

impl<T> Default for OnDemand<T> {
    fn default() -> Self {
        Self {
            counted_rows: AtomicUsize::new(0),
            built: OnceLock::new(),
            building: Mutex::default(),
        }
    }
}

impl<T> OnDemand<T> {
    /// Whether it should answer queries that would read this many rows: if it is built, or they and all before have
    /// more than `most`. Counts the rows.
    pub(crate) fn is_justified(&self, rows: usize, most: usize) -> bool {
        match self.built.get() {
            Some(built) => built.is_some(),
            None => {
                let before = self.counted_rows.fetch_add(rows, Ordering::Relaxed);
                before.saturating_add(rows) > most
            }
        }
    }

    /// Whether [`Self::build`] has been called.
    pub(crate) fn is_decided(&self) -> bool {
        self.built.get().is_some()
    }

    /// Whether it can't be built.
    pub(crate) fn has_failed(&self) -> bool {
        self.is_decided() && self.get().is_none()
    }

    /// It, if it is built.
    pub(crate) fn get(&self) -> Option<&T> {
        self.built.get()?.as_ref()
    }

    /// Builds it, unless that has been tried. Blocks; a cancelled partition leaves it to others. A failure is logged,
    /// as `what` of a range join that there is none of.
    pub(crate) fn build(
        &self,
        what: &dyn Display,
        check: &dyn Fn() -> Result<()>,
        build: impl FnOnce() -> Result<Option<T>>,
    ) {
        let _building = self.building.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_decided() {
            return;
        }
        let outcome = build();
        if outcome.is_err() && check().is_err() {
            return;
        }
        self.built.get_or_init(|| {
            outcome.unwrap_or_else(|error| {
                log::debug!("a range join reads rows, as it has no {what}: {error}");
                None
            })
        });
    }
}
