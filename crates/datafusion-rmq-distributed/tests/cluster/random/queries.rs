//! Queries drawn at random.

use datafusion::common::tree_node::TreeNode;
use datafusion::error::Result;
use datafusion::physical_plan::displayable;
use datafusion::prelude::SessionContext;
use datafusion_rmq::physical_plan::RangeJoinExec;
use rmq_testing::Random;

use super::tables::{Key, Tables};

/// A query.
pub struct Query {
    pub sql: String,
    pub form: &'static str,
    /// Whether its range join has several tasks if several files of `q` have rows.
    pub divides: bool,
}

/// The pairs of rows that a query may return.
const MAX_PAIRS: usize = 40_000;

/// Whether it is defined which row the first and last values of a query are of: an aggregate of DataFusion above a join
/// sees rows in any order.
pub async fn is_defined(ctx: &SessionContext, sql: &str) -> Result<bool> {
    if !sql.contains("_value(") {
        return Ok(true);
    }
    let frame = datafusion_rmq::sql(ctx, sql).await?;
    let plan = frame.create_physical_plan().await?;
    plan.exists(|plan| {
        let text = displayable(plan.as_ref()).one_line().to_string();
        Ok(plan.is::<RangeJoinExec>() && text.contains("_value("))
    })
}

struct Generator<'a> {
    random: &'a mut Random,
    tables: &'a Tables,
}

impl Query {
    pub fn draw(random: &mut Random, tables: &Tables) -> Self {
        let generator = &mut Generator { random, tables };
        match generator.below(12) {
            0 | 1 => generator.subquery(),
            2 | 3 => generator.grouped(),
            4 | 5 => generator.rows(),
            6 => generator.membership(),
            7 | 8 => generator.nearest(),
            9 => generator.asof(),
            10 => generator.table_function(),
            _ => generator.positions(),
        }
    }
}

impl Generator<'_> {
    fn below(&mut self, limit: usize) -> usize {
        self.random.below(limit)
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    /// A distance between two keys.
    fn distance(&mut self) -> String {
        let spread = self.tables.spread;
        let distance = [0, 1, 5, spread / 20, spread / 3][self.below(5)];
        match self.tables.key {
            Key::Int => distance.to_string(),
            Key::Float => format!("{distance}.5"),
            Key::Time => format!("INTERVAL '{distance} seconds'"),
        }
    }

    fn range(&mut self) -> String {
        let (c, d) = (self.distance(), self.distance());
        match self.below(8) {
            0 | 1 => "p.k BETWEEN q.k AND q.e".into(),
            2 => format!("p.k BETWEEN q.k - {c} AND q.k + {d}"),
            3 => format!("p.k {} q.k", self.pick(&[">=", ">", "<=", "<"])),
            4 => "p.k > q.k AND p.k <= q.e".into(),
            5 => "q.k BETWEEN p.k AND p.e".into(),
            6 => "p.k <= q.e AND p.e >= q.k".into(),
            _ => format!("p.k >= q.k - {c} AND p.k < q.e"),
        }
    }

    fn equality(&mut self) -> &'static str {
        self.pick(&[
            "p.g = q.g",
            "p.g = q.g",
            "p.g = q.g",
            "p.g = q.g AND p.h = q.h",
            "p.h = q.h",
            "",
        ])
    }

    /// A further condition, or none.
    fn further(&mut self) -> &'static str {
        self.pick(&[
            "",
            "",
            "",
            "",
            "p.v > q.v",
            "p.v <= q.v",
            "p.s <> q.s",
            "p.v > 4",
            "q.v < 15",
            "p.v IN (1, 2, 3, 5, 8)",
        ])
    }

    fn all(&mut self, parts: &[&str]) -> String {
        let parts = parts.iter().filter(|part| !part.is_empty());
        let parts: Vec<&str> = parts.copied().collect();
        parts.join(" AND ")
    }

    fn condition(&mut self) -> String {
        let (equality, range, further) = (self.equality(), self.range(), self.further());
        self.all(&[equality, &range, further])
    }

    /// The searched side; where ties decide, one whose rows have an order.
    fn p(&mut self, has_ties: bool) -> &'static str {
        let ordered = self.pick(&[
            "p",
            "p",
            "p",
            "p",
            "(SELECT * FROM p WHERE v > 3) p",
            "(SELECT id, g, h, k, e, v + 1 AS v, f, s FROM p) p",
            "(SELECT * FROM p UNION ALL SELECT * FROM q) p",
        ]);
        let others = [
            "(SELECT g, h, k, max(e) AS e, count(*) AS v, sum(f) AS f, min(s) AS s, min(id) AS id FROM p GROUP BY g, h, k) p",
            "(SELECT * FROM p ORDER BY id LIMIT 40) p",
        ];
        if !has_ties && self.below(8) == 0 {
            self.pick(&others)
        } else {
            ordered
        }
    }

    /// The side that is streamed, and whether it is the table.
    fn q(&mut self) -> (&'static str, bool) {
        match self.below(12) {
            0 => ("(SELECT * FROM q WHERE v > 3) q", false),
            1 => ("(SELECT * FROM q ORDER BY id LIMIT 30) q", false),
            2 => (
                "(SELECT g, h, k, max(e) AS e, max(v) AS v, min(s) AS s, min(id) AS id FROM q GROUP BY g, h, k) q",
                false,
            ),
            _ => ("q", true),
        }
    }

    /// An aggregate, and whether it depends on which of several rows comes first.
    fn aggregate(&mut self) -> (&'static str, bool) {
        match self.below(16) {
            0 => ("count(*)", false),
            1 => ("count(p.v)", false),
            2 => ("sum(p.v)", false),
            3 => ("min(p.v)", false),
            4 => ("max(p.f)", false),
            5 => ("avg(p.v)", false),
            6 => ("sum(p.f)", false),
            7 => ("min(p.s)", false),
            8 => ("sum(p.v) FILTER (WHERE p.f > 20)", false),
            9 => ("count(DISTINCT p.v)", false),
            10 => ("string_agg(p.s, ',' ORDER BY p.id, p.s)", false),
            11 => ("bool_or(p.v > 7)", false),
            12 => ("first_value(p.s ORDER BY p.k)", true),
            13 => ("last_value(p.id ORDER BY p.v)", true),
            14 => ("first_value(p.id ORDER BY p.v DESC)", true),
            _ => ("max(p.k)", false),
        }
    }

    /// A query, as it is or below operators whose result it determines.
    fn around(&mut self, sql: String, form: &'static str, divides: bool) -> Query {
        let sql = match self.below(8) {
            0 => format!("SELECT * FROM ({sql}) ORDER BY 1, 2 LIMIT 25"),
            1 => format!("SELECT b, count(*), min(a) FROM ({sql}) GROUP BY b"),
            2 => format!("SELECT DISTINCT b FROM ({sql})"),
            _ => sql,
        };
        Query { sql, form, divides }
    }

    fn subquery(&mut self) -> Query {
        let (aggregate, has_ties) = self.aggregate();
        let (condition, p, (q, is_table)) = (self.condition(), self.p(has_ties), self.q());
        let sql = format!(
            "SELECT q.id AS a, (SELECT {aggregate} FROM {p} WHERE {condition}) AS b FROM {q}"
        );
        // `count(DISTINCT …)` and conditions on both sides are DataFusion's where no rule takes them.
        self.around(
            sql,
            "aggregate in a subquery",
            is_table
                && condition_is_plain(&condition)
                && p == "p"
                && !aggregate.contains("DISTINCT"),
        )
    }

    fn grouped(&mut self) -> Query {
        let ((first, first_ties), (second, second_ties)) = (self.aggregate(), self.aggregate());
        let has_ties = first_ties || second_ties;
        let (condition, p, (q, _)) = (self.condition(), self.p(has_ties), self.q());
        let join = self.pick(&["JOIN", "JOIN", "LEFT JOIN"]);
        let group = if has_ties || self.below(2) == 0 {
            "q.id"
        } else {
            "q.g"
        };
        let sql = format!(
            "SELECT {group} AS a, {first} AS b, {second} AS c FROM {q} {join} {p} ON {condition} GROUP BY {group}"
        );
        Query {
            sql,
            form: "aggregates of a join",
            divides: false,
        }
    }

    fn rows(&mut self) -> Query {
        let (condition, p, (q, _)) = (self.condition(), self.p(false), self.q());
        let join = self.pick(&["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]);
        let sql = format!("SELECT q.id AS a, p.id AS b FROM {q} {join} {p} ON {condition}");
        let form = match join {
            "JOIN" => "rows, inner",
            "LEFT JOIN" => "rows, left",
            "RIGHT JOIN" => "rows, right",
            _ => "rows, full",
        };
        if self.tables.rows_of_p * self.tables.rows_of_q > MAX_PAIRS {
            let sql = format!("SELECT count(*), sum(a), sum(b), sum(a * b) FROM ({sql})");
            return Query {
                sql,
                form,
                divides: false,
            };
        }
        self.around(sql, form, false)
    }

    fn membership(&mut self) -> Query {
        let (condition, p, (q, _)) = (self.condition(), self.p(false), self.q());
        let test = match self.below(4) {
            0 => format!("EXISTS (SELECT 1 FROM {p} WHERE {condition})"),
            1 => format!("NOT EXISTS (SELECT 1 FROM {p} WHERE {condition})"),
            2 => format!("q.v IN (SELECT p.v FROM {p} WHERE {condition})"),
            _ => format!("(q.v > 5 OR EXISTS (SELECT 1 FROM {p} WHERE {condition}))"),
        };
        self.around(
            format!("SELECT q.id AS a, q.g AS b FROM {q} WHERE {test}"),
            "membership",
            false,
        )
    }

    fn nearest(&mut self) -> Query {
        let (condition, p, (q, _)) = (self.condition(), self.p(true), self.q());
        let order = self.pick(&["p.k", "p.k DESC", "p.v, p.k DESC", "p.f DESC", "p.k, p.id"]);
        let limit = 1 + self.below(3);
        let offset = self.pick(&["", "", "", " OFFSET 1"]);
        let rows = format!("FROM {p} WHERE {condition} ORDER BY {order} LIMIT");
        let sql = match self.below(3) {
            0 => format!("SELECT q.id AS a, (SELECT p.id {rows} 1) AS b FROM {q}"),
            1 => format!(
                "SELECT q.id AS a, x.id AS b FROM {q}, LATERAL (SELECT p.id {rows} {limit}{offset}) x"
            ),
            _ => format!(
                "SELECT q.id AS a, x.s AS b FROM {q} LEFT JOIN LATERAL (SELECT p.s {rows} {limit}) x ON true"
            ),
        };
        self.around(sql, "nearest rows", false)
    }

    fn asof(&mut self) -> Query {
        let (comparison, p, (q, is_table)) =
            (self.pick(&[">=", ">", "<=", "<"]), self.p(true), self.q());
        let on = self.equality();
        let join = if self.below(2) == 0 {
            let on = if on.is_empty() {
                String::new()
            } else {
                format!(" ON {on}")
            };
            format!("ASOF JOIN {p} MATCH_CONDITION (q.k {comparison} p.k){on}")
        } else {
            let matching = format!("q.k {comparison} p.k");
            let on = self.all(&[on, &matching]);
            format!(
                "{} {p} ON {on}",
                self.pick(&["ASOF JOIN", "ASOF LEFT JOIN"])
            )
        };
        let sql = format!("SELECT q.id AS a, p.id AS b, p.s AS c FROM {q} {join}");
        Query {
            sql,
            form: "as-of",
            divides: is_table,
        }
    }

    fn table_function(&mut self) -> Query {
        let range = match self.below(3) {
            0 => "p.k BETWEEN q.k AND q.e".to_string(),
            1 => format!("p.k BETWEEN q.k - {} AND q.k", self.distance()),
            _ => "p.k <= q.e AND p.k > q.k".into(),
        };
        let keys = self.pick(&["'g', ", "'g', ", "'g,h', "]);
        let (values, prevails) = (
            self.pick(&[
                "min(v) AS m, first_value(s) AS n",
                "count(*) AS m, last_value(id) AS n",
                "sum(f) AS m, avg(v) AS n",
            ]),
            self.pick(&["", ", 'include prevailing'"]),
        );
        let sql = format!(
            "SELECT id, m, n FROM range_join('q', 'p', {keys}$${range}$$, '{values}'{prevails})"
        );
        Query {
            sql,
            form: "range_join",
            divides: true,
        }
    }

    fn positions(&mut self) -> Query {
        let rows = self.tables.rows_of_p.max(1);
        let (a, b) = (self.below(rows), self.below(rows));
        let function = self.pick(&["range_min", "range_max", "range_argmin", "range_argmax"]);
        let column = self.pick(&[
            "'p.v'",
            "'p.f'",
            "'p.k'",
            "'p.s'",
            "(SELECT v FROM p ORDER BY k, id)",
        ]);
        let frame = self.pick(&[
            "min(v) OVER (PARTITION BY g ORDER BY k, id ROWS BETWEEN 9 PRECEDING AND CURRENT ROW)",
            "max(f) OVER (PARTITION BY g ORDER BY v RANGE BETWEEN 3 PRECEDING AND 1 FOLLOWING)",
            "frame_min(v, 0, 5) OVER (PARTITION BY h ORDER BY k, id)",
        ]);
        let sql = match self.below(4) {
            0 => format!("SELECT id AS a, {frame} AS b FROM p"),
            1 => format!(
                "SELECT q.id AS a, {function}({column}, q.id, q.id + {a}) AS b, range_min('p.v', q.v, {b}) AS c FROM q"
            ),
            _ => format!("SELECT q.id AS a, {function}({column}, q.id % {rows}, {b}) AS b FROM q"),
        };
        Query {
            sql,
            form: "positions and frames",
            divides: false,
        }
    }
}

/// Whether the condition has an equality and a range of the searched side alone.
fn condition_is_plain(condition: &str) -> bool {
    condition.starts_with("p.g = q.g")
        && !condition.contains("p.e")
        && condition.matches(" AND ").count() <= 2
}
