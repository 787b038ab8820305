//! Processes of a cluster: a scheduler, executors, a client, and data for them.
//!
//! ```sh
//! cluster data --folder /data
//! cluster scheduler --listen 127.0.0.1:50050
//! cluster executor --scheduler 127.0.0.1:50050
//! cluster query --scheduler 127.0.0.1:50050 --folder /data "SELECT count(*) FROM trades"
//! ```
//!
//! `scripts/ballista-processes` of the repository starts a scheduler and two executors and asks them.

mod processes;
mod query;
mod tables;

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use tokio::net::TcpListener;

#[derive(Parser)]
#[command(about = "Processes of a cluster")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write quotes and trades to Parquet files
    Data {
        /// Folder for the tables
        #[arg(long)]
        folder: PathBuf,
    },
    /// Divide plans among executors until the process is ended
    Scheduler {
        /// Address to listen on. Anyone who can reach it can read files as executors
        #[arg(long, default_value = "127.0.0.1:50050")]
        listen: SocketAddr,
    },
    /// Execute parts of plans until the process is ended
    Executor {
        /// Address of the scheduler
        #[arg(long, default_value = "127.0.0.1:50050")]
        scheduler: SocketAddr,
        /// Tasks at a time
        #[arg(long, default_value_t = 2)]
        cores: usize,
    },
    /// Run queries on executors
    Query {
        /// Address of the scheduler
        #[arg(long, default_value = "127.0.0.1:50050")]
        scheduler: SocketAddr,
        /// Folder whose subfolders are tables of Parquet files, at the same path for all processes
        #[arg(long)]
        folder: PathBuf,
        /// Queries; some over quotes and trades if there are none
        sql: Vec<String>,
    },
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    match Arguments::parse().command {
        Command::Data { folder } => tables::write(&folder).await?,
        Command::Scheduler { listen } => {
            let listener = TcpListener::bind(listen).await?;
            println!("{}", listener.local_addr()?);
            processes::scheduler(listener).await?;
        }
        Command::Executor { scheduler, cores } => processes::executor(scheduler, cores).await?,
        Command::Query {
            scheduler,
            folder,
            mut sql,
        } => {
            let ctx = query::session(&format!("http://{scheduler}"), &folder).await?;
            if sql.is_empty() {
                sql.extend(tables::QUERIES.map(|(_, sql)| sql.to_string()));
            }
            for sql in sql {
                query::show(&ctx, &sql).await?;
            }
        }
    }
    Ok(())
}
