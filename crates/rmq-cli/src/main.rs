//! `rmq`: DataFusion's command line with range-minimum queries and range joins.

mod commands;
mod completion;
mod errors;
mod functions;
mod keywords;
mod progress;
mod prompt;
mod results;
mod running;
mod script;
mod session;
mod shell;
mod signals;
mod statements;
mod suggestions;
mod text_columns;

use std::io::{self, IsTerminal, Write};
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, LazyLock};

use clap::Parser;
use datafusion::common::{DataFusionError, Result};
use datafusion_cli::DATAFUSION_CLI_VERSION;
use datafusion_cli::object_storage::instrumented::InstrumentedObjectStoreRegistry;
use datafusion_cli::object_storage::is_stdin_location;
use datafusion_cli::print_format::PrintFormat;
use datafusion_cli::print_options::{MaxRows, PrintOptions};
use datafusion_rmq::ByteSize;
use mimalloc::MiMalloc;
use tokio::runtime::Runtime;

use crate::progress::Watch;
use crate::script::{Runner, Script};
use crate::shell::Shell;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

static VERSION: LazyLock<String> = LazyLock::new(|| {
    let version = env!("CARGO_PKG_VERSION");
    format!("{version} on DataFusion {DATAFUSION_CLI_VERSION}")
});

const EXIT_STATUS: &str = "Exit status: 0; 1 if a statement failed, which also ends the shell unless --keep-going is given; \
                           2 for wrong arguments; 128 + n after signal n.";

/// SQL with range-minimum queries: DataFusion's shell with `range_min`, `frame_min` and related functions.
///
/// Without -c and -f it reads SQL from the terminal or from a pipe. Lines that begin with a backslash are commands: \?
/// lists them.
#[derive(Debug, Parser)]
#[command(name = "rmq", version = VERSION.as_str(), after_help = EXIT_STATUS)]
struct Args {
    /// Run these statements, then exit; may be given several times
    #[arg(short, long, value_name = "SQL", allow_hyphen_values = true)]
    command: Vec<String>,

    /// Run the statements of this file, '-' for standard input, each shown before its result unless -q is given, then
    /// exit; may be given several times
    #[arg(short, long, value_name = "FILE")]
    file: Vec<PathBuf>,

    /// Go on after a statement that fails
    #[arg(short, long)]
    keep_going: bool,

    /// Format of results
    #[arg(long, value_enum, default_value_t = PrintFormat::Automatic)]
    format: PrintFormat,

    /// Print NULL as this text, also in CSV and TSV, where it is an empty field otherwise
    #[arg(long, value_name = "TEXT")]
    null: Option<String>,

    /// Print results and nothing else
    #[arg(short, long)]
    quiet: bool,

    /// The most rows of a result that a table shows: a number or 'inf'
    #[arg(long, value_name = "ROWS", default_value = "40")]
    maxrows: MaxRows,

    /// Colour the SQL at the prompt
    #[arg(long)]
    color: bool,

    /// The most memory that queries and indexes may take, for example 512M or 10g
    #[arg(short, long, value_name = "SIZE")]
    memory_limit: Option<ByteSize>,

    /// Rows in a batch
    #[arg(short, long, value_name = "ROWS")]
    batch_size: Option<usize>,

    /// The directory that relative paths start from
    #[arg(short = 'p', long, value_name = "DIR")]
    data_path: Option<PathBuf>,
}

fn main() -> ExitCode {
    env_logger::init();
    errors::hide_closed_stdout();
    let args = Args::parse();
    let code = match panic::catch_unwind(AssertUnwindSafe(|| run(args))) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) if errors::is_closed_stdout(&error) => errors::CLOSED_STDOUT,
        Ok(Err(error)) => {
            errors::report(&error);
            errors::FAILURE
        }
        Err(panic) if errors::is_closed_stdout_panic(&*panic) => errors::CLOSED_STDOUT,
        Err(panic) => panic::resume_unwind(panic),
    };
    ExitCode::from(code)
}

/// Runs the shell and returns the exit status.
fn run(args: Args) -> Result<u8> {
    if let Some(directory) = &args.data_path {
        std::env::set_current_dir(directory).map_err(|e| {
            DataFusionError::from(e).context(format!("can't read {}", directory.display()))
        })?;
    }
    let files = args.file.iter().cloned().map(Script::File);
    let arguments = args.command.iter().cloned().map(Script::Argument);
    let mut scripts: Vec<Script> = files.chain(arguments).collect();
    let terminal = scripts.is_empty() && io::stdin().is_terminal();
    if scripts.is_empty() && !terminal {
        scripts.push(Script::Pipe);
    }
    if !args.quiet {
        let help = if terminal {
            "; \\? lists commands, \\q quits"
        } else {
            ""
        };
        writeln!(io::stdout(), "rmq {}{help}", *VERSION)?;
    }
    let sql_on_stdin = terminal
        || scripts.iter().any(Script::is_stdin)
        || args
            .file
            .iter()
            .any(|file| is_stdin_location(&file.to_string_lossy()));

    let stores = Arc::new(InstrumentedObjectStoreRegistry::new());
    let mut runtime = Arc::new(Runtime::new()?);
    let watch = if terminal {
        Watch::of_terminal()
    } else {
        Watch::default()
    };
    let ctx = session::new(&args, sql_on_stdin, &stores, &watch);
    let ctx = runtime.block_on(ctx)?;
    let print = PrintOptions {
        format: args.format,
        quiet: args.quiet,
        maxrows: args.maxrows,
        color: args.color,
        instrumented_registry: stores,
    };

    let stopped = signals::listen(terminal, signals::disk_of(&ctx))?;
    let mut shell = Shell::new(ctx, print, args.null, watch);
    let done = if terminal {
        let done = prompt::run(&mut shell, &mut runtime, stopped);
        if let Ok(0) = done {
            runtime.block_on(session::written(&shell.ctx));
        }
        done
    } else {
        runtime.block_on(async {
            let statements = async {
                let runner = Runner::new(&mut shell, args.keep_going);
                let done = runner.run_all(&scripts).await;
                session::written(&shell.ctx).await;
                done
            };
            tokio::select! {
                biased;
                Ok(code) = stopped => Ok(code),
                done = statements => done.map(|succeeded| if succeeded { 0 } else { errors::FAILURE }),
            }
        })
    };

    let disk = Arc::clone(&shell.ctx.runtime_env().disk_manager);
    drop(shell);
    signals::wind_down(Arc::into_inner(runtime), &disk, !matches!(done, Ok(0)));
    done
}
