//! The engine's kernels, on a column in the device's memory.

use rmq_engine::EngineError;
use rmq_engine::cuda::driver::stream::argument;
use rmq_engine::cuda::key::CudaKey;
use rmq_engine::cuda::rmq::build::BuildKernels;
use rmq_engine::cuda::rmq::index::{KernelOutput, answer_kernel};
use rmq_engine::cuda::rmq::layout::Layout;
use rmq_engine::cuda::rmq::shape::Shape;

use super::device::{DeviceColumn, Lab};
use super::kernel::{KernelIndex, KernelUnderTest};

impl Lab {
    /// Prepares the engine's kernel for `output`, whose index it builds `rounds` times. `shape` replaces the best shape
    /// for the column.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn ours(
        &self,
        column: &DeviceColumn,
        output: KernelOutput,
        shape: Option<Shape>,
        rounds: u32,
    ) -> Result<KernelUnderTest, EngineError> {
        match column.key_bytes {
            4 => self.ours_for::<u32>(column, output, shape, rounds),
            _ => self.ours_for::<u64>(column, output, shape, rounds),
        }
    }

    fn ours_for<K: CudaKey>(
        &self,
        column: &DeviceColumn,
        output: KernelOutput,
        shape: Option<Shape>,
        rounds: u32,
    ) -> Result<KernelUnderTest, EngineError> {
        let positions = output != KernelOutput::Value;
        let layout = Layout::new(column.size(), positions, shape)?;
        let kernels = BuildKernels::find::<K>(&self.gpu, &layout, positions)?;
        let wide_positions = layout.shape.wide_positions || column.wide_positions;
        let function = answer_kernel::<K>(&self.gpu, layout.shape, wide_positions, output)?;

        // In a layout the column comes first; here it has memory of its own.
        let before = layout.level[1].start;
        let memory = self.allocate((layout.bytes - before) as usize)?;
        let base = memory.address().wrapping_sub(before);
        let mut index = layout.index(base, [0; 2], [0; 2]);
        index.level[0] = column.memory.address();
        for (region, byte) in layout.paddings() {
            if region.start >= before {
                let padding = base.wrapping_add(region.start + region.bytes);
                // SAFETY: within the memory, which nothing else uses yet.
                unsafe { self.stream.memset(padding, byte, region.padding as usize)? };
            }
        }
        let (first, tiles) = (0_u64, column.rows.div_ceil(layout.chunk() * layout.chunk()));
        let build = self.time(rounds, || {
            let arguments = [argument(&index), argument(&first), argument(&tiles)];
            // SAFETY: the column is in place, padded to whole chunks; arguments are those of `build_bottom`. On the
            // stream, the levels that it writes precede those above.
            unsafe {
                self.stream.launch(kernels.bottom, tiles * 32, arguments)?;
                kernels.build_above(&self.stream, &layout, &index)
            }
        })?;
        Ok(KernelUnderTest {
            function,
            index: KernelIndex::Engine(Box::new(index)),
            memory,
            build_seconds: build.median,
            build_bytes: 0,
            output,
            wide_positions,
            threads: 1,
            combines_in_answers: false,
        })
    }
}
