//! What a lateral join means: the subquery is run for each outer row, with its values as constants.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_dependent_join::{add_to_analyzer, add_to_optimizer, single_row_udf};
use rmq_testing::Random;

use crate::generator::Pair;

/// The columns of the outer table `q` that subqueries refer to, and their types.
const OUTER: [(&str, &str); 4] = [
    ("a", "INT"),
    ("b", "INT"),
    ("s", "VARCHAR"),
    ("f", "DOUBLE"),
];

/// Statements that create `q`, `p` and `r` with duplicates, NULLs and a NaN.
pub const TABLES: [&str; 3] = [
    "CREATE TABLE q (id INT, a INT, b INT, s VARCHAR, f DOUBLE) AS VALUES (1, 1, 3, 'x', 1.5), (1, 1, 3, 'x', 1.5), \
         (2, NULL, 2, NULL, 'NaN'), (3, 9, NULL, 'none', NULL), (4, 2, 0, '', 0.0)",
    "CREATE TABLE p (id INT, k INT, v INT, t VARCHAR, g DOUBLE) AS VALUES (1, 1, 5, 'x', 1.5), (2, 1, 5, 'xy', 'NaN'), \
         (3, 2, 7, '', 0.0), (4, 3, NULL, NULL, NULL), (5, NULL, 1, 'x', 2.5), (6, 2, 7, 'z', 0.0), (7, 1, 9, 'x', 1.0)",
    "CREATE TABLE r (id INT, k INT, v INT, t VARCHAR, g DOUBLE) AS VALUES (1, 1, 5, 'x', 1.5), (2, 4, 1, 'y', 1.0)",
];

/// A session with the rules and one without them, over the same tables.
pub struct Sessions {
    unnesting: SessionContext,
    plain: SessionContext,
    /// The statements that made the tables.
    tables: String,
}

/// How the values of an outer row stand in a subquery.
///
/// As constants they are folded, in which DataFusion has faults: a condition that is NULL moves below an aggregate, and
/// a FULL JOIN loses values. A volatile function is not folded, and keeps rules from moving what has it.
#[derive(Clone, Copy, Debug)]
enum Constants {
    Literal,
    Opaque,
}

impl Sessions {
    pub async fn new(tables: &[String]) -> Result<Self> {
        let builder = || {
            let config = SessionConfig::new()
                .with_target_partitions(2)
                .with_batch_size(3);
            // This rule takes a column of one side of a join for that of the other side with the same name.
            let mut rules = PhysicalOptimizer::new().rules;
            rules.retain(|rule| rule.name() != "FilterPushdown");
            SessionStateBuilder::new_with_default_features()
                .with_config(config)
                .with_physical_optimizer_rules(rules)
        };
        let mut unnesting = builder();
        add_to_analyzer(unnesting.analyzer().get_or_insert_default());
        add_to_optimizer(unnesting.optimizer().get_or_insert_default());
        let functions = unnesting.scalar_functions().get_or_insert_default();
        functions.push(single_row_udf());
        let unnesting = unnesting.build();
        let unnesting = SessionContext::new_with_state(unnesting);
        let plain = SessionContext::new_with_state(builder().build());
        plain.register_udf(ScalarUDF::new_from_impl(Opaque::new()));
        for table in tables {
            for context in [&unnesting, &plain] {
                context.sql(table).await?.collect().await?;
            }
        }
        let tables = tables.join(";\n");
        Ok(Self {
            unnesting,
            plain,
            tables,
        })
    }

    /// Rows of a query with the rules.
    pub async fn unnested(&self, sql: &str) -> Result<Vec<Vec<String>>> {
        rows(&self.unnesting, sql).await
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
            Err(error) if error.to_string().contains(SANITY) => return,
            Err(error) => panic!("{sql}\n{error}"),
        };
        got.sort();
        let mut others = vec![];
        for constants in [Constants::Literal, Constants::Opaque] {
            match joined(&self.plain, constants, subquery, is_left, on).await {
                Ok(expected) if expected == got => return,
                Ok(expected) => others.push(expected),
                Err(error) => eprintln!("no plan for the naive query of {sql}\n{error}"),
            }
        }
        assert!(
            others.is_empty(),
            "{};\n{sql}\n got      {got:?}\n expected {others:?}",
            self.tables
        );
    }

    /// Fails unless a query over `q` has the rows that it has where `{E}` and `{B}` are columns of `q`, computed for
    /// one row after the other. It fails where a scalar subquery has more than one row.
    pub async fn check_query(&self, place: &str, value: &Pair, condition: &Pair) {
        let sql = place.replace("{E}", &value.sql);
        let sql = with_columns(&sql.replace("{B}", &condition.sql));
        let got = self.unnested(&sql).await;
        let mut others = vec![];
        for constants in [Constants::Literal, Constants::Opaque] {
            match (
                computed(&self.plain, constants, place, value, condition).await,
                &got,
            ) {
                (Ok(expected), Ok(got)) => {
                    let mut got = got.clone();
                    let mut sorted = expected.clone();
                    if !place.contains("FROM q ORDER BY") {
                        got.sort();
                        sorted.sort();
                    }
                    if got == sorted {
                        return;
                    }
                    others.push(expected);
                }
                (Ok(_), Err(error)) if error.to_string().contains(SANITY) => return,
                (Ok(_), Err(error)) => panic!("{sql}\n{error}"),
                (Err(error), got) if error.to_string().contains(SEVERAL) => {
                    // The query may leave out this row, or the branch of a CASE.
                    if let Err(error) = got {
                        let error = error.to_string();
                        assert!(error.contains(SEVERAL), "{sql}\n{error}");
                    }
                    return;
                }
                (Err(error), _) => eprintln!("no plan for the naive query of {sql}\n{error}"),
            }
        }
        if sql.contains("FULL JOIN") && sql.contains(" LIMIT 1") {
            // Of a FULL JOIN with constants DataFusion takes other rows for the first ones.
            return;
        }
        assert!(
            others.is_empty(),
            "{};\n{sql}\n got      {got:?}\n expected {others:?}",
            self.tables
        );
    }
}

/// An error of DataFusion where conditions make some of the columns equal that a window function is partitioned by.
const SANITY: &str = "does not satisfy order requirements";

/// What an error of a scalar subquery says.
const SEVERAL: &str = "more than one row";

/// The rows of a lateral join: the subquery is run for one row of `q` after the other.
async fn joined(
    context: &SessionContext,
    constants: Constants,
    subquery: &str,
    is_left: bool,
    on: Option<&str>,
) -> Result<Vec<Vec<String>>> {
    let kind = if is_left { "LEFT JOIN" } else { "INNER JOIN" };
    let on = on.unwrap_or("true");
    let mut all = vec![];
    for outer in outer_rows(context).await? {
        let (row, subquery) = (outer.relation(), outer.with_constants(constants, subquery));
        let joined = format!("SELECT q.id, x.* FROM ({row}) AS q {kind} ({subquery}) AS x ON {on}");
        all.extend(rows(context, &joined).await?);
    }
    all.sort();
    Ok(all)
}

/// The rows of a query over `q` with the values of subqueries as columns of `q`.
async fn computed(
    context: &SessionContext,
    constants: Constants,
    place: &str,
    value: &Pair,
    condition: &Pair,
) -> Result<Vec<Vec<String>>> {
    let mut expressions = vec![];
    for (mark, name, pair) in [("{E}", "e", value), ("{B}", "c", condition)] {
        if place.contains(mark) {
            expressions.push(format!(", {} AS rmq_{name}", pair.naive));
        }
    }
    let mut all = vec![];
    for outer in outer_rows(context).await? {
        let row = outer.relation();
        let expressions = outer.with_constants(constants, &expressions.concat());
        let computed = format!("SELECT q.*{expressions} FROM ({row}) AS q");
        all.extend(context.sql(&computed).await?.collect().await?);
    }
    let Some(first) = all.first() else {
        return rows(context, &place.replace("{E}", "0").replace("{B}", "false")).await;
    };
    let fields = first.schema();
    let fields = fields
        .fields()
        .iter()
        .map(|field| field.as_ref().clone().with_nullable(true));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let nullable = all
        .into_iter()
        .map(|batch| batch.with_schema(Arc::clone(&schema)));
    let nullable = nullable.collect::<std::result::Result<Vec<_>, _>>()?;
    let table = context.read_batches(nullable)?.into_view();
    context.deregister_table("outer_rows")?;
    context.register_table("outer_rows", table)?;
    let naive = place.replace("{E}", "q.rmq_e").replace("{B}", "q.rmq_c");
    let naive = naive.replace("FROM q", "FROM outer_rows AS q");
    rows(context, &naive.replace("JOIN q", "JOIN outer_rows AS q")).await
}

async fn outer_rows(context: &SessionContext) -> Result<Vec<OuterRow>> {
    let rows = rows(context, "SELECT id, a, b, s, f FROM q").await?;
    Ok(rows.into_iter().map(OuterRow).collect())
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
    fn with_constants(&self, constants: Constants, sql: &str) -> String {
        let sql = match constants {
            Constants::Literal => sql.to_string(),
            // DataFusion also drops the order below an OFFSET without LIMIT, and that by a column of a single row.
            Constants::Opaque => FAULTS.iter().fold(sql.to_string(), |sql, (faulty, right)| {
                sql.replace(faulty, right)
            }),
        };
        self.constants().fold(sql, |sql, (name, value)| {
            let value = match constants {
                Constants::Literal => value,
                Constants::Opaque => format!("opaque({value})"),
            };
            sql.replace(&format!("{{{name}}}"), &value)
        })
    }
}

/// What DataFusion answers wrongly in naive queries, and what means the same.
const FAULTS: [(&str, &str); 5] = [
    (
        "(VALUES ({a}, CAST(1 AS INT)), (CAST(2 AS INT), {b}))",
        "(SELECT {a} AS column1, CAST(1 AS INT) AS column2 FROM generate_series(1, 1) UNION ALL \
         SELECT CAST(2 AS INT), {b} FROM generate_series(1, 1))",
    ),
    (
        "SELECT {a} AS k, {b} AS v",
        "SELECT {a} AS k, {b} AS v FROM generate_series(1, 1)",
    ),
    (" OFFSET 1", " LIMIT 1000 OFFSET 1"),
    ("LIMIT 1 LIMIT 1000 OFFSET", "LIMIT 1 OFFSET"),
    ("LIMIT 2 LIMIT 1000 OFFSET", "LIMIT 2 OFFSET"),
];

/// A function that returns its argument, of any type, and is volatile.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Opaque {
    signature: Signature,
}

impl Opaque {
    fn new() -> Self {
        Self {
            signature: Signature::any(1, Volatility::Volatile),
        }
    }
}

impl ScalarUDFImpl for Opaque {
    fn name(&self) -> &str {
        "opaque"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        Ok(arg_types[0].clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(args.args[0].clone())
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
