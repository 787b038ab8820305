//! Builds the build side of a range join on one device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUdeviceptr;

use super::column::{DeviceColumn, GatheredColumn, StagedColumn, gather};
use super::group_ids::{GroupsOfRows, are_narrow};
use super::rows::DeviceRows;
use super::sort::sort_rows;
use super::staging::Staging;
use super::work::Work;
use crate::cuda::driver::module::Function;
use crate::cuda::driver::stream::argument;
use crate::cuda::gpu::Gpu;
use crate::cuda::kernels::RANGE_JOIN;
use crate::cuda::key::CudaKey;
use crate::cuda::memory::device_memory::DeviceMemory;
use crate::cuda::replicas::Replica;
use crate::cuda::rmq::shape::Shape;
use crate::range_join::each_width;
use crate::{Column, Encoding, EngineError, RangeJoinColumn, RangeJoinInput, RangeJoinTimes};

/// A build side on one device. One to which columns are added shares what is there.
#[derive(Debug)]
pub struct BuildReplica {
    pub sorted: Arc<SortedReplica>,
    /// The numbers of rows that came in order, if they can be requested.
    counted: Option<Arc<DeviceMemory>>,
    pub columns: Vec<Arc<DeviceColumn>>,
    /// Bytes of the device's memory that another replica shares.
    shared_bytes: usize,
    pub times: RangeJoinTimes,
    pub gpu: Arc<Gpu>,
}

/// The sorted rows of a build side.
#[derive(Debug)]
pub struct SortedReplica {
    /// The keys in sorted order, encoded.
    pub keys: DeviceMemory,
    /// The first row of each group, and the end of the last one.
    pub starts: DeviceMemory,
    /// The number of each row in the input; `None` if rows came in order.
    order: Option<DeviceMemory>,
    pub groups: u32,
    /// The rows that are in a group.
    pub rows: u64,
    pub kernels: QueryKernels,
}

/// The kernels of queries; those of columns are theirs.
#[derive(Debug, Clone, Copy)]
pub struct QueryKernels {
    pub search: Function,
    pub matched: Function,
    pub counts: Function,
    pub sums_64: Function,
    pub sums_128: Function,
    pub take_row: Function,
    pub first_of_last: Function,
    pub first_ordered: Function,
}

impl Replica for BuildReplica {
    fn gpu(&self) -> &Gpu {
        &self.gpu
    }
}

impl BuildReplica {
    /// Bytes of the device's memory.
    pub fn bytes(&self) -> usize {
        let SortedReplica { keys, starts, .. } = &*self.sorted;
        let columns = self.columns.iter().map(|column| column.bytes());
        let row_numbers = self.row_numbers().map_or(0, DeviceMemory::bytes);
        keys.bytes() + starts.bytes() + row_numbers + columns.sum::<usize>()
    }

    /// Bytes of the device's memory that no replica shares to which columns were added.
    pub fn added_bytes(&self) -> usize {
        self.bytes() - self.shared_bytes
    }

    /// The number of each row in the input, if it can be requested.
    pub fn row_numbers(&self) -> Option<&DeviceMemory> {
        let sorted = self.sorted.order.as_ref();
        sorted.or(self.counted.as_deref())
    }

    /// The same rows with the columns `kept` and those `added`, which are checked.
    ///
    /// # Errors
    /// [`EngineError::DeviceMemory`], [`EngineError::Stopped`], and those of the device.
    pub fn with_columns(
        &self,
        kept: &[usize],
        added: &[RangeJoinColumn],
        row_numbers: bool,
        threads: usize,
        shape: Option<Shape>,
        stop: &AtomicBool,
    ) -> Result<Self, EngineError> {
        let mut work = Work::new(&self.gpu, stop)?;
        work.check_stopped()?;
        let mut clock = Clock::start();
        let values = StagedValues::upload(&work, added, threads)?;
        let upload = clock.lap();
        let SortedReplica { order, rows, .. } = &*self.sorted;
        let order = order.as_ref().map_or(0, DeviceMemory::address);
        let gathered = values.gather(&work, added, (order, *rows), shape)?;
        work.finish_step()?;
        drop(values);
        let columns = kept.iter().map(|i| Arc::clone(&self.columns[*i]));
        let mut replica = Self {
            sorted: Arc::clone(&self.sorted),
            counted: self.counted.clone(),
            columns: columns.collect(),
            shared_bytes: 0,
            times: RangeJoinTimes::default(),
            gpu: Arc::clone(&self.gpu),
        };
        replica.shared_bytes = replica.bytes();
        if row_numbers && replica.row_numbers().is_none() {
            replica.counted = Some(Arc::new(count_rows(&work, *rows)?));
        }
        let gather = clock.lap();
        replica.columns.extend(build_columns(&mut work, gathered)?);
        replica.times = RangeJoinTimes {
            upload,
            sort: Duration::ZERO,
            gather,
            index: clock.lap(),
        };
        Ok(replica)
    }
}

/// Builds a checked input of at least one row.
///
/// # Errors
/// [`EngineError::Invalid`] for a group id that is no group's, [`EngineError::DeviceMemory`], [`EngineError::Stopped`],
/// and those of the device.
pub fn build(
    gpu: &Arc<Gpu>,
    input: &RangeJoinInput<'_>,
    threads: usize,
    shape: Option<Shape>,
    stop: &AtomicBool,
) -> Result<BuildReplica, EngineError> {
    each_width!(&input.keys, chunks => build_keys(gpu, input, chunks, threads, shape, stop))
}

fn build_keys<K: CudaKey>(
    gpu: &Arc<Gpu>,
    input: &RangeJoinInput<'_>,
    keys: &[Column<K>],
    threads: usize,
    shape: Option<Shape>,
    stop: &AtomicBool,
) -> Result<BuildReplica, EngineError> {
    let mut work = Work::new(gpu, stop)?;
    work.check_stopped()?;
    let encoding = keys
        .first()
        .map_or_else(Encoding::unsigned, Column::encoding);
    let kernels = QueryKernels::find::<K>(&work)?;
    let mut clock = Clock::start();

    let staged = StagedKeys::upload(&work, input, keys, threads)?;
    let mut upload = clock.lap();

    let groups = input.groups.as_ref().map_or(1, |groups| groups.count);
    let rows = DeviceRows {
        keys: staged.keys,
        fold: encoding.fold().words(),
        flip: encoding.flip().words(),
        ids: staged.ids,
        narrow_ids: u32::from(are_narrow(groups)),
        groups: groups as u32,
        n: input.rows() as u64,
    };
    // Values go up while rows are sorted.
    let values_work = Work::new(gpu, stop)?;
    let mut sort = Duration::ZERO;
    let (sorted, values) = beside(
        || StagedValues::upload(&values_work, &input.columns, threads),
        || {
            // SAFETY: all keys and ids are staged; ids were checked on their way.
            let sorted = unsafe { sort_rows::<K>(&mut work, &rows) };
            sort = clock.lap();
            sorted
        },
    );
    let (sorted, values) = (sorted?, values?);
    upload += clock.lap();

    let sorted_keys = work.allocate::<K>(sorted.rows)?;
    let order = sorted.address();
    // SAFETY: the staged keys are those of all rows; the memory has room for those in a group.
    unsafe {
        gather(
            &work,
            rows.keys,
            order,
            sorted.rows,
            Some(encoding),
            sorted_keys.address(),
        )?;
    }
    let gathered = values.gather(&work, &input.columns, (order, sorted.rows), shape)?;
    work.finish_step()?;
    drop((staged, values));
    let counted = if sorted.order.is_none() && input.row_numbers {
        Some(Arc::new(count_rows(&work, sorted.rows)?))
    } else {
        None
    };
    let gather = clock.lap();

    let columns = build_columns(&mut work, gathered)?;
    Ok(BuildReplica {
        sorted: Arc::new(SortedReplica {
            keys: sorted_keys,
            starts: sorted.starts,
            order: sorted.order,
            groups: groups as u32,
            rows: sorted.rows,
            kernels,
        }),
        counted,
        columns,
        shared_bytes: 0,
        times: RangeJoinTimes {
            upload,
            sort,
            gather,
            index: clock.lap(),
        },
        gpu: Arc::clone(gpu),
    })
}

/// Builds what answers columns whose values are in sorted order, and waits for all work.
fn build_columns(
    work: &mut Work<'_>,
    gathered: Vec<GatheredColumn>,
) -> Result<Vec<Arc<DeviceColumn>>, EngineError> {
    let columns = gathered.into_iter();
    let columns = columns.map(|column| column.build(work).map(Arc::new));
    let columns = columns.collect::<Result<_, _>>()?;
    work.finish_step()?;
    Ok(columns)
}

/// Names the width of a staged column.
unsafe fn gather_column<K: CudaKey>(
    work: &Work<'_>,
    from: StagedColumn<'_>,
    _: &[Column<K>],
) -> Result<GatheredColumn, EngineError> {
    // SAFETY: guaranteed by the caller.
    unsafe { from.gather::<K>(work) }
}

/// The keys and group ids of an input on the device, in the order of its rows.
struct StagedKeys {
    _memory: DeviceMemory,
    keys: CUdeviceptr,
    /// Null without groups.
    ids: CUdeviceptr,
}

impl StagedKeys {
    fn upload<K: CudaKey>(
        work: &Work<'_>,
        input: &RangeJoinInput<'_>,
        keys: &[Column<K>],
        threads: usize,
    ) -> Result<Self, EngineError> {
        let wrong_id = AtomicBool::new(false);
        let found_wrong_id = || wrong_id.store(true, Ordering::Relaxed);
        let mut staging = Staging::default();
        let keys = staging.add_column(keys);
        let ids = input.groups.as_ref().map(|groups| {
            let of_rows = GroupsOfRows::new(&groups.parts, groups.count as u32);
            // Rows of no group get the id behind all groups.
            if are_narrow(groups.count) {
                staging.add_groups::<u16>(of_rows, found_wrong_id)
            } else {
                staging.add_groups::<u32>(of_rows, found_wrong_id)
            }
        });
        let memory = staging.upload(work, threads)?;
        drop(staging);
        if wrong_id.into_inner() {
            let groups = input.groups.as_ref().map_or(1, |groups| groups.count);
            return Err(EngineError::Invalid(format!(
                "a build row of a range join has an id that is no group's: not below the ids of its part, or {groups}, the number of groups"
            )));
        }
        let address = |offset: usize| memory.address() + offset as u64;
        Ok(Self {
            keys: address(keys),
            ids: ids.map_or(0, address),
            _memory: memory,
        })
    }
}

/// Value columns on the device, in the order of the input.
struct StagedValues {
    _memory: DeviceMemory,
    /// The addresses of values, and of validity bits if there are NULLs.
    columns: Vec<(CUdeviceptr, Option<CUdeviceptr>)>,
}

impl StagedValues {
    fn upload(
        work: &Work<'_>,
        columns: &[RangeJoinColumn],
        threads: usize,
    ) -> Result<Self, EngineError> {
        let mut staging = Staging::default();
        let columns = columns.iter().map(|column| {
            let rows = column.values.rows();
            each_width!(&column.values, chunks => {
                (staging.add_column(chunks), staging.add_validity(rows, chunks))
            })
        });
        let columns: Vec<_> = columns.collect();
        let memory = staging.upload(work, threads)?;
        let address = |offset: usize| memory.address() + offset as u64;
        let columns = columns
            .into_iter()
            .map(|(values, valid)| (address(values), valid.map(address)));
        Ok(Self {
            columns: columns.collect(),
            _memory: memory,
        })
    }

    /// Enqueues the moves of all values to sorted order: that of the row numbers at `order` (null: the input's). The
    /// first `rows` of them are in a group.
    fn gather(
        &self,
        work: &Work<'_>,
        columns: &[RangeJoinColumn],
        (order, rows): (CUdeviceptr, u64),
        shape: Option<Shape>,
    ) -> Result<Vec<GatheredColumn>, EngineError> {
        let mut gathered = vec![];
        if rows == 0 {
            return Ok(gathered);
        }
        for (column, (values, valid)) in columns.iter().zip(&self.columns) {
            let from = StagedColumn {
                column,
                values: *values,
                valid: *valid,
                order,
                rows,
                shape,
            };
            // SAFETY: the column is staged, and the order is that of its rows.
            gathered.push(unsafe {
                each_width!(&column.values, chunks => gather_column(work, from, chunks))?
            });
            work.check_stopped()?;
        }
        Ok(gathered)
    }
}

/// Runs `other` on another thread while `work` runs on this one, or after it if no thread can be started. Returns the
/// results of `work` and `other`.
fn beside<A, B: Send>(other: impl Fn() -> B + Sync, work: impl FnOnce() -> A) -> (A, B) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("rmq-upload".to_owned());
        let running = thread.spawn_scoped(scope, &other);
        let done = work();
        let other = match running {
            Ok(running) => running
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => other(),
        };
        (done, other)
    })
}

/// Returns the numbers of rows that came in order.
fn count_rows(work: &Work<'_>, rows: u64) -> Result<DeviceMemory, EngineError> {
    let memory = work.allocate::<u32>(rows)?;
    let to = memory.address();
    let kernel = work.kernel(RANGE_JOIN, "join_rows")?;
    // SAFETY: there is room for all rows; arguments are those of `join_rows`.
    unsafe { work.launch(kernel, rows, [argument(&rows), argument(&to)])? };
    Ok(memory)
}

impl QueryKernels {
    fn find<K: CudaKey>(work: &Work<'_>) -> Result<Self, EngineError> {
        let find = |name: &str| work.kernel(RANGE_JOIN, name);
        Ok(Self {
            search: find(&format!("join_search_{}", K::NAME))?,
            matched: find("join_matched")?,
            counts: find("join_counts")?,
            sums_64: find("join_sums_u64")?,
            sums_128: find("join_sums_u128")?,
            take_row: find("join_take_u32")?,
            first_of_last: find(&format!("join_first_of_last_{}", K::NAME))?,
            first_ordered: find("join_first_ordered")?,
        })
    }
}

/// Measures the steps of a build.
struct Clock(Instant);

impl Clock {
    fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the time since the last call.
    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.0, now)
    }
}
