//! Tables in memory, computed on all cores: the same rows in every run, whatever the number of cores.

use std::sync::Arc;
use std::thread;

use datafusion::arrow::array::{
    Array, ArrayRef, Float32Array, Float64Array, Int64Array, RecordBatch, StringArray,
    TimestampMicrosecondArray,
};
use datafusion::arrow::buffer::{Buffer, OffsetBuffer};
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::prelude::SessionContext;

use rmq_bench::random::{mix, unit};
use rmq_bench::workload::{Bounds, Workload};

/// Rows in a batch, as DataFusion's own readers produce them.
const BATCH_SIZE: usize = 8192;

/// Symbols of the quotes.
pub const SYMBOLS: usize = 500;

/// The mean time between two quotes in microseconds.
const QUOTE_GAP: f64 = 400.0;

/// The number of bytes of a symbol.
const SYMBOL_BYTES: usize = 9;

/// The values of one random sequence. Sequences with different numbers are independent.
#[derive(Clone, Copy)]
struct Sequence(u64);

impl Sequence {
    fn key(self, i: usize) -> u64 {
        (self.0 << 48) + i as u64
    }

    /// Returns number `i`, uniform in (0, 1).
    fn unit(self, i: usize) -> f64 {
        unit(self.key(i))
    }
}

/// A table in memory: arrays of [`BATCH_SIZE`] rows, each with memory of its own.
pub struct Table {
    name: &'static str,
    batches: Vec<RecordBatch>,
}

impl Table {
    /// Builds a table of `rows` rows from a function that returns the columns of rows `start..end`.
    fn build(
        name: &'static str,
        rows: usize,
        columns: impl Fn(usize, usize, usize) -> Vec<(&'static str, ArrayRef)> + Sync,
    ) -> Result<Self> {
        let batches = in_parallel(rows.div_ceil(BATCH_SIZE), |batch| {
            let start = batch * BATCH_SIZE;
            RecordBatch::try_from_iter(columns(batch, start, rows.min(start + BATCH_SIZE)))
        });
        let batches = batches.into_iter().collect::<Result<_, _>>()?;
        Ok(Self { name, batches })
    }

    /// Registers the table. Each partition is one contiguous part of the rows.
    pub fn register(&self, ctx: &SessionContext, partitions: usize) -> Result<()> {
        let share = self.batches.len().div_ceil(partitions).max(1);
        let partitions = self.batches.chunks(share).map(<[_]>::to_vec).collect();
        let table = MemTable::try_new(self.batches[0].schema(), partitions)?;
        ctx.register_table(self.name, Arc::new(table))?;
        Ok(())
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    pub fn rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// Returns the bytes of some columns.
    pub fn bytes(&self, columns: &[&str]) -> usize {
        let of_batch = |batch: &RecordBatch| -> usize {
            let columns = columns.iter().map(|name| batch.column_by_name(name));
            let bytes = columns.map(|column| column.map_or(0, |c| c.get_buffer_memory_size()));
            bytes.sum()
        };
        self.batches.iter().map(of_batch).sum()
    }
}

/// Quotes by time: a symbol of 9 bytes, a time with random gaps, and a price with 18 bits after the point, so that sums
/// of up to 2^28 are exact.
pub fn quotes(rows: usize) -> Result<Table> {
    let times = Times::new(rows, QUOTE_GAP, Sequence(1));
    let (symbols, prices) = (Symbols::new(Sequence(2)), Sequence(3));
    Table::build("quotes", rows, |batch, start, end| {
        let price = |i| 100.0 + (mix(prices.key(i)) >> 46) as f64 / f64::from(1 << 18);
        let prices: Float64Array = (start..end).map(price).map(Some).collect();
        vec![
            ("sym", symbols.array(start, end)),
            ("ts", times.array(batch, start, end)),
            ("price", Arc::new(prices)),
        ]
    })
}

/// Trades by time, over the time of `quotes` quotes: an ascending id, a symbol and a time.
pub fn trades(name: &'static str, rows: usize, quotes: usize) -> Result<Table> {
    let gap = QUOTE_GAP * quotes as f64 / rows as f64;
    let times = Times::new(rows, gap, Sequence(4));
    let symbols = Symbols::new(Sequence(5));
    Table::build(name, rows, |batch, start, end| {
        let ids: Int64Array = (start..end).map(|i| Some(i as i64)).collect();
        vec![
            ("id", Arc::new(ids)),
            ("sym", symbols.array(start, end)),
            ("ts", times.array(batch, start, end)),
        ]
    })
}

/// A column of values with 24 bits, whose sums of up to 2^29 are exact.
pub fn values(rows: usize) -> Result<Table> {
    let values = Sequence(6);
    Table::build("v", rows, |_, start, end| {
        vec![("v", Arc::new(singles(values, start, end)))]
    })
}

/// Rows in no order: a random key below the number of rows, and a value.
pub fn unsorted(rows: usize) -> Result<Table> {
    let (keys, values) = (Sequence(7), Sequence(8));
    Table::build("u", rows, |_, start, end| {
        let keys: Int64Array = (start..end)
            .map(|i| Some((keys.unit(i) * rows as f64) as i64))
            .collect();
        vec![
            ("pos", Arc::new(keys)),
            ("v", Arc::new(singles(values, start, end))),
        ]
    })
}

/// Ranges of the workload `Mixed` over `0..n`.
pub fn ranges(name: &'static str, n: usize, count: usize) -> Result<Table> {
    let Bounds { left, right } = Workload::Mixed.bounds(n, count);
    Table::build(name, count, |_, start, end| {
        let array = |bounds: &[i64]| Arc::new(Int64Array::from(bounds[start..end].to_vec()));
        vec![("l", array(&left)), ("r", array(&right))]
    })
}

fn singles(values: Sequence, start: usize, end: usize) -> Float32Array {
    let value = |i| (mix(values.key(i)) >> 40) as f32 / (1 << 24) as f32;
    (start..end).map(value).map(Some).collect()
}

/// Ascending times whose gaps are distributed exponentially.
struct Times {
    gaps: Sequence,
    mean: f64,
    /// The time before the first row of each batch.
    starts: Vec<i64>,
}

impl Times {
    fn new(rows: usize, mean: f64, gaps: Sequence) -> Self {
        let mut times = Self {
            gaps,
            mean,
            starts: vec![],
        };
        let mut starts = in_parallel(rows.div_ceil(BATCH_SIZE), |batch| {
            let rows = batch * BATCH_SIZE..rows.min((batch + 1) * BATCH_SIZE);
            rows.map(|i| times.gap(i)).sum::<i64>()
        });
        let mut time = 0;
        for start in &mut starts {
            time += std::mem::replace(start, time);
        }
        times.starts = starts;
        times
    }

    fn gap(&self, i: usize) -> i64 {
        (-self.gaps.unit(i).ln() * self.mean) as i64
    }

    fn array(&self, batch: usize, start: usize, end: usize) -> ArrayRef {
        let times = (start..end).scan(self.starts[batch], |time, i| {
            *time += self.gap(i);
            Some(*time)
        });
        Arc::new(times.map(Some).collect::<TimestampMicrosecondArray>())
    }
}

/// Random symbols with Zipf frequencies: number `k` of [`SYMBOLS`] is drawn about in proportion to 1 / k.
struct Symbols {
    names: Vec<[u8; SYMBOL_BYTES]>,
    /// The cumulative frequencies of the symbols, in 65536 steps: the first symbol that a step can be.
    steps: Vec<u16>,
    draws: Sequence,
}

impl Symbols {
    fn new(draws: Sequence) -> Self {
        let name = |k: usize| {
            let letter = char::from(b'A' + (k % 8) as u8);
            let name = format!("{letter}{k:03}.XNAS");
            name.into_bytes().try_into().expect("names have 9 bytes")
        };
        let step = |step: u32| (SYMBOLS as f64 + 1.0).powf(f64::from(step) / 65536.0) as u16 - 1;
        Self {
            names: (0..SYMBOLS).map(name).collect(),
            steps: (0..65536).map(step).collect(),
            draws,
        }
    }

    fn array(&self, start: usize, end: usize) -> ArrayRef {
        let mut bytes = Vec::with_capacity((end - start) * SYMBOL_BYTES);
        for i in start..end {
            let step = (mix(self.draws.key(i)) >> 48) as usize;
            bytes.extend_from_slice(&self.names[usize::from(self.steps[step])]);
        }
        let lengths = std::iter::repeat_n(SYMBOL_BYTES, end - start);
        let offsets = OffsetBuffer::from_lengths(lengths);
        Arc::new(StringArray::new(offsets, Buffer::from_vec(bytes), None))
    }
}

/// Returns the results of `work` for `0..count`, computed on all cores.
fn in_parallel<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let share = count.div_ceil(threads).max(1);
    thread::scope(|scope| {
        let work = &work;
        let parts: Vec<_> = (0..count)
            .step_by(share)
            .map(|start| {
                let part = start..count.min(start + share);
                scope.spawn(move || part.map(work).collect::<Vec<_>>())
            })
            .collect();
        let parts = parts.into_iter().map(|part| part.join());
        parts
            .flat_map(|part| part.expect("the work does not panic"))
            .collect()
    })
}
