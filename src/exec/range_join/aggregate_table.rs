//! The table of aggregates: for each one, the structures that answer its ranges, and how the answers of several parts
//! of the rows become that of all.
//!
//! `build_side/column.rs` builds structures, `build_side/aggregate.rs` answers ranges by them, and
//! `build_side/device_columns.rs` says what devices answer instead.

use arrow::compute::SortOptions;
use rmq_engine::{Extreme, RangeEnd};

use datafusion_rmq_logical::logical_plan::accumulator_call::{AccumulatorCall, AccumulatorOutput};
use datafusion_rmq_logical::logical_plan::range_join::AggregateKind;
use rmq_arrow::common::range_function::IndexKind;
use rmq_arrow::index::threshold::ThresholdTest;

/// A structure that is built of a value column. All aggregates of the column share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Structure {
    /// The numbers of values before each position that are not NULL.
    Counts,
    /// Prefix sums, or block sums of floats. They are built of the counts.
    Sums,
    /// Single values by position.
    Values,
    /// The values in sorted order as one array. Accumulators read slices of it.
    Array,
    /// The order statistics of the array, of one kind.
    OrderStatistics(IndexKind),
    /// The values in sorted order, and after them those of rows that match nothing, for rows that are returned.
    Rows,
    /// The index that finds the extreme of a range, and its position if `positions`.
    Index { extreme: Extreme, positions: bool },
}

impl Structure {
    /// Whether it answers all that `needed` does.
    pub(crate) fn serves(self, needed: Self) -> bool {
        match (self, needed) {
            (
                Self::Index { extreme, positions },
                Self::Index {
                    extreme: needed,
                    positions: needs_positions,
                },
            ) => extreme == needed && positions >= needs_positions,
            _ => self == needed,
        }
    }
}

/// Structures of one column, each once.
#[derive(Debug, Default, Clone)]
pub(crate) struct Structures(Vec<Structure>);

impl Structures {
    /// Adds a structure, which replaces those that it serves as.
    pub(crate) fn add(&mut self, structure: Structure) {
        if !self.contains(structure) {
            self.0.retain(|known| !structure.serves(*known));
            self.0.push(structure);
        }
    }

    /// Whether one of them serves as this one.
    pub(crate) fn contains(&self, structure: Structure) -> bool {
        self.0.iter().any(|known| known.serves(structure))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Structure> {
        self.0.iter().copied()
    }

    /// The kinds of order statistics.
    pub(crate) fn order_statistics(&self) -> impl Iterator<Item = IndexKind> {
        self.iter().filter_map(|structure| match structure {
            Structure::OrderStatistics(kind) => Some(kind),
            _ => None,
        })
    }

    /// The extreme of each index, and whether it has positions.
    pub(crate) fn indexes(&self) -> impl Iterator<Item = (Extreme, bool)> {
        self.iter().filter_map(|structure| match structure {
            Structure::Index { extreme, positions } => Some((extreme, positions)),
            _ => None,
        })
    }

    /// Whether none is missing where `built` are there.
    pub(crate) fn are_among(&self, built: &Self) -> bool {
        self.iter().all(|structure| built.contains(structure))
    }
}

impl FromIterator<Structure> for Structures {
    fn from_iter<T: IntoIterator<Item = Structure>>(structures: T) -> Self {
        let mut all = Self::default();
        all.extend(structures);
        all
    }
}

impl Extend<Structure> for Structures {
    fn extend<T: IntoIterator<Item = Structure>>(&mut self, structures: T) {
        structures.into_iter().for_each(|one| self.add(one));
    }
}

/// The entry of an aggregate.
#[derive(Debug)]
pub(crate) struct AggregateEntry {
    /// The structures that answer it, each with the number of the argument that it is built of.
    pub(crate) needs: Vec<(usize, Structure)>,
    pub(crate) merge: PartsMerge,
    /// Whether devices answer it, if they can build its structures.
    pub(crate) on_devices: bool,
    /// Whether rows of a range are read one by one, which may take long.
    pub(crate) reads_rows: bool,
}

/// How the answers of several parts of the rows become that of all.
#[derive(Debug)]
pub(crate) enum PartsMerge {
    /// Counts are added.
    Counts,
    /// Sums are added.
    Sums,
    /// The states of accumulators are merged. Their values can't be.
    Accumulators,
    /// The answer of one part is chosen: the one that comes first in this order.
    Choose {
        order: Vec<(Decider, SortOptions)>,
        /// Whether the last of equal ones in the order of the rows is chosen, not the first.
        is_last_preferred: bool,
    },
}

/// What decides which answer is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decider {
    /// The answer itself.
    Answer,
    /// An argument, of the row whose value the answer is.
    Argument(usize),
    /// The range key of this row.
    RangeKey,
}

impl AggregateEntry {
    /// The entry of an aggregate with this many arguments. `call` is the function that an accumulator computes, if one
    /// does.
    pub(crate) fn new(
        function: AggregateKind,
        arguments: usize,
        call: Option<&AccumulatorCall>,
    ) -> Self {
        let on_devices = |needs: &[(usize, Structure)], merge| Self {
            needs: needs.to_vec(),
            merge,
            on_devices: true,
            reads_rows: false,
        };
        let on_cpu = |needs: &[(usize, Structure)], merge| Self {
            on_devices: false,
            ..on_devices(needs, merge)
        };
        let values = (0, Structure::Values);
        let index = |extreme, positions| Structure::Index { extreme, positions };
        let crossings = |comparison| index(ThresholdTest::of_comparison(comparison).extreme, false);
        match function {
            AggregateKind::CountRows => on_devices(&[], PartsMerge::Counts),
            AggregateKind::Count => on_devices(&[(0, Structure::Counts)], PartsMerge::Counts),
            AggregateKind::Sum | AggregateKind::SumLow => {
                let needs = [(0, Structure::Counts), (0, Structure::Sums)];
                on_devices(&needs, PartsMerge::Sums)
            }
            AggregateKind::Extreme(extreme) => {
                let order = [(Decider::Answer, of_extreme(extreme))];
                on_devices(&[(0, index(extreme, false))], PartsMerge::first_by(&order))
            }
            AggregateKind::First => on_devices(&[values], PartsMerge::first_by(&[KEY])),
            AggregateKind::Last => on_devices(&[values], PartsMerge::first_by(&[KEY_DESCENDING])),
            AggregateKind::Rightmost => on_devices(&[values], PartsMerge::last_by(KEY_DESCENDING)),
            AggregateKind::AtExtreme {
                extreme,
                nulls_first,
            } => {
                let mut needs = vec![values, (1, index(extreme, true))];
                // They find the first NULL.
                needs.extend(nulls_first.then_some((1, Structure::Counts)));
                let by = SortOptions {
                    nulls_first,
                    ..of_extreme(extreme)
                };
                let order = [(Decider::Argument(1), by), KEY];
                on_devices(&needs, PartsMerge::first_by(&order))
            }
            AggregateKind::AtCrossing {
                end, comparison, ..
            } => {
                // A part without such a row has a NULL key, which is last in either order.
                let merge = match end {
                    RangeEnd::First => PartsMerge::first_by(&[KEY]),
                    RangeEnd::Last => PartsMerge::last_by(KEY_DESCENDING),
                };
                on_cpu(&[values, (1, crossings(comparison))], merge)
            }
            AggregateKind::CountCrossing { comparison, .. } => {
                let ranks = (0, Structure::OrderStatistics(IndexKind::Ranks));
                Self {
                    reads_rows: true,
                    ..on_cpu(&[(0, crossings(comparison)), ranks], PartsMerge::Counts)
                }
            }
            AggregateKind::Accumulate => {
                let needs = (0..arguments).map(|argument| (argument, Structure::Array));
                let mut needs: Vec<_> = needs.collect();
                if let Some(statistic) = call.and_then(AccumulatorCall::order_statistic) {
                    needs.push((0, Structure::OrderStatistics(statistic.kind())));
                }
                let returns_ranges =
                    call.is_some_and(|call| call.output == AccumulatorOutput::Range);
                Self {
                    reads_rows: !returns_ranges,
                    ..on_cpu(&needs, PartsMerge::Accumulators)
                }
            }
        }
    }

    /// The structures that it needs of the argument with this number.
    pub(crate) fn needs_of(&self, argument: usize) -> impl Iterator<Item = Structure> {
        let needs = self.needs.iter().filter(move |(of, _)| *of == argument);
        needs.map(|(_, structure)| *structure)
    }

    /// The number of the argument whose index is searched.
    pub(crate) fn searched(&self) -> Option<usize> {
        let mut needs = self.needs.iter();
        needs.find_map(|(argument, structure)| {
            matches!(structure, Structure::Index { .. }).then_some(*argument)
        })
    }

    /// Whether the answer depends on the order of rows with equal keys. Sums of floats do not: they are rounded once.
    pub(crate) fn row_order_matters(&self) -> bool {
        match &self.merge {
            PartsMerge::Counts | PartsMerge::Sums => false,
            PartsMerge::Accumulators => true,
            // Otherwise the answer is that of a row.
            PartsMerge::Choose { order, .. } => {
                order.iter().any(|(by, _)| *by == Decider::RangeKey)
            }
        }
    }
}

impl PartsMerge {
    fn first_by(order: &[(Decider, SortOptions)]) -> Self {
        Self::Choose {
            order: order.to_vec(),
            is_last_preferred: false,
        }
    }

    fn last_by(order: (Decider, SortOptions)) -> Self {
        Self::Choose {
            order: vec![order],
            is_last_preferred: true,
        }
    }
}

/// The least range key first.
const KEY: (Decider, SortOptions) = (
    Decider::RangeKey,
    SortOptions {
        descending: false,
        nulls_first: false,
    },
);

/// The greatest range key first.
const KEY_DESCENDING: (Decider, SortOptions) = (
    Decider::RangeKey,
    SortOptions {
        descending: true,
        nulls_first: false,
    },
);

/// The extreme value first, NULL last.
fn of_extreme(extreme: Extreme) -> SortOptions {
    SortOptions::new(extreme == Extreme::Max, false)
}
