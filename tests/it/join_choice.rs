//! Aggregates over joins of which few rows have equal keys stay as `DataFusion` plans them.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::{collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_rmq::logical_plan::join_choice::JoinChoice;
use rmq_testing::{Random, cases_with_queries, is_usual};

use crate::range_join::{Tables, answer, lines};
use crate::support::{run, set, with_extension};

/// The number of queries, unless `RMQ_CASES` overrides it.
const CASES: usize = 300;

/// Queries over the same pair of tables.
const QUERIES: usize = 8;

/// The plan with each choice made for the join as it was written, and the number of choices.
fn as_written(plan: LogicalPlan) -> Result<(LogicalPlan, usize)> {
    let mut choices = 0;
    let plan = plan.transform_down_with_subqueries(|plan| {
        let LogicalPlan::Extension(extension) = &plan else {
            return Ok(Transformed::no(plan));
        };
        let Some(choice) = extension.node.as_any().downcast_ref::<JoinChoice>() else {
            return Ok(Transformed::no(plan));
        };
        choices += 1;
        Ok(Transformed::yes(choice.as_written().clone()))
    })?;
    Ok((plan.data, choices))
}

#[tokio::test(flavor = "multi_thread")]
async fn both_plans_return_the_same() {
    let (mut asked, mut chosen) = (0, 0);
    for seed in cases_with_queries("choices of joins", &[], CASES, QUERIES) {
        let random = &mut Random::of_case(seed);
        let tables = Tables::new(random);
        for _ in 0..QUERIES {
            let sql = tables.grouped_join(random);
            let Ok((expected, _)) = answer(&tables.with, &sql).await else {
                continue;
            };
            let found = async {
                let state = tables.with.state();
                let plan = tables.with.sql(&sql).await?.into_optimized_plan()?;
                let (plan, choices) = as_written(plan)?;
                let planner = Arc::clone(state.query_planner());
                let plan = planner.create_physical_plan(&plan, &state).await?;
                Ok::<_, datafusion::error::DataFusionError>((
                    lines(&collect(plan, tables.with.task_ctx()).await?),
                    choices,
                ))
            };
            let (found, choices) = found
                .await
                .unwrap_or_else(|error| panic!("tables of seed {seed}: {sql}: {error}"));
            assert_eq!(found, expected, "tables of seed {seed}: {sql}");
            asked += 1;
            chosen += usize::from(choices > 0);
        }
    }
    println!("choices of joins: in {chosen} of {asked} queries");
    assert!(!is_usual() || chosen * 4 > asked, "{chosen} of {asked}");
}

/// A session with `orders`, one a key, and four `items` of each key.
async fn session() -> SessionContext {
    let config = SessionConfig::new().with_target_partitions(2);
    let ctx = with_extension(SessionContext::new_with_config(config));
    for table in [
        "CREATE TABLE orders AS SELECT value AS id, value % 1000 AS day, value % 7 AS kind FROM range(0, 20000)",
        "CREATE TABLE items AS SELECT value AS id, value / 4 AS key, value * 37 % 1010 AS day, value % 5 AS n FROM range(0, 80000)",
    ] {
        run(&ctx, table).await.expect(table);
    }
    ctx
}

/// The physical plan as text.
async fn plan(ctx: &SessionContext, sql: &str) -> String {
    let plan = ctx.sql(sql).await.expect(sql).create_physical_plan().await;
    let plan = plan.unwrap_or_else(|error| panic!("{sql}: {error}"));
    displayable(plan.as_ref()).indent(false).to_string()
}

const JOIN: &str = "orders o JOIN items i ON i.key = o.id AND i.day BETWEEN o.day AND o.day + 100";

#[tokio::test(flavor = "multi_thread")]
async fn few_rows_with_equal_keys_are_left_to_datafusion() {
    let (with, without) = (session().await, session().await);
    set(&without, "rmq.rewrite", "false");
    for sql in [
        format!("SELECT count(*), sum(i.n) FROM {JOIN}"),
        format!("SELECT o.id, min(i.n) AS least, avg(i.n) FROM {JOIN} GROUP BY o.id"),
        format!("SELECT o.kind, count(*) FROM {JOIN} GROUP BY o.kind HAVING max(i.n) > 3"),
        format!("SELECT o.id, count(DISTINCT i.n) FROM {JOIN} GROUP BY o.id"),
        format!(
            "SELECT o.id FROM (SELECT o.id, count(DISTINCT i.n), min(i.n) AS m FROM {JOIN} GROUP BY o.id) o WHERE m = 2"
        ),
        format!(
            "SELECT o.id, count(i.n) FROM {} GROUP BY o.id",
            JOIN.replace("JOIN", "LEFT JOIN")
        ),
        format!(
            "SELECT count(*) FROM (SELECT o.id, sum(i.n) AS s FROM {JOIN} GROUP BY o.id) WHERE random() < 2"
        ),
        format!(
            "SELECT kind, sum(n) FROM (SELECT o.kind, min(i.n) AS n FROM {JOIN} GROUP BY o.id, o.kind) GROUP BY kind"
        ),
        format!(
            "SELECT sum(i.n) FROM {JOIN} UNION ALL SELECT max(i.n) FROM {JOIN} HAVING max(i.n) > (SELECT min(n) FROM items)"
        ),
        format!("SELECT o.kind, min(i.n) FROM {JOIN} GROUP BY ROLLUP (o.kind) ORDER BY 1 LIMIT 3"),
    ] {
        let text = plan(&with, &sql).await;
        assert!(text.contains("HashJoinExec"), "{sql}\n{text}");
        let (expected, _) = answer(&without, &sql).await.expect(&sql);
        assert_eq!(
            answer(&with, &sql).await.expect(&sql),
            (expected, false),
            "{sql}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_rows_with_equal_keys_and_few_rows_at_all_are_a_range_join() {
    let ctx = session().await;
    let sql = format!("SELECT o.kind, sum(i.n) FROM {JOIN} GROUP BY o.kind");
    let expected = answer(&ctx, &sql).await.expect(&sql);
    assert!(!expected.1, "{sql}");
    let many = sql.replace("i.key = o.id", "i.key % 10 = o.kind");
    let small = sql.replace("items i", "(SELECT * FROM items LIMIT 100) i");
    for sql in [&many, &small] {
        let text = plan(&ctx, sql).await;
        assert!(text.contains("RangeJoinExec"), "{sql}\n{text}");
    }
    set(&ctx, "rmq.row_joins", "always");
    assert_eq!(answer(&ctx, &sql).await.expect(&sql), (expected.0, true));
}
