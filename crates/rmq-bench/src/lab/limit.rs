//! Columns and queries generated on the device, answers compared there, and the limits of its memory:
//! `kernels/baselines/limit.cu`.

use rmq_bench::clock::Timing;
use rmq_engine::EngineError;
use rmq_engine::cuda::driver::module::{Function, Module};
use rmq_engine::cuda::driver::stream::argument;
use rmq_engine::cuda::rmq::index::KernelOutput;

use rmq_engine::cuda::memory::device_memory::DeviceMemory;

use super::device::{DeviceAnswers, DeviceBounds, DeviceColumn, Lab};

const LIMIT: Module = Module {
    name: "limit",
    ptx: include_str!("../../../../kernels/baselines/ptx/limit.ptx"),
};

/// The lengths of ranges in a column of n values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ranges {
    /// Uniform in [1, n].
    Large,
    /// Log-normal around n^0.6.
    Medium,
    /// Log-normal around n^0.3.
    Small,
    /// A third of each.
    Mixed,
}

/// The seed of columns; that of queries is the next number.
const SEED: u64 = 777;

impl Lab {
    /// Returns a kernel of `limit.cu`.
    pub(super) fn limit(&self, name: &str) -> Result<Function, EngineError> {
        self.gpu.modules.function(LIMIT, name)
    }

    /// Fills a column with f32 values uniform in [0, 1). A value of 8 bytes is a pair of them, whose order is as
    /// random.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn fill_uniform(&self, column: &DeviceColumn) -> Result<(), EngineError> {
        let kernel = self.limit("limit_values")?;
        let values = column.rows * column.key_bytes as u64 / 4;
        let address = column.memory.address();
        let arguments = [argument(&address), argument(&values), argument(&SEED)];
        // SAFETY: the column has room for that many values of 4 bytes; arguments are those of `limit_values`.
        unsafe { self.stream.launch(kernel, values.min(1 << 22), arguments)? };
        self.stream.wait()
    }

    /// Generates the bounds of `count` ranges in a column.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn bounds(
        &self,
        ranges: Ranges,
        column: &DeviceColumn,
        count: u32,
    ) -> Result<DeviceBounds, EngineError> {
        let (width, name) = if column.wide_positions {
            (8, "limit_queries_p64")
        } else {
            (4, "limit_queries_p32")
        };
        let bounds = DeviceBounds {
            left: self.allocate(count as usize * width)?,
            right: self.allocate(count as usize * width)?,
            count,
        };
        let kernel = self.limit(name)?;
        let (left, right) = (bounds.left.address(), bounds.right.address());
        let (workload, seed) = (ranges as u32, SEED + 1);
        let arguments = [
            argument(&left),
            argument(&right),
            argument(&count),
            argument(&column.rows),
            argument(&workload),
            argument(&seed),
        ];
        // SAFETY: both have that many bounds; arguments are those of `limit_queries`.
        unsafe { self.stream.launch(kernel, count.into(), arguments)? };
        self.stream.wait()?;
        Ok(bounds)
    }

    /// Sorts ranges of a column by their bounds, on the host.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn sort(&self, bounds: &DeviceBounds, column: &DeviceColumn) -> Result<(), EngineError> {
        let words_each = if column.wide_positions { 2 } else { 1 };
        let (left, right) = (
            self.numbers(&bounds.left, column, bounds.count)?,
            self.numbers(&bounds.right, column, bounds.count)?,
        );
        let mut ranges: Vec<_> = left.into_iter().zip(right).collect();
        ranges.sort_unstable();
        let bytes = |numbers: &mut dyn Iterator<Item = u64>| -> Vec<u8> {
            let mut bytes = Vec::with_capacity(ranges.len() * words_each * 4);
            for number in numbers {
                bytes.extend_from_slice(&number.to_le_bytes()[..words_each * 4]);
            }
            bytes
        };
        let left = bytes(&mut ranges.iter().map(|range| range.0));
        self.upload(&bounds.left, 0, &left)?;
        let right = bytes(&mut ranges.iter().map(|range| range.1));
        self.upload(&bounds.right, 0, &right)
    }

    /// Answers the first `count` ranges by a scan of all threads, one range after the other.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If there are fewer bounds, or less memory for answers.
    pub fn scan_by_all_threads(
        &self,
        column: &DeviceColumn,
        bounds: &DeviceBounds,
        answers: &DeviceAnswers,
        (output, count): (KernelOutput, u32),
    ) -> Result<(), EngineError> {
        assert!(count <= bounds.count && count as usize * 8 <= answers.values.bytes());
        let key = if column.key_bytes == 4 { "u32" } else { "u64" };
        let least = self.limit(&format!("limit_least_{key}"))?;
        let leftmost = self.limit(&format!("limit_leftmost_{key}"))?;
        let (left, right) = (
            self.numbers(&bounds.left, column, count)?,
            self.numbers(&bounds.right, column, count)?,
        );
        let values = column.memory.address();
        // SAFETY: the memory is that long.
        unsafe {
            for memory in [&answers.values, &answers.positions] {
                self.stream
                    .memset(memory.address(), 0xFF, count as usize * 8)?;
            }
        }
        for (i, (first, last)) in left.into_iter().zip(right).enumerate() {
            let end = last + 1;
            let value = answers.values.address() + (i * column.key_bytes) as u64;
            let position = answers.positions.address() + i as u64 * 8;
            let threads = (end - first).min(1 << 20);
            // SAFETY: ranges are within the column; arguments are those of the two kernels, and the second follows the
            // first on the stream.
            unsafe {
                let (column, from, to) = (argument(&values), argument(&first), argument(&end));
                let value = argument(&value);
                (self.stream).launch(least, threads, [column, from, to, value])?;
                if output != KernelOutput::Value {
                    let arguments = [column, from, to, value, argument(&position)];
                    self.stream.launch(leftmost, threads, arguments)?;
                }
            }
        }
        self.stream.wait()
    }

    /// Copies the first `count` of a column's bounds to the host.
    fn numbers(
        &self,
        memory: &DeviceMemory,
        column: &DeviceColumn,
        count: u32,
    ) -> Result<Vec<u64>, EngineError> {
        let words_each = if column.wide_positions { 2 } else { 1 };
        let words = self.words(memory, count as usize * words_each)?;
        let number = |words: &[u32]| match *words {
            [low, high] => u64::from(high) << 32 | u64::from(low),
            [low] => low.into(),
            _ => unreachable!("a number has one or two words"),
        };
        Ok(words.chunks(words_each).map(number).collect())
    }

    /// Measures how long it takes to read, for each of `count` ranges, the two lines of 128 bytes that hold its ends.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If values do not have 4 bytes, or there are fewer bounds.
    pub fn two_reads(
        &self,
        column: &DeviceColumn,
        bounds: &DeviceBounds,
        answers: &DeviceAnswers,
        count: u32,
        rounds: u32,
    ) -> Result<Timing, EngineError> {
        assert!(column.key_bytes == 4 && count <= bounds.count);
        assert!(count as usize * 4 <= answers.values.bytes());
        let kernel = self.limit(if column.wide_positions {
            "limit_reads_b128_p64"
        } else {
            "limit_reads_b128_p32"
        })?;
        let (left, right) = (bounds.left.address(), bounds.right.address());
        let (out, from) = (answers.values.address(), column.memory.address());
        self.time(rounds, || {
            let arguments = [
                argument(&count),
                argument(&left),
                argument(&right),
                argument(&out),
                argument(&from),
            ];
            // SAFETY: bounds are of this column, which is padded; arguments are those of `limit_reads`.
            unsafe { self.stream.launch(kernel, count.into(), arguments) }
        })
    }

    /// Returns the bytes per second, read and written, of a copy of one gibibyte on the device.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn copy_speed(&self) -> Result<f64, EngineError> {
        const BYTES: u32 = 1 << 30;
        let (from, to) = (
            self.allocate(BYTES as usize)?,
            self.allocate(BYTES as usize)?,
        );
        let kernel = self.limit("limit_copy")?;
        let (source, destination) = (from.address(), to.address());
        let packs = u64::from(BYTES / 16);
        // SAFETY: the memory is that long.
        unsafe { self.stream.memset(source, 0, BYTES as usize)? };
        let time = self.time(5, || {
            let arguments = [argument(&source), argument(&destination), argument(&packs)];
            // SAFETY: both are that long; arguments are those of `limit_copy`.
            unsafe { self.stream.launch(kernel, packs, arguments) }
        })?;
        Ok(2.0 * f64::from(BYTES) / time.median)
    }

    /// Counts the differing answers among the first `count` of values or positions.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn differ(
        &self,
        one: &DeviceAnswers,
        other: &DeviceAnswers,
        output: KernelOutput,
        key_bytes: usize,
        count: u32,
    ) -> Result<u64, EngineError> {
        let (name, one, other) = if output == KernelOutput::Position {
            ("limit_differ_u64", &one.positions, &other.positions)
        } else if key_bytes == 4 {
            ("limit_differ_u32", &one.values, &other.values)
        } else {
            ("limit_differ_u64", &one.values, &other.values)
        };
        let kernel = self.limit(name)?;
        assert!(count as usize * 8 <= one.bytes().min(other.bytes()));
        let differing = self.allocate(8)?;
        let (one, other, total) = (one.address(), other.address(), differing.address());
        let count = u64::from(count);
        let arguments = [
            argument(&one),
            argument(&other),
            argument(&count),
            argument(&total),
        ];
        // SAFETY: both have room for that many answers of 8 bytes; arguments are those of `limit_differ`.
        unsafe {
            self.stream.memset(total, 0, 8)?;
            self.stream.launch(kernel, count, arguments)?;
        }
        let mut bytes = [0; 8];
        self.download(&differing, 0, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}
