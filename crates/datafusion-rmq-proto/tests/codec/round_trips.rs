//! Each operator and each function is read as it was written.

use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::physical_plan::{collect, displayable};
use datafusion::prelude::SessionContext;
use datafusion_rmq_proto::{RmqCodec, portable};

use crate::files::{move_to_files, run};
use crate::queries::{QUERIES, TABLES};
use crate::support::{builder, copy};

async fn session(codec: &RmqCodec) -> SessionContext {
    let ctx = SessionContext::new_with_state(builder(codec).build());
    for table in TABLES {
        run(&ctx, table).await;
    }
    run(&ctx, "SET rmq.range_joins = 'always'").await;
    ctx
}

/// What DataFusion would lose.
#[tokio::test(flavor = "multi_thread")]
async fn clauses_of_windows_that_are_not_written_are_an_error() {
    let codec = RmqCodec::default();
    let ctx = session(&codec).await;
    for (sql, clause) in [
        (
            "SELECT sum(v) FILTER (WHERE k > 3) OVER (ORDER BY id) FROM p",
            "FILTER of",
        ),
        (
            "SELECT last_value(v) IGNORE NULLS OVER (ORDER BY id) FROM p",
            "IGNORE NULLS of",
        ),
        (
            "SELECT last_value(v) IGNORE NULLS OVER (ORDER BY id ROWS 50 PRECEDING) FROM p",
            "IGNORE NULLS of",
        ),
        // In a plan that is hidden, to keep its order.
        (
            "SELECT (SELECT x.v FROM (SELECT k, last_value(v) IGNORE NULLS OVER (PARTITION BY g ORDER BY k) AS v FROM p) x \
             WHERE x.k <= q.k ORDER BY x.k DESC LIMIT 1) FROM q",
            "IGNORE NULLS of",
        ),
    ] {
        let plan = ctx
            .sql(sql)
            .await
            .expect(sql)
            .create_physical_plan()
            .await
            .expect(sql);
        let error = portable(plan).expect_err(sql).to_string();
        assert!(
            error.contains(clause) && error.contains("can't be sent"),
            "{sql}: {error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_are_read_as_they_were_written() {
    let codec = RmqCodec::default();
    let ctx = session(&codec).await;
    compare(&ctx, &codec).await;
    // Rows of files have positions.
    move_to_files(&ctx).await.expect("files");
    let positions = compare(&ctx, &codec).await;
    assert!(positions > 4, "{positions}");
}

/// Compares each query in both modes. Returns how many plans have rows with positions.
async fn compare(ctx: &SessionContext, codec: &RmqCodec) -> usize {
    let mut positions = 0;
    for mode in ["collected", "partitioned"] {
        run(ctx, &format!("SET rmq.join_mode = '{mode}'")).await;
        for (sql, shown) in QUERIES {
            let frame = datafusion_rmq::sql(ctx, sql).await;
            let plan = frame.unwrap_or_else(|e| panic!("{sql}: {e}"));
            let plan = plan.create_physical_plan().await;
            let plan = plan.unwrap_or_else(|e| panic!("{sql}: {e}"));
            let text = displayable(plan.as_ref()).indent(false).to_string();
            assert!(text.contains(shown), "no {shown}: {sql}\n{text}");
            positions += usize::from(text.contains("RowPositionsExec"));
            let copied = copy(plan.clone(), codec, &ctx.state());
            let copied = copied.unwrap_or_else(|e| panic!("{sql}: {e}\n{text}"));
            let read = displayable(copied.as_ref()).indent(false).to_string();
            assert_eq!(without_choices(&read), without_choices(&text), "{sql}");
            let mut rows = vec![];
            for plan in [plan, copied] {
                let schema = plan.schema();
                let batches = collect(plan, ctx.task_ctx()).await;
                let batches = batches.unwrap_or_else(|e| panic!("{sql}: {e}\n{text}"));
                assert!(batches.iter().all(|b| b.schema() == schema), "{sql}");
                let text = pretty_format_batches(&batches).expect("text").to_string();
                let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
                lines.sort();
                rows.push(lines);
            }
            assert!(rows[0].len() > 4, "{sql} has rows");
            assert_eq!(rows[0], rows[1], "{sql}");
        }
    }
    positions
}

/// The plan without what each process chooses for itself, and without a hint that DataFusion does not write.
fn without_choices(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let mut ends = [", engine=", ", sort_order_for_reorder="].into_iter();
        let end = ends.find_map(|end| line.find(end)).unwrap_or(line.len());
        line[..end].to_string() + "\n"
    });
    lines.collect()
}
