//! Build sides of range joins on fake devices (`fake`): a stable sort, and scans of the rows that match. Any step can
//! be made to fail.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rmq_engine::{
    Addends, CandidateRanges, Column, ColumnChunks, Comparison, EngineError, Extreme, Key,
    OutputValues, PartGroups, RangeJoinAnswer, RangeJoinColumn, RangeJoinIndex, RangeJoinInput,
    RangeJoinOutput, RangeJoinProbe, RangeJoinTimes, RangeRow, RowIds,
};

use crate::fake::Fake;

/// A build side on devices that are threads.
#[derive(Debug)]
pub struct FakeRangeJoin {
    /// The places in sorted order.
    places: Arc<Vec<Place>>,
    columns: Vec<Arc<SortedColumn>>,
    specs: Vec<RangeJoinColumn>,
    input_rows: usize,
    key_bytes: usize,
    has_groups: bool,
    row_numbers: bool,
    held: Arc<Held>,
    added_bytes: usize,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    group: u32,
    key: u128,
    row: u32,
}

#[derive(Debug)]
struct SortedColumn {
    cells: Vec<Cell>,
    value_bytes: usize,
    sums: Option<Addends>,
    held: Held,
}

/// A value: its stored bits and its key in ascending order.
#[derive(Debug, Clone, Copy)]
struct Cell {
    bits: u128,
    key: u128,
    valid: bool,
}

impl Cell {
    /// The bound that is so far above a signed integer of this width; `None` if it is beyond the type.
    fn moved(self, shift: i64, bytes: usize) -> Option<Self> {
        if shift == 0 || !self.valid {
            return Some(self);
        }
        let key = self.key.checked_add_signed(shift.into())?;
        let is_within = key >> (8 * bytes) == 0;
        is_within.then_some(Self { key, ..self })
    }
}

/// Memory of the devices.
#[derive(Debug)]
struct Held(Arc<Fake>, usize);

impl Held {
    fn new(fake: &Arc<Fake>, bytes: usize) -> Self {
        fake.held.fetch_add(bytes, Relaxed);
        Self(Arc::clone(fake), bytes)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.held.fetch_sub(self.1, Relaxed);
    }
}

/// The group of each row of a part.
fn groups_of_rows(part: &PartGroups<'_>) -> Vec<u32> {
    const NO_GROUP: u32 = CandidateRanges::NO_GROUP;
    let ids: Vec<u32> = match part.ids {
        RowIds::Wide(ids) => ids.to_vec(),
        RowIds::Narrow(ids) => {
            let wide = |id: &u16| {
                if *id == u16::MAX {
                    NO_GROUP
                } else {
                    (*id).into()
                }
            };
            ids.iter().map(wide).collect()
        }
        RowIds::Runs(runs) => {
            let runs = runs.iter();
            runs.flat_map(|(id, rows)| vec![*id; *rows as usize])
                .collect()
        }
    };
    let group = |id: u32| match part.groups {
        Some(groups) if id != NO_GROUP => groups[id as usize],
        _ => id,
    };
    ids.into_iter().map(group).collect()
}

/// The rounded sum of floats, and the rounding error; `None` without floats. Adds exactly, as a list of floats whose
/// digits do not overlap (Shewchuk 1997).
fn sum_of_floats<'a>(cells: impl Iterator<Item = &'a Cell>) -> Option<[f64; 2]> {
    let floats: Vec<f64> = cells.map(|c| f64::from_bits(c.bits as u64)).collect();
    let largest = floats.iter().map(|float| float.abs()).reduce(f64::max)?;
    let specials = floats.iter().filter(|float| !float.is_finite());
    if let Some(special) = specials.copied().reduce(|a, b| a + b) {
        return Some([if special.is_nan() { f64::NAN } else { special }, 0.0]);
    }
    let two_sum = |a: f64, b: f64| {
        let sum = a + b;
        let of_b = sum - a;
        (sum, (a - (sum - of_b)) + (b - of_b))
    };
    // So that no step overflows.
    let scale = 2_f64.powi(if largest > 2_f64.powi(900) { 100 } else { 0 });
    let mut parts: Vec<f64> = vec![];
    for float in floats {
        let mut sum = float / scale;
        let mut kept = vec![];
        for part in parts {
            let (next, error) = two_sum(sum, part);
            sum = next;
            kept.extend((error != 0.0).then_some(error));
        }
        kept.push(sum);
        parts = kept;
    }
    let (mut sum, mut error) = (0.0, 0.0);
    for part in parts.into_iter().rev() {
        let (next, rest) = two_sum(sum, part);
        sum = next;
        error += rest;
    }
    let (sum, error) = two_sum(sum, error);
    let is_finite = (sum * scale).is_finite();
    Some([sum * scale, if is_finite { error * scale } else { 0.0 }])
}

/// The bytes that a build takes.
pub fn building_bytes(input: &RangeJoinInput<'_>) -> usize {
    input.rows() * 16 + column_bytes(&input.columns, input.rows())
}

fn column_bytes(columns: &[RangeJoinColumn], rows: usize) -> usize {
    let columns = columns.iter().map(|c| c.values.value_bytes());
    rows * columns.sum::<usize>()
}

/// A step of a build that may be stopped or fail.
fn step(fake: &Fake, stop: &AtomicBool) -> Result<(), EngineError> {
    if stop.load(Relaxed) {
        return Err(EngineError::Stopped);
    }
    fake.join_step()
}

/// The values of columns at the places of their rows.
fn sorted(
    fake: &Arc<Fake>,
    columns: &[RangeJoinColumn],
    places: &[Place],
    step: impl Fn() -> Result<(), EngineError>,
) -> Result<Vec<Arc<SortedColumn>>, EngineError> {
    let columns = columns.iter().map(|column| {
        step()?;
        let values = cells(&column.values);
        Ok(Arc::new(SortedColumn {
            cells: places.iter().map(|p| values[p.row as usize]).collect(),
            value_bytes: column.values.value_bytes(),
            sums: column.sums,
            held: Held::new(fake, values.len() * column.values.value_bytes()),
        }))
    });
    columns.collect()
}

impl FakeRangeJoin {
    pub fn build(
        fake: &Arc<Fake>,
        input: &RangeJoinInput<'_>,
        stop: &AtomicBool,
    ) -> Result<Self, EngineError> {
        input.check()?;
        let step = || step(fake, stop);
        let held = Held::new(fake, input.rows() * 16);
        // Keys go up, are sorted, and then all columns are moved and indexed.
        step()?;
        let mut places: Vec<Place> = (0..).zip(cells(&input.keys)).map(place).collect();
        if let Some(groups) = &input.groups {
            let of_rows = groups.parts.iter().flat_map(groups_of_rows);
            for (place, group) in places.iter_mut().zip(of_rows) {
                place.group = group;
            }
            places.retain(|place| place.group != CandidateRanges::NO_GROUP);
        }
        step()?;
        places.sort_by_key(|place| (place.group, place.key));
        let columns = sorted(fake, &input.columns, &places, step)?;
        step()?;
        fake.built.fetch_add(1, Relaxed);
        fake.rows_built.fetch_add(input.rows(), Relaxed);
        Ok(Self {
            places: Arc::new(places),
            columns,
            specs: input.columns.clone(),
            input_rows: input.rows(),
            key_bytes: input.keys.value_bytes(),
            has_groups: input.groups.is_some(),
            row_numbers: input.row_numbers,
            held: Arc::new(held),
            added_bytes: building_bytes(input),
        })
    }

    /// The places that compare so with a bound, of places of one group.
    fn narrow(&self, places: Range<usize>, comparison: Comparison, bound: u128) -> Range<usize> {
        let keys = &self.places[places.clone()];
        let before = |place: &Place| {
            if comparison.is_before_equal() {
                place.key < bound
            } else {
                place.key <= bound
            }
        };
        let point = places.start + keys.partition_point(before);
        if comparison.is_lower() {
            point..places.end
        } else {
            places.start..point
        }
    }

    /// The places that match a probe row with these bounds.
    fn matches(&self, group: u32, bounds: &[(Comparison, Cell)], prevailing: bool) -> Range<usize> {
        let first = self.places.partition_point(|place| place.group < group);
        let end = self.places.partition_point(|place| place.group <= group);
        if group == CandidateRanges::NO_GROUP || bounds.iter().any(|(_, bound)| !bound.valid) {
            return 0..0;
        }
        let mut range = first..end;
        for (comparison, bound) in bounds {
            range = self.narrow(range, *comparison, bound.key);
        }
        range.end = range.end.max(range.start);
        let lower = bounds.iter().find(|(comparison, _)| comparison.is_lower());
        if let (true, Some((_, lower))) = (prevailing, lower) {
            let opens = bounds
                .iter()
                .all(|(comparison, bound)| comparison.is_lower() || lower.key <= bound.key);
            let before = self.narrow(first..end, Comparison::AtMost, lower.key);
            if opens && !before.is_empty() {
                let last = before.end - 1;
                range = if range.is_empty() {
                    last..last + 1
                } else {
                    range.start.min(last)..range.end
                };
            }
        }
        range
    }

    fn extreme(&self, range: Range<usize>, column: usize, extreme: Extreme) -> Option<usize> {
        let cells = &self.columns[column].cells;
        let valid = range.filter(|place| cells[*place].valid);
        valid.min_by_key(|place| match extreme {
            Extreme::Min => cells[*place].key,
            Extreme::Max => !cells[*place].key,
        })
    }

    fn row(&self, range: &Range<usize>, at: RangeRow) -> Option<usize> {
        let last = range.clone().next_back()?;
        match at {
            RangeRow::First => Some(range.start),
            RangeRow::Last => Some(last),
            RangeRow::FirstOfLast => range
                .clone()
                .find(|place| self.places[*place].key == self.places[last].key),
            RangeRow::Extreme { column, extreme } => self.extreme(range.clone(), column, extreme),
            RangeRow::FirstOrdered {
                column,
                extreme,
                nulls_first,
            } => {
                let cells = &self.columns[column].cells;
                let null = range.clone().find(|place| !cells[*place].valid);
                let found = self.extreme(range.clone(), column, extreme);
                null.filter(|_| nulls_first).or(found).or(Some(range.start))
            }
        }
    }

    /// The answer for these places; `None` is NULL.
    fn value(&self, range: &Range<usize>, answer: RangeJoinAnswer) -> Option<u128> {
        let valid = |column: usize| {
            let cells = self.columns[column].cells[range.clone()].iter();
            cells.filter(|cell| cell.valid)
        };
        let bits = |column: usize, place: usize| {
            let cell = self.columns[column].cells[place];
            cell.valid.then_some(cell.bits)
        };
        match answer {
            RangeJoinAnswer::Matched => (!range.is_empty()).then_some(0),
            RangeJoinAnswer::Count => Some(range.len() as u128),
            RangeJoinAnswer::CountValid { column } => Some(valid(column).count() as u128),
            RangeJoinAnswer::Sum { column }
                if self.columns[column].sums == Some(Addends::Floats) =>
            {
                sum_of_floats(valid(column)).map(|[sum, _]| sum.to_bits().into())
            }
            RangeJoinAnswer::Sum { column } => {
                let integers = valid(column).map(|cell| cell.bits);
                integers.reduce(u128::wrapping_add)
            }
            RangeJoinAnswer::SumError { column } => {
                sum_of_floats(valid(column)).map(|[_, error]| error.to_bits().into())
            }
            RangeJoinAnswer::Extreme { column, extreme } => {
                let place = self.extreme(range.clone(), column, extreme)?;
                bits(column, place)
            }
            RangeJoinAnswer::Value { column, at } => bits(column, self.row(range, at)?),
            RangeJoinAnswer::Row { at } => Some(self.places[self.row(range, at)?].row.into()),
        }
    }

    fn output(&self, ranges: &[Range<usize>], answer: RangeJoinAnswer) -> RangeJoinOutput {
        let answers: Vec<_> = ranges
            .iter()
            .map(|range| self.value(range, answer))
            .collect();
        let mut valid = vec![0_u64; ranges.len().div_ceil(64)];
        for (i, answer) in answers.iter().enumerate() {
            valid[i / 64] |= u64::from(answer.is_some()) << (i % 64);
        }
        let bits = answers.iter().map(|answer| answer.unwrap_or(77));
        let bytes = match answer {
            RangeJoinAnswer::Matched => 0,
            RangeJoinAnswer::Row { .. } => 4,
            RangeJoinAnswer::Extreme { column, .. } | RangeJoinAnswer::Value { column, .. } => {
                self.columns[column].value_bytes
            }
            RangeJoinAnswer::Sum { column } => self.columns[column].value_bytes,
            _ => 8,
        };
        RangeJoinOutput {
            values: match bytes {
                0 => OutputValues::None,
                4 => OutputValues::W32(bits.map(|bits| bits as u32).collect::<Vec<_>>().into()),
                8 => OutputValues::W64(bits.map(|bits| bits as u64).collect::<Vec<_>>().into()),
                _ => OutputValues::W128(bits.collect::<Vec<_>>().into()),
            },
            valid: Some(valid.into()),
        }
    }
}

impl RangeJoinIndex for FakeRangeJoin {
    fn rows(&self) -> usize {
        self.places.len()
    }

    fn device_bytes(&self) -> usize {
        let columns = self.columns.iter().map(|column| column.held.1);
        self.held.1 + columns.sum::<usize>()
    }

    fn added_bytes(&self) -> usize {
        self.added_bytes
    }

    fn build_times(&self) -> RangeJoinTimes {
        RangeJoinTimes::default()
    }

    fn with_columns(
        &self,
        kept: &[usize],
        added: &[RangeJoinColumn],
        row_numbers: bool,
        _: usize,
        stop: &AtomicBool,
    ) -> Result<Arc<dyn RangeJoinIndex>, EngineError> {
        let fake = &self.held.0;
        for column in added {
            assert_eq!(column.values.rows(), self.input_rows);
        }
        let added_columns = sorted(fake, added, &self.places, || step(fake, stop))?;
        fake.columns_added.fetch_add(added.len(), Relaxed);
        Ok(Arc::new(Self {
            places: Arc::clone(&self.places),
            columns: kept
                .iter()
                .map(|i| Arc::clone(&self.columns[*i]))
                .chain(added_columns)
                .collect(),
            specs: kept
                .iter()
                .map(|i| &self.specs[*i])
                .chain(added)
                .cloned()
                .collect(),
            input_rows: self.input_rows,
            key_bytes: self.key_bytes,
            has_groups: self.has_groups,
            row_numbers: self.row_numbers || row_numbers,
            held: Arc::clone(&self.held),
            added_bytes: column_bytes(added, self.input_rows),
        }))
    }

    fn adding_bytes(&self, added: &[RangeJoinColumn]) -> usize {
        column_bytes(added, self.input_rows)
    }

    fn answer(
        &self,
        probe: &RangeJoinProbe<'_>,
        answers: &[RangeJoinAnswer],
    ) -> Result<Vec<RangeJoinOutput>, EngineError> {
        let fake = &self.held.0;
        probe.check(self.key_bytes, self.has_groups)?;
        for answer in answers {
            answer.check(&self.specs, self.row_numbers)?;
        }
        fake.batches.lock().unwrap().push(probe.rows);
        fake.wait();
        // Bounds go up, are searched and answered.
        fake.join_step()?;
        let ids = probe.groups.iter().flatten().flat_map(|ids| ids.iter());
        let ids: Vec<u32> = ids.copied().collect();
        let bounds = probe.bounds.iter().map(|bound| {
            let column = cells(&probe.columns[bound.column]).into_iter();
            let moved = column.map(|cell| cell.moved(bound.shift, self.key_bytes));
            let moved: Option<Vec<_>> = moved.collect();
            Ok((bound.comparison, moved.ok_or(EngineError::Overflow)?))
        });
        let bounds: Vec<_> = bounds.collect::<Result<_, EngineError>>()?;
        let ranges = (0..probe.rows).map(|row| {
            let bounds = bounds.iter().map(|(c, bound)| (*c, bound[row]));
            let group = ids.get(row).copied().unwrap_or_default();
            self.matches(group, &bounds.collect::<Vec<_>>(), probe.prevailing)
        });
        let ranges: Vec<_> = ranges.collect();
        let answers = answers.iter().map(|answer| {
            fake.join_step()?;
            Ok(self.output(&ranges, *answer))
        });
        answers.collect()
    }
}

fn place((row, key): (u32, Cell)) -> Place {
    Place {
        group: 0,
        key: key.key,
        row,
    }
}

/// All values of a column.
fn cells(column: &ColumnChunks) -> Vec<Cell> {
    fn of<K: Key + Into<u128>>(chunks: &[Column<K>]) -> Vec<Cell> {
        let mut cells = vec![];
        for chunk in chunks {
            let bits = chunk.bits().iter().enumerate();
            cells.extend(bits.map(|(i, bits)| Cell {
                bits: (*bits).into(),
                key: chunk.encoding().encode(*bits).into(),
                valid: chunk.validity().is_none_or(|valid| valid.is_valid(i)),
            }));
        }
        cells
    }
    match column {
        ColumnChunks::W32(chunks) => of(chunks),
        ColumnChunks::W64(chunks) => of(chunks),
        ColumnChunks::W128(chunks) => of(chunks),
    }
}
