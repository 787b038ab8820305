//! Subqueries in expressions, in each part of a query: by name, and random ones.

use datafusion::common::Result;
use rmq_testing::{Random, cases_with_queries};

use crate::generator::{Generator, Pair};
use crate::naive::{Sessions, TABLES, tables};

/// Seeds of cases that failed once.
const FAILED: [u64; 4] = [
    10463980907330361816,
    14113731346424801001,
    4266856837569069584,
    16340605906622112998,
];

/// Queries with an integer `{E}`, a condition `{B}`, or both.
const PLACES: [&str; 24] = [
    "SELECT q.id, {E} AS e FROM q",
    "SELECT q.id, {E} + q.a AS e, {B} AS c FROM q",
    "SELECT q.id FROM q WHERE {B}",
    "SELECT q.id FROM q WHERE {E} > 1",
    "SELECT q.id FROM q WHERE {B} AND {E} > 1 AND q.b > 0",
    "SELECT q.id FROM q WHERE q.a > 1 OR {B}",
    "SELECT q.id FROM q WHERE NOT ({B})",
    "SELECT q.id FROM q WHERE ({B}) IS NULL",
    "SELECT q.id FROM q WHERE ({B}) IS NOT FALSE",
    "SELECT q.id, CASE WHEN {B} THEN {E} ELSE -1 END AS c FROM q",
    "SELECT q.id FROM q ORDER BY {E}, q.id",
    "SELECT q.id, q.a FROM q ORDER BY {E} DESC, q.id, q.a LIMIT 2",
    "SELECT q.id, q.b FROM q ORDER BY {B}, {E}, q.id, q.b",
    "SELECT {E} AS e, count(*) AS n FROM q GROUP BY {E}",
    "SELECT q.a, max({E}) AS m, count(*) FILTER (WHERE {B}) AS n FROM q GROUP BY q.a",
    "SELECT {B} AS c, sum(q.a) AS n FROM q GROUP BY {B}",
    "SELECT q.id, rank() OVER (PARTITION BY {B} ORDER BY {E}) AS n FROM q",
    "SELECT q.id, sum({E}) OVER (ORDER BY q.id RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) AS n FROM q",
    "SELECT q.id, r.id AS o FROM q LEFT JOIN r ON r.v = {E}",
    "SELECT q.id, r.id AS o FROM q INNER JOIN r ON r.k = q.a AND {B}",
    "SELECT q.id, r.id AS o FROM r RIGHT JOIN q ON r.k = q.a AND {B}",
    "SELECT q.id, r.id AS o FROM q FULL JOIN r ON r.k = q.a AND r.v > {E}",
    "SELECT y.id FROM (SELECT q.id, {E} AS e FROM q) AS y WHERE y.e IS NULL OR y.e > 1",
    "SELECT DISTINCT {E} AS e, {B} AS c FROM q",
];

#[tokio::test]
async fn every_place() -> Result<()> {
    let sessions = Sessions::new(&TABLES.map(String::from)).await?;
    let values = [
        "SELECT max(p.v) FROM p WHERE p.k = {a}",
        "SELECT max(p.v) FROM p WHERE p.k BETWEEN {a} AND {b} HAVING count(*) > 1",
        "SELECT avg(y.v) FROM (SELECT p.v FROM p WHERE p.k <= {a} ORDER BY p.id DESC LIMIT 2) AS y",
        "SELECT p.v FROM p WHERE p.id = {b}",
        "SELECT {a} + 1",
        "SELECT max(p.v) FROM p WHERE EXISTS (SELECT 1 FROM r WHERE r.k = p.k AND r.v > {a})",
        "SELECT max(p.v) FROM p WHERE p.k = (SELECT max(r.k) FROM r WHERE r.k <= {a})",
        "SELECT count(*) FROM p WHERE p.k > {a} AND p.v <> {b}",
        "SELECT count(*) FROM p WHERE p.k = {a} AND p.v > 5 OR p.v IS NULL AND p.k = {a} OR p.k = {a} AND p.id = 1",
        "SELECT count(*) FROM p WHERE p.k = {a} AND p.v > {b} OR p.k = {a} AND p.id = 1",
        "SELECT count(*) FROM r",
    ];
    let sets = [
        "SELECT p.v FROM p WHERE p.k = {a}",
        "SELECT p.k FROM p WHERE p.v > {b}",
        "SELECT p.v FROM p WHERE p.k = {a} GROUP BY p.v HAVING count(*) > 1",
        "SELECT p.v FROM p WHERE p.k >= {a} ORDER BY p.v LIMIT 2",
        "SELECT p.k FROM p WHERE p.k IS NOT NULL",
        "SELECT {a} UNION ALL SELECT r.k FROM r WHERE r.v > {b}",
        "SELECT r.v FROM p JOIN r ON p.k = r.k WHERE p.v > {a}",
        "SELECT r.v FROM r WHERE false",
    ];
    for (i, place) in PLACES.iter().enumerate() {
        for (j, value) in values.iter().enumerate() {
            let set = sets[(i + j) % sets.len()];
            // Each place has each of these, with another value.
            for condition in [
                Pair::exists("", set),
                Pair::exists("NOT", set),
                Pair::membership(format!("{{a}} IN ({set})"), "{a} = e.v", set, false),
                Pair::membership(format!("{{b}} NOT IN ({set})"), "{b} = e.v", set, true),
                Pair::membership(format!("{{b}} < ANY ({set})"), "{b} < e.v", set, false),
                Pair::membership(format!("{{a}} >= ALL ({set})"), "{a} < e.v", set, true),
            ]
            .iter()
            .skip((i + j) % 6)
            .step_by(6)
            {
                sessions
                    .check_query(place, &Pair::scalar(value), condition)
                    .await;
                if !place.contains("{B}") {
                    break;
                }
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_name_of_the_outer_column_is_one_of_the_set() -> Result<()> {
    let table = "CREATE TABLE n (i INT) AS VALUES (1), (3), (NULL)".to_string();
    let sessions = Sessions::new(&[table]).await?;
    let sql = "SELECT i FROM n WHERE i >= ALL (SELECT i FROM n WHERE i IS NOT NULL)";
    assert_eq!(sessions.unnested(sql).await?, [["3"]]);
    let sql = "SELECT i FROM n WHERE i < ANY (SELECT i FROM n)";
    assert_eq!(sessions.unnested(sql).await?, [["1"]]);
    Ok(())
}

#[tokio::test]
async fn conditions_above_a_limit_are_about_its_rows() -> Result<()> {
    let statements = [
        "CREATE TABLE q (id INT, a INT) AS VALUES (4, 1), (1, 3), (2, 6)",
        "CREATE TABLE p (k INT, v INT) AS VALUES (1, 0), (3, 0), (6, 1)",
    ];
    let sessions = Sessions::new(&statements.map(String::from)).await?;
    let first = "SELECT p.k FROM p WHERE p.v <= q.a ORDER BY p.k LIMIT 1";
    for condition in [
        format!("EXISTS (SELECT 1 FROM ({first}) AS y WHERE y.k = q.a)"),
        format!("EXISTS (SELECT 1 FROM ({first}) AS y JOIN p AS z ON z.k = y.k WHERE z.k = q.a)"),
        format!("q.a IN (SELECT y.k FROM ({first}) AS y)"),
    ] {
        let sql = format!("SELECT q.id FROM q WHERE {condition}");
        assert_eq!(sessions.unnested(&sql).await?, [["4"]], "{sql}");
        let sql = format!("SELECT q.id FROM q WHERE NOT {condition} ORDER BY q.id");
        assert_eq!(sessions.unnested(&sql).await?, [["1"], ["2"]], "{sql}");
    }
    Ok(())
}

#[tokio::test]
async fn an_alias_of_two_queries_is_refused_where_either_may_be_the_one() -> Result<()> {
    let statements = [
        "CREATE TABLE t1 (id INT, k INT) AS VALUES (1, 10), (2, 20)",
        "CREATE TABLE t2 (id INT, k INT) AS VALUES (1, 20), (2, 10), (3, 20)",
        "CREATE TABLE t3 (id INT, k INT) AS VALUES (1, 20), (2, 10), (3, 10)",
    ];
    let sessions = Sessions::new(&statements.map(String::from)).await?;
    let query = |outer: &str, used: &str, lateral: &str| {
        format!(
            "SELECT {outer}.id FROM t1 AS {outer} WHERE EXISTS (SELECT 1 FROM t2 AS a CROSS JOIN {lateral} (SELECT t3.id \
             FROM t3 WHERE EXISTS (SELECT 1 FROM t2 AS w WHERE w.k = {used}.k AND w.k = t3.k)) AS b WHERE b.id = a.id \
             AND a.id = 3)"
        )
    };
    // A derived table sees the query around, a lateral one the table before it, too.
    assert_eq!(sessions.unnested(&query("o", "o", "")).await?, [["1"]]);
    let none: [[&str; 1]; 0] = [];
    assert_eq!(sessions.unnested(&query("o", "a", "LATERAL")).await?, none);
    let error = sessions.unnested(&query("a", "a", "")).await;
    let error = error.expect_err("two tables a").to_string();
    assert!(
        error.contains("give one of the two another alias"),
        "{error}"
    );
    // Where the names are of other queries, nothing is refused.
    let sql = format!(
        "{} UNION ALL {}",
        query("o", "a", "LATERAL"),
        query("o", "o", "")
    );
    assert_eq!(sessions.unnested(&sql).await?, [["1"]]);
    Ok(())
}

#[tokio::test]
async fn more_than_one_row_of_a_scalar_subquery_is_an_error() -> Result<()> {
    let statements = [
        "CREATE TABLE q (id INT, a INT) AS VALUES (1, 1), (2, 2), (3, 3)",
        "CREATE TABLE p (k INT, v INT) AS VALUES (1, 10), (2, 20), (2, 21)",
    ];
    let sessions = Sessions::new(&statements.map(String::from)).await?;
    let sql = "SELECT q.id, (SELECT p.v FROM p WHERE p.k = q.a) AS v FROM";
    let error = sessions
        .unnested(&format!("{sql} q"))
        .await
        .expect_err("two rows");
    assert!(
        error
            .to_string()
            .contains("has more than one row: aggregate them"),
        "{error}"
    );
    // The row with two is not asked for.
    for source in [
        "q WHERE q.id <> 2 ORDER BY q.id",
        "(SELECT * FROM q ORDER BY abs(q.id - 2) DESC LIMIT 2) AS q ORDER BY q.id",
    ] {
        let got = sessions.unnested(&format!("{sql} {source}")).await?;
        assert_eq!(got, [["1", "10"], ["3", "NULL"]], "{source}");
    }
    Ok(())
}

#[tokio::test]
async fn random_queries() -> Result<()> {
    const QUERIES: usize = 10;
    for case in cases_with_queries("random_queries", &FAILED, 200, QUERIES) {
        let mut random = Random::of_case(case);
        let sessions = Sessions::new(&tables(&mut random)).await?;
        for _ in 0..QUERIES {
            let depth = random.below(3);
            let place = PLACES[random.below(PLACES.len())];
            let mut generator = Generator::new(&mut random);
            let value = generator.scalar(depth);
            let condition = generator.condition_with_subquery(depth);
            sessions.check_query(place, &value, &condition).await;
        }
    }
    Ok(())
}

/// A session with small tables.
async fn small() -> Result<Sessions> {
    let tables = [
        "CREATE TABLE q (id INT, k INT) AS VALUES (1, 1), (2, 4), (3, NULL)",
        "CREATE TABLE p (k INT, v INT) AS VALUES (1, 5), (2, 7), (4, 3)",
    ];
    Sessions::new(&tables.map(String::from)).await
}

#[tokio::test]
async fn a_subquery_is_compared_with_a_set() -> Result<()> {
    let sessions = small().await?;
    let highest = "(SELECT max(p.v) FROM p WHERE p.k <= q.k)";
    let sql = format!(
        "SELECT q.id, {highest} >= ALL (SELECT p.v FROM p WHERE p.k > 1) AS b FROM q ORDER BY q.id"
    );
    assert_eq!(
        sessions.unnested(&sql).await?,
        [["1", "false"], ["2", "true"], ["3", "NULL"]]
    );
    let sql = format!(
        "SELECT q.id FROM q WHERE {highest} > ANY (SELECT p.v FROM p WHERE p.k > q.k) ORDER BY q.id"
    );
    assert_eq!(sessions.unnested(&sql).await?, [["1"]]);
    let sql =
        format!("SELECT q.id FROM q WHERE {highest} <> ALL (SELECT p.k + 5 FROM p) ORDER BY q.id");
    assert_eq!(sessions.unnested(&sql).await?, [["1"]]);
    Ok(())
}

#[tokio::test]
async fn rows_of_values_have_subqueries() -> Result<()> {
    let sessions = small().await?;
    let sql = "SELECT * FROM (VALUES ((SELECT max(v) FROM p), 1), ((SELECT min(v) FROM p), 2)) AS t (a, b) ORDER BY b";
    assert_eq!(sessions.unnested(sql).await?, [["7", "1"], ["3", "2"]]);
    let sql = "SELECT q.id, (SELECT max(t.c) FROM (VALUES ((SELECT max(p.v) FROM p WHERE p.k < q.k)), (q.k)) AS t (c)) \
               AS m FROM q ORDER BY q.id";
    assert_eq!(
        sessions.unnested(sql).await?,
        [["1", "1"], ["2", "7"], ["3", "NULL"]]
    );
    Ok(())
}

#[tokio::test]
async fn groups_by_an_expression_have_subqueries_about_it() -> Result<()> {
    let sessions = small().await?;
    for (sql, expected) in [
        (
            "SELECT q.k % 3 AS j, (SELECT sum(p.v) FROM p WHERE p.k >= q.k % 3) AS s FROM q GROUP BY q.k % 3",
            vec![vec!["1", "15"], vec!["NULL", "NULL"]],
        ),
        (
            "SELECT q.k % 3 AS j FROM q GROUP BY q.k % 3 HAVING sum(q.k) > (SELECT max(p.k) FROM p WHERE p.k <> q.k % 3)",
            vec![vec!["1"]],
        ),
        (
            "SELECT q.k + 1 AS j, (q.k + 1) IN (SELECT p.k + (q.k + 1) - 2 FROM p) AS b FROM q GROUP BY (q.k + 1)",
            vec![vec!["2", "true"], vec!["5", "true"], vec!["NULL", "NULL"]],
        ),
        (
            "SELECT q.k % 3 AS j, (SELECT max((SELECT count(*) FROM p AS r WHERE r.k < p.k + q.k % 3)) FROM p) AS n, \
             row_number() OVER (ORDER BY q.k % 3) AS o FROM q GROUP BY q.k % 3",
            vec![vec!["1", "3", "1"], vec!["NULL", "0", "2"]],
        ),
    ] {
        let mut rows = sessions.unnested(sql).await?;
        rows.sort();
        assert_eq!(rows, expected, "{sql}");
    }
    Ok(())
}

#[tokio::test]
async fn conditions_that_are_never_true_leave_no_subquery() -> Result<()> {
    let sessions = small().await?;
    let sql =
        "SELECT q.id, (SELECT p.v FROM p WHERE 1 = 0 AND p.k = q.k) AS v FROM q ORDER BY q.id";
    assert_eq!(
        sessions.unnested(sql).await?,
        [["1", "NULL"], ["2", "NULL"], ["3", "NULL"]]
    );
    let sql =
        "SELECT q.id FROM q CROSS JOIN LATERAL (SELECT p.v FROM p WHERE 1 = 0 AND p.k = q.k) AS x";
    assert!(sessions.unnested(sql).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn grouping_sets_of_outer_columns() -> Result<()> {
    let sessions = small().await?;
    for (sets, n) in [("GROUPING SETS (q.k)", "1"), ("ROLLUP (q.k)", "2")] {
        let sql = format!(
            "SELECT (SELECT count(*) FROM (SELECT q.k FROM p GROUP BY {sets}) AS t) AS n FROM q"
        );
        assert_eq!(sessions.unnested(&sql).await?, [[n]; 3], "{sets}");
    }
    Ok(())
}

#[tokio::test]
async fn outer_columns_of_the_type_of_null() -> Result<()> {
    let sessions = small().await?;
    let sql = "SELECT (SELECT max(42) OVER (PARTITION BY (SELECT x.c AS d)) AS m) AS m FROM (SELECT NULL AS c) AS x";
    assert_eq!(sessions.unnested(sql).await?, [["42"]]);
    Ok(())
}

#[tokio::test]
async fn the_first_outer_column_may_be_one_of_a_query_further_out() -> Result<()> {
    let sessions = small().await?;
    for (subquery, expected) in [
        (
            "(SELECT (SELECT q.k + p.v FROM p AS r WHERE r.k = q.k) FROM p WHERE p.k = q.k)",
            ["6", "7", "NULL"],
        ),
        (
            "(SELECT (SELECT r.v FROM p AS r WHERE r.k = q.k) FROM p WHERE p.k = 2)",
            ["5", "3", "NULL"],
        ),
        (
            "(SELECT (SELECT (SELECT r.v + 1 FROM p AS r WHERE r.k = q.k)))",
            ["6", "4", "NULL"],
        ),
    ] {
        let sql = format!("SELECT {subquery} AS v FROM q ORDER BY q.id");
        assert_eq!(
            sessions.unnested(&sql).await?,
            expected.map(|v| [v]),
            "{sql}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn conditions_of_semi_and_anti_joins_have_subqueries() -> Result<()> {
    let sessions = small().await?;
    for (condition, expected) in [
        ("p.v > (SELECT min(r.v) FROM p AS r WHERE r.k <> p.k)", "1"),
        (
            "p.v > (SELECT min(r.v) + 2 FROM p AS r WHERE r.k > q.k)",
            "",
        ),
        (
            "p.v <= (SELECT min(r.v) FROM p AS r WHERE r.k <= q.k + p.k)",
            "1 2",
        ),
    ] {
        for (kind, is_semi) in [("LEFT SEMI", true), ("LEFT ANTI", false)] {
            let sql = format!(
                "SELECT q.id FROM q {kind} JOIN p ON p.k = q.k AND {condition} ORDER BY q.id"
            );
            let ids = ["1", "2", "3"].into_iter();
            let ids: Vec<_> = ids
                .filter(|id| expected.contains(id) == is_semi)
                .map(|id| [id])
                .collect();
            assert_eq!(sessions.unnested(&sql).await?, ids, "{sql}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn distinct_on_a_subquery() -> Result<()> {
    let sessions = small().await?;
    let many = "(SELECT count(*) > 1 FROM p WHERE p.k <= q.k)";
    let sql =
        format!("SELECT DISTINCT ON ({many}) q.id, {many} AS m FROM q ORDER BY {many}, q.id DESC");
    assert_eq!(
        sessions.unnested(&sql).await?,
        [["3", "false"], ["2", "true"]]
    );
    Ok(())
}

#[tokio::test]
async fn aggregates_of_the_query_around_are_refused() -> Result<()> {
    let sessions = small().await?;
    for sql in [
        "SELECT (SELECT sum(q.k) FROM p WHERE p.k = 1) AS s FROM q",
        "SELECT q.id FROM q GROUP BY q.id HAVING EXISTS (SELECT 1 FROM p GROUP BY p.k HAVING p.k > max(q.k))",
    ] {
        let error = sessions.unnested(sql).await.expect_err(sql).to_string();
        assert!(
            error.contains("(q.k) in a subquery is an aggregate of the query around it"),
            "{error}"
        );
    }
    let sql = "SELECT (SELECT sum(q.k + p.k) FROM p WHERE p.k < 3) AS s FROM q ORDER BY q.id";
    assert_eq!(sessions.unnested(sql).await?, [["5"], ["11"], ["NULL"]]);
    Ok(())
}
