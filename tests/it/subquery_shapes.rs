//! Subqueries that no rule of this crate takes, each compared with that of each row of the outer query by itself, in
//! DataFusion alone.

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::error::Result;
use datafusion::prelude::SessionContext;

use crate::support::{run, session};

/// How the rows of the query follow from those of `q`. In what is run for one row, its values take the place
/// of `q.id` and so on.
enum Naive {
    /// `id` and the value of an expression.
    Value(&'static str),
    /// `id` where a condition holds.
    Where(&'static str),
    /// `id` and each row of a query.
    Rows(&'static str),
    /// `id` and each row of a query, or as many NULLs.
    LeftRows(&'static str),
}
use Naive::{LeftRows, Rows, Value, Where};

const TABLES: [&str; 2] = [
    "CREATE TABLE p (sym VARCHAR, ts BIGINT, v BIGINT) AS VALUES ('a', 1, 5), ('a', 2, 3), ('a', 4, 8), ('b', 5, 7), ('b', 3, 2), \
     (NULL, 6, 0)",
    "CREATE TABLE q (id BIGINT, sym VARCHAR, ts BIGINT, b BIGINT) AS VALUES (0, 'a', 1, 2), (1, 'a', 3, 9), (2, 'b', 6, 4), \
     (3, 'x', 0, 9), (4, NULL, 3, 1), (5, 'a', NULL, 1)",
];

const QUERIES: &[(&str, Naive)] = &[
    (
        "SELECT q.id, x.v FROM q CROSS JOIN LATERAL (SELECT p.v FROM p WHERE p.ts <= q.ts ORDER BY p.ts LIMIT q.b) AS x",
        Rows("SELECT p.v FROM p WHERE p.ts <= q.ts ORDER BY p.ts LIMIT q.b"),
    ),
    (
        "SELECT q.id, x.v FROM q CROSS JOIN LATERAL (SELECT p.v FROM p WHERE p.ts <= q.ts ORDER BY p.ts LIMIT q.b - 1 OFFSET q.id) \
         AS x",
        Rows("SELECT p.v FROM p WHERE p.ts <= q.ts ORDER BY p.ts LIMIT q.b - 1 OFFSET q.id"),
    ),
    (
        "SELECT q.id FROM q WHERE q.id NOT IN (SELECT p.v FROM p WHERE p.ts <= q.ts ORDER BY p.ts LIMIT 9)",
        Where("(SELECT count(*) FROM p WHERE p.ts <= q.ts AND p.v = q.id) = 0"),
    ),
    (
        "SELECT q.id, x.sym, x.s FROM q CROSS JOIN LATERAL (SELECT p.sym, sum(p.v) AS s FROM p WHERE p.ts <= q.ts \
         GROUP BY GROUPING SETS ((p.sym), (p.sym, p.ts))) AS x",
        Rows(
            "SELECT p.sym, sum(p.v) AS s FROM p WHERE p.ts <= q.ts GROUP BY GROUPING SETS ((p.sym), (p.sym, p.ts))",
        ),
    ),
    (
        "SELECT q.id, x.sym, x.g, x.n FROM q CROSS JOIN LATERAL (SELECT p.sym, grouping(p.sym) AS g, count(*) AS n FROM p \
         WHERE p.ts <= q.ts GROUP BY ROLLUP (p.sym, p.ts)) AS x",
        Rows(
            "SELECT p.sym, grouping(p.sym) AS g, count(*) AS n FROM p WHERE p.ts <= q.ts GROUP BY ROLLUP (p.sym, p.ts)",
        ),
    ),
    (
        "SELECT q.id, x.sym, x.g FROM q CROSS JOIN LATERAL (SELECT p.sym, grouping(p.sym) AS g FROM p WHERE p.ts <= q.ts \
         GROUP BY ROLLUP (p.sym)) AS x",
        Rows(
            "SELECT p.sym, grouping(p.sym) AS g FROM p WHERE p.ts <= q.ts GROUP BY ROLLUP (p.sym)",
        ),
    ),
    (
        "SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE p.ts = q.ts GROUP BY GROUPING SETS ((p.sym), ()))",
        Where("true"),
    ),
    (
        "SELECT q.id, x.sym, x.m FROM q LEFT JOIN LATERAL (SELECT p.sym, max(p.v) - q.id AS m FROM p WHERE p.ts = q.ts \
         GROUP BY CUBE (p.sym, p.v)) AS x ON true",
        Rows(
            "SELECT p.sym, max(p.v) - q.id AS m FROM p WHERE p.ts = q.ts GROUP BY CUBE (p.sym, p.v)",
        ),
    ),
    (
        "SELECT q.id, CASE WHEN q.id > 0 THEN (SELECT min(p.v / q.id) FROM p WHERE p.ts <= q.ts) END FROM q",
        Value(
            "CASE WHEN q.id > 0 THEN (SELECT min(p.v / nullif(q.id, 0)) FROM p WHERE p.ts <= q.ts) END",
        ),
    ),
    (
        "SELECT q.id, CASE q.id WHEN 0 THEN -1 WHEN (SELECT max(p.ts / q.id) FROM p WHERE p.v > q.id) THEN -2 \
         ELSE (SELECT count(*) FROM p WHERE p.v % q.id = 1) END FROM q",
        Value(
            "CASE q.id WHEN 0 THEN -1 WHEN (SELECT max(p.ts / nullif(q.id, 0)) FROM p WHERE p.v > q.id) THEN -2 \
             ELSE (SELECT count(*) FROM p WHERE p.v % nullif(q.id, 0) = 1) END",
        ),
    ),
    (
        "SELECT q.id FROM q WHERE q.id = 0 OR EXISTS (SELECT 1 FROM p WHERE p.v / q.id > 2 AND p.ts < q.ts + 100 / q.id)",
        Where(
            "q.id = 0 OR (SELECT count(*) FROM p WHERE p.v / nullif(q.id, 0) > 2 AND p.ts < q.ts + 100 / nullif(q.id, 0)) > 0",
        ),
    ),
    (
        "SELECT q.id, coalesce(nullif(q.id, 1), (SELECT sum(10 / (q.id - p.v)) FROM p WHERE p.v <> 1)) FROM q",
        Value(
            "coalesce(nullif(q.id, 1), (SELECT sum(10 / nullif(q.id - p.v, 0)) FROM p WHERE p.v <> 1))",
        ),
    ),
    (
        "SELECT q.id, x.v FROM q CROSS JOIN LATERAL (SELECT p.v FROM p WHERE p.ts <= q.ts UNION ALL SELECT -p.v FROM p \
                   WHERE p.ts > q.ts) AS x",
        Rows("SELECT CASE WHEN p.ts <= q.ts THEN p.v ELSE -p.v END FROM p WHERE q.ts IS NOT NULL"),
    ),
    (
        "SELECT q.id, x.v FROM q CROSS JOIN LATERAL (SELECT p.v FROM p JOIN p AS r ON r.ts = p.ts + q.ts) AS x",
        Rows("SELECT p.v FROM p JOIN p AS r ON r.ts = p.ts + q.ts"),
    ),
    (
        "SELECT q.id, x.v FROM q CROSS JOIN LATERAL (SELECT DISTINCT ON (p.sym) p.v FROM p WHERE p.ts <= q.ts \
                   ORDER BY p.sym, p.ts DESC) AS x",
        Rows("SELECT DISTINCT ON (p.sym) p.v FROM p WHERE p.ts <= q.ts ORDER BY p.sym, p.ts DESC"),
    ),
    (
        "SELECT q.id, x.n FROM q LEFT JOIN LATERAL (SELECT min(p.v) AS n FROM p WHERE p.ts > q.ts) AS x ON x.n > q.id",
        LeftRows("SELECT n FROM (SELECT min(p.v) AS n FROM p WHERE p.ts > q.ts) WHERE n > q.id"),
    ),
    (
        "SELECT q.id, x.v FROM q LEFT JOIN LATERAL (SELECT p.v FROM p WHERE p.ts <= q.ts ORDER BY p.ts LIMIT 2) AS x ON x.v > q.b",
        LeftRows(
            "SELECT v FROM (SELECT p.v FROM p WHERE p.ts <= q.ts ORDER BY p.ts LIMIT 2) WHERE v > q.b",
        ),
    ),
    (
        "SELECT q.id, (SELECT min(p.v) FROM p WHERE p.ts + q.ts <= 4) FROM q",
        Value("(SELECT min(p.v) FROM p WHERE p.ts + q.ts <= 4)"),
    ),
    (
        "SELECT q.id, (SELECT max(p.v) FROM p WHERE q.b - 1 > q.ts + p.ts) FROM q",
        Value("(SELECT max(p.v) FROM p WHERE q.b - 1 > q.ts + p.ts)"),
    ),
    (
        "SELECT q.id, (SELECT count(*) FROM p WHERE p.sym || q.sym = 'aa') FROM q",
        Value("(SELECT count(*) FROM p WHERE p.sym || q.sym = 'aa')"),
    ),
    (
        "SELECT q.id, (SELECT sum(p.v) FROM p WHERE p.v <> q.id) FROM q",
        Value("(SELECT sum(p.v) FROM p WHERE p.v <> q.id)"),
    ),
    (
        "SELECT q.id, (SELECT count(*) FROM p WHERE p.v % 2 = q.id % 2 OR p.ts = q.ts) FROM q",
        Value("(SELECT count(*) FROM p WHERE p.v % 2 = q.id % 2 OR p.ts = q.ts)"),
    ),
    (
        "SELECT q.id, (SELECT sum(p.v) FROM p WHERE q.id > 2) FROM q",
        Value("(SELECT sum(p.v) FROM p WHERE q.id > 2)"),
    ),
    (
        "SELECT q.id, (SELECT max(p.v - q.id) FROM p) FROM q",
        Value("(SELECT max(p.v - q.id) FROM p)"),
    ),
    ("SELECT q.id, (SELECT q.id + 1) FROM q", Value("q.id + 1")),
    (
        "SELECT q.id, (SELECT min(p.v) FROM p WHERE p.ts <= q.ts HAVING count(*) > 1) FROM q",
        Value("(SELECT min(p.v) FROM p WHERE p.ts <= q.ts HAVING count(*) > 1)"),
    ),
    (
        "SELECT q.id, (SELECT p.v FROM p WHERE p.ts <= q.ts ORDER BY p.ts * q.b DESC LIMIT 1) FROM q",
        Value("(SELECT p.v FROM p WHERE p.ts <= q.ts ORDER BY p.ts * q.b DESC LIMIT 1)"),
    ),
    (
        "SELECT q.id, (SELECT max(p.v) FROM p WHERE p.ts <= q.ts LIMIT 1) FROM q",
        Value("(SELECT max(p.v) FROM p WHERE p.ts <= q.ts LIMIT 1)"),
    ),
    (
        "SELECT q.id, (SELECT min(x.v) FROM (SELECT p.v FROM p WHERE p.ts <= q.ts ORDER BY p.ts LIMIT 3) AS x) FROM q",
        Value(
            "(SELECT min(x.v) FROM (SELECT p.v FROM p WHERE p.ts <= q.ts ORDER BY p.ts LIMIT 3) AS x)",
        ),
    ),
    (
        "SELECT q.id, (SELECT max(x.n) FROM (SELECT p.sym, count(*) AS n FROM p WHERE p.ts <= q.ts GROUP BY p.sym) AS x) FROM q",
        Value(
            "(SELECT max(x.n) FROM (SELECT p.sym, count(*) AS n FROM p WHERE p.ts <= q.ts GROUP BY p.sym) AS x)",
        ),
    ),
    (
        "SELECT q.id, (SELECT sum(x.v) FROM (SELECT DISTINCT p.v % 3 AS v FROM p WHERE p.ts <= q.ts) AS x) FROM q",
        Value(
            "(SELECT sum(x.v) FROM (SELECT DISTINCT p.v % 3 AS v FROM p WHERE p.ts <= q.ts) AS x)",
        ),
    ),
    (
        "SELECT q.id, (SELECT sum(x.s) FROM (SELECT sum(p.v) OVER (ORDER BY p.ts) AS s FROM p WHERE p.ts <= q.ts) AS x) FROM q",
        Value(
            "(SELECT sum(x.s) FROM (SELECT sum(p.v) OVER (ORDER BY p.ts) AS s FROM p WHERE p.ts <= q.ts) AS x)",
        ),
    ),
    (
        "SELECT q.id, (SELECT max(x.v) FROM (SELECT p.v FROM p WHERE p.ts <= q.ts UNION ALL SELECT -p.v FROM p \
                   WHERE p.ts <= q.ts) AS x) FROM q",
        Value(
            "(SELECT max(x.v) FROM (SELECT p.v FROM p WHERE p.ts <= q.ts UNION ALL SELECT -p.v FROM p WHERE p.ts <= q.ts) AS x)",
        ),
    ),
    (
        "SELECT q.id, (SELECT count(*) FROM p JOIN p AS r ON r.ts = p.ts AND r.v <= q.id) FROM q",
        Value("(SELECT count(*) FROM p JOIN p AS r ON r.ts = p.ts AND r.v <= q.id)"),
    ),
    (
        "SELECT q.id, (SELECT count(r.v) FROM p LEFT JOIN p AS r ON r.ts = p.ts AND r.v <= q.id) FROM q",
        Value("(SELECT count(r.v) FROM p LEFT JOIN p AS r ON r.ts = p.ts AND r.v <= q.id)"),
    ),
    (
        "SELECT q.id, (SELECT max(v.x) FROM (VALUES (q.ts), (q.b)) AS v(x)) FROM q",
        Value("(SELECT max(v.x) FROM (VALUES (q.ts), (q.b)) AS v(x))"),
    ),
    (
        "SELECT q.id, (SELECT min(p.v) FROM p WHERE p.ts <= (SELECT max(x.ts) FROM q AS x WHERE x.ts < q.ts AND x.id <> p.v)) \
                   FROM q",
        Value(
            "(SELECT min(v) FROM (SELECT p.v, p.ts AS t, max(x.ts) AS last FROM p JOIN q AS x ON x.ts < q.ts AND x.id <> p.v \
             GROUP BY p.v, p.ts) WHERE t <= last)",
        ),
    ),
    (
        "SELECT q.id FROM q WHERE q.id IN (SELECT p.v FROM p WHERE p.ts <= q.ts ORDER BY p.ts LIMIT 3)",
        Where(
            "(SELECT count(*) FROM (SELECT p.v FROM p WHERE p.ts <= q.ts ORDER BY p.ts LIMIT 3) AS x WHERE x.v = q.id) > 0",
        ),
    ),
    (
        "SELECT q.id, q.id IN (SELECT p.v FROM p WHERE p.ts <= q.ts ORDER BY p.ts LIMIT 3) FROM q",
        Value(
            "(SELECT count(*) FROM (SELECT p.v FROM p WHERE p.ts <= q.ts ORDER BY p.ts LIMIT 3) AS x WHERE x.v = q.id) > 0",
        ),
    ),
    (
        "SELECT q.id, EXISTS (SELECT 1 FROM p WHERE p.ts <= q.ts ORDER BY p.ts OFFSET 2) FROM q",
        Value("(SELECT count(*) FROM p WHERE p.ts <= q.ts) > 2"),
    ),
    (
        "SELECT q.id FROM q WHERE q.b IN (SELECT max(p.v) + 1 FROM p WHERE p.ts <= q.ts)",
        Where("q.b = (SELECT max(p.v) + 1 FROM p WHERE p.ts <= q.ts)"),
    ),
    (
        "SELECT q.id, q.b IN (SELECT max(p.v) + 1 FROM p WHERE p.ts <= q.ts) FROM q",
        Value("q.b = (SELECT max(p.v) + 1 FROM p WHERE p.ts <= q.ts)"),
    ),
    (
        "SELECT q.id FROM q WHERE EXISTS (SELECT p.sym FROM p WHERE p.ts <= q.ts GROUP BY p.sym HAVING count(*) > 1)",
        Where(
            "(SELECT count(*) FROM (SELECT p.sym FROM p WHERE p.ts <= q.ts GROUP BY p.sym HAVING count(*) > 1)) > 0",
        ),
    ),
    (
        "SELECT q.id, EXISTS (SELECT p.sym FROM p WHERE p.ts <= q.ts GROUP BY p.sym HAVING count(*) > 1) FROM q",
        Value(
            "(SELECT count(*) FROM (SELECT p.sym FROM p WHERE p.ts <= q.ts GROUP BY p.sym HAVING count(*) > 1)) > 0",
        ),
    ),
    (
        "SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE p.ts = q.id UNION ALL SELECT 1 FROM p WHERE p.v = q.b)",
        Where("(SELECT count(*) FROM p WHERE p.ts = q.id OR p.v = q.b) > 0"),
    ),
    (
        "SELECT q.id, q.b IN (SELECT p.v FROM p WHERE p.ts < q.id UNION ALL SELECT p.ts FROM p WHERE p.ts < q.id) FROM q",
        Value("(SELECT count(*) FROM p WHERE p.ts < q.id AND (p.v = q.b OR p.ts = q.b)) > 0"),
    ),
    // Subqueries within subqueries that are about the outermost query.
    (
        "SELECT q.id, (SELECT max(p.v) FROM p WHERE p.ts >= q.ts AND p.v IN (SELECT n.ts FROM p AS n WHERE n.v \
         < q.b)) FROM q",
        Value(
            "(SELECT max(p.v) FROM p WHERE p.ts >= q.ts AND p.v IN (SELECT n.ts FROM p AS n WHERE n.v < q.b))",
        ),
    ),
    (
        "SELECT q.id, (SELECT count(*) FROM p WHERE p.ts BETWEEN q.ts AND q.b AND NOT EXISTS (SELECT 1 FROM p \
         AS n WHERE n.ts = p.v AND n.v < q.b)) FROM q",
        Value(
            "(SELECT count(*) FROM p WHERE p.ts BETWEEN q.ts AND q.b AND NOT EXISTS (SELECT 1 FROM p AS n WHERE \
             n.ts = p.v AND n.v < q.b))",
        ),
    ),
    (
        "SELECT q.id, (SELECT sum(p.v) FROM p WHERE p.sym = q.sym AND p.ts >= q.ts AND EXISTS (SELECT 1 FROM p \
         AS n WHERE n.ts = p.v AND n.v < q.b)) FROM q",
        Value(
            "(SELECT sum(p.v) FROM p WHERE p.sym = q.sym AND p.ts >= q.ts AND EXISTS (SELECT 1 FROM p AS n \
             WHERE n.ts = p.v AND n.v < q.b))",
        ),
    ),
    (
        "SELECT q.id, (SELECT p.v FROM p WHERE p.ts >= q.ts AND EXISTS (SELECT 1 FROM p AS n WHERE n.v < q.b \
         AND n.ts = p.v) ORDER BY p.ts LIMIT 1) FROM q",
        Value(
            "(SELECT p.v FROM p WHERE p.ts >= q.ts AND EXISTS (SELECT 1 FROM p AS n WHERE n.v < q.b AND n.ts = \
             p.v) ORDER BY p.ts LIMIT 1)",
        ),
    ),
    (
        "SELECT q.id, (SELECT max(p.v + (SELECT min(n.ts) FROM p AS n WHERE n.v < q.b AND n.sym = p.sym)) FROM \
         p WHERE p.ts >= q.ts) FROM q",
        Value(
            "(SELECT max(w) FROM (SELECT p.v + (SELECT min(n.ts) FROM p AS n WHERE n.v < q.b AND n.sym = p.sym) \
             AS w FROM p WHERE p.ts >= q.ts))",
        ),
    ),
    (
        "SELECT q.id, (SELECT max(p.v) FROM p WHERE p.ts >= q.ts AND p.v < (SELECT max(n.ts) FROM p AS n WHERE \
         n.v < q.b AND EXISTS (SELECT 1 FROM p AS m WHERE m.ts = p.v AND m.v >= n.v))) FROM q",
        Value(
            "(SELECT max(x.v) FROM (SELECT p.v, max(n.ts) AS t FROM p JOIN p AS n ON n.v < q.b JOIN p AS m ON \
             m.ts = p.v AND m.v >= n.v WHERE p.ts >= q.ts GROUP BY p.v) AS x WHERE x.v < x.t)",
        ),
    ),
    (
        "SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE p.ts >= q.ts AND p.ts <= q.b AND EXISTS (SELECT \
         1 FROM p AS n WHERE n.v < q.b AND n.ts = p.v))",
        Where(
            "EXISTS (SELECT 1 FROM p WHERE p.ts >= q.ts AND p.ts <= q.b AND EXISTS (SELECT 1 FROM p AS n WHERE \
             n.v < q.b AND n.ts = p.v))",
        ),
    ),
    (
        "SELECT q.id, x.* FROM q CROSS JOIN LATERAL (SELECT sum(p.v) AS s FROM p WHERE p.ts <= q.ts AND p.v NOT \
         IN (SELECT n.ts FROM p AS n WHERE n.v < q.b)) AS x",
        Rows(
            "SELECT sum(p.v) AS s FROM p WHERE p.ts <= q.ts AND NOT EXISTS (SELECT 1 FROM p AS n WHERE n.v < \
             q.b AND n.ts = p.v)",
        ),
    ),
    (
        "SELECT q.id, x.* FROM q LEFT JOIN LATERAL (SELECT p.v FROM p WHERE p.ts >= q.ts AND NOT EXISTS (SELECT \
         1 FROM p AS n WHERE n.v < q.b AND n.ts = p.v) ORDER BY p.ts LIMIT 2) AS x ON true",
        LeftRows(
            "SELECT p.v FROM p WHERE p.ts >= q.ts AND NOT EXISTS (SELECT 1 FROM p AS n WHERE n.v < q.b AND n.ts \
             = p.v) ORDER BY p.ts LIMIT 2",
        ),
    ),
    (
        "SELECT q.id, x.* FROM q CROSS JOIN LATERAL (SELECT p.v FROM p WHERE p.v = (SELECT min(n.v) FROM p AS n \
         WHERE n.ts = q.id)) AS x",
        Rows("SELECT p.v FROM p WHERE p.v = (SELECT min(n.v) FROM p AS n WHERE n.ts = q.id)"),
    ),
    (
        "SELECT q.id, x.* FROM q CROSS JOIN LATERAL (SELECT p.v FROM p WHERE p.v > (SELECT min(n.v) FROM p AS n \
         WHERE q.b > 3)) AS x",
        Rows("SELECT p.v FROM p WHERE p.v > (SELECT min(n.v) FROM p AS n WHERE q.b > 3)"),
    ),
    (
        "SELECT q.id, x.* FROM q LEFT JOIN LATERAL (SELECT q.id + 1 AS c FROM p WHERE 2 = (SELECT count(*) FROM \
         p AS n WHERE n.ts <= q.b)) AS x ON true",
        LeftRows(
            "SELECT q.id + 1 AS c FROM p WHERE 2 = (SELECT count(*) FROM p AS n WHERE n.ts <= q.b)",
        ),
    ),
    (
        "SELECT q.id FROM q WHERE q.b IN (SELECT p.ts FROM p WHERE EXISTS (SELECT q.sym FROM p AS n))",
        Where("q.b IN (SELECT p.ts FROM p)"),
    ),
    (
        "SELECT q.id FROM q WHERE EXISTS (SELECT 1 FROM p WHERE EXISTS (SELECT avg(n.v) FROM p AS n WHERE n.ts \
         = q.b))",
        Where("true"),
    ),
    (
        "SELECT q.id FROM q WHERE q.b IN (SELECT p.ts FROM p WHERE EXISTS (SELECT 1 FROM p AS n WHERE n.ts = \
         q.b LIMIT 0))",
        Where("false"),
    ),
    (
        "SELECT q.id FROM q WHERE EXISTS (SELECT p.v FROM p WHERE p.v = (SELECT q.b FROM p AS n LIMIT 1))",
        Where("(SELECT count(*) FROM p WHERE p.v = q.b) > 0"),
    ),
    (
        "SELECT q.id, (SELECT p.v FROM p WHERE p.ts BETWEEN q.ts AND (SELECT count(*) FROM p AS n WHERE n.v >= \
         q.b) ORDER BY p.ts LIMIT 1) FROM q",
        Value(
            "(SELECT p.v FROM p WHERE p.ts BETWEEN q.ts AND (SELECT count(*) FROM p AS n WHERE n.v >= q.b) \
             ORDER BY p.ts LIMIT 1)",
        ),
    ),
    (
        "SELECT q.id FROM q WHERE q.b NOT IN (SELECT p1.v FROM p AS p1 WHERE p1.ts <> q.ts AND p1.v NOT IN \
         (SELECT p2.v FROM p AS p2 WHERE p2.ts <> q.ts AND p2.v NOT IN (SELECT p3.v FROM p AS p3 WHERE p3.ts <> \
         q.ts AND p3.v NOT IN (SELECT p4.v FROM p AS p4 WHERE p4.ts <> q.ts AND p4.v NOT IN (SELECT p5.v FROM p \
         AS p5 WHERE p5.ts <> q.ts)))))",
        Where(
            "q.b NOT IN (SELECT p1.v FROM p AS p1 WHERE p1.ts <> q.ts AND p1.v NOT IN (SELECT p2.v FROM p AS p2 \
             WHERE p2.ts <> q.ts AND p2.v NOT IN (SELECT p3.v FROM p AS p3 WHERE p3.ts <> q.ts AND p3.v NOT IN \
             (SELECT p4.v FROM p AS p4 WHERE p4.ts <> q.ts AND p4.v NOT IN (SELECT p5.v FROM p AS p5 WHERE \
             p5.ts <> q.ts)))))",
        ),
    ),
    (
        "SELECT q.id FROM q WHERE q.sym NOT IN (SELECT p1.sym FROM p AS p1 WHERE p1.ts <> q.b AND p1.sym NOT IN \
         (SELECT p2.sym FROM p AS p2 WHERE p2.ts <> q.b AND p2.sym NOT IN (SELECT p3.sym FROM p AS p3 WHERE \
         p3.ts <> q.b AND p3.sym NOT IN (SELECT p4.sym FROM p AS p4 WHERE p4.ts <> q.b))))",
        // DataFusion does not see NULLs beside a constant.
        Where(
            "(SELECT count(*) FROM (SELECT p1.sym FROM p AS p1 WHERE p1.ts <> q.b AND p1.sym NOT IN (SELECT \
             p2.sym FROM p AS p2 WHERE p2.ts <> q.b AND p2.sym NOT IN (SELECT p3.sym FROM p AS p3 WHERE p3.ts \
             <> q.b AND p3.sym NOT IN (SELECT p4.sym FROM p AS p4 WHERE p4.ts <> q.b)))) AS x (s) WHERE (x.s = \
             q.sym) IS NOT FALSE) = 0",
        ),
    ),
];

/// The rows in an order of their own, their values between spaces.
fn lines(batches: &[RecordBatch]) -> Vec<String> {
    let mut lines = vec![];
    for batch in batches {
        for row in 0..batch.num_rows() {
            let values = batch.columns().iter().map(|column| {
                if column.is_null(row) {
                    return "NULL".to_string();
                }
                array_value_to_string(column, row).expect("a value")
            });
            lines.push(values.collect::<Vec<_>>().join(" "));
        }
    }
    lines.sort_unstable();
    lines
}

async fn rows(ctx: &SessionContext, sql: &str) -> Result<Vec<String>> {
    Ok(lines(&ctx.sql(sql).await?.collect().await?))
}

/// The rows that a query should have, one row of `q` after the other, in `DataFusion` alone.
async fn expected(plain: &SessionContext, naive: &Naive) -> Vec<String> {
    let outer = rows(plain, "SELECT id, coalesce(sym, '-'), ts, b FROM q").await;
    let mut expected = vec![];
    for row in outer.expect("rows") {
        let values: Vec<&str> = row.split(' ').collect();
        let [id, sym, ts, b] = values[..] else {
            panic!("{row}");
        };
        let sym = if sym == "-" {
            "NULL".to_string()
        } else {
            format!("'{sym}'")
        };
        let ts = match ts {
            "NULL" => "CAST(NULL AS BIGINT)",
            ts => ts,
        };
        let of_row = |text: &str| {
            let text = text.replace("q.id", id).replace("q.sym", &sym);
            text.replace("q.ts", ts).replace("q.b", b)
        };
        let sql = match naive {
            Value(value) => format!("SELECT {id}, {}", of_row(value)),
            Where(condition) => format!("SELECT {id} WHERE {}", of_row(condition)),
            Rows(query) | LeftRows(query) => {
                format!("SELECT {id}, x.* FROM ({}) AS x", of_row(query))
            }
        };
        let found = rows(plain, &sql).await;
        let found = found.unwrap_or_else(|error| panic!("{sql}: {error}"));
        if found.is_empty() && matches!(naive, LeftRows(_)) {
            expected.push(format!("{id} NULL"));
        }
        expected.extend(found);
    }
    expected.sort_unstable();
    expected
}

#[tokio::test]
async fn subqueries_of_other_shapes_are_unnested() {
    let (ctx, plain) = (session(), SessionContext::new());
    for sql in TABLES {
        run(&ctx, sql).await.expect(sql);
        run(&plain, sql).await.expect(sql);
    }
    for (sql, naive) in QUERIES {
        let found = rows(&ctx, sql).await.expect(sql);
        assert_eq!(found, expected(&plain, naive).await, "{sql}");
    }
}
