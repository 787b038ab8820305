//! Correlated subqueries that are no range join by themselves, compared with DataFusion's joins: aggregates over
//! rectangles and other conditions, lateral joins with GROUP BY, subqueries of subqueries, and those in ON.
//!
//! `RMQ_TEST_SEED` repeats a run, `RMQ_TEST_CASE` the queries of one pair of tables; `RMQ_CASES` makes it longer.

use crate::range_join::answer;
use crate::spellings::{condition, executed, sessions};
use crate::support::in_datafusion;
use rmq_testing::{Random, cases_with_queries, is_usual};

/// The number of queries of the random test, unless `RMQ_CASES` overrides it.
const CASES: usize = 240;

/// Seeds of cases that once failed.
const FAILED: [u64; 0] = [];

/// Queries over the same pair of tables.
const QUERIES: usize = 8;

/// A condition on both sides, with an equality or a range.
fn comparison(random: &mut Random) -> String {
    match random.below(8) {
        0 => condition(random),
        1 => "p.i0 BETWEEN q.i0 - 3 AND q.i0 + 3 AND p.v BETWEEN q.v - 2 AND q.v + 2".into(),
        2 => "p.g = q.g AND p.v <> q.v".into(),
        3 => "p.i0 % 3 = q.i1 % 3 AND p.g = q.g".into(),
        4 => "date_trunc('day', p.s0) = date_trunc('day', q.u0)".into(),
        5 => "p.g = q.g AND date_trunc('day', q.s0) = date_trunc('day', p.s0) AND p.v > 1".into(),
        6 => "p.f0 >= q.f0 AND p.i0 <= q.i1 AND q.v < 5 AND p.v IS NOT NULL".into(),
        _ => "extract(year FROM p.s0) = extract(year FROM q.s0) AND p.i0 < q.i0 + p.v".into(),
    }
}

/// An aggregate of one or both sides, and its value where there is no row.
fn aggregate(random: &mut Random) -> (&'static str, &'static str) {
    [
        ("count(*)", "0"),
        ("count(p.v)", "0"),
        ("count(*) FILTER (WHERE p.v < q.v)", "0"),
        ("sum(p.v + q.i0)", "NULL"),
        ("min(p.v) FILTER (WHERE p.id % 2 = 0)", "NULL"),
        ("max(p.f0 - q.f1)", "NULL"),
        ("sum(10 / nullif(p.id, 0))", "NULL"),
        ("sum(CASE WHEN p.v < q.v THEN 1 ELSE 0 END)", "NULL"),
        ("coalesce(max(p.i1), -7)", "-7"),
    ][random.below(9)]
}

/// A query, and one that DataFusion can plan by joins.
fn query(random: &mut Random) -> (String, String) {
    let on = comparison(random);
    match random.below(7) {
        0 | 1 => {
            let (call, none) = aggregate(random);
            let grouped =
                format!("SELECT q.id, {call} AS n, 1 AS one FROM q JOIN p ON {on} GROUP BY q.id");
            let subquery = format!("(SELECT {call} FROM p WHERE {on})");
            let sql = [
                format!("SELECT q.id, {subquery} FROM q"),
                format!(
                    "SELECT q.id, x.n FROM q CROSS JOIN LATERAL (SELECT {call} AS n FROM p WHERE {on}) AS x"
                ),
                format!(
                    "SELECT q.id, x.n FROM q LEFT JOIN LATERAL (SELECT {call} AS n FROM p WHERE {on}) AS x ON true"
                ),
            ];
            let value = format!("CASE WHEN x.one = 1 THEN x.n ELSE {none} END");
            (
                sql[random.below(3)].clone(),
                format!("SELECT q.id, {value} FROM q LEFT JOIN ({grouped}) x ON x.id = q.id"),
            )
        }
        2 => {
            let having = ["", "HAVING count(*) > 1", "HAVING min(p.v) < q.v"][random.below(3)];
            let group = ["p.g", "p.v", "p.g, p.i1 % 2"][random.below(3)];
            let of_outer = having.replace("q.v", "min(q.v)");
            (
                format!(
                    "SELECT q.id, x.* FROM q CROSS JOIN LATERAL (SELECT {group}, count(*) AS n, sum(p.v) AS s FROM p \
                     WHERE {on} GROUP BY {group} {having}) AS x"
                ),
                format!(
                    "SELECT q.id, {group}, count(*), sum(p.v) FROM q JOIN p ON {on} GROUP BY q.id, {group} {of_outer}"
                ),
            )
        }
        3 => (
            format!(
                "SELECT q.id, x.* FROM q, LATERAL (SELECT DISTINCT p.v, p.i0 + q.i0 AS s FROM p WHERE {on}) AS x"
            ),
            format!("SELECT DISTINCT q.id, p.v, p.i0 + q.i0 AS s FROM q JOIN p ON {on}"),
        ),
        4 => {
            // About the outermost row alone.
            let op = ["<", ">="][random.below(2)];
            let inner = "SELECT min(r.v) AS low FROM p r WHERE r.g = q.g AND r.i0 <= q.i0";
            let joined = "SELECT q.*, x.low FROM q LEFT JOIN (SELECT q.id AS i, min(r.v) AS low FROM q JOIN p r ON r.g = q.g \
                          AND r.i0 <= q.i0 GROUP BY q.id) AS x ON x.i = q.id";
            let matched =
                format!("SELECT q.id FROM ({joined}) AS q JOIN p ON {on} AND p.v {op} q.low");
            if random.below(2) == 0 {
                let exists = format!("EXISTS (SELECT 1 FROM p WHERE {on} AND p.v {op} ({inner}))");
                (
                    format!("SELECT q.id FROM q WHERE {exists}"),
                    format!("SELECT DISTINCT id FROM ({matched})"),
                )
            } else {
                (
                    format!(
                        "SELECT q.id, (SELECT count(*) FROM p WHERE {on} AND p.v {op} ({inner})) FROM q"
                    ),
                    format!(
                        "SELECT q.id, coalesce(n, 0) FROM q LEFT JOIN (SELECT id AS i, count(*) AS n FROM ({matched}) \
                         GROUP BY id) ON i = q.id"
                    ),
                )
            }
        }
        5 => {
            // A column of the outermost row that is equal to one of the rows between.
            let key = ["g", "v", "d0"][random.below(3)];
            let not = ["", "NOT "][random.below(2)];
            let nested = |of: &str| {
                format!(
                    "SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE q.{key} = p.{key} AND p.i0 >= q.i0 AND {not}EXISTS \
                     (SELECT 1 FROM p r WHERE r.{key} = {of}.{key} AND r.i1 BETWEEN p.i0 - 1 AND p.i0))"
                )
            };
            (nested("q"), nested("p"))
        }
        _ => {
            let last = "SELECT max(r.i0) FROM p r WHERE r.g = q.g AND r.i0 <= q.i1";
            if random.below(2) == 0 {
                (
                    format!("SELECT q.id, p.id FROM q JOIN p ON p.g = q.g AND p.i0 = ({last}) AND p.id > 1"),
                    "SELECT a, b FROM (SELECT q.id AS a, p.id AS b, rank() OVER (PARTITION BY q.id ORDER BY p.i0 DESC) AS n \
                     FROM q JOIN p ON p.g = q.g AND p.i0 <= q.i1) WHERE n = 1 AND b > 1"
                        .into(),
                )
            } else {
                // Of the side whose rows need not be kept.
                let low = "SELECT min(r.v) FROM q r WHERE r.i0 < p.i0";
                let joined = "SELECT p.id, p.g FROM p JOIN (SELECT p.id AS i, min(r.v) AS low FROM p JOIN q r ON r.i0 < p.i0 \
                              GROUP BY p.id) ON i = p.id WHERE p.v > low";
                (
                    format!("SELECT q.id, p.id FROM q LEFT JOIN p ON p.g = q.g AND p.v > ({low})"),
                    format!("SELECT q.id, p.id FROM q LEFT JOIN ({joined}) AS p ON p.g = q.g"),
                )
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn subqueries_have_the_rows_of_joins() {
    let seeds = cases_with_queries("subqueries", &FAILED, CASES, QUERIES);
    let (mut asked, mut refused) = (0, 0);
    for seed in seeds {
        let random = &mut Random::of_case(seed);
        let (with, without) = sessions(random);
        for _ in 0..QUERIES {
            let (sql, other) = query(random);
            let expected = answer(&without, &in_datafusion(&other)).await;
            let (expected, _) = expected.unwrap_or_else(|e| panic!("seed {seed}: {other}: {e}"));
            asked += 1;
            match executed(&with, &sql).await {
                Ok((found, _)) => assert_eq!(found, expected, "seed {seed}: {sql}"),
                // A condition that compares nothing, as NULLs of both sides.
                Err(error) if error.to_string().contains("has no plan") => refused += 1,
                Err(error) => panic!("seed {seed}: {sql}: {error}"),
            }
        }
    }
    println!("subqueries: {refused} of {asked} have no plan");
    assert!(!is_usual() || refused * 20 < asked, "{refused} of {asked}");
}
