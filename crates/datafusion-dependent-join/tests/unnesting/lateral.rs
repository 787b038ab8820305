//! Lateral joins: shapes by name, and random ones.

use datafusion::common::Result;
use rmq_testing::{Random, cases_with_queries};

use crate::naive::{Sessions, tables};

/// Seeds of cases that failed once.
const FAILED: [u64; 0] = [];

#[tokio::test]
async fn shapes() -> Result<()> {
    let statements = [
        "CREATE TABLE q (id INT, a INT, b INT, s VARCHAR, f DOUBLE) AS VALUES (1, 1, 3, 'x', 1.5), (1, 1, 3, 'x', 1.5), \
         (2, NULL, 2, NULL, 'NaN'), (3, 9, NULL, 'none', NULL), (4, 2, 0, '', 0.0)",
        "CREATE TABLE p (id INT, k INT, v INT, t VARCHAR, g DOUBLE) AS VALUES (1, 1, 5, 'x', 1.5), (2, 1, 5, 'xy', 'NaN'), \
         (3, 2, 7, '', 0.0), (4, 3, NULL, NULL, NULL), (5, NULL, 1, 'x', 2.5), (6, 2, 7, 'z', 0.0), (7, 1, 9, 'x', 1.0)",
        "CREATE TABLE r (id INT, k INT, v INT, t VARCHAR, g DOUBLE) AS VALUES (1, 1, 5, 'x', 1.5), (2, 4, 1, 'y', 1.0)",
    ];
    let sessions = Sessions::new(&statements.map(String::from)).await?;
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
        "SELECT p.id FROM p WHERE p.k NOT IN (SELECT r.k FROM r WHERE r.k IS NOT NULL) OR p.k = {a} ORDER BY p.id LIMIT 3",
        "SELECT p.id, z.v FROM p CROSS JOIN LATERAL (SELECT r.v FROM r WHERE r.k <= p.k AND r.v > {a}) AS z",
        "SELECT p.id, z.v FROM p CROSS JOIN LATERAL (SELECT DISTINCT r.v + {b} AS v FROM r WHERE r.k <= p.k) AS z",
        "SELECT max(p.v) AS m FROM p WHERE p.k = {a} LIMIT 1",
        "SELECT count(*) AS c FROM p WHERE p.k > {a} AND p.v <> {b}",
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
async fn random_shapes() -> Result<()> {
    const QUERIES: usize = 10;
    for case in cases_with_queries("random_shapes", &FAILED, 200, QUERIES) {
        let mut random = Random::of_case(case);
        let sessions = Sessions::new(&tables(&mut random)).await?;
        for _ in 0..QUERIES {
            let depth = 1 + random.below(3);
            let mut generator = Generator {
                random: &mut random,
                names: 0,
            };
            let mut subquery = generator.relation(depth);
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

/// Makes subqueries with the columns `k` and `v`.
struct Generator<'a> {
    random: &'a mut Random,
    names: usize,
}

impl Generator<'_> {
    fn name(&mut self) -> String {
        self.names += 1;
        format!("y{}", self.names)
    }

    fn one_of<'t>(&mut self, texts: &[&'t str]) -> &'t str {
        texts[self.random.below(texts.len())]
    }

    fn condition(&mut self, y: &str) -> String {
        let one = self.one_of(&[
            "Y.k = {a}",
            "Y.k = {a}",
            "Y.k < {a}",
            "Y.k BETWEEN {a} AND {b}",
            "Y.v <> {b}",
            "Y.v > 1",
            "Y.k = {a} AND Y.v = {b}",
            "(Y.k IS NOT DISTINCT FROM {a})",
            "{a} > 2",
            "Y.k + {a} > Y.v",
            "{s} = 'x'",
            "Y.v < {f}",
            "(Y.k = {a} OR {a} IS NULL)",
            "Y.k IN ({a}, {b})",
            "true",
        ]);
        one.replace("Y.", &format!("{y}."))
    }

    fn table(&mut self) -> String {
        let table = self.one_of(&["p", "p", "r"]);
        let condition = self.condition(table);
        let kinds = ["k, v", "k, id AS v", "k + {b} AS k, v"];
        let columns = self.one_of(&kinds);
        match self.random.below(8) {
            0 => "SELECT {a} AS k, {b} AS v".to_string(),
            1 => "SELECT column1 AS k, column2 AS v FROM (VALUES ({a}, CAST(1 AS INT)), (CAST(2 AS INT), {b})) AS z"
                .to_string(),
            2 => format!("SELECT {columns} FROM {table} WHERE {condition} AND {table}.g = {{f}}"),
            3 => format!("SELECT {columns} FROM {table} WHERE {table}.t = {{s}}"),
            4 => "SELECT unnest(make_array({a}, {b}, CAST(3 AS INT))) AS k, {a} AS v".to_string(),
            _ => format!("SELECT {columns} FROM {table} WHERE {condition}"),
        }
    }

    fn relation(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self.table();
        }
        let below = self.relation(depth - 1);
        let y = self.name();
        let condition = self.condition(&y);
        let from = format!("FROM ({below}) AS {y}");
        match self.random.below(18) {
            0 => format!("SELECT DISTINCT k, v {from}"),
            1 => format!("SELECT DISTINCT ON (k) k, v {from} ORDER BY k, v"),
            2 => format!("SELECT k, CAST(count(*) AS INT) AS v {from} GROUP BY k"),
            3 => format!(
                "SELECT v AS k, max(k + {{b}}) AS v {from} GROUP BY v HAVING count(*) > {{a}} - 1"
            ),
            4 => format!("SELECT k, v {from} GROUP BY k, v"),
            5 => format!("SELECT CAST(count(*) AS INT) AS k, max(v) AS v {from}"),
            6 => format!(
                "SELECT CAST(sum(v + {{a}}) AS INT) AS k, CAST(count(DISTINCT k) AS INT) AS v {from} WHERE {condition}"
            ),
            7 => format!("SELECT k, CAST(row_number() OVER (ORDER BY k, v) AS INT) AS v {from}"),
            8 => format!(
                "SELECT k, CAST(sum(v) OVER (PARTITION BY k ORDER BY v) AS INT) AS v {from} WHERE {condition}"
            ),
            9 => format!("SELECT lag(k) OVER (ORDER BY k, v) AS k, v {from}"),
            10 => {
                let order = self.one_of(&[
                    "k, v",
                    "k DESC, v",
                    "abs(k - {a}), k, v",
                    "v DESC NULLS LAST, k",
                ]);
                let limit = self.one_of(&[
                    "LIMIT 1",
                    "LIMIT 2",
                    "LIMIT 2 OFFSET 1",
                    "OFFSET 1",
                    "LIMIT 0",
                ]);
                format!("SELECT k, v {from} ORDER BY {order} {limit}")
            }
            11 | 12 => {
                let other = self.relation(depth - 1);
                let z = self.name();
                let kind = self.one_of(&["INNER", "LEFT", "RIGHT", "FULL"]);
                let further =
                    self.one_of(&["", "", " AND Y.v + Z.v > {a}", " AND Y.v <= Z.v + {b}"]);
                let further = further
                    .replace("Y.", &format!("{y}."))
                    .replace("Z.", &format!("{z}."));
                let columns = self.one_of(&["Y.k, Z.v", "Z.k, Y.v", "Y.k, Y.v"]);
                let columns = columns
                    .replace("Y.", &format!("{y}."))
                    .replace("Z.", &format!("{z}."));
                format!(
                    "SELECT {columns} {from} {kind} JOIN ({other}) AS {z} ON {y}.k = {z}.k{further}"
                )
            }
            13 => {
                let other = self.relation(depth - 1);
                let kind = self.one_of(&["UNION ALL", "UNION", "INTERSECT", "EXCEPT"]);
                format!("SELECT k, v {from} {kind} ({other})")
            }
            14 => {
                let further = self.one_of(&["", " AND r.v > {a}", " AND r.v + {b} > 1"]);
                let not = self.one_of(&["", "NOT "]);
                format!(
                    "SELECT k, v {from} WHERE {not}EXISTS (SELECT 1 FROM r WHERE r.k = {y}.k{further}) AND {condition}"
                )
            }
            15 => {
                let further = self.one_of(&["", " AND r.v = {a}"]);
                format!("SELECT k, (SELECT max(r.v) FROM r WHERE r.k = {y}.k{further}) AS v {from}")
            }
            16 => {
                let further = self.one_of(&["", " AND r.v > {a}"]);
                let distinct = self.one_of(&["", "DISTINCT "]);
                let kind = self.one_of(&["k, z.v", "k + {b} AS k, z.v"]);
                match distinct {
                    // DataFusion answers DISTINCT wrongly, so the naive query may not have it.
                    "" => format!(
                        "SELECT {kind} {from} CROSS JOIN LATERAL (SELECT r.v FROM r WHERE r.k < {y}.k{further}) AS z"
                    ),
                    _ => format!(
                        "SELECT {kind} {from} LEFT JOIN LATERAL (SELECT max(r.v) AS v FROM r WHERE r.k = {y}.k) AS z ON true"
                    ),
                }
            }
            _ => format!("SELECT k, v {from} WHERE {condition}"),
        }
    }
}
