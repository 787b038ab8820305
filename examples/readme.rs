//! The program of `README.md`: registers range queries with a session and runs one.
//!
//! ```sh
//! cargo run --example readme
//! ```

use datafusion::prelude::*;

#[tokio::main]
async fn main() -> datafusion::error::Result<()> {
    let ctx = SessionContext::new();
    datafusion_rmq::register(&ctx);
    let prices = "CREATE TABLE prices AS SELECT column1 AS close FROM (VALUES (5), (3), (8))";
    ctx.sql(prices).await?;
    let lowest = "SELECT range_min('prices.close', 0, 1) AS lowest"; // 3
    ctx.sql(lowest).await?.show().await?;
    Ok(())
}
