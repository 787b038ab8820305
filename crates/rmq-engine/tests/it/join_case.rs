//! Build sides and batches of range joins of all kinds, and the expected answers by a stable sort and scans.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rmq_engine::cuda::CudaEngine;
use rmq_engine::{
    Addends, CandidateRanges, Column, ColumnChunks, Comparison, Encoding, Engine, EngineError,
    Extreme, ExtremeIndex, Key, OutputValues, PartGroups, ProbeBound, RangeJoinAnswer,
    RangeJoinColumn, RangeJoinIndex, RangeJoinInput, RangeJoinOutput, RangeJoinProbe, RangeRow,
    RowGroups, RowIds, Validity,
};

use crate::float_case::{exact_sum, random_floats};
use crate::oracle::{DATA, Data, Width, keys};
use rmq_testing::Random;

/// A width of keys and values: its chunks, and its bits as a number.
pub trait JoinWidth: Width + Into<u128> {
    fn chunks(chunks: Vec<Column<Self>>) -> ColumnChunks;

    /// The bits of a signed integer plus a shift; `None` if that is beyond the type, or bounds of it are not shifted.
    fn shifted(self, shift: i64) -> Option<Self>;
}

impl JoinWidth for u32 {
    fn chunks(chunks: Vec<Column<Self>>) -> ColumnChunks {
        ColumnChunks::W32(chunks)
    }

    fn shifted(self, shift: i64) -> Option<Self> {
        let sum = i64::from(self.cast_signed()).checked_add(shift)?;
        Some(i32::try_from(sum).ok()?.cast_unsigned())
    }
}

impl JoinWidth for u64 {
    fn chunks(chunks: Vec<Column<Self>>) -> ColumnChunks {
        ColumnChunks::W64(chunks)
    }

    fn shifted(self, shift: i64) -> Option<Self> {
        let sum = self.cast_signed().checked_add(shift)?;
        Some(sum.cast_unsigned())
    }
}

impl JoinWidth for u128 {
    fn chunks(chunks: Vec<Column<Self>>) -> ColumnChunks {
        ColumnChunks::W128(chunks)
    }

    fn shifted(self, shift: i64) -> Option<Self> {
        (shift == 0).then_some(self)
    }
}

/// Cuts `n` rows into chunks, some of them empty.
pub fn cuts(n: usize, random: &mut Random) -> Vec<Range<usize>> {
    let mut cuts = vec![0, n];
    cuts.extend((0..random.below(6)).map(|_| random.below(n + 1)));
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

/// Makes chunks of bits; `valid` is empty without NULLs.
pub fn chunks_of<K: JoinWidth>(
    bits: &[K],
    valid: &[bool],
    encoding: Encoding<K>,
    random: &mut Random,
) -> ColumnChunks {
    let chunks = cuts(bits.len(), random).into_iter().map(|rows| {
        let column = Column::new(Arc::new(bits[rows.clone()].to_vec()), encoding);
        if valid.is_empty() {
            return column;
        }
        let offset = random.below(70);
        let mut bytes = vec![0xA5_u8; (offset + rows.len()).div_ceil(8)];
        for (i, row) in rows.enumerate() {
            let (byte, bit) = ((offset + i) / 8, (offset + i) % 8);
            bytes[byte] = bytes[byte] & !(1 << bit) | u8::from(valid[row]) << bit;
        }
        let validity = Validity::new(Arc::new(bytes), offset);
        column.with_validity(validity).expect("it is long enough")
    });
    K::chunks(chunks.collect())
}

/// A value column as numbers.
pub struct Values {
    bits: Vec<u128>,
    /// Keys in ascending order.
    keys: Vec<u128>,
    valid: Vec<bool>,
    /// As addends.
    integers: Vec<u128>,
    spec: RangeJoinColumn,
}

impl Values {
    pub fn new<K: JoinWidth>(n: usize, random: &mut Random) -> Self {
        let encoding = encodings::<K>()[random.below(3)];
        let keys = keys::<K>(DATA[random.below(DATA.len())], n, random);
        let bits: Vec<K> = keys.iter().map(|key| encoding.decode(*key)).collect();
        let addends = [Addends::Signed, Addends::Unsigned][random.below(2)];
        Self::of_bits(&bits, encoding, addends, random)
    }

    /// A column of floats, whose sums are sums of floats.
    fn floats(n: usize, random: &mut Random) -> Self {
        let bits: Vec<u64> = random_floats(n, random);
        Self::of_bits(&bits, Encoding::float(), Addends::Floats, random)
    }

    fn of_bits<K: JoinWidth>(
        bits: &[K],
        encoding: Encoding<K>,
        addends: Addends,
        random: &mut Random,
    ) -> Self {
        let n = bits.len();
        let valid: Vec<bool> = match random.below(3) {
            0 => vec![],
            1 => (0..n).map(|_| random.below(2) == 0).collect(),
            _ => (0..n).map(|i| i / 40 % 3 == 0).collect(),
        };
        let signed = addends == Addends::Signed && size_of::<K>() == 4;
        let integers = bits.iter().map(|bits| {
            let bits: u128 = (*bits).into();
            if signed {
                u128::from(i64::from(bits as u32 as i32) as u64)
            } else {
                bits
            }
        });
        Self {
            integers: integers.collect(),
            spec: RangeJoinColumn {
                min: Some(ExtremeIndex::Rows),
                max: Some(ExtremeIndex::Rows),
                counts: true,
                sums: Some(addends),
                single_values: true,
                ..RangeJoinColumn::new(chunks_of(bits, &valid, encoding, random))
            },
            bits: bits.iter().map(|bits| (*bits).into()).collect(),
            keys: bits.iter().map(|b| encoding.encode(*b).into()).collect(),
            valid,
        }
    }

    pub fn is_valid(&self, row: u32) -> bool {
        self.valid.is_empty() || self.valid[row as usize]
    }

    /// The first of these rows with the extreme.
    pub fn extreme(&self, rows: &[u32], extreme: Extreme) -> Option<u32> {
        let rows = rows.iter().copied().filter(|row| self.is_valid(*row));
        let key = |row: &u32| match extreme {
            Extreme::Min => self.keys[*row as usize],
            Extreme::Max => !self.keys[*row as usize],
        };
        // Of equal ones `min_by_key` returns the first.
        rows.min_by_key(key)
    }
}

pub fn encodings<K: Key>() -> [Encoding<K>; 3] {
    [
        Encoding::unsigned(),
        Encoding::signed(),
        Encoding::float().reversed(),
    ]
}

/// The groups of consecutive rows.
struct Part {
    ids: Ids,
    groups: Option<Vec<u32>>,
}

enum Ids {
    Wide(Vec<u32>),
    Narrow(Vec<u16>),
    Runs(Vec<(u32, u32)>),
}

impl Part {
    /// Groups of rows in any form.
    fn new(of_rows: &[u32], random: &mut Random) -> Self {
        const NO_GROUP: u32 = CandidateRanges::NO_GROUP;
        let (mut ids, mut groups) = (of_rows.to_vec(), None);
        if random.below(2) == 0 {
            let mut known = HashMap::new();
            let mut numbers = vec![];
            for id in ids.iter_mut().filter(|id| **id != NO_GROUP) {
                *id = *known.entry(*id).or_insert_with(|| {
                    numbers.push(*id);
                    numbers.len() as u32 - 1
                });
            }
            groups = Some(numbers);
        }
        let are_narrow = ids.iter().all(|id| *id == NO_GROUP || *id < 65_535);
        let ids = match random.below(3) {
            0 if are_narrow => Ids::Narrow(ids.iter().map(|id| *id as u16).collect()),
            1 => {
                let runs = ids.chunk_by(|a, b| a == b);
                Ids::Runs(runs.map(|run| (run[0], run.len() as u32)).collect())
            }
            _ => Ids::Wide(ids),
        };
        Self { ids, groups }
    }

    fn groups(&self) -> PartGroups<'_> {
        PartGroups {
            ids: match &self.ids {
                Ids::Wide(ids) => RowIds::Wide(ids),
                Ids::Narrow(ids) => RowIds::Narrow(ids),
                Ids::Runs(runs) => RowIds::Runs(runs),
            },
            groups: self.groups.as_deref(),
        }
    }
}

/// A build side, and its sorted order on the host.
pub struct Case<K> {
    encoding: Encoding<K>,
    pub keys: Vec<K>,
    groups: Option<(Vec<Part>, usize)>,
    values: Vec<Values>,
    /// The rows in sorted order, and the first place of each group and the end.
    pub order: Vec<u32>,
    starts: Vec<usize>,
}

impl<K: JoinWidth> Case<K> {
    pub fn new(n: usize, random: &mut Random) -> Self {
        let mut keys = keys::<K>(DATA[random.below(DATA.len())], n, random);
        let mut groups = match random.below(4) {
            0 => None,
            1 => Some(1),
            2 => Some(1 + random.below(20)),
            _ => Some(1 + random.below(2 * n + 100_000)),
        }
        .map(|count| {
            let some_left_out = random.below(2) == 0;
            let ids = (0..n).map(|_| match random.below(10) {
                0 if some_left_out => CandidateRanges::NO_GROUP,
                _ => random.below(count) as u32,
            });
            (ids.collect::<Vec<_>>(), count)
        });
        if n > 0 && random.below(30) == 0 {
            groups = Some((vec![CandidateRanges::NO_GROUP; n], 3));
        }
        let group = |row: &u32| groups.as_ref().map_or(0, |(ids, _)| ids[*row as usize]);
        // In any order, by key, or by group and key.
        let mut order: Vec<u32> = (0..n as u32).collect();
        match random.below(3) {
            0 => {}
            1 => order.sort_by_key(|row| keys[*row as usize]),
            _ => order.sort_by_key(|row| (group(row), keys[*row as usize])),
        }
        keys = order.iter().map(|row| keys[*row as usize]).collect();
        let ids: Vec<u32> = order.iter().map(group).collect();
        let groups = groups.map(|(_, count)| {
            let parts = cuts(n, random).into_iter();
            let parts = parts.map(|rows| Part::new(&ids[rows], random));
            (parts.collect(), count)
        });

        let mut order: Vec<u32> = (0..n as u32).collect();
        order.retain(|row| ids[*row as usize] != CandidateRanges::NO_GROUP);
        order.sort_by_key(|row| (ids[*row as usize], keys[*row as usize]));
        let count = groups.as_ref().map_or(1, |(_, count)| *count);
        let start =
            |group: usize| order.partition_point(|row| (ids[*row as usize] as usize) < group);
        Self {
            encoding: encodings::<K>()[random.below(3)],
            keys,
            groups,
            values: vec![
                Values::new::<u32>(n, random),
                Values::new::<u64>(n, random),
                Values::new::<u128>(n, random),
                Values::floats(n, random),
            ],
            starts: (0..=count).map(start).collect(),
            order,
        }
    }

    /// Builds all columns at once, or adds the last ones, and maybe row numbers, to the others.
    pub fn build(
        &self,
        engine: &CudaEngine,
        random: &mut Random,
    ) -> Result<Arc<dyn RangeJoinIndex>, EngineError> {
        let mut input = self.input(random);
        let at_once = random.below(2) == 0;
        let (mut kept, mut added): (Vec<usize>, _) = (vec![], vec![]);
        if !at_once {
            let columns = random.below(5);
            added = input.columns.split_off(columns);
            kept = (0..columns).collect();
            // One that is not kept.
            let dropped = random.below(columns + 1);
            if random.below(2) == 0 {
                let column = self.values[random.below(4)].spec.clone();
                input.columns.insert(dropped, column);
                let moved = |i: usize| i + usize::from(i >= dropped);
                kept = kept.into_iter().map(moved).collect();
            }
            input.row_numbers = random.below(2) == 0;
        }
        let built = engine.build_range_join(&input, 4)?;
        let built = built.expect("the engine builds range joins");
        if at_once {
            return Ok(built);
        }
        built.with_columns(&kept, &added, true, 4, &AtomicBool::new(false))
    }

    pub fn input(&self, random: &mut Random) -> RangeJoinInput<'_> {
        let bits: Vec<K> = self.keys.iter().map(|k| self.encoding.decode(*k)).collect();
        RangeJoinInput {
            keys: chunks_of(&bits, &[], self.encoding, random),
            groups: self.groups.as_ref().map(|(parts, count)| RowGroups {
                parts: parts.iter().map(Part::groups).collect(),
                count: *count,
            }),
            columns: self.values.iter().map(|one| one.spec.clone()).collect(),
            row_numbers: true,
        }
    }

    /// The places of a group whose keys compare so with a bound.
    pub fn narrow(&self, places: Range<usize>, comparison: Comparison, bound: K) -> Range<usize> {
        let rows = &self.order[places.clone()];
        let key = |row: &u32| self.keys[*row as usize];
        let point = if comparison.is_before_equal() {
            rows.partition_point(|row| key(row) < bound)
        } else {
            rows.partition_point(|row| key(row) <= bound)
        };
        if comparison.is_lower() {
            places.start + point..places.end
        } else {
            places.start..places.start + point
        }
    }
}

pub const COMPARISONS: [Comparison; 4] = [
    Comparison::Above,
    Comparison::AtLeast,
    Comparison::Below,
    Comparison::AtMost,
];

/// Probe rows and their bounds.
pub struct Batch<K> {
    ids: Option<Vec<u32>>,
    /// The stored bits of what bounds are made of, and which are not NULL.
    columns: Vec<(Vec<K>, Vec<bool>)>,
    bounds: Vec<ProbeBound>,
    /// The keys of each bound.
    keys: Vec<Vec<K>>,
    prevailing: bool,
    rows: usize,
}

impl<K: JoinWidth> Batch<K> {
    pub fn new(case: &Case<K>, rows: usize, random: &mut Random) -> Self {
        let mut comparisons: Vec<_> = (0..random.below(4))
            .map(|_| COMPARISONS[random.below(4)])
            .collect();
        if random.below(20) == 0 {
            comparisons = (0..19).map(|i| COMPARISONS[i % 4]).collect();
        }
        let prevailing = random.below(3) == 0
            && comparisons.iter().filter(|one| one.is_lower()).count() == 1
            && comparisons.len() <= 8;
        let n = case.keys.len();
        let column = |random: &mut Random| {
            let any = keys::<K>(Data::Uniform, 3, random);
            let keys = (0..rows).map(|_| match random.below(8) {
                0 => any[random.below(3)],
                1 => K::MAX,
                _ if n > 0 => case.keys[random.below(n)],
                _ => K::ZERO,
            });
            let bits = keys.map(|key| case.encoding.decode(key)).collect();
            let nulls = random.below(2) == 0;
            let valid = (0..rows).map(|_| random.below(12) > 0);
            (bits, if nulls { valid.collect() } else { vec![] })
        };
        let mut columns: Vec<(Vec<K>, Vec<bool>)> = vec![];
        let (mut bounds, mut keys) = (vec![], vec![]);
        for comparison in comparisons {
            if columns.is_empty() || random.below(3) > 0 {
                columns.push(column(random));
            }
            let (bits, valid) = &columns[columns.len() - 1];
            let mut shift = 0;
            let may_shift = case.encoding == Encoding::signed() && size_of::<K>() <= 8;
            if may_shift && random.below(2) == 0 {
                shift = [1, -1, 5, -1000, i64::from(i32::MAX)][random.below(5)];
                let may_overflow = |row: usize| valid.is_empty() || valid[row];
                let overflows = |row: usize| bits[row].shifted(shift).is_none();
                if (0..rows).any(|row| may_overflow(row) && overflows(row)) {
                    shift = 0;
                }
            }
            let key = |bits: &K| case.encoding.encode(bits.shifted(shift).unwrap_or(K::ZERO));
            keys.push(bits.iter().map(key).collect());
            bounds.push(ProbeBound {
                comparison,
                column: columns.len() - 1,
                shift,
            });
        }
        let ids = case.groups.as_ref().map(|(_, count)| {
            let ids = (0..rows).map(|_| match random.below(12) {
                0 => CandidateRanges::NO_GROUP,
                _ => random.below(*count) as u32,
            });
            ids.collect()
        });
        Self {
            ids,
            columns,
            bounds,
            keys,
            prevailing,
            rows,
        }
    }

    pub fn answer(
        &self,
        case: &Case<K>,
        index: &dyn RangeJoinIndex,
        answers: &[RangeJoinAnswer],
        random: &mut Random,
    ) -> Result<Vec<RangeJoinOutput>, EngineError> {
        let columns = self.columns.iter();
        let columns = columns
            .map(|(bits, valid)| chunks_of(bits, valid, case.encoding, random))
            .collect();
        let probe = RangeJoinProbe {
            rows: self.rows,
            groups: self.ids.as_ref().map(|ids| {
                let cuts = cuts(self.rows, random).into_iter();
                cuts.map(|rows| &ids[rows]).collect()
            }),
            columns,
            bounds: self.bounds.clone(),
            prevailing: self.prevailing,
        };
        index.answer(&probe, answers)
    }

    /// The rows of the build side that match a probe row, in sorted order.
    pub fn matches<'a>(&self, case: &'a Case<K>, row: usize) -> &'a [u32] {
        let group = self.ids.as_ref().map_or(0, |ids| ids[row]);
        let mut bounds = self.bounds.iter();
        let is_null = bounds.any(|bound| {
            let (_, valid) = &self.columns[bound.column];
            !valid.is_empty() && !valid[row]
        });
        if group == CandidateRanges::NO_GROUP || is_null {
            return &[];
        }
        let all = case.starts[group as usize]..case.starts[group as usize + 1];
        let mut range = all.clone();
        let bounds = || {
            let comparisons = self.bounds.iter().map(|bound| bound.comparison);
            comparisons.zip(&self.keys)
        };
        for (comparison, keys) in bounds() {
            range = case.narrow(range, comparison, keys[row]);
        }
        if self.prevailing {
            let lower = bounds().find(|(comparison, _)| comparison.is_lower());
            let (_, lower) = lower.expect("there is one");
            let opens =
                bounds().all(|(comparison, keys)| comparison.is_lower() || lower[row] <= keys[row]);
            let before = case.narrow(all, Comparison::AtMost, lower[row]);
            if opens && !before.is_empty() {
                let last = before.end - 1;
                range = if range.is_empty() {
                    last..last + 1
                } else {
                    range.start.min(last)..range.end
                };
            }
        }
        &case.order[range.start.min(range.end)..range.end]
    }
}

pub fn all_answers() -> Vec<RangeJoinAnswer> {
    let mut answers = vec![RangeJoinAnswer::Matched, RangeJoinAnswer::Count];
    let mut places = vec![RangeRow::First, RangeRow::Last, RangeRow::FirstOfLast];
    for column in 0..4 {
        for extreme in [Extreme::Min, Extreme::Max] {
            answers.push(RangeJoinAnswer::Extreme { column, extreme });
            places.push(RangeRow::Extreme { column, extreme });
            places.extend([false, true].map(|nulls_first| RangeRow::FirstOrdered {
                column,
                extreme,
                nulls_first,
            }));
        }
        answers.push(RangeJoinAnswer::CountValid { column });
        answers.push(RangeJoinAnswer::Sum { column });
    }
    answers.push(RangeJoinAnswer::SumError { column: 3 });
    for at in places {
        answers.push(RangeJoinAnswer::Row { at });
        answers.extend((0..4).map(|column| RangeJoinAnswer::Value { column, at }));
    }
    answers
}

/// The expected answer for these rows; `None` is NULL. A matched row is 0.
pub fn expected<K: JoinWidth>(
    case: &Case<K>,
    rows: &[u32],
    answer: RangeJoinAnswer,
) -> Option<u128> {
    let values = &case.values;
    let row_at = |at: RangeRow| match at {
        RangeRow::First => rows.first().copied(),
        RangeRow::Last => rows.last().copied(),
        RangeRow::FirstOfLast => {
            let key = |row: &u32| case.keys[*row as usize];
            let mut rows = rows.iter().copied();
            let last = rows.clone().next_back()?;
            rows.find(|row| key(row) == key(&last))
        }
        RangeRow::Extreme { column, extreme } => values[column].extreme(rows, extreme),
        RangeRow::FirstOrdered {
            column,
            extreme,
            nulls_first,
        } => {
            let mut nulls = rows.iter().filter(|row| !values[column].is_valid(**row));
            let null = nulls.next().filter(|_| nulls_first);
            let found = values[column].extreme(rows, extreme);
            null.copied().or(found).or(rows.first().copied())
        }
    };
    let value = |column: usize, row: u32| {
        let column = &values[column];
        column.is_valid(row).then(|| column.bits[row as usize])
    };
    match answer {
        RangeJoinAnswer::Matched => (!rows.is_empty()).then_some(0),
        RangeJoinAnswer::Count => Some(rows.len() as u128),
        RangeJoinAnswer::CountValid { column } => {
            let valid = rows.iter().filter(|row| values[column].is_valid(**row));
            Some(valid.count() as u128)
        }
        RangeJoinAnswer::Sum { column } => {
            let column = &values[column];
            let valid = rows.iter().filter(|row| column.is_valid(**row));
            if column.spec.sums == Some(Addends::Floats) {
                let sum = exact_sum(valid.map(|row| column.integers[*row as usize] as u64));
                return sum.map(|[sum, _]| sum.into());
            }
            let integers = valid.map(|row| column.integers[*row as usize]);
            let sum = integers.reduce(u128::wrapping_add);
            let wide = column.spec.values.value_bytes() == 16;
            sum.map(|sum| {
                if wide {
                    sum
                } else {
                    sum & u128::from(u64::MAX)
                }
            })
        }
        RangeJoinAnswer::SumError { column } => {
            let column = &values[column];
            let valid = rows.iter().filter(|row| column.is_valid(**row));
            let sum = exact_sum(valid.map(|row| column.integers[*row as usize] as u64));
            sum.map(|[_, error]| error.into())
        }
        RangeJoinAnswer::Extreme { column, extreme } => {
            let row = values[column].extreme(rows, extreme);
            row.and_then(|row| value(column, row))
        }
        RangeJoinAnswer::Value { column, at } => row_at(at).and_then(|row| value(column, row)),
        RangeJoinAnswer::Row { at } => row_at(at).map(u128::from),
    }
}

pub fn found(output: &RangeJoinOutput, row: usize) -> Option<u128> {
    let valid = output.valid.as_ref();
    if valid.is_some_and(|valid| valid[row / 64] >> (row % 64) & 1 == 0) {
        return None;
    }
    Some(match &output.values {
        OutputValues::None => 0,
        OutputValues::W32(values) => values[row].into(),
        OutputValues::W64(values) => values[row].into(),
        OutputValues::W128(values) => values[row],
    })
}

pub fn compare<K: JoinWidth>(
    case: &Case<K>,
    batch: &Batch<K>,
    answers: &[RangeJoinAnswer],
    outputs: &[RangeJoinOutput],
) {
    assert_eq!(outputs.len(), answers.len());
    for (answer, output) in answers.iter().zip(outputs) {
        for row in 0..batch.rows {
            let rows = batch.matches(case, row);
            assert_eq!(
                found(output, row),
                expected(case, rows, *answer),
                "{answer:?} of probe row {row} of {}, {} build rows, {:?}, prevailing {}, matches {:?}",
                batch.rows,
                case.keys.len(),
                batch.bounds,
                batch.prevailing,
                &rows[..rows.len().min(10)],
            );
        }
        if let Some(valid) = &output.valid
            && !batch.rows.is_multiple_of(64)
        {
            assert_eq!(
                valid[batch.rows / 64] >> (batch.rows % 64),
                0,
                "unused bits"
            );
        }
    }
}
