//! The cost model that chooses between engines: the one with the smaller estimated time, from a few measured constants.

/// Nanoseconds per byte of the bus of the machine of [`Costs::MEASURED`]: 55.5 GB/s.
const BUS_BYTE: f64 = 0.018;

/// Bytes of a range on the bus: its bounds, and the answer.
const RANGE_BYTES: f64 = 16.0;

/// Bytes of a search on the bus: a segment and two keys, and the positions found.
const SEARCH_BYTES: f64 = 32.0;

/// Costs in nanoseconds, measured on one NVIDIA H200 with 16 CPU cores. On other machines both engines differ, but a
/// choice that is not close stays the same. What the bus costs is that of the machine ([`Costs::with_bus`]).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// The CPU engine on one core: a range of a small column.
    pub cpu_range_small: f64,
    /// The CPU engine on one core: a range of a column that does not fit its caches.
    pub cpu_range: f64,
    /// The greatest size of a small column, in bytes.
    pub small_bytes: f64,
    /// The factor by which a range on the CPU takes longer if keys are twice as wide.
    pub cpu_width: f64,
    /// The CPU engine on one core: building the index, per byte of the column.
    pub cpu_build_byte: f64,
    /// The number of cores beyond which a build is not faster.
    pub cpu_build_cores: f64,
    /// One core: sorting a row of a build side and moving its columns, where the device would.
    pub cpu_sort_row: f64,
    /// One core: searching the positions of a range of keys.
    pub cpu_search: f64,
    /// A device and its bus: a range, transfers included.
    pub cuda_range: f64,
    /// One core: preparing a range for a device. The device is not faster than the cores that feed it.
    pub cuda_range_core: f64,
    /// A device and its bus: searching the positions of a range of keys.
    pub cuda_search: f64,
    /// A device and its bus: uploading and indexing, per byte of the column.
    pub cuda_build_byte: f64,
    /// A device: passing a row of a build side on, and sorting it, beside what its bytes cost on the bus.
    pub cuda_sort_row: f64,
    /// The fixed cost of sorting a build side on a device.
    pub cuda_sort: f64,
    /// The fixed cost of each query and of each build on a device: copies, launches, hand-over between threads.
    pub cuda_query: f64,
    /// Opening the devices: a tenth of the time it takes, because it happens once per session.
    pub cuda_open: f64,
}

impl Costs {
    /// The measured costs.
    pub const MEASURED: Self = Self {
        cpu_range_small: 12.0,
        cpu_range: 16.5,
        small_bytes: 16_777_216.0,
        cpu_width: 1.4,
        cpu_build_byte: 0.11,
        cpu_build_cores: 8.0,
        cpu_sort_row: 25.0,
        cpu_search: 60.0,
        cuda_range: 0.3,
        cuda_range_core: 4.0,
        cuda_search: 1.0,
        cuda_build_byte: 0.025,
        cuda_sort_row: 0.8,
        cuda_sort: 10_000_000.0,
        cuda_query: 300_000.0,
        cuda_open: 80_000_000.0,
    };

    /// Returns these costs for a bus that takes this many nanoseconds per byte.
    #[must_use]
    pub fn with_bus(self, bus_byte: f64) -> Self {
        let more = bus_byte - BUS_BYTE;
        Self {
            cuda_range: self.cuda_range + RANGE_BYTES * more,
            cuda_search: self.cuda_search + SEARCH_BYTES * more,
            cuda_build_byte: self.cuda_build_byte + more,
            ..self
        }
    }
}

impl Default for Costs {
    fn default() -> Self {
        Self::MEASURED
    }
}

/// The known parameters of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Values in the column.
    pub rows: usize,
    /// Bytes of a key: 4, 8 or 16.
    pub key_bytes: usize,
    /// Of a range join: bytes of the range key, by which rows are sorted, with the columns that are queried, and in
    /// which bounds are searched. `None` for ranges of positions.
    pub range_key_bytes: Option<usize>,
    /// Estimated number of ranges; if unknown, the number of rows is used.
    pub ranges: Option<usize>,
    /// The most threads that query at a time.
    pub cores: usize,
    /// Whether the CPU engine has an index of the column already, or the sorted rows of a range join.
    pub ready_on_cpu: bool,
    /// Whether the devices have one already.
    pub ready_on_cuda: bool,
    /// Whether the devices are open.
    pub open: bool,
}

/// The engine that is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The CPU engine.
    Cpu,
    /// The engine for NVIDIA GPUs.
    Cuda,
}

/// Returns the engine with the smaller estimated time; the CPU if both are equal.
#[must_use]
pub fn choose(work: &Workload, costs: &Costs) -> Choice {
    if on_cuda(work, costs) < on_cpu(work, costs) {
        Choice::Cuda
    } else {
        Choice::Cpu
    }
}

/// Returns the estimated time on the CPU in nanoseconds.
#[must_use]
pub fn on_cpu(work: &Workload, costs: &Costs) -> f64 {
    let bytes = bytes(work);
    let width = (number(work.key_bytes.max(4)) / 4.0).log2();
    let range = if bytes <= costs.small_bytes {
        costs.cpu_range_small
    } else {
        costs.cpu_range
    };
    let range = range * costs.cpu_width.powf(width);
    let build = if work.ready_on_cpu {
        0.0
    } else {
        bytes * costs.cpu_build_byte / cores(work).min(costs.cpu_build_cores)
    };
    let (mut sort, mut search) = (0.0, 0.0);
    if work.range_key_bytes.is_some() {
        if !work.ready_on_cpu {
            sort = number(work.rows) * costs.cpu_sort_row / cores(work).min(costs.cpu_build_cores);
        }
        // The sorted keys are in main memory anyway.
        search = costs.cpu_search;
    }
    build + sort + ranges(work) * (range + search) / cores(work)
}

/// Returns the estimated time on devices in nanoseconds.
#[must_use]
pub fn on_cuda(work: &Workload, costs: &Costs) -> f64 {
    let open = if work.open { 0.0 } else { costs.cuda_open };
    let build = if work.ready_on_cuda {
        0.0
    } else {
        costs.cuda_query + bytes(work) * costs.cuda_build_byte
    };
    let mut range = costs.cuda_range.max(costs.cuda_range_core / cores(work));
    let mut sort = 0.0;
    if let Some(key_bytes) = work.range_key_bytes {
        range += costs.cuda_search.max(costs.cuda_range_core / cores(work));
        if !work.ready_on_cuda {
            let row = number(key_bytes) * costs.cuda_build_byte + costs.cuda_sort_row;
            sort = costs.cuda_sort + number(work.rows) * row;
        }
    }
    open + build + sort + costs.cuda_query + ranges(work) * range
}

fn bytes(work: &Workload) -> f64 {
    number(work.rows) * number(work.key_bytes)
}

fn ranges(work: &Workload) -> f64 {
    number(work.ranges.unwrap_or(work.rows))
}

fn cores(work: &Workload) -> f64 {
    number(work.cores.max(1))
}

#[allow(clippy::cast_precision_loss, reason = "estimates")]
fn number(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: Workload = Workload {
        rows: 1 << 28,
        key_bytes: 4,
        range_key_bytes: None,
        ranges: Some(1 << 27),
        cores: 16,
        ready_on_cpu: false,
        ready_on_cuda: false,
        open: false,
    };

    fn chosen(work: Workload) -> Choice {
        choose(&work, &Costs::MEASURED)
    }

    #[test]
    fn many_ranges_go_to_the_device_and_few_do_not() {
        assert_eq!(chosen(LARGE), Choice::Cuda);
        let few = Workload {
            rows: 1000,
            ranges: Some(1000),
            ..LARGE
        };
        assert_eq!(chosen(few), Choice::Cpu);
        let unknown = Workload {
            ranges: None,
            ..LARGE
        };
        assert_eq!(chosen(unknown), Choice::Cuda);
        assert_eq!(
            chosen(Workload {
                ranges: None,
                ..few
            }),
            Choice::Cpu
        );
        let none = Workload {
            ranges: Some(0),
            ready_on_cpu: true,
            ..LARGE
        };
        assert_eq!(chosen(none), Choice::Cpu);
    }

    #[test]
    fn large_build_sides_are_sorted_on_the_device() {
        let join = Workload {
            rows: 50_000_000,
            key_bytes: 8,
            range_key_bytes: Some(8),
            ranges: Some(5_000_000),
            open: true,
            ..LARGE
        };
        assert_eq!(chosen(join), Choice::Cuda);
        let not_open = Workload {
            open: false,
            ..join
        };
        assert_eq!(chosen(not_open), Choice::Cuda);
        let small = Workload {
            rows: 1_000_000,
            ranges: Some(100_000),
            ..join
        };
        assert_eq!(chosen(small), Choice::Cpu);
    }

    #[test]
    fn an_existing_index_is_preferred_unless_there_are_many_ranges() {
        let some = Workload {
            ranges: Some(100_000),
            ready_on_cpu: true,
            open: true,
            ..LARGE
        };
        assert_eq!(chosen(some), Choice::Cpu);
        let on_device = Workload {
            ready_on_cpu: false,
            ready_on_cuda: true,
            ..some
        };
        assert_eq!(chosen(on_device), Choice::Cuda);
        // With enough ranges, a column that is indexed on the CPU moves.
        let many = Workload {
            ranges: Some(1 << 27),
            ..some
        };
        assert_eq!(chosen(many), Choice::Cuda);
        // One range is not worth the fixed cost of a device.
        let one = Workload {
            rows: 1 << 12,
            ranges: Some(1),
            ..on_device
        };
        assert_eq!(chosen(one), Choice::Cpu);
    }

    #[test]
    fn more_ranges_never_move_work_back_to_the_cpu() {
        for rows in [0, 1, 1 << 12, 1 << 20, 1 << 28, 1 << 33] {
            for key_bytes in [4, 8, 16] {
                for cores in [1, 2, 16] {
                    for ready in 0..16 {
                        let mut before = Choice::Cpu;
                        for power in 0..40 {
                            let work = Workload {
                                rows,
                                key_bytes,
                                range_key_bytes: (ready & 8 != 0).then_some(8),
                                ranges: Some(1 << power),
                                cores,
                                ready_on_cpu: ready & 1 != 0,
                                ready_on_cuda: ready & 2 != 0,
                                open: ready & 4 != 0,
                            };
                            let now = chosen(work);
                            assert!(before == Choice::Cpu || now == Choice::Cuda, "{work:?}");
                            before = now;
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_range_join_lowers_the_number_of_ranges_for_a_device() {
        let ranges = |range_key_bytes| {
            let power = (0..40).find(|power| {
                let work = Workload {
                    range_key_bytes,
                    ranges: Some(1 << power),
                    ..LARGE
                };
                chosen(work) == Choice::Cuda
            });
            power.expect("a device is chosen for many ranges")
        };
        assert!(ranges(Some(8)) < ranges(None));
    }

    #[test]
    fn a_slow_bus_moves_work_to_the_cpu() {
        let on_bus = |bus_byte| on_cuda(&LARGE, &Costs::MEASURED.with_bus(bus_byte));
        let measured = on_cuda(&LARGE, &Costs::MEASURED);
        assert!((on_bus(BUS_BYTE) - measured).abs() < 1.0);
        // A link that costs nothing, and a bus of 2 GB/s.
        assert!(on_bus(0.0) > 0.0 && on_bus(0.0) < measured);
        assert!(on_bus(0.5) > 4.0 * measured);
        assert_eq!(choose(&LARGE, &Costs::MEASURED.with_bus(0.5)), Choice::Cpu);
    }

    #[test]
    fn the_choice_depends_on_the_costs() {
        let expensive = Costs {
            cuda_range: 1000.0,
            ..Costs::MEASURED
        };
        assert_eq!(choose(&LARGE, &expensive), Choice::Cpu);
    }
}
