//! The functions of a session and what they do.

use std::cmp::Reverse;
use std::fmt::Write as _;

use datafusion::logical_expr::Documentation;
use datafusion::prelude::SessionContext;

/// Functions in FROM, which DataFusion does not document.
const TABLE_FUNCTIONS: [(&str, &str, &str); 5] = [
    (
        "range_join",
        "range_join('probe', 'build', 'equal columns', 'condition', 'aggregates' [, 'include prevailing'])",
        "The rows of a table, with aggregates of the rows of another one whose key is in a range: SELECT * FROM range_join('trades', \
         'quotes', 'sym', 'quotes.ts BETWEEN trades.a AND trades.b', 'min(price) AS low')",
    ),
    (
        "range_min",
        "range_min('table.column', 'ranges', 'l', 'r')",
        "The rows of a table of ranges, with the least value of a column between the positions l and r, and its position",
    ),
    (
        "range_max",
        "range_max('table.column', 'ranges', 'l', 'r')",
        "The rows of a table of ranges, with the greatest value of a column between the positions l and r, and its position",
    ),
    (
        "rmq_indexes",
        "rmq_indexes()",
        "The indexes that are kept for later queries",
    ),
    (
        "rmq_devices",
        "rmq_devices()",
        "The GPUs that answer range queries, and their memory",
    ),
];

/// A query for the functions whose names meet a condition, such as `name LIKE 'range%'`. DataFusion's own leaves out
/// functions that take arguments of many types.
pub fn functions_as_sql(columns: &str, condition: &str) -> String {
    let tables = TABLE_FUNCTIONS.map(|(name, syntax, description)| {
        let [name, syntax, description] = [name, syntax, description].map(quoted);
        format!("({name}, 'TABLE', {syntax}, {description})")
    });
    let names = TABLE_FUNCTIONS.map(|(name, ..)| quoted(name)).join(", ");
    let tables = tables.join(", ");
    format!(
        "SELECT DISTINCT {columns} FROM (
           SELECT routine_name AS name, function_type AS type, syntax_example AS syntax, description
           FROM information_schema.routines
           WHERE function_type <> 'TABLE' OR routine_name NOT IN ({names})
           UNION ALL SELECT * FROM (VALUES {tables}) AS t(name, type, syntax, description)
         ) AS f WHERE {condition} ORDER BY name, type"
    )
}

/// What a function does, in all of its forms. `None` if there is no such function.
pub fn help(ctx: &SessionContext, name: &str) -> Option<String> {
    let name = name.trim_end_matches("()").to_lowercase();
    let state = ctx.state();
    let scalar = state.scalar_functions().get(&name);
    let aggregate = state.aggregate_functions().get(&name);
    let window = state.window_functions().get(&name);
    let forms = [
        ("scalar function", scalar.map(|f| f.documentation())),
        ("aggregate function", aggregate.map(|f| f.documentation())),
        ("window function", window.map(|f| f.documentation())),
    ];
    let mut text = String::new();
    for (form, documentation) in forms {
        if let Some(documentation) = documentation {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name}: {form}");
            describe(&mut text, documentation);
        }
    }
    for (_, syntax, description) in TABLE_FUNCTIONS.iter().filter(|(other, ..)| *other == name) {
        let _ = writeln!(
            text,
            "{name}: table function\n{description}\n\nSyntax:\n  {syntax}\n"
        );
    }
    if text.is_empty() && state.table_functions().contains_key(&name) {
        let _ = writeln!(text, "{name}: table function");
    }
    (!text.is_empty()).then_some(text)
}

fn describe(text: &mut String, documentation: Option<&Documentation>) {
    let Some(documentation) = documentation else {
        return;
    };
    let _ = writeln!(
        text,
        "{}\n\nSyntax:\n  {}",
        documentation.description.trim(),
        documentation.syntax_example
    );
    for (argument, description) in documentation.arguments.iter().flatten() {
        let _ = writeln!(text, "    {argument}: {description}");
    }
    if let Some(example) = &documentation.sql_example {
        let example = example
            .trim()
            .trim_start_matches("```sql")
            .trim_end_matches("```");
        let _ = writeln!(
            text,
            "\nExample:\n  {}",
            example.trim().replace('\n', "\n  ")
        );
    }
    let _ = writeln!(text);
}

/// The names of all functions of a session.
pub fn functions(ctx: &SessionContext) -> Vec<String> {
    let state = ctx.state();
    let names = state.scalar_functions().keys();
    let names = names.chain(state.aggregate_functions().keys());
    let names = names.chain(state.window_functions().keys());
    let mut names: Vec<String> = names
        .chain(state.table_functions().keys())
        .cloned()
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Functions with a part of this name, as a question.
pub fn similar(ctx: &SessionContext, name: &str) -> String {
    let name = name.to_lowercase();
    let shared = |other: &str| {
        let pairs = name.chars().zip(other.chars());
        pairs.take_while(|(a, b)| a == b).count()
    };
    let mut found = functions(ctx);
    found.retain(|other| 2 * shared(other) >= name.len());
    found.sort_by_key(|other| Reverse((shared(other), Reverse(other.len()))));
    found.truncate(5);
    if found.is_empty() {
        "; \\df lists all functions".to_string()
    } else {
        format!("; there are {}", found.join(", "))
    }
}

/// A text as a literal.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
