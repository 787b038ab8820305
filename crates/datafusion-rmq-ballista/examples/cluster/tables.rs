//! Tables in files, and queries over them.

use std::path::Path;

use datafusion::error::Result;
use datafusion::prelude::SessionContext;

pub const QUERIES: [(&str, &str); 4] = [
    (
        "the lowest price in the second before each trade",
        "SELECT t.sym, t.id, (SELECT min(q.bid) FROM quotes q WHERE q.sym = t.sym AND q.ts BETWEEN t.ts - 1000 AND t.ts) AS low \
         FROM trades t ORDER BY t.id DESC LIMIT 5",
    ),
    (
        "quotes that rose after a trade, by symbol",
        "SELECT t.sym, count(*) AS rises FROM trades t JOIN quotes q ON q.sym = t.sym AND q.ts BETWEEN t.ts AND t.ts + 500 \
         AND q.bid > t.price GROUP BY t.sym ORDER BY rises DESC, t.sym LIMIT 5",
    ),
    (
        "the quote in force at each trade",
        "SELECT t.id, q.ts, q.bid FROM trades t ASOF JOIN quotes q MATCH_CONDITION (t.ts >= q.ts) ON q.sym = t.sym \
         ORDER BY t.id DESC LIMIT 5",
    ),
    (
        "the lowest of a hundred rows",
        "SELECT id, range_min('quotes.bid', id, id + 99) AS low FROM trades ORDER BY id LIMIT 5",
    ),
];

/// Writes 200,000 quotes and 20,000 trades of 100 symbols in eight files each.
pub async fn write(folder: &Path) -> Result<()> {
    let ctx = SessionContext::new();
    for (table, rows, columns) in [
        (
            "quotes",
            200_000,
            "ts, 's' || (value * 7919 % 100) AS sym, 100 + value * 53 % 997 AS bid",
        ),
        (
            "trades",
            20_000,
            "ts, 's' || (value * 104729 % 100) AS sym, 100 + value * 31 % 997 AS price, value AS id",
        ),
    ] {
        let files = folder.join(table);
        std::fs::create_dir_all(&files)?;
        for file in 0..8 {
            let [first, last] = [rows / 8 * file, rows / 8 * (file + 1) - 1];
            let path = files.join(format!("{file}.parquet"));
            let sql = format!(
                "COPY (SELECT {columns} FROM (SELECT value, value * (2000000 / {rows}) AS ts \
                 FROM generate_series({first}, {last})) ORDER BY ts) TO '{}' STORED AS PARQUET",
                path.display()
            );
            ctx.sql(&sql).await?.collect().await?;
        }
    }
    Ok(())
}
