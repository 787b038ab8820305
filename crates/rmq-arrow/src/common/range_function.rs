//! The range functions and their names in SQL.

use arrow::datatypes::DataType;
use datafusion_common::{Result, internal_err, plan_err};

use crate::common::ordered_type::{check_ordered, value_type};
use crate::common::ranges::coerce_bound;
use rmq_engine::{Extreme, RangeEnd};

/// A function of the values in a range of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RangeFunction {
    /// The smallest or largest value, the position of that value, or the position of the first or last row that crosses
    /// a threshold.
    Extreme {
        /// Whether the smallest or the largest value is meant; for a threshold, whether rows are at most or at least
        /// that.
        extreme: Extreme,
        /// What is returned.
        result: RangeResult,
    },
    /// What the values have in common.
    Statistic(RangeStatistic),
}

/// The result of a function of the smallest or largest value.
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

/// An order statistic of the values in a range of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RangeStatistic {
    /// The value that a fraction of the values is below, interpolated between two of them.
    Quantile,
    /// The number of values below a threshold.
    CountBelow,
    /// The number of distinct values.
    CountDistinct,
}

/// An index of a column, by which a range function is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IndexKind {
    /// Of the smallest or the largest values of ranges.
    Extremes(Extreme),
    /// Of the ranks of values.
    Ranks,
    /// Of the numbers of distinct values.
    DistinctCounts,
}

impl IndexKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [
        Self::Extremes(Extreme::Min),
        Self::Extremes(Extreme::Max),
        Self::Ranks,
        Self::DistinctCounts,
    ];

    /// Its name in `rmq_indexes()`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Extremes(extreme) => extreme.name(),
            Self::Ranks => "ranks",
            Self::DistinctCounts => "distinct",
        }
    }
}

/// What the argument of a range function after the bounds is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastKind {
    /// A value that is compared with those of the column.
    Threshold,
    /// How many rows are returned.
    Count,
    /// A number from 0 to 1.
    Fraction,
}

/// The argument of a range function after the bounds.
#[derive(Debug, Clone, Copy)]
pub struct LastArgument {
    /// What it is, for its type.
    pub kind: LastKind,
    /// Its name in documentation and errors.
    pub name: &'static str,
    /// What it is, with its article.
    pub meaning: &'static str,
    /// What it is, for the documentation of functions.
    pub description: &'static str,
}

impl RangeFunction {
    /// All functions, in the order of the documentation.
    pub const ALL: [Self; 13] = [
        Self::extreme(Extreme::Min, RangeResult::Value),
        Self::extreme(Extreme::Max, RangeResult::Value),
        Self::extreme(Extreme::Min, RangeResult::Position),
        Self::extreme(Extreme::Max, RangeResult::Position),
        Self::extreme(Extreme::Min, RangeResult::Crossing(RangeEnd::First)),
        Self::extreme(Extreme::Min, RangeResult::Crossing(RangeEnd::Last)),
        Self::extreme(Extreme::Max, RangeResult::Crossing(RangeEnd::First)),
        Self::extreme(Extreme::Max, RangeResult::Crossing(RangeEnd::Last)),
        Self::extreme(Extreme::Min, RangeResult::Positions),
        Self::extreme(Extreme::Max, RangeResult::Positions),
        Self::Statistic(RangeStatistic::Quantile),
        Self::Statistic(RangeStatistic::CountBelow),
        Self::Statistic(RangeStatistic::CountDistinct),
    ];

    /// A function of the smallest or largest value.
    #[must_use]
    pub const fn extreme(extreme: Extreme, result: RangeResult) -> Self {
        Self::Extreme { extreme, result }
    }

    /// The index that answers it.
    #[must_use]
    pub fn index_kind(self) -> IndexKind {
        match self {
            Self::Extreme { extreme, .. } => IndexKind::Extremes(extreme),
            Self::Statistic(RangeStatistic::Quantile | RangeStatistic::CountBelow) => {
                IndexKind::Ranks
            }
            Self::Statistic(RangeStatistic::CountDistinct) => IndexKind::DistinctCounts,
        }
    }

    /// Whether the result depends on the order of the values, and not only on which are equal.
    #[must_use]
    pub fn goes_by_order(self) -> bool {
        self != Self::Statistic(RangeStatistic::CountDistinct)
    }

    /// Whether one search of an index answers calls of both functions with the same arguments.
    pub fn shares_answers(self, other: Self) -> bool {
        let same_kind = self.index_kind() == other.index_kind();
        match self {
            Self::Extreme { .. } => same_kind,
            Self::Statistic(_) => self == other,
        }
    }

    /// Whether it can't be answered by the extremes of chunks and the rows at the edges of ranges.
    pub fn needs_rows(self) -> bool {
        match self {
            Self::Extreme { result, .. } => {
                !matches!(result, RangeResult::Value | RangeResult::Position)
            }
            Self::Statistic(_) => true,
        }
    }

    /// Whether the result has positions in place of values.
    pub fn returns_positions(self) -> bool {
        match self {
            Self::Extreme { result, .. } => result != RangeResult::Value,
            Self::Statistic(_) => false,
        }
    }

    /// The type of the result for a column of this type.
    pub fn result_type(self, column: &DataType) -> DataType {
        match self {
            Self::Extreme { result, .. } => match result {
                RangeResult::Value => value_type(column),
                RangeResult::Position | RangeResult::Crossing(_) => DataType::Int64,
                RangeResult::Positions => DataType::new_list(DataType::Int64, true),
            },
            Self::Statistic(RangeStatistic::Quantile) => match value_type(column) {
                float if float.is_floating() => float,
                _ => DataType::Float64,
            },
            Self::Statistic(RangeStatistic::CountBelow | RangeStatistic::CountDistinct) => {
                DataType::Int64
            }
        }
    }

    /// Checks that it is defined for a column of this type, which `what` names.
    ///
    /// # Errors
    /// A planning error that names the function, the column and the type.
    pub fn check_column(self, name: &str, what: &str, column: &DataType) -> Result<()> {
        check_ordered(name, what, column)?;
        let value_type = value_type(column);
        if self == Self::Statistic(RangeStatistic::Quantile)
            && !value_type.is_numeric()
            && !value_type.is_null()
        {
            return plan_err!(
                "{name}: {what} is a {column}, but quantiles are between two numbers; cast it, for example to BIGINT"
            );
        }
        Ok(())
    }

    /// The argument after the bounds, if the function has one.
    pub fn last_argument(self) -> Option<LastArgument> {
        let threshold = LastArgument {
            kind: LastKind::Threshold,
            name: "x",
            meaning: "a threshold",
            description: "The threshold, of a type that is compared exactly with that of the values",
        };
        match self {
            Self::Extreme { result, .. } => match result {
                RangeResult::Value | RangeResult::Position => None,
                RangeResult::Crossing(_) => Some(threshold),
                RangeResult::Positions => Some(LastArgument {
                    kind: LastKind::Count,
                    name: "k",
                    meaning: "a number of positions",
                    description: "The number of positions, an integer; the list is shorter where there are fewer values",
                }),
            },
            Self::Statistic(RangeStatistic::Quantile) => Some(LastArgument {
                kind: LastKind::Fraction,
                name: "q",
                meaning: "a fraction",
                description: "The fraction of the values that are below the quantile, a number from 0 to 1",
            }),
            Self::Statistic(RangeStatistic::CountBelow) => Some(threshold),
            Self::Statistic(RangeStatistic::CountDistinct) => None,
        }
    }

    /// The type that the argument after the bounds is coerced to, for a call under this name.
    ///
    /// # Errors
    /// A planning error that names the function, the argument and its type, if it can't be that argument.
    pub fn coerce_last(self, name: &str, given: &DataType) -> Result<DataType> {
        let Some(last) = self.last_argument() else {
            return internal_err!("{name} has no argument after the bounds");
        };
        match last.kind {
            LastKind::Threshold => Ok(given.clone()),
            LastKind::Count => coerce_bound(name, last.name, given),
            LastKind::Fraction => match value_type(given) {
                number if number.is_numeric() || number.is_null() => Ok(DataType::Float64),
                other => plan_err!(
                    "{name}: {} is a {other}, but a fraction is a number from 0 to 1",
                    last.name
                ),
            },
        }
    }

    /// Whether the function takes a threshold as its last argument.
    pub fn has_threshold(self) -> bool {
        let last = self.last_argument();
        last.is_some_and(|last| last.kind == LastKind::Threshold)
    }

    /// Number of arguments.
    pub fn argument_count(self) -> usize {
        3 + usize::from(self.last_argument().is_some())
    }

    /// The arguments after the column or value, as documentation shows them.
    pub fn shown_arguments(self) -> String {
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
        use RangeStatistic::{CountBelow, CountDistinct, Quantile};
        match self {
            Self::Extreme { extreme, result } => match (extreme, result) {
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
            },
            Self::Statistic(Quantile) => ("range_quantile", "frame_quantile"),
            Self::Statistic(CountBelow) => ("range_count_below", "frame_count_below"),
            Self::Statistic(CountDistinct) => ("range_count_distinct", "frame_count_distinct"),
        }
    }

    /// Its place in [`Self::ALL`].
    pub fn index(self) -> Option<usize> {
        Self::ALL.iter().position(|function| *function == self)
    }

    /// What the function returns of the values in a range, for the documentation of functions.
    pub fn description(self) -> String {
        let (extreme, result) = match self {
            Self::Extreme { extreme, result } => (extreme, result),
            Self::Statistic(RangeStatistic::Quantile) => {
                return "quantile, as by percentile_cont, of the values".to_string();
            }
            Self::Statistic(RangeStatistic::CountBelow) => {
                return "number of values below x".to_string();
            }
            Self::Statistic(RangeStatistic::CountDistinct) => {
                return "number of distinct values".to_string();
            }
        };
        let is_min = extreme == Extreme::Min;
        let best = if is_min { "smallest" } else { "largest" };
        match result {
            RangeResult::Value => format!("value of the {best} value"),
            RangeResult::Position => format!("position of the leftmost {best} value"),
            RangeResult::Crossing(end) => {
                let side = if is_min { "most" } else { "least" };
                format!("position of the {} (at {side} x) value", end.name())
            }
            RangeResult::Positions => format!("positions, as a list, of the k {best} values"),
        }
    }
}
