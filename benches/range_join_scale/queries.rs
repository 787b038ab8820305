//! The queries, the tables that they read, and the bytes that they cannot avoid to move.

use datafusion::error::Result;

use crate::Options;
use crate::data::{self, Table};

/// The tables that queries share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dataset {
    Trades,
    Positions,
    Unsorted,
}

impl Dataset {
    pub const ALL: [Self; 3] = [Self::Trades, Self::Positions, Self::Unsorted];

    /// Computes the tables that these queries read.
    pub fn tables(self, options: &Options, queries: &[&Query]) -> Result<Vec<Table>> {
        let is_read = |name: &str| {
            let mut reads = queries.iter().flat_map(|query| query.reads);
            reads.any(|(table, _)| *table == name)
        };
        let (quotes, all) = (options.quotes(), options.many_trades());
        let positions = options.values();
        let unsorted = options.unsorted_rows();
        match self {
            Self::Trades => {
                let mut tables = vec![data::quotes(quotes)?];
                if is_read("trades") {
                    tables.push(data::trades("trades", options.trades(), quotes)?);
                }
                if is_read("many_trades") {
                    tables.push(data::trades("many_trades", all, quotes)?);
                }
                Ok(tables)
            }
            Self::Positions => Ok(vec![
                data::values(positions)?,
                data::ranges("w", positions, options.ranges())?,
            ]),
            Self::Unsorted => Ok(vec![
                data::unsorted(unsorted)?,
                data::ranges("few", unsorted, options.unsorted_ranges())?,
            ]),
        }
    }
}

/// A query, which returns one row that all runs must agree on.
pub struct Query {
    pub name: &'static str,
    pub dataset: Dataset,
    pub sql: &'static str,
    /// The columns that it reads, by table.
    pub reads: &'static [(&'static str, &'static [&'static str])],
    /// The columns of the build side that move to their groups.
    pub moves: &'static [(&'static str, &'static [&'static str])],
}

pub const ALL: [Query; 9] = [
    Query {
        name: "subquery",
        dataset: Dataset::Trades,
        sql: "SELECT sum(m), min(m), max(m), count(m) FROM (SELECT id, (SELECT min(price) FROM quotes p WHERE p.sym = q.sym \
              AND p.ts BETWEEN q.ts - INTERVAL '1 second' AND q.ts + INTERVAL '1 second') AS m FROM trades q)",
        reads: &[
            ("quotes", &["sym", "ts", "price"]),
            ("trades", &["sym", "ts"]),
        ],
        moves: &[("quotes", &["ts", "price"])],
    },
    Query {
        name: "grouped",
        dataset: Dataset::Trades,
        sql: "SELECT sum(a), sum(b), sum(c), max(d) FROM (SELECT q.id, min(price) AS a, max(price) AS b, count(price) AS c, sum(price) AS d \
              FROM trades q LEFT JOIN quotes p ON p.sym = q.sym AND p.ts BETWEEN q.ts - INTERVAL '60 seconds' AND q.ts GROUP BY q.id)",
        reads: &[
            ("quotes", &["sym", "ts", "price"]),
            ("trades", &["id", "sym", "ts"]),
        ],
        moves: &[("quotes", &["ts", "price"])],
    },
    Query {
        name: "first_value",
        dataset: Dataset::Trades,
        sql: "SELECT sum(CAST(f AS BIGINT)), min(f), max(f), count(f) FROM (SELECT q.id, first_value(p.ts ORDER BY price) AS f \
              FROM trades q LEFT JOIN quotes p ON p.sym = q.sym AND p.ts BETWEEN q.ts - INTERVAL '60 seconds' AND q.ts GROUP BY q.id)",
        reads: &[
            ("quotes", &["sym", "ts", "price"]),
            ("trades", &["id", "sym", "ts"]),
        ],
        moves: &[("quotes", &["ts", "price"])],
    },
    Query {
        name: "no_symbol",
        dataset: Dataset::Trades,
        sql: "SELECT sum(m), min(m), max(m), count(m) FROM (SELECT id, (SELECT min(price) FROM quotes p \
              WHERE p.ts BETWEEN q.ts - INTERVAL '1 second' AND q.ts) AS m FROM trades q)",
        reads: &[("quotes", &["ts", "price"]), ("trades", &["ts"])],
        moves: &[],
    },
    Query {
        name: "many_trades",
        dataset: Dataset::Trades,
        sql: "SELECT sum(m), min(m), max(m), count(m) FROM (SELECT id, (SELECT min(price) FROM quotes p WHERE p.sym = q.sym \
              AND p.ts BETWEEN q.ts - INTERVAL '1 second' AND q.ts + INTERVAL '1 second') AS m FROM many_trades q)",
        reads: &[
            ("quotes", &["sym", "ts", "price"]),
            ("many_trades", &["sym", "ts"]),
        ],
        moves: &[("quotes", &["ts", "price"])],
    },
    Query {
        name: "pairs",
        dataset: Dataset::Trades,
        sql: "SELECT count(*), min(p.price), max(p.price), sum(q.id) FROM trades q JOIN quotes p ON p.sym = q.sym \
              AND p.ts BETWEEN q.ts - INTERVAL '100 milliseconds' AND q.ts",
        reads: &[
            ("quotes", &["sym", "ts", "price"]),
            ("trades", &["id", "sym", "ts"]),
        ],
        moves: &[("quotes", &["ts", "price"])],
    },
    // Windows partition both sides by the symbol.
    Query {
        name: "partitioned_inputs",
        dataset: Dataset::Trades,
        sql: "SELECT sum(m), min(m), max(m), sum(n) FROM (SELECT n, (SELECT sum(p.n) FROM \
              (SELECT sym, ts, row_number() OVER (PARTITION BY sym ORDER BY ts) AS n FROM quotes) p WHERE p.sym = q.sym \
              AND p.ts BETWEEN q.ts - INTERVAL '1 second' AND q.ts + INTERVAL '1 second') AS m FROM \
              (SELECT sym, ts, row_number() OVER (PARTITION BY sym ORDER BY ts) AS n FROM trades) q)",
        reads: &[("quotes", &["sym", "ts"]), ("trades", &["sym", "ts"])],
        moves: &[("quotes", &["ts"])],
    },
    Query {
        name: "range_min",
        dataset: Dataset::Positions,
        sql: "SELECT sum(range_min('v.v', l, r)) FROM w",
        reads: &[("w", &["l", "r"])],
        moves: &[],
    },
    Query {
        name: "unsorted",
        dataset: Dataset::Unsorted,
        sql: "SELECT sum(m), count(m) FROM (SELECT (SELECT min(v) FROM u WHERE pos BETWEEN q.l AND q.r) AS m FROM few q)",
        reads: &[("u", &["pos", "v"]), ("few", &["l", "r"])],
        moves: &[("u", &["pos", "v"])],
    },
];

/// Returns the bytes of columns of these tables.
pub fn bytes(tables: &[Table], columns: &[(&str, &[&str])]) -> usize {
    let of_table = |(name, columns): &(&str, &[&str])| {
        let table = tables.iter().find(|table| table.name() == *name);
        table.map_or(0, |table| table.bytes(columns))
    };
    columns.iter().map(of_table).sum()
}
