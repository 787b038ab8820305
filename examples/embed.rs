//! Registers range queries with a session and runs them from SQL and from the `DataFrame` API.
//!
//! ```sh
//! cargo run --example embed
//! ```

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use datafusion::error::Result;
use datafusion::execution::FunctionRegistry;
use datafusion::prelude::*;

#[tokio::main]
async fn main() -> Result<()> {
    let ctx = SessionContext::new();
    datafusion_rmq::register(&ctx);

    // Two weeks of closing prices. The holiday has none.
    let closes = [10.2, 9.8, 9.9, 0.0, 10.6, 10.4, 11.0, 10.1, 9.7, 10.0];
    let closes = closes.map(|close| (close > 0.0).then_some(close)).to_vec();
    let closes: ArrayRef = Arc::new(Float64Array::from(closes));
    let period: ArrayRef = Arc::new(StringArray::from(vec![
        "one week",
        "the next",
        "both",
        "the holiday",
    ]));
    let l: ArrayRef = Arc::new(Int64Array::from(vec![0, 5, 0, 3]));
    let r: ArrayRef = Arc::new(Int64Array::from(vec![4, 9, 100, 3]));
    let prices = RecordBatch::try_from_iter([("close", closes)])?;
    let windows = RecordBatch::try_from_iter([("period", period), ("l", l), ("r", r)])?;
    ctx.register_batch("prices", prices)?;
    ctx.register_batch("windows", windows)?;

    println!("SQL:");
    let sql = "SELECT period, range_min('prices.close', l, r) AS lowest, range_argmin('prices.close', l, r) AS at FROM windows";
    ctx.sql(sql).await?.show().await?;

    println!("The DataFrame API:");
    let range_call = |function: &str| -> Result<Expr> {
        Ok(ctx
            .udf(function)?
            .call(vec![lit("prices.close"), col("l"), col("r")]))
    };
    ctx.table("windows")
        .await?
        .filter(range_call("range_max")?.gt(lit(10.5)))?
        .select(vec![
            col("period"),
            range_call("range_min")?.alias("lowest"),
            range_call("range_max")?.alias("highest"),
        ])?
        .sort(vec![col("lowest").sort(true, false)])?
        .show()
        .await
}
