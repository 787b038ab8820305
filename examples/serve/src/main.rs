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

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use datafusion::common::{Result, config_datafusion_err, config_err};
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_postgres::datafusion_pg_catalog::pg_catalog::context::EmptyContextProvider;
use datafusion_postgres::datafusion_pg_catalog::setup_pg_catalog;
use datafusion_postgres::{ServerOptions, serve_with_handlers};

use crate::login::{Anybody, Handlers, SaltedPassword};
use crate::statements::Statements;
use crate::stopping::StoppablePlanner;

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
    let state = SessionStateBuilder::new_with_default_features().with_config(config);
    let state = state.with_query_planner(Arc::new(StoppablePlanner)).build();
    let ctx = SessionContext::new_with_state(state);
    // First, because it builds the session's state anew.
    setup_pg_catalog(&ctx, "datafusion", EmptyContextProvider).map_err(|error| *error)?;
    datafusion_rmq::register_keeping_query_planner(&ctx);
    for file in &args.files {
        run_statement(&ctx, file, &create_table(file)?).await?;
    }
    for command in &args.command {
        run_statement(&ctx, &format!("--command {command}"), command).await?;
    }

    let address = listen.to_string();
    let (host, _) = address.rsplit_once(':').unwrap_or((&address, ""));
    let options = ServerOptions::new()
        .with_host(host.to_string())
        .with_port(listen.port())
        .with_max_connections(args.max_clients);
    let statements = Arc::new(Statements::new(Arc::new(ctx)));
    println!("psql -h {} -p {}", listen.ip(), listen.port());
    let served = match password.as_deref().map(SaltedPassword::new) {
        Some(password) => {
            let login = move |connections| password.login(connections);
            serve_with_handlers(Arc::new(Handlers::new(statements, login)), &options).await
        }
        None => serve_with_handlers(Arc::new(Handlers::new(statements, Anybody)), &options).await,
    };
    served.map_err(|error| config_datafusion_err!("can't listen on {listen}: {error}"))
}

/// Runs a statement of the command line.
async fn run_statement(ctx: &SessionContext, given: &str, statement: &str) -> Result<()> {
    let done = async { datafusion_rmq::sql(ctx, statement).await?.collect().await };
    done.await
        .map_err(|error| error.context(given.to_string()))?;
    Ok(())
}

/// The statement that makes a file or a directory a table.
fn create_table(file: &str) -> Result<String> {
    let (name, path) = match file.split_once('=') {
        Some((name, path)) => (Some(name), Path::new(path)),
        None => (
            Path::new(file).file_stem().and_then(OsStr::to_str),
            Path::new(file),
        ),
    };
    if !path.try_exists()? {
        return config_err!("{file}: there is no such file or directory");
    }
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        return config_err!("{file}: the table needs a name: NAME={file}");
    };
    let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
    let format = match extension {
        "parquet" => "PARQUET",
        _ if path.is_dir() => "PARQUET",
        "csv" => "CSV",
        "tsv" => "CSV OPTIONS (format.delimiter '\t')",
        "json" | "jsonl" | "ndjson" => "JSON",
        "arrow" => "ARROW",
        _ => {
            return config_err!(
                "{file}: its name ends in none of .parquet, .csv, .tsv, .json, .jsonl, .ndjson and .arrow; \
                 --command 'CREATE EXTERNAL TABLE … STORED AS … LOCATION …' takes other names"
            );
        }
    };
    // Directories end in a slash, or their names' dots would say which files are meant.
    let location =
        path.display().to_string().replace('\'', "''") + if path.is_dir() { "/" } else { "" };
    // In quotes a name may have upper case letters and dots.
    let name = name.replace('"', "\"\"");
    Ok(format!(
        "CREATE EXTERNAL TABLE \"{name}\" STORED AS {format} LOCATION '{location}'"
    ))
}
