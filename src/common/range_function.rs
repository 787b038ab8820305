//! The four questions about a range of rows, and their names in SQL.

use arrow::datatypes::DataType;

use crate::common::ordered_type::value_type;
use rmq_engine::Extreme;

/// One of the four questions about a range of rows: the extreme value, or where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RangeFunction {
    /// Which end of the order.
    pub extreme: Extreme,
    /// Whether the (leftmost) position of the extreme is asked for instead of its value.
    pub position: bool,
}

impl RangeFunction {
    /// All four, in the order in which the documentation lists them.
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

    /// The type of the answer, for a column of this type.
    pub(crate) fn result_type(self, column: &DataType) -> DataType {
        if self.position {
            DataType::Int64
        } else {
            value_type(column)
        }
    }

    /// The name of the scalar and table function.
    pub fn range_name(self) -> &'static str {
        match (self.extreme, self.position) {
            (Extreme::Min, false) => "range_min",
            (Extreme::Max, false) => "range_max",
            (Extreme::Min, true) => "range_argmin",
            (Extreme::Max, true) => "range_argmax",
        }
    }

    /// The name of the window function.
    pub fn frame_name(self) -> &'static str {
        match (self.extreme, self.position) {
            (Extreme::Min, false) => "frame_min",
            (Extreme::Max, false) => "frame_max",
            (Extreme::Min, true) => "frame_argmin",
            (Extreme::Max, true) => "frame_argmax",
        }
    }
}
