//! Build rows that devices have sorted, kept between queries.
//!
//! A later query finds them as it finds those that the CPU has sorted (`kept`). Values that it lacks are read, go up
//! and are moved into the order of the rows there, beside those that it has. Rows that have been appended go up alone,
//! as a further segment (`kept_segments`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use datafusion::common::{Result, internal_err};

use crate::exec::range_join::aggregate_table::Structures;
use crate::exec::range_join::build_side::collect_or_spill::CollectedRows;
use crate::exec::range_join::build_side::device_side::{DeviceBuilder, DeviceSide, MissingValues};
use crate::exec::range_join::build_side::kept::BuildSideKeeper;
use crate::exec::range_join::build_side::kept_side::{JoinValues, KeptSegment, Value};
use crate::kept::entries::KeptMemory;
use crate::kept::version::Version;
use rmq_arrow::index::devices::Target;

/// Rows that devices have sorted, and what they have of their values.
#[derive(Debug)]
pub(crate) struct DeviceSegment(Mutex<KnownValues>);

/// A side, and the values that it has, in its order.
#[derive(Debug, Clone)]
pub(super) struct KnownValues {
    pub(super) side: Arc<DeviceSide>,
    values: Vec<Value>,
}

impl KnownValues {
    /// A side that was built of these values.
    fn new(side: DeviceSide, values: Vec<Value>) -> Self {
        Self {
            side: Arc::new(side),
            values,
        }
    }

    /// The values of a join, as indexes among those of the side; `None` if devices lack something of what it needs.
    fn find_all(&self, values: &JoinValues) -> Option<Vec<usize>> {
        self.find(&values.values, &values.needs())
    }

    /// As [`Self::find_all`], with what the join `needs` of each value.
    fn find(&self, values: &[Value], needs: &[Structures]) -> Option<Vec<usize>> {
        let values = values.iter().zip(needs);
        let values = values.map(|(value, needs)| {
            let mut known = self.values.iter().zip(self.side.values());
            known.position(|(known, column)| known.is(value) && needs.are_among(&column.built))
        });
        values.collect()
    }

    /// What has to be added for a join that needs these values.
    fn missing(&self, values: &JoinValues) -> MissingValues {
        let is_whole = |value: &Value| value.version.as_ref().is_none_or(Version::is_whole);
        let kept = (0..self.values.len()).filter(|i| is_whole(&self.values[*i]));
        let mut kept: Vec<usize> = kept.collect();
        let mut added = vec![];
        for (i, (value, needs)) in values.values.iter().zip(values.needs()).enumerate() {
            let mut known = self.values.iter().zip(self.side.values()).enumerate();
            let known = known.find(|(_, (known, _))| known.is(value));
            let Some((known, (_, column))) = known else {
                added.push((i, needs));
                continue;
            };
            if !needs.are_among(&column.built) {
                kept.retain(|kept| *kept != known);
                added.push((i, needs.iter().chain(column.built.iter()).collect()));
            }
        }
        MissingValues { added, kept }
    }
}

impl DeviceSegment {
    fn new(known: KnownValues) -> Self {
        Self(Mutex::new(known))
    }

    /// What devices have now.
    pub(super) fn known(&self) -> KnownValues {
        self.lock().clone()
    }

    /// Replaces what devices had before values were added, unless another query has added some meanwhile.
    fn replace(&self, before: &KnownValues, known: KnownValues) {
        let mut present = self.lock();
        if Arc::ptr_eq(&present.side, &before.side) {
            *present = known;
        }
    }

    fn lock(&self) -> MutexGuard<'_, KnownValues> {
        // A poisoned side is complete: no update of it can panic half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeptSegment for DeviceSegment {
    fn total_rows(&self) -> usize {
        self.lock().side.total_rows()
    }

    fn is_restored(&self) -> bool {
        false
    }

    fn has_failed(&self) -> bool {
        self.lock().side.has_failed()
    }

    fn has_all_of(&self, other: &Self) -> bool {
        let other = other.known();
        let needs = other.side.values().map(|column| column.built.clone());
        let needs: Vec<Structures> = needs.collect();
        self.lock().find(&other.values, &needs).is_some()
    }

    fn has_all(&self, values: &JoinValues) -> bool {
        self.lock().find_all(values).is_some()
    }

    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.lock().side) == 1
    }

    /// Values are not told apart, as indexes with names are on the CPU.
    fn memory(&self) -> KeptMemory {
        let side = &self.lock().side;
        KeptMemory {
            host: side.bytes(),
            values: 0,
            device: side.device_bytes(),
        }
    }

    fn drop_values(&self) {}

    fn disk(&self) -> Option<&'static str> {
        None
    }
}

impl BuildSideKeeper {
    /// The rows, if devices have them in one segment: with all values that the join needs, or those to which they can
    /// be added. And these devices.
    pub(crate) fn find_on_devices(&self) -> Option<(Arc<DeviceSegment>, Target)> {
        self.find_whole(self.keeps)
    }

    /// What devices have of a segment, and the values of the join, as indexes among those of its side. Those that are
    /// missing are added, of rows that `read` reads; `None` if these can't be read, or have changed meanwhile.
    ///
    /// # Errors
    /// Errors of devices, for which the CPU may take over, and those of `read`.
    pub(super) async fn complete_on_devices(
        &self,
        segment: &DeviceSegment,
        builder: DeviceBuilder,
        read: impl AsyncFnOnce() -> Result<Option<CollectedRows>>,
    ) -> Result<Option<(Arc<DeviceSide>, Vec<usize>)>> {
        let (known, needed) = (segment.known(), &self.lookup.values);
        if let Some(values) = known.find_all(needed) {
            return Ok(Some((known.side, values)));
        }
        let Some(rows) = read().await?.map(Arc::new) else {
            return Ok(None);
        };
        if !self.is_unchanged().await {
            return Ok(None);
        }
        let missing = known.missing(needed);
        let kept = missing.kept.iter().map(|i| &known.values[*i]);
        let added = missing.added.iter().map(|(i, _)| &needed.values[*i]);
        let values = kept.chain(added).cloned().collect();
        let side = Arc::clone(&known.side);
        let started = Instant::now();
        let metrics = builder.metrics.clone();
        let side = builder.add_values(side, rows, missing).await?;
        metrics.record_build(started);
        let complete = KnownValues::new(side, values);
        let Some(values) = complete.find_all(needed) else {
            return internal_err!("a kept build side lacks values that were added");
        };
        let side = Arc::clone(&complete.side);
        segment.replace(&known, complete);
        self.shrink();
        Ok(Some((side, values)))
    }

    /// A segment of rows that devices have sorted, with all values of the join.
    pub(super) fn segment_on_devices(&self, side: DeviceSide) -> DeviceSegment {
        DeviceSegment::new(KnownValues::new(side, self.lookup.values.values.clone()))
    }
}
