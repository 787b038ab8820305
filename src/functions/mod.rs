//! What people type. Four questions, each asked in three forms: the scalar function
//! `range_min('table.column', l, r)`, the table function of the same name, and the window function
//! `frame_min(column, l, r) OVER (…)`.

pub(crate) mod bounds;
pub(crate) mod column_name;
mod decimal_average;
mod devices;
mod indexes;
mod lookup;
mod range_join;
mod scalar;
mod table;
mod total_order;
mod window;

pub(crate) use decimal_average::{DecimalAverageUdf, decimal_digits};
pub use devices::DevicesFunction;
pub use indexes::IndexesFunction;
pub use lookup::IndexSlot;
pub(crate) use lookup::LookupUdf;
pub(crate) use lookup::RunNumber;
pub use range_join::RangeJoinFunction;
pub use scalar::RangeUdf;
pub(crate) use scalar::column_text;
pub use table::RangeTableFunction;
pub use total_order::TotalOrderUdaf;
pub use window::FrameUdf;

use arrow::datatypes::DataType;

use rmq_engine::Extreme;
use crate::index::value_type;

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
