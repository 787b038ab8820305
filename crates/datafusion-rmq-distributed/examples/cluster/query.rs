//! A client.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use datafusion::error::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use datafusion_distributed::{DistributedExt, WorkerResolver, display_plan_ascii};
use datafusion_rmq::{JoinModeChoice, RmqOptions, SessionStateBuilderExt};
use datafusion_rmq_distributed::client;
use datafusion_rmq_proto::RmqCodec;
use url::Url;

#[derive(Args)]
pub struct Query {
    /// Addresses of workers, such as http://127.0.0.1:8081, with commas between; none for this process alone
    #[arg(long, value_delimiter = ',')]
    workers: Vec<Url>,
    /// Folder whose subfolders are tables of Parquet files, at the same path for all processes
    #[arg(long)]
    folder: PathBuf,
    /// rmq.join_mode
    #[arg(long, default_value = "auto")]
    mode: JoinModeChoice,
    /// Partitions of each task
    #[arg(long, default_value_t = 2)]
    partitions: usize,
    /// Threads of this process; 0 for all cores
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Do not compress what workers send
    #[arg(long)]
    plain: bool,
    /// Show the stages and tasks of each query
    #[arg(long)]
    plan: bool,
    /// Show how long each query takes, and no rows, this many times
    #[arg(long)]
    time: Option<usize>,
    /// Queries
    #[arg(required = true)]
    sql: Vec<String>,
}

/// The addresses of workers.
pub struct Workers(pub Vec<Url>);

impl WorkerResolver for Workers {
    fn get_urls(&self) -> Result<Vec<Url>> {
        Ok(self.0.clone())
    }
}

impl Query {
    pub async fn run(self) -> Result<()> {
        let mut options = RmqOptions::default();
        options.join_mode = self.mode;
        options.keep_indexes = self.time.is_none();
        options.build_threads = self.threads;
        let ctx = session(self.workers, options, self.partitions, self.plain)?;
        register(&ctx, &self.folder).await?;
        for sql in &self.sql {
            let frame = datafusion_rmq::sql(&ctx, sql).await?;
            if self.plan {
                let plan = frame.clone().create_physical_plan().await?;
                println!("{}", display_plan_ascii(plan.as_ref(), false));
            }
            let Some(runs) = self.time else {
                frame.show().await?;
                continue;
            };
            for _ in 0..runs {
                let begin = Instant::now();
                let answer = frame.clone().to_string().await?;
                let answer = answer.lines().nth(3).unwrap_or_default().to_string();
                println!("{:.3} {answer}", begin.elapsed().as_secs_f64());
            }
        }
        Ok(())
    }
}

/// A session whose queries run on these workers, or in this process if there are none.
pub fn session(
    workers: Vec<Url>,
    options: RmqOptions,
    partitions: usize,
    is_plain: bool,
) -> Result<SessionContext> {
    let config = SessionConfig::new()
        .with_target_partitions(partitions)
        .with_option_extension(options);
    let builder = SessionStateBuilder::new_with_default_features().with_config(config);
    let builder = if workers.is_empty() {
        builder.with_rmq()
    } else {
        let builder = client(builder, Workers(workers), &RmqCodec::default(), 16 << 30);
        // Else one task reads 16 MiB for each of its partitions.
        let builder = builder.with_distributed_file_scan_config_bytes_per_partition(1)?;
        if is_plain {
            builder.with_distributed_compression(None)?
        } else {
            builder
        }
    };
    Ok(SessionContext::new_with_state(builder.build()))
}

/// Registers each subfolder as a table.
pub async fn register(ctx: &SessionContext, folder: &Path) -> Result<()> {
    for table in std::fs::read_dir(folder)? {
        let path = table?.path();
        let (Some(name), true) = (path.file_name(), path.is_dir()) else {
            continue;
        };
        let path = path.canonicalize()?;
        let options = ParquetReadOptions::default();
        ctx.register_parquet(&*name.to_string_lossy(), path.to_string_lossy(), options)
            .await?;
    }
    Ok(())
}
