//! Indexes that are built once they pay: windows of few rows, of many, and of more and more, against the same without range joins.

use datafusion::physical_plan::collect;
use datafusion::prelude::SessionContext;

use crate::range_join::{answer, lines, metric};
use crate::support::{cpu_session, run, set};

/// 6,000 rows of five symbols in small batches, by symbol and time or by time; 150 rows whose windows reach so far to either side.
async fn session(order: &str, data_type: &str, reach: &str) -> SessionContext {
    let ctx = cpu_session();
    set(&ctx, "datafusion.execution.batch_size", "256");
    let tables = [
        format!(
            "CREATE TABLE p AS SELECT value % 5 AS s, value AS k, value * 7919 % 20011 AS u, arrow_cast(CASE WHEN value % 7 > 0
             THEN value * 7919 % 1009 END, '{data_type}') AS v FROM range(0, 6000) ORDER BY {order}"
        ),
        format!(
            "CREATE TABLE q AS SELECT value AS id, value % 6 AS s, value * 40 AS k, {reach} AS w FROM range(0, 150)"
        ),
    ];
    for sql in &tables {
        run(&ctx, sql).await.expect(sql);
    }
    set(&ctx, "datafusion.execution.batch_size", "32");
    ctx
}

#[tokio::test(flavor = "multi_thread")]
async fn indexes_are_built_for_windows_of_many_rows() {
    let types = [
        "Int64",
        "Float64",
        "Float32",
        "Int16",
        "Boolean",
        "Utf8",
        "Dictionary(Int32, Utf8)",
        "Decimal128(30, 2)",
        "Decimal256(50, 1)",
        "Timestamp(Nanosecond, None)",
    ];
    // A row or two in a window, none in many, and some hundred; and a few in the first, thousands in the last.
    let reaches = [("3", false), ("400", true), ("value * value / 20", true)];
    for data_type in types {
        for order in ["s, k", "k", "k * 7919 % 20011"] {
            for (reach, is_built) in reaches {
                let ctx = session(order, data_type, reach).await;
                let sql = "SELECT q.id, min(p.v), max(p.v), count(p.v), first_value(p.k ORDER BY p.u DESC)
                    FROM q LEFT JOIN p ON p.s = q.s AND p.k BETWEEN q.k - q.w AND q.k + q.w GROUP BY q.id";
                let what = format!("{data_type} by {order}, {reach}");
                let plan = ctx.sql(sql).await.expect(sql);
                let plan = plan.create_physical_plan().await.expect(sql);
                let found = collect(plan.clone(), ctx.task_ctx()).await.expect(&what);
                assert_eq!(metric(&plan, "index_bytes") > 0, is_built, "{what}");
                set(&ctx, "rmq.rewrite", "false");
                let (expected, was_rewritten) = answer(&ctx, sql).await.expect(sql);
                assert!(!was_rewritten);
                assert_eq!(lines(&found), expected, "{what}");
            }
        }
    }
}
