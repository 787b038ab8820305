//! The four range functions and their names in SQL.

use arrow::datatypes::DataType;

use crate::common::ordered_type::value_type;
use rmq_engine::Extreme;

/// One of the four functions of a range of rows: the smallest or largest value, or the position of that value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RangeFunction {
    /// Whether the smallest or the largest value is meant.
    pub extreme: Extreme,
    /// Whether the result is the leftmost position of the value instead of the value.
    pub position: bool,
}

impl RangeFunction {
    /// All four, in the order of the documentation.
    pub const ALL: [Self; 4] = [
        Self {
            extreme: Extreme::Min,
            position: false,
        },
        Self {
            extreme: Extreme::Max,
            position: false,
        },
        Self {
            extreme: Extreme::Min,
            position: true,
        },
        Self {
            extreme: Extreme::Max,
            position: true,
        },
    ];

    /// The type of the result for a column of this type.
    pub(crate) fn result_type(self, column: &DataType) -> DataType {
        if self.position {
            DataType::Int64
        } else {
            value_type(column)
        }
    }

    /// The name of the scalar and table function.
    #[must_use]
    pub fn range_name(self) -> &'static str {
        match (self.extreme, self.position) {
            (Extreme::Min, false) => "range_min",
            (Extreme::Max, false) => "range_max",
            (Extreme::Min, true) => "range_argmin",
            (Extreme::Max, true) => "range_argmax",
        }
    }

    /// The name of the window function.
    #[must_use]
    pub fn frame_name(self) -> &'static str {
        match (self.extreme, self.position) {
            (Extreme::Min, false) => "frame_min",
            (Extreme::Max, false) => "frame_max",
            (Extreme::Min, true) => "frame_argmin",
            (Extreme::Max, true) => "frame_argmax",
        }
    }
}
