//! Random subqueries. In these `{a}` is the outer column `q.a`.

use rmq_testing::Random;

/// Makes subqueries with the columns `k` and `v`.
pub struct Generator<'a> {
    random: &'a mut Random,
    names: usize,
}

impl<'a> Generator<'a> {
    pub fn new(random: &'a mut Random) -> Self {
        Self { random, names: 0 }
    }

    pub fn name(&mut self) -> String {
        self.names += 1;
        format!("y{}", self.names)
    }

    pub fn one_of<'t>(&mut self, texts: &[&'t str]) -> &'t str {
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

    /// A subquery that is nested `depth` deep.
    pub fn relation(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self.table();
        }
        let below = self.relation(depth - 1);
        let y = self.name();
        let condition = self.condition(&y);
        let from = format!("FROM ({below}) AS {y}");
        match self.random.below(20) {
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
                let value = self.one_of(&["max(r.v)", "DISTINCT {a}", "DISTINCT {b}"]);
                format!("SELECT k, (SELECT {value} FROM r WHERE r.k = {y}.k{further}) AS v {from}")
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
            17 | 18 => self.recursive(&from, depth),
            _ => format!("SELECT k, v {from} WHERE {condition}"),
        }
    }

    /// A recursive query that begins with the rows of `from`, and ends.
    fn recursive(&mut self, from: &str, depth: usize) -> String {
        let (s, z) = (self.name(), self.name());
        let condition = self.condition(&s);
        let union = self.one_of(&["UNION ALL", "UNION"]);
        let step = match self.random.below(8) {
            0 => format!("SELECT k + 1, v, n + 1 FROM {s} WHERE n < 2 AND {condition}"),
            1 => format!("SELECT k, max(v) + {{b}}, n + 1 FROM {s} WHERE n < 2 GROUP BY k, n"),
            2 => format!(
                "SELECT {z}.k, {z}.v + {{a}}, {s}.n + 1 FROM {s} JOIN r AS {z} ON {z}.k = {s}.k AND {z}.v > {{a}} \
                 WHERE {s}.n < 2"
            ),
            3 => format!(
                "SELECT {s}.k, {z}.v, {s}.n + 1 FROM {s} LEFT JOIN r AS {z} ON {z}.k = {s}.k + {{b}} WHERE {s}.n < 1"
            ),
            4 => format!(
                "SELECT k, v + {{b}}, n + 1 FROM {s} WHERE n < 2 AND EXISTS (SELECT 1 FROM r WHERE r.k = {s}.k AND \
                 r.v > {{a}})"
            ),
            5 => format!("SELECT k, v, n + 1 FROM {s} WHERE n < 2 ORDER BY v, k DESC LIMIT 1"),
            6 => format!(
                "SELECT k, CAST(row_number() OVER (ORDER BY k, v) AS INT), n + 1 FROM {s} WHERE n < 2 AND {condition}"
            ),
            _ => {
                let other = self.relation(depth - 1);
                format!(
                    "SELECT {z}.v, {s}.v, {s}.n + 1 FROM {s} JOIN ({other}) AS {z} ON {z}.k = {s}.v WHERE {s}.n < 2"
                )
            }
        };
        format!(
            "SELECT k, v FROM (WITH RECURSIVE {s} (k, v, n) AS (SELECT k, v, CAST(0 AS INT) {from} {union} {step}) \
             SELECT k, v FROM {s}) AS {z}"
        )
    }
}

/// An expression with a subquery, and one that computes the same for constant outer columns.
#[derive(Clone, Debug)]
pub struct Pair {
    pub sql: String,
    pub naive: String,
}

impl Pair {
    pub fn scalar(subquery: &str) -> Self {
        Self {
            sql: format!("({subquery})"),
            // DataFusion takes a subquery of a column that is NOT NULL for NOT NULL, even if it may have no row.
            naive: format!("nullif(({subquery}), -12345)"),
        }
    }

    /// `not` is NOT or nothing.
    pub fn exists(not: &str, subquery: &str) -> Self {
        Self {
            sql: format!("{not} EXISTS ({subquery})"),
            naive: format!("({not} (SELECT count(*) > 0 FROM ({subquery}) AS e))"),
        }
    }

    /// IN, ANY or ALL: `condition` says for `e.v` whether it matches.
    pub fn membership(sql: String, condition: &str, subquery: &str, of_none: bool) -> Self {
        let found = !of_none;
        let naive = format!(
            "(SELECT CASE WHEN count(*) FILTER (WHERE {condition}) > 0 THEN {found} \
             WHEN count(*) FILTER (WHERE ({condition}) IS NULL) > 0 THEN NULL ELSE {of_none} END \
             FROM ({subquery}) AS e (v))"
        );
        Self { sql, naive }
    }
}

impl Generator<'_> {
    /// A scalar subquery with an integer.
    pub fn scalar(&mut self, depth: usize) -> Pair {
        let below = self.relation(depth);
        let y = self.name();
        let one = self.one_of(&[
            "SELECT max(#.v) FROM (BELOW) AS #",
            "SELECT CAST(count(*) AS INT) FROM (BELOW) AS #",
            "SELECT CAST(count(*) AS INT) + max(#.k) FROM (BELOW) AS # WHERE #.v > {a}",
            "SELECT #.v FROM (BELOW) AS # ORDER BY #.k, #.v LIMIT 1",
            "SELECT #.v FROM (BELOW) AS # ORDER BY #.k DESC, #.v LIMIT 1 OFFSET 1",
            "SELECT max(#.v) FROM (BELOW) AS # HAVING count(*) > 1",
            "SELECT max(#.v) FROM (BELOW) AS # LIMIT 1",
            "SELECT #.k FROM (BELOW) AS # GROUP BY #.k ORDER BY count(*) DESC, #.k LIMIT 1",
            "SELECT CAST(count(DISTINCT #.v) AS INT) FROM (BELOW) AS # WHERE #.k = {a}",
            // Often more than one row.
            "SELECT #.v FROM (BELOW) AS # WHERE #.k = {a} AND #.v > {b}",
        ]);
        Pair::scalar(&one.replace('#', &y).replace("BELOW", &below))
    }

    /// EXISTS, IN, ANY or ALL.
    pub fn condition_with_subquery(&mut self, depth: usize) -> Pair {
        let below = self.relation(depth);
        let y = self.name();
        let below = match self.random.below(3) {
            0 => below,
            1 => format!("SELECT k, v FROM r AS {y} WHERE {y}.k > {{a}}"),
            _ => format!("SELECT {y}.k, {y}.v FROM p AS {y} WHERE {y}.k = {{a}}"),
        };
        let not = self.one_of(&["", "NOT"]);
        let column = self.one_of(&["k", "v"]);
        let z = self.name();
        let values = format!("SELECT {z}.{column} FROM ({below}) AS {z}");
        let x = self.one_of(&["{a}", "{b}", "2", "{a} + 1", "CAST(NULL AS INT)"]);
        match self.random.below(6) {
            0 | 1 => Pair::exists(not, &below),
            2 | 3 => {
                let sql = format!("{x} {not} IN ({values})");
                Pair::membership(sql, &format!("{x} = e.v"), &values, not == "NOT")
            }
            4 => {
                let op = self.one_of(&["=", "<>", "<", "<=", ">", ">="]);
                let sql = format!("{x} {op} ANY ({values})");
                Pair::membership(sql, &format!("{x} {op} e.v"), &values, false)
            }
            _ => {
                let op = self.one_of(&["=", "<>", "<", "<=", ">", ">="]);
                let sql = format!("{x} {op} ALL ({values})");
                Pair::membership(sql, &format!("NOT ({x} {op} e.v)"), &values, true)
            }
        }
    }
}
