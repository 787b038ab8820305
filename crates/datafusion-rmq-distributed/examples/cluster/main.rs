//! Processes of a cluster: workers, a client, data for both, and a benchmark that starts them.
//!
//! ```sh
//! cluster data --folder /data
//! cluster worker --listen 127.0.0.1:8081
//! cluster query --workers http://127.0.0.1:8081,http://127.0.0.1:8082 --folder /data "SELECT count(*) FROM trades"
//! cluster bench --folder /data
//! ```
//!
//! `scripts/three-workers` of the repository starts three workers and asks them.

mod bench;
mod data;
mod query;
mod worker;

use std::future::Future;

use clap::{Parser, Subcommand};
use datafusion::error::Result;

#[derive(Parser)]
#[command(about = "Processes of a cluster")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write quotes and trades to Parquet files
    Data(data::Data),
    /// Execute parts of queries until the process is ended
    Worker(worker::Worker),
    /// Run queries on workers, or in this process
    Query(query::Query),
    /// Start workers on this machine and measure queries
    Bench(bench::Bench),
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Data(data) => data.write(),
        Command::Worker(worker) => on_threads(worker.threads, worker.run()),
        Command::Query(query) => on_threads(query.threads, query.run()),
        Command::Bench(bench) => bench.run(),
    }
}

/// Runs a future on this many threads; 0 for all cores.
fn on_threads<T>(threads: usize, future: impl Future<Output = Result<T>>) -> Result<T> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if threads > 0 {
        runtime.worker_threads(threads);
    }
    runtime.enable_all().build()?.block_on(future)
}
