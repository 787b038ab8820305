//! Names like one that is not known.

use datafusion::common::utils::datafusion_strsim::normalized_levenshtein;
use datafusion::prelude::SessionContext;

/// Names are alike from this on, of 1 for equal ones.
const ALIKE: f64 = 0.6;

/// The most names that are suggested.
const MOST: usize = 3;

/// The tables of the session's catalog whose names are like this one, as a question; empty if there are none.
pub fn tables_like(ctx: &SessionContext, name: &str) -> String {
    let config = ctx.copied_config();
    let catalogs = &config.options().catalog;
    let catalog = ctx.catalog(&catalogs.default_catalog);
    let mut found = vec![];
    for schema_name in catalog.iter().flat_map(|catalog| catalog.schema_names()) {
        let schema = catalog.as_ref().and_then(|c| c.schema(&schema_name));
        for table in schema.iter().flat_map(|schema| schema.table_names()) {
            let shown = if schema_name == catalogs.default_schema {
                table.clone()
            } else {
                format!("{schema_name}.{table}")
            };
            let likeness = [&table, &shown].map(|known| alike(known, name));
            let likeness = likeness.into_iter().fold(0.0, f64::max);
            if likeness >= ALIKE && schema_name != "information_schema" {
                found.push((likeness, shown));
            }
        }
    }
    found.sort_by(|(a, x), (b, y)| b.total_cmp(a).then_with(|| x.cmp(y)));
    found.truncate(MOST);
    let names: Vec<String> = found
        .into_iter()
        .map(|(_, name)| format!("'{name}'"))
        .collect();
    if names.is_empty() {
        String::new()
    } else {
        format!(". Did you mean {}?", names.join(" or "))
    }
}

fn alike(known: &str, name: &str) -> f64 {
    let (known, name) = (known.to_lowercase(), name.to_lowercase());
    // As where a plural is a singular.
    let is_part = name.len() >= 3
        && known.len() >= 3
        && (known.starts_with(&name) || name.starts_with(&known));
    if is_part {
        1.0
    } else {
        normalized_levenshtein(&known, &name)
    }
}
