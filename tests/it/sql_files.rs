//! Runs the `.slt` files of `sql-tests`.
//!
//! `RMQ_TEST_ENGINE=cuda` sets that engine in each session, and the label `cuda` in the files.

use futures::FutureExt;
use rmq_testing::sql_files::{NewSession, SqlFiles};

use crate::fake::Fake;
use crate::support::{engine, plan, session, skipped};

#[tokio::test(flavor = "multi_thread")]
async fn sql_files_pass() {
    if !skipped() {
        pass(session, &[&engine_label()]).await;
    }
}

/// The label of the engine that sessions use.
fn engine_label() -> String {
    let engine = engine().unwrap_or_default();
    if engine == "threads" {
        "cuda".into()
    } else {
        engine
    }
}

/// The same files with devices, which are threads here.
#[tokio::test(flavor = "multi_thread")]
async fn sql_files_pass_on_devices() {
    let on_devices = || Fake::real().session(&[("rmq.engine", "cuda")]);
    pass(on_devices, &["cuda"]).await;
}

async fn pass(session: NewSession, labels: &[&str]) {
    let files = SqlFiles {
        root: env!("CARGO_MANIFEST_DIR"),
        files: &[],
        session,
        plan: |ctx, sql| plan(ctx, sql).boxed(),
        labels,
        may_differ: |_| false,
        in_any_order: false,
    };
    files.pass().await;
}
