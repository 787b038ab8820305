//! A table provider of one's own that states its version, as the snapshots of Delta Lake, Iceberg and Lance are:
//! indexes of its columns are kept between queries, and of rows that are appended only these are indexed.
//!
//! ```sh
//! cargo run --example versioned_table
//! ```

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use datafusion::arrow::array::{Float64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::Result;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;
use datafusion_rmq::{TableVersion, VersionedTable};

/// A table of segments, each of which stands for a file in a store that never changes.
#[derive(Debug)]
struct Prices {
    /// A UUID, so that no other table has it.
    id: String,
    /// The segments of the present snapshot: their names and prices.
    snapshot: Mutex<Vec<(String, Vec<f64>)>>,
}

impl Prices {
    fn snapshot(&self) -> Vec<(String, Vec<f64>)> {
        self.snapshot.lock().expect("no writer panics").clone()
    }

    fn commit(&self, segments: Vec<(String, Vec<f64>)>) {
        *self.snapshot.lock().expect("no writer panics") = segments;
    }
}

impl VersionedTable for Prices {
    fn version(&self) -> Option<TableVersion> {
        let segments = self.snapshot().into_iter();
        let empty = TableVersion::new(self.id.as_str());
        Some(segments.fold(empty, |version, (name, prices)| {
            version.with_part(name, prices.len() as u64)
        }))
    }
}

#[async_trait]
impl TableProvider for Prices {
    fn schema(&self) -> SchemaRef {
        let price = Field::new("price", DataType::Float64, false);
        Arc::new(Schema::new(vec![price]))
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    /// The plan has the segments of the present snapshot, and later ones do not change it.
    async fn scan(
        &self,
        _session: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let batches = self.snapshot().into_iter().map(|(_, prices)| {
            let prices = Arc::new(Float64Array::from(prices));
            Ok(RecordBatch::try_new(self.schema(), vec![prices])?)
        });
        let batches = batches.collect::<Result<Vec<_>>>()?;
        let scan =
            MemorySourceConfig::try_new_exec(&[batches], self.schema(), projection.cloned())?;
        Ok(scan)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let ctx = SessionContext::new();
    datafusion_rmq::register(&ctx);
    datafusion_rmq::register_versioned::<Prices>(&ctx)?;

    let prices = Arc::new(Prices {
        id: "8d9c9f0e-6a53-4c1e-9a43-0d9f6f2f7b11".to_string(),
        snapshot: Mutex::default(),
    });
    ctx.register_table("prices", Arc::clone(&prices) as _)?;
    let day = |rows: u32| (0..rows).map(|i| 100.0 + f64::from(i * 37 % 101)).collect();
    let monday = ("monday".to_string(), day(100_000));
    let tuesday = ("tuesday".to_string(), day(1_000));
    let corrected = ("monday, corrected".to_string(), day(99_000));
    for (what, segments) in [
        ("The first snapshot is indexed:", vec![monday.clone()]),
        ("It is found again:", vec![monday.clone()]),
        ("Tuesday alone is indexed:", vec![monday, tuesday.clone()]),
        ("All is indexed:", vec![corrected, tuesday]),
    ] {
        prices.commit(segments);
        println!("{what}");
        let sql = "EXPLAIN ANALYZE SELECT range_argmin('prices.price', 500, 100500) AS at";
        let lines = ctx.sql(sql).await?.collect().await?;
        let text = datafusion::arrow::util::pretty::pretty_format_batches(&lines)?.to_string();
        // The metrics that tell what was done for the index.
        let words = text.split([' ', ',', '[', ']']);
        let words = words.filter(|word| word.starts_with("index"));
        println!("  {}\n", words.collect::<Vec<_>>().join(" "));
    }
    Ok(())
}
