//! Lateral joins: shapes by name, and random ones.

use datafusion::common::Result;
use rmq_testing::{Random, cases_with_queries};

use crate::generator::Generator;
use crate::naive::{Sessions, TABLES, tables};

/// Seeds of cases that failed once.
const FAILED: [u64; 0] = [];

#[tokio::test]
async fn shapes() -> Result<()> {
    let sessions = Sessions::new(&TABLES.map(String::from)).await?;
    for subquery in [
        "SELECT DISTINCT p.v FROM p WHERE p.k BETWEEN {a} AND {b}",
        "SELECT DISTINCT p.v FROM p WHERE p.k = {a}",
        "SELECT DISTINCT ON (p.k) p.k, p.v FROM p WHERE p.k >= {a} ORDER BY p.k, p.v DESC",
        "SELECT p.v FROM p WHERE p.k >= {a} GROUP BY p.v",
        "SELECT p.t, count(*) AS c, sum(p.v + {b}) AS m FROM p WHERE p.k >= {a} GROUP BY p.t",
        "SELECT p.t FROM p WHERE p.k >= {a} GROUP BY p.t ORDER BY count(*) DESC, p.t LIMIT 1",
        "SELECT p.t, count(*) AS c FROM p WHERE p.k >= {a} GROUP BY p.t HAVING count(*) > 1",
        "SELECT count(*) AS c, max(p.v) AS m FROM p WHERE p.k < {a} HAVING count(*) > 0",
        "SELECT count(*) AS c, count(DISTINCT p.v) AS d, sum(p.v) AS m, array_agg(p.id ORDER BY p.id) AS l FROM p WHERE p.k < {a}",
        "SELECT count({a}) AS c, sum({b}) AS m FROM p",
        "SELECT avg(y.v) AS m FROM (SELECT v FROM p WHERE p.k <= {b} ORDER BY p.v DESC NULLS LAST, p.id LIMIT 2) AS y",
        "SELECT p.id, row_number() OVER (ORDER BY p.id) AS n, lag(p.v) OVER (PARTITION BY p.k ORDER BY p.id) AS l FROM p WHERE p.k >= {a}",
        "SELECT * FROM (SELECT p.id, rank() OVER (PARTITION BY {a} ORDER BY p.v + {b}) AS n FROM p WHERE p.k >= {a}) AS y WHERE n <= 2",
        "SELECT p.id FROM p ORDER BY abs(p.k - {a}), p.id LIMIT 2 OFFSET 1",
        "SELECT p.id FROM p WHERE p.t LIKE {s} || '%' ORDER BY p.id DESC LIMIT 1",
        "SELECT p.id FROM p WHERE p.k = {a} ORDER BY p.id OFFSET 1",
        "SELECT p.v + {a} AS w, {s} AS s FROM p WHERE p.g = {f}",
        "SELECT p.id FROM p WHERE p.k = {a} UNION ALL SELECT r.id FROM r WHERE r.v > {b}",
        "SELECT p.k FROM p WHERE p.k = {a} UNION SELECT r.k FROM r",
        "SELECT p.k FROM p WHERE p.k <= {a} INTERSECT SELECT r.k FROM r WHERE r.k <> {b}",
        "SELECT p.k FROM p WHERE p.k <= {b} EXCEPT SELECT r.k FROM r WHERE r.k = {a}",
        "SELECT * FROM (VALUES ({a}, 1), ({b}, 2), (0, {a})) AS y (k, n)",
        "SELECT * FROM (VALUES ({a})) AS y (k)",
        "SELECT {a} + 1 AS k, {s} AS s",
        "SELECT {a} + 1 AS k WHERE {b} > 2",
        "SELECT unnest(make_array({a}, {b}, 7)) AS u",
        "SELECT p.id, r.id AS other FROM p FULL JOIN r ON p.k = r.k AND p.v > {a}",
        "SELECT y.id, z.id AS other FROM (SELECT * FROM p WHERE k = {a}) AS y FULL JOIN (SELECT * FROM r WHERE k <> {b}) AS z ON y.k = z.k",
        "SELECT p.id, r.id AS other FROM p LEFT JOIN r ON p.k = r.k AND r.v > {a}",
        "SELECT p.id, z.id AS other FROM p RIGHT JOIN (SELECT * FROM r WHERE v > {a}) AS z ON p.k = z.k",
        "SELECT p.id FROM p JOIN r ON p.k = r.k + {a}",
        "SELECT p.id FROM p WHERE EXISTS (SELECT 1 FROM r WHERE r.k = p.k AND r.v > {a}) AND p.v > {b}",
        "SELECT p.id FROM p WHERE coalesce(p.k, 0) NOT IN (SELECT r.k FROM r WHERE r.k IS NOT NULL) OR p.k = {a} ORDER BY p.id LIMIT 3",
        "SELECT p.id, z.v FROM p CROSS JOIN LATERAL (SELECT r.v FROM r WHERE r.k <= p.k AND r.v > {a}) AS z",
        "SELECT p.id, z.v FROM p CROSS JOIN LATERAL (SELECT DISTINCT r.v + {b} AS v FROM r WHERE r.k <= p.k) AS z",
        "SELECT max(p.v) AS m FROM p WHERE p.k = {a} LIMIT 1",
        "SELECT k, v FROM (SELECT DISTINCT ON (k) k, v FROM (SELECT k, z.v FROM (SELECT k, v FROM p WHERE true) AS y1 \
         LEFT JOIN LATERAL (SELECT max(r.v) AS v FROM r WHERE r.k = y1.k) AS z ON true) AS y2 ORDER BY k, v) AS y \
         WHERE coalesce({a}, 0) >= 0",
        "SELECT count(*) AS c FROM p WHERE p.k > {a} AND p.v <> {b}",
        "WITH RECURSIVE s (n) AS (SELECT {a} UNION ALL SELECT n + 1 FROM s WHERE n < 5) SELECT n FROM s",
        "WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {a}) SELECT sum(n) AS m FROM s",
        "WITH RECURSIVE s (n) AS (SELECT {a} UNION SELECT (n * 3) % 7 FROM s) SELECT count(*) AS c, max(n) AS m FROM s",
        "WITH RECURSIVE s (k, v) AS (SELECT p.k, p.v FROM p WHERE p.k = {a} UNION ALL SELECT s.k + 1, p.v FROM s JOIN p \
         ON p.k = s.k + 1 WHERE s.k < 3) SELECT * FROM s ORDER BY k DESC, v LIMIT 2",
        "WITH RECURSIVE s (k, c) AS (SELECT {a}, CAST(0 AS BIGINT) UNION ALL SELECT s.k + 1, x.c FROM s CROSS JOIN \
         LATERAL (SELECT count(*) AS c FROM p WHERE p.k <= s.k AND p.v > {b}) AS x WHERE s.k < 4) SELECT * FROM s",
        "WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 3), u (m) AS (SELECT n FROM s WHERE \
         n < {b} UNION ALL SELECT m * 2 FROM u WHERE m < {b}) SELECT m FROM u",
    ] {
        for is_left in [false, true] {
            sessions.check(subquery, is_left, None).await;
        }
        sessions.check(subquery, true, Some("q.b > 2")).await;
        sessions.check(subquery, false, Some("q.b > 2")).await;
    }
    for on in ["x.m > 6", "x.m = q.b"] {
        let subquery = "SELECT max(p.v) AS m FROM p WHERE p.k >= {a} GROUP BY p.t";
        sessions.check(subquery, true, Some(on)).await;
        sessions.check(subquery, false, Some(on)).await;
    }
    Ok(())
}

#[tokio::test]
async fn steps_that_need_the_domain_are_refused() -> Result<()> {
    let sessions = Sessions::new(&TABLES.map(String::from)).await?;
    for (step, expected) in [
        (
            "SELECT max(n) + 1 FROM s",
            "and an aggregate without GROUP BY do",
        ),
        (
            "SELECT u.n FROM (SELECT n + 1 AS n FROM s WHERE n < q.a UNION ALL SELECT 7 AS n) u",
            "may have rows where s has none",
        ),
        (
            "SELECT p.k FROM p LEFT JOIN s ON s.n = p.k WHERE p.k > q.a",
            "may have rows where s has none",
        ),
        (
            "SELECT x.k FROM s, LATERAL (SELECT p.k FROM p WHERE p.k > s.n ORDER BY p.k LIMIT 1) x",
            "needs the rows of a step of WITH RECURSIVE",
        ),
    ] {
        let sql = format!(
            "SELECT * FROM q, LATERAL (WITH RECURSIVE s (n) AS (SELECT q.a UNION ALL {step}) SELECT n FROM s) x"
        );
        let error = match sessions.unnested(&sql).await {
            Ok(rows) => panic!("{sql} has rows {rows:?}"),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(expected), "{sql}\n{error}");
    }
    Ok(())
}

#[tokio::test]
async fn without_an_alias() -> Result<()> {
    let sessions = Sessions::new(&TABLES.map(String::from)).await?;
    let aliased = "SELECT q.id, c, d, w FROM q CROSS JOIN LATERAL (SELECT count(*) AS c FROM p WHERE p.k = q.a) x \
                   LEFT JOIN LATERAL (SELECT count(*) AS d FROM r AS p WHERE p.k = q.a) y ON true \
                   LEFT JOIN LATERAL (SELECT p.v AS w FROM p WHERE p.k = q.b) z ON true ORDER BY q.id, w";
    let bare = [" x ", " y ", " z "]
        .iter()
        .fold(aliased.to_string(), |sql, alias| {
            sql.replace(&format!("){alias}"), ") ")
        });
    assert_eq!(
        sessions.unnested(&bare).await?,
        sessions.unnested(aliased).await?
    );
    Ok(())
}

#[tokio::test]
async fn random_shapes() -> Result<()> {
    const QUERIES: usize = 10;
    for case in cases_with_queries("random_shapes", &FAILED, 200, QUERIES) {
        let mut random = Random::of_case(case);
        let sessions = Sessions::new(&tables(&mut random)).await?;
        for _ in 0..QUERIES {
            let depth = 1 + random.below(3);
            let mut subquery = Generator::new(&mut random).relation(depth);
            // DataFusion takes a subquery for lateral only if it has an outer column itself, not one within another.
            if subquery.contains("FROM r WHERE") {
                subquery =
                    format!("SELECT k, v FROM ({subquery}) AS y WHERE coalesce({{a}}, 0) >= 0");
            }
            let is_left = random.below(2) == 0;
            let on = [
                "x.k = q.b",
                "x.v > 1",
                "x.k <> q.a OR x.v IS NULL",
                "q.b > 1",
            ];
            let on = on.get(random.below(8)).copied();
            sessions.check(&subquery, is_left, on).await;
        }
    }
    Ok(())
}
