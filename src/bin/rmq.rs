//! `rmq`: DataFusion's command line with range queries registered.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, LazyLock};

use clap::Parser;
use datafusion::common::{DataFusionError, Result, plan_datafusion_err};
use datafusion::config::ConfigOptions;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::logical_expr::ExplainFormat;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion::sql::sqlparser::dialect::dialect_from_str;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use datafusion_cli::catalog::DynamicObjectStoreCatalog;
use datafusion_cli::functions::ParquetMetadataFunc;
use datafusion_cli::object_storage::StdinCarriesCommands;
use datafusion_cli::object_storage::instrumented::InstrumentedObjectStoreRegistry;
use datafusion_cli::print_format::PrintFormat;
use datafusion_cli::print_options::{MaxRows, PrintOptions};
use datafusion_cli::{DATAFUSION_CLI_VERSION, exec};
use datafusion_rmq::ByteSize;
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

static VERSION: LazyLock<String> = LazyLock::new(|| {
    let ours = env!("CARGO_PKG_VERSION");
    format!("{ours} on DataFusion {DATAFUSION_CLI_VERSION}")
});

/// SQL with range-minimum queries: DataFusion's shell with `range_min`, `frame_min` and their like.
///
/// Without -c and -f it reads SQL from the terminal or from a pipe.
#[derive(Debug, Parser)]
#[command(name = "rmq", version = VERSION.as_str())]
struct Args {
    /// Run these statements, then exit; may be given several times
    #[arg(short, long, value_name = "SQL")]
    command: Vec<String>,

    /// Run the statements of this file, each shown before its result unless -q is given, then exit; may be given several times
    #[arg(short, long, value_name = "FILE")]
    file: Vec<PathBuf>,

    /// How results are printed
    #[arg(long, value_enum, default_value_t = PrintFormat::Automatic)]
    format: PrintFormat,

    /// Print results and nothing else
    #[arg(short, long)]
    quiet: bool,

    /// The most rows of a result that a table shows: a number or 'inf'
    #[arg(long, value_name = "ROWS", default_value = "40")]
    maxrows: MaxRows,

    /// Colour the SQL that is typed
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

#[tokio::main]
async fn main() -> ExitCode {
    env_logger::init();
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<()> {
    let interactive = args.command.is_empty() && args.file.is_empty();
    if let Some(directory) = &args.data_path {
        std::env::set_current_dir(directory).map_err(|e| no_file(directory, e))?;
    }
    if !args.quiet {
        writeln!(io::stdout(), "rmq {}", *VERSION)?;
    }

    let stores = Arc::new(InstrumentedObjectStoreRegistry::new());
    let ctx = session(&args, interactive, &stores).await?;
    let mut print = PrintOptions {
        format: args.format,
        quiet: args.quiet,
        maxrows: match args.format {
            PrintFormat::Table | PrintFormat::Automatic => args.maxrows,
            // DataFusion's shell would leave rows out without a word.
            _ => MaxRows::Unlimited,
        },
        color: args.color,
        instrumented_registry: stores,
    };

    if interactive {
        return exec::exec_from_repl(&ctx, &mut print)
            .await
            .map_err(|e| DataFusionError::External(Box::new(e)));
    }
    for file in &args.file {
        run_file(&ctx, file, &print).await?;
    }
    exec::exec_from_commands(&ctx, args.command, &print).await
}

/// A session as DataFusion's own shell has it (files as tables, cloud stores, NULL shown), with range queries.
async fn session(
    args: &Args,
    interactive: bool,
    stores: &Arc<InstrumentedObjectStoreRegistry>,
) -> Result<SessionContext> {
    let mut options = ConfigOptions::from_env()?;
    if let Some(rows) = args.batch_size {
        options.set("datafusion.execution.batch_size", &rows.to_string())?;
    }
    if std::env::var_os("DATAFUSION_EXPLAIN_FORMAT").is_none() {
        options.explain.format = ExplainFormat::Tree;
    }
    if std::env::var_os("DATAFUSION_FORMAT_NULL").is_none() {
        options.format.null = "NULL".to_string();
    }
    let mut config = SessionConfig::from(options).with_information_schema(true);
    if interactive || args.file.iter().any(|f| f == Path::new("/dev/stdin")) {
        config = config.with_extension(Arc::new(StdinCarriesCommands));
    }

    let mut runtime = RuntimeEnvBuilder::new().with_object_store_registry(Arc::clone(stores) as _);
    if let Some(ByteSize(bytes)) = args.memory_limit {
        runtime = runtime.with_memory_limit(bytes, 1.0);
    }

    let ctx = SessionContext::new_with_config_rt(config, runtime.build_arc()?).enable_url_table();
    ctx.refresh_catalogs().await?;
    ctx.register_catalog_list(Arc::new(DynamicObjectStoreCatalog::new(
        Arc::clone(ctx.state().catalog_list()),
        ctx.state_weak_ref(),
    )));
    ctx.register_udtf("parquet_metadata", Arc::new(ParquetMetadataFunc {}));
    // Last: it looks names up in the catalog list as it stands now.
    datafusion_rmq::register(&ctx);
    Ok(ctx)
}

/// Runs the statements of a file one after another, up to the first that fails.
async fn run_file(ctx: &SessionContext, file: &Path, print: &PrintOptions) -> Result<()> {
    let text = std::fs::read_to_string(file).map_err(|e| no_file(file, e))?;
    let statements = statements(ctx, &text).map_err(|e| e.context(file.display().to_string()))?;
    for (line, statement) in statements {
        if !print.quiet {
            writeln!(io::stdout(), "\n{statement}")?;
        }
        exec::exec_from_commands(ctx, vec![statement.to_string()], print)
            .await
            .map_err(|e| e.context(format!("{}, line {line}", file.display())))?;
    }
    Ok(())
}

/// Cuts a text after each semicolon that ends a statement; each with the line on which it begins. Comments stay with
/// the statement that follows.
fn statements<'a>(ctx: &SessionContext, text: &'a str) -> Result<Vec<(u64, &'a str)>> {
    let name = ctx.state().config_options().sql_parser.dialect;
    let dialect = dialect_from_str(name)
        .ok_or_else(|| plan_datafusion_err!("there is no SQL dialect '{name}'"))?;
    let tokens = Tokenizer::new(&*dialect, text)
        .tokenize_with_location()
        .map_err(|e| DataFusionError::SQL(Box::new(e.into()), None))?;

    let newlines = text.match_indices('\n').map(|(i, _)| i + 1);
    let lines: Vec<usize> = std::iter::once(0).chain(newlines).collect();

    let mut statements = vec![];
    let (mut start, mut line) = (0, None);
    for token in &tokens {
        match token.token {
            Token::Whitespace(_) => continue,
            Token::SemiColon => {
                // A location counts lines, and characters in its line, from 1.
                let [end_line, end_column] =
                    [token.span.end.line, token.span.end.column].map(|n| n as usize - 1);
                let before = text[lines[end_line]..].chars().take(end_column);
                let end = lines[end_line] + before.map(char::len_utf8).sum::<usize>();
                if let Some(line) = line.take() {
                    statements.push((line, text[start..end].trim()));
                }
                start = end;
            }
            _ => line = line.or(Some(token.span.start.line)),
        }
    }
    if let Some(line) = line {
        statements.push((line, text[start..].trim()));
    }
    Ok(statements)
}

fn no_file(path: &Path, error: io::Error) -> DataFusionError {
    DataFusionError::from(error).context(format!("can't read {}", path.display()))
}
