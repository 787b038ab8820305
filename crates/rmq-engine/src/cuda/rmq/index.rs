//! A column on its devices, and what answers where all of them fail.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use super::build::Source;
use super::gpu::Gpu;
use super::key::CudaKey;
use super::lane::{Question, Run, Targets};
use super::memory::DeviceMemory;
use super::module::Function;
use super::pinned::Pod;
use super::plan::{AnyIndex, Choice, Plan, Wanted};
use super::replicas::{self, on_each, on_one};
use super::tuning::BATCH;
use crate::{
    Answers, BuildOptions, Column, ColumnSize, Encoding, EngineError, Memory, Outputs, RangeIndex,
};

/// An index that each of some devices holds.
pub struct CudaIndex<K> {
    rows: usize,
    encoding: Encoding<K>,
    options: BuildOptions,
    /// Bytes on each device, the column included.
    bytes: usize,
    /// None of an empty column.
    replicas: Vec<Replica>,
    /// Kept for the CPU engine to index, if that may answer.
    column: Option<Column<K>>,
    on_cpu: OnceLock<Result<Arc<dyn RangeIndex<K>>, EngineError>>,
}

/// The index on one device.
struct Replica {
    index: AnyIndex,
    /// What the index lies in.
    _memory: DeviceMemory,
    kernels: Kernels,
    /// Of these, for a query.
    threads: u64,
    /// Whether they take positions of 64 bits.
    wide: bool,
    gpu: Arc<Gpu>,
}

/// The kernels that answer.
#[derive(Clone, Copy)]
struct Kernels {
    value: Function,
    position: Option<Function>,
    both: Option<Function>,
}

impl<K: CudaKey> CudaIndex<K> {
    /// Builds the index on every device that has room for it.
    pub fn build(
        gpus: &[Arc<Gpu>],
        column: Column<K>,
        options: &BuildOptions,
        choice: Choice,
        fallback: bool,
        stop: &AtomicBool,
    ) -> Result<Self, EngineError> {
        let bits = column.bits();
        let mut validity = column.validity();
        if let Some(bitmap) = validity {
            bitmap.check(bits.len())?;
            validity = validity.filter(|bitmap| bitmap.null_count(bits.len()) > 0);
        }
        let source = Source {
            bits,
            encoding: column.encoding(),
            validity,
            positions: options.positions,
            threads: options.threads,
            stop,
        };
        let size = ColumnSize {
            rows: bits.len(),
            key_bytes: size_of::<K>(),
            nulls: validity.is_some(),
        };
        let plan = Plan::of(choice, size, options.positions)?;
        let gpus = if bits.is_empty() { &[] } else { gpus };
        let replicas = on_each(gpus, "an index", |gpu| {
            source.go_on()?;
            Replica::build(gpu, source, &plan)
        })?;
        source.go_on()?;
        Ok(Self {
            rows: bits.len(),
            encoding: column.encoding(),
            options: *options,
            bytes: if replicas.is_empty() { 0 } else { plan.bytes() },
            replicas,
            column: fallback.then_some(column),
            on_cpu: OnceLock::new(),
        })
    }

    /// Answers on the device that has least to do, or on another one where that fails.
    fn on_devices(&self, runs: &[Run<'_>], out: &mut Answers<'_, K>) -> Result<(), EngineError> {
        on_one(&self.replicas, "the index", |replica| {
            let targets = self.targets(out);
            // SAFETY: targets are those of `out`, whose lengths were checked.
            unsafe { replica.answer(runs, targets) }
        })
    }

    fn targets(&self, out: &mut Answers<'_, K>) -> Targets {
        fn pinned<T>(replicas: &[Replica], slice: &[T]) -> bool {
            replicas.iter().any(|one| one.gpu.pinned.holds(slice))
        }
        Targets {
            pinned: pinned(&self.replicas, out.valid)
                && out
                    .values
                    .as_deref()
                    .is_none_or(|values| pinned(&self.replicas, values))
                && out
                    .positions
                    .as_deref()
                    .is_none_or(|positions| pinned(&self.replicas, positions)),
            values: (out.values.as_mut())
                .map_or(std::ptr::null_mut(), |values| values.as_mut_ptr().cast()),
            value_bytes: size_of::<K>(),
            positions: (out.positions.as_mut())
                .map_or(std::ptr::null_mut(), |positions| positions.as_mut_ptr()),
            valid: out.valid.as_mut_ptr(),
        }
    }

    /// The index of the CPU engine, built by the first that asks; others wait for it.
    fn on_cpu(&self, failure: EngineError) -> Result<&dyn RangeIndex<K>, EngineError> {
        let Some(column) = &self.column else {
            return Err(failure);
        };
        let built = self.on_cpu.get_or_init(|| {
            log::warn!("{failure}; the CPU answers instead");
            if column.len() != self.rows {
                return Err(EngineError::ColumnMoved);
            }
            K::on_cpu(column.clone(), &self.options)
        });
        match built {
            Ok(index) => Ok(&**index),
            Err(error) => Err(error.clone()),
        }
    }
}

impl replicas::Replica for Replica {
    fn gpu(&self) -> &Gpu {
        &self.gpu
    }
}

impl Replica {
    fn build<K: CudaKey>(
        gpu: &Arc<Gpu>,
        source: Source<'_, K>,
        plan: &Plan,
    ) -> Result<Self, EngineError> {
        let find = |wanted| plan.kernel::<K>(gpu, wanted);
        let of_positions = |wanted| source.positions.then(|| find(wanted)).transpose();
        let kernels = Kernels {
            value: find(Wanted::Value)?,
            position: of_positions(Wanted::Position)?,
            both: of_positions(Wanted::Both)?,
        };
        let (index, memory) = plan.build(gpu, source)?;
        Ok(Self {
            index,
            _memory: memory,
            kernels,
            threads: plan.threads(),
            wide: plan.wide(),
            gpu: Arc::clone(gpu),
        })
    }

    /// Answers a batch, run by run on two lanes.
    ///
    /// # Safety
    /// `targets` have room for as many answers as there are bounds, and nobody else touches them meanwhile.
    unsafe fn answer(&self, runs: &[Run<'_>], targets: Targets) -> Result<(), EngineError> {
        let kernel = match (targets.values.is_null(), targets.positions.is_null()) {
            (_, true) => Some(self.kernels.value),
            (true, false) => self.kernels.position,
            (false, false) => self.kernels.both,
        };
        let question = Question {
            index: &self.index,
            kernel: kernel.ok_or(EngineError::NoPositions)?,
            threads: self.threads,
            wide: self.wide,
        };
        self.gpu.with_slot(|slot| {
            for (i, run) in runs.iter().enumerate() {
                let lane = &mut slot.lanes[i % 2];
                // SAFETY: as the caller vouches. After an error the slot is dropped, which waits for what is under way.
                unsafe {
                    lane.finish()?;
                    lane.start(&self.gpu, question, run, i * BATCH, targets)?;
                }
            }
            for lane in &mut slot.lanes {
                // SAFETY: as above.
                unsafe { lane.finish()? };
            }
            Ok(())
        })
    }
}

/// Memory for answers: pinned where it can be had.
fn lent<T: Pod>(from: Option<&Replica>, len: usize) -> Memory<T> {
    from.and_then(|from| from.gpu.pinned.numbers(len).ok())
        .unwrap_or_else(|| vec![T::default(); len].into())
}

impl<K: CudaKey> RangeIndex<K> for CudaIndex<K> {
    fn len(&self) -> usize {
        self.rows
    }

    fn has_positions(&self) -> bool {
        self.options.positions
    }

    fn index_bytes(&self) -> usize {
        self.bytes.saturating_sub(self.rows * size_of::<K>())
    }

    fn memory_bytes(&self) -> usize {
        match self.on_cpu.get() {
            Some(Ok(index)) => index.memory_bytes(),
            _ => 0,
        }
    }

    fn device_bytes(&self) -> usize {
        self.bytes
    }

    fn outputs(&self, queries: usize, values: bool, positions: bool) -> Outputs<K> {
        let mut pools = self.replicas.iter();
        let pool = pools.find(|replica| replica.gpu.device.failed().is_none());
        Outputs {
            values: values.then(|| lent(pool, queries)),
            positions: positions.then(|| lent(pool, queries)),
            valid: lent(pool, queries.div_ceil(64)),
        }
    }

    fn answer(&self, left: &[i64], right: &[i64], out: Answers<'_, K>) -> Result<(), EngineError> {
        self.answer_gathered(&[(left, right)], out)
    }

    fn answer_gathered(
        &self,
        parts: &[(&[i64], &[i64])],
        mut out: Answers<'_, K>,
    ) -> Result<(), EngineError> {
        let mut ranges = 0;
        for (left, right) in parts {
            if left.len() != right.len() {
                return Err(EngineError::Lengths {
                    what: "the slice of right bounds",
                    expected: left.len(),
                    found: right.len(),
                });
            }
            ranges += left.len();
        }
        out.check_lengths(ranges, ranges)?;
        if out.positions.is_some() && !self.options.positions {
            return Err(EngineError::NoPositions);
        }
        if self.rows == 0 {
            if let Some(values) = out.values {
                values.fill(self.encoding.decode(K::MAX));
            }
            if let Some(positions) = out.positions {
                positions.fill(0);
            }
            out.valid.fill(0);
            return Ok(());
        }
        if ranges == 0 {
            return Ok(());
        }
        match self.on_devices(&Run::cut(parts), &mut out) {
            Ok(()) => Ok(()),
            Err(failure) => self.on_cpu(failure)?.answer_gathered(parts, out),
        }
    }
}

impl<K: CudaKey> fmt::Debug for CudaIndex<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.replicas.iter();
        let devices: Vec<_> = devices.map(|one| one.gpu.device.ordinal()).collect();
        f.debug_struct("CudaIndex")
            .field("len", &self.rows)
            .field("encoding", &self.encoding)
            .field("devices", &devices)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
