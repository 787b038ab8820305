//! Workers on loopback, and tables in files that they read.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::util::pretty::pretty_format_batches_with_schema;
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::ListingOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionStateBuilder;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::{EnabledStatistics, WriterProperties};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_distributed::{DistributedExt, Worker, WorkerResolver};
use datafusion_rmq::{JoinModeChoice, RmqOptions, SessionStateBuilderExt};
use datafusion_rmq_distributed::{client, serve, worker};
use datafusion_rmq_proto::RmqCodec;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use url::Url;

/// The files of a table that several tasks read.
const FILES: usize = 5;

/// The addresses of workers.
#[derive(Clone)]
pub struct Workers(Vec<Url>);

impl Workers {
    pub fn new(addresses: Vec<Url>) -> Self {
        Self(addresses)
    }

    /// The first of them.
    pub fn first(&self, number: usize) -> Self {
        Self(self.0[..number].to_vec())
    }
}

impl WorkerResolver for Workers {
    fn get_urls(&self) -> Result<Vec<Url>> {
        Ok(self.0.clone())
    }
}

/// Three workers that live as long as the process, on threads of their own.
pub static CLUSTER: LazyLock<Workers> = LazyLock::new(|| {
    let workers = (0..3).map(|_| worker(&RmqCodec::default(), &RmqOptions::default()));
    Workers(workers.map(start).collect())
});

/// Starts a worker, which lives as long as the process, and returns its address.
pub fn start(worker: Worker) -> Url {
    let started = Started::new(worker);
    let address = started.address.clone();
    std::mem::forget(started);
    address
}

/// A worker on threads of its own, which dies when this is dropped.
pub struct Started {
    pub address: Url,
    pub runtime: Handle,
    _alive: oneshot::Sender<()>,
}

impl Started {
    pub fn new(worker: Worker) -> Self {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (alive, dead) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            let handle = runtime.handle().clone();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
                let address = listener.local_addr().expect("an address");
                sender.send((address, handle)).expect("a receiver");
                tokio::select! {
                    _ = serve(worker, listener) => {}
                    _ = dead => {}
                }
            });
            // Its connections and queries end where they are.
            runtime.shutdown_background();
        });
        let (address, runtime) = receiver.recv().expect("a worker");
        Self {
            address: Url::parse(&format!("http://{address}")).expect("an address"),
            runtime,
            _alive: alive,
        }
    }
}

fn config(partitions: usize) -> SessionConfig {
    SessionConfig::new()
        .with_information_schema(true)
        .with_target_partitions(partitions)
}

/// A session whose queries run on workers at these addresses, with range joins in this mode.
pub fn distributed(workers: Workers, mode: JoinModeChoice) -> SessionContext {
    distributed_in(3, workers, mode)
}

/// The same with this number of partitions in each task.
pub fn distributed_in(partitions: usize, workers: Workers, mode: JoinModeChoice) -> SessionContext {
    let mut options = RmqOptions::default();
    options.join_mode = mode;
    let builder = SessionStateBuilder::new_with_default_features()
        .with_config(config(partitions).with_option_extension(options));
    let builder = client(builder, workers, &RmqCodec::default(), 64 << 20);
    // Else small files are read by one task.
    let builder = builder.with_distributed_file_scan_config_bytes_per_partition(1);
    SessionContext::new_with_state(builder.expect("an option").build())
}

/// A session of one node.
pub fn local() -> SessionContext {
    local_in(3)
}

/// The same with this number of partitions.
pub fn local_in(partitions: usize) -> SessionContext {
    let builder = SessionStateBuilder::new_with_default_features().with_config(config(partitions));
    SessionContext::new_with_state(builder.with_rmq().build())
}

/// Replaces the tables in memory of a session by several files each.
pub async fn move_to_files(ctx: &SessionContext) -> Result<()> {
    move_to(FILES, ctx).await
}

/// Replaces the tables in memory of a session by this number of files each.
pub async fn move_to(files: usize, ctx: &SessionContext) -> Result<()> {
    static FOLDER: LazyLock<TempDir> = LazyLock::new(|| TempDir::new().expect("a folder"));
    let schema = ctx.catalog("datafusion").and_then(|c| c.schema("public"));
    let Some(schema) = schema else {
        return Ok(());
    };
    for name in schema.table_names() {
        let Some(provider) = schema.table(&name).await? else {
            continue;
        };
        let Some(table) = provider.downcast_ref::<MemTable>() else {
            continue;
        };
        let folder = tempfile::tempdir_in(FOLDER.path())?.keep();
        if write(table, files, &folder).await.is_err() {
            // Parquet lacks the type of a column.
            continue;
        }
        let options = ListingOptions::new(Arc::new(ParquetFormat::default()));
        let options = options.with_file_extension(".parquet");
        schema.deregister_table(&name)?;
        let (path, columns) = (format!("{}/", folder.display()), table.schema());
        let quoted = datafusion::common::TableReference::bare(name);
        ctx.register_listing_table(quoted, path, options, Some(columns), None)
            .await?;
    }
    Ok(())
}

/// Writes a table in the order of its rows.
async fn write(table: &MemTable, files: usize, folder: &Path) -> Result<()> {
    let mut batches = vec![];
    for partition in &table.batches {
        batches.extend(partition.read().await.iter().cloned());
    }
    let rows = concat_batches(&table.schema(), &batches)?;
    for file in 0..files {
        let [begin, end] = [file, file + 1].map(|i| i * rows.num_rows() / files);
        let path = folder.join(format!("{file}.parquet"));
        // Statistics leave NaN out, and DataFusion 55 reads a column whose least and greatest value are equal as that
        // value.
        let plain = WriterProperties::builder().set_statistics_enabled(EnabledStatistics::None);
        let file = std::fs::File::create(path)?;
        let mut writer = ArrowWriter::try_new(file, table.schema(), Some(plain.build()))?;
        writer.write(&rows.slice(begin, end - begin))?;
        writer.close()?;
    }
    Ok(())
}

/// The rows of a query, as sorted lines.
pub async fn lines(ctx: &SessionContext, sql: &str) -> Result<Vec<String>> {
    let frame = datafusion_rmq::sql(ctx, sql).await?;
    let schema = Arc::clone(frame.schema().inner());
    let batches = frame.collect().await?;
    // Also without a batch.
    let text = pretty_format_batches_with_schema(schema, &batches);
    let text = text.map_err(DataFusionError::from)?.to_string();
    let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
    lines.sort();
    Ok(lines)
}

/// Executes a statement.
pub async fn run(ctx: &SessionContext, sql: &str) {
    lines(ctx, sql)
        .await
        .unwrap_or_else(|e| panic!("{sql}: {e}"));
}
