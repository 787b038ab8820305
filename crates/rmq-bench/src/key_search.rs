//! From ranges of keys to positions in sorted keys, from host memory to host memory: the first half of a range join.

use std::error::Error;
use std::thread;

use rmq_engine::cuda::CudaEngine;
use rmq_engine::{EngineError, KeyBound, KeyRanges, SortedKeys};

use rmq_bench::clock;
use rmq_bench::random::mix;
use rmq_bench::table::{Table, three_digits};
use rmq_bench::workload::Bounds;

use crate::batches::GPU_BATCH_SIZE;
use crate::lab::device::Lab;
use crate::run::Run;

/// Inclusive ranges of keys.
struct KeyBounds {
    low: Vec<u64>,
    high: Vec<u64>,
}

/// Borrowed [`KeyBounds`].
struct KeyBoundsRef<'a> {
    low: &'a [u64],
    high: &'a [u64],
}

/// Measures binary searches on all threads, and the device with queries from all threads, beside the time that the bus
/// takes for the queries.
pub fn measure(
    run: &mut Run,
    lab: Option<&Lab>,
    cuda: Option<&CudaEngine>,
) -> Result<(), Box<dyn Error>> {
    let header = ["", "CPU", "GPU", "bus alone", "GPU to the bus"];
    let mut table = Table::new(
        "Sorted keys of 64 bits: nanoseconds a range of keys, host to host",
        header.map(str::to_owned),
    );
    let bus = lab.map(Lab::bus_speed).transpose()?;
    let queries = 1_usize << run.args.batch.min(24);
    let threads = run.threads() as usize;
    let ns = |seconds: f64| seconds / queries as f64 * 1e9;
    for n in run.args.n.clone().into_iter().filter(|n| *n <= 28) {
        run.progress.now(&format!("sorted keys: 2^{n}"));
        let keys: Vec<u64> = (0..1_u64 << n)
            .map(|i| (i << 10) + (mix(i) >> 54))
            .collect();
        let bounds = KeyBounds::among(&keys, queries);
        let mut cpu_found = no_positions(queries);
        let cpu_seconds = clock::measure(run.args.rounds.min(3), || {
            in_batches(
                &bounds,
                &mut cpu_found,
                queries.div_ceil(threads),
                |bounds, l, r| {
                    for (i, (low, high)) in bounds.low.iter().zip(bounds.high).enumerate() {
                        let from = keys.partition_point(|key| key < low);
                        let to = keys.partition_point(|key| key <= high);
                        (l[i], r[i]) = if from < to {
                            (from as i64, to as i64 - 1)
                        } else {
                            (1, 0)
                        };
                    }
                    Ok(())
                },
            )
        })?;
        let mut cells = vec![three_digits(ns(cpu_seconds))];
        if let (Some(cuda), Some([up, down])) = (cuda, bus) {
            let fill =
                |from: usize, to: &mut [u64]| to.copy_from_slice(&keys[from..from + to.len()]);
            let len = keys.len();
            let search = cuda.sorted_u64(SortedKeys { len, fill: &fill }, threads)?;
            let mut gpu_found = no_positions(queries);
            let seconds = clock::measure(run.args.rounds, || {
                in_batches(&bounds, &mut gpu_found, GPU_BATCH_SIZE, |bounds, l, r| {
                    let bound = |keys| Some(KeyBound { keys, inside: true });
                    let ranges = KeyRanges {
                        segments: None,
                        low: bound(bounds.low),
                        high: bound(bounds.high),
                    };
                    search.search(ranges, l, r)
                })
            })?;
            if cpu_found != gpu_found {
                return Err(format!("the device found other rows among 2^{n} keys").into());
            }
            // Two keys go up, two positions of 32 bits come down at the same time.
            let bus_alone = (16.0 / up).max(8.0 / down) * 1e9;
            cells.extend([ns(seconds), bus_alone, ns(seconds) / bus_alone].map(three_digits));
        }
        table.row(format!("2^{n}"), cells);
    }
    run.tables.push(table);
    Ok(())
}

impl KeyBounds {
    /// Ranges of about a hundred keys, at random positions.
    fn among(keys: &[u64], queries: usize) -> Self {
        let random_key = |i: usize| keys[mix(i as u64) as usize % keys.len()];
        let low: Vec<u64> = (0..queries).map(random_key).collect();
        let high = low.iter().map(|low| low + (100 << 10)).collect();
        Self { low, high }
    }
}

fn no_positions(queries: usize) -> Bounds {
    Bounds {
        left: vec![0; queries],
        right: vec![0; queries],
    }
}

/// Runs `search` for all batches, on as many threads as there are batches or cores.
fn in_batches(
    bounds: &KeyBounds,
    found: &mut Bounds,
    batch_size: usize,
    search: impl Fn(KeyBoundsRef<'_>, &mut [i64], &mut [i64]) -> Result<(), EngineError> + Sync,
) -> Result<(), EngineError> {
    let low_high = (bounds.low.chunks(batch_size)).zip(bounds.high.chunks(batch_size));
    let left_right = (found.left.chunks_mut(batch_size)).zip(found.right.chunks_mut(batch_size));
    let mut batches: Vec<_> = low_high.zip(left_right).collect();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let share = batches.len().div_ceil(threads).max(1);
    thread::scope(|scope| {
        let running: Vec<_> = batches
            .chunks_mut(share)
            .map(|part| {
                let search = &search;
                scope.spawn(move || {
                    part.iter_mut()
                        .try_for_each(|((low, high), (left, right))| {
                            search(KeyBoundsRef { low, high }, left, right)
                        })
                })
            })
            .collect();
        running
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no thread panics"))
    })
}
