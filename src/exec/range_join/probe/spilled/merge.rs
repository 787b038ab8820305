//! Merges the partial aggregates of spill runs: counts and sums are added. Of chosen values, the one that would be
//! chosen among all rows wins, so a run returns them along with the columns that decide.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, UInt32Array, new_null_array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{SortOptions, cast};
use arrow::datatypes::{DataType, Field, Int64Type, SchemaRef};
use arrow::row::{RowConverter, SortField};
use datafusion::common::{Result, internal_err};
use datafusion::physical_expr::PhysicalExprRef;

use crate::exec::range_join::aggregate_table::{Decider, PartsMerge};
use crate::exec::range_join::build_columns::{BuildColumns, ValueAggregate};
use crate::exec::range_join::spill::key_extent::comparable;
use crate::exec::range_join::spill::row_position::RowPosition;
use datafusion_rmq_logical::expr::state_function::StateFunction;
use datafusion_rmq_logical::logical_plan::accumulator_call::{AccumulatorCall, AccumulatorOutput};
use datafusion_rmq_logical::logical_plan::range_join::{AggregateKind, RangeAggregate};
use rmq_arrow::common::array_bytes::{arrays_bytes, compact};
use rmq_arrow::common::dictionaries::select;
use rmq_arrow::common::ordered_type::value_type;
use rmq_arrow::common::row_number::row_number;
use rmq_arrow::range_agg::float_sums::add_float_sums;
use rmq_arrow::range_agg::prefix_sums::Sums;

/// The partial aggregates of a run, and how they are merged.
#[derive(Debug)]
pub(crate) struct MergePlan {
    /// The columns of the build side, with the partial aggregates. Their arguments are values, or the range key as the
    /// value after the last. With prevailing rows the last one is the key of a range's last row, which is not merged.
    pub(crate) columns: BuildColumns,
    pub(crate) merges: Vec<Merge>,
    /// How the prevailing rows of windows are chosen, any of which a run may have: the one with the greatest key wins,
    /// the last one of equal keys. Its columns are whether it is in the window, and then all partial aggregates.
    pub(crate) prevailing: Option<Vec<Merge>>,
}

/// How one aggregate is merged. It has one or several partial aggregates, its columns; the first is the result.
#[derive(Debug)]
pub(crate) enum Merge {
    Count,
    Sum,
    /// The second column has the low parts that rounding the sums has lost, so that the total is rounded only once.
    FloatSum,
    /// The values of accumulators, which read all rows of a range: these must be in one run. With the value of no rows.
    Whole(ArrayRef),
    /// The states of accumulators.
    State(Box<StateFunction>),
    /// The row that is least by the deciding columns wins; of equal ones, the row with the least position, or the
    /// greatest.
    Choose {
        order: RowConverter,
        /// What decides, each with its index among the columns.
        deciding: Vec<(Decider, usize)>,
        num_columns: usize,
        /// Whether of equal rows the one with the greatest position wins instead.
        is_last_preferred: bool,
    },
}

impl MergePlan {
    /// The plan for a build side of these columns, which have this schema.
    pub(crate) fn try_new(columns: &BuildColumns, schema: &SchemaRef) -> Result<Self> {
        let types: Vec<DataType> = schema
            .fields()
            .iter()
            .map(|f| f.data_type().clone())
            .collect();
        let (key_type, value_types) = (columns.range_key(&types), columns.values(&types));
        let key = value_types.len();
        let mut partials: Vec<ValueAggregate> = vec![];
        let mut merges = vec![];
        for aggregate in &columns.aggregates {
            partials.push(aggregate.clone());
            let types = aggregate.arguments.iter().map(|i| value_types[*i].clone());
            let types: Vec<DataType> = types.collect();
            merges.push(match aggregate.entry().merge {
                PartsMerge::Counts => Merge::Count,
                PartsMerge::Sums
                    if aggregate.function == AggregateKind::Sum && Sums::is_rounded(&types[0]) =>
                {
                    partials.push(ValueAggregate {
                        function: AggregateKind::SumLow,
                        ..aggregate.clone()
                    });
                    Merge::FloatSum
                }
                PartsMerge::Sums => Merge::Sum,
                PartsMerge::Accumulators => Merge::accumulated(aggregate.call.as_deref(), &types)?,
                PartsMerge::Choose {
                    order,
                    is_last_preferred,
                } => {
                    let (mut fields, mut deciding) = (vec![], vec![]);
                    let mut num_columns = 1;
                    for (decider, options) in order {
                        let (value, data_type) = match decider {
                            Decider::Answer => (None, &types[0]),
                            Decider::Argument(i) => (Some(aggregate.arguments[i]), &types[i]),
                            Decider::RangeKey => (Some(key), key_type),
                        };
                        fields.push(SortField::new_with_options(value_type(data_type), options));
                        let Some(value) = value else {
                            deciding.push((decider, 0));
                            continue;
                        };
                        // The same row of another column.
                        let mut partial = aggregate.clone();
                        partial.arguments[0] = value;
                        partials.push(partial);
                        deciding.push((decider, num_columns));
                        num_columns += 1;
                    }
                    Merge::Choose {
                        order: RowConverter::new(fields)?,
                        deciding,
                        num_columns,
                        is_last_preferred,
                    }
                }
            });
        }
        let mut prevailing = None;
        if columns.prevailing {
            partials.push(ValueAggregate {
                function: AggregateKind::Rightmost,
                arguments: vec![key],
                call: None,
            });
            prevailing = Some(vec![Merge::of_greatest_key(key_type, partials.len())?]);
        }
        Ok(Self {
            columns: columns.clone().with_aggregates(partials),
            merges,
            prevailing,
        })
    }
}

/// The aggregates of some probe rows over the runs that have been merged so far.
#[derive(Debug)]
pub(crate) struct PartialAggregates {
    /// Whether each row has matched.
    matched: Vec<bool>,
    aggregates: Vec<PartialAggregate>,
}

/// One aggregate.
#[derive(Debug, Default)]
struct PartialAggregate {
    /// The result and the deciding columns; empty before the first run that matches.
    columns: Vec<ArrayRef>,
    /// The position of the part of a run that each chosen row comes from.
    chosen_from: Vec<RowPosition>,
}

impl PartialAggregates {
    /// Of `rows` probe rows, before the first run.
    pub(crate) fn new(merges: &[Merge], rows: usize) -> Self {
        let aggregates = merges.iter().map(|_| PartialAggregate::default());
        Self {
            matched: vec![false; rows],
            aggregates: aggregates.collect(),
        }
    }

    /// Merges the partial aggregates of a part of a run, whose first row has this position. They are those of the probe
    /// rows `selected`, or of all; those `matched` among these match the part.
    pub(crate) fn merge(
        &mut self,
        merges: &[Merge],
        first_row: RowPosition,
        selected: Option<&UInt32Array>,
        matched: impl Iterator<Item = bool>,
        partials: Vec<ArrayRef>,
    ) -> Result<()> {
        let source_rows = self.source_rows(selected, matched)?;
        if source_rows.null_count() == source_rows.len() {
            return Ok(());
        }
        let rows = source_rows.iter().map(|row| Some((0, row? as usize)));
        let rows: Vec<_> = rows.collect();
        let mut partials = partials.into_iter();
        for (merge, aggregate) in merges.iter().zip(&mut self.aggregates) {
            let columns = (0..merge.num_columns()).map(|_| {
                let Some(column) = partials.next() else {
                    return internal_err!("a spill run has not returned all partial aggregates");
                };
                Ok(compact(&select(&[&column], &rows)?))
            });
            let columns: Vec<ArrayRef> = columns.collect::<Result<_>>()?;
            if aggregate.columns.is_empty() {
                aggregate.columns = columns;
                aggregate.chosen_from = vec![first_row; source_rows.len()];
                continue;
            }
            match merge {
                Merge::Whole(_) => {
                    return internal_err!("the rows of a range are in several spill runs");
                }
                Merge::Count => {
                    aggregate.columns[0] = add_counts(&aggregate.columns[0], &columns[0]);
                }
                Merge::Sum => {
                    aggregate.columns[0] = Sums::add(&aggregate.columns[0], &columns[0])?;
                }
                Merge::State(function) => {
                    let old = &aggregate.columns[0];
                    aggregate.columns[0] = merge_states(function, old, &columns[0])?;
                }
                Merge::FloatSum => {
                    let [old, new] = [&aggregate.columns, &columns].map(|c| [&c[0], &c[1]]);
                    aggregate.columns = add_float_sums(old, new).to_vec();
                }
                Merge::Choose {
                    order,
                    deciding,
                    is_last_preferred,
                    ..
                } => {
                    let matched_before = &self.matched;
                    let here_and_before =
                        |row: usize| (source_rows.is_valid(row), matched_before[row]);
                    let part = (first_row, *is_last_preferred);
                    aggregate.choose(order, deciding, &columns, part, here_and_before)?;
                }
            }
        }
        for (row, matched) in self.matched.iter_mut().enumerate() {
            *matched |= source_rows.is_valid(row);
        }
        Ok(())
    }

    /// For each probe row, the row of the partial aggregates that is its own; NULL if it matches nothing.
    fn source_rows(
        &self,
        selected: Option<&UInt32Array>,
        matched: impl Iterator<Item = bool>,
    ) -> Result<UInt32Array> {
        let mut source_rows = vec![None; self.matched.len()];
        for (i, matched) in matched.enumerate() {
            let row = selected.map_or(i, |rows| rows.value(i) as usize);
            source_rows[row] = matched.then(|| row_number(i)).transpose()?;
        }
        Ok(UInt32Array::from(source_rows))
    }

    /// About how many bytes this takes.
    pub(crate) fn bytes(&self) -> usize {
        let aggregates = self.aggregates.iter();
        let aggregates = aggregates
            .map(|a| arrays_bytes(&a.columns) + a.chosen_from.len() * size_of::<RowPosition>());
        self.matched.len() + aggregates.sum::<usize>()
    }

    /// Whether each row has matched, and all columns of the aggregates.
    pub(crate) fn into_columns(self) -> (Vec<bool>, Vec<ArrayRef>) {
        let columns = self.aggregates.into_iter().flat_map(|a| a.columns);
        (self.matched, columns.collect())
    }

    /// After the last run: whether each row has matched, and the aggregates.
    pub(crate) fn finish(
        self,
        plan: &MergePlan,
        aggregates: &[RangeAggregate<PhysicalExprRef>],
    ) -> Result<(BooleanBuffer, Vec<ArrayRef>)> {
        let rows = self.matched.len();
        let partials = self.aggregates.into_iter().zip(aggregates);
        let results = partials
            .zip(&plan.merges)
            .map(|((partial, aggregate), merge)| {
                let result = partial.columns.into_iter().next();
                let field: Field = aggregate.field();
                let result = result.unwrap_or_else(|| new_null_array(field.data_type(), rows));
                if let Merge::Whole(of_no_rows) = merge {
                    let rows = self.matched.iter().enumerate();
                    let rows =
                        rows.map(|(row, matched)| Some(if *matched { (0, row) } else { (1, 0) }));
                    let of_no_rows = cast(of_no_rows, result.data_type())?;
                    return select(&[&result, &of_no_rows], &rows.collect::<Vec<_>>());
                }
                let is_count = !field.is_nullable();
                Ok(if is_count {
                    nulls_to_zero(&result)
                } else {
                    result
                })
            });
        let results = results.collect::<Result<_>>()?;
        Ok((self.matched.into(), results))
    }
}

impl PartialAggregate {
    /// Replaces the columns of the rows for which the row of a run's part wins. `matches` tells of a probe row whether
    /// it matches this part, and whether it has matched an earlier one.
    fn choose(
        &mut self,
        order: &RowConverter,
        deciding: &[(Decider, usize)],
        columns: &[ArrayRef],
        (first_row, is_last_preferred): (RowPosition, bool),
        matches: impl Fn(usize) -> (bool, bool),
    ) -> Result<()> {
        let deciding_rows = |columns: &[ArrayRef]| -> Result<_> {
            // In a form whose order is that of the type.
            let deciding = deciding.iter().map(|(decider, index)| {
                let column = &columns[*index];
                match decider {
                    Decider::RangeKey => comparable(column),
                    Decider::Answer | Decider::Argument(_) => {
                        Ok(cast(column, &value_type(column.data_type()))?)
                    }
                }
            });
            Ok(order.convert_columns(&deciding.collect::<Result<Vec<_>>>()?)?)
        };
        let (old, new) = (deciding_rows(&self.columns)?, deciding_rows(columns)?);
        let mut chosen = Vec::with_capacity(self.chosen_from.len());
        for (row, chosen_from) in self.chosen_from.iter_mut().enumerate() {
            let (matches_here, matched_before) = matches(row);
            let wins = || {
                let earlier = first_row.cmp(chosen_from);
                let preferred = if is_last_preferred {
                    earlier.reverse()
                } else {
                    earlier
                };
                new.row(row).cmp(&old.row(row)).then(preferred).is_lt()
            };
            let is_new = matches_here && (!matched_before || wins());
            if is_new {
                *chosen_from = first_row;
            }
            chosen.push(Some((usize::from(is_new), row)));
        }
        for (old, new) in self.columns.iter_mut().zip(columns) {
            *old = compact(&select(&[old.as_ref(), new.as_ref()], &chosen)?);
        }
        Ok(())
    }
}

impl Merge {
    /// Chooses the row with the greatest range key, which is the column with this index; of equal keys the last row.
    fn of_greatest_key(key_type: &DataType, index: usize) -> Result<Self> {
        let descending = SortOptions::new(true, false);
        let field = SortField::new_with_options(value_type(key_type), descending);
        Ok(Self::Choose {
            order: RowConverter::new(vec![field])?,
            deciding: vec![(Decider::RangeKey, index)],
            num_columns: index + 1,
            is_last_preferred: true,
        })
    }

    /// How the values of accumulators, or their states, are merged.
    fn accumulated(call: Option<&AccumulatorCall>, types: &[DataType]) -> Result<Self> {
        match call {
            Some(call) if call.output == AccumulatorOutput::State => {
                let function = StateFunction::try_new(call.physical(types)?)?;
                Ok(Self::State(Box::new(function)))
            }
            Some(call) => {
                let accumulator = call.physical(types)?.create_accumulator();
                Ok(Self::Whole(accumulator?.evaluate()?.to_array()?))
            }
            None => internal_err!("an accumulator has no function"),
        }
    }

    /// The number of partial aggregates that it takes.
    fn num_columns(&self) -> usize {
        match self {
            Self::Count | Self::Sum | Self::State(_) | Self::Whole(_) => 1,
            Self::FloatSum => 2,
            Self::Choose { num_columns, .. } => *num_columns,
        }
    }
}

/// Adds counts; NULL is 0.
fn add_counts(old: &ArrayRef, new: &ArrayRef) -> ArrayRef {
    let counts = [old, new].map(AsArray::as_primitive::<Int64Type>);
    let counts = counts[0].iter().zip(counts[1]);
    let sums = counts.map(|(old, new)| Some(old.unwrap_or(0) + new.unwrap_or(0)));
    Arc::new(sums.collect::<Int64Array>())
}

fn nulls_to_zero(counts: &ArrayRef) -> ArrayRef {
    let counts = counts.as_primitive::<Int64Type>().iter();
    Arc::new(counts.map(|c| Some(c.unwrap_or(0))).collect::<Int64Array>())
}

/// The states of the same probe rows over two sets of runs, as those over all of them. NULL is that of a row without a
/// match.
fn merge_states(function: &StateFunction, old: &ArrayRef, new: &ArrayRef) -> Result<ArrayRef> {
    let mut merged = function.column(0);
    let (mut chosen, mut merged_rows) = (Vec::with_capacity(old.len()), 0);
    for row in 0..old.len() {
        chosen.push(match (old.is_valid(row), new.is_valid(row)) {
            (true, true) => {
                let mut accumulator = function.function.create_accumulator()?;
                for states in [old, new] {
                    accumulator.merge_batch(states.slice(row, 1).as_struct().columns())?;
                }
                merged.push(Some(&accumulator.state()?))?;
                merged_rows += 1;
                Some((2, merged_rows - 1))
            }
            (true, false) => Some((0, row)),
            (false, true) => Some((1, row)),
            (false, false) => None,
        });
    }
    let merged = merged.finish()?;
    select(&[old.as_ref(), new.as_ref(), merged.as_ref()], &chosen)
}
