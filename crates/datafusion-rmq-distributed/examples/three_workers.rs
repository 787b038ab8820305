//! Three workers in one process, on loopback, and queries over Parquet files that they share.
//!
//! ```sh
//! cargo run -p datafusion-rmq-distributed --example three_workers
//! ```

use std::path::Path;

use datafusion::error::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use datafusion_distributed::{DistributedExt, WorkerResolver, display_plan_ascii};
use datafusion_rmq::RmqOptions;
use datafusion_rmq_distributed::{client, serve, worker};
use datafusion_rmq_proto::RmqCodec;
use tokio::net::TcpListener;
use url::Url;

/// The addresses of the workers.
struct Workers(Vec<Url>);

impl WorkerResolver for Workers {
    fn get_urls(&self) -> Result<Vec<Url>> {
        Ok(self.0.clone())
    }
}

const QUERIES: [(&str, &str); 4] = [
    (
        "the lowest price in the second before each trade",
        "SELECT t.sym, t.id, (SELECT min(q.bid) FROM quotes q WHERE q.sym = t.sym AND q.ts BETWEEN t.ts - 1000 AND t.ts) AS low \
         FROM trades t ORDER BY t.id LIMIT 5",
    ),
    (
        "quotes that rose after a trade, by symbol",
        "SELECT t.sym, count(*) AS rises FROM trades t JOIN quotes q ON q.sym = t.sym AND q.ts BETWEEN t.ts AND t.ts + 500 \
         AND q.bid > t.price GROUP BY t.sym ORDER BY rises DESC, t.sym LIMIT 5",
    ),
    (
        "the quote in force at each trade",
        "SELECT t.id, x.ts, x.bid FROM trades t CROSS JOIN LATERAL (SELECT q.ts, q.bid FROM quotes q WHERE q.sym = t.sym \
         AND q.ts <= t.ts ORDER BY q.ts DESC LIMIT 1) x ORDER BY t.id LIMIT 5",
    ),
    (
        "the lowest of a hundred rows",
        "SELECT id, range_min('quotes.bid', id, id + 99) AS low FROM trades ORDER BY id LIMIT 5",
    ),
];

#[tokio::main]
async fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    write_tables(folder.path()).await?;

    // Processes on other machines call `worker` and `serve`, too.
    let mut workers = vec![];
    for _ in 0..3 {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = format!("http://{}", listener.local_addr()?);
        workers.push(
            Url::parse(&address)
                .map_err(|e| datafusion::error::DataFusionError::External(e.into()))?,
        );
        let worker = worker(&RmqCodec::default(), &RmqOptions::default());
        tokio::spawn(serve(worker, listener));
    }

    let builder = SessionStateBuilder::new_with_default_features();
    let builder = client(builder, Workers(workers), &RmqCodec::default(), 256 << 20);
    // These files are small: by default one task reads 16 MiB for each of its partitions.
    let builder = builder.with_distributed_file_scan_config_bytes_per_partition(1)?;
    let ctx = SessionContext::new_with_state(builder.build());
    for table in ["quotes", "trades"] {
        let path = folder.path().join(table);
        let options = ParquetReadOptions::default();
        ctx.register_parquet(table, path.to_string_lossy(), options)
            .await?;
    }

    for (what, sql) in QUERIES {
        println!("\n{what}\n");
        let frame = ctx.sql(sql).await?;
        let plan = frame.clone().create_physical_plan().await?;
        println!("{}", display_plan_ascii(plan.as_ref(), false));
        frame.show().await?;
    }
    Ok(())
}

/// Writes 200,000 quotes and 20,000 trades of 100 symbols in eight files each.
async fn write_tables(folder: &Path) -> Result<()> {
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
        std::fs::create_dir(&files)?;
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
