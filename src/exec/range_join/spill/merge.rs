//! How the answers of several pieces of a build side become one: counts and sums are added; of values that were chosen, the
//! one that would have been chosen among all rows stays, which a piece is asked for along with what decides.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, UInt32Array, new_null_array};
use arrow::compute::{SortOptions, cast};
use arrow::datatypes::{DataType, Field, Int64Type, SchemaRef};
use arrow::row::{RowConverter, SortField};
use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExprRef;

use crate::common::array_bytes::arrays_bytes;
use crate::common::dictionaries::select;
use crate::common::ordered_type::value_type;
use crate::common::ranges::Ranges;
use crate::exec::range_join::build::collect::{BuildColumns, RowOrder};
use crate::exec::range_join::spill::write::plain_key;
use crate::logical_plan::range_join::{AggregateKind, RangeAggregate};
use crate::range_agg::float_sums::add_float_sums;
use crate::range_agg::prefix_sums::Sums;
use rmq_engine::Extreme;

/// What pieces are asked, and how their answers are merged.
#[derive(Debug)]
pub(crate) struct Merging {
    /// The columns of a piece: those of the build side, then the range key once more, for aggregates to be over.
    pub(crate) columns: BuildColumns,
    merges: Vec<Merge>,
}

/// How the answers to one aggregate are merged.
#[derive(Debug)]
enum Merge {
    Count,
    Sum,
    /// The sums come with what they lost when they were rounded, so that what comes of adding them is rounded once.
    FloatSum,
    /// The answer comes with columns that decide; least in this order wins, of equal ones that of the rows that came first.
    Choose {
        order: RowConverter,
        deciding: Vec<Deciding>,
    },
}

/// A column that decides: its place among an aggregate's answers.
#[derive(Debug, Clone, Copy)]
enum Deciding {
    Key(usize),
    Value(usize),
}

impl Merging {
    /// For a build side of these columns.
    pub(crate) fn try_new(columns: &BuildColumns, schema: &SchemaRef) -> Result<Self> {
        let types: Vec<DataType> = schema
            .fields()
            .iter()
            .map(|f| f.data_type().clone())
            .collect();
        let (key_type, values) = (columns.key(&types), columns.values(&types));
        let key = values.len();
        let ascending = SortOptions::new(false, false);
        let mut asked = vec![];
        let mut merges = vec![];
        for (function, arguments) in &columns.aggregates {
            asked.push((*function, arguments.clone()));
            let mut choose = |decided: &[(AggregateKind, usize, Deciding, SortOptions)]| {
                let mut fields = vec![];
                for (function, argument, deciding, options) in decided {
                    let data_type = match deciding {
                        Deciding::Key(_) => key_type,
                        Deciding::Value(_) => &values[*argument],
                    };
                    fields.push(SortField::new_with_options(value_type(data_type), *options));
                    match (function, deciding) {
                        (_, Deciding::Value(0) | Deciding::Key(0)) => {}
                        (AggregateKind::AtExtreme { .. }, _) => {
                            asked.push((*function, vec![*argument, arguments[1]]));
                        }
                        _ => asked.push((*function, vec![*argument])),
                    }
                }
                Ok::<_, datafusion::error::DataFusionError>(Merge::Choose {
                    order: RowConverter::new(fields)?,
                    deciding: decided
                        .iter()
                        .map(|(_, _, deciding, _)| *deciding)
                        .collect(),
                })
            };
            merges.push(match *function {
                AggregateKind::CountRows | AggregateKind::Count => Merge::Count,
                // Floats or not, what comes first is the sum, and so the answer.
                AggregateKind::Sum if Sums::are_rounded(&values[arguments[0]]) => {
                    asked.push((AggregateKind::SumLow, arguments.clone()));
                    Merge::FloatSum
                }
                AggregateKind::Sum | AggregateKind::SumLow => Merge::Sum,
                AggregateKind::Extreme(extreme) => {
                    let options = SortOptions::new(extreme == Extreme::Max, false);
                    choose(&[(*function, arguments[0], Deciding::Value(0), options)])?
                }
                AggregateKind::First => choose(&[(*function, key, Deciding::Key(1), ascending)])?,
                AggregateKind::Last => {
                    let descending = SortOptions::new(true, false);
                    choose(&[(*function, key, Deciding::Key(1), descending)])?
                }
                AggregateKind::AtExtreme {
                    extreme,
                    nulls_first,
                } => {
                    let options = SortOptions::new(extreme == Extreme::Max, nulls_first);
                    choose(&[
                        (*function, arguments[1], Deciding::Value(1), options),
                        (*function, key, Deciding::Key(2), ascending),
                    ])?
                }
            });
        }
        Ok(Self {
            columns: columns.clone().with_aggregates(asked),
            merges,
        })
    }
}

/// What the pieces asked so far say of some rows of the probe side.
#[derive(Debug)]
pub(crate) struct Merged {
    /// Which rows have matched.
    pub(crate) matched: Vec<bool>,
    parts: Vec<Part>,
}

/// The answer to one aggregate, and what decided; no columns before the first piece.
#[derive(Debug, Default)]
struct Part {
    columns: Vec<ArrayRef>,
    /// Where in the build side the rows come from that were chosen.
    from: Vec<RowOrder>,
}

impl Merged {
    /// Nothing has been said of so many rows.
    pub(crate) fn new(merging: &Merging, rows: usize) -> Self {
        Self {
            matched: vec![false; rows],
            parts: merging.merges.iter().map(|_| Part::default()).collect(),
        }
    }

    /// Adds what a piece says whose rows stand from this one on. It was asked for these rows, or for all; they match these
    /// ranges.
    pub(crate) fn add(
        &mut self,
        merging: &Merging,
        first_row: RowOrder,
        asked: Option<&UInt32Array>,
        ranges: &Ranges,
        answers: Vec<ArrayRef>,
    ) -> Result<()> {
        let mut places = vec![None; self.matched.len()];
        for (i, (left, right)) in ranges.iter().enumerate() {
            let row = asked.map_or(i, |rows| rows.value(i) as usize);
            places[row] = (left <= right).then(|| u32::try_from(i).ok()).flatten();
        }
        let places = UInt32Array::from(places);
        if places.null_count() == places.len() {
            return Ok(());
        }
        let rows = places.iter().map(|row| Some((0, row? as usize)));
        let rows: Vec<_> = rows.collect();
        let mut answers = answers.into_iter();
        for (merge, part) in merging.merges.iter().zip(&mut self.parts) {
            let columns = (0..merge.columns()).filter_map(|_| answers.next());
            let columns = columns.map(|column| Ok(compact(&select(&[&column], &rows)?)));
            let columns: Vec<ArrayRef> = columns.collect::<Result<_>>()?;
            if part.columns.is_empty() {
                part.columns = columns;
                part.from = vec![first_row; places.len()];
                continue;
            }
            match merge {
                Merge::Count => part.columns[0] = add_counts(&part.columns[0], &columns[0]),
                Merge::Sum => part.columns[0] = Sums::add(&part.columns[0], &columns[0])?,
                Merge::FloatSum => {
                    let [old, new] = [&part.columns, &columns].map(|both| [&both[0], &both[1]]);
                    part.columns = add_float_sums(old, new).to_vec();
                }
                Merge::Choose { order, deciding } => {
                    let rows = |columns: &[ArrayRef]| -> Result<_> {
                        let deciding = deciding.iter().map(|d| d.column(columns));
                        Ok(order.convert_columns(&deciding.collect::<Result<Vec<_>>>()?)?)
                    };
                    let (old, new) = (rows(&part.columns)?, rows(&columns)?);
                    let chosen: Vec<Option<(usize, usize)>> = (0..places.len())
                        .map(|i| {
                            let better = || {
                                let earlier = first_row.cmp(&part.from[i]);
                                new.row(i).cmp(&old.row(i)).then(earlier).is_lt()
                            };
                            let chosen = places.is_valid(i) && (!self.matched[i] || better());
                            Some((usize::from(chosen), i))
                        })
                        .collect();
                    for (chosen, i) in chosen.iter().flatten() {
                        if *chosen == 1 {
                            part.from[*i] = first_row;
                        }
                    }
                    for (old, new) in part.columns.iter_mut().zip(&columns) {
                        *old = compact(&select(&[old.as_ref(), new.as_ref()], &chosen)?);
                    }
                }
            }
        }
        for (i, matched) in self.matched.iter_mut().enumerate() {
            *matched |= places.is_valid(i);
        }
        Ok(())
    }

    /// About how many bytes this takes.
    pub(crate) fn bytes(&self) -> usize {
        let parts = self.parts.iter();
        let parts = parts.map(|p| arrays_bytes(&p.columns) + p.from.len() * size_of::<RowOrder>());
        self.matched.len() + parts.sum::<usize>()
    }

    /// The answers when all pieces have been asked.
    pub(crate) fn finish(
        self,
        aggregates: &[RangeAggregate<PhysicalExprRef>],
    ) -> (Vec<bool>, Vec<ArrayRef>) {
        let rows = self.matched.len();
        let parts = self.parts.into_iter().zip(aggregates);
        let answers = parts.map(|(part, aggregate)| {
            let answer = part.columns.into_iter().next();
            let field: Field = aggregate.field();
            let answer = answer.unwrap_or_else(|| new_null_array(field.data_type(), rows));
            let is_count = !field.is_nullable();
            if is_count { no_nulls(&answer) } else { answer }
        });
        (self.matched, answers.collect())
    }
}

impl Merge {
    /// How many answers of a piece it takes.
    fn columns(&self) -> usize {
        match self {
            Self::Count | Self::Sum => 1,
            Self::FloatSum => 2,
            Self::Choose { deciding, .. } => {
                let last = deciding.iter().map(|d| d.place()).max();
                last.map_or(1, |place| place + 1)
            }
        }
    }
}

impl Deciding {
    fn place(self) -> usize {
        let (Self::Key(place) | Self::Value(place)) = self;
        place
    }

    fn column(self, columns: &[ArrayRef]) -> Result<ArrayRef> {
        let column = &columns[self.place()];
        match self {
            Self::Key(_) => plain_key(column),
            Self::Value(_) => Ok(cast(column, &value_type(column.data_type()))?),
        }
    }
}

/// The same values without those of the piece that they were chosen from, which views would keep in memory.
fn compact(values: &ArrayRef) -> ArrayRef {
    if let Some(views) = values.as_string_view_opt() {
        Arc::new(views.gc())
    } else if let Some(views) = values.as_binary_view_opt() {
        Arc::new(views.gc())
    } else if let Some(dictionary) = values.as_any_dictionary_opt() {
        dictionary.with_values(compact(dictionary.values()))
    } else {
        Arc::clone(values)
    }
}

fn add_counts(old: &ArrayRef, new: &ArrayRef) -> ArrayRef {
    let counts = [old, new].map(AsArray::as_primitive::<Int64Type>);
    let counts = counts[0].iter().zip(counts[1]);
    let sums = counts.map(|(old, new)| Some(old.unwrap_or(0) + new.unwrap_or(0)));
    Arc::new(sums.collect::<Int64Array>())
}

fn no_nulls(counts: &ArrayRef) -> ArrayRef {
    let counts = counts.as_primitive::<Int64Type>().iter();
    Arc::new(counts.map(|c| Some(c.unwrap_or(0))).collect::<Int64Array>())
}
