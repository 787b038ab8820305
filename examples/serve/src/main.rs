//! Serves files to Postgres clients, such as psql, Grafana and psycopg: range joins and range functions over tables
//! whose indexes are kept between queries, by whichever client. `docs/serving.md` shows it in use.
//!
//! ```sh
//! cargo run --release -- quotes.parquet trades.csv
//! psql -h 127.0.0.1 -c 'SELECT count(*) FROM quotes'
//! ```

mod login;
mod statements;
mod stopping;

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use datafusion::common::{Result, config_datafusion_err, config_err};
use datafusion::prelude::*;
use datafusion_postgres::datafusion_pg_catalog::pg_catalog::context::EmptyContextProvider;
use datafusion_postgres::datafusion_pg_catalog::setup_pg_catalog;
use datafusion_postgres::{ServerOptions, serve_with_handlers};

use crate::login::Handlers;

/// The variable with the password.
const PASSWORD: &str = "RMQ_PASSWORD";

/// Serves files to Postgres clients, which can read and nothing else. A client may log in as any user, with the
/// password in the environment variable RMQ_PASSWORD, if there is one.
#[derive(Debug, Parser)]
struct Args {
    /// The files: FILE is a table of the file's name, NAME=FILE has another one. Parquet, CSV (with a header), TSV,
    /// JSON (an object a line), Arrow, or a directory of Parquet files
    #[arg(value_name = "[NAME=]FILE")]
    files: Vec<String>,

    /// A statement to run before the first client is served, such as SET, CREATE VIEW or CREATE INDEX; may be given
    /// several times
    #[arg(short, long, value_name = "SQL")]
    command: Vec<String>,

    /// The address to listen on. One that other machines can reach needs a password
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:5432")]
    listen: SocketAddr,

    /// The most clients at a time; further ones are hung up on
    #[arg(long, value_name = "CLIENTS", default_value_t = 100)]
    max_clients: usize,
}

fn main() -> ExitCode {
    env_logger::init();
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", error.strip_backtrace());
            ExitCode::FAILURE
        }
    }
}

/// Serves clients until the process is interrupted.
fn run(args: Args) -> Result<()> {
    // A query computes on as many threads as there are cores, in steps. More threads leave some to other clients, and
    // to those who cancel it.
    let cores = std::thread::available_parallelism()?.get();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().worker_threads(8 * cores).build()?;
    let served = runtime.block_on(async {
        tokio::select! {
            served = serve(args) => served,
            stopped = tokio::signal::ctrl_c() => stopped.map_err(Into::into),
        }
    });
    // Nobody waits for queries that still run.
    runtime.shutdown_background();
    served
}

/// Registers the tables, runs the statements, then serves clients.
async fn serve(args: Args) -> Result<()> {
    let password = std::env::var(PASSWORD)
        .ok()
        .filter(|password| !password.is_empty());
    let listen = args.listen;
    if password.is_none() && !listen.ip().is_loopback() {
        return config_err!(
            "--listen {listen}: other machines can reach this address, so it needs a password in {PASSWORD}; 127.0.0.1:{} \
             does not",
            listen.port()
        );
    }
    // Clients' statements are in Postgres' dialect. psql and others ask information_schema for tables.
    let config = SessionConfig::new().with_information_schema(true);
    let config = config.set_str("datafusion.sql_parser.dialect", "PostgreSQL");
    let ctx = SessionContext::new_with_config(config);
    // First, because it builds the session's state anew.
    setup_pg_catalog(&ctx, "datafusion", EmptyContextProvider).map_err(|error| *error)?;
    datafusion_rmq::register(&ctx);
    stopping::plan_stoppable(&ctx);
    for file in &args.files {
        register_file(&ctx, file).await?;
    }
    for command in &args.command {
        let done = async { datafusion_rmq::sql(&ctx, command).await?.collect().await };
        done.await
            .map_err(|error| error.context(format!("--command {command}")))?;
    }

    let address = listen.to_string();
    let (host, _) = address.rsplit_once(':').unwrap_or((&address, ""));
    let options = ServerOptions::new()
        .with_host(host.to_string())
        .with_port(listen.port());
    let handlers = Arc::new(Handlers::new(Arc::new(ctx), password.as_deref()));
    println!("psql -h {} -p {}", listen.ip(), listen.port());
    let served =
        serve_with_handlers(handlers, &options.with_max_connections(args.max_clients)).await;
    served.map_err(|error| config_datafusion_err!("can't listen on {listen}: {error}"))
}

/// Makes a file or a directory a table.
async fn register_file(ctx: &SessionContext, file: &str) -> Result<()> {
    let (name, file) = match file.split_once('=') {
        Some((name, file)) => (Some(name), file),
        None => (None, file),
    };
    let path = Path::new(file);
    if !path.try_exists()? {
        return config_err!("{file}: there is no such file or directory");
    }
    let name = name
        .or_else(|| path.file_stem()?.to_str())
        .filter(|name| !name.is_empty());
    let Some(name) = name else {
        return config_err!("{file}: the table needs a name: NAME={file}");
    };
    // In quotes it may have upper case letters and dots.
    let table = format!("\"{}\"", name.replace('"', "\"\""));
    if ctx.table_exist(table.as_str())? {
        return config_err!("{file}: there is a table {name} already: OTHER={file}");
    }
    let extension = path
        .extension()
        .and_then(|extension| extension.to_str())
        .unwrap_or_default();
    let done = match extension {
        "parquet" => {
            ctx.register_parquet(table, file, ParquetReadOptions::new())
                .await
        }
        _ if path.is_dir() => {
            ctx.register_parquet(table, file, ParquetReadOptions::new())
                .await
        }
        "csv" => ctx.register_csv(table, file, CsvReadOptions::new()).await,
        "tsv" => {
            let tabs = CsvReadOptions::new()
                .delimiter(b'\t')
                .file_extension(".tsv");
            ctx.register_csv(table, file, tabs).await
        }
        "json" | "jsonl" | "ndjson" => {
            let lines = JsonReadOptions::default().file_extension(extension);
            ctx.register_json(table, file, lines).await
        }
        "arrow" => ctx.register_arrow(table, file, Default::default()).await,
        _ => config_err!(
            "its name ends in none of .parquet, .csv, .tsv, .json, .jsonl, .ndjson and .arrow; \
             --command 'CREATE EXTERNAL TABLE … STORED AS … LOCATION …' takes other names"
        ),
    };
    done.map_err(|error| error.context(file.to_string()))
}
