//! Tasks that read what their windows reach of the searched side, and no more.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use datafusion::physical_plan::displayable;
use datafusion::prelude::SessionContext;
use datafusion_rmq::JoinModeChoice;
use datafusion_rmq_ballista::SentExec;

use crate::answers::most_tasks_of_joins;
use crate::files::{lines, run};
use crate::sliced_tables::{FILES, QUERIES, WHOLE, tables, with_tables};
use crate::support::{CLUSTER, local, on_executors};

/// The searched side as the plan that is sent has it, and whether its join has several tasks.
async fn planned(ctx: &SessionContext, sql: &str) -> (String, bool) {
    let plan = ctx.sql(sql).await.expect(sql).create_physical_plan().await;
    let plan = plan.expect(sql);
    let sent = plan
        .downcast_ref::<SentExec>()
        .expect("a plan that is sent");
    let text = displayable(sent.plan().as_ref()).indent(false).to_string();
    (text, most_tasks_of_joins(ctx, &plan) > 1)
}

/// Damages the rows of files that no window of the small probe side reaches. What is known of them stays.
fn damage(folder: &Path) {
    let reached = [4, 5];
    for file in (0..FILES).filter(|file| !reached.contains(file)) {
        let path = folder.join(format!("p/{}.parquet", file * 13 % FILES));
        let file = OpenOptions::new().write(true).open(path).expect("a file");
        let bytes = file.metadata().expect("its size").len() / 4;
        let zeros = vec![0; usize::try_from(bytes).expect("a small file")];
        file.write_all_at(&zeros, 4).expect("a write");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_read_what_their_windows_reach() {
    let folder = tables().await;
    let one = local();
    let ctx = on_executors(&CLUSTER, JoinModeChoice::Auto);
    for ctx in [&one, &ctx] {
        with_tables(ctx, &folder).await;
    }
    let mut expected = vec![];
    for sql in QUERIES {
        expected.push(lines(&one, sql).await.expect(sql));
    }
    let (sliced, whole) = QUERIES.split_at(QUERIES.len() - WHOLE);
    for pruning in ["auto", "always", "never"] {
        run(&ctx, &format!("SET rmq.pruning = '{pruning}'")).await;
        for (sql, expected) in QUERIES.iter().zip(&expected) {
            let (text, is_divided) = planned(&ctx, sql).await;
            let is_sliced = pruning != "never" && sliced.contains(sql);
            assert_eq!(
                text.contains("slices of"),
                is_sliced,
                "{pruning}: {sql}\n{text}"
            );
            assert!(is_divided || whole.contains(sql), "{sql}\n{text}");
            let found = lines(&ctx, sql).await.expect(sql);
            assert_eq!(found, *expected, "{pruning}: {sql}\n{text}");
        }
    }
    damage(folder.path());
    run(&ctx, "SET rmq.pruning = 'always'").await;
    for (sql, expected) in sliced.iter().zip(&expected) {
        let found = lines(&ctx, sql).await;
        let found =
            found.unwrap_or_else(|e| panic!("{sql} reads more than its windows reach: {e}"));
        assert_eq!(found, *expected, "{sql}");
    }
    run(&ctx, "SET rmq.pruning = 'never'").await;
    let error = lines(&ctx, sliced[0]).await;
    assert!(error.is_err(), "the rows are not damaged");
}
