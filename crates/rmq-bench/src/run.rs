//! One run over all that was asked for.

use std::error::Error;

use crate::lab::device::Lab;
use rmq_engine::cuda::{CudaEngine, CudaOptions};

use crate::args::{Args, EngineKind, Measure, Wanted, Width};
use crate::cpu::{self, Built};
use crate::data::{self, Data};
use crate::progress::Progress;
use crate::record::{Case, Record};
use crate::table::Table;
use crate::workload::Workload;
use crate::{crossover, gpu, keys, trip};

/// A run and what it found.
pub struct Run {
    pub args: Args,
    pub progress: Progress,
    /// What it ran on, in lines.
    pub machine: Vec<String>,
    pub records: Vec<Record>,
    /// Beside those made of the records.
    pub tables: Vec<Table>,
}

impl Run {
    /// Measures all that is asked for.
    pub fn of(args: Args) -> Result<Self, Box<dyn Error>> {
        let mut run = Self {
            machine: vec![host()],
            args,
            progress: Progress::new(),
            records: Vec::new(),
            tables: Vec::new(),
        };
        let lab = run.lab();
        if run.args.measures(Measure::Search) && run.args.uses(EngineKind::Cpu) {
            run.on_cpu()?;
        }
        if let Some(lab) = &lab {
            gpu::measure(&mut run, lab)?;
        }
        if run.args.measures(Measure::Keys) {
            let cuda = run.cuda();
            keys::measure(&mut run, lab.as_ref(), cuda.as_ref())?;
        }
        drop(lab);
        if run.args.measures(Measure::Trip) || run.args.measures(Measure::Crossover) {
            let cuda = run.cuda();
            if run.args.measures(Measure::Trip) {
                trip::measure(&mut run, cuda.as_ref())?;
            }
            if run.args.measures(Measure::Crossover) {
                crossover::measure(&mut run, cuda.as_ref())?;
            }
        }
        run.progress.finish();
        Ok(run)
    }

    /// The device to measure kernels on, if there is one and it is wanted.
    fn lab(&mut self) -> Option<Lab> {
        if !self.args.uses(EngineKind::Cuda) {
            return None;
        }
        match Lab::open(self.args.device) {
            Ok(lab) => {
                let copy = lab.copy_speed().unwrap_or(0.0) / 1e12;
                let what = lab.describe();
                self.machine.push(format!(
                    "GPU: {what}, copies {copy:.2} TB/s (read and written)"
                ));
                Some(lab)
            }
            Err(why) => {
                self.machine
                    .push(format!("GPU: none, the CPU alone was measured: {why}"));
                self.progress.say(&format!("no GPU is measured: {why}"));
                None
            }
        }
    }

    /// The engine for the device, if there is one and it is wanted.
    fn cuda(&self) -> Option<CudaEngine> {
        let options = CudaOptions {
            devices: vec![self.args.device],
            ..CudaOptions::default()
        };
        self.args
            .uses(EngineKind::Cuda)
            .then(|| CudaEngine::open(&options).ok())
            .flatten()
    }

    /// All threads that may be used.
    pub fn threads(&self) -> u32 {
        self.args.threads.iter().copied().max().unwrap_or(1)
    }

    /// Lengths of columns that host memory has room for.
    pub fn host_sizes(&self, key: Width) -> Vec<u32> {
        let free = free_memory();
        let fits = |n: &u32| {
            let bytes = (key.bytes() as u64) << n;
            *n <= self.args.host_most && free.is_none_or(|free| bytes + bytes / 2 < free)
        };
        self.args.n.iter().copied().filter(fits).collect()
    }

    fn on_cpu(&mut self) -> Result<(), Box<dyn Error>> {
        for key in self.args.key.clone() {
            let sizes = self.host_sizes(key);
            let left_out = self.args.n.iter().filter(|n| !sizes.contains(n));
            let left_out: Vec<_> = left_out.map(|n| format!("2^{n}")).collect();
            if !left_out.is_empty() {
                let left_out = left_out.join(", ");
                self.progress
                    .say(&format!("not measured on the CPU: n = {left_out}"));
            }
            for n in sizes {
                for data in self.args.data.clone() {
                    match key {
                        Width::U32 => self.column_on_cpu::<u32>(key, n, data)?,
                        Width::U64 => self.column_on_cpu::<u64>(key, n, data)?,
                    }
                }
            }
        }
        Ok(())
    }

    fn column_on_cpu<K: Built>(
        &mut self,
        key: Width,
        n: u32,
        data: Data,
    ) -> Result<(), Box<dyn Error>> {
        let (results, workloads) = (self.args.result.clone(), self.args.workload.clone());
        let (threads, rounds) = (self.threads(), self.args.rounds);
        self.progress.expect(results.len() * workloads.len());
        self.progress
            .now(&format!("CPU: a column of 2^{n} {data:?} values"));
        let values = data::column::<K>(data, 1 << n);
        let column = data::shared(&values);
        for wanted in results {
            let options = cpu::options(wanted, threads);
            let built = cpu::build(&cpu::engine(), &column, &options, rounds)?;
            for workload in &workloads {
                let case = case(key, data, wanted, *workload, n);
                self.progress
                    .now(&format!("CPU: {}, n = 2^{n}", case.title()));
                let bounds = workload.bounds(1 << n, 1 << self.args.cpu_batch);
                let records = cpu::search(case, &values, &built, bounds.all(), threads, rounds)?;
                for record in records {
                    self.found(record);
                }
                self.progress.done();
            }
        }
        Ok(())
    }

    /// Keeps a measurement, and says it.
    pub fn found(&mut self, record: Record) {
        let wrong = match record.wrong {
            0 => String::new(),
            wrong => format!("  WRONG: {wrong} answers differ"),
        };
        let settings = match (record.setting.group, record.setting.chunk) {
            (0, 0) => String::new(),
            (0, chunk) => format!(" c={chunk}"),
            (group, chunk) => format!(" g={group} c={chunk}"),
        };
        self.progress.say(&format!(
            "{:<34} n = 2^{:<2} {:>9} ns/query  {}{wrong}",
            format!("{}{settings}", record.contender),
            record.case.n,
            crate::table::short(record.ns_per_query()),
            record.case.title(),
        ));
        self.records.push(record);
    }
}

/// A case of its parts.
pub fn case(key: Width, data: Data, wanted: Wanted, workload: Workload, n: u32) -> Case {
    Case {
        key,
        data,
        wanted,
        workload,
        n,
    }
}

/// The host in words.
fn host() -> String {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let name = name.map_or("unknown", |name| name.trim_start_matches([' ', '\t', ':']));
    format!("CPU: {name}, {threads} threads")
}

/// Bytes of memory that programs can still have, where the system tells.
fn free_memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}
