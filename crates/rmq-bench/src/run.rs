//! A run: its arguments, its progress, and what was measured so far.

use std::io;
use std::time::{Duration, Instant};

use rmq_bench::memory;
use rmq_bench::table::{Table, three_digits};

use crate::args::Args;
use crate::record::{self, Origin, Record};
use rmq_bench::kinds::Width;
use rmq_bench::progress::Progress;

/// How often results are written, so that a run that is ended early leaves them.
const SAVED_EVERY: Duration = Duration::from_secs(5);

/// The state of a run, to which each section adds.
pub struct Run {
    pub args: Args,
    pub progress: Progress,
    /// The hardware, in lines.
    pub machine: Vec<String>,
    /// What all measurements have in common.
    pub origin: Origin,
    pub records: Vec<Record>,
    /// When they were written.
    saved: Instant,
    /// Tables that are not computed from the records.
    pub tables: Vec<Table>,
}

impl Run {
    /// Creates a run without measurements.
    pub fn new(args: Args) -> Self {
        let origin = Origin {
            cpu: cpu_name(),
            driver: driver_version(),
            commit: args.commit.clone(),
            date: today(),
            ..Origin::default()
        };
        Self {
            args,
            progress: Progress::default(),
            machine: vec![format!("CPU: {}", cpu_name())],
            origin,
            records: Vec::new(),
            saved: Instant::now(),
            tables: Vec::new(),
        }
    }

    /// Returns the largest number of threads that may be used.
    pub fn threads(&self) -> u32 {
        self.args.threads.iter().copied().max().unwrap_or(1)
    }

    /// Returns the lengths of columns, as powers of two, that fit in host memory.
    pub fn host_sizes(&self, key: Width) -> Vec<u32> {
        let fits =
            |n: &u32| *n <= self.args.max_host_n && memory::has_room((key.bytes() as u64) << n);
        self.args.n.iter().copied().filter(fits).collect()
    }

    /// Writes what was measured so far.
    fn save_so_far(&self) {
        if let Err(error) = self.save() {
            self.progress.say(&format!("results.csv: {error}"));
        }
    }

    /// Writes all measurements.
    ///
    /// # Errors
    /// Those of the file.
    pub fn save(&self) -> io::Result<()> {
        record::write_csv(
            &self.records,
            &self.origin,
            &self.args.out.join("results.csv"),
        )
    }

    /// Keeps a measurement and prints it.
    pub fn found(&mut self, record: Record) {
        let wrong = match record.wrong {
            0 => String::new(),
            wrong => format!("  WRONG: {wrong} answers differ"),
        };
        let setting = match (record.setting.group, record.setting.chunk) {
            (0, 0) => String::new(),
            (0, chunk) => format!(" c={chunk}"),
            (group, chunk) => format!(" g={group} c={chunk}"),
        };
        self.progress.say(&format!(
            "{:<34} n = 2^{:<2} {:>9} ns/query  {}{wrong}",
            format!("{}{setting}", record.contender),
            record.case.n,
            three_digits(record.ns_per_query()),
            record.case.title(),
        ));
        self.keep(record);
    }

    /// Keeps a measurement.
    pub fn keep(&mut self, record: Record) {
        self.records.push(record);
        if self.saved.elapsed() >= SAVED_EVERY {
            self.save_so_far();
            self.saved = Instant::now();
        }
    }
}

/// Returns the version of NVIDIA's driver, `580.159.04`.
fn driver_version() -> String {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let is_version =
        |word: &&str| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit());
    let first_line = text.lines().next().unwrap_or_default();
    let version = first_line.split_whitespace().find(is_version);
    version.unwrap_or_default().to_owned()
}

/// Returns the day in UTC, `2026-11-25`.
fn today() -> String {
    let mut seconds: libc::time_t = 0;
    // SAFETY: all numbers are valid for this struct of numbers and a pointer, which nothing reads.
    let mut day: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: the pointers are valid for the calls.
    unsafe {
        libc::time(&raw mut seconds);
        libc::gmtime_r(&raw const seconds, &raw mut day);
    }
    let (year, month) = (day.tm_year + 1900, day.tm_mon + 1);
    format!("{year}-{month:02}-{:02}", day.tm_mday)
}

/// Names the CPU and its threads.
pub fn cpu_name() -> String {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let name = name.map_or("unknown", |name| name.trim_start_matches([' ', '\t', ':']));
    format!("{name}, {threads} threads")
}
