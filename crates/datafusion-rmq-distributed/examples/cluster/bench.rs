//! Queries on 1, 2, 4 and 8 workers, each a process on cores of its own, and in one process on as many cores.
//!
//! A line for each run: the query, how it was run, the number of workers, the cores, seconds, mebibytes sent over
//! loopback, and the answer. Nothing is kept from query to query.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use datafusion::error::{DataFusionError, Result};

/// One second before each trade, in microseconds.
const QUERIES: [(&str, &str); 4] = [
    (
        "lowest",
        "SELECT count(low) AS n, round(sum(low)) AS s FROM (SELECT (SELECT min(q.bid) FROM quotes q WHERE q.sym = t.sym \
         AND q.ts BETWEEN t.ts - 1000000 AND t.ts) AS low FROM trades t)",
    ),
    (
        "lowest of trades",
        "SELECT count(low) AS n, round(sum(low)) AS s FROM (SELECT (SELECT min(t.price) FROM trades t WHERE t.sym = q.sym \
         AND t.ts BETWEEN q.ts - 1000000 AND q.ts) AS low FROM quotes q)",
    ),
    (
        "as-of",
        "SELECT count(bid) AS n, round(sum(bid)) AS s FROM (SELECT (SELECT q.bid FROM quotes q WHERE q.sym = t.sym \
         AND q.ts <= t.ts ORDER BY q.ts DESC LIMIT 1) AS bid FROM trades t)",
    ),
    (
        "rows",
        "SELECT count(*) AS n, round(sum(q.bid)) AS s FROM trades t JOIN quotes q ON q.sym = t.sym \
         AND q.ts BETWEEN t.ts - 100000 AND t.ts AND q.bid > t.price",
    ),
];

#[derive(Args)]
pub struct Bench {
    /// Folder that `data` has written
    #[arg(long)]
    folder: PathBuf,
    /// Numbers of workers
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    workers: Vec<usize>,
    /// Threads of each worker
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Partitions of each task
    #[arg(long, default_value_t = 2)]
    partitions: usize,
    /// Values of rmq.join_mode, and "node" for one process with the cores of all workers
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "node,collected,partitioned"
    )]
    modes: Vec<String>,
    /// Queries: lowest, lowest of trades, as-of or rows
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "lowest,lowest of trades,as-of,rows"
    )]
    queries: Vec<String>,
    /// Runs of each query
    #[arg(long, default_value_t = 2)]
    runs: usize,
    /// Do not compress what workers send
    #[arg(long)]
    plain: bool,
    /// No run begins after this many seconds
    #[arg(long, default_value_t = 3600)]
    seconds: u64,
}

/// Workers, ended when they are dropped.
struct Workers {
    processes: Vec<Child>,
    addresses: Vec<String>,
}

impl Drop for Workers {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Bench {
    pub fn run(&self) -> Result<()> {
        let begin = Instant::now();
        println!("query,mode,workers,cores,seconds,sent_mib,answer");
        for name in &self.queries {
            let Some((_, sql)) = QUERIES.iter().find(|(known, _)| known == name) else {
                return Err(DataFusionError::Plan(format!(
                    "--queries {name}: expected lowest, lowest of trades, as-of or rows"
                )));
            };
            for mode in &self.modes {
                for workers in &self.workers {
                    if begin.elapsed() < Duration::from_secs(self.seconds) {
                        self.measure((name, sql), mode, *workers)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn measure(&self, (name, sql): (&str, &str), mode: &str, workers: usize) -> Result<()> {
        let cores = workers * self.threads;
        let is_node = mode == "node";
        let cluster = self.start(if is_node { 0 } else { workers })?;
        let mut query = on_cores(0..cores)?;
        query.arg("query").arg("--folder").arg(&self.folder);
        if is_node {
            query.arg(format!("--partitions={cores}"));
        } else {
            query.arg(format!("--partitions={}", self.partitions));
            query.arg(format!("--mode={mode}"));
            query.arg(format!("--workers={}", cluster.addresses.join(",")));
            query.args(self.plain.then_some("--plain"));
        }
        query.arg(format!("--threads={cores}"));
        for _ in 0..self.runs {
            let mut query = clone_of(&query);
            let before = bytes_sent();
            let output = query.args(["--time=1", sql]).output()?;
            let sent = (bytes_sent() - before) >> 20;
            let text = String::from_utf8_lossy(&output.stdout).trim().to_string();
            let (seconds, answer) = text.split_once(' ').unwrap_or(("", ""));
            let answer = if output.status.success() {
                answer.to_string()
            } else {
                let error = String::from_utf8_lossy(&output.stderr);
                error.lines().next().unwrap_or_default().to_string()
            };
            println!("{name},{mode},{workers},{cores},{seconds},{sent},{answer}");
        }
        Ok(())
    }

    fn start(&self, workers: usize) -> Result<Workers> {
        let mut cluster = Workers {
            processes: vec![],
            addresses: vec![],
        };
        for number in 0..workers {
            let first = number * self.threads;
            let mut worker = on_cores(first..first + self.threads)?;
            worker.args(["worker", "--listen=127.0.0.1:0", "--forget"]);
            worker.arg(format!("--threads={}", self.threads));
            let mut process = worker.stdout(Stdio::piped()).spawn()?;
            let mut address = String::new();
            if let Some(output) = process.stdout.take() {
                BufReader::new(output).read_line(&mut address)?;
            }
            cluster.processes.push(process);
            cluster.addresses.push(address.trim().to_string());
        }
        Ok(cluster)
    }
}

/// This program on these cores.
fn on_cores(cores: std::ops::Range<usize>) -> Result<Command> {
    let all = all_cores()?;
    let mut command = Command::new("taskset");
    let cores = cores.map(|core| all[core % all.len()].to_string());
    command.arg("-c").arg(cores.collect::<Vec<_>>().join(","));
    command.arg(std::env::current_exe()?);
    Ok(command)
}

/// The numbers of the cores that this process may use.
fn all_cores() -> Result<Vec<usize>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let ranges = list
        .unwrap_or_default()
        .trim()
        .split(',')
        .flat_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let [first, last] = [first, last].map(|core| core.parse().unwrap_or(0));
            first..=last
        });
    Ok(ranges.collect())
}

fn clone_of(command: &Command) -> Command {
    let mut clone = Command::new(command.get_program());
    clone.args(command.get_args());
    clone
}

/// Bytes that were sent over loopback.
fn bytes_sent() -> u64 {
    let devices = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let loopback = devices
        .lines()
        .find_map(|line| line.trim().strip_prefix("lo:"));
    let received = loopback.and_then(|fields| fields.split_whitespace().next()?.parse().ok());
    received.unwrap_or(0)
}
