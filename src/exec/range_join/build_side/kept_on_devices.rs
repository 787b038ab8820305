//! Build sides that devices have sorted, kept between queries.
//!
//! A later query finds the rows as it finds those that the CPU has sorted (`kept`), if devices have what it needs of
//! each value. Values are not added to rows on devices: a query that needs others has its own rows sorted, which take
//! the place of these if they have all that these have. So does one after an INSERT.

use std::any::Any;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::Result;

use crate::exec::range_join::build_columns::BuildColumns;
use crate::exec::range_join::build_side::device_columns::DeviceNeeds;
use crate::exec::range_join::build_side::device_join::DeviceSide;
use crate::exec::range_join::build_side::kept::BuildSideKeeper;
use crate::exec::range_join::build_side::kept_side::{RowsKey, Value};
use crate::index::devices::Target;
use crate::index::entries::KeptRows;

/// The rows of a version on devices.
#[derive(Debug)]
pub(super) struct KeptDeviceSide {
    pub(super) key: Arc<RowsKey>,
    /// The keys as EXPLAIN shows them.
    label: String,
    /// The type of the range key.
    key_type: DataType,
    /// Whether a plan with the same key has the rows in the same order.
    is_in_order: bool,
    values: Vec<Value>,
    target: Target,
    side: Arc<DeviceSide>,
}

/// What a join finds on devices.
#[derive(Debug)]
pub(crate) struct FoundOnDevices {
    target: Target,
    pub(crate) side: Arc<DeviceSide>,
    /// The value columns of the join, as indexes among those of the side.
    pub(crate) values: Vec<usize>,
}

impl FoundOnDevices {
    /// Whether these are the devices.
    pub(crate) fn is_on(&self, target: &Target) -> bool {
        self.target == *target
    }
}

impl BuildSideKeeper {
    /// The rows, if devices have them with all that the join needs of their values.
    pub(crate) fn find_on_devices(&self) -> Option<FoundOnDevices> {
        let needs = needs_of_values(&self.columns, &self.types().ok()?);
        self.catalog.find_rows(|rows, version| {
            let kept = KeptDeviceSide::of(rows.as_ref())?;
            let is_found = kept.key == self.key && version.matches(&self.version);
            let values = is_found.then(|| kept.serve(&self.columns, &self.values, &needs))??;
            Some(FoundOnDevices {
                target: kept.target.clone(),
                side: Arc::clone(&kept.side),
                values,
            })
        })
    }

    /// Keeps rows on devices for later queries, unless a file has changed or may have while it was read.
    ///
    /// # Errors
    /// An error if the range key has no type.
    pub(crate) async fn keep_on_devices(
        &self,
        side: &Arc<DeviceSide>,
        target: Target,
    ) -> Result<()> {
        if !self.may_keep().await {
            return Ok(());
        }
        let kept = KeptDeviceSide {
            key: Arc::clone(&self.key),
            label: self.columns.key_label(),
            key_type: self.key_type()?,
            is_in_order: self.is_in_order(),
            values: self.values.clone(),
            target,
            side: Arc::clone(side),
        };
        let version = self.version.clone();
        self.catalog.keep_rows(Arc::new(kept), version, self.limit);
        Ok(())
    }
}

/// What devices need of the values of a join of these columns, all of which have these types.
pub(super) fn needs_of_values(columns: &BuildColumns, types: &[DataType]) -> Vec<DeviceNeeds> {
    let types = columns.values(types).iter().enumerate();
    let needs = types.map(|(i, data_type)| DeviceNeeds::of_column(columns, i, data_type));
    needs.collect()
}

impl KeptDeviceSide {
    /// The side, if the rows are one.
    pub(super) fn of(rows: &dyn KeptRows) -> Option<&Self> {
        (rows as &dyn Any).downcast_ref()
    }

    /// The values of a join of these columns, as indexes among those of the side, if devices have all that it needs.
    pub(super) fn serve(
        &self,
        columns: &BuildColumns,
        values: &[Value],
        needs: &[DeviceNeeds],
    ) -> Option<Vec<usize>> {
        if !self.is_in_order && columns.row_order_matters() || self.side.has_failed() {
            return None;
        }
        let values = values.iter().zip(needs);
        let values = values.map(|(value, needs)| self.position(value, *needs));
        values.collect()
    }

    /// The index of a value, if devices have what is needed of it.
    fn position(&self, value: &Value, needs: DeviceNeeds) -> Option<usize> {
        let mut kept = self.values.iter().zip(self.side.values());
        kept.position(|(known, column)| known.is(value) && needs.are_met_by(column.built))
    }

    /// Whether all that `other` has can be found here.
    fn has_all_of(&self, other: &Self) -> bool {
        let columns = other.side.values().iter();
        let mut values = other.values.iter().zip(columns);
        self.target == other.target
            && (self.is_in_order || !other.is_in_order)
            && values.all(|(value, column)| self.position(value, column.built).is_some())
    }
}

impl KeptRows for KeptDeviceSide {
    fn has_key(&self, _: &dyn Any) -> bool {
        // Indexes with names are on the CPU, where values can be added to them.
        false
    }

    fn replaces(&self, other: &dyn KeptRows, is_same_version: bool) -> bool {
        Self::of(other).is_some_and(|other| {
            let is_as_useful = other.side.has_failed() || self.has_all_of(other);
            self.key.may_extend(&other.key) && (!is_same_version || is_as_useful)
        })
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn key_type(&self) -> &DataType {
        &self.key_type
    }

    fn rows(&self) -> usize {
        self.side.total_rows()
    }

    fn bytes(&self) -> usize {
        self.side.bytes()
    }

    fn device_bytes(&self) -> usize {
        self.side.device_bytes()
    }

    fn target(&self) -> &Target {
        &self.target
    }

    fn disk(&self) -> Option<&'static str> {
        None
    }
}
