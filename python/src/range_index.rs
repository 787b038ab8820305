//! Range minima and maxima and order statistics of one array, by the engine alone.

use std::sync::{Arc, OnceLock};

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray};
use arrow::buffer::{BooleanBuffer, NullBuffer, ScalarBuffer};
use arrow::compute::{cast, concat, nullif};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Float32Type, Float64Type, Int32Type, Int64Type, UInt32Type,
    UInt64Type,
};
use numpy::{Element, PyArray1, PyReadonlyArray1};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3_arrow::input::AnyArray;
use rmq_engine::cpu::{CpuEngine, RankKey};
use rmq_engine::cuda::{CudaEngine, CudaOptions};
use rmq_engine::{
    Answers, BuildOptions, Column, Crossings, Encoding, Engine, EngineError, Extreme, RangeEnd,
    RangeIndex as EngineIndex, Validity,
};

use crate::errors::from_engine;
use crate::range_batches::{Found, Missing, answer_in_parts, mark_missing, missing, threads_for};
use crate::range_statistics::RangeStatistics;
use crate::runtime::check_process;

/// Values that are worth a thread that builds.
const VALUES_PER_THREAD: usize = 1 << 20;

/// The indexes of one array, for its minima, its maxima and its order statistics. Each is built when first needed.
///
/// Values come and go as their bits, unsigned integers of 32 or 64 bits; the Python class knows what they mean.
#[pyclass(frozen, module = "datafusion_rmq._native")]
pub struct RangeIndex {
    bits: Bits,
    /// The type of the values that are indexed.
    #[pyo3(get)]
    dtype: &'static str,
    /// The Arrow type of the array.
    #[pyo3(get)]
    arrow_type: String,
    /// The process that can use a GPU's memory. One that was forked from it can't.
    only_in: Option<u32>,
}

enum Bits {
    U32(Indexes<u32>),
    U64(Indexes<u64>),
}

/// Calls a method of either kind of indexes.
macro_rules! either {
    ($bits:expr, $indexes:ident => $call:expr) => {
        match $bits {
            Bits::U32($indexes) => $call,
            Bits::U64($indexes) => $call,
        }
    };
}

#[pymethods]
impl RangeIndex {
    /// Takes an Arrow array or a buffer of the machine's own numbers, without a copy, unless it comes in several
    /// chunks. NULL and NaN are no values, nor are those that are `missing`; a float array that has them is copied when
    /// it is indexed, as keys.
    #[new]
    fn new(
        py: Python<'_>,
        values: AnyArray,
        missing: Option<PyReadonlyArray1<'_, bool>>,
        device: &str,
        threads: usize,
    ) -> PyResult<Self> {
        let chunked = values.into_chunked_array()?;
        let (chunks, field) = chunked.into_inner();
        let engine: Arc<dyn Engine> = match device {
            "cpu" => Arc::new(CpuEngine::default()),
            "cuda" => {
                let opened = py.detach(|| CudaEngine::open(&CudaOptions::default()));
                Arc::new(opened.map_err(from_engine)?)
            }
            _ => {
                let text = format!("device='{device}': 'cpu' or 'cuda' is possible");
                return Err(PyValueError::new_err(text));
            }
        };
        let failed = |error: arrow::error::ArrowError| PyValueError::new_err(error.to_string());
        let array = match chunks.as_slice() {
            [] => arrow::array::new_empty_array(field.data_type()),
            [one] => Arc::clone(one),
            several => {
                let several: Vec<&dyn Array> = several.iter().map(AsRef::as_ref).collect();
                concat(&several).map_err(failed)?
            }
        };
        let array = match missing {
            Some(missing) => {
                let missing = BooleanArray::from(missing.as_slice()?.to_vec());
                nullif(&array, &missing).map_err(failed)?
            }
            None => array,
        };
        let arrow_type = array.data_type().to_string();
        let array = cast(&array, &indexed_type(array.data_type())?).map_err(failed)?;
        let answering = Answering {
            engine,
            // A device takes whole batches.
            threads: if device == "cuda" { 1 } else { threads },
            cpu_threads: threads,
        };
        let (bits, dtype) = match array.data_type() {
            DataType::Int32 => (
                Bits::U32(of::<Int32Type, _>(&array, answering, Encoding::signed())?),
                "int32",
            ),
            DataType::UInt32 => (
                Bits::U32(of::<UInt32Type, _>(
                    &array,
                    answering,
                    Encoding::unsigned(),
                )?),
                "uint32",
            ),
            DataType::Float32 => (
                Bits::U32(of::<Float32Type, _>(&array, answering, Encoding::float())?),
                "float32",
            ),
            DataType::UInt64 => (
                Bits::U64(of::<UInt64Type, _>(
                    &array,
                    answering,
                    Encoding::unsigned(),
                )?),
                "uint64",
            ),
            DataType::Float64 => (
                Bits::U64(of::<Float64Type, _>(&array, answering, Encoding::float())?),
                "float64",
            ),
            _ => (
                Bits::U64(of::<Int64Type, _>(&array, answering, Encoding::signed())?),
                "int64",
            ),
        };
        Ok(Self {
            bits,
            dtype,
            arrow_type,
            only_in: (device == "cuda").then(std::process::id),
        })
    }

    fn __len__(&self) -> usize {
        either!(&self.bits, indexes => indexes.column.len())
    }

    /// Bytes of the indexes that are built; the array is not counted.
    #[getter]
    fn index_bytes(&self) -> usize {
        either!(&self.bits, indexes => indexes.index_bytes())
    }

    /// The bits of the extreme value of each range, and which ranges have none, if any.
    fn values<'py>(
        &self,
        py: Python<'py>,
        largest: bool,
        left: PyReadonlyArray1<'py, i64>,
        right: PyReadonlyArray1<'py, i64>,
    ) -> PyResult<(Bound<'py, PyAny>, Missing<'py>)> {
        self.only_in.map_or(Ok(()), check_process)?;
        let (left, right) = (left.as_slice()?, right.as_slice()?);
        either!(&self.bits, indexes => {
            let found = indexes.answer(py, extreme(largest), left, right, true)?;
            let values = PyArray1::from_vec(py, found.values).into_any();
            Ok((values, missing(py, &found.valid, left.len())))
        })
    }

    /// The leftmost position of the extreme value of each range, -1 if there is none.
    fn positions<'py>(
        &self,
        py: Python<'py>,
        largest: bool,
        left: PyReadonlyArray1<'py, i64>,
        right: PyReadonlyArray1<'py, i64>,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        self.only_in.map_or(Ok(()), check_process)?;
        let (left, right) = (left.as_slice()?, right.as_slice()?);
        either!(&self.bits, indexes => {
            let mut found = indexes.answer(py, extreme(largest), left, right, false)?;
            mark_missing(&found.valid, &mut found.positions);
            Ok(PyArray1::from_vec(py, found.positions))
        })
    }

    /// The first or last position of each range whose value is at most, or at least, a threshold, given as bits; -1 if
    /// there is none.
    fn crossings<'py>(
        &self,
        py: Python<'py>,
        at_least: bool,
        last: bool,
        left: PyReadonlyArray1<'py, i64>,
        right: PyReadonlyArray1<'py, i64>,
        thresholds: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        self.only_in.map_or(Ok(()), check_process)?;
        let (left, right) = (left.as_slice()?, right.as_slice()?);
        let end = if last {
            RangeEnd::Last
        } else {
            RangeEnd::First
        };
        either!(&self.bits, indexes => {
            let bits: PyReadonlyArray1<'py, _> = thresholds.extract()?;
            let bits = bits.as_slice()?;
            let mut found = indexes.crossings(py, extreme(at_least), end, left, right, bits)?;
            mark_missing(&found.valid, &mut found.positions);
            Ok(PyArray1::from_vec(py, found.positions))
        })
    }

    /// The number of values of each range.
    fn counts<'py>(
        &self,
        py: Python<'py>,
        left: PyReadonlyArray1<'py, i64>,
        right: PyReadonlyArray1<'py, i64>,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let (left, right) = (left.as_slice()?, right.as_slice()?);
        either!(&self.bits, indexes => {
            let counts = indexes.statistics.counts(py, left, right)?;
            Ok(PyArray1::from_vec(py, counts))
        })
    }

    /// How many values of each range are below a threshold, given as bits.
    fn counts_below<'py>(
        &self,
        py: Python<'py>,
        left: PyReadonlyArray1<'py, i64>,
        right: PyReadonlyArray1<'py, i64>,
        thresholds: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let (left, right) = (left.as_slice()?, right.as_slice()?);
        either!(&self.bits, indexes => {
            let bits: PyReadonlyArray1<'py, _> = thresholds.extract()?;
            let counts = indexes.statistics.counts_below(py, left, right, bits.as_slice()?)?;
            Ok(PyArray1::from_vec(py, counts))
        })
    }

    /// How many distinct values each range has.
    fn counts_distinct<'py>(
        &self,
        py: Python<'py>,
        left: PyReadonlyArray1<'py, i64>,
        right: PyReadonlyArray1<'py, i64>,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let (left, right) = (left.as_slice()?, right.as_slice()?);
        either!(&self.bits, indexes => {
            let counts = indexes.statistics.counts_distinct(py, left, right)?;
            Ok(PyArray1::from_vec(py, counts))
        })
    }

    /// The bits of the value of each range that has `smaller` values before it, if the range's values are sorted, and
    /// which ranges have none, if any.
    fn nth_smallest<'py>(
        &self,
        py: Python<'py>,
        left: PyReadonlyArray1<'py, i64>,
        right: PyReadonlyArray1<'py, i64>,
        smaller: PyReadonlyArray1<'py, i64>,
    ) -> PyResult<(Bound<'py, PyAny>, Missing<'py>)> {
        let (left, right) = (left.as_slice()?, right.as_slice()?);
        let smaller = smaller.as_slice()?;
        either!(&self.bits, indexes => {
            let found = indexes.statistics.nth_smallest(py, left, right, smaller)?;
            let values = PyArray1::from_vec(py, found.values).into_any();
            Ok((values, missing(py, &found.valid, left.len())))
        })
    }
}

fn extreme(largest: bool) -> Extreme {
    if largest { Extreme::Max } else { Extreme::Min }
}

/// The type that values of a type are indexed as: with the same order, of 32 or 64 bits.
fn indexed_type(values: &DataType) -> PyResult<DataType> {
    use DataType as T;
    Ok(match values {
        T::Int8 | T::Int16 | T::Int32 | T::Date32 | T::Time32(_) => T::Int32,
        T::UInt8 | T::UInt16 | T::UInt32 => T::UInt32,
        T::Float16 | T::Float32 => T::Float32,
        T::Int64 | T::Timestamp(..) | T::Date64 | T::Time64(_) | T::Duration(_) => T::Int64,
        T::UInt64 => T::UInt64,
        T::Float64 => T::Float64,
        _ => {
            return Err(PyTypeError::new_err(format!(
                "values of the Arrow type {values} cannot be indexed; integers, floats, dates, times and durations can. \
                 In SQL, range_min and its relatives know more types"
            )));
        }
    })
}

/// Shares the values of an array with the engine.
fn of<T, K>(array: &ArrayRef, answering: Answering, encoding: Encoding<K>) -> PyResult<Indexes<K>>
where
    T: ArrowPrimitiveType,
    K: Bit,
{
    let values = array.as_primitive::<T>();
    let shared = values.values();
    let bits = ScalarBuffer::<K>::new(shared.inner().clone(), 0, shared.len());
    let mut column = Column::new(Arc::new(bits), encoding);
    if let Some(valid) = valid::<T>(array) {
        let offset = valid.offset();
        let bytes = valid.into_inner();
        let validity = Validity::new(Arc::new(Bytes(bytes)), offset);
        column = column.with_validity(validity).map_err(from_engine)?;
    }
    let Answering {
        engine,
        threads,
        cpu_threads,
    } = answering;
    Ok(Indexes {
        statistics: RangeStatistics::new(column.clone(), cpu_threads),
        column,
        engine,
        threads,
        min: OnceLock::new(),
        max: OnceLock::new(),
    })
}

/// What builds and answers.
struct Answering {
    engine: Arc<dyn Engine>,
    /// The most threads that call the engine.
    threads: usize,
    /// The most threads of what the CPU answers on any engine.
    cpu_threads: usize,
}

/// Which values there are: neither NULL nor NaN. `None` if all.
fn valid<T: ArrowPrimitiveType>(array: &ArrayRef) -> Option<BooleanBuffer> {
    let values = array.as_primitive::<T>().values();
    // Only NaN is not equal to itself.
    #[expect(clippy::eq_op, reason = "NaN")]
    let is_number = |i: usize| values[i] == values[i];
    let numbers = || NullBuffer::new(BooleanBuffer::collect_bool(values.len(), is_number));
    let numbers = T::DATA_TYPE.is_floating().then(numbers);
    let valid = NullBuffer::union(array.nulls(), numbers.as_ref())?;
    (valid.null_count() > 0).then(|| valid.into_inner())
}

/// An Arrow buffer as the bytes of a bitmap.
struct Bytes(arrow::buffer::Buffer);

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

/// A key that is also a number of Arrow and `NumPy`.
trait Bit: RankKey + Element + arrow::datatypes::ArrowNativeType {
    fn build(
        engine: &dyn Engine,
        column: Column<Self>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn EngineIndex<Self>>, EngineError>;
}

impl Bit for u32 {
    fn build(
        engine: &dyn Engine,
        column: Column<Self>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn EngineIndex<Self>>, EngineError> {
        engine.build_u32(column, options)
    }
}

impl Bit for u64 {
    fn build(
        engine: &dyn Engine,
        column: Column<Self>,
        options: &BuildOptions,
    ) -> Result<Arc<dyn EngineIndex<Self>>, EngineError> {
        engine.build_u64(column, options)
    }
}

struct Indexes<K: RankKey> {
    column: Column<K>,
    engine: Arc<dyn Engine>,
    threads: usize,
    min: OnceLock<Arc<dyn EngineIndex<K>>>,
    max: OnceLock<Arc<dyn EngineIndex<K>>>,
    statistics: RangeStatistics<K>,
}

impl<K: Bit> Indexes<K> {
    fn index_bytes(&self) -> usize {
        let both = [self.min.get(), self.max.get()].into_iter().flatten();
        let extremes: usize = both.map(|index| index.index_bytes()).sum();
        extremes + self.statistics.index_bytes()
    }

    /// The index for an extreme. Two threads that need it at a time may both build it.
    fn index(&self, py: Python<'_>, extreme: Extreme) -> PyResult<&Arc<dyn EngineIndex<K>>> {
        let slot = match extreme {
            Extreme::Min => &self.min,
            Extreme::Max => &self.max,
        };
        if let Some(index) = slot.get() {
            return Ok(index);
        }
        let column = self.column.directed(extreme);
        let options = BuildOptions {
            positions: true,
            threads: threads_for(column.len(), VALUES_PER_THREAD, self.threads),
        };
        let built = py.detach(|| K::build(self.engine.as_ref(), column, &options));
        let built = built.map_err(from_engine)?;
        Ok(slot.get_or_init(|| built))
    }

    fn answer(
        &self,
        py: Python<'_>,
        extreme: Extreme,
        left: &[i64],
        right: &[i64],
        by_value: bool,
    ) -> PyResult<Found<K>> {
        let index = self.index(py, extreme)?;
        let (values, positions) = if by_value {
            (left.len(), 0)
        } else {
            (0, left.len())
        };
        answer_in_parts(
            py,
            self.threads,
            left,
            right,
            (values, positions),
            |at, part| {
                index.answer(
                    &left[at..at + part.rows],
                    &right[at..at + part.rows],
                    Answers {
                        values: by_value.then_some(part.values),
                        positions: (!by_value).then_some(part.positions),
                        valid: part.valid,
                    },
                )
            },
        )
    }

    fn crossings(
        &self,
        py: Python<'_>,
        extreme: Extreme,
        end: RangeEnd,
        left: &[i64],
        right: &[i64],
        thresholds: &[K],
    ) -> PyResult<Found<K>> {
        let index = self.index(py, extreme)?;
        let encoding = index.encoding();
        answer_in_parts(
            py,
            self.threads,
            left,
            right,
            (0, left.len()),
            |at, part| {
                let rows = at..at + part.rows;
                let keys: Vec<K> = thresholds[rows.clone()]
                    .iter()
                    .map(|bits| encoding.encode(*bits))
                    .collect();
                index.crossings(
                    &left[rows.clone()],
                    &right[rows],
                    &keys,
                    end,
                    Crossings {
                        positions: part.positions,
                        valid: part.valid,
                    },
                )
            },
        )
    }
}
