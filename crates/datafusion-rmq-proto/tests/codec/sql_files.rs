//! All `.slt` files, whose queries are executed after they were written and read.

use futures::FutureExt;
use rmq_testing::sql_files::{SqlFiles, writes_results};

use crate::support::through_bytes;

#[tokio::test(flavor = "multi_thread")]
async fn sql_files_pass_through_bytes() {
    if writes_results() {
        return;
    }
    let files = SqlFiles {
        root: concat!(env!("CARGO_MANIFEST_DIR"), "/../.."),
        files: &[],
        session: through_bytes,
        plan: |ctx, sql| datafusion_rmq::sql(ctx, sql).boxed(),
        labels: &["collected"],
        may_differ: |sql| {
            // Indexes of range functions are those of one query then. By ROLLUP of two columns that a join says are
            // equal, DataFusion sorts by one of them.
            let parts = ["rmq_indexes()", "FROM rmq.", "ROLLUP(q.sym, p.sym)"];
            let is_plan = sql.to_ascii_uppercase().starts_with("EXPLAIN");
            is_plan || parts.iter().any(|part| sql.contains(part))
        },
        in_any_order: false,
    };
    files.pass().await;
}
