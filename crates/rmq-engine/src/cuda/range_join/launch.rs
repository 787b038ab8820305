//! The kernels of one chunk of a batch, in order on one stream.

use std::ffi::c_void;

use cudarc::driver::sys::CUdeviceptr;

use super::answer_plan::{AnswerPlan, ChunkLayout};
use super::batch::ProbeBatch;
use super::column::{ColumnSums, DeviceColumn, sum_bytes};
use super::rows::{DeviceBound, DeviceSearch, MAX_BOUNDS};
use crate::cuda::driver::module::Function;
use crate::cuda::driver::stream::{Stream, argument};
use crate::cuda::key::CudaKey;
use crate::cuda::memory::device_memory::DeviceMemory;
use crate::cuda::rmq::index::KernelOutput;
use crate::{EngineError, Extreme, RangeJoinAnswer, RangeRow};

/// Flags of `BoundKind` in `kernels/range_join.cu`.
const LOWER: u32 = 1;
const AFTER_EQUAL: u32 = 2;

/// `Place` of `kernels/range_join.cu`.
const FIRST: u32 = 0;
const LAST: u32 = 1;
const FOUND: u32 = 2;

/// The kernels of one chunk.
pub struct Launch<'a> {
    pub plan: &'a AnswerPlan<'a>,
    pub stream: &'a Stream,
    /// Rows.
    pub m: u32,
    /// The address of the chunk's memory.
    pub base: CUdeviceptr,
    pub layout: &'a ChunkLayout,
}

impl Launch<'_> {
    fn address(&self, offset: usize) -> CUdeviceptr {
        self.base + offset as u64
    }

    /// The addresses of the bounds of ranges.
    fn ranges(&self) -> (CUdeviceptr, CUdeviceptr) {
        (
            self.address(self.layout.left),
            self.address(self.layout.right),
        )
    }

    /// Enqueues a kernel with a thread for each row.
    unsafe fn run(
        &self,
        kernel: Function,
        arguments: impl AsMut<[*mut c_void]>,
    ) -> Result<(), EngineError> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.stream.launch(kernel, u64::from(self.m), arguments) }
    }

    /// Enqueues a kernel whose first arguments are ranges and their number.
    unsafe fn run_on<const N: usize>(
        &self,
        (left, right): (CUdeviceptr, CUdeviceptr),
        kernel: Function,
        others: [*mut c_void; N],
    ) -> Result<(), EngineError> {
        let mut arguments = vec![argument(&left), argument(&right), argument(&self.m)];
        arguments.extend(others);
        // SAFETY: guaranteed by the caller.
        unsafe { self.run(kernel, arguments) }
    }

    /// Enqueues the search.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// # Safety
    /// The chunk's memory is laid out so, and has its inputs when the kernel runs.
    pub unsafe fn search<K: CudaKey>(&self, batch: &ProbeBatch<'_, K>) -> Result<(), EngineError> {
        let replica = self.plan.replica;
        let bounds = batch.bounds.iter();
        let bounds: Vec<_> = bounds
            .map(|bound| {
                let column = &batch.columns[bound.column];
                let (bits, valid) = self.layout.columns[bound.column];
                let lower = if bound.comparison.is_lower() {
                    LOWER
                } else {
                    0
                };
                let after = if bound.comparison.is_before_equal() {
                    0
                } else {
                    AFTER_EQUAL
                };
                DeviceBound {
                    keys: self.address(bits),
                    valid: column.valid.as_ref().map_or(0, |_| self.address(valid)),
                    fold: column.encoding.fold().words(),
                    flip: column.encoding.flip().words(),
                    shift: bound.shift,
                    kind: lower | after,
                    unused: 0,
                }
            })
            .collect();
        let (left, right) = self.ranges();
        // One launch takes the first bounds, also if there is none, and further ones take the rest.
        for i in 0..bounds.len().div_ceil(MAX_BOUNDS).max(1) {
            let some = &bounds[i * MAX_BOUNDS..bounds.len().min((i + 1) * MAX_BOUNDS)];
            let mut search = DeviceSearch {
                keys: replica.sorted.keys.address(),
                starts: replica.sorted.starts.address(),
                ids: batch
                    .ids
                    .as_ref()
                    .map_or(0, |_| self.address(self.layout.ids)),
                overflow: self.layout.overflow.map_or(0, |word| self.address(word)),
                narrow_ids: u32::from(self.plan.has_narrow_ids()),
                groups: replica.sorted.groups,
                bounds: some.len() as u32,
                again: u32::from(i > 0),
                prevailing: u32::from(batch.prevailing),
                ..DeviceSearch::default()
            };
            search.bound[..some.len()].copy_from_slice(some);
            let arguments = [
                argument(&search),
                argument(&self.m),
                argument(&left),
                argument(&right),
            ];
            // SAFETY: arguments are those of `join_search`.
            unsafe { self.run(replica.sorted.kernels.search, arguments)? };
        }
        Ok(())
    }

    /// Enqueues the search for extremes.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// # Safety
    /// As [`Self::search`], with the ranges.
    pub unsafe fn extremes(&self) -> Result<(), EngineError> {
        let (left, right) = self.ranges();
        for (extreme, offsets) in self.plan.extremes.iter().zip(&self.layout.extremes) {
            let output = match (extreme.value, extreme.row) {
                (_, false) => KernelOutput::Value,
                (false, true) => KernelOutput::Position,
                (true, true) => KernelOutput::Both,
            };
            let (values, rows, valid) = (
                self.address(offsets.values),
                self.address(offsets.rows),
                self.address(offsets.valid),
            );
            let arguments = [
                argument(&*extreme.replica.index),
                argument(&self.m),
                argument(&left),
                argument(&right),
                argument(&values),
                argument(&rows),
                argument(&valid),
            ];
            // SAFETY: arguments are those of the `answer` kernels with positions of 32 bits.
            unsafe { self.run(extreme.replica.kernel(output), arguments)? };
        }
        Ok(())
    }

    /// Enqueues the search for other rows of ranges.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// # Safety
    /// As [`Self::search`], with the ranges and the extremes.
    pub unsafe fn places(&self) -> Result<(), EngineError> {
        let replica = self.plan.replica;
        let ranges = self.ranges();
        for (at, offset) in self.plan.places.iter().zip(&self.layout.places) {
            let to = self.address(*offset);
            // SAFETY: arguments are those of the kernels.
            unsafe {
                if let RangeRow::FirstOrdered {
                    column,
                    extreme,
                    nulls_first,
                } = *at
                {
                    let (found, is_found) = self.found(column, extreme)?;
                    let (valid, valid_before) = replica.columns[column].valid_addresses();
                    let nulls_first = u32::from(nulls_first);
                    let arguments = [
                        argument(&found),
                        argument(&is_found),
                        argument(&valid),
                        argument(&valid_before),
                        argument(&nulls_first),
                        argument(&to),
                    ];
                    self.run_on(ranges, replica.sorted.kernels.first_ordered, arguments)?;
                } else {
                    let keys = replica.sorted.keys.address();
                    let arguments = [
                        argument(&keys),
                        argument(&ranges.0),
                        argument(&ranges.1),
                        argument(&self.m),
                        argument(&to),
                    ];
                    self.run(replica.sorted.kernels.first_of_last, arguments)?;
                }
            }
        }
        Ok(())
    }

    /// The addresses of the rows of an extreme, and of the bits that tell where there is one.
    fn found(
        &self,
        column: usize,
        extreme: Extreme,
    ) -> Result<(CUdeviceptr, CUdeviceptr), EngineError> {
        let i = self.plan.find(column, extreme).ok_or_else(unplanned)?;
        let offsets = self.layout.extremes[i];
        Ok((self.address(offsets.rows), self.address(offsets.valid)))
    }

    /// Enqueues all other answers.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// # Safety
    /// As [`Self::search`], with the ranges, the extremes and the places.
    pub unsafe fn answers(&self) -> Result<(), EngineError> {
        let replica = self.plan.replica;
        let kernels = replica.sorted.kernels;
        let ranges = self.ranges();
        for (answer, (values, valid)) in self.plan.answers.iter().zip(&self.layout.answers) {
            let (to, to_valid) = (self.address(*values), self.address(*valid));
            // SAFETY: arguments are those of the kernels.
            unsafe {
                match *answer {
                    RangeJoinAnswer::Extreme { .. } => {}
                    RangeJoinAnswer::Matched => {
                        self.run_on(ranges, kernels.matched, [argument(&to_valid)])?;
                    }
                    RangeJoinAnswer::Count => self.count((0, 0), to)?,
                    RangeJoinAnswer::CountValid { column } => {
                        self.count(replica.columns[column].valid_addresses(), to)?;
                    }
                    RangeJoinAnswer::Sum { column } => {
                        self.sum(&replica.columns[column], false, (to, to_valid))?;
                    }
                    RangeJoinAnswer::SumError { column } => {
                        self.sum(&replica.columns[column], true, (to, to_valid))?;
                    }
                    RangeJoinAnswer::Value { column, at } => {
                        let column = &replica.columns[column];
                        let values = address(column.values.as_ref());
                        let (valid, _) = column.valid_addresses();
                        self.take(column.take, at, (values, valid), (to, to_valid))?;
                    }
                    RangeJoinAnswer::Row { at } => {
                        let rows = address(replica.row_numbers());
                        self.take(kernels.take_row, at, (rows, 0), (to, to_valid))?;
                    }
                }
            }
        }
        Ok(())
    }

    unsafe fn count(
        &self,
        (valid, valid_before): (CUdeviceptr, CUdeviceptr),
        to: CUdeviceptr,
    ) -> Result<(), EngineError> {
        let kernel = self.plan.replica.sorted.kernels.counts;
        let arguments = [argument(&valid), argument(&valid_before), argument(&to)];
        // SAFETY: arguments are those of `join_counts`; guaranteed by the caller.
        unsafe { self.run_on(self.ranges(), kernel, arguments) }
    }

    /// Sums ranges; with `error`, the rounding errors of sums of floats.
    unsafe fn sum(
        &self,
        column: &DeviceColumn,
        error: bool,
        (to, to_valid): (CUdeviceptr, CUdeviceptr),
    ) -> Result<(), EngineError> {
        let ranges = self.ranges();
        let (valid, valid_before) = column.valid_addresses();
        // SAFETY: arguments are those of the kernels; guaranteed by the caller.
        unsafe {
            match &column.sums {
                Some(ColumnSums::Integers(sums)) => {
                    let sums = sums.address();
                    let kernels = &self.plan.replica.sorted.kernels;
                    let kernel = if sum_bytes(column.value_bytes) == 16 {
                        kernels.sums_128
                    } else {
                        kernels.sums_64
                    };
                    let arguments = [
                        argument(&sums),
                        argument(&valid),
                        argument(&valid_before),
                        argument(&to),
                        argument(&to_valid),
                    ];
                    self.run_on(ranges, kernel, arguments)
                }
                Some(ColumnSums::Floats(floats)) => {
                    let (sums, error) = (floats.on_device(), u32::from(error));
                    let arguments = [
                        argument(&sums),
                        argument(&valid),
                        argument(&valid_before),
                        argument(&error),
                        argument(&to),
                        argument(&to_valid),
                    ];
                    self.run_on(ranges, floats.kernel, arguments)
                }
                None => Err(EngineError::Invalid(
                    "a sum was requested of a column without sums".to_owned(),
                )),
            }
        }
    }

    unsafe fn take(
        &self,
        kernel: Function,
        at: RangeRow,
        (values, valid): (CUdeviceptr, CUdeviceptr),
        (to, to_valid): (CUdeviceptr, CUdeviceptr),
    ) -> Result<(), EngineError> {
        let (left, mut right) = self.ranges();
        let (which, found, is_found): (_, CUdeviceptr, CUdeviceptr) = match at {
            RangeRow::First => (FIRST, 0, 0),
            RangeRow::Last => (LAST, 0, 0),
            RangeRow::Extreme { column, extreme } => {
                let (found, is_found) = self.found(column, extreme)?;
                (FOUND, found, is_found)
            }
            RangeRow::FirstOfLast | RangeRow::FirstOrdered { .. } => {
                // A place is the end of a shorter range.
                let i = self.plan.places.iter().position(|place| *place == at);
                right = self.address(self.layout.places[i.ok_or_else(unplanned)?]);
                (LAST, 0, 0)
            }
        };
        let arguments = [
            argument(&which),
            argument(&found),
            argument(&is_found),
            argument(&values),
            argument(&valid),
            argument(&to),
            argument(&to_valid),
        ];
        // SAFETY: arguments are those of `join_take`; guaranteed by the caller.
        unsafe { self.run_on((left, right), kernel, arguments) }
    }
}

fn address(memory: Option<&DeviceMemory>) -> CUdeviceptr {
    memory.map_or(0, DeviceMemory::address)
}

/// `AnswerPlan::new` plans all that the answers read.
fn unplanned() -> EngineError {
    EngineError::Invalid("an answer reads an extreme or a place that is not planned".into())
}
