//! SQL against a naive scan and against DataFusion's own MIN and MAX: every type, NULLs, special values, ties,
//! orders, sizes at chunk and level boundaries, ranges of every kind.
//!
//! `RMQ_TEST_SEED` repeats a run, `RMQ_TEST_CASE` repeats one case; `RMQ_CASES` sets the number of cases.

use std::cmp::Ordering;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, FixedSizeBinaryArray, Float32Array,
    Float64Array, Int64Array, IntervalDayTimeArray, IntervalMonthDayNanoArray, StringArray,
    UInt16Array, UInt32Array, UInt64Array, make_comparator,
};
use datafusion::arrow::compute::{CastOptions, SortOptions, cast, cast_with_options, take};
use datafusion::arrow::datatypes::{
    DataType, Decimal128Type, Decimal256Type, Int64Type, IntervalDayTime, IntervalMonthDayNano,
    IntervalUnit, TimeUnit, i256,
};
use datafusion::functions_aggregate::min_max::{MaxAccumulator, MinAccumulator};
use datafusion::logical_expr::Accumulator;
use datafusion::prelude::SessionContext;
use datafusion::scalar::ScalarValue;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use crate::support::{register, run, session, skipped};
use rmq_testing::{Random, cases, is_usual};

/// The number of ranges per case.
const RANGES: usize = 2500;

/// The default number of cases per run; `RMQ_CASES` overrides it.
const CASES: usize = 420;

/// Seeds of cases that failed in the past.
const FAILED: [u64; 0] = [];

pub fn types() -> Vec<DataType> {
    use DataType as T;
    let utc = Some("Europe/Zurich".into());
    let dictionary = |key, value| T::Dictionary(Box::new(key), Box::new(value));
    vec![
        T::Int8,
        T::Int16,
        T::Int32,
        T::Int64,
        T::UInt8,
        T::UInt16,
        T::UInt32,
        T::UInt64,
        T::Float16,
        T::Float32,
        T::Float64,
        T::Decimal32(9, 2),
        T::Decimal64(18, 3),
        T::Decimal128(38, 4),
        T::Decimal256(76, 5),
        T::Date32,
        T::Date64,
        T::Time32(TimeUnit::Second),
        T::Time32(TimeUnit::Millisecond),
        T::Time64(TimeUnit::Microsecond),
        T::Time64(TimeUnit::Nanosecond),
        T::Timestamp(TimeUnit::Second, None),
        T::Timestamp(TimeUnit::Millisecond, utc),
        T::Timestamp(TimeUnit::Microsecond, None),
        T::Timestamp(TimeUnit::Nanosecond, Some("+05:30".into())),
        T::Duration(TimeUnit::Second),
        T::Duration(TimeUnit::Nanosecond),
        T::Interval(IntervalUnit::YearMonth),
        T::Interval(IntervalUnit::DayTime),
        T::Interval(IntervalUnit::MonthDayNano),
        T::Boolean,
        T::Utf8,
        T::LargeUtf8,
        T::Utf8View,
        T::Binary,
        T::LargeBinary,
        T::BinaryView,
        T::FixedSizeBinary(3),
        T::Null,
        dictionary(T::Int32, T::Utf8),
        dictionary(T::UInt8, T::LargeUtf8),
        dictionary(T::Int16, T::Int64),
        dictionary(T::Int32, T::Float64),
    ]
}

/// Maps random bits to an integer; limits and special values are frequent.
fn number(random: u64, few: bool) -> i64 {
    match random % 16 {
        0 => i64::MAX,
        1 => i64::MIN,
        2 => -1,
        3 => 0,
        _ if few => (random >> 8).cast_signed() % 5,
        _ => (random >> 4).cast_signed(),
    }
}

fn float(random: u64, few: bool) -> f64 {
    match random % 24 {
        0 => f64::NAN,
        1 => -f64::NAN,
        2 => f64::from_bits(0x7ff4_0000_0000_0001),
        3 => f64::INFINITY,
        4 => f64::NEG_INFINITY,
        5 => 0.0,
        6 => -0.0,
        7 => f64::MIN_POSITIVE / 2.0,
        _ if few => ((random >> 8) % 5) as f64 - 2.0,
        _ => f64::from_bits(random.rotate_left(17)),
    }
}

/// Builds an array of any of `types()` from random bits.
pub fn array(data_type: &DataType, bits: &[Option<u64>], few: bool) -> ArrayRef {
    use DataType as T;
    let numbers = || bits.iter().map(|b| b.map(|b| number(b, few)));
    let floats = || bits.iter().map(|b| b.map(|b| float(b, few)));
    let text = |b: u64| {
        let length = if few { 1 } else { (b % 20) as usize };
        "zebra äöü 0123456789 the quick brown fox"
            .chars()
            .skip((b >> 8) as usize % 20)
            .take(length)
            .collect::<String>()
    };
    match data_type {
        T::Int64 => Arc::new(Int64Array::from_iter(numbers())),
        T::UInt64 => Arc::new(UInt64Array::from_iter(
            numbers().map(|n| n.map(i64::cast_unsigned)),
        )),
        // Narrower integers wrap around, so that their own limits occur.
        T::Int8 | T::Int16 | T::Int32 | T::UInt8 | T::UInt16 | T::UInt32 => {
            let width = data_type.primitive_width().expect("an integer") * 8;
            let signed = data_type.is_signed_integer();
            let wrapped = numbers().map(|n| {
                n.map(|n| {
                    let high = n << (64 - width);
                    if signed {
                        high >> (64 - width)
                    } else {
                        (high.cast_unsigned() >> (64 - width)).cast_signed()
                    }
                })
            });
            exact(
                &(Arc::new(Int64Array::from_iter(wrapped)) as ArrayRef),
                data_type,
            )
        }
        T::Float64 => Arc::new(Float64Array::from_iter(floats())),
        T::Float32 => {
            let special = |b: u64| {
                if b % 24 < 8 {
                    float(b, few) as f32
                } else {
                    f32::from_bits((b >> 9) as u32)
                }
            };
            Arc::new(Float32Array::from_iter(bits.iter().map(|b| b.map(special))))
        }
        T::Float16 => {
            let halves = bits.iter().map(|b| b.map(|b| (b >> 5) as u16));
            relabel(&UInt16Array::from_iter(halves).to_data(), data_type)
        }
        T::Boolean => Arc::new(BooleanArray::from_iter(
            bits.iter().map(|b| b.map(|b| b % 3 == 0)),
        )),
        T::Decimal128(p, s) => {
            let wide = numbers().map(|n| n.map(|n| i128::from(n) * 1_000_000_007));
            let wide = wide.collect::<datafusion::arrow::array::PrimitiveArray<Decimal128Type>>();
            Arc::new(
                wide.with_precision_and_scale(*p, *s)
                    .expect("a valid precision"),
            )
        }
        T::Decimal256(p, s) => {
            let wide = numbers().map(|n| {
                n.map(|n| i256::from_parts(7, i128::from(n)).wrapping_mul(i256::from(n >> 32)))
            });
            let wide = wide.collect::<datafusion::arrow::array::PrimitiveArray<Decimal256Type>>();
            Arc::new(
                wide.with_precision_and_scale(*p, *s)
                    .expect("a valid precision"),
            )
        }
        T::Interval(IntervalUnit::DayTime) => {
            let interval = |n: i64| IntervalDayTime::new((n >> 40) as i32, n as i32);
            Arc::new(IntervalDayTimeArray::from_iter(
                numbers().map(|n| n.map(interval)),
            ))
        }
        T::Interval(IntervalUnit::MonthDayNano) => {
            let interval = |n: i64| IntervalMonthDayNano::new((n % 3) as i32, (n >> 60) as i32, n);
            Arc::new(IntervalMonthDayNanoArray::from_iter(
                numbers().map(|n| n.map(interval)),
            ))
        }
        T::Utf8 => Arc::new(StringArray::from_iter(bits.iter().map(|b| b.map(text)))),
        T::LargeUtf8 | T::Utf8View => exact(&array(&T::Utf8, bits, few), data_type),
        T::Binary => {
            Arc::new(BinaryArray::from_iter(bits.iter().map(|b| {
                b.map(|b| b.to_be_bytes()[..(b % 9) as usize].to_vec())
            })))
        }
        T::LargeBinary | T::BinaryView => exact(&array(&T::Binary, bits, few), data_type),
        T::FixedSizeBinary(n) => {
            let bytes = bits
                .iter()
                .map(|b| b.map(|b| b.to_le_bytes()[..*n as usize].to_vec()));
            Arc::new(
                FixedSizeBinaryArray::try_from_sparse_iter_with_size(bytes, *n)
                    .expect("bytes of one size"),
            )
        }
        T::Dictionary(_, value) => exact(&array(value, &few_bits(bits), true), data_type),
        T::Null => datafusion::arrow::array::new_null_array(&T::Null, bits.len()),
        // Everything else is a 32-bit or 64-bit integer to Arrow.
        other if other.primitive_width() == Some(4) => {
            let narrow = array(&T::Int32, bits, few).to_data();
            relabel(&narrow, other)
        }
        other => relabel(&array(&T::Int64, bits, few).to_data(), other),
    }
}

/// Maps to few distinct values, which fit a dictionary of any key type.
fn few_bits(bits: &[Option<u64>]) -> Vec<Option<u64>> {
    bits.iter().map(|b| b.map(|b| b % 100)).collect()
}

fn relabel(data: &datafusion::arrow::array::ArrayData, data_type: &DataType) -> ArrayRef {
    let data = data
        .clone()
        .into_builder()
        .data_type(data_type.clone())
        .build()
        .expect("the same layout");
    datafusion::arrow::array::make_array(data)
}

fn exact(array: &ArrayRef, data_type: &DataType) -> ArrayRef {
    let options = CastOptions {
        safe: false,
        ..Default::default()
    };
    cast_with_options(array, data_type, &options).expect("the values fit")
}

/// The distribution and order of a column's values.
#[derive(Debug, Clone, Copy)]
enum Shape {
    Random,
    FewValues,
    Increasing,
    Decreasing,
    Constant,
}

#[derive(Debug, Clone)]
struct Case {
    data_type: DataType,
    rows: usize,
    shape: Shape,
    /// The number of NULLs per 256 values.
    nulls: u8,
    seed: u64,
    batches: usize,
}

fn case() -> impl Strategy<Value = Case> {
    let edges = vec![0_usize, 1, 2, 15, 16, 17, 255, 256, 257, 4095, 4096, 4097];
    let rows = prop_oneof![
        4 => prop::sample::select(edges),
        1 => Just(16 * 4096 + 1),
        4 => 1_usize..3000,
    ];
    let shape = prop::sample::select(vec![
        Shape::Random,
        Shape::FewValues,
        Shape::Increasing,
        Shape::Decreasing,
        Shape::Constant,
    ]);
    let nulls = prop::sample::select(vec![0_u8, 0, 20, 128, 250, 255]);
    (
        prop::sample::select(types()),
        rows,
        shape,
        nulls,
        any::<u64>(),
        0_usize..4,
    )
        .prop_map(|(data_type, rows, shape, nulls, seed, batches)| Case {
            data_type,
            rows,
            shape,
            nulls,
            seed,
            batches,
        })
}

fn column(case: &Case, random: &mut Random) -> ArrayRef {
    let constant = random.next();
    let bits: Vec<_> = (0..case.rows)
        .map(|_| {
            let bits = if matches!(case.shape, Shape::Constant) {
                constant
            } else {
                random.next()
            };
            let null = case.nulls == 255 || (random.next() % 256) < u64::from(case.nulls);
            (!null).then_some(bits)
        })
        .collect();
    let few = matches!(case.shape, Shape::FewValues);
    let values = array(&case.data_type, &bits, few);
    let descending = match case.shape {
        Shape::Increasing => false,
        Shape::Decreasing => true,
        _ => return values,
    };
    // Sorts the values; NULLs keep their positions.
    let (ranks, _) = ranks(&plain(&values));
    let mut order: Vec<u32> = (0..case.rows as u32)
        .filter(|i| values.is_valid(*i as usize))
        .collect();
    order.sort_by_key(|i| ranks[*i as usize]);
    if descending {
        order.reverse();
    }
    let mut sorted = order.into_iter();
    let indices = (0..case.rows).map(|i| {
        if values.is_valid(i) {
            sorted.next()
        } else {
            None
        }
    });
    take(&values, &UInt32Array::from_iter(indices), None).expect("rows of the array")
}

/// Decodes a dictionary array; returns other arrays unchanged.
fn plain(values: &ArrayRef) -> ArrayRef {
    match values.data_type() {
        DataType::Dictionary(_, value) => cast(values, value).expect("a dictionary's own values"),
        _ => Arc::clone(values),
    }
}

/// Returns the dense rank of each value in Arrow's order, `u32::MAX` for NULL, and whether the type has an order.
fn ranks(values: &ArrayRef) -> (Vec<u32>, bool) {
    let n = values.len();
    if *values.data_type() == DataType::Null {
        return (vec![u32::MAX; n], false);
    }
    let compare = make_comparator(values, values, SortOptions::default()).expect("an ordered type");
    let mut order: Vec<usize> = (0..n).filter(|i| values.is_valid(*i)).collect();
    order.sort_by(|a, b| compare(*a, *b));
    let mut ranks = vec![u32::MAX; n];
    let mut rank = 0;
    for (i, row) in order.iter().enumerate() {
        if i > 0 && compare(order[i - 1], *row) != Ordering::Equal {
            rank += 1;
        }
        ranks[*row] = rank;
    }
    (ranks, true)
}

/// Returns a range of a random kind: short, long, one row, all rows, reversed, outside, at the limits of Int64.
fn range(n: usize, random: &mut Random) -> (Option<i64>, Option<i64>) {
    let n = n as i64;
    let position = |random: &mut Random| random.below(n as usize + 1) as i64;
    match random.below(16) {
        0 => (Some(i64::MIN), Some(i64::MAX)),
        1 => (None, Some(position(random))),
        2 => (Some(position(random)), None),
        3 => (Some(-5), Some(position(random))),
        4 => (Some(position(random)), Some(n + 7)),
        5 => (Some(n), Some(n + 100)),
        6 => (Some(-100), Some(-1)),
        7 | 8 => {
            let l = position(random);
            (Some(l), Some(l))
        }
        9 | 10 => (Some(position(random)), Some(position(random))),
        _ => {
            let l = position(random);
            let length = 1_usize << random.below(13);
            (Some(l), Some(l + random.below(length) as i64))
        }
    }
}

/// Finds the leftmost row of the smallest and of the largest value by a scan.
fn naive(ranks: &[u32], l: Option<i64>, r: Option<i64>) -> [Option<u32>; 2] {
    let (Some(l), Some(r)) = (l, r) else {
        return [None, None];
    };
    let (l, r) = (l.max(0), r.min(ranks.len() as i64 - 1));
    let mut best: [Option<u32>; 2] = [None, None];
    for row in l..=r {
        let (row, rank) = (row as u32, ranks[row as usize]);
        if rank == u32::MAX {
            continue;
        }
        if best[0].is_none_or(|b| rank < ranks[b as usize]) {
            best[0] = Some(row);
        }
        if best[1].is_none_or(|b| rank > ranks[b as usize]) {
            best[1] = Some(row);
        }
    }
    best
}

/// Returns the result of DataFusion's ungrouped aggregates over a slice; `None` for an unsupported type.
fn datafusion_extremes(slice: &ArrayRef) -> Option<[ScalarValue; 2]> {
    let mut min = MinAccumulator::try_new(slice.data_type()).ok()?;
    let mut max = MaxAccumulator::try_new(slice.data_type()).ok()?;
    min.update_batch(&[Arc::clone(slice)]).ok()?;
    max.update_batch(&[Arc::clone(slice)]).ok()?;
    Some([min.evaluate().ok()?, max.evaluate().ok()?])
}

/// Queries all ranges of one case; returns the number of results that were also compared with DataFusion's.
async fn check(case: &Case) -> Result<usize, TestCaseError> {
    let ctx: SessionContext = session();
    let mut random = Random::from_seed(case.seed);
    let values = column(case, &mut random);
    let mut lengths: Vec<usize> = (0..case.batches)
        .map(|_| random.below(case.rows + 1))
        .collect();
    lengths.sort_unstable();
    let lengths: Vec<usize> = std::iter::once(0)
        .chain(lengths.iter().copied())
        .collect::<Vec<_>>()
        .windows(2)
        .map(|w| w[1] - w[0])
        .collect();
    register(&ctx, "t", &[("v", Arc::clone(&values))], &lengths);
    let ranges: Vec<_> = (0..RANGES).map(|_| range(case.rows, &mut random)).collect();
    let left: ArrayRef = Arc::new(Int64Array::from_iter(ranges.iter().map(|r| r.0)));
    let right: ArrayRef = Arc::new(Int64Array::from_iter(ranges.iter().map(|r| r.1)));
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..RANGES as i64));
    register(
        &ctx,
        "q",
        &[("id", ids), ("l", left), ("r", right)],
        &[700, 1],
    );

    let sql = "SELECT range_min('t.v', l, r), range_max('t.v', l, r), \
               range_argmin('t.v', l, r), range_argmax('t.v', l, r) FROM q ORDER BY id";
    let got = run(&ctx, sql)
        .await
        .map_err(|e| TestCaseError::fail(format!("{case:?}: {e}")))?;
    prop_assert_eq!(got.num_rows(), RANGES);

    let values = plain(&values);
    let (ranks, _) = ranks(&values);
    let expected: Vec<_> = ranges.iter().map(|(l, r)| naive(&ranks, *l, *r)).collect();
    for (side, name) in ["min", "max"].into_iter().enumerate() {
        let rows = UInt32Array::from_iter(expected.iter().map(|e| e[side]));
        let positions = got.column(2 + side).as_primitive::<Int64Type>();
        for (i, row) in rows.iter().enumerate() {
            let position = positions.is_valid(i).then(|| positions.value(i));
            prop_assert_eq!(
                position,
                row.map(i64::from),
                "arg{} of {:?} in {:?}",
                name,
                ranges[i],
                case
            );
        }
        let value = take(&values, &rows, None).expect("rows of the column");
        let column = got.column(side);
        prop_assert_eq!(column.data_type(), value.data_type());
        // Arrow compares the bits of floats, which distinguishes NaNs and zeros.
        prop_assert!(
            column.to_data() == value.to_data(),
            "{} in {:?}",
            name,
            case
        );
    }

    let mut compared = 0;
    for (i, (l, r)) in ranges.iter().enumerate().step_by(RANGES / 20) {
        let (Some(l), Some(r)) = (l, r) else { continue };
        let (l, r) = ((*l).max(0), (*r).min(case.rows as i64 - 1));
        if l > r {
            continue;
        }
        let slice = values.slice(l as usize, (r - l + 1) as usize);
        if let Some(extremes) = datafusion_extremes(&slice) {
            for (side, extreme) in extremes.into_iter().enumerate() {
                let ours = ScalarValue::try_from_array(got.column(side), i).expect("a row");
                prop_assert_eq!(&ours, &extreme, "range {}..={} in {:?}", l, r, case);
            }
            compared += 1;
        }
    }
    Ok(compared)
}

#[test]
fn sql_agrees_with_a_naive_scan_and_with_datafusion() {
    if skipped() {
        return;
    }
    let cases = cases("SQL against a naive scan", &FAILED, CASES);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let answered = std::cell::Cell::new(0);
    let compared = std::cell::Cell::new(0);
    for seed in cases {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&Random::of_case(seed).next().to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let config = Config {
            cases: 1,
            failure_persistence: None,
            max_shrink_iters: 60,
            ..Config::default()
        };
        let result = TestRunner::new_with_rng(config, rng).run(&case(), |case| {
            compared.set(compared.get() + runtime.block_on(check(&case))?);
            answered.set(answered.get() + RANGES);
            Ok(())
        });
        if let Err(error) = result {
            panic!("{error}");
        }
    }
    println!(
        "{} ranges queried by four functions, {} compared with MIN and MAX",
        answered.get(),
        compared.get()
    );
    assert!(answered.get() >= 1_000_000 || !is_usual());
    assert!(compared.get() > 0 || !is_usual());
}
