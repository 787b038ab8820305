//! What a lateral join means: the subquery is run for each outer row, with its values as constants.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::Schema;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_dependent_join::with_dependent_joins;
use rmq_testing::Random;

use crate::generator::Pair;

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
        let builder = SessionStateBuilder::new_with_default_features().with_config(config());
        let unnesting = SessionContext::new_with_state(with_dependent_joins(builder).build());
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
        let lateral = with_columns(subquery);
        let sql = format!("SELECT q.id, x.* FROM q {kind} LATERAL ({lateral}) AS x{condition}");
        let mut got = match self.unnested(&sql).await {
            Ok(rows) => rows,
            Err(error) => panic!("{sql}\n{error}"),
        };

        let mut expected = vec![];
        for outer in self.outer_rows().await {
            let (row, subquery) = (outer.relation(), outer.with_constants(subquery));
            let joined = format!(
                "SELECT q.id, x.* FROM ({row}) AS q LEFT JOIN ({subquery}) AS x ON {}",
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

    /// Fails unless a query over `q` has the rows that it has where `{E}` and `{B}` are columns of `q`, computed for one
    /// row after the other. It fails where a scalar subquery has more than one row.
    pub async fn check_query(&self, place: &str, value: &Pair, condition: &Pair) {
        let sql = place.replace("{E}", &value.sql);
        let sql = with_columns(&sql.replace("{B}", &condition.sql));
        let got = self.unnested(&sql).await;

        let mut expressions = vec![];
        for (mark, name, pair) in [("{E}", "e", value), ("{B}", "c", condition)] {
            if place.contains(mark) {
                expressions.push(format!(", {} AS rmq_{name}", pair.naive));
            }
        }
        let mut all = vec![];
        for outer in self.outer_rows().await {
            let row = outer.relation();
            let expressions = outer.with_constants(&expressions.concat());
            let computed = format!("SELECT q.*{expressions} FROM ({row}) AS q");
            let batches = match self.plain.sql(&computed).await {
                Ok(frame) => frame.collect().await,
                Err(error) => Err(error),
            };
            match batches {
                Ok(batches) => all.extend(batches),
                Err(error) if error.to_string().contains("more than one row") => {
                    // The query may leave out this row, or the branch of a CASE.
                    if let Err(error) = got {
                        let error = error.to_string();
                        assert!(error.contains("more than one row"), "{sql}\n{error}");
                    }
                    return;
                }
                Err(error) => {
                    eprintln!("no plan for the naive query: {computed}\n{error}");
                    return;
                }
            }
        }
        let Some(first) = all.first() else {
            return;
        };
        let fields = first
            .schema()
            .fields()
            .iter()
            .map(|field| field.as_ref().clone().with_nullable(true))
            .collect::<Vec<_>>();
        let schema = Arc::new(Schema::new(fields));
        let all = all.into_iter().map(|batch| {
            batch
                .with_schema(Arc::clone(&schema))
                .expect("the same types")
        });
        let rows = self
            .plain
            .read_batches(all.collect::<Vec<_>>())
            .expect("batches");
        let table = rows.into_view();
        self.plain.deregister_table("outer_rows").expect("a table");
        self.plain
            .register_table("outer_rows", table)
            .expect("a table");
        let naive = place.replace("{E}", "q.rmq_e").replace("{B}", "q.rmq_c");
        let naive = naive
            .replace("FROM q", "FROM outer_rows AS q")
            .replace("JOIN q", "JOIN outer_rows AS q");
        let mut expected = match self.plain(&naive).await {
            Ok(rows) => rows,
            Err(error) => {
                eprintln!("no plan for the naive query: {naive}\n{error}");
                return;
            }
        };
        let mut got = match got {
            Ok(rows) => rows,
            Err(error) => panic!("{sql}\n{error}"),
        };
        if !place.contains("FROM q ORDER BY") {
            got.sort();
            expected.sort();
        }
        assert!(
            got == expected,
            "{sql}\n got      {got:?}\n expected {expected:?}"
        );
    }

    async fn outer_rows(&self) -> Vec<OuterRow> {
        let rows = self.plain("SELECT id, a, b, s, f FROM q").await.expect("q");
        rows.into_iter().map(OuterRow).collect()
    }
}

/// A row of `q`, as texts.
struct OuterRow(Vec<String>);

impl OuterRow {
    fn constants(&self) -> impl Iterator<Item = (&'static str, String)> {
        OUTER
            .iter()
            .zip(&self.0[1..])
            .map(|((name, data_type), value)| {
                let value = match value.as_str() {
                    "NULL" => format!("CAST(NULL AS {data_type})"),
                    value => format!("CAST('{value}' AS {data_type})"),
                };
                (*name, value)
            })
    }

    /// A query of one row.
    fn relation(&self) -> String {
        let columns = self
            .constants()
            .map(|(name, value)| format!(", {value} AS {name}"));
        format!(
            "SELECT CAST({} AS INT) AS id{}",
            self.0[0],
            columns.collect::<String>()
        )
    }

    /// SQL with constants in place of outer columns.
    fn with_constants(&self, sql: &str) -> String {
        self.constants()
            .fold(sql.to_string(), |sql, (name, value)| {
                sql.replace(&format!("{{{name}}}"), &value)
            })
    }
}

/// SQL with the columns of `q` in place of outer columns.
fn with_columns(sql: &str) -> String {
    OUTER.iter().fold(sql.to_string(), |sql, (name, _)| {
        sql.replace(&format!("{{{name}}}"), &format!("q.{name}"))
    })
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
