//! Parameters that a plan depends on, `LIMIT $1` of a lateral join and `$1 * INTERVAL '1 second'`: as literals, as
//! values of a data frame, and as arguments of EXECUTE.

use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::common::{ParamValues, ScalarValue};
use datafusion::error::Result;
use datafusion::prelude::{DataFrame, SessionContext};

use crate::support::{run, session};

/// The rows in an order of their own, and whether a range join returned them.
async fn rows(frame: DataFrame) -> Result<(Vec<String>, bool)> {
    let plan = frame.clone().create_physical_plan().await?;
    let plan = datafusion::physical_plan::displayable(plan.as_ref()).indent(false);
    let is_range_join = plan.to_string().contains("RangeJoinExec");
    let text = pretty_format_batches(&frame.collect().await?)?.to_string();
    let mut lines: Vec<String> = text.lines().map(ToString::to_string).collect();
    lines.sort_unstable();
    Ok((lines, is_range_join))
}

async fn tables() -> SessionContext {
    let ctx = session();
    for sql in [
        "CREATE TABLE p AS SELECT value % 3 AS g, value AS ts, value * 7 % 11 AS v FROM range(0, 60)",
        // A narrower key is cast when a statement is executed, and not yet when it is prepared.
        "CREATE TABLE q AS SELECT value AS id, value % 3 AS g, CAST(value * 5 % 70 AS INT) AS ts FROM range(0, 25)",
        "CREATE TABLE pt AS SELECT *, TIMESTAMP '2026-01-01T00:00:00' + ts * INTERVAL '1 second' AS t FROM p",
        "CREATE TABLE qt AS SELECT *, TIMESTAMP '2026-01-01T00:00:00' + ts * INTERVAL '1 second' AS t FROM q",
    ] {
        run(&ctx, sql).await.expect(sql);
    }
    ctx
}

#[tokio::test]
async fn limits_of_lateral_joins_may_be_parameters() -> Result<()> {
    let ctx = tables().await;
    let lateral = |join: &str, condition: &str, order: &str| {
        format!(
            "SELECT q.id, x.ts, x.v FROM q {join} LATERAL (SELECT p.ts, p.v FROM p WHERE {condition} ORDER BY {order} LIMIT {{l}} \
             OFFSET {{o}}) AS x"
        )
    };
    let before = "p.g = q.g AND p.ts <= q.ts";
    let queries = [
        lateral("CROSS JOIN", before, "p.ts DESC"),
        lateral("CROSS JOIN", before, "p.v, p.ts"),
        lateral("CROSS JOIN", "p.ts > q.ts AND p.v <> q.id", "p.ts"),
        format!(
            "{} ON true WHERE q.id > {{l}}",
            lateral("LEFT JOIN", before, "p.ts DESC")
        ),
    ];
    for (number, query) in queries.iter().enumerate() {
        let with = |limit: &str, offset: &str| query.replace("{l}", limit).replace("{o}", offset);
        let prepare = format!("PREPARE s{number} AS {}", with("$1", "$2"));
        datafusion_rmq::sql(&ctx, &prepare).await?;
        for (limit, offset) in [(0, 0), (1, 0), (1, 2), (3, 0), (4, 1), (100, 0)] {
            let literal = with(&limit.to_string(), &offset.to_string());
            let expected = rows(ctx.sql(&literal).await?).await?;
            assert!(expected.1 || limit == 0, "{literal}");
            let execute = format!("EXECUTE s{number}({limit}, {offset})");
            let found = rows(datafusion_rmq::sql(&ctx, &execute).await?).await?;
            assert_eq!(found, expected, "{execute}: {literal}");

            let values: [ParamValues; 3] = [
                vec![ScalarValue::from(limit), ScalarValue::from(offset)].into(),
                vec![
                    ScalarValue::from(i64::from(limit)),
                    ScalarValue::from(i64::from(offset)),
                ]
                .into(),
                vec![
                    ("l", ScalarValue::from(limit)),
                    ("o", ScalarValue::from(offset)),
                ]
                .into(),
            ];
            for values in values {
                let sql = match values {
                    ParamValues::List(_) => with("$1", "$2"),
                    ParamValues::Map(_) => with("$l", "$o"),
                };
                let frame = ctx.sql(&sql).await?.with_param_values(values)?;
                assert_eq!(rows(frame).await?, expected, "{literal}");
            }
        }
    }
    // Without values there is no plan, as DataFusion has it for any parameter.
    let sql = queries[0].replace("{l}", "$1").replace("{o}", "0");
    assert!(ctx.sql(&sql).await?.collect().await.is_err());
    Ok(())
}

#[tokio::test]
async fn lengths_of_windows_may_be_parameters() -> Result<()> {
    let ctx = tables().await;
    let query = |length: &str| {
        format!(
            "SELECT q.id, (SELECT count(*) FROM pt p WHERE p.t BETWEEN q.t - {length} AND q.t) FROM qt q"
        )
    };
    let prepare = format!("PREPARE s AS {}", query("$1 * INTERVAL '1 second'"));
    datafusion_rmq::sql(&ctx, &prepare).await?;
    for (value, length) in [
        (ScalarValue::from(0_i64), "INTERVAL '0 seconds'"),
        (ScalarValue::from(7_i32), "INTERVAL '7 seconds'"),
        (ScalarValue::from(1.5), "INTERVAL '1500 milliseconds'"),
        (
            ScalarValue::from(86_400.25),
            "INTERVAL '1 day 250 milliseconds'",
        ),
    ] {
        let expected = rows(ctx.sql(&query(length)).await?).await?;
        let execute = format!("EXECUTE s({value})");
        let found = rows(datafusion_rmq::sql(&ctx, &execute).await?).await?;
        assert_eq!(found, expected, "{execute}");
        let sql = query("INTERVAL '1 second' * $1");
        let frame = ctx.sql(&sql).await?;
        let frame = frame.with_param_values(vec![value])?;
        assert_eq!(rows(frame).await?, expected, "{length}");
    }
    Ok(())
}
