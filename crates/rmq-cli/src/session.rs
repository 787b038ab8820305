//! The session that statements run in.

use std::sync::Arc;
use std::time::Duration;

use datafusion::common::Result;
use datafusion::config::ConfigOptions;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::logical_expr::ExplainFormat;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_cli::catalog::DynamicObjectStoreCatalog;
use datafusion_cli::functions::ParquetMetadataFunc;
use datafusion_cli::object_storage::StdinCarriesCommands;
use datafusion_cli::object_storage::instrumented::InstrumentedObjectStoreRegistry;
use datafusion_rmq::ByteSize;

use crate::Args;
use crate::progress::{Watch, WatchedPlanner};

/// Creates a session like that of DataFusion's own shell (files as tables, object stores, NULL printed), with
/// `datafusion-rmq` registered. `watch` sees
/// each plan. With `sql_on_stdin`, statements cannot read standard input as a table.
///
/// # Errors
/// For invalid options in the environment or in `args`.
pub async fn new(
    args: &Args,
    sql_on_stdin: bool,
    stores: &Arc<InstrumentedObjectStoreRegistry>,
    watch: &Watch,
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
    if let Some(null) = &args.null {
        options.format.null.clone_from(null);
    }
    let mut config = SessionConfig::from(options).with_information_schema(true);
    if sql_on_stdin {
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
    // Last: it keeps the catalog list that is registered now.
    datafusion_rmq::register(&ctx);
    let state = ctx.state();
    let planner = WatchedPlanner {
        planner: Arc::clone(state.query_planner()),
        watch: watch.clone(),
    };
    let session_id = state.session_id().to_string();
    *ctx.state_ref().write() = SessionStateBuilder::new_from_existing(state)
        .with_session_id(session_id)
        .with_query_planner(Arc::new(planner))
        .build();
    Ok(ctx)
}

/// Waits until what the session writes to `rmq.index_directory` is written: the process would end before.
pub async fn written(ctx: &SessionContext) {
    let writing = async || {
        let sql = "SELECT disk FROM rmq_indexes() WHERE disk = 'writing'";
        ctx.sql(sql).await?.count().await
    };
    while writing().await.is_ok_and(|count| count > 0) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
