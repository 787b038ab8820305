//! Backslash commands: those of DataFusion's shell, and more.

use std::io::{self, Write};

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion_cli::command::{Command, OutputFormat};
use datafusion_cli::print_options::MaxRows;

use crate::functions::{functions_as_sql, help, quoted, similar};
use crate::results::Expanded;
use crate::shell::Shell;

/// The commands and what they do.
pub const COMMANDS: [(&str, &str); 15] = [
    ("\\?", "this list"),
    ("\\q", "quit"),
    ("\\d", "list tables, and those of the information schema"),
    ("\\d NAME", "the columns of a table"),
    ("\\dt", "list tables and views"),
    ("\\df [TEXT]", "list functions whose name contains the text"),
    (
        "\\h [NAME]",
        "what a function, or a statement such as SELECT, does and how it is written",
    ),
    ("\\i FILE", "run the statements of a file"),
    (
        "\\timing [on|off]",
        "print how many rows a result has and how long it took",
    ),
    ("\\quiet [true|false]", "the opposite of \\timing"),
    (
        "\\pset format NAME",
        "the format of results: csv, tsv, table, json, nd-json or automatic",
    ),
    (
        "\\pset maxrows N",
        "the most rows that a table shows, or 'inf'",
    ),
    (
        "\\x [on|off|auto]",
        "show a column a line; auto: where a table is wider than the terminal",
    ),
    ("\\pset null TEXT", "what NULL is in tables, CSV and TSV"),
    (
        "\\object_store_profiling [disabled|summary|trace]",
        "print requests to object stores",
    ),
];

/// What `\h SELECT` prints.
const SELECT_SYNTAX: &str = "\
Command:     SELECT
Description: rows of tables, files and subqueries
Syntax:
[ WITH [ RECURSIVE ] name [ ( column [, ...] ) ] AS ( select ) [, ...] ]
SELECT [ ALL | DISTINCT [ ON ( expression [, ...] ) ] ]
    { * | expression [ [ AS ] name ] } [, ...]
    [ FROM from_item [, ...] ]
    [ WHERE condition ]
    [ GROUP BY { ALL | grouping_element [, ...] } ]
    [ HAVING condition ]
    [ WINDOW name AS ( window_definition ) [, ...] ]
    [ QUALIFY condition ]
    [ { UNION | INTERSECT | EXCEPT } [ ALL | DISTINCT ] select ]
    [ ORDER BY expression [ ASC | DESC ] [ NULLS { FIRST | LAST } ] [, ...] ]
    [ LIMIT { count | ALL } ]
    [ OFFSET start ]

where from_item can be one of:

    table [ [ AS ] alias [ ( column [, ...] ) ] ]
    'file.parquet' [ [ AS ] alias ]
    [ LATERAL ] ( select ) [ AS ] alias [ ( column [, ...] ) ]
    function ( argument [, ...] ) [ [ AS ] alias ]
    from_item [ NATURAL ] [ INNER | LEFT | RIGHT | FULL ] JOIN from_item [ ON condition | USING ( column [, ...] ) ]
    from_item CROSS JOIN from_item
    from_item { LEFT | RIGHT } { SEMI | ANTI } JOIN from_item ON condition
    from_item ASOF JOIN from_item MATCH_CONDITION ( comparison ) [ ON condition | USING ( column [, ...] ) ]
    from_item ASOF [ LEFT | SEMI | ANTI ] JOIN from_item { ON equality AND ... comparison | USING ( column [, ...] ) }
    from_item ASOF { RIGHT | FULL } JOIN from_item ON equality AND ... comparison
    from_item [ LEFT ] JOIN from_item NEAREST [ count ] BY { DISTANCE | SIMILARITY } expression

A join by a range is fast where one comparison bounds a column of one side by expressions over the other:

    SELECT t.id, min(q.bid) FROM trades t JOIN quotes q
        ON q.sym = t.sym AND q.ts BETWEEN t.ts - INTERVAL '1 minute' AND t.ts GROUP BY t.id

\\df range, \\df frame list the functions over ranges of rows; \\h range_min says what one does.
";

/// Commands of other shells, and those that are used instead.
const FOREIGN_COMMANDS: [(&str, &str); 13] = [
    (".tables", "\\dt"),
    (".schema", "\\d NAME"),
    (".columns", "\\d NAME"),
    (".indexes", "SELECT * FROM rmq_indexes()"),
    (".quit", "\\q"),
    (".exit", "\\q"),
    (".help", "\\?"),
    (".mode", "\\pset format NAME"),
    (".read", "\\i FILE"),
    (".timer", "\\timing"),
    (".maxrows", "\\pset maxrows N"),
    (".nullvalue", "\\pset null TEXT"),
    (".open", "CREATE EXTERNAL TABLE"),
];

fn instead_of(name: &str) -> Option<&'static str> {
    let name = name.trim_end_matches(';').to_lowercase();
    let found = FOREIGN_COMMANDS.iter().find(|(other, _)| *other == name);
    found.map(|(_, ours)| *ours)
}

/// Whether a line is a command of another shell, which is no SQL either.
pub fn is_foreign_command(line: &str) -> bool {
    let word = line.split_whitespace().next();
    word.is_some_and(|word| line.starts_with('.') && instead_of(word).is_some())
}

/// Runs a backslash command, words separated by single spaces, except `\q` and `\i FILE`.
///
/// # Errors
/// If there is no such command, or it fails.
pub async fn run(shell: &mut Shell, command: &str) -> Result<()> {
    let unknown = |()| {
        exec_datafusion_err!(
            "'{command}' is not a valid command, you can use '\\?' to see all commands"
        )
    };
    let (name, argument) = command.split_once(' ').unwrap_or((command, ""));
    if let Some(ours) = instead_of(name) {
        return exec_err!("there is no command '{name}': {ours} is that of rmq, and \\? lists all");
    }
    match (name, argument) {
        ("\\?", "") => shell.run(&commands_as_sql()).await,
        ("\\dt", "") => {
            let tables = "SELECT table_schema, table_name, table_type FROM information_schema.tables \
                          WHERE table_schema <> 'information_schema' ORDER BY table_schema, table_name";
            shell.run(tables).await
        }
        ("\\df", text) => {
            let condition = format!("strpos(name, {}) > 0", quoted(&text.to_lowercase()));
            let functions = functions_as_sql("name, type, syntax", &condition);
            shell.run(&functions).await
        }
        ("\\h", name) if name.eq_ignore_ascii_case("select") => {
            Ok(write!(io::stdout(), "{SELECT_SYNTAX}")?)
        }
        ("\\h", name) if !name.is_empty() => match help(&shell.ctx, name) {
            Some(text) => Ok(write!(io::stdout(), "{text}")?),
            None => match command[1..].parse().map_err(unknown)? {
                Command::SearchFunctions(name) if statement_help(&name) => {
                    Command::SearchFunctions(name)
                        .execute(&shell.ctx, &mut shell.print)
                        .await
                }
                _ => exec_err!(
                    "there is no function or statement '{name}'{}",
                    similar(&shell.ctx, name)
                ),
            },
        },
        ("\\timing", "" | "on" | "off") => {
            shell.print.quiet = match argument {
                "on" => false,
                "off" => true,
                _ => !shell.print.quiet,
            };
            let state = if shell.print.quiet { "off" } else { "on" };
            Ok(writeln!(io::stdout(), "Timing is {state}.")?)
        }
        ("\\x", "" | "on" | "off" | "auto") => {
            shell.expanded = match argument {
                "on" => Expanded::On,
                "off" => Expanded::Off,
                "auto" => Expanded::Auto,
                _ if shell.expanded == Expanded::Off => Expanded::On,
                _ => Expanded::Off,
            };
            let shown = match shell.expanded {
                Expanded::On => "a column a line",
                Expanded::Off => "a row a line",
                Expanded::Auto => "a column a line where a table is wider than the terminal",
            };
            Ok(writeln!(io::stdout(), "Tables have {shown}.")?)
        }
        ("\\x", other) => exec_err!("\\x takes on, off or auto, not '{other}'"),
        ("\\pset", "") => Ok(writeln!(
            io::stdout(),
            "Output format is {:?}.",
            shell.print.format
        )?),
        ("\\pset", setting) => match setting.split_once(' ').unwrap_or((setting, "")) {
            ("maxrows", rows) => {
                let rows = rows.parse::<MaxRows>();
                let rows = rows.map_err(|error| exec_datafusion_err!("{error}"))?;
                shell.set_maxrows(rows);
                Ok(writeln!(io::stdout(), "Tables show {rows} rows.")?)
            }
            ("null", text) => {
                shell.null = Some(text.to_string());
                let text = text.replace('\'', "''");
                let set = format!("SET datafusion.format.null = '{text}'");
                shell.ctx.sql(&set).await?;
                Ok(())
            }
            _ => {
                let format: OutputFormat = setting.parse().map_err(unknown)?;
                format.execute(&mut shell.print)?;
                shell.set_format(shell.print.format);
                Ok(())
            }
        },
        _ => {
            let command: Command = command[1..].parse().map_err(unknown)?;
            let done = command.execute(&shell.ctx, &mut shell.print).await;
            done.map_err(|error| shell.explain_missing_table(error))
        }
    }
}

/// Whether DataFusion's shell knows the syntax of this statement.
fn statement_help(name: &str) -> bool {
    name.parse::<datafusion_cli::functions::Function>().is_ok()
}

fn commands_as_sql() -> String {
    let rows = COMMANDS.iter().enumerate().map(|(i, (name, description))| {
        format!("({i}, {}, {})", quoted(name), quoted(description))
    });
    let rows = rows.collect::<Vec<_>>().join(", ");
    format!(
        "SELECT command, description FROM (VALUES {rows}) AS c(i, command, description) ORDER BY i"
    )
}
