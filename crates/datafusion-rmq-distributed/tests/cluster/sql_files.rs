//! The `.slt` files of range joins, whose tables are files that three workers read.

use futures::FutureExt;
use rmq_testing::sql_files::{SqlFiles, writes_results};

use datafusion_rmq::JoinModeChoice;

use crate::support::{CLUSTER, distributed, move_to_files};

#[tokio::test(flavor = "multi_thread")]
async fn sql_files_pass_on_workers() {
    if writes_results() {
        return;
    }
    let files = SqlFiles {
        root: concat!(env!("CARGO_MANIFEST_DIR"), "/../.."),
        session: || distributed(CLUSTER.clone(), JoinModeChoice::Collected),
        plan: |ctx, sql| {
            async move {
                let frame = datafusion_rmq::sql(ctx, sql).await?;
                if sql
                    .trim_start()
                    .to_ascii_uppercase()
                    .starts_with("CREATE TABLE")
                {
                    move_to_files(ctx).await?;
                }
                Ok(frame)
            }
            .boxed()
        },
        labels: &["collected"],
        may_differ: |sql| sql.to_ascii_uppercase().starts_with("EXPLAIN"),
    };
    files.pass().await;
}
