//! The values that an equality key has on the probe side, where these are few.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, UInt32Array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{filter, take};
use arrow::datatypes::{DataType, Schema};
use datafusion::common::{Result, ScalarValue};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::{Column, in_list, lit};

use crate::exec::range_join::reach::row_groups::is_ordered_in_files;
use datafusion_rmq_logical::logical_plan::range_join::RangeJoinSpec;
use rmq_arrow::common::ordered_type::value_type;
use rmq_arrow::common::row_number::row_number;
use rmq_arrow::common::workers::Workers;
use rmq_arrow::sorted::groups::Groups;
use rmq_arrow::sorted::id_table::NO_GROUP;

/// An equality key with more values is not compared with them.
const MAX_VALUES: usize = 1000;

/// How many rows tell whether few have other values of an equality key.
const TELLING_ROWS: usize = 1 << 16;

/// Few are less than this part.
const LEAST_PART: usize = 8;

/// The values of an equality key, added batch by batch.
#[derive(Debug)]
pub(super) struct KeyValues {
    groups: Groups,
    /// Those of the groups.
    values: Vec<ScalarValue>,
}

impl KeyValues {
    /// Of each equality key; `None` if scans can't compare it.
    pub(super) fn of_join(
        spec: &RangeJoinSpec<PhysicalExprRef>,
        build: &Schema,
    ) -> Result<Vec<Option<Self>>> {
        let values = spec.on.iter().map(|(_, key)| {
            let data_type = key.data_type(build)?;
            let is_compared =
                key.is::<Column>() && is_ordered_in_files(&data_type) && !data_type.is_floating();
            is_compared.then(|| Self::of_type(&data_type)).transpose()
        });
        values.collect()
    }

    fn of_type(data_type: &DataType) -> Result<Self> {
        Ok(Self {
            groups: Groups::try_new(&[value_type(data_type)])?,
            values: vec![],
        })
    }

    /// Adds the values of the rows that have a window. Returns whether all are few.
    pub(super) fn add(&mut self, keys: &ArrayRef, has_window: &[bool]) -> Result<bool> {
        let mut keys = Arc::clone(keys);
        if has_window.contains(&false) {
            keys = filter(&keys, &BooleanArray::from(has_window.to_vec()))?;
        }
        let mut groups = vec![NO_GROUP; keys.len()];
        self.groups.add(&[Arc::clone(&keys)], &mut groups)?;
        if self.groups.len() > MAX_VALUES {
            return Ok(false);
        }
        // New groups are numbered as they come. NULL has none.
        let mut new = vec![];
        for (row, group) in groups.into_iter().enumerate() {
            if group as usize == self.values.len() + new.len() {
                new.push(row_number(row)?);
            }
        }
        let new = take(&keys, &UInt32Array::from(new), None)?;
        for row in 0..new.len() {
            self.values.push(ScalarValue::try_from_array(&new, row)?);
        }
        Ok(true)
    }
}

/// An equality key that has few values.
#[derive(Debug, Clone)]
pub(super) struct Among {
    /// Its number.
    key: usize,
    /// The column.
    on: PhysicalExprRef,
    /// The values, and the same as rows are compared with them.
    values: Arc<[ScalarValue]>,
    groups: Arc<Groups>,
    /// The rows that were compared, and those that were not among the values.
    compared: Arc<[AtomicUsize; 2]>,
}

impl Among {
    /// The equality keys of a join whose values are known.
    ///
    /// # Errors
    /// If the query is cancelled.
    pub(super) fn of_join(
        spec: &RangeJoinSpec<PhysicalExprRef>,
        values: Vec<Option<KeyValues>>,
    ) -> Result<Vec<Self>> {
        let among = spec.on.iter().zip(values).enumerate();
        let among = among.filter_map(|(key, ((_, on), values))| Some((key, on, values?)));
        let among = among.map(|(key, on, KeyValues { groups, values })| {
            // Merged, although it is one part, as look-ups are prepared by that.
            let workers = Workers::new(1, &|| Ok(()));
            let (groups, _) = Groups::merge(vec![groups], workers)?;
            Ok(Self {
                key,
                on: Arc::clone(on),
                values: values.into(),
                groups: Arc::new(groups),
                compared: Arc::default(),
            })
        });
        among.collect()
    }

    /// Whether this has all values that the same key has among others.
    ///
    /// # Errors
    /// Arrow's, if there are too many bytes.
    pub(super) fn has_those_of(&self, others: &[Self]) -> Result<bool> {
        let Some(other) = others.iter().find(|other| other.key == self.key) else {
            return Ok(false);
        };
        if other.values.is_empty() {
            return Ok(true);
        }
        let values = ScalarValue::iter_to_array(other.values.iter().cloned())?;
        let groups = self.groups.find(&[values], other.values.len())?;
        Ok(!groups.contains(&NO_GROUP))
    }

    /// Which rows of the build side are among the values; `None` if those before have shown that most are, so that to
    /// compare all takes longer than to sort a few that no probe row matches.
    ///
    /// # Errors
    /// If a key is of another type.
    pub(super) fn contains(&self, batch: &RecordBatch) -> Result<Option<BooleanBuffer>> {
        let [compared, others] = self.compared.as_ref();
        let [rows, of_others] = [compared, others].map(|n| n.load(Ordering::Relaxed));
        if rows >= TELLING_ROWS && of_others < rows / LEAST_PART {
            return Ok(None);
        }
        let keys = self.on.evaluate(batch)?.into_array(batch.num_rows())?;
        let groups = self.groups.find(&[keys], batch.num_rows())?;
        let is_among = BooleanBuffer::collect_bool(groups.len(), |row| groups[row] != NO_GROUP);
        compared.fetch_add(is_among.len(), Ordering::Relaxed);
        let count = is_among.len() - is_among.count_set_bits();
        others.fetch_add(count, Ordering::Relaxed);
        Ok(Some(is_among))
    }

    /// The condition that a row is among the values, by which scans prune.
    ///
    /// # Errors
    /// If the values are of another type than the key.
    pub(super) fn condition(&self, build: &Schema) -> Result<PhysicalExprRef> {
        let values = self.values.iter().cloned().map(lit);
        in_list(Arc::clone(&self.on), values.collect(), &false, build)
    }
}
