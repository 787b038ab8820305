//! The build side of a range join by key, ready to be asked: which rows a range has, and what each aggregate is over them.

use std::sync::{Arc, Weak};

use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use datafusion::execution::memory_pool::MemoryReservation;

use crate::common::ranges::Ranges;
use crate::exec::range_join::build::value_index::JoinIndex;
use crate::exec::range_join::probe::on_devices::{Devices, OnDevices};
use crate::index::catalog::DeviceBytes;
use crate::logical_plan::range_join::AggregateKind;
use crate::range_agg::counts::Counts;
use crate::range_agg::prefix_sums::Sums;
use crate::range_agg::values::Values;
use crate::sorted::sorted_rows::SortedRows;
use rmq_engine::Extreme;

/// The rows of the build side, ready to be asked.
#[derive(Debug)]
pub(crate) struct BuildSide {
    pub(crate) rows: SortedRows,
    pub(crate) key_type: DataType,
    pub(crate) answers: Vec<Answering>,
    /// Where devices answer: what they have, and whether the CPU may stand in.
    pub(crate) devices: Option<(Devices, OnDevices)>,
    /// Registers the memory of all this but the indexes, which have their own.
    pub(crate) _memory: Vec<Arc<MemoryReservation>>,
}

/// What answers one aggregate.
#[derive(Debug)]
pub(crate) enum Answering {
    Extreme(Arc<JoinIndex>),
    CountRows,
    Counts(Arc<Counts>),
    Sums(Arc<Sums>),
    SumRests(Arc<Sums>),
    First(Arc<Values>),
    Last(Arc<Values>),
    AtExtreme {
        values: Arc<Values>,
        by: Arc<JoinIndex>,
        /// Where NULLs are to be found, if they come first.
        nulls: Option<Arc<Counts>>,
    },
}

impl BuildSide {
    /// The rows, to find positions in.
    pub(crate) fn rows(&self) -> &SortedRows {
        &self.rows
    }

    /// The type of the range key.
    pub(crate) fn key_type(&self) -> &DataType {
        &self.key_type
    }

    /// What lies on devices, if anything does.
    pub(crate) fn on_devices(&self) -> Option<&OnDevices> {
        self.devices.as_ref().map(|(_, on)| on)
    }

    /// See [`Devices::cpu_instead`].
    pub(crate) fn cpu_instead(&self, error: DataFusionError) -> Result<()> {
        match &self.devices {
            Some((devices, _)) => devices.cpu_instead(error),
            None => Err(error),
        }
    }

    /// Builds those indexes that ranges had better wait for: to be called once before they are asked.
    pub(crate) async fn make_ready(&self, ranges: &Ranges) -> Result<()> {
        for index in self.indexes() {
            index.make_ready(ranges).await?;
        }
        Ok(())
    }

    /// The same on this thread.
    pub(crate) fn make_ready_now(&self, ranges: &Ranges) -> Result<()> {
        self.indexes().try_for_each(|i| i.make_ready_now(ranges))
    }

    /// The indexes, one for each aggregate that asks one.
    fn indexes(&self) -> impl Iterator<Item = &Arc<JoinIndex>> {
        self.answers.iter().filter_map(|answering| match answering {
            Answering::Extreme(index) | Answering::AtExtreme { by: index, .. } => Some(index),
            _ => None,
        })
    }

    /// What each aggregate is over these ranges, and whether the CPU answered in the place of devices.
    pub(crate) fn answer(&self, ranges: &Ranges) -> Result<(Vec<ArrayRef>, bool)> {
        let mut used_cpu_fallback = false;
        let answers = self.answers.iter();
        let answers = answers.map(|a| self.answer_one(a, ranges, &mut used_cpu_fallback));
        let answers = answers.collect::<Result<_>>()?;
        Ok((answers, used_cpu_fallback))
    }

    /// Asks an index for values or for positions.
    fn ask(
        &self,
        index: &JoinIndex,
        ranges: &Ranges,
        position: bool,
        used_cpu_fallback: &mut bool,
    ) -> Result<ArrayRef> {
        let may_fall_back = self.devices.as_ref().is_some_and(|(d, _)| !d.demanded);
        let ranges = std::slice::from_ref(ranges);
        let index = index.index();
        let answer = index.answer(ranges, !position, position, may_fall_back)?;
        *used_cpu_fallback |= answer.used_cpu_fallback;
        let wanted = if position {
            answer.positions
        } else {
            answer.values
        };
        wanted.ok_or_else(|| internal_datafusion_err!("an index did not answer what it was asked"))
    }

    fn answer_one(
        &self,
        answering: &Answering,
        ranges: &Ranges,
        used_cpu_fallback: &mut bool,
    ) -> Result<ArrayRef> {
        Ok(match answering {
            Answering::CountRows => {
                let counts = ranges.iter().map(|(l, r)| (r - l + 1).max(0));
                Arc::new(counts.collect::<Int64Array>())
            }
            Answering::Counts(counts) => Arc::new(counts.answer(ranges)),
            Answering::Sums(sums) => sums.answer(ranges),
            Answering::SumRests(sums) => sums.rests(ranges)?,
            Answering::Extreme(index) => self.ask(index, ranges, false, used_cpu_fallback)?,
            Answering::First(values) => {
                values.at(ranges.iter().map(|(l, r)| (l <= r).then_some(l)))?
            }
            Answering::Last(values) => values.at(ranges.iter().map(|range| self.last(range)))?,
            Answering::AtExtreme { values, by, nulls } => {
                let positions = self.ask(by, ranges, true, used_cpu_fallback)?;
                let positions = positions.as_primitive::<Int64Type>().iter();
                let rows = positions.zip(ranges.iter()).map(|(found, range)| {
                    let null = nulls.as_ref().and_then(|nulls| nulls.first_null(range));
                    // Where all that decides is NULL, any row will do: the first.
                    null.or(found).or((range.0 <= range.1).then_some(range.0))
                });
                values.at(rows)?
            }
        })
    }

    /// Of a range's rows with the greatest key, the first that came.
    fn last(&self, (left, right): (i64, i64)) -> Option<i64> {
        if left > right {
            return None;
        }
        let (left, right) = (usize::try_from(left).ok()?, usize::try_from(right).ok()?);
        i64::try_from(self.rows.first_equal(left, right)).ok()
    }
}

/// What was made of one column.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    pub(crate) on_devices: Vec<DeviceBytes>,
    pub(crate) counts: Option<Arc<Counts>>,
    pub(crate) sums: Option<Arc<Sums>>,
    pub(crate) values: Option<Arc<Values>>,
    pub(crate) extremes: Vec<(Extreme, Arc<JoinIndex>)>,
    /// Registers all this but the indexes.
    pub(crate) memory: Vec<Arc<MemoryReservation>>,
    /// Registers the column as it came, while indexes scan it.
    pub(crate) scanned: Weak<MemoryReservation>,
}

impl Ready {
    /// Bytes that are registered for the indexes and the column that they scan.
    pub(crate) fn indexes_registered(&self) -> usize {
        let indexes = self.extremes.iter().map(|(_, index)| index.registered());
        indexes.sum::<usize>() + self.scanned.upgrade().map_or(0, |column| column.size())
    }

    fn extreme(&self, extreme: Extreme) -> Option<Arc<JoinIndex>> {
        let mut extremes = self.extremes.iter();
        let (_, index) = extremes.find(|(e, _)| *e == extreme)?;
        Some(Arc::clone(index))
    }
}

/// What answers an aggregate over columns.
pub(crate) fn answering(
    function: AggregateKind,
    arguments: &[usize],
    ready: &[Ready],
) -> Result<Answering> {
    let column = |i: usize| arguments.get(i).and_then(|column| ready.get(*column));
    let first = column(0);
    let made = match function {
        AggregateKind::CountRows => Some(Answering::CountRows),
        AggregateKind::Count => first.and_then(|c| c.counts.clone()).map(Answering::Counts),
        AggregateKind::Sum => first.and_then(|c| c.sums.clone()).map(Answering::Sums),
        AggregateKind::SumLow => first.and_then(|c| c.sums.clone()).map(Answering::SumRests),
        AggregateKind::First => first.and_then(|c| c.values.clone()).map(Answering::First),
        AggregateKind::Last => first.and_then(|c| c.values.clone()).map(Answering::Last),
        AggregateKind::Extreme(extreme) => first
            .and_then(|c| c.extreme(extreme))
            .map(Answering::Extreme),
        AggregateKind::AtExtreme {
            extreme,
            nulls_first,
        } => first
            .and_then(|c| c.values.clone())
            .zip(column(1).and_then(|c| c.extreme(extreme)))
            .map(|(values, by)| Answering::AtExtreme {
                values,
                by,
                nulls: column(1)
                    .filter(|_| nulls_first)
                    .and_then(|c| c.counts.clone()),
            }),
    };
    made.ok_or_else(|| {
        internal_datafusion_err!("{function:?} over a column that nothing was made of")
    })
}
