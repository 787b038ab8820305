//! Which engine is to answer: the one that should be done first, by a few measured figures.

/// What work costs, in nanoseconds. The figures are those of one NVIDIA H200 with the 16 cores beside it; on other
/// machines both sides differ, and what tips the balance by more than a little does so there as well.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// The CPU engine on one core, a range of a small column.
    pub cpu_range_small: f64,
    /// The same, of a column that its caches do not hold.
    pub cpu_range: f64,
    /// The column is small up to so many bytes.
    pub small_bytes: f64,
    /// By how much the CPU engine slows down when keys are twice as wide.
    pub cpu_width: f64,
    /// The CPU engine on one core, building: a byte of the column.
    pub cpu_build_byte: f64,
    /// More cores than these do not build faster.
    pub cpu_build_cores: f64,
    /// One core, finding the positions of a range of keys.
    pub cpu_search: f64,
    /// A device and its bus, a range's whole trip.
    pub cuda_range: f64,
    /// What one core does for a range on its way: the device answers no faster than cores can ask.
    pub cuda_range_core: f64,
    /// A device and its bus, finding the positions of a range of keys.
    pub cuda_search: f64,
    /// A byte of a column that is uploaded and indexed.
    pub cuda_build_byte: f64,
    /// What a query takes at the least, and each build, however small: copies, launches, threads that hand over.
    pub cuda_query: f64,
    /// Opening the devices. A tenth of what it takes, as it is done once a session.
    pub cuda_open: f64,
}

impl Costs {
    /// As measured.
    pub const MEASURED: Self = Self {
        cpu_range_small: 12.0,
        cpu_range: 16.5,
        small_bytes: 16_777_216.0,
        cpu_width: 1.4,
        cpu_build_byte: 0.11,
        cpu_build_cores: 8.0,
        cpu_search: 60.0,
        cuda_range: 0.3,
        cuda_range_core: 4.0,
        cuda_search: 1.0,
        cuda_build_byte: 0.025,
        cuda_query: 300_000.0,
        cuda_open: 80_000_000.0,
    };
}

impl Default for Costs {
    fn default() -> Self {
        Self::MEASURED
    }
}

/// What is known of some work before it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Values in the column.
    pub rows: usize,
    /// Bytes of a key: 4, 8 or 16.
    pub key_bytes: usize,
    /// Bytes of the keys that ranges are of, where their positions must be found first; else 0.
    pub search_key_bytes: usize,
    /// About how many ranges will be asked. Where that is not known, as many as the column has rows.
    pub ranges: Option<usize>,
    /// How many threads ask at a time, at most.
    pub cores: usize,
    /// Whether the CPU engine has its index of the column.
    pub ready_on_cpu: bool,
    /// Whether the devices have theirs.
    pub ready_on_cuda: bool,
    /// Whether the devices are open.
    pub open: bool,
}

/// An engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The CPU engine.
    Cpu,
    /// That for NVIDIA GPUs.
    Cuda,
}

/// The engine that should be done with the work first.
#[must_use]
pub fn choose(work: &Work, costs: &Costs) -> Choice {
    if on_cuda(work, costs) < on_cpu(work, costs) {
        Choice::Cuda
    } else {
        Choice::Cpu
    }
}

/// Nanoseconds that the CPU engine should take.
#[must_use]
pub fn on_cpu(work: &Work, costs: &Costs) -> f64 {
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
    // What sorts keys holds them here anyway.
    let search = if work.search_key_bytes > 0 {
        costs.cpu_search
    } else {
        0.0
    };
    build + ranges(work) * (range + search) / cores(work)
}

/// Nanoseconds that devices should take.
#[must_use]
pub fn on_cuda(work: &Work, costs: &Costs) -> f64 {
    let open = if work.open { 0.0 } else { costs.cuda_open };
    let build = if work.ready_on_cuda {
        0.0
    } else {
        costs.cuda_query + bytes(work) * costs.cuda_build_byte
    };
    let mut range = costs.cuda_range.max(costs.cuda_range_core / cores(work));
    let mut keys = 0.0;
    if work.search_key_bytes > 0 {
        range += costs.cuda_search.max(costs.cuda_range_core / cores(work));
        keys = number(work.rows) * number(work.search_key_bytes) * costs.cuda_build_byte;
    }
    open + build + keys + costs.cuda_query + ranges(work) * range
}

fn bytes(work: &Work) -> f64 {
    number(work.rows) * number(work.key_bytes)
}

fn ranges(work: &Work) -> f64 {
    number(work.ranges.unwrap_or(work.rows))
}

fn cores(work: &Work) -> f64 {
    number(work.cores.max(1))
}

#[allow(clippy::cast_precision_loss, reason = "estimates")]
fn number(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: Work = Work {
        rows: 1 << 28,
        key_bytes: 4,
        search_key_bytes: 0,
        ranges: Some(1 << 27),
        cores: 16,
        ready_on_cpu: false,
        ready_on_cuda: false,
        open: false,
    };

    fn chosen(work: Work) -> Choice {
        choose(&work, &Costs::MEASURED)
    }

    #[test]
    fn many_ranges_go_to_the_device_and_few_stay() {
        assert_eq!(chosen(LARGE), Choice::Cuda);
        let few = Work {
            rows: 1000,
            ranges: Some(1000),
            ..LARGE
        };
        assert_eq!(chosen(few), Choice::Cpu);
        let unknown = Work {
            ranges: None,
            ..LARGE
        };
        assert_eq!(chosen(unknown), Choice::Cuda);
        assert_eq!(
            chosen(Work {
                ranges: None,
                ..few
            }),
            Choice::Cpu
        );
        let none = Work {
            ranges: Some(0),
            ready_on_cpu: true,
            ..LARGE
        };
        assert_eq!(chosen(none), Choice::Cpu);
    }

    #[test]
    fn a_ready_index_draws_work_to_it_and_no_more() {
        let some = Work {
            ranges: Some(100_000),
            ready_on_cpu: true,
            open: true,
            ..LARGE
        };
        assert_eq!(chosen(some), Choice::Cpu);
        let on_device = Work {
            ready_on_cpu: false,
            ready_on_cuda: true,
            ..some
        };
        assert_eq!(chosen(on_device), Choice::Cuda);
        // A column that the CPU has indexed moves when there is enough to ask.
        let many = Work {
            ranges: Some(1 << 27),
            ..some
        };
        assert_eq!(chosen(many), Choice::Cuda);
        // One range is not worth a trip, wherever the index lies.
        let one = Work {
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
                            let work = Work {
                                rows,
                                key_bytes,
                                search_key_bytes: if ready & 8 != 0 { 8 } else { 0 },
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
    fn a_search_for_keys_pays_sooner() {
        let ranges = |search_key_bytes| {
            let power = (0..40).find(|power| {
                let asked = Work {
                    search_key_bytes,
                    ranges: Some(1 << power),
                    ..LARGE
                };
                chosen(asked) == Choice::Cuda
            });
            power.expect("many ranges pay")
        };
        assert!(ranges(8) < ranges(0));
    }

    #[test]
    fn what_costs_more_changes_the_choice() {
        let dear = Costs {
            cuda_range: 1000.0,
            ..Costs::MEASURED
        };
        assert_eq!(choose(&LARGE, &dear), Choice::Cpu);
    }
}
