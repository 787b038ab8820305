//! A kernel with its index, and the measurement of its queries.

use rmq_bench::clock::Timing;
use rmq_engine::EngineError;
use rmq_engine::cuda::driver::module::Function;
use rmq_engine::cuda::driver::stream::argument;
use rmq_engine::cuda::memory::device_memory::DeviceMemory;
use rmq_engine::cuda::rmq::index::KernelOutput;
use rmq_engine::cuda::rmq::layout::DeviceIndex;

use super::device::{DeviceAnswers, DeviceBounds, Lab};
use super::lca_index::LcaIndex;
use super::paper_index::PaperIndex;
use super::tour::{Tour, TourTime};

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
    /// Whether its positions take 64 bits.
    pub wide_positions: bool,
    /// Threads per query.
    pub threads: u64,
    /// Whether values must be the greatest key before the launch, as threads combine their minima there. Filling them
    /// is not timed, as published; a second launch finds the answers of the first, which change nothing.
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
    /// A Cartesian tree numbered by an Euler tour.
    Tour(Box<Tour>),
}

impl KernelUnderTest {
    /// The bytes of the index, without the column.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        self.memory.bytes() as u64
    }

    /// The tree whose search is timed alone, without the mapping to its nodes and back.
    fn untimed_tour(&self) -> Option<&Tour> {
        match &self.index {
            KernelIndex::Tour(tour) if tour.time == TourTime::Search => Some(tour),
            _ => None,
        }
    }
}

/// Queries whose bounds are on the device, with memory for their answers.
#[derive(Debug, Clone, Copy)]
pub struct DeviceQueries<'a> {
    pub bounds: &'a DeviceBounds,
    pub answers: &'a DeviceAnswers,
    /// How many of them are answered.
    pub count: u32,
}

impl Lab {
    /// Answers queries and measures how long it takes: `rounds`, after one that is not counted.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If the bounds or the answers have another width or fewer entries.
    pub fn answer(
        &self,
        kernel: &KernelUnderTest,
        queries: DeviceQueries<'_>,
        rounds: u32,
    ) -> Result<Timing, EngineError> {
        self.overwrite(kernel, queries)?;
        if let Some(tour) = kernel.untimed_tour() {
            self.find_nodes(tour, queries.bounds, queries.count)?;
        }
        let time = self.time(rounds, || self.launch(kernel, queries))?;
        if let Some(tour) = kernel.untimed_tour() {
            self.take_values(tour, queries.answers, queries.count)?;
        }
        Ok(time)
    }

    /// Answers queries and measures how long it takes as the paper's program does.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// As [`Lab::answer`].
    pub fn answer_cold(
        &self,
        kernel: &KernelUnderTest,
        queries: DeviceQueries<'_>,
    ) -> Result<f64, EngineError> {
        self.overwrite(kernel, queries)?;
        if let Some(tour) = kernel.untimed_tour() {
            self.find_nodes(tour, queries.bounds, queries.count)?;
        }
        self.stream.wait()?;
        self.time_cold(|| self.launch(kernel, queries))
    }

    /// Overwrites the answers of the kernel before, so that answers that are not written are noticed.
    fn overwrite(
        &self,
        kernel: &KernelUnderTest,
        queries: DeviceQueries<'_>,
    ) -> Result<(), EngineError> {
        let (values, positions) = (&queries.answers.values, &queries.answers.positions);
        let byte = if kernel.combines_in_answers {
            0xFF
        } else {
            0xA5
        };
        // SAFETY: the memory is that long.
        unsafe {
            (self.stream).memset(values.address(), byte, values.bytes())?;
            (self.stream).memset(positions.address(), 0xA5, positions.bytes())
        }
    }

    fn launch(
        &self,
        kernel: &KernelUnderTest,
        queries: DeviceQueries<'_>,
    ) -> Result<(), EngineError> {
        let DeviceQueries {
            bounds, answers, ..
        } = queries;
        let width = if kernel.wide_positions { 8 } else { 4 };
        let count = queries.count.min(bounds.count);
        assert!(bounds.left.bytes() >= count as usize * width);
        assert!(answers.values.bytes() >= count as usize * 8);
        let (left, right) = (bounds.left.address(), bounds.right.address());
        let (values, positions) = match kernel.output {
            KernelOutput::Value => (answers.values.address(), 0),
            KernelOutput::Position => (0, answers.positions.address()),
            KernelOutput::Both => (answers.values.address(), answers.positions.address()),
        };
        let no_validity = 0_u64;
        let index = match &kernel.index {
            KernelIndex::Engine(index) => argument(&**index),
            KernelIndex::Paper(index) => argument(&**index),
            KernelIndex::Lca(index) => argument(&**index),
            KernelIndex::Tour(tour) if tour.time == TourTime::Search => {
                return self.find_ancestors(tour, kernel.function, count);
            }
            KernelIndex::Tour(tour) => {
                self.find_nodes(tour, bounds, count)?;
                self.find_ancestors(tour, kernel.function, count)?;
                return self.take_values(tour, answers, count);
            }
        };
        let arguments = [
            index,
            argument(&count),
            argument(&left),
            argument(&right),
            argument(&values),
            argument(&positions),
            argument(&no_validity),
        ];
        let threads = kernel.threads * u64::from(count);
        // SAFETY: the arguments are those of all kernels that answer queries; the lengths of bounds and answers were
        // checked.
        unsafe { self.stream.launch(kernel.function, threads, arguments) }
    }
}
