//! What indexes cost where tables grow: an INSERT, and the query after it, many times.

use datafusion::error::Result;
use rmq_bench::clock::median;

use crate::queries::{Dataset, Query};
use crate::{Runner, seconds_of};

/// The rows of an INSERT.
const ROWS: usize = 10_000;

/// The times that operators report for reading, sorting and indexing.
const INDEX_TIMES: [&str; 3] = ["build_time", "index_load_time", "index_build_time"];

/// Runs a query, and again after each of `inserts` INSERTs into the table that it searches. The last answer is that of
/// a session that keeps nothing.
pub fn measure(runner: &Runner, query: &Query, inserts: usize) -> Result<()> {
    let (table, columns) = match query.dataset {
        Dataset::Trades => ("quotes", "sym, ts, price"),
        Dataset::Positions => ("v", "v"),
        Dataset::Unsorted => ("u", "pos, v"),
    };
    runner.set(&format!(
        "CREATE OR REPLACE TABLE added AS SELECT {columns} FROM {table} LIMIT {ROWS}"
    ))?;
    runner.set("SET rmq.keep_indexes = true")?;
    let run = || -> Result<_> {
        let run = runner.run(query.sql)?;
        let times = INDEX_TIMES.iter();
        let index: f64 = times.map(|name| seconds_of(&run.plan, name)).sum();
        Ok((run, index))
    };
    let (first, built) = run()?;
    let (mut walls, mut indexed, mut last) = (vec![], vec![], first.answer);
    for _ in 0..inserts {
        runner.set(&format!("INSERT INTO {table} SELECT {columns} FROM added"))?;
        let (run, index) = run()?;
        walls.push(run.wall);
        indexed.push(index);
        last = run.answer;
    }
    runner.set("SET rmq.keep_indexes = false")?;
    let plain = runner.run(query.sql)?;
    assert_eq!(plain.answer, last, "{}", query.name);
    let all: f64 = indexed.iter().sum();
    println!(
        "  {:<18} first {:.3} (index {:.3}); {inserts} INSERTs of {ROWS} rows: queries {:.2} ms (median), index {:.3} s in all, \
         {:.2} of the first; each {:.3} ms (median), {:.1} (longest)",
        query.name,
        first.wall,
        built,
        1e3 * median(walls),
        all,
        all / built,
        1e3 * median(indexed.clone()),
        1e3 * indexed.iter().copied().fold(0.0, f64::max),
    );
    Ok(())
}
