//! Tables like one that is not known.

use datafusion::prelude::SessionContext;
use datafusion_rmq::parts::did_you_mean;

/// The tables of the session's catalog whose names are like this one, as a question; empty if there are none.
pub fn tables_like(ctx: &SessionContext, name: &str) -> String {
    let config = ctx.copied_config();
    let catalogs = &config.options().catalog;
    let catalog = ctx.catalog(&catalogs.default_catalog);
    let mut known = vec![];
    for schema_name in catalog.iter().flat_map(|catalog| catalog.schema_names()) {
        if schema_name == "information_schema" {
            continue;
        }
        let schema = catalog.as_ref().and_then(|c| c.schema(&schema_name));
        let tables = schema.iter().flat_map(|schema| schema.table_names());
        known.extend(tables.map(|table| {
            if schema_name == catalogs.default_schema {
                table
            } else {
                format!("{schema_name}.{table}")
            }
        }));
    }
    did_you_mean(name, known)
}
