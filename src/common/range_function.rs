//! The range functions and their names in SQL.

use arrow::datatypes::DataType;
use datafusion::logical_expr::DocumentationBuilder;

use crate::common::ordered_type::value_type;
use rmq_engine::{Extreme, RangeEnd};

/// A function of a range of rows: the smallest or largest value, the position of that value, or the position of the
/// first or last row that crosses a threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RangeFunction {
    /// Whether the smallest or the largest value is meant; for a threshold, whether rows are at most or at least that.
    pub extreme: Extreme,
    /// What is returned.
    pub result: RangeResult,
}

/// The result of a range function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RangeResult {
    /// The extreme value.
    Value,
    /// The leftmost position of the extreme value.
    Position,
    /// The position of the first or last row whose value is at most (for minima), or at least (for maxima), a
    /// threshold.
    Crossing(RangeEnd),
    /// The positions of the `k` smallest or largest values, as a list: the best first, the leftmost first among equals.
    Positions,
}

/// The argument of a range function after the bounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastArgument {
    pub(crate) name: &'static str,
    /// What it is, with its article.
    pub(crate) meaning: &'static str,
    /// What it is, for the documentation of functions.
    pub(crate) description: &'static str,
}

impl RangeFunction {
    /// All functions, in the order of the documentation.
    pub const ALL: [Self; 10] = [
        Self::new(Extreme::Min, RangeResult::Value),
        Self::new(Extreme::Max, RangeResult::Value),
        Self::new(Extreme::Min, RangeResult::Position),
        Self::new(Extreme::Max, RangeResult::Position),
        Self::new(Extreme::Min, RangeResult::Crossing(RangeEnd::First)),
        Self::new(Extreme::Min, RangeResult::Crossing(RangeEnd::Last)),
        Self::new(Extreme::Max, RangeResult::Crossing(RangeEnd::First)),
        Self::new(Extreme::Max, RangeResult::Crossing(RangeEnd::Last)),
        Self::new(Extreme::Min, RangeResult::Positions),
        Self::new(Extreme::Max, RangeResult::Positions),
    ];

    const fn new(extreme: Extreme, result: RangeResult) -> Self {
        Self { extreme, result }
    }

    /// The type of the result for a column of this type.
    pub(crate) fn result_type(self, column: &DataType) -> DataType {
        match self.result {
            RangeResult::Value => value_type(column),
            RangeResult::Position | RangeResult::Crossing(_) => DataType::Int64,
            RangeResult::Positions => DataType::new_list(DataType::Int64, true),
        }
    }

    /// Whether the function takes a threshold as its last argument.
    pub(crate) fn has_threshold(self) -> bool {
        matches!(self.result, RangeResult::Crossing(_))
    }

    /// The argument after the bounds, if the function has one.
    pub(crate) fn last_argument(self) -> Option<LastArgument> {
        match self.result {
            RangeResult::Value | RangeResult::Position => None,
            RangeResult::Crossing(_) => Some(LastArgument {
                name: "x",
                meaning: "a threshold",
                description: "The threshold, of a type that is compared exactly with that of the values",
            }),
            RangeResult::Positions => Some(LastArgument {
                name: "k",
                meaning: "a number of positions",
                description: "The number of positions, an integer; the list is shorter where there are fewer values",
            }),
        }
    }

    /// Number of arguments.
    pub(crate) fn argument_count(self) -> usize {
        3 + usize::from(self.last_argument().is_some())
    }

    /// The arguments after the column or value, as documentation shows them.
    pub(crate) fn shown_arguments(self) -> String {
        let last = self.last_argument();
        let last = last.map_or_else(String::new, |last| format!(", {}", last.name));
        format!("l, r{last}")
    }

    /// The name of the scalar and table function.
    #[must_use]
    pub fn range_name(self) -> &'static str {
        self.names().0
    }

    /// The name of the window function.
    #[must_use]
    pub fn frame_name(self) -> &'static str {
        self.names().1
    }

    fn names(self) -> (&'static str, &'static str) {
        use RangeEnd::{First, Last};
        use RangeResult::{Crossing, Position, Positions, Value};
        match (self.extreme, self.result) {
            (Extreme::Min, Value) => ("range_min", "frame_min"),
            (Extreme::Max, Value) => ("range_max", "frame_max"),
            (Extreme::Min, Position) => ("range_argmin", "frame_argmin"),
            (Extreme::Max, Position) => ("range_argmax", "frame_argmax"),
            (Extreme::Min, Crossing(First)) => ("range_first_at_most", "frame_first_at_most"),
            (Extreme::Min, Crossing(Last)) => ("range_last_at_most", "frame_last_at_most"),
            (Extreme::Max, Crossing(First)) => ("range_first_at_least", "frame_first_at_least"),
            (Extreme::Max, Crossing(Last)) => ("range_last_at_least", "frame_last_at_least"),
            (Extreme::Min, Positions) => ("range_smallest", "frame_smallest"),
            (Extreme::Max, Positions) => ("range_largest", "frame_largest"),
        }
    }

    /// Its place in [`Self::ALL`].
    pub(crate) fn index(self) -> Option<usize> {
        Self::ALL.iter().position(|function| *function == self)
    }

    /// Adds the argument after the bounds to documentation, if the function has one.
    pub(crate) fn document_last(self, docs: DocumentationBuilder) -> DocumentationBuilder {
        match self.last_argument() {
            Some(last) => docs.with_argument(last.name, last.description),
            None => docs,
        }
    }

    /// What the function returns of the rows of a range, for the documentation of functions.
    pub(crate) fn description(self) -> String {
        let extreme = match self.extreme {
            Extreme::Min => "smallest",
            Extreme::Max => "largest",
        };
        match self.result {
            RangeResult::Value => format!("value of the {extreme}"),
            RangeResult::Position => format!("position of the leftmost {extreme}"),
            RangeResult::Crossing(end) => {
                let side = match self.extreme {
                    Extreme::Min => "most",
                    Extreme::Max => "least",
                };
                format!("position of the {} (at {side} x)", end.name())
            }
            RangeResult::Positions => format!("positions, as a list, of the k {extreme}"),
        }
    }
}
