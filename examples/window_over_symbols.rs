//! Window functions: each row has its own frame, and positions count within its partition.
//!
//! A purchase is made at each quote and held for the next `hold` quotes. How low does the price fall in that time, and
//! how many quotes after the purchase?
//!
//! ```sh
//! cargo run --example window_over_symbols
//! ```

use datafusion::error::Result;
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::ExprFunctionExt;
use datafusion::prelude::*;

#[tokio::main]
async fn main() -> Result<()> {
    let ctx = SessionContext::new();
    datafusion_rmq::register(&ctx);

    // `i` is the position of each quote within its symbol.
    let table = "CREATE TABLE quotes AS
        SELECT *, row_number() OVER (PARTITION BY sym ORDER BY ts) - 1 AS i
        FROM (VALUES
            ('ACME', 1, 187.40, 2), ('BOLT', 1, 43.30, 1), ('ACME', 2, 187.10, 3), ('BOLT', 2, 43.10, 4),
            ('ACME', 3, 186.90, 1), ('BOLT', 3, 43.50, 2), ('ACME', 4, 187.60, 0), ('BOLT', 4, 43.20, 1),
            ('ACME', 5, 186.20, 9), ('BOLT', 5, 42.90, 1), ('ACME', 6, 187.00, 1), ('BOLT', 6, 43.00, 1)
        ) AS day(sym, ts, price, hold)";
    ctx.sql(table).await?;

    println!("SQL:");
    let sql = "SELECT sym, ts, price, hold,
            frame_min(price, i, i + hold) OVER w AS lowest,
            frame_argmin(price, i, i + hold) OVER w - i AS after
        FROM quotes
        WINDOW w AS (PARTITION BY sym ORDER BY ts)
        ORDER BY sym, ts";
    ctx.sql(sql).await?.show().await?;

    println!("The DataFrame API, the highest price:");
    let highest = ctx
        .udwf("frame_max")?
        .call(vec![col("price"), col("i"), col("i") + col("hold")])
        .partition_by(vec![col("sym")])
        .order_by(vec![col("ts").sort(true, false)])
        .build()?;
    ctx.table("quotes")
        .await?
        .with_column("highest", highest)?
        .sort_by(vec![col("sym"), col("ts")])?
        .drop_columns(&["i"])?
        .show()
        .await
}
