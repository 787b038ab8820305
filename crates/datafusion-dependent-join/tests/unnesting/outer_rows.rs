//! Outer rows that are computed twice, and conditions of outer joins about both of their sides.

use datafusion::common::Result;

use crate::naive::{Sessions, TABLES};

/// Rows without the order that they came in.
async fn sorted(sessions: &Sessions, sql: &str) -> Vec<Vec<String>> {
    let rows = sessions.unnested(sql).await;
    let mut rows = rows.unwrap_or_else(|error| panic!("{sql}\n{error}"));
    rows.sort();
    rows
}

#[tokio::test]
async fn subqueries_about_both_sides_of_an_outer_join() -> Result<()> {
    let conditions = [
        "EXISTS (SELECT 1 FROM r WHERE r.v > a.v AND r.k <> b.v)",
        "NOT EXISTS (SELECT 1 FROM r WHERE r.v < a.v AND r.k = b.k)",
        "a.v IN (SELECT r.v FROM r WHERE r.k <= b.k)",
        "a.v NOT IN (SELECT r.v FROM r WHERE r.k >= b.k)",
        "a.v < ANY (SELECT r.v + b.id FROM r)",
        "a.v + b.v > (SELECT max(r.v) FROM r WHERE r.k < a.id + b.id)",
        "a.id >= (SELECT r.id FROM r WHERE r.v < b.v AND r.k <= a.k ORDER BY r.id LIMIT 1)",
        "a.v = (SELECT max(r.v) FROM r WHERE r.k = b.k) OR b.v IN (SELECT r.v FROM r WHERE r.id = a.id)",
        "b.v > (SELECT count(*) FROM r WHERE EXISTS (SELECT 1 FROM p WHERE p.k = r.k AND p.v > a.id + b.id))",
    ];
    // The last has duplicates and rows that ORDER BY leaves equal.
    let sides = [
        "p",
        "(SELECT * FROM p WHERE p.id > 2)",
        "(SELECT x.id, x.k, x.v FROM p AS x CROSS JOIN r ORDER BY x.k LIMIT 12)",
    ];
    let sessions = Sessions::new(&TABLES.map(String::from)).await?;
    for (i, condition) in conditions.iter().enumerate() {
        for kind in ["FULL", ["LEFT", "RIGHT"][i % 2]] {
            let side = sides[i % 2];
            let on = ["a.k = b.k AND ", "a.k <= b.id AND ", ""][i % 3];
            let join = |kind: &str| {
                format!("SELECT a.id, b.id FROM {side} AS a {kind} JOIN p AS b ON {on}{condition}")
            };
            let pairs = sorted(&sessions, &join("INNER")).await;
            let mut expected = pairs.clone();
            for (position, other, rows) in [(0, "RIGHT", side), (1, "LEFT", "p")] {
                if kind == other {
                    continue;
                }
                for row in sorted(&sessions, &format!("SELECT x.id FROM {rows} AS x")).await {
                    if !pairs.iter().any(|pair| pair[position] == row[0]) {
                        let mut alone = vec!["NULL".to_string(), "NULL".to_string()];
                        alone[position].clone_from(&row[0]);
                        expected.push(alone);
                    }
                }
            }
            expected.sort();
            assert_eq!(
                sorted(&sessions, &join(kind)).await,
                expected,
                "{}",
                join(kind)
            );
        }
        // As many rows as the kept side has at least, whichever of equal rows these are.
        let side = sides[2];
        let sql = format!(
            "SELECT a.id, b.id FROM {side} AS a LEFT JOIN p AS b ON a.k = b.k AND {condition}"
        );
        assert!(sorted(&sessions, &sql).await.len() >= 12, "{sql}");
    }
    Ok(())
}

#[tokio::test]
async fn rows_that_a_limit_or_a_window_chooses_are_the_same_twice() -> Result<()> {
    let others = "x.id, x.v, x.t, x.g";
    // With an order by all columns there is one answer.
    let sources = [
        "SELECT id, row_number() OVER (ORDER BY k) AS n FROM p AS x",
        "SELECT id, lag(v) OVER (PARTITION BY t ORDER BY k) AS n FROM p AS x",
        "SELECT id, sum(v) OVER (ORDER BY k ROWS 1 PRECEDING) AS n FROM p AS x",
        "SELECT id, rank() OVER (ORDER BY k) AS n FROM p AS x",
        "SELECT id, sum(v) OVER (ORDER BY k) AS n FROM p AS x",
        "SELECT id, k AS n FROM p AS x ORDER BY k LIMIT 4",
        "SELECT id, v AS n FROM (SELECT * FROM p AS x ORDER BY k OFFSET 2)",
        "SELECT DISTINCT ON (k) id, v AS n FROM p AS x ORDER BY k",
        "SELECT id, v AS n FROM p AS x LIMIT 5",
    ];
    let queries = [
        "SELECT y.id, x.v FROM {Y} AS y CROSS JOIN LATERAL (SELECT DISTINCT r.v FROM r WHERE r.k < y.n) AS x",
        "SELECT y.id, (SELECT max(z.k) FROM (SELECT r.k FROM r WHERE r.k <> y.n ORDER BY r.k LIMIT 1) AS z) FROM {Y} AS y",
        "SELECT y.id, y.n FROM {Y} AS y WHERE y.n IN (SELECT r.k FROM r GROUP BY r.k HAVING count(*) < y.n)",
        "SELECT y.id, CASE WHEN y.n > 0 THEN (SELECT max(r.v / y.n) FROM r WHERE r.k < y.n) END FROM {Y} AS y",
    ];
    let sessions = Sessions::new(&TABLES.map(String::from)).await?;
    for (i, source) in sources.iter().enumerate() {
        let total = match source.contains("BY k") {
            true => source.replace("BY k", &format!("BY k, {others}")),
            false => source.replace(" LIMIT", &format!(" ORDER BY k, {others} LIMIT")),
        };
        let is_peers = source.contains("rank") || source.contains("sum(v) OVER (ORDER BY k)");
        let total = if is_peers {
            (*source).to_string()
        } else {
            total
        };
        let create = format!("CREATE TABLE y{i} AS {total}");
        sessions.unnested(&create).await?;
        for query in queries {
            let expected = sorted(&sessions, &query.replace("{Y}", &format!("y{i}"))).await;
            let got = sorted(&sessions, &query.replace("{Y}", &format!("({total})"))).await;
            assert_eq!(got, expected, "{query}, {total}");
            // Of several orders this one is chosen, where values are computed for a domain.
            let got = sorted(&sessions, &query.replace("{Y}", &format!("({source})"))).await;
            if source.contains("OVER") && !query.contains("CASE") {
                assert_eq!(got, expected, "{query}, {source}");
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_values_of_a_limit_are_those_of_its_rows() -> Result<()> {
    let sessions = Sessions::new(&TABLES.map(String::from)).await?;
    let sql = |rows| {
        format!(
            "EXPLAIN FORMAT INDENT SELECT y.id, x.v FROM {rows} AS y \
             CROSS JOIN LATERAL (SELECT DISTINCT r.v FROM r WHERE r.k < y.n) AS x"
        )
    };
    for (rows, sorts) in [
        // The outer rows, and the domain.
        ("(SELECT id, k AS n FROM p ORDER BY k LIMIT 4)", 2),
        ("(SELECT id, k AS n FROM p AS x LIMIT 4)", 2),
        ("(SELECT id, k AS n FROM p ORDER BY k OFFSET 1)", 2),
        // A domain has no order.
        ("(SELECT id, k AS n FROM p ORDER BY k)", 0),
    ] {
        let plan = &sessions.unnested(&sql(rows)).await?[0][1];
        let count = |part: &str| plan.matches(part).count();
        assert_eq!(count("Sort: "), sorts, "{rows}\n{plan}");
        assert_eq!(
            count("fetch=4"),
            if rows.contains("LIMIT") { sorts } else { 0 },
            "{plan}"
        );
    }
    Ok(())
}
