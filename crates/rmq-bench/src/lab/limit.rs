//! Data and ranges made on the device, answers compared there, and what its memory can do: `kernels/baselines/limit.cu`.

use super::{DeviceAnswers, DeviceBounds, DeviceColumn, Lab, Wanted, wide};
use rmq_engine::EngineError;
use rmq_engine::cuda::module::{Function, Module};
use rmq_engine::cuda::stream::argument;

/// How long ranges are.
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

/// Which random numbers.
const SEED: u64 = 777;

/// What positions are called in the names of kernels.
fn position_name(rows: u64) -> &'static str {
    if wide(rows) { "p64" } else { "p32" }
}

impl Lab {
    fn limit(&self, name: &str) -> Result<Function, EngineError> {
        self.gpu.modules.function(Module::Limit, name)
    }

    /// Fills a column with values uniform in [0, 1). One of 8 bytes is two of 4: only their order counts, which is as random.
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

    /// Bounds of `count` ranges in a column of so many values.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn bounds(
        &self,
        ranges: Ranges,
        rows: u64,
        count: u32,
    ) -> Result<DeviceBounds, EngineError> {
        let width = if wide(rows) { 8 } else { 4 };
        let bounds = DeviceBounds {
            left: self.memory(count as usize * width)?,
            right: self.memory(count as usize * width)?,
            count,
        };
        let kernel = self.limit(&format!("limit_queries_{}", position_name(rows)))?;
        let (left, right) = (bounds.left.address(), bounds.right.address());
        let (workload, seed) = (ranges as u32, SEED + 1);
        let arguments = [
            argument(&left),
            argument(&right),
            argument(&count),
            argument(&rows),
            argument(&workload),
            argument(&seed),
        ];
        // SAFETY: both have that many bounds; arguments are those of `limit_queries`.
        unsafe { self.stream.launch(kernel, count.into(), arguments)? };
        self.stream.wait()?;
        Ok(bounds)
    }

    /// Seconds of reading, for each of `count` ranges, the two lines of 128 bytes in which its ends stand: what no search can
    /// do without that does not know the answer from above. The median of `rounds`.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// Where values are not of 4 bytes, or there are fewer bounds.
    pub fn two_reads(
        &self,
        column: &DeviceColumn,
        bounds: &DeviceBounds,
        answers: &DeviceAnswers,
        count: u32,
        rounds: u32,
    ) -> Result<f64, EngineError> {
        assert!(column.key_bytes == 4 && count <= bounds.count);
        assert!(count as usize * 4 <= answers.values.bytes());
        let kernel = self.limit(&format!("limit_reads_b128_{}", position_name(column.rows)))?;
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

    /// Bytes a second, read and written, of a copy of a gigabyte.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn copy_speed(&self) -> Result<f64, EngineError> {
        const BYTES: u32 = 1 << 30;
        let (from, to) = (self.memory(BYTES as usize)?, self.memory(BYTES as usize)?);
        let kernel = self.limit("limit_copy")?;
        let (from_at, to_at, packs) = (from.address(), to.address(), u64::from(BYTES / 16));
        // SAFETY: the memory is that long.
        unsafe { self.stream.fill(from_at, 0, BYTES as usize)? };
        let seconds = self.time(5, || {
            let arguments = [argument(&from_at), argument(&to_at), argument(&packs)];
            // SAFETY: both are that long; arguments are those of `limit_copy`.
            unsafe { self.stream.launch(kernel, packs, arguments) }
        })?;
        Ok(2.0 * f64::from(BYTES) / seconds)
    }

    /// Bytes a second from pinned memory to the device, and from there back, each way alone.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn bus_speed(&self) -> Result<[f64; 2], EngineError> {
        const BYTES: u32 = 256 << 20;
        let bytes = BYTES as usize;
        let (memory, block) = (self.memory(bytes)?, self.gpu.pinned.take(bytes)?);
        // SAFETY: both ends are that long; `time` waits for the stream.
        let up = self.time(5, || unsafe {
            (self.stream).copy_up(memory.address(), block.start(), bytes)
        })?;
        // SAFETY: as above.
        let down = self.time(5, || unsafe {
            (self.stream).copy_down(block.start(), memory.address(), bytes)
        })?;
        Ok([up, down].map(|seconds| f64::from(BYTES) / seconds))
    }

    /// How many of the first `count` answers differ.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// Where there are fewer.
    pub fn differ(
        &self,
        one: &DeviceAnswers,
        other: &DeviceAnswers,
        wanted: Wanted,
        key_bytes: usize,
        count: u32,
    ) -> Result<u64, EngineError> {
        let of = |answers: &DeviceAnswers| match wanted {
            Wanted::Value => (answers.values.address(), answers.values.bytes()),
            Wanted::Position => (answers.positions.address(), answers.positions.bytes()),
        };
        let key = match wanted {
            Wanted::Value if key_bytes == 4 => "u32",
            Wanted::Value | Wanted::Position => "u64",
        };
        let kernel = self.limit(&format!("limit_differ_{key}"))?;
        let ((one, one_bytes), (other, other_bytes)) = (of(one), of(other));
        assert!(count as usize * 8 <= one_bytes.min(other_bytes));
        let differing = self.memory(8)?;
        let (count, into) = (u64::from(count), differing.address());
        let arguments = [
            argument(&one),
            argument(&other),
            argument(&count),
            argument(&into),
        ];
        // SAFETY: both have room for that many answers of 8 bytes; arguments are those of `limit_differ`.
        unsafe {
            self.stream.fill(into, 0, 8)?;
            self.stream.launch(kernel, count, arguments)?;
        }
        let mut bytes = [0; 8];
        self.download(into, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}
