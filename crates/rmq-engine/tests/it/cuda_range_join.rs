//! Range joins on devices, compared with a stable sort and scans on the host.
//!
//! Environment variables and machines without a device: see `cuda.rs`.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rmq_engine::cuda::{CudaEngine, CudaOptions, Fault, devices};
use rmq_engine::{
    CandidateRanges, Column, ColumnChunks, Comparison, Encoding, Engine, EngineError, Extreme,
    ExtremeIndex, IntegerKind, Key, OutputValues, RangeJoinAnswer, RangeJoinColumn, RangeJoinIndex,
    RangeJoinInput, RangeJoinOutput, RangeJoinProbe, RangeRow, RowGroups, Validity,
};

use crate::cuda::open;
use crate::oracle::{DATA, Data, Width, keys, small};
use rmq_testing::Random;

/// A width of keys and values: its chunks, and its bits as a number.
trait JoinWidth: Width + Into<u128> {
    fn chunks(chunks: Vec<Column<Self>>) -> ColumnChunks;
}

impl JoinWidth for u32 {
    fn chunks(chunks: Vec<Column<Self>>) -> ColumnChunks {
        ColumnChunks::W32(chunks)
    }
}

impl JoinWidth for u64 {
    fn chunks(chunks: Vec<Column<Self>>) -> ColumnChunks {
        ColumnChunks::W64(chunks)
    }
}

impl JoinWidth for u128 {
    fn chunks(chunks: Vec<Column<Self>>) -> ColumnChunks {
        ColumnChunks::W128(chunks)
    }
}

/// Cuts `n` rows into chunks, some of them empty.
fn cuts(n: usize, random: &mut Random) -> Vec<Range<usize>> {
    let mut cuts = vec![0, n];
    cuts.extend((0..random.below(6)).map(|_| random.below(n + 1)));
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

/// Makes chunks of bits; `valid` is empty without NULLs.
fn chunks_of<K: JoinWidth>(
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
struct Values {
    bits: Vec<u128>,
    /// Keys in ascending order.
    keys: Vec<u128>,
    valid: Vec<bool>,
    /// As addends.
    integers: Vec<u64>,
    spec: RangeJoinColumn,
}

impl Values {
    fn new<K: JoinWidth>(n: usize, random: &mut Random) -> Self {
        let encoding = encodings::<K>()[random.below(3)];
        let keys = keys::<K>(DATA[random.below(DATA.len())], n, random);
        let bits: Vec<K> = keys.iter().map(|key| encoding.decode(*key)).collect();
        let valid: Vec<bool> = match random.below(3) {
            0 => vec![],
            1 => (0..n).map(|_| random.below(2) == 0).collect(),
            _ => (0..n).map(|i| i / 40 % 3 == 0).collect(),
        };
        let kind = [IntegerKind::Signed, IntegerKind::Unsigned][random.below(2)];
        let signed = kind == IntegerKind::Signed && size_of::<K>() == 4;
        let integers = bits.iter().map(|bits| {
            let bits: u128 = (*bits).into();
            if signed {
                i64::from(bits as u32 as i32) as u64
            } else {
                bits as u64
            }
        });
        Self {
            integers: integers.collect(),
            spec: RangeJoinColumn {
                min: Some(ExtremeIndex::Rows),
                max: Some(ExtremeIndex::Rows),
                counts: true,
                sums: Some(kind),
                single_values: true,
                ..RangeJoinColumn::new(chunks_of(&bits, &valid, encoding, random))
            },
            bits: bits.iter().map(|bits| (*bits).into()).collect(),
            keys: keys.iter().map(|key| (*key).into()).collect(),
            valid,
        }
    }

    fn is_valid(&self, row: u32) -> bool {
        self.valid.is_empty() || self.valid[row as usize]
    }

    /// The first of these rows with the extreme.
    fn extreme(&self, rows: &[u32], extreme: Extreme) -> Option<u32> {
        let rows = rows.iter().copied().filter(|row| self.is_valid(*row));
        let key = |row: &u32| match extreme {
            Extreme::Min => self.keys[*row as usize],
            Extreme::Max => !self.keys[*row as usize],
        };
        // Of equal ones `min_by_key` returns the first.
        rows.min_by_key(key)
    }
}

fn encodings<K: Key>() -> [Encoding<K>; 3] {
    [
        Encoding::unsigned(),
        Encoding::signed(),
        Encoding::float().reversed(),
    ]
}

/// A build side, and its sorted order on the host.
struct Case<K> {
    encoding: Encoding<K>,
    keys: Vec<K>,
    groups: Option<(Vec<u32>, usize)>,
    values: Vec<Values>,
    /// The rows in sorted order, and the first place of each group and the end.
    order: Vec<u32>,
    starts: Vec<usize>,
}

impl<K: JoinWidth> Case<K> {
    fn new(n: usize, random: &mut Random) -> Self {
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
        let groups = groups.map(|(_, count)| (ids.clone(), count));

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
            ],
            starts: (0..=count).map(start).collect(),
            order,
        }
    }

    fn build(
        &self,
        engine: &CudaEngine,
        random: &mut Random,
    ) -> Result<Arc<dyn RangeJoinIndex>, EngineError> {
        let built = engine.build_range_join(&self.input(random), 4)?;
        Ok(built.expect("the engine builds range joins"))
    }

    fn input(&self, random: &mut Random) -> RangeJoinInput<'_> {
        let bits: Vec<K> = self.keys.iter().map(|k| self.encoding.decode(*k)).collect();
        let rows = self.keys.len();
        RangeJoinInput {
            keys: chunks_of(&bits, &[], self.encoding, random),
            groups: self.groups.as_ref().map(|(ids, count)| RowGroups {
                ids: cuts(rows, random).into_iter().map(|r| &ids[r]).collect(),
                count: *count,
            }),
            columns: self.values.iter().map(|one| one.spec.clone()).collect(),
            row_numbers: true,
        }
    }

    /// The places of a group whose keys compare so with a bound.
    fn narrow(&self, places: Range<usize>, comparison: Comparison, bound: K) -> Range<usize> {
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

const COMPARISONS: [Comparison; 4] = [
    Comparison::Above,
    Comparison::AtLeast,
    Comparison::Below,
    Comparison::AtMost,
];

/// Probe rows and their bounds.
struct Batch<K> {
    ids: Option<Vec<u32>>,
    comparisons: Vec<Comparison>,
    /// For each comparison its keys and validity.
    bounds: Vec<(Vec<K>, Vec<bool>)>,
    prevailing: bool,
    rows: usize,
}

impl<K: JoinWidth> Batch<K> {
    fn new(case: &Case<K>, rows: usize, random: &mut Random) -> Self {
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
        let bounds = comparisons.iter().map(|_| {
            let any = keys::<K>(Data::Uniform, 3, random);
            let keys = (0..rows).map(|_| match random.below(8) {
                0 => any[random.below(3)],
                1 => K::MAX,
                _ if n > 0 => case.keys[random.below(n)],
                _ => K::ZERO,
            });
            let keys = keys.collect();
            let nulls = random.below(2) == 0;
            let valid = (0..rows).map(|_| random.below(12) > 0);
            (keys, if nulls { valid.collect() } else { vec![] })
        });
        let bounds = bounds.collect();
        let ids = case.groups.as_ref().map(|(_, count)| {
            let ids = (0..rows).map(|_| match random.below(12) {
                0 => CandidateRanges::NO_GROUP,
                _ => random.below(*count) as u32,
            });
            ids.collect()
        });
        Self {
            ids,
            comparisons,
            bounds,
            prevailing,
            rows,
        }
    }

    fn answer(
        &self,
        case: &Case<K>,
        index: &dyn RangeJoinIndex,
        answers: &[RangeJoinAnswer],
        random: &mut Random,
    ) -> Result<Vec<RangeJoinOutput>, EngineError> {
        let bounds = self.comparisons.iter().zip(&self.bounds);
        let bounds = bounds.map(|(comparison, (keys, valid))| {
            let bits: Vec<K> = keys.iter().map(|k| case.encoding.decode(*k)).collect();
            let chunks = chunks_of(&bits, valid, case.encoding, random);
            (*comparison, chunks)
        });
        let bounds = bounds.collect();
        let probe = RangeJoinProbe {
            rows: self.rows,
            groups: self.ids.as_ref().map(|ids| {
                let cuts = cuts(self.rows, random).into_iter();
                cuts.map(|rows| &ids[rows]).collect()
            }),
            bounds,
            prevailing: self.prevailing,
        };
        index.answer(&probe, answers)
    }

    /// The rows of the build side that match a probe row, in sorted order.
    fn matches<'a>(&self, case: &'a Case<K>, row: usize) -> &'a [u32] {
        let group = self.ids.as_ref().map_or(0, |ids| ids[row]);
        if group == CandidateRanges::NO_GROUP
            || self
                .bounds
                .iter()
                .any(|(_, valid)| !valid.is_empty() && !valid[row])
        {
            return &[];
        }
        let all = case.starts[group as usize]..case.starts[group as usize + 1];
        let mut range = all.clone();
        let bounds = || self.comparisons.iter().zip(&self.bounds);
        for (comparison, (keys, _)) in bounds() {
            range = case.narrow(range, *comparison, keys[row]);
        }
        if self.prevailing {
            let lower = bounds().find(|(comparison, _)| comparison.is_lower());
            let (_, (lower, _)) = lower.expect("there is one");
            let opens = bounds()
                .all(|(comparison, (keys, _))| comparison.is_lower() || lower[row] <= keys[row]);
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

fn all_answers() -> Vec<RangeJoinAnswer> {
    let mut answers = vec![RangeJoinAnswer::Matched, RangeJoinAnswer::Count];
    let mut places = vec![RangeRow::First, RangeRow::Last];
    for column in 0..3 {
        for extreme in [Extreme::Min, Extreme::Max] {
            answers.push(RangeJoinAnswer::Extreme { column, extreme });
            places.push(RangeRow::Extreme { column, extreme });
        }
        answers.push(RangeJoinAnswer::CountValid { column });
        answers.push(RangeJoinAnswer::Sum { column });
    }
    for at in places {
        answers.push(RangeJoinAnswer::Row { at });
        answers.extend((0..3).map(|column| RangeJoinAnswer::Value { column, at }));
    }
    answers
}

/// The expected answer for these rows; `None` is NULL. A matched row is 0.
fn expected(values: &[Values], rows: &[u32], answer: RangeJoinAnswer) -> Option<u128> {
    let row_at = |at: RangeRow| match at {
        RangeRow::First => rows.first().copied(),
        RangeRow::Last => rows.last().copied(),
        RangeRow::Extreme { column, extreme } => values[column].extreme(rows, extreme),
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
            let integers = valid.map(|row| column.integers[*row as usize]);
            integers.reduce(u64::wrapping_add).map(u128::from)
        }
        RangeJoinAnswer::Extreme { column, extreme } => {
            let row = values[column].extreme(rows, extreme);
            row.and_then(|row| value(column, row))
        }
        RangeJoinAnswer::Value { column, at } => row_at(at).and_then(|row| value(column, row)),
        RangeJoinAnswer::Row { at } => row_at(at).map(u128::from),
    }
}

fn found(output: &RangeJoinOutput, row: usize) -> Option<u128> {
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

fn compare<K: JoinWidth>(
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
                expected(&case.values, rows, *answer),
                "{answer:?} of probe row {row} of {}, {} build rows, {:?}, prevailing {}, matches {:?}",
                batch.rows,
                case.keys.len(),
                batch.comparisons,
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

fn open_default() -> Option<CudaEngine> {
    open(&CudaOptions::default())
}

/// Builds one case and asks some batches.
fn check<K: JoinWidth>(engine: &CudaEngine, n: usize, rows: usize, random: &mut Random) {
    let case = Case::<K>::new(n, random);
    let index = case.build(engine, random).expect("it fits");
    assert_eq!(index.rows(), case.order.len());
    for _ in 0..3 {
        let rows = random.below(rows + 1);
        let batch = Batch::new(&case, rows, random);
        let answers = all_answers();
        // All of them, or some in any order, maybe twice.
        let answers: Vec<_> = match random.below(3) {
            0 => answers,
            _ => (0..4)
                .map(|_| answers[random.below(answers.len())])
                .collect(),
        };
        let outputs = batch
            .answer(&case, &*index, &answers, random)
            .expect("it answers");
        compare(&case, &batch, &answers, &outputs);
    }
}

fn sizes<K: JoinWidth>(name: &str) {
    let mut random = Random::new(name);
    let Some(engine) = open_default() else { return };
    let some = if small() { 4 } else { 12 };
    for n in [0, 1, 2, 3, 31, 32, 33, 100, 1000, 4095, 4097, 9000] {
        for _ in 0..some {
            check::<K>(&engine, n, if n < 2000 { 150 } else { 30 }, &mut random);
        }
    }
    assert_eq!(
        engine.devices()[0].used,
        0,
        "dropped build sides release their memory"
    );
}

#[test]
fn build_sides_with_32_bit_keys() {
    sizes::<u32>("32-bit keys");
}

#[test]
fn build_sides_with_64_bit_keys() {
    sizes::<u64>("64-bit keys");
}

#[test]
fn build_sides_with_128_bit_keys() {
    sizes::<u128>("128-bit keys");
}

#[test]
fn large_build_sides() {
    let mut random = Random::new("large build sides");
    let Some(engine) = open_default() else { return };
    let large: &[usize] = if small() {
        &[70_000]
    } else {
        &[65_537, 1 << 20, 3_000_000]
    };
    for n in large {
        for _ in 0..3 {
            check::<u64>(&engine, *n, 40, &mut random);
        }
    }
}

#[test]
fn batches_longer_than_a_chunk() {
    let mut random = Random::new("long batches");
    let Some(engine) = open_default() else { return };
    let case = Case::<u64>::new(300, &mut random);
    let index = case.build(&engine, &mut random).expect("it fits");
    let chunk = 1 << 18;
    let answers = [
        RangeJoinAnswer::Matched,
        RangeJoinAnswer::Extreme {
            column: 1,
            extreme: Extreme::Min,
        },
    ];
    let lengths: &[usize] = if small() {
        &[chunk + 77]
    } else {
        &[chunk - 1, chunk, chunk + 1, 3 * chunk + 77]
    };
    for rows in lengths {
        let batch = Batch::new(&case, *rows, &mut random);
        let outputs = batch
            .answer(&case, &*index, &answers, &mut random)
            .expect("it answers");
        compare(&case, &batch, &answers, &outputs);
    }
}

#[test]
fn several_threads_and_devices() {
    let mut random = Random::new("threads and devices");
    let Ok(all) = devices() else {
        println!("skipped: no CUDA device");
        return;
    };
    let usable = all.iter().filter(|device| device.unusable.is_none());
    let options = CudaOptions {
        devices: usable.take(2).map(|device| device.ordinal).collect(),
        ..CudaOptions::default()
    };
    println!("devices {:?}", options.devices);
    let Some(engine) = open(&options) else { return };
    let case = Case::<u64>::new(if small() { 2000 } else { 200_000 }, &mut random);
    let index = case.build(&engine, &mut random).expect("it fits");
    let answers = all_answers();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            let (case, index, answers) = (&case, &*index, &answers);
            let mut random = Random::from_seed(random.next());
            scope.spawn(move || {
                for _ in 0..3 {
                    let rows = random.below(40);
                    let batch = Batch::new(case, rows, &mut random);
                    let outputs = batch.answer(case, index, answers, &mut random);
                    compare(case, &batch, answers, &outputs.expect("it answers"));
                }
            });
        }
    });
}

#[test]
fn what_does_not_fit_is_an_error() {
    let Some(engine) = open_default() else { return };
    let column = |n: u32| {
        let bits: Vec<u32> = (0..n).collect();
        ColumnChunks::W32(vec![Column::new(Arc::new(bits), Encoding::unsigned())])
    };
    let ids = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
    let input = |ids| RangeJoinInput {
        keys: column(10),
        groups: Some(RowGroups {
            ids: vec![ids],
            count: 10,
        }),
        columns: vec![RangeJoinColumn::new(column(10))],
        row_numbers: false,
    };
    let built = engine.build_range_join(&input(&ids), 1).expect("it fits");
    let index = built.expect("the engine builds range joins");
    let wrong_id = engine.build_range_join(&input(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 10]), 1);
    assert!(matches!(wrong_id, Err(EngineError::Invalid(_))));
    let short = engine.build_range_join(&input(&ids[1..]), 1);
    assert!(matches!(short, Err(EngineError::Lengths { .. })));
    let mut mixed = input(&ids);
    let bits = || Arc::new((0..5_u32).collect::<Vec<_>>());
    mixed.keys = ColumnChunks::W32(vec![
        Column::new(bits(), Encoding::unsigned()),
        Column::new(bits(), Encoding::signed()),
    ]);
    let mixed = engine.build_range_join(&mixed, 1);
    assert!(matches!(mixed, Err(EngineError::Invalid(_))));
    let stopped = engine.until(Arc::new(AtomicBool::new(true)));
    let stopped = stopped.build_range_join(&input(&ids), 1);
    assert!(matches!(stopped, Err(EngineError::Stopped)));

    let probe = |groups: Option<Vec<&'static [u32]>>, bounds| RangeJoinProbe {
        rows: 2,
        groups,
        bounds,
        prevailing: false,
    };
    let groups = || Some(vec![&[0, 1][..]]);
    let count = [RangeJoinAnswer::Count];
    assert!(index.answer(&probe(groups(), vec![]), &count).is_ok());
    let unbuilt = [RangeJoinAnswer::Sum { column: 0 }];
    let row = [RangeJoinAnswer::Row {
        at: RangeRow::First,
    }];
    let missing = [RangeJoinAnswer::CountValid { column: 1 }];
    for answers in [unbuilt, row, missing] {
        let result = index.answer(&probe(groups(), vec![]), &answers);
        assert!(matches!(result, Err(EngineError::Invalid(_))));
    }
    let without = index.answer(&probe(None, vec![]), &count);
    assert!(matches!(without, Err(EngineError::Invalid(_))));
    let bound = |n| vec![(Comparison::AtMost, column(n))];
    let long = index.answer(&probe(groups(), bound(3)), &count);
    assert!(matches!(long, Err(EngineError::Lengths { .. })));
    let mut prevailing = probe(groups(), bound(2));
    prevailing.prevailing = true;
    let no_lower = index.answer(&prevailing, &count);
    assert!(matches!(no_lower, Err(EngineError::Invalid(_))));
    let wide = ColumnChunks::W64(vec![Column::new(
        Arc::new(vec![1, 2]),
        Encoding::unsigned(),
    )]);
    let wide = index.answer(&probe(groups(), vec![(Comparison::AtMost, wide)]), &count);
    assert!(matches!(wide, Err(EngineError::Lengths { .. })));
}

#[test]
fn memory_is_limited_and_estimated() {
    let mut random = Random::new("memory of range joins");
    let Some(engine) = open_default() else { return };
    for n in [1, 2, 40, 1000, 20_000] {
        let case = Case::<u64>::new(n, &mut random);
        let input = case.input(&mut random);
        let most = engine.range_join_bytes(&input);
        let limited = |bytes| {
            open(&CudaOptions {
                memory_limit: Some(bytes),
                ..CudaOptions::default()
            })
        };
        let Some(engine) = limited(most) else { return };
        let built = engine.build_range_join(&input, 2).expect("it fits");
        let index = built.expect("the engine builds range joins");
        assert_eq!(engine.devices()[0].used, index.device_bytes());
        drop(index);
        assert_eq!(engine.devices()[0].used, 0);
        let Some(engine) = limited(most / 20) else {
            return;
        };
        let built = engine.build_range_join(&input, 2);
        assert!(
            matches!(built, Err(EngineError::DeviceMemory { .. })),
            "{n}"
        );
        assert_eq!(engine.devices()[0].used, 0);
    }
}

#[test]
fn any_fault_is_an_error() {
    let mut random = Random::new("faults of range joins");
    // Keeps the device's context while engines are opened and dropped.
    let Some(_open) = open_default() else { return };
    let mut case = Case::<u64>::new(3000, &mut random);
    while case.order.is_empty() {
        case = Case::new(3000, &mut random);
    }
    let batch = Batch::new(&case, 70, &mut random);
    let answers = all_answers();
    let mut faults = 0;
    for fault in Fault::ALL {
        for nth in 1.. {
            let engine = open_default().expect("it was opened before");
            engine.inject(fault, nth);
            let outputs = case
                .build(&engine, &mut random)
                .and_then(|index| batch.answer(&case, &*index, &answers, &mut random));
            let failed = !engine.inject(fault, 0);
            assert_eq!(engine.devices()[0].used, 0);
            match outputs {
                Ok(outputs) => {
                    // Answers go to other memory if none can be pinned.
                    assert!(!failed || fault == Fault::Allocation, "{fault:?}, {nth}");
                    compare(&case, &batch, &answers, &outputs);
                }
                Err(error) => {
                    assert!(failed, "{error}");
                    assert!(
                        error.of_device() || matches!(error, EngineError::OutOfMemory { .. }),
                        "{error}"
                    );
                }
            }
            if !failed {
                assert!(nth > 1, "{fault:?} has not occurred");
                break;
            }
            faults += 1;
        }
    }
    println!("{faults} faults");
}
