//! Variants of the engine's search, `kernels/baselines/variants.cu`, on the index that the engine's kernels build.

use rmq_engine::EngineError;
use rmq_engine::cuda::driver::module::Module;
use rmq_engine::cuda::driver::stream::argument;
use rmq_engine::cuda::rmq::index::KernelOutput;
use rmq_engine::cuda::rmq::layout::Layout;
use rmq_engine::cuda::rmq::shape::Shape;

use super::device::{DeviceColumn, Lab};
use super::kernel::{KernelIndex, KernelUnderTest};

const MODULE: Module = Module {
    name: "variants",
    ptx: include_str!("../../../../kernels/baselines/ptx/variants.ptx"),
};

/// A variant of the search.
#[derive(Debug, Clone, Copy)]
pub struct Variant {
    /// The name, as in those of its kernels.
    pub name: &'static str,
    /// The name in the header of a table.
    pub short: &'static str,
    /// Queries per thread.
    queries: u64,
    /// Whether its table has pairs of a minimum and its position; for positions of 32 bits only.
    of_pairs: bool,
}

const fn variant(name: &'static str, short: &'static str) -> Variant {
    Variant {
        name,
        short,
        queries: 1,
        of_pairs: false,
    }
}

const fn of_pairs(name: &'static str, short: &'static str) -> Variant {
    Variant {
        of_pairs: true,
        ..variant(name, short)
    }
}

/// All variants.
pub const VARIANTS: [Variant; 12] = [
    variant("near_groups_groups", "n/g/g"),
    variant("four_threads_groups", "4/t/g"),
    variant("near_threads_groups", "n/t/g"),
    variant("near_threads_groups_full", "n/t/g full"),
    Variant {
        queries: 2,
        ..variant("near_threads_groups_two", "n/t/g two")
    },
    variant("pack_threads_groups_full", "k/t/g full"),
    variant("near_threads_threads_full", "n/t/t full"),
    variant("near_threads_warp_full", "n/t/w full"),
    variant("pack_threads_warp_full", "k/t/w full"),
    variant("near_threads_count_full", "n/t/c full"),
    of_pairs("pair_threads_groups", "p/t/g"),
    of_pairs("pair_threads_warp_full", "p/t/w full"),
];

impl Lab {
    /// Prepares a variant on the index of `ours`, which has that shape and must outlive it; `None` if it has no kernel for such an index.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If `ours` is not the engine's kernel for values of 4 bytes of this column.
    pub fn variant(
        &self,
        column: &DeviceColumn,
        ours: &KernelUnderTest,
        shape: Option<Shape>,
        variant: Variant,
        rounds: u32,
    ) -> Result<Option<KernelUnderTest>, EngineError> {
        let KernelIndex::Engine(index) = &ours.index else {
            panic!("variants search the engine's index");
        };
        assert_eq!(column.key_bytes, 4, "variants search values of 4 bytes");
        if variant.of_pairs && (ours.wide_positions || ours.output == KernelOutput::Value) {
            return Ok(None);
        }
        let layout = Layout::new(column.size(), ours.output != KernelOutput::Value, shape)?;
        let chunk = layout.shape.chunk_bytes;
        let width = if ours.wide_positions { 64 } else { 32 };
        let (name, output) = (variant.name, ours.output.name());
        let name = format!("variant_{name}_u32_c{chunk}_p{width}_{output}");
        let function = self.gpu.modules.function(MODULE, &name)?;

        let mut index = index.clone();
        let entries = layout.entries[layout.top];
        let pairs = if variant.of_pairs {
            entries * u64::from(layout.table_rows)
        } else {
            0
        };
        let memory = self.allocate((pairs * 8).max(1) as usize)?;
        let mut build_seconds = 0.0;
        if variant.of_pairs {
            let name = format!("variant_pairs_c{chunk}");
            let build = self.gpu.modules.function(MODULE, &name)?;
            let to = memory.address();
            build_seconds = self.time(rounds, || {
                let arguments = [argument(&*index), argument(&entries), argument(&to)];
                // SAFETY: the index is complete, and there is room for all rows; arguments are those of `variant_pairs`.
                unsafe { self.stream.launch(build, entries, arguments) }
            })?;
            (index.table, index.table_at) = (to, 0);
        }
        Ok(Some(KernelUnderTest {
            function,
            index: KernelIndex::Engine(index),
            memory,
            build_seconds,
            build_bytes: 0,
            output: ours.output,
            key_bytes: column.key_bytes,
            wide_positions: ours.wide_positions,
            threads: 1,
            queries: variant.queries,
            combines_in_answers: false,
        }))
    }
}
