//! From ranges of keys to positions in sorted keys, from host memory to host memory: the first half of a range join.

use std::error::Error;
use std::thread;

use crate::lab::device::Lab;
use rmq_engine::cuda::CudaEngine;
use rmq_engine::{EngineError, KeyBound, KeyRanges, SortedKeys};

use crate::clock;
use crate::random::mix;
use crate::run::Run;
use crate::table::{Table, short};

/// Queries that a thread asks the device for at once.
const AT_ONCE: usize = 1 << 19;

/// Inclusive ranges of keys.
struct Asked {
    low: Vec<u64>,
    high: Vec<u64>,
}

/// Where their rows were found.
struct Found {
    left: Vec<i64>,
    right: Vec<i64>,
}

/// Measures binary searches on all threads, and the device asked by all threads, beside what the bus takes for the queries.
pub fn measure(
    run: &mut Run,
    lab: Option<&Lab>,
    cuda: Option<&CudaEngine>,
) -> Result<(), Box<dyn Error>> {
    let head = ["", "CPU", "GPU", "bus alone", "GPU to the bus"];
    let mut table = Table::new(
        "Sorted keys of 64 bits: nanoseconds a range of keys, host to host",
        head.map(str::to_owned),
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
        let asked = Asked::among(&keys, queries);
        let mut found = Found::none(queries);
        let on_cpu = clock::measure(run.args.rounds.min(3), || {
            in_pieces(
                &asked,
                &mut found,
                queries.div_ceil(threads),
                |asked, l, r| {
                    for (i, (low, high)) in asked.low.iter().zip(asked.high).enumerate() {
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
        let mut cells = vec![short(ns(on_cpu))];
        if let (Some(cuda), Some([up, down])) = (cuda, bus) {
            let fill =
                |from: usize, to: &mut [u64]| to.copy_from_slice(&keys[from..from + to.len()]);
            let len = keys.len();
            let search = cuda.sorted_u64(SortedKeys { len, fill: &fill }, threads)?;
            let mut again = Found::none(queries);
            let seconds = clock::measure(run.args.rounds, || {
                in_pieces(&asked, &mut again, AT_ONCE, |asked, l, r| {
                    let bound = |keys| Some(KeyBound { keys, inside: true });
                    let ranges = KeyRanges {
                        segments: None,
                        low: bound(asked.low),
                        high: bound(asked.high),
                    };
                    search.search(ranges, l, r)
                })
            })?;
            if found.left != again.left || found.right != again.right {
                return Err(format!("the device found other rows among 2^{n} keys").into());
            }
            // Two keys go up, two positions of 32 bits come down at the same time.
            let alone = (16.0 / up).max(8.0 / down) * 1e9;
            cells.extend([short(ns(seconds)), short(alone), short(ns(seconds) / alone)]);
        }
        table.row(format!("2^{n}"), cells);
    }
    run.tables.push(table);
    Ok(())
}

impl Asked {
    /// Ranges of some hundred keys, anywhere.
    fn among(keys: &[u64], queries: usize) -> Self {
        let any = |i: usize| keys[mix(i as u64) as usize % keys.len()];
        let low: Vec<u64> = (0..queries).map(any).collect();
        let high = low.iter().map(|low| low + (100 << 10)).collect();
        Self { low, high }
    }
}

impl Found {
    fn none(queries: usize) -> Self {
        Self {
            left: vec![0; queries],
            right: vec![0; queries],
        }
    }
}

/// Some of the queries.
struct Piece<'a> {
    low: &'a [u64],
    high: &'a [u64],
}

/// Lets as many threads as there are pieces, or cores, search.
fn in_pieces(
    asked: &Asked,
    found: &mut Found,
    piece: usize,
    search: impl Fn(Piece<'_>, &mut [i64], &mut [i64]) -> Result<(), EngineError> + Sync,
) -> Result<(), EngineError> {
    let queries = asked.low.chunks(piece).zip(asked.high.chunks(piece));
    let places = found
        .left
        .chunks_mut(piece)
        .zip(found.right.chunks_mut(piece));
    let mut work: Vec<_> = queries.zip(places).collect();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let share = work.len().div_ceil(threads).max(1);
    thread::scope(|scope| {
        let running: Vec<_> = work
            .chunks_mut(share)
            .map(|part| {
                let search = &search;
                scope.spawn(move || {
                    part.iter_mut()
                        .try_for_each(|((low, high), (left, right))| {
                            search(Piece { low, high }, left, right)
                        })
                })
            })
            .collect();
        running
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no thread panics"))
    })
}
