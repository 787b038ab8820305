//! A kernel with its index, and the measurement of its queries.

use rmq_engine::EngineError;
use rmq_engine::cuda::driver::module::Function;
use rmq_engine::cuda::driver::stream::argument;
use rmq_engine::cuda::memory::device_memory::DeviceMemory;
use rmq_engine::cuda::rmq::index::KernelOutput;
use rmq_engine::cuda::rmq::layout::DeviceIndex;

use super::device::{DeviceAnswers, DeviceBounds, Lab};
use super::lca_index::LcaIndex;
use super::paper_index::PaperIndex;

/// A kernel with its index, ready to answer queries.
#[derive(Debug)]
pub struct KernelUnderTest {
    pub function: Function,
    pub index: KernelIndex,
    /// The memory of the index, without the column.
    pub memory: DeviceMemory,
    /// The time of building the index, with the column in place.
    pub build_seconds: f64,
    /// Bytes that only the build needed.
    pub build_bytes: u64,
    /// What the kernel writes: values or positions.
    pub output: KernelOutput,
    /// Bytes of a value.
    pub key_bytes: usize,
    /// Whether its positions take 64 bits.
    pub wide_positions: bool,
    /// Threads per query.
    pub threads: u64,
    /// Whether values must be the greatest key before the launch, as threads combine their minima there.
    pub combines_in_answers: bool,
}

/// The index that a kernel takes as its first argument.
#[derive(Debug)]
pub enum KernelIndex {
    /// The engine's.
    Engine(Box<DeviceIndex>),
    /// That of the paper's kernels.
    Paper(Box<PaperIndex>),
    /// A Cartesian tree.
    Lca(Box<LcaIndex>),
}

impl KernelUnderTest {
    /// The bytes of the index, without the column.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        self.memory.bytes() as u64
    }
}

impl Lab {
    /// Answers the first `count` queries and returns the seconds that it takes: the median of `rounds`, after one that
    /// is not counted.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If the bounds or the answers have another width or fewer entries.
    pub fn answer(
        &self,
        kernel: &KernelUnderTest,
        bounds: &DeviceBounds,
        answers: &DeviceAnswers,
        count: u32,
        rounds: u32,
    ) -> Result<f64, EngineError> {
        let width = if kernel.wide_positions { 8 } else { 4 };
        let count = count.min(bounds.count);
        assert!(bounds.left.bytes() >= count as usize * width);
        assert!(answers.values.bytes() >= count as usize * 8);
        let (left, right) = (bounds.left.address(), bounds.right.address());
        let (values, positions) = match kernel.output {
            KernelOutput::Value => (answers.values.address(), 0),
            KernelOutput::Position => (0, answers.positions.address()),
            KernelOutput::Both => (answers.values.address(), answers.positions.address()),
        };
        // Overwrites the answers of the kernel before, so that answers that are not written are noticed.
        for memory in [&answers.values, &answers.positions] {
            // SAFETY: the memory is that long.
            unsafe { self.stream.memset(memory.address(), 0xA5, memory.bytes())? };
        }
        let no_validity = 0_u64;
        let index = match &kernel.index {
            KernelIndex::Engine(index) => argument(&**index),
            KernelIndex::Paper(index) => argument(&**index),
            KernelIndex::Lca(index) => argument(&**index),
        };
        self.time(rounds, || {
            let arguments = [
                index,
                argument(&count),
                argument(&left),
                argument(&right),
                argument(&values),
                argument(&positions),
                argument(&no_validity),
            ];
            // SAFETY: the arguments are those of all kernels that answer queries; the lengths of bounds and answers
            // were checked.
            unsafe {
                if kernel.combines_in_answers {
                    (self.stream).memset(values, 0xFF, count as usize * kernel.key_bytes)?;
                }
                let threads = kernel.threads * u64::from(count);
                self.stream.launch(kernel.function, threads, arguments)
            }
        })
    }
}
