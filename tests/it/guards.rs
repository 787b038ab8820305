//! Rules of DataFusion leave filters, projections and orders where they would get them wrong. The second way is a
//! session without these rules. That DataFusion alone has other rows, or an error, shows that guards are still needed.

use datafusion::common::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::logical_expr::{JoinType, col, lit};
use datafusion::prelude::{DataFrame, SessionConfig, SessionContext};

use crate::support::{run, set, with_extension};

/// Options, and a query.
const QUERIES: &[(&[(&str, &str)], &str)] = &[
    // The keys of `x` become a filter of `l.id`, and of the other column of that name in the subquery's table.
    (
        &[],
        "SELECT x.id FROM x JOIN (SELECT l.id FROM l WHERE EXISTS (SELECT 1 FROM r WHERE r.ref = l.id AND r.id > l.k)) AS l ON l.id = x.id",
    ),
    // A condition on the side that has NULLs.
    (
        &[],
        "SELECT r.id FROM (SELECT * FROM l WHERE id > 5) AS e FULL JOIN r ON e.ref = r.ref WHERE r.id <> r.id + 1 AND e.id IS NULL",
    ),
    (
        &[],
        "SELECT r.id FROM l RIGHT JOIN r ON l.id = r.id AND l.k > r.ref WHERE l.id = l.id",
    ),
    (
        &[("datafusion.optimizer.prefer_hash_join", "false")],
        "SELECT r.id FROM l RIGHT JOIN r ON l.id = r.id AND l.k > r.ref WHERE l.id IS NULL",
    ),
    // The rows so far, or the keys of the other side, become a filter of the file, which has a limit.
    (
        &[
            ("datafusion.execution.parquet.pushdown_filters", "true"),
            ("datafusion.execution.batch_size", "50"),
            ("datafusion.optimizer.enable_sort_pushdown", "false"),
        ],
        "SELECT id, v FROM (SELECT id, v FROM sorted ORDER BY id LIMIT 500) ORDER BY v DESC LIMIT 3",
    ),
    (
        &[("datafusion.execution.parquet.pushdown_filters", "true")],
        "SELECT s.id FROM (SELECT id, v FROM sorted ORDER BY id LIMIT 500) AS s JOIN (VALUES (1003), (5700)) AS x(v) ON x.v = s.v",
    ),
    // The file is read from its end.
    (
        &[],
        "SELECT id, v FROM (SELECT id, v FROM sorted ORDER BY id LIMIT 500) ORDER BY v DESC LIMIT 3",
    ),
    // Row groups that do not lower MIN may have the value of MAX.
    (
        &[
            ("datafusion.execution.batch_size", "50"),
            ("datafusion.optimizer.repartition_file_min_size", "0"),
        ],
        "SELECT min(id), max(v + 1) FROM sorted",
    ),
    // Rows are skipped by an expression over the columns of the file in the places of others.
    (
        &[
            ("datafusion.execution.parquet.pushdown_filters", "true"),
            ("datafusion.execution.batch_size", "50"),
        ],
        "SELECT ref FROM l ORDER BY k - ref / 10, ref LIMIT 3",
    ),
    // A projection below a filter with a projection of its own.
    (
        &[],
        "SELECT r.v AS w, r.id + r.f AS s FROM t AS l RIGHT JOIN t AS r ON l.id = r.id + 1 WHERE l.v IS NULL",
    ),
    // The condition of a sort-merge join reads columns by their place.
    (
        &[("datafusion.optimizer.prefer_hash_join", "false")],
        "SELECT a.g, a.e, b.g AS h, b.m FROM a LEFT JOIN b ON a.g = b.g AND b.y + a.v < 10",
    ),
];

/// A session of DataFusion with the tables.
async fn session(folder: &std::path::Path, options: &[(&str, &str)]) -> SessionContext {
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2));
    let file = |name: &str| folder.join(name).display().to_string();
    let copy = |name: &str, rows: &str| {
        let options = "OPTIONS ('format.max_row_group_size' '100')";
        format!(
            "COPY ({rows}) TO '{}' STORED AS PARQUET {options}",
            file(name)
        )
    };
    let table = |name: &str, columns: &str| {
        let place = file(&format!("{name}.parquet"));
        format!("CREATE EXTERNAL TABLE {name} {columns} STORED AS PARQUET LOCATION '{place}'")
    };
    let v = "CASE WHEN value < 100 THEN 1000 + value WHEN value < 500 THEN value ELSE 5000 + value END AS v";
    let tables = [
        copy("l.parquet", "SELECT value AS id, value % 3 AS k, value * 10 AS ref FROM range(0, 2000)"),
        copy("r.parquet", "SELECT 3 + value / 1900 AS id, value AS ref FROM range(0, 2000)"),
        copy("sorted.parquet", &format!("SELECT value AS id, {v} FROM range(0, 2000)")),
        table("l", ""),
        table("r", ""),
        table("sorted", "(id BIGINT, v BIGINT)") + " WITH ORDER (id)",
        "CREATE TABLE x (id BIGINT) AS VALUES (5), (6), (10)".to_string(),
        "CREATE TABLE y (number BIGINT) AS VALUES (0), (1), (2)".to_string(),
        "CREATE TABLE t (id BIGINT NOT NULL, v BIGINT NOT NULL, f DOUBLE) AS VALUES (1, 5, 0.5), (2, 6, 1.5)".to_string(),
        "CREATE TABLE a (g BIGINT, v BIGINT, w BIGINT, e BIGINT) AS VALUES (1, 2, 3, 40), (1, 20, 3, 4)".to_string(),
        "CREATE TABLE b (z BIGINT, y BIGINT, g BIGINT, m BIGINT) AS VALUES (100, 3, 1, 10), (100, 2, 1, 200)".to_string(),
    ];
    for sql in tables {
        run(&ctx, &sql).await.expect("a table");
    }
    for (name, value) in options {
        set(&ctx, name, value);
    }
    ctx
}

/// The session without the rules that move filters, projections and orders.
fn without_rules(ctx: SessionContext) -> SessionContext {
    let state = ctx.state();
    let moves = |name: &str| name.contains("Pushdown") && name != "LimitPushdown";
    let rules = state.physical_optimizers().iter();
    let rules: Vec<_> = rules.filter(|rule| !moves(rule.name())).cloned().collect();
    assert_eq!(rules.len() + 5, state.physical_optimizers().len());
    let state = SessionStateBuilder::new_from_existing(state);
    SessionContext::new_with_state(state.with_physical_optimizer_rules(rules).build())
}

/// The rows as text, sorted unless the query sorts them.
async fn rows(frame: Result<DataFrame>, is_sorted: bool) -> Result<Vec<String>> {
    let batches = frame?.collect().await?;
    let text = datafusion::arrow::util::pretty::pretty_format_batches(&batches)?.to_string();
    let mut rows: Vec<_> = text.lines().skip(3).map(str::to_string).collect();
    rows.retain(|row| !row.starts_with("+-"));
    if !is_sorted {
        rows.sort_unstable();
    }
    Ok(rows)
}

#[tokio::test(flavor = "multi_thread")]
async fn guarded_rules_keep_the_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut mended = vec![];
    for (options, sql) in QUERIES {
        let open = || session(folder.path(), options);
        let is_sorted = sql.contains(" ORDER BY v");
        let alone = open().await;
        let alone = rows(alone.sql(sql).await, is_sorted).await;
        let expected = without_rules(open().await);
        let expected = rows(expected.sql(sql).await, is_sorted).await;
        let expected = expected.unwrap_or_else(|e| panic!("{sql}: {e}"));
        for rewrite in ["true", "false"] {
            let ctx = with_extension(open().await);
            set(&ctx, "rmq.rewrite", rewrite);
            let found = rows(ctx.sql(sql).await, is_sorted).await;
            let found = found.unwrap_or_else(|e| panic!("{sql}: {e}"));
            assert_eq!(found, expected, "{sql}");
        }
        if alone.is_ok_and(|alone| alone == expected) {
            mended.push(sql);
        }
    }
    assert!(mended.is_empty(), "DataFusion is right: {mended:#?}");
}

/// Groups by an expression that has the name of another column.
#[tokio::test]
async fn a_group_with_the_name_of_a_column_is_not_confused_with_it() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let ask = async |ctx: SessionContext| {
        set(
            &ctx,
            "datafusion.execution.parquet.pushdown_filters",
            "true",
        );
        let group = vec![(col("id") % lit(3)).alias("id")];
        let groups = ctx
            .table("l")
            .await?
            .aggregate(group, vec![count(lit(1))])?;
        let joined = ctx.table("y").await?;
        let joined = joined.join(groups, JoinType::Inner, &["number"], &["id"], None);
        rows(joined, false).await
    };
    let alone = ask(session(folder.path(), &[]).await).await?;
    let expected = ask(without_rules(session(folder.path(), &[]).await)).await?;
    assert_ne!(alone, expected, "DataFusion is right");
    let ours = ask(with_extension(session(folder.path(), &[]).await)).await?;
    assert_eq!(ours, expected);
    Ok(())
}
