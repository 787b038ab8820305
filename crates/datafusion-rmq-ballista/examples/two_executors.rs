//! A scheduler and two executors in one process, on loopback, and queries over Parquet files that they share.
//!
//! ```sh
//! cargo run --example two_executors
//! ```

#[path = "cluster/processes.rs"]
mod processes;
#[path = "cluster/query.rs"]
mod query;
#[path = "cluster/tables.rs"]
mod tables;

use std::error::Error;

use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    tables::write(folder.path()).await?;

    // Processes on other machines call these, too.
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let scheduler = listener.local_addr()?;
    tokio::spawn(processes::scheduler(listener));
    for _ in 0..2 {
        tokio::spawn(async move {
            if let Err(error) = processes::executor(scheduler, 2).await {
                eprintln!("an executor has ended: {error}");
            }
        });
    }

    let ctx = query::session(&format!("http://{scheduler}"), folder.path()).await?;
    for (what, sql) in tables::QUERIES {
        println!("\n{what}\n");
        query::show(&ctx, sql).await?;
    }
    Ok(())
}
