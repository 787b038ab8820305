//! What a lateral join means: the subquery is run for each outer row, with its values as constants.

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_dependent_join::add_rules;
use rmq_testing::Random;

/// The columns of the outer table `q` that subqueries refer to, and their types.
const OUTER: [(&str, &str); 4] = [
    ("a", "INT"),
    ("b", "INT"),
    ("s", "VARCHAR"),
    ("f", "DOUBLE"),
];

/// A session with the rule and one without, over the same tables.
pub struct Sessions {
    unnesting: SessionContext,
    plain: SessionContext,
}

impl Sessions {
    pub async fn new(tables: &[String]) -> Result<Self> {
        let config = || {
            SessionConfig::new()
                .with_target_partitions(2)
                .with_batch_size(3)
        };
        let mut state = SessionStateBuilder::new_with_default_features().with_config(config());
        let mut optimizer = state.optimizer().take().unwrap_or_default();
        add_rules(&mut optimizer.rules);
        let state = state.with_optimizer_rules(optimizer.rules).build();
        let unnesting = SessionContext::new_with_state(state);
        let plain = SessionContext::new_with_config(config());
        for table in tables {
            unnesting.sql(table).await?.collect().await?;
            plain.sql(table).await?.collect().await?;
        }
        Ok(Self { unnesting, plain })
    }

    /// Rows of a query with the rule.
    pub async fn unnested(&self, sql: &str) -> Result<Vec<Vec<String>>> {
        rows(&self.unnesting, sql).await
    }

    /// Rows of a query without the rule.
    pub async fn plain(&self, sql: &str) -> Result<Vec<Vec<String>>> {
        rows(&self.plain, sql).await
    }

    /// Fails unless `SELECT q.*, x.* FROM q … LATERAL` has the rows that the subquery has for each row of `q`. In the
    /// subquery `{a}` is the column `q.a`. `on` is a condition on `q` and `x`.
    pub async fn check(&self, subquery: &str, is_left: bool, on: Option<&str>) {
        let kind = match (is_left, on) {
            (true, _) => "LEFT JOIN",
            (false, Some(_)) => "INNER JOIN",
            (false, None) => "CROSS JOIN",
        };
        let condition = match (is_left, on) {
            (true, None) => " ON true".to_string(),
            (_, Some(on)) => format!(" ON {on}"),
            (false, None) => String::new(),
        };
        let lateral = OUTER.iter().fold(subquery.to_string(), |sql, (name, _)| {
            sql.replace(&format!("{{{name}}}"), &format!("q.{name}"))
        });
        let sql = format!("SELECT q.id, x.* FROM q {kind} LATERAL ({lateral}) AS x{condition}");
        let mut got = match self.unnested(&sql).await {
            Ok(rows) => rows,
            Err(error) => panic!("{sql}\n{error}"),
        };

        let mut expected = vec![];
        for outer in self.plain("SELECT id, a, b, s, f FROM q").await.expect("q") {
            let mut subquery = subquery.to_string();
            let mut values = format!("{} AS id", outer[0]);
            for ((name, data_type), value) in OUTER.iter().zip(&outer[1..]) {
                let value = match (value.as_str(), *data_type) {
                    ("NULL", _) => format!("CAST(NULL AS {data_type})"),
                    (value, _) => format!("CAST('{value}' AS {data_type})"),
                };
                subquery = subquery.replace(&format!("{{{name}}}"), &value);
                values += &format!(", {value} AS {name}");
            }
            let joined = format!(
                "SELECT q.id, x.* FROM (SELECT {values}) AS q LEFT JOIN ({subquery}) AS x ON {}",
                on.unwrap_or("true")
            );
            let inner = joined.replacen("LEFT JOIN", "INNER JOIN", 1);
            let joined = if is_left { joined } else { inner };
            match self.plain(&joined).await {
                Ok(rows) => expected.extend(rows),
                // Faults of DataFusion with constants, such as an order that is lost by a column which a filter fixes.
                Err(error) => {
                    eprintln!("no plan for the naive query: {joined}\n{error}");
                    return;
                }
            }
        }
        got.sort();
        expected.sort();
        assert!(
            got == expected,
            "{sql}\n got      {got:?}\n expected {expected:?}"
        );
    }
}

async fn rows(context: &SessionContext, sql: &str) -> Result<Vec<Vec<String>>> {
    let batches = context.sql(sql).await?.collect().await?;
    Ok(batches.iter().flat_map(texts).collect())
}

fn texts(batch: &RecordBatch) -> Vec<Vec<String>> {
    let options = FormatOptions::new().with_null("NULL");
    let columns: Vec<_> = (batch.columns().iter())
        .map(|column| {
            ArrayFormatter::try_new(column.as_ref(), &options).expect("a type with a text")
        })
        .collect();
    let row = |i| {
        columns
            .iter()
            .map(|column| column.value(i).to_string())
            .collect()
    };
    (0..batch.num_rows()).map(row).collect()
}

/// Statements that create `q`, `p` and `r` with few different values, NULLs and duplicates. One of them may be empty.
pub fn tables(random: &mut Random) -> Vec<String> {
    let empty = random.below(12);
    let table = |random: &mut Random, name: &str, rows: usize, columns: &[(&str, &str)]| {
        let names: Vec<_> = columns
            .iter()
            .map(|(name, kind)| format!("{name} {kind}"))
            .collect();
        let mut statements = vec![format!(
            "CREATE TABLE {name} ({}) AS VALUES ",
            names.join(", ")
        )];
        let values: Vec<_> = (0..rows.max(1))
            .map(|i| {
                let row = columns
                    .iter()
                    .map(|(name, kind)| value(random, name, kind, i));
                format!("({})", row.collect::<Vec<_>>().join(", "))
            })
            .collect();
        statements[0] += &values.join(", ");
        if rows == 0 {
            let source = statements.remove(0).replacen(
                &format!("TABLE {name}"),
                &format!("TABLE {name}_1"),
                1,
            );
            statements.push(source);
            statements.push(format!(
                "CREATE TABLE {name} AS SELECT * FROM {name}_1 WHERE false"
            ));
        }
        statements
    };
    let rows = |random: &mut Random, i: usize, most: usize| match empty == i {
        true => 0,
        false => 1 + random.below(most),
    };
    let outer = [
        ("id", "INT"),
        ("a", "INT"),
        ("b", "INT"),
        ("s", "VARCHAR"),
        ("f", "DOUBLE"),
    ];
    let inner = [
        ("id", "INT"),
        ("k", "INT"),
        ("v", "INT"),
        ("t", "VARCHAR"),
        ("g", "DOUBLE"),
    ];
    let length = rows(random, 0, 6);
    let mut all = table(random, "q", length, &outer);
    let length = rows(random, 1, 12);
    all.extend(table(random, "p", length, &inner));
    let length = rows(random, 2, 5);
    all.extend(table(random, "r", length, &inner));
    all
}

fn value(random: &mut Random, name: &str, kind: &str, row: usize) -> String {
    if name == "id" {
        // An outer row may be there twice.
        return (row - random.below(2).min(row)).to_string();
    }
    if random.below(5) == 0 {
        return "NULL".to_string();
    }
    match kind {
        "INT" => random.below(5).to_string(),
        "DOUBLE" => ["0.0", "1.5", "2.0", "'NaN'", "'-0.0'"][random.below(5)].to_string(),
        _ => ["'x'", "'y'", "''"][random.below(3)].to_string(),
    }
}
