//! Order statistics of the CUDA engine against those of the CPU, which are compared with sorted values.
//!
//! Devices, seeds and sizes are as for the tests of range-minimum queries.

use rmq_engine::cpu::{DistinctCounts, KeyStatistics, RankKey};
use rmq_engine::cuda::{CudaOptions, Fault};
use rmq_engine::{Engine, EngineError};

use crate::cuda::open;
use crate::oracle::{Case, DATA, NULLS, Width, small};
use rmq_testing::Random;

/// Answers of all kinds to a batch of ranges.
#[derive(Debug, PartialEq)]
struct Answers<K> {
    counts: Vec<i64>,
    below: Vec<i64>,
    distinct: Vec<i64>,
    nth: Vec<K>,
    is_valid: Vec<u64>,
}

/// Ranges, some of them empty or beyond the column, with thresholds among the values and numbers of smaller values.
struct Batch<K> {
    left: Vec<i64>,
    right: Vec<i64>,
    thresholds: Vec<K>,
    smaller: Vec<i64>,
}

impl<K: Width + RankKey> Batch<K> {
    fn new(bits: &[K], ranges: usize, random: &mut Random) -> Self {
        let rows = bits.len();
        let mut bound = || match random.below(50) {
            0 => i64::MIN,
            1 => i64::MAX,
            _ => random.below(rows + 5) as i64 - 2,
        };
        let pairs: Vec<_> = (0..ranges).map(|_| (bound(), bound())).collect();
        let threshold = |random: &mut Random| match bits {
            [] => K::ZERO,
            bits => bits[random.below(bits.len())],
        };
        Self {
            left: pairs.iter().map(|(a, b)| *a.min(b)).collect(),
            right: pairs.iter().map(|(a, b)| *a.max(b)).collect(),
            thresholds: (0..ranges).map(|_| threshold(random)).collect(),
            smaller: (0..ranges)
                .map(|_| random.below(rows / 2 + 3) as i64 - 1)
                .collect(),
        }
    }

    fn ask(
        &self,
        ranks: &KeyStatistics<K>,
        distinct: &DistinctCounts,
    ) -> Result<Answers<K>, EngineError> {
        let (left, right, ranges) = (&self.left, &self.right, self.left.len());
        let mut answers = Answers {
            counts: vec![7; ranges],
            below: vec![7; ranges],
            distinct: vec![7; ranges],
            nth: vec![K::ZERO; ranges],
            is_valid: vec![7; ranges.div_ceil(64)],
        };
        ranks.count(left, right, &mut answers.counts)?;
        ranks.count_below(left, right, &self.thresholds, &mut answers.below)?;
        distinct.count(left, right, &mut answers.distinct)?;
        let (nth, is_valid) = (&mut answers.nth, &mut answers.is_valid);
        ranks.nth_smallest(left, right, &self.smaller, nth, is_valid)?;
        Ok(answers)
    }
}

/// Compares devices with the CPU over one column.
fn compare<K: Width + RankKey>(engine: &dyn Engine, rows: usize, random: &mut Random) {
    let data = DATA[random.below(DATA.len())];
    let nulls = NULLS[random.below(NULLS.len())];
    let case = Case::<K>::new(data, nulls, rows, random);
    let build = || {
        let ranks = KeyStatistics::build(&case.column, 4, &|| false).expect("memory");
        let distinct = DistinctCounts::build(&case.column, 4, &|| false).expect("memory");
        (ranks, distinct)
    };
    let (ranks, distinct) = build();
    let (mut on_devices, mut distinct_on_devices) = build();
    on_devices.copy_to(engine, 4).expect("it fits");
    distinct_on_devices.copy_to(engine, 4).expect("it fits");
    assert_eq!(on_devices.device_bytes() > 0, rows > 0);
    for ranges in [1, 256, if small() { 999 } else { 300_000 }] {
        let batch = Batch::new(case.column.bits(), ranges, random);
        let expected = batch.ask(&ranks, &distinct).expect("lengths");
        let found = batch
            .ask(&on_devices, &distinct_on_devices)
            .expect("devices");
        assert!(found == expected, "{}, {ranges} ranges", case.what);
    }
    let no = on_devices.count_below(&[0; 300], &[1; 299], &[K::ZERO; 300], &mut [0; 300]);
    assert!(matches!(no, Err(EngineError::Lengths { .. })), "{no:?}");
}

#[test]
fn devices_have_the_order_statistics_of_the_cpu() {
    let Some(engine) = open(&CudaOptions::default()) else {
        return;
    };
    let mut random = Random::new("order statistics on devices");
    let sizes: &[usize] = if small() {
        &[0, 1, 191, 192, 193, 5000]
    } else {
        &[0, 1, 191, 192, 193, 5000, 1 << 20, 3_000_001]
    };
    for rows in sizes {
        compare::<u32>(&engine, *rows, &mut random);
        compare::<u64>(&engine, *rows, &mut random);
        compare::<u128>(&engine, *rows, &mut random);
    }
    assert_eq!(
        engine.devices()[0].used,
        0,
        "dropped copies release their memory"
    );
}

/// Whichever call of the driver fails, the answers are those of the CPU.
#[test]
fn the_cpu_answers_order_statistics_where_devices_fail() {
    let mut random = Random::new("faults of order statistics");
    let case = Case::<u64>::new(DATA[0], NULLS[1], 3000, &mut random);
    let ranks = KeyStatistics::build(&case.column, 1, &|| false).expect("memory");
    let distinct = DistinctCounts::build(&case.column, 1, &|| false).expect("memory");
    let batch = Batch::new(case.column.bits(), 500, &mut random);
    let expected = batch.ask(&ranks, &distinct).expect("lengths");
    let mut reached = 0;
    for fault in [Fault::Allocation, Fault::Launch, Fault::Wait] {
        for nth in 1..8 {
            let Some(engine) = open(&CudaOptions::default()) else {
                return;
            };
            let mut ranks = KeyStatistics::build(&case.column, 1, &|| false).expect("memory");
            let mut distinct = DistinctCounts::build(&case.column, 1, &|| false).expect("memory");
            engine.inject(fault, nth);
            // What is not copied, the CPU answers.
            let _ = ranks.copy_to(&engine, 1);
            let _ = distinct.copy_to(&engine, 1);
            let found = batch.ask(&ranks, &distinct).expect("the CPU answers");
            assert!(found == expected, "{fault:?} {nth}");
            reached += usize::from(!engine.inject(fault, 0));
        }
    }
    assert!(reached > 6, "{reached} faults");
}
