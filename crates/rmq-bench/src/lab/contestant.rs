//! A kernel with its index, ready to be asked.

use super::paper::PaperIndex;
use super::{DeviceAnswers, DeviceBounds, DeviceColumn, Lab, wide};
use rmq_engine::cuda::build::Kernels;
use rmq_engine::cuda::key::CudaKey;
use rmq_engine::cuda::layout::{Index, Layout};
use rmq_engine::cuda::memory::DeviceMemory;
use rmq_engine::cuda::module::Function;
use rmq_engine::cuda::stream::argument;
use rmq_engine::cuda::tuning::Shape;
use rmq_engine::{ColumnSize, EngineError};

/// What a kernel writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The value alone.
    Value,
    /// The leftmost position alone.
    Position,
}

impl Wanted {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::Position => "position",
        }
    }
}

/// A kernel with its index.
#[derive(Debug)]
pub struct Contestant {
    pub(super) kernel: Function,
    pub(super) _memory: DeviceMemory,
    pub(super) index_bytes: u64,
    pub(super) build_seconds: f64,
    pub(super) wanted: Wanted,
    /// Whether it takes positions of 64 bits.
    pub(super) wide: bool,
    pub(super) work: Work,
}

/// What a kernel takes first.
#[derive(Debug)]
pub(super) enum Work {
    Ours(Box<Index>),
    /// With the threads that a query takes.
    Paper(Box<PaperIndex>, u64),
}

impl Contestant {
    /// Bytes of the index, without the column.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        self.index_bytes
    }

    /// What building the index took, the column in place.
    #[must_use]
    pub fn build_seconds(&self) -> f64 {
        self.build_seconds
    }
}

impl Lab {
    /// Our own kernel with its index, built `rounds` times.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn ours(
        &self,
        column: &DeviceColumn,
        wanted: Wanted,
        shape: Option<Shape>,
        rounds: u32,
    ) -> Result<Contestant, EngineError> {
        match column.key_bytes {
            4 => self.ours_of::<u32>(column, wanted, shape, rounds),
            _ => self.ours_of::<u64>(column, wanted, shape, rounds),
        }
    }

    fn ours_of<K: CudaKey>(
        &self,
        column: &DeviceColumn,
        wanted: Wanted,
        shape: Option<Shape>,
        rounds: u32,
    ) -> Result<Contestant, EngineError> {
        let size = ColumnSize {
            rows: column.rows as usize,
            key_bytes: column.key_bytes,
            nulls: false,
        };
        let positions = wanted == Wanted::Position;
        let layout = Layout::of(size, positions, shape)?;
        let kernels = Kernels::find::<K>(&self.gpu, &layout, positions)?;
        let wide = layout.shape.wide_positions || wide(column.rows);
        let name = format!(
            "answer_{}_c{}_p{}_{}",
            K::NAME,
            layout.shape.chunk_bytes,
            if wide { 64 } else { 32 },
            wanted.name()
        );
        let kernel = self.gpu.modules.function(K::ANSWER, &name)?;

        // The column comes first in a layout, and is elsewhere here.
        let before = layout.level[1].start;
        let index_bytes = layout.bytes - before;
        let memory = self.memory(index_bytes as usize)?;
        let base = memory.address().wrapping_sub(before);
        let mut index = layout.index(base, [0; 2], [0; 2]);
        index.level[0] = column.memory.address();
        for (part, byte) in layout.paddings().filter(|(part, _)| part.start >= before) {
            let at = base.wrapping_add(part.start + part.bytes);
            // SAFETY: inside the memory, which nothing else uses yet.
            unsafe { self.stream.fill(at, byte, part.padding as usize)? };
        }
        let (first, tiles) = (0_u64, column.rows.div_ceil(layout.chunk() * layout.chunk()));
        let build_seconds = self.time(rounds, || {
            let arguments = [argument(&index), argument(&first), argument(&tiles)];
            // SAFETY: the column is in place, padded to whole chunks; arguments are those of `build_bottom`. The levels that it
            // writes come before those above on the stream.
            unsafe {
                self.stream.launch(kernels.bottom, tiles * 32, arguments)?;
                kernels.build_above(&self.stream, &layout, &index)
            }
        })?;
        Ok(Contestant {
            kernel,
            _memory: memory,
            index_bytes,
            build_seconds,
            wanted,
            wide,
            work: Work::Ours(Box::new(index)),
        })
    }

    /// Seconds that a kernel takes for the first `count` ranges: the median of `rounds`, after one that does not count.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// Where the bounds are of a column of other length.
    pub fn search(
        &self,
        contestant: &Contestant,
        bounds: &DeviceBounds,
        answers: &DeviceAnswers,
        count: u32,
        rounds: u32,
    ) -> Result<f64, EngineError> {
        let width = if contestant.wide { 8 } else { 4 };
        let count = count.min(bounds.count);
        assert!(bounds.left.bytes() >= count as usize * width);
        assert!(answers.values.bytes() >= count as usize * 8);
        let (left, right) = (bounds.left.address(), bounds.right.address());
        let (values, positions) = match contestant.wanted {
            Wanted::Value => (answers.values.address(), 0),
            Wanted::Position => (0, answers.positions.address()),
        };
        // Unwritten answers must not look like those of the kernel before.
        for memory in [&answers.values, &answers.positions] {
            // SAFETY: the memory is that long.
            unsafe { self.stream.fill(memory.address(), 0xA5, memory.bytes())? };
        }
        let none = 0_u64;
        self.time(rounds, || {
            macro_rules! launch {
                ($index:expr, $threads:expr) => {{
                    let arguments = [
                        argument($index),
                        argument(&count),
                        argument(&left),
                        argument(&right),
                        argument(&values),
                        argument(&positions),
                        argument(&none),
                    ];
                    // SAFETY: arguments are those of all kernels that answer; bounds and answers are that long, which was
                    // looked at.
                    unsafe {
                        self.stream
                            .launch(contestant.kernel, $threads * u64::from(count), arguments)
                    }
                }};
            }
            match &contestant.work {
                Work::Ours(index) => launch!(&**index, 1),
                Work::Paper(index, threads) => launch!(&**index, threads),
            }
        })
    }
}
