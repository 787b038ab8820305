//! How much windows reach of a build side, as its statistics tell.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, ScalarValue, Statistics};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::{CastExpr, Column};
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::common::statistics::statistics;
use crate::exec::range_join::data_size::DataSize;
use crate::exec::range_join::reach::intervals::Intervals;
use crate::exec::range_join::reach::whole_keys::number;

/// The expected bytes of a value whose type has no fixed width.
const EXPECTED_WIDTH: usize = 32;

/// The rows of a build side, and the least and the greatest range key, as far as statistics tell them.
#[derive(Debug, Clone)]
pub(crate) struct BuildExtent {
    pub(crate) rows: Option<usize>,
    extremes: Option<(ScalarValue, ScalarValue)>,
    /// Whether each row has a key.
    pub(crate) has_all_keys: bool,
}

impl BuildExtent {
    pub(crate) fn of(build: &Arc<dyn ExecutionPlan>, key: &PhysicalExprRef) -> Self {
        let statistics = statistics(build);
        let statistics = statistics.as_deref();
        Self {
            rows: statistics.and_then(|all| all.num_rows.get_value().copied()),
            extremes: statistics.and_then(|all| extremes(all, key)),
            has_all_keys: statistics
                .and_then(|all| known_of(all, key))
                .is_some_and(|known| matches!(known.null_count, Precision::Exact(0))),
        }
    }

    /// The part of the rows whose keys are in these intervals, or in gaps of less than the part `gap` of the keys, if
    /// keys were evenly distributed; `None` if that can't be told.
    pub(crate) fn share(&self, intervals: &Intervals, gap: f64) -> Option<f64> {
        let (min, max) = self.extremes.as_ref()?;
        intervals.share(min, max, gap)
    }

    /// The least and the greatest range key as numbers, if these are whole.
    pub(crate) fn numbers(&self) -> Option<(i128, i128)> {
        let (min, max) = self.extremes.as_ref()?;
        number(min).zip(number(max))
    }

    /// The expected size of all rows, of which columns of this schema are read.
    pub(crate) fn size(&self, read: &Schema) -> Option<DataSize> {
        let rows = self.rows?;
        let width = |field: &Arc<Field>| {
            field
                .data_type()
                .primitive_width()
                .unwrap_or(EXPECTED_WIDTH)
        };
        let width: usize = read.fields().iter().map(width).sum();
        Some(DataSize {
            rows,
            bytes: rows.saturating_mul(width),
        })
    }
}

/// The least and the greatest key, which is a column or an integer column as a wider one.
pub(crate) fn extremes(
    statistics: &Statistics,
    key: &PhysicalExprRef,
) -> Option<(ScalarValue, ScalarValue)> {
    let known = known_of(statistics, key)?;
    let (min, max) = (known.min_value.get_value()?, known.max_value.get_value()?);
    Some((min.clone(), max.clone()))
}

/// What is known of the column that a key is.
fn known_of<'a>(statistics: &'a Statistics, key: &PhysicalExprRef) -> Option<&'a ColumnStatistics> {
    let key = match key.downcast_ref::<CastExpr>() {
        Some(cast) => cast.expr(),
        None => key,
    };
    let column = key.downcast_ref::<Column>()?;
    statistics.column_statistics.get(column.index())
}
