//! A range join on a device, from rows in host memory to answers in host memory: the minimum of the rows of a group
//! within a second of each probe row. Rows and probe rows ascend by time, as they arrive; group frequencies follow
//! Zipf's law.

use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rmq_engine::cuda::CudaEngine;
use rmq_engine::{
    Column, ColumnChunks, Comparison, Encoding, Engine, EngineError, Extreme, ExtremeIndex,
    OutputValues, PartGroups, ProbeBound, RangeJoinAnswer, RangeJoinColumn, RangeJoinIndex,
    RangeJoinInput, RangeJoinOutput, RangeJoinProbe, RangeJoinTimes, RowGroups, RowIds,
};

use rmq_bench::batches::GPU_BATCH_SIZE;
use rmq_bench::clock;
use rmq_bench::random::{mix, unit};
use rmq_bench::table::{Table, three_digits};

use crate::limits::Limits;
use crate::run::Run;

/// Groups of rows.
const GROUPS: u32 = 500;

/// Microseconds between the first and the last row, at any number of rows.
const SPAN: f64 = 2e10;

/// Microseconds of a window to each side of its probe row.
const WINDOW: i64 = 1_000_000;

/// Rows of a batch as tables in memory have them.
const CHUNK: usize = 8192;

/// Rows with a group, a time and a value.
struct Rows {
    groups: Vec<u32>,
    times: Arc<Vec<u64>>,
    values: Arc<Vec<u64>>,
}

/// Probe rows with a group and a window.
struct Probes {
    groups: Vec<u32>,
    low: Arc<Vec<u64>>,
    high: Arc<Vec<u64>>,
}

/// Measures the build side, the queries, and both together; compares all answers with those of a scan on the CPU.
pub fn measure(
    run: &mut Run,
    cuda: Option<&CudaEngine>,
    limits: Option<Limits>,
) -> Result<(), Box<dyn Error>> {
    let (Some(cuda), Some(limits)) = (cuda, limits) else {
        return Ok(());
    };
    let (n, q) = (run.args.rows, run.args.probes);
    let threads = run.threads() as usize;
    run.progress
        .now(&format!("range join: {n} rows, {q} probe rows"));
    let rows = Rows::new(n, 1, threads);
    let probes = Probes::new(Rows::new(q, 2, threads));
    let (expected, cpu) = scan(&rows, &probes, threads);

    // A round is a whole query: the build side is dropped at its end. The first one does not count.
    let mut rounds = vec![];
    for round in 0..=run.args.rounds {
        let started = Instant::now();
        let index = build(cuda, &rows, threads)?;
        let built = started.elapsed();
        let answers = answer(&*index, &probes, threads)?;
        let answered = started.elapsed();
        let wrong = count_wrong(&answers, &expected);
        if wrong > 0 {
            return Err(format!("{wrong} of {q} answers of the range join are wrong").into());
        }
        let again = Instant::now();
        drop(answer(&*index, &probes, threads)?);
        let again = again.elapsed();
        if round > 0 {
            rounds.push(Round {
                steps: index.build_times(),
                build: built,
                answer: answered - built,
                whole: answered,
                again,
            });
        }
    }
    run.tables.push(tabulate(&rounds, limits, n, q));
    let cpu = three_digits(cpu.as_secs_f64() * 1e3);
    let title = format!("The same on the CPU, {threads} threads, milliseconds");
    let mut table = Table::new(title, ["", "ms"].map(str::to_owned));
    table.row("binary search and scan, rows sorted before", [cpu]);
    run.tables.push(table);
    Ok(())
}

/// The times of one query.
struct Round {
    steps: RangeJoinTimes,
    build: Duration,
    answer: Duration,
    whole: Duration,
    /// Answering once more.
    again: Duration,
}

/// Makes a table of medians beside the limits of `n` rows and `q` probe rows.
fn tabulate(rounds: &[Round], limits: Limits, n: usize, q: usize) -> Table {
    let up = |bytes: f64| bytes / limits.bus[0] * 1e3;
    let copied = |bytes: f64| bytes / limits.copy * 1e3;
    let (rows, probes) = (n as f64, q as f64);
    let both_ways = up(18.0 * probes).max(8.125 * probes / limits.bus[1] * 1e3);
    let bus = "bus, group ids of 16 bits";
    let bus_again = "bus, both ways at once";
    let mut table = Table::new(
        format!("Range join, min of f64: {n} rows, {GROUPS} groups, {q} probe rows, milliseconds"),
        ["", "ms", "limit, ms", "limit"].map(str::to_owned),
    );
    let mut row = |name: &str, of: fn(&Round) -> Duration, limit: f64, what: &str| {
        let seconds = rounds.iter().map(|round| of(round).as_secs_f64());
        let ms = clock::median(seconds.collect()) * 1e3;
        table.row(
            name,
            [three_digits(ms), three_digits(limit), what.to_owned()],
        );
    };
    let two_passes = "device copy, two passes of 24 bytes a row";
    let moved = "device copy, keys, values and row numbers";
    let upload_and_sort = |r: &Round| r.steps.upload + r.steps.sort;
    row("upload and sort", upload_and_sort, up(18.0 * rows), bus);
    let sort = "sort, while values are copied";
    row(sort, |r| r.steps.sort, copied(48.0 * rows), two_passes);
    row("gather", |r| r.steps.gather, copied(36.0 * rows), moved);
    let read = "device copy, values read";
    row("index", |r| r.steps.index, copied(8.0 * rows), read);
    row("build", |r| r.build, up(18.0 * rows), bus);
    row("answer", |r| r.answer, both_ways, bus_again);
    let whole = up(18.0 * rows) + both_ways;
    row("build and answer", |r| r.whole, whole, bus);
    row("answer again", |r| r.again, both_ways, bus_again);
    table
}

impl Rows {
    fn new(n: usize, seed: u64, threads: usize) -> Self {
        let gap = SPAN / n as f64;
        let random = |i: usize, which: u64| mix((i as u64) << 8 | seed << 4 | which);
        let share = n.div_ceil(threads).max(1);
        let fill = |to: &mut [u64], of: &(dyn Fn(usize) -> u64 + Sync)| {
            thread::scope(|scope| {
                for (part, to) in to.chunks_mut(share).enumerate() {
                    scope.spawn(move || {
                        for (i, to) in to.iter_mut().enumerate() {
                            *to = of(part * share + i);
                        }
                    });
                }
            });
        };
        let (mut groups, mut times, mut values) = (vec![0; n], vec![0; n], vec![0; n]);
        // The logarithm of Zipf-distributed ranks is nearly uniform.
        fill(&mut groups, &|i| {
            let rank = f64::from(GROUPS).powf(unit(random(i, 1)));
            (rank as u64).min(u64::from(GROUPS) - 1)
        });
        fill(&mut times, &|i| {
            (gap * (i as f64 + unit(random(i, 2)))) as u64
        });
        fill(&mut values, &|i| (100.0 + unit(random(i, 3))).to_bits());
        Self {
            groups: groups.into_iter().map(|group| group as u32).collect(),
            times: Arc::new(times),
            values: Arc::new(values),
        }
    }
}

impl Probes {
    fn new(rows: Rows) -> Self {
        // Times are signed.
        let bounds = |bound: fn(i64) -> i64| {
            let times = rows.times.iter();
            let bounds = times.map(|time| bound(time.cast_signed()).cast_unsigned());
            Arc::new(bounds.collect())
        };
        Self {
            low: bounds(|time| time - WINDOW),
            high: bounds(|time| time + WINDOW),
            groups: rows.groups,
        }
    }
}

/// A chunk of a shared vector.
struct Chunk {
    all: Arc<Vec<u64>>,
    start: usize,
    end: usize,
}

impl AsRef<[u64]> for Chunk {
    fn as_ref(&self) -> &[u64] {
        &self.all[self.start..self.end]
    }
}

fn chunks(
    all: &Arc<Vec<u64>>,
    range: std::ops::Range<usize>,
    encoding: Encoding<u64>,
) -> ColumnChunks {
    let starts = range.clone().step_by(CHUNK);
    let chunk = |start: usize| Chunk {
        all: Arc::clone(all),
        start,
        end: range.end.min(start + CHUNK),
    };
    ColumnChunks::W64(
        starts
            .map(|start| Column::new(Arc::new(chunk(start)), encoding))
            .collect(),
    )
}

fn build(
    cuda: &CudaEngine,
    rows: &Rows,
    threads: usize,
) -> Result<Arc<dyn RangeJoinIndex>, EngineError> {
    let all = 0..rows.groups.len();
    let mut column = RangeJoinColumn::new(chunks(&rows.values, all.clone(), Encoding::float()));
    column.min = Some(ExtremeIndex::Values);
    let input = RangeJoinInput {
        keys: chunks(&rows.times, all, Encoding::signed()),
        groups: Some(RowGroups {
            parts: vec![PartGroups {
                ids: RowIds::Wide(&rows.groups),
                groups: None,
            }],
            count: GROUPS as usize,
        }),
        columns: vec![column],
        row_numbers: false,
    };
    let index = cuda.build_range_join(&input, threads)?;
    Ok(index.expect("the CUDA engine builds range joins"))
}

/// Answers all probe rows in batches, on several threads.
fn answer(
    index: &dyn RangeJoinIndex,
    probes: &Probes,
    threads: usize,
) -> Result<Vec<RangeJoinOutput>, EngineError> {
    let q = probes.groups.len();
    let starts: Vec<usize> = (0..q).step_by(GPU_BATCH_SIZE).collect();
    let share = starts.len().div_ceil(threads).max(1);
    let answer_batch = |start: usize| {
        let rows = start..q.min(start + GPU_BATCH_SIZE);
        let bound = |of| chunks(of, rows.clone(), Encoding::signed());
        let bounds = [(Comparison::AtLeast, 0), (Comparison::AtMost, 1)];
        let bounds = bounds.map(|(comparison, column)| ProbeBound {
            comparison,
            column,
            shift: 0,
        });
        let probe = RangeJoinProbe {
            rows: rows.len(),
            groups: Some(probes.groups[rows.clone()].chunks(CHUNK).collect()),
            columns: vec![bound(&probes.low), bound(&probes.high)],
            bounds: bounds.to_vec(),
            prevailing: false,
        };
        let min = RangeJoinAnswer::Extreme {
            column: 0,
            extreme: Extreme::Min,
        };
        Ok(index.answer(&probe, &[min])?.remove(0))
    };
    thread::scope(|scope| {
        let parts = starts.chunks(share).map(|starts| {
            scope.spawn(move || starts.iter().map(|start| answer_batch(*start)).collect())
        });
        let parts: Vec<_> = parts.collect();
        let joined = parts
            .into_iter()
            .map(|part| part.join().expect("no thread panics"));
        let answers: Result<Vec<Vec<_>>, EngineError> = joined.collect();
        Ok(answers?.into_iter().flatten().collect())
    })
}

/// Returns the minimum of each probe row, and how long searching and scanning took.
fn scan(rows: &Rows, probes: &Probes, threads: usize) -> (Vec<Option<u64>>, Duration) {
    let mut sorted: Vec<(Vec<u64>, Vec<u64>)> = vec![Default::default(); GROUPS as usize];
    for (i, group) in rows.groups.iter().enumerate() {
        let (times, values) = &mut sorted[*group as usize];
        times.push(rows.times[i]);
        values.push(rows.values[i]);
    }
    let started = Instant::now();
    let mut minima = vec![None; probes.groups.len()];
    let share = minima.len().div_ceil(threads).max(1);
    thread::scope(|scope| {
        for (part, to) in minima.chunks_mut(share).enumerate() {
            let sorted = &sorted;
            scope.spawn(move || {
                for (i, to) in to.iter_mut().enumerate() {
                    let probe = part * share + i;
                    let low = probes.low[probe].cast_signed();
                    let high = probes.high[probe].cast_signed();
                    let (times, values) = &sorted[probes.groups[probe] as usize];
                    let from = times.partition_point(|t| t.cast_signed() < low);
                    let inside = times[from..].iter().zip(&values[from..]);
                    let inside = inside.take_while(|(t, _)| t.cast_signed() <= high);
                    // No value is negative, so that the bits have the values' order.
                    *to = inside.map(|(_, value)| *value).min();
                }
            });
        }
    });
    (minima, started.elapsed())
}

fn count_wrong(outputs: &[RangeJoinOutput], expected: &[Option<u64>]) -> usize {
    let batches = outputs.iter().zip(expected.chunks(GPU_BATCH_SIZE));
    let wrong = batches.map(|(output, expected)| {
        let valid = output.valid.as_deref().unwrap_or_default();
        let OutputValues::W64(values) = &output.values else {
            return expected.len();
        };
        let found =
            (0..values.len()).map(|i| (valid[i / 64] >> (i % 64) & 1 == 1).then_some(values[i]));
        found.zip(expected).filter(|(a, b)| a != *b).count()
    });
    wrong.sum()
}
